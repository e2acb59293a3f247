"""Options and decorators: what is accepted, what is refused and how the refusal reads. No session needed."""

from __future__ import annotations

import functools
import inspect
import pickle

import pytest
import weft
from weft._options import TaskOptions


def test_defaults():
    options = TaskOptions()
    assert (options.num_cpus, options.num_gpus, options.resources, options.memory) == (1.0, 0.0, {}, 0)
    assert (options.num_returns, options.max_retries, options.retry_exceptions) == (1, 3, False)
    assert options.name is None
    assert options.retry_payload == b""


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"num_cpus": -1}, ValueError, ["num_cpus", "-1"]),
        ({"num_cpus": "two"}, TypeError, ["num_cpus", "two", "str"]),
        ({"num_cpus": float("nan")}, ValueError, ["num_cpus", "NaN"]),
        ({"num_cpus": float("inf")}, ValueError, ["num_cpus", "inf"]),
        ({"num_cpus": 10**400}, ValueError, ["num_cpus"]),
        ({"num_cpus": True}, TypeError, ["num_cpus", "True"]),
        ({"num_cpus": 1e-7}, ValueError, ["num_cpus", "1e-07"]),
        ({"num_gpus": [1]}, TypeError, ["num_gpus"]),
        ({"resources": [("a", 1)]}, TypeError, ["resources", "dict"]),
        ({"resources": {"CPU": 1}}, ValueError, ["num_cpus"]),
        ({"resources": {1: 1}}, TypeError, ["resources"]),
        ({"resources": {"": 1}}, ValueError, ["resources"]),
        ({"resources": {"x" * 257: 1}}, ValueError, ["resources", "256 bytes"]),
        ({"resources": {"\u20ac" * 100: 1}}, ValueError, ["resources", "256 bytes"]),
        ({"resources": {"\udcff": 1}}, ValueError, ["resources", "UTF-8"]),
        ({"resources": {f"r{i}": 1 for i in range(51)}}, ValueError, ["resources", "at most 50", "not 51"]),
        ({"resources": {"disk": -2}}, ValueError, ["resources['disk']", "-2"]),
        ({"memory": -1}, ValueError, ["memory", "-1"]),
        ({"memory": 1.5}, TypeError, ["memory", "1.5"]),
        ({"memory": 2**63}, ValueError, ["memory"]),
        ({"num_returns": -1}, ValueError, ["num_returns", "-1"]),
        ({"num_returns": 2.0}, TypeError, ["num_returns", "2.0"]),
        ({"num_returns": 10**9}, ValueError, ["num_returns"]),
        ({"num_returns": "streaming"}, NotImplementedError, ["num_returns", "not yet"]),
        ({"max_retries": -2}, ValueError, ["max_retries", "-2"]),
        ({"max_retries": "3"}, TypeError, ["max_retries"]),
        ({"retry_exceptions": 1}, TypeError, ["retry_exceptions"]),
        ({"retry_exceptions": [ValueError, "KeyError"]}, TypeError, ["retry_exceptions", "KeyError"]),
        ({"name": 5}, TypeError, ["name", "5"]),
        ({"name": ""}, ValueError, ["name"]),
        ({"num_cpu": 1}, TypeError, ["num_cpu", "did you mean 'num_cpus'"]),
        ({"nonsense": 1}, TypeError, ["nonsense", "max_retries"]),
        ({"max_calls": 1}, NotImplementedError, ["max_calls", "not yet"]),
        ({"runtime_env": {"pip": []}}, NotImplementedError, ["runtime_env", "not yet"]),
        ({"label_selector": {"a": "b c"}}, ValueError, ["label_selector", "b c"]),
        ({"scheduling_strategy": "PACK"}, ValueError, ["scheduling_strategy", "PACK"]),
        ({"scheduling_strategy": object()}, NotImplementedError, ["scheduling_strategy", "not yet"]),
        ({"max_restarts": 1}, TypeError, ["max_restarts", "actors"]),
    ],
)
def test_wrong_options_are_refused_by_name(given, error, words):
    def refused(make):
        with pytest.raises(error) as caught:
            make()
        for word in words:
            assert word in str(caught.value)

    refused(lambda: weft.remote(**given)(lambda: None))
    refused(lambda: weft.remote(lambda: None, **given))
    refused(lambda: weft.remote(lambda: None).options(**given))


