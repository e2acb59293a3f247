"""A parameter server of weft's own: weights in shards, each an actor; workers pull weights and push gradients.

Used by training programs of any framework, from drivers, tasks and actors; needs NumPy and nothing else. A shard lays
its arrays out in one block of shared memory per version, so that a pull is one reference per shard, for any number of
workers and arrays, and nothing is copied. Gradients are written into one block per shard and added up from there.
Does not compute gradients, start workers or save checkpoints.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

__all__ = ["ParameterServer"]

_ALIGNMENT = 64  # bytes, a cache line: the arrays of a block begin like arrays of their own
_PIECE = 131_072  # numbers: what is computed with at a time stays in the second cache


class ParameterServer:
    """Weights that many workers read and improve. Pass it on like any value: all copies mean the same server.

        server = ParameterServer({"w": np.zeros(1000), "b": np.zeros(10)}, shards=2, rate=0.1)

        @weft.remote
        def train(server, data):
            for batch in data:
                weights = server.pull()                      # {"w": array, "b": array}, read-only views
                server.push(gradients(weights, batch))       # {"w": array, "b": array}

    parameters: arrays by name, the first weights. Each array lies whole on one shard; shards are filled evenly.
    shards: how many actors share them.
    workers: None applies each gradient when it comes (asynchronous). A number makes steps: once each of so many workers
        has pushed, the mean of their gradients is applied (synchronous), and push returns.
    rate: of plain gradient descent, weights -= rate * gradient.
    update: instead of it a function `update(name, weights, gradient)` that changes the array `weights` in place, called
        in the shard. It travels to each shard once and may keep state there, as a method of an object does.
    actor_options: of the shards, as for `options`. By default they take no CPU and are spread over the nodes.
    """

    def __init__(
        self,
        parameters: Any,
        *,
        shards: int = 1,
        workers: Optional[int] = None,
        rate: float = 0.01,
        update: Optional[Callable[[str, Any, Any], None]] = None,
        actor_options: Optional[dict] = None,
    ):
        import weft

        arrays = _checked_parameters(parameters)
        _check_count("shards", shards)
        if workers is not None:
            _check_count("workers", workers)
        if isinstance(rate, bool) or not isinstance(rate, (int, float)):
            raise TypeError(f"rate must be a number, not {rate!r}")
        if update is not None and not callable(update):
            raise TypeError(f"update must be a function update(name, weights, gradient), not {update!r}")
        self._workers = workers
        self._names = list(arrays)
        self._layouts = _spread(arrays, min(shards, len(arrays)))
        self._versions: Optional[list] = None  # of the weights that this copy has pulled last, by shard
        options = {"num_cpus": 0, "scheduling_strategy": "SPREAD", **(actor_options or {})}
        shard = weft.remote(_ParameterShard).options(**options)
        self._shards = [
            shard.remote(layout, _pack(layout, arrays), workers, float(rate), update) for layout in self._layouts
        ]

    @property
    def shards(self) -> list:
        """For each shard the names of the arrays that it holds."""
        return [list(layout.places) for layout in self._layouts]

    def pull(self) -> dict:
        """The weights as they are now: arrays by name, read-only, where they lie in shared memory."""
        import weft

        weights: dict = {}
        self._versions = []
        # The answer of a shard is a reference in a list: all who pull the same version look at the same memory.
        answers = weft.get([shard.weights.remote() for shard in self._shards])
        blocks = weft.get([block for _, (block,) in answers])
        for layout, (version, _), block in zip(self._layouts, answers, blocks):
            self._versions.append(version)
            weights.update(layout.views(block))
        return {name: weights[name] for name in self._names}

    def gradients(self) -> dict:
        """Arrays by name to write gradients into, in shared memory: `push` sends them without a copy, and they are
        read-only then. What they hold before is undefined."""
        return _Gradients(self._layouts, self._names)

    def push(self, gradients: Any, worker: Optional[int] = None, timeout: Optional[float] = None) -> None:
        """Give gradients of the weights that were pulled last, one array per name, and wait until they are applied.

        worker: with `workers`, which of them this is, from 0. One that is started in place of another takes its number:
            what the first one has pushed for this step counts once.
        timeout: seconds to wait for the other workers; then GetTimeoutError. The gradients count all the same. Without
            it a push waits on; a step that lasts longer than WEFT_LONG_WAIT_SECONDS is told of once, with the workers
            that it waits for.
        """
        import weft

        if self._workers is None:
            if worker is not None:
                raise ValueError("worker= is for synchronous servers; this one was made without workers=")
        elif isinstance(worker, bool) or not isinstance(worker, int):
            raise TypeError(
                f"push to a synchronous server says which worker this is: push(gradients, worker=0), not {worker!r}"
            )
        elif not 0 <= worker < self._workers:
            raise ValueError(f"this server has the workers 0 to {self._workers - 1}, not {worker}")
        if self._versions is None:
            raise RuntimeError("push before pull: gradients belong to weights, so pull them first")
        self._check(gradients)
        # Shards differ in their version if a worker died between its pushes to them; its successor makes up for that.
        oldest = min(self._versions) if self._workers is not None else None
        if isinstance(gradients, _Gradients):
            blocks = gradients.settle()
        else:
            blocks = [_pack(layout, gradients) for layout in self._layouts]
        pushed = {
            shard.push.remote(worker, version, block): shard
            for shard, version, block in zip(self._shards, self._versions, blocks)
            if oldest is None or version == oldest
        }
        late = [pushed[ref] for ref in self._wait(pushed, timeout, oldest)]
        if late and oldest is None:
            raise weft.GetTimeoutError(f"the gradients were not applied after {timeout:g} s; they count all the same")
        missing = _missing(late, oldest)
        if missing:
            raise weft.GetTimeoutError(
                f"the step was not complete after {timeout:g} s: no gradients from {missing}; start what has ended "
                "again, with the same worker="
            )
        weft.get(list(pushed))

    def _wait(self, pushed: dict, timeout: Optional[float], version: Optional[int]) -> list:
        """The pushes that are not done in time. A long step is told of once, by one of the workers that wait for it."""
        from weft import _explain

        # A little less, so that the line with the worker comes before the one that every long wait has.
        refs, patience = list(pushed), 0.9 * _explain.long_wait_seconds()
        if version is not None and patience > 0 and (timeout is None or timeout > patience):
            missing = _missing([pushed[ref] for ref in _late(refs, patience)], version, tell=True)
            if missing:
                _explain.tell_of_long_wait(
                    patience,
                    f"this step of a ParameterServer waits for gradients from {missing}. What has ended must be "
                    "started again, with the same worker=; push(timeout=...) raises an error instead of waiting",
                )
            timeout = None if timeout is None else timeout - patience
        return _late(refs, timeout)

    def _check(self, gradients: Any) -> None:
        """Say what does not fit before anything is sent: half of a gradient must not be applied."""
        if not hasattr(gradients, "keys"):
            raise TypeError(f"gradients must be a dict of arrays by name, not {type(gradients).__name__}")
        places = {name: place for layout in self._layouts for name, place in layout.places.items()}
        if set(gradients.keys()) != set(places):
            lacking = sorted(set(places) - set(gradients.keys()))
            unknown = sorted(map(str, set(gradients.keys()) - set(places)))
            said = [
                f"{what} {', '.join(names)}" for what, names in (("lack", lacking), ("have unknown", unknown)) if names
            ]
            raise ValueError(f"the gradients {' and '.join(said)}; they must have the names that pull gives")
        for name, place in places.items():
            shape = getattr(gradients[name], "shape", None)
            if shape is None or tuple(shape) != place.shape:
                raise ValueError(f"the gradient {name!r} has the shape {shape}, but the weights have {place.shape}")

    def __reduce__(self):
        return _from_parts, (self._workers, self._names, self._layouts, self._shards)

    def __repr__(self):
        kind = "asynchronous" if self._workers is None else f"steps of {self._workers} workers"
        return f"<weft.util.ParameterServer: {len(self._names)} arrays on {len(self._shards)} shards, {kind}>"


def _from_parts(workers, names, layouts, shards):
    made = ParameterServer.__new__(ParameterServer)
    made._workers, made._names, made._layouts, made._shards = workers, names, layouts, shards
    made._versions = None
    return made


class _Place(NamedTuple):
    """Where an array lies in its block."""

    offset: int
    nbytes: int
    shape: tuple
    dtype: Any


class _Layout:
    """How a block of bytes holds the arrays of one shard."""

    def __init__(self):
        self.places: dict = {}
        self.size = 0

    def add(self, name, array):
        self.places[name] = _Place(self.size, array.nbytes, array.shape, array.dtype)
        self.size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT

    def views(self, block) -> dict:
        return {
            name: block[place.offset : place.offset + place.nbytes].view(place.dtype).reshape(place.shape)
            for name, place in self.places.items()
        }


def _spread(arrays, shards) -> list:
    """A layout for each shard: the largest arrays first, each to the shard that has least."""
    layouts = [_Layout() for _ in range(shards)]
    for name in sorted(arrays, key=lambda name: -arrays[name].nbytes):
        min(layouts, key=lambda layout: (layout.size, len(layout.places))).add(name, arrays[name])
    return layouts


def _pack(layout, arrays):
    """One block in shared memory with the arrays of a shard: the only copy of them that is made."""
    block = _empty_block(layout)
    for name, view in layout.views(block).items():
        view[...] = arrays[name]
    return block


class _Gradients(dict):
    """Arrays by name that lie in the blocks that a push sends."""

    def __init__(self, layouts, names):
        self.blocks = [_empty_block(layout) for layout in layouts]
        self.views: dict = {}
        for layout, block in zip(layouts, self.blocks):
            self.views.update(layout.views(block))
        super().__init__((name, self.views[name]) for name in names)

    def settle(self):
        """Copy what was put in the place of an array; the others were written where they are sent from."""
        for name, view in self.views.items():
            if self[name] is not view:
                view[...] = self[name]
            view.flags.writeable = False
        return self.blocks


def _checked_parameters(parameters) -> dict:
    import numpy

    if not hasattr(parameters, "keys"):
        raise TypeError(
            f"parameters must be a dict of arrays by name, not {type(parameters).__name__}; one large array can be "
            'divided over the shards: {f"w{i}": part for i, part in enumerate(numpy.array_split(w, 4))}'
        )
    arrays = {}
    for name in parameters.keys():
        if not isinstance(name, str):
            raise TypeError(f"the name of a parameter is a str, not {name!r}")
        array = numpy.asarray(parameters[name])
        if array.dtype.kind not in "fc":
            raise TypeError(f"the parameter {name!r} has the dtype {array.dtype}; weights are floating-point numbers")
        arrays[name] = array
    if not arrays:
        raise ValueError("there are no parameters")
    return arrays


def _late(refs, timeout) -> list:
    """Those that are not done in time. A failed one raises at once: others may wait for a worker that failed, too."""
    import weft

    try:
        weft.get(refs, timeout=timeout)
    except weft.GetTimeoutError:
        return weft.wait(refs, num_returns=len(refs), timeout=0)[1]
    return []


def _missing(shards, version, tell=False) -> str:
    """The workers whose gradients these shards wait for, as in "workers 1, 2"."""
    import weft

    numbers = sorted(
        {number for each in weft.get([s.missing.remote(version, tell) for s in shards]) for number in each}
    )
    return f"worker{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}" if numbers else ""


def _check_count(name, value) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, but is {value}")


class _ParameterShard:
    """The actor: some of the arrays.

    The weights lie in a block of shared memory. A pull publishes that very block, which is read-only from then on, and
    the next step writes a new one: nothing is copied. An asyncio actor, because in a step most pushes wait for others.
    """

    def __init__(self, layout, block, workers, rate, update):
        self._layout = layout
        self._workers = workers
        self._rate = rate
        self._update = update
        self._version = 0
        self._block = _empty_block(layout)
        self._block[...] = block
        self._published: Any = None  # a reference to the block, once somebody has pulled this version
        self._held: Any = None  # the gradients of this step so far: the first block, or else the sum
        self._sum: Any = None  # where they are added up
        self._pushed: set = set()  # the workers whose gradients are in it
        self._step: Any = None  # a future, done when the step is
        self._told = -1  # the version whose step has been told of as a long one

    async def weights(self):
        if self._published is None:
            import weft

            self._published = weft.put(self._block)
        return self._version, [self._published]

    async def push(self, worker, version, block):
        if self._workers is None:
            self._apply([block])
            return
        if version != self._version:
            return  # that step has been made without it, with what the worker's successor or predecessor has pushed
        import asyncio

        if self._step is None:
            self._step = asyncio.get_running_loop().create_future()
        step = self._step
        if worker not in self._pushed:
            self._pushed.add(worker)
            if len(self._pushed) < self._workers:
                self._held = block if self._held is None else self._add(block)
            else:
                self._make_step(step, [block] if self._held is None else [self._held, block])
        await asyncio.shield(step)

    async def missing(self, version, tell=False):
        """The workers that this step waits for; none once it is made. To the first that would tell of them only."""
        if version != self._version or (tell and self._told == version):
            return []
        if tell:
            self._told = version
        return [worker for worker in range(self._workers) if worker not in self._pushed]

    def _make_step(self, step, blocks):
        self._pushed, self._held, self._step = set(), None, None
        try:
            self._apply(blocks)
        except BaseException as error:
            step.set_exception(error)
        else:
            step.set_result(None)

    def _add(self, block):
        """The gradients held so far and these, in the block kept for sums."""
        import numpy

        if self._sum is None:
            self._sum = numpy.empty_like(self._block)
        views = self._layout.views
        for into, one, other in zip(*(views(each).values() for each in (self._sum, self._held, block))):
            numpy.add(one, other, out=into)
        return self._sum

    def _apply(self, blocks):
        """Make a step with the sum of one or two blocks of gradients."""
        old, new = self._block, self._block if self._published is None else _empty_block(self._layout)
        if self._update is None:
            scale = self._rate / (self._workers or 1)
            gradients = [self._layout.views(block) for block in blocks]
            into = self._layout.views(new)
            for name, weights in self._layout.views(old).items():
                _descend(weights, into[name], [each[name] for each in gradients], scale)
        else:
            if len(blocks) == 2:
                self._held = blocks[0]
                blocks, self._held = [self._add(blocks[1])], None
            if new is not old:
                new[...] = old
            into = self._layout.views(new)
            for name, gradient in self._layout.views(blocks[0]).items():
                self._update(name, into[name], gradient / (self._workers or 1))
        # Readers of the old version keep it as long as they look at it.
        self._block, self._published = new, None
        self._version += 1


def _empty_block(layout):
    import numpy

    import weft

    return weft.empty(max(1, layout.size), numpy.uint8)


def _descend(old, new, gradients, scale):
    """new = old - scale * sum of gradients, piece by piece: all memory is read once and written once."""
    import numpy

    old, new, *gradients = (array.reshape(-1) for array in (old, new, *gradients))
    step = numpy.empty(min(_PIECE, len(old)), old.dtype)
    for begin in range(0, len(old), _PIECE):
        end = min(begin + _PIECE, len(old))
        piece = step[: end - begin]
        if len(gradients) == 2:
            numpy.add(gradients[0][begin:end], gradients[1][begin:end], out=piece)
            piece *= scale
        else:
            numpy.multiply(gradients[0][begin:end], scale, out=piece)
        numpy.subtract(old[begin:end], piece, out=new[begin:end])
