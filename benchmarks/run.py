"""Compares weft with its peers and with the bare limits of the machine, in one run.

    python benchmarks/run.py [--quick] [--rows PATTERN ...] [--systems NAME ...] [--repetitions N] [--isolate]

Every system lives in a driver process of its own (drivers/). For each row the runner asks the systems in turn for one
repetition, then for the next, so that a slow minute of the machine hits all of them; the table shows medians. Rows
about starting, idling and first touches come first and run with no other system up. It prints the table and writes
out/latest.json, out/latest.txt and out/latest.png. It fails nothing: a benchmark is not a test.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import subprocess
import sys
import time

import cold_start
import machine
import peers_env
import report
import systems
from rows import NOT_MEASURED, SYSTEMS, Row, Scale, all_rows

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(HERE)
_NEEDS = {"weft": "weft", "ray": "ray", "ray_cpp": "ray", "joblib": "joblib", "dask": "distributed"}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare weft with its peers and with bare limits, in one run.")
    parser.add_argument("--rows", nargs="+", metavar="PATTERN", default=["*"], help="keys of rows, * and ? allowed")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="which systems to measure")
    parser.add_argument("--repetitions", type=int, help="repetitions per row and system (7; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="small and short: shows that everything runs, no more")
    parser.add_argument(
        "--isolate",
        action="store_true",
        help="start and stop each system around every repetition, so that none idles beside another",
    )
    parser.add_argument("--list", action="store_true", help="print the keys of the rows and end")
    parser.add_argument("--out", default=os.path.join(HERE, "out"), help="folder of the results")
    parser.add_argument(
        "--weft-python",
        default=os.environ.get("WEFT_PYTHON") or os.path.join(REPOSITORY, ".venv", "bin", "python"),
        help="interpreter that has weft installed",
    )
    return parser.parse_args(arguments)


class Runner:
    """Asks systems for repetitions and collects samples. One system works at a time."""

    def __init__(self, options: argparse.Namespace, scale: Scale):
        self._options = options
        self._repetitions = options.repetitions or (1 if options.quick else 7)
        self.scale = scale
        self.rows = [row for row in all_rows(scale) if any(fnmatch.fnmatch(row.key, p) for p in options.rows)]
        self.samples: dict[str, dict[str, list[float]]] = {row.key: {} for row in self.rows}
        self.failures: dict[str, dict[str, str]] = {row.key: {} for row in self.rows}
        self.versions: dict[str, dict[str, str]] = {}
        self.missing: dict[str, str] = {}
        self._servers: dict[str, systems.Server] = {}
        self._programs: list[str] = []
        self._pythons: dict[str, str] = {}
        self._logs = os.path.join(options.out, "logs")

    def prepare(self) -> None:
        os.makedirs(self._logs, exist_ok=True)
        for name in os.listdir(self._logs):
            os.remove(os.path.join(self._logs, name))
        weft_python = self._options.weft_python if os.path.exists(self._options.weft_python) else sys.executable
        others = [name for name in self._options.systems if name not in ("weft", "weft_cpp", "ray_cpp")]
        peers_python = peers_env.ensure(weft_python) if others else weft_python
        self._pythons = {name: weft_python if name.startswith("weft") else peers_python for name in SYSTEMS}
        ray_cpp = ""
        if "ray_cpp" in self._options.systems:
            self._pythons["ray_cpp"] = peers_env.ensure_ray_cpp(weft_python)
            ray_cpp = peers_env.ray_cpp_folder()
            if not ray_cpp:
                self.missing["ray_cpp"] = f"ray-cpp is not installed for {self._pythons['ray_cpp']}"
        if "bare" in self._options.systems or ray_cpp:
            self._build_programs(peers_python, ray_cpp)
        # The C++ programs belong to weft's own build, whichever preset made it.
        build = os.path.join(REPOSITORY, "build")
        for name in sorted(os.listdir(build)) if os.path.isdir(build) else []:
            folder = os.path.join(build, name, "benchmarks")
            if os.path.isdir(folder):
                self._programs.append(folder)
        for name in self._options.systems:
            if name in self.missing:
                continue
            needs = _NEEDS.get(name)
            look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({needs!r}) is None)"
            if needs and subprocess.run([self._pythons[name], "-c", look], cwd=os.sep).returncode != 0:
                self.missing[name] = f"{needs} is not installed for {self._pythons[name]}"
                continue
            server = self._new_server(name)
            try:
                self.versions[name] = server.ask("versions", {}, 60)["versions"]
            except systems.SystemFailed as error:
                self.missing[name] = str(error)
            finally:
                server.stop()

    def _build_programs(self, python: str, ray_cpp: str) -> None:
        """The bare limits and, if its folder is given, the programs for Ray's C++ API."""
        folder = os.path.join(REPOSITORY, "build", "benchmarks")
        log_path = os.path.join(self._logs, "build.log")
        with open(log_path, "wb") as log:
            for command in (
                [
                    "cmake",
                    "-S",
                    HERE,
                    "-B",
                    folder,
                    "-DCMAKE_BUILD_TYPE=Release",
                    f"-DPython3_EXECUTABLE={python}",
                    f"-DWEFT_BENCH_RAY_CPP={ray_cpp}",
                ],
                ["cmake", "--build", folder],
            ):
                if subprocess.run(command, stdout=log, stderr=log).returncode != 0:
                    print(f"the bare limits and Ray's C++ programs could not be built, see {log_path}", flush=True)
                    return
        self._programs.append(folder)

    def run(self) -> None:
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            key = json.dumps([row.workload, row.parameters, row.parameters_for, row.fresh], sort_keys=True)
            groups.setdefault(key, []).append(row)
        # Rows that want the machine for themselves come before any long-lived system is up.
        for group in sorted(groups.values(), key=lambda rows: not rows[0].fresh):
            self._run_group(group)

    def _run_group(self, group: list[Row]) -> None:
        first = group[0]
        names = [name for name in self._options.systems if any(name in row.systems for row in group)]
        names = [name for name in names if name not in self.missing]
        count = min(self._repetitions, first.most_repetitions or self._repetitions)
        print(f"{', '.join(row.key for row in group)}: {count} × {' '.join(names)}", flush=True)
        if not first.fresh and not self._options.isolate:
            for name in list(names):
                self._try(group, names, name, lambda name=name: self._warm_up(first, name))
        for repetition in range(count):
            turn = repetition % max(1, len(names))
            for name in names[turn:] + names[:turn]:  # Nobody is always first.
                metrics = self._try(group, names, name, lambda name=name: self._repetition(first, name))
                for row in group:
                    if metrics and name in row.systems and row.metric in metrics:
                        self.samples[row.key].setdefault(name, []).append(metrics[row.metric])
        for row in group:
            for name in names:
                if name in row.systems and not self.samples[row.key].get(name):
                    self._fail([row], name, f"no value {row.metric}. {row.note}".strip())

    def _try(self, group: list[Row], names: list[str], name: str, action):
        if any(name in self.failures[row.key] for row in group):
            return None
        try:
            return action()
        except (systems.SystemFailed, systems.Unsupported) as reason:
            print(f"  {name}: {reason}", flush=True)
            self._fail(group, name, str(reason))
            return None

    def _fail(self, group: list[Row], name: str, reason: str) -> None:
        for row in group:
            if name in row.systems:
                self.failures[row.key].setdefault(name, reason)

    def _warm_up(self, row: Row, name: str) -> None:
        """One short repetition that is not counted: both workers up, functions exported, leases taken."""
        if name not in self._servers:
            self._servers[name] = self._new_server(name)
            self._start_system(self._servers[name])
        parameters = row.parameters_of(name)
        if "min_seconds" in parameters:
            self._servers[name].ask(row.workload, {**parameters, "min_seconds": 0}, row.timeout_seconds)

    def _repetition(self, row: Row, name: str) -> dict[str, float]:
        parameters = row.parameters_of(name)
        if row.workload == "cold_start":
            return cold_start.measure(name, self._pythons[name], self._log(name))
        if row.workload == "installed_size":
            return cold_start.measure_size(name, self._pythons[name], REPOSITORY)
        if not row.fresh and not self._options.isolate:
            return self._servers[name].ask(row.workload, parameters, row.timeout_seconds)["metrics"]
        server = self._new_server(name)
        try:
            if row.workload == "idle":
                return systems.measure_idle(server, **parameters)
            self._start_system(server)
            if not row.fresh and "min_seconds" in parameters:
                server.ask(row.workload, {**parameters, "min_seconds": 0}, row.timeout_seconds)
            return server.ask(row.workload, parameters, row.timeout_seconds)["metrics"]
        finally:
            server.stop()

    def _start_system(self, server: systems.Server) -> None:
        try:
            server.ask("worker_pids", {"count": 2}, 120)
        except systems.Unsupported:  # The bare limits have no workers.
            pass

    def _new_server(self, name: str) -> systems.Server:
        return systems.Server(name, self._pythons[name], self._programs, self._log(name))

    def _log(self, name: str) -> str:
        return os.path.join(self._logs, f"{name}.log")

    def stop(self) -> None:
        for server in self._servers.values():
            server.stop()
        self._servers.clear()


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    scale = Scale.quick() if options.quick else Scale()
    # All stores take a share of the memory; two of the largest objects must fit into 30 % of it.
    fitting = int(machine.memory_bytes() * 0.3 / 2.5)
    warnings = []
    if scale.get_bytes > fitting:
        warnings.append(f"Large arrays are smaller than the goals name ({fitting / 1e6:.0f} MB): memory is short.")
        scale.get_bytes, scale.large_bytes = fitting, min(scale.large_bytes, fitting)
    runner = Runner(options, scale)
    if options.list:
        print("\n".join(f"{row.key:32} {row.title}" for row in runner.rows))
        return 0
    load = os.getloadavg()[0]
    if load > 0.5:
        warnings.append(f"Warning: the machine was not quiet when this began (load average {load:.2f}).")
    if options.quick:
        warnings.append("Warning: --quick shows that everything runs; its numbers are not worth quoting.")
    result = {
        "format": 1,
        "begun": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.describe(REPOSITORY),
        "load_average_before": load,
        "quick": options.quick,
        "isolated": options.isolate,
    }
    stolen, begin = machine.stolen_seconds(), time.monotonic()
    try:
        runner.prepare()
        runner.run()
    except KeyboardInterrupt:
        warnings.append("Warning: interrupted; later rows are missing.")
    finally:
        runner.stop()
    elapsed = time.monotonic() - begin
    result["seconds"] = round(elapsed, 1)
    result["stolen_share"] = (machine.stolen_seconds() - stolen) / (elapsed * result["machine"]["cpus"])
    if result["stolen_share"] > 0.02:
        warnings.append(f"Warning: the hypervisor took {100 * result['stolen_share']:.0f} % of the CPU time.")
    result["versions"] = runner.versions
    result["rows"] = report.summarise(runner.rows, runner.samples, runner.failures)
    left_out = [f"{name}: {reason}" for name, reason in runner.missing.items()]
    left_out += [f"{name}: not asked for" for name in SYSTEMS if name not in options.systems]
    rows_left_out = len(all_rows(scale)) - len(runner.rows)
    if rows_left_out:
        left_out.append(f"{rows_left_out} rows: not asked for")
    result["not_measured"] = NOT_MEASURED + left_out
    result["warnings"] = warnings

    text = report.table(result["rows"], [name for name in SYSTEMS if name in options.systems])
    about = result["machine"]
    head = (
        f"{about['cpu']}, {about['cpus']} CPUs, {about['memory_bytes'] / 2**30:.0f} GiB, Linux {about['kernel']}; "
        + "; ".join(
            f"{name} " + ", ".join(f"{k} {v}" for k, v in found.items()) for name, found in runner.versions.items()
        )
    )
    text = f"{head}\n\n{text}\n\n{report.remarks(result)}\n"
    print("\n" + text)
    with open(os.path.join(options.out, "latest.json"), "w") as file:
        json.dump(result, file, indent=1, ensure_ascii=False)
        file.write("\n")
    with open(os.path.join(options.out, "latest.txt"), "w") as file:
        file.write(text)
    _draw(options.out)
    return 0


def _draw(out: str) -> None:
    python = peers_env.python()
    if not os.path.exists(python):
        print("no picture: matplotlib lives in the peers' environment, which does not exist")
        return
    picture = os.path.join(out, "latest.png")
    command = [python, os.path.join(HERE, "picture.py"), os.path.join(out, "latest.json"), picture]
    if subprocess.run(command).returncode == 0:
        print(f"{picture}\n{os.path.join(out, 'latest.json')}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
