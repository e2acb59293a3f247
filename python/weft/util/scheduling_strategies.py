"""Where tasks and actors run: what the option `scheduling_strategy` takes besides "DEFAULT" and "SPREAD".

    f.options(scheduling_strategy=NodeAffinity(weft.nodes()[1]["NodeID"])).remote()

Labels of nodes are chosen by another option: f.options(label_selector={"zone": "eu"}).
"""

from __future__ import annotations

__all__ = ["NodeAffinity"]

_DIGITS = 32


class NodeAffinity:
    """On this node. soft: on another one if it has gone or is too small; otherwise that raises UnschedulableError."""

    __slots__ = ("node_id", "soft")

    node_id: str
    soft: bool

    def __init__(self, node_id: str, soft: bool = False):
        if not isinstance(node_id, str):
            raise TypeError(f'node_id must be a "NodeID" of weft.nodes(), not {node_id!r}')
        if len(node_id) != _DIGITS or node_id.strip("0123456789abcdef"):
            raise ValueError(
                f'node_id must be a "NodeID" of weft.nodes(), {_DIGITS} hexadecimal digits, not {node_id!r}'
            )
        if not isinstance(soft, bool):
            raise TypeError(f"soft must be True or False, not {soft!r}")
        object.__setattr__(self, "node_id", node_id)
        object.__setattr__(self, "soft", soft)

    def __setattr__(self, name, value):
        raise AttributeError("a strategy cannot be changed; make another one")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __reduce__(self):
        return NodeAffinity, (self.node_id, self.soft)

    def __eq__(self, other):
        if not isinstance(other, NodeAffinity):
            return NotImplemented
        return (self.node_id, self.soft) == (other.node_id, other.soft)

    def __hash__(self):
        return hash((self.node_id, self.soft))

    def __repr__(self):
        return f"NodeAffinity({self.node_id!r}, soft={self.soft})"
