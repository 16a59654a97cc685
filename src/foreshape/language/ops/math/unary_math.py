"""Mathematical functions of each element: powers, logarithms, trigonometry."""

from __future__ import annotations

import math

from foreshape.core.dims import Size
from foreshape.core.spec import COMPLEX, FLOATING, INT32, INT64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import fail
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.math.activation import LIKE_OUT, OF_INTEGERS, SHARED, USUAL, FloatingFunction, Unary
from foreshape.language.ops.math.complex_numbers import c64, conjugate, conjugate_bytes, real_type
from foreshape.language.ops.rules.known_floats import HELD, in_precision
from foreshape.language.ops.rules.known_values import carry, known_number, magnitude, mapped

NUMBERS = (*FLOATING, INT32, INT64)
POSITIVE = [sample(X=f32(2, 3, 5, low=0.2)), sample(X=f32(0, 4)), sample(X=f32(low=0.2))]


class Exp(FloatingFunction):
    """Out = e to the power X."""

    type = "exp"
    X = operand((*FLOATING, INT32, INT64, *COMPLEX), doc="any shape")

    def computes(self) -> computations.Function:
        return computations.Function("exp")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.exp(X, out=into)

    def _gradient_workspace(self, Out: Spec, d_out: Spec) -> Size:
        return conjugate_bytes(Out)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT, may_share=SHARED, workspace=_gradient_workspace)
    def backward(self, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.mul(d_out, conjugate(Out), out=into)

    samples = [*USUAL, *OF_INTEGERS, sample(X=c64(2, 3))]


class Logarithm(FloatingFunction):
    """The base of the logarithms; ``_base`` is the natural logarithm of the base."""

    abstract = True
    _base = 1.0
    samples = [*POSITIVE, *OF_INTEGERS]

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        out = torch.div(d_out, X, out=into)
        return out if self._base == 1.0 else out.mul_(1.0 / self._base)


class Log(Logarithm):
    """Out = the natural logarithm of X."""

    type = "log"

    def computes(self) -> computations.Logarithm:
        return computations.Logarithm()

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.log(X, out=into)


class Log2(Logarithm):
    """Out = the logarithm of X to base 2."""

    type = "log2"
    _base = math.log(2.0)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.log2(X, out=into)


class Log10(Logarithm):
    """Out = the logarithm of X to base 10."""

    type = "log10"
    _base = math.log(10.0)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.log10(X, out=into)


class Log1p(FloatingFunction):
    """Out = the natural logarithm of 1 + X, exact for tiny X."""

    type = "log1p"

    def computes(self) -> computations.Function:
        return computations.Function("log1p")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.log1p(X, out=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        slope = X + 1.0
        return torch.div(d_out, slope, out=slope)

    samples = [*POSITIVE, *OF_INTEGERS]


class Sqrt(Unary):
    """Out = the square root of X."""

    type = "sqrt"

    def infer_shape(self, X: Spec) -> Spec:
        dtype = X.known_dtype
        if X.value is None or dtype not in HELD or any(not isinstance(v, float) or v < 0 for v in X.value):
            return X.like()
        return carry(X, mapped(X, lambda v: in_precision("sqrt", v, dtype=dtype)))

    def computes(self) -> computations.Power:
        return computations.Power(0.5)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.sqrt(X, out=into)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT, may_share=SHARED)
    def backward(self, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.div(d_out, Out, out=into).mul_(0.5)

    samples = POSITIVE


class Rsqrt(Unary):
    """Out = 1 / the square root of X."""

    type = "rsqrt"

    def computes(self) -> computations.Power:
        return computations.Power(-0.5)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.rsqrt(X, out=into)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT)
    def backward(self, Out: Tensor, d_out: Tensor) -> Tensor:
        return (Out * Out).mul_(Out).mul_(d_out).mul_(-0.5)

    samples = [sample(X=f32(2, 3, 5, low=0.2)), sample(X=f32(0, 4)), sample(X=f32(low=0.2))]


class Square(Unary):
    """Out = X * X."""

    type = "square"
    X = operand(NUMBERS, doc="any shape")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like() if X.value is None or not X.known_dtype.is_integer else carry(X, mapped(X, lambda v: v * v))

    def computes(self) -> computations.Power:
        return computations.Power(2.0)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.mul(X, X, out=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.mul(d_out, X, out=into).mul_(2.0)

    samples = [*USUAL, sample(X=i64(3, data=[2, -3, 2**62]))]


class Abs(Unary):
    """Out = |X|; for complex numbers the magnitude, a real number."""

    type = "abs"
    X = operand((*NUMBERS, *COMPLEX), doc="any shape")

    def computes(self) -> computations.Function:
        return computations.Function("abs")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like().with_dtype(real_type(X)) if X.value is None or not X.known_dtype.is_integer else carry(X, mapped(X, magnitude))

    def workspace(self, X: Spec) -> Size:
        return X.nbytes if X.known_dtype.is_complex else 0

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.abs(X, out=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return torch.sgn(X).mul_(d_out)

    samples = [*USUAL, sample(X=i64(3, data=[2, -3, 0])), sample(X=c64(2, 3, 5)), sample(X=c64(0, 4))]


class Reciprocal(Unary):
    """Out = 1 / X."""

    type = "reciprocal"
    X = operand((*FLOATING, *COMPLEX), doc="any shape")

    def computes(self) -> computations.Power:
        return computations.Power(-1.0)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.reciprocal(X, out=into)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT)
    def backward(self, Out: Tensor, d_out: Tensor) -> Tensor:
        return conjugate(Out * Out).mul_(d_out).neg_()

    samples = [*POSITIVE, sample(X=c64(2, 3, data=[[1 + 2j, -1j, 0.5], [2.0, 1 - 1j, -3 + 1j]]))]


class Sin(Unary):
    """Out = sin(X), X in radians."""

    type = "sin"

    def computes(self) -> computations.Function:
        return computations.Function("sin")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.sin(X, out=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return torch.cos(X).mul_(d_out)

    samples = USUAL


class Cos(Unary):
    """Out = cos(X), X in radians."""

    type = "cos"

    def computes(self) -> computations.Function:
        return computations.Function("cos")

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.cos(X, out=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return torch.sin(X).mul_(d_out).neg_()

    samples = USUAL


class Erf(Unary):
    """Out = 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to X."""

    type = "erf"

    def computes(self) -> computations.ErrorFunction:
        return computations.ErrorFunction()

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.erf(X, out=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return torch.mul(X, X).neg_().exp_().mul_(d_out).mul_(2.0 / math.sqrt(math.pi))

    samples = USUAL


class Pow(Operator):
    """Out = X to the power ``factor``."""

    type = "pow"
    per_element = True
    X = operand((*NUMBERS, *COMPLEX), doc="any shape")
    FactorTensor = operand(FLOATING, optional=True, doc="the power, as a tensor of one number")
    Out = result(doc="as X", may_share="X")
    factor = attribute(AttrType.FLOAT, 1.0, doc="the power; for an integer X its whole part")

    def infer_shape(self, X: Spec, FactorTensor: Spec | None) -> Spec:
        known_number(0, FactorTensor, "FactorTensor")
        if X.known_dtype.is_integer and not abs(self.factor) < 2**31:
            fail(f"the power of an integer must be a 32-bit integer; seen {self.factor}")
        return X.like()

    def computes(self) -> computations.Power:
        return computations.Power(self.factor)

    def _power(self, X: Tensor, FactorTensor: Tensor | None) -> float | int:
        power: float = self.factor if FactorTensor is None else FactorTensor.item()
        return power if X.dtype.is_floating_point or X.dtype.is_complex else int(power)

    def kernel(self, X: Tensor, FactorTensor: Tensor | None, *, into: Tensor | None = None) -> Tensor:
        power = self._power(X, FactorTensor)
        if isinstance(power, int) and power < 0:  # torch refuses it: only 1 and -1 have a whole reciprocal
            return torch.pow(X, torch.full((), power, dtype=X.dtype, device=X.device), out=into)
        return torch.pow(X, power, out=into)

    @gradient("X", "FactorTensor", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, FactorTensor: Tensor | None, d_out: Tensor) -> Tensor:
        power = self._power(X, FactorTensor)
        return torch.zeros_like(d_out) if power == 0 else conjugate(torch.pow(X, power - 1.0)).mul_(d_out).mul_(power)

    samples = [
        sample(X=f32(2, 3)),
        sample(X=f32(2, 3), factor=2.0),
        sample(X=c64(2, 2, data=[[1 + 2j, 1j], [0.5, 2 - 1j]]), factor=3.0),
        sample(X=f32(2, 3), factor=0.0),
        sample(X=f32(2, 3, low=0.2), factor=-1.5),
        sample(X=f32(2, 3, low=0.2), FactorTensor=f32(1, data=[2.5])),
        sample(X=i64(2, 3, low=-3), factor=3.0),
        sample(X=i64(2, 3, low=1, high=2), factor=-1.0),
    ]
    rejects = [reject(X=i64(2), factor=float("inf"), says="32-bit integer")]
