"""References inside values: they keep identity, equality and what they refer to, in any native container and in any
number."""

from __future__ import annotations

import gc
import weakref

import pytest
import weft
from helpers import wait_until
from weft import _core

pytestmark = pytest.mark.usefixtures("session")


@weft.remote
def identity(x):
    return x


@weft.remote
def make(count):
    return [weft.put(i) for i in range(count)]


@weft.remote
def total(refs, more=()):
    return sum(weft.get(list(refs))) + sum(weft.get(list(more)))


@weft.remote
def describe(box):
    """What a task sees: types, and which handles are the same."""
    return [type(item).__name__ for item in box], [[a is b for b in box] for a in box], [a == box[0] for a in box]


class Box:
    """Not native: goes by pickle, with everything around it."""

    def __init__(self, content):
        self.content = content


WAYS = {
    "put": lambda value: weft.get(weft.put(value)),
    "returned": lambda value: weft.get(identity.remote(value)),
    "pickled": lambda value: weft.get(weft.put(Box(value))).content,
    "returned pickled": lambda value: weft.get(identity.remote(Box(value))).content,
}


@pytest.mark.parametrize("way", WAYS)
def test_containers_of_references(way):
    a, b, c = (weft.put(i) for i in range(3))
    for value in (
        [a],
        (a, b),
        {"key": a},
        {a: 1, (b, c): 2},
        {a, b},
        frozenset({a, (b, frozenset({c}))}),
        [1, "text", {"deep": [(a, {"deeper": {b}})]}, 2**100],
        [],
    ):
        again = WAYS[way](value)
        assert again == value
        assert type(again) is type(value)


@pytest.mark.parametrize("way", WAYS)
def test_one_handle_stays_one_handle(way):
    a, b = weft.put(1), weft.put(2)
    first, second, third, inner = WAYS[way]([a, b, a, [a, b]])
    assert first is third and first is inner[0] and second is inner[1] and first is not second
    assert (first, second) == (a, b)


def test_what_a_task_sees():
    a, b = weft.put(1), weft.put(2)
    names, same, equal = weft.get(describe.remote([a, b, a]))
    assert names == ["ObjectRef"] * 3
    assert same == [[True, False, True], [False, True, False], [True, False, True]]
    assert equal == [True, False, True]


@pytest.mark.parametrize("count", [1, 900, 1000, 1001, 10_000])
def test_many_references(count):
    mine = [weft.put(i) for i in range(count)]
    for way in WAYS.values():
        assert way(mine) == mine
    assert weft.get(total.remote(mine)) == sum(range(count))
    assert weft.get(total.remote(mine[:1], more=mine)) == sum(range(count))
    theirs = weft.get(make.remote(count))
    assert weft.get(theirs) == list(range(count))
    assert weft.get(total.remote(theirs)) == sum(range(count))
    assert weft.get(identity.remote({ref: i for i, ref in enumerate(mine)})) == {ref: i for i, ref in enumerate(mine)}
    assert weft.get(identity.remote(set(mine))) == set(mine)


def test_many_arguments_with_references():
    groups = [[weft.put(i) for i in range(500)] for _ in range(12)]  # more than goes into the arguments themselves

    @weft.remote
    def count(*groups, **named):
        return sum(len(weft.get(group)) for group in (*groups, *named.values()))

    assert weft.get(count.remote(*groups, last=groups[0])) == 13 * 500


def test_a_mixed_list_goes_by_pickle():
    refs = [weft.put(i) for i in range(1500)]
    mixed = [*refs, *range(100)]
    assert weft.get(identity.remote(mixed)) == mixed
    strings = [[f"text {i}", ref] for i, ref in enumerate(refs[:100])]
    assert weft.get(identity.remote(strings)) == strings


def test_references_of_pending_tasks(gate):
    from helpers import hold

    @weft.remote
    def wait_and_return(path, x):
        hold(path)
        return x

    pending = wait_and_return.remote(gate.path, 7)
    inside = weft.get(weft.put([pending, pending]))
    travelled = weft.get(identity.remote([pending]))
    gate.open()
    assert weft.get([*inside, *travelled], timeout=30) == [7, 7, 7]


def test_what_holds_references_keeps_objects_and_no_longer():
    def live():
        gc.collect()
        return _core.stats()["live_objects"]

    weft.get(identity.remote(1))
    before = live()
    for way in WAYS.values():
        refs = [weft.put(i) for i in range(2000)]
        box = weft.put(refs)
        again = way(refs)
        del refs
        assert weft.get(again) == list(range(2000))
        del again
        assert weft.get(weft.get(box)) == list(range(2000))  # the value holds them still
        del box
    wait_until(lambda: live() <= before, what="objects that only values held are freed")


def test_handles_inside_values_can_be_watched_weakly():
    ref = weft.get(weft.put([weft.put(1)]))[0]
    watch = weakref.ref(ref)
    assert watch() is ref
    del ref
    assert watch() is None


def test_wait_refuses_two_handles_of_one_object():
    a = weft.put(1)
    twin = weft.get(weft.put([a]))[0]
    assert twin == a and twin is not a and hash(twin) == hash(a)
    with pytest.raises(ValueError, match="same object"):
        weft.wait([a, twin], num_returns=2)


def test_reference_of_an_ended_session_in_a_value(no_session):
    weft.init(num_cpus=2)
    old = weft.put(1)
    weft.shutdown()
    weft.init(num_cpus=2)
    for call in (lambda: weft.put([old]), lambda: identity.remote([old]), lambda: weft.put({old, 1})):
        with pytest.raises(RuntimeError, match="session that has ended"):
            call()


@pytest.mark.parametrize(
    "number",
    [
        2**63 - 1,
        2**63,
        2**64 - 1,
        2**64,
        -(2**63),
        -(2**63) - 1,
        -(2**64),
        255 << 64,
        -(255 << 64),
        2**4000,
        -(3**9000),
    ],
)
def test_integers_of_any_size(number):
    for value in (number, [number, 1], {number: number}):
        assert weft.get(weft.put(value)) == value
        assert weft.get(identity.remote(value)) == value


def test_sets_keep_type_and_identity():
    inner = frozenset({1, "a", None, (2, 3)})
    value = [inner, {"x": inner}, {inner, 2.5}, set(), frozenset()]
    for again in (weft.get(weft.put(value)), weft.get(identity.remote(value))):
        assert again == value
        assert [type(item) for item in again] == [type(item) for item in value]
        assert again[0] is again[1]["x"] and again[0] in again[2]
        again[2].add(1)  # a set of its own


class Submits:
    """Calls a remote function while it is being pickled."""

    def __init__(self, ref):
        self.ref = ref

    def __reduce__(self):
        return int, (weft.get(identity.remote([self.ref, 5]))[1],)


def test_a_call_inside_the_encoding_of_a_call():
    @weft.remote
    def collect(*args, **named):
        return args, named

    ref = weft.put(1)
    args, named = weft.get(collect.remote("first", [ref], Submits(ref), "last", key=Submits(ref), ref=[ref]))
    assert args == ("first", [ref], 5, "last")
    assert named == {"key": 5, "ref": [ref]}
