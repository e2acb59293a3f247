"""Large values between the nodes of a cluster: fetched, shared, freed, lost.

The nodes are real daemons on this machine. `lamp` is a resource that the second node alone has, so what asks for it
runs there; the program runs on the first.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from test_cluster import Nodes, gone
from weft import _observe

SECONDS = 30
KEPT = 4 << 20  # of the store, that each process has without asking
TASKS = """
    import os, time

    @weft.remote(num_cpus=0, resources={"lamp": 1})
    def make(size, fill=1):
        return bytes([fill]) * size

    @weft.remote(num_cpus=0, resources={"lamp": 1})
    def look(value):
        return len(value), value[:1], value[-1:]

    @weft.remote(num_cpus=0, resources={"lamp": 1})
    def look_inside(box):
        return [look_at(weft.get(ref)) for ref in box]

    def look_at(value):
        return len(value), value[:1], value[-1:]

    def until(path):
        while not os.path.exists(path):
            time.sleep(0.01)
"""


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    yield made
    made.end()


@pytest.fixture
def pair(nodes):
    nodes.start("--num-cpus=1", "--name=one")
    nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=2")
    return nodes


def until(condition) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def used(pid: int) -> int:
    """Bytes of a node's object store that are reserved."""
    return _observe.observe(0, _observe.Session(os.geteuid(), pid))["node"]["store_used_bytes"]


def beyond(pid: int) -> int:
    """The same, without what each process has from its beginning."""
    seen = _observe.observe(0, _observe.Session(os.geteuid(), pid))
    living = sum(process["stage"] not in (1, 6) for process in seen["processes"])
    return seen["node"]["store_used_bytes"] - living * KEPT


def indented(text: str) -> str:
    return TASKS + text


def test_a_large_result_of_another_node_is_fetched(pair):
    assert pair.output_of(
        indented("""
    for size in (17_000, 1 << 20, (1 << 20) + 1, 50_000_000):
        print(look_at(weft.get(make.remote(size, 7), timeout=20)))
    """)
    ) == "".join(f"({size}, b'\\x07', b'\\x07')\n" for size in (17_000, 1 << 20, (1 << 20) + 1, 50_000_000))


def test_a_task_that_waits_for_a_copy_keeps_its_cpu(pair):
    """The values are ready on the other node, so the tasks here run one after another, on the one worker."""
    assert (
        pair.output_of(
            indented("""
    @weft.remote(num_cpus=1, resources={"lamp": 0.1})
    def read(box):
        begun = time.monotonic_ns()
        size = len(weft.get(box[0]))
        return size, begun, time.monotonic_ns(), os.getpid()

    values = [weft.put(bytes([i]) * 10_000_000) for i in range(12)]
    seen = weft.get([read.remote([value]) for value in values], timeout=60)
    seen.sort(key=lambda each: each[1])
    print({size for size, *_ in seen}, len({pid for *_, pid in seen}))
    print(all(one[2] <= next_one[1] for one, next_one in zip(seen, seen[1:])))
    """)
        )
        == "{10000000} 1\nTrue\n"
    )


def test_arrays_are_views_of_what_was_fetched(pair):
    pytest.importorskip("numpy")
    assert pair.output_of(
        indented("""
    import numpy

    @weft.remote(num_cpus=0, resources={"lamp": 1})
    def squares(count):
        return numpy.arange(count) ** 2

    array = weft.get(squares.remote(3_000_000))
    print(int(array[-1]), bool((array == numpy.arange(3_000_000) ** 2).all()), array.flags.writeable)
    total = weft.remote(num_cpus=0, resources={"lamp": 1})(lambda a: int(a.sum()))
    print(weft.get(total.remote(array)) == int(array.sum()))
    """)
    ) == (f"{2_999_999**2} True False\nTrue\n")


