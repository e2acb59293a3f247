"""weft from C++ under measurement: the compiled program of benchmarks/cpp/workloads.cc, one session for all rows."""

from __future__ import annotations

import programs
from protocol import serve


def start():
    conversation = programs.Conversation([programs.find("weft_bench_cpp")])

    def cpp(kind, size, min_seconds):
        return conversation.ask(kind, size, min_seconds)

    return {"cpp": cpp}, conversation.stop


if __name__ == "__main__":
    serve(start, [])
