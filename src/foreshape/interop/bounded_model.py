"""A network whose runs keep to a bound of memory: too large requests are run in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from weakref import ref

from foreshape.compiler.memory import byte_text
from foreshape.core.dims import evaluate, symbols_of
from foreshape.core.values.conversion import to_numpy
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import MemoryPlanError, SchemaError
from foreshape.interop.batch_layout import BatchLayout, Part
from foreshape.interop.example_feed import example_feed
from foreshape.interop.memory_room import MemoryRoom
from foreshape.interop.model import InferenceModel
from foreshape.interop.results import Results, feed_of
from foreshape.machine.process.memory_budget import MemoryBudget
from foreshape.runtime.engine import Executor
from foreshape.runtime.engine.executor import taking


class BoundedModel:
    """A network with a budget for its weights, kernels and runs.

    A request whose plan is too large is cut where examples begin, if no example changes another's results, and the results are joined.

    Args:
        model: the opened network.
        executor: its executor, with the budget, made before the network was opened.
        limit: the most bytes of the plan of a run, besides.

    Raises:
        MemoryPlanError: the weights and the smallest run do not fit.
    """

    def __init__(self, model: InferenceModel, executor: Executor, budget: MemoryBudget, limit: int | None = None) -> None:
        self.feeds, self.fetches, self.elements = model.feeds, model.fetches, model.elements
        self._model, self._executor, self._budget, self._most = model, executor, budget, limit
        smallest = example_feed(model, model.feeds)
        self._limit(f'memory="{byte_text(budget.size)}"', budget.size)
        if smallest is not None:
            model.run(smallest)  # packs the weights
            budget.settle()
        self.resize(budget.size)
        alive = ref(self)
        budget.shrunk = lambda: None if (bounded := alive()) is None else bounded.resize(budget.size)
        if smallest is not None:
            model.run(smallest)

    def resize(self, size: int) -> None:
        """Change the budget, for the requests from now on."""
        self._budget.size = size
        weights, reserve = self._budget.weights, self._budget.reserve
        words = f'memory="{byte_text(size)}", of which {byte_text(weights)} are held and {byte_text(reserve)} are for kernels'
        self._limit(words, self._held_bytes + self._budget.room)

    def _limit(self, words: str, size: int) -> None:
        self.limit = size if self._most is None else min(size, self._most)
        """The most bytes of the plan of a run, weights included."""
        self._executor.limit_plans(self.limit, words if self.limit == size else "memory_limit")
        self._room = MemoryRoom(self._step.plan, self.limit)

    @property
    def _step(self) -> Any:
        return self._executor.step(self._model.program, [v.name for v in self.fetches])

    @property
    def _held_bytes(self) -> int:
        plan = self._step.plan
        return plan.held(**dict.fromkeys(plan.symbols, 1))

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Tell whether a run of these sizes (symbol -> size) keeps to the bound."""
        return self._room.fits(sizes)

    def run(self, feed: Mapping[str, Any] | Any, *more: Any) -> Results:
        """Compute the results of the network, in parts if there is no room for all at once.

        Args:
            feed, more: as for `InferenceModel.run`.

        Raises:
            MemoryPlanError: an example is too large alone; the errors of `InferenceModel.run`.
        """
        arrays: Mapping[str, Any] = feed if feed.__class__ is dict and not more else feed_of(self.feeds, (feed, *more))
        try:
            return self._model.run(arrays)
        except MemoryPlanError as error:
            refusal = error
        if isinstance(self._layout, str):
            raise refusal.reworded(f"{refusal}\n    it is not run in parts: {self._layout}")
        request = self._layout.part(self._converted(arrays))
        if request is None or request.sizes[self._layout.batch] < 2:
            raise refusal
        return self._run_parts(self._layout, request, refusal)

    @cached_property
    def _layout(self) -> BatchLayout | str:
        """The layout of batches, or why there is none."""
        try:
            return BatchLayout.of_model(self._model)
        except SchemaError as error:
            return str(error)

    def _converted(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return a feed as arrays and ragged tensors."""
        feeder = self._step.feeder
        with taking:
            tensors, _ = feeder.tensors(feeder.by_input(arrays), self._executor.notes)
            feeder.fit(tensors)
        offsets = iter(tensors[len(feeder.inputs) :])
        out = dict(arrays)
        for value, tensor in zip(feeder.inputs, tensors, strict=False):
            out[value.name] = to_numpy(tensor) if value.lod is None else LoDTensor.of_offsets(to_numpy(tensor), next(offsets))
        return out

    def _run_parts(self, layout: BatchLayout, request: Part, refusal: MemoryPlanError) -> Results:
        """Return the results of a request in parts; nothing runs if one example is too large."""
        sizes = request.sizes
        block = self._model.program.global_block
        specs = {v.name: block.var(v.name).spec for v in self.fetches}
        values = {**sizes, **{n: evaluate(size, sizes) for n, size in self._model.program.guards.known.items() if symbols_of(size) <= sizes.keys()}}
        results = sum(evaluate(s.nbytes, values) for s in specs.values() if s.dims is not None and symbols_of(s.nbytes) <= values.keys())
        parts = list(self._parts(layout, request, MemoryRoom(self._step.plan, self.limit - results), refusal, results))
        out: dict[str, Any] = {}
        pieces: dict[str, list[LoDTensor]] = {}
        filled = dict.fromkeys(specs, 0)
        answer = Results({}, self._model.asked)
        for part in parts:
            answer = self.run(part.feed)  # in smaller parts if there is less room than before
            for name, value in answer.items():
                rows = layout.result_rows(name, sizes)
                if rows is None:
                    pieces.setdefault(name, []).append(value)
                    continue
                if name not in out:
                    import numpy

                    out[name] = numpy.empty((rows, *value.shape[1:]), value.dtype)
                out[name][filled[name] : filled[name] + len(value)] = value
                filled[name] += len(value)
        return Results({n: LoDTensor.joined(pieces[n]) if n in pieces else out[n] for n in answer}, self._model.asked)

    def _parts(self, layout: BatchLayout, request: Part, room: MemoryRoom, refusal: MemoryPlanError, results: int) -> Iterator[Part]:
        """Yield parts of a request, each with as many examples as fit."""
        count, begin = request.sizes[layout.batch], 0
        width = count // 2
        while begin < count:
            end = min(begin + width, count)
            while not room.fits((part := layout.cut(request, begin, end)).sizes):
                if end - begin == 1:
                    if self.fits(part.sizes):
                        raise refusal.reworded(f"{refusal}\n    the results of its {count:,} examples take {byte_text(results)}, and leave no room for a part")
                    self._refuse(part, begin, count)
                end = begin + (end - begin) // 2
            upper = min(2 * end - begin, count + 1)
            while upper - end > max(1, (end - begin) // 16):
                middle = (upper + end) // 2
                larger = layout.cut(request, begin, middle)
                if room.fits(larger.sizes):
                    part, end = larger, middle
                else:
                    upper = middle
            yield part
            begin, width = end, end - begin

    def _refuse(self, part: Part, number: int, count: int) -> None:
        """Refuse an example too large alone."""
        try:
            self._model.run(part.feed)
        except MemoryPlanError as error:
            raise error.reworded(f"example {number:,} of {count:,} alone: {error}") from None