def test_a_large_argument_goes_to_another_node(pair):
    assert pair.output_of(
        indented("""
    value = weft.put(b"a" * 20_000_000 + b"z")
    print(weft.get([look.remote(value), look.remote(value), look.remote(b"q" * 3_000_000)]))
    print(weft.get(look.remote(make.remote(2_000_000, 3))), weft.get(look.remote(b"small")))
    """)
    ) == (
        "[(20000001, b'a', b'z'), (20000001, b'a', b'z'), (3000000, b'q', b'q')]\n"
        "(2000000, b'\\x03', b'\\x03') (5, b's', b'l')\n"
    )


# Of 16 kB and less they are in the task, up to 128 kB they go along with it if there is room beside the others, and
# larger ones are asked for.
def test_arguments_of_all_sizes_go_to_another_node(pair):
    pytest.importorskip("numpy")
    assert (
        pair.output_of(
            indented("""
    import numpy

    @weft.remote(num_cpus=0, resources={"lamp": 1})
    def sums(*arrays):
        return [int(array.sum()) for array in arrays], any(array.flags.writeable for array in arrays)

    sizes = [15_000, 16_384, 17_000, 60_000, 131_000, 131_072, 140_000, 300_000]
    arrays = [numpy.full(size, 1, dtype=numpy.uint8) for size in sizes]
    assert weft.get(sums.remote(*arrays)) == (sizes, False)
    for size, array in zip(sizes, arrays):
        assert weft.get([sums.remote(array), sums.remote(weft.put(array), array)]) == [
            ([size], False), ([size, size], False)
        ]
    assert weft.get(sums.remote(*[weft.put(arrays[3])] * 20)) == ([60_000] * 20, False)
    # What was not made here is not sent from here.
    assert weft.get(look.remote(make.remote(50_000, 9))) == (50_000, b"\\x09", b"\\x09")
    box = weft.put([weft.put(b"i" * 20_000), b"o" * 30_000])
    inside = weft.remote(num_cpus=0, resources={"lamp": 1})(lambda box: (look_at(weft.get(box[0])), look_at(box[1])))
    assert weft.get(inside.remote(box)) == ((20_000, b"i", b"i"), (30_000, b"o", b"o"))
    print("all")
    """)
        )
        == "all\n"
    )


def test_small_stored_arguments_go_along_with_their_call(pair):
    assert (
        pair.output_of(
            indented("""
    @weft.remote(num_cpus=0, resources={"lamp": 1})
    class Receiver:
        def take(self, value):
            return len(value)

        def messages_to_the_daemon(self):
            from weft import _core
            return _core.stats()["messages_sent"]

    receiver = Receiver.remote()
    assert weft.get(receiver.take.remote(b"x" * 200_000)) == 200_000
    before = weft.get(receiver.messages_to_the_daemon.remote())
    assert weft.get([receiver.take.remote(b"x" * 50_000) for _ in range(100)]) == [50_000] * 100
    after = weft.get(receiver.messages_to_the_daemon.remote())
    assert after - before < 50, (before, after)
    print("none was asked for")
    """)
        )
        == "none was asked for\n"
    )


def test_an_argument_goes_along_again_when_its_worker_dies(pair, tmp_path):
    assert (
        pair.output_of(
            indented(f"""
    @weft.remote(num_cpus=0, resources={{"lamp": 1}}, max_retries=1)
    def die_once(value):
        if not os.path.exists({str(tmp_path / "died")!r}):
            open({str(tmp_path / "died")!r}, "w").close()
            os._exit(3)
        return look_at(value)

    print(weft.get(die_once.remote(b"v" * 90_000)))
    """)
        )
        == "(90000, b'v', b'v')\n"
    )


def test_references_inside_of_values_are_fetched_where_they_are_used(pair):
    assert pair.output_of(
        indented("""
    here, there = weft.put(b"h" * 3_000_000), make.remote(3_000_000, 116)
    print(weft.get(look_inside.remote([here, there])))

    @weft.remote(num_cpus=0, resources={"lamp": 1})
    def boxed():
        return [weft.put(b"p" * 2_000_000), make.remote(2_000_000, 113)]

    print([look_at(value) for value in weft.get(weft.get(boxed.remote()))])
    """)
    ) == ("[(3000000, b'h', b'h'), (3000000, b't', b't')]\n[(2000000, b'p', b'p'), (2000000, b'q', b'q')]\n")


