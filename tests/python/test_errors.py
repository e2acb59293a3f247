"""Exceptions of tasks: raised as themselves, with the user's traceback, whatever their class does."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback

import pytest
import weft
from helpers import run_driver
from weft import _errors

pytestmark = pytest.mark.usefixtures("session")


class CustomConstructor(Exception):
    def __init__(self, code, *, detail):
        super().__init__(f"code {code}")
        self.code = code
        self.detail = detail


class Slots(Exception):
    __slots__ = ("place",)

    def __init__(self, place):
        self.place = place


class NoSubclasses(Exception):
    def __init_subclass__(cls, **_):
        raise TypeError("this class is final")


class Meta(type):
    def __call__(cls, *args):
        return super().__call__(*args)

    def __new__(mcs, name, bases, namespace, **_):
        if any(isinstance(base, Meta) for base in bases):
            raise TypeError("this class is final")
        return super().__new__(mcs, name, bases, namespace)


class NoSubclassesByMeta(Exception, metaclass=Meta):
    pass


class StrRaises(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("holds a lock", threading.Lock())
        self.lock = threading.Lock()
        self.number = 5


class ReduceRaises(Exception):
    def __reduce__(self):
        raise RuntimeError("no pickle")


class OwnReduce(Exception):
    def __init__(self, message, *, key):
        super().__init__(message)
        self.key = key

    def __reduce__(self):
        return rebuild_own_reduce, (self.args[0], self.key)


def rebuild_own_reduce(message, key):
    return OwnReduce(message, key=key)


class CannotBeSet(Exception):
    def __setattr__(self, name, value):
        raise AttributeError(name)


class File(OSError):
    def __init__(self, reason):
        super().__init__(2, "no such file", "the/file")
        self.reason = reason


class NewWithArguments(Exception):
    def __new__(cls, a, b):
        return super().__new__(cls)

    def __init__(self, a, b):
        self.sum = a + b


CASES = [
    (lambda: ValueError("bad", 5), ["args"]),
    (lambda: KeyError("k"), ["args"]),
    (lambda: CustomConstructor(7, detail="d"), ["args", "code", "detail"]),
    (lambda: Slots("here"), ["args", "place"]),
    (lambda: NoSubclasses("x"), ["args"]),
    (lambda: NoSubclassesByMeta("x"), ["args"]),
    (lambda: StrRaises("x"), ["args"]),
    (lambda: Unpicklable(), ["number"]),
    (lambda: ReduceRaises("x"), ["args"]),
    (lambda: OwnReduce("m", key="k"), ["args", "key"]),
    (lambda: CannotBeSet("x"), ["args"]),
    (lambda: File("r"), ["args", "reason", "errno", "strerror", "filename"]),
    (lambda: NewWithArguments(1, 2), ["args", "sum"]),
    (lambda: FileNotFoundError(2, "none", "path"), ["args", "errno", "filename"]),
    (lambda: OSError("only words"), ["args", "errno", "filename"]),
    (lambda: OSError(5, "no file"), ["args", "errno", "filename"]),
    (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"), ["args", "object", "reason", "start"]),
    (lambda: ImportError("no", name="n", path="p"), ["args", "name", "path"]),
    (lambda: StopIteration(5), ["args", "value"]),
    (lambda: SystemExit(3), ["args", "code"]),
    (lambda: KeyboardInterrupt("x"), ["args"]),
    (lambda: GeneratorExit(), ["args"]),
    (lambda: MemoryError(), ["args"]),
    (lambda: SyntaxError("bad", ("file", 1, 2, "text")), ["args", "lineno", "text"]),
    (lambda: weft.WorkerCrashedError("x"), ["args"]),
    (lambda: weft.GetTimeoutError("x"), ["args"]),
    (lambda: weft.TaskError("x"), ["args"]),
    (lambda: weft.WeftError("x"), ["args"]),
    (lambda: Exception("x"), ["args"]),
    (lambda: BaseException("x"), ["args"]),
]


@weft.remote(max_retries=0)
def fail(make):
    raise make()


@pytest.mark.parametrize("number", range(len(CASES)))
def test_raised_as_itself(number):
    make, attributes = CASES[number]
    original = make()
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        weft.get(fail.remote(make))
    error = caught.value
    assert isinstance(error, type(original))
    assert isinstance(error, weft.TaskError)
    for name in attributes:
        assert getattr(error, name) == getattr(original, name)
    if not isinstance(original, StrRaises):
        assert repr(error) == repr(original) or isinstance(original, Unpicklable)
        assert str(error) == str(original) or isinstance(original, Unpicklable)
    printed = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert "in fail" in printed  # the user's frame
    assert "raise make()" in printed
    assert error.function_name == "fail"
    assert error.pid != os.getpid()
    assert f"pid {error.pid}" in printed


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_raised_exception_can_be_pickled_and_raised_again(number):
    make, attributes = CASES[number]

    @weft.remote(max_retries=0)
    def middle():
        weft.get(fail.remote(make))

    with pytest.raises(BaseException) as caught:  # noqa: PT011
        weft.get(middle.remote())
    error = pickle.loads(pickle.dumps(caught.value))
    for each in (caught.value, error):
        assert isinstance(each, type(make()))
        assert isinstance(each, weft.TaskError)
        for name in attributes:
            assert getattr(each, name) == getattr(make(), name)
        assert "in middle" in each.remote_traceback
        assert "in fail" in each.remote_traceback


def test_an_error_can_be_caught_in_a_task():
    @weft.remote
    def careful():
        try:
            weft.get(fail.remote(lambda: ZeroDivisionError("x")))
        except ZeroDivisionError as error:
            return f"caught {error}"

    assert weft.get(careful.remote()) == "caught x"


def test_getting_twice_raises_twice():
    ref = fail.remote(lambda: ValueError("again"))
    errors = []
    for _ in range(2):
        with pytest.raises(ValueError, match="again") as caught:
            weft.get(ref)
        errors.append(caught.value)
    assert errors[0] is not errors[1]


def test_error_of_an_argument_reaches_the_task_that_needs_it():
    @weft.remote
    def use(x):
        return x

    with pytest.raises(ValueError, match="upstream"):
        weft.get(use.remote(use.remote(fail.remote(lambda: ValueError("upstream")))))


def test_first_failure_of_a_list_is_raised():
    refs = [weft.put(1), fail.remote(lambda: KeyError("first")), fail.remote(lambda: ValueError("second"))]
    with pytest.raises(KeyError):
        weft.get(refs)


def test_causes_and_contexts_are_in_the_text():
    @weft.remote
    def chained():
        try:
            try:
                {}["missing"]
            except KeyError as error:
                raise ValueError("the middle") from error
        except ValueError:
            raise RuntimeError("the end")  # noqa: B904

    with pytest.raises(RuntimeError, match="the end") as caught:
        weft.get(chained.remote())
    text = caught.value.remote_traceback
    assert (
        text.index("KeyError: 'missing'") < text.index("ValueError: the middle") < text.index("RuntimeError: the end")
    )
    assert "direct cause" in text
    assert "During handling" in text


def test_none_of_our_frames_in_the_remote_traceback():
    @weft.remote
    def middle():
        return weft.get(fail.remote(lambda: ValueError("x")))

    with pytest.raises(ValueError) as caught:
        weft.get(middle.remote())
    package = os.path.dirname(weft.__file__)
    assert package not in caught.value.remote_traceback
    assert "/_errors.py" not in caught.value.remote_traceback
    assert "/_worker.py" not in caught.value.remote_traceback


def test_none_of_our_frames_in_the_drivers_traceback():
    with pytest.raises(ValueError) as caught:
        weft.get(fail.remote(lambda: ValueError("x")))
    frames = traceback.extract_tb(caught.value.__traceback__)
    package = os.path.dirname(weft.__file__)
    assert [frame.filename for frame in frames if frame.filename.startswith(package)] == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes and groups came with Python 3.11")
def test_notes_and_groups():
    @weft.remote
    def group():
        error = ExceptionGroup("several", [ValueError("a"), KeyError("b")])  # noqa: F821
        error.add_note("a note")
        raise error

    with pytest.raises(ExceptionGroup) as caught:  # noqa: F821
        weft.get(group.remote())
    assert caught.value.__notes__ == ["a note"]
    assert [type(e) for e in caught.value.exceptions] == [ValueError, KeyError]
    assert caught.value.split(ValueError)[0].exceptions[0].args == ("a",)


def test_exceptions_of_classes_that_are_unknown_here():
    @weft.remote
    def exotic():
        import types

        module = types.ModuleType("made_up_in_the_worker")
        sys.modules["made_up_in_the_worker"] = module
        exec("class Exotic(Exception): pass", module.__dict__)
        raise module.Exotic("the message")

    with pytest.raises(weft.TaskError) as caught:
        weft.get(exotic.remote())
    assert "Exotic" in str(caught.value) or type(caught.value).__name__ == "Exotic"
    assert "the message" in str(caught.value)


def test_local_exception_class_keeps_its_identity():
    class Local(Exception):
        pass

    @weft.remote
    def raise_local():
        raise Local("x")

    with pytest.raises(Local):
        weft.get(raise_local.remote())


def test_packing_never_raises():
    class Hostile(Exception):
        def __getattribute__(self, name):
            raise RuntimeError("hostile")

    error = _errors.task_error(_errors.pack_exception(Hostile(), "f", 1))
    assert isinstance(error, weft.TaskError)


def test_huge_exceptions_are_bounded():
    with pytest.raises(ValueError) as caught:
        weft.get(fail.remote(lambda: ValueError("x" * 5_000_000, 7)))
    assert len(caught.value.remote_traceback) < 100_000
    assert caught.value.args[0].startswith("xxx")
    assert caught.value.args[1] == 7

    def many():
        error = KeyError(*range(100_000))
        error.small = "kept"
        return error

    with pytest.raises(weft.TaskError, match="KeyError") as caught:
        weft.get(fail.remote(many))
    assert "in fail" in caught.value.remote_traceback


def test_error_classes_do_not_pile_up():
    first = _errors.task_error(_errors.pack_exception(ValueError(1), "f", 1))
    second = _errors.task_error(_errors.pack_exception(ValueError(2), "f", 1))
    assert type(first) is type(second)


def test_system_errors_by_name():
    for name in ("WorkerCrashedError", "GetTimeoutError", "OwnerDiedError", "ObjectStoreFullError"):
        with pytest.raises(getattr(weft, name), match="what happened"):
            _errors.raise_system_error(name, "what happened")
    with pytest.raises(weft.WeftError, match="Unheard"):
        _errors.raise_system_error("Unheard", "of")


def test_retry_decision():
    assert not _errors.should_retry(ValueError(), b"")
    assert _errors.should_retry(ValueError(), b"*")
    assert not _errors.should_retry(SystemExit(), b"*")
    payload = pickle.dumps((KeyError, OSError))
    assert _errors.should_retry(FileNotFoundError(), payload)
    assert not _errors.should_retry(ValueError(), payload)


def test_uncaught_error_ends_the_driver_readably(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import weft\n"
        "@weft.remote\n"
        "def broken(x):\n"
        "    return helper(x)\n"
        "def helper(x):\n"
        "    raise ValueError(f'cannot do {x}')\n"
        "weft.init(num_cpus=1)\n"
        "weft.get(broken.remote(5))\n"
    )
    driver = run_driver("", command=[sys.executable, str(script)], code=1)
    assert driver.stderr.rstrip().endswith("ValueError: cannot do 5")
    assert f'File "{script}", line 6, in helper' in driver.stderr
    assert "raise ValueError(f'cannot do {x}')" in driver.stderr
    assert f'File "{script}", line 8, in <module>' in driver.stderr
    assert os.path.dirname(weft.__file__) not in driver.stderr


def test_get_of_what_was_not_called_says_so():
    @weft.remote
    def f():
        pass

    @weft.remote
    class Actor:
        def method(self):
            pass

    assert repr(f).startswith("RemoteFunction(") and "f" in repr(f)
    actor = Actor.remote()
    for value in (f, actor.method):
        with pytest.raises(TypeError, match=r"call it first: \.remote\(\.\.\.\)"):
            weft.get(value)
    with pytest.raises(TypeError, match="call one of its methods first"):
        weft.get(actor)
