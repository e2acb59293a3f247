"""A3C on CartPole: workers play on their own, and improve shared weights without waiting for each other.

Each worker has an environment and a copy of the network. It pulls the weights from weft's parameter server, plays a few
steps, and pushes the gradients of its policy and of its estimate of the rewards to come. The server applies them when
they come, asynchronously, by RMSProp.
"""

import cartpole
import numpy as np
import torch
import weft
from results import finish
from torch import nn
from weft.util import ParameterServer

WORKERS = 2
STEPS = 32  # between two pushes
EPISODES = 1200  # of all workers together, at most
DISCOUNT = 0.99
GOOD = 250  # mean steps of the last 20 episodes at which training ends
BAR = 195  # mean steps of 20 episodes after training; pushing at random gives 20


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(cartpole.OBSERVATIONS, 64), nn.Tanh(), nn.Linear(64, 1))
        self.value = nn.Sequential(nn.Linear(cartpole.OBSERVATIONS, 64), nn.Tanh(), nn.Linear(64, 1))

    def right(self, seen):
        """The probability of a push to the right."""
        with torch.no_grad():
            return torch.sigmoid(self.policy(torch.from_numpy(seen))).item()

    def loss(self, seen, actions, over):
        """Of some steps in a row, and of what was seen after them."""
        values = self.value(torch.from_numpy(np.array(seen))).squeeze(1)
        future, returns = values[-1].item(), []
        for ended in reversed(over):
            future = 1.0 + DISCOUNT * (0.0 if ended else future)
            returns.insert(0, future)
        returns = torch.tensor(returns)
        advantages = returns - values[:-1].detach()
        policy = torch.distributions.Bernoulli(logits=self.policy(torch.from_numpy(np.array(seen[:-1]))).squeeze(1))
        likelihood = policy.log_prob(torch.tensor(actions, dtype=torch.float32))
        return (
            -(likelihood * advantages).mean()
            + 0.5 * nn.functional.mse_loss(values[:-1], returns)
            - 0.01 * policy.entropy().mean()  # keeps it trying
        )

    def set_weights(self, arrays):
        with torch.no_grad():
            for name, weight in self.named_parameters():
                weight.copy_(torch.from_numpy(arrays[name].copy()))


class RMSProp:
    """How the server improves weights. A copy of this object lives in each shard and keeps the means there."""

    def __init__(self, rate):
        self.rate = rate
        self.squares = {}

    def __call__(self, name, weights, gradient):
        square = self.squares.setdefault(name, np.zeros_like(weights))
        square += 0.01 * (gradient**2 - square)
        weights -= self.rate * gradient / (np.sqrt(square) + 1e-5)


class Scores:
    """The lengths of all episodes, and whether it is time to stop."""

    def __init__(self):
        self.lengths = []

    def add(self, length):
        self.lengths.append(length)
        return len(self.lengths) >= EPISODES or (len(self.lengths) >= 20 and np.mean(self.lengths[-20:]) >= GOOD)

    def all(self):
        return self.lengths


@weft.remote
def play(server, scores, seed):
    """Play and push gradients until the scores are good."""
    torch.set_num_threads(1)
    environment, network = cartpole.CartPole(seed), Network()
    seen, stop = [environment.reset()], False
    while not stop:
        network.set_weights(server.pull())
        seen, actions, over = seen[-1:], [], []
        for _ in range(STEPS):
            actions.append(environment.random.random() < network.right(seen[-1]))
            now, ended = environment.step(actions[-1])
            over.append(ended)
            if ended:
                stop = weft.get(scores.add.remote(environment.steps)) or stop
                now = environment.reset()
            seen.append(now)
        network.zero_grad()
        network.loss(seen, actions, over).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        server.push({name: weight.grad.numpy() for name, weight in network.named_parameters()})


def test(network, episodes=20):
    """The mean length of episodes in which the likelier action is taken."""
    environment, lengths = cartpole.CartPole(seed=10_000), []
    for _ in range(episodes):
        seen, over = environment.reset(), False
        while not over:
            seen, over = environment.step(network.right(seen) > 0.5)
        lengths.append(environment.steps)
    return np.mean(lengths)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = Network()
    with weft.init(num_cpus=WORKERS):
        start = {name: weight.detach().numpy() for name, weight in network.named_parameters()}
        server = ParameterServer(start, update=RMSProp(rate=0.005))
        scores = weft.remote(Scores).options(num_cpus=0).remote()
        weft.get([play.remote(server, scores, seed) for seed in range(WORKERS)])
        lengths = weft.get(scores.all.remote())
        network.set_weights(server.pull())

    means = [np.mean(lengths[max(0, end - 20) : end]) for end in range(1, len(lengths) + 1)]
    print(f"{len(lengths)} episodes; the last 20 had {means[-1]:.0f} steps on average")
    reached = test(network)
    curves = {"an episode": lengths, "mean of 20": means}
    finish("A3C on CartPole: steps", reached, BAR, curves, x="episode", y="steps until it falls")
