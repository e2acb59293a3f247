"""weft under measurement: a private local session with two CPUs and otherwise default settings."""

from __future__ import annotations

import os

import programs
from protocol import check, seconds_each, serve


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


def scheduler(nodes, min_seconds):
    return programs.run("weft_bench_scheduler", nodes, max(min_seconds, 0.05))


def start():
    import reference_workloads
    import weft

    weft.init(num_cpus=2)
    return {**reference_workloads.define(weft), "cpp_array": cpp_array, "scheduler": scheduler}, weft.shutdown


if __name__ == "__main__":
    serve(start, ["weft", "numpy"])
