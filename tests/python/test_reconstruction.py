"""Results that are lost with their node are made again by running the task that made them.

The nodes are real daemons on this machine. `lamp` is a resource of the second node, which is killed, and of the third,
which joins before that. The program runs on the first. A task notes each of its runs in a folder, so that the runs can
be counted.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from test_cluster import Nodes, gone

SECONDS = 30
TASKS = """
    import os, threading, time, uuid

    lamp = weft.remote(num_cpus=0, resources={"lamp": 1})

    def note(name):
        open(os.path.join(FOLDER, name + "-" + uuid.uuid4().hex), "w").close()

    def runs(name):
        return sum(file.startswith(name + "-") for file in os.listdir(FOLDER))

    @lamp
    def make(name, size=300_000, fill=1):
        note(name)
        return bytes([fill]) * size

    @lamp
    def grow(value, name):
        note(name)
        return value + value[:1]

    # A result that lies on the second node, and nowhere else.
    def make_there(name, **options):
        made = make.options(**options).remote(name)
        weft.get(grow.remote(made, "there"))
        return made

    @weft.remote(num_cpus=0)
    def measure(value):
        return len(value), value[:1]

    @weft.remote(num_cpus=0)
    class Holder:
        def hold(self, box):
            self.box = box

        def look(self):
            return len(weft.get(self.box[0]))

        def measure(self, value):
            return len(value)

    def lose(ready="ready"):
        print(ready, flush=True)
        path = os.path.join(FOLDER, "lost-" + ready)
        while not os.path.exists(path):
            time.sleep(0.01)
