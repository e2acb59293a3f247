"""init and shutdown: arguments, repetition, company, and what is left afterwards (nothing)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import weft
from helpers import Driver, descendants, run_driver, wait_until


def test_context(no_session):
    assert not weft.is_initialized()
    with weft.init(num_cpus=2, resources={"disk": 3}) as context:
        assert weft.is_initialized()
        assert context.num_cpus == 2
        assert context.resources == {"CPU": 2.0, "disk": 3.0}
        assert context.object_store_memory > 0
        assert "2 CPUs" in repr(context)
        assert weft.get(weft.remote(lambda: 1).options(resources={"disk": 3}).remote()) == 1
    assert not weft.is_initialized()
    assert "ended" in repr(context)


def test_first_call_initialises(no_session):
    assert weft.get(weft.put(1)) == 1
    assert weft.is_initialized()
    weft.shutdown()
    assert weft.get(weft.remote(lambda: 2).remote()) == 2
    weft.shutdown()
    assert weft.wait([weft.put(3)])[1] == []


def test_init_twice(no_session):
    context = weft.init(num_cpus=1)
    with pytest.raises(RuntimeError, match="shutdown"):
        weft.init()
    assert weft.init(num_cpus=5, ignore_reinit_error=True) is context
    assert weft.get(weft.put(1)) == 1


def test_shutdown_is_idempotent_and_quick(no_session):
    weft.shutdown()
    weft.init(num_cpus=2)
    weft.get(weft.remote(lambda: 1).remote())
    started = time.monotonic()
    weft.shutdown()
    weft.shutdown()
    assert time.monotonic() - started < 1
    wait_until(lambda: not descendants(os.getpid()), 1, "processes after shutdown")


def test_shutdown_while_tasks_run(no_session):
    weft.init(num_cpus=2)
    sleep = weft.remote(lambda: time.sleep(600))
    refs = [sleep.remote() for _ in range(5)]
    started = time.monotonic()
    weft.shutdown()
    assert time.monotonic() - started < 2
    wait_until(lambda: not descendants(os.getpid()), 2, "processes after shutdown")
    del refs


def test_references_of_an_ended_session(no_session):
    weft.init(num_cpus=1)
    ref = weft.put(1)
    weft.shutdown()
    weft.init(num_cpus=1)
    with pytest.raises((weft.WeftError, RuntimeError, ValueError)):
        weft.get(ref, timeout=5)
    del ref
    assert weft.get(weft.put(2)) == 2


def test_get_in_another_thread_ends_with_the_session(no_session):
    weft.init(num_cpus=1)
    ref = weft.remote(lambda: time.sleep(600)).remote()
    ended = []

    def wait_for_it():
        try:
            weft.get(ref)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    time.sleep(0.1)  # whether it is in get already does not matter for what is asserted
    weft.shutdown()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(ended[0], (weft.WeftError, RuntimeError))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"num_cpus": -1}, ValueError, ["num_cpus"]),
        ({"num_cpus": "2"}, TypeError, ["num_cpus"]),
        ({"num_cpus": 1.5}, ValueError, ["num_cpus"]),
        ({"num_cpus": float("nan")}, ValueError, ["num_cpus"]),
        ({"num_gpus": -1}, ValueError, ["num_gpus"]),
        ({"resources": [1]}, TypeError, ["resources"]),
        ({"resources": {"CPU": 1}}, ValueError, ["num_cpus"]),
        ({"object_store_memory": "1G"}, TypeError, ["object_store_memory"]),
        ({"object_store_memory": -5}, ValueError, ["object_store_memory"]),
        ({"object_store_memory": 0}, ValueError, ["object_store_memory"]),
        ({"log_to_driver": "yes"}, TypeError, ["log_to_driver"]),
        ({"ignore_reinit_error": 1}, TypeError, ["ignore_reinit_error"]),
        ({"logging_level": "LOUD"}, ValueError, ["logging_level", "LOUD"]),
        ({"address": 5}, TypeError, ["address"]),
        ({"address": "somewhere"}, ValueError, ["address", "somewhere", "auto", "host:port"]),
        ({"address": "10.0.0.1:6379"}, RuntimeError, ["10.0.0.1:6379", "weft start"]),
        ({"num_cpu": 2}, TypeError, ["num_cpu", "did you mean 'num_cpus'"]),
        ({"zzz": 2}, TypeError, ["zzz", "num_cpus"]),
        ({"runtime_env": {"env_vars": {}}}, NotImplementedError, ["runtime_env"]),
        ({"local_mode": 1}, TypeError, ["local_mode"]),
        ({"namespace": 5}, TypeError, ["namespace", "5"]),
        ({"namespace": ""}, ValueError, ["namespace"]),
        ({"labels": {"a": "b"}}, NotImplementedError, ["labels"]),
    ],
)
def test_wrong_arguments(no_session, arguments, error, words):
    with pytest.raises(error) as caught:
        weft.init(**arguments)
    for word in words:
        assert word in str(caught.value)
    assert not weft.is_initialized()


def test_arguments_that_ask_for_nothing(no_session):
    weft.init("local", num_cpus=1, local_mode=False, include_dashboard=None, namespace=None, logging_level="WARNING")


def test_address_from_the_environment(no_session, monkeypatch):
    monkeypatch.setenv("WEFT_ADDRESS", "somewhere")
    with pytest.raises(ValueError, match="WEFT_ADDRESS"):
        weft.init()
    monkeypatch.setenv("WEFT_ADDRESS", "somewhere:1")
    with pytest.raises(RuntimeError, match="somewhere:1 runs on this machine"):
        weft.init()
    monkeypatch.setenv("WEFT_ADDRESS", "local")
    weft.init(num_cpus=1)


def test_missing_program_is_said(no_session, monkeypatch):
    monkeypatch.setenv("WEFT_PROGRAM", "/nonexistent/weft")
    with pytest.raises(RuntimeError, match="/nonexistent/weft"):
        weft.init()
    monkeypatch.undo()
    weft.init(num_cpus=1)
    assert weft.get(weft.put(1)) == 1


def test_program_that_does_not_work_is_said(no_session, monkeypatch):
    monkeypatch.setenv("WEFT_PROGRAM", "/bin/false")
    with pytest.raises((RuntimeError, weft.WeftError)):
        weft.init()
    monkeypatch.undo()
    weft.init(num_cpus=1)
    assert weft.get(weft.put(1)) == 1


def test_no_cpus(no_session):
    weft.init(num_cpus=0)
    assert weft.get(weft.put(1)) == 1
    with pytest.raises(weft.UnschedulableError):
        weft.get(weft.remote(lambda: 1).remote(), timeout=20)
    assert weft.get(weft.remote(lambda: 1).options(num_cpus=0).remote(), timeout=20) == 1


# ---- the machine ----------------------------------------------------------------------------------------------------


def test_the_default_is_the_cpus_of_the_affinity():
    driver = run_driver(
        """
        import os, weft
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(weft.init().num_cpus)
        """
    )
    assert driver.stdout == "1.0\n"


def can_mount() -> bool:
    command = ["unshare", "--mount", "--net", "--", "sh", "-c", "mount --bind /tmp /sys/fs/cgroup && ip link set lo up"]
    try:
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_mount(), reason="a mount namespace with a cgroup of our own needs root")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is one CPU, whatever the quota")
def test_a_quota_counts_the_same_in_python_and_in_cpp(tmp_path):
    """1.5 CPUs are one CPU, for a session of Python as for `weft start` (src/os/memory_limits_test.cc has the rest)."""
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "cpu").mkdir()  # the same in a machine with cgroups of version 1
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    started = r"""
        address=$(weft start --head --port=0 | sed -n 's/.*the head of the cluster \([^ ]*\).*/\1/p')
        WEFT_ADDRESS=$address python -c 'import weft; print(weft.init().num_cpus)'
        weft stop --address=$address
    """
    for command in ("python -c 'import weft; print(weft.init().num_cpus)'", started):
        home = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
        path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
        # A network of its own: nodes of others are not seen there.
        script = f"mount --bind {tmp_path} /sys/fs/cgroup && ip link set lo up && {{ {command}\n}}"
        isolated = ["unshare", "--mount", "--net", "--", "sh", "-c", script]
        driver = run_driver("", command=isolated, env={**home, "PATH": path})
        assert "1.0" in driver.stdout.splitlines(), driver.stdout + driver.stderr


# ---- many sessions --------------------------------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(300)
def test_init_and_shutdown_200_times(no_session):
    f = weft.remote(lambda x: x + 1)

    def cycle():
        weft.init(num_cpus=1)
        assert weft.get(f.remote(1)) == 2
        weft.shutdown()

    for _ in range(20):
        cycle()
    files, threads, memory = open_files(), threading.active_count(), resident_bytes()
    for _ in range(180):
        cycle()
    wait_until(lambda: not descendants(os.getpid()), 5, "processes after shutdown")
    assert open_files() <= files
    assert threading.active_count() <= threads
    assert resident_bytes() - memory < 20e6


def test_two_sessions_at_once():
    source = """
    import weft, sys, time
    weft.init(num_cpus=1)
    print("ready", flush=True)
    sys.stdin.readline()
    print(weft.get([weft.remote(lambda x: x * 2).remote(i) for i in range(10)]))
    """
    drivers = [Driver(source, stdin=subprocess.PIPE) for _ in range(2)]
    for driver in drivers:
        driver.wait_for_line("ready")
    for driver in drivers:
        driver.process.stdin.write(b"\n")
        driver.process.stdin.flush()
    for driver in drivers:
        assert driver.finish() == 0
        assert driver.stdout == str([i * 2 for i in range(10)]) + "\n"
        driver.expect_nothing_left()


def test_session_in_a_thread():
    run_driver(
        """
        import threading, weft
        def work():
            weft.init(num_cpus=1)
            assert weft.get(weft.remote(lambda: 5).remote()) == 5
        thread = threading.Thread(target=work)
        thread.start(); thread.join()
        assert weft.get(weft.remote(lambda: 6).remote()) == 6
        """
    )


# ---- ends -----------------------------------------------------------------------------------------------------------

RUNNING = """
import time, weft
weft.init(num_cpus=2)
@weft.remote
def forever():
    print("running", flush=True)
    time.sleep(600)
