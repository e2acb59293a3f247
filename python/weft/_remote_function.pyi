from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, overload

from typing_extensions import ParamSpec

from weft._actor import ActorClass
from weft._core import RemoteFunction
from weft._options import TaskOptions

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")

class _Decorator:
    """`@weft.remote(...)`: takes a function or a class."""

    @overload
    def __call__(self, function: type[_T], /) -> ActorClass[_T]: ...
    @overload
    def __call__(self, function: Callable[_P, _R], /) -> RemoteFunction[_P, _R]: ...

@overload
def remote(function: type[_T], /) -> ActorClass[_T]: ...
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
    scheduling_strategy: str | None = None,
    max_restarts: int | None = None,
    max_task_retries: int | None = None,
    max_concurrency: int | None = None,
    concurrency_groups: dict[str, int] | None = None,
    max_pending_calls: int | None = None,
    namespace: str | None = None,
    lifetime: str | None = None,
    get_if_exists: bool | None = None,
    allow_out_of_order_execution: bool | None = None,
) -> _Decorator: ...
def with_options(remote_function: RemoteFunction[_P, _R], given: dict[str, Any]) -> RemoteFunction[_P, _R]: ...
def rebuild(function: Callable[_P, _R], options: TaskOptions) -> RemoteFunction[_P, _R]: ...
def refuse_direct_call(remote_function: RemoteFunction[..., Any]) -> NoReturn: ...
