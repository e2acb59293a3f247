"""weft.compat.ray: Ray's names, today's and those of 2018."""

from __future__ import annotations

import importlib
import pickle
import re
import time
from pathlib import Path

import numpy as np
import pytest
import weft
import weft.compat.ray as ray
from helpers import run_driver
from weft.compat.ray import _translate

IN_2018 = {"WEFT_RAY_API": "0.6"}


@pytest.mark.parametrize(
    "name",
    ["", "actor", "exceptions", "experimental", "experimental.ui", "remote_function", "services", "util", "worker"],
)
def test_all_names_exist(name):
    module = importlib.import_module(f"weft.compat.ray.{name}".rstrip("."))
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    for each in module.__all__:
        assert getattr(module, each) is not None or each == "", each


def test_exceptions_are_those_of_weft():
    raised = {getattr(ray.exceptions, name) for name in ray.exceptions.__all__}
    expected = {getattr(weft.exceptions, name) for name in weft.exceptions.__all__}
    # These have no counterpart in Ray.
    assert expected - raised == {weft.DeadlockError, weft.VersionMismatchError}
    for cls in raised:
        assert issubclass(cls, ray.exceptions.RayError)


@ray.remote
def plus(a, b=1):
    return a + b


@ray.remote(num_return_vals=2)
def pair(a):
    return a, -a


class Plain:
    def __init__(self, start=0):
        self.value = start

    def add(self, by=1):
        self.value += by
        return self.value

    @ray.method(num_return_vals=2)
    def both(self):
        return self.value, -self.value


Counter = ray.remote(Plain)


def test_functions(session):
    assert ray.get(plus.remote(1)) == 2
    assert ray.get(plus.remote(1, b=ray.put(5))) == 6
    assert ray.get(pair.remote(3)) == [3, -3]
    assert ray.get(plus.options(num_cpus=0.5).remote(1)) == 2
    assert ray.get(plus._remote(args=[1], kwargs={"b": 2})) == 3
    assert ray.get(plus._submit([1])) == 2
    assert ray.get(pair._submit(args=[2], num_return_vals=1)) == (2, -2)
    assert plus._function(1, 2) == 3 and plus.__name__ == "plus" and plus.__module__ == __name__
    assert isinstance(plus, ray.remote_function.RemoteFunction)
    with pytest.raises(TypeError, match=r"plus\.remote"):
        plus(1)


def test_functions_travel(session):
    @ray.remote
    def call(function, value):
        return ray.get(function.remote(value)), ray.get(plus._submit([value])), repr(function)

    assert ray.get(call.remote(plus, 1)) == (2, 2, "<remote function plus>")

    @ray.remote
    def countdown(n):
        return n if n == 0 else ray.get(countdown.remote(n - 1))

    assert ray.get(countdown.remote(3)) == 0


def test_actors(session):
    counter = Counter.remote(5)
    assert ray.get([counter.add.remote() for _ in range(3)]) == [6, 7, 8]
    assert ray.get(counter.both.remote()) == [8, -8]
    assert ray.get(counter.add._submit([2])) == 10
    assert ray.get(counter.add._remote(kwargs={"by": 5})) == 15
    assert ray.get(counter.both._submit(num_return_vals=1)) == (15, -15)
    assert ray.get(Counter._submit([1]).add.remote()) == 2
    assert ray.get(Counter._remote(args=[2], num_cpus=0).add.remote()) == 3
    assert isinstance(counter, ray.actor.ActorHandle)
    with pytest.raises(TypeError, match=r"Plain\.remote"):
        Counter()
    with pytest.raises(TypeError, match="inherit"):

        class Derived(Counter):
            pass


def test_an_actor_ends_by_ray_s_own_method(session):
    counter = Counter.remote(5)
    assert ray.get(counter.__ray_ready__.remote()) is not False
    counter.add.remote()
    counter.__ray_terminate__.remote()
    deadline = time.monotonic() + 10
    with pytest.raises(ray.exceptions.RayActorError):
        while time.monotonic() < deadline:
            ray.get(counter.add.remote())


def test_actor_class_travels(session):
    @ray.remote
    def make():
        return ray.get(Counter.remote(1).add.remote())

    assert ray.get(make.remote()) == 2