"""


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    made.start("--num-cpus=1", "--name=one")
    yield made
    made.end()


def until(condition) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class Losing:
    """A program that loses its second node, and whatever else it asks for."""

    def __init__(self, nodes, folder, text) -> None:
        folder.mkdir()
        self.nodes, self.folder = nodes, folder
        self.victims = [nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=4")]
        text = TASKS + text
        indent = "    "
        assert all(line.startswith(indent) or not line.strip() for line in text.splitlines()), text
        self.program = nodes.program(f"    FOLDER = {str(folder)!r}\n{text}")

    def lose(self, ready="ready", replace=True) -> None:
        line = self.program.stdout.readline()
        assert line == f"{ready}\n", line + self.program.communicate(timeout=SECONDS)[1]
        if replace:
            number = len(self.victims) + 2
            self.victims.append(self.nodes.start("--num-cpus=1", f"--name=n{number}", "--resource=lamp=4"))
        victim = self.victims[-2 if replace else -1]
        os.kill(victim, signal.SIGKILL)
        until(lambda: gone(victim))
        (self.folder / f"lost-{ready}").touch()

    def output(self, may_say="") -> str:
        try:
            out, err = self.program.communicate(timeout=SECONDS)
        finally:
            self.program.kill()
        assert not err or may_say and may_say in err, err
        return out


@pytest.fixture
def losing(nodes, tmp_path):
    return lambda text: Losing(nodes, tmp_path / "notes", text)


@pytest.fixture
def said_after_loss(losing):
    """What a program says that loses its second node once, and has another one by then."""

    def play(text) -> str:
        playing = losing(text)
        playing.lose()
        return playing.output()

    return play


def test_a_lost_result_is_made_again(said_after_loss):
    said = said_after_loss("""
    made = make.remote("a", 20_000_000, 7)
    weft.wait([grow.remote(made, "b")])
    lose()
    value = weft.get(made, timeout=25)
    print(len(value), value[:1], value[-1:], runs("a"), len(weft.get(made)), runs("a"))
    """)
    assert said == "20000000 b'\\x07' b'\\x07' 2 20000000 2\n"


def test_a_result_that_was_fetched_before_need_not_be_made_again(said_after_loss):
    said = said_after_loss("""
    made = make.remote("a")
    value = weft.get(made)
    lose()
    print(len(value), len(weft.get(made)), runs("a"))
    """)
    assert said == "300000 300000 1\n"


def test_a_chain_is_made_again_though_nobody_refers_to_its_links(said_after_loss):
    said = said_after_loss("""
    a = make.remote("a")
    b = grow.remote(a, "b")
    c = grow.remote(b, "c")
    weft.get(grow.remote(c, "d"))
    del a, b
    lose()
    print(len(weft.get(c, timeout=25)), [runs(name) for name in "abcd"])
    """)
    assert said == "300002 [2, 2, 2, 1]\n"


def test_tasks_that_take_a_lost_result_get_the_new_one(said_after_loss):
    said = said_after_loss("""
    made = make_there("a")
    lose()
    there, here = [grow.remote(made, "c") for _ in range(3)], [measure.remote(made) for _ in range(3)]
    print(weft.get(here, timeout=25), [len(value) for value in weft.get(there, timeout=25)], runs("a"))
    """)
    assert said == f"{[(300000, bytes([1]))] * 3} {[300001] * 3} 2\n"


def test_many_waiters_cause_one_run(said_after_loss):
    said = said_after_loss("""
    made = make_there("a")
    holders = [Holder.remote() for _ in range(2)]
    weft.get([holder.hold.remote([made]) for holder in holders])
    lose()
    sizes = []
    threads = [threading.Thread(target=lambda: sizes.append(len(weft.get(made, timeout=25)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    looks = [holder.look.remote() for holder in holders] + [measure.remote(made)]
    print(weft.get(looks, timeout=25))
    for thread in threads:
        thread.join()
    print(sizes, runs("a"))
    """)
    assert said == "[300000, 300000, (300000, b'\\x01')]\n[300000, 300000, 300000] 2\n"


def test_a_borrower_has_it_made_again(said_after_loss):
    said = said_after_loss("""
    made = make_there("a")
    holder = Holder.remote()
    weft.get(holder.hold.remote([made]))
    lose()
    print(weft.get(holder.look.remote(), timeout=25), runs("a"))
    print(len(weft.get(made, timeout=25)), runs("a"))
    """)
    assert said == "300000 2\n300000 2\n"


def test_another_node_takes_the_copy_that_the_program_has(said_after_loss):
    said = said_after_loss("""
    made = make.options(max_retries=0).remote("a", 20_000_000, 5)
    value = weft.get(made)

    @lamp
    def look(box):
        return len(weft.get(box[0]))

    lose()
    print(weft.get(look.remote([made]), timeout=25), weft.get(grow.remote(made, "b"), timeout=25) == value + value[:1])
    print(len(value), value[:1], len(weft.get(made, timeout=25)), runs("a"))
    """)
    assert said == "20000000 True\n20000000 b'\\x05' 20000000 1\n"


def test_a_copy_that_nobody_uses_is_found_on_a_third_node(nodes, said_after_loss):
    nodes.start("--num-cpus=1", "--name=shelf", "--resource=shelf=1")
    said = said_after_loss("""
    made = [make_there("a"), make_there("b", max_retries=0), make_there("c")]

    @weft.remote(num_cpus=0, resources={"shelf": 1})
    def shelve(*values):
        return [len(value) for value in values]

    weft.get(shelve.remote(*made[:2]))
    lose()
    print([len(value) for value in weft.get(made[:2], timeout=25)], runs("a"), runs("b"))
    print(weft.get([measure.remote(made[1]), grow.remote(made[0], "g")], timeout=25)[0], runs("a"), runs("b"))
    print(len(weft.get(made[2], timeout=25)), runs("c"))
    """)
    assert said == f"[300000, 300000] 1 1\n{(300000, bytes([1]))} 1 1\n300000 2\n"


def test_a_process_that_submits_with_what_it_borrows(said_after_loss):
    said = said_after_loss("""
    made = make_there("a")

    @weft.remote(num_cpus=0)
    class Submitter:
        def hold(self, box):
            self.box = box

        def submit(self):
            return weft.get(measure.remote(self.box[0]))

    submitter = Submitter.remote()
    weft.get(submitter.hold.remote([made]))
    weft.get(submitter.submit.remote())
    lose()
    print(weft.get(submitter.submit.remote(), timeout=25), runs("a") <= 2)
    """)
    assert said == "(300000, b'\\x01') True\n"


def test_calls_of_an_actor_take_what_was_made_again(said_after_loss):
    said = said_after_loss("""
    made = make_there("a")
    holder = Holder.remote()
    weft.get(holder.hold.remote([]))
    lose()
    print(weft.get(holder.measure.remote(made), timeout=25), runs("a"))
    """)
    assert said == "300000 2\n"


def test_wait_await_and_as_completed(said_after_loss):
    said = said_after_loss("""
    import asyncio
    made = [make.remote(name) for name in "abc"]
    weft.get([grow.remote(each, "g") for each in made])
    lose()
    ready, rest = weft.wait(made[:1], timeout=25)
    print(len(ready), len(rest), len(weft.get(made[0])))

    async def await_it():
        return len(await made[1])

    print(asyncio.run(await_it()))
    print([len(weft.get(ref)) for ref in weft.as_completed(made[2:])], [runs(name) for name in "abc"])
    """)
    assert said == "1 0 300000\n300000\n[300000] [2, 2, 2]\n"


def test_it_waits_for_a_node_that_has_the_resources(losing):
    play = losing("""
    made = make_there("a")
    lose()
    try:
        weft.get(made, timeout=0.5)
    except weft.GetTimeoutError:
        print("waits", flush=True)
    print(len(weft.get(made, timeout=25)), runs("a"))
    """)
    play.lose(replace=False)
    assert play.program.stdout.readline() == "waits\n"
    play.nodes.start("--num-cpus=1", "--name=late", "--resource=lamp=1")
    assert play.output(may_say="no node of the cluster has any").splitlines()[-1] == "300000 2"


def test_each_time_costs_a_retry_and_then_the_error_says_so(losing):
    play = losing("""
    made = make_there("a", max_retries=1)
    lose()
    weft.get(grow.remote(made, "b"), timeout=25)
    print(runs("a"), flush=True)
    lose("again")
    for _ in range(2):
        try:
            weft.get(made, timeout=25)
        except weft.ReconstructionFailedError as error:
            print("max_retries=1" in str(error), "'make'" in str(error), "node 3 (n3)" in str(error) or error)
    print(runs("a"))
    """)
    play.lose()
    assert play.program.stdout.readline() == "2\n"
    play.lose("again")
    assert play.output() == "True True True\nTrue True True\n2\n"


def test_what_may_not_run_again_is_lost_and_the_error_says_why(said_after_loss):
    said = said_after_loss("""
    once = make.options(max_retries=0).remote("once")

    @lamp
    def puts():
        return [weft.put(b"p" * 300_000)]

    @lamp
    class Maker:
        def make(self):
            return b"m" * 300_000

    large = weft.put(b"x" * 300_000)
    kept = grow.remote(large, "kept")
    inside = weft.get(puts.remote())[0]
    maker = Maker.remote()
    of_method = maker.make.remote()
    for each in (once, kept, of_method):
        weft.get(grow.remote(each, "g"))
    lose()
    print(len(weft.get(kept, timeout=25)))
    for lost, texts in [
        (once, ("ReconstructionFailedError", "max_retries=0", "'make'", "node 2 (two)")),
        (inside, ("OwnerDiedError", "put", "node")),
        (of_method, ("ObjectLostError", "'Maker.make'", "set max_task_retries", "node 2 (two)")),
    ]:
        try:
            weft.get(lost, timeout=25)
        except weft.ObjectLostError as error:
            text = type(error).__name__ + " " + str(error)
            print(all(each in text for each in texts) or text)
    print(runs("once"))
    """)
    assert said == "300001\nTrue\nTrue\nTrue\n1\n"


def test_an_argument_that_was_put_and_let_go_cannot_be_had_again(said_after_loss):
    said = said_after_loss("""
    large = weft.put(b"x" * 300_000)
    made = grow.remote(large, "a")
    weft.get(grow.remote(made, "g"))
    del large
    lose()
    try:
        weft.get(made, timeout=25)
    except weft.ReconstructionFailedError as error:
        print("keep a reference" in str(error) or error)
    """)
    assert said == "True\n"


def test_several_results_of_one_task_are_made_again_with_one_run(said_after_loss):
    said = said_after_loss("""
    @weft.remote(num_cpus=0, resources={"lamp": 1}, num_returns=3)
    def three(name):
        note(name)
        return b"a" * 200_000, "small", b"c" * 400_000

    first, second, third = three.remote("t")
    weft.get([grow.remote(first, "g"), grow.remote(third, "g")])
    lose()
    print(len(weft.get(third, timeout=25)), weft.get(second), len(weft.get(first, timeout=25)), runs("t"))
    """)
    assert said == "400000 small 200000 2\n"


def test_what_is_made_again_may_fail_and_then_that_is_the_result(said_after_loss):
    said = said_after_loss("""
    @lamp
    def fails_later(name):
        note(name)
        if runs(name) > 1:
            raise ValueError("not twice")
        return b"a" * 200_000

    made = fails_later.remote("t")
    weft.get(grow.remote(made, "g"))
    lose()
    for what in (made, grow.remote(made, "g")):
        try:
            weft.get(what, timeout=25)
        except ValueError as error:
            print(error)
    """)
    assert said == "not twice\nnot twice\n"


# ---- results of actors' methods

MAKER = """
    @weft.remote(num_cpus=0, resources={"lamp": 1}, max_restarts=-1, max_task_retries=1)
    class Maker:
        def __init__(self):
            self.calls = []

        def make(self, name, *arguments):
            note(name)
            self.calls.append(name)
            return name.encode() * 300_000

        def take(self, name, value):
            note(name)
            self.calls.append(name)
            return len(value)

        def said(self):
            return self.calls

    maker = Maker.remote()
"""


def test_a_lost_result_of_a_method_is_made_again_by_calling_it(said_after_loss):
    said = said_after_loss(
        MAKER
        + """
    made = maker.make.remote("a")
    small = maker.take.remote("b", made)
    once = maker.make.options(max_task_retries=0).remote("c")
    weft.get([grow.remote(made, "there"), grow.remote(once, "there")])
    lose()
    value = weft.get(made, timeout=25)
    print(len(value), value[:1], weft.get(small), [runs(name) for name in "ab"], weft.get(maker.said.remote()))
    try:
        weft.get(once, timeout=25)
    except weft.ObjectLostError as error:
        print(type(error).__name__, "max_task_retries=0" in str(error), runs("c"))
    """
    )
    assert said == "300000 b'a' 300000 [2, 1] ['a']\nObjectLostError True 1\n"


def test_chains_through_methods(said_after_loss):
    said = said_after_loss(
        MAKER
        + """
    a = make.remote("a")
    b = maker.make.remote("b", a)
    c = grow.remote(b, "c")
    d = maker.make.remote("d", c)
    weft.get(grow.remote(d, "there"))
    del a, b, c
    lose()
    print(len(weft.get(grow.remote(d, "e"), timeout=25)), [runs(name) for name in "abcde"])
    print(weft.get(maker.said.remote(), timeout=25))
    """
    )
    assert said == "300001 [2, 2, 2, 2, 1]\n['b', 'd']\n"


def test_a_call_that_takes_a_lost_result_of_its_own_actor(said_after_loss):
    said = said_after_loss(
        MAKER
        + """
    made = maker.make.remote("a")
    weft.get(grow.remote(made, "there"))
    lose()
    print(weft.get(maker.take.remote("t", made), timeout=25), runs("t"), runs("a"), weft.get(maker.said.remote()))
    """
    )
    assert said == "300000 1 2 ['a', 't']\n"


def test_each_call_again_costs_a_retry(losing):
    play = losing(
        MAKER
        + """
    made = maker.make.remote("a")
    weft.get(grow.remote(made, "there"))
    lose()
    weft.get(grow.remote(made, "there"), timeout=25)
    print(runs("a"), flush=True)
    lose("again")
    try:
        weft.get(made, timeout=25)
    except weft.ReconstructionFailedError as error:
        print("max_task_retries=1" in str(error), "'Maker.make'" in str(error), runs("a"))
    """
    )
    play.lose()
    assert play.program.stdout.readline() == "2\n"
    play.lose("again")
    assert play.output() == "True True 2\n"


def test_without_its_actor_a_call_cannot_be_made_again(said_after_loss):
    said = said_after_loss(
        MAKER
        + """
    mortal = Maker.options(max_restarts=0).remote()
    of_mortal, of_forgotten = mortal.make.remote("m"), maker.make.remote("f")
    weft.get([grow.remote(each, "there") for each in (of_mortal, of_forgotten)])
    del maker
    lose()
    for lost, why in (of_mortal, "its actor is dead"), (of_forgotten, "no handle of its actor is left"):
        try:
            weft.get(lost, timeout=25)
        except weft.ReconstructionFailedError as error:
            print(why in str(error) or error)
    print(runs("m"), runs("f"))
    """
    )
    assert said == "True\nTrue\n1 1\n"


def test_a_borrower_has_a_call_made_again_by_its_owner(said_after_loss):
    said = said_after_loss(
        MAKER
        + """
    made = maker.make.remote("a")
    weft.get(grow.remote(made, "there"))
    holder = Holder.remote()
    weft.get(holder.hold.remote([made]))
    lose()
    print(weft.get(holder.look.remote(), timeout=25), runs("a"))
    """
    )
    assert said == "300000 2\n"


def test_a_caller_that_is_not_the_creator(said_after_loss):
    said = said_after_loss(
        MAKER
        + """
    @weft.remote(num_cpus=0)
    class Caller:
        def __init__(self, maker):
            self.maker = maker

        def call(self):
            self.made = self.maker.make.remote("a")
            weft.get(grow.remote(self.made, "there"))

        def look(self):
            return len(weft.get(self.made, timeout=20))

    caller = Caller.remote(maker)
    weft.get(caller.call.remote())
    lose()
    print(weft.get(caller.look.remote(), timeout=25), runs("a"))
    """
    )
    assert said == "300000 2\n"