def test_a_large_function_goes_to_another_node(pair):
    assert pair.output_of(
        indented("""
    table = bytes(range(256)) * 4000

    @weft.remote(num_cpus=0, resources={"lamp": 1})
    def pick(i):
        return table[i]

    print(weft.get([pick.remote(i) for i in (0, 255, 1_000_003)]))
    """)
    ) == ("[0, 255, 67]\n")


def test_many_objects_both_ways(pair):
    assert pair.output_of(
        indented("""
    refs = [make.remote(20_000 + i, i % 250) for i in range(300)]
    values = weft.get(refs, timeout=25)
    print(all(look_at(value) == (20_000 + i, bytes([i % 250]), bytes([i % 250])) for i, value in enumerate(values)))
    mine = [weft.put(bytes([i % 250]) * (30_000 + i)) for i in range(300)]
    seen = weft.get([look.remote(ref) for ref in mine], timeout=25)
    print(all(each == (30_000 + i, bytes([i % 250]), bytes([i % 250])) for i, each in enumerate(seen)))
    ready, rest = weft.wait(refs, num_returns=len(refs), timeout=10)
    print(len(ready), len(rest))
    """)
    ) == ("True\nTrue\n300 0\n")


def test_wait_may_leave_values_where_they_are(pair):
    text = """
    from weft import _observe

    def used():
        return _observe.observe(0, _observe.Session(os.geteuid(), PID))["node"]["store_used_bytes"] > 40_000_000

    @weft.remote(num_cpus=0)
    def look_here(box):
        return len(weft.wait(box, fetch_local=False, timeout=20)[0])

    ref = make.remote(50_000_000)
    print(weft.wait([ref], fetch_local=False, timeout=20) == ([ref], []), used())
    print(weft.get(look_here.remote([ref]), timeout=20), used())
    print(weft.wait([ref], timeout=20) == ([ref], []), used(), len(weft.get(ref)))
    """
    assert pair.output_of(indented(text.replace("PID", str(pair.pids[0])))) == (
        "True False\n1 False\nTrue True 50000000\n"
    )


def test_no_worker_sleeps_through_the_arrival_of_an_argument(pair):
    # One after the other, so that each finds its worker about to sleep; with a timeout, so that nobody asks it why.
    assert pair.output_of(
        indented("""
    for i in range(300):
        ref = weft.put(bytes([i % 250]) * (20_000 + i))
        assert weft.get(look.remote(ref), timeout=5) == (20_000 + i, bytes([i % 250]), bytes([i % 250]))
    print("all")
    """)
    ) == ("all\n")


def test_one_object_to_many_nodes_at_once(nodes):
    nodes.start("--num-cpus=1", "--name=one")
    pids = [nodes.start("--num-cpus=1", f"--name=n{i}", f"--resource=r{i}=1") for i in range(4)]
    assert nodes.output_of(
        indented("""
    value = weft.put(bytes(range(251)) * 100_000)
    def total(value):
        return len(value), sum(value[::1000])
    tasks = [weft.remote(num_cpus=0, resources={f"r{i}": 1})(total).remote(value) for i in range(4)]
    print(set(weft.get(tasks, timeout=25)) == {total(weft.get(value))}, len(tasks))
    """)
    ) == ("True 4\n")
    for pid in [*pids, nodes.pids[0]]:
        until(lambda pid=pid: used(pid) == 0)