def test_renamed_option_given_twice_is_refused():
    with pytest.raises(TypeError, match="num_return_vals"):
        ray.remote(num_return_vals=2, num_returns=2)(lambda: 1)


@pytest.mark.parametrize("options", [{"scheduling_strategy": "SPREAD"}, {"max_retries": -1}, {"runtime_env": {}}])
def test_options_of_ray_that_are_accepted(session, options):
    assert ray.get(plus.options(**options).remote(1)) == 2


def test_remote_twice_is_refused():
    for made in (plus, Counter):
        with pytest.raises(TypeError, match="already"):
            ray.remote(made)


def test_cause(session):
    class Own(Exception):
        def __init__(self, cause):
            self.cause = cause

    @ray.remote
    def fail(own):
        raise Own("mine") if own else ValueError("x")

    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        ray.get(fail.remote(False))
    assert isinstance(caught.value.cause, ValueError) and caught.value.cause.args == ("x",)
    with pytest.raises(Own) as own:
        ray.get(fail.remote(True))
    assert own.value.cause == "mine"


def test_arguments_of_init_are_known_once():
    assert not set(_translate._INIT) & _translate._IGNORED_INIT
    assert not set(_translate._RENAMED_INIT) & (_translate._IGNORED_INIT | set(_translate._INIT))


def test_the_document_names_all_that_is_ignored_or_passed_on():
    text = (Path(__file__).resolve().parents[2] / "docs" / "user" / "coming_from_ray.md").read_text()
    names = {*_translate._INIT, *_translate._RENAMED_INIT, *_translate._IGNORED_INIT, *_translate._IGNORED_OPTIONS}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []
    missing = [name for name in ray.exceptions.__all__ if f"`{name}`" not in text]
    assert all(getattr(ray.exceptions, name).__doc__.startswith("Never raised") for name in missing)


def test_init(no_session):
    with ray.init(num_cpus=3, resources={"disk": 2}, include_webui=False, include_dashboard=True) as context:
        assert ray.is_initialized()
        assert context["node_ip_address"] == context.address_info["node_ip_address"]
        assert context.dashboard_url == ""
        assert ray.cluster_resources()["CPU"] == 3 and ray.cluster_resources()["disk"] == 2
        with pytest.raises(RuntimeError, match="already"):
            ray.init()
        assert ray.init(ignore_reinit_error=True).ray_version == ray.__version__
    assert not ray.is_initialized()


@pytest.mark.parametrize("name", sorted(_translate._IGNORED_INIT))
def test_arguments_without_effect_are_accepted(name):
    assert _translate.init_arguments({"num_cpus": 1, name: "anything"}) == {"num_cpus": 1}


@pytest.mark.parametrize(
    "name, hint", [("num_cpu", "num_cpus"), ("include_web_ui", "include_webui"), ("zzz", "address")]
)
def test_unknown_arguments_are_refused(name, hint):
    with pytest.raises(TypeError, match=f"'{name}'.*{hint}"):
        ray.init(**{name: 1})


def test_both_names_of_an_argument_are_refused():
    with pytest.raises(TypeError, match="redis_address"):
        ray.init("local", redis_address="local")


def test_wait_counts_seconds(session):
    ref = plus.remote(1)
    assert ray.wait([ref], num_returns=1, timeout=30) == ([ref], [])
    with pytest.raises(TypeError):
        ray.wait([ref], 1, 30)  # by name only, as in Ray


def test_what_is_not_there_says_so():
    with pytest.raises(AttributeError, match="nothing is not"):
        ray.experimental.nothing  # noqa: B018
    with pytest.raises(ImportError):
        importlib.import_module("weft.compat.ray.experimental.nothing")
    with pytest.raises(AttributeError, match="weft"):
        ray.no_such_name  # noqa: B018
    with pytest.raises(AttributeError, match="weft"):
        ray.util.no_such_name  # noqa: B018


class Odd:
    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        raise TypeError("cannot be pickled")


