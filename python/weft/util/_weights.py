"""weft.util.weights: the weights of a model, read and set by name or as one vector, whatever made the model.

Keras models, PyTorch modules, dictionaries of arrays and trees of them (JAX's pytrees). Called by users, in drivers and
actors. Imports no framework: a model can only be there if its framework was imported already. Graphs of TensorFlow 1
have ray.experimental.TensorFlowVariables.
"""

from __future__ import annotations

import sys

from . import _flat

__all__ = ["Weights", "weights"]


def weights(model) -> Weights:
    """Access to the weights of a model: a Keras model or layer, a PyTorch module, a dictionary of arrays, or a tree of
    dictionaries, lists and tuples (with JAX imported: any pytree).

    `get_weights()` is a dictionary of arrays and `get_flat()` one vector, to be sent between processes instead of the
    model; `set_weights` and `set_flat` put them into another model of the same kind.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return _Torch(model)
    for name in ("keras", "tf_keras"):
        keras = sys.modules.get(name)
        kinds = tuple(getattr(keras, kind) for kind in ("Layer", "Model") if hasattr(keras, kind))
        kinds += tuple(filter(None, [getattr(getattr(keras, "layers", None), "Layer", None)]))
        if kinds and isinstance(model, kinds):
            return _Keras(model)
    if isinstance(model, (dict, list, tuple)) or "jax" in sys.modules:
        return _Tree(model)
    raise TypeError(
        f"weft.util.weights knows Keras models, PyTorch modules and dictionaries or trees of arrays, not "
        f"{type(model).__name__}"
    )


class Weights:
    """The weights of one model; made by weft.util.weights."""

    def __init__(self, model):
        self.model = model
        """The model. Of what cannot be changed in place (tuples, JAX's arrays at the top) a new one after each set."""

    def __repr__(self):
        return f"<weights of a {type(self.model).__name__}: {len(self.shapes)} arrays, {self.get_flat_size()} numbers>"

    @property
    def shapes(self) -> dict:
        """The shape of each weight by name, in the order that get_flat has."""
        return {name: tuple(array.shape) for name, array in self._read().items()}

    def get_flat_size(self) -> int:
        """How many numbers the weights have together."""
        return sum(_flat.size_of(shape) for shape in self.shapes.values())

    def get_flat(self):
        """All weights, one after the other, as one vector. Large ones are made in the store: `put`, and `return` in a
        task, copy them no more."""
        return _flat.join([(name, self._array(weight)) for name, weight in self._read().items()])

    def set_flat(self, vector) -> None:
        """Set all weights from a vector as get_flat gives it."""
        self._write(_flat.split(vector, self.shapes))

    def get_weights(self) -> dict:
        """A copy of each weight as a NumPy array, by name."""
        import numpy

        return {name: numpy.array(self._array(weight)) for name, weight in self._read().items()}

    def set_weights(self, new_weights) -> None:
        """Set the weights that are named; others stay. Nothing is set if a name or a shape does not fit."""
        if not hasattr(new_weights, "items"):
            raise TypeError(
                f"set_weights takes a dictionary, name to array, not {type(new_weights).__name__}; a vector of all "
                "weights is set by set_flat"
            )
        shapes = self.shapes
        unknown = [name for name in new_weights if name not in shapes]
        if unknown:
            raise ValueError(
                f"this model has no weight {_flat.listed(unknown)}; none was set. It has {_flat.listed(shapes)}. "
                "Models that are built alike but named differently take set_flat, which needs no names"
            )
        self._write(_flat.check_shapes(dict(new_weights.items()), shapes))

    # ---- of each kind -----------------------------------------------------------------------------------------------

    def _read(self) -> dict:
        """The weights as the framework has them, by name."""
        raise NotImplementedError

    def _array(self, weight):
        """One of them as a NumPy array, without a copy if that is possible."""
        import numpy

        return numpy.asarray(weight)

    def _write(self, arrays: dict) -> None:
        """Set those that are named; names and shapes are right."""
        raise NotImplementedError


class _Torch(Weights):
    """Parameters and buffers, by the names of state_dict."""

    def _read(self) -> dict:
        import torch  # type: ignore[import-not-found,unused-ignore]

        return {name: value for name, value in self.model.state_dict().items() if isinstance(value, torch.Tensor)}

    def _array(self, weight):
        import torch

        weight = weight.detach()
        if weight.dtype == torch.bfloat16:  # NumPy has none
            weight = weight.float()
        return weight.cpu().numpy()

    def _write(self, arrays: dict) -> None:
        import numpy
        import torch

        own = self._read()
        with torch.no_grad():
            for name, array in arrays.items():
                weight = own[name]
                if weight.device.type == "cpu" and weight.dtype != torch.bfloat16:
                    # Through NumPy: torch warns of arrays that it must not write to, as those of the store are.
                    numpy.copyto(weight.numpy(), array, casting="unsafe")
                else:
                    weight.copy_(torch.from_numpy(numpy.array(array)))


class _Keras(Weights):
    """All weights of a model or layer, the trainable ones and others, by path: `dense/kernel`."""

    def _read(self) -> dict:
        found = list(self.model.weights)
        if not found and not getattr(self.model, "built", True):
            raise ValueError(
                "this Keras model has no weights yet: call model.build(input_shape), or the model on some data, first"
            )
        named: dict = {}
        for weight in found:
            name = getattr(weight, "path", None) or weight.name
            number = 1
            while name in named:  # layers may share a name
                name = f"{getattr(weight, 'path', None) or weight.name}_{number}"
                number += 1
            named[name] = weight
        return named

    def _array(self, weight):
        import numpy

        return numpy.asarray(weight.numpy() if hasattr(weight, "numpy") else weight)

    def _write(self, arrays: dict) -> None:
        own = self._read()
        for name, array in arrays.items():
            own[name].assign(array)


class _Tree(Weights):
    """Arrays in dictionaries, lists and tuples, by path: `layer/0/kernel`. Dictionaries and lists keep their identity,
    and NumPy arrays that can be written to are written to; a tree with classes of JAX's is made anew."""

    def __init__(self, model):
        super().__init__(model)
        self._read()  # says at once what is no array

    def _leaves(self) -> list:
        self._shape = None
        if isinstance(self.model, (dict, list, tuple)):
            leaves = list(_walk(self.model, ()))
            if "jax" not in sys.modules or all(_is_array(leaf) for _, leaf in leaves):
                return leaves
        jax = sys.modules["jax"]  # one array, or classes registered as pytrees, at the top or below
        keyed, self._shape = jax.tree_util.tree_flatten_with_path(self.model)
        return [("/".join(map(_key, path)) or "value", leaf) for path, leaf in keyed]

    def _read(self) -> dict:
        import numpy

        named: dict = {}
        for name, leaf in self._leaves():
            if not _is_array(leaf):
                raise TypeError(f"the weight {name!r} is no array, but {type(leaf).__name__}")
            if name in named:
                raise ValueError(f"two weights have the name {name!r}; use other keys")
            named[name] = leaf if hasattr(leaf, "shape") else numpy.asarray(leaf)
        return named

    def _write(self, arrays: dict) -> None:
        leaves = self._leaves()
        if self._shape is None:
            self.model = _replace(self.model, (), arrays)
            return
        leaves = [_renew(leaf, arrays[name]) if name in arrays else leaf for name, leaf in leaves]
        self.model = sys.modules["jax"].tree_util.tree_unflatten(self._shape, leaves)


def _is_array(leaf) -> bool:
    if isinstance(leaf, (bool, int, float, complex)):
        return True
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and leaf.dtype != object


def _key(step) -> str:
    """One step of a path as JAX has it: of a dictionary, an attribute or an index."""
    return str(getattr(step, "key", getattr(step, "name", getattr(step, "idx", step))))


def _items(node):
    return list(node.items()) if isinstance(node, dict) else list(enumerate(node))


def _walk(node, path: tuple):
    for key, child in _items(node):
        below = (*path, str(key))
        if isinstance(child, (dict, list, tuple)):
            yield from _walk(child, below)
        elif child is not None:
            yield "/".join(below), child


def _replace(node, path: tuple, arrays: dict):
    """The node with new leaves: itself if it can be changed, else another of its kind."""
    new = {}
    for key, child in _items(node):
        below = (*path, str(key))
        if isinstance(child, (dict, list, tuple)):
            new[key] = _replace(child, below, arrays)
        else:
            name = "/".join(below)
            new[key] = _renew(child, arrays[name]) if child is not None and name in arrays else child
    if isinstance(node, tuple):
        return type(node)(*new.values()) if hasattr(node, "_fields") else type(node)(new.values())
    for key, child in new.items():
        node[key] = child
    return node


def _renew(leaf, array):
    """An array with these numbers: of the kind and type of the one before."""
    import numpy

    if isinstance(leaf, numpy.ndarray):
        if leaf.flags.writeable:
            numpy.copyto(leaf, array, casting="unsafe")
            return leaf
        return numpy.array(array, leaf.dtype)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(leaf, jax.Array):
        return jax.numpy.array(array, leaf.dtype)  # a copy: the array may be a view of the store
    return type(leaf)(array.item() if array.ndim == 0 else array)
