"""ray.experimental.tf_utils: the weights of a TensorFlow graph, read and set by name or as one vector.

For programs that build graphs and run sessions (TensorFlow 1, or TensorFlow 2's compat.v1). Models of today's Keras,
PyTorch and JAX have weft.util.weights, with the same methods.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from weft.util import _flat

__all__ = ["TensorFlowVariables"]


def _tensorflow():
    """TensorFlow 1's names."""
    from importlib import import_module

    try:
        tensorflow = import_module("tensorflow")
    except ImportError as error:
        raise ImportError(
            f"ray.experimental.TensorFlowVariables needs TensorFlow, which cannot be imported ({error}): "
            "pip install tensorflow"
        ) from error
    try:
        return import_module("tensorflow.compat.v1")
    except ImportError:
        version = str(getattr(tensorflow, "__version__", "of an unknown version"))
        if version.startswith(("0.", "1.")):
            return tensorflow  # 1.12 and older are all that
        raise ImportError(
            f"ray.experimental.TensorFlowVariables needs tensorflow.compat.v1, which TensorFlow {version} "
            f"({getattr(tensorflow, '__file__', None)}) does not have: pip install 'tensorflow>=2.4,<3'"
        ) from None


class TensorFlowVariables:
    """Reads and sets the variables on which a loss, or other outputs of a graph, depends.

    Made once, before the graph is finalised: it adds a placeholder and an assignment for each variable, and nothing
    later. `sess` may come later too, by set_session.

    variables: name -> variable, in the order in which the graph made them, then `input_variables`.
    placeholders, assignment_nodes: name -> what set_weights feeds, and runs.
    """

    def __init__(self, output, sess=None, input_variables=None):
        """`output`: a tensor or operation, or a list of them; `input_variables`: variables to have besides."""
        tf = _tensorflow()
        outputs = list(output) if isinstance(output, (list, tuple)) else [output]
        extra = list(input_variables or ())
        self._graph = _graph_of(tf, outputs + extra)
        self.sess = sess

        reached = _operations_below(outputs)
        found = [v for v in self._graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES) if v.op.name in reached]
        self.variables = OrderedDict((v.op.name, v) for v in found + extra)
        if self.variables and self._graph.finalized:
            raise RuntimeError(
                "TensorFlowVariables adds operations to the graph, and this graph is finalized (a "
                "MonitoredTrainingSession or graph.finalize() has done that); make the TensorFlowVariables before, "
                "without a session, and call set_session(sess) afterwards"
            )
        self.placeholders = {}
        self.assignment_nodes = {}
        with self._graph.as_default(), tf.control_dependencies(None):
            for name, variable in self.variables.items():
                feed = tf.placeholder(variable.dtype.base_dtype, variable.get_shape(), name=f"Placeholder_{name}")
                self.placeholders[name] = feed
                self.assignment_nodes[name] = variable.assign(feed)

    def set_session(self, sess) -> None:
        """Read and set in this session from now on."""
        self.sess = sess

    def get_flat_size(self) -> int:
        """How many numbers the variables have together."""
        return sum(_flat.size_of(shape) for shape in self._shapes().values())

    def get_flat(self):
        """All variables, one after the other, as one vector. Large ones are made in the store, where `put` and
        `return` find them without another copy."""
        values = self.get_weights()
        return _flat.join([(name, values[name]) for name in self.variables])

    def set_flat(self, new_weights) -> None:
        """Set all variables from a vector as get_flat gives it."""
        self._check_session()
        self._set(_flat.split(new_weights, self._shapes(), AssertionError))

    def get_weights(self) -> dict:
        """The value of each variable, by name."""
        return dict(self._run(self.variables))

    def set_weights(self, new_weights) -> None:
        """Set the variables that are named; others keep their values, and names that the network does not have are
        left out with a warning."""
        self._check_session()
        if not hasattr(new_weights, "items"):
            raise TypeError(
                f"set_weights takes a dictionary, name to array, not {type(new_weights).__name__}; a vector of all "
                "weights is set by set_flat"
            )
        known = {name: value for name, value in new_weights.items() if name in self.assignment_nodes}
        assert known, (
            f"none of the names given ({_flat.listed(new_weights)}) is a variable of this network "
            f"({_flat.listed(self.variables)}). Two networks in one graph get different names: build each in a graph "
            "of its own (with tf.Graph().as_default(): ...), or use get_flat and set_flat, which need no names"
        )
        if len(known) < len(new_weights):
            import warnings

            unknown = [name for name in new_weights if name not in known]
            warnings.warn(f"set_weights: this network has no {_flat.listed(unknown)}", stacklevel=2)
        self._set(_flat.check_shapes(known, self._shapes()))

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _shapes(self) -> dict:
        shapes = {}
        for name, variable in self.variables.items():
            shape = variable.get_shape()
            if not shape.is_fully_defined():
                raise ValueError(f"the shape of the variable {name!r} is not known before it runs: {shape}")
            shapes[name] = tuple(shape.as_list())
        return shapes

    def _set(self, values: dict) -> None:
        nodes = [self.assignment_nodes[name].op for name in values]
        self._run(nodes, {self.placeholders[name]: value for name, value in values.items()})

    def _check_session(self) -> None:
        assert self.sess is not None, (
            "these TensorFlowVariables have no session yet: give one to the constructor, "
            "TensorFlowVariables(loss, sess), or call set_session(sess)"
        )

    def _run(self, fetches, feed_dict=None):
        self._check_session()
        if _is_closed(self.sess):
            raise RuntimeError(
                "the session of these TensorFlowVariables is closed; open another and call set_session(sess). Weights "
                "live in their session: read them before it is closed"
            )
        if self.sess.graph is not self._graph:
            raise ValueError(
                "the session given to TensorFlowVariables runs another graph than the one that has these variables; "
                "make it inside `with graph.as_default():`, or as tf.Session(graph=graph)"
            )
        return self.sess.run(fetches, feed_dict=feed_dict)


def _graph_of(tf, things):
    """The one graph in which all of them are."""
    things = [thing for thing in things if thing is not None]
    if not things:
        raise ValueError("TensorFlowVariables needs a loss, or another output of a graph; it was given none")
    graphs = []
    for thing in things:
        try:
            graph = thing.graph
        except (AttributeError, RuntimeError, ValueError):  # an eager tensor has no graph, and says so by raising
            graph = None
        if not isinstance(graph, tf.Graph):
            raise TypeError(
                f"TensorFlowVariables takes tensors, operations and variables of a graph, not {type(thing).__name__}. "
                "With TensorFlow 2 run the program under weft run --ray-api=0.6, or call "
                "tf.compat.v1.disable_v2_behavior() first; for Keras models there is weft.util.weights(model)"
            )
        graphs.append(graph)
    if any(graph is not graphs[0] for graph in graphs):
        raise ValueError("the outputs and variables given to TensorFlowVariables are of different graphs")
    return graphs[0]


def _operations_below(outputs) -> set:
    """The names of all operations that the outputs depend on, themselves included."""
    todo = deque(getattr(each, "op", each) for each in outputs if each is not None)
    seen = {operation.name for operation in todo}
    while todo:
        operation = todo.popleft()
        for below in [tensor.op for tensor in operation.inputs] + list(operation.control_inputs):
            if below.name not in seen:
                seen.add(below.name)
                todo.append(below)
    return seen


def _is_closed(session) -> bool:
    """Whether this session, a plain or a monitored one, was closed. TensorFlow has no public question for it."""
    return bool(getattr(session, "_closed", False)) or getattr(session, "_sess", session) is None
