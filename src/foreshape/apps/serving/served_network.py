"""Saved networks as served models: requests are joined up to the largest batch of the memory plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, get_args

import numpy

from foreshape.apps.serving.datatypes import datatype_of
from foreshape.apps.serving.protocol import InferRequest, NamedTensor, TensorInfo, tensor_info
from foreshape.apps.serving.served_model import Opening, ServedModel, Soon
from foreshape.apps.serving.served_ragged import RaggedMode, ServedRagged
from foreshape.apps.serving.server_limits import RequestError
from foreshape.apps.serving.trouble import client_words
from foreshape.compiler.memory import byte_text
from foreshape.core.dims import symbol_name
from foreshape.core.spec import Spec
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ExecutionError, FeedError, ForeshapeError, FormatError, GuardError, MemoryPlanError, SchemaError, ShapeError, UnpadError
from foreshape.interop import Predictor
from foreshape.interop.batch_layout import BatchLayout
from foreshape.interop.batch_queue import BatchQueue, Expired, QueueFull
from foreshape.interop.bounded_model import BoundedModel
from foreshape.interop.compiled_head import has_compiled_kernels, is_compiled
from foreshape.interop.example_feed import example_feed
from foreshape.interop.gguf_file import is_gguf
from foreshape.interop.memory_room import MemoryRoom
from foreshape.interop.program_files import MODEL, find_program
from foreshape.interop.ragged_network import RaggedNetwork
from foreshape.interop.results import Results
from foreshape.language.ops.rules.ragged_rules import longest, longest_outermost
from foreshape.machine.process.product_precision import Precision
from foreshape.runtime.report import report_page


class Networks:
    """The kind of saved networks: of every format of `load_inference_model`."""

    def __init__(
        self,
        threads: int | None = None,
        engine: Literal["foreshape", "onnxruntime"] = "foreshape",
        bounded: bool = False,
        device: str = "cpu",
        precision: Precision = "fp32",
        ragged: RaggedMode = "never",
        mask: str = "attention_mask",
    ) -> None:
        """Set how all of them run.

        Args:
            threads, engine, device, precision: as for `Predictor`.
            bounded: each keeps all of its memory within its share of the server's.
            ragged: "auto" runs networks of padded texts on ragged rows where `fs.unpad` proves that padding reaches no result, and all others as they are;
                "always" refuses the others, and gives zeros at padding; "never" runs all as they are.
            mask: the input with the mask of padded texts.

        Raises:
            SchemaError: another setting; "always" beside a setting without ragged rows.
        """
        if ragged not in get_args(RaggedMode):
            raise SchemaError.one_of("ragged", get_args(RaggedMode), ragged)
        self._ragged: RaggedMode = ragged
        self._mask = mask
        obstacles = {"engine": engine != "foreshape", "a device": device != "cpu", "a precision": precision != "fp32", "a bound of memory": bounded}
        self._obstacle = ", ".join(name for name, there in obstacles.items() if there)
        if ragged == "always" and self._obstacle:
            raise SchemaError(f"ragged rows are computed in fp32 on the processor, within no bound of all memory; seen beside them: {self._obstacle}")
        self._settings: dict[str, Any] = {"threads": threads, "device": device, "precision": precision}
        self._bounded = bounded
        self._engine: Literal["foreshape", "onnxruntime"] = engine

    def finds(self, path: str) -> bool:
        """Tell whether there is a saved network."""
        if is_gguf(path):
            return False
        try:
            find_program(path)
        except FormatError:
            return False
        return True

    def fills(self, folder: str) -> bool:
        """Tell whether a folder holds one network, by the name of its file."""
        return any(n == MODEL or n.startswith("inference.") for n in os.listdir(folder)) and self.finds(folder)

    def opened(self, path: str, opening: Opening) -> ServedModel:
        """Open a network, and run it once.

        Raises:
            UnpadError, SchemaError: ragged rows are required, and the proof fails.
        """
        if self._ragged == "never":
            return self._as_it_is(path, opening)
        padded = partial(self._as_it_is, path) if self._ragged == "auto" else None
        reason = f"they are not computed beside {self._obstacle}" if self._obstacle else "it is compiled" if is_compiled(path) else ""
        try:
            if reason:
                raise SchemaError(f"{path} has no ragged rows: {reason}")
            return ServedRagged(RaggedNetwork(path, self._mask, self._settings["threads"]), opening, padded)
        except (UnpadError, SchemaError) as error:
            if self._ragged == "always":
                raise
            served = self._as_it_is(path, opening)
            served.keep_padded(str(error))
            return served

    def _as_it_is(self, path: str, opening: Opening) -> ServedNetwork:
        memory = opening.memory if self._bounded else None
        settings: dict[str, Any] = {**self._settings, "precision": "fp32"} if has_compiled_kernels(path) else self._settings  # its kernels are written down
        return ServedNetwork(Predictor(path, engine=self._engine, memory=memory, **settings), opening)


class ServedNetwork:
    """An opened network with its queue; see `ServedModel`."""

    def __init__(self, predictor: Predictor, opening: Opening) -> None:
        self._predictor, model = predictor, predictor.model
        block = model.program.global_block
        self._specs = {n: block.var(n).spec for n in (*model.feeds, *(v.name for v in model.fetches))}
        self._symbols = {n: _symbols(self._specs[n]) for n in model.feeds}
        self._named = {**model.asked, **{n: n for n in predictor.outputs}}
        self.platform, self.notes = "foreshape", list[str]()
        self.inputs, self.outputs = ([tensor_info(n, self._specs[n]) for n in names] for names in (predictor.inputs, predictor.outputs))
        self._bounded = predictor.runs if isinstance(predictor.runs, BoundedModel) else None
        limit = opening.memory if self._bounded is None else self._bounded.limit
        self._room = MemoryRoom(predictor.plan(), limit) if self._bounded is not None or predictor.runs is model else None
        self._is_steady = len(model.program.blocks) == 1 and (self._room is None or self._room.is_told_by(self._sizes_symbols()))
        layout = self._try()
        self._joins = layout is not None
        self._queue = BatchQueue(predictor.runs, layout, opening.limits.batch, fits=self._fits, length=opening.limits.queue, ran=opening.ran)
        self._ragged: dict[str, Any] = {}
        if (example := example_feed(self._predictor.model, self._predictor.inputs)) is not None:
            self._queue.try_out(example)

    def keep_padded(self, reason: str) -> None:
        """Say in the notes and the metadata why it does not run on ragged rows."""
        self.notes.append(f"it does not run on ragged rows: {reason}")
        self._ragged = {"ragged": {"setting": "auto", "rows": False, "reason": client_words(reason)}}

    def _try(self) -> BatchLayout | None:
        """Run the network at its smallest sizes; return the layout of its batches, None if its requests cannot be joined."""
        example = example_feed(self._predictor.model, self._predictor.inputs)
        if example is None:
            self.notes.append("no sizes were found at which it runs, so it is not tried before the first request")
            return None
        if self._room is not None and not self._room.fits(sizes := self._sizes(example)):
            raise MemoryPlanError(f"the smallest batch needs {byte_text(self._room.peak(sizes))}, and this model may use {byte_text(self._room.limit)}")
        self._predictor.run(example)
        try:
            layout = self._predictor.batch_layout()
        except SchemaError as error:
            self.notes.append(f"its requests are run one by one: {error}")
            return None
        return layout

    def _sizes(self, feed: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes of the symbols of a feed, and the lengths of its longest sequences."""
        out: dict[str, int] = {}
        for name, value in feed.items():
            axes, counts, tallest = self._symbols[name]
            shape = value.shape
            for axis, symbol in axes:
                if axis < len(shape):
                    out[symbol] = shape[axis]
            if tallest and isinstance(value, LoDTensor):
                levels = value.sequence_lengths
                for level, symbol in counts:
                    out[symbol] = len(levels[level])
                out[tallest[0]] = max(levels[-1], default=0)
                out.setdefault(tallest[1], shape[0])
        return out

    def _sizes_symbols(self) -> set[str]:
        """Return the symbols of `_sizes`."""
        return {symbol for axes, counts, tallest in self._symbols.values() for symbol in (*(s for _, s in axes), *(s for _, s in counts), *tallest)}

    def _fits(self, sizes: Mapping[str, int]) -> bool:
        return self._room is None or self._room.fits(sizes)

    # --- asked by the server

    def facts(self) -> dict[str, Any]:
        """Return the accepted sizes, and whether requests are joined."""
        feeds = self._predictor.model.program.feeds
        conditions = {word: text for feed in feeds.values() for word, text in feed.conditions.items()}
        return {"conditions": conditions, "together": feeds.joint[:20], "batched": self._joins, "precision": self._predictor.precision, **self._ragged}

    def feed(self, request: InferRequest) -> dict[str, Any]:
        """Return the arrays of a request with the names and element types of the network."""
        for name in request.outputs or ():
            if name not in self._named:
                raise RequestError(400, f"the model gives no result {name[:100]!r}; it gives {', '.join(self._predictor.outputs)}")
        out: dict[str, Any] = {}
        for info in self.inputs:
            tensor = request.inputs.get(info.name)
            if tensor is None:
                raise RequestError(400, f"the input {info.name} is missing: {info.datatype} {[*info.dims]}")
            out[info.name] = self._value(info, tensor)
        return out

    def submit(self, feed: Any, until: float, soon: Soon | None) -> Future[Any]:
        """Check the sizes of a feed, and put it into the queue."""
        if self._bounded is None and self._room is not None and not self._room.fits(sizes := self._sizes(feed)):
            raise self._too_large(sizes)
        try:
            return self._queue.submit(feed, until, soon if self._is_steady else None)
        except QueueFull as error:
            raise RequestError(503, str(error), retry_after=1) from error

    def _value(self, info: TensorInfo, tensor: NamedTensor) -> Any:
        array, levels = tensor.array, len(info.counts)
        if not levels:
            if tensor.lengths is not None:
                raise RequestError(400, f"{info.name} is dense, and has no lengths of sequences")
            return array
        if not array.ndim:
            raise self._wrong_size(FeedError(f"{info.name} has the dims {[*info.dims]}; sent is a single number"), {info.name: []})
        lengths = tensor.lengths
        if lengths is None and levels == 1:
            lengths = [[len(array)]]
        if lengths is None or len(lengths) != levels:
            raise RequestError(400, f"{info.name} is ragged with {levels} levels: its parameter lengths is a list of whole numbers for each of them")
        try:
            return LoDTensor(array, lengths)
        except FeedError as error:
            raise RequestError(400, f"{info.name}: {client_words(error)}") from error

    def tensors(self, request: InferRequest, results: Results) -> list[NamedTensor]:
        """Return the wanted results."""
        out: list[NamedTensor] = []
        for name in request.outputs if request.outputs is not None else self._predictor.outputs:
            value = results[self._named[name]]
            datatype = datatype_of(self._specs[self._named[name]].known_dtype)
            ragged = isinstance(value, LoDTensor)
            out.append(NamedTensor(name, datatype, numpy.asarray(value.data if ragged else value), value.sequence_lengths if ragged else None))
        return out

    def refusal(self, request: InferRequest, error: Exception) -> RequestError | None:
        """Return 422 with the nearest sizes for a wrong size, 413 for too large a one, 504 for too late a request, else None."""
        if isinstance(error, Expired):
            return RequestError(504, client_words(error), retry_after=1)
        if isinstance(error, (FeedError, GuardError)):
            return self._wrong_size(error, {n: list(t.array.shape) for n, t in request.inputs.items()})
        if isinstance(error, MemoryPlanError):
            return RequestError(413, client_words(error))
        return RequestError(422, client_words(error)) if isinstance(error, (ExecutionError, ShapeError)) else None

    def _wrong_size(self, error: ForeshapeError, shapes: Mapping[str, list[int]]) -> RequestError:
        feeds = self._predictor.model.program.feeds
        facts: dict[str, Any] = {"takes": feeds.lines()}
        try:
            near = feeds.nearest(shapes)
        except FeedError:
            near = feeds.smallest
        if near is not None and near != shapes:
            facts["nearest"] = near
        return RequestError(422, client_words(error), **facts)

    def _too_large(self, sizes: Mapping[str, int]) -> RequestError:
        assert self._room is not None
        words = f"this request needs {byte_text(self._room.peak(sizes))}, and this model may use {byte_text(self._room.limit)}"
        return RequestError(413, words)

    def waiting(self) -> int:
        return len(self._queue)

    def give_memory(self, limit: int) -> None:
        if self._bounded is not None:
            self._bounded.resize(limit)
        if self._room is not None:
            self._room.limit = limit if self._bounded is None else self._bounded.limit

    def page(self, title: str) -> str:
        return report_page(self._predictor.model.program, title)

    def close(self) -> None:
        self._queue.end()


def _symbols(spec: Spec) -> tuple[list[tuple[int, str]], list[tuple[int, str]], tuple[str, ...]]:
    """Return the axes and the levels whose sizes are symbols, each with its symbol, and the symbols of the longest sequences."""
    pairs = [
        [(axis, symbol) for axis, size in enumerate(sizes) if not isinstance(size, int) and (symbol := symbol_name(size)) is not None]
        for sizes in (spec.known_dims, () if spec.lod is None else spec.lod.counts)
    ]
    return pairs[0], pairs[1], () if spec.lod is None else (str(longest(spec.lod)), str(longest_outermost(spec.lod)))
