"""What tests/cpp/library/calls_python.cc and python_faults.cc call."""

import asyncio
import os
import time

import numpy
import weft


def plus(a, b):
    return a + b


def words(text):
    return text.split()


def numbers(count):
    return list(range(count))


def table():
    return {"a": 1.0, "b": 2.5}


def total(array):
    assert isinstance(array, numpy.ndarray) and not array.flags.writeable
    return float(array.sum())


def doubled(array):
    return array * 2


def fails(text):
    raise KeyError(text)


def hold(mark):
    """Says where it runs, and waits until it is killed or may go. A second time it ends at once."""
    if os.path.exists(mark):
        return "again"
    with open(mark + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(mark + ".new", mark)
    deadline = time.monotonic() + 60
    while not os.path.exists(mark + ".go") and time.monotonic() < deadline:
        time.sleep(0.005)
    return "went"


class Counter:
    def __init__(self, start):
        self.value = start

    def pid(self):
        return os.getpid()

    def parent(self):
        return os.getppid()

    def increment(self, by):
        self.value += by
        return self.value


def uses_counter(counter):
    @weft.remote
    def inside(handle):  # a Python task of a Python task, in the session of a C++ program
        return weft.get(handle.increment.remote(100))

    return weft.get(inside.remote(counter))


class Loop:
    def __init__(self):
        self.event = asyncio.Event()

    async def wait_for_go(self):
        await self.event.wait()
        return "went"

    async def go(self):
        self.event.set()
