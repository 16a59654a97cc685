"""Positions: position numbers, sinusoidal positions to add, rotary positions to turn queries and keys by."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.errors import ShapeError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.scopes import name_scope
from foreshape.language.program.variable import Variable
from foreshape.layer.cached_rows import AttentionCache
from foreshape.layer.creation import assign, fill_like
from foreshape.layer.creation import range as numbers_before
from foreshape.layer.manipulation import concat, reshape, shape, slice, split, stack, unsqueeze, unstack
from foreshape.layer.math import cast, cos, scale, sin
from foreshape.layer.sequence import sequence_expand_as, sequence_first_step
from foreshape.layer.sorting import cumsum


def size_of(x: Variable, axis: int) -> int | Variable:
    """Return a size of ``x``: a number if known, otherwise a tensor int32 ``[1]`` set by the run."""
    size = x.spec.known_dims[axis]
    return size if isinstance(size, int) else slice(shape(x), [0], [axis], [axis + 1])


@tells_line
def position_numbers(x: Variable) -> Variable:
    """Number the rows of each sequence of ``x``: 0, 1, 2, ...

    Args:
        x: dense ``[batch, time, ...]``, or ragged ``[rows, ...]``.

    Returns:
        fp32 ``[time]``, the same for each example; of ragged rows ``[rows]``, ragged, counted from the start of each innermost sequence.

    Raises:
        ShapeError: dense, and of fewer than 2 dims.
    """
    if x.spec.lod is None:
        if x.spec.rank < 2:
            raise ShapeError.must(f"position_numbers({x.name}): the rows", "[batch, time, ...] or ragged", f"{x.spec.text()}")
        return cast(numbers_before(0, size_of(x, 1), 1, "int32"), "fp32")
    rows = reshape(x, [x.spec.known_dims[0], -1])  # of each row its first number, whatever its value
    ones = fill_like(slice(rows, [1], [0], [1]), 1.0, "fp64")  # whole numbers past 2^24 rows too
    indices = cumsum(ones, 0, exclusive=True)
    starts = sequence_expand_as(sequence_first_step(indices), x)
    return reshape(cast(indices - starts, "fp32"), [x.spec.known_dims[0]])


@tells_line
def sinusoidal_positions(x: Variable, base: float = 10000.0) -> Variable:
    """Return sines and cosines of each row's position, to be added to ``x`` (Vaswani et al., "Attention Is All You Need", 2017, section 3.5).

    Column 2i is sin(p / base^(2i / width)) and column 2i + 1 is cos(p / base^(2i / width)) for position p.

    Examples:
        >>> h = layer.embedding(words, [5000, 64])
        >>> h = h * 64**0.5 + layer.sinusoidal_positions(h)

    Args:
        x: dense ``[batch, time, width]`` or ragged ``[rows, width]``, floating-point; the width is known and even.
        base: of the formula.

    Returns:
        ``[time, width]``, or ragged ``[rows, width]``, of the element type of ``x``.

    Raises:
        ShapeError: other dims, or an odd width.
    """
    with name_scope("positions"):
        rank = 3 if x.spec.lod is None else 2
        width = x.spec.known_dims[-1] if x.spec.rank == rank else 0
        if not isinstance(width, int) or width < 2 or width % 2:
            raise ShapeError(
                f"sinusoidal_positions({x.name}): x must be [batch, time, width] or ragged [rows, width], of a known and even width; it is {x.spec.text()}"
            )
        angles = _angles(position_numbers(x), _rates(width, base))
        pairs = stack([sin(angles), cos(angles)], -1)
        return cast(reshape(pairs, [pairs.spec.known_dims[0], width]), x.spec.known_dtype)


class Rotary(ConstructorRepr):
    """The settings of `rotary_positions`, for ``rotary=`` of attention.

    Args:
        base: of the formula.
        interleaved: columns 2i and 2i + 1 are a pair; otherwise i and i + size / 2, as in GPT-NeoX and Llama.
        rates: the angle of a pair from one position to the next, in place of base^(-2i / size): as many numbers as pairs.
    """

    __slots__ = ("base", "interleaved", "key", "rates")

    def __init__(self, base: float = 10000.0, interleaved: bool = True, rates: Sequence[float] | None = None) -> None:
        self.base, self.interleaved = float(base), bool(interleaved)
        self.rates = None if rates is None else tuple(float(r) for r in rates)
        self.key = self.base, self.interleaved, self.rates

    def turn(self, positions: Variable, size: int, like: Variable) -> tuple[Variable, Variable]:
        """Return the cosines of each position, and its sines as they multiply the other one of a pair: ``[time or rows, 1, size]`` each.

        Args:
            positions: ``[time or rows]``.
            size: the columns of a head.
            like: the tensor to be turned.
        """
        if self.rates is not None and len(self.rates) != size // 2:
            raise ShapeError.must("the rates of a Rotary", f"as many as the pairs of a head, {size // 2}", len(self.rates))
        angles = _angles(cast(positions, "fp32"), _rates(size, self.base) if self.rates is None else self.rates)
        turn_cos, turn_sin = (unsqueeze(f(angles), [1]) for f in (cos, sin))  # [time or rows, 1, size / 2]

        def of_all(a: Variable, b: Variable) -> Variable:
            return cast(reshape(self.joined(a, b), [angles.spec.known_dims[0], 1, size]), like.spec.known_dtype)

        return of_all(turn_cos, turn_cos), of_all(scale(turn_sin, -1.0), turn_sin)

    def joined(self, a: Variable, b: Variable) -> Variable:
        """Return two halves of pairs side by side, each pair where it stands in a head.

        Args:
            a, b: the first and the second column of each pair.
        """
        return stack([a, b], -1) if self.interleaved else concat([a, b], -1)

    def turned(self, by_head: Variable, turn: tuple[Variable, Variable]) -> Variable:
        """Return heads turned by the result of `turn`.

        Args:
            by_head: ``[..., heads, size]``.
            turn: the cosines and sines.
        """
        *lead, size = by_head.spec.known_dims
        a, b = unstack(reshape(by_head, [*lead, size // 2, 2]), -1) if self.interleaved else split(by_head, 2, -1)
        swapped = self.joined(b, a)  # (a, b) becomes (b, a): whole rows are multiplied, and one sum joins both
        swapped = reshape(swapped, [*lead, size]) if self.interleaved else swapped
        return by_head * turn[0] + swapped * turn[1]


@tells_line
def rotary_positions(
    x: Variable,
    heads: int | None = None,
    base: float = 10000.0,
    interleaved: bool = True,
    *,
    rates: Sequence[float] | None = None,
    cache: AttentionCache | None = None,
) -> Variable:
    """Rotate each pair of a head's columns of ``x`` by an angle proportional to the position (Su et al., "RoFormer", 2021, section 3.4.2).

    With p the position of a row and d the columns of a head, pair i of (a, b) becomes (a cos t - b sin t, a sin t + b cos t) for the
    angle t = p base^(-2i / d). Products of queries and keys rotated so depend on their distance. `multi_head_attention` does it
    to both with ``rotary=True``.

    Examples:
        >>> q = layer.rotary_positions(layer.reshape(layer.fc(x, 64, flatten_last=1), [0, 0, 8, 8]))

    Args:
        x: dense ``[batch, time, heads, size]``, or ragged ``[rows, heads * size]`` with ``heads``; the size is known and even.
        heads: of ragged rows, the number of equal parts of the columns.
        base: of the formula.
        interleaved: columns 2i and 2i + 1 are a pair, as in the paper; otherwise i and i + size / 2, as in GPT-NeoX and Llama.
        rates: in place of base^(-2i / d), a number for each pair.
        cache: tells the positions of ragged rows that come after others.

    Returns:
        As x.

    Raises:
        ShapeError: other dims, or an odd size.
    """
    with name_scope("rotary"):
        spec = x.spec
        ragged = spec.lod is not None
        size = spec.known_dims[-1] if spec.rank == (2 if ragged else 4) else 0
        if isinstance(size, int) and ragged:
            size = size // heads if heads is not None and heads >= 1 and size % heads == 0 else 0
        if not isinstance(size, int) or size < 2 or size % 2:
            raise ShapeError(
                f"rotary_positions({x.name}): x must be [batch, time, heads, size], or ragged [rows, heads * size] with heads, and the "
                f"size known and even; x is {spec.text()}, heads {heads}"
            )
        rotary = Rotary(base, interleaved, rates)
        turn = cache.turn(rotary, size, x) if cache is not None else rotary.turn(position_numbers(x), size, x)
        by_head = reshape(x, [spec.known_dims[0], heads, size]) if ragged else x
        out = rotary.turned(by_head, turn)
        return reshape(out, list(spec.known_dims)) if ragged else out


def _rates(size: int, base: float) -> list[float]:
    """Return base^(-2i / size) for each pair of columns."""
    return [float(base) ** (-2.0 * i / size) for i in range(size // 2)]


def _angles(positions: Variable, rates: Sequence[float]) -> Variable:
    """Return ``[time or rows, pairs]``: each position times the rates."""
    import numpy

    return unsqueeze(positions, [1]) * unsqueeze(assign(numpy.asarray(rates, "float32")), [0])
