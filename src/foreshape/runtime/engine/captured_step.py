"""Steps as CUDA graphs: all kernels of a step by one call. No run on a GPU has shown it, nor what it gains.

A step is captured at its second run with the same sizes, and replayed from then on: what is fed is copied into the graph's own inputs. The graphs of all
sizes share one pool of memory, since one of them runs at a time and its results are read before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from foreshape.compiler.lowering import Step
from foreshape.core.data_class import data_class, field
from foreshape.core.values.late_checks import LateCheck, numbers_of, with_numbers
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ForeshapeError
from foreshape.language.program.call_site import warn_user
from foreshape.runtime.engine.emit import Bound

MOST = 64
"""The most sizes of a step over one scope with a graph each; the ones captured first are dropped."""
_MOST_RATES = 3
"""The most changes of a learning rate, which a graph holds as a number, before a step is captured no more."""


@data_class()
class _Captured:
    """The graph of a step for one list of sizes; ``refused``: it has none, for this reason."""

    rates: list[float]
    graph: Any = None
    inputs: list[Tensor] = field(default_factory=list[Tensor])
    results: Any = None
    checks: list[LateCheck] = field(default_factory=list[LateCheck])
    numbers: Any = None
    """The numbers of the checks, in the graph's memory."""
    refused: str = ""


class CapturedSteps:
    """The graphs of an executor.

    Args:
        device: a CUDA device.
        generator: of its random operators; a replay draws its next numbers.
        worded: from an exception of a kernel to the error that names the op.
    """

    def __init__(self, device: Any, generator: Any, worded: Callable[[Exception], ForeshapeError]) -> None:
        self._device, self._generator, self._worded = device, generator, worded
        self._pool: Any = None
        self._graphs: WeakKeyDictionary[Any, dict[Any, _Captured]] = WeakKeyDictionary()
        self._changes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.refused: list[str] = []
        """The reasons of steps that run kernel by kernel."""

    def run(self, lowered: Step, bound: Bound, tensors: Sequence[Any], pending: list[LateCheck]) -> Any:
        """Return the results of a step: by its graph, or by its kernels.

        Args:
            lowered: the step, and ``bound`` over a scope.
            tensors: what is fed.
            pending: takes the checks of this run, whose numbers are read with the results.
        """
        function = bound.function
        sizes = tuple([(t.shape, t.dtype, t.stride()) if isinstance(t, Tensor) else None for t in tensors])
        graphs = self._graphs.setdefault(function, {})
        captured = graphs.get(sizes)
        if captured is None:  # its kernels are made, and their memory is found
            graphs[sizes] = _Captured(self._rates(bound))
            while len(graphs) > MOST:
                del graphs[next(iter(graphs))]
            return function(*tensors)
        if captured.refused:
            return function(*tensors)
        rates = self._rates(bound)
        if captured.graph is None or rates != captured.rates:
            if rates != captured.rates:
                self._changes[function] = self._changes.get(function, 0) + 1
            reason = _obstacle(lowered, bound, sizes)
            if self._changes.get(function, 0) > _MOST_RATES:
                reason = "its learning rate changes from run to run"
            captured.rates, captured.refused = rates, reason or self._capture(captured, function, tensors, pending)
            if captured.refused:
                captured.graph = None
                self.refused.append(captured.refused)
                warn_user(f"a step runs kernel by kernel, not as a CUDA graph: {captured.refused}")
                return function(*tensors)
        for place, tensor in zip(captured.inputs, tensors, strict=True):
            place.copy_(tensor)
        graph: Any = captured.graph
        graph.replay()
        if captured.checks:
            pending += with_numbers(captured.checks, captured.numbers.clone())  # the next replay writes its own numbers there
        return captured.results

    def _rates(self, bound: Bound) -> list[float]:
        return [value.item() for value in bound.values if isinstance(value, Tensor) and value.is_cpu]

    def _capture(self, captured: _Captured, function: Any, tensors: Sequence[Tensor], pending: list[LateCheck]) -> str:
        """Capture a step; return the reason where that is refused."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        inputs = [t.clone() for t in tensors]
        graph: Any = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                results = function(*inputs)
                captured.checks = [*pending]
                captured.numbers = numbers_of(pending) if pending else None
        except Exception as error:
            return str(error if isinstance(error, ForeshapeError) else self._worded(error))
        finally:
            pending.clear()
        captured.graph, captured.inputs, captured.results = graph, inputs, results
        return ""


def _obstacle(lowered: Step, bound: Bound, sizes: Sequence[Any]) -> str:
    """Return the reason why a step is not captured; empty if there is none before it is tried."""
    if None in sizes:
        return "it is fed ragged values or sparse rows, whose lengths the host reads"
    stores = next((i for i in lowered.calls if i.stores), None)
    if stores is not None:
        return f"{stores.op.type} makes {stores.stores[0][0].name} anew, and a replay would leave it in the memory of the graph"
    held = next((v for v in bound.values if not isinstance(v, Tensor) or (v.is_cpu and v.numel() != 1)), None)
    return "" if held is None else "a value of its scope is no tensor of the device"