def test_good_options():
    options = TaskOptions(
        num_cpus=0.5, num_gpus=2, resources={"disk": 1}, memory=1e9, num_returns=0, max_retries=0, name="n",
        retry_exceptions=[ValueError],
    )  # fmt: skip
    assert (options.num_cpus, options.num_gpus, options.resources) == (0.5, 2.0, {"disk": 1.0})
    assert (options.memory, options.num_returns, options.max_retries) == (10**9, 0, 0)
    assert options.retry_exceptions == (ValueError,)
    assert pickle.loads(options.retry_payload) == (ValueError,)
    assert TaskOptions(retry_exceptions=True).retry_payload == b"*"
    assert TaskOptions(retry_exceptions=[]).retry_payload == b""
    assert TaskOptions(max_retries=-1).max_retries == -1
    assert TaskOptions(scheduling_strategy="SPREAD").scheduling_strategy == "SPREAD"
    assert TaskOptions(runtime_env={}, label_selector=None, max_calls=0).given == {}


def test_options_are_immutable_and_merge():
    options = TaskOptions(num_cpus=2, name="n")
    with pytest.raises(AttributeError):
        options.num_cpus = 3
    merged = options.merged({"num_cpus": None, "max_retries": 1})
    assert (merged.num_cpus, merged.max_retries, merged.name) == (1.0, 1, "n")
    assert options.num_cpus == 2.0
    assert pickle.loads(pickle.dumps(merged)) == merged


def test_three_forms_of_remote():
    def f():
        """The documentation."""

    for made in (weft.remote(f), weft.remote()(f), weft.remote(num_cpus=2)(f), weft.remote(f, num_cpus=2)):
        assert isinstance(made, weft.RemoteFunction)
        assert made.__name__ == "f"
        assert made.__doc__ == "The documentation."
        assert made.__wrapped__ is f
        assert inspect.signature(made) == inspect.signature(f)
    assert weft.remote(num_cpus=2)(f)._options.num_cpus == 2.0


def test_options_make_a_changed_copy():
    f = weft.remote(num_cpus=2)(lambda: None)
    changed = f.options(num_returns=2)
    assert (changed._options.num_cpus, changed._options.num_returns) == (2.0, 2)
    assert f._options.num_returns == 1
    assert changed._function is f._function
    assert changed.__name__ == f.__name__
    assert f.options(num_returns=2) is changed  # so that a loop exports the function once
    assert f.options(num_returns=3) is not changed


class Class:
    def method(self):
        return self


async def coroutine():
    pass


def generator():
    yield


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (len, TypeError, ["len", "lambda"]),
        ("f", TypeError, ["function", "str"]),
        (3, TypeError, ["int"]),
        (None, TypeError, ["NoneType"]),
        (weft.remote(Class), TypeError, ["Class", "actor class already"]),
        (dict, TypeError, ["dict", "inherit"]),
        (KeyError, TypeError, ["KeyError", "exception"]),
        (coroutine, TypeError, ["coroutine", "async def"]),
        (generator, NotImplementedError, ["generator"]),
        (functools.partial(coroutine), TypeError, ["async def"]),
        (weft.remote(lambda: None), TypeError, ["already"]),
        (classmethod(lambda cls: None), TypeError, ["classmethod"]),
    ],
)
def test_what_cannot_become_remote(wrong, error, words):
    with pytest.raises(error) as caught:
        weft.remote(wrong)
    for word in words:
        assert word in str(caught.value)


def test_two_positional_arguments_are_refused():
    with pytest.raises(TypeError, match="one function or class"):
        weft.remote(lambda: 1, lambda: 2)


def test_direct_call_says_what_to_write():
    @weft.remote
    def compute(x):
        return x

    with pytest.raises(TypeError, match=r"compute\.remote\(\.\.\.\)"):
        compute(1)


def test_remote_function_cannot_be_subclassed():
    with pytest.raises(TypeError):
        type("Sub", (weft.RemoteFunction,), {})
