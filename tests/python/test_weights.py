"""weft.util.weights on dictionaries and trees of arrays; the frameworks' models are in tests/learning."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import weft
from weft.util import weights

MEGABYTES = 100


def tree():
    return {"dense": {"kernel": np.ones((2, 3), "f"), "bias": np.zeros(3, "f")}, "steps": [np.array(7)]}


def test_names_shapes_and_values():
    own = weights(tree())
    assert own.shapes == {"dense/kernel": (2, 3), "dense/bias": (3,), "steps/0": ()}
    assert own.get_flat_size() == 10
    assert own.get_weights()["dense/kernel"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert "3 arrays, 10 numbers" in repr(own)


def test_flat_there_and_back():
    one, other = weights(tree()), weights(tree())
    vector = one.get_flat()
    assert vector.dtype == np.float32 and vector.tolist() == [1] * 6 + [0] * 3 + [7]
    other.set_flat(vector * 2)
    assert other.model["steps"][0] == 14 and other.model["steps"][0].dtype.kind == "i"
    assert (other.model["dense"]["kernel"] == 2).all()


def test_arrays_are_written_in_place_and_read_only_ones_replaced():
    model = tree()
    kernel, bias = model["dense"]["kernel"], model["dense"]["bias"]
    bias.flags.writeable = False
    weights(model).set_flat(np.arange(10))
    assert model["dense"]["kernel"] is kernel and kernel.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert model["dense"]["bias"].tolist() == [6, 7, 8] and bias.tolist() == [0, 0, 0]


def test_tuples_are_made_anew():
    Layer = namedtuple("Layer", ["kernel", "bias"])
    own = weights(Layer(np.zeros(2), (1.5, None)))
    own.set_flat([1, 2, 3])
    assert isinstance(own.model, Layer) and own.model.kernel.tolist() == [1, 2] and own.model.bias == (3.0, None)


def test_a_subset_is_set_and_nothing_if_one_does_not_fit():
    own = weights(tree())
    own.set_weights({"dense/bias": [1, 2, 3]})
    assert own.model["dense"]["bias"].tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"'dense/kernel' has the shape \(3, 2\), the network's has \(2, 3\)"):
        own.set_weights({"dense/bias": np.zeros(3), "dense/kernel": np.zeros((3, 2))})
    with pytest.raises(ValueError, match="none was set: 'dense/kernel' is of <U1"):
        own.set_weights({"dense/bias": np.zeros(3), "dense/kernel": np.full((2, 3), "x")})
    with pytest.raises(ValueError, match="no weight 'dense/other'.*set_flat"):
        own.set_weights({"dense/bias": np.zeros(3), "dense/other": 1})
    assert own.model["dense"]["bias"].tolist() == [1, 2, 3]


def test_get_weights_is_a_copy():
    own = weights(tree())
    own.get_weights()["dense/bias"][:] = 9
    assert own.model["dense"]["bias"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "model, message",
    [
        (object(), "not object"),
        ({"a": "text"}, "'a' is no array, but str"),
        ({"a/b": np.zeros(1), "a": {"b": np.zeros(1)}}, None),
    ],
)
def test_what_has_no_weights_says_so(model, message):
    with pytest.raises((TypeError, ValueError), match=message or "two weights have the name 'a/b'"):
        weights(model)


def test_a_wrong_vector_says_so():
    with pytest.raises(ValueError, match=r"all 10 weights.*\(3,\)"):
        weights(tree()).set_flat(np.zeros(3))
    with pytest.raises(TypeError, match="set_flat"):
        weights(tree()).set_weights(np.zeros(10))


def test_counters_that_do_not_fit_into_the_vector_are_refused():
    with pytest.raises(ValueError, match="'steps'.*cannot hold exactly"):
        weights({"kernel": np.zeros(2, "f"), "steps": np.array(2**24 + 1)}).get_flat()


@weft.remote
class Holder:
    def __init__(self):
        self.weights = weights({"kernel": np.zeros((MEGABYTES, 250_000), "f")})

    def set_flat(self, vector):
        assert not vector.flags.owndata and not vector.flags.writeable
        self.weights.set_flat(vector)
        return float(self.weights.model["kernel"][-1, -1])

    def get_flat(self):
        return self.weights.get_flat()


def test_a_vector_for_four_actors_is_in_the_store_once(no_session):
    """100 MB: made there by get_flat, taken by put as it is, and read where it lies by all."""
    weft.init(num_cpus=4, object_store_memory=(MEGABYTES * 3 // 2) * 1_000_000)  # no room for a second one
    before = weft._core.stats()["store_bytes"]
    own = weights({"kernel": np.full((MEGABYTES, 250_000), 3, "f")})
    ref = weft.put(own.get_flat())
    taken = weft._core.stats()["store_bytes"] - before
    assert MEGABYTES * 1_000_000 <= taken < MEGABYTES * 1_050_000
    holders = [Holder.remote() for _ in range(4)]
    assert weft.get([holder.set_flat.remote(ref) for holder in holders]) == [3.0] * 4
    assert weft._core.stats()["store_bytes"] - before == taken
    del ref
    assert weft.get(holders[0].get_flat.remote())[-1] == 3.0
