"""`Predictor`: a saved network for the fastest answers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from foreshape.core.gc_pause import collector_waits
from foreshape.errors import SchemaError
from foreshape.interop.compiled_file import CompiledFile, CompiledModel, open_compiled, shapes_text
from foreshape.interop.compiled_head import has_compiled_kernels
from foreshape.interop.results import Results, feed_of

if TYPE_CHECKING:  # a compiled network answers without them
    from foreshape.compiler.memory import Plan
    from foreshape.interop.batch_layout import BatchLayout
    from foreshape.interop.batch_queue import BatchQueue
    from foreshape.interop.bounded_model import BoundedModel
    from foreshape.interop.model import InferenceModel
    from foreshape.interop.onnx_session import OnnxSession
    from foreshape.machine.process.product_precision import Precision
    from foreshape.runtime.engine import Executor
    from foreshape.runtime.profiling import Profile

Engine = Literal["foreshape", "onnxruntime"]


class Predictor:
    """A saved network with parameters of its own, frozen: normalization is folded into weights, and these are packed for the kernels.

    It may be called from several threads at once. ``inputs`` and ``outputs`` are the names, in order; ``model`` is the network it runs.

    Args:
        path: as for `load_inference_model`, or a file of `foreshape compile`: its sizes run without torch, and everything else, such as another
            size, runs the network itself, beside the file, with a `ForeshapeWarning`.
        params: the parameter file, if named otherwise.
        threads: of its kernels, as for `Executor`.
        warm: shapes to prepare: input -> dims, several of them in turn. Each is run once with zeros.
        batch_queue: the largest number of examples computed together for several threads; 0 for none. Requests
            alike but for the first dim are joined, for at most ``wait`` seconds; ragged ones without padding.
        memory: the most bytes, or words as "512 MiB", for the predictor beyond the process at its opening, with torch loaded: weights, packed
            copies, kept kernels, and each run with its feed and results. Requests come one after another. Too large a one is run in parts, if no
            example changes another's results. Idle kernels and pages go back to the system where the next run would pass the bound.
        memory_limit, device: as for `Executor`; the limit is of the plan of each run, and refuses. With ``memory`` both count.
        precision: as for `Executor`: "bf16", or "auto" where the processor has instructions for it; of Foreshape's engine.
        engine: "foreshape", or "onnxruntime", where that is installed: an ``.onnx`` runs there as it is, any other network is written as one, in memory.
            ``model`` is opened here then when it is asked for.

    Raises:
        FormatError, DescriptionError: a file cannot be read; with onnxruntime: it is not installed, or the network has no form in ONNX.
        MemoryPlanError: the weights and the smallest run take more than ``memory``.
        SchemaError: ``batch_queue`` for a network whose results are not one for each example, or depend on the others beside it; a setting that the
            engine does not have.
    """

    @collector_waits  # rooms are imported
    def __init__(
        self,
        path: str | os.PathLike[str],
        params: Any = None,
        *,
        threads: int | Literal["adaptive"] | None = None,
        warm: Iterable[Mapping[str, Sequence[int]]] = (),
        batch_queue: int = 0,
        wait: float = 0.002,
        memory: int | str | None = None,
        memory_limit: int | str | None = None,
        device: str = "cpu",
        engine: Engine = "foreshape",
        precision: Precision = "fp32",
    ) -> None:
        if engine not in get_args(Engine):
            raise SchemaError.one_of("engine", get_args(Engine), engine)
        self._given = path, params
        self._settings: dict[str, Any] = {"device": device, "threads": threads, "memory_limit": memory_limit, "precision": precision}
        self._session: OnnxSession | CompiledModel | None = None
        self._bounded: BoundedModel | None = None
        compiled = has_compiled_kernels(path)
        if memory is not None and (compiled or engine != "foreshape" or device != "cpu"):
            raise SchemaError("memory is the bound of a network in Foreshape's engine on the processor, with its plan; neither of a compiled one nor elsewhere")
        others = precision != "fp32" or params is not None or threads == "adaptive" or memory_limit is not None or batch_queue
        if compiled and (engine != "foreshape" or device != "cpu" or others):
            settings = "engine, device, params, memory_limit, batch_queue, precision and an adaptive number of threads"
            raise SchemaError(f"{os.fspath(path)} is a compiled network: it runs for its sizes, on the processor; the network itself has {settings}")
        if engine == "onnxruntime":
            if device != "cpu" or memory_limit is not None or threads == "adaptive" or precision != "fp32":
                raise SchemaError(
                    "onnxruntime runs on the processor, without a limit of memory, in the network's own precision, with a fixed number of threads"
                )
            from foreshape.interop.onnx_session import OnnxSession

            self._session = OnnxSession(path, params, threads)
            self.inputs, self.outputs = list(self._session.feeds), list(self._session.fetches)
        elif compiled:
            self._file = CompiledFile(path)
            self._given = self._file.model, self._file.params
            self._session = open_compiled(self._file, lambda: self.model, None if threads is None or threads == "adaptive" else threads)
            self.inputs, self.outputs = self._session.feeds, self._session.fetches
        else:
            if memory is not None:
                self._bound(memory)
            model = self.model
            self.inputs, self.outputs = list(model.feeds), [v.name for v in model.fetches]
        self._queue: BatchQueue | None = None
        if batch_queue:
            from foreshape.interop.batch_queue import BatchQueue

            fits = {} if self._bounded is None else {"fits": self._bounded.fits}
            self._queue = BatchQueue(self.runs, self.batch_layout(), batch_queue, wait, **fits)
            weakref.finalize(self, self._queue.end)
        for shapes in warm:
            self._warm(shapes)

    @cached_property
    def model(self) -> InferenceModel:
        """The network in this engine."""
        from foreshape.interop.inference import load_inference_model
        from foreshape.interop.model import InferenceModel
        from foreshape.runtime.engine import Scope

        scope, (path, params) = Scope(), self._given
        program, feeds, fetches = load_inference_model(path, self._executor, scope, params)
        return InferenceModel.of(program, feeds, fetches, scope, self._executor)

    @cached_property
    def _executor(self) -> Executor:
        from foreshape.runtime.engine import Executor

        return Executor() if self._is_of_onnxruntime else Executor(**self._settings, frozen=True)

    def _bound(self, memory: int | str) -> None:
        """Open the network within a bound."""
        from foreshape.compiler.memory import bytes_of
        from foreshape.interop.bounded_model import BoundedModel

        budget = self._executor.keep_within(bytes_of(memory))
        self._bounded = BoundedModel(self.model, self._executor, budget, None if self._settings["memory_limit"] is None else self._executor.memory_limit)

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """The precision of products and convolutions on this machine."""
        return "fp32" if self._session is not None else self._executor.precision

    @property
    def _is_of_onnxruntime(self) -> bool:
        return self._session is not None and not isinstance(self._session, CompiledModel)

    @property
    def runs(self) -> InferenceModel | OnnxSession | CompiledModel | BoundedModel:
        """Return the network in its engine."""
        if self._bounded is not None:
            return self._bounded
        return self.model if self._session is None else self._session

    def batch_layout(self) -> BatchLayout:
        """Return the way in which requests become one batch.

        Raises:
            SchemaError: the results are not one for each example, or an example may change another's.
        """
        from foreshape.interop.batch_layout import BatchLayout, check_apart

        if self._session is None:
            return BatchLayout.of_model(self.model)
        layout = self._session.batch_layout()
        check_apart(self.model)
        return layout

    def run(self, feed: Mapping[str, Any] | Any, *more: Any) -> Results:
        """Compute the network's results for a feed (input -> array, or the arrays in order), by name. Raises as `InferenceModel.run`.

        Args:
            feed, more: as for `InferenceModel.run`.
        """
        return self.runs.run(feed, *more) if self._queue is None else self._queue.run(feed_of(self.inputs, (feed, *more)))

    __call__ = run

    def plan(self) -> Plan:
        """Return its memory plan. Raises `SchemaError` with onnxruntime.

        Packed weights count beside the parameters, except for parameters still in their file.
        """
        self._check_engine("a plan")
        from foreshape.compiler.memory import Plan

        return Plan(self.model.program, self.outputs, frozen=True, in_files=self.model.scope.deferred())

    def profile(self, feed: Mapping[str, Any] | Any, *more: Any, runs: int | None = None) -> Profile:
        """Profile an answer, layer by layer.

        Args:
            feed, more: as for `run`; a batch queue is not used.
            runs: as for `fs.profile`.

        Raises:
            ExecutionError: as `fs.profile`; the errors of `run`. SchemaError: it runs in onnxruntime.
        """
        self._check_engine("a profile")
        from foreshape.runtime.profiling import profile

        return profile(self.model.program, feed_of(self.inputs, (feed, *more)), self.outputs, self.model.scope, executor=self._executor, runs=runs)

    def _check_engine(self, subject: str) -> None:
        if self._is_of_onnxruntime:
            raise SchemaError(f"{subject} is of Foreshape's engine, and this network runs in onnxruntime; Predictor(path) has one")

    def _warm(self, shapes: Mapping[str, Sequence[int]]) -> None:
        import numpy

        if set(shapes) != set(self.inputs):
            raise SchemaError(f"a shape to be ready for has dims for {', '.join(self.inputs)}; seen {', '.join(shapes) or 'none'}")
        elements: Mapping[str, str] = self._session.elements if self._session is not None else self.model.elements
        self.runs.run({n: numpy.zeros(list(dims), elements[n]) for n, dims in shapes.items()})

    def __repr__(self) -> str:
        if self._session is not None:
            how = f"compiled for {shapes_text(self._session.sizes)}" if isinstance(self._session, CompiledModel) else "onnxruntime"
            return f"Predictor({', '.join(self.inputs)} -> {', '.join(self.outputs)}; {how})"
        shown = f"Predictor{repr(self.model).removeprefix('InferenceModel')}"
        return shown if self.precision == "fp32" else f"{shown[:-1]}; bf16)"
