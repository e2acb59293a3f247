"""init(preload=[...]) and WEFT_PRELOAD: workers come from a second zygote that has imported what is named."""

import os
import signal
import textwrap

import pytest
import weft
from helpers import Driver, notes, run_driver, wait_until


@pytest.fixture
def modules(tmp_path):
    """Writes modules that programs can import. Each notes the process that imports it."""

    def write(**sources):
        for name, source in sources.items():
            lines = ["import os", f"with open({str(tmp_path / name)!r} + '.pids', 'a') as file:"]
            lines += ["    file.write(f'{os.getpid()}\\n')"]
            (tmp_path / f"{name}.py").write_text("\n".join(lines) + "\n" + textwrap.dedent(source))
        return {"PYTHONPATH": str(tmp_path), "FOLDER": str(tmp_path), "WEFT_PRELOAD": None}

    return write


def importers(tmp_path, name):
    return notes(tmp_path / f"{name}.pids")


ACTORS = """
    import os, sys
    import weft

    @weft.remote
    class Uses:
        def __init__(self, name):
            self.module = __import__(name)

        def look(self):
            return os.getpid(), os.getppid()
"""


def test_actors_share_one_import(modules, tmp_path):
    environment = modules(heavy="value = 7")
    run_driver(
        ACTORS
        + """
    weft.init(num_cpus=2, preload=["heavy"])
    actors = [Uses.remote("heavy") for _ in range(4)]
    rows = weft.get([actor.look.remote() for actor in actors])
    (zygote,) = {parent for _, parent in rows}
    assert len({pid for pid, _ in rows}) == 4
    with open(os.path.join(os.environ["FOLDER"], "heavy.pids")) as file:
        assert [int(line) for line in file] == [zygote], "only the zygote imports it"
    assert len(os.listdir(f"/proc/{zygote}/task")) == 1
    assert "heavy" not in sys.modules and not any("WEFT_WARM" in name for name in os.environ)
    """,
        env=environment,
    )


def test_without_it_each_actor_imports(modules, tmp_path):
    environment = modules(heavy="")
    run_driver(
        ACTORS
        + """
    weft.init(num_cpus=2)
    actors = [Uses.remote("heavy") for _ in range(3)]
    rows = weft.get([actor.look.remote() for actor in actors])
    with open(os.path.join(os.environ["FOLDER"], "heavy.pids")) as file:
        assert sorted(int(line) for line in file) == sorted(pid for pid, _ in rows)
    """,
        env=environment,
    )


def test_without_it_imports_run_at_the_same_time(modules, tmp_path):
    # Each import waits until all four have begun.
    environment = modules(
        heavy="""
        import time
        deadline = time.monotonic() + 30
        while len(open(os.path.join(os.environ["FOLDER"], "heavy.pids")).readlines()) < 4:
            if time.monotonic() > deadline:
                raise RuntimeError("the others did not begin")
            time.sleep(0.005)
        """
    )
    run_driver(
        ACTORS
        + """
    weft.init(num_cpus=4)
    actors = [Uses.remote("heavy") for _ in range(4)]
    weft.get([actor.look.remote() for actor in actors])
    """,
        env=environment,
    )


WAITS = """
    import time
    deadline = time.monotonic() + 60
    while not os.path.exists(os.path.join(os.environ["FOLDER"], "go")):
        if time.monotonic() > deadline:
            raise RuntimeError("nobody said go")
        time.sleep(0.005)
"""


def test_tasks_do_not_wait_for_the_import_but_actors_do(modules, tmp_path):
    environment = modules(heavy=WAITS)
    run_driver(
        ACTORS
        + """
    @weft.remote
    def where():
        return os.getpid(), os.getppid(), "heavy" in sys.modules

    weft.init(num_cpus=2, preload=["heavy"])
    actor = Uses.remote("heavy")
    called = actor.look.remote()
    plain, plain_zygote, has_it = weft.get(where.remote())
    assert not has_it
    assert weft.wait([called], timeout=0.3)[0] == []
    open(os.path.join(os.environ["FOLDER"], "go"), "w").close()
    _, warm_zygote = weft.get(called)
    assert warm_zygote != plain_zygote

    # The worker that was there before gives way.
    import time
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{plain}"):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert weft.get(where.remote())[1:] == (warm_zygote, True)
    with open(os.path.join(os.environ["FOLDER"], "heavy.pids")) as file:
        assert [int(line) for line in file] == [warm_zygote]
    """,
        env=environment,
    )


