"""joblib with its default process backend and two workers, kept between calls; it batches small tasks by itself."""

from __future__ import annotations

import functions
from protocol import check, rounds, seconds_each, serve, tasks_per_second


def start():
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    parallel = Parallel(n_jobs=2)
    parallel.__enter__()

    def worker_pids(count):
        pids = set()
        for _ in range(20):
            pids.update(parallel(delayed(functions.slow_pid)(0.2) for _ in range(count)))
            if len(pids) >= count:
                break
        return {"worker_pids": sorted(pids)}

    def tasks_async(count, min_seconds):
        results = []

        def body():
            results[:] = parallel(delayed(functions.increment)(i) for i in range(count))

        durations = rounds(body, min_seconds)
        check(results == list(range(1, count + 1)), "tasks_async")
        return tasks_per_second(count, durations)

    def task_sync(min_seconds):
        return seconds_each(lambda: parallel([delayed(functions.increment)(1)]), min_seconds, block=5)

    def stop():
        parallel.__exit__(None, None, None)
        get_reusable_executor().shutdown(wait=True)

    return {"worker_pids": worker_pids, "tasks_async": tasks_async, "task_sync": task_sync}, stop


if __name__ == "__main__":
    serve(start, ["joblib", "numpy"])
