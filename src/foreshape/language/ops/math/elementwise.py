"""Arithmetic between two tensors, with PaddlePaddle's ``axis`` broadcasting."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, ClassVar

from foreshape.core import dims as sizes
from foreshape.core.spec import COMPLEX, NUMERIC, SELECTED_ROWS, Kind, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import DENSE_OR_ROWS, ZERO_GRADIENT, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.fields import Layout
from foreshape.language.operator.require import fail, require
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.ops.math.complex_numbers import c64, conjugate, conjugate_bytes
from foreshape.language.ops.rules.broadcast import aligned, before_sum, broadcast_dims, broadcast_lod, check_axis, sum_to
from foreshape.language.ops.rules.known_floats import HELD, Arithmetic, calculated
from foreshape.language.ops.rules.known_values import carry, combined, power, truncated


class Elementwise(Operator):
    """The base of the binary arithmetic operators. ``_number`` does for known integers the kernel's arithmetic, ``_float`` names it for floats."""

    abstract = True
    family = "shape"
    per_element = True
    X = operand(NUMERIC, doc="any shape")
    Y = operand(NUMERIC, same_type_as="X", doc="broadcast against X")
    Out = result(doc="the broadcast shape", may_share="X")
    axis = attribute(AttrType.INT, -1, low=-1, doc="the axis of X for dim 0 of Y; -1 aligns the last dims")
    _number: Any = None
    _float: ClassVar[Arithmetic | None] = None

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        out = self._broadcast(X, Y)
        if X.value is None or Y.value is None:
            return out
        dtype = X.known_dtype
        if not dtype.is_floating:
            return carry(out, combined(out, X, Y, self._number, self.axis)) if self._number is not None else out
        return carry(out, combined(out, X, Y, partial(calculated, self._float, dtype=dtype), self.axis)) if self._float is not None and dtype in HELD else out

    def _broadcast(self, X: Spec, Y: Spec) -> Spec:
        if X.dims is Y.dims:
            return (Y if X.lod is None and Y.lod is not None else X).like()
        dims = broadcast_dims(X.known_dims, Y.known_dims, self.axis, ragged=(X.lod is not None, Y.lod is not None))
        return Spec(X.kind, X.dtype, dims, broadcast_lod(X, Y, dims, self.axis))

    def _gradient_specs(self, X: Spec, Y: Spec, *results: Spec) -> tuple[Spec, Spec]:
        """Return the specs of the gradients: the operands', aligned at ``axis``; results of the forward op have the higher rank."""
        if X.dims is not None and Y.dims is not None:
            check_axis(X.rank, Y.rank, self.axis)
            rank = max(X.rank, Y.rank)
            fits = all(m.dims is None or m.rank == rank for m in results)
            require(fits, f"Out and Out@GRAD must have the {rank} dims that the forward op gives", X=None, Y=None)
        return X.like(), Y.like()

    def _pair(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        if X.dim() >= Y.dim():
            return X, aligned(Y, X, self.axis)
        return aligned(X, Y, self.axis), Y

    def _gradients_before_sum(self, X: Spec, Y: Spec, d_out: Spec, *, requested: tuple[bool, ...]) -> sizes.Size:
        """Return the bytes of gradients made together in the broadcast shape, by a comparison."""
        return before_sum(requested[0], X, d_out) + before_sum(requested[1], Y, d_out) + 2 * d_out.elements

    def _summed(self, X: Tensor, Y: Tensor, d_x: Tensor | None, d_y: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return gradients in the broadcast shape, brought back to the shapes of X and Y."""
        return (
            None if d_x is None else sum_to(d_x, X, Y, self.axis),
            None if d_y is None else sum_to(d_y, Y, X, self.axis),
        )


class ComplexArithmetic(Elementwise):
    """The base of operators for complex numbers too. Gradients are conjugated: those of real and imaginary part, as a complex number."""

    abstract = True
    X = operand((*NUMERIC, *COMPLEX), doc="any shape")
    Y = operand((*NUMERIC, *COMPLEX), same_type_as="X", doc="broadcast against X")


_GIVES = ("X@GRAD", "Y@GRAD")
LIKE_BOTH = Elementwise._gradient_specs  # pyright: ignore[reportPrivateUsage]
_SHARE = {"X@GRAD": "Out@GRAD"}
_RESHAPED: dict[str, Layout] = {"X@GRAD": "reshaped"}
_BOTH_RESHAPED: dict[str, Layout] = {"X@GRAD": "reshaped", "Y@GRAD": "reshaped"}
_BROADCASTS = [
    sample(X=f32(2, 3, 5), Y=f32(5)),
    sample(X=f32(2, 3, 5), Y=f32(3), axis=1),
    sample(X=f32(2, 3, 5, 4), Y=f32(3, 5), axis=1),
    sample(X=f32(2, 3, 5), Y=f32(2, 1, 5)),
    sample(X=f32(2, 1, 5), Y=f32(3, 1)),
    sample(X=f32(3, 5), Y=f32(2, 3, 5)),
    sample(X=f32(3), Y=f32(2, 3, 5), axis=1),
    sample(X=f32(0, 3), Y=f32(3)),
    sample(X=f32(2, 3), Y=f32()),
]
_OF_COMPLEX = [
    sample(X=c64(2, 3), Y=c64(2, 3)),
    sample(X=c64(2, 3, 5), Y=c64(3), axis=1),
    sample(X=c64(5), Y=c64(2, 3, 5)),
    sample(X=c64(2, 1, 5), Y=c64(3, 1)),
    sample(X=c64(0, 3), Y=c64(3)),
]


class ElementwiseAdd(ComplexArithmetic):
    """Out = X + Y."""

    type = "elementwise_add"
    layer_function = "add"
    linear = ("X", "Y")
    gradient_reads_dims = ("X", "Y")
    _number = staticmethod(operator.add)
    _float = "add"

    def computes(self) -> computations.Sum:
        return computations.Sum(self.axis)

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.add(*self._pair(X, Y), out=into)

    @gradient("X", "Y", "Out@GRAD", gives=_GIVES, infer=LIKE_BOTH, view_of={"X@GRAD": "Out@GRAD", "Y@GRAD": "Out@GRAD"}, layout=_BOTH_RESHAPED)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        return self._summed(X, Y, d_out if requested[0] else None, d_out if requested[1] else None)

    samples = [
        sample(X=f32(2, 3, 5), Y=f32(2, 3, 5)),
        *_BROADCASTS,
        sample(X=i64(2, 3), Y=i64(2, 3)),
        sample(X=i64(3, data=[4, 5, 6]), Y=i64(3, data=[1, -2, 3])),
        sample(X=i32(3, data=[4, 5, 2**31 - 1]), Y=i32(1, data=[1])),
        *_OF_COMPLEX,
    ]
    rejects = [reject(X=f32(2, 3), Y=f32(3), axis=2, says="axis must be -1 or in [0, 1]")]


class ElementwiseSub(ComplexArithmetic):
    """Out = X - Y."""

    type = "elementwise_sub"
    layer_function = "subtract"
    linear = ("X", "Y")
    gradient_reads_dims = ("X", "Y")
    _number = staticmethod(operator.sub)
    _float = "subtract"

    def computes(self) -> computations.Subtraction:
        return computations.Subtraction(self.axis)

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.sub(*self._pair(X, Y), out=into)

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec) -> sizes.Size:
        return Y.nbytes if Y.dims != d_out.dims else 0

    @gradient("X", "Y", "Out@GRAD", gives=_GIVES, infer=LIKE_BOTH, view_of={"X@GRAD": "Out@GRAD"}, layout=_RESHAPED, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_x, d_y = self._summed(X, Y, d_out if requested[0] else None, d_out if requested[1] else None)
        return d_x, None if d_y is None else d_y.neg()

    samples = [sample(X=f32(2, 3), Y=f32(2, 3)), *_BROADCASTS, *_OF_COMPLEX, sample(X=i64(3, data=[4, 5, 6]), Y=i64(1, data=[2]))]


class ElementwiseMul(ComplexArithmetic):
    """Out = X * Y. X may be sparse rows if Y is one number."""

    type = "elementwise_mul"
    layer_function = "multiply"
    gradient_reads_for = {"X": ("Y@GRAD",), "Y": ("X@GRAD",)}
    X = operand((*NUMERIC, *COMPLEX), kinds=DENSE_OR_ROWS, doc="any shape")
    _number = staticmethod(operator.mul)
    _float = "multiply"

    def computes(self) -> computations.Product:
        return computations.Product(self.axis)

    def infer_var_type(self, X: Spec, Y: Spec) -> Kind:
        return X.kind

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        if X.kind is SELECTED_ROWS:
            require(sizes.equal(Y.elements, 1) is True, "Y must be one number where X is sparse rows", X=None, Y=None)
            return X
        return super().infer_shape(X, Y)

    def kernel(self, X: Tensor | Rows, Y: Tensor, *, into: Tensor | None = None) -> Any:
        if isinstance(X, Rows):
            return X.scaled(Y.reshape(()))
        return torch.mul(*self._pair(X, Y), out=into)

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec, *, requested: tuple[bool, ...]) -> sizes.Size:
        needs = sizes.no_less(before_sum(requested[0], X, d_out), before_sum(requested[1], Y, d_out))
        return needs + conjugate_bytes(X) + conjugate_bytes(Y)

    @gradient("X", "Y", "Out@GRAD", gives=_GIVES, infer=LIKE_BOTH, may_share=_SHARE, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...], into: Tensor | None = None) -> Any:
        x, y = self._pair(X, Y)
        d_y = sum_to(d_out * conjugate(x), Y, X, self.axis) if requested[1] else None
        return sum_to(torch.mul(d_out, conjugate(y), out=into), X, Y, self.axis) if requested[0] else None, d_y

    samples = [sample(X=f32(2, 3), Y=f32(2, 3)), *_BROADCASTS, *_OF_COMPLEX, sample(X=i64(3, data=[4, 5, 2**62]), Y=i64(3, data=[2, -3, 4]))]


class ElementwiseDiv(ComplexArithmetic):
    """Out = X / Y; for integers the quotient without its fraction."""

    type = "elementwise_div"
    layer_function = "divide"
    gradient_reads_dims = ("X",)
    gradient_reads_for = {"Out": ("Y@GRAD",)}
    linear = ("X",)
    _number = staticmethod(truncated)
    _float = "divide"

    def computes(self) -> computations.Quotient:
        return computations.Quotient(self.axis)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        refuse_zero(Y)
        return super().infer_shape(X, Y)

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        x, y = self._pair(X, Y)
        if x.dtype.is_floating_point or x.dtype.is_complex:
            return torch.div(x, y, out=into)
        quotient = torch.floor_divide(x, y)  # rounding towards zero traps the processor at the least integer by -1
        return torch.add(quotient, (quotient < 0) & (quotient * y != x), out=quotient if into is None else into)

    def workspace(self, X: Spec, Y: Spec) -> sizes.Size:
        return 3 * self.infer_shape(X, Y).nbytes if X.known_dtype.is_integer else 0

    def _gradient_workspace(self, X: Spec, Y: Spec, Out: Spec, d_out: Spec, *, requested: tuple[bool, ...]) -> sizes.Size:
        needs = before_sum(requested[1], Y, d_out) + (before_sum(True, X, d_out) if requested[0] else d_out.nbytes)
        return needs + sizes.no_less(conjugate_bytes(Y), conjugate_bytes(Out))

    @gradient("X", "Y", "Out", "Out@GRAD", gives=_GIVES, infer=LIKE_BOTH, may_share=_SHARE, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, Out: Tensor, d_out: Tensor, *, requested: tuple[bool, ...], into: Tensor | None = None) -> Any:
        d_x = torch.div(d_out, conjugate(self._pair(X, Y)[1]), out=into)
        return self._summed(X, Y, d_x if requested[0] else None, (d_x * conjugate(Out)).neg_() if requested[1] else None)

    samples = [
        sample(X=f32(2, 3), Y=f32(2, 3, low=0.5)),
        sample(X=f32(2, 3, 5), Y=f32(3, low=0.5), axis=1),
        sample(X=f32(3, 5), Y=f32(2, 3, 5, low=-2.0, high=-0.5)),
        sample(X=f32(0, 3), Y=f32(3)),
        sample(X=i64(2, 3, low=-9, high=9), Y=i64(3, low=1)),
        *_OF_COMPLEX,
        sample(X=i64(5, data=[7, -7, 7, -7, -(2**63)]), Y=i64(5, data=[2, 2, -2, -2, -1])),
    ]
    rejects = [reject(X=i64(2, data=[1, 2]), Y=i64(2, data=[1, 0]), says="Y must not be 0")]


class ElementwisePow(Elementwise):
    """Out = X to the power Y."""

    type = "elementwise_pow"
    layer_function = "pow"
    _number = staticmethod(power)

    def computes(self) -> computations.PowerElements:
        return computations.PowerElements(self.axis)

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.pow(*self._pair(X, Y), out=into)

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec) -> sizes.Size:
        return 5 * d_out.nbytes

    @gradient("X", "Y", "Out@GRAD", gives=_GIVES, infer=LIKE_BOTH, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        x, y = self._pair(X, Y)
        d_x = torch.where(y == 0, 0.0, d_out * y * torch.pow(x, y - 1)) if requested[0] else None
        d_y = torch.where((x == 0) & (y >= 0), 0.0, d_out * torch.pow(x, y) * torch.log(x)) if requested[1] else None
        return self._summed(X, Y, d_x, d_y)

    samples = [
        sample(X=f32(2, 3, low=0.2), Y=f32(2, 3)),
        sample(X=f32(2, 3, 5, low=0.2), Y=f32(3), axis=1),
        sample(X=f32(5, low=0.2), Y=f32(2, 3, 5)),
        sample(X=i64(2, 3), Y=i64(3, high=4)),
    ]


class ElementwiseMod(Elementwise):
    """Out = X - Y * floor(X / Y): the remainder, with the sign of Y."""

    type = "elementwise_mod"
    layer_function = "remainder"
    _number = staticmethod(sizes.mod)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        refuse_zero(Y)
        return super().infer_shape(X, Y)

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.remainder(*self._pair(X, Y), out=into)

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec) -> sizes.Size:
        return 3 * d_out.nbytes

    @gradient("X", "Y", "Out@GRAD", gives=_GIVES, infer=LIKE_BOTH, view_of={"X@GRAD": "Out@GRAD"}, layout=_RESHAPED, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        x, y = self._pair(X, Y)
        d_y = (d_out * torch.floor(x / y)).neg_() if requested[1] else None
        return self._summed(X, Y, d_out if requested[0] else None, d_y)

    samples = [
        sample(X=f32(2, 3, data=[[5.3, -5.3, 2.2], [0.4, 9.1, -0.7]]), Y=f32(3, data=[2.0, 3.0, -1.5])),
        sample(X=f32(2, 3, 5), Y=f32(3, low=2.5, high=3.0), axis=1),
        sample(X=i64(4, data=[7, -7, 7, -7]), Y=i64(4, data=[3, 3, -3, -3])),
        sample(X=i64(2, 3), Y=i64(3, low=1)),
    ]
    rejects = [reject(X=i64(1, data=[1]), Y=i64(1, data=[0]), says="Y must not be 0")]


class ElementwiseFloordiv(Elementwise):
    """Out = floor(X / Y)."""

    type = "elementwise_floordiv"
    layer_function = "floor_divide"
    gradient = ZERO_GRADIENT
    _number = staticmethod(sizes.floordiv)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        refuse_zero(Y)
        return super().infer_shape(X, Y)

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.floor_divide(*self._pair(X, Y), out=into)

    samples = [
        sample(X=f32(2, 3), Y=f32(3, low=0.5)),
        sample(X=i64(5, data=[7, -7, 7, -7, 0]), Y=i64(5, data=[2, 2, -2, -2, 5])),
        sample(X=i64(2, 3), Y=i64(3, low=1)),
    ]
    rejects = [reject(X=i64(2, data=[1, 2]), Y=i64(1, data=[0]), says="Y must not be 0")]


def refuse_zero(y: Spec) -> None:
    """Refuse a known integer divisor of 0."""
    if y.value is not None and y.known_dtype.is_integer and 0 in y.value:
        fail("Y must not be 0, since integers are divided by it", Y=None)
