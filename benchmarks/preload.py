"""Actors that use a heavy module: how long until four are ready, with and without preloading, against one plain import.

    scripts/learning-env torch          prints a Python that has torch and this weft
    THAT_PYTHON benchmarks/preload.py torch

Each figure is from a new process, since an import is paid once; the median of a few. The goal: with preload, four
actors are ready within 1.5 times the time of one import in a fresh interpreter.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

_GOAL = 1.5

_PLAIN = """
import time
begin = time.monotonic()
import {module}
print(time.monotonic() - begin)
"""

_ACTORS = """
import time
import weft

@weft.remote
class Uses:
    def __init__(self):
        import {module}

    def ready(self):
        return True

begin = time.monotonic()
weft.init(num_cpus=2, log_to_driver=False, preload={preload})
actors = [Uses.remote() for _ in range({actors})]
assert all(weft.get([actor.ready.remote() for actor in actors]))
print(time.monotonic() - begin)
weft.shutdown()
"""


def seconds(program: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help="such as torch or tensorflow")
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    module, actors = arguments.module, arguments.actors
    rows = {
        "one plain import": _PLAIN.format(module=module),
        f"{actors} actors, preload": _ACTORS.format(module=module, preload=[module], actors=actors),
        f"{actors} actors, no preload": _ACTORS.format(module=module, preload=[], actors=actors),
    }
    seconds(rows["one plain import"])  # its files are then in the page cache, for all alike
    samples: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(arguments.repeat):  # interleaved: the machine may have other things to do
        for name, program in rows.items():
            samples[name].append(seconds(program))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    plain = medians["one plain import"]
    for name, median in medians.items():
        print(f"{module}: {name:26} {median:7.2f} s   {median / plain:5.2f} x")
    return 0 if medians[f"{actors} actors, preload"] <= _GOAL * plain else 1


if __name__ == "__main__":
    sys.exit(main())