ref = forever.remote()
@weft.remote
def started(): return 1
weft.get(started.remote())
print("ready", flush=True)
"""


def test_normal_end_without_shutdown():
    run_driver("import weft; weft.init(num_cpus=2); weft.get(weft.remote(lambda: 1).remote())")


def test_end_while_tasks_run():
    started = time.monotonic()
    run_driver(RUNNING)
    assert time.monotonic() - started < 20


def test_end_by_an_exception():
    driver = run_driver(RUNNING + "raise ValueError('the end')", code=1)
    assert "ValueError: the end" in driver.stderr


def test_end_by_os_exit():
    run_driver(RUNNING + "import os; os._exit(7)", code=7)


def test_driver_killed():
    driver = Driver(RUNNING + "weft.get(ref)")
    driver.wait_for_line("ready")
    assert len(driver.processes()) > 2
    os.kill(driver.pid, signal.SIGKILL)
    driver.process.wait()
    driver.expect_nothing_left(5)


@pytest.mark.parametrize("to_all", [False, True], ids=["driver", "whole group"])
def test_ctrl_c_in_get(ctrl_c, to_all):
    driver = Driver(
        RUNNING
        + """
try:
    print("in get", flush=True)
    weft.get(ref)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""
    )
    driver.wait_for_line("in get")
    pressed = time.monotonic()
    # The driver prints just before it calls get: press until it notices.
    while driver.process.poll() is None and time.monotonic() - pressed < 10:
        (os.killpg if to_all else os.kill)(driver.pid, signal.SIGINT)
        try:
            driver.process.wait(1)
        except subprocess.TimeoutExpired:
            continue
    took = time.monotonic() - pressed
    driver.finish()
    assert driver.process.returncode in (-signal.SIGINT, 1, 130)
    assert "interrupted" in driver.stdout
    assert "KeyboardInterrupt" in driver.stderr
    assert driver.stderr.count("Traceback") == 1  # the driver's own, none from workers
    assert took < 3
    driver.expect_nothing_left(5)


