"""The parts of a ragged network without an op on sequences, without torch: each text is a padded batch of its own.

Of a text alone, ``[texts, heads, longest, longest]`` is ``[1, heads, rows, rows]``: nothing is padded, and no text reaches another. What the number of rows
alone decides, such as a bias by distance, is computed once for texts of equal length.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, ClassVar

from foreshape.core.data_class import data_class
from foreshape.core.dims import Size, evaluate, symbols_of
from foreshape.core.spec import Spec
from foreshape.errors import ExecutionError
from foreshape.interop.row_functions import row_function
from foreshape.language.operator import computations as c
from foreshape.language.operator import sequence_computations as s
from foreshape.language.operator.computation import Computation, ForwardOnly
from foreshape.language.ops.rules.ragged_rules import longest
from foreshape.language.program import Program
from foreshape.machine.kernels.row_kernels import Array

TextFunction = Callable[[Sequence[Any], int], Any]
"""From the operands of one text, and the number of its rows, to the result, or a tuple of results."""
_LENGTHS = 64
"""Sizes are remembered for so many lengths of texts."""


@data_class(frozen=True)
class DescribedNumbers(ForwardOnly):
    """Numbers of the description, in row-major order: sizes of the run among them."""

    operands: ClassVar[int] = 0
    numbers: tuple[Size, ...]


class TextSizes:
    """The sizes of a ragged program of one level of sequences for one text alone.

    Attributes:
        texts: the symbols of the number of texts.
        rows: the symbols of the rows of all texts, or of the longest one.
    """

    def __init__(self, program: Program) -> None:
        self.texts: set[str] = set()
        self.rows: set[str] = set()
        for variable in program.global_block.vars.values():
            lod = variable.spec.lod
            if lod is not None and len(lod.counts) == 1 and variable.spec.dims:
                self.texts |= symbols_of(lod.counts[0])
                self.rows |= symbols_of(longest(lod)) | symbols_of(variable.spec.dims[0])

    def is_texts(self, dim: Size) -> bool:
        """Tell whether a dim is the number of texts."""
        return not isinstance(dim, int) and str(dim) in self.texts

    def depends(self, dims: Sequence[Size]) -> bool:
        """Tell whether the number of texts, or of rows, decides dims."""
        return any(symbols_of(d) for d in dims)

    def holds_texts(self, dim: Size) -> bool:
        """Tell whether the number of texts decides a dim."""
        return not self.texts.isdisjoint(symbols_of(dim))

    def dims(self, dims: Sequence[Size]) -> Callable[[int], tuple[int, ...]] | None:
        """Return the function from the rows of a text to dims; None if other sizes decide them."""
        names = set[str]().union(*map(symbols_of, dims))
        if not names <= self.texts | self.rows:
            return None
        if not names:
            numbers: tuple[Any, ...] = tuple(dims)
            return lambda length: numbers

        @functools.lru_cache(_LENGTHS)
        def sizes(length: int) -> tuple[int, ...]:
            values = {name: 1 if name in self.texts else length for name in names}
            return tuple([evaluate(d, values) for d in dims])

        return sizes

    def described(self, spec: Spec) -> DescribedNumbers | None:
        """Return the numbers of a dense value if the description has them; None if not."""
        numbers = spec.value
        if numbers is None or spec.lod is not None or spec.dims is None or any(isinstance(n, float) for n in numbers) or self.dims(numbers) is None:
            return None
        return DescribedNumbers(tuple(numbers))


def mixes_texts(computation: Computation, dims: Sequence[Size], sizes: TextSizes, is_packed: bool) -> bool:
    """Tell whether a computation on a first operand of these dims joins entries of several texts.

    Args:
        is_packed: True if axis 0 has the rows, or the entries, of all texts.
    """
    rank, axes = len(dims), list[int]()
    match computation:
        case c.Softmax(axis=axis) | c.Concat(axis=axis) | c.Split(axis=axis) | c.Unstacking(axis=axis):
            axes = [axis]
        case c.LayerNorm(begin=begin):
            axes = [*range(begin, rank)]
        case c.Slicing(cuts=cuts) | c.SteppedSlicing(cuts=cuts):
            axes = [axis for axis, *_ in cuts]
        case c.Reduction(axes=reduced) | c.ExtremeReduction(axes=reduced) | c.VectorNorm(axes=reduced):
            axes = [*range(rank)] if reduced is None else [*reduced]
        case _:
            pass
    return any((is_packed and axis % (rank or 1) == 0) or sizes.holds_texts(dims[axis]) for axis in axes)


def text_function(computation: Computation, specs: Sequence[Spec], sizes: TextSizes) -> TextFunction | None:
    """Return the function of a computation for one text; None if there is none.

    Args:
        specs: of the results.
    """
    import numpy

    first, element = specs[0], specs[0].known_dtype.numpy_name
    dims = sizes.dims(first.known_dims)
    compute: TextFunction | None = None
    match computation:
        case DescribedNumbers(numbers=numbers):
            described = sizes.dims(numbers)
            if described is not None and dims is not None:
                compute = functools.partial(_described, described, dims, element)
        case c.Reshape() if dims is not None:
            compute = functools.partial(_reshaped, dims)
        case c.Expansion() if dims is not None:
            compute = functools.partial(_repeated, dims)
        case c.Filled(number=number) if dims is not None and number is not None:
            compute = functools.partial(_filled, dims, number, element)
        case s.SequencePadding() if dims is not None:
            return functools.partial(_padded, dims)
        case s.SequenceUnpadding():
            compute = _unpadded
        case s.PlacesBelow() if dims is not None:
            compute = functools.partial(_places_below, dims)
        case s.SequenceSpreading():
            compute = _spread
        case c.Reshape() | c.Expansion() | c.Filled():
            pass
        case _:
            function = row_function(computation, [spec.known_dims for spec in specs], element, ())
            compute = None if function is None else functools.partial(_called, function)
    if compute is None:
        return None
    several = len(specs) > 1

    def typed(operands: Sequence[Any], length: int) -> Any:
        y = compute(operands, length)
        return y if several else numpy.asarray(y).astype(element, copy=False)

    return typed


def _is_part(y: Array) -> bool:
    """Tell whether an array is a part of a larger one, and would keep it in memory."""
    import numpy

    base: Any = y.base
    return isinstance(base, numpy.ndarray) and base.size > y.size  # pyright: ignore[reportUnknownMemberType]


def _called(function: Callable[..., Any], operands: Sequence[Any], length: int) -> Any:
    return function(*operands)


def _described(numbers: Callable[[int], Any], dims: Callable[[int], Any], element: Any, operands: Sequence[Any], length: int) -> Array:
    import numpy

    return numpy.array(numbers(length), element).reshape(dims(length))


def _reshaped(dims: Callable[[int], Any], operands: Sequence[Any], length: int) -> Array:
    return operands[0].reshape(dims(length))


def _repeated(dims: Callable[[int], Any], operands: Sequence[Any], length: int) -> Array:
    import numpy

    x, sizes = operands[0], dims(length)
    x = x.reshape(*(1,) * (len(sizes) - x.ndim), *x.shape)
    if all(n in (1, size) for n, size in zip(x.shape, sizes, strict=True)):
        return numpy.broadcast_to(x, sizes)
    return numpy.tile(x, [size // max(n, 1) for n, size in zip(x.shape, sizes, strict=True)])


def _filled(dims: Callable[[int], Any], number: float, element: Any, operands: Sequence[Any], length: int) -> Array:
    import numpy

    return numpy.full(dims(length), number, element)


def _padded(dims: Callable[[int], Any], operands: Sequence[Any], length: int) -> tuple[Array, Array]:
    """Return the rows of a text as a batch of one, filled up if the padded length is longer; and their number."""
    import numpy

    x, number = operands
    size = dims(length)[1]
    if size < length:
        raise ExecutionError(f"a text has {length} rows, more than the {size} of a padded one")
    out = x[None]
    if size > length:
        out = numpy.empty((1, size, *x.shape[1:]), x.dtype)
        out[0, :length], out[0, length:] = x, number
    return out, numpy.array([length], numpy.int64)


def _unpadded(operands: Sequence[Any], length: int) -> Array:
    x: Array = operands[0]
    if int(operands[1][0]) != length:
        raise ExecutionError(f"the rows of padded texts must be those of the texts fed: {int(operands[1][0])} for {length}")
    rows: Array = x[0, :length]
    return rows if rows.ndim > 1 else rows[:, None]


def _places_below(dims: Callable[[int], Any], operands: Sequence[Any], length: int) -> Array:
    import numpy

    size: int = dims(length)[-1]
    out: Array = numpy.arange(size) < operands[0][..., None]
    return out


def _spread(operands: Sequence[Any], length: int) -> Array:
    return operands[0].repeat(length, 0)


def padded_bytes(values: Sequence[Any], sizes: TextSizes, stages: Sequence[tuple[set[int], set[int]]]) -> Callable[[int, int, int], int]:
    """Return the function from the texts and the rows of a chunk, and its longest text, to the most bytes of values of single texts.

    Args:
        values: with their `padded_dims` and elements, by number.
        stages: for each step the values there, and the values read or written by it.
    """
    import numpy

    def nbytes(v: int, length: int) -> int:
        dims = sizes.dims(values[v].padded_dims)
        return numpy.dtype(values[v].element).itemsize * prod(dims(length) if dims is not None else ())

    @functools.lru_cache(_LENGTHS)
    def rates(length: int) -> tuple[int, int, int]:
        """Return the bytes for each text, and for each row, of texts of at most so many rows; and the bytes during a step."""
        fixed = {v: nbytes(v, 0) for there, _ in stages for v in there}
        growing = {v: nbytes(v, length) - n for v, n in fixed.items()}  # no slower than the rows
        by_text = max((sum(fixed[v] for v in there) for there, _ in stages), default=0)
        by_row = max((-(-sum(growing[v] for v in there) // max(length, 1)) for there, _ in stages), default=0)
        return by_text, by_row, max((3 * sum(nbytes(v, length) for v in read) for _, read in stages), default=0)

    def total(texts: int, rows: int, longest: int) -> int:
        by_text, by_row, during = rates(longest)
        return by_text * texts + by_row * rows + during

    return total


def results_of_texts(
    compute: TextFunction, operands: Callable[[int, int, int], list[Any]], begins: Array, is_shared: bool, shared_memory: Sequence[bool]
) -> list[tuple[Array, ...]]:
    """Return the results of each text.

    Args:
        operands: from the number of a text, its first row, and the first one behind it, to its operands.
        begins: of the texts, and the end.
        is_shared: the number of rows alone decides the results.
        shared_memory: for each operand, True if it lies in memory of all texts, used again later: results are copied from it.
    """
    import numpy

    in_shared_memory = [k for k, is_shared_memory in enumerate(shared_memory) if is_shared_memory]
    by_length: dict[int, tuple[Array, ...]] = {}
    out: list[tuple[Array, ...]] = []
    for text, (begin, end) in enumerate(pairwise(begins.tolist())):
        results = by_length.get(end - begin) if is_shared else None
        if results is None:
            arrays = operands(text, begin, end)
            computed = compute(arrays, end - begin)
            parts: list[Array] = [*computed] if isinstance(computed, tuple) else [computed]  # pyright: ignore[reportUnknownArgumentType]
            lying = [arrays[k] for k in in_shared_memory]
            results = tuple([y.copy() if _is_part(y) or (lying and any(numpy.may_share_memory(y, x) for x in lying)) else y for y in parts])
            by_length[end - begin] = results
        out.append(results)
    return out
