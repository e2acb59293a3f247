"""A whole program in a new process, timed from outside: interpreter, import, init, first task, shutdown, exit.

The times inside are taken with the same clock (CLOCK_MONOTONIC is one for all processes).
"""

from __future__ import annotations

import os
import subprocess
import time

import process_tree
import systems

_REFERENCES = """
import time, {module}
{module}.init({arguments})
@{module}.remote
def increment(x):
    return x + 1
assert {module}.get(increment.remote(1)) == 2
first = time.monotonic()
{module}.shutdown()
print(first, time.monotonic(), flush=True)
"""

PROGRAMS = {
    "weft": _REFERENCES.format(module="weft", arguments="num_cpus=2"),
    "ray": _REFERENCES.format(module="ray", arguments="num_cpus=2, include_dashboard=False"),
    "multiprocessing": """
import time, multiprocessing
if __name__ == "__main__":
    pool = multiprocessing.Pool(2)
    assert pool.apply(abs, (-1,)) == 1
    first = time.monotonic()
    pool.close()
    pool.join()
    print(first, time.monotonic(), flush=True)
""",
    "joblib": """
import time
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
assert Parallel(n_jobs=2)([delayed(abs)(-1)]) == [1]
first = time.monotonic()
get_reusable_executor().shutdown(wait=True)
print(first, time.monotonic(), flush=True)
""",
    "dask": """
import time
from distributed import Client, LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    client = Client(cluster)
    assert client.submit(abs, -1).result() == 1
    first = time.monotonic()
    client.close()
    cluster.close()
    print(first, time.monotonic(), flush=True)
""",
    "bare": "import time; first = time.monotonic(); print(first, time.monotonic(), flush=True)",
}


def measure(system: str, python: str, log_path: str, timeout_seconds: float = 120) -> dict[str, float]:
    variables, mark = systems.environment([])
    with open(log_path, "ab") as log:
        begin = time.monotonic()
        process = subprocess.Popen(
            [python, "-c", PROGRAMS[system]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=variables,
            start_new_session=True,
        )
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
        if process.returncode != 0:
            raise systems.SystemFailed(f"the program ended with {process.returncode} (see {log_path})")
        deadline = time.monotonic() + timeout_seconds
        while process_tree.processes_of(process.pid, mark):
            if time.monotonic() > deadline:
                raise systems.SystemFailed(f"processes were left running {timeout_seconds:g} s after the program")
            time.sleep(0.01)
        gone = time.monotonic()
    except subprocess.TimeoutExpired:
        raise systems.SystemFailed(f"the program did not end within {timeout_seconds:g} s") from None
    finally:
        process_tree.end(process.pid, mark)
        process.wait()
    first, stopped = map(float, output.split()[-2:])
    return {
        "first_result_seconds": first - begin,
        "shutdown_seconds": stopped - first,
        "gone_seconds": gone - first,
    }


_SIZE = """
import importlib.metadata, importlib.util, os, sys
total = 0
for name in sys.argv[1:]:
    try:
        files = [str(file.locate()) for file in importlib.metadata.distribution(name).files or []]
    except importlib.metadata.PackageNotFoundError:
        files = []
    files = [file for file in files if "__pycache__" not in file]
    if sum(map(os.path.getsize, filter(os.path.isfile, files))) < 100000:
        # Not installed as a wheel (or linked in place): the package's own folder is what there is.
        files = [os.path.join(folder, file)
                 for place in importlib.util.find_spec(name).submodule_search_locations
                 for folder, _, names in os.walk(place) if "__pycache__" not in folder for file in names]
    total += sum(map(os.path.getsize, filter(os.path.isfile, files)))
print(total)
"""


def measure_size(system: str, python: str, repository: str) -> dict[str, float]:
    """Size of the installed distribution (files as installed, compiled Python caches not counted) and of its wheel."""
    names = {"dask": ["dask", "distributed"]}.get(system, [system])
    done = subprocess.run([python, "-c", _SIZE, *names], capture_output=True)
    if done.returncode != 0:
        raise systems.SystemFailed(done.stderr.decode().strip().splitlines()[-1])
    result = {"megabytes": int(done.stdout) / 1e6}
    folder = os.path.join(repository, "dist")
    wheels = os.listdir(folder) if os.path.isdir(folder) else []
    wheels = [os.path.join(folder, name) for name in wheels if name.endswith(".whl") and name.startswith(system + "-")]
    if wheels:
        result["wheel_megabytes"] = os.path.getsize(max(wheels, key=os.path.getmtime)) / 1e6
    return result