def test_a_busy_worker_gives_way_when_its_task_is_done(modules, tmp_path):
    environment = modules(heavy=WAITS)
    run_driver(
        ACTORS
        + """
    import time
    folder = os.environ["FOLDER"]

    @weft.remote
    def busy():
        deadline = time.monotonic() + 60
        while not os.path.exists(os.path.join(folder, "enough")) and time.monotonic() < deadline:
            time.sleep(0.005)
        return os.getpid()

    weft.init(num_cpus=2, preload=["heavy"])
    running = busy.remote()
    assert weft.wait([running], timeout=0.2)[0] == []
    open(os.path.join(folder, "go"), "w").close()
    weft.get(Uses.remote("heavy").look.remote())
    open(os.path.join(folder, "enough"), "w").close()
    plain = weft.get(running)
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{plain}"):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert weft.get(busy.remote()) != plain
    """,
        env=environment,
    )


def lines_of_weft(driver):
    return [line for line in driver.stderr.splitlines() if line.startswith("weft: ")]


def test_a_module_that_cannot_be_imported(modules, tmp_path):
    environment = modules(good="", bad="raise OSError('its library is missing')")
    driver = run_driver(
        ACTORS
        + """
    weft.init(num_cpus=2, preload=["bad", "no_such_module", "good"])
    _, zygote = weft.get(Uses.remote("good").look.remote())
    with open(os.path.join(os.environ["FOLDER"], "good.pids")) as file:
        assert [int(line) for line in file] == [zygote]
    """,
        env=environment,
    )
    bad, missing = lines_of_weft(driver)
    assert "bad cannot be imported (OSError: its library is missing)" in bad
    assert "no_such_module cannot be imported (ModuleNotFoundError: " in missing
    for line in bad, missing:
        assert "Take it out of init(preload=...) or WEFT_PRELOAD" in line


def test_nothing_can_be_imported(modules, tmp_path):
    driver = run_driver(
        ACTORS
        + """
    weft.init(num_cpus=1, preload=["no_such_module"])
    assert weft.get(Uses.remote("json").look.remote())
    """,
        env=modules(),
    )
    assert len(lines_of_weft(driver)) == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "1 thread behind"),
        # Stands for a GPU's device, which the driver of the GPU keeps open.
        (
            "os.makedirs(os.path.join(os.environ['FOLDER'], 'dev'), exist_ok=True)\n"
            "device = open(os.path.join(os.environ['FOLDER'], 'dev', 'nvidiactl'), 'w')",
            "opens a GPU",
        ),
    ],
    ids=["thread", "gpu"],
)
def test_a_module_that_cannot_be_forked(modules, tmp_path, source, words):
    environment = modules(first="", unfit=source, last="")
    driver = run_driver(
        ACTORS
        + """
    weft.init(num_cpus=2, preload=["first", "unfit", "last"])
    rows = weft.get([Uses.remote("unfit").look.remote() for _ in range(2)])
    (zygote,) = {parent for _, parent in rows}
    assert len(os.listdir(f"/proc/{zygote}/task")) == 1
    pids = {}
    for name in "first", "unfit", "last":
        with open(os.path.join(os.environ["FOLDER"], name + ".pids")) as file:
            pids[name] = [int(line) for line in file]
    # It began again without the second, and the actors imported that themselves.
    assert pids["first"] == [zygote, zygote] and pids["last"] == [zygote]
    assert sorted(pids["unfit"]) == sorted([zygote] + [pid for pid, _ in rows])
    """,
        env=environment,
    )
    (line,) = lines_of_weft(driver)
    assert "preload: unfit " in line and words in line and "workers import it themselves" in line


def test_threads_that_end_before_a_fork_do_no_harm(modules, tmp_path):
    environment = modules(
        pool="""
        import threading
        end = threading.Event()
        thread = threading.Thread(target=end.wait)
        thread.start()
        def stop():
            end.set()
            thread.join()
        os.register_at_fork(before=stop)
        """
    )
    driver = run_driver(
        ACTORS
        + """
    weft.init(num_cpus=1, preload=["pool"])
    _, zygote = weft.get(Uses.remote("pool").look.remote())
    with open(os.path.join(os.environ["FOLDER"], "pool.pids")) as file:
        assert [int(line) for line in file] == [zygote]
    """,
        env=environment,
    )
    assert lines_of_weft(driver) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import sys\nprint('no room', file=sys.stderr, flush=True)\nos._exit(3)", "exited with code 3; it said:"),
        ("import time\ntime.sleep(60)", "SIGALRM"),
    ],
    ids=["killed", "exits", "hangs"],
)
def test_an_import_that_ends_the_zygote(modules, tmp_path, source, words):
    environment = modules(deadly=source)
    driver = run_driver(
        ACTORS
        + """
    weft.init(num_cpus=2, preload=["deadly"])
    assert weft.get(Uses.remote("json").look.remote())
    """,
        env={**environment, "WEFT_PRELOAD_SECONDS": "0.5"},
    )
    (line,) = lines_of_weft(driver)
    assert "preload: workers import deadly themselves" in line and words in line


