# How calls are typed. There is no such module at run time: this stub only describes what `x.remote` is.
#
# Where no reference is given, a call is checked against the function's own signature: names, defaults, everything. A
# parameter of type T also takes an ObjectRef[T], by position. Python's type system cannot turn every parameter of a
# signature into a union, so `.remote` is a descriptor that looks at how many positional arguments the function takes
# (up to eight) and gives a callable with one overload per place at which the first reference may stand: what stands
# before it is a value, what follows is either. A reference switches the count of what follows and the check of keyword
# arguments off, because names cannot be carried over. References by keyword cannot be expressed at all.
# pyright and mypy show these signatures in their errors, so the overload without references comes last, where pyright
# takes its message from.
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypedDict, TypeVar, overload

from typing_extensions import ParamSpec

from weft._core import ObjectRef
from weft.util.scheduling_strategies import NodeAffinity

_P = ParamSpec("_P")
_X = TypeVar("_X")  # what a call gives: ObjectRef[R], ActorHandle[T], list[ObjectRef[Any]] or None

_X_co = TypeVar("_X_co", covariant=True)
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")
_E = TypeVar("_E")
_F = TypeVar("_F")
_G = TypeVar("_G")
_H = TypeVar("_H")
_A_in = TypeVar("_A_in", contravariant=True)
_B_in = TypeVar("_B_in", contravariant=True)
_C_in = TypeVar("_C_in", contravariant=True)
_D_in = TypeVar("_D_in", contravariant=True)
_E_in = TypeVar("_E_in", contravariant=True)
_F_in = TypeVar("_F_in", contravariant=True)
_G_in = TypeVar("_G_in", contravariant=True)
_H_in = TypeVar("_H_in", contravariant=True)

# What has a `remote`: the same signature twice, once whole and once to be matched with a number of positional
# arguments. `_gives` is what a call gives.
class _Takes(Protocol[_P, _X_co]):
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _gives(self) -> _X_co: ...

class _Takes1(Protocol[_P, _A_in, _X_co]):
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[[_A_in], Any]: ...
    @property
    def _gives(self) -> _X_co: ...

class _Takes2(Protocol[_P, _A_in, _B_in, _X_co]):
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[[_A_in, _B_in], Any]: ...
    @property
    def _gives(self) -> _X_co: ...

class _Takes3(Protocol[_P, _A_in, _B_in, _C_in, _X_co]):
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[[_A_in, _B_in, _C_in], Any]: ...
    @property
    def _gives(self) -> _X_co: ...

class _Takes4(Protocol[_P, _A_in, _B_in, _C_in, _D_in, _X_co]):
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[[_A_in, _B_in, _C_in, _D_in], Any]: ...
    @property
    def _gives(self) -> _X_co: ...

class _Takes5(Protocol[_P, _A_in, _B_in, _C_in, _D_in, _E_in, _X_co]):
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[[_A_in, _B_in, _C_in, _D_in, _E_in], Any]: ...
    @property
    def _gives(self) -> _X_co: ...

class _Takes6(Protocol[_P, _A_in, _B_in, _C_in, _D_in, _E_in, _F_in, _X_co]):
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[[_A_in, _B_in, _C_in, _D_in, _E_in, _F_in], Any]: ...
    @property
    def _gives(self) -> _X_co: ...

class _Takes7(Protocol[_P, _A_in, _B_in, _C_in, _D_in, _E_in, _F_in, _G_in, _X_co]):
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[[_A_in, _B_in, _C_in, _D_in, _E_in, _F_in, _G_in], Any]: ...
    @property
    def _gives(self) -> _X_co: ...

class _Takes8(Protocol[_P, _A_in, _B_in, _C_in, _D_in, _E_in, _F_in, _G_in, _H_in, _X_co]):
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[[_A_in, _B_in, _C_in, _D_in, _E_in, _F_in, _G_in, _H_in], Any]: ...
    @property
    def _gives(self) -> _X_co: ...

# Functions without positional parameters, or with more than eight.
class Call(Generic[_P, _X]):
    @overload
    def __call__(self, first: ObjectRef[Any], /, *rest: Any, **others: Any) -> _X: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _X: ...

class Call1(Generic[_P, _A, _X]):
    @overload
    def __call__(self, a: ObjectRef[_A], /, **others: Any) -> _X: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _X: ...

class Call2(Generic[_P, _A, _B, _X]):
    @overload
    def __call__(self, a: ObjectRef[_A], b: _B | ObjectRef[_B] = ..., /, **others: Any) -> _X: ...
    @overload
    def __call__(self, a: _A, b: ObjectRef[_B], /, **others: Any) -> _X: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _X: ...

class Call3(Generic[_P, _A, _B, _C, _X]):
    @overload
    def __call__(
        self, a: ObjectRef[_A], b: _B | ObjectRef[_B] = ..., c: _C | ObjectRef[_C] = ..., /, **others: Any
    ) -> _X: ...
    @overload
    def __call__(self, a: _A, b: ObjectRef[_B], c: _C | ObjectRef[_C] = ..., /, **others: Any) -> _X: ...
    @overload
    def __call__(self, a: _A, b: _B, c: ObjectRef[_C], /, **others: Any) -> _X: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _X: ...

