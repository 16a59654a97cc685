"""The rules of ops by their computations, and by their types where an operator declares none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foreshape.core.dims import Size
from foreshape.language.operator import computations as c
from foreshape.language.operator.byte_computations import DynamicProduct
from foreshape.language.program import Op
from foreshape.transforms.unpad.contents import ANYTHING, INFINITY, Content, NormBound, array_content, constant, either, index_content, stepped
from foreshape.transforms.unpad.index_forms import IndexForm
from foreshape.transforms.unpad.mixing import (
    convolved,
    last_largest,
    multiplied,
    picked,
    picked_along,
    picked_by_places,
    reduced,
    running_sum,
    softmaxed,
)
from foreshape.transforms.unpad.padded_values import ROWS, PaddedValue, Region, Unsupported, WidenedRows, columns, filled
from foreshape.transforms.unpad.proof import OpRules, Proof
from foreshape.transforms.unpad.shapes import dropped_axes, expanded, flipped, joined, reshaped, sliced, transposed

# --- by computation


def _reshape(proof: Proof, op: Op, computed: Any, slot: str) -> dict[str, Any]:
    widened = proof.widened.get(op.operand(0))
    if widened is not None:
        wide, own = proof.spec(op.operand(0)).known_dims[widened.axis], proof.time
        dims = [own if d == wide else d for d in proof.dims(op, slot)]
        return {slot: widened.moved(reshaped(op, widened.value, dims, proof.reader, proof.side))}
    return {slot: reshaped(op, proof.value(op.operand(0)), proof.dims(op, slot), proof.reader, proof.side)}


def _transposition(proof: Proof, op: Op, computed: c.Transposition, slot: str) -> dict[str, Any]:
    widened = proof.widened.get(op.operand(0))
    if widened is not None:
        return {slot: widened.moved(transposed(op, widened.value, computed.axes, proof.side))}
    return {slot: transposed(op, proof.value(op.operand(0)), computed.axes, proof.side)}


def _expansion(proof: Proof, op: Op, computed: Any, slot: str) -> dict[str, Any]:
    return {slot: expanded(proof.value(op.operand(0)), proof.dims(op, slot), proof.reader)}


def _sum_or_mean(proof: Proof, op: Op, computed: c.Reduction, slot: str) -> dict[str, Any]:
    return _reduced(proof, op, computed, computed.how, slot)


def _extreme(proof: Proof, op: Op, computed: c.ExtremeReduction, slot: str) -> dict[str, Any]:
    return _reduced(proof, op, computed, computed.how.upper(), slot)


def _norm(proof: Proof, op: Op, computed: c.VectorNorm, slot: str) -> dict[str, Any]:
    return _reduced(proof, op, computed, "NORM" if computed.of == 2.0 else "POWERS" if computed.of > 0 else "OTHER", slot)


def _log_sum(proof: Proof, op: Op, computed: c.LogOfExponentials, slot: str) -> dict[str, Any]:
    return _reduced(proof, op, computed, "EXPONENTIALS", slot)


def _reduced(proof: Proof, op: Op, computed: c.Reduction | c.ExtremeReduction | c.VectorNorm | c.LogOfExponentials, how: str, slot: str) -> dict[str, Any]:
    x = proof.value(op.operand(0))
    return {slot: reduced(op, x, how, range(len(x.axes)) if computed.axes is None else computed.axes, computed.keeps, proof.side)}


def _softmax(proof: Proof, op: Op, computed: c.Softmax, slot: str) -> dict[str, Any]:
    x = op.operand(0)
    return {slot: softmaxed(op, proof.value(x), computed.axis, proof.side, proof.spec(x).dtype, proof.at_own_key(x))}


def _product(proof: Proof, op: Op, computed: c.MatrixProduct, slot: str) -> dict[str, Any]:
    x, y = op.operand(0), op.operand(1)
    weights = [proof.stretch(n) for n in (x, y)]
    return {slot: multiplied(op, proof.value(x), proof.value(y), computed.x_transposed, computed.y_transposed, proof.side, weights)}


def _flattened(proof: Proof, op: Op, computed: c.FlattenedProduct, slot: str) -> dict[str, Any]:
    x, y = proof.value(op.operand(0)), proof.value(op.operand(1))
    if computed.x_rows != len(x.axes) - 1 or computed.y_rows != 1 or len(y.axes) != 2:
        return proof.results_along_axes(op, proof.inputs(op))
    weights = [None, proof.stretch(op.operand(1))]
    return {slot: multiplied(op, x, y, False, False, proof.side, weights)}


def _bytes_product(proof: Proof, op: Op, computed: DynamicProduct, slot: str) -> dict[str, Any]:
    x = proof.value(op.operand(0)).without_parts(proof.side, op)
    if any(isinstance(a, str) for a in x.axes[-1]):
        raise Unsupported("it adds over rows and columns")
    axes = (*x.axes[:-1], proof.reader.axis(proof.dims(op, slot)[-1]))
    stretch, width = proof.bytes_stretch(op), columns((x.axes[-1],))

    def content(region: Region) -> Content:
        old = x.content(region)
        if old.constant == 0.0:
            return old

        def extent() -> float:  # a number is rounded by half a step, and a step is the largest number of its row over 127
            return old.extent.value * (1.0 + math.sqrt(width) / 254.0) * stretch.value if not old.offset else INFINITY

        return Content(finite=old.finite, extent=NormBound(extent))

    return {slot: filled(axes, content, x.data_fault(proof.side, op))}


def _layer_norm(proof: Proof, op: Op, computed: c.LayerNorm, slot: str) -> dict[str, Any]:
    x = proof.value(op.operand(0)).without_parts(proof.side, op)
    inside = x.axes[computed.begin :]
    if any(isinstance(a, str) for axis in inside for a in axis):
        raise Unsupported("it normalizes over rows")
    width = columns(inside)
    groups = columns(x.axes) // max(width, 1)
    factor, shift = op.input("Scale"), op.input("Bias")

    def extent() -> float:
        import numpy

        arrays = [proof.array(n) if n else None for n in (factor, shift)]
        if (factor and arrays[0] is None) or (shift and arrays[1] is None):
            return INFINITY
        largest = float(numpy.abs(arrays[0]).max()) if arrays[0] is not None else 1.0
        shift_norm = float(numpy.linalg.norm(arrays[1])) if arrays[1] is not None else 0.0
        return math.sqrt(groups) * (math.sqrt(width) * largest + shift_norm)

    bound = NormBound(extent)
    out: dict[str, Any] = {slot: filled(x.axes, lambda r: Content(finite=x.content(r).finite, extent=bound), x.data_fault(proof.side, op))}
    for statistic in ("Mean", "Variance"):
        if op.outputs.get(statistic):
            axes = x.axes[: computed.begin]
            out[statistic] = filled(axes, lambda r: Content(finite=x.content(r).finite), x.data_fault(proof.side, op))
    return out


def _picking(proof: Proof, op: Op, computed: c.Picking, slot: str) -> dict[str, Any]:
    table, index = op.operand(0), op.operand(1)
    x, numbers = proof.value(table), proof.value(index)
    value = picked(op, x, numbers, computed.axis, proof.side, scalar=not proof.spec(index).rank)
    return {slot: value if computed.axis % len(x.axes) else _from_table(proof, op, table, index, value)}


def _embedding(proof: Proof, op: Op, computed: c.Embedding, slot: str) -> dict[str, Any]:
    table, index = op.operand(0), op.operand(1)
    ids = proof.value(index)
    rank = len(proof.dims(op, slot))
    if len(ids.axes) == rank and not ids.axes[-1]:
        ids = dropped_axes(ids, [len(ids.axes) - 1])
    return {slot: _from_table(proof, op, table, index, picked(op, proof.value(table), ids, 0, proof.side), computed.padding)}


def _from_table(proof: Proof, op: Op, table: str, index: str, value: PaddedValue, padding: int = -1) -> PaddedValue:
    """Return rows of a table of parameters with the facts of its numbers: zeros at a padding row, and the longest row."""
    variable = proof.block.find(table)
    if variable is None or not variable.persistable:
        return value
    numbers = proof.value(index)
    longest = proof.row_norm(table)
    first = len(value.axes) - (len(proof.value(table).axes) - 1) - len(numbers.axes)

    def content(region: Region) -> Content:
        inner = [(a - max(first, 0), k) for a, k in region]
        row = numbers.content(inner).constant
        if row is not None and math.isfinite(row):
            if int(row) == padding and padding >= 0:
                return constant(0.0)
            array = proof.array(table)
            if array is not None and -len(array) <= int(row) < len(array):
                return array_content(array[int(row)])
        old = value.content(region)
        return Content(old.low, old.high, old.finite, extent=longest) if old.constant is None else old

    return filled(value.axes, content, value.fault)


def _place_picking(proof: Proof, op: Op, computed: Any, slot: str) -> dict[str, Any]:
    return {slot: picked_by_places(op, proof.value(op.operand(0)), proof.value(op.operand(1)), proof.side)}


def _slice(proof: Proof, op: Op, computed: Any, slot: str) -> dict[str, Any]:
    values: Mapping[str, Any] = op.attributes.values
    name = op.operand(0)
    x = proof.value(name)
    axes: list[int] = list(values.get("axes", ()))
    begins, ends = (
        proof.operand_numbers(op, many, single, values.get(attribute))
        for many, single, attribute in (("StartsTensorList", "StartsTensor", "starts"), ("EndsTensorList", "EndsTensor", "ends"))
    )
    steps = list(values.get("strides", ())) or [1] * len(axes)
    if any(s != 1 for s in steps):
        return {slot: _stepped_slice(proof, op, slot, axes, steps, begins, ends)}
    cuts = [(a, _entry(begins, k), _entry(ends, k)) for k, a in enumerate(axes)]
    dropped = [a % len(x.axes) for a in values.get("decrease_axis", ())]
    dims = list(proof.dims(op, slot))
    if dropped and len(dims) == len(x.axes):
        dropped = []
    table = proof.array(name) if all(isinstance(a, int) for axis in x.axes for a in axis) else None
    return {slot: sliced(op, x, proof.spec(name).known_dims, cuts, dropped, dims, proof.reader, proof.side, table)}


def _stepped_slice(
    proof: Proof, op: Op, slot: str, axes: Sequence[int], steps: Sequence[int], begins: Sequence[Size] | None, ends: Sequence[Size] | None
) -> PaddedValue:
    """Return entries with steps between them: of columns, or all rows from the last to the first."""
    name = op.operand(0)
    x, sizes = proof.value(name).without_parts(proof.side, op), proof.spec(name).known_dims
    if len(axes) != 1 or op.attributes.values.get("decrease_axis"):
        raise Unsupported("it takes entries with steps between them along several axes")
    number = axes[0] % len(x.axes)
    if all(isinstance(a, int) for a in x.axes[number]):
        new = (*x.axes[:number], proof.reader.axis(proof.dims(op, slot)[number]), *x.axes[number + 1 :])
        return filled(new, x.content, x.fault)
    begin, end = _entry(begins, 0), _entry(ends, 0)
    from_last = begin == -1 or begin == sizes[number] - 1 or (isinstance(begin, int) and begin >= 1 << 31 - 1)
    to_first = isinstance(end, int) and end <= -(1 << 31)
    if steps[0] != -1 or not from_last or not to_first:
        raise Unsupported("it takes some rows of a text, counted from the end of the padded time")
    return flipped(x, [number])


def _entry(numbers: Sequence[Size] | None, index: int) -> Size | None:
    return numbers[index] if numbers is not None and index < len(numbers) else None


def _concat(proof: Proof, op: Op, computed: c.Concat, slot: str) -> dict[str, Any]:
    return {slot: joined(op, [proof.value(n) for n in op.inputs["X"]], computed.axis, proof.side)}


def _split(proof: Proof, op: Op, computed: c.Split, slot: str) -> dict[str, Any]:
    x = proof.value(op.operand(0)).without_parts(proof.side, op)
    number = computed.axis % len(x.axes)
    if any(isinstance(a, str) for a in x.axes[number]):
        raise Unsupported("it divides texts or rows")
    parts: list[PaddedValue] = []
    for name in op.outputs[slot]:
        size = proof.spec(name).known_dims[number]
        axes = (*x.axes[:number], proof.reader.axis(size), *x.axes[number + 1 :])
        parts.append(filled(axes, x.content, x.fault))
    return {slot: parts}


def _stack(proof: Proof, op: Op, computed: c.Stacking, slot: str) -> dict[str, Any]:
    several = [proof.value(n) for n in op.inputs["X"]]
    rank = len(several[0].axes) + 1
    place = computed.axis % rank
    lifted = [
        v.relocated((*v.axes[:place], (), *v.axes[place:]), {(a, k): (a + (a >= place), k) for a, x in enumerate(v.axes) for k in range(len(x))})
        for v in several
    ]
    return {slot: joined(op, lifted, place, proof.side)}


def _triangle(proof: Proof, op: Op, computed: c.Triangle, slot: str) -> dict[str, Any]:
    x = proof.value(op.operand(0))
    row, column = len(x.axes) - 2, len(x.axes) - 1
    is_square = x.axes[row] == (ROWS,) and x.axes[column] == (ROWS,)
    if not is_square and (ROWS in x.axes[row] or ROWS in x.axes[column]):
        raise Unsupported("it compares the places of rows with those of columns")

    def content(region: Region) -> Content:
        old = x.content(region)
        if is_square:
            beyond = IndexForm.factor((column, 0)) - IndexForm.factor((row, 0)) - IndexForm.number(computed.diagonal)
            beyond = beyond if computed.lower else beyond.times(-1)
            places = [(row, 0), (column, 0)]
            least, greatest = beyond.least(proof.side, places, region), beyond.times(-1).least(proof.side, places, region)
            if least is not None and least > 0:
                return constant(0.0)
            if greatest is not None and greatest >= 0:
                return old
            if old.constant is not None:
                return stepped(beyond.times(-1), old.constant, 0.0)
        return Content(min(old.low, 0.0), max(old.high, 0.0), old.finite)

    return {slot: filled(x.axes, content, x.data_fault(proof.side, op))}


def _border(proof: Proof, op: Op, computed: c.Border, slot: str) -> dict[str, Any]:
    """Return zeros before and behind the rows: only a convolution takes them in, and has a row for each row of a text again."""
    x = proof.value(op.operand(0)).without_parts(proof.side, op)
    around = [k for k, ends in enumerate(computed.sizes) if ends != (0, 0)]
    if len([n for n in op.input_names() if n]) > 1 or not around:
        raise Unsupported("the sizes of its border are not known in the description")
    if all(isinstance(a, int) for k in around for a in x.axes[k]):
        axes = tuple(proof.reader.axis(d) if k in around else x.axes[k] for k, d in enumerate(proof.dims(op, slot)))
        border = constant(computed.number)
        return {slot: filled(axes, lambda r: replace(either([x.content(r), border]), extent=NormBound.number(INFINITY)), x.data_fault(proof.side, op))}
    if len(around) > 1 or x.axes[around[0]] != (ROWS,) or computed.number != 0.0 or min(computed.sizes[around[0]]) < 0:
        raise Unsupported("it puts other rows than zeros around those of texts")
    return {slot: WidenedRows(x, around[0], *computed.sizes[around[0]])}


def _convolution(proof: Proof, op: Op, computed: c.ImageConvolution | c.PaddedWindows, slot: str) -> dict[str, Any]:
    widened = proof.widened.get(op.operand(0))
    x = widened.value if widened is not None else proof.value(op.operand(0))
    last = isinstance(computed, c.ChannelsLastConvolution)
    channels, first = (len(x.axes) - 1, 1) if last else (1, 2)
    if len(x.axes) < 3 or any(isinstance(a, str) for a in x.axes[channels]):
        raise Unsupported("it adds over rows as channels")
    dims, weights = proof.dims(op, slot), proof.spec(op.operand(1)).known_dims
    image = proof.spec(op.operand(0)).known_dims[first : first + len(computed.strides)]
    pads = [(p, p) for p in computed.paddings] if isinstance(computed, c.ImageConvolution) else computed.pads(image, weights[2:])
    axes = [*x.axes]
    axes[channels] = proof.reader.axis(dims[channels])
    ahead: list[int] = []
    for k, ((before, behind), dilation) in enumerate(zip(pads, computed.dilations, strict=True)):
        number, size = first + k, weights[k + 2]
        is_rows = x.axes[number] == (ROWS,)
        if not is_rows and any(isinstance(atom, str) for atom in x.axes[number]):
            raise Unsupported("it goes over rows and columns, or over texts")
        if not is_rows:
            axes[number] = proof.reader.axis(dims[number])
            continue
        if widened is not None and number == widened.axis:
            before, behind = before + widened.before, behind + widened.behind
        if not (isinstance(size, int) and isinstance(before, int) and isinstance(behind, int)):
            raise Unsupported("its window is not known in the description")
        if computed.strides[k] != 1 or before + behind != (size - 1) * dilation:
            raise Unsupported("its result has not a row for each row")
        if (behind if proof.side == "right" else before) > 0:
            ahead.append(number)
    stretch = proof.window_stretch(op.operand(1)) if not op.input("Bias") else NormBound.number(INFINITY)
    return {slot: convolved(op, x, ahead, tuple(axes), proof.side, stretch)}


def _identity(proof: Proof, op: Op, computed: Any, slot: str) -> dict[str, Any]:
    return {slot: proof.value(op.operand(0))}


def _along(proof: Proof, op: Op, computed: c.PickingAlong, slot: str) -> dict[str, Any]:
    return {slot: picked_along(op, proof.value(op.operand(0)), proof.value(op.operand(1)), computed.axis, proof.side)}


def _filled(proof: Proof, op: Op, computed: c.Filled, slot: str) -> dict[str, Any]:
    axes = proof.reader.axes(proof.dims(op, slot))
    tensor = op.input("ValueTensor")
    content = proof.value(tensor).real if tensor else ANYTHING if computed.number is None else constant(float(computed.number))
    return {slot: filled(axes, lambda _: content)}


def _numbers(proof: Proof, op: Op, computed: c.Numbers, slot: str) -> dict[str, Any]:
    array = proof.array(op.result(0))
    content = ANYTHING if array is None else array_content(array)
    return {slot: filled(proof.reader.axes(proof.dims(op, slot)), lambda _: content)}


def _counted(proof: Proof, op: Op, computed: c.Counting, slot: str) -> dict[str, Any]:
    axes = proof.reader.axes(proof.dims(op, slot))
    start, step = (proof.value(op.operand(k)).real.index for k in (0, 2))
    if start is None or step is None:
        raise Unsupported("its numbers are not known in the description")
    if len(axes[0]) > 1:
        raise Unsupported("it counts texts and rows together")
    form = start + step * IndexForm.factor((0, 0)) if axes[0] else start
    return {slot: filled(axes, lambda _: index_content(form))}


def _in_order(rule: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a rule for rows in their own order alone."""

    def refusing_rule(proof: Proof, op: Op, *rest: Any) -> dict[str, Any]:
        proof.refuse_reversed(op)
        return rule(proof, op, *rest)

    return refusing_rule


