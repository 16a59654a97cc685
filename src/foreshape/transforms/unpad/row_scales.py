"""Quantizations with scales found in the run over all texts, as those of ONNX's ``DynamicQuantizeLinear``, and the same with a scale for each row.

A product of rows ``levels - point`` with a matrix, times ``scale``, is about that of the rows, also with a scale and a point for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foreshape.core.data_class import data_class
from foreshape.core.spec import FP32, INT8, UINT8, DType
from foreshape.language.operator import computations as c
from foreshape.language.operator.byte_computations import IntegerProduct, RangeQuantization
from foreshape.language.operator.computation import Computation
from foreshape.language.program import Block, Op, Program
from foreshape.transforms.unpad.padded_values import Fault
from foreshape.transforms.unpad.proof import Numbers

_MIXES: Final = "it takes numbers of 8 bits with a scale for each row otherwise than a product of these rows with a matrix, times the scales"
_PARTS: Final = (("Y", "levels"), ("Scale", "scale"), ("ZeroPoint", "point"))
"""The results of a quantization, and the part of it that each is."""


@data_class(frozen=True)
class _ScaledPart:
    """The part of a quantization in a value: its "levels", its "point", "sums" of products with the levels less the point, or its "scale".

    Attributes:
        source: the quantization.
        product: of sums, the op.
        factor: of a scale, its factor: a number, or the name of numbers; None for a product of several names.
    """

    source: Op
    kind: str
    product: Op | None = None
    factor: float | str | None = 1.0


def dynamic_quantizations(block: Block) -> list[Op]:
    """Return the quantizations by the range of a whole tensor."""
    return [op for op in block.ops if op.computes(RangeQuantization) is not None]


def with_row_scales(program: Program, fetches: Sequence[str], numbers: Numbers) -> Program | Fault:
    """Return a program with a scale for each row along the last axis in these quantizations, or the op that does not leave such rows apart.

    Products with int8 matrices without a zero point become ``dynamic_int8_linear``, whose rows are rounded alike at both sides of 0.
    """
    if not dynamic_quantizations(program.global_block):
        return program
    out = program.clone()
    block = out.global_block
    flow = _ScaleFlow(block, numbers)
    fault = flow.follow(fetches)
    if fault is not None:
        return fault
    for op, sums, factor in flow.products:
        _RowScales(block, op).write(sums, factor, flow.has_no_zero(sums))
    out.touch()
    out.infer()
    return out


class _ScaleFlow:
    """The values behind quantizations, up to the products with their scales.

    Attributes:
        quantizations: of the block.
        products: of sums and scales: (op, sums, the factor of the scale).
    """

    def __init__(self, block: Block, numbers: Numbers) -> None:
        self.block, self._numbers = block, numbers
        self._writers: Mapping[str, Op] = {n: op for op in block.ops for n in op.output_names() if not block.var(n).persistable}
        self.quantizations = dynamic_quantizations(block)
        self.products: list[tuple[Op, _ScaledPart, float | str]] = []
        self._parts: dict[str, _ScaledPart] = {}

    def follow(self, fetches: Sequence[str]) -> Fault | None:
        """Follow all ops in order; return the one that takes rows of several scales together, or the writer of a fetch that tells of scales."""
        for op in self.quantizations:
            self._parts |= {op.outputs[slot][0]: _ScaledPart(op, kind) for slot, kind in _PARTS}
        for op in self.block.ops:
            if op.is_feed or op.is_fetch or op in self.quantizations or not any(n in self._parts for n in op.input_names()):
                continue
            part = self._result(op)
            if isinstance(part, str):
                return Fault(op, part)
            if part is not None:
                self._parts[op.result(0)] = part
        names = [*fetches, *(op.operand(0) for op in self.quantizations)]
        return next((Fault(self._writers[name], _MIXES) for name in names if name in self._parts), None)

    def _result(self, op: Op) -> _ScaledPart | str | None:
        """Return the part that an op makes of others, None for numbers in no scale, or words why it makes neither."""
        operands = [self._parts.get(n) for o in op.operator.schema.operands for n in op.inputs.get(o.name, ()) if n] if op.operator is not None else []
        match op.computes(Computation), operands:
            case c.Cast() | c.Identity(), [_ScaledPart() as part]:
                return part
            case IntegerProduct(), [_ScaledPart(kind="levels") as levels, *others] if self._is_point(op.operand(2), levels.source, others):
                return replace(levels, kind="sums", product=op)
            case c.Scaling(by=by), [_ScaledPart(kind="scale") as scale]:
                return replace(scale, factor=scale.factor * by if isinstance(scale.factor, float) else None)
            case c.Product(), ([_ScaledPart(kind="scale") as scale, None] | [None, _ScaledPart(kind="scale") as scale]):
                factor = op.operand(1 if operands[0] is not None else 0)
                if self.block.var(factor).spec.rank <= 1:
                    return replace(scale, factor=factor if scale.factor == 1.0 else None)
            case c.Product(), (
                [_ScaledPart(kind="sums") as sums, _ScaledPart(kind="scale") as scale] | [_ScaledPart(kind="scale") as scale, _ScaledPart(kind="sums") as sums]
            ):
                if sums.source is scale.source:
                    if scale.factor is not None:
                        self.products.append((op, sums, scale.factor))
                    return None
            case _:
                pass
        return _MIXES

    def _is_point(self, name: str, source: Op, others: Sequence[_ScaledPart | None]) -> bool:
        """Return True if a name is the zero point of a quantization, and no other operand is a part of one."""
        part = self._parts.get(name)
        return part is not None and part.kind == "point" and part.source is source and sum(p is not None for p in others) == 1

    def has_no_zero(self, sums: _ScaledPart) -> bool:
        """Return True for a matrix whose zero points are 0, or not there."""
        import numpy

        name = sums.product.operand(3) if sums.product is not None else ""
        if not name:
            return True
        array, op = self._numbers(name), self._writers.get(name)
        filled = op.computes(c.Filled) if op is not None and not op.input("ValueTensor") else None
        return (filled is not None and filled.number == 0.0) or (array is not None and not numpy.any(array))


class _RowScales:
    """Ops in the place of a product of sums and scales, which take a scale for each row."""

    def __init__(self, block: Block, op: Op) -> None:
        self._block, self._op, self._index = block, op, block.ops.index(op)
        block.remove_op(op)

    def write(self, sums: _ScaledPart, factor: float | str, has_no_zero: bool) -> None:
        """Write the product, by an operator of bytes if the matrix is one of int8 whose zero points are 0."""
        block, name, product = self._block, self._op.result(0), sums.product
        assert product is not None
        x, weight, zero = sums.source.operand(0), product.operand(1), product.operand(3)
        matrix = block.find(weight)
        columns = None if matrix is None or matrix.spec.rank != 2 else matrix.spec.known_dims[1]
        numbers = block.var(factor).spec if isinstance(factor, str) else None
        fits = numbers is None or (numbers.dtype is FP32 and numbers.elements in (1, columns))
        is_byte_matrix = matrix is not None and matrix.persistable and matrix.dtype is INT8 and columns is not None
        if is_byte_matrix and has_no_zero and fits and block.var(name).dtype is FP32:
            self._added("dynamic_int8_linear", {"X": x, "W": weight, "Scale": self._column_scales(factor, columns)}, {}, {"Out": name})
            return
        steps, scale = self._levels(x)
        centred = self._cast(weight)
        centred = self._pair("sub", centred, self._cast(zero)) if zero else centred
        scaled = self._pair("mul", self._added("matmul_v2", {"X": steps, "Y": centred}), scale)
        self._added("elementwise_mul", {"X": scaled, "Y": factor if isinstance(factor, str) else self._number(factor)}, {"axis": -1}, {"Out": name})

    def _column_scales(self, factor: float | str, columns: Any) -> str:
        if not isinstance(factor, str):
            return self._number(factor, columns)
        if [*self._block.var(factor).spec.known_dims] == [columns]:
            return factor
        return self._added("expand_v2", {"X": self._added("reshape2", {"X": factor}, {"shape": [-1]})}, {"shape": [columns]})

    def _levels(self, x: str) -> tuple[str, str]:
        """Return the whole numbers of each row less their point, and the scales: the formula of ``dynamic_quantize_linear``, row by row."""
        zero, of_row = self._number(0.0), {"dim": [-1], "keep_dim": True, "reduce_all": False}
        high = self._pair("max", self._added("reduce_max", {"X": x}, of_row), zero)
        low = self._pair("min", self._added("reduce_min", {"X": x}, of_row), zero)
        span = self._pair("sub", high, low)
        is_empty, share = self._added("equal", {"X": span, "Y": zero}), self._pair("div", span, self._number(255.0))
        scale = self._added("where", {"Condition": is_empty, "X": self._number(1.0), "Y": share})
        point = self._limited(self._rounded(self._pair("div", self._added("scale", {"X": low}, {"scale": -1.0}), scale)))
        levels = self._limited(self._pair("add", self._rounded(self._pair("div", x, scale)), point))
        return self._pair("sub", levels, point), scale

    def _added(self, type: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any] | None = None, outputs: Mapping[str, str] | None = None) -> str:
        new = self._block.append_op(type, inputs, outputs, attributes or {}, index=self._index, site=self._op.site)
        self._index, new.origin = self._index + 1, self._op.origin
        return new.result(0)

    def _pair(self, operation: str, x: str, y: str) -> str:
        return self._added(f"elementwise_{operation}", {"X": x, "Y": y}, {"axis": -1})

    def _number(self, number: float, *dims: int) -> str:
        return self._added("fill_constant", {}, {"shape": [*dims], "dtype": FP32.code, "value": number, "str_value": repr(number)})

    def _cast(self, x: str, dtype: DType = FP32) -> str:
        return self._added("cast", {"X": x}, {"in_dtype": self._block.var(x).spec.known_dtype.code, "out_dtype": dtype.code})

    def _rounded(self, x: str) -> str:
        return self._added("round", {"X": x}, {"round_type": 0})

    def _limited(self, x: str) -> str:
        """Return numbers from 0 to 255, through their bytes: whatever comes in, they are finite."""
        return self._cast(self._cast(self._added("clip", {"X": x}, {"min": 0.0, "max": 255.0}), UINT8))
