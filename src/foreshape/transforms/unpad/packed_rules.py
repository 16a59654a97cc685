"""The rules of ops on packed rows: an op keeps its columns, and its axes of texts and rows are one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from foreshape import layer
from foreshape.core.dims import Size
from foreshape.core.spec import FP64
from foreshape.language.operator import computations as c
from foreshape.language.operator.byte_computations import DynamicProduct
from foreshape.language.program import Op, Variable
from foreshape.transforms.unpad.attention_terms import AttentionTerms, attention_terms, gelu_operand
from foreshape.transforms.unpad.norm_ops import norm_over
from foreshape.transforms.unpad.packing import Packer, arithmetic_with_number
from foreshape.transforms.unpad.padded_values import BATCH, REVERSED, ROWS, Axes, NotPacked, PaddedValue, covers

# --- the rules on packed rows


def _elements(packer: Packer, op: Op, name: str) -> Variable:
    """Return a per-element result of packed rows: operands get axes of 1 where they lack some."""
    assert op.operator is not None
    axes = packer.proof.value(name).axes
    result_axes = packer.column_axes(axes)
    rectified = gelu_operand(packer, name)
    if rectified is not None and covers(packer.proof.value(rectified).axes, axes):
        return layer.gelu(_operand(packer, rectified, axes, result_axes, -1))
    scaled = arithmetic_with_number(packer, op, lambda n: _operand(packer, n, axes, result_axes, -1))
    if scaled is not None:
        return scaled
    aligned = int(op.attributes.values.get("axis", -1)) if "axis" in op.operator.schema.attributes else -1
    inputs: dict[str, list[Variable]] = {}
    for operand in op.operator.schema.operands:
        names = [n for n in op.inputs.get(operand.name, ()) if n]
        if names:
            inputs[operand.name] = [_operand(packer, n, axes, result_axes, aligned) for n in names]
    attributes = dict(op.attributes.values)
    if "axis" in op.operator.schema.attributes:
        attributes["axis"] = -1
    return packer.append(op, inputs, attributes)[0][1]


def _operand(packer: Packer, name: str, axes: Axes, result_axes: Sequence[int], aligned: int) -> Variable:
    plain = packer.plain(name)
    value = packer.proof.value(plain)
    if (number := packer.number(plain)) is not None:
        return packer.filled(number, [1], packer.element_type(plain))
    rank = len(packer.proof.value(name).axes)
    shift = 0 if rank == len(axes) else len(axes) - rank if aligned < 0 else aligned
    sizes = {
        n + shift: packer.columns((axis,))[0]
        for n, axis in enumerate(value.axes)
        if n + shift in result_axes and (not axis or any(isinstance(a, int) for a in axis))
    }
    columns = [sizes.get(n, 1) for n in result_axes]
    if value.per_text or value.time_places:
        return packer.shaped(packer.rows(plain), columns)
    variable = packer.alone(plain)
    while columns and columns[0] == 1 and len(columns) > 1:
        columns = columns[1:]
    return variable if [*variable.spec.known_dims] == columns or not variable.spec.rank else layer.reshape(variable, columns or [1])


def _reshape(packer: Packer, op: Op, name: str) -> Variable:
    source = op.operand(0)
    x = packer.proof.value(source)
    if REVERSED in (a for axis in x.axes for a in axis):
        raise NotPacked
    rows = packer.rows(source)
    return packer.shaped(rows, packer.columns(packer.proof.value(name).axes))


def _transposition(packer: Packer, op: Op, name: str) -> Variable:
    source = op.operand(0)
    computed = op.operator.computes() if op.operator is not None else None
    assert isinstance(computed, c.Transposition)
    old = packer.proof.value(source).axes
    column_axes = packer.column_axes(old)
    order = [column_axes.index(a % len(old)) for a in computed.axes if a % len(old) in column_axes]
    rows = packer.rows(source)
    return rows if order == sorted(order) else layer.transpose(rows, [0, *(1 + n for n in order)])


def _expansion(packer: Packer, op: Op, name: str) -> Variable:
    value, source = packer.proof.value(name), op.operand(0)
    x = packer.proof.value(source)
    if any(len(axis) > 1 for axis in value.axes):
        raise NotPacked
    result_columns = packer.columns(value.axes)
    rows = packer.rows(source) if x.per_text or x.time_places else None
    if rows is None:
        raise NotPacked
    columns = [*packer.columns(x.axes)]
    columns = [1] * (len(result_columns) - len(columns)) + columns
    rows = packer.shaped(rows, columns)
    return rows if columns == result_columns else layer.expand(rows, [-1, *result_columns])


def _new_axis(packer: Packer, axes: Axes, number: int) -> int:
    """Return the number of an axis in a packed value."""
    column_axes = packer.column_axes(axes)
    if number % len(axes) not in column_axes or any(isinstance(a, str) for a in axes[number % len(axes)]):
        raise NotPacked
    return 1 + column_axes.index(number % len(axes))


def _layer_norm(packer: Packer, op: Op, name: str) -> Variable:
    computed = op.operator.computes() if op.operator is not None else None
    assert isinstance(computed, c.LayerNorm)
    source = op.operand(0)
    begin = _new_axis(packer, packer.proof.value(source).axes, computed.begin)
    inputs = {"X": [packer.rows(source)]} | {s: [packer.alone(str(op.input(s)), True)] for s in ("Scale", "Bias") if op.input(s)}
    if op.result(0) != name:
        raise NotPacked
    return packer.append(op, inputs, {**op.attributes.values, "begin_norm_axis": begin})[0][1]


def _softmax(packer: Packer, op: Op, name: str) -> Variable:
    computed = op.operator.computes() if op.operator is not None else None
    assert isinstance(computed, c.Softmax)
    source = op.operand(0)
    axes = packer.proof.value(source).axes
    number = computed.axis % len(axes)
    if axes[number] == (ROWS,):
        columns = packer.columns(axes)
        if any(n != 1 for n in columns):
            raise NotPacked
        rows = packer.ragged(packer.shaped(packer.rows(source), [1]))
        return packer.shaped(packer.block.apply("sequence_softmax", {"X": rows}), columns)
    return packer.append(op, {"X": [packer.rows(source)]}, {**op.attributes.values, "axis": _new_axis(packer, axes, number)})[0][1]


def _reduction(packer: Packer, op: Op, name: str) -> Variable:
    source = op.operand(0)
    axes = packer.proof.value(source).axes
    values: dict[str, Any] = dict(op.attributes.values)
    key = "dim" if "dim" in values else "axis"
    reduced_axes: Any = values.get(key, [-1])
    if values.get("reduce_all") or values.get("asvector"):
        raise NotPacked
    numbers: list[int] = [*reduced_axes] if isinstance(reduced_axes, (list, tuple)) else [reduced_axes]  # pyright: ignore[reportUnknownVariableType]
    new = [_new_axis(packer, axes, n) for n in numbers]
    norm = op.computes(c.VectorNorm)
    if norm is not None and norm.of == 2.0:
        return packer.shaped(norm_over(packer.rows(source), new, norm.keeps), packer.columns(packer.proof.value(name).axes))
    values[key] = new if isinstance(reduced_axes, (list, tuple)) else new[0]
    result = packer.append(op, {op.operator.schema.operands[0].name: [packer.rows(source)]}, values)[0][1] if op.operator else None
    assert result is not None
    return packer.shaped(result, packer.columns(packer.proof.value(name).axes))


def _concat(packer: Packer, op: Op, name: str) -> Variable:
    axes = packer.proof.value(name).axes
    number = _new_axis(packer, axes, int(op.attributes.values.get("axis", 0)))
    several = [packer.rows(n) for n in op.inputs["X"]]
    return layer.concat(several, number)


def _split(packer: Packer, op: Op, name: str) -> Variable:
    computed = op.operator.computes() if op.operator is not None else None
    assert isinstance(computed, c.Split)
    source = op.operand(0)
    number = _new_axis(packer, packer.proof.value(source).axes, computed.axis)
    sizes = [packer.old.var(n).spec.known_dims[computed.axis] for n in op.outputs["Out"]]
    parts = layer.split(packer.rows(source), [s if isinstance(s, int) else -1 for s in sizes], number)
    for old, part in zip(op.outputs["Out"], parts, strict=True):
        packer.packed.setdefault(old, part)
    return packer.packed[name]


def _slice(packer: Packer, op: Op, name: str) -> Variable:
    source = op.operand(0)
    axes = packer.proof.value(source).axes
    cut = packer.proof.value(name)
    if not packer.proof.value(source).time_places and cut.time_places:
        return _table_rows(packer, source, cut)
    values: Mapping[str, Any] = op.attributes.values
    if any(op.inputs.get(s) for s in ("StartsTensor", "StartsTensorList")) or any(s != 1 for s in values.get("strides", ())):
        raise NotPacked
    starts, dims = list(values["starts"]), packer.old.var(source).spec.known_dims
    old: list[int] = list(values["axes"])
    ends = packer.proof.operand_numbers(op, "EndsTensorList", "EndsTensor", values.get("ends"))
    rows = packer.rows(source)
    for axis, start, end in zip(old, starts, ends or [], strict=True):
        if axes[axis] and any(isinstance(a, str) for a in axes[axis]):
            if start == 0 and (not isinstance(end, int) or end > 1 << 30 or end == dims[axis]):
                continue
            raise NotPacked
        if not isinstance(end, int):
            raise NotPacked
        rows = layer.slice(rows, [_new_axis(packer, axes, axis)], [start], [end])
    return packer.shaped(rows, packer.columns(packer.proof.value(name).axes))


def _table_rows(packer: Packer, source: str, cut: PaddedValue) -> Variable:
    """Return the rows of a table by the places of rows in their texts."""
    number = cut.time_places[0][0]
    old = packer.proof.value(source).axes
    if len(old) != len(cut.axes) or any(n != number and old[n] != axis for n, axis in enumerate(cut.axes)):
        raise NotPacked
    table = packer.alone(source, True)
    order = [number, *(n for n in range(len(old)) if n != number)]
    rows_first = layer.transpose(table, order) if any(old[n] for n in range(number)) else table
    rows = layer.gather(
        layer.reshape(rows_first, [table.spec.known_dims[number], *(d for n, d in enumerate(table.spec.known_dims) if n != number)]), packer.positions()
    )
    return packer.shaped(rows, packer.columns(cut.axes))


def _picking(packer: Packer, op: Op, name: str) -> Variable:
    table, index = op.operand(0), op.operand(1)
    value, ids = packer.proof.value(table), packer.proof.value(index)
    computed = op.operator.computes() if op.operator is not None else None
    if isinstance(computed, c.Picking) and not (ids.per_text or ids.time_places) and (value.per_text or value.time_places):
        axis = _new_axis(packer, value.axes, computed.axis)
        place = ids.real.index.constant if ids.real.index is not None else None
        if place is not None and place >= 0 and packer.columns(ids.axes) in ([], [1]):
            cut = layer.slice(packer.rows(table), [axis], [place], [place + 1])
            return packer.shaped(cut, packer.columns(packer.proof.value(name).axes))
        return packer.shaped(
            layer.gather(packer.rows(table), layer.reshape(packer.alone(index, True), [-1]), axis), packer.columns(packer.proof.value(name).axes)
        )
    if value.per_text or value.time_places or (isinstance(computed, c.Picking) and computed.axis):
        raise NotPacked
    columns = packer.columns(ids.axes)
    rows = packer.rows(index)
    flat = rows if rows.spec.rank == 1 else layer.reshape(rows, [-1])
    if any(n != 1 for n in columns):
        raise NotPacked
    attributes = op.attributes.values
    slots = [o.name for o in op.operator.schema.operands[:2]] if op.operator is not None else []
    picked = packer.append(op, {slots[0]: [packer.alone(table, True)], slots[1]: [flat]}, {**attributes})[0][1]
    return packer.shaped(picked, packer.columns(packer.proof.value(name).axes))


def _product(packer: Packer, op: Op, name: str) -> Variable:
    computed = op.operator.computes() if op.operator is not None else None
    assert isinstance(computed, c.MatrixProduct)
    left, right = op.operand(0), op.operand(1)
    x, y = packer.proof.value(left), packer.proof.value(right)
    if len(x.time_places) == 2:
        return _attention(packer, op, name)
    columns = packer.columns(packer.proof.value(name).axes)
    x_is_packed, y_is_packed = (bool(v.time_places) or v.per_text for v in (x, y))
    inner = x.axes[-2] if computed.x_transposed else x.axes[-1]
    if ROWS in inner or BATCH in inner:
        raise NotPacked
    if x_is_packed and not y_is_packed and len([a for a in y.axes[:-2] if a]) == 0 and not computed.x_transposed:
        weights = packer.alone(right, True)
        weights = weights if weights.spec.rank == 2 else layer.reshape(weights, [*packer.old.var(right).spec.known_dims[-2:]])
        product = layer.matmul(packer.rows(left), weights, transpose_y=computed.y_transposed)
        return packer.shaped(product, columns)
    if y_is_packed and not x_is_packed and len([a for a in x.axes[:-2] if a]) == 0 and ROWS in (y.axes[-2] if computed.y_transposed else y.axes[-1]):
        inner_size = packer.columns((inner,))[0]
        if any(y.axes[:-2]) and any(isinstance(a, int) for axis in y.axes[:-2] for a in axis):
            raise NotPacked
        rows = packer.shaped(packer.rows(right), [inner_size])
        weights = layer.reshape(packer.alone(left, True), [*packer.old.var(left).spec.known_dims[-2:]])
        return packer.shaped(layer.matmul(rows, weights, transpose_y=not computed.x_transposed), columns)
    inside = [axis for v in (x, y) for axis in v.axes[-2:]]
    if x_is_packed and y_is_packed and not any(ROWS in a or BATCH in a for a in inside) and len(x.axes) == len(y.axes):
        product = layer.matmul(packer.rows(left), packer.rows(right), transpose_x=computed.x_transposed, transpose_y=computed.y_transposed)
        return packer.shaped(product, columns)
    raise NotPacked


def _flattened(packer: Packer, op: Op, name: str) -> Variable:
    computed = op.operator.computes() if op.operator is not None else None
    assert isinstance(computed, c.FlattenedProduct)
    left = op.operand(0)
    if computed.x_rows != len(packer.proof.value(left).axes) - 1 or packer.proof.value(op.operand(1)).per_text:
        raise NotPacked
    rows = packer.rows(left)
    attributes = {**op.attributes.values, "x_num_col_dims": rows.spec.rank - 1}
    return packer.append(op, {"X": [rows], "Y": [packer.alone(op.operand(1), True)]}, attributes)[0][1]


def _bytes_product(packer: Packer, op: Op, name: str) -> Variable:
    assert op.operator is not None
    source, *parameters = (o.name for o in op.operator.schema.operands)
    inputs = {s: [packer.alone(str(op.input(s)), True)] for s in parameters if op.input(s)}
    columns = packer.columns(packer.proof.value(op.operand(0)).axes)
    product = packer.append(op, {source: [packer.shaped(packer.rows(op.operand(0)), columns)], **inputs}, op.attributes.values)[0][1]
    return packer.shaped(product, packer.columns(packer.proof.value(name).axes))


def _batch_norm(packer: Packer, op: Op, name: str) -> Variable:
    source = op.operand(0)
    rows = packer.rows(source)
    if rows.spec.rank != 2 or op.result(0) != name or op.attributes.values.get("data_layout", "NCHW") != "NCHW":
        raise NotPacked
    assert op.operator is not None
    inputs = {slot: [rows] if slot == "X" else [packer.alone(n, True) for n in names] for slot, names in op.inputs.items() if names}
    outputs = {slot: [n for n in names if packer.old.var(n).persistable] for slot, names in op.outputs.items()}
    declared = {k: v for k, v in op.attributes.values.items() if k in op.operator.schema.attributes}
    new = packer.block.append_op(op.type, inputs, {s: n for s, n in outputs.items() if n}, declared, site=op.site)
    return packer.block.var(new.output_slots["Y"][0])


def _running_sum(packer: Packer, op: Op, name: str) -> Variable:
    """Return the sums of whole numbers up to each row of a text: of all rows, less the rows before the text."""
    source = op.operand(0)
    axes, values = packer.proof.value(source).axes, op.attributes.values
    if axes[int(values.get("axis", -1))] != (ROWS,) or values.get("reverse") or packer.element_type(source).is_floating:
        raise NotPacked  # sums of floats would tell of other texts by their rounding
    columns = packer.columns(axes)
    size = math.prod(n for n in columns if isinstance(n, int))
    numbers = packer.ragged(layer.cast(packer.shaped(packer.rows(source), [size]), FP64))
    exclusive_sums = layer.cumsum(numbers, 0, exclusive=True)
    sums = exclusive_sums if values.get("exclusive") else exclusive_sums + numbers
    starts = layer.sequence_expand_as(layer.sequence_first_step(packer.ragged(exclusive_sums)), packer.first)
    return packer.shaped(layer.cast(sums - starts, packer.element_type(name)), columns)


def _attention(packer: Packer, op: Op, name: str) -> Variable:
    terms = attention_terms(packer, op)
    if terms is None:
        raise NotPacked
    return write_attention(packer, terms, packer.columns(packer.proof.value(name).axes))


def write_attention(packer: Packer, terms: AttentionTerms, columns: Sequence[Size]) -> Variable:
    """Return attention within texts, ``[rows, heads, columns]`` in the axes of the padded result."""
    operands = [packer.ragged(packer.shaped(packer.rows(n), [terms.heads * terms.size])) for n in (terms.query, terms.key, terms.value)]
    inputs: dict[str, Any] = dict(zip(("Q", "K", "V"), operands, strict=True))
    if terms.bias:
        inputs["Bias"] = score_bias(packer, terms)
    attributes = {"heads": terms.heads, "causal": terms.causal, "scale": terms.scale}
    mixed = packer.block.apply("sequence_attention", inputs, attributes)[0]
    return packer.shaped(mixed, columns)


def score_bias(packer: Packer, terms: AttentionTerms) -> Variable:
    """Return the bias of scores by the places of a row and of a key, ``[heads or 1, longest, longest]``."""
    key = f"bias {terms.bias}"

    def make() -> Variable:
        total: Variable | None = None
        for term in terms.bias:
            x = packer.alone(term.name)
            dims = packer.columns(packer.proof.value(packer.plain(term.name)).axes)
            heads = max([d for d in dims if isinstance(d, int)], default=1)
            if term.hides:
                condition = layer.cast(x, "fp32")  # 1 where the key is seen
                x = layer.scale(condition, term.hidden) if not term.visible_if else layer.scale(condition, -term.hidden, term.hidden)
            rank = x.spec.rank
            x = layer.reshape(x, [heads, *x.spec.known_dims[-2:]]) if all(isinstance(d, int) for d in x.spec.known_dims[-2:]) else _rank_three(x, heads, rank)
            x = x if term.factor == 1.0 else layer.scale(x, term.factor)
            total = x if total is None else total + x
        assert total is not None
        return total

    return packer.shared(key, make)


def _rank_three(x: Variable, heads: int, rank: int) -> Variable:
    """Return ``[heads, longest, longest]`` of a tensor with axes of 1 before."""
    if rank == 2:
        return layer.unsqueeze(x, [0])
    gone = [n for n in range(rank - 2) if x.spec.known_dims[n] == 1]
    gone = gone[: rank - 3]
    return layer.squeeze(x, gone) if gone else x


_PACKED: Final[Mapping[type, Any]] = {
    c.Reshape: _reshape,
    c.Transposition: _transposition,
    c.Expansion: _expansion,
    c.LayerNorm: _layer_norm,
    c.Softmax: _softmax,
    c.Reduction: _reduction,
    c.ExtremeReduction: _reduction,
    c.LogOfExponentials: _reduction,
    c.VectorNorm: _reduction,
    c.Concat: _concat,
    c.Split: _split,
    c.Slicing: _slice,
    c.Picking: _picking,
    c.Embedding: _picking,
    c.MatrixProduct: _product,
    c.FlattenedProduct: _flattened,
    DynamicProduct: _bytes_product,
    c.FrozenBatchNorm: _batch_norm,
}
_PACKED_TYPES: Final[Mapping[str, Any]] = {
    "cumsum": _running_sum,
}


def packed_result(op: Op, packer: Packer, name: str) -> Variable:
    """Write a result of an op on packed rows: by its type, by its operator's computation, or element by element.

    Raises:
        NotPacked: no op on packed rows computes it.
    """
    if op.operator is None or any(n in packer.proof.widened for n in op.input_names()):
        raise NotPacked
    rule = _PACKED_TYPES.get(op.type) or _PACKED.get(type(op.operator.computes()))
    if rule is not None:
        return rule(packer, op, name)
    if op.operator.per_element:
        return _elements(packer, op, name)
    raise NotPacked
