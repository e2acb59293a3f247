from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from weft._core import ObjectRef, RemoteFunction

_R = TypeVar("_R")

def as_completed(refs: Iterable[ObjectRef[_R]], timeout: float | None = None) -> Iterator[ObjectRef[_R]]: ...
def map_unordered(
    remote_function: RemoteFunction[..., _R] | Any, iterable: Iterable[Any], *, max_in_flight: int | None = None
) -> Iterator[_R]: ...
