"""Rounding, signs, and tests of each element: functions in steps."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

from foreshape.core.dims import Size
from foreshape.core.spec import BOOL, COMPLEX, FLOATING, INT32, INT64, NUMERIC, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.byte_computations import WholeNumbers
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.samples import f32, i32, i64, sample
from foreshape.language.ops.math.activation import SHARED, USUAL, Unary
from foreshape.language.ops.math.complex_numbers import c64, real_type
from foreshape.language.ops.rules.known_floats import Rounding, rounded
from foreshape.language.ops.rules.known_values import carry, mapped, sign

_DIGITS = 308
"""The largest power of ten among fp64 numbers."""
_LIKE_GRADIENT = {"X@GRAD": "Out@GRAD"}


class PiecewiseConstant(Unary):
    """The base of functions constant between their steps: the gradient op gives zeros."""

    abstract = True
    _rounding: ClassVar[Rounding | None] = None
    """Its name for a known value, if it makes that a whole one."""

    def infer_shape(self, X: Spec) -> Spec:
        if X.value is None or self._rounding is None:
            return X.like()
        return carry(X, mapped(X, partial(rounded, self._rounding)) if X.known_dtype.is_floating else X.value)

    samples = [sample(X=f32(2, 3, 5, distinct=True, high=4.0)), sample(X=f32(0, 4)), sample(X=f32())]

    @gradient("Out@GRAD", gives="X@GRAD", like=_LIKE_GRADIENT, may_share=SHARED)
    def backward(self, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.zeros_like(d_out) if into is None else into.zero_()


class Floor(PiecewiseConstant):
    """Out = the largest whole number up to X."""

    type = "floor"
    _rounding = "floor"

    def computes(self) -> computations.Function:
        return computations.Function("floor")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.floor(X, out=into)


class Ceil(PiecewiseConstant):
    """Out = the smallest whole number from X on."""

    type = "ceil"
    _rounding = "ceil"

    def computes(self) -> computations.Function:
        return computations.Function("ceil")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.ceil(X, out=into)


def rounded_away(x: Tensor, into: Tensor | None = None) -> Tensor:
    """Return the whole numbers nearest to ``x``, halves away from 0 (torch.round takes the even ones). Takes as much memory as ``x``."""
    away = torch.frac(x).mul_(2.0).trunc_().nan_to_num_(0.0)  # the fraction of an infinity is NaN; a NaN is added as one already
    return torch.add(away, torch.trunc(x, out=into), out=away if into is None else into)


class Angle(PiecewiseConstant):
    """Out = the angle of each number to the positive half of the real line: 0, or pi for negative numbers, with a gradient of zeros.

    For complex numbers it is in (-pi, pi], and real.
    """

    type = "angle"
    X = operand((*FLOATING, *COMPLEX), doc="any shape")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like().with_dtype(real_type(X))

    def workspace(self, X: Spec) -> Size:
        return 2 * X.nbytes

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        if X.is_complex():
            return torch.angle(X)
        return torch.mul(X < 0, math.pi, out=into if into is not None else torch.empty_like(X))

    def _gradient_workspace(self, X: Spec, d_out: Spec) -> Size:
        return 2 * X.nbytes

    @gradient("X", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        if not X.is_complex():
            return torch.zeros_like(d_out)
        squares = X.real.square().add_(X.imag.square())
        turn = torch.where(squares == 0.0, 0.0, d_out / squares)
        return torch.complex(turn * -X.imag, turn * X.real)

    samples = [*PiecewiseConstant.samples, sample(X=c64(2, 3, 5)), sample(X=c64(0, 4))]


class Round(PiecewiseConstant):
    """Out = the whole multiple of 10^-decimals nearest to X; of two, by ``round_type`` the even one or the one away from 0.

    PaddlePaddle 2 takes the one away from 0, and PaddlePaddle 3.3 the even one. Integers stay as they are.
    """

    type = "round"
    X = operand((*FLOATING, INT32, INT64), doc="any shape")
    decimals = attribute(AttrType.INT, 0, since=3, low=-_DIGITS, high=_DIGITS)
    round_type = attribute(AttrType.INT, 1, since=3, choices=(0, 1), doc="0: halves are rounded to even, 1: away from 0")

    def computes(self) -> WholeNumbers | None:
        return WholeNumbers() if self.round_type == 0 and not self.decimals else None

    def infer_shape(self, X: Spec) -> Spec:
        return X.like() if X.value is None or self.decimals else carry(X, mapped(X, partial(rounded, "round")))

    def workspace(self, X: Spec) -> Size:
        return 2 * X.nbytes

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        if not X.is_floating_point():
            return X.clone() if into is None else into
        if self.round_type == 0 and not self.decimals:
            return torch.round(X, out=into)
        if not self.decimals:
            return rounded_away(X, into)
        scale = 10.0 ** abs(self.decimals)
        scaled = torch.mul(X, scale) if self.decimals > 0 else torch.div(X, scale)
        out = scaled.round_() if self.round_type == 0 else rounded_away(scaled)
        return torch.div(out, scale, out=into) if self.decimals > 0 else torch.mul(out, scale, out=into)

    samples = [
        sample(X=f32(2, 3, data=[[0.4, 0.6, -1.3], [-1.7, 2.2, 3.9]])),
        sample(X=f32(6, data=[0.5, -0.5, 1.5, 2.5, 0.49999997, -3.4999998]), differentiate=False),
        sample(X=f32(4, data=[0.5, -1.5, 2.5, math.inf]), round_type=0, differentiate=False),
        *(sample(X=f32(0, 3), round_type=0), sample(X=f32(), round_type=0)),
        sample(X=f32(2, 3, data=[[0.44, 0.66, -1.31], [-1.77, 2.22, 3.91]]), decimals=1, round_type=0),
        sample(X=f32(5, data=[12345.678, 24.0, -36.0, 4.0, -4.0]), decimals=-1, round_type=0),
        sample(X=f32(6, data=[0.5, -0.25, 1.125, 2.375, 3.625, -math.inf]), decimals=2, differentiate=False),
        *(sample(X=i64(2, 3), decimals=-1), sample(X=i32(4))),
    ]


class Trunc(PiecewiseConstant):
    """Out = X without its fraction: the nearest whole number in the direction of 0."""

    type = "trunc"
    _rounding = "trunc"
    X = operand((*FLOATING, INT32, INT64), doc="any shape")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.trunc(X, out=into)

    samples = [*PiecewiseConstant.samples, sample(X=f32(4, data=[1.7, -1.7, -0.5, math.inf]), differentiate=False), sample(X=i64(2, 3)), sample(X=i32(4))]


class Sign(Unary):
    """Out = 1 where X > 0, -1 where X < 0, else 0."""

    type = "sign"
    X = operand((*FLOATING, INT32, INT64), doc="any shape")

    def computes(self) -> computations.Function:
        return computations.Function("sign")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like() if X.value is None or not X.known_dtype.is_integer else carry(X, mapped(X, sign))

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.sign(X, out=into)

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("scale", {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")}, {"scale": 0.0})

    samples = [*USUAL, sample(X=i64(2, 3, low=-3, high=3), differentiate=False)]


class Tested(Operator):
    """The base of the tests of each element."""

    abstract = True
    per_element = True
    X = operand(NUMERIC, doc="any shape")
    Out = result(doc="bool, as X")
    gradient = ZERO_GRADIENT
    samples = [sample(X=f32(4, data=[1.0, math.nan, math.inf, -math.inf]), exact=False), sample(X=f32(2, 3)), sample(X=i64(2, 3)), sample(X=f32(0, 3))]

    def infer_shape(self, X: Spec) -> Spec:
        return X.with_dtype(BOOL)


class IsFinite(Tested):
    """Out = true where X is neither NaN nor infinite."""

    type = "isfinite_v2"
    layer_function = "is_finite"

    def workspace(self, X: Spec) -> Size:
        return X.nbytes + 2 * X.elements if X.known_dtype.is_floating else 0

    def kernel(self, X: Tensor) -> Tensor:
        return torch.isfinite(X)


class IsNan(Tested):
    """Out = true where X is NaN."""

    type = "isnan_v2"
    layer_function = "is_nan"

    def computes(self) -> computations.NanTest:
        return computations.NanTest()

    def kernel(self, X: Tensor) -> Tensor:
        return torch.isnan(X)


class IsInf(Tested):
    """Out = true where X is infinite."""

    type = "isinf_v2"
    layer_function = "is_inf"

    def workspace(self, X: Spec) -> Size:
        return X.nbytes if X.known_dtype.is_floating else 0

    def kernel(self, X: Tensor) -> Tensor:
        return torch.isinf(X)