class Call4(Generic[_P, _A, _B, _C, _D, _X]):
    @overload
    def __call__(
        self,
        a: ObjectRef[_A],
        b: _B | ObjectRef[_B] = ...,
        c: _C | ObjectRef[_C] = ...,
        d: _D | ObjectRef[_D] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self, a: _A, b: ObjectRef[_B], c: _C | ObjectRef[_C] = ..., d: _D | ObjectRef[_D] = ..., /, **others: Any
    ) -> _X: ...
    @overload
    def __call__(self, a: _A, b: _B, c: ObjectRef[_C], d: _D | ObjectRef[_D] = ..., /, **others: Any) -> _X: ...
    @overload
    def __call__(self, a: _A, b: _B, c: _C, d: ObjectRef[_D], /, **others: Any) -> _X: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _X: ...

class Call5(Generic[_P, _A, _B, _C, _D, _E, _X]):
    @overload
    def __call__(
        self,
        a: ObjectRef[_A],
        b: _B | ObjectRef[_B] = ...,
        c: _C | ObjectRef[_C] = ...,
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: ObjectRef[_B],
        c: _C | ObjectRef[_C] = ...,
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self, a: _A, b: _B, c: ObjectRef[_C], d: _D | ObjectRef[_D] = ..., e: _E | ObjectRef[_E] = ..., /, **others: Any
    ) -> _X: ...
    @overload
    def __call__(self, a: _A, b: _B, c: _C, d: ObjectRef[_D], e: _E | ObjectRef[_E] = ..., /, **others: Any) -> _X: ...
    @overload
    def __call__(self, a: _A, b: _B, c: _C, d: _D, e: ObjectRef[_E], /, **others: Any) -> _X: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _X: ...

class Call6(Generic[_P, _A, _B, _C, _D, _E, _F, _X]):
    @overload
    def __call__(
        self,
        a: ObjectRef[_A],
        b: _B | ObjectRef[_B] = ...,
        c: _C | ObjectRef[_C] = ...,
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: ObjectRef[_B],
        c: _C | ObjectRef[_C] = ...,
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: _B,
        c: ObjectRef[_C],
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: _B,
        c: _C,
        d: ObjectRef[_D],
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self, a: _A, b: _B, c: _C, d: _D, e: ObjectRef[_E], f: _F | ObjectRef[_F] = ..., /, **others: Any
    ) -> _X: ...
    @overload
    def __call__(self, a: _A, b: _B, c: _C, d: _D, e: _E, f: ObjectRef[_F], /, **others: Any) -> _X: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _X: ...

class Call7(Generic[_P, _A, _B, _C, _D, _E, _F, _G, _X]):
    @overload
    def __call__(
        self,
        a: ObjectRef[_A],
        b: _B | ObjectRef[_B] = ...,
        c: _C | ObjectRef[_C] = ...,
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        g: _G | ObjectRef[_G] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: ObjectRef[_B],
        c: _C | ObjectRef[_C] = ...,
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        g: _G | ObjectRef[_G] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: _B,
        c: ObjectRef[_C],
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        g: _G | ObjectRef[_G] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: _B,
        c: _C,
        d: ObjectRef[_D],
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        g: _G | ObjectRef[_G] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: _B,
        c: _C,
        d: _D,
        e: ObjectRef[_E],
        f: _F | ObjectRef[_F] = ...,
        g: _G | ObjectRef[_G] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self, a: _A, b: _B, c: _C, d: _D, e: _E, f: ObjectRef[_F], g: _G | ObjectRef[_G] = ..., /, **others: Any
    ) -> _X: ...
    @overload
    def __call__(self, a: _A, b: _B, c: _C, d: _D, e: _E, f: _F, g: ObjectRef[_G], /, **others: Any) -> _X: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _X: ...

class Call8(Generic[_P, _A, _B, _C, _D, _E, _F, _G, _H, _X]):
    @overload
    def __call__(
        self,
        a: ObjectRef[_A],
        b: _B | ObjectRef[_B] = ...,
        c: _C | ObjectRef[_C] = ...,
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        g: _G | ObjectRef[_G] = ...,
        h: _H | ObjectRef[_H] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: ObjectRef[_B],
        c: _C | ObjectRef[_C] = ...,
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        g: _G | ObjectRef[_G] = ...,
        h: _H | ObjectRef[_H] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: _B,
        c: ObjectRef[_C],
        d: _D | ObjectRef[_D] = ...,
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        g: _G | ObjectRef[_G] = ...,
        h: _H | ObjectRef[_H] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: _B,
        c: _C,
        d: ObjectRef[_D],
        e: _E | ObjectRef[_E] = ...,
        f: _F | ObjectRef[_F] = ...,
        g: _G | ObjectRef[_G] = ...,
        h: _H | ObjectRef[_H] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: _B,
        c: _C,
        d: _D,
        e: ObjectRef[_E],
        f: _F | ObjectRef[_F] = ...,
        g: _G | ObjectRef[_G] = ...,
        h: _H | ObjectRef[_H] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self,
        a: _A,
        b: _B,
        c: _C,
        d: _D,
        e: _E,
        f: ObjectRef[_F],
        g: _G | ObjectRef[_G] = ...,
        h: _H | ObjectRef[_H] = ...,
        /,
        **others: Any,
    ) -> _X: ...
    @overload
    def __call__(
        self, a: _A, b: _B, c: _C, d: _D, e: _E, f: _F, g: ObjectRef[_G], h: _H | ObjectRef[_H] = ..., /, **others: Any
    ) -> _X: ...
    @overload
    def __call__(self, a: _A, b: _B, c: _C, d: _D, e: _E, f: _F, g: _G, h: ObjectRef[_H], /, **others: Any) -> _X: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _X: ...

