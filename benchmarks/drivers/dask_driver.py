"""Dask's distributed scheduler on this machine: two worker processes with one thread each, dashboard off."""

from __future__ import annotations

import statistics

import functions
from protocol import check, rounds, seconds_each, serve, tasks_per_second


def start():
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    client = Client(cluster)

    def submit(function, *arguments):
        return client.submit(function, *arguments, pure=False)  # Pure calls would be answered from memory.

    def worker_pids(count):
        pids = set()
        for _ in range(20):
            pids.update(client.gather([submit(functions.slow_pid, 0.2) for _ in range(count)]))
            if len(pids) >= count:
                break
        return {"worker_pids": sorted(pids)}

    def tasks_async(count, min_seconds):
        results = []

        def body():
            results[:] = client.gather([submit(functions.increment, i) for i in range(count)])

        durations = rounds(body, min_seconds)
        check(results == list(range(1, count + 1)), "tasks_async")
        return tasks_per_second(count, durations)

    def task_sync(min_seconds):
        return seconds_each(lambda: submit(functions.increment, 1).result(), min_seconds, block=5)

    def chain(count, min_seconds):
        results = []

        def body():
            link = 0
            for _ in range(count):
                link = submit(functions.increment, link)
            results.append(link.result())

        durations = rounds(body, min_seconds)
        check(set(results) == {count}, "chain")
        return {"seconds": statistics.median(durations)}

    def tree_reduce(leaves, min_seconds):
        results = []

        def body():
            level = [submit(functions.increment, i) for i in range(leaves)]
            while len(level) > 1:
                pairs = [submit(functions.add, level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
                if len(level) % 2:
                    pairs.append(level[-1])
                level = pairs
            results.append(level[0].result())

        durations = rounds(body, min_seconds)
        check(set(results) == {leaves * (leaves + 1) // 2}, "tree_reduce")
        return {"seconds": statistics.median(durations)}

    def stop():
        client.close()
        cluster.close()

    names = [worker_pids, tasks_async, task_sync, chain, tree_reduce]
    return {function.__name__: function for function in names}, stop


if __name__ == "__main__":
    serve(start, ["dask", "distributed", "numpy"])
