"""The rules of ops on several rows together: reductions, softmax, products of matrices, picked rows, running sums and convolutions.

In each a masked row must not reach a text's own rows: it is added as a zero, or its exponential vanishes, or it is the smaller in a maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from foreshape.core.spec import DType
from foreshape.language.program import Op
from foreshape.transforms.unpad.contents import FAR, INFINITY, Content, NormBound, constant, index_content
from foreshape.transforms.unpad.index_forms import LENGTH, TEXTS, TIME, IndexForm, Place, Side
from foreshape.transforms.unpad.padded_values import BATCH, REAL, REVERSED, ROWS, Atom, Axes, Fault, PaddedValue, Region, Unsupported, columns, filled
from foreshape.transforms.unpad.per_element import hides

_UNDERFLOW = {"fp64": 746.0, "fp32": 104.0, "bf16": 104.0, "fp16": 18.0}
"""The exponential of minus this number is zero in each element type."""


def underflow(dtype: DType | None) -> float:
    """Return the number whose negative has an exponential of zero."""
    return _UNDERFLOW.get(dtype.name if dtype is not None else "fp64", 746.0)


def _places(axis: int, atoms: Sequence[Atom]) -> list[Place]:
    return [(axis, k) for k, atom in enumerate(atoms) if atom in (ROWS, REVERSED)]


def _without(axes: Axes, reduced: Sequence[int], keeps: bool) -> tuple[Axes, dict[Place, Place]]:
    """Return axes after a reduction, and the new places of the remaining atoms."""
    out: list[tuple[Atom, ...]] = []
    places: dict[Place, Place] = {}
    for number, axis in enumerate(axes):
        if number in reduced:
            if keeps:
                out.append(())
            continue
        places |= {(number, k): (len(out), k) for k in range(len(axis))}
        out.append(axis)
    return tuple(out), places


def reduced(op: Op, x: PaddedValue, how: str, reduced_axes: Sequence[int], keeps: bool, side: Side) -> PaddedValue:
    """Return a reduction over axes: "SUM", "AVERAGE", "SQRT" (a sum over a root), "MAX", "MIN", "ANY", "ALL", "NORM",
    "POWERS" (a norm of another power above 0), "EXPONENTIALS" (the logarithm of their sum) or "OTHER"."""
    x = x.without_parts(side, op)
    gone = sorted({a % len(x.axes) for a in reduced_axes}) if x.axes else []
    if any(BATCH in x.axes[a] for a in gone):
        raise Unsupported("it joins the rows of different texts")
    axes, places = _without(x.axes, gone, keeps)
    rows = [p for a in gone for p in _places(a, x.axes[a])]
    width = math.prod(atom for a in gone for atom in x.axes[a] if isinstance(atom, int))
    if len(rows) > 1:
        raise Unsupported("it reduces over rows twice")
    back = {new: old for old, new in places.items()}
    keeps_form = how == "SUM" and rows and width == 1
    fault = x.fault if keeps_form else x.data_fault(side, op)
    if rows and fault is None:
        words = _mixes(x.content(rows), x.real, how)
        fault = Fault(op, words) if words else None

    def content(region: Region) -> Content:
        old = [back[p] for p in region]
        real = x.content(old)
        if not rows:
            return _reduced_columns(real, how, width)
        return _reduced_rows(real, x.content([*old, *rows]), how, width)

    value = filled(axes, content, fault)
    return replace(value, regions={r: c if c.form is None else index_content(c.form.relocated(places)) for r, c in value.regions.items()})


def _mixes(masked: Content, real: Content, how: str) -> str:
    """Return how masked rows change a reduction over rows; empty if they do not."""
    if masked.constant is not None and masked.constant == real.constant and how in ("MAX", "MIN", "ANY", "ALL", "AVERAGE"):
        return ""
    match how:
        case "SUM" | "NORM" | "ANY":
            counts = how == "SUM" and all(x.index is not None and not x.index.places() for x in (masked, real))
            return "" if masked.constant == 0.0 or counts else "it adds masked rows, which are not zero"
        case "MAX" | "MIN":
            sign = 1 if how == "MAX" else -1
            highest, lowest = (masked.upper_bound(), real.lower_bound()) if sign > 0 else (-masked.lower_bound(), -real.upper_bound())
            if highest <= lowest or (highest <= -FAR and real.finite):
                return ""
            return f"a masked row may be the {'largest' if sign > 0 else 'smallest'}"
        case "ALL":
            return "" if masked.constant == 1.0 else "masked rows are not all true"
        case "POWERS":
            return "" if masked.constant == 0.0 else "it adds powers of masked rows, which are not zero"
        case "EXPONENTIALS":
            are_hidden = masked.constant == -INFINITY or (not real.masks and hides(masked, real, underflow(None)))
            return "" if are_hidden else _visible(masked, real)
        case "AVERAGE" | "SQRT":
            return "it divides by the padded number of rows"
        case _:
            return "it takes masked rows with the others"


def _reduced_columns(x: Content, how: str, width: int) -> Content:
    number = x.constant
    if how in ("MAX", "MIN", "ANY", "ALL", "AVERAGE"):
        return replace(x, parts=(), never=None, extent=x.extent if not x.offset else NormBound.number(INFINITY)) if number is None else x
    if number is not None and math.isfinite(number):
        return constant(number * width) if how == "SUM" else constant(abs(number) * math.sqrt(width)) if how == "NORM" else Content()
    if how == "SUM":
        return Content(x.low * width, x.high * width, x.finite, extent=NormBound(lambda: x.extent.value * math.sqrt(width) if not x.offset else INFINITY))
    return Content(0.0 if how in ("NORM", "POWERS") else -INFINITY, finite=x.finite and how != "OTHER")


def _reduced_rows(real: Content, masked: Content, how: str, width: int) -> Content:
    if how == "SUM" and real.index is not None and masked.index is not None and not (real.index.places() or masked.index.places()):
        rows, padding = IndexForm.factor(LENGTH), IndexForm.factor(TIME) - IndexForm.factor(LENGTH)
        return index_content((real.index * rows + masked.index * padding).times(width))
    if how in ("MAX", "MIN", "ANY", "ALL"):
        return real if real == masked else Content(real.low, real.high, real.finite and masked.finite)
    if how == "AVERAGE" and real.constant is not None and real == masked:
        return real
    if how == "EXPONENTIALS":
        return Content(finite=real.finite and (masked.finite or masked.constant == -INFINITY))
    return Content(0.0 if real.low >= 0 and masked.low >= 0 else -INFINITY, finite=real.finite and masked.finite)


def softmaxed(op: Op, x: PaddedValue, axis: int, side: Side, dtype: DType | None, own_key: Content) -> PaddedValue:
    """Return the softmax along an axis.

    Args:
        own_key: the numbers of a row's own key: each row must see one of its text's keys at least, and sees this one by its place.
    """
    x = x.without_parts(side, op)
    number = axis % len(x.axes)
    if BATCH in x.axes[number]:
        raise Unsupported("it joins the rows of different texts")
    rows = _places(number, x.axes[number])
    fault = x.data_fault(side, op)
    if rows and fault is None:
        if own_key.masks:
            fault = Fault(op, "a row may see no key of its text")
        elif not hides(x.content(rows), own_key, underflow(dtype)):
            fault = Fault(op, _visible(x.content(rows), own_key))

    def content(region: Region) -> Content:
        masked = [p for p in region if p in rows]
        outer = [p for p in region if p not in rows]
        real = own_key if not outer else x.content(outer)
        if masked and hides(x.content(region), real, underflow(dtype)):
            return constant(0.0)
        finite = real.finite or not outer  # a text's own rows have a key that they see, or are NaN alone too
        return Content(0.0, 1.0, finite, shares=number == len(x.axes) - 1, extent=NormBound.number(math.sqrt(columns(x.axes))))

    return filled(x.axes, content, fault)


def _visible(masked: Content, real: Content) -> str:
    """Return why masked numbers have exponentials beside others."""
    if math.isfinite(masked.offset) and masked.offset <= -1000:
        bound = max(abs(real.upper_bound()), abs(real.lower_bound()))
        bound_text = f"{bound:.3g}" if math.isfinite(bound) else "unbounded"
        return f"masked keys are {masked.offset:.6g} below the others, which hides them only if scores are smaller; their bound is {bound_text}"
    return "masked keys are seen: nothing makes their scores small"


def multiplied(op: Op, x: PaddedValue, y: PaddedValue, x_turned: bool, y_turned: bool, side: Side, weights: Sequence[NormBound | None]) -> PaddedValue:
    """Return the product of matrices in the last two axes.

    Args:
        weights: for each operand, if a matrix of weights, a bound of the norm of its product with a row of norm 1.
    """
    x, y = x.without_parts(side, op), y.without_parts(side, op)
    vector_x, vector_y = len(x.axes) == 1, len(y.axes) == 1
    x, y = (_with_axis(x, 0) if vector_x else x), (_with_axis(y, 1) if vector_y else y)
    if len(x.axes) < 2 or len(y.axes) < 2:
        raise Unsupported("it multiplies single numbers")
    x, y = (_swapped(x) if x_turned else x), (_swapped(y) if y_turned else y)
    rank = max(len(x.axes), len(y.axes))
    shift_x, shift_y = rank - len(x.axes), rank - len(y.axes)
    batch = [_common(x.axes, y.axes, k, shift_x, shift_y) for k in range(rank - 2)]
    inner_x, inner_y = x.axes[-1], y.axes[-2]
    if BATCH in (*inner_x, *inner_y) or (BATCH in x.axes[-2] and y.per_text) or (BATCH in y.axes[-1] and x.per_text):
        raise Unsupported("it multiplies different texts with each other")
    if inner_x != inner_y:
        raise Unsupported("it adds over rows and columns")
    axes: Axes = (*batch, x.axes[-2], y.axes[-1])
    rows = _places(len(x.axes) - 1, inner_x)
    fault = x.data_fault(side, op) or y.data_fault(side, op)

    def operands(region: Region) -> tuple[list[Place], list[Place]]:
        in_x = [(a - shift_x, k) for a, k in region if a < rank - 1]
        in_y = [(a - shift_y, k) for a, k in region if a != rank - 2]
        return in_x, in_y

    def summed(region: Region) -> str:
        in_x, in_y = operands(region)
        if not rows:
            return ""
        a = x.content([*in_x, (len(x.axes) - 1, rows[0][1])])
        b = y.content([*in_y, (len(y.axes) - 2, rows[0][1])])
        if (a.constant == 0.0 and b.finite) or (b.constant == 0.0 and a.finite):
            return ""
        return "it adds masked rows" if 0.0 not in (a.constant, b.constant) else "it multiplies masked rows by zero, and they may be infinite or NaN"

    words = summed(REAL)
    if words and fault is None:
        fault = Fault(op, words)

    def content(region: Region) -> Content:
        in_x, in_y = operands(region)
        a, b = x.content(in_x), y.content(in_y)
        finite = a.finite and b.finite
        if rows:
            masked_x, masked_y = x.content([*in_x, (len(x.axes) - 1, rows[0][1])]), y.content([*in_y, (len(y.axes) - 2, rows[0][1])])
            finite = finite and (not summed(region) or (masked_x.finite and masked_y.finite))
            if 0.0 in (a.constant, b.constant) and 0.0 in (masked_x.constant, masked_y.constant) and finite:
                return constant(0.0)
            low = 0.0 if min(a.low, b.low, masked_x.low, masked_y.low) >= 0 else -INFINITY
            mixes = (a.shares or a.constant == 0.0) and (masked_x.shares or masked_x.constant == 0.0) and not b.offset
            heads = math.sqrt(columns(x.axes))  # in each, no row of the result is longer than the longest that is mixed
            extent = NormBound(lambda: b.extent.value * heads) if mixes else NormBound.number(INFINITY)
            return Content(low, finite=finite, extent=extent)
        if 0.0 in (a.constant, b.constant) and finite:
            return constant(0.0)
        return Content(0.0 if min(a.low, b.low) >= 0 else -INFINITY, finite=finite, extent=_product_extent(a, b, weights))

    value = filled(axes, content, fault)
    gone = ([rank - 2] if vector_x else []) + ([rank - 1] if vector_y else [])
    return _dropped(value, gone)


def _product_extent(a: Content, b: Content, weights: Sequence[NormBound | None]) -> NormBound:
    x_stretch, y_stretch = weights
    if y_stretch is not None:
        return NormBound(lambda: a.extent.value * y_stretch.value if not a.offset else INFINITY)
    if x_stretch is not None:
        return NormBound(lambda: b.extent.value * x_stretch.value if not b.offset else INFINITY)
    return NormBound(lambda: a.extent.value * b.extent.value if not (a.offset or b.offset) else INFINITY)


def _with_axis(x: PaddedValue, place: int) -> PaddedValue:
    axes = (*x.axes[:place], (), *x.axes[place:])
    return x.relocated(axes, {(a, k): (a + (a >= place), k) for a, axis in enumerate(x.axes) for k in range(len(axis))})


def _dropped(x: PaddedValue, gone: Sequence[int]) -> PaddedValue:
    axes, places = _without(x.axes, gone, False)
    return x.relocated(axes, places) if gone else x


def _swapped(x: PaddedValue) -> PaddedValue:
    last = len(x.axes) - 1
    places = {(a, k): ({last: last - 1, last - 1: last}.get(a, a), k) for a, axis in enumerate(x.axes) for k in range(len(axis))}
    return x.relocated((*x.axes[:-2], x.axes[-1], x.axes[-2]), places)


def _common(x: Axes, y: Axes, number: int, shift_x: int, shift_y: int) -> tuple[Atom, ...]:
    a = x[number - shift_x] if number >= shift_x else ()
    b = y[number - shift_y] if number >= shift_y else ()
    if a and b and a != b:
        raise Unsupported("its operands have texts, rows and columns along different axes")
    return a or b


# --- picked rows


def _resolved(form: IndexForm | None, masked: bool, side: Side, places: Sequence[Place], region: Sequence[Place]) -> Place | bool | None:
    """Return the row of a text at a number: the place of a coordinate, or True for one of its own; None if it is not seen."""
    if form is None:
        return None
    for place in places:
        if form == IndexForm.factor(place):
            return place
    time, length = IndexForm.factor(TIME), IndexForm.factor(LENGTH)
    first = IndexForm(()) if side == "right" else time - length
    end = length if side == "right" else time
    unit = IndexForm.number(1)
    inside = [(form - first).least(side, places, region), (end - unit - form).least(side, places, region)]
    if all(low is not None and low >= 0 for low in inside):
        return True
    in_length = form in (length - unit, first, end - unit)  # of a text with rows
    return True if in_length else None


def row_numbers(content: Content, text_places: Sequence[Place]) -> tuple[Place, IndexForm] | None:
    """Divide a number ``text * time + row``: return the coordinate of the text and the row."""
    form = content.index
    if form is None:
        return None
    for place in text_places:
        row = form - IndexForm.factor(place) * IndexForm.factor(TIME)
        if place not in row.places() and TEXTS not in row.factors():
            return place, row
    return None


def picked(op: Op, x: PaddedValue, index: PaddedValue, axis: int, side: Side, *, scalar: bool = False) -> PaddedValue:
    """Return the entries of an axis at whole numbers: rows of a table, or rows of a text by their place."""
    number = axis % len(x.axes)
    atoms = x.axes[number]
    inside = index.axes if not scalar else ()
    axes: Axes = (*x.axes[:number], *inside, *x.axes[number + 1 :])
    index_places = {(a, k): (a + number, k) for a, axis_atoms in enumerate(inside) for k in range(len(axis_atoms))}
    back_index = {new: old for old, new in index_places.items()}
    behind = len(inside) - 1

    def x_places(region: Region) -> list[Place]:
        return [(a, k) if a < number else (a - behind, k) for a, k in region if (a, k) not in back_index]

    if all(isinstance(a, int) for a in atoms):
        fault = _picked_fault(op, x, side) or index.data_fault(side, op)
        repeats = math.sqrt(max(columns(axes) / max(columns(x.axes), 1), 1.0) * max(columns((atoms,)), 1))

        def from_table(region: Region) -> Content:
            content = _cleared(x.content(x_places(region)))
            return replace(content, extent=NormBound(lambda: content.extent.value * repeats)) if x.per_text or x.time_places else content

        return filled(axes, from_table, fault)
    if x.per_text and index.per_text and BATCH not in atoms:
        raise Unsupported("it picks rows of each text by numbers of every other")
    texts = [(a, k) for a, axis_atoms in enumerate(index.axes) for k, atom in enumerate(axis_atoms) if atom == BATCH]
    rows = index.time_places

    def target(region: Region) -> tuple[Place | bool, Content]:
        inner = [back_index[p] for p in region if p in back_index]
        content = index.content(inner)
        if atoms == (BATCH, ROWS):
            pair = row_numbers(content, texts)
            form = pair[1] if pair else None
        elif atoms == (ROWS,):
            form = content.index
        else:
            form = None
        row = _resolved(form, False, side, rows, inner)
        if row is None:
            raise Unsupported("it picks rows by numbers whose texts and rows are not seen")
        masked = row is not True and row in inner
        place = (number, atoms.index(ROWS))
        return row, x.content([*x_places(region), place] if masked else x_places(region))

    return filled(axes, lambda region: _cleared(target(region)[1]), _picked_fault(op, x, side) or index.fault)


def _cleared(content: Content) -> Content:
    """Return the content of picked rows: their own places are gone."""
    places = content.form is not None and content.form.places()
    return Content(finite=content.finite) if places or content.step is not None or content.parts else content


def _picked_fault(op: Op, x: PaddedValue, side: Side) -> Fault | None:
    """Return the fault of values from which rows are picked: their numbers are taken as they are, if they are known by their place."""
    has_places = any(c.form is not None or c.parts or c.step is not None for c in x.regions.values())
    return x.data_fault(side, op) if has_places else x.fault


def picked_along(op: Op, x: PaddedValue, index: PaddedValue, axis: int, side: Side) -> PaddedValue:
    """Return for each element of an index the entry of an axis of x at its place."""
    if len(x.axes) != len(index.axes):
        raise Unsupported("its operands have different ranks")
    number = axis % len(x.axes)
    axes: Axes = tuple(index.axes[k] if k == number else _common(x.axes, index.axes, k, 0, 0) for k in range(len(x.axes)))
    atoms = x.axes[number]
    fault = x.fault or index.fault

    if all(isinstance(a, int) for a in atoms):
        fault = _picked_fault(op, x, side) or index.data_fault(side, op)

        def from_columns(region: Region) -> Content:
            content = _cleared(x.content(p for p in region if p[0] != number))
            return replace(content, extent=NormBound(lambda: content.extent.value * math.sqrt(max(columns(axes), 1))))

        return filled(axes, from_columns, fault)
    if atoms != (ROWS,):
        raise Unsupported("it picks texts, or rows and columns together")

    def from_rows(region: Region) -> Content:
        row = _resolved(index.content(region).index, False, side, index.time_places, list(region))
        if row is None:
            raise Unsupported("it picks rows by numbers that are not seen")
        outer = [p for p in region if p[0] != number]
        return _cleared(x.content([*outer, (number, 0)] if row is not True and row in region else outer))

    return filled(axes, from_rows, _picked_fault(op, x, side) or fault)


def picked_by_places(op: Op, x: PaddedValue, index: PaddedValue, side: Side) -> PaddedValue:
    """Return the parts of x at the places in the last axis of an index."""
    count = index.axes[-1][0] if index.axes and index.axes[-1] else 1
    if not isinstance(count, int) or count > len(x.axes):
        raise Unsupported("its places are not numbers of axes")
    outer = index.axes[:-1]
    axes: Axes = (*outer, *x.axes[count:])
    shift = len(outer) - count
    rows = [p for p in index.time_places if p[0] < len(outer)]

    def content(region: Region) -> Content:
        inner = [p for p in region if p[0] < len(outer)]
        parts = index.content(inner).parts or (index.content(inner),) * count
        masked = [(a - shift, k) for a, k in region if a >= len(outer)]
        for number, part in enumerate(parts):
            atoms = x.axes[number]
            if atoms == (BATCH,):
                form = part.index
                texts = [(a, k) for a, axis_atoms in enumerate(outer) for k, atom in enumerate(axis_atoms) if atom == BATCH]
                if form is None or not any(form == IndexForm.factor(p) for p in texts):
                    raise Unsupported("it picks from other texts")
            elif atoms == (ROWS,):
                row = _resolved(part.index, False, side, rows, inner)
                if row is None:
                    raise Unsupported("it picks rows by numbers that are not seen")
                if row is not True and row in inner:
                    masked.append((number, 0))
            elif any(isinstance(a, str) for a in atoms):
                raise Unsupported("it picks texts, or rows and columns together")
        return _cleared(x.content(masked))

    return filled(axes, content, _picked_fault(op, x, side) or index.fault)


def last_largest(op: Op, x: PaddedValue, axis: int, keeps: bool, side: Side) -> PaddedValue:
    """Return the number of the first largest entry along an axis; along rows it must be seen: ones before zeros, or behind them."""
    number = axis % len(x.axes)
    axes, _ = _without(x.axes, [number], keeps)
    atoms = x.axes[number]
    if all(isinstance(a, int) for a in atoms):
        return filled(axes, lambda _: Content(0.0, float(columns((atoms,)))), x.data_fault(side, op))
    if atoms not in ((ROWS,), (REVERSED,)):
        raise Unsupported("it compares rows of different texts")
    real, masked = x.real.constant, x.content([(number, 0)]).constant
    if real is None or masked is None or real <= masked:
        raise Unsupported("it picks the largest of rows that are not told apart by the mask")
    begins = (atoms == (ROWS,)) == (side == "right")
    first = IndexForm(()) if begins else IndexForm.factor(TIME) - IndexForm.factor(LENGTH)
    return filled(axes, lambda _: index_content(first), x.fault)


def running_sum(op: Op, x: PaddedValue, axis: int, exclusive: bool, backward: bool, side: Side) -> PaddedValue:
    """Return the sums of the entries up to each along an axis."""
    number = axis % len(x.axes)
    atoms = x.axes[number]
    x = x.without_parts(side, op)
    if BATCH in atoms:
        raise Unsupported("it adds over texts")
    rows = _places(number, atoms)
    if not rows:
        return filled(x.axes, lambda r: Content(finite=x.content(r).finite), x.data_fault(side, op))
    if len(atoms) != 1:
        raise Unsupported("it adds over rows and columns")
    is_reversed = atoms[0] == REVERSED
    from_end = (side == "left") != (backward != is_reversed)  # the padding comes first
    masked = x.content(rows)
    fault = x.data_fault(side, op)
    if fault is None and from_end and masked.constant != 0.0:
        fault = Fault(op, "it adds masked rows, which come first and are not zero")

    def content(region: Region) -> Content:
        outer = [p for p in region if p not in rows]
        a, b = x.content(outer), x.content([*outer, *rows])
        coordinate, unit = IndexForm.factor(rows[0]), IndexForm.number(0 if exclusive else 1)
        if is_reversed:
            return Content(finite=a.finite and b.finite)
        if rows[0] not in region and a.constant is not None and a.index is not None and not from_end:
            summand = int(a.constant)
            count = coordinate + unit if side == "right" else IndexForm.factor(TIME) - coordinate - IndexForm.number(1) + unit
            return index_content(count.times(summand))
        if rows[0] not in region and from_end and a.index is not None and b.constant == 0.0 and a.constant is not None:
            count = (
                coordinate - IndexForm.factor(TIME) + IndexForm.factor(LENGTH) + unit
                if side == "left"
                else IndexForm.factor(LENGTH) - coordinate - IndexForm.number(1) + unit
            )
            return index_content(count.times(int(a.constant)))
        if b.constant == 0.0 and a.index is not None and a.constant is not None and rows[0] in region and not backward and side == "right":
            return index_content(IndexForm.factor(LENGTH).times(int(a.constant)))
        return Content(0.0 if min(a.low, b.low) >= 0 else -INFINITY, finite=a.finite and b.finite)

    return filled(x.axes, content, fault)


def convolved(op: Op, x: PaddedValue, ahead: Sequence[int], axes: Axes, side: Side, stretch: NormBound) -> PaddedValue:
    """Return a convolution over some axes, with zeros around.

    Args:
        ahead: the axes of rows along which its window reaches from a text's own rows into the padding.
        axes: of the result.
        stretch: a bound of the norm of a row of its results, for rows of norm 1.
    """
    fault = x.data_fault(side, op)
    reach = {p for a in ahead for p in _places(a, x.axes[a])}
    if fault is None and any(region and region <= reach and content.constant != 0.0 for region, content in x.regions.items()):
        fault = Fault(op, "its window takes masked rows, which are not zero")
    finite = all(content.finite for content in x.regions.values())
    largest = [content.extent for content in x.regions.values()]
    offset = any(content.offset for content in x.regions.values())
    extent = NormBound(lambda: stretch.value * max(e.value for e in largest) if not offset else INFINITY)
    return filled(axes, lambda _: Content(finite=finite, extent=extent), fault)
