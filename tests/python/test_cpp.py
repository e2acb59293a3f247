"""C++ libraries of tasks called from Python, and Python called from a C++ program."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import weft
import weft.cpp
from helpers import TAG, tagged_processes, wait_until
from weft.exceptions import (
    ActorDiedError,
    TaskCancelledError,
    TaskError,
    VersionMismatchError,
    WeftError,
    WorkerCrashedError,
)

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "release" / "tests" / "cpp" / "library"

pytestmark = pytest.mark.skipif(not BUILT.is_dir(), reason="the C++ tests were not built (make test builds them)")


@pytest.fixture
def tasks(session):
    return weft.cpp.library(BUILT / "libweft_test_tasks.so")


def test_functions_run(tasks):
    assert weft.get(tasks.add.remote(1, 2)) == 3
    assert weft.get(tasks.add.remote(tasks.add.remote(1, 2), 3)) == 6
    assert weft.get([tasks.add.remote(i, 1) for i in range(1000)]) == list(range(1, 1001))
    assert weft.get(tasks.divmod.remote(17, 5)) == [3, 2]
    assert weft.get(tasks.pid.remote()) != os.getpid()
    assert weft.get(tasks.fibonacci.remote(8)) == 21
    assert weft.get(tasks.follow.remote(weft.put(41))) == 42
    assert weft.get(tasks.where.remote()) == ":where"
    assert weft.get(tasks.where.options(name="elsewhere").remote()) == ":elsewhere"


def test_values_are_translated(tasks):
    assert weft.get(tasks.join.remote(["a", "b", "ü"], "-")) == "a-b-ü"
    words = [str(number) for number in range(5000)]
    assert weft.get(tasks.join.remote(words, ",")) == ",".join(words)
    assert weft.get(tasks.join.remote(["x" * 100_000, "y"], "")) == "x" * 100_000 + "y"
    assert weft.get(tasks.total.remote(list(range(100_000)))) == 4_999_950_000
    assert weft.get(tasks.total.remote(np.arange(10))) == 45
    assert weft.get(tasks.total.remote([np.int64(3), np.uint8(1)])) == 4
    assert weft.get(tasks.table.remote({"a": 1.5, "b": 2})) == {"a": [1.5, 2.25], "b": [2.0, 4.0]}
    assert weft.get(tasks.mirrored.remote((1.0, 2, "p"))) == (-1.0, 2.0, "p'")


def test_arrays_are_not_copied(tasks):
    array = np.random.default_rng(1).random(12_500_000)  # 100 MB
    ref = weft.put(array)
    assert weft.get(tasks.norm.remote(ref)) == pytest.approx(float(array @ array))
    before = weft._core.stats()["store_bytes"]
    addresses = {weft.get(tasks.address.options(max_retries=0).remote(ref)) for _ in range(20)}
    assert len(addresses) <= 4  # one in each worker: where the segment is mapped there
    assert weft._core.stats()["store_bytes"] == before  # nothing was stored for the calls
    scaled = weft.get(tasks.scaled.remote(ref, 2.0))
    assert not scaled.flags.owndata and not scaled.flags.writeable  # looked at where the C++ task wrote it
    assert np.array_equal(scaled, array * 2)


def test_actors(tasks):
    counter = tasks.Counter.remote(10)
    assert weft.get([counter.increment.remote(1) for _ in range(100)]) == list(range(11, 111))
    assert weft.get(counter.both.remote()) == [110, "110"]
    assert weft.get(counter.sum.remote([str(i) for i in range(3000)])) == 3110
    assert weft.get(tasks.call_counter.remote(counter, 5)) == 115
    made = weft.get(tasks.make_counter.remote(1000))
    assert weft.get(made.increment.remote(1)) == 1001
    with pytest.raises(TaskError, match="the counter is tired"):
        weft.get(counter.fail.remote())
    named = tasks.Counter.options(name="cpp-counter").remote(1)
    assert weft.get(weft.get_actor("cpp-counter").value.remote()) == 1
    weft.kill(named)
    with pytest.raises(ActorDiedError):
        weft.get(named.value.remote())
    with pytest.raises(AttributeError, match="increment"):
        counter.incremen.remote(1)
    with pytest.raises(TypeError):
        counter.increment.remote()


def test_libraries_and_handles_travel(tasks):
    counter = tasks.Counter.remote(7)

    @weft.remote
    def uses(library, function, handle):
        return weft.get(library.add.remote(20, 22)), weft.get(function.remote(1, 1)), weft.get(handle.value.remote())

    assert weft.get(uses.remote(tasks, tasks.add, counter)) == (42, 2, 7)
    assert pickle.loads(pickle.dumps(tasks.add)) is tasks.add


def test_errors_are_clear(tasks, tmp_path):
    with pytest.raises(TaskError, match="std::out_of_range: no place") as caught:
        weft.get(tasks.fail.remote("no place"))
    assert "fail(std::" in str(caught.value.__cause__) or "fail" in str(caught.value.__cause__)
    with pytest.raises(WorkerCrashedError, match="'crash'.*SIGKILL"):
        weft.get(tasks.crash.options(max_retries=0).remote())
    with pytest.raises(TypeError, match=r"add\(int, int\) takes 2 arguments, but 1 was given"):
        tasks.add.remote(1)
    with pytest.raises(TypeError, match="no keyword arguments"):
        tasks.add.remote(1, b=2)
    with pytest.raises(TypeError, match="cannot take a object"):
        tasks.add.remote(object(), 2)
    with pytest.raises(TaskError, match="a string, but an integer was asked for"):
        weft.get(tasks.add.remote("x", 2))
    with pytest.raises(TaskError, match="'<f4', but '<f8'"):
        weft.get(tasks.norm.remote(np.ones(100, dtype=np.float32)))
    with pytest.raises(AttributeError, match="did you mean 'norm'"):
        tasks.nrom  # noqa: B018
    with pytest.raises(TypeError, match="write .remote"):
        tasks.add(1, 2)
    with pytest.raises(WeftError, match="no library of tasks at"):
        weft.cpp.library(tmp_path / "absent.so")
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(WeftError, match="cannot be loaded"):
        weft.cpp.library(tmp_path / "text.so")
    with pytest.raises(WeftError, match=r"exports the name 'same' twice: at .*twice.cc:\d+ and at .*twice.cc:\d+"):
        weft.cpp.library(BUILT / "libweft_test_twice.so")


def test_a_running_task_is_cancelled(tasks):
    sleeping = tasks.sleeps.remote()
    weft.get(tasks.add.remote(1, 1))
    weft.cancel(sleeping)
    with pytest.raises(TaskCancelledError):
        weft.get(sleeping)


@weft.remote
def after(path, value):
    """The value, once the file is there."""
    wait_until(Path(path).exists, what="the test says go")
    return value


def test_coroutines_and_callbacks_in_python_workers(tasks, tmp_path):
    assert weft.get(tasks.awaits.remote(50)) == 10 * (sum(range(50)) + 3)
    assert weft.get(tasks.awaits_ref.remote(weft.put(7))) == 7
    assert weft.get(tasks.calls_back.remote(weft.put(8))) == "8"
    assert weft.get(tasks.calls_back.remote(tasks.fail.remote("no"))) == "TaskError"
    with pytest.raises(TaskError, match="std::out_of_range: no"):
        weft.get(tasks.awaits_ref.remote(tasks.fail.remote("no")))
    gatherer = tasks.Gatherer.remote("")
    weft.get([gatherer.add.remote(after.remote(str(tmp_path / "go"), 10)), gatherer.add.remote(weft.put(1))])
    wait_until(lambda: weft.get(gatherer.taken.remote()) == 1, what="the value that was there")
    (tmp_path / "go").touch()
    wait_until(lambda: weft.get(gatherer.taken.remote()) == 2, what="the other")
    assert weft.get(gatherer.sum.remote()) == 11


def test_tasks_that_await_leave_their_cpu(no_session):
    with weft.init(num_cpus=1):
        tasks = weft.cpp.library(BUILT / "libweft_test_tasks.so")
        assert weft.get([tasks.awaits.remote(20) for _ in range(5)]) == [10 * (sum(range(20)) + 3)] * 5


def test_coroutines_do_not_disturb_the_futures_of_python(tasks, tmp_path):
    """The two languages' callbacks, in the same workers at the same time."""

    @weft.remote
    def mixed(library, count):
        cpp = [library.add.remote(i, 1) for i in range(count)]
        futures = [ref.future() for ref in cpp]
        inner = weft.get([library.awaits.remote(10) for _ in range(3)])
        weft.wait(cpp, num_returns=count)  # leaves the CPU to them, which a future does not
        return sum(future.result(30) for future in futures), inner

    expected = (sum(range(1, 51)), [10 * (sum(range(10)) + 3)] * 3)
    for _ in range(3):
        assert weft.get([mixed.remote(tasks, 50) for _ in range(4)]) == [expected] * 4
        assert weft.get([tasks.awaits.remote(5) for _ in range(4)]) == [10 * (sum(range(5)) + 3)] * 4


