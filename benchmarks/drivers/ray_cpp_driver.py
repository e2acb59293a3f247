"""Ray from C++ under measurement: a private local session as in ray_driver.py, joined by the compiled program of
benchmarks/peers/ray_cpp, whose workers load its library of functions."""

from __future__ import annotations

import os

import programs
from protocol import Unsupported, serve


def start():
    program = programs.find("weft_bench_ray_cpp")
    library = programs.find("libweft_bench_ray_cpp_functions.so")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    # Not started by the C++ program: it would run `ray start` and, in the end, `ray stop`, which ends every Ray of the
    # machine. Nor can it find them in this PATH.
    ray.init(num_cpus=2, include_dashboard=False)
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    address = ray.get_runtime_context().gcs_address
    conversation = programs.Conversation([program, address, library], environment)

    def cpp(kind, size, min_seconds):
        if kind == "get_array":
            raise Unsupported("Ray's C++ API has no arrays in place")
        return conversation.ask(kind, size, min_seconds)

    def stop():
        conversation.stop()
        ray.shutdown()

    return {"cpp": cpp}, stop


if __name__ == "__main__":
    serve(start, ["ray", "ray-cpp"])
