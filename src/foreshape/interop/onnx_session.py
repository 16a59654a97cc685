"""Networks of every format in onnxruntime: written as a model of ONNX in memory, and opened there."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any, Final

from foreshape.core.spec import Spec
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ExecutionError, FeedError, FormatError, border
from foreshape.interop.batch_layout import BatchLayout
from foreshape.interop.inference import columns
from foreshape.interop.model import copied_from
from foreshape.interop.onnx.write.models import model_of, write_model
from foreshape.interop.onnx.write.padded_rows import length_name
from foreshape.interop.onnx_files import opened_for_onnx
from foreshape.interop.program_files import find_program, holds_onnx
from foreshape.interop.results import Results, feed_of
from foreshape.language.wire.onnx_encode import LARGEST, encode_model
from foreshape.runtime.feeding.feed_errors import meant_for
from foreshape.runtime.feeding.ragged import as_ragged

_ROOM: Final = 1 << 24
"""A model nearer to the format's limit than so many bytes has its tensors in a file of their own."""


def need_onnxruntime(purpose: str) -> Any:
    """Return the module onnxruntime. Raises `FormatError` where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise FormatError(f"{purpose} needs onnxruntime, which is not installed: pip install 'foreshape[onnxruntime]'")
    return importlib.import_module("onnxruntime")


class OnnxSession:
    """A network opened in onnxruntime.

    Attributes:
        feeds, fetches: the names of its inputs and of its results, in order.
        elements: input -> numpy's name of its elements.
    """

    feeds: list[str]
    fetches: list[str]
    elements: dict[str, str]

    @border("the network cannot be opened in onnxruntime", FormatError)
    def __init__(self, path: str | os.PathLike[str], params: Any = None, threads: int | None = None) -> None:
        """Open a network.

        Args:
            path, params: as for `load_inference_model`; an ``.onnx`` goes there as it is, any other program is written as a model first.
            threads: of its kernels; by default onnxruntime's own choice.

        Raises:
            FormatError: onnxruntime is not installed, or refuses the model; a file cannot be read; the network has no form in ONNX.
        """
        runtime = need_onnxruntime('engine="onnxruntime"')
        options: Any = runtime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        model, _ = find_program(path)
        self._folder: Any = None
        self._saved_names: dict[str, str] = {}
        self._ragged: dict[str, Spec] = {}
        self._specs: dict[str, Spec] | None = None
        source: Any = model if params is None and holds_onnx(model) else self._written(path, params)
        try:
            self._session: Any = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # it has a class for each kind
            raise FormatError(f"{model}: onnxruntime refuses it: {str(error).strip()[:500]}") from error
        self._inputs: list[tuple[str, str, Sequence[Any]]] = [(end.name, _element(end.type), end.shape) for end in self._session.get_inputs()]
        self._outputs: list[str] = [end.name for end in self._session.get_outputs()]
        self.elements = {name: element for name, element, _ in self._inputs}
        lengths = {length_name(name, depth) for name, spec in self._ragged.items() for depth in range(spec.lod_level)}
        self.feeds, self.fetches = ([name for name in names if name not in lengths] for names in (self.elements, self._outputs))

    def _written(self, path: str | os.PathLike[str], params: Any) -> Any:
        """Return the bytes of a network as a model of ONNX, or the path of its file in a temporary folder if it is too large for one piece."""
        program, values = opened_for_onnx(path, params)
        feeds, fetches = columns(program, "feed", outputs=True), columns(program, "fetch", outputs=False)
        self._saved_names = {saved_name: name for name in fetches if (saved_name := copied_from(program.global_block.var(name))) is not None}
        self._specs = {name: program.global_block.var(name).spec for name in (*feeds, *fetches)}
        self._ragged = {name: spec for name, spec in self._specs.items() if spec.lod is not None}
        model = model_of(program, feeds, {name: name for name in fetches}, values)
        pieces = encode_model(model)
        if sum(map(len, pieces)) <= LARGEST - _ROOM:
            return b"".join(pieces)
        self._folder = TemporaryDirectory()
        return write_model(os.path.join(self._folder.name, "model.onnx"), model).path

    def run(self, feed: Mapping[str, Any] | Any, *more: Any) -> Results:
        """Compute the results, as `InferenceModel.run`.

        Raises:
            FeedError: an input is missing, unknown, or of other dims or another kind of number. ExecutionError: onnxruntime stops.
        """
        inputs = feed if feed.__class__ is dict and not more else feed_of(self.feeds, (feed, *more))
        for name in inputs:
            if name not in self.feeds:
                raise FeedError(f"{name!r} is fed, and the program has no such input; it has {', '.join(self.feeds) or 'none'}")
        if self._ragged:
            inputs = self._padded(inputs)
        sizes: dict[str, tuple[int, str]] = {}
        arrays = {name: self._fed(name, element, dims, inputs, sizes) for name, element, dims in self._inputs}
        try:
            results = dict(zip(self._outputs, self._session.run(self._outputs, arrays), strict=True))
        except Exception as error:  # it has a class for each kind
            raise ExecutionError(f"onnxruntime stops: {str(error).strip()[:500]}") from error
        if self._ragged:
            results = {
                name: results[name] if name not in self._ragged else without_padding(name, results, self._ragged[name].lod_level) for name in self.fetches
            }
        return Results(results, self._saved_names)

    def _padded(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a feed with its ragged inputs in their padded form."""
        out: dict[str, Any] = {}
        for name, value in inputs.items():
            if name not in self._ragged or value is None:
                out[name] = value
                continue
            fed = as_ragged(name, value, self._ragged[name])
            levels = fed.sequence_lengths
            out[name] = with_padding(fed.data, levels)
            out |= {length_name(name, depth): with_padding(level, levels[:depth]) for depth, level in enumerate(levels)}
        return out

    def _fed(self, name: str, element: str, dims: Sequence[Any], inputs: Mapping[str, Any], sizes: dict[str, tuple[int, str]]) -> Any:
        import numpy

        value = inputs.get(name)
        if value is None:
            raise FeedError(f"{name} is not fed; fed are: {', '.join(map(str, inputs)) or 'none'}{meant_for(name, inputs, ())}")
        array = numpy.asarray(value)
        if array.dtype != element:
            array = _converted(name, array, element)
        expected = f"{element} {[d if d is not None else '?' for d in dims]}"
        if array.ndim != len(dims):
            raise FeedError.must(name, expected, f"{[*array.shape]}", "fed is")
        for axis, (size, length) in enumerate(zip(dims, array.shape, strict=True)):
            bound = sizes.setdefault(size, (length, f"dim {axis} of {name}")) if size.__class__ is str else (size, "it")
            if bound[0] is not None and bound[0] != length:
                words = f"{expected}, and {bound[1]} is {bound[0]}" if size.__class__ is str else expected
                raise FeedError.must(name, words, f"{[*array.shape]}", "fed is")
        return array

    def batch_layout(self) -> BatchLayout:
        """Return the way in which requests become one batch. Raises `SchemaError` unless inputs and results begin with one open dim."""
        if self._specs is not None:
            out = BatchLayout.of_specs({n: self._specs[n] for n in self.feeds}, {n: self._specs[n] for n in self.fetches}, {})
            out.rounds = False
            return out
        inputs, results = ({end.name: end.shape for end in ends} for ends in (self._session.get_inputs(), self._session.get_outputs()))
        return BatchLayout.of_names(inputs, results)


