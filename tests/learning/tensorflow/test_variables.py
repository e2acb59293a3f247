"""TensorFlowVariables on real graphs, made with compat.v1 of TensorFlow 2 and without the view of TensorFlow 1."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow
import weft
from weft.compat import ray

tf = tensorflow.compat.v1


class Network:
    """a (2, 3) and b (3,), resource or reference variables; `unused` is in the graph, but not below the loss."""

    def __init__(self, resource: bool = True):
        with tf.Graph().as_default() as self.graph:
            a = tf.get_variable("a", (2, 3), use_resource=resource)
            self.unused = tf.get_variable("unused", (5,), use_resource=resource)
            b = tf.get_variable("b", (3,), use_resource=resource, dtype=tf.float32)
            self.loss = tf.reduce_sum(a + b)
            self.init = tf.global_variables_initializer()
            self.session = tf.Session()
            self.session.run(self.init)

    def variables(self, *arguments, **keywords):
        return ray.experimental.TensorFlowVariables(self.loss, *arguments, **keywords)


@pytest.fixture(params=[True, False], ids=["resource", "reference"])
def network(request):
    made = Network(request.param)
    yield made
    made.session.close()


def test_finds_what_the_loss_depends_on_in_order(network):
    variables = network.variables(network.session)
    assert list(variables.variables) == list(variables.placeholders) == list(variables.assignment_nodes) == ["a", "b"]
    assert variables.get_flat_size() == 9 and variables.get_flat().dtype == np.float32
    more = network.variables(input_variables=[network.unused])
    assert list(more.variables) == ["a", "b", "unused"] and more.get_flat_size() == 14
    both = ray.experimental.TensorFlowVariables([network.loss, None, network.unused.op])
    assert list(both.variables) == ["a", "unused", "b"]
    assert list(ray.experimental.TensorFlowVariables(network.loss.op).variables) == ["a", "b"]


def test_sets_and_reads_without_new_nodes(network):
    variables = network.variables(network.session)
    network.graph.finalize()
    variables.set_flat(np.arange(9))
    weights = variables.get_weights()
    assert type(weights) is dict
    assert weights["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and weights["b"].tolist() == [6, 7, 8]
    variables.set_weights({"b": [1, 1, 1]})
    assert variables.get_flat().tolist() == [0, 1, 2, 3, 4, 5, 1, 1, 1]


def test_wrong_weights(network):
    variables = network.variables(network.session)
    variables.set_flat(np.zeros(9))
    with pytest.raises(ValueError, match=r"'a' has the shape \(3, 2\), the network's has \(2, 3\)"):
        variables.set_weights({"b": np.ones(3), "a": np.ones((3, 2))})
    with pytest.raises(AssertionError, match=r"all 9 weights.*\(10,\)"):
        variables.set_flat(np.ones(10))
    with pytest.raises(AssertionError, match="'c'.*'a', 'b'.*graph of its own"):
        variables.set_weights({"c": 1})
    with pytest.raises(TypeError, match="set_flat"):
        variables.set_weights(np.ones(9))
    assert not variables.get_flat().any()
    with pytest.warns(UserWarning, match="this network has no 'c'"):
        variables.set_weights({"c": 1, "b": [2, 2, 2]})
    assert variables.get_weights()["b"].tolist() == [2, 2, 2]


def test_sessions(network):
    variables = network.variables()
    for call in (variables.get_flat, variables.get_weights, lambda: variables.set_flat(np.zeros(9))):
        with pytest.raises(AssertionError, match=r"no session yet.*set_session\(sess\)"):
            call()
    variables.set_session(tf.Session(graph=tf.Graph()))
    with pytest.raises(ValueError, match="another graph"):
        variables.get_weights()
    closed = tf.Session(graph=network.graph)
    closed.close()
    variables.set_session(closed)
    with pytest.raises(RuntimeError, match=r"is closed; open another and call set_session\(sess\)"):
        variables.get_weights()
    variables.set_session(network.session)
    assert variables.get_flat().shape == (9,)


@pytest.mark.parametrize("output", [7, tensorflow.constant(1.0), "loss"], ids=["number", "eager tensor", "text"])
def test_what_is_not_of_a_graph(output):
    with pytest.raises(TypeError, match="weft run --ray-api=0.6.*weft.util.weights"):
        ray.experimental.TensorFlowVariables(output)


def test_outputs_of_two_graphs_or_none():
    with pytest.raises(ValueError, match="different graphs"):
        ray.experimental.TensorFlowVariables([Network().loss, Network().loss])
    with pytest.raises(ValueError, match="it was given none"):
        ray.experimental.TensorFlowVariables([])


def test_a_large_vector_is_made_in_the_store(no_session):
    weft.init(num_cpus=1)
    with tf.Graph().as_default():
        large = tf.get_variable("large", (1000, 1000), initializer=tf.ones_initializer())
        variables = ray.experimental.TensorFlowVariables(large.value(), tf.Session())
        variables.sess.run(tf.global_variables_initializer())
    variables.get_flat()
    before = weft._core.stats()["store_bytes"]
    ref = weft.put(variables.get_flat())
    assert 4_000_000 <= weft._core.stats()["store_bytes"] - before < 4_100_000
    assert weft.get(ref).sum() == 1_000_000