def test_ctrl_c_in_wait_can_be_survived(ctrl_c):
    run_driver(
        """
        import os, signal, threading, time, weft
        weft.init(num_cpus=2)
        slow = weft.remote(lambda: time.sleep(600)).remote()
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try: weft.wait([slow])
        except KeyboardInterrupt: pass
        else: raise SystemExit("not interrupted")
        assert weft.get(weft.remote(lambda: 5).remote(), timeout=30) == 5
        """
    )


def test_ctrl_c_is_tested_also_where_sigint_is_ignored():
    """As under nohup: a child of such a process ignores it, too, unless the fixture says otherwise."""
    test = f"{__file__}::{test_ctrl_c_in_wait_can_be_survived.__name__}"
    pytest_alone = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    driver = run_driver("", command=["sh", "-c", """trap '' INT; exec "$@\"""", "sh", *pytest_alone])
    assert "1 passed" in driver.stdout, driver.stdout


def test_sigterm_ends_everything():
    driver = Driver(RUNNING + "weft.get(ref)")
    driver.wait_for_line("ready")
    driver.process.terminate()
    driver.finish()
    driver.expect_nothing_left(5)


def test_exit_handlers_of_tasks_run_and_do_not_hang(tmp_path):
    driver = run_driver(
        """
        import atexit, sys, time, weft
        weft.init(num_cpus=1)
        @weft.remote
        def register(path):
            atexit.register(time.sleep, 600)
            atexit.register(lambda: open(path, "w").close())
        weft.get(register.remote(sys.argv[1]))
        started = time.monotonic()
        weft.shutdown()
        print(time.monotonic() - started < 2)
        """,
        arguments=[str(tmp_path / "ran")],
    )
    assert driver.stdout == "True\n"
    assert (tmp_path / "ran").exists()