def with_padding(rows: Any, levels: Sequence[Any]) -> Any:
    """Return rows one after another as [sequences, time, ...], level by level, zeros behind the ends of sequences."""
    import numpy

    out: Any = numpy.asarray(rows)
    for level in reversed(levels):
        lengths: Any = numpy.asarray(level, "int64")
        longest = int(lengths.max(initial=0))
        padded: Any = numpy.zeros([len(lengths), longest, *out.shape[1:]], out.dtype)
        padded[numpy.arange(longest) < lengths[:, None]] = out
        out = padded
    return out


def without_padding(name: str, results: Mapping[str, Any], count: int) -> LoDTensor:
    """Return a ragged result of its padded form."""
    import numpy

    rows, levels = results[name], list[Any]()
    for depth in range(count):
        level = results[length_name(name, depth)]
        for outer in levels:
            level = level[numpy.arange(level.shape[1]) < outer[:, None]]
        levels.append(level)
        rows = rows[numpy.arange(rows.shape[1]) < level[:, None]]
    return LoDTensor(rows, [level.tolist() for level in levels])


def _element(type: str) -> str:
    """Return numpy's name of the elements of an input: ``tensor(float)``."""
    name = type.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(name, name)


def _converted(name: str, array: Any, element: str) -> Any:
    """Return an array in another element type of its kind, with the same numbers; float64 is rounded to float32."""
    import numpy

    dtype = numpy.dtype(element)
    kinds = {"i": "whole", "u": "whole", "f": "float", "b": "bool"}
    if kinds.get(array.dtype.kind) == kinds.get(dtype.kind):
        out = array.astype(dtype)
        if numpy.array_equal(out, array) if dtype.kind in "iu" else dtype.itemsize >= min(array.dtype.itemsize, 4):
            return out
    raise FeedError.must(name, element, str(array.dtype), "fed is")
