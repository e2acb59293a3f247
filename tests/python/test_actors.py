"""Actors: making them, calling them in order, passing their handles around, errors in constructors and methods."""

from __future__ import annotations

import os
import pickle
import threading

import pytest
import weft
from helpers import hold, run_driver, wait_until

pytestmark = pytest.mark.usefixtures("session")


@weft.remote
class Counter:
    step = 1

    def __init__(self, start=0, *, by=1):
        self.value = start
        self.by = by

    def increment(self, by=None):
        self.value += self.by if by is None else by
        return self.value

    def get(self):
        return self.value

    def pid(self):
        return os.getpid()


@weft.remote
class Log:
    def __init__(self):
        self.items = []

    def add(self, item):
        self.items.append(item)
        return len(self.items)

    def all(self):
        return list(self.items)

    def add_when(self, item, path):
        hold(path)
        self.items.append(item)


# ---- making and calling ---------------------------------------------------------------------------------------------


def test_state_is_kept_between_calls():
    counter = Counter.remote()
    assert weft.get([counter.increment.remote() for _ in range(5)]) == [1, 2, 3, 4, 5]
    assert weft.get(counter.get.remote()) == 5


def test_arguments_of_the_constructor():
    assert weft.get(Counter.remote(7).get.remote()) == 7
    assert weft.get(Counter.remote(start=7, by=3).increment.remote()) == 10
    assert weft.get(Counter.remote(weft.put(7)).increment.remote(weft.put(2))) == 9


def test_each_actor_has_a_process_of_its_own():
    first, second = Counter.remote(), Counter.remote()
    pids = weft.get([first.pid.remote(), second.pid.remote(), first.pid.remote()])
    assert pids[0] == pids[2]
    assert len({*pids, os.getpid()}) == 3


def test_calls_run_in_the_order_they_were_made():
    log = Log.remote()
    for i in range(2000):
        log.add.remote(i)
    assert weft.get(log.all.remote()) == list(range(2000))


def test_a_call_whose_argument_is_pending_holds_up_those_behind_it(gate):
    @weft.remote
    def late(path):
        hold(path)
        return "first"

    log = Log.remote()
    log.add.remote(late.remote(gate.path))
    second = log.add.remote("second")
    assert weft.wait([second], timeout=0.3) == ([], [second])
    gate.open()
    assert weft.get(log.all.remote()) == ["first", "second"]


def test_out_of_order_execution_does_not_wait_for_pending_arguments(gate):
    @weft.remote
    def late(path):
        hold(path)
        return "first"

    log = Log.options(allow_out_of_order_execution=True).remote()
    first = log.add.remote(late.remote(gate.path))
    weft.get(log.add.remote("second"), timeout=30)
    gate.open()
    weft.get(first)
    assert weft.get(log.all.remote()) == ["second", "first"]


def test_order_of_each_caller_is_kept():
    log = Log.remote()

    @weft.remote
    def send(log, caller):
        for i in range(200):
            log.add.remote((caller, i))
        return weft.get(log.add.remote((caller, 200)))

    weft.get([send.remote(log, caller) for caller in range(4)])
    items = weft.get(log.all.remote())
    assert len(items) == 4 * 201
    for caller in range(4):
        assert [i for who, i in items if who == caller] == list(range(201))


