"""Ray under measurement: a private local session with two CPUs, dashboard and usage report off, else defaults."""

from __future__ import annotations

import os

from protocol import serve


def start():
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import reference_workloads

    ray.init(num_cpus=2, include_dashboard=False)
    return reference_workloads.define(ray), ray.shutdown


if __name__ == "__main__":
    serve(start, ["ray", "numpy"])
