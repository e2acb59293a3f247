"""ray.util.scheduling_strategies: node affinity and labels. Placement groups are not there yet."""

from __future__ import annotations

from weft.util.scheduling_strategies import NodeAffinity

__all__ = [
    "DoesNotExist",
    "Exists",
    "In",
    "NodeAffinitySchedulingStrategy",
    "NodeLabelSchedulingStrategy",
    "NotIn",
]


def __getattr__(name: str):
    if name == "PlacementGroupSchedulingStrategy":
        raise ImportError(f"{name}: placement groups are not yet available in this version of weft")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def NodeAffinitySchedulingStrategy(node_id: str, soft: bool, _spill_on_unavailable=False, _fail_on_unavailable=False):
    """On this node; soft: on another one if it has gone or is too small."""
    return NodeAffinity(node_id, bool(soft))


class In:
    """The label has one of these values."""

    def __init__(self, *values: str):
        self.values = values

    def _text(self) -> str:
        return f"in({','.join(self.values)})"


class NotIn(In):
    """The label has none of these values."""

    def _text(self) -> str:
        return "!" + super()._text()


class Exists:
    """The node has the label."""

    def _text(self) -> str:
        return "*"


class DoesNotExist:
    """The node has no such label."""

    def _text(self) -> str:
        return "!*"


class NodeLabelSchedulingStrategy:
    """On nodes whose labels are so. `soft` conditions are not there yet."""

    def __init__(self, hard: dict, *, soft: dict | None = None):
        if soft:
            raise NotImplementedError("NodeLabelSchedulingStrategy(soft=...) is not yet available in this version")
        self.label_selector = {key: condition._text() for key, condition in hard.items()}

    def __eq__(self, other):
        return isinstance(other, NodeLabelSchedulingStrategy) and self.label_selector == other.label_selector

    def __hash__(self):
        return hash(tuple(self.label_selector.items()))