def test_order_of_threads_of_one_driver():
    log = Log.remote()

    def send(caller):
        for i in range(300):
            log.add.remote((caller, i))

    threads = [threading.Thread(target=send, args=(caller,)) for caller in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    items = weft.get(log.all.remote())
    for caller in range(4):
        assert [i for who, i in items if who == caller] == list(range(300))


def test_many_actors_answer():
    counters = [Counter.remote(i) for i in range(20)]
    assert weft.get([counter.increment.remote() for counter in counters]) == list(range(1, 21))


def test_large_arguments_and_results():
    numpy = pytest.importorskip("numpy")

    @weft.remote
    class Keeper:
        def keep(self, array):
            self.array = array
            return array.sum()

        def give(self):
            return self.array * 2

    keeper = Keeper.remote()
    array = numpy.arange(1_000_000)
    assert weft.get(keeper.keep.remote(array)) == array.sum()
    assert (weft.get(keeper.give.remote()) == array * 2).all()


def test_results_are_arguments_of_other_calls():
    first, second = Counter.remote(), Counter.remote()
    assert weft.get(second.increment.remote(first.increment.remote(41))) == 41
    assert weft.get(first.increment.remote(first.increment.remote(1))) == 84


def test_inherited_static_class_and_private_methods():
    class Base:
        def inherited(self):
            return "inherited"

        def replaced(self):
            return "base"

    class Child(Base):
        kind = "child"

        def __init__(self):
            super().__init__()
            self.ready = True

        def replaced(self):
            return "child of " + super().replaced()

        @staticmethod
        def static(a, b=2):
            return a + b

        @classmethod
        def of_class(cls):
            return cls.kind

        def _private(self):
            return "private"

        def __len__(self):
            return 7

        @property
        def prop(self):
            return 1

        class Nested:
            pass

    child = weft.remote(Child).remote()
    assert weft.get(child.inherited.remote()) == "inherited"
    assert weft.get(child.replaced.remote()) == "child of base"
    assert weft.get(child.static.remote(1)) == 3
    assert weft.get(child.of_class.remote()) == "child"
    assert weft.get(child._private.remote()) == "private"
    assert weft.get(child.__len__.remote()) == 7
    for name in ("prop", "Nested", "kind", "ready"):
        with pytest.raises(AttributeError):
            getattr(child, name)


def test_ready_method():
    assert weft.get(Counter.remote().__weft_ready__.remote(), timeout=30) is True


def test_a_class_of_an_importable_module(tmp_path):
    (tmp_path / "shapes.py").write_text(
        "import weft\n"
        "made = []\n"
        "class Base:\n"
        "    def __init__(self, side): self.side = side\n"
        "@weft.remote\n"
        "class Square(Base):\n"
        "    def __init__(self, side):\n"
        "        super().__init__(side)\n"
        "        made.append(side)\n"
        "    def area(self): return self.side ** 2\n"
        "    def made(self): return made\n"
        "    def again(self): return Square.remote(self.side + 1)\n"
    )
    run_driver(
        """
        import weft, shapes
        square = shapes.Square.remote(3)
        assert weft.get(square.area.remote()) == 9
        assert weft.get(square.made.remote()) == [3]
        assert weft.get(weft.get(square.again.remote()).area.remote()) == 16
        """,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
    )


def test_a_class_that_captures_references():
    data = weft.put([1, 2, 3])

    @weft.remote
    class Reader:
        def total(self):
            return sum(weft.get(data))

    assert weft.get(Reader.remote().total.remote()) == 6


# ---- handles --------------------------------------------------------------------------------------------------------


def test_handles_compare_and_print():
    first, second = Counter.remote(), Counter.remote()
    assert first == first
    assert first != second
    assert len({first, second, first}) == 2
    assert repr(first) == f"Actor(Counter, {first._actor_id})"
    assert len(first._actor_id) == 32
    assert first._actor_id in repr(first)


def test_handle_as_argument_of_a_task():
    counter = Counter.remote()

    @weft.remote
    def use(counter):
        return weft.get(counter.increment.remote())

    assert sorted(weft.get([use.remote(counter) for _ in range(4)])) == [1, 2, 3, 4]
    assert weft.get(counter.get.remote()) == 4


def test_handle_in_a_container_a_put_object_and_a_closure():
    counter = Counter.remote()

    @weft.remote
    def use_list(handles):
        return weft.get([handle.increment.remote() for handle in handles])

    @weft.remote
    def use_closure():
        return weft.get(counter.increment.remote())

    assert weft.get(use_list.remote([counter, counter])) == [1, 2]
    stored = weft.put({"who": counter})
    assert weft.get(stored)["who"] == counter
    assert weft.get(weft.get(stored)["who"].increment.remote()) == 3
    assert weft.get(use_closure.remote()) == 4


def test_handle_returned_by_a_task_that_made_the_actor():
    @weft.remote
    def make(start):
        return Counter.remote(start)

    counter = weft.get(make.remote(5))
    assert weft.get(counter.increment.remote()) == 6
    assert weft.get(counter.increment.remote()) == 7


def test_handle_kept_by_another_actor():
    @weft.remote
    class User:
        def __init__(self, counter):
            self.counter = counter

        def use(self):
            return weft.get(self.counter.increment.remote())

        def give(self):
            return self.counter

    counter = Counter.remote()
    users = [User.remote(counter) for _ in range(3)]
    assert sorted(weft.get([user.use.remote() for user in users])) == [1, 2, 3]
    assert weft.get(users[0].give.remote()) == counter


def test_actors_made_by_actors():
    @weft.remote
    class Parent:
        def __init__(self, depth):
            self.depth = depth
            self.child = Parent.remote(depth - 1) if depth else None

        def depths(self):
            return [self.depth] + (weft.get(self.child.depths.remote()) if self.child else [])

    assert weft.get(Parent.remote(3).depths.remote(), timeout=60) == [3, 2, 1, 0]


def test_a_handle_of_itself_makes_a_cycle_that_works():
    @weft.remote
    class Node:
        def connect(self, other):
            self.other = other

        def name(self):
            return "node"

        def ask(self):
            return weft.get(self.other.name.remote())

    first, second = Node.remote(), Node.remote()
    weft.get([first.connect.remote(second), second.connect.remote(first)])
    assert weft.get(first.ask.remote()) == "node"
    assert weft.get(second.ask.remote()) == "node"


def test_handle_cannot_be_pickled_outside_of_weft():
    counter = Counter.remote()
    with pytest.raises(TypeError, match="weft itself"):
        pickle.dumps(counter)


def test_ten_thousand_handles_in_one_object():
    counter = Counter.remote()
    handles = weft.get(weft.put([counter] * 10_000))
    assert all(handle == counter for handle in handles)
    assert weft.get(handles[-1].increment.remote()) == 1


# ---- several returns and options of methods -------------------------------------------------------------------------


@weft.remote
class Several:
    @weft.method(num_returns=2)
    def pair(self):
        return "a", "b"

    @weft.method(num_returns=0)
    def none(self):
        self.called = True

    def was_called(self):
        return self.called

    def plain(self):
        return 1, 2, 3

    @weft.method(num_returns=2)
    @staticmethod
    def static_pair():
        return 1, 2

    @weft.method(name="a name of its own")
    def named(self):
        return weft.get_runtime_context().get_task_name()


def test_several_returns():
    several = Several.remote()
    first, second = several.pair.remote()
    assert weft.get([first, second]) == ["a", "b"]
    assert weft.get(several.static_pair.remote()) == [1, 2]
    assert several.none.remote() is None
    assert weft.get(several.was_called.remote()) is True
    assert weft.get(several.plain.remote()) == (1, 2, 3)
    assert weft.get(several.plain.options(num_returns=3).remote()) == [1, 2, 3]


def test_wrong_number_of_returns():
    several = Several.remote()
    with pytest.raises(ValueError, match="num_returns=2"):
        weft.get(several.plain.options(num_returns=2).remote()[0])
    assert weft.get(several.plain.remote()) == (1, 2, 3)


def test_names_of_calls():
    several = Several.remote()
    assert weft.get(several.named.remote()) == "a name of its own"
    assert weft.get(several.named.options(name="another").remote()) == "another"


def test_handles_elsewhere_know_the_options_of_methods():
    @weft.remote
    def use(several):
        return weft.get(several.pair.remote())

    assert weft.get(use.remote(Several.remote())) == ["a", "b"]


# ---- errors ---------------------------------------------------------------------------------------------------------


class Trouble(Exception):
    pass


@weft.remote
class Raiser:
    def __init__(self, fails=False):
        if fails:
            raise Trouble("in the constructor")

    def fail(self):
        raise Trouble("in a method")

    def leave(self):
        raise SystemExit(3)

    def work(self):
        return "worked"

    def unpicklable(self):
        return threading.Lock()


def test_a_method_that_raises_leaves_the_actor_alive():
    raiser = Raiser.remote()
    with pytest.raises(Trouble, match="in a method") as caught:
        weft.get(raiser.fail.remote())
    assert isinstance(caught.value, weft.TaskError)
    assert caught.value.function_name == "Raiser.fail"
    assert "in a method" in caught.value.remote_traceback
    assert weft.get(raiser.work.remote()) == "worked"


def test_a_result_that_cannot_be_pickled():
    raiser = Raiser.remote()
    with pytest.raises(TypeError, match="pickled"):
        weft.get(raiser.unpicklable.remote())
    assert weft.get(raiser.work.remote()) == "worked"


@pytest.mark.parametrize(
    "arguments", [lambda: ([weft.put(1) for _ in range(20_000)],), lambda: range(50_000)], ids=["references", "numbers"]
)
def test_a_constructor_with_too_many_arguments(arguments):
    @weft.remote
    class Taker:
        def __init__(self, *given):
            pass

        def call(self):
            return 1

    taker = Taker.remote(*arguments())
    for _ in range(2):
        with pytest.raises(weft.UnschedulableError, match="Taker.*do not fit into one message") as caught:
            weft.get(taker.call.remote(), timeout=30)
    assert "can never start" in str(caught.value)


def test_a_class_with_too_many_methods():
    names = [f"method_number_{i}" for i in range(10_000)]
    with pytest.warns(UserWarning, match="takes .* MB"):
        many = weft.remote(type("Many", (), {name: lambda self: 7 for name in names})).remote()
    with pytest.raises(weft.UnschedulableError, match="its methods are too many"):
        weft.get(many.method_number_0.remote(), timeout=30)


def test_a_function_with_a_name_that_is_too_long():
    def named():
        return 1

    named.__name__ = named.__qualname__ = "x" * 300_000
    with pytest.raises(weft.UnschedulableError, match="its name is too long"):
        weft.get(weft.remote(named).remote(), timeout=30)
    named.__name__ = named.__qualname__ = "x" * 10_000
    assert weft.get(weft.remote(named).remote(), timeout=30) == 1


def test_a_constructor_that_raises():
    raiser = Raiser.remote(True)
    for _ in range(2):
        with pytest.raises(weft.ActorDiedError) as caught:
            weft.get(raiser.work.remote(), timeout=30)
        cause = caught.value.__cause__
        assert isinstance(cause, Trouble)
        assert isinstance(cause, weft.TaskError)
        assert "in the constructor" in str(cause)
        assert "__init__" in cause.remote_traceback
        said = str(caught.value)
        assert "Raiser" in said and "Trouble: in the constructor" in said, said
        assert "in __init__" in said and 'raise Trouble("in the constructor")' in said, said


def test_a_constructor_that_raises_with_much_to_say():
    """The message has the beginning and the end of the traceback, the cause has all that travels."""

    @weft.remote
    class Talker:
        def __init__(self):
            raise Trouble("first " + 100_000 * "x" + " last")

    with pytest.raises(weft.ActorDiedError) as caught:
        weft.get(Talker.remote().__weft_ready__.remote(), timeout=30)
    said = str(caught.value)
    assert "Trouble: first" in said and "in __init__" in said and said.endswith(" last"), said
    assert "characters left out" in said and len(said) < 8_000, len(said)
    assert len(caught.value.__cause__.remote_traceback) > 15_000


@weft.remote
def why_dead(actor, method):
    """What another process hears."""
    try:
        weft.get(getattr(actor, method).remote(), timeout=30)
    except weft.ActorDiedError as error:
        return str(error), type(error.__cause__).__name__, getattr(error.__cause__, "remote_traceback", "")


def test_a_constructor_that_raises_as_others_see_it():
    raiser = Raiser.remote(True)
    for _ in range(2):
        text, cause, trace = weft.get(why_dead.remote(raiser, "work"), timeout=30)
        assert "the constructor of actor Raiser" in text and "Trouble: in the constructor" in text, text
        assert "in __init__" in text, text
        assert cause == "Trouble" and "__init__" in trace


def test_a_constructor_that_raises_after_a_restart(tmp_path):
    class Once:
        def __init__(self, path):
            if os.path.exists(path):
                raise Trouble("the second time")
            open(path, "w").close()

        def work(self):
            return "worked"

        def crash(self):
            os._exit(1)

    actor = weft.remote(Once).options(max_restarts=3, max_task_retries=-1).remote(str(tmp_path / "made"))
    assert weft.get(actor.work.remote()) == "worked"
    with pytest.raises(weft.ActorError):
        weft.get(actor.crash.options(max_task_retries=0).remote())
    for _ in range(2):
        with pytest.raises(weft.ActorDiedError, match="Trouble: the second time"):
            weft.get(actor.work.remote(), timeout=30)
    assert "Trouble: the second time" in weft.get(why_dead.remote(actor, "work"), timeout=30)[0]


def test_a_constructor_that_raises_is_not_restarted():
    raiser = Raiser.options(max_restarts=-1, max_task_retries=-1).remote(True)
    with pytest.raises(weft.ActorDiedError):
        weft.get(raiser.work.remote(), timeout=30)


def test_a_constructor_with_an_argument_that_failed():
    @weft.remote
    def fail():
        raise Trouble("in a task")

    counter = Counter.remote(fail.remote())
    for _ in range(2):
        with pytest.raises(weft.ActorDiedError, match="an argument of its constructor.*Trouble: in a task") as caught:
            weft.get(counter.get.remote(), timeout=30)
        assert isinstance(caught.value.__cause__, Trouble)
    text, cause, _ = weft.get(why_dead.remote(counter, "get"), timeout=30)
    assert "an argument of its constructor" in text and "Trouble: in a task" in text and cause == "Trouble", text


def test_a_call_with_an_argument_that_failed():
    counter, raiser = Counter.remote(), Raiser.remote()
    with pytest.raises(Trouble, match="in a method"):
        weft.get(counter.increment.remote(raiser.fail.remote()))
    assert weft.get(counter.increment.remote()) == 1


def test_wrong_arguments_raise_where_the_call_is_made():
    with pytest.raises(TypeError, match=r"Counter\.__init__\(\).*2"):
        Counter.remote(1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'strat'"):
        Counter.remote(strat=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'item'"):
        Log.remote().add.remote()
    counter = Counter.remote()
    with pytest.raises(TypeError, match="increment"):
        counter.increment.remote(1, 2, 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'bye'"):
        counter.increment.remote(bye=1)
    assert weft.get(counter.increment.remote(by=4)) == 4


def test_wrong_arguments_by_a_handle_that_was_passed():
    @weft.remote
    def misuse(counter):
        counter.increment.remote(1, 2, 3)

    with pytest.raises(TypeError, match="increment"):
        weft.get(misuse.remote(Counter.remote()))


def test_unknown_methods_and_direct_calls():
    counter = Counter.remote()
    with pytest.raises(AttributeError, match="did you mean 'increment'"):
        counter.incremnt  # noqa: B018
    with pytest.raises(TypeError, match=r"increment\.remote"):
        counter.increment()
    with pytest.raises(AttributeError):
        counter.value = 3
    with pytest.raises(TypeError, match=r"Counter\.remote"):
        Counter()
    assert not hasattr(counter, "_repr_html_")


def test_generator_methods_are_refused_when_used():
    @weft.remote
    class Source:
        def items(self):
            yield from range(3)

        def all(self):
            return list(self.items())

    source = Source.remote()
    assert weft.get(source.all.remote()) == [0, 1, 2]
    with pytest.raises(NotImplementedError, match="generator"):
        source.items.remote()


def test_system_exit_in_a_method_ends_the_actor():
    raiser = Raiser.remote()
    with pytest.raises((weft.ActorDiedError, SystemExit)):
        weft.get(raiser.leave.remote(), timeout=30)


def test_options_of_one_call_in_a_loop_do_not_pile_up():
    counter = Counter.remote()
    refs = [counter.increment.options(name="loop").remote() for _ in range(500)]
    assert weft.get(refs) == list(range(1, 501))


def test_actor_class_inside_a_task_and_by_options():
    @weft.remote
    def make():
        counter = Counter.options(num_cpus=0).remote(by=5)
        return weft.get(counter.increment.remote())

    assert weft.get(make.remote()) == 5


def test_handles_of_an_ended_session(no_session):
    weft.init(num_cpus=1)
    counter = Counter.remote()
    assert weft.get(counter.increment.remote()) == 1
    weft.shutdown()
    weft.init(num_cpus=1)
    with pytest.raises((weft.WeftError, RuntimeError, ValueError), match="ended|shut down|session"):
        counter.increment.remote()
    assert weft.get(Counter.remote().increment.remote()) == 1


def test_an_actor_lives_while_a_task_uses_the_only_handle(gate):
    @weft.remote
    def use(counter, path):
        hold(path)
        return weft.get(counter.increment.remote())

    counter = Counter.remote()
    weft.get(counter.increment.remote())
    ref = use.remote(counter, gate.path)
    del counter
    gate.open()
    assert weft.get(ref) == 2


def test_await_calls_in_the_driver():
    import asyncio

    counter = Counter.remote()

    async def use():
        assert await counter.increment.remote() == 1
        return await asyncio.gather(*[counter.increment.remote() for _ in range(10)])

    assert asyncio.run(use()) == list(range(2, 12))


def test_a_thousand_calls_are_forgotten_when_done():
    counter = Counter.remote()
    weft.get([counter.increment.remote() for _ in range(1000)])
    from weft import _core

    wait_until(lambda: _core.stats()["live_objects"] < 200, what=f"live objects: {_core.stats()}")
