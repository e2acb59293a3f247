from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, overload

from typing_extensions import ParamSpec

from weft._core import RemoteFunction
from weft._options import TaskOptions

_P = ParamSpec("_P")
_R = TypeVar("_R")

@overload
def remote(function: Callable[_P, _R], /) -> RemoteFunction[_P, _R]: ...
@overload
def remote(
    *,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: dict[str, float] | None = None,
    memory: float | None = None,
    num_returns: int | None = None,
    max_retries: int | None = None,
    retry_exceptions: bool | type[BaseException] | Sequence[type[BaseException]] | None = None,
    name: str | None = None,
) -> Callable[[Callable[_P, _R]], RemoteFunction[_P, _R]]: ...
def with_options(remote_function: RemoteFunction[_P, _R], given: dict[str, Any]) -> RemoteFunction[_P, _R]: ...
def rebuild(function: Callable[_P, _R], options: TaskOptions) -> RemoteFunction[_P, _R]: ...
def refuse_direct_call(remote_function: RemoteFunction[..., Any]) -> NoReturn: ...
