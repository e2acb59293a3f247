"""ray.util: what weft.util has, under Ray's names."""

from __future__ import annotations

import weft

__all__ = [
    "ActorPool",
    "as_completed",
    "deregister_serializer",
    "get_node_ip_address",
    "inspect_serializability",
    "list_named_actors",
    "map_unordered",
    "register_serializer",
]


def list_named_actors(all_namespaces: bool = False) -> list:
    """The names of all living actors that have one; with all_namespaces dicts of name and namespace."""
    return weft.list_named_actors(all_namespaces=all_namespaces)


def get_node_ip_address() -> str:
    """The address of this machine."""
    from ..services import get_node_ip_address

    return get_node_ip_address()


def register_serializer(cls, *, serializer, deserializer) -> None:
    """Use these functions for instances of the class, in this process: `deserializer(serializer(x))` is the copy."""
    import copyreg

    if not isinstance(cls, type) or not callable(serializer) or not callable(deserializer):
        raise TypeError("register_serializer takes a class and two functions, serializer and deserializer")
    copyreg.pickle(cls, lambda value: (deserializer, (serializer(value),)))  # type: ignore[arg-type,return-value]


def deregister_serializer(cls) -> None:
    """Pickle instances of the class as ever."""
    import copyreg

    copyreg.dispatch_table.pop(cls, None)


def inspect_serializability(base_obj, name=None, depth=3, print_file=None) -> tuple:
    """(whether it can be sent to another process, the reasons why not). Prints the reasons."""
    from weft import _serialization

    try:
        _serialization.dumps(base_obj)
    except TypeError as error:
        print(f"{name or base_obj!r}: {error}", file=print_file)
        return False, {str(error)}
    return True, set()


_SUBMODULES = ("actor_pool", "queue", "scheduling_strategies", "state")


def __getattr__(name: str):
    if name in _SUBMODULES:  # as in Ray, `import ray` is enough to use them
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    if name in ("ActorPool", "as_completed", "map_unordered"):
        import weft.util

        return getattr(weft.util, name)
    if name in ("placement_group", "remove_placement_group", "get_placement_group", "placement_group_table"):
        raise AttributeError(f"ray.util.{name} is not available yet in this version of weft")
    raise AttributeError(f"ray.util.{name} is not in weft's version of Ray's interface")