@pytest.mark.parametrize("register", ["register_serializer", "register_custom_serializer"])
def test_serializers_of_one_s_own(session, register):
    with pytest.raises(TypeError):
        ray.put(Odd(1))
    place = ray.util if register == "register_serializer" else ray
    getattr(place, register)(Odd, serializer=lambda odd: odd.value, deserializer=lambda value: Odd(value + 1))
    try:
        assert ray.get(ray.put(Odd(1))).value == 2
    finally:
        ray.util.deregister_serializer(Odd)
    with pytest.raises(TypeError):
        ray.put(Odd(1))


def test_inspect_serializability(capsys):
    assert ray.util.inspect_serializability([1, 2]) == (True, set())
    fine, why = ray.util.inspect_serializability(Odd(1), name="odd")
    assert not fine and len(why) == 1
    assert "odd" in capsys.readouterr().out


def test_worker_module(session):
    assert ray.worker.global_worker.connected
    assert ray.worker.global_worker.mode == ray.SCRIPT_MODE

    @ray.remote
    def mode():
        return ray.worker.global_worker.mode

    assert ray.get(mode.remote()) == ray.WORKER_MODE
    assert ray.worker.get(ray.worker.put(1)) == 1
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", ray.services.get_node_ip_address())


def test_tables(session):
    (node,) = ray.nodes()
    assert node["Alive"] and node["Resources"]["CPU"] == ray.cluster_resources()["CPU"]
    (client,) = ray.global_state.client_table()
    assert client["ClientID"] == node["NodeID"] and client["IsInsertion"]
    ref = ray.put(1)
    table = ray.global_state.object_table(ref)
    assert table["object_id"] == ref.hex()
    assert ref.hex() in ray.global_state.object_table()
    assert ray.global_state.object_table("0" * 32) == {}
    counter = Counter.remote()
    ray.get(counter.add.remote())
    assert any(row["class_name"] == "Plain" for row in ray.global_state.actors().values())
    assert len(ray.global_state.task_table()) >= 1 and len(ray.global_state.workers()) >= 2
    assert isinstance(ray.timeline(), list)


def test_2018(no_session):
    """What is different: milliseconds, how a reference prints, and that init gives a dict."""
    driver = run_driver(
        """
        import re, time
        import weft.compat.ray as ray

        info = ray.init(num_cpus=2, num_gpus=2, include_webui=False, redirect_output=True)
        assert info["webui_url"] == ""

        @ray.remote
        def sleep(seconds):
            time.sleep(seconds)

        @ray.remote(num_gpus=1)
        def gpus():
            return ray.get_gpu_ids(), str(ray.put(1))

        slow = sleep.remote(30)
        started = time.monotonic()
        assert ray.wait([slow], 1, 200) == ([], [slow])
        assert 0.2 <= time.monotonic() - started < 20
        assert ray.wait([slow], num_returns=1, timeout=0) == ([], [slow])

        printed = re.compile(r"ObjectID\\([0-9a-f]{40}\\)")
        assert printed.fullmatch(repr(slow)) and repr(slow)[9:].startswith(slow.hex())
        assert isinstance(slow, ray.ObjectID) and not isinstance(1, ray.ObjectID)
        assert slow.id() == slow.binary()
        ids, text = ray.get(gpus.remote())
        assert len(ids) == 1 and type(ids[0]) is int and ids[0] in (0, 1)
        assert printed.fullmatch(text)
        assert ray.__version__ == "0.6.0"
        ray.shutdown()
        assert repr(slow) == "ObjectID(ended session)"
        """,
        env=IN_2018,
    )
    assert driver.stdout == ""


def test_weft_itself_has_none_of_the_old_names():
    old = run_driver(
        """
        import weft
        names = [name for module in (weft, weft._core, weft._options, weft._api) for name in dir(module)]
        for cls in (weft.ObjectRef, weft.RemoteFunction, weft.TaskError):
            names += dir(cls)
        for name in ("ObjectID", "num_return_vals", "_submit", "_remote", "include_webui", "global_state", "cause"):
            assert name not in names, name
        print(weft.put(1))
        """
    )
    assert re.fullmatch(r"ObjectRef\([0-9a-f]{32}\)", old.stdout.strip())


def test_arrays_and_pickles(session):
    array = np.arange(10)
    assert np.array_equal(ray.get(ray.put(array)), array)
    assert pickle.loads(pickle.dumps(ray.exceptions.GetTimeoutError("x"))).args == ("x",)
