"""Values keep their type, identity and contents; large ones are shared and read-only."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import threading

import pytest
import weft

pytestmark = pytest.mark.usefixtures("session")


@weft.remote
def identity(x):
    return x


class Int(int):
    pass


class Str(str):
    pass


class List(list):
    pass


class Dict(dict):
    pass


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    name: str
    items: list


VALUES = [
    None, True, False, 0, 1, -1, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**63, 2**64, -(2**64), 10**300, 0.0, -0.0, 1.5,
    float("inf"), 1 + 2j, "", "text", "ü€😀", "\0", "\ud800", "x" * 100_000, b"", b"bytes\0", b"x" * 2_000_000,
    bytearray(b"abc"), [], [1, [2, [3]]], (), (1,), (1, (2,)), {}, {"a": 1, 2: "b", None: [], (1, 2): {}}, set(),
    {1, 2}, frozenset({1}), range(5), slice(1, 2, 3), Ellipsis, int, len, Int(5), Str("s"), List([1]), Dict(a=1),
    Colour.RED,     Number.ONE, Point(1, 2), Record("r", [1]), datetime.datetime(2020, 1, 2, 3),
    decimal.Decimal("1.10"),     fractions.Fraction(1, 3), pathlib.Path("/a"), collections.OrderedDict(a=1),
    collections.Counter("aab"),     collections.deque([1, 2], maxlen=3), [1, "a", None, True, 2.5, b"b", (1, 2), {"k":
    [False]}],     ValueError("as a value"),
]  # fmt: skip


def same(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, BaseException):
        return repr(a) == repr(b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b and repr(a) == repr(b)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_round_trips(value):
    assert same(weft.get(weft.put(value)), value)
    assert same(weft.get(identity.remote(value)), value)
    assert same(weft.get(identity.remote([value, (value,)])), [value, (value,)])


def test_nan():
    value = weft.get(identity.remote(float("nan")))
    assert value != value


def test_identity_inside_a_value():
    shared = [1]
    for value in ([shared, shared], (shared, {"a": shared}), {"a": shared, "b": [shared]}):
        for again in (weft.get(weft.put(value)), weft.get(identity.remote(value))):
            first, second = list(again.values() if isinstance(again, dict) else again)[:2]
            second = second["a"] if isinstance(second, dict) else second
            second = second[0] if second and isinstance(second[0], list) else second
            assert first is second


def test_value_that_contains_itself():
    value: list = [1]
    value.append(value)
    for again in (weft.get(weft.put(value)), weft.get(identity.remote(value))):
        assert again[1] is again


def test_deeply_nested():
    value: list = []
    for _ in range(200):
        value = [value]
    again = weft.get(identity.remote(value))
    for _ in range(200):
        (again,) = again
    assert again == []


def test_too_deeply_nested_is_a_clear_error():
    value: list = []
    for _ in range(200_000):
        value = [value]
    with pytest.raises((TypeError, ValueError, RecursionError), match="nested|recursion|deep"):
        weft.put(value)
    while value:
        value = value[0]  # or its destruction would recurse


def test_mutating_after_put_changes_nothing():
    value = [1, 2]
    ref = weft.put(value)
    value.append(3)
    assert weft.get(ref) == [1, 2]
    weft.get(ref).append(4)
    assert weft.get(ref) == [1, 2]


def test_local_classes_and_their_instances():
    class Local:
        def __init__(self, x):
            self.x = x

        def double(self):
            return self.x * 2

    @weft.remote
    def use(obj, cls):
        return obj.double(), cls(5), cls

    doubled, instance, cls = weft.get(use.remote(Local(4), Local))
    assert doubled == 8
    assert isinstance(instance, Local)
    assert cls is Local


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: threading.Lock(), ["lock"]),
        (lambda: {"config": [1, {"deep": threading.Lock()}]}, ["lock", "['config'][1]['deep']"]),
        (lambda: (i for i in range(3)), ["generator"]),
        (lambda: Record("r", [threading.Lock()]), ["lock", ".items[0]"]),
    ],
)
def test_what_cannot_be_pickled(make, words):
    value = make()
    with pytest.raises(TypeError) as caught:
        weft.put(value)
    for word in words:
        assert word in str(caught.value)
    with pytest.raises(TypeError, match=words[0]):
        identity.remote(value)
    with pytest.raises(TypeError, match=words[0]):
        identity.remote(x=value)
    assert weft.get(identity.remote(1)) == 1


def test_results_that_cannot_be_pickled():
    @weft.remote
    def lock():
        return [threading.Lock()]

    with pytest.raises(TypeError, match="lock"):
        weft.get(lock.remote())


class ReduceRaises:
    def __reduce__(self):
        raise ZeroDivisionError("in __reduce__")


def load_raises():
    raise ZeroDivisionError("while loading")


class LoadRaises:
    def __reduce__(self):
        return load_raises, ()


def test_objects_that_break_while_pickling():
    with pytest.raises(TypeError, match="in __reduce__") as caught:
        weft.put(ReduceRaises())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_objects_that_break_while_unpickling():
    with pytest.raises(Exception, match="while loading"):
        weft.get(weft.put(LoadRaises()))
    with pytest.raises(weft.TaskError, match="while loading"):
        weft.get(identity.remote(LoadRaises()))
    assert weft.get(identity.remote(1)) == 1


# ---- arrays ---------------------------------------------------------------------------------------------------------

numpy = pytest.importorskip("numpy")

ARRAYS = {
    "large": lambda: numpy.arange(1_000_000, dtype="f8"),
    "small": lambda: numpy.arange(3),
    "empty": lambda: numpy.empty((0, 5), "f4"),
    "scalar": lambda: numpy.array(3.5),
    "matrix": lambda: numpy.arange(12, dtype="i2").reshape(3, 4),
    "fortran": lambda: numpy.asfortranarray(numpy.arange(200_000.0).reshape(400, 500)),
    "strided": lambda: numpy.arange(200_000.0)[::2],
    "reversed": lambda: numpy.arange(10)[::-1],
    "transposed": lambda: numpy.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    "slice": lambda: numpy.arange(10_000).reshape(100, 100)[10:20, 5:50],
    "bool": lambda: numpy.array([True, False]),
    "complex": lambda: numpy.array([1 + 2j]),
    "big endian": lambda: numpy.arange(5, dtype=">i4"),
    "text": lambda: numpy.array(["a", "bcd"]),
    "bytes": lambda: numpy.array([b"a", b"bcd"]),
    "dates": lambda: numpy.array(["2020-01-01", "NaT"], "M8[D]"),
    "structured": lambda: numpy.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    "objects": lambda: numpy.array([1, None, "x"], dtype=object),
    "broadcast": lambda: numpy.broadcast_to(numpy.arange(3), (4, 3)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name):
    array = ARRAYS[name]()
    for wrap, unwrap in ((lambda a: a, lambda v: v), (lambda a: {"k": [a]}, lambda v: v["k"][0])):
        for again in (unwrap(weft.get(weft.put(wrap(array)))), unwrap(weft.get(identity.remote(wrap(array))))):
            assert type(again) is numpy.ndarray
            assert again.dtype == array.dtype
            assert again.shape == array.shape
            numpy.testing.assert_array_equal(again, array)
            if not array.dtype.hasobject:
                assert not again.flags.writeable


def test_fortran_order_is_kept():
    array = ARRAYS["fortran"]()
    assert weft.get(weft.put(array)).flags.f_contiguous


def address(array) -> int:
    return array.__array_interface__["data"][0]


def test_arrays_are_shared_not_copied():
    ref = weft.put(numpy.arange(1_000_000.0))
    first, second = weft.get(ref), weft.get(ref)
    assert address(first) == address(second)
    assert address(first) % 64 == 0
    inside = weft.put({"a": numpy.arange(1_000_000.0)})
    assert address(weft.get(inside)["a"]) == address(weft.get(inside)["a"])
    assert address(weft.get(inside)["a"]) % 64 == 0


def test_arrays_are_read_only():
    array = weft.get(weft.put(numpy.zeros(1000)))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE|writeable|cannot set"):
        array.flags.writeable = True


def test_arrays_in_tasks_are_read_only():
    @weft.remote
    def write(array):
        array[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        weft.get(write.remote(numpy.zeros(1_000_000)))


def test_array_outlives_its_reference():
    import gc

    array = weft.get(weft.put(numpy.full(1_000_000, 7.0)))
    gc.collect()
    for _ in range(8):  # would take the memory if it were free
        weft.put(numpy.zeros(1_000_000))
    assert (array == 7.0).all()
    view = array[10:20]
    del array
    gc.collect()
    weft.put(numpy.zeros(1_000_000))
    assert (view == 7.0).all()


def test_array_through_a_chain_of_tasks():
    @weft.remote
    def grow(array):
        return array + 1

    ref = weft.put(numpy.zeros(500_000))
    for _ in range(5):
        ref = grow.remote(ref)
    assert (weft.get(ref) == 5).all()


def test_array_subclasses_and_scalars():
    masked = numpy.ma.masked_array([1, 2, 3], [False, True, False])
    again = weft.get(identity.remote(masked))
    assert type(again) is type(masked)
    assert again.mask.tolist() == [False, True, False]
    value = weft.get(identity.remote(numpy.float32(1.5)))
    assert type(value) is numpy.float32


def test_empty_is_put_in_place():
    array = weft.empty((1000, 1000), "f4")
    assert array.shape == (1000, 1000)
    assert array.dtype == numpy.float32
    array[:] = 3
    ref = weft.put(array)
    again = weft.get(ref)
    assert (again == 3).all()
    assert not again.flags.writeable


def test_empty_turns_read_only():
    array = weft.empty(1_000_000)
    array[:] = 1
    ref = weft.put(array)
    again = weft.get(ref)
    # The writer's old name must not be a way to change what others see: it is either read-only or separate.
    try:
        array[0] = 99
    except ValueError:
        pass
    assert again[0] == 1
    assert weft.get(ref)[0] == 1


def test_empty_with_other_views_copies():
    array = weft.empty(1_000_000)
    view = array[:10]
    array[:] = 1
    ref = weft.put(array)
    view[:] = 5
    assert (weft.get(ref) == 1).all()


def test_empty_in_a_task():
    @weft.remote
    def make(n):
        array = weft.empty(n, "i8")
        array[:] = numpy.arange(n)
        return array

    again = weft.get(make.remote(200_000))
    assert (again == numpy.arange(200_000)).all()
    assert not again.flags.writeable


def test_empty_refuses_wrong_arguments():
    assert weft.empty(0).shape == (0,)
    assert weft.empty(()).shape == ()
    for shape in (-1, (2, -1)):
        with pytest.raises(ValueError, match="shape"):
            weft.empty(shape)
    for shape in (1.5, "3", None, True, (2, "a")):
        with pytest.raises(TypeError, match="shape"):
            weft.empty(shape)
    with pytest.raises(TypeError, match="dtype|data type"):
        weft.empty(3, "nonsense")
    with pytest.raises(TypeError, match="dtype"):
        weft.empty(3, object)
    with pytest.raises((ValueError, weft.ObjectStoreFullError)):
        weft.empty(2**62)


def test_pyarrow_tables_are_shared():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"x": numpy.arange(200_000.0), "s": ["abc", None] * 100_000})
    ref = weft.put(table)
    first, second = weft.get(ref), weft.get(ref)
    assert first.equals(table)
    buffers = [[buffer.address for buffer in t.column("x").chunk(0).buffers() if buffer] for t in (first, second)]
    assert buffers[0] == buffers[1]
    assert weft.get(identity.remote(ref)).equals(table)


def test_numeric_pandas_columns_are_shared():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": numpy.arange(200_000.0), "y": numpy.arange(200_000), "s": ["a", "b"] * 100_000})
    frame["t"] = pandas.Timestamp("2020-01-01")
    ref = weft.put(frame)
    first, second = weft.get(ref), weft.get(ref)
    pandas.testing.assert_frame_equal(first, frame)
    for column in ("x", "y"):
        assert address(first[column].to_numpy()) == address(second[column].to_numpy())
    assert weft.get(weft.remote(lambda f: f["x"].sum()).remote(ref)) == frame["x"].sum()


def test_object_larger_than_the_store(no_session):
    weft.init(num_cpus=1, object_store_memory=64 << 20)
    with pytest.raises(weft.ObjectStoreFullError):
        weft.put(numpy.zeros(128 << 20, "u1"))

    @weft.remote
    def large():
        return numpy.zeros(128 << 20, "u1")

    with pytest.raises(weft.ObjectStoreFullError):
        weft.get(large.remote(), timeout=60)
    assert (weft.get(weft.put(numpy.ones(1 << 20))) == 1).all()


def test_store_memory_is_used_again(no_session):
    weft.init(num_cpus=1, object_store_memory=64 << 20)
    for i in range(50):
        array = numpy.full(16 << 20, i, "u1")
        assert weft.get(weft.put(array))[-1] == i


def test_same_large_argument_again_and_again_warns_once():
    array = numpy.zeros(2_000_000)
    with pytest.warns(UserWarning, match="put") as caught:
        weft.get([identity.remote(array) for _ in range(20)])
    assert len([w for w in caught if "put" in str(w.message)]) == 1


def test_put_of_an_array_made_in_place_takes_no_more_memory():
    array = weft.empty(1_000_000)
    array[:] = 7
    before = weft._core.stats()["store_bytes"]
    ref = weft.put(array)
    assert weft._core.stats()["store_bytes"] == before  # nothing was allocated, so nothing was copied
    assert not array.flags.writeable
    assert weft.get(ref)[-1] == 7


def test_put_of_an_array_made_in_place_with_another_view_copies():
    array = weft.empty(1_000_000)
    view = array[10:]
    array[:] = 7
    before = weft._core.stats()["store_bytes"]
    ref = weft.put(array)
    assert weft._core.stats()["store_bytes"] > before
    view[0] = 8  # still the caller's own
    assert weft.get(ref)[10] == 7
