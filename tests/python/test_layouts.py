"""Structured arrays: the layout as text, and arrays that travel by it."""

from __future__ import annotations

import numpy as np
import pytest
import weft
from weft._layouts import dtype_of, layout_of

PARTICLE = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("id", "<i4")])


def test_layouts_are_those_that_cpp_writes():
    assert layout_of(PARTICLE) == "{x=<f4@0,y=<f4@4,z=<f4@8,id=<i4@12}16"
    body = np.dtype(
        [
            ("flag", "i1"),
            ("particle", np.dtype(PARTICLE.descr, align=True)),
            ("frame", "<f8", (3, 2)),
            ("kind", "<u2"),
            ("phase", "<c8"),
            ("alive", "?"),
        ],
        align=True,
    )
    inner = "{x=<f4@0,y=<f4@4,z=<f4@8,id=<i4@12}16"
    assert layout_of(body) == (
        "{flag=|i1@0,particle=" + inner + "@4,frame=<f8*2*3@24,kind=<u2@72,phase=<c8@76,alive=|b1@84}88"
    )


@pytest.mark.parametrize(
    "dtype",
    [
        PARTICLE,
        np.dtype([("a", "u1"), ("b", "<f8")], align=True),
        np.dtype([("m", "<f4", (2, 3))]),
        np.dtype([("in", [("a", "<i2"), ("b", ">i4")]), ("c", "?")]),
        np.dtype({"names": ["b", "a"], "formats": ["<i4", "<i4"], "offsets": [8, 0], "itemsize": 24}),
    ],
)
def test_layouts_become_the_same_type_again(dtype):
    assert dtype_of(layout_of(dtype)) == dtype


@pytest.mark.parametrize(
    "dtype", [np.dtype([("a", "O")]), np.dtype([("a", "U4")]), np.dtype([("a=b", "<i4")]), np.dtype("V8"), np.dtype([])]
)
def test_what_has_no_layout(dtype):
    assert layout_of(dtype) == ""


@pytest.mark.parametrize("text", ["{", "{a}4", "{a=<f4}4", "{a=<f4@0}4x", "{a=<f4@x}4"])
def test_what_is_no_layout(text):
    with pytest.raises((ValueError, IndexError, TypeError)):
        dtype_of(text)


@pytest.mark.parametrize("count", [0, 3, 100_000])
def test_structured_arrays_travel_in_place(session, count):
    @weft.remote
    def total(particles):
        assert particles.dtype == PARTICLE
        return int(particles["id"].sum()), particles.flags.writeable, particles

    array = np.zeros(count, PARTICLE)
    array["id"] = np.arange(count)
    got_sum, writeable, back = weft.get(total.remote(array))
    assert got_sum == count * (count - 1) // 2
    assert not writeable
    assert back.dtype == PARTICLE
    assert (back == array).all()
    one, two = weft.get([weft.put(array)] * 2)
    assert one.dtype == PARTICLE
    assert count < 10_000 or one.ctypes.data == two.ctypes.data


def test_arrays_with_gaps_travel_dense(session):
    array = np.arange(1000.0).reshape(10, 100)[:, ::2]
    got = weft.get(weft.put(array))
    assert (got == array).all()
    assert got.flags.c_contiguous
    objects = np.array([{"a": 1}, None, "x"], dtype=object)[::2]
    assert list(weft.get(weft.put(objects))) == [{"a": 1}, "x"]


def test_errors_of_cpp_are_raised_with_their_stack():
    from weft._errors import _Packed, task_error

    fields = ("std::out_of_range", "no place 7", "Nth", 123, "    at Nth(int) (program+0x12)", ["std::logic_error"])
    error = task_error(_Packed(*fields, None, "it is an exception of C++").dumps())
    assert isinstance(error, weft.TaskError)
    assert "std::out_of_range: no place 7 (thrown by task Nth, pid 123)" in str(error)
    assert "at Nth(int) (program+0x12)" in str(error.__cause__)
    assert error.cause_type == "std::out_of_range"
