"""Quantizations with scales found in the run over all texts, as those of ONNX's ``DynamicQuantizeLinear``, and the same with a scale for each row.

For ``x``, whose numbers and 0 lie between ``low`` and ``high``::

    scale = (high - low) / 255, 1 where this is 0
    point = round(-low / scale)
    levels = clip(round(x / scale) + point, 0, 255)

A product of rows ``levels - point`` with a matrix, times ``scale``, is about that of ``x``, also with a scale and a point for each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foreshape.core.data_class import data_class
from foreshape.core.spec import FP32, INT8
from foreshape.language.operator import computations as c
from foreshape.language.operator.byte_computations import WholeNumbers
from foreshape.language.operator.computation import Computation
from foreshape.language.program import Block, Op, Program
from foreshape.transforms.unpad.padded_values import Fault
from foreshape.transforms.unpad.proof import Numbers

_LEVELS: Final = (0.0, 255.0)
_MIXES: Final = "it takes numbers of 8 bits with a scale for each row otherwise than a product of these rows with a matrix, times the scales"


@data_class(frozen=True)
class DynamicQuantization:
    """A quantization by the range of a whole tensor.

    Attributes:
        x, scale, point, levels: the names of its values, as in the formula above; ``levels`` in floating numbers.
        extremes: the ops of the largest and of the smallest number.
    """

    x: str
    scale: str
    point: str
    levels: str
    extremes: tuple[Op, Op]


@data_class(frozen=True)
class _ScaledPart:
    """The part of a quantization in a value: its "levels", its "point", its "steps" (levels less the point), "sums" of products with them, or its "scale".

    Attributes:
        weight: of sums, the matrix.
        factor: of a scale, its factor: a number, or the name of numbers; None for a product of several names.
    """

    source: DynamicQuantization
    kind: str
    weight: str = ""
    factor: float | str | None = 1.0


class _RangeFormula:
    """The formula of a quantization, followed from its levels back to the extremes."""

    def __init__(self, block: Block) -> None:
        self.writers: Mapping[str, Op] = {n: op for op in block.ops for n in op.output_names() if not block.var(n).persistable}

    def quantizations(self) -> Iterator[DynamicQuantization]:
        for op in self.writers.values():
            if self._limits(op) != _LEVELS:
                continue
            total = self.writer(op.operand(0), c.Sum)
            for first, point in ((0, 1), (1, 0)) if total is not None else ():
                rounded = self.writer(total.operand(first), WholeNumbers) if total is not None else None
                quotient = self.writer(rounded.operand(0), c.Quotient) if rounded is not None else None
                if total is None or quotient is None:
                    continue
                x, scale = quotient.operand(0), quotient.operand(1)
                extremes = self._extremes(x, scale, total.operand(point))
                if extremes is not None:
                    yield DynamicQuantization(x, scale, total.operand(point), op.result(0), extremes)

    def writer(self, name: str, computation: type[Computation]) -> Op | None:
        """Return the op writing a value, if it has such a computation."""
        op = self.writers.get(name)
        return op if op is not None and op.computes(computation) is not None else None

    def without_casts(self, name: str) -> str:
        """Return the value that others are casts of."""
        while (cast := self.writer(name, c.Cast)) is not None:
            name = cast.operand(0)
        return name

    def without_zero_point(self, name: str, numbers: Numbers) -> str:
        """Return the value that another is a cast of, or a difference from zeros."""
        import numpy

        name = self.without_casts(name)
        difference = self.writer(name, c.Subtraction)
        if difference is None:
            return name
        point = self.without_casts(difference.operand(1))
        array = numbers(point) if point not in self.writers else None
        is_zero = self._is_number(point, 0.0) or (array is not None and not numpy.any(array))
        return self.without_casts(difference.operand(0)) if is_zero else name

    def _is_number(self, name: str, number: float) -> bool:
        op = self.writer(name, c.Filled)
        filled = op.computes(c.Filled) if op is not None else None
        return filled is not None and filled.number == number and op is not None and not op.input("ValueTensor")

    @staticmethod
    def _limits(op: Op) -> tuple[float, ...] | None:
        activation = op.computes(c.Activation)
        return activation.numbers if activation is not None and activation.name == "hardtanh" else None

    def _extremes(self, x: str, scale: str, point: str) -> tuple[Op, Op] | None:
        chosen = self.writer(scale, c.ChosenElements)
        equal = self.writer(chosen.operand(0), c.ComparedElements) if chosen is not None else None
        share = self.writer(chosen.operand(2), c.Quotient) if chosen is not None else None
        span = self.writer(share.operand(0), c.Subtraction) if share is not None else None
        compared = equal.computes(c.ComparedElements) if equal is not None else None
        if chosen is None or equal is None or share is None or span is None or compared is None or compared.how != "equal":
            return None
        numbers = ((chosen.operand(1), 1.0), (share.operand(1), 255.0), (equal.operand(1), 0.0))
        if equal.operand(0) != span.result(0) or not all(self._is_number(n, number) for n, number in numbers):
            return None
        high, low = (self._extreme(x, span.operand(k), how) for k, how in enumerate(("max", "min")))
        if high is None or low is None or not self._is_point(point, span.operand(1), scale):
            return None
        return high, low

    def _extreme(self, x: str, name: str, how: str) -> Op | None:
        """Return the op of the largest or smallest number of a whole ``x``, behind a comparison with 0."""
        limiting = self.writer(name, c.ExtremeElements)
        bound = limiting.computes(c.ExtremeElements) if limiting is not None else None
        if limiting is None or bound is None or bound.how != how or not self._is_number(limiting.operand(1), 0.0):
            return None
        reduction = self.writer(limiting.operand(0), c.ExtremeReduction)
        computed = reduction.computes(c.ExtremeReduction) if reduction is not None else None
        is_whole = reduction is not None and computed is not None and computed.how == how and computed.axes is None and reduction.operand(0) == x
        return reduction if is_whole else None

    def _is_point(self, point: str, low: str, scale: str) -> bool:
        clipped = self.writer(point, c.Activation)
        rounded = self.writer(clipped.operand(0), WholeNumbers) if clipped is not None and self._limits(clipped) == _LEVELS else None
        quotient = self.writer(rounded.operand(0), c.Quotient) if rounded is not None else None
        negative = self.writer(quotient.operand(0), c.Scaling) if quotient is not None else None
        scaling = negative.computes(c.Scaling) if negative is not None else None
        is_negative = negative is not None and scaling is not None and scaling.by == -1.0 and negative.operand(0) == low
        return is_negative and quotient is not None and quotient.operand(1) == scale


def dynamic_quantizations(block: Block) -> list[DynamicQuantization]:
    """Return the quantizations by the range of a whole tensor."""
    return list(_RangeFormula(block).quantizations())


def with_row_scales(program: Program, fetches: Sequence[str], numbers: Numbers) -> Program | Fault:
    """Return a program with a scale for each row along the last axis in these quantizations, or the op that does not leave such rows apart.

    Products with int8 matrices without a zero point become ``dynamic_int8_linear``, whose rows are rounded alike at both sides of 0.
    """
    if not dynamic_quantizations(program.global_block):
        return program
    out = program.clone()
    block = out.global_block
    flow = _ScaleFlow(block)
    fault = flow.follow(fetches)
    if fault is not None:
        return fault
    for op in [op for q in flow.quantizations for op in q.extremes if op in block.ops]:
        index, name, attributes = block.ops.index(op), op.result(0), {"dim": [-1], "keep_dim": True, "reduce_all": False}
        block.remove_op(op)
        block.append_op(op.type, {"X": op.operand(0)}, {"Out": name}, attributes, index=index, site=op.site).origin = op.origin
    for op, sums, factor in flow.products:
        _write_byte_product(block, op, sums, flow.formula.without_zero_point(sums.weight, numbers), factor)
    out.touch()
    out.infer()
    return out


class _ScaleFlow:
    """The values behind quantizations, up to the products with their scales.

    Attributes:
        formula, quantizations: of the block.
        products: of sums and scales: (op, sums, the factor of the scale).
    """

    def __init__(self, block: Block) -> None:
        self.block, self.formula = block, _RangeFormula(block)
        self.quantizations = list(self.formula.quantizations())
        self.products: list[tuple[Op, _ScaledPart, float | str]] = []
        self._parts: dict[str, _ScaledPart] = {}

    def follow(self, fetches: Sequence[str]) -> Fault | None:
        """Follow all ops in order; return the one that takes rows of several scales together, or the writer of a fetch that tells of scales."""
        inside: set[str] = set()
        for quantization in self.quantizations:
            inside |= self._inside(quantization)
            for name, kind in ((quantization.scale, "scale"), (quantization.point, "point"), (quantization.levels, "levels")):
                self._parts[name] = _ScaledPart(quantization, kind)
        formulas = inside | self._parts.keys()
        for op in self.block.ops:
            names = [n for n in op.input_names() if n]
            if op.is_feed or op.is_fetch or any(n in formulas for n in op.output_names()) or not any(n in inside or n in self._parts for n in names):
                continue
            part = _MIXES if any(n in inside for n in names) else self._result(op)
            if isinstance(part, str):
                return Fault(op, part)
            if part is not None:
                self._parts[op.result(0)] = part
        for name in [*fetches, *(q.x for q in self.quantizations)]:
            if name in inside or name in self._parts:
                return Fault(self.formula.writers[name], _MIXES)
        return None

    def _inside(self, quantization: DynamicQuantization) -> set[str]:
        """Return the values of the formula between ``x`` and its results."""
        heads = {quantization.scale, quantization.point, quantization.levels}
        names: set[str] = set()
        pending = [*heads]
        while pending:
            for name in self.formula.writers[pending.pop()].input_names():
                op = self.formula.writers.get(name)
                if name not in {quantization.x} | names and op is not None and op.computes(c.Filled) is None:
                    names.add(name)
                    pending.append(name)
        return names - heads

    def _result(self, op: Op) -> _ScaledPart | str | None:
        """Return the part that an op makes of others, None for numbers in no scale, or words why it makes neither."""
        operands = [self._parts.get(n) for o in op.operator.schema.operands for n in op.inputs.get(o.name, ()) if n] if op.operator is not None else []
        match op.computes(Computation), operands:
            case c.Cast() | c.Identity(), [_ScaledPart() as part]:
                return part
            case c.Subtraction(), [_ScaledPart(kind="levels") as levels, _ScaledPart(kind="point") as point] if levels.source is point.source:
                return replace(levels, kind="steps")
            case c.MatrixProduct(x_transposed=False, y_transposed=turned), [_ScaledPart(kind="steps") as steps, None]:
                return replace(steps, kind="sums", weight="" if turned else op.operand(1))
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


def _write_byte_product(block: Block, op: Op, sums: _ScaledPart, weight: str, factor: float | str) -> None:
    """Write an op of bytes in the place of a product of sums and scales, if the matrix is one of int8."""
    variable, name = block.find(weight), op.result(0)
    if variable is None or not variable.persistable or variable.dtype is not INT8 or variable.spec.rank != 2 or block.var(name).dtype is not FP32:
        return
    columns = variable.spec.known_dims[1]
    if isinstance(factor, str) and (block.var(factor).dtype is not FP32 or block.var(factor).spec.elements not in (1, columns)):
        return
    index = block.ops.index(op)
    block.remove_op(op)

    def added(type: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any], outputs: Mapping[str, str] | None = None) -> str:
        nonlocal index
        new = block.append_op(type, inputs, outputs, attributes, index=index, site=op.site)
        index, new.origin = index + 1, op.origin
        return new.result(0)

    if not isinstance(factor, str):
        scale = added("fill_constant", {}, {"shape": [columns], "dtype": FP32.code, "value": factor, "str_value": repr(factor)})
    elif [*block.var(factor).spec.known_dims] == [columns]:
        scale = factor
    else:
        scale = added("expand_v2", {"X": added("reshape2", {"X": factor}, {"shape": [-1]})}, {"shape": [columns]})
    added("dynamic_int8_linear", {"X": sums.source.x, "W": weight, "Scale": scale}, {}, {"Out": name})
