"""weft under measurement: a private local session with two CPUs and otherwise default settings."""

from __future__ import annotations

import os
import statistics

import programs
from protocol import check, rounds, seconds_each, serve


def _place(array) -> tuple[int, int]:
    """The file behind an array's memory and the place in it, which are the same in all processes."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, _, offset, _, inode = line.split()[:5]
            begin, end = (int(text, 16) for text in addresses.split("-"))
            if begin <= address < end:
                return int(inode), int(offset, 16) + address - begin
    raise RuntimeError("the array lies in no mapping")


def cpp_array(size, min_seconds):
    """An array of `size` bytes to a C++ task, which answers with one as large: made in place on both sides."""
    import weft
    import weft.cpp

    library = weft.cpp.library(os.path.realpath(programs.find("libweft_bench_library.so")))
    count = size // 8

    def make():
        array = weft.empty(count)
        array[0], array[-1] = 1, 2
        return array

    def there_and_back():
        return weft.get(library.answer.remote(weft.put(make())))

    result = there_and_back()
    check(result.nbytes == size and result[0] == 2 and result[-1] == 3, "cpp_array")
    del result
    # What is copied shows in where arrays lie, and in how much more the store of this process holds: one array.
    before = weft._core.stats()["store_bytes"]
    array = make()
    place = _place(array)
    given = weft.put(array)
    seen = tuple(weft.get(library.place.remote(given)))
    reference = library.placed_answer.remote(given)
    result = weft.get(reference)
    copied = size * (seen != place) + size * (_place(result) != (int(result[1]), int(result[2])))
    grown = weft._core.stats()["store_bytes"] - before
    del array, given, reference, result
    return {**seconds_each(there_and_back, min_seconds, block=20), "copied_bytes": copied, "store_bytes": grown}


def parameter_server_util(size, workers, min_seconds):
    """The rounds of parameter_server with weft.util.ParameterServer: two shards, gradients written in place."""
    import numpy
    import weft
    from weft.util import ParameterServer

    count = size // 16
    start_weights = {f"w{i}": numpy.zeros(count, numpy.float32) for i in range(4)}
    # A step adds the sum of all gradients.
    server = ParameterServer(start_weights, shards=2, workers=workers, rate=-float(workers))

    @weft.remote(num_cpus=0)
    class Worker:
        def __init__(self, server, number):
            self.server, self.number = server, number

        def step(self):
            weights, gradients = self.server.pull(), self.server.gradients()
            for name, gradient in gradients.items():
                gradient[:] = weights[name][0] - weights[name][-1] + 1
            self.server.push(gradients, worker=self.number)

    helpers = [Worker.remote(server, number) for number in range(workers)]

    def body():
        weft.get([helper.step.remote() for helper in helpers])

    body()
    body()
    durations = rounds(body, min_seconds)
    expected = workers * (len(durations) + 2)
    check(all(a[0] == expected and a[-1] == expected for a in server.pull().values()), "parameter_server_util")
    return {"seconds": statistics.median(durations), "rounds": len(durations)}


def scheduler(nodes, min_seconds):
    return programs.run("weft_bench_scheduler", nodes, max(min_seconds, 0.05))


def start():
    import reference_workloads
    import weft

    weft.init(num_cpus=2)
    own = [cpp_array, parameter_server_util, scheduler]
    return {**reference_workloads.define(weft), **{function.__name__: function for function in own}}, weft.shutdown


if __name__ == "__main__":
    serve(start, ["weft", "numpy"])
