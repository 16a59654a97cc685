"""Products with packed weights, written as ONNX and as code of torch."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import FP32, UINT8
from foreshape.interop.forms.rules import to_onnx, to_torch
from foreshape.interop.onnx.write.terms import term
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp


@to_onnx()
def _to_onnx_grouped_linear(w: WrittenOp) -> Any:
    sizes = [size for size in (*w.spec("W").known_dims, w.spec("Scale").known_dims[1]) if isinstance(size, int)]
    if len(sizes) < 4:
        raise Refused("a weight of open dims")
    (tiles, packed, tile, groups), halves = sizes, w.spec("W").dtype is UINT8
    numbers, rows = term(w, "W").cast(FP32), packed * (2 if halves else 1)
    if halves:
        upper = (numbers / 16.0).node("Floor")
        pair = [part.shaped(tiles, packed, 1, tile) for part in (numbers - upper * 16.0, upper)]
        numbers = pair[0].node("Concat", pair[1].value, axis=2)
    numbers = numbers - 8.0 if halves and not w.has("Offset") else numbers
    scaled = numbers.shaped(tiles, groups, rows // groups, tile) * term(w, "Scale").with_dims(2)
    scaled = scaled + term(w, "Offset").with_dims(2) if w.has("Offset") else scaled
    matrix = scaled.shaped(tiles, rows, tile).turned(1, 0, 2).shaped(rows, tiles * tile).cut(1, 0, w.of.columns)
    x = term(w, "X")
    if w.of.rows == "int8":
        leading = [0] * (w.rank("X") - 1)
        parts = x.shaped(*leading, groups, rows // groups)
        steps = abs(parts).largest(-1, keep=True) / 127.0
        x = ((parts / steps.same(0.0).where(1.0, steps)).node("Round") * steps).shaped(*leading, rows)
    return x.node("MatMul", matrix.value).value


@to_torch()
def _to_torch_grouped_linear(w: PlainOp) -> str:
    x = w.x("X") if w.of.rows == "fp32" else w.call(helpers.bit_grids.rounded_groups, w.x("X"), w.x("Scale"))
    return w.call(helpers.bit_grids.grouped_product, x, w.x("W"), w.x("Scale"), w.of.columns, *([w.x("Offset")] if w.has("Offset") else []))
