"""weft from C++: runs the compiled program benchmarks/cpp/tasks_async.cc, a whole session per repetition."""

from __future__ import annotations

import programs
from protocol import serve


def cpp_tasks_async(count, min_seconds):
    return programs.run("weft_bench_cpp_tasks_async", count, max(min_seconds, 0.05))


def start():
    return {"cpp_tasks_async": cpp_tasks_async}, lambda: None


if __name__ == "__main__":
    serve(start, [])