def test_coroutines_in_python_workers_are_told_of_the_end(tasks, tmp_path):
    mark = tmp_path / "mark"
    gatherer = tasks.Gatherer.remote(str(mark))
    weft.get(gatherer.add.remote(after.remote(str(tmp_path / "never"), 1)))
    del gatherer
    wait_until(mark.exists, what="the coroutine is told")
    assert "no session is open" in mark.read_text()


def test_a_task_that_waits_for_a_coroutine_is_cancelled(tasks, tmp_path):
    waits = tasks.awaits_ref.remote(after.remote(str(tmp_path / "never"), 1))
    weft.get(tasks.add.remote(1, 1))
    weft.cancel(waits)
    with pytest.raises(TaskCancelledError):
        weft.get(waits)


def test_a_task_is_cancelled_at_any_moment_of_its_beginning(tasks, tmp_path):
    never = after.options(num_cpus=0).remote(str(tmp_path / "never"), 1)
    for i in range(300):
        waits = tasks.awaits_ref.remote(never)
        end = time.perf_counter() + (i % 100) * 2e-6
        while time.perf_counter() < end:
            pass
        weft.cancel(waits)
        with pytest.raises(TaskCancelledError):
            weft.get(waits, timeout=8)


def test_stubs_are_typed(tasks, tmp_path):
    stubs = tasks.stubs()
    compile(stubs, "stubs", "exec")
    assert "def remote(self, __1: typing.Union[int, weft.ObjectRef[int]]" in stubs
    assert "weft.ObjectRef[dict[str, list[float]]]" in stubs
    assert dir(tasks).count("norm") == 1 and "C++" in tasks.norm.__doc__


