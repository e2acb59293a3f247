"""LeNet in an actor: the network stays in one process and learns there; the driver asks for its accuracy.

The class knows nothing of weft. It is trained twice, as an actor and as a plain object in this process, with the same
seed; both must reach the same accuracy.
"""

import digits
import numpy as np
import torch
import weft
from results import finish
from torch import nn

EPOCHS = 8
BAR = 0.95


class LeNet:
    def __init__(self, seed):
        torch.set_num_threads(1)  # sums in the same order in every process; one CPU is what an actor has
        torch.manual_seed(seed)
        self.network = nn.Sequential(
            *(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2)),  # 6 pictures of 14x14
            *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)),  # 16 of 5x5
            *(nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)),
        )
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.002)
        *train, self.test, self.test_labels = (torch.from_numpy(array) for array in digits.load(side=32))
        self.train = torch.utils.data.TensorDataset(train[0].unsqueeze(1), train[1])

    def train_epoch(self):
        """Learn from each picture once; the mean loss."""
        losses = []
        for pictures, labels in torch.utils.data.DataLoader(self.train, batch_size=32, shuffle=True):
            loss = nn.functional.cross_entropy(self.network(pictures), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return np.mean(losses)

    def accuracy(self):
        with torch.no_grad():
            guesses = self.network(self.test.unsqueeze(1)).argmax(1)
        return (guesses == self.test_labels).double().mean().item()


if __name__ == "__main__":
    plain = LeNet(seed=1)
    expected = []
    for _ in range(EPOCHS):
        plain.train_epoch()
        expected.append(plain.accuracy())

    with weft.init(num_cpus=2):
        lenet = weft.remote(LeNet).remote(seed=1)
        reached = []
        for epoch in range(EPOCHS):
            loss = lenet.train_epoch.remote()
            reached.append(weft.get(lenet.accuracy.remote()))  # calls run in order: this is after the epoch
            print(f"epoch {epoch + 1}: loss {weft.get(loss):.3f}, accuracy {reached[-1]:.3f}")

    assert reached == expected, f"in an actor {reached}, in this process {expected}"
    curves = {"in an actor, and without weft": reached}
    finish("LeNet: accuracy on digits", reached[-1], BAR, curves, x="epoch", y="accuracy")
