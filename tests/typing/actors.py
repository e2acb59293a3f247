"""What type checkers say of actors; see tasks.py for the marks."""

from __future__ import annotations

from typing import Any

import weft
from typing_extensions import assert_type
from weft import ActorHandle, ObjectRef

number = weft.put(1)


# ---- a class that says how its methods are called ----
@weft.remote
class Counter(weft.TypedActor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @weft.method
    def add(self, by: int, note: str = "") -> int:
        self.value += by
        return self.value

    @weft.method(max_task_retries=3)
    def add_twice(self, by: int) -> int:
        self.add("a")  # error
        return self.add(by) + self.add(by)

    @weft.method(num_returns=2)
    def both(self) -> tuple[int, int]:
        return self.value, -self.value

    @weft.method
    async def later(self) -> str:
        return "a"

    def not_marked(self) -> None: ...


counter = Counter.remote(1)
assert_type(counter, Counter)
assert_type(counter.add.remote(1), ObjectRef[int])
assert_type(counter.add.remote(by=1, note="x"), ObjectRef[int])
assert_type(counter.add.remote(number), ObjectRef[int])
assert_type(counter.add_twice.remote(counter.add.remote(1)), ObjectRef[int])
assert_type(counter.later.remote(), ObjectRef[str])
assert_type(weft.get(counter.later.remote()), str)
assert_type(counter.both.remote(), list[ObjectRef[Any]])
assert_type(counter.add.options(name="adding").remote(1), ObjectRef[int])
assert_type(Counter.options(name="c", lifetime="detached", max_restarts=-1).remote(1), Counter)
Counter.remote(number)
weft.kill(counter)
weft.kill(counter, no_restart=False)

counter.add.remote("a")  # error
counter.add.remote()  # error
counter.add.remote(1, "x", 2)  # error
counter.add.remote(weft.put("a"))  # error
counter.ad.remote(1)  # error
counter.not_marked.remote()  # error
counter.add.options(num_cpus=1)  # error
Counter.remote("a")  # error
Counter.remote(1, 2)  # error
Counter.options(max_restart=1)  # error


@weft.remote
def use(counter: Counter, times: int) -> int:
    return weft.get([counter.add.remote(1) for _ in range(times)])[-1]


assert_type(use.remote(counter, 3), ObjectRef[int])
use.remote(1, 3)  # error


# ---- a plain class: the constructor is checked, methods are not ----
class Plain:
    def __init__(self, start: int, name: str = "") -> None:
        self.value = start

    def add(self, by: int) -> int:
        return by


PlainActor = weft.remote(Plain)
plain = PlainActor.remote(1)
assert_type(plain, ActorHandle[Plain])
assert_type(PlainActor.options(max_concurrency=2).remote(1), ActorHandle[Plain])
assert_type(weft.remote(max_restarts=2)(Plain).remote(1), ActorHandle[Plain])
PlainActor.remote(number, weft.put("a"))
plain.add.remote(1)
plain.add.remote("not checked")
PlainActor.remote("a")  # error
PlainActor.remote()  # error
PlainActor.options(max_restart=1)  # error


# mypy takes no notice of what a decorator makes of a class, and so does not know `remote`.
@weft.remote
class Decorated:
    def __init__(self, start: int) -> None: ...


Decorated.remote(1)  # error[mypy]
Decorated.remote("a")  # error

found = weft.get_actor("c")
assert_type(found, ActorHandle[Any])
found.anything.remote(1, 2, x=3)
weft.kill(number)  # error
weft.cancel(counter)  # error
weft.cancel(number, force=True)
