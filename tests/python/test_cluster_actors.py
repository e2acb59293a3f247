"""Actors in a cluster: on other nodes than their creator's, restarted there, named in the whole cluster, detached.

Nodes run on this machine, as in test_cluster.py; a program chooses its node by the pid of the daemon.
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap

import pytest
from test_cluster import SECONDS, Nodes, gone, until

COUNTER = """
import os
import time


@weft.remote
class Counter:
    def __init__(self, start=0):
        self.count = start

    def add(self, by=1):
        self.count += by
        return self.count

    def pid(self):
        return os.getpid()

    def node(self):
        with open(f"/proc/{os.getppid()}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])


def settled(condition):
    deadline = time.monotonic() + 15
    while True:
        try:
            if condition():
                return
        except (weft.ActorDiedError, weft.ActorUnavailableError, ValueError):
            pass
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
"""


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    yield made
    made.end()


class On:
    """Programs whose node is that of the given daemon."""

    def __init__(self, nodes: Nodes, pid: int) -> None:
        self.nodes = nodes
        self.pid = pid

    def program(self, text: str):
        self.nodes.environment["WEFT_NODE"] = str(self.pid)
        return self.nodes.program(COUNTER + textwrap.dedent(text), stdin=subprocess.PIPE)

    def output_of(self, text: str) -> str:
        out, err = self.program(text).communicate(timeout=SECONDS)
        assert not err, err
        return out


def line_of(program) -> str:
    line = program.stdout.readline()
    assert line, program.communicate()
    return line


def test_an_actor_that_fits_only_on_another_node(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    assert On(nodes, first).output_of(
        f"""
        counter = Counter.options(resources={{"lamp": 1}}).remote(5)
        print(weft.get(counter.node.remote()) == {second})
        print([weft.get(counter.add.remote()) for _ in range(3)])
        print(weft.get([counter.add.remote() for _ in range(5000)])[-1])
        """
    ) == ("True\n[6, 7, 8]\n5008\n")
    until(lambda: not nodes.children())


def test_actors_go_elsewhere_when_there_is_no_room_at_home(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=2", "--name=two")
    assert On(nodes, first).output_of(
        """
        counters = [Counter.options(num_cpus=1).remote(i) for i in range(3)]
        print(sorted(weft.get([c.node.remote() for c in counters])), weft.get([c.add.remote() for c in counters]))
        """
    ) == (f"{sorted([first, second, second])} [1, 2, 3]\n")


def test_calls_from_every_node_reach_an_actor_on_a_third(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    nodes.start("--num-cpus=2", "--name=two", "--resource=lamp=1")
    nodes.start("--num-cpus=2", "--name=three", "--resource=torch=2")
    assert On(nodes, first).output_of(
        """
        counter = Counter.options(num_cpus=0, resources={"lamp": 1}).remote()

        @weft.remote(num_cpus=0)
        def add(box, times):
            refs = [box[0].add.remote(1) for _ in range(times)]
            values = weft.get(refs)
            return values == sorted(values) and weft.get(box[0].add.remote(0)) >= times

        torch = add.options(resources={"torch": 1})
        lamp = add.options(num_cpus=1)
        print(weft.get([torch.remote([counter], 200), torch.remote([counter], 200), lamp.remote([counter], 100)]))
        print(weft.get(counter.add.remote(0)))
        """
    ) == ("[True, True, True]\n500\n")


def test_an_actor_on_another_node_is_restarted_when_its_worker_is_killed(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    assert On(nodes, first).output_of(
        f"""
        import signal

        counter = Counter.options(resources={{"lamp": 1}}, max_restarts=1).remote(5)
        print(weft.get(counter.add.remote()))
        os.kill(weft.get(counter.pid.remote()), signal.SIGKILL)
        settled(lambda: weft.get(counter.add.remote()) == 6)
        print(weft.get(counter.node.remote()) == {second})
        os.kill(weft.get(counter.pid.remote()), signal.SIGKILL)
        try:
            while True:
                weft.get(counter.add.remote())
        except weft.ActorDiedError as error:
            print("killed by signal 9" in str(error) and "as often as max_restarts allows" in str(error))
        """
    ) == ("6\nTrue\nTrue\n")


def test_an_actor_is_restarted_on_another_node_when_its_node_is_killed(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    program = On(nodes, first).program(
        """
        counter = Counter.options(resources={"lamp": 1}, max_restarts=-1).remote(5)
        print(weft.get(counter.add.remote()), flush=True)
        settled(lambda: weft.get(counter.add.remote()) == 6)
        print(weft.get(counter.node.remote()))
        """
    )
    assert line_of(program) == "6\n"
    third = nodes.start("--num-cpus=1", "--name=three", "--resource=lamp=1")
    os.kill(second, signal.SIGKILL)
    out, err = program.communicate(timeout=SECONDS)
    assert out == f"{third}\n", err


def test_an_actor_without_restarts_dies_with_its_node_and_says_so(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    program = On(nodes, first).program(
        """
        @weft.remote(resources={"lamp": 1})
        class Sleeper:
            def sleep(self):
                time.sleep(600)

        sleeper = Sleeper.remote()
        counter = Counter.remote()
        ref = sleeper.sleep.remote()
        done, _ = weft.wait([ref], timeout=0.3)
        print(len(done), weft.get(counter.add.remote()), flush=True)
        try:
            weft.get(ref)
        except weft.ActorDiedError as error:
            print(error)
        """
    )
    assert line_of(program) == "0 1\n"
    os.kill(second, signal.SIGKILL)
    out, err = program.communicate(timeout=SECONDS)
    assert "was lost with its node (node 2, two: " in out, out + err
    assert "may have had effects" in out


@pytest.mark.parametrize("dies", ["worker", "node"])
def test_a_caller_on_a_third_node_hears_whether_the_actor_restarts_or_is_dead(nodes, dies):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=2")
    nodes.start("--num-cpus=1", "--name=three", "--resource=torch=2")
    program = On(nodes, first).program(
        """
        @weft.remote(num_cpus=0, resources={"lamp": 1})
        class Sleeper:
            def pid(self):
                return os.getpid()

            def sleep(self):
                time.sleep(600)

        @weft.remote(num_cpus=0, resources={"torch": 1}, max_retries=0)
        def call(box):
            try:
                weft.get(box[0].sleep.remote())
            except (weft.ActorDiedError, weft.ActorUnavailableError) as error:
                return type(error).__name__, "may have had effects" in str(error)

        mortal, phoenix = Sleeper.remote(), Sleeper.options(max_restarts=-1).remote()
        pids = weft.get([mortal.pid.remote(), phoenix.pid.remote()])
        refs = [call.remote([mortal]), call.remote([phoenix])]
        weft.wait(refs, timeout=0.5)
        print(*pids, flush=True)
        print(weft.get(refs))
        """
    )
    pids = [int(pid) for pid in line_of(program).split()]
    for pid in [second] if dies == "node" else pids:
        os.kill(pid, signal.SIGKILL)
    out, err = program.communicate(timeout=SECONDS)
    assert out == "[('ActorDiedError', True), ('ActorUnavailableError', True)]\n", out + err


def test_an_actor_of_a_silent_node_is_restarted_and_the_node_gives_up(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    third = nodes.start("--num-cpus=1", "--name=three", "--resource=lamp=1")
    program = On(nodes, first).program(
        """
        counter = Counter.options(resources={"lamp": 1}, max_restarts=-1).remote(5)
        print(weft.get(counter.node.remote()), weft.get(counter.add.remote()), flush=True)
        print(weft.get(counter.pid.remote()), flush=True)
        settled(lambda: weft.get(counter.add.remote()) == 6)
        print(weft.get(counter.node.remote()), flush=True)
        input()
        print(weft.get(counter.add.remote()))
        """
    )
    silent = int(line_of(program).split()[0])
    before = int(line_of(program))
    os.kill(silent, signal.SIGSTOP)
    try:
        assert int(line_of(program)) == ({second, third} - {silent}).pop()
    finally:
        os.kill(silent, signal.SIGCONT)
    until(lambda: gone(before))  # and its node joins again, as another
    out, err = program.communicate("\n", timeout=SECONDS)
    assert out == "7\n", err


def test_a_constructor_that_raises_on_another_node(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    assert On(nodes, first).output_of(
        """
        @weft.remote(resources={"lamp": 1})
        class Broken:
            def __init__(self):
                raise KeyError("lost")

            def f(self):
                pass

        try:
            weft.get(Broken.remote().f.remote())
        except weft.ActorDiedError as error:
            print("constructor of actor Broken" in str(error), repr(error.__cause__))
        print(weft.get(Counter.options(resources={"lamp": 1}).remote(1).add.remote()))  # the lamp is free again
        """
    ) == ("True KeyError('lost')\n2\n")


@pytest.mark.parametrize("by", ["driver", "node"])
def test_nothing_is_left_of_actors_whose_creator_is_killed(nodes, by):
    nodes.start("--num-cpus=0", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two")
    nodes.start("--num-cpus=1", "--name=three", "--resource=lamp=1")
    program = On(nodes, second).program(
        """
        counter = Counter.options(resources={"lamp": 1}, max_restarts=-1).remote()
        print(weft.get(counter.pid.remote()), flush=True)
        time.sleep(600)
        """
    )
    actor = int(line_of(program))
    if by == "driver":
        program.kill()
    else:
        os.kill(second, signal.SIGKILL)
    until(lambda: gone(actor))
    until(lambda: not nodes.children())
    program.kill()
    program.communicate()


def test_actors_on_another_node_end_by_kill_exit_and_the_last_handle(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    assert On(nodes, first).output_of(
        """
        @weft.remote(resources={"lamp": 1})
        class Guest:
            def ping(self):
                return 1

            def leave(self):
                weft.exit_actor()

        for _ in range(2):  # one lamp: each must have ended before the next can start
            guest = Guest.remote()
            print(weft.get(guest.ping.remote()))
            weft.kill(guest)
            try:
                weft.get(guest.ping.remote())
            except weft.ActorDiedError as error:
                print("killed on request" in str(error))
        guest = Guest.remote()
        try:
            weft.get(guest.leave.remote())
        except weft.ActorDiedError as error:
            print("ended itself" in str(error))
        guest = Guest.remote()
        print(weft.get(guest.ping.remote()))
        del guest
        print(weft.get(Guest.remote().ping.remote()))
        """
    ) == ("1\nTrue\n1\nTrue\nTrue\n1\n1\n")


def test_an_actor_that_no_node_can_take_waits_for_one_that_can(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    program = On(nodes, first).program(
        """
        counter = Counter.options(resources={"lamp": 1}).remote()
        ref = counter.add.remote()
        done, _ = weft.wait([ref], timeout=0.3)
        print(len(done), flush=True)
        print(weft.get(ref))
        """
    )
    assert line_of(program) == "0\n"
    nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    out, err = program.communicate(timeout=SECONDS)
    assert out == "1\n", err
    assert "lamp" in err  # it was said why it waits


def test_waiting_for_what_another_node_has_is_not_hopeless(nodes, tmp_path):
    first = nodes.start("--num-cpus=1", "--name=one")
    nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    program = On(nodes, first).program(
        f"""
        import threading

        @weft.remote(num_cpus=0, resources={{"lamp": 1}})
        def hold():
            while not os.path.exists({str(tmp_path / "go")!r}):
                time.sleep(0.01)

        held = hold.remote()
        weft.wait([held], timeout=0.5)
        counter = Counter.options(resources={{"lamp": 1}}).remote()
        threading.Timer(1.5, open, ({str(tmp_path / "go")!r}, "w")).start()
        print(weft.get(counter.add.remote()))  # looks several times whether it can end
        """
    )
    out, err = program.communicate(timeout=SECONDS)
    assert out == "1\n", err


# ---- names


def test_names_are_known_on_every_node_and_free_again(nodes):
    nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two")
    third = nodes.start("--num-cpus=1", "--name=three")
    owner = On(nodes, second).program(
        """
        counter = Counter.options(name="c").remote(10)
        print(weft.get(counter.add.remote()), flush=True)
        try:
            Counter.options(name="c").remote()
        except ValueError as error:
            print(error, flush=True)
        input()
        """
    )
    assert line_of(owner) == "11\n"
    assert 'the name "c" is taken in the default namespace by a living actor Counter "c"' in line_of(owner)
    use = """
        counter = weft.get_actor("c")
        print(weft.get(counter.add.remote()))
        print(weft.list_named_actors())
        try:
            Counter.options(name="c").remote()
        except ValueError as error:
            print("is taken" in str(error))
        Counter.options(name="c", namespace="other").remote()
        same = Counter.options(name="c", get_if_exists=True).remote(0)
        print(weft.get(same.add.remote()))
    """
    assert On(nodes, third).output_of(use) == "12\n['c']\nTrue\n13\n"
    owner.kill()
    owner.communicate()
    assert (
        On(nodes, third).output_of(
            """
            def free():
                try:
                    weft.get_actor("c")
                except ValueError as error:
                    return 'no living actor named "c"' in str(error)

            settled(free)
            print(weft.get(Counter.options(name="c").remote(1).add.remote()))
            """
        )
        == "2\n"
    )


def test_the_names_of_a_killed_node_are_free(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two")
    owner = On(nodes, second).program(
        """
        counter = Counter.options(name="c").remote()
        print(weft.get(counter.add.remote()), flush=True)
        time.sleep(600)
        """
    )
    assert line_of(owner) == "1\n"
    program = On(nodes, first).program(
        """
        counter = weft.get_actor("c")
        print(weft.get(counter.add.remote()), flush=True)
        settled(lambda: weft.get(Counter.options(name="c", get_if_exists=True).remote(7).add.remote()) == 8)
        try:
            weft.get(counter.add.remote())
        except weft.ActorDiedError as error:
            print("node 2, two" in str(error), flush=True)
        """
    )
    assert line_of(program) == "2\n"
    os.kill(second, signal.SIGKILL)
    out, err = program.communicate(timeout=SECONDS)
    assert out == "True\n", out + err
    owner.kill()
    owner.communicate()


def test_get_if_exists_from_two_programs_at_once_makes_one(nodes, tmp_path):
    first = nodes.start("--num-cpus=2", "--name=one")
    second = nodes.start("--num-cpus=2", "--name=two")
    text = f"""
        open({str(tmp_path)!r} + "/" + str(os.getpid()), "w").close()
        while not os.path.exists({str(tmp_path / "go")!r}):
            time.sleep(0.001)
        counters = [Counter.options(name=f"c{{i}}", get_if_exists=True).remote() for i in range(10)]
        print(weft.get([c.pid.remote() for c in counters]), flush=True)
        input()
    """
    programs = [On(nodes, pid).program(text) for pid in (first, second)]
    until(lambda: sum(name.isdigit() for name in os.listdir(tmp_path)) == 2)
    (tmp_path / "go").touch()
    one, two = (line_of(program) for program in programs)
    assert one == two
    assert len(set(eval(one))) == 10
    for program in programs:
        program.communicate("\n", timeout=SECONDS)


# ---- detached actors


def test_a_detached_actor_outlives_its_driver_and_is_found_from_another_node(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two")
    made = On(nodes, second).output_of(
        """
        counter = Counter.options(name="c", lifetime="detached").remote(40)
        print(weft.get(counter.add.remote()), weft.get(counter.pid.remote()))
        """
    )
    count, pid = made.split()
    assert count == "41"
    assert not gone(int(pid))
    for node in (first, second):
        count = str(int(count) + 1)
        assert On(nodes, node).output_of(
            """
            counter = weft.get_actor("c")
            print(weft.get(counter.add.remote()), weft.get(counter.pid.remote()))
            """
        ) == (f"{count} {pid}\n")
    assert (
        On(nodes, second).output_of(
            """
            counter = weft.get_actor("c")
            weft.kill(counter)
            try:
                weft.get(counter.add.remote())
            except weft.ActorDiedError as error:
                print("killed on request" in str(error))
            try:
                weft.get_actor("c")
            except ValueError:
                print("gone")
            """
        )
        == "True\ngone\n"
    )
    until(lambda: not nodes.children())


def test_a_detached_actor_is_restarted_though_its_creator_is_gone(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two")
    made = On(nodes, second).output_of(
        """
        counter = Counter.options(name="c", lifetime="detached", max_restarts=1).remote(weft.put(40))
        print(weft.get(counter.add.remote()), weft.get(counter.pid.remote()))
        """
    )
    os.kill(int(made.split()[1]), signal.SIGKILL)
    assert (
        On(nodes, first).output_of(
            """
            import signal

            counter = weft.get_actor("c")
            settled(lambda: weft.get(counter.add.remote()) == 41)
            os.kill(weft.get(counter.pid.remote()), signal.SIGKILL)
            try:
                while True:
                    weft.get(counter.add.remote())
            except weft.ActorDiedError as error:
                print("as often as max_restarts allows" in str(error))
            """
        )
        == "True\n"
    )
    until(lambda: not nodes.children())


def test_a_detached_actor_moves_when_its_node_is_killed(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    made = On(nodes, second).output_of(
        """
        counter = Counter.options(
            name="c", lifetime="detached", max_restarts=-1, resources={"lamp": 1}, num_cpus=1
        ).remote(40)
        print(weft.get(counter.node.remote()))
        """
    )
    assert int(made) == second
    third = nodes.start("--num-cpus=1", "--name=three", "--resource=lamp=1")
    os.kill(second, signal.SIGKILL)
    assert (
        On(nodes, first).output_of(
            """
            counter = weft.get_actor("c")
            settled(lambda: weft.get(counter.add.remote()) == 41)
            print(weft.get(counter.node.remote()))
            """
        )
        == f"{third}\n"
    )


def test_a_detached_actor_works_on_after_its_driver(nodes):
    """It makes actors and tasks of its own, and detached ones."""
    first = nodes.start("--num-cpus=2", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two")
    On(nodes, second).output_of(
        """
        @weft.remote
        def double(x):
            return 2 * x

        @weft.remote
        class Parent:
            def make(self):
                self.child = Counter.remote(1)
                other = Counter.options(name="child", lifetime="detached").remote(100)
                weft.get(other.add.remote())
                return weft.get([double.remote(i) for i in range(4)]), weft.get(self.child.add.remote())

        parent = Parent.options(name="parent", lifetime="detached").remote()
        """
    )
    assert (
        On(nodes, first).output_of(
            """
            parent = weft.get_actor("parent")
            print(weft.get(parent.make.remote()))
            weft.kill(parent)
            child = weft.get_actor("child")
            print(weft.get(child.add.remote()))
            weft.kill(child)
            """
        )
        == "([0, 2, 4, 6], 2)\n102\n"
    )
    until(lambda: not nodes.children())


def test_actors_are_killed_while_the_head_places_their_tasks(nodes):
    """A place found for a process that has died meanwhile is nobody's: the node must not take it for a living one."""
    first = nodes.start("--num-cpus=1", "--name=one")
    nodes.start("--num-cpus=1", "--name=two")
    assert (
        On(nodes, first).output_of(
            """
            @weft.remote
            def work():
                pass

            @weft.remote(num_cpus=0)
            class Asker:
                def ask(self):
                    self.asked = [work.remote() for _ in range(20)]

            for _ in range(30):
                askers = [Asker.remote() for _ in range(2)]
                weft.get([asker.ask.remote() for asker in askers])
                for asker in askers:
                    weft.kill(asker)
            print(weft.get([weft.remote(lambda: 1).remote() for _ in range(4)]))
            """
        )
        == "[1, 1, 1, 1]\n"
    )
    until(lambda: not nodes.children())


def test_arguments_of_a_detached_actor(nodes):
    first = nodes.start("--num-cpus=2", "--name=one")
    assert (
        On(nodes, first).output_of(
            """
            @weft.remote
            def slow(x):
                time.sleep(0.2)
                return x

            @weft.remote
            def fail():
                raise KeyError("lost")

            @weft.remote
            class Box:
                def __init__(self, *items):
                    self.items = items

                def get(self):
                    return [weft.get(i.add.remote()) if isinstance(i, weft.ActorHandle) else i for i in self.items]

            detached = Box.options(lifetime="detached")
            print(weft.get(detached.remote(slow.remote(1), 2, weft.put([3])).get.remote()))
            counter = Counter.options(lifetime="detached").remote(4)
            print(weft.get(detached.remote(counter, len(b"x" * 50_000)).get.remote()))
            print(len(weft.get(detached.remote(b"x" * 50_000).get.remote())[0]))
            for wrong in ([weft.put(1)], [Counter.remote()]):
                try:
                    detached.remote(wrong)
                except ValueError as error:
                    print("outlives" in str(error))
            for wrong in (fail.remote(), b"x" * 500_000):
                try:
                    weft.get(detached.remote(wrong).get.remote())
                except weft.ActorDiedError as error:
                    print("ended in an error" in str(error), "too much" in str(error))
            """
        )
        == "[1, 2, [3]]\n[5, 50000]\n50000\nTrue\nTrue\nTrue False\nFalse True\n"
    )


def test_a_detached_actor_whose_creator_is_killed_before_its_arguments_are_there(nodes):
    first = nodes.start("--num-cpus=2", "--name=one")
    program = On(nodes, first).program(
        """
        @weft.remote
        def never():
            time.sleep(600)

        counter = Counter.options(name="c", lifetime="detached").remote(never.remote())
        print("made", flush=True)
        time.sleep(600)
        """
    )
    assert line_of(program) == "made\n"
    program.kill()
    program.communicate()
    until(lambda: not nodes.children())
    assert (
        On(nodes, first).output_of(
            """
            try:
                weft.get_actor("c")
            except ValueError:
                print("gone")
            """
        )
        == "gone\n"
    )


def test_a_detached_actor_prints_at_its_creator_and_ends_itself(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    program = On(nodes, second).program(
        """
        @weft.remote(num_cpus=0, resources={"lamp": 1})
        class Talker:
            def talk(self):
                print("hello")

            def leave(self):
                weft.exit_actor()

        talker = Talker.options(name="t", lifetime="detached").remote()
        talker.talk.remote()
        input()
        """
    )
    assert "hello" in line_of(program)
    program.communicate("\n", timeout=SECONDS)
    assert (
        On(nodes, first).output_of(
            """
            talker = weft.get_actor("t")
            weft.get(talker.talk.remote())  # nobody listens
            try:
                weft.get(talker.leave.remote())
            except weft.ActorDiedError as error:
                print("ended itself" in str(error))
            def free():  # the reply comes straight from the worker, the word to the head by way of its node
                try:
                    weft.get_actor("t")
                except ValueError:
                    return True

            settled(free)
            print("gone")
            """
        )
        == "True\ngone\n"
    )
    until(lambda: not nodes.children())


def test_detached_actors_end_with_weft_stop(nodes):
    first = nodes.start("--num-cpus=1", "--name=one")
    made = On(nodes, first).output_of(
        """
        counter = Counter.options(name="c", lifetime="detached").remote()
        print(weft.get(counter.pid.remote()))
        """
    )
    assert not gone(int(made))
    nodes.run("stop", f"--address={nodes.address}")
    assert gone(int(made))
