"""weft.util.weights of Keras models and of JAX's trees."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import weft
from weft.util import weights


def model(kind=keras):
    layers = [kind.layers.Dense(3), kind.layers.BatchNormalization(), kind.layers.Dense(2)]
    made = kind.Sequential([kind.Input((4,)) if kind is keras else kind.layers.InputLayer((4,)), *layers])
    made(np.zeros((1, 4), "f"))
    return made


def kinds():
    import tf_keras

    return {"keras": keras, "tf_keras": tf_keras}


@pytest.mark.parametrize("kind", ["keras", "tf_keras"])
def test_weights_go_from_one_model_to_another(kind):
    one, other = (weights(model(kinds()[kind])) for _ in range(2))
    assert one.get_flat_size() == 4 * 3 + 3 + 4 * 3 + 3 * 2 + 2 == len(one.get_flat())
    batch = np.random.default_rng(0).random((5, 4), "f")
    assert not np.allclose(one.model(batch), other.model(batch))
    other.set_flat(one.get_flat())
    np.testing.assert_allclose(one.model(batch), other.model(batch))
    name = next(iter(one.shapes))
    one.set_weights({name: np.zeros((4, 3))})
    assert not one.get_weights()[name].any() and other.get_flat()[:12].any()
    with pytest.raises(ValueError, match="no weight .*named differently take set_flat"):
        other.set_weights(one.get_weights())  # Keras numbers the layers of a process
    with pytest.raises(ValueError, match=r"the shape \(3,\), the network's has \(4, 3\)"):
        one.set_weights({name: np.zeros(3)})


def test_a_model_that_is_not_built_says_so():
    with pytest.raises(ValueError, match=r"no weights yet: call model.build"):
        weights(keras.Sequential([keras.layers.Dense(1)])).get_flat()


@weft.remote
class Trainer:
    """One step on its own data, from weights that it is given."""

    def __init__(self, seed):
        self.weights = weights(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
        self.x = np.random.default_rng(seed).random((100, 1)).astype("f")

    def step(self, vector):
        self.weights.set_flat(vector)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.weights.model(self.x) - (self.x * 0.1 + 0.3)) ** 2)
        parameters = self.weights.model.trainable_weights
        for parameter, gradient in zip(parameters, tape.gradient(loss, [p.value for p in parameters])):
            parameter.assign_sub(0.5 * gradient)
        return self.weights.get_flat()


def test_averaging_between_actors(no_session):
    weft.init(num_cpus=2)
    trainers = [Trainer.remote(seed) for seed in range(2)]
    vector = np.array([-1, 1], "f")
    for _ in range(200):
        ref = weft.put(vector)
        vector = np.mean(weft.get([trainer.step.remote(ref) for trainer in trainers]), axis=0)
    np.testing.assert_allclose(vector, [0.1, 0.3], atol=1e-3)


def test_jax_trees():
    import jax  # here, because weights takes more for a tree once it is imported

    own = weights({"dense": {"kernel": jax.numpy.ones((2, 2)), "bias": jax.numpy.zeros(2)}})
    tree = own.model
    own.set_flat(np.arange(6))
    assert own.model is tree and isinstance(tree["dense"]["kernel"], jax.Array)
    assert tree["dense"]["kernel"].dtype == jax.numpy.float32 and tree["dense"]["bias"].tolist() == [4, 5]

    @jax.tree_util.register_pytree_with_keys_class
    class Layer:
        def __init__(self, kernel):
            self.kernel = kernel

        def tree_flatten_with_keys(self):
            return [(jax.tree_util.GetAttrKey("kernel"), self.kernel)], None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    own = weights(Layer(jax.numpy.zeros(3)))
    own.set_weights({"kernel": [1, 2, 3]})
    assert isinstance(own.model, Layer) and own.model.kernel.tolist() == [1, 2, 3]

    own = weights({"first": Layer(jax.numpy.zeros(2)), "rest": [jax.numpy.zeros(1)]})  # a class inside of a dictionary
    assert own.shapes == {"first/kernel": (2,), "rest/0": (1,)}
    own.set_flat(np.array([4, 5, 6]))
    assert own.model["first"].kernel.tolist() == [4, 5] and own.model["rest"][0].tolist() == [6]
