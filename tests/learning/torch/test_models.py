"""weft.util.weights of PyTorch modules."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import weft
from weft.util import weights


def module(**options):
    return torch.nn.Sequential(torch.nn.Linear(4, 3, **options), torch.nn.BatchNorm1d(3, **options))


def test_weights_go_from_one_module_to_another():
    one, other = weights(module()), weights(module())
    one.model(torch.rand(5, 4))  # BatchNorm counts its batches
    assert one.shapes["0.weight"] == (3, 4) and one.get_flat_size() == 28 == len(one.get_flat())
    assert one.get_flat().dtype == np.float32
    other.set_flat(one.get_flat())
    assert all(torch.equal(a, b) for a, b in zip(one.model.state_dict().values(), other.model.state_dict().values()))
    assert other.model.state_dict()["1.num_batches_tracked"].item() == 1
    other.set_weights({"0.bias": [1, 2, 3]})
    assert other.model[0].bias.tolist() == [1, 2, 3] and other.model[0].bias.requires_grad
    with pytest.raises(ValueError, match="no weight '2.bias'"):
        other.set_weights({"2.bias": [1]})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types(dtype):
    one, other = weights(module(dtype=dtype)), weights(module(dtype=dtype))
    other.set_flat(one.get_flat())
    assert torch.equal(one.model[0].weight, other.model[0].weight) and other.model[0].weight.dtype == dtype
    other.set_weights(one.get_weights())


def test_a_vector_of_the_store_is_read_without_a_warning(no_session):
    weft.init(num_cpus=1)
    own = weights(torch.nn.Linear(1000, 100))
    vector = weft.get(weft.put(own.get_flat()))
    assert not vector.flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.set_flat(vector)
        own.set_weights({"bias": vector[:100]})
    own.model.weight.data.fill_(1)  # the module's memory is its own
    assert own.model.bias.tolist() == vector[:100].tolist()
