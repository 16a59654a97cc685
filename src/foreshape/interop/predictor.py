"""`Predictor`: a saved network for the fastest answers."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from foreshape.engine import Executor, Scope
from foreshape.errors import SchemaError
from foreshape.interop.inference import load_inference_model
from foreshape.interop.model import InferenceModel, Results, batch_symbol, feed_of
from foreshape.memory import Plan
from foreshape.profiling import Profile, profile

if TYPE_CHECKING:
    from foreshape.interop.onnx_session import OnnxSession


class Predictor:
    """A saved network with parameters of its own, frozen: normalization is folded into weights, and these are packed for the kernels.

    It may be called from several threads at once. ``inputs`` and ``outputs`` are the names, in order; ``model`` is the network it runs.

    Args:
        path: as for `load_inference_model`.
        params: the parameter file, if named otherwise.
        threads: of its kernels, as for `Executor`.
        warm: shapes to prepare: input -> dims, several of them in turn. Each is run once with zeros.
        batch_queue: the largest number of examples computed together for several threads; 0 for none. Requests
            alike but for the first dim are joined, for at most ``wait`` seconds.
        memory_limit, device: as for `Executor`.
        engine: "foreshape", or "onnxruntime", where that is installed: an ``.onnx`` runs there as it is, any other network is written as one, in memory.
            ``model`` is opened here then when it is asked for.

    Raises:
        FormatError, DescriptionError: a file cannot be read; with onnxruntime: it is not installed, or the network has no form in ONNX.
        SchemaError: ``batch_queue`` for a network whose results are not one for each example; a setting that the engine does not have.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        params: Any = None,
        *,
        threads: int | Literal["adaptive"] | None = None,
        warm: Iterable[Mapping[str, Sequence[int]]] = (),
        batch_queue: int = 0,
        wait: float = 0.002,
        memory_limit: int | str | None = None,
        device: str = "cpu",
        engine: Literal["foreshape", "onnxruntime"] = "foreshape",
    ) -> None:
        if engine not in ("foreshape", "onnxruntime"):
            raise SchemaError(f'engine must be "foreshape" or "onnxruntime"; seen {engine!r}')
        self._given = path, params
        self._session: OnnxSession | None = None
        if engine == "onnxruntime":
            if device != "cpu" or memory_limit is not None or threads == "adaptive":
                raise SchemaError("onnxruntime runs on the processor, without a limit of memory, and with a fixed number of threads")
            from foreshape.interop.onnx_session import OnnxSession

            self._session = OnnxSession(path, params, threads)
            self.inputs, self.outputs = list(self._session.feeds), list(self._session.fetches)
        else:
            self._executor = Executor(device, threads=threads, memory_limit=memory_limit, frozen=True)
            model = self.model
            self.inputs, self.outputs = list(model.feeds), [v.name for v in model.fetches]
        self._queue = _Queue(self._runs, batch_queue, wait) if batch_queue else None
        if self._queue is not None:
            weakref.finalize(self, self._queue.end)
        for shapes in warm:
            self._warm(shapes)

    @cached_property
    def model(self) -> InferenceModel:
        """The network in this engine."""
        scope, (path, params) = Scope(), self._given
        executor = self._executor if self._session is None else Executor()
        program, feeds, fetches = load_inference_model(path, executor, scope, params)
        return InferenceModel.of(program, feeds, fetches, scope, executor)

    @property
    def _runs(self) -> InferenceModel | OnnxSession:
        return self.model if self._session is None else self._session

    def run(self, feed: Mapping[str, Any] | Any, *more: Any) -> Results:
        """Compute the network's results for a feed (input -> array, or the arrays in order), by name. Raises as `InferenceModel.run`.

        Args:
            feed, more: as for `InferenceModel.run`.
        """
        return self._runs.run(feed, *more) if self._queue is None else self._queue.run(feed_of(self.inputs, (feed, *more)))

    __call__ = run

    def plan(self) -> Plan:
        """Return its memory plan, including the weights kept twice. Raises `SchemaError` with onnxruntime."""
        self._here("a plan")
        return Plan(self.model.program, self.outputs, frozen=True)

    def profile(self, feed: Mapping[str, Any] | Any, *more: Any, runs: int | None = None) -> Profile:
        """Profile an answer, layer by layer.

        Args:
            feed, more: as for `run`; a batch queue is not used.
            runs: as for `fs.profile`.

        Raises:
            ExecutionError: as `fs.profile`; the errors of `run`. SchemaError: it runs in onnxruntime.
        """
        self._here("a profile")
        return profile(self.model.program, feed_of(self.inputs, (feed, *more)), self.outputs, self.model.scope, executor=self._executor, runs=runs)

    def _here(self, what: str) -> None:
        if self._session is not None:
            raise SchemaError(f"{what} is of Foreshape's engine, and this network runs in onnxruntime; Predictor(path) has one")

    def _warm(self, shapes: Mapping[str, Sequence[int]]) -> None:
        import numpy

        if set(shapes) != set(self.inputs):
            raise SchemaError(f"a shape to be ready for has dims for {', '.join(self.inputs)}; seen {', '.join(shapes) or 'none'}")
        of = self._session.elements if self._session is not None else {n: self.model.program.global_block.var(n).spec.known_dtype.numpy_name for n in shapes}
        self._runs.run({n: numpy.zeros(list(dims), of[n]) for n, dims in shapes.items()})

    def __repr__(self) -> str:
        if self._session is not None:
            return f"Predictor({', '.join(self.inputs)} -> {', '.join(self.outputs)}; onnxruntime)"
        return f"Predictor{repr(self.model).removeprefix('InferenceModel')}"


