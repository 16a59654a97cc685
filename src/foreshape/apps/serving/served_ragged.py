"""Encoders of padded texts as served models on ragged rows: requests of any lengths are computed together without padding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, Literal

from foreshape.apps.serving.datatypes import datatype_of
from foreshape.apps.serving.protocol import InferRequest, NamedTensor, tensor_info
from foreshape.apps.serving.served_model import Opening, ServedModel, Soon
from foreshape.apps.serving.server_limits import RequestError
from foreshape.apps.serving.trouble import client_words
from foreshape.compiler.memory import byte_text
from foreshape.errors import ExecutionError, FeedError, GuardError, MemoryPlanError, ShapeError
from foreshape.interop.batch_queue import BatchQueue, Expired, QueueFull
from foreshape.interop.packed_texts import PackedJoining, PackedTexts, UnprovedTexts, packed_texts
from foreshape.interop.ragged_network import RaggedNetwork
from foreshape.interop.results import Results
from foreshape.runtime.report import report_page

RaggedMode = Literal["auto", "always", "never"]
_PADDING: Final = {
    "auto": "requests with padding in results of rows, and those outside the proof, open the padded network beside, and are computed by it",
    "always": "results of rows have zeros at padding",
}


class _PackedRunner:
    """The runner of feeds joined by `PackedJoining`."""

    feeds = fetches = ()

    def __init__(self, network: RaggedNetwork) -> None:
        self._network = network

    def run(self, feed: Any) -> Results:
        return Results(self._network.run(feed["packed"]), self._network.asked)


class ServedRagged:
    """A network of padded texts on ragged rows, with its queue; see `ServedModel`.

    Clients send padded texts with their mask, and get results in the padded network's form.

    Args:
        network: its network.
        opening: its circumstances.
        padded: opens the padded network, for requests to which the proof gives no answer; None to refuse them, and to fill padding with zeros.
    """

    def __init__(self, network: RaggedNetwork, opening: Opening, padded: Callable[[Opening], ServedModel] | None = None) -> None:
        self._network, self._limit = network, opening.memory
        self._padded = None if padded is None else PaddedBeside(padded, opening)
        self._named = {**network.asked, **{n: n for n in network.outputs}}
        self.platform, self.notes = "foreshape", [f"it runs on ragged rows, without padding: {_PADDING[self._mode]}"]
        self.inputs, self.outputs = ([tensor_info(n, spec) for n, spec in specs.items()] for specs in (network.inputs, network.outputs))
        if self._nbytes(least := {"texts": 1, "rows": 2, "longest": 2}) > self._limit:
            raise MemoryPlanError(f"the smallest batch needs {byte_text(self._nbytes(least))}, and this model may use {byte_text(self._limit)}")
        self._queue = BatchQueue(
            _PackedRunner(network),
            PackedJoining(network.row_results),
            opening.limits.batch,
            fits=lambda sizes: sizes["rows"] <= network.batch_rows and self._nbytes(sizes) <= self._limit,
            length=opening.limits.queue,
            ran=opening.ran,
        )
        self._queue.try_out({"packed": network.example()})

    @property
    def _mode(self) -> RaggedMode:
        return "always" if self._padded is None else "auto"

    def _nbytes(self, sizes: Mapping[str, int]) -> int:
        return self._network.nbytes_of_run(sizes["texts"], sizes["rows"], sizes["longest"])

    # --- asked by the server

    def facts(self) -> dict[str, Any]:
        """Return the setting, and the values at padding."""
        ragged = {"setting": self._mode, "rows": True, "mask": self._network.mask, "padding": _PADDING[self._mode]}
        return {"conditions": {}, "together": [], "batched": True, "precision": "fp32", "ragged": ragged}

    def feed(self, request: InferRequest) -> PackedTexts | dict[str, Any]:
        """Return the texts of a request without padding, or its padded arrays for the padded network."""
        for name in request.outputs or ():
            if name not in self._named:
                raise RequestError(400, f"the model gives no result {name[:100]!r}; it gives {', '.join(self._network.outputs)}")
        arrays: dict[str, Any] = {}
        for info in self.inputs:
            tensor = request.inputs.get(info.name)
            if tensor is None:
                raise RequestError(400, f"the input {info.name} is missing: {info.datatype} {[*info.dims]}")
            if tensor.lengths is not None:
                raise RequestError(400, f"{info.name} is dense, and has no lengths of sequences")
            arrays[info.name] = tensor.array
        try:
            packed = packed_texts(arrays, self._network.mask, self._network.inputs)
        except UnprovedTexts as error:
            if self._padded is None:
                raise self._wrong_size(error) from None
            return arrays
        except FeedError as error:
            raise self._wrong_size(error) from None
        wanted = {self._named[name] for name in request.outputs or self._network.outputs}
        return packed if self._padded is None or packed.is_full or not wanted & self._network.row_results else arrays

    def submit(self, feed: PackedTexts | dict[str, Any], until: float, soon: Soon | None) -> Future[Results]:
        """Put texts into the queue, or those for the padded network into its."""
        if not isinstance(feed, PackedTexts):
            assert self._padded is not None
            return self._padded.submit(feed, until, soon)
        sizes = {"texts": len(feed.lengths), "rows": int(feed.lengths.sum()), "longest": int(feed.lengths.max())}
        if (nbytes := self._nbytes(sizes)) > self._limit:
            raise RequestError(413, f"this request needs {byte_text(nbytes)}, and this model may use {byte_text(self._limit)}")
        try:
            return self._queue.submit({"packed": feed}, until, soon)
        except QueueFull as error:
            raise RequestError(503, str(error), retry_after=1) from error

    def tensors(self, request: InferRequest, results: Results) -> list[NamedTensor]:
        """Return the wanted results."""
        out: list[NamedTensor] = []
        for name in request.outputs if request.outputs is not None else self._network.outputs:
            value = results[self._named[name]]
            out.append(NamedTensor(name, datatype_of(self._network.outputs[self._named[name]].known_dtype), value))
        return out

    def refusal(self, request: InferRequest, error: Exception) -> RequestError | None:
        """Return 422 for a wrong size or value, 413 for too large a request, 504 for too late a one, else None."""
        if isinstance(error, Expired):
            return RequestError(504, client_words(error), retry_after=1)
        if isinstance(error, MemoryPlanError):
            return RequestError(413, client_words(error))
        return self._wrong_size(error) if isinstance(error, (FeedError, GuardError, ExecutionError, ShapeError)) else None

    def _wrong_size(self, error: Exception) -> RequestError:
        return RequestError(422, client_words(error), takes=self._network.sizes)

    def waiting(self) -> int:
        return len(self._queue) + (0 if self._padded is None else self._padded.waiting())

    def give_memory(self, limit: int) -> None:
        self._limit = limit
        if self._padded is not None:
            self._padded.give_memory(limit)

    def page(self, title: str) -> str:
        return report_page(self._network.program, title)

    def close(self) -> None:
        self._queue.end()
        if self._padded is not None:
            self._padded.close()


class PaddedBeside:
    """A served model opened by a thread at its first request, beside another over the same file.

    Args:
        open: opens it.
        opening: its circumstances.
    """

    def __init__(self, open: Callable[[Opening], ServedModel], opening: Opening) -> None:
        self._open, self._opening, self._lock = open, opening, threading.Lock()
        self._served: ServedModel | None = None
        self._first: list[tuple[Any, float, Future[Any]]] = []
        """The requests of the time of its opening."""
        self._is_closed = False

    def submit(self, feed: Any, until: float, soon: Soon | None) -> Future[Any]:
        """Return the future results of a feed. Raises `RequestError`: it is refused."""
        with self._lock:
            if self._served is None:
                if len(self._first) >= self._opening.limits.queue:
                    raise RequestError(503, f"{len(self._first)} requests wait, and no more may", retry_after=1)
                answer = Future[Any]()
                self._first.append((feed, until, answer))
                if len(self._first) == 1:
                    threading.Thread(target=self._begin, name="foreshape-padded-network", daemon=True).start()
                return answer
        return self._served.submit(feed, until, soon)

    def _begin(self) -> None:
        """Open the model, and hand it the first requests; of a model that cannot be opened they get the error, and the next one tries again."""
        served, failure = None, None
        try:
            served = self._open(self._opening)
        except Exception as error:
            failure = error
        with self._lock:
            first, self._first = self._first, []
            self._served = served
            if served is not None and self._is_closed:
                served.close()
        for feed, until, answer in first:
            if answer.set_running_or_notify_cancel():
                self._answer(served, feed, until, answer, failure)

    def _answer(self, served: ServedModel | None, feed: Any, until: float, answer: Future[Any], failure: Exception | None) -> None:
        try:
            if served is None:
                raise failure or AssertionError
            inner = served.submit(feed, until, None)
        except Exception as error:
            answer.set_exception(error)
            return

        def done(_: Future[Any]) -> None:
            error = inner.exception()
            if error is None:
                answer.set_result(inner.result())
            else:
                answer.set_exception(error)

        inner.add_done_callback(done)

    def waiting(self) -> int:
        return len(self._first) + (0 if self._served is None else self._served.waiting())

    def give_memory(self, limit: int) -> None:
        self._opening = self._opening._replace(memory=limit)
        if self._served is not None:
            self._served.give_memory(limit)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._served is not None:
                self._served.close()
