"""Learning workloads in weft and in Ray: parameter servers, weights for several actors, Tianshou's RayVectorEnv.

    python benchmarks/learning.py [--seconds S] [--preload MODULES]

Both systems run this file with the same Python, `import ray` and all: Ray plainly, weft by `weft run`. They take turns,
each time in a new process, as often as fits into the time; the table shows medians. In weft the modules of the
environments are preloaded (WEFT_PRELOAD; nothing with `--preload ''`), which Ray cannot do. `scripts/learning-env
tianshou` makes the environment, which downloads 1 GB once. Run by hand; it fails nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MB = 1_000_000
WORKERS = 2  # of the parameter server
READERS = 4
ENVIRONMENTS = 4
STEPS = 300  # of all environments, in one block
BLOCKS = 3
SECONDS = 1.0  # how long rounds of a parameter server are repeated


class Reader:
    def place(self, weights):
        """Where the weights lie: the file behind their memory and the offset in it. Reads all of them."""
        assert weights.sum() == len(weights)
        address = weights.__array_interface__["data"][0]
        with open("/proc/self/maps") as maps:
            for line in maps:
                addresses, _, offset, device, inode = line.split()[:5]
                begin, end = (int(text, 16) for text in addresses.split("-"))
                if begin <= address < end:
                    where = int(offset, 16) + address - begin
                    return [device, inode, where] if inode != "0" else [os.getpid(), "", address]


def weights_to_actors(ray):
    """Put weights and have actors read them; how long it takes, and how many copies they look at."""
    import numpy as np

    readers = [ray.remote(Reader).options(num_cpus=0).remote() for _ in range(READERS)]
    weights = np.ones(100 * MB // 4, np.float32)
    ray.get([reader.place.remote(weights[:4]) for reader in readers])
    begin = time.perf_counter()
    shared = ray.put(weights)
    places = ray.get([reader.place.remote(shared) for reader in readers])
    return time.perf_counter() - begin, len(set(map(tuple, places)))


def vector_environment():
    """Seconds to make a RayVectorEnv and reset it, and seconds of a step of all environments."""
    import gymnasium
    import numpy as np
    from tianshou.env import RayVectorEnv

    begin = time.perf_counter()
    environments = RayVectorEnv([lambda: gymnasium.make("CartPole-v1")] * ENVIRONMENTS)
    environments.reset(seed=0)
    made = time.perf_counter() - begin
    random, blocks = np.random.default_rng(0), []
    for _ in range(BLOCKS):
        begin = time.perf_counter()
        for _ in range(STEPS):
            _, _, fallen, cut, _ = environments.step(random.integers(0, 2, ENVIRONMENTS))
            over = np.flatnonzero(fallen | cut)
            if len(over):
                environments.reset(over)
        blocks.append((time.perf_counter() - begin) / STEPS)
    environments.close()
    return made, statistics.median(blocks)


def measure():
    """In a process of its own: prints what was found, as JSON."""
    sys.path.insert(0, os.path.join(HERE, "drivers"))
    import ray
    import reference_workloads

    on_weft = "weft" in sys.modules
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    found = {"on_weft": on_weft}
    program = reference_workloads.define(ray)["parameter_server"]
    for size in (1, 100):
        found[f"parameter server round, {size} MB"] = program(size * MB, WORKERS, SECONDS)["seconds"]
        if on_weft:
            import weft_driver

            by_weft = weft_driver.parameter_server_util(size * MB, WORKERS, SECONDS)["seconds"]
            found[f"... by weft.util.ParameterServer, {size} MB"] = by_weft
    found["100 MB of weights to 4 actors"], found["copies"] = weights_to_actors(ray)
    made, step = vector_environment()
    found["RayVectorEnv, make and reset"] = made
    found["RayVectorEnv, one step of 4"] = step
    found[f"RayVectorEnv, make and {BLOCKS * STEPS} steps"] = made + BLOCKS * STEPS * step
    ray.shutdown()
    print(json.dumps(found))


def run(command, preload):
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "WEFT_PRELOAD": preload}
    program = [*command, os.path.abspath(__file__), "--measure"]
    ran = subprocess.run(program, stdout=subprocess.PIPE, env=environment, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=210, help="begin no further turn that would end later")
    parser.add_argument("--preload", default="tianshou.env,gymnasium", help="modules that weft imports once")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure()
    script = os.path.join(os.path.dirname(HERE), "scripts", "learning-env")
    python = subprocess.run([script, "tianshou"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    weft = os.path.join(os.path.dirname(python), "weft")
    samples = {"weft": [], "Ray": []}
    begin, turn = time.monotonic(), 0.0
    while time.monotonic() - begin + turn < options.seconds:
        turn_begin = time.monotonic()
        for name, command in (("weft", [weft, "run"]), ("Ray", [python])):  # in turn: a slow minute hits both
            samples[name].append(run(command, options.preload))
            assert samples[name][-1].pop("on_weft") == (name == "weft"), f"{name} was not measured"
        turn = time.monotonic() - turn_begin

    def median(name, row):
        return statistics.median(sample[row] for sample in samples[name])

    print(f"{'medians of ' + str(len(samples['Ray'])):<46} {'weft':>11} {'Ray':>11}   ratio")
    for row in samples["weft"][0]:
        if row == "copies":
            copies = [max(sample[row] for sample in samples[name]) for name in samples]
            print(f"{'... copies that the actors look at':<46} {copies[0]:>11} {copies[1]:>11}")
            continue
        peer = row if row in samples["Ray"][0] else "parameter server round, " + row.rpartition(", ")[2]
        ours, theirs = median("weft", row), median("Ray", peer)
        print(f"{row:<46} {1000 * ours:8.2f} ms {1000 * theirs:8.2f} ms {theirs / ours:6.1f}x")


if __name__ == "__main__":
    sys.exit(main())
