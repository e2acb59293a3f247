"""All-reduce of gradients: actors in a ring add up their gradients among themselves, without a server.

Each actor has a copy of the network and its own data. A gradient is divided into as many parts as there are actors.
Part i begins at actor i and goes round the ring; each actor adds its own. After one round every part is complete, and
all actors take all parts. The driver only passes references on: the numbers go from actor to actor, each the same
amount, and on one machine through shared memory.
"""

import digits
import numpy as np
import torch
import weft
from results import finish
from weft.util import weights

ACTORS = 4
STEPS = 100
RATE = 0.5
BAR = 0.93


class Replica:
    """A copy of the network and the training pictures number, number + among, number + 2 * among..."""

    def __init__(self, number, among):
        torch.set_num_threads(1)
        torch.manual_seed(0)  # all begin alike
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
        pictures, labels, test, self.test_labels = digits.load()
        self.count = len(pictures)
        self.pictures = torch.from_numpy(pictures[number::among]).flatten(1)
        self.labels = torch.from_numpy(labels[number::among])
        self.test = torch.from_numpy(test).flatten(1)
        self.among = among

    def part(self, index):
        """Compute the gradient of this actor's pictures, and return its first part to go round."""
        loss = torch.nn.functional.cross_entropy(self.network(self.pictures), self.labels, reduction="sum")
        self.network.zero_grad()
        loss.backward()
        gradient = torch.cat([weight.grad.flatten() for weight in self.network.parameters()]) / self.count
        self.parts = np.array_split(gradient.numpy(), self.among)
        return self.parts[index]

    def add(self, index, part):
        return part + self.parts[index]

    def step(self, *parts):
        """Go downhill by the gradient of all pictures."""
        gradient, begin = torch.from_numpy(np.concatenate(parts)), 0
        with torch.no_grad():
            for weight in self.network.parameters():
                weight -= RATE * gradient[begin : begin + weight.numel()].reshape(weight.shape)
                begin += weight.numel()

    def weights(self):
        return weights(self.network).get_flat()

    def accuracy(self):
        with torch.no_grad():
            return (self.network(self.test).argmax(1).numpy() == self.test_labels).mean()


def ring_step(actors):
    parts = [actor.part.remote(index) for index, actor in enumerate(actors)]
    for hop in range(1, len(actors)):
        parts = [actors[(index + hop) % len(actors)].add.remote(index, part) for index, part in enumerate(parts)]
    for actor in actors:
        actor.step.remote(*parts)


if __name__ == "__main__":
    alone = Replica(0, among=1)  # the same in this process, with all pictures
    for _ in range(STEPS):
        alone.step(alone.part(0))

    with weft.init(num_cpus=2):
        replica = weft.remote(Replica).options(num_cpus=2 / ACTORS)
        actors = [replica.remote(number, among=ACTORS) for number in range(ACTORS)]
        accuracies = []
        for _ in range(STEPS):
            ring_step(actors)
            accuracies.append(actors[0].accuracy.remote())
        accuracies = weft.get(accuracies)
        first, *others = weft.get([actor.weights.remote() for actor in actors])

    assert all(np.array_equal(first, other) for other in others), "the replicas differ"
    assert np.allclose(first, alone.weights(), atol=1e-3), "other weights than without weft"
    print(f"{ACTORS} replicas have the same weights, and those of one process but for rounding")
    curves = {"accuracy": accuracies}
    finish("All-reduce: accuracy on digits", accuracies[-1], BAR, curves, x="step", y="accuracy")
