"""CartPole: a pole stands on a cart that is pushed left or right, and must not fall.

The equations are those of Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning
control problems" (1983), without friction, integrated by Euler's method in steps of 20 ms.
"""

from math import cos, pi, sin

import numpy as np

OBSERVATIONS = 4  # position of the cart, its speed, angle of the pole, its speed
ACTIONS = 2  # push left, push right
LONGEST = 500  # steps of an episode

GRAVITY = 9.8
CART, POLE = 1.0, 0.1  # kg
HALF_LENGTH = 0.5  # m, of the pole
FORCE = 10.0  # N
STEP = 0.02  # s
FARTHEST = 2.4  # m, where the track ends
STEEPEST = 12 * pi / 180  # rad, beyond which the pole counts as fallen


class CartPole:
    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def reset(self):
        """Begin an episode; what is seen first."""
        self.state = self.random.uniform(-0.05, 0.05, OBSERVATIONS)
        self.steps = 0
        return self.state.astype(np.float32)

    def step(self, action):
        """Push; what is seen then, and whether the episode is over. Each step is worth a reward of 1."""
        x, speed, angle, turn = self.state.tolist()
        total = CART + POLE
        push = (FORCE if action else -FORCE) + POLE * HALF_LENGTH * turn**2 * sin(angle)
        turn_rate = (GRAVITY * sin(angle) - cos(angle) * push / total) / (
            HALF_LENGTH * (4 / 3 - POLE * cos(angle) ** 2 / total)
        )
        acceleration = (push - POLE * HALF_LENGTH * turn_rate * cos(angle)) / total
        x, angle = x + STEP * speed, angle + STEP * turn
        self.state = np.array([x, speed + STEP * acceleration, angle, turn + STEP * turn_rate])
        self.steps += 1
        return self.state.astype(np.float32), self.fallen() or self.steps == LONGEST

    def fallen(self):
        return abs(self.state[0]) > FARTHEST or abs(self.state[2]) > STEEPEST