def test_await_wait_and_timeouts(pair):
    assert pair.output_of(
        indented("""
    import asyncio

    async def both():
        return [look_at(value) for value in await asyncio.gather(make.remote(3_000_000, 1), make.remote(60_000, 2))]

    print(asyncio.run(both()))
    print([look_at(value) for value in map(weft.get, weft.as_completed([make.remote(2_000_000)]))])

    @weft.remote(num_cpus=0, resources={"lamp": 1})
    def late():
        time.sleep(600)
        return b"x" * 100_000

    pending = late.remote()
    try:
        weft.get(pending, timeout=0.2)
    except weft.GetTimeoutError as error:
        print("1 of 1" in str(error))
    """)
    ) == ("[(3000000, b'\\x01', b'\\x01'), (60000, b'\\x02', b'\\x02')]\n[(2000000, b'\\x01', b'\\x01')]\nTrue\n")


def test_calls_of_an_actor_with_large_values_of_another_node(pair):
    assert pair.output_of(
        indented("""
    @weft.remote(num_cpus=0)
    class Box:
        def __init__(self, first):
            self.held = [first]

        def put(self, value):
            self.held.append(value)
            return b"r" * 500_000

        async def sizes(self):
            return [len(value) for value in self.held]

    @weft.remote(num_cpus=0, resources={"lamp": 1})
    def use(box):
        return len(weft.get(box.put.remote(b"u" * 700_000))), weft.get(box.sizes.remote())

    box = Box.remote(make.remote(100_000))
    print(len(weft.get(box.put.remote(make.remote(200_000)))), weft.get(use.remote(box)))
    """)
    ) == ("500000 (500000, [100000, 200000, 700000])\n")


def test_an_object_that_does_not_fit_into_the_store_of_the_receiver(nodes):
    nodes.start("--num-cpus=1", "--name=one", "--object-store-memory=40000000")
    nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=2")
    assert nodes.output_of(
        indented("""
    large = make.remote(60_000_000)
    for _ in range(2):
        try:
            weft.get(large, timeout=20)
        except weft.ObjectStoreFullError as error:
            print("node 1 (one)" in str(error), "40000000 bytes" in str(error))
    print(weft.get(look.remote(large)), len(weft.get(make.remote(20_000_000))))
    """)
    ) == ("True True\nTrue True\n(60000000, b'\\x01', b'\\x01') 20000000\n")


def test_copies_that_nobody_uses_make_room(nodes):
    nodes.start("--num-cpus=1", "--name=one", "--object-store-memory=60000000")
    nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=2")
    assert nodes.output_of(
        indented("""
    @weft.remote(num_cpus=0)
    def size_here(value):
        return len(value)

    refs = [make.remote(15_000_000, i) for i in range(8)]  # all of them together are twice the store
    print(sum(weft.get(size_here.remote(ref)) for ref in refs), len(weft.get(refs[0])))
    """)
    ) == ("120000000 15000000\n")


def test_what_is_freed_is_gone_on_every_node(pair, tmp_path):
    program = pair.program(
        indented(f"""
    mine = weft.put(b"m" * 20_000_000)
    theirs = make.remote(20_000_000)
    print(weft.get(look.remote(mine)), look_at(weft.get(theirs)), flush=True)
    until({str(tmp_path / "drop")!r})
    del mine, theirs
    print("dropped", flush=True)
    until({str(tmp_path / "end")!r})
    """)
    )
    try:
        assert "20000000" in program.stdout.readline()
        assert all(beyond(pid) > 30_000_000 for pid in pair.pids), [beyond(pid) for pid in pair.pids]
        (tmp_path / "drop").touch()
        assert program.stdout.readline() == "dropped\n"
        until(lambda: all(beyond(pid) < 100_000 for pid in pair.pids))
        (tmp_path / "end").touch()
        out, err = program.communicate(timeout=SECONDS)
        assert not err, err
    finally:
        program.kill()
    until(lambda: all(used(pid) == 0 for pid in pair.pids))


