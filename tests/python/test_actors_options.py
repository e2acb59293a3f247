"""Options of actors and methods, and what can become an actor: what is refused, and how. No session needed."""

from __future__ import annotations

import pickle

import pytest
import weft
from weft._actor import _Found, read_worker_blob
from weft._options import ActorOptions, MethodOptions

NAN, INF = float("nan"), float("inf")


class Plain:
    def method(self):
        return self


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"num_cpus": -1}, ValueError, ["num_cpus", "-1"]),
        ({"num_cpus": NAN}, ValueError, ["num_cpus", "NaN"]),
        ({"num_cpus": INF}, ValueError, ["num_cpus"]),
        ({"num_gpus": "1"}, TypeError, ["num_gpus"]),
        ({"memory": -5}, ValueError, ["memory"]),
        ({"resources": {"GPU": 1}}, ValueError, ["num_gpus"]),
        ({"max_restarts": -2}, ValueError, ["max_restarts", "-2"]),
        ({"max_restarts": 1.0}, TypeError, ["max_restarts", "1.0"]),
        ({"max_restarts": 2**40}, ValueError, ["max_restarts"]),
        ({"max_task_retries": -2}, ValueError, ["max_task_retries"]),
        ({"max_task_retries": None, "max_restarts": "1"}, TypeError, ["max_restarts"]),
        ({"max_concurrency": 0}, ValueError, ["max_concurrency", "0"]),
        ({"max_concurrency": 1_000_001}, ValueError, ["max_concurrency"]),
        ({"max_concurrency": True}, TypeError, ["max_concurrency"]),
        ({"concurrency_groups": {"io": 0}}, ValueError, ["concurrency_groups['io']", "0"]),
        ({"concurrency_groups": {"io": "2"}}, TypeError, ["concurrency_groups['io']"]),
        ({"concurrency_groups": {3: 1}}, TypeError, ["concurrency_groups"]),
        ({"concurrency_groups": ["io"]}, TypeError, ["concurrency_groups", "dict"]),
        ({"max_pending_calls": 0}, ValueError, ["max_pending_calls"]),
        ({"max_pending_calls": -2}, ValueError, ["max_pending_calls"]),
        ({"name": ""}, ValueError, ["name"]),
        ({"name": 3}, TypeError, ["name"]),
        ({"name": "\ud800"}, ValueError, ["name"]),
        ({"namespace": ""}, ValueError, ["namespace"]),
        ({"lifetime": "forever"}, ValueError, ["lifetime", "detached"]),
        ({"lifetime": True}, TypeError, ["lifetime"]),
        ({"get_if_exists": 1, "name": "n"}, TypeError, ["get_if_exists"]),
        ({"get_if_exists": True}, ValueError, ["get_if_exists", "name"]),
        ({"allow_out_of_order_execution": "yes"}, TypeError, ["allow_out_of_order_execution"]),
        ({"scheduling_strategy": "PACK"}, ValueError, ["scheduling_strategy"]),
        ({"scheduling_strategy": 3}, NotImplementedError, ["scheduling_strategy"]),
        ({"runtime_env": {"pip": []}}, NotImplementedError, ["runtime_env", "not yet"]),
        ({"max_retries": 1}, TypeError, ["max_retries", "max_task_retries"]),
        ({"num_returns": 2}, TypeError, ["num_returns", "weft.method"]),
        ({"concurrency_group": "io"}, TypeError, ["concurrency_groups"]),
        ({"max_restart": 1}, TypeError, ["did you mean 'max_restarts'"]),
        ({"nonsense": 1}, TypeError, ["nonsense", "max_restarts"]),
    ],
)
def test_wrong_options_of_actors(given, error, words):
    def refused(make):
        with pytest.raises(error) as caught:
            make()
        for word in words:
            assert word in str(caught.value)

    refused(lambda: weft.remote(**given)(Plain))
    refused(lambda: weft.remote(Plain, **given))
    refused(lambda: weft.remote(Plain).options(**given))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"num_returns": -1}, ValueError, ["num_returns"]),
        ({"num_returns": "streaming"}, NotImplementedError, ["num_returns", "not yet"]),
        ({"num_returns": 1.5}, TypeError, ["num_returns"]),
        ({"max_task_retries": -2}, ValueError, ["max_task_retries"]),
        ({"max_retries": 1}, TypeError, ["max_task_retries"]),
        ({"retry_exceptions": 3}, TypeError, ["retry_exceptions"]),
        ({"concurrency_group": 3}, TypeError, ["concurrency_group"]),
        ({"num_cpus": 1}, TypeError, ["num_cpus", "remote functions"]),
        ({"max_restarts": 1}, TypeError, ["max_restarts", "actors"]),
        ({"num_retruns": 1}, TypeError, ["did you mean 'num_returns'"]),
    ],
)
def test_wrong_options_of_methods(given, error, words):
    for make in (lambda: weft.method(**given), lambda: MethodOptions().merged(given)):
        with pytest.raises(error) as caught:
            make()
        for word in words:
            assert word in str(caught.value)


def test_defaults():
    options = ActorOptions()
    assert (options.placement_cpus, options.num_cpus, options.num_gpus, options.memory) == (1.0, 0.0, 0.0, 0)
    assert (options.max_restarts, options.max_task_retries, options.max_pending_calls) == (0, 0, -1)
    assert (options.detached, options.get_if_exists, options.out_of_order) == (False, False, False)
    given = ActorOptions(num_cpus=2, lifetime="detached", name="n", get_if_exists=True, max_restarts=-1)
    assert (given.placement_cpus, given.num_cpus, given.detached, given.max_restarts) == (2.0, 2.0, True, -1)
    none = ActorOptions(num_cpus=0)
    assert (none.placement_cpus, none.num_cpus) == (0.0, 0.0)
    assert ActorOptions(lifetime="non_detached").detached is False