_IN_ANY_ORDER: Final[Mapping[type, Callable[[Proof, Op, Any, str], dict[str, Any]]]] = {
    c.Reshape: _reshape,
    c.Transposition: _transposition,
    c.Reduction: _sum_or_mean,
    c.ExtremeReduction: _extreme,
    c.LogOfExponentials: _log_sum,
    c.Softmax: _softmax,
    c.Slicing: _slice,
    c.SteppedSlicing: _slice,
    c.Identity: _identity,
    c.Filled: _filled,
    c.Numbers: _numbers,
    c.Counting: _counted,
}
_IN_ORDER: Final[Mapping[type, Callable[[Proof, Op, Any, str], dict[str, Any]]]] = {
    c.Expansion: _expansion,
    c.VectorNorm: _norm,
    c.MatrixProduct: _product,
    c.FlattenedProduct: _flattened,
    DynamicProduct: _bytes_product,
    c.LayerNorm: _layer_norm,
    c.Picking: _picking,
    c.PickingAlong: _along,
    c.Embedding: _embedding,
    c.PlacePicking: _place_picking,
    c.Concat: _concat,
    c.Split: _split,
    c.Stacking: _stack,
    c.Triangle: _triangle,
    c.Border: _border,
    c.ImageConvolution: _convolution,
    c.PaddedImageConvolution: _convolution,
    c.ChannelsLastConvolution: _convolution,
}
_BY_COMPUTATION: Final = {**_IN_ANY_ORDER, **{computation: _in_order(rule) for computation, rule in _IN_ORDER.items()}}


