"""Ray's own microbenchmark (`ray microbenchmark`), unchanged, under real Ray and under `weft run`.

    python benchmarks/ray_microbenchmark.py [--rounds N] [--pause S] [--rows TEXT] [--only weft|Ray]

The program is `ray/_private/ray_perf.py` of the installed wheel. It is run from there, as the main program of a process
of its own, with Ray's clock (`ray_microbenchmark_helpers.py`, from the wheel too). The systems take turns, one whole
program each. What the program imports of `ray._private` and `ray._raylet` is put in place by this file (`prepare`).
Left out in both: placement groups, which weft does not have, and the rows of Ray's client, which are another program.

Ray is that of the peers' environment (peers_env.py), which is made if it has no Ray, and left as it is if it has.
Each row pauses, warms up for 1 s and measures 4 times for 2 s, or for one call if that takes longer: 22 rows are 4
minutes of weft with a pause of 0.3 s, and 8 with Ray's own of 10 s. Run by hand; it fails only if a row does not run.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import sysconfig
import types

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "row: "  # begins the lines that a measuring process prints for us
LEFT_OUT = "placement group"


# ---- in the process that is measured ---------------------------------------------------------------------------------


def prepare(program, pause):
    """Put in place what the program imports of Ray's private modules."""
    import ray

    def place(name, **names):
        module = types.ModuleType(name)
        vars(module).update(names)
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        setattr(sys.modules[parent], own, module)

    if "weft" in sys.modules:
        place("ray._raylet", OPTIMIZED=True)
        place("ray._private")
    else:
        import ray._private  # noqa: F401
    helpers = os.path.join(os.path.dirname(program), "ray_microbenchmark_helpers.py")
    clock = runpy.run_path(helpers)["timeit"]  # as it is in the wheel

    def timeit(name, *arguments):
        rows = clock(name, *arguments, warmup_time_sec=pause)
        for row in filter(None, rows):
            print(MARK + json.dumps([float(part) if part is not name else name for part in row]), flush=True)
        return rows

    place("ray._private.ray_microbenchmark_helpers", timeit=timeit)
    place("ray._private.ray_client_microbenchmark", main=lambda results: None)
    print(MARK + json.dumps(["weft" if "weft" in sys.modules else "Ray", ray.__version__]), flush=True)


def measure(program, pause):
    prepare(program, pause)
    runpy.run_path(program, run_name="__main__")


# ---- the one that starts them ----------------------------------------------------------------------------------------


def run(name, command, program, options):
    """One whole program: the rate of each row, in the program's order, and its spread."""
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ADDRESS": "local",  # a Ray of its own, whatever else runs on the machine
        "TESTS_TO_RUN": options.rows,
        "TESTS_TO_SKIP": LEFT_OUT,
    }
    if name == "weft":
        del environment["RAY_ADDRESS"]
    command = [*command, os.path.abspath(__file__), "--measure", program, "--pause", str(options.pause)]
    ran = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    found, version = {}, None
    for line in ran.stdout:
        if not line.startswith(MARK):
            continue
        row, *numbers = json.loads(line[len(MARK) :])
        if version is None:
            assert row == name, f"{name} was to be measured, and {row} was"
            version = numbers[0]
        else:
            found[row] = numbers
            print(f"  {name:<5} {row:<46} {numbers[0]:12,.1f} +- {numbers[1]:,.1f} per second", flush=True)
    if ran.wait() != 0:
        raise SystemExit(f"{name}: the program ended with code {ran.returncode} after {len(found)} rows")
    return version, found


def ray_in(python):
    """Where this interpreter has Ray; empty if it has none. The other peers are not needed."""
    if not os.path.exists(python):
        return ""
    find = "import importlib.util as u; s = u.find_spec('ray'); print(*s.submodule_search_locations if s else '')"
    return subprocess.run([python, "-c", find], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def load():
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1, help="how often each system runs the whole program")
    parser.add_argument("--pause", type=float, default=10, help="seconds before each row (Ray's default: 10)")
    parser.add_argument("--rows", default="", help="only rows that have this in their name")
    parser.add_argument("--only", choices=("weft", "Ray"), help="one of the two")
    parser.add_argument("--measure", metavar="PROGRAM", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        # The program parses no arguments; what it starts is told its own.
        sys.argv = [options.measure]
        return measure(options.measure, options.pause)

    import peers_env

    ray_python, wheel = peers_env.python(), ray_in(peers_env.python())
    if not wheel:
        ray_python = peers_env.ensure(sys.executable)
        wheel = ray_in(ray_python)
    program = os.path.join(wheel, "_private", "ray_perf.py")
    weft = os.path.join(sysconfig.get_path("scripts"), "weft")
    commands = {"weft": [weft, "run"], "Ray": [ray_python]}
    if options.only:
        commands = {options.only: commands[options.only]}
    samples = {name: [] for name in commands}
    versions = {}
    print(f"load average before: {load()}; {os.cpu_count()} CPUs")
    for _ in range(options.rounds):
        for name, command in commands.items():
            versions[name], found = run(name, command, program, options)
            samples[name].append(found)
            print(f"load average after {name}: {load()}", flush=True)
    if len(samples) < 2:
        return None
    ours, theirs = samples.values()
    rows = [row for row in ours[0] if all(row in found for found in theirs)]
    missing = {row for found in ours + theirs for row in found} - set(rows)
    print(f"\nper second, medians of {options.rounds}; Ray {versions['Ray']}")
    print(f"{'':<46} {'weft':>12} {'Ray':>12}  ratio")
    for row in rows:
        ours_rate, rays_rate = (statistics.median(found[row][0] for found in each) for each in (ours, theirs))
        name = row.replace(" (Plasma Store)", "")
        print(f"{name:<46} {ours_rate:12,.1f} {rays_rate:12,.1f}  {ours_rate / rays_rate:,.1f}x")
    return f"rows that did not run in both: {', '.join(sorted(missing))}" if missing else None


if __name__ == "__main__":
    sys.exit(main())