def test_a_program_that_is_killed_leaves_nothing_on_any_node(pair):
    program = pair.program(
        indented("""
    held = [weft.put(b"m" * 5_000_000), make.remote(5_000_000), make.remote(5_000_000)]
    weft.get([look.remote(ref) for ref in held])
    values = weft.get(held)
    coming = [make.remote(40_000_000) for _ in range(3)]
    weft.wait(coming, num_returns=1)
    print("has", flush=True)
    weft.get(coming)
    time.sleep(600)
    """)
    )
    assert program.stdout.readline() == "has\n"
    program.kill()
    program.communicate()
    until(lambda: not pair.children())
    until(lambda: all(used(pid) == 0 for pid in pair.pids))
    assert pair.output_of(indented("    print(len(weft.get(make.remote(1_000_000))))")) == "1000000\n"


OWNERS = """
    @weft.remote(num_cpus=0)
    class Owner:
        def lend(self, size):
            self.mine = [weft.put(b"l" * size)]
            return self.mine

        def call(self, other, size):
            self.mine = [other.make.remote(size)]
            weft.wait(self.mine)

        def make(self, size):
            return b"m" * size

        def pid(self):
            return os.getpid()

    There = Owner.options(resources={"lamp": 1})

    def end(actor):
        os.kill(weft.get(actor.pid.remote()), 9)
        try:
            weft.get(actor.pid.remote(), timeout=20)
        except weft.ActorDiedError:
            pass
"""


def test_what_dead_owners_had_is_freed_on_every_node(pair, tmp_path):
    """Put by them, or made for them on the other node."""
    program = pair.program(
        indented(
            OWNERS
            + f"""
    here, there = Owner.remote(), There.remote()
    for caller, maker in ((Owner.remote(), there), (There.remote(), here)):
        weft.get(caller.call.remote(maker, 20_000_000))
        weft.get(caller.lend.remote(10_000_000))
        weft.get(caller.call.remote(maker, 20_000_000))
        end(caller)
    print("ended", flush=True)
    until({str(tmp_path / "end")!r})
    """
        )
    )
    try:
        assert program.stdout.readline() == "ended\n"
        until(lambda: all(beyond(pid) < 100_000 for pid in pair.pids))
        (tmp_path / "end").touch()
        out, err = program.communicate(timeout=SECONDS)
        assert not err, err
    finally:
        program.kill()


def test_a_reference_on_another_node_keeps_what_a_dead_owner_had(pair, tmp_path):
    program = pair.program(
        indented(
            OWNERS
            + f"""
    owner = There.remote()
    (kept,) = weft.get(owner.lend.remote(20_000_000))
    weft.wait([kept], fetch_local=False)
    end(owner)
    print("ended", flush=True)
    until({str(tmp_path / "get")!r})
    print(look_at(weft.get(kept)), flush=True)
    del kept
    until({str(tmp_path / "end")!r})
    """
        )
    )
    there = pair.pids[1]
    try:
        assert program.stdout.readline() == "ended\n"
        until(lambda: 20_000_000 <= beyond(there) < 21_000_000)
        (tmp_path / "get").touch()
        assert program.stdout.readline() == "(20000000, b'l', b'l')\n"
        until(lambda: all(beyond(pid) < 100_000 for pid in pair.pids))
        (tmp_path / "end").touch()
        out, err = program.communicate(timeout=SECONDS)
        assert not err, err
    finally:
        program.kill()


def test_what_a_detached_actor_made_for_a_program_that_has_ended_is_freed(pair):
    text = indented(
        OWNERS
        + """
    maker = There.options(name="maker", lifetime="detached", get_if_exists=True).remote()
    made = maker.make.remote(20_000_000)
    weft.wait([made])
    print("has", flush=True)
    time.sleep(600)
    """
    )
    for _ in range(2):
        program = pair.program(text)
        assert program.stdout.readline() == "has\n"
        program.kill()
        program.communicate()
    until(lambda: all(beyond(pid) < 100_000 for pid in pair.pids))
    assert pair.children()  # the actor is there


