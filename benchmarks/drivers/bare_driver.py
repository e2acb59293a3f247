"""The bare limits: what the machine itself allows, measured under the names of the workloads they are limits of.

tasks_async      ints through a ring in shared memory to a Python function in another process, both sides spinning
cpp              the same with a native function, for tasks
task_sync        futex ping-pong between two processes, unpinned, non-spinning
put_large        memcpy of the same bytes into warm memory, one thread
put_large_first  a copy of the same bytes into a new memfd
wait_loop        copying the same shrinking lists in Python
actor_async      asyncio: a task for each call in the loop of the caller, then gather
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time

import programs
from protocol import Unsupported, check, rounds, serve, tasks_per_second


def _numpy():
    try:
        import numpy
    except ImportError:
        raise Unsupported("NumPy is not installed") from None
    return numpy


def _increment(x):
    return x + 1


def tasks_async(count, min_seconds):
    path = programs.find("libweft_bench_ring_python.so")
    server = ctypes.PyDLL(path)  # Calls Python functions, so it keeps the GIL.
    caller = ctypes.CDLL(path)
    caller.ring_create.restype = ctypes.c_void_p
    caller.ring_round.restype = ctypes.c_double
    caller.ring_round.argtypes = [ctypes.c_void_p, ctypes.c_long]
    caller.ring_close.argtypes = [ctypes.c_void_p]
    server.ring_serve.argtypes = [ctypes.c_void_p, ctypes.py_object]
    ring = caller.ring_create()
    check(bool(ring), "no shared memory")
    child = os.fork()
    if child == 0:  # The worker spins, so it lives only during this repetition.
        try:
            server.ring_serve(ring, _increment)
        finally:
            os._exit(0)
    durations = []
    caller.ring_round(ring, count)
    deadline = time.perf_counter() + min_seconds
    while not durations or time.perf_counter() < deadline:
        durations.append(caller.ring_round(ring, count))
        check(durations[-1] > 0, "the ring answered wrongly")
    caller.ring_close(ring)
    os.waitpid(child, 0)
    return tasks_per_second(count, durations)


def cpp(kind, size, min_seconds):
    if kind != "tasks":
        raise Unsupported("no limit of its own; see the tasks")
    return {"value": programs.run("weft_bench_ring_native", size, max(min_seconds, 0.05))["tasks_per_second"]}


def task_sync(min_seconds):
    return programs.run("weft_bench_futex_ping_pong", max(min_seconds, 0.05))


def put_large(size, alive, min_seconds):
    numpy = _numpy()
    source = numpy.ones(size, "uint8")
    targets = [numpy.zeros(size, "uint8") for _ in range(alive)]
    for target in targets:
        numpy.copyto(target, source)
    durations = []
    while len(durations) < 2 * alive or sum(durations) < min_seconds:
        target = targets[len(durations) % alive]
        durations.extend(rounds(lambda target=target: numpy.copyto(target, source), 0))
    return {"bytes_per_second": size * len(durations) / sum(durations), "puts": len(durations)}


def put_large_first(size):
    numpy = _numpy()
    source = numpy.ones(size, "uint8")
    begin = time.perf_counter()
    descriptor = os.memfd_create("weft-bench")
    os.ftruncate(descriptor, size)
    memory = mmap.mmap(descriptor, size)
    target = numpy.frombuffer(memory, "uint8")
    numpy.copyto(target, source)
    duration = time.perf_counter() - begin
    check(int(target[-1]) == 1, "put_large_first")
    os.close(descriptor)
    return {"bytes_per_second": size / duration}


def wait_loop(count):
    rest = [object() for _ in range(count)]
    begin = time.perf_counter()
    while rest:
        _ready, rest = rest[:1], rest[1:]
    seconds = time.perf_counter() - begin
    return {"ready_seconds": seconds, "with_tasks_seconds": seconds}


def actor_async(kind, actors, count, min_seconds):
    if kind != "asyncio":
        raise Unsupported("no limit of its own; see tasks_async")
    import asyncio

    async def call(x):
        return x + 1

    async def body():
        return await asyncio.gather(*[asyncio.create_task(call(i)) for i in range(count)])

    loop = asyncio.new_event_loop()
    try:
        check(loop.run_until_complete(body()) == list(range(1, count + 1)), "actor_async")
        durations = rounds(lambda: loop.run_until_complete(body()), min_seconds)
    finally:
        loop.close()
    return {"calls_per_second": tasks_per_second(count, durations)["tasks_per_second"]}


def start():
    names = [tasks_async, cpp, task_sync, put_large, put_large_first, wait_loop, actor_async]
    return {function.__name__: function for function in names}, lambda: None


if __name__ == "__main__":
    serve(start, ["numpy"])