def test_the_warm_zygote_is_killed(modules, tmp_path):
    environment = modules(heavy="")
    driver = run_driver(
        ACTORS
        + """
    import signal, time

    def zygotes():
        with open(os.path.join(os.environ["FOLDER"], "heavy.pids")) as file:
            return [int(line) for line in file]

    weft.init(num_cpus=2, preload=["heavy"])
    before = Uses.remote("heavy")
    weft.get(before.look.remote())
    for count in range(1, 5):  # it is started again three times, then the plain one goes on
        assert len(zygotes()) == count
        os.kill(zygotes()[-1], signal.SIGKILL)
        weft.get(Uses.remote("heavy").look.remote())
        deadline = time.monotonic() + 20
        while count < 4 and len(zygotes()) == count:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        weft.get([Uses.remote("heavy").look.remote() for _ in range(3)])
    weft.get(before.look.remote())
    """,
        env=environment,
    )
    (line,) = lines_of_weft(driver)
    assert "workers import heavy themselves" in line and "SIGKILL" in line


@pytest.mark.parametrize("when", ["importing", "serving"])
def test_nothing_is_left_when_the_driver_is_killed(modules, tmp_path, when):
    environment = modules(heavy=WAITS)
    if when == "serving":
        (tmp_path / "go").touch()
    driver = Driver(
        ACTORS
        + """
    weft.init(num_cpus=2, preload=["heavy"])
    actor = Uses.remote("heavy")
    if os.path.exists(os.path.join(os.environ["FOLDER"], "go")):
        weft.get(actor.look.remote())
    print("now", flush=True)
    weft.get(actor.look.remote())
    import time
    time.sleep(60)
    """,
        env=environment,
    )
    driver.wait_for_line("now")
    wait_until(lambda: importers(tmp_path, "heavy"))
    os.kill(driver.pid, signal.SIGKILL)
    driver.finish()
    driver.expect_nothing_left()


def test_shutdown_does_not_wait_for_the_import(modules, tmp_path):
    run_driver(
        ACTORS
        + """
    import time
    weft.init(num_cpus=2, preload=["heavy"])
    actor = Uses.remote("heavy")
    began = time.monotonic()
    weft.shutdown()
    assert time.monotonic() - began < 5
    """,
        env=modules(heavy=WAITS),
    )


LOOKS = """
    import sys
    import weft

    @weft.remote
    class Looks:
        def look(self):
            return [name for name in ("one", "two") if name in sys.modules]
"""


@pytest.mark.parametrize(
    ("argument", "expected"), [("None", ["one"]), ("['two']", ["two"]), ("[]", [])], ids=["none", "other", "empty"]
)
def test_the_argument_wins_over_the_environment(modules, tmp_path, argument, expected):
    environment = modules(one="", two="")
    run_driver(
        LOOKS
        + f"    weft.init(num_cpus=1, preload={argument})\n"
        + f"    assert weft.get(Looks.remote().look.remote()) == {expected}",
        env={**environment, "WEFT_PRELOAD": "one"},
    )


def test_several_names_in_the_environment(modules, tmp_path):
    environment = modules(one="", two="")
    run_driver(
        LOOKS + "    assert weft.get(Looks.remote().look.remote()) == ['one', 'two']",
        env={**environment, "WEFT_PRELOAD": "one, two"},
    )


@pytest.mark.parametrize(
    ("preload", "error"),
    [
        ("torch", TypeError),
        ({"torch"}, TypeError),
        (5, TypeError),
        ([5], TypeError),
        ([None], TypeError),
        ([""], ValueError),
        (["torch,numpy"], ValueError),
        (["torch."], ValueError),
    ],
)
def test_wrong_values(no_session, preload, error):
    with pytest.raises(error, match="preload"):
        weft.init(num_cpus=1, preload=preload)
    assert not weft.is_initialized()


@pytest.mark.parametrize("text", ["torch,,numpy", "torch numpy", ","])
def test_wrong_values_of_the_environment(no_session, monkeypatch, text):
    monkeypatch.setenv("WEFT_PRELOAD", text)
    with pytest.raises(ValueError, match="WEFT_PRELOAD"):
        weft.init(num_cpus=1)
    assert not weft.is_initialized()
