"""weft under measurement: a private local session with two CPUs and otherwise default settings."""

from __future__ import annotations

from protocol import serve


def start():
    import reference_workloads
    import weft

    weft.init(num_cpus=2)
    return reference_workloads.define(weft), weft.shutdown


if __name__ == "__main__":
    serve(start, ["weft", "numpy"])
