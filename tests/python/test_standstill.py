"""Node daemons that stand still: of a driver that is killed meanwhile nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from helpers import Driver, descendants, wait_until

ROOT = Path(__file__).resolve().parents[2]
CPP_DRIVER = ROOT / "build" / "release" / "tests" / "cpp" / "library" / "weft_test_lingers"


def states_of(pid: int) -> set:
    """As ps shows them, of all threads: T for one that is stopped; none for a process that has ended."""
    found = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                found.add(file.read().rpartition(")")[2].split()[0])
    except OSError:
        pass
    return found


def stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(states_of(pid) == {"T"} for pid in pids), what="all stand still")


# ---- drivers that are killed ----------------------------------------------------------------------------------------

PYTHON_DRIVER = """
import subprocess, threading, weft
# The thread that starts the daemon ends long before the driver.
thread = threading.Thread(target=weft.init, kwargs={"num_cpus": 2})
thread.start()
thread.join()
@weft.remote
def linger():
    subprocess.run(["sleep", "600"])
@weft.remote
def one(): return 1
lingering = linger.remote()
assert weft.get(one.remote()) == 1
print("ready", flush=True)
weft.get(lingering)
"""


def lingering_driver(language: str) -> Driver:
    if language == "python":
        driver = Driver(PYTHON_DRIVER)
    elif CPP_DRIVER.exists():
        driver = Driver("", command=[str(CPP_DRIVER)])
    else:
        pytest.skip("the C++ tests were not built (make test builds them)")
    driver.wait_for_line("ready")
    if language == "python":
        wait_until(lambda: any("sleep" in text for text in driver.processes().values()), what="the task's program runs")
    return driver


def daemon_of(driver: Driver) -> int:
    return descendants(driver.pid)[0]  # its only child, whose name its own children have until they execute


@pytest.mark.parametrize("language", ["python", "cpp"])
@pytest.mark.parametrize("still", ["daemon", "all but the driver"])
def test_a_driver_is_killed_while_its_daemon_stands_still(language, still):
    driver = lingering_driver(language)
    stop(*([daemon_of(driver)] if still == "daemon" else descendants(driver.pid)))
    os.kill(driver.pid, signal.SIGKILL)
    driver.process.wait()
    driver.expect_nothing_left(5)


@pytest.mark.parametrize("language", ["python", "cpp"])
def test_a_daemon_is_killed_while_its_workers_stand_still(language):
    driver = lingering_driver(language)
    daemon = daemon_of(driver)
    programs = [pid for pid, text in driver.processes().items() if "sleep" in text]  # a user's; nobody ends it then
    below = [pid for pid in descendants(daemon) if pid not in programs]
    assert below
    stop(*below)
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: all(states_of(pid) <= {"Z"} for pid in below), 5, "they are gone")
    for pid in programs:
        os.kill(pid, signal.SIGKILL)
    driver.process.kill()
    driver.finish()
    driver.expect_nothing_left(5)


def test_a_driver_ends_its_session_while_the_daemon_stands_still():
    driver = Driver(PYTHON_DRIVER.replace("weft.get(lingering)", "input(); weft.shutdown()"), stdin=subprocess.PIPE)
    driver.wait_for_line("ready")
    wait_until(lambda: any("sleep" in text for text in driver.processes().values()), what="the task's program runs")
    stop(daemon_of(driver))
    driver.process.stdin.write(b"\n")
    driver.finish(20)
    driver.expect_nothing_left(5)
