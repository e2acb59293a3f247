"""The CartPole of examples/learning moves as its equations say."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "learning"))
import cartpole


def at(*state):
    environment = cartpole.CartPole(seed=0)
    environment.reset()
    environment.state = np.array(state, float)
    return environment


def test_a_step_from_rest():
    # By hand: the pole at rest turns by -(10 / 1.1) / (0.5 (4/3 - 0.1 / 1.1)) = -14.63 rad/s^2 under a push of 10 N.
    seen, over = at(0, 0, 0, 0).step(1)
    assert seen == pytest.approx([0, 0.1951, 0, -0.2927], abs=1e-4) and not over
    assert at(0, 0, 0, 0).step(0)[0] == pytest.approx(-seen, abs=1e-6)


def test_episodes_end_where_the_pole_has_fallen_the_track_ends_or_after_the_longest():
    assert at(0, 0, 0.2, 2).step(1)[1] and at(2.39, 2, 0, 0).step(1)[1] and at(-2.39, -2, 0, 0).step(1)[1]
    assert not at(0, 0, 0.2, 0).step(1)[1]
    environment = at(0, 0, 0, 0)
    environment.steps = cartpole.LONGEST - 1
    assert environment.step(1)[1] and not environment.fallen()


def test_a_seed_gives_the_same_episodes_and_random_pushes_do_not_balance():
    one, other = cartpole.CartPole(seed=5), cartpole.CartPole(seed=5)
    lengths = []
    for _ in range(50):
        assert np.array_equal(one.reset(), other.reset())
        over = False
        while not over:
            action = one.random.random() < 0.5
            assert (other.random.random() < 0.5) == action
            seen, over = one.step(action)
            assert np.array_equal(seen, other.step(action)[0])
        lengths.append(one.steps)
    assert 15 < np.mean(lengths) < 35
