"""The rules of ops only moving elements: their axes change places, and each element stays as it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foreshape.core.dims import Dim, Size
from foreshape.language.program import Op
from foreshape.transforms.unpad.contents import Content, NormBound, array_content, either, index_content
from foreshape.transforms.unpad.index_forms import LENGTH, TIME, IndexForm, Place, Side
from foreshape.transforms.unpad.padded_values import (
    BATCH,
    REVERSED,
    ROWS,
    Atom,
    Axes,
    AxisReader,
    Fault,
    PaddedValue,
    Region,
    Unsupported,
    all_regions,
    columns,
    filled,
    relocated_content,
)

MAX_PARTS = 16
"""So many entries of the last axis may have contents of their own."""


def reshaped(op: Op, x: PaddedValue, dims: Sequence[Size], reader: AxisReader, side: Side) -> PaddedValue:
    """Return a value with its elements in the same order, in other dims."""
    pending: list[tuple[Atom, Place]] = [(atom, (a, k)) for a, axis in enumerate(x.axes) for k, atom in enumerate(axis)]
    pending.reverse()
    axes: list[tuple[Atom, ...]] = []
    places: dict[Place, Place] = {}
    for number, dim in enumerate(dims):
        axes.append(_next_axis(number, dim, pending, places, reader))
    if pending:
        raise Unsupported("its dims join or divide the texts and their rows otherwise")
    last_stays = bool(axes) and bool(x.axes) and axes[-1] == x.axes[-1]
    return (x if last_stays else x.without_parts(side, op)).relocated(tuple(axes), places)


def _next_axis(number: int, dim: Size, pending: list[tuple[Atom, Place]], places: dict[Place, Place], reader: AxisReader) -> tuple[Atom, ...]:
    """Take the atoms of an axis from the remaining ones, innermost first in the list."""
    target = list(reader.axis(dim))
    meanings, size = [a for a in target if isinstance(a, str)], next((a for a in target if isinstance(a, int)), 1)
    axis: list[Atom] = []
    while meanings or size != 1:
        if not pending:
            raise Unsupported(f"its axis {number} of {dim} has no counterpart")
        atom, place = pending.pop()
        if isinstance(atom, int):
            if size == 1:
                raise Unsupported(f"its axis {number} of {dim} takes columns for texts or rows")
            if size % atom and atom % size:
                raise Unsupported(f"its axis {number} of {dim} does not divide the columns")
            part = atom if size % atom == 0 else size
            if part != atom:
                pending.append((atom // part, place))
            size //= part
            if axis and isinstance(axis[-1], int):
                axis[-1] *= part
            else:
                axis.append(part)
            continue
        meaning = ROWS if atom == REVERSED else atom
        if meaning not in meanings:
            raise Unsupported(f"its axis {number} of {dim} takes texts for rows, or rows for columns")
        meanings.remove(meaning)
        places[place] = (number, len(axis))
        axis.append(atom)
    while pending and pending[-1][0] == 1:
        pending.pop()
    return tuple(axis)


def transposed(op: Op, x: PaddedValue, order: Sequence[int], side: Side) -> PaddedValue:
    """Return a value with axis k of the result from axis ``order[k]``."""
    order = [a % len(x.axes) for a in order]
    places = {(old, k): (new, k) for new, old in enumerate(order) for k in range(len(x.axes[old]))}
    last_stays = not order or order[-1] == len(order) - 1
    return (x if last_stays else x.without_parts(side, op)).relocated(tuple(x.axes[a] for a in order), places)


def expanded(x: PaddedValue, dims: Sequence[Size], reader: AxisReader) -> PaddedValue:
    """Return a value repeated to dims."""
    lead = len(dims) - len(x.axes)
    axes: list[tuple[Atom, ...]] = []
    for number, dim in enumerate(dims):
        old = x.axes[number - lead] if number >= lead else ()
        new = reader.axis(dim)
        if old and tuple(ROWS if a == REVERSED else a for a in old) != new[len(new) - len(old) :]:
            raise Unsupported(f"its axis {number} is repeated")
        axes.append((*new[: len(new) - len(old)], *old) if old else new)
    result = tuple(axes)

    def content(region: Region) -> Content:
        old = x.content((a - lead, k - repeats(a)) for a, k in region)
        aligned = relocated_content(old, {(a, k): (a + lead, k + repeats(a + lead)) for a, axis in enumerate(x.axes) for k in range(len(axis))})
        return replace(aligned, extent=NormBound(lambda: aligned.extent.value * wider), parts=() if columns_differ else aligned.parts)

    width, old_width = columns(result), columns(x.axes)
    wider, columns_differ = math.sqrt(width / max(old_width, 1)), width != old_width

    def repeats(number: int) -> int:
        return len(result[number]) - len(x.axes[number - lead]) if number >= lead and x.axes[number - lead] else 0

    return filled(result, content, x.fault)


def dropped_axes(x: PaddedValue, gone: Sequence[int]) -> PaddedValue:
    """Return a value without some axes of size 1."""
    remaining = [a for a in range(len(x.axes)) if a not in gone]
    if any(x.axes[a] for a in gone):
        raise Unsupported("it drops an axis that is not 1")
    places = {(old, k): (new, k) for new, old in enumerate(remaining) for k in range(len(x.axes[old]))}
    return x.relocated(tuple(x.axes[a] for a in remaining), places)


def table_content(array: Any, axes: Axes, region: Region, side: Side) -> Content:
    """Return the numbers of a table, known in advance, whose first rows are taken along the axes of rows.

    Args:
        array: the whole table; its axes are the value's.
        axes: of the value: `ROWS` where the table is cut to the padded time.
        region: the coordinates in masked rows.
        side: the end of the padding.
    """
    import numpy

    cut = [a for a, axis in enumerate(axes) if ROWS in axis]
    if len(cut) == 1 and array.dtype.kind in "iu":
        line: Any = numpy.moveaxis(array, cut[0], -1)
        if line.size and bool(numpy.array_equal(line, numpy.broadcast_to(numpy.arange(int(array.shape[cut[0]])), tuple(line.shape)))):
            return index_content(IndexForm.factor((cut[0], 0)))
    if len(cut) == 2 and len(region) == 1:  # one coordinate in masked rows: all pairs in this order, whatever the length
        i, j = numpy.indices([array.shape[a] for a in cut], sparse=True)
        masked_second = (cut[1], 0) in region
        pairs = (j > i) if masked_second == (side == "right") else (j < i)
        return array_content(numpy.moveaxis(array, cut, (-2, -1))[..., pairs])
    return array_content(array)


def sliced(
    op: Op,
    x: PaddedValue,
    input_dims: Sequence[Size],
    cuts: Sequence[tuple[int, Size | None, Size | None]],
    dropped: Sequence[int],
    result_dims: Sequence[Size],
    reader: AxisReader,
    side: Side,
    table: Any,
) -> PaddedValue:
    """Return the entries from begin to end along some axes.

    Args:
        cuts: (axis, begin, end), None where unknown.
        dropped: axes left out of the result; of each one entry is taken.
        result_dims: the dims of the result, dropped axes left out.
        table: the numbers of x, if known.
    """
    cut_bounds = {axis % len(x.axes): (begin, end) for axis, begin, end in cuts}
    axes: list[tuple[Atom, ...]] = []
    fixed: dict[int, bool] = {}  # the axis of rows of which one entry is taken -> True if it is the text's last
    fault = x.fault
    sizes = iter(result_dims)
    from_table = False
    for number, axis in enumerate(x.axes):
        size: Size = 1 if number in dropped else next(sizes)
        size = 1 if not isinstance(size, int) and not reader.axis(size) else size
        if number not in cut_bounds or size == input_dims[number]:
            axes.append(axis)
            continue
        begin, _ = cut_bounds[number]
        if all(isinstance(a, int) for a in axis):
            new = reader.axis(size)
            if new and ROWS in new:
                if begin != 0:
                    raise Unsupported("it takes rows of a table that do not begin with the first")
                from_table = True
                if side == "left" and (table is None or array_content(table).constant is None):
                    fault = fault or Fault(op, "it counts positions in the padding before the text")
            axes.append(new)
            continue
        if axis not in ((ROWS,), (REVERSED,)) or size != 1 or begin is None:
            raise Unsupported("it cuts texts or rows")
        first, last = begin == 0, (begin == -1 or (isinstance(begin, Dim) and begin + 1 == input_dims[number]))
        if not first and not last:
            raise Unsupported("it takes a row that is neither the first nor the last")
        if axis == (REVERSED,):
            first, last = last, first
        if (first and side == "left") or (last and side == "right"):
            fault = fault or Fault(op, f"the {'first' if first else 'last'} row of the padded time is padding in shorter texts")
        fixed[number] = last
        axes.append(())

    full = tuple(axes)

    def content(region: Region) -> Content:
        if from_table:
            return table_content(table, full, region, side) if table is not None else Content()
        old = x.content(region)  # a fixed row is the text's own
        if old.parts and len(x.axes) - 1 in cut_bounds:
            begin, _ = cut_bounds[len(x.axes) - 1]
            count = full[-1][0] if full[-1] else 1
            picked = old.parts[begin:][:count] if isinstance(begin, int) and isinstance(count, int) else old.parts
            return picked[0] if len(picked) == 1 else Content(parts=tuple(picked), low=min(p.low for p in picked), high=max(p.high for p in picked))
        if old.form is not None and (fixed or cut_bounds):
            return _with_fixed(old, fixed, side)
        return old

    cut = filled(full, content, fault)
    return dropped_axes(cut, list(dropped)) if dropped else cut


def _with_fixed(content: Content, fixed: dict[int, bool], side: Side) -> Content:
    """Return a whole number at a fixed row: its coordinate becomes a number."""
    form = content.form
    if form is None:
        return content
    length, time, unit = IndexForm.factor(LENGTH), IndexForm.factor(TIME), IndexForm.number(1)
    first, last = (IndexForm(()), length - unit) if side == "right" else (time - length, time - unit)
    return index_content(form.replaced(lambda f: IndexForm.factor(f) if isinstance(f, str) or f[0] not in fixed else (last if fixed[f[0]] else first)))


def flipped(x: PaddedValue, axes: Sequence[int]) -> PaddedValue:
    """Return a value reversed along axes; columns are taken for any of theirs."""
    reversed_axes = {a % len(x.axes) for a in axes}
    new: list[tuple[Atom, ...]] = []
    for number, axis in enumerate(x.axes):
        if number in reversed_axes and BATCH in axis:
            raise Unsupported("it reverses the texts")
        if number in reversed_axes and len(axis) > 1:
            raise Unsupported("it reverses rows and columns together")
        swap = {ROWS: REVERSED, REVERSED: ROWS}
        new.append(tuple(swap.get(a, a) if isinstance(a, str) else a for a in axis) if number in reversed_axes else axis)
    regions = {r: either(c.parts) if c.parts else c if c.form is None else Content() for r, c in x.regions.items()}
    fault = x.fault
    if x.real.form is not None:
        raise Unsupported("it reverses positions")
    return PaddedValue(tuple(new), regions, fault)


def joined(op: Op, several: Sequence[PaddedValue], axis: int, side: Side) -> PaddedValue:
    """Return values behind one another along an axis of columns."""
    first = several[0]
    place = axis % len(first.axes)
    total = 0
    for value in several:
        if len(value.axes) != len(first.axes) or any(a != b for k, (a, b) in enumerate(zip(value.axes, first.axes, strict=True)) if k != place):
            raise Unsupported("it joins values of different axes")
        if any(isinstance(a, str) for a in value.axes[place]):
            raise Unsupported("it joins texts or rows")
        total += _size(value.axes[place])
    axes: Axes = (*first.axes[:place], (total,) if total != 1 else (), *first.axes[place + 1 :])
    last = place == len(first.axes) - 1
    parts_by_region = {region: _parts(several, place, region) for region in all_regions(axes)}
    in_parts = last and total <= MAX_PARTS
    fault = next((v.fault for v in several if v.fault is not None), None)
    if not in_parts and fault is None:
        fault = next((f for v in several if (f := v.data_fault(side, op)) is not None), None)

    def content(region: Region) -> Content:
        parts = parts_by_region[region]
        if all(p == parts[0] for p in parts):
            return parts[0]
        merged = either(parts)
        pieces = [v.content(region) for v in several]
        extent = NormBound(lambda: math.sqrt(sum(p.extent.value**2 for p in pieces)) if not any(p.offset for p in pieces) else math.inf)
        return Content(merged.low, merged.high, merged.finite, parts=tuple(parts) if in_parts else (), extent=extent)

    return filled(axes, content, fault)


def _parts(several: Sequence[PaddedValue], place: int, region: Region) -> list[Content]:
    """Return the contents at each entry of an axis, or of each value if it has too many entries."""
    parts: list[Content] = []
    for value in several:
        content, count = value.content(region), _size(value.axes[place])
        parts += content.parts or [content] * min(count, MAX_PARTS)
    return parts


def _size(axis: Sequence[Atom]) -> int:
    total = 1
    for atom in axis:
        total *= atom if isinstance(atom, int) else 1
    return total
