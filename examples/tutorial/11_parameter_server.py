"""A parameter server: an actor holds the weights, tasks compute gradients, and the weights move between them.

A straight line is fitted to points by gradient descent. The weights travel as arrays: `put` once per round, read by all
workers without a copy. Then the same without waiting for the slowest: each gradient is applied when it comes.
"""

import numpy as np
import weft

SLOPE, INTERCEPT = 3.0, -1.0


@weft.remote
class ParameterServer:
    def __init__(self, size, rate):
        self.weights = np.zeros(size)
        self.rate = rate
        self.updates = 0

    def get_weights(self):
        return self.weights

    def apply(self, *gradients):  # references to gradients: they go from worker to worker
        self.weights = self.weights - self.rate * np.mean(gradients, axis=0)
        self.updates += len(gradients)
        return self.weights

    def count(self):
        return self.updates


@weft.remote
def gradient(weights, seed):
    points = np.random.default_rng(seed).uniform(-1.0, 1.0, 256)
    error = weights[0] * points + weights[1] - (SLOPE * points + INTERCEPT)
    return np.array([np.mean(error * points), np.mean(error)])


if __name__ == "__main__":
    with weft.init(num_cpus=4):
        # In rounds: all workers see the same weights.
        server = ParameterServer.remote(2, rate=0.5)
        weights = server.get_weights.remote()
        for step in range(60):
            weights = server.apply.remote(*[gradient.remote(weights, 4 * step + worker) for worker in range(4)])
        assert np.allclose(weft.get(weights), [SLOPE, INTERCEPT], atol=0.05)
        assert weft.get(server.count.remote()) == 240

        # As they come: a slow worker holds up nobody. A gradient is for weights of some steps ago then, so the steps
        # must be small.
        server = ParameterServer.remote(2, rate=0.1)
        pending = [gradient.remote(server.get_weights.remote(), worker) for worker in range(4)]
        for step in range(300):
            (done,), pending = weft.wait(pending)
            pending.append(gradient.remote(server.apply.remote(done), 1000 + step))
        assert np.allclose(weft.get(server.get_weights.remote()), [SLOPE, INTERCEPT], atol=0.05)
    print("ok")
