"""caffe.SGDSolver and the others: Caffe's training, with its nets as caffe.Net.

A solver belongs to the process that made it and is used by one thread at a time; the nets are valid as long as anybody
has them.
"""

from __future__ import annotations

from . import _files
from ._library import BYTES, check, library, made, text
from ._net import Net

__all__ = [
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "NesterovSolver",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "get_solver",
]


class Solver:
    """Solver(solver): a prototxt or a SolverParameter, whose `type` says how it learns."""

    _type = None  # that of the SolverParameter

    def __init__(self, solver):
        message = _files.read_solver(solver)
        if self._type is not None:
            message.type = self._type
            message.ClearField("solver_type")
        data = message.SerializeToString()
        self._handle = made(library().cf_new_solver(data, len(data), BYTES))
        self.net = Net._of(library().cf_solver_net(self._handle))
        count = library().cf_test_net_count(self._handle)
        self.test_nets = [Net._of(library().cf_test_net(self._handle, i)) for i in range(count)]

    def __del__(self):
        if getattr(self, "_handle", None):
            library().cf_delete_solver(self._handle)

    def __reduce__(self):
        raise TypeError("a solver of Caffe stays in its process: keep it in an actor, or send its snapshot (restore)")

    @property
    def iter(self) -> int:
        return library().cf_iteration(self._handle)

    def step(self, steps: int) -> None:
        check(library().cf_step(self._handle, steps))

    def solve(self, resume_file=None) -> None:
        """Trains up to max_iter, from the start or from a solverstate, with tests and snapshots as the solver says."""
        state = None if resume_file is None else text(_files.existing(resume_file, "solverstate"))
        check(library().cf_solve(self._handle, state))

    def snapshot(self) -> None:
        """Writes snapshot_prefix with _iter_N.caffemodel and _iter_N.solverstate."""
        check(library().cf_snapshot(self._handle))

    def restore(self, path) -> None:
        """Goes on from a solverstate, and from the caffemodel that it names."""
        check(library().cf_restore(self._handle, text(_files.existing(path, "solverstate"))))


def get_solver(solver) -> Solver:
    return Solver(solver)


class SGDSolver(Solver):
    _type = "SGD"


class NesterovSolver(Solver):
    _type = "Nesterov"


class AdaGradSolver(Solver):
    _type = "AdaGrad"


class RMSPropSolver(Solver):
    _type = "RMSProp"


class AdaDeltaSolver(Solver):
    _type = "AdaDelta"


class AdamSolver(Solver):
    _type = "Adam"
