"""The judgement of goals is arithmetic that is easy to get the wrong way round."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from report import advantage, judge, quantity, summarise  # noqa: E402
from rows import Goal, Row, Scale, all_rows  # noqa: E402


def row(higher: bool, *goals: Goal) -> Row:
    unit = "/s" if higher else "s"
    return Row("a", "a row", "w", "m", unit, ["weft", "ray"], goals=list(goals), higher_is_better=higher)


def test_advantage_follows_the_direction():
    assert advantage(row(True), 10, 2) == 5
    assert advantage(row(False), 2, 10) == 5
    assert advantage(row(False), 0, 10) is None


def test_goal_against_another_row_of_the_same_system():
    goal = Goal("at most twice b", "weft", 0.5, row="b")
    assert judge(row(False, goal), goal, {"a": {"weft": 2.0}, "b": {"weft": 1.0}})["reached"] is True
    assert judge(row(False, goal), goal, {"a": {"weft": 2.1}, "b": {"weft": 1.0}})["reached"] is False


def test_bounds_and_unmeasured():
    bound = Goal("≤ 3", bound=3)
    assert judge(row(False, bound), bound, {"a": {"weft": 3}})["reached"] is True
    assert judge(row(False, bound), bound, {"a": {"weft": 4}})["reached"] is False
    assert judge(row(True, bound), bound, {"a": {"weft": 4}})["reached"] is True
    assert judge(row(False, bound), bound, {"a": {"ray": 4}})["reached"] is None
    times = Goal("≥ 5×", "ray", 5)
    assert judge(row(True, times), times, {"a": {"weft": 4}})["reached"] is None


def test_summary_takes_medians():
    found = summarise([row(True, Goal("≥ 2×", "ray", 2))], {"a": {"weft": [1, 9, 8], "ray": [4]}}, {})[0]
    assert found["values"]["weft"]["median"] == 8
    assert found["goals"][0]["advantage"] == 2 and found["goals"][0]["reached"] is True


def test_every_goal_names_something_that_is_measured():
    for scale in (Scale(), Scale.quick()):
        rows = {r.key: r for r in all_rows(scale)}
        assert len(rows) == len(all_rows(scale))
        for r in rows.values():
            assert r.subject in r.systems
            for goal in r.goals:
                assert goal.bound is not None or goal.against in rows[goal.row or r.key].systems, (r.key, goal)


def test_quantities_are_readable():
    assert quantity(0.0000021, "s") == "2.1 µs"
    assert quantity(1100, "/s") == "1.1 k/s"
    assert quantity(13.8e9, "B/s") == "13.8 GB/s"
