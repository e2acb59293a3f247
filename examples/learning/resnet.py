"""ResNet by data parallelism: two actors learn from halves of each batch, with the same weights.

The weights lie in weft's parameter server. In each step both actors pull them, compute the gradients of their pictures
and push those; when both have pushed, the server makes one step with the mean. Pictures have the shape of CIFAR's,
3x32x32: scikit-learn's digits, enlarged, in random colours on random colours.
"""

import digits
import numpy as np
import torch
import weft
from results import finish
from torch import nn
from weft.util import ParameterServer

WORKERS = 2
EPOCHS = 7
BATCH = 16  # of one worker
BAR = 0.85


def coloured(pictures, seed):
    """From grey pictures of 32x32 those of 3x32x32; ink and paper have colours that differ enough."""
    random = np.random.default_rng(seed)
    paper = random.uniform(0, 1, (len(pictures), 3, 1, 1))
    ink = (paper + random.uniform(0.4, 0.6, paper.shape)) % 1
    mixed = paper + pictures[:, None] * (ink - paper)
    return torch.from_numpy((mixed - 0.5).astype(np.float32))


class Block(nn.Module):
    """Two convolutions, whose result is added to what came in."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.path = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet():
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Momentum:
    """How the server makes a step; it lives there, with its state."""

    def __init__(self, rate, keep):
        self.rate, self.keep, self.speeds = rate, keep, {}

    def __call__(self, name, weights, gradient):
        speed = self.speeds.setdefault(name, np.zeros_like(weights))
        speed *= self.keep
        speed += gradient
        weights -= self.rate * speed


@weft.remote
class Worker:
    def __init__(self, number, server):
        torch.set_num_threads(1)
        self.number, self.server, self.network = number, server, resnet()
        pictures, labels, test, self.test_labels = digits.load(side=32)
        self.pictures, self.labels = coloured(pictures, seed=0), torch.from_numpy(labels)
        self.test = coloured(test, seed=1)

    def pull(self):
        with torch.no_grad():
            for (_, weight), array in zip(self.network.named_parameters(), self.server.pull().values()):
                weight.copy_(torch.from_numpy(array.copy()))

    def train_epoch(self, epoch):
        """Learn from this worker's half of the pictures; the loss of each step."""
        self.network.train()
        order = np.random.default_rng(epoch).permutation(len(self.labels))[self.number :: WORKERS]
        losses = []
        for batch in np.array_split(order, len(self.labels) // (WORKERS * BATCH)):  # as many steps as the others
            self.pull()
            loss = nn.functional.cross_entropy(self.network(self.pictures[batch]), self.labels[batch])
            self.network.zero_grad()
            loss.backward()
            gradients = {name: weight.grad.numpy() for name, weight in self.network.named_parameters()}
            self.server.push(gradients, worker=self.number)
            losses.append(loss.item())
        return losses

    def accuracy(self):
        self.pull()
        self.network.eval()  # with the means that BatchNorm has seen here
        with torch.no_grad():
            return (self.network(self.test).argmax(1).numpy() == self.test_labels).mean()


if __name__ == "__main__":
    with weft.init(num_cpus=WORKERS):
        start = {name: weight.detach().numpy() for name, weight in resnet().named_parameters()}
        server = ParameterServer(start, workers=WORKERS, update=Momentum(rate=0.02, keep=0.9))
        workers = [Worker.remote(number, server) for number in range(WORKERS)]
        accuracies = []
        for epoch in range(EPOCHS):
            losses = weft.get([worker.train_epoch.remote(epoch) for worker in workers])
            accuracies.append(weft.get(workers[0].accuracy.remote()))
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, accuracy {accuracies[-1]:.3f}")
    finish(
        "ResNet: accuracy on coloured digits", accuracies[-1], BAR, {"accuracy": accuracies}, x="epoch", y="accuracy"
    )