class Remote:
    @overload
    def __get__(
        self, instance: _Takes8[_P, _A, _B, _C, _D, _E, _F, _G, _H, _X], owner: Any
    ) -> Call8[_P, _A, _B, _C, _D, _E, _F, _G, _H, _X]: ...
    @overload
    def __get__(
        self, instance: _Takes7[_P, _A, _B, _C, _D, _E, _F, _G, _X], owner: Any
    ) -> Call7[_P, _A, _B, _C, _D, _E, _F, _G, _X]: ...
    @overload
    def __get__(
        self, instance: _Takes6[_P, _A, _B, _C, _D, _E, _F, _X], owner: Any
    ) -> Call6[_P, _A, _B, _C, _D, _E, _F, _X]: ...
    @overload
    def __get__(
        self, instance: _Takes5[_P, _A, _B, _C, _D, _E, _X], owner: Any
    ) -> Call5[_P, _A, _B, _C, _D, _E, _X]: ...
    @overload
    def __get__(self, instance: _Takes4[_P, _A, _B, _C, _D, _X], owner: Any) -> Call4[_P, _A, _B, _C, _D, _X]: ...
    @overload
    def __get__(self, instance: _Takes3[_P, _A, _B, _C, _X], owner: Any) -> Call3[_P, _A, _B, _C, _X]: ...
    @overload
    def __get__(self, instance: _Takes2[_P, _A, _B, _X], owner: Any) -> Call2[_P, _A, _B, _X]: ...
    @overload
    def __get__(self, instance: _Takes1[_P, _A, _X], owner: Any) -> Call1[_P, _A, _X]: ...
    @overload
    def __get__(self, instance: _Takes[_P, _X], owner: Any) -> Call[_P, _X]: ...

class HasRemote(Generic[_P, _X]):
    """Base of what is called by `.remote(...)`, for type checkers only."""

    remote: Remote
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[_P, Any]: ...
    @property
    def _gives(self) -> _X: ...

# A remote function or method with num_returns other than 1; at run time it is a RemoteFunction or ActorMethod. What a
# call gives is no type argument here, because it holds an Any, and that makes mypy give up on overloads.
class SeveralReturns(Generic[_P]):
    remote: Remote
    def options(self, **options: Any) -> Any: ...
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[_P, Any]: ...
    @property
    def _gives(self) -> list[ObjectRef[Any]]: ...

class NoReturns(Generic[_P]):
    remote: Remote
    def options(self, **options: Any) -> Any: ...
    @property
    def _signature(self) -> Callable[_P, Any]: ...
    @property
    def _positional(self) -> Callable[_P, Any]: ...
    @property
    def _gives(self) -> None: ...

# ---- options; num_returns is apart from them, because it changes what a call gives -----------------------------------

_Exceptions = bool | type[BaseException] | Sequence[type[BaseException]]

class TaskOptionsGiven(TypedDict, total=False):
    num_cpus: float | None
    num_gpus: float | None
    resources: dict[str, float] | None
    memory: float | None
    max_retries: int | None
    retry_exceptions: _Exceptions | None
    name: str | None
    scheduling_strategy: str | NodeAffinity | None
    label_selector: dict[str, str] | None

class ActorOptionsGiven(TypedDict, total=False):
    num_cpus: float | None
    num_gpus: float | None
    resources: dict[str, float] | None
    memory: float | None
    max_restarts: int | None
    max_task_retries: int | None
    retry_exceptions: _Exceptions | None
    max_concurrency: int | None
    concurrency_groups: dict[str, int] | None
    max_pending_calls: int | None
    name: str | None
    namespace: str | None
    lifetime: str | None
    get_if_exists: bool | None
    allow_out_of_order_execution: bool | None
    scheduling_strategy: str | NodeAffinity | None
    label_selector: dict[str, str] | None

class MethodOptionsGiven(TypedDict, total=False):
    max_task_retries: int | None
    retry_exceptions: _Exceptions | None
    concurrency_group: str | None
    name: str | None

# `@weft.remote(...)` does not know yet whether a function or a class follows.
class RemoteOptionsGiven(ActorOptionsGiven, total=False):
    max_retries: int | None
