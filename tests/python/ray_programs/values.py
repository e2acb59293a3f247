import builtins
import collections
import datetime
import enum

import numpy as np
import ray

KINDS = """
    ValueError TypeError AttributeError
""".split()


def show(label, call):
    try:
        print(label, "->", call())
    except Exception as error:
        kinds = [
            name for name in KINDS if isinstance(error, getattr(builtins, name, None) or getattr(ray.exceptions, name))
        ]
        print(label, "raises", *kinds)


class Colour(enum.Enum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


class Node:
    def __init__(self, value):
        self.value = value
        self.me = self


@ray.remote
def same(value):
    return value


@ray.remote
def write_into(array):
    array[0] = 1


@ray.remote
def describe(value):
    return type(value).__name__


def round_trip(value):
    return ray.get(same.remote(value))


ray.init(num_cpus=2, log_to_driver=False)
for value in [
    None, True, 1, 2**70, -1.5, float("inf"), 1 + 2j, "text", "日本", b"bytes", (1, [2, {3: 4}]), {1, 2},
    frozenset({3}), {"a": {"b": ()}}, range(3), Point(1, 2), Colour.RED, datetime.date(2018, 12, 13), slice(1, 2), ...,
    NotImplemented,
]:  # fmt: skip
    show(repr(value), lambda value=value: (round_trip(value) == value, type(round_trip(value)) is type(value)))

array = np.arange(200_000, dtype=np.float32).reshape(400, 500)
show("array", lambda: (np.array_equal(round_trip(array), array), round_trip(array).dtype, round_trip(array).shape))
show("array is writable", lambda: ray.get(ray.put(array)).flags.writeable)
show("array in a dict is writable", lambda: ray.get(ray.put({"a": array}))["a"].flags.writeable)
show("writing into an argument", lambda: ray.get(write_into.remote(ray.put(array))))
show("Fortran order", lambda: round_trip(np.asfortranarray(array)).flags.f_contiguous)
show("array of objects", lambda: list(round_trip(np.array([1, "a", None], dtype=object))))
show("zero-dimensional", lambda: round_trip(np.array(5)).shape)
show("scalar", lambda: type(round_trip(np.float32(1.5))).__name__)
show("lambda", lambda: round_trip(lambda x: x + 1)(1))
show("closure", lambda: round_trip((lambda n: lambda: n)(5))())
show("class", lambda: round_trip(Node)(3).value)
show("a cycle", lambda: (lambda node: node.me is node)(round_trip(Node(1))))
show("identity in a list", lambda: (lambda pair: pair[0] is pair[1])(round_trip([array, array])))
show("a module", lambda: round_trip(datetime).__name__)
show("an exception as value", lambda: repr(round_trip(ValueError("x"))))
show("a remote function as value", lambda: ray.get(round_trip(same).remote(9)))
show("a reference in a dict", lambda: ray.get(round_trip({"r": ray.put(8)})["r"]))
show("a generator cannot be sent", lambda: same.remote(i for i in range(3)))
show("a lock cannot be sent", lambda: ray.put(__import__("threading").Lock()))
ray.shutdown()
