"""L-BFGS with gradients from actors: SciPy decides where to go, actors tell how steep it is there.

Each actor keeps its part of the data and a copy of the network. SciPy's optimizer knows nothing of weft: the function
that it minimises puts the weights into the store once and adds up the losses and gradients of the actors.
"""

import digits
import numpy as np
import torch
import weft
from results import finish
from scipy.optimize import minimize
from weft.util import weights

ACTORS = 4
DECAY = 1e-3  # keeps the weights small, so that test pictures are recognised too
BAR = 0.96


def network():
    torch.manual_seed(0)
    # float64: the line search of L-BFGS compares losses that differ little.
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)).double()


class Part:
    """Some of the training pictures, and a copy of the network."""

    def __init__(self, number):
        torch.set_num_threads(1)
        pictures, labels, _, _ = digits.load()
        self.pictures = torch.from_numpy(pictures[number::ACTORS]).double().flatten(1)
        self.labels = torch.from_numpy(labels[number::ACTORS])
        self.network = network()
        self.weights = weights(self.network)

    def loss_and_gradient(self, vector):
        """Summed over the pictures of this part."""
        self.weights.set_flat(vector)
        self.network.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.network(self.pictures), self.labels, reduction="sum")
        loss.backward()
        return loss.item(), torch.cat([weight.grad.flatten() for weight in self.network.parameters()]).numpy()


if __name__ == "__main__":
    torch.set_num_threads(1)  # leaves the CPUs to the actors
    train, _, test, test_labels = digits.load()
    test = torch.from_numpy(test).double().flatten(1)
    trained = network()
    start = weights(trained).get_flat()

    with weft.init(num_cpus=2):
        parts = [weft.remote(Part).options(num_cpus=0.5).remote(number) for number in range(ACTORS)]
        accuracies = []

        def whole(vector):
            shared = weft.put(vector)
            answers = weft.get([part.loss_and_gradient.remote(shared) for part in parts])
            loss = sum(loss for loss, _ in answers) / len(train) + DECAY / 2 * vector @ vector
            return loss, sum(gradient for _, gradient in answers) / len(train) + DECAY * vector

        def note(vector):
            weights(trained).set_flat(vector)
            with torch.no_grad():
                accuracies.append((trained(test).argmax(1).numpy() == test_labels).mean())

        found = minimize(whole, start, jac=True, method="L-BFGS-B", callback=note, options={"maxiter": 60})
        print(f"loss {found.fun:.4f} after {found.nit} iterations and {found.nfev} gradients")

    slope = np.abs(found.jac).max()
    assert slope < 0.01, f"not a minimum: the gradient is {slope}"
    curves = {"accuracy": accuracies}
    finish("L-BFGS: accuracy on digits", accuracies[-1], BAR, curves, x="iteration", y="accuracy")
