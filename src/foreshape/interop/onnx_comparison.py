"""A written ONNX model beside the network it was written from: the checker's word, and the results of both at two sizes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.core.spec import BOOL
from foreshape.errors import FormatError
from foreshape.interop.model import InferenceModel
from foreshape.interop.onnx_session import need_onnxruntime
from foreshape.language.program import Program

_SIZES: Final = ((1, 48, 12), (2, 96, 20))
"""The wished sizes of the first dim, of an image's other dims, and of other dims, for each comparison; conditions of the network come first."""
_ROOM: Final = {2: 2e-2}
"""Bytes of an element -> the greatest difference, as a part of the largest number; 1e-3 for the others."""


class ComparedResults(NamedTuple):
    """The results of one feed in both.

    Attributes:
        sizes: input -> its dims.
        difference: the largest one over the largest number, of all results; infinite for other dims or element types.
        words: the reason if they differ, empty if not.
    """

    sizes: dict[str, list[int]]
    difference: float
    words: str


def check_written(path: str, network: InferenceModel) -> Iterator[ComparedResults]:
    """Check a file with ``onnx.checker`` (full shape inference; where `onnx` is installed), and compare its results in onnxruntime at up to two sizes.

    Raises:
        FormatError: onnxruntime is not installed; the checker or onnxruntime refuses the file.
    """
    onnxruntime = need_onnxruntime("a comparison")
    ragged = next((name for name in network.feeds if network.program.global_block.var(name).spec.lod is not None), None)
    if ragged is not None:
        raise FormatError(f"{ragged} is ragged: only networks of dense inputs are compared")
    package = importlib.util.find_spec("onnx")
    if package is not None and package.origin is not None:  # a folder of this name is no package
        checker: Any = importlib.import_module("onnx.checker")
        try:
            checker.check_model(path, full_check=True)
        except Exception as error:  # of the checker, the inference, or protobuf
            raise FormatError(f"{path}: onnx.checker refuses it: {str(error).strip()[:500]}") from error
    try:
        session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # it has a class for each kind
        raise FormatError(f"{path}: onnxruntime refuses it: {str(error).strip()[:500]}") from error
    names = [output.name for output in session.get_outputs()]
    for number, sizes in enumerate(comparison_sizes(network.program, network.feeds)):
        feed = drawn_feed(network.program, sizes, number)
        expected = list(network.run(feed).values())
        try:
            computed = session.run(names, feed)
        except Exception as error:
            raise FormatError(f"{path}: onnxruntime cannot run it with {_words(sizes)}: {str(error).strip()[:500]}") from error
        yield _compared(sizes, names, expected, computed)


def comparison_sizes(program: Program, feeds: Sequence[str]) -> Iterator[dict[str, list[int]]]:
    """Yield the sizes of inputs for each comparison: the network's nearest ones to the wished."""
    block = program.global_block
    rows = {name for name in feeds if block.var(name).spec.lod is not None}
    specs = {name: block.var(name).spec.known_dims for name in feeds}
    previous: dict[str, list[int]] | None = None
    for first, image, size in _SIZES:
        wished = {
            name: [d if isinstance(d, int) else first if axis == 0 and name not in rows else image if len(dims) >= 4 else size for axis, d in enumerate(dims)]
            for name, dims in specs.items()
        }
        sizes = program.feeds.nearest(wished) if wished else {}
        if sizes is None:
            raise FormatError("no sizes of its inputs were found to compare at")
        sizes = {name: sizes[name] for name in feeds}  # without an array of tensors that a loop writes to
        if sizes != previous:
            yield sizes
        previous = sizes


def drawn_feed(program: Program, sizes: Mapping[str, Sequence[int]], seed: int) -> dict[str, Any]:
    """Return drawn arrays for inputs."""
    import numpy

    draw = numpy.random.RandomState(seed)
    feed: dict[str, Any] = {}
    for name, dims in sizes.items():
        dtype = program.global_block.var(name).spec.known_dtype
        integral = dtype is BOOL or dtype.is_integer
        feed[name] = (
            draw.randint(0, 2, dims).astype("bool" if dtype is BOOL else dtype.numpy_name) if integral else draw.standard_normal(dims).astype(dtype.numpy_name)
        )
    return feed


def _compared(sizes: dict[str, list[int]], names: Sequence[str], expected: Sequence[Any], computed: Sequence[Any]) -> ComparedResults:
    import numpy

    worst, words = 0.0, ""
    for name, ours, theirs in zip(names, expected, computed, strict=True):
        a, b = numpy.asarray(ours), numpy.asarray(theirs)
        if a.dtype != b.dtype or a.shape != b.shape:
            return ComparedResults(sizes, float("inf"), f"{name} is {a.dtype}{[*a.shape]} here, and {b.dtype}{[*b.shape]} in onnxruntime")
        if not a.size:
            continue
        x, y = a.astype("float64"), b.astype("float64")
        finite = numpy.isfinite(x)
        if not numpy.array_equal(finite, numpy.isfinite(y)) or not numpy.array_equal(x[~finite], y[~finite], equal_nan=True):
            return ComparedResults(sizes, float("inf"), f"{name} has other infinities or NaN")
        largest = float(numpy.abs(x[finite]).max(initial=0.0))
        difference = float(numpy.abs(x[finite] - y[finite]).max(initial=0.0)) / max(largest, 1e-3)
        if difference > _ROOM.get(a.dtype.itemsize if a.dtype.kind == "f" else 4, 1e-3) and not words:
            words = f"{name} differs by {difference:.1e} of its largest number"
        worst = max(worst, difference)
    return ComparedResults(sizes, worst, words)


def _words(sizes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {[*dims]}" for name, dims in sizes.items())
