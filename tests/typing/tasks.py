"""What type checkers say of tasks and objects. Checked by tests/python/test_typing.py, which says what the marks
mean. Not meant to be run."""

from __future__ import annotations

from typing import Any

import weft
from typing_extensions import assert_type
from weft import ObjectRef


@weft.remote
def scale(x: int, by: float = 1.0, *, note: str = "") -> float:
    return x * by


@weft.remote
def nothing() -> str:
    return ""


@weft.remote(num_cpus=2, resources={"disk": 1}, max_retries=0, retry_exceptions=[OSError])
def length(text: str) -> int:
    return len(text)


@weft.remote(num_returns=2)
def halves(text: str) -> tuple[str, str]:
    return text[:1], text[1:]


@weft.remote(num_returns=0)
def log(text: str) -> None:
    print(text)


@weft.remote
def total(*numbers: int) -> int:
    return sum(numbers)


@weft.remote
def keyword_only(*, x: int) -> int:
    return x


@weft.remote
def nine(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int) -> int:
    return a


number = weft.put(1)
text = weft.put("a")
assert_type(number, ObjectRef[int])

# ---- values ----
assert_type(scale.remote(1), ObjectRef[float])
assert_type(scale.remote(1, 2.0, note="x"), ObjectRef[float])
assert_type(scale.remote(x=1, by=2), ObjectRef[float])
assert_type(nothing.remote(), ObjectRef[str])
assert_type(length.remote("a"), ObjectRef[int])
assert_type(total.remote(1, 2, 3), ObjectRef[int])
assert_type(keyword_only.remote(x=1), ObjectRef[int])
assert_type(nine.remote(1, 2, 3, 4, 5, 6, 7, 8, 9), ObjectRef[int])

scale.remote("a")  # error
scale.remote()  # error
scale.remote(1, 2.0, 3)  # error
scale.remote(1, of=2)  # error
scale.remote(1, note=2)  # error
nothing.remote(1)  # error
length.remote(1)  # error
total.remote(1, "a")  # error
keyword_only.remote(1)  # error

# ---- references where values are expected ----
assert_type(scale.remote(number), ObjectRef[float])
assert_type(scale.remote(number, 2.0), ObjectRef[float])
assert_type(scale.remote(number, weft.put(2.0)), ObjectRef[float])
assert_type(scale.remote(1, scale.remote(2)), ObjectRef[float])
assert_type(scale.remote(number, note="x"), ObjectRef[float])
scale.remote(weft.put(True))  # a bool is an int, also by reference
scale.remote(length.remote(text), 2)
total.remote(number, number)
nine.remote(number, 2, 3, 4, 5, 6, 7, 8, 9)

scale.remote(text)  # error
scale.remote(1, text)  # error
scale.remote(number, "a")  # error
scale.remote(number, number, number)  # error
nothing.remote(number)  # not reported: there is no parameter to compare with
scale.remote(x=number)  # error: by name, types cannot express it; give references by position

# ---- several returns ----
first, second = halves.remote("ab")
assert_type(first, ObjectRef[Any])
halves.remote(1)  # error
assert_type(log.remote("a"), None)
assert_type(scale.options(num_returns=2).remote(1), list[ObjectRef[Any]])

# ---- options ----
assert_type(scale.options(num_cpus=0.5, name="mine").remote(1), ObjectRef[float])
scale.options(num_cpu=1)  # error
scale.options(max_retries="often")  # error
weft.remote(num_gpu=1)  # error

# ---- get, wait, await ----
assert_type(weft.get(number), int)
assert_type(weft.get(scale.remote(1), timeout=1), float)
assert_type(weft.get([number, number]), list[int])
assert_type(weft.get((text, text)), list[str])
weft.get(1)  # error
weft.get([1])  # error
weft.get(number, timeout="a")  # error
ready, rest = weft.wait([number], num_returns=1, timeout=0.5)
assert_type(ready, list[ObjectRef[int]])
assert_type(number.future().result(), int)


async def waits() -> None:
    assert_type(await scale.remote(1), float)
