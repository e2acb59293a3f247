"""The workloads of every system whose tasks return references: weft and Ray run this very same code.

`define(api)` takes the imported module (`weft` or `ray`); only `remote` (of functions and classes), `get`, `put` and
`wait` are used, which both spell alike. Remote functions and classes are nested here so that they travel by value and
workers need not find this file.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time

from protocol import Unsupported, check, rounds, seconds_each, tasks_per_second

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import process_tree  # noqa: E402


def _numpy():
    try:
        import numpy
    except ImportError:
        raise Unsupported("NumPy is not installed in this system's environment") from None
    return numpy


def _check_is_copy(api, array, reference) -> None:
    """An object is a value: what happens to the array afterwards must not show in it."""
    array[-1] = 2
    check(int(api.get(reference)[-1]) == 1 and api.get(reference).nbytes == array.nbytes, "put")
    array[-1] = 1


def define(api) -> dict:
    @api.remote
    def increment(x):
        return x + 1

    @api.remote
    def add(x, y):
        return x + y

    @api.remote
    def slow_pid(seconds):
        import os
        import time

        time.sleep(seconds)
        return os.getpid()

    @api.remote
    def finished_at(x):
        import os
        import time

        return os.getpid(), time.monotonic()

    @api.remote
    def block(started, released):
        import os
        import time

        with open(started, "w"):
            pass
        while not os.path.exists(released):
            time.sleep(0.005)

    @api.remote
    def parent(count):
        return sum(api.get([increment.remote(i) for i in range(count)]))

    @api.remote
    def list_of_references(count):
        return [api.put(1) for _ in range(count)]

    @api.remote
    def make_array(size):
        import numpy

        return numpy.ones(size, numpy.uint8)

    @api.remote(num_cpus=0)
    def client(directory, index, clients, kind, size, min_seconds):
        """One of several clients that begin together. Returns when it began and ended, and how much it did."""
        import os
        import time

        if kind == "tasks":

            def body():
                api.get([increment.remote(i) for i in range(size)])
                return size
        elif kind == "puts":

            def body():
                for _ in range(100):
                    api.put(0)
                return 100
        else:
            import numpy

            array = numpy.ones(size, numpy.uint8)

            def body():
                api.put(array)
                return size

        body()  # Leases, first allocation and function export are paid before the clock runs.
        with open(os.path.join(directory, str(index)), "w"):
            pass
        patience = time.monotonic() + 60
        while len(os.listdir(directory)) < clients:
            if time.monotonic() > patience:
                raise TimeoutError("the other clients did not start within 60 s")
            time.sleep(0.001)
        begin = time.monotonic()
        done = 0
        while True:
            done += body()
            end = time.monotonic()
            if end - begin >= min_seconds:
                return begin, end, done

    # Actors take no CPU, so that as many as wanted live at once.
    @api.remote(num_cpus=0)
    class Plain:
        def call(self, x):
            return x + 1

        def pid(self):
            import os

            return os.getpid()

    @api.remote(num_cpus=0)
    class WeightServer:
        def __init__(self, count):
            import numpy

            self.weights = numpy.zeros(count, numpy.float32)

        def apply(self, *gradients):
            for gradient in gradients:
                self.weights += gradient
            return self.weights

    @api.remote(num_cpus=0)
    class GradientWorker:
        def __init__(self, count):
            import numpy

            self.result = numpy.empty(count, numpy.float32)

        def gradient(self, weights):
            self.result[:] = weights[0] - weights[-1] + 1
            return self.result

    @api.remote(num_cpus=0, max_concurrency=2)
    class Threaded:
        def call(self, x):
            return x + 1

    @api.remote(num_cpus=0)
    class Asynchronous:
        async def call(self, x):
            return x + 1

    kinds = {"plain": Plain, "threaded": Threaded, "asyncio": Asynchronous}

    @api.remote(num_cpus=0)
    def caller(directory, index, callers, actors, count, min_seconds):
        """One of several callers that begin together. Returns when it began and ended, and how many calls it made."""
        import os
        import time

        def body():
            api.get([actors[i % len(actors)].call.remote(i) for i in range(count)])

        body()
        with open(os.path.join(directory, str(index)), "w"):
            pass
        patience = time.monotonic() + 60
        while len(os.listdir(directory)) < callers:
            if time.monotonic() > patience:
                raise TimeoutError("the other callers did not start within 60 s")
            time.sleep(0.001)
        begin = time.monotonic()
        done = 0
        while True:
            body()
            done += count
            end = time.monotonic()
            if end - begin >= min_seconds:
                return begin, end, done

    # ---- tasks ----

    def worker_pids(count):
        """Ids of `count` different workers, all alive at the end."""
        pids = set()
        for _ in range(20):
            pids.update(api.get([slow_pid.remote(0.2) for _ in range(count)]))
            if len(pids) >= count:
                break
        check(len(pids) >= count, f"only {len(pids)} of {count} workers showed themselves")
        check(os.getpid() not in pids, "a task ran in the driver")
        return {"worker_pids": sorted(pids)}

    def tasks_async(count, min_seconds):
        results = []

        def body():
            results[:] = api.get([increment.remote(i) for i in range(count)])

        durations = rounds(body, min_seconds)
        check(results == list(range(1, count + 1)), "tasks_async")
        return tasks_per_second(count, durations)

    def task_sync(min_seconds):
        check(api.get(increment.remote(1)) == 2, "task_sync")
        return seconds_each(lambda: api.get(increment.remote(1)), min_seconds, block=20)

    def nested(count, min_seconds):
        results = []

        def body():
            results.append(api.get(parent.remote(count)))

        durations = rounds(body, min_seconds)
        check(set(results) == {count * (count + 1) // 2}, "nested")
        return {"seconds": statistics.median(durations)}

    def chain(count, min_seconds):
        results = []

        def body():
            link = 0
            for _ in range(count):
                link = increment.remote(link)
            results.append(api.get(link))

        durations = rounds(body, min_seconds)
        check(set(results) == {count}, "chain")
        return {"seconds": statistics.median(durations)}

    def tree_reduce(leaves, min_seconds):
        results = []

        def body():
            level = [increment.remote(i) for i in range(leaves)]
            while len(level) > 1:
                pairs = [add.remote(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
                if len(level) % 2:
                    pairs.append(level[-1])
                level = pairs
            results.append(api.get(level[0]))

        durations = rounds(body, min_seconds)
        check(set(results) == {leaves * (leaves + 1) // 2}, "tree_reduce")
        return {"seconds": statistics.median(durations)}

    def ready_while_computing(count, compute_seconds):
        """Nothing waits for the driver's next call: results are made while the driver computes in plain Python."""
        references = [finished_at.remote(i) for i in range(count)]
        deadline = time.monotonic() + compute_seconds
        work = 0
        while time.monotonic() < deadline:
            work += 1
        computed = time.monotonic()
        begin = time.perf_counter()
        results = api.get(references)
        late_get = time.perf_counter() - begin
        again = []
        durations = rounds(lambda: again.append(api.get(references)), 0.05)
        check(all(pid != os.getpid() for pid, _ in results), "a task ran in the driver")
        check(again[0] is not again[-1] or len(again) == 1, "two gets gave the same list")
        return {
            "get_seconds": late_get,
            "get_again_seconds": statistics.median(durations),
            "unfinished_when_computed": sum(when > computed for _, when in results),
            "workers": len({pid for pid, _ in results}),
        }

    def queued(count):
        """Tasks queued behind blocked workers: what one costs to submit, to hold and to run."""
        mark = os.environ.get(process_tree.MARK, "")
        directory = tempfile.mkdtemp(prefix="weft-bench-")
        try:
            released = os.path.join(directory, "released")
            starts = [os.path.join(directory, f"started-{i}") for i in range(2)]
            blockers = [block.remote(path, released) for path in starts]
            patience = time.monotonic() + 60
            while not all(os.path.exists(path) for path in starts):
                check(time.monotonic() < patience, "the blocking tasks did not start within 60 s")
                time.sleep(0.01)
            api.get(api.put(0))
            members = process_tree.processes_of(os.getpid(), mark)
            all_before = sum(process_tree.pss_bytes(pid) for pid in members)
            driver_before = process_tree.rss_bytes(os.getpid())
            begin = time.perf_counter()
            references = [increment.remote(i) for i in range(count)]
            submitted = time.perf_counter()
            driver_after = process_tree.rss_bytes(os.getpid())
            all_after = sum(process_tree.pss_bytes(pid) for pid in process_tree.processes_of(os.getpid(), mark))
            release = time.perf_counter()
            with open(released, "w"):
                pass
            results = api.get(references)
            end = time.perf_counter()
            check(results[0] == 1 and results[-1] == count and len(results) == count, "queued")
            api.get(blockers)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return {
            "submit_seconds_per_task": (submitted - begin) / count,
            "seconds_per_task": (submitted - begin + end - release) / count,
            "driver_bytes_per_task": (driver_after - driver_before) / count,
            "all_bytes_per_task": (all_after - all_before) / count,
        }

    def clients_together(kind, size, clients, min_seconds):
        directory = tempfile.mkdtemp(prefix="weft-bench-")
        try:
            spans = api.get([client.remote(directory, i, clients, kind, size, min_seconds) for i in range(clients)])
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        elapsed = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
        return {"per_second": sum(done for _, _, done in spans) / elapsed}

    # ---- objects ----

    def put_small(min_seconds):
        return seconds_each(lambda: api.put(0), min_seconds)

    def get_small(min_seconds):
        reference = api.put(0)
        check(api.get(reference) == 0, "get_small")
        return seconds_each(lambda: api.get(reference), min_seconds)

    def get_small_once(count, min_seconds):
        """Each reference is got exactly once, so that nothing can be remembered from an earlier get."""
        total, gets = 0.0, 0
        while total < min_seconds or gets == 0:
            references = [api.put(i) for i in range(count)]
            begin = time.perf_counter()
            for reference in references:
                api.get(reference)
            total += time.perf_counter() - begin
            gets += count
        return {"seconds": total / gets}

    def put_large(size, alive, min_seconds):
        """The same array put again and again while the last `alive` objects stay referenced (1: dropped at once)."""
        array = _numpy().ones(size, "uint8")
        kept = [None] * alive
        for i in range(alive + 1):  # Fills the rotation and warms the pages.
            kept[i % alive] = None
            kept[i % alive] = api.put(array)
        _check_is_copy(api, array, kept[0])
        position = [0]

        def body():
            i = position[0] % alive
            position[0] += 1
            if alive == 1:
                kept[i] = None
            kept[i] = api.put(array)

        durations = []
        while len(durations) < 2 * alive or sum(durations) < min_seconds:
            durations.extend(rounds(body, 0))
        return {"bytes_per_second": size * len(durations) / sum(durations), "puts": len(durations)}

    def put_large_first(size):
        """The first large put of a new process: no page of the store has been touched before."""
        array = _numpy().ones(size, "uint8")
        check(api.get(increment.remote(1)) == 2, "put_large_first")
        begin = time.perf_counter()
        reference = api.put(array)
        duration = time.perf_counter() - begin
        _check_is_copy(api, array, reference)
        return {"bytes_per_second": size / duration}

    def get_large(size, min_seconds):
        reference = api.put(_numpy().ones(size, "uint8"))
        check(int(api.get(reference)[-1]) == 1 and api.get(reference).nbytes == size, "get_large")
        return seconds_each(lambda: api.get(reference), min_seconds, block=20)

    def get_large_of_worker(size):
        """The first get of an array that a worker made: the driver has not seen its memory before."""
        _numpy()
        reference = make_array.remote(size)
        api.wait([reference], num_returns=1)
        begin = time.perf_counter()
        array = api.get(reference)
        duration = time.perf_counter() - begin
        check(int(array[-1]) == 1 and array.nbytes == size, "get_large_of_worker")
        return {"seconds": duration}

    def wait_loop(count):
        def loop(references):
            while references:
                ready, references = api.wait(references, num_returns=1)
                check(len(ready) == 1, "wait_loop")

        begin = time.perf_counter()
        loop([increment.remote(i) for i in range(count)])
        with_tasks = time.perf_counter() - begin
        references = [increment.remote(i) for i in range(count)]
        api.get(references)
        begin = time.perf_counter()
        loop(references)
        return {"ready_seconds": time.perf_counter() - begin, "with_tasks_seconds": with_tasks}

    def as_completed(count):
        try:
            iterate = __import__(api.__name__ + ".util", fromlist=["as_completed"]).as_completed
        except (ImportError, AttributeError):
            raise Unsupported("no as_completed") from None
        begin = time.perf_counter()
        seen = sum(1 for _ in iterate([increment.remote(i) for i in range(count)]))
        duration = time.perf_counter() - begin
        check(seen == count, "as_completed")
        return {"seconds": duration}

    def references_in_object(count, min_seconds):
        reference = list_of_references.remote(count)
        first = api.get(reference)
        check(len(first) == count and api.get(first[-1]) == 1, "references_in_object")
        check(api.get(reference) is not first, "two gets gave the same list")
        del first
        return {"seconds": statistics.median(rounds(lambda: api.get(reference), min_seconds))}

    # ---- actors ----

    def actor_sync(kind, min_seconds):
        actor = kinds[kind].remote()
        check(api.get(actor.call.remote(1)) == 2, "actor_sync")
        return seconds_each(lambda: api.get(actor.call.remote(1)), min_seconds, block=20)

    def actor_async(kind, actors, count, min_seconds):
        """One caller, `actors` actors in turn."""
        handles = [kinds[kind].remote() for _ in range(actors)]
        api.get([handle.call.remote(0) for handle in handles])
        results = []

        def body():
            results[:] = api.get([handles[i % actors].call.remote(i) for i in range(count)])

        durations = rounds(body, min_seconds)
        check(results == list(range(1, count + 1)), "actor_async")
        return {"calls_per_second": count / statistics.median(durations)}

    def actor_callers(kind, callers, actors, count, min_seconds):
        """Several callers, each of which calls all actors in turn."""
        handles = [kinds[kind].remote() for _ in range(actors)]
        api.get([handle.call.remote(0) for handle in handles])
        directory = tempfile.mkdtemp(prefix="weft-bench-")
        try:
            spans = api.get([caller.remote(directory, i, callers, handles, count, min_seconds) for i in range(callers)])
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        elapsed = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
        return {"calls_per_second": sum(done for _, _, done in spans) / elapsed}

    def actors_created(count):
        """Actors made and answering; what they weigh; and until they are gone after the last handle was dropped."""
        mark = os.environ.get(process_tree.MARK, "")
        api.get(increment.remote(1))

        def members():
            return process_tree.processes_of(os.getpid(), mark)

        before = sum(process_tree.pss_bytes(pid) for pid in members())
        begin = time.perf_counter()
        handles = [Plain.remote() for _ in range(count)]
        pids = api.get([handle.pid.remote() for handle in handles])
        created = time.perf_counter() - begin
        check(len(set(pids)) == count and os.getpid() not in pids, "actors_created")
        after = sum(process_tree.pss_bytes(pid) for pid in members())
        begin = time.perf_counter()
        del handles
        patience = time.monotonic() + 120
        while not set(pids).isdisjoint(members()):
            check(time.monotonic() < patience, "actors are alive 120 s after their last handle was dropped")
            time.sleep(0.01)
        gone = time.perf_counter() - begin
        return {"seconds": created, "bytes_per_actor": (after - before) / count, "gone_seconds": gone}

    def parameter_server(size, workers, min_seconds):
        """Rounds of one server with `size` bytes of weights: each worker reads them and answers with a gradient as
        large, which the server adds to the weights in place. A gradient is all ones, so the weights count them."""
        count = size // 4
        server = WeightServer.remote(count)
        helpers = [GradientWorker.remote(count) for _ in range(workers)]
        weights = server.apply.remote()

        def body():
            nonlocal weights
            weights = server.apply.remote(*[helper.gradient.remote(weights) for helper in helpers])
            api.wait([weights])

        body()  # Processes, imports and the first pages are paid before the clock runs.
        body()
        durations = rounds(body, min_seconds)
        result = api.get(weights)
        expected = workers * (len(durations) + 2)
        check(result.nbytes == 4 * count and result[0] == expected and result[-1] == expected, "parameter_server")
        return {"seconds": statistics.median(durations), "rounds": len(durations)}

    chosen = dict(locals())
    return {name: chosen[name] for name in _NAMES}


_NAMES = [
    "worker_pids",
    "tasks_async",
    "task_sync",
    "nested",
    "chain",
    "tree_reduce",
    "ready_while_computing",
    "queued",
    "clients_together",
    "put_small",
    "get_small",
    "get_small_once",
    "put_large",
    "put_large_first",
    "get_large",
    "get_large_of_worker",
    "wait_loop",
    "as_completed",
    "references_in_object",
    "actor_sync",
    "actor_async",
    "actor_callers",
    "actors_created",
    "parameter_server",
]
