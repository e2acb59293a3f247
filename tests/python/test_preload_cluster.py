"""init(preload=[...]) in a cluster: each node imports for itself, once, and nothing is left of a program that ends."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
import weft
from helpers import Driver, notes, run_driver, wait_until
from weft.testing import Cluster

USES = """
    import os
    import weft

    @weft.remote
    class Uses:
        def __init__(self, name):
            self.module = __import__(name)

        def look(self):
            return os.getpid(), os.getppid(), weft.get_runtime_context().get_node_id()
"""


@pytest.fixture
def modules(tmp_path):
    """Writes modules that programs can import. Each notes the process that imports it."""

    def write(**sources):
        for name, source in sources.items():
            noted = f"with open({str(tmp_path / name)!r} + '.pids', 'a') as file:\n    print(os.getpid(), file=file)"
            (tmp_path / f"{name}.py").write_text(f"import os\n{noted}\n{source}\n")
        return {"PYTHONPATH": str(tmp_path), "WEFT_PRELOAD": None}

    return write


def test_each_node_imports_once(modules, tmp_path):
    driver = run_driver(
        USES
        + """
    from weft.testing import Cluster

    with Cluster(head={"num_cpus": 2, "resources": {"one": 4}}) as cluster:
        cluster.add_node(num_cpus=2, resources={"two": 4})
        weft.init(address=cluster.address, preload=["heavy"])
        places = ["one", "two"] * 3
        actors = [Uses.options(resources={place: 1}).remote("heavy") for place in places]
        for place, (pid, parent, node) in zip(places, weft.get([actor.look.remote() for actor in actors])):
            print(place, pid, parent, node)
    """,
        env=modules(heavy=""),
    )
    rows = [line.split() for line in driver.stdout.splitlines()]
    assert len({pid for _, pid, _, _ in rows}) == 6
    zygotes = {(place, parent, node) for place, _, parent, node in rows}
    assert {place for place, _, _ in zygotes} == {"one", "two"} and len({node for _, _, node in zygotes}) == 2
    # All three actors of a node come from one process, and nobody else has imported the module.
    assert len(zygotes) == 2 and sorted(notes(tmp_path / "heavy.pids")) == sorted(parent for _, parent, _ in zygotes)


def test_one_warning_of_each_node(modules, tmp_path):
    driver = run_driver(
        USES
        + """
    from weft.testing import Cluster

    with Cluster(head={"num_cpus": 2, "resources": {"one": 4}}) as cluster:
        cluster.add_node(num_cpus=2, resources={"two": 4})
        weft.init(address=cluster.address, preload=["bad", "good"])
        actors = [Uses.options(resources={place: 1}).remote("good") for place in ["one", "two"] * 2]
        print(*{parent for _, parent, _ in weft.get([actor.look.remote() for actor in actors])})
    """,
        env=modules(good="", bad="raise OSError('its library is missing')"),
    )
    warned = [line for line in driver.stderr.splitlines() if "preload" in line]
    assert len(warned) == 2, driver.stderr
    assert all("bad cannot be imported (OSError: its library is missing)" in line for line in warned)
    assert sorted(notes(tmp_path / "good.pids")) == sorted(driver.stdout.split())


WAITS = """
import time
deadline = time.monotonic() + 60
while not os.path.exists(os.path.join(os.path.dirname(__file__), __name__ + ".go")):
    if time.monotonic() > deadline:
        raise RuntimeError("nobody said go")
    time.sleep(0.005)
"""


@pytest.mark.parametrize("end", ["in order", "killed"])
def test_a_program_that_ends_while_it_and_another_import(modules, tmp_path, monkeypatch, no_session, end):
    for name, value in modules(first=WAITS, second=WAITS).items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    program = (
        USES
        + """
    weft.init(address=ADDRESS, preload=[NAME])
    actors = [Uses.options(resources={place: 1}).remote(NAME) for place in ["one", "two"] * 2]
    looks = [actor.look.remote() for actor in actors]
    print("submitted", flush=True)
    END
    print(len({parent for _, parent, _ in weft.get(looks)}), flush=True)
    """
    )
    with Cluster(head={"num_cpus": 2, "resources": {"one": 4}}) as cluster:
        cluster.add_node(num_cpus=2, resources={"two": 4})
        drivers = {}
        for name in "first", "second":
            source = program.replace("ADDRESS", repr(cluster.address)).replace("NAME", repr(name))
            ending = "input(); weft.shutdown(); raise SystemExit" if name == "first" else ""
            drivers[name] = Driver(source.replace("END", ending), stdin=subprocess.PIPE)
        for name, driver in drivers.items():
            driver.wait_for_line("submitted")
            wait_until(lambda name=name: len(notes(tmp_path / f"{name}.pids")) == 2, 30, "both nodes import")
        first, second = drivers["first"], drivers["second"]
        if end == "killed":
            os.kill(first.pid, signal.SIGKILL)
        else:
            first.process.stdin.write(b"\n")
            first.process.stdin.flush()
        first.finish()
        imports = [int(pid) for pid in notes(tmp_path / "first.pids")]
        wait_until(lambda: not any(map(is_running, imports)), 10, "the imports of a program that has ended")
        assert all(is_running(int(pid)) for pid in notes(tmp_path / "second.pids"))
        (tmp_path / "second.go").touch()
        assert second.finish() == 0, second.stderr
        assert second.stdout.split() == ["2"] and len(notes(tmp_path / "second.pids")) == 2
        weft.init(address=cluster.address)
        total = weft.cluster_resources()
        assert {name: total[name] for name in ("CPU", "one", "two")} == {"CPU": 4, "one": 4, "two": 4}
        wait_until(lambda: weft.available_resources() == total, 10, "available == total")


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