# ---- forks ----------------------------------------------------------------------------------------------------------


def test_fork_in_the_driver():
    driver = run_driver(
        """
        import os, sys, weft
        weft.init(num_cpus=1)
        ref = weft.put(1)
        f = weft.remote(lambda: 2)
        weft.get(f.remote())
        pid = os.fork()
        if pid == 0:
            refused = 0
            for call in (lambda: weft.get(ref), lambda: weft.put(2), lambda: f.remote(), lambda: weft.wait([ref]),
                         lambda: weft.init(num_cpus=1)):
                try: call()
                except RuntimeError as error: refused += "fork" in str(error)
            del ref
            weft.shutdown()
            os._exit(refused)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status))
        print(weft.get(ref), weft.get(f.remote()))
        """
    )
    assert driver.stdout == "5\n1 2\n"


def test_fork_that_ends_normally_leaves_the_session_alone():
    driver = run_driver(
        """
        import multiprocessing, os, weft
        weft.init(num_cpus=1)
        f = weft.remote(lambda: 2)
        ref = f.remote()
        pid = os.fork()
        if pid == 0:
            raise SystemExit(0)      # runs exit handlers
        os.waitpid(pid, 0)
        process = multiprocessing.get_context("fork").Process(target=print, args=("child",))
        process.start(); process.join()
        print(weft.get(ref), weft.get(f.remote()))
        """
    )
    assert driver.stdout == "child\n2 2\n"


def test_fork_before_init():
    driver = run_driver(
        """
        import os, weft
        pid = os.fork()
        weft.init(num_cpus=1)
        os.write(1, b"%d\\n" % weft.get(weft.remote(lambda: 1).remote()))   # whole lines, whoever else writes
        weft.shutdown()
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
        """
    )
    assert driver.stdout == "1\n1\n"


# ---- surroundings ---------------------------------------------------------------------------------------------------

WORKS = "import weft; weft.init(num_cpus=1); assert weft.get(weft.remote(lambda: 1).remote()) == 1"


@pytest.mark.parametrize(
    "env",
    [
        {"TMPDIR": "/nonexistent/folder"},
        {"TMPDIR": "/tmp/" + "x" * 200},
        {"TMPDIR": None, "HOME": None},
        {"HOME": "/proc"},
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
        {"XDG_RUNTIME_DIR": "/nonexistent"},
        {"ODD": "\udcff\n= spaces"},
    ],
    ids=lambda env: ",".join(env),
)
def test_odd_environments(env):
    run_driver(WORKS, env=env)


def test_long_tmpdir_that_exists(tmp_path):
    deep = tmp_path
    while len(str(deep)) < 200:
        deep = deep / ("d" * 40)
    deep.mkdir(parents=True)
    run_driver(WORKS, env={"TMPDIR": str(deep)})
    assert list(deep.iterdir()) == []


def test_removed_working_directory(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    run_driver("import os, sys; os.rmdir(os.getcwd()); sys.path[:] = [p for p in sys.path if p]\n" + WORKS, cwd=gone)


def test_files_in_the_working_directory_shadow_nothing(tmp_path):
    for name in ("random", "types", "weft", "socket", "pickle", "logging"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    script = tmp_path.parent / f"{tmp_path.name}_script.py"
    script.write_text(WORKS)
    run_driver("", command=[sys.executable, str(script)], cwd=tmp_path)


def test_few_descriptors():
    run_driver("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n" + WORKS)


def test_closed_standard_streams():
    run_driver("", command=["sh", "-c", f'exec "{sys.executable}" -c "{WORKS}" <&- >&- 2>&-'])


def test_interpreter_options_reach_workers():
    driver = run_driver(
        "",
        command=[
            sys.executable, "-O", "-X", "utf8", "-W", "error::UserWarning", "-c",
            "import sys, weft; weft.init(num_cpus=1)\n"
            "f = weft.remote(lambda: (sys.flags.optimize, sys.flags.utf8_mode, sys.warnoptions))\n"
            "print(weft.get(f.remote()))",
        ],
    )  # fmt: skip
    assert driver.stdout == "(1, 1, ['error::UserWarning'])\n"