class _Request(NamedTuple):
    feed: dict[str, Any]
    examples: int
    key: Any
    answer: Future[Results]


class _Queue:
    """A queue of simultaneous requests: it joins them, and runs them as one batch in a thread of its own."""

    def __init__(self, model: InferenceModel | OnnxSession, most: int, wait: float) -> None:
        if most < 1 or wait < 0:
            raise SchemaError(f"batch_queue is a number of examples, and wait of seconds; seen {most} and {wait}")
        if isinstance(model, InferenceModel):
            batch_symbol(model)
        else:
            model.need_a_batch()
        self._model, self._most, self._wait = model, most, wait
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="foreshape-batch-queue", daemon=True).start()

    def run(self, feed: dict[str, Any]) -> Results:
        import numpy

        arrays = {n: numpy.asarray(a) for n, a in feed.items()}
        counts = {a.shape[0] if a.ndim else 0 for a in arrays.values()}
        if set(arrays) != set(self._model.feeds) or len(counts) != 1:
            return self._model.run(feed)  # its error says so
        answer: Future[Results] = Future()
        key = tuple((n, a.shape[1:], a.dtype.str) for n, a in sorted(arrays.items()))
        self._requests.put(_Request(arrays, counts.pop(), key, answer))
        return answer.result()

    def end(self) -> None:
        """Let the thread end after the answers to present requests."""
        self._requests.put(None)

    def _serve(self) -> None:
        waiting: list[_Request] = []
        ended = False
        while waiting or not ended:
            first = waiting.pop(0) if waiting else self._requests.get()
            if first is None:
                return
            together, count, until = [first], first.examples, monotonic() + self._wait
            others: list[_Request] = []
            while count < self._most:
                try:
                    one = waiting.pop(0) if waiting else self._requests.get(timeout=max(0.0, until - monotonic()))
                except Empty:
                    break
                if one is None:
                    ended = True
                    break
                if one.key == first.key and count + one.examples <= self._most:
                    together.append(one)
                    count += one.examples
                else:
                    others.append(one)
            waiting = [*others, *waiting]
            self._answer(together)

    def _answer(self, together: Sequence[_Request]) -> None:
        import numpy

        try:
            feed = {n: numpy.concatenate([r.feed[n] for r in together]) if len(together) > 1 else a for n, a in together[0].feed.items()}
            found = self._model.run(feed)
        except Exception as error:
            if len(together) > 1:  # the others are answered, whatever is wrong with one
                for r in together:
                    self._answer([r])
            else:
                together[0].answer.set_exception(error)
            return
        at = 0
        for r in together:
            r.answer.set_result(Results({n: a[at : at + r.examples] for n, a in found.items()}, found.asked))
            at += r.examples