# --- by type


def _reduction(how: str) -> Callable[[Proof, Op, str], dict[str, Any]]:
    """Return the rule of a reduction without a computation, by its ``how`` in `foreshape.transforms.unpad.mixing.reduced`."""

    def rule(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
        values: Mapping[str, Any] = op.attributes.values
        x = proof.value(op.operand(0))
        axes: Any = values.get("dim", values.get("axis", [-1]))
        reduced_axes: list[int] = [*axes] if isinstance(axes, (list, tuple)) else [axes]  # pyright: ignore[reportUnknownVariableType]
        if values.get("reduce_all") or not reduced_axes:
            reduced_axes = list(range(len(x.axes)))
        return {slot: reduced(op, x, how, reduced_axes, bool(values.get("keep_dim", values.get("keepdim", False))), proof.side)}

    return rule


def _argmax(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    values: Mapping[str, Any] = op.attributes.values
    if values.get("flatten"):
        raise Unsupported("it compares all rows")
    return {slot: last_largest(op, proof.value(op.operand(0)), int(values.get("axis", -1)), bool(values.get("keepdims")), proof.side)}


def _running(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    values: Mapping[str, Any] = op.attributes.values
    if values.get("flatten"):
        raise Unsupported("it adds over texts")
    x = proof.value(op.operand(0))
    return {slot: running_sum(op, x, int(values.get("axis", -1)), bool(values.get("exclusive")), bool(values.get("reverse")), proof.side)}


def _flip(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    axes: Any = op.attributes.values.get("axis", ())
    return {slot: flipped(proof.value(op.operand(0)), [*axes] if isinstance(axes, (list, tuple)) else [axes])}  # pyright: ignore[reportUnknownArgumentType]


def _row_mask(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    """Return the mask of lengths: 1 at places before each."""
    lengths = proof.operand(op, "X")
    axes = proof.reader.axes(proof.dims(op, slot))
    if axes[:-1] != lengths.axes or axes[-1] != (ROWS,):
        raise Unsupported("its mask is not as long as the padded time")
    place = (len(axes) - 1, 0)

    def content(region: Region) -> Content:
        form = lengths.content(region).index
        if form is None:
            return Content(0.0, 1.0)
        before = form - IndexForm.factor(place)
        low, behind = (f.least(proof.side, [place], region) for f in (before, before.times(-1)))
        return constant(1.0) if low is not None and low > 0 else constant(0.0) if behind is not None and behind >= 0 else Content(0.0, 1.0)

    return {slot: filled(axes, content, lengths.fault)}


def _unknown_sizes(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    raise Unsupported("the sizes that it reads are not known in the description")


_BY_TYPE: Final[Mapping[str, Callable[[Proof, Op, str], dict[str, Any]]]] = {
    "reduce_any": _reduction("ANY"),
    "reduce_all": _reduction("ALL"),
    "reduce_prod": _in_order(_reduction("OTHER")),
    "arg_max": _argmax,
    "cumsum": _running,
    "flip": _flip,
    "sequence_mask": _in_order(_row_mask),
    "shape": _unknown_sizes,
    "size": _unknown_sizes,
}
RULES: Final = OpRules(_BY_TYPE, _BY_COMPUTATION)
