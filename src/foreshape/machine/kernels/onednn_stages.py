"""Kernels of oneDNN's own library besides products, as stages of a series (see `foreshape.machine.kernels.onednn_chain`).

All is fp32, in the layout of `foreshape.machine.kernels.onednn_packed.order_of`. A stage describes its computation for tensors of certain dims, and refuses
others before the library hears of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

from foreshape.errors import ShapeError
from foreshape.machine.kernels.onednn_grids import Grid
from foreshape.machine.kernels.onednn_library import (
    F32,
    NOTHING_AFTER,
    OTHER,
    SOURCE,
    STEP_OF,
    After,
    Function,
    Handle,
    Library,
    Memory,
    Primitive,
    Unimplemented,
)
from foreshape.machine.kernels.onednn_packed import DescribedPrimitive, described, order_of

Dims = Sequence[int]
FEW = 1 << 16
"""So many elements repay no second thread."""


class Stage(Protocol):
    """The computation of one of the kernels of a series."""

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive | tuple[int, ...]:
        """Return the computation for operands of these dims; only the dims, if the result is the first operand as it lies.

        Raises:
            Unimplemented: oneDNN has no kernel for these sizes, or only a slow one. ShapeError: they do not fit.
        """
        ...


def lying(dims: Dims, element: int = F32) -> Memory:
    """Return an operand or a result of a series."""
    return Memory(tuple(dims), order_of(dims), element)


def computed(
    library: Library, dims: Dims, kind: str, *arguments: Any, after: After = NOTHING_AFTER, constants: Mapping[int, Handle] | None = None,
    part: tuple[int, int] | None = None, read: Dims = (),
) -> DescribedPrimitive:  # fmt: skip
    """Return a computation for a result of these dims; ``read``: the dims of a larger operand."""
    record = Primitive(kind, (*arguments, after), 1 if prod(read or dims) < FEW else None)
    return described(library, record, dict(constants or {}), dims, order_of(dims), part)


class Pooled(NamedTuple):
    """The maximum or the mean of each window of images; a mean counts the padding or not.

    ``window``: None for one window, the whole image. ``rounds_up``: the last window may reach beyond the padding. ``keeps``: of one window the result is an
    image of one pixel, otherwise a row.
    """

    kind: str
    window: tuple[int, ...] | None
    strides: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]
    rounds_up: bool
    keeps: bool = True

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive:
        return self._described(library, dims, F32)

    def _described(self, library: Library, dims: Sequence[Dims], element: int) -> DescribedPrimitive:
        (x,) = dims
        if len(x) != 4:
            raise ShapeError(f"images must be [n, channels, height, width]; they are {list(x)}")
        window, strides = (tuple(x[2:]), [1, 1]) if self.window is None else (self.window, list(self.strides))
        front, behind = ((0, 0), [0, 0]) if self.window is None else (self.before, list(self.behind))
        out = list(x[:2])
        for axis, (n, k, s) in enumerate(zip(x[2:], window, strides, strict=True)):
            room = n + front[axis] + behind[axis] - k
            count = max(-(-room // s) if self.rounds_up else room // s, 0) + 1  # the only one may reach beyond the padded image
            strides[axis] = s if count > 1 else min(s, max(room, 0) + 1)  # of one window the stride says nothing, and the library takes none without limits
            behind[axis] += (count - 1) * s - room
            if (count - 1) * s >= n + front[axis] or front[axis] >= k:
                raise Unimplemented("a window lies in the padding altogether")
            if self.kind == "mean with padding" and (count - 1) * s > room:
                raise Unimplemented("what lies behind the padding would count too")
            out.append(count)
            behind[axis] = max(behind[axis], 0)
        computation = computed(library, out, "pooling", self.kind, lying(x, element), lying(out, element), strides, window, front, behind, read=x)
        if self.keeps:
            return computation
        row = tuple(out[:2])
        return computation._replace(dims=row, steps=order_of(row))

    def in_bytes(self, library: Library, dims: Sequence[Dims], grids: Sequence[Grid | None], wanted: Grid | None) -> tuple[DescribedPrimitive, Grid | None]:
        if self.kind != "max" or grids[0] is None:
            raise Unimplemented("means of bytes are not bytes")
        return self._described(library, dims, grids[0].of), grids[0]


def mean_of_pixels(keeps: bool) -> Pooled:
    """Return the mean of each channel of images, as images of one pixel or as rows."""
    return Pooled("mean", None, (1, 1), (0, 0), (0, 0), False, keeps)


class Paired(NamedTuple):
    """The sum or the product of the elements of two tensors. The second may have dims of 1 where the first has more.

    ``adds``: a third one, of the dims of the first, is added. ``functions`` of each element follow. ``tried``: the dims may be others, for other kernels.
    """

    kind: str
    adds: bool = False
    functions: tuple[Function, ...] = ()
    tried: bool = False

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive:
        return self.in_bytes(library, dims, [None] * len(dims), None)[0]

    def in_bytes(self, library: Library, dims: Sequence[Dims], grids: Sequence[Grid | None], wanted: Grid | None) -> tuple[DescribedPrimitive, Grid | None]:
        x, y = dims[:2]
        shift = -sum(grid.step * grid.zero for grid in grids if grid is not None)
        if (shift and (self.kind != "add" or self.adds)) or (self.adds and grids[2] is not None):
            raise Unimplemented("bytes with a zero point")
        if len(x) != len(y) or any(b not in (a, 1) for a, b in zip(x, y, strict=True)):
            words = f"{list(y)} does not broadcast to {list(x)}"
            raise Unimplemented(words) if self.tried else ShapeError(words)
        end = wanted if wanted is not None and wanted.is_whole else None
        memories = [lying(d, F32 if grid is None else grid.of) for d, grid in zip((x, y, x), (*grids[:2], end), strict=True)]
        if len(dims) - 2 != self.adds or any(tuple(z) != tuple(x) for z in dims[2:]):
            raise ShapeError.must("what is added", f"{list(x)}, as the result is", f"{[list(z) for z in dims[2:]]}")
        read = {name: grid for name, grid in zip((SOURCE, OTHER), grids, strict=False) if grid is not None}
        functions = ([("linear", 1.0, shift)] if shift else []) + [*self.functions] + ([] if end is None else [("linear", 1.0 / end.step, float(end.zero))])
        after = After(lying(x) if self.adds else None, functions, [(name, 0) for name in read])
        constants = {STEP_OF | name: library.number(grid.step) for name, grid in read.items()}
        return computed(library, x, "binary", self.kind, *memories, after=after, constants=constants), end


class Each(NamedTuple):
    """A function of each element, and others of its result."""

    function: Function
    then: tuple[Function, ...] = ()

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive:
        (x,) = dims
        return computed(library, x, "elementwise", self.function, lying(x), after=After(None, self.then))

    def in_bytes(self, library: Library, dims: Sequence[Dims], grids: Sequence[Grid | None], wanted: Grid | None) -> tuple[DescribedPrimitive, Grid | None]:
        """Return the function of the sum with a number, which brings the zero point to 0: kernels of sums know steps, those of functions do not."""
        (x,), (on,) = dims, grids
        end = wanted if wanted is not None and wanted.is_whole else None
        functions = (self.function, *self.then, *([] if end is None else [("linear", 1.0 / end.step, float(end.zero))]))
        zero = library.number(0.0 if on is None else -on.step * on.zero, len(x))
        ones = (1,) * len(x)
        memories = (lying(x, F32 if on is None else on.of), Memory(ones, ones), lying(x, F32 if end is None else end.of))
        after = After(None, functions, () if on is None else [(SOURCE, 0)])
        constants = {OTHER: zero, **({} if on is None else {STEP_OF | SOURCE: library.number(on.step)})}
        return computed(library, x, "binary", "add", *memories, after=after, constants=constants), end


class Normalized(NamedTuple):
    """A softmax along an axis; negative axes count from the back."""

    axis: int

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive:
        (x,) = dims
        return computed(library, x, "softmax", lying(x), self.axis % len(x))


class Enlarged(NamedTuple):
    """Images with each pixel repeated, ``by`` times along each axis."""

    by: tuple[int, ...]

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive:
        return self._described(library, dims, F32)

    def _described(self, library: Library, dims: Sequence[Dims], element: int) -> DescribedPrimitive:
        (x,) = dims
        if len(x) != 4:
            raise ShapeError(f"images must be [n, channels, height, width]; they are {list(x)}")
        out = (*x[:2], *(n * by for n, by in zip(x[2:], self.by, strict=True)))
        # something added meanwhile would be added wrongly by 3.2
        return computed(library, out, "nearest", lying(x, element), lying(out, element))

    def in_bytes(self, library: Library, dims: Sequence[Dims], grids: Sequence[Grid | None], wanted: Grid | None) -> tuple[DescribedPrimitive, Grid | None]:
        if grids[0] is None:
            raise Unimplemented("numbers are made bytes behind it")
        return self._described(library, dims, grids[0].of), grids[0]


class Joined(NamedTuple):
    """Tensors behind one another along an axis; negative axes count from the back."""

    axis: int

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive:
        return self._described(library, dims, F32)

    def in_bytes(self, library: Library, dims: Sequence[Dims], grids: Sequence[Grid | None], wanted: Grid | None) -> tuple[DescribedPrimitive, Grid | None]:
        if grids[0] is None or any(grid != grids[0] for grid in grids):
            raise Unimplemented("they are on several grids")
        return self._described(library, dims, grids[0].of), grids[0]

    def _described(self, library: Library, dims: Sequence[Dims], element: int) -> DescribedPrimitive:
        first, axis = dims[0], self.axis % len(dims[0])
        if any(len(x) != len(first) or [*x[:axis], *x[axis + 1 :]] != [*first[:axis], *first[axis + 1 :]] for x in dims):
            raise ShapeError.must(f"what is joined along axis {axis}", "alike elsewhere", f"{[list(x) for x in dims]}")
        out = (*first[:axis], sum(x[axis] for x in dims), *first[axis + 1 :])
        return computed(library, out, "joined", [lying(x, element) for x in dims], lying(out, element), axis)


class ChainSlice(NamedTuple):
    """The entries of some axes from a first one to before a last one, each with its axis; see `foreshape.language.operator.computations.Slicing`."""

    cuts: tuple[tuple[int, int, int], ...]

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive:
        (x,) = dims
        out, steps, begin = list(x), order_of(x), 0
        for axis, first, last in self.cuts:
            if not 0 <= axis < len(x):
                raise ShapeError(f"{list(x)} has no axis {axis}")
            entries = range(x[axis])[first:last]
            out[axis] = len(entries)
            begin += entries.start * steps[axis] * 4
        if not all(out):
            raise Unimplemented("nothing is left")
        end = begin + 4 * (1 + sum((n - 1) * s for n, s in zip(out, steps, strict=True)))
        return computed(library, out, "reordered", Memory(tuple(out), steps), lying(out), part=(begin, end))


class ShuffledChannels(NamedTuple):
    """Images with their channels, in groups one after the other, taken from each group in turn."""

    groups: int

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive:
        (x,) = dims
        if len(x) != 4 or x[1] % self.groups:
            raise ShapeError(f"images must have a multiple of {self.groups} channels; they are {list(x)}")
        n, c, h, w = x
        per_group, pixel = c // self.groups, h * w * c
        apart = (n, self.groups, per_group, h, w)
        source, result = (Memory(apart, (pixel, *steps, w * c, c)) for steps in ((per_group, 1), (1, self.groups)))
        return computed(library, x, "reordered", source, result)


class Same(NamedTuple):
    """The elements of a tensor as they lie, in other dims: numbers, or dims of its own axes (-1 the first, -2 the second).

    ``copies``: into memory of its own.
    """

    dims: tuple[int, ...]
    copies: bool = False

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive | tuple[int, ...]:
        (x,) = dims
        out = tuple(n if n >= 0 else x[-1 - n] for n in self.dims)
        still = [d for d in (x, out) if len(d) == 4 and d[1] > 1 and d[2] * d[3] > 1]
        if prod(out) != prod(x) or (still and len(x) != len(out)):
            raise ShapeError(f"{list(x)} is not {list(out)} as it lies")
        if not self.copies:
            return out
        record = Primitive("elementwise", (("linear", 1.0, 0.0), Memory((prod(x),), (1,)), NOTHING_AFTER))
        return described(library, record, {}, out, order_of(out))