def test_a_worker_that_is_killed_while_it_fetches(pair):
    assert pair.output_of(
        indented("""
    big = weft.put(b"b" * 60_000_000)

    @weft.remote(num_cpus=0, resources={"lamp": 1}, max_retries=5)
    def die(box, path):
        if not os.path.exists(path):
            open(path, "w").close()
            import threading
            threading.Timer(0.02, lambda: os.kill(os.getpid(), 9)).start()
        return look_at(weft.get(box[0]))

    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        print(weft.get([die.remote([big], f"{folder}/{i}") for i in range(4)], timeout=25))
    """)
    ) == (f"{[(60_000_000, b'b', b'b')] * 4}\n")
    until(lambda: all(used(pid) == 0 for pid in pair.pids))


def test_an_object_of_a_node_that_dies_is_lost_and_the_error_says_so(pair, tmp_path):
    program = pair.program(
        indented(f"""
    lost, had = make.options(max_retries=0).remote(30_000_000), make.remote(3_000_000)
    value = weft.get(had)
    weft.wait([look.remote(lost)])
    print("made", flush=True)
    until({str(tmp_path / "go")!r})
    for _ in range(2):
        try:
            weft.get(lost, timeout=20)
        except weft.ObjectLostError as error:
            print("node 2 (two)" in str(error) or error)
    print(look_at(value), len(weft.get(had)))

    @weft.remote(num_cpus=0)
    def local(value):
        return len(value)

    try:
        weft.get(local.remote(lost), timeout=20)
    except weft.ObjectLostError as error:
        print("node 2 (two)" in str(error) or error)
    print(weft.get(local.remote(b"x" * 100_000)))
    """)
    )
    assert program.stdout.readline() == "made\n"
    os.kill(pair.pids[1], signal.SIGKILL)
    until(lambda: gone(pair.pids[1]))
    (tmp_path / "go").touch()
    out, err = program.communicate(timeout=SECONDS)
    assert out == "True\nTrue\n(3000000, b'\\x01', b'\\x01') 3000000\nTrue\n100000\n", err
    until(lambda: used(pair.pids[0]) == 0)


def test_a_source_that_is_killed_in_the_middle_of_a_transfer(pair):
    program = pair.program(
        indented("""
    made = [make.options(max_retries=0).remote(200_000_000) for _ in range(2)]
    weft.get([look.remote(ref) for ref in made])
    print("made", flush=True)
    for ref in made:
        try:
            print(len(weft.get(ref, timeout=25)), flush=True)
        except weft.ObjectLostError as error:
            print("lost", "node 2 (two)" in str(error) or error, flush=True)
    """)
    )
    assert program.stdout.readline() == "made\n"
    os.kill(pair.pids[1], signal.SIGKILL)
    out, err = program.communicate(timeout=SECONDS)
    assert out.splitlines()[-1] == "lost True", (out, err)
    until(lambda: used(pair.pids[0]) == 0)


def test_a_transfer_goes_on_from_another_node_when_its_source_dies(nodes, tmp_path):
    nodes.start("--num-cpus=1", "--name=one")
    home = nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=2")
    nodes.start("--num-cpus=1", "--name=three", "--resource=mirror=2")
    program = nodes.program(
        indented(f"""
    @weft.remote(num_cpus=0, resources={{"mirror": 1}})
    class Mirror:
        pass

    @weft.remote(num_cpus=0, resources={{"mirror": 1}})
    def reflect(value):
        print("reflects", flush=True)
        until({str(tmp_path / "go")!r})
        return len(value), value[-1:]

    made = make.remote(20_000_000, 9)
    reflected = reflect.remote(made)
    weft.get(made)
    weft.wait([reflected], timeout=0.5)
    print(weft.get(reflected, timeout=25))
    """)
    )
    line = program.stdout.readline()
    assert "reflects" in line, program.stderr.read()
    os.kill(home, signal.SIGKILL)
    until(lambda: gone(home))
    (tmp_path / "go").touch()
    out, err = program.communicate(timeout=SECONDS)
    assert out.splitlines()[-1] == "(20000000, b'\\t')", err
