from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from weft._core import ActorHandle, ActorInfo, ActorMethod, ObjectRef
from weft._options import ActorOptions

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

class ActorClass(Generic[_T]):
    _cls: type[_T]
    _options: ActorOptions
    __wrapped__: type[_T]
    __name__: str
    def __init__(self, cls: type[_T], options: ActorOptions) -> None: ...
    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle[_T]: ...
    def options(
        self,
        *,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        resources: dict[str, float] | None = None,
        memory: float | None = None,
        max_restarts: int | None = None,
        max_task_retries: int | None = None,
        retry_exceptions: bool | type[BaseException] | Sequence[type[BaseException]] | None = None,
        max_concurrency: int | None = None,
        concurrency_groups: dict[str, int] | None = None,
        max_pending_calls: int | None = None,
        name: str | None = None,
        namespace: str | None = None,
        lifetime: str | None = None,
        get_if_exists: bool | None = None,
        allow_out_of_order_execution: bool | None = None,
        scheduling_strategy: str | None = None,
    ) -> ActorClass[_T]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn: ...
    def __getattr__(self, name: str) -> Any: ...

class WorkerSettings:
    class_name: str
    is_async: bool
    max_concurrency: int
    concurrency_groups: dict[str, int]
    name: str | None
    namespace: str

own_settings: WorkerSettings | None

def method(
    *,
    num_returns: int | None = None,
    concurrency_group: str | None = None,
    max_task_retries: int | None = None,
    retry_exceptions: bool | type[BaseException] | Sequence[type[BaseException]] | None = None,
    name: str | None = None,
) -> Callable[[_F], _F]: ...
def get_actor(name: str, namespace: str | None = None) -> ActorHandle[Any]: ...
def list_named_actors(all_namespaces: bool = False) -> list[Any]: ...
def kill(actor: ActorHandle[Any], *, no_restart: bool = True) -> None: ...
def cancel(ref: ObjectRef[Any], *, force: bool = False, recursive: bool = True) -> None: ...
def exit_actor() -> NoReturn: ...
def make(cls: type[_T], given: dict[str, Any]) -> ActorClass[_T]: ...
def rebuild(cls: type[_T], options: ActorOptions) -> ActorClass[_T]: ...

# ---- called by C++ and by weft's own modules ----
def info_from_blob(blob: bytes) -> ActorInfo: ...
def missing_method(handle: ActorHandle[Any], name: str) -> NoReturn: ...
def method_with_options(method: ActorMethod, given: dict[str, Any]) -> ActorMethod: ...
def refuse_method_call(method: ActorMethod) -> NoReturn: ...
def check_arguments(method: ActorMethod, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
def read_worker_blob(blob: bytes) -> WorkerSettings: ...
