"""Networks whose constant matrices have 8 or 4 bits, in groups with a scale each, while all else is computed in fp32, for texts of few users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from foreshape.apps.quantization.points import without
from foreshape.apps.quantization.rewrite import Rewriting, Values, as_bytes
from foreshape.apps.quantization.scaled_rows import LEVELS, ScaledLayer, scaled_layers_of
from foreshape.core.spec import INT8, UINT8
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import SchemaError
from foreshape.language.program import Program
from foreshape.machine.kernels.grouped_weights import GroupedNumbers, group_of, pack, pack_numbers

Weights = Literal["int8", "int4"]
WEIGHTS = ("int8", "int4")
Rows = Literal["fp32", "int8"]
ROWS = ("fp32", "int8")


def grouped_layers_of(program: Program, exclude: Sequence[str] = ()) -> list[ScaledLayer]:
    """Return the products and lookups with constant matrices to be kept in groups. Raises as `scaled_layers_of`."""
    layers = scaled_layers_of(program)
    left = without([layer for layer in layers if layer.is_table or group_of(_rows(program, layer), 64)], exclude)
    unread = {layer.weight for layer in layers if layer not in left}  # a weight is kept once
    return [layer for layer in left if layer.weight not in unread]


def _rows(program: Program, layer: ScaledLayer) -> int:
    """Return the rows of a product's weight, with the columns of the result last."""
    dims = program.global_block.var(layer.weight).spec.known_dims
    rows = dims[0] if layer.axis == 1 else dims[1]
    return rows if isinstance(rows, int) else 0


def with_groups(
    program: Program, layers: Sequence[ScaledLayer], weight_of: Callable[[str], Tensor | GroupedNumbers], weights: Weights, group: int, rows: Rows
) -> Values:
    """Let layers compute with packed weights, in place; return the arrays of new persistables.

    Args:
        program: as in a test.
        layers: of it, as `grouped_layers_of` gives them.
        weight_of: from a matrix's name to its value; asked once for each. `GroupedNumbers` stay as they are in products.
        weights: "int8" or "int4"; tables of lookups are of 8 bits, with a scale for each row.
        group: the most rows of a weight with one scale.
        rows: "fp32", or "int8": in products they are rounded, each in the groups of the weight.

    Raises:
        SchemaError: a weight has infinite numbers or NaN.
    """
    rewriting, block = Rewriting(program), program.global_block
    bits: Literal[4, 8] = 8 if weights == "int8" else 4
    for weight in dict.fromkeys(layer.weight for layer in layers):
        value = weight_of(weight)
        if not (value.is_finite if isinstance(value, GroupedNumbers) else bool(torch.isfinite(value).all())):
            raise SchemaError(f"the weight {weight} has numbers that are not finite; exclude it")
        for layer in [layer for layer in layers if layer.weight == weight]:
            op, index = layer.op, block.ops.index(layer.op)
            block.remove_op(op)
            if layer.is_table:
                operands = _table(rewriting, layer, value.floats() if isinstance(value, GroupedNumbers) else value)
                rewriting.add("int8_lookup", {**operands, "Ids": layer.x}, {"Out": layer.name}, {"column": layer.is_column}, index, op.site)
            else:
                operands, columns = _product(rewriting, layer, value, bits, group)
                rewriting.add("grouped_linear", {"X": layer.x, **operands}, {"Out": layer.name}, {"columns": columns, "rows": rows}, index, op.site)
        block.vars.pop(weight)
    return rewriting.values


def _table(rewriting: Rewriting, layer: ScaledLayer, value: Tensor) -> dict[str, str]:
    import numpy

    name = f"{layer.weight}@bytes_in_rows" + (f"_without_{layer.padding}" if layer.padding >= 0 else "")
    if name not in rewriting.values:
        numbers, sizes = as_bytes(value.numpy(), 0)
        steps = (sizes / numpy.float32(LEVELS)).astype("float32")
        if layer.padding >= 0:
            steps[layer.padding] = 0.0
        rewriting.constant(name, numbers, INT8)
        rewriting.constant(f"{name}@scale", steps)
    return {"W": name, "Scale": f"{name}@scale"}


def _product(rewriting: Rewriting, layer: ScaledLayer, value: Tensor | GroupedNumbers, bits: Literal[4, 8], group: int) -> tuple[dict[str, str], int]:
    """Return the operands of a product, and its columns."""
    if isinstance(value, GroupedNumbers):
        bits = value.bits
    name = f"{layer.weight}@{bits}_bits" + ("" if layer.axis == 1 else "_turned")
    if name not in rewriting.values:
        if isinstance(value, GroupedNumbers):
            packed, steps, offsets = pack_numbers(value if layer.axis == 1 else value.changed(torch.t))
        else:
            matrix, offsets = value if layer.axis == 1 else value.T, None
            packed, steps = pack(matrix, bits, group_of(matrix.shape[0], group))
        rewriting.constant(name, packed.numpy(), INT8 if bits == 8 else UINT8)
        rewriting.constant(f"{name}@scale", steps.numpy())
        if offsets is not None:
            rewriting.constant(f"{name}@offset", offsets.numpy())
    operands = {"W": name, "Scale": f"{name}@scale"}
    if f"{name}@offset" in rewriting.values:
        operands["Offset"] = f"{name}@offset"
    return operands, (value.numbers if isinstance(value, GroupedNumbers) else value).shape[layer.axis]


def require_weights(weights: Any, group: Any, rows: Any) -> None:
    """Raise `SchemaError` for others than these weights and rows, and a group of less than 4."""
    if weights not in WEIGHTS:
        raise SchemaError.one_of("weights", WEIGHTS, weights)
    require_rows(rows)
    if isinstance(group, bool) or not isinstance(group, int) or group < 4 or group % 4:
        raise SchemaError.must("group", "a multiple of 4, of at least 4", group)


def require_rows(rows: Any) -> None:
    """Raise `SchemaError` for others than these rows."""
    if rows not in ROWS:
        raise SchemaError.one_of("rows", ROWS, rows)