def test_what_the_worker_is_told():
    options = ActorOptions(name="n", concurrency_groups={"io": 2})
    settings = read_worker_blob(options.for_class("Plain", False, "space").worker_blob)
    assert (settings.max_concurrency, settings.concurrency_groups) == (1, {"io": 2})
    assert (settings.name, settings.namespace, settings.class_name) == ("n", "space", "Plain")
    settings = read_worker_blob(ActorOptions().for_class("Plain", True, "").worker_blob)
    assert (settings.max_concurrency, settings.is_async) == (1000, True)
    settings = read_worker_blob(ActorOptions(max_concurrency=3, namespace="own").for_class("P", True, "x").worker_blob)
    assert (settings.max_concurrency, settings.namespace) == (3, "own")


def test_options_pickle_and_copies_are_remembered():
    options = ActorOptions(num_cpus=2, name="n")
    assert pickle.loads(pickle.dumps(options)) == options
    method = MethodOptions(num_returns=2).with_parameters("a, b=None", 1, 2)
    again = pickle.loads(pickle.dumps(method))
    assert (again.given, again.parameters, again.min_args, again.max_args) == (method.given, "a, b=None", 1, 2)
    assert method.merged({"name": "x"}) is method.merged({"name": "x"})
    assert method.merged({"name": "x"}).max_args == 2


def test_forms_of_remote():
    for made in (weft.remote(Plain), weft.remote()(Plain), weft.remote(num_cpus=2)(Plain)):
        assert isinstance(made, weft.ActorClass)
        assert made.__name__ == "Plain"
        assert made.__wrapped__ is Plain
        assert made.method is Plain.method
        assert isinstance(Plain(), made)
    assert weft.remote(Plain).options(num_cpus=3)._options.num_cpus == 3.0
    with pytest.raises(TypeError, match="keyword"):
        weft.remote(Plain).options(3)


def test_misuse_of_an_actor_class():
    actor_class = weft.remote(Plain)
    with pytest.raises(TypeError, match=r"Plain\.remote\(\.\.\.\)"):
        actor_class()
    with pytest.raises(TypeError, match="inherit from the plain class"):
        type("Derived", (), {})

        class Derived(actor_class):
            pass

    with pytest.raises(AttributeError, match="did you mean 'method'"):
        actor_class.metod  # noqa: B018
    with pytest.raises(TypeError, match="num_returns=2"):
        weft.method(3)
    with pytest.raises(TypeError, match="methods of a class"):
        weft.method(num_returns=2)(Plain)


def test_abstract_classes_are_refused_at_once():
    import abc

    class Abstract(abc.ABC):
        @abc.abstractmethod
        def work(self): ...

    with pytest.raises(TypeError, match="abstract.*work"):
        weft.remote(Abstract).remote()


def test_parameters_of_methods():
    class Many:
        def none(self): ...
        def some(self, a, b=1): ...
        def positional(self, a, /, b): ...
        def rest(self, a, *args, **kwargs): ...
        def keyword(self, *, key): ...
        def keyword_default(self, *, key=1): ...

        @staticmethod
        def static(a): ...

        @classmethod
        def of_class(cls, a): ...

        both = len

    found = {name: parameters for name, (_, parameters) in _Found(Many).methods.items()}
    described = {name: (p.text, p.min_args, p.max_args) for name, p in found.items()}
    assert described["none"] == ("", 0, 0)
    assert described["some"] == ("a, b=None", 1, 2)
    assert described["positional"] == ("a, /, b", 2, 2)
    assert described["rest"] == ("a, *args, **kwargs", 1, -1)
    assert described["keyword"][0] == "*, key"
    assert described["keyword"][1] > 10**6
    assert described["keyword_default"] == ("*, key=None", 0, 0)
    assert described["static"] == ("a", 1, 1)
    assert described["of_class"] == ("a", 1, 1)
    assert described["both"] == (None, 0, -1)


def test_unknown_groups_are_refused_where_the_actor_is_made(session):
    class Grouped:
        @weft.method(concurrency_group="io")
        def read(self): ...

    with pytest.raises(ValueError, match="'io'"):
        weft.remote(Grouped).remote()
    with pytest.raises(ValueError, match="'io'"):
        weft.remote(Grouped).options(concurrency_groups={"oi": 1}).remote()
    actor = weft.remote(Grouped).options(concurrency_groups={"io": 1, "other": 2}).remote()
    with pytest.raises(ValueError, match="'net'"):
        actor.read.options(concurrency_group="net")


def test_arguments_of_the_public_functions(session):
    with pytest.raises(TypeError, match="handle of an actor"):
        weft.kill(3)
    with pytest.raises(TypeError, match=r"weft\.cancel"):
        weft.kill(weft.put(1))
    with pytest.raises(TypeError, match=r"Plain\.remote"):
        weft.kill(weft.remote(Plain))
    actor = weft.remote(Plain).remote()
    with pytest.raises(TypeError, match="no_restart"):
        weft.kill(actor, no_restart=1)
    with pytest.raises(TypeError, match=r"weft\.kill"):
        weft.cancel(actor)
    with pytest.raises(TypeError, match="each"):
        weft.cancel([weft.put(1)])
    with pytest.raises(TypeError, match="force"):
        weft.cancel(weft.put(1), force=1)
    with pytest.raises(TypeError, match="name"):
        weft.get_actor(3)
    with pytest.raises(ValueError, match="name"):
        weft.get_actor("")
    with pytest.raises(TypeError, match="all_namespaces"):
        weft.list_named_actors(all_namespaces=1)
    with pytest.raises(RuntimeError, match="outside"):
        weft.exit_actor()
