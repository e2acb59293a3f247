"""The standard library's `multiprocessing.Pool` with two workers, started as the platform does by default."""

from __future__ import annotations

import multiprocessing

import functions
from protocol import check, rounds, seconds_each, serve, tasks_per_second


def start():
    pool = multiprocessing.Pool(2)

    def worker_pids(count):
        pids = set()
        for _ in range(20):
            pids.update(pool.map(functions.slow_pid, [0.2] * count, chunksize=1))
            if len(pids) >= count:
                break
        return {"worker_pids": sorted(pids)}

    def tasks_async(count, min_seconds):
        results = []

        def body():
            pending = [pool.apply_async(functions.increment, (i,)) for i in range(count)]
            results[:] = [result.get() for result in pending]

        durations = rounds(body, min_seconds)
        check(results == list(range(1, count + 1)), "tasks_async")
        return tasks_per_second(count, durations)

    def task_sync(min_seconds):
        return seconds_each(lambda: pool.apply(functions.increment, (1,)), min_seconds, block=20)

    def stop():
        pool.close()
        pool.join()

    return {"worker_pids": worker_pids, "tasks_async": tasks_async, "task_sync": task_sync}, stop


if __name__ == "__main__":
    serve(start, [])
