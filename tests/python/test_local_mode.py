"""init(local_mode=True): everything inside this process, one thing after the other."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
import weft


@pytest.fixture(autouse=True)
def local(no_session):
    weft.init(num_cpus=2, num_gpus=2, local_mode=True, namespace="space")


class Trouble(Exception):
    pass


@weft.remote
class Counter:
    def __init__(self, start=0):
        self.value = start

    def increment(self, by=1):
        self.value += by
        return self.value

    @weft.method(num_returns=2)
    def pair(self):
        return self.value, self.value + 1

    def keep(self, items):
        self.items = items
        return items

    def kept(self):
        return self.items

    def fail(self):
        raise Trouble("in a method")

    def leave(self):
        weft.exit_actor()

    def itself(self):
        return weft.get_runtime_context().current_actor

    def restarted(self):
        return weft.get_runtime_context().was_current_actor_reconstructed


def test_tasks_run_here_in_order():
    seen = []

    @weft.remote
    def task(i):
        seen.append((i, os.getpid(), threading.get_ident()))
        return i

    refs = [task.remote(i) for i in range(3)]
    assert seen == [(i, os.getpid(), threading.get_ident()) for i in range(3)]  # before anybody asked
    assert weft.get(refs) == [0, 1, 2]
    assert weft.wait(refs, num_returns=2) == (refs[:2], refs[2:])


def test_arguments_are_copies_and_references_are_replaced():
    @weft.remote
    def change(items, inside):
        items.append(4)
        assert isinstance(inside[0], weft.ObjectRef)
        return items, weft.get(inside[0])

    mine = [1, 2, 3]
    stored = weft.put("value")
    assert weft.get(change.remote(mine, [stored])) == ([1, 2, 3, 4], "value")
    assert mine == [1, 2, 3]
    assert weft.get(change.remote(weft.put(mine), inside=[stored])) == ([1, 2, 3, 4], "value")


def test_errors_are_raised_by_get():
    @weft.remote
    def fail():
        raise Trouble("in a task")

    @weft.remote
    def after(value):
        return value

    ref = fail.remote()
    with pytest.raises(Trouble, match="in a task") as caught:
        weft.get(ref)
    assert isinstance(caught.value, weft.TaskError)
    assert caught.value.function_name.endswith("fail")
    with pytest.raises(Trouble, match="in a task"):
        weft.get(after.remote(ref))


def test_several_returns_and_retries():
    tries = []

    @weft.remote(num_returns=2, retry_exceptions=[Trouble])
    def task():
        tries.append(1)
        if len(tries) < 3:
            raise Trouble
        return "a", "b"

    assert weft.get(task.remote()) == ["a", "b"]
    with pytest.raises(ValueError, match="num_returns=3"):
        weft.get(task.options(num_returns=3).remote()[0])
    assert task.options(num_returns=0).remote() is None


def test_nested_tasks_and_actors():
    @weft.remote
    def inner(x):
        return x + 1

    @weft.remote
    def outer(counter, x):
        return weft.get(inner.remote(x)) + weft.get(counter.increment.remote())

    assert weft.get(outer.remote(Counter.remote(), 1)) == 3


def test_actors():
    counter = Counter.remote(5)
    assert weft.get([counter.increment.remote(), counter.increment.remote(by=2)]) == [6, 8]
    assert weft.get(counter.pair.remote()) == [8, 9]
    mine = [1]
    assert weft.get(counter.keep.remote(mine)) == [1]
    mine.append(2)
    assert weft.get(counter.kept.remote()) == [1]
    with pytest.raises(Trouble):
        weft.get(counter.fail.remote())
    assert weft.get(counter.increment.remote()) == 9
    assert weft.get(counter.itself.remote()) == counter
    assert weft.get(weft.put({"handle": counter}))["handle"] == counter
    assert weft.get(counter.__weft_ready__.remote()) is True
    with pytest.raises(AttributeError, match="did you mean 'increment'"):
        counter.incrment  # noqa: B018
    with pytest.raises(TypeError, match="increment"):
        counter.increment.remote(1, 2)
    with pytest.raises(TypeError, match=r"increment\.remote"):
        counter.increment()


def test_constructor_that_raises():
    @weft.remote
    class Fails:
        def __init__(self):
            raise Trouble("in the constructor")

        def work(self): ...

    with pytest.raises(weft.ActorDiedError) as caught:
        weft.get(Fails.remote().work.remote())
    assert isinstance(caught.value.__cause__, Trouble)
    assert not isinstance(caught.value, weft.TaskError)


def test_kill_exit_and_restart():
    counter = Counter.remote()
    weft.kill(counter)
    with pytest.raises(weft.ActorDiedError, match="kill"):
        weft.get(counter.increment.remote())
    counter = Counter.remote()
    with pytest.raises(weft.ActorDiedError, match="exit"):
        weft.get(counter.leave.remote())
    with pytest.raises(weft.ActorDiedError):
        weft.get(counter.increment.remote())
    counter = Counter.options(max_restarts=1).remote()
    weft.get(counter.increment.remote())
    assert weft.get(counter.restarted.remote()) is False
    weft.kill(counter, no_restart=False)
    assert weft.get(counter.increment.remote()) == 1
    assert weft.get(counter.restarted.remote()) is True
    weft.kill(counter, no_restart=False)
    with pytest.raises(weft.ActorDiedError):
        weft.get(counter.increment.remote())


def test_names():
    counter = Counter.options(name="n").remote()
    assert weft.get_actor("n") == counter
    assert weft.get_actor("n", "space") == counter
    assert weft.list_named_actors() == ["n"]
    assert weft.list_named_actors(all_namespaces=True) == [{"name": "n", "namespace": "space"}]
    with pytest.raises(ValueError, match="taken"):
        Counter.options(name="n").remote()
    assert Counter.options(name="n", get_if_exists=True).remote() == counter
    weft.kill(counter)
    with pytest.raises(ValueError, match="'n'"):
        weft.get_actor("n")


def test_asyncio_actors():
    @weft.remote
    class Async:
        async def work(self, x):
            await asyncio.sleep(0)
            return x + await weft.put(1)

        def plain(self):
            return "plain"

    actor = Async.remote()
    assert weft.get([actor.work.remote(i) for i in range(3)]) == [1, 2, 3]
    assert weft.get(actor.plain.remote()) == "plain"

    async def driver():
        return await actor.work.remote(1)

    assert asyncio.run(driver()) == 2


def test_runtime_context_and_cancel():
    @weft.remote(num_gpus=2, num_cpus=0.5)
    def task():
        context = weft.get_runtime_context()
        return context.get_task_name(), context.get_assigned_resources(), weft.get_gpu_ids(), context.namespace

    ref = task.remote()
    weft.cancel(ref)
    name, resources, gpus, namespace = weft.get(ref)
    assert name.endswith("task")
    assert resources == {"CPU": 0.5, "GPU": 2.0}
    assert gpus == [0, 1]
    assert namespace == "space"
    assert weft.get_runtime_context().get_task_id() is None
    assert weft.get_gpu_ids() == []


def test_explain():
    """Everything has ended when `.remote` returns, one way or the other."""

    @weft.remote
    def fails():
        raise ValueError("no")

    @weft.remote
    class Never:
        def __init__(self):
            raise ValueError("never")

        def one(self):
            return 1

    there = weft.put(1)
    assert weft.explain(there) == f"object {there.hex()} is there"
    failed = fails.remote()
    assert weft.explain(failed) == f"object {failed.hex()} failed: its task raised an exception"
    assert "failed: ActorDiedError: " in weft.explain(Never.remote().one.remote())
    with pytest.raises(TypeError, match="ObjectRef"):
        weft.explain(1)


def test_ordinary_sessions_afterwards():
    weft.shutdown()
    weft.init(num_cpus=1)
    assert weft.get(weft.remote(os.getpid.__call__ if False else (lambda: os.getpid())).remote()) != os.getpid()
