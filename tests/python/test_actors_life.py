"""The life of actors: names, kill, exit, what happens when the last handle goes, restarts."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import weft
from helpers import Driver, hold, note, notes, run_driver, wait_until
from weft import _core

pytestmark = pytest.mark.usefixtures("session")


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@weft.remote
class Worker:
    def __init__(self, path=None):
        self.count = 0
        if path is not None:
            note(path, f"made {os.getpid()}")

    def pid(self):
        return os.getpid()

    def work(self):
        self.count += 1
        return self.count

    def wait_for(self, path):
        hold(path)
        return "waited"

    def note(self, path, line):
        note(path, line)

    def crash(self):
        os._exit(7)

    def crash_once(self, path):
        if not os.path.exists(path):
            open(path, "w").close()
            os._exit(7)
        return "second time"

    def leave(self):
        weft.exit_actor()

    def leave_quietly(self):
        try:
            weft.exit_actor()
        except Exception:  # what users write must not keep it alive
            pass
        return "still here"

    def sleep(self, seconds):
        time.sleep(seconds)

    def restarted(self):
        return weft.get_runtime_context().was_current_actor_reconstructed


def pid_of(actor) -> int:
    return weft.get(actor.pid.remote(), timeout=30)


# ---- the last handle ------------------------------------------------------------------------------------------------


def test_the_process_ends_with_the_last_handle():
    actor = Worker.remote()
    pid = pid_of(actor)
    assert alive(pid)
    del actor
    wait_until(lambda: not alive(pid), what="the actor's process lives on")


def test_another_handle_keeps_it_alive():
    actor = Worker.remote()
    pid = pid_of(actor)
    other = weft.get(weft.put([actor]))[0]
    del actor
    assert weft.get(other.work.remote()) == 1
    assert pid_of(other) == pid
    del other
    wait_until(lambda: not alive(pid))


def test_pending_calls_run_before_it_goes(tmp_path, gate):
    path = str(tmp_path / "notes")
    actor = Worker.remote()
    pid = pid_of(actor)
    actor.wait_for.remote(gate.path)
    for i in range(20):
        actor.note.remote(path, str(i))
    del actor
    assert alive(pid)
    assert notes(path) == []
    gate.open()
    wait_until(lambda: not alive(pid))
    assert notes(path) == [str(i) for i in range(20)]


def test_calls_made_before_the_actor_has_started_run_though_the_handle_is_dropped(tmp_path):
    path = str(tmp_path / "notes")
    Worker.remote().note.remote(path, "ran")
    wait_until(lambda: notes(path) == ["ran"])


def test_actors_that_are_dropped_while_they_start_leave_the_others_alone():
    """Their workers are named to a driver that has forgotten them."""
    for _ in range(20):
        Worker.remote()
        assert weft.get(Worker.remote().work.remote(), timeout=30) == 1


def test_the_result_of_a_dropped_actor_stays():
    ref = Worker.remote().work.remote()
    assert weft.get(ref, timeout=30) == 1
    values = weft.get([Worker.remote().work.remote() for _ in range(5)], timeout=60)
    assert values == [1] * 5


def test_objects_owned_by_a_dropped_actor_stay_while_borrowed():
    @weft.remote
    class Owner:
        def make(self):
            return [weft.put(b"x" * 200_000)]

        def pid(self):
            return os.getpid()

    owner = Owner.remote()
    inner = weft.get(owner.make.remote())[0]
    del owner
    assert len(weft.get(inner, timeout=30)) == 200_000


def test_an_actor_that_blocks_for_ever_does_not_keep_the_driver(tmp_path):
    started = time.monotonic()
    driver = run_driver(
        """
        import os, time, weft
        weft.init(num_cpus=2)
        @weft.remote
        class Blocked:
            def pid(self): return os.getpid()
            def block(self):
                while True: time.sleep(1000)
        actor = Blocked.remote()
        print(weft.get(actor.pid.remote()))
        actor.block.remote()
        del actor
        print(weft.get(weft.remote(lambda: "others work").remote()))
        """
    )
    assert "others work" in driver.stdout
    assert time.monotonic() - started < 30


def test_a_cycle_of_handles_ends_with_the_session():
    run_driver(
        """
        import weft
        weft.init(num_cpus=2)
        @weft.remote
        class Node:
            def connect(self, other): self.other = other
        first, second = Node.remote(), Node.remote()
        weft.get([first.connect.remote(second), second.connect.remote(first)])
        """
    )


def test_an_actor_made_by_a_task_ends_when_nobody_holds_it():
    @weft.remote
    def make():
        return weft.get(Worker.remote().pid.remote())

    pid = weft.get(make.remote())
    wait_until(lambda: not alive(pid))


def test_everything_is_gone_after_shutdown():
    run_driver(
        """
        import weft
        weft.init(num_cpus=2)
        @weft.remote
        class A:
            def f(self): return 1
        actors = [A.remote() for _ in range(5)]
        named = [A.options(name=f"n{i}", lifetime="detached").remote() for i in range(2)]
        assert weft.get([a.f.remote() for a in actors + named]) == [1] * 7
        """
    )


def test_driver_killed_with_actors_alive():
    driver = Driver(
        """
        import time, weft
        weft.init(num_cpus=2)
        @weft.remote
        class A:
            def f(self): return 1
            def block(self): time.sleep(1000)
        actors = [A.remote() for _ in range(3)]
        weft.get([a.f.remote() for a in actors])
        for a in actors: a.block.remote()
        print("ready")
        time.sleep(1000)
        """
    )
    driver.wait_for_line("ready")
    driver.process.send_signal(signal.SIGKILL)
    driver.finish()
    driver.expect_nothing_left()


# ---- kill and exit --------------------------------------------------------------------------------------------------


def test_kill_ends_it_and_its_calls(gate):
    actor = Worker.remote()
    pid = pid_of(actor)
    running = actor.wait_for.remote(gate.path)
    waiting = [actor.work.remote() for _ in range(10)]
    weft.kill(actor)
    for ref in [running, *waiting]:
        with pytest.raises(weft.ActorDiedError, match="kill"):
            weft.get(ref, timeout=30)
    wait_until(lambda: not alive(pid))
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.work.remote(), timeout=30)
    weft.kill(actor)  # again: nothing happens


def test_calls_after_kill_do_not_run(tmp_path):
    # Calls go straight to the actor, and the kill through the daemon: they must not overtake it.
    @weft.remote
    class Note:
        def write(self, name):
            (tmp_path / name).touch()

    for i in range(10):
        actor = Note.remote()
        weft.get(actor.write.remote("before"))
        weft.kill(actor)
        with pytest.raises(weft.ActorDiedError, match="did not run"):
            weft.get(actor.write.remote(f"after {i}"))
    assert [path.name for path in tmp_path.iterdir()] == ["before"]


def test_kill_before_it_has_started():
    actor = Worker.remote()
    ref = actor.work.remote()
    weft.kill(actor)
    try:
        assert weft.get(ref, timeout=30) == 1  # it was quicker
    except weft.ActorDiedError:
        pass
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.work.remote(), timeout=30)


def test_kill_in_the_midst_of_an_endless_call():
    actor = Worker.remote()
    ref = actor.sleep.remote(1000)
    pid_of_it = Worker.remote()  # another one, so that the machine is busy
    pid_of(pid_of_it)
    weft.kill(actor)
    with pytest.raises(weft.ActorDiedError):
        weft.get(ref, timeout=30)


def test_kill_by_a_handle_elsewhere():
    actor = Worker.remote()
    pid = pid_of(actor)
    weft.get(weft.remote(weft.kill).remote(actor))
    wait_until(lambda: not alive(pid))
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.work.remote(), timeout=30)


def test_results_from_before_the_death_stay():
    actor = Worker.remote()
    ref = actor.work.remote()
    assert weft.get(ref) == 1
    weft.kill(actor)
    assert weft.get(ref) == 1


def test_exit_actor():
    actor = Worker.options(max_restarts=-1).remote()
    pid = pid_of(actor)
    with pytest.raises(weft.ActorDiedError, match="exit"):
        weft.get(actor.leave.remote(), timeout=30)
    wait_until(lambda: not alive(pid))
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.work.remote(), timeout=30)


def test_exit_actor_is_not_caught_by_except_exception():
    actor = Worker.remote()
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.leave_quietly.remote(), timeout=30)


def test_terminate_lets_earlier_calls_run(tmp_path, gate):
    path = str(tmp_path / "notes")
    actor = Worker.options(max_restarts=-1).remote()
    pid = pid_of(actor)
    actor.wait_for.remote(gate.path)
    refs = [actor.work.remote() for _ in range(5)]
    actor.note.remote(path, "last")
    actor.__weft_terminate__.remote()
    gate.open()
    assert weft.get(refs, timeout=30) == [1, 2, 3, 4, 5]
    wait_until(lambda: not alive(pid))
    assert notes(path) == ["last"]
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.work.remote(), timeout=30)


def test_exit_actor_in_a_task_is_refused():
    @weft.remote
    def task():
        weft.exit_actor()

    with pytest.raises(RuntimeError, match="outside"):
        weft.get(task.remote())


# ---- death and restart ----------------------------------------------------------------------------------------------


def test_a_crash_without_restarts():
    actor = Worker.remote()
    with pytest.raises(weft.ActorDiedError) as caught:
        weft.get(actor.crash.remote(), timeout=30)
    assert "Worker" in str(caught.value)
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.work.remote(), timeout=30)


def test_kill_9_of_the_process(gate):
    actor = Worker.remote()
    pid = pid_of(actor)
    refs = [actor.wait_for.remote(gate.path), actor.work.remote()]
    os.kill(pid, signal.SIGKILL)
    for ref in refs:
        with pytest.raises(weft.ActorDiedError):
            weft.get(ref, timeout=30)


def test_restart_loses_state_and_runs_the_constructor_again(tmp_path):
    path = str(tmp_path / "notes")
    actor = Worker.options(max_restarts=1).remote(path)
    assert weft.get(actor.work.remote()) == 1
    assert weft.get(actor.restarted.remote()) is False
    first = pid_of(actor)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(notes(path)) == 2, what="a restart")
    assert weft.get(actor.work.options(max_task_retries=5).remote(), timeout=30) == 1
    assert weft.get(actor.restarted.remote()) is True
    second = pid_of(actor)
    assert second != first
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: not alive(second))
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.work.remote(), timeout=30)


def test_a_call_that_may_have_run_is_not_repeated_without_retries(tmp_path):
    actor = Worker.options(max_restarts=5).remote()
    with pytest.raises(weft.ActorUnavailableError, match="may have run|was running|restart"):
        weft.get(actor.crash.remote(), timeout=30)
    assert weft.get(actor.work.remote(), timeout=30) == 1


def test_calls_that_did_not_run_go_to_the_next_incarnation(tmp_path, gate):
    """Those behind a crash were never begun: running them in the restarted actor repeats nothing."""
    actor = Worker.options(max_restarts=1).remote()
    pid_of(actor)
    crash = actor.crash.remote()
    behind = [actor.work.remote() for _ in range(5)]
    with pytest.raises(weft.ActorUnavailableError):
        weft.get(crash, timeout=30)
    outcomes = []
    for ref in behind:
        try:
            outcomes.append(weft.get(ref, timeout=30))
        except weft.ActorUnavailableError:
            outcomes.append(None)
    ran = [value for value in outcomes if value is not None]
    assert ran == list(range(1, len(ran) + 1))


def test_retries_of_calls_keep_their_order(tmp_path):
    flag = str(tmp_path / "crashed")

    actor = Worker.options(max_restarts=1, max_task_retries=1).remote()
    pid_of(actor)
    first = actor.crash_once.remote(flag)
    behind = [actor.work.remote() for _ in range(20)]
    assert weft.get(first, timeout=60) == "second time"
    assert weft.get(behind, timeout=60) == list(range(1, 21))


def test_retries_for_ever(tmp_path):
    @weft.remote(max_restarts=-1, max_task_retries=-1)
    class Unlucky:
        def work(self, path, tries):
            note(path)
            if len(notes(path)) < tries:
                os._exit(1)
            return len(notes(path))

    path = str(tmp_path / "notes")
    assert weft.get(Unlucky.remote().work.remote(path, 4), timeout=60) == 4


def test_retry_exceptions_of_a_method(tmp_path):
    @weft.remote
    class Flaky:
        @weft.method(max_task_retries=3, retry_exceptions=[KeyError])
        def work(self, path, kind):
            note(path)
            if len(notes(path)) < 3:
                raise kind("again")
            return len(notes(path))

    flaky = Flaky.remote()
    assert weft.get(flaky.work.remote(str(tmp_path / "a"), KeyError), timeout=30) == 3
    with pytest.raises(ValueError):
        weft.get(flaky.work.remote(str(tmp_path / "b"), ValueError), timeout=30)
    assert len(notes(tmp_path / "b")) == 1


def test_kill_with_restart(tmp_path):
    actor = Worker.options(max_restarts=1, max_task_retries=5).remote()
    first = pid_of(actor)
    weft.kill(actor, no_restart=False)
    wait_until(lambda: not alive(first))
    second = pid_of(actor)
    assert second != first
    weft.kill(actor, no_restart=False)
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.work.remote(), timeout=30)


def test_kill_without_restart_of_an_actor_that_could():
    actor = Worker.options(max_restarts=-1).remote()
    pid_of(actor)
    weft.kill(actor)
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.work.remote(), timeout=30)


def test_a_handle_elsewhere_survives_a_restart(tmp_path):
    @weft.remote
    class User:
        def __init__(self, actor):
            self.actor = actor

        def use(self):
            return weft.get(self.actor.work.remote(), timeout=30)

    actor = Worker.options(max_restarts=1, max_task_retries=3).remote()
    user = User.remote(actor)
    assert weft.get(user.use.remote()) == 1
    os.kill(pid_of(actor), signal.SIGKILL)
    assert weft.get(user.use.remote(), timeout=60) == 1


def test_creator_gone(gate):
    """The process that made an actor dies: the actor goes with it, and handles elsewhere say so."""

    @weft.remote
    class Maker:
        def make(self):
            self.actor = Worker.remote()
            return [self.actor]

        def pid(self):
            return os.getpid()

    maker = Maker.remote()
    actor = weft.get(maker.make.remote())[0]
    pid = pid_of(actor)
    weft.kill(maker)
    wait_until(lambda: not alive(pid))
    with pytest.raises((weft.ActorDiedError, weft.OwnerDiedError)):
        weft.get(actor.work.remote(), timeout=30)


# ---- names ----------------------------------------------------------------------------------------------------------


def test_named_actors():
    actor = Worker.options(name="the one").remote()
    assert weft.get(actor.work.remote()) == 1
    found = weft.get_actor("the one")
    assert found == actor
    assert weft.get(found.work.remote()) == 2
    assert "the one" in weft.list_named_actors()

    @weft.remote
    def elsewhere():
        return weft.get(weft.get_actor("the one").work.remote())

    assert weft.get(elsewhere.remote()) == 3
    weft.kill(actor)


def test_a_name_that_is_taken():
    actor = Worker.options(name="taken").remote()
    with pytest.raises(ValueError, match="taken"):
        Worker.options(name="taken").remote()
    same = Worker.options(name="taken", get_if_exists=True).remote()
    assert same == actor
    weft.kill(actor)


def test_a_name_is_free_again_after_death():
    first = Worker.options(name="again").remote()
    pid_of(first)
    weft.kill(first)
    wait_until(lambda: "again" not in weft.list_named_actors())
    second = Worker.options(name="again").remote()
    assert weft.get(second.work.remote(), timeout=30) == 1
    assert first != second
    del second
    wait_until(lambda: "again" not in weft.list_named_actors(), what="the name of a dropped actor")


def test_a_name_is_free_again_after_a_failed_constructor():
    @weft.remote
    class Fails:
        def __init__(self):
            raise ValueError("no")

        def f(self): ...

    actor = Fails.options(name="failing").remote()
    with pytest.raises(weft.ActorDiedError):
        weft.get(actor.f.remote(), timeout=30)
    wait_until(lambda: "failing" not in weft.list_named_actors())
    with pytest.raises(ValueError, match="failing"):
        weft.get_actor("failing")


def test_unknown_names():
    with pytest.raises(ValueError, match='"nobody"'):
        weft.get_actor("nobody")
    with pytest.raises(ValueError, match='"nobody"'):
        weft.get_actor("nobody", namespace="nowhere")


def test_get_if_exists_makes_it_if_not():
    first = Worker.options(name="maybe", get_if_exists=True).remote()
    second = Worker.options(name="maybe", get_if_exists=True).remote()
    assert weft.get([first.work.remote(), second.work.remote()]) == [1, 2]
    weft.kill(first)


def test_get_if_exists_from_many_at_once():
    @weft.remote
    def meet():
        return weft.get(Worker.options(name="meeting", get_if_exists=True, lifetime="detached").remote().work.remote())

    assert sorted(weft.get([meet.remote() for _ in range(6)], timeout=60)) == [1, 2, 3, 4, 5, 6]
    weft.kill(weft.get_actor("meeting"))


def test_namespaces(no_session):
    weft.init(num_cpus=2, namespace="mine")
    here = Worker.options(name="n").remote()
    there = Worker.options(name="n", namespace="other").remote()
    assert here != there
    assert weft.get_actor("n") == here
    assert weft.get_actor("n", namespace="mine") == here
    assert weft.get_actor("n", namespace="other") == there
    assert weft.list_named_actors() == ["n"]
    assert weft.list_named_actors(all_namespaces=True) == [
        {"name": "n", "namespace": "mine"},
        {"name": "n", "namespace": "other"},
    ]
    assert weft.get_runtime_context().namespace == "mine"

    @weft.remote
    def elsewhere():
        return weft.get_runtime_context().namespace, weft.get_actor("n")

    namespace, found = weft.get(elsewhere.remote())
    assert (namespace, found) == ("mine", here)


def test_detached_actors_outlive_their_handles():
    actor = Worker.options(name="stays", lifetime="detached").remote()
    pid = pid_of(actor)
    weft.get(actor.work.remote())
    del actor
    other = Worker.remote()  # one round through the daemon
    pid_of(other)
    assert alive(pid)
    found = weft.get_actor("stays")
    assert weft.get(found.work.remote()) == 2
    weft.kill(found)
    wait_until(lambda: not alive(pid))


def test_a_detached_actor_outlives_the_worker_that_made_it():
    @weft.remote
    class Maker:
        def make(self):
            Worker.options(name="orphan", lifetime="detached").remote()
            return os.getpid()

    maker = Maker.remote()
    pid = weft.get(maker.make.remote())
    found = weft.get_actor("orphan")
    pid_of(found)
    weft.kill(maker)
    wait_until(lambda: not alive(pid))
    assert weft.get(found.work.remote(), timeout=30) == 1
    assert weft.get(weft.get_actor("orphan").work.remote(), timeout=30) == 2
    weft.kill(found)


@pytest.mark.parametrize("large", [False, True])
def test_a_detached_actor_is_restarted_after_the_worker_that_made_it_died(large):
    numpy = pytest.importorskip("numpy")

    @weft.remote
    class Holder:
        def __init__(self, value, handles):
            self.value = value
            self.handles = handles
            self.count = 0

        def state(self):
            self.count += 1
            return os.getpid(), self.count, float(self.value.sum()), len(self.handles)

    @weft.remote
    class Maker:
        def make(self, value, handles):
            own = weft.put(value * 2)  # what it owns must outlive it
            options = {"name": "kept", "lifetime": "detached", "max_restarts": 5}
            self.holder = Holder.options(**options).remote(own, handles)
            return weft.get(self.holder.state.remote()), os.getpid()

    value = numpy.ones(1_000_000 if large else 10)
    maker = Maker.remote()
    other = Worker.remote()
    (first, _, total, handles), pid = weft.get(maker.make.remote(value, [other]))
    assert (total, handles) == (2.0 * value.size, 1)
    holder = weft.get_actor("kept")
    assert weft.get(holder.state.remote())[:2] == (first, 2)
    weft.kill(maker)
    wait_until(lambda: not alive(pid), what="its creator is gone")
    seen = {first}
    for _ in range(2):
        os.kill(weft.get(holder.state.remote(), timeout=30)[0], signal.SIGKILL)

        def answers():
            try:
                return weft.get(holder.state.remote(), timeout=30)[0] not in seen
            except weft.ActorUnavailableError:
                return False

        wait_until(answers, 30, "it was restarted")
        now, _, total, handles = weft.get(weft.get_actor("kept").state.remote(), timeout=30)
        assert (total, handles) == (2.0 * value.size, 1)
        seen.add(now)
    weft.kill(holder)
    wait_until(lambda: "kept" not in weft.list_named_actors(), what="it is gone")


@pytest.mark.parametrize("question", ["create", "lookup", "list"])
def test_ctrl_c_while_the_daemon_is_asked(no_session, ctrl_c, question):
    """The daemon is stopped, so no answer comes; the signal is handled nevertheless, and the session goes on."""
    weft.init(num_cpus=1)

    @weft.remote
    class Named:
        def one(self):
            return 1

    ask = {
        "create": lambda: Named.options(name="asked").remote(),
        "lookup": lambda: weft.get_actor("asked"),
        "list": lambda: weft.list_named_actors(),
    }[question]
    daemon = _core.node_pid()
    main = threading.main_thread().native_id
    os.kill(daemon, signal.SIGSTOP)
    try:

        def interrupt():
            # If the main thread is asleep ten times in a row, between which it could run, it waits for the answer.
            seen = []

            def asleep():
                with open(f"/proc/self/task/{main}/stat") as file:
                    seen.append(file.read().rpartition(")")[2].split()[0])
                return seen[-10:] == ["S"] * 10

            wait_until(asleep, 20, "the main thread waits")
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            ask()
        thread.join()
    finally:
        os.kill(daemon, signal.SIGCONT)
    if question == "create":
        # Nobody holds what may have been created: it ends, and its name is free.
        wait_until(lambda: weft.list_named_actors() == [], 20, "the name is free")
    again = Named.options(name="asked").remote()
    assert weft.get(again.one.remote(), timeout=20) == 1
    assert weft.get(weft.get_actor("asked").one.remote(), timeout=20) == 1
