"""Changes of scale and type: scale, clip, cast, increment."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any

from foreshape.core.dims import Dim, maximum, minimum
from foreshape.core.spec import BOOL, COMPLEX, EVERY_TYPE, FLOATING, FP32, INT32, INT64, NUMERIC, SELECTED_ROWS, DType, Kind, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, aten, aten_into, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.language.operator import DENSE_OR_ROWS, OWN, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import fail, require, require_equal
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.ops.math.activation import SHARED
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.held_numbers import held
from foreshape.language.ops.rules.known_floats import HELD, Arithmetic, calculated, in_type, whole_part
from foreshape.language.ops.rules.known_values import carry, known_number, mapped, truth


def whole_attribute(number: float, name: str) -> int:
    """Return the whole part of an attribute, the part used for integers. Refuses NaN and infinities."""
    if not math.isfinite(number):
        fail(f"{name} must be finite for integers; seen {number}")
    return int(number)


def _has_fractions(x: Tensor | Rows) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex


def _factor(number: float, x: Tensor) -> Any:
    """Return a number as torch takes it fastest: on processors a tensor, where torch computes in its element type."""
    return held(number, x.dtype) if number and x.is_cpu and (x.dtype is torch.float32 or x.dtype is torch.float64) else number


class Scale(Operator):
    """Out = scale * X + bias, or scale * (X + bias) if ``bias_after_scale`` is False. For integers the whole parts of ``scale`` and ``bias`` count."""

    type = "scale"
    family = "shape"
    merges_rows = False
    per_element = True
    linear = ("X",)
    X = operand((*NUMERIC, *COMPLEX), kinds=DENSE_OR_ROWS, unknown_dims=True, doc="any shape; of sparse rows the values are scaled")
    ScaleTensor = operand(NUMERIC, optional=True, doc="the scale, as a tensor of one number")
    Out = result(doc="as X", may_share="X")
    scale = attribute(AttrType.FLOAT, 1.0)
    bias = attribute(AttrType.FLOAT, 0.0)
    bias_after_scale = attribute(AttrType.BOOLEAN, True)

    def infer_var_type(self, X: Spec, ScaleTensor: Spec | None) -> Kind:
        return X.kind

    def infer_shape(self, X: Spec, ScaleTensor: Spec | None) -> Spec:
        known_number(0, ScaleTensor, "ScaleTensor")
        require(X.kind is not SELECTED_ROWS or self.bias == 0.0, "bias must be 0 where X is sparse rows", X=None)
        dtype = X.known_dtype
        if not dtype.is_integer:
            return X.like() if X.value is None or ScaleTensor is not None or dtype not in HELD else carry(X, mapped(X, partial(self._scaled_float, dtype)))
        scale, bias = whole_attribute(self.scale, "scale"), whole_attribute(self.bias, "bias")
        if X.value is None or ScaleTensor is not None:
            return X.like()
        return carry(X, mapped(X, lambda v: v * scale + bias if self.bias_after_scale else (v + bias) * scale))

    def _scaled_float(self, dtype: DType, v: Any) -> Any:
        """Return a known value of floats, scaled in the precision of its type."""
        steps: list[tuple[Arithmetic, float]] = [("multiply", self.scale), ("add", self.bias)]
        for name, number in steps if self.bias_after_scale else steps[::-1]:
            if number != (name == "multiply"):  # 1 and 0 change nothing
                v = calculated(name, v, in_type(dtype, number), dtype)
        return v

    def computes(self) -> computations.Scaling | computations.Affine:
        if self.bias == 0.0:
            return computations.Scaling(self.scale)
        return computations.Affine(self.scale, self.bias if self.bias_after_scale else self.scale * self.bias)

    def kernel(self, X: Tensor | Rows, ScaleTensor: Tensor | None, *, into: Tensor | None = None) -> Any:
        if isinstance(X, Rows):
            factor: float = self.scale if ScaleTensor is None else ScaleTensor.item()
            return X.scaled(factor if _has_fractions(X) else int(factor))
        return self._scaled(X, ScaleTensor, into)

    def _scaled(self, X: Tensor, ScaleTensor: Tensor | None, into: Tensor | None) -> Tensor:
        scale: float = self.scale if ScaleTensor is None else ScaleTensor.item()
        bias: float = self.bias
        if not _has_fractions(X):
            scale, bias = int(scale), int(bias)
        if bias == 0:
            return torch.mul(X, _factor(scale, X), out=into)
        if scale == 1:
            return torch.add(X, _factor(bias, X), out=into)
        return torch.mul(X, scale, out=into).add_(bias) if self.bias_after_scale else torch.add(X, bias, out=into).mul_(scale)

    def gradient_ops(self, slots: GradientSlots) -> None:
        inputs = {"X": slots.grad_of_output("Out")} | ({"ScaleTensor": slots.input("ScaleTensor")} if slots.input("ScaleTensor") else {})
        slots.add("scale", inputs, {"Out": slots.input("X")}, {"scale": self.scale, "bias": 0.0, "bias_after_scale": True})

    samples = [
        sample(X=f32(2, 3, 5), scale=2.5),
        sample(X=f32(2, 3), scale=2.5, bias=-1.0),
        sample(X=f32(2, 3), scale=2.5, bias=-1.0, bias_after_scale=False),
        sample(X=f32(2, 3), bias=4.0),
        sample(X=f32(2, 3), ScaleTensor=f32(1), bias=1.0),
        sample(X=f32(0, 3), scale=2.0),
        sample(X=i64(3, data=[4, -5, 2**62]), scale=3.0, bias=1.0),
        sample(X=i32(3, data=[4, -5, 6]), scale=-1.0, bias=1.9, bias_after_scale=False),
        sample(X=c64(2, 3), scale=2.5),
        sample(X=c64(2, 3), scale=2.5, bias=-1.5),
        sample(X=c64(2, 3), scale=-0.5, bias=1.5, bias_after_scale=False),
    ]
    rejects = [reject(X=i64(2), scale=float("nan"), says="scale must be finite for integers")]


class Clip(Operator):
    """Out = min(max(X, min), max). The slope at the bounds is 0, or with ``closed`` 1."""

    type = "clip"
    family = "shape"
    per_element = True
    X = operand((*FLOATING, INT32, INT64), kinds=DENSE_OR_ROWS, doc="any shape; sparse rows are merged first")
    Min = operand((*FLOATING, INT32, INT64), optional=True, doc="min, as a tensor of one number")
    Max = operand((*FLOATING, INT32, INT64), optional=True, doc="max, as a tensor of one number")
    Out = result(doc="as X", may_share="X")
    min = attribute(AttrType.FLOAT, doc="the least value; for integers its whole part counts")
    max = attribute(AttrType.FLOAT, doc="the greatest value")
    closed = attribute(AttrType.BOOLEAN, False, since=OWN, doc="the slope at the bounds is 1, as of torch's clamp")

    def infer_var_type(self, X: Spec, Min: Spec | None, Max: Spec | None) -> Kind:
        return X.kind

    def infer_shape(self, X: Spec, Min: Spec | None, Max: Spec | None) -> Spec:
        known_number(0, Min, "Min")
        known_number(0, Max, "Max")
        require(Min is not None or Max is not None or self.min <= self.max, f"min must be at most max; seen {self.min} and {self.max}")
        if X.value is None or not X.known_dtype.is_integer:
            return X.like()
        limits: list[Any] = [n if spec is None else spec.value[0] if spec.value else None for n, spec in ((self.min, Min), (self.max, Max))]
        if any(n is None or n != n or not isinstance(n, (int, float, Dim)) for n in limits):
            return X.like()
        low, high = (n if not isinstance(n, float) else int(max(-(2.0**62), min(2.0**62, n))) for n in limits)
        return carry(X, mapped(X, lambda v: minimum(maximum(v, low), high)))

    def computes(self) -> computations.Activation:
        return computations.Activation("hardtanh", (self.min, self.max))

    def _bounds(self, X: Tensor, Min: Tensor | None, Max: Tensor | None) -> tuple[float, float]:
        low: float = self.min if Min is None else Min.item()
        high: float = self.max if Max is None else Max.item()
        if X.dtype.is_floating_point:
            return low, high
        info = torch.iinfo(X.dtype)  # as a bound of integers an infinity is their own
        return int(min(max(low, info.min), info.max)), int(min(max(high, info.min), info.max))

    def kernel(self, X: Tensor | Rows, Min: Tensor | None, Max: Tensor | None, *, into: Tensor | None = None) -> Any:
        if isinstance(X, Rows):
            merged = X.merged()
            return Rows.unique(merged.rows, torch.clamp(merged.values, *self._bounds(merged.values, Min, Max)), merged.height)
        return torch.clamp(X, *self._bounds(X, Min, Max), out=into)

    @gradient("X", "Min", "Max", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, Min: Tensor | None, Max: Tensor | None, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        low, high = self._bounds(X, Min, Max)
        if self.closed:  # the numbers beside the bounds are the first ones outside
            double = X.dtype is torch.float64
            low, high = _beside(low, -math.inf, double), _beside(high, math.inf, double)
        operands = (d_out, X, low, high)
        return aten.hardtanh_backward(*operands) if into is None else aten_into.hardtanh_backward(*operands, into=into)

    samples = [
        sample(X=f32(2, 3, 5, distinct=True), min=-0.5, max=0.7),
        sample(X=f32(2, 3, distinct=True), min=-0.5, max=0.7, Max=f32(1, data=[1.1])),
        sample(X=f32(2, 3, distinct=True), min=0.0, max=0.0, Min=f32(1, data=[-1.1]), Max=f32(1, data=[1.1])),
        sample(X=f32(0, 3), min=0.0, max=1.0),
        sample(X=i64(4, data=[-3, 0, 1, 9]), min=-1.5, max=float("inf")),
        sample(X=f32(2, 3, 5, distinct=True), min=-0.5, max=0.7, closed=True),
    ]
    rejects = [
        reject(X=f32(2), min=2.0, max=1.0, says="min must be at most max"),
        reject(X=f32(2), min=float("nan"), max=1.0, says="min must be at most max"),
    ]


@lru_cache(maxsize=256)
def _beside(number: float, towards: float, double: bool) -> float:
    """Return the next number of the type that torch compares in."""
    wide = torch.float64 if double else torch.float32
    return float(torch.nextafter(torch.tensor(number, dtype=wide), torch.tensor(towards, dtype=wide)))


class Cast(Operator):
    """Out = X in the element type ``out_dtype``. Integers lose fractions, and real numbers imaginary parts."""

    type = "cast"
    family = "shape"
    per_element = True
    linear = ("X",)
    X = operand(EVERY_TYPE, unknown_dims=True, doc="any shape")
    Out = result(doc="as X, of type out_dtype")
    in_dtype = attribute(AttrType.INT, FP32, doc="the element type of X, by its number in the file format")
    out_dtype = attribute(AttrType.INT, FP32, doc="the element type of Out")

    def infer_shape(self, X: Spec) -> Spec:
        dtype = element_type(self.out_dtype)
        out, value = X.with_dtype(dtype), X.value
        if value is None or X.dims is None or dtype.is_complex:
            return out
        if dtype is BOOL:
            return carry(out, mapped(X, truth))
        return carry(out, mapped(X, whole_part) if dtype.is_integer and X.known_dtype.is_floating else value)

    def computes(self) -> computations.Cast:
        return computations.Cast()

    def kernel(self, X: Tensor) -> Tensor:
        dtype = torch_dtype(self.out_dtype)
        if X.is_complex() and not dtype.is_complex:
            return X != 0 if dtype is torch.bool else X.real.to(dtype, copy=True)
        return (X.view(torch.uint8) if X.dtype is torch.bool and dtype.is_floating_point else X).to(dtype, copy=True)  # of bytes torch has a vector kernel

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("cast", {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")}, {"in_dtype": self.out_dtype, "out_dtype": self.in_dtype})

    samples = [
        sample(X=f32(2, 3), in_dtype=5, out_dtype=3),
        sample(X=f32(2, 3), in_dtype=5, out_dtype=5),
        sample(X=b1(2, 3), in_dtype=0, out_dtype=5),
        sample(X=f32(0, 3), in_dtype=5, out_dtype=4),
        sample(X=i64(3, data=[4, -5, 6]), in_dtype=3, out_dtype=2),
        sample(X=i64(2, data=[4, 2**40]), in_dtype=3, out_dtype=2),
        sample(X=f32(2, 3), in_dtype=5, out_dtype=23),
        sample(X=i64(2, 3, low=-3, high=3), in_dtype=3, out_dtype=24),
        sample(X=c64(2, 3), in_dtype=23, out_dtype=5),
        sample(X=c64(2, 3), in_dtype=23, out_dtype=24),
        sample(X=c64(3, data=[2.5 - 1j, -1.5, 1j]), in_dtype=23, out_dtype=3),
        sample(X=c64(3, data=[2.5 - 1j, 0.0, 1j]), in_dtype=23, out_dtype=0),
    ]


class Increment(Operator):
    """Out = X + step. Out may be X itself: X then changes."""

    type = "increment"
    family = "shape"
    X = operand((*FLOATING, INT32, INT64), doc="one number")
    Out = result(doc="as X", may_share="X")
    step = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(self, X: Spec) -> Spec:
        require_equal(X.elements, 1, "X must hold one number", X=None)
        if X.known_dtype.is_floating:
            return X.like()
        step = whole_attribute(self.step, "step")
        return carry(X, mapped(X, lambda v: v + step))

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.add(X, self.step if X.dtype.is_floating_point else int(self.step), out=into)

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("assign", {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")})

    samples = [sample(X=f32(1), step=2.5), sample(X=i64(1, data=[4])), sample(X=i32(data=[2**31 - 1]), step=-3.0), sample(X=i32(data=[2**31 - 1]))]
    rejects = [reject(X=i64(1), step=float("inf"), says="step must be finite")]
