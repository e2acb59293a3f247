"""Sharing data: put a large value into the store once, and pass the reference.

A value passed as it is gets copied for every call. One that was put lies in shared memory, and every task sees the same
bytes: an array comes back without a copy, and read-only, because others look at it too.
"""

import time

import numpy as np
import weft


@weft.remote
def column_sum(table, column):
    assert not table.flags.writeable  # everybody's table
    return float(table[:, column].sum())


if __name__ == "__main__":
    with weft.init(num_cpus=4):
        table = np.arange(4_000_000, dtype=np.float64).reshape(-1, 4)  # 32 MB

        started = time.perf_counter()
        reference = weft.put(table)
        print(f"put of {table.nbytes / 1e6:.0f} MB: {(time.perf_counter() - started) * 1e3:.1f} ms")

        started = time.perf_counter()
        view = weft.get(reference)
        print(f"get of it: {(time.perf_counter() - started) * 1e6:.0f} µs")
        assert view is not table and np.array_equal(view, table)

        sums = weft.get([column_sum.remote(reference, column % 4) for column in range(20)])
        assert sums == [float(table[:, column % 4].sum()) for column in range(20)]

        # To change it, copy it.
        try:
            view[0, 0] = 1.0
        except ValueError:
            changed = view.copy()
            changed[0, 0] = 1.0
        assert weft.get(reference)[0, 0] == 0.0 and changed[0, 0] == 1.0

        # An array made in the store is put without any copy.
        made_there = weft.empty((1000, 1000))
        made_there[:] = 1.0
        assert weft.get(weft.put(made_there)).sum() == 1_000_000
    print("ok")
