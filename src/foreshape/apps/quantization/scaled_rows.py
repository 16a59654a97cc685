"""Networks whose products scale each row while they run: no examples are needed, and no text changes the answer to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foreshape.apps.quantization.points import QuantizedLayer, refuse_unquantizable
from foreshape.apps.quantization.rewrite import LEVELS, Rewriting, Values, as_bytes
from foreshape.core.data_class import data_class
from foreshape.core.spec import FP32, INT8, INT32, INT64, LOD_TENSOR
from foreshape.errors import SchemaError
from foreshape.language.operator.computations import Embedding, FlattenedProduct, LayerNorm, MatrixProduct, Picking, Softmax
from foreshape.language.operator.sequence_computations import AttentionInSequences
from foreshape.language.program import Block, Op, Program

SMALLEST_TABLE = 1 << 14
"""The least numbers of a table to repay the scales of its rows."""


@data_class(frozen=True)
class ScaledLayer(QuantizedLayer):
    """A product of rows, or a lookup, with a constant fp32 matrix.

    Attributes:
        is_table: rows of the matrix are looked up, and have the scales.
        padding: of a table, the row of zeros; -1 for none.
        is_column: the ids of a lookup have a last dim of 1, the result has none.
        is_normalized: the rows of a product come from a layer normalization.
    """

    is_table: bool = False
    padding: int = -1
    is_column: bool = False
    is_normalized: bool = False


def attends(program: Program) -> bool:
    """Return True for a network with attention: in sequences, or by a softmax and products of two computed values."""
    if any(op.computes(AttentionInSequences) is not None for op in program.all_ops()):
        return True
    if not any(op.computes(Softmax) is not None for op in program.all_ops()):
        return False
    return any(op.computes(MatrixProduct) is not None and not any(_is_constant(op.block, op.operand(k)) for k in (0, 1)) for op in program.all_ops())


def _is_constant(block: Block, name: str) -> bool:
    variable = block.find(name)
    return variable is not None and variable.persistable


def scaled_layers_of(program: Program) -> list[ScaledLayer]:
    """Return the layers to quantize, in order: all readers of their matrices are among them, or read their dims alone. Raises as `layers_of`."""
    refuse_unquantizable(program)
    layers = [layer for op in program.global_block.ops if (layer := _layer(program.global_block, op)) is not None]
    kinds: dict[str, set[bool]] = {}
    for layer in layers:
        kinds.setdefault(layer.weight, set()).add(layer.is_table)
    mine = {id(layer.op) for layer in layers}
    needed = {n for op in program.all_ops() if id(op) not in mine for n in op.input_names() if not (kinds.get(n) == {True} and _reads_dims(op, n))}
    return [layer for layer in layers if layer.weight not in needed]


def _reads_dims(op: Op, name: str) -> bool:
    slots = [slot for slot, names in op.input_slots.items() if name in names]
    return op.operator is not None and all(slot in op.operator.reads_dims for slot in slots)


def _layer(block: Block, op: Op) -> ScaledLayer | None:
    return _table(block, op) or _product(block, op)


def _table(block: Block, op: Op) -> ScaledLayer | None:
    """Return a lookup in a large table."""
    lookup, picking = op.computes(Embedding), op.computes(Picking)
    if lookup is None and (picking is None or picking.axis not in (0, -2)):
        return None
    dims, ids, result = _matrix(block, op.operand(0)), block.find(op.operand(1)), block.find(op.result())
    if dims is None or dims[0] * dims[1] < SMALLEST_TABLE or ids is None or result is None or ids.persistable or ids.dtype not in (INT32, INT64):
        return None
    padding = -1 if lookup is None or lookup.padding == -1 else lookup.padding % dims[0]
    return ScaledLayer(op, op.result(), ids.name, op.operand(0), 0, True, padding, result.spec.rank == ids.spec.rank)


def _product(block: Block, op: Op) -> ScaledLayer | None:
    """Return a product of rows with a matrix."""
    matrices, flattened = op.computes(MatrixProduct), op.computes(FlattenedProduct)
    if matrices is None and flattened is None:
        return None
    x = block.find(op.operand(0))
    if x is None or x.persistable or x.kind is not LOD_TENSOR or x.dtype is not FP32 or x.spec.rank < 2 or _matrix(block, op.operand(1)) is None:
        return None
    if (matrices is not None and matrices.x_transposed) or (flattened is not None and (flattened.y_rows, flattened.x_rows) != (1, x.spec.rank - 1)):
        return None
    axis = 0 if matrices is not None and matrices.y_transposed else 1
    is_normalized = x.op is not None and x.op.computes(LayerNorm) is not None
    return ScaledLayer(op, op.result(), x.name, op.operand(1), axis, is_normalized=is_normalized)


def _matrix(block: Block, name: str) -> tuple[int, int] | None:
    """Return the dims of a constant matrix of fp32."""
    w = block.find(name)
    if w is None or not w.persistable or w.op is not None or w.kind is not LOD_TENSOR or w.dtype is not FP32 or w.spec.rank != 2:
        return None
    rows, columns = w.spec.known_dims
    return (rows, columns) if isinstance(rows, int) and isinstance(columns, int) and rows > 0 and columns > 0 else None


def factors_of(weight: Any, axis: int) -> Any:
    """Return for each column of the rows the root mean square of its numbers in a weight with the columns of the result at an axis.

    The rounding of a row is as coarse in each of its columns, and the weight then makes as much of it. Behind a normalization a few columns are large whose
    weights are small, and without the factors they would make the steps of all.
    """
    import numpy

    sizes = numpy.sqrt(numpy.square(weight, dtype=numpy.float64).mean(axis)).astype("float32")
    return numpy.maximum(sizes, numpy.float32(1e-3) * sizes.max(initial=1e-30))


def with_row_scales(program: Program, layers: Sequence[ScaledLayer], weights: Mapping[str, Any]) -> Values:
    """Let layers compute with matrices of bytes, in place; return the arrays of new persistables."""
    import numpy

    rewriting, block = Rewriting(program), program.global_block
    for layer in layers:
        kind = "rows" if layer.is_table else "columns"
        name = f"{layer.weight}@bytes_in_{kind}" + (f"_without_{layer.padding}" if layer.padding >= 0 else "@balanced" if layer.is_normalized else "")
        scale, factor = f"{name}@scale", f"{name}@factor"
        if name not in rewriting.values:
            weight = weights[layer.weight]
            if not numpy.isfinite(weight).all():
                raise SchemaError(f"{layer.name}: its weight {layer.weight} has numbers that are not finite; exclude it")
            if layer.is_normalized:
                factors = factors_of(weight, layer.axis)
                rewriting.constant(factor, factors)
                weight = weight / (factors[:, None] if layer.axis == 1 else factors)
            integers, sizes = as_bytes(weight, layer.axis)
            steps = (sizes / numpy.float32(LEVELS)).astype("float32")
            if layer.padding >= 0:
                steps[layer.padding] = 0.0
            is_transposed = not layer.is_table and layer.axis == 0
            rewriting.constant(name, numpy.ascontiguousarray(integers.T) if is_transposed else integers, INT8)
            rewriting.constant(scale, steps)
        op, index = layer.op, block.ops.index(layer.op)
        block.remove_op(op)
        operands = {"W": name, "Scale": scale}
        if layer.is_table:
            rewriting.add("int8_lookup", {**operands, "Ids": layer.x}, {"Out": layer.name}, {"column": layer.is_column}, index, op.site)
        else:
            operands |= {"Factor": factor} if layer.is_normalized else {}
            rewriting.add("dynamic_int8_linear", {"X": layer.x, **operands}, {"Out": layer.name}, {}, index, op.site)
    for weight in {layer.weight for layer in layers}:
        rewriting.read_instead(weight, f"{weight}@bytes_in_rows", rewriting.readers(weight))
        block.vars.pop(weight)
    return rewriting.values
