"""Search for hyperparameters: successive halving, and stragglers are stopped.

All candidates learn for a few epochs; the better third goes on for three times as many, and so on. A candidate is a
task that begins with the weights of its former round, which stay in the store. Two thirds of a round decide how long
the rest may take: a candidate that needs more than twice their time is cancelled.
"""

import time

import digits
import numpy as np
import torch
import weft
from results import finish
from weft.util import weights

EPOCHS = [2, 6, 18]  # of the rounds
BAR = 0.95


def candidates():
    """Eight at random, and one that would take days."""
    random = np.random.default_rng(3)
    for _ in range(8):
        yield {"rate": 10 ** random.uniform(-4, 0.5), "hidden": int(random.choice([8, 32, 64])), "passes": 1}
    yield {"rate": 0.01, "hidden": 32, "passes": 1_000_000}


@weft.remote
def train(candidate, vector, epochs):
    """Go on from these weights, or begin; the accuracy and the weights."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = candidate["hidden"]
    network = torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))
    if vector is not None:
        weights(network).set_flat(vector)
    optimizer = torch.optim.SGD(network.parameters(), lr=candidate["rate"], momentum=0.9)
    pictures, labels, test, test_labels = (torch.from_numpy(array) for array in digits.load())
    for _ in range(epochs * candidate["passes"]):
        for batch in torch.randperm(len(pictures)).split(32):
            loss = torch.nn.functional.cross_entropy(network(pictures[batch].flatten(1)), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (network(test.flatten(1)).argmax(1) == test_labels).double().mean().item()
    return accuracy, weights(network).get_flat()


def run_round(running, start):
    """Wait for the tasks, and stop those that take far longer than most; what finished, by candidate."""
    most = max(1, len(running) * 2 // 3)
    _, late = weft.wait(list(running), num_returns=most)
    if late:
        _, late = weft.wait(late, num_returns=len(late), timeout=time.monotonic() - start)
    for ref in late:
        print(f"stopped: {running[ref]}")
        weft.cancel(ref)
    return {running[ref]: ref for ref in running if ref not in late}, len(late)


def search():
    tried = list(candidates())
    vectors = dict.fromkeys(range(len(tried)))
    curves = {number: [] for number in vectors}
    stopped = 0
    for epochs in EPOCHS:
        start = time.monotonic()
        running = {}
        for number, vector in vectors.items():
            both = train.options(num_returns=2).remote(tried[number], vector, epochs)
            running[both[0]] = number
            vectors[number] = both[1]
        done, late = run_round(running, start)
        stopped += late
        accuracies = {number: weft.get(ref) for number, ref in done.items()}
        for number, accuracy in accuracies.items():
            curves[number].append(accuracy)
        best = sorted(accuracies, key=accuracies.get, reverse=True)[: max(1, len(vectors) // 3)]
        print(f"{epochs} epochs: " + ", ".join(f"{number}: {accuracies[number]:.3f}" for number in accuracies))
        vectors = {number: vectors[number] for number in best}
    return tried[best[0]], accuracies[best[0]], stopped, curves


if __name__ == "__main__":
    with weft.init(num_cpus=2):
        best, accuracy, stopped, curves = search()
    print(f"the best: {best}")
    assert stopped >= 1, "the straggler was not stopped"
    curves = {f"candidate {number}": values for number, values in curves.items() if values}
    finish("Search: accuracy on digits", accuracy, BAR, curves, x="round", y="accuracy")