TYPED_USE = """
from typing import assert_type
import numpy as np
import tasks
import weft

assert_type(weft.get(tasks.add.remote(1, 2)), int)
assert_type(weft.get(tasks.add.options(num_cpus=2).remote(tasks.add.remote(1, 2), 3)), int)
assert_type(weft.get(tasks.table.remote({"a": 1.5})), dict[str, list[float]])
assert_type(weft.get(tasks.join.remote(["a"], "-")), str)
tasks.norm.remote(np.ones(3))
tasks.norm.remote(weft.put(np.ones(3)))
tasks.mirrored.remote((1.0, 2.0, "p"))
tasks.follow.remote(weft.put(1))
quotient, rest = tasks.divmod.remote(17, 5)
counter = tasks.Counter.options(max_restarts=3).remote(10)
assert_type(weft.get(counter.increment.remote(1)), int)
assert_type(weft.get(counter.fail.remote()), None)
counter.sum.options(name="sum").remote(["a"])
tasks.call_counter.remote(counter, 5)
tasks.call_counter.remote(tasks.make_counter.remote(1), 5)
weft.kill(counter)

tasks.add.remote("1", 2)  # error
tasks.add.remote(1)  # error
tasks.add.remote(1, b=2)  # error
tasks.add.remote(tasks.join.remote(["a"], "-"), 2)  # error
tasks.add(1, 2)  # error
tasks.join.remote("text", "-")  # error
tasks.norm.remote("text")  # error
tasks.follow.remote(1)  # error
tasks.nrom.remote(1)  # error
tasks.call_counter.remote(7, 5)  # error
tasks.Counter.remote()  # error
counter.increment.remote("1")  # error
counter.incremen.remote(1)  # error
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_stubs_are_strict(tmp_path):
    (tmp_path / "tasks.pyi").write_text(weft.cpp.library(BUILT / "libweft_test_tasks.so").stubs())
    (tmp_path / "use.py").write_text(TYPED_USE)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-incremental", "--no-pretty"]
    # assert_type is younger than the oldest Python; what checkers know of it is not.
    result = subprocess.run(
        [*mypy, "--python-version=3.11", "tasks.pyi", "use.py"], capture_output=True, text=True, cwd=tmp_path
    )
    reported = {(file, int(line)) for file, line in re.findall(r"^(\S+?):(\d+): error: ", result.stdout, re.M)}
    marked = {("use.py", n) for n, line in enumerate(TYPED_USE.splitlines(), 1) if line.endswith("# error")}
    assert reported == marked, result.stdout + result.stderr


def test_cpp_calls_python():
    program = BUILT / "weft_test_calls_python"
    environment = dict(os.environ, WEFT_PYTHON=sys.executable)
    done = subprocess.run(
        [program],
        cwd=ROOT / "tests" / "python" / "cpp_calls",
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    seen = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line and not line.startswith("("))
    assert seen["plus"] == "3"
    assert seen["ref"] == "14"
    assert seen["words"] == "5 text"
    assert seen["numbers"] == str(sum(range(5000)))
    assert seen["table"] == "2.500000"
    assert seen["divmod"] == "3 2"
    assert seen["sum"] == "499999500000.000000"
    assert seen["doubled"] == "1999998.000000"
    assert seen["error"] == "KeyError | 'on purpose' | with its traceback"
    assert "no_such_module" in seen["absent"]
    assert "a list" in seen["type"]
    assert seen["task"] == "42"
    assert seen["actor"] == "12"
    assert seen["found"] == "13"
    assert seen["handle"] == "18"
    assert seen["nested"] == "118"
    assert seen["asyncio"] == "went"
    assert "decrement" in seen["missing"]
    assert seen["killed"] == "ActorDiedError"


def test_python_workers_of_a_cpp_session_are_killed(tmp_path):
    tag = f"{os.getpid()}-{tmp_path.name}"
    done = subprocess.run(
        [BUILT / "weft_test_python_faults", tmp_path],
        cwd=ROOT / "tests" / "python" / "cpp_calls",
        env=dict(os.environ, WEFT_PYTHON=sys.executable, **{TAG: tag}),
        capture_output=True,
        text=True,
        timeout=100,
    )
    seen = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line and not line.startswith("("))
    assert done.returncode == 0, (seen, done.stderr)
    assert re.match(
        r"WorkerCrashedError the worker that ran task 'hold' \(pid \d+\) was killed by signal 9", seen["worker"]
    )
    assert seen["retried"] == "again"
    assert seen["nested"].startswith("WorkerCrashedError")
    assert seen["actor"] == "ActorDiedError"
    assert seen["restarted"] == "6"
    assert seen["elsewhere"] == "yes"
    assert seen["survivor"] == "went"
    assert seen["later"] == "8"
    assert seen["another zygote"] == "yes"
    assert seen["both"] == "again"
    assert seen["cpp"] == "again"
    wait_until(lambda: not tagged_processes(tag), what="nothing is left")


def build_id(path):
    """As the linker wrote it into the file."""
    data = path.read_bytes()
    at = data.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0") + 16
    return data[at : at + 20].hex()


def test_two_builds_of_a_library_are_not_confused(no_session, tmp_path):
    paths = [shutil.copy(BUILT / f"libweft_test_version_{n}.so", tmp_path / f"build_{n}.so") for n in (1, 2)]
    with weft.init(num_cpus=1):  # one worker, which loads both
        first, second = (weft.cpp.library(path) for path in paths)
        for _ in range(3):
            assert weft.get([first.version.remote(), second.version.remote()]) == [1, 2]
            assert weft.get([first.scaled.remote(10), second.scaled.remote(10)]) == [10, 20]
        actors = [library.Versioned.remote(5) for library in (second, first)]
        assert weft.get([actor.version.remote() for actor in actors]) == [2, 1]
        assert weft.get([actor.add.remote(1) for actor in actors]) == [7, 6]

        @weft.remote(num_cpus=0, max_concurrency=1)
        class Both:  # a process that has both, before it makes an actor of one
            def made(self, first, second):
                assert weft.get([second.version.remote(), first.version.remote()]) == [2, 1]
                return [first.Versioned.remote(1), second.Versioned.remote(1)]

        made = weft.get(Both.remote().made.remote(first, second))
        assert weft.get([actor.add.remote(10) for actor in made]) == [11, 21]


def test_a_library_that_is_built_anew_is_refused(no_session, tmp_path):
    path = tmp_path / "libversion.so"
    shutil.copy(BUILT / "libweft_test_version_1.so", path)
    builds = [build_id(BUILT / f"libweft_test_version_{n}.so") for n in (1, 2)]
    with weft.init(num_cpus=1):
        library = weft.cpp.library(path)
        actor = library.Versioned.options(max_restarts=1).remote(5)
        assert weft.get([library.version.remote(), actor.version.remote()]) == [1, 1]
        # As compilers and installers do it: another file under the same name.
        shutil.copy(BUILT / "libweft_test_version_2.so", tmp_path / "new.so")
        os.rename(tmp_path / "new.so", path)
        # A worker that has loaded it goes on with the old build.
        assert weft.get([actor.version.remote(), actor.add.remote(1)]) == [1, 6]
        assert weft.cpp.library(path) is library
        # A worker that has not refuses; none calls the other build.
        said = f"rebuilt since \\(the caller has build {builds[0]}, this worker found build {builds[1]}\\)"

        @weft.remote(max_retries=0)
        def die():
            os.kill(os.getpid(), signal.SIGKILL)

        def task_is_refused():
            with pytest.raises(WorkerCrashedError):
                weft.get(die.remote())
            try:
                assert weft.get(library.scaled.remote(10)) == 10
            except VersionMismatchError as error:
                return re.search(said, str(error))

        def actor_is_refused():
            made = library.Versioned.remote(1)
            try:
                assert weft.get(made.version.remote()) == 1
            except ActorDiedError as error:
                return re.search(said, str(error.__cause__))

        wait_until(task_is_refused, what="a worker that has not loaded the first build")
        wait_until(actor_is_refused, what="an actor in such a worker")
        assert weft.get(actor.version.remote()) == 1
    program = "import sys, weft, weft.cpp\nprint(weft.get(weft.cpp.library(sys.argv[1]).version.remote()))"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["2"], done.stderr  # the program, started again


def test_a_namespace_holds_in_both_languages(no_session):
    with weft.init(num_cpus=1, namespace="tests"):
        tasks = weft.cpp.library(BUILT / "libweft_test_tasks.so")
        assert weft.get(tasks.where.remote()) == "tests:where"


def test_a_library_uses_weft_inside_a_program_that_does_not():
    library = BUILT / "libweft_test_inner.so"
    done = subprocess.run([BUILT / "weft_test_outer", library], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == (f"sum {3 * sum(range(100))}\n", 0), done.stderr


def test_workers_of_libraries_are_not_for_hands():
    program = Path(weft.__file__).parent / "_bin" / "weft"
    for arguments, expected in (
        ([], "which library"),
        (["/nonexistent.so"], "cannot be loaded"),
        ([BUILT / "libweft_test_inner.so"], "not by hand"),
    ):
        done = subprocess.run([program, "worker", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and expected in done.stderr


def test_python_that_cannot_start_is_named():
    environment = dict(os.environ, WEFT_PYTHON="/nonexistent/python")
    done = subprocess.run(
        [BUILT / "weft_test_calls_python"], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode != 0
    assert "/nonexistent/python" in done.stderr
