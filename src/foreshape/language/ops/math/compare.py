"""Comparisons, logic, and the choice between two tensors."""

from __future__ import annotations

import math
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import ANY, ANY_OR_COMPLEX, BOOL, FLOATING, FP64, INTEGER, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError, SchemaError, ShapeError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import fail, require_equal, require_rank
from foreshape.language.operator.samples import b1, f32, f64, i64, reject, sample
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.broadcast import aligned, before_sum, broadcast_dims, broadcast_lod, where_else_zero
from foreshape.language.ops.rules.known_values import carry, combined, compared, known_number, mapped, selected, truth


def broadcast(x: Spec, y: Spec, axis: int = -1, slots: tuple[str, str] = ("X", "Y")) -> Spec:
    """Return ``x`` in the broadcast shape of both tensors; ragged if either is."""
    dims = x.known_dims if x.dims is y.dims else broadcast_dims(x.known_dims, y.known_dims, axis, slots, (x.lod is not None, y.lod is not None))
    return Spec(x.kind, x.dtype, dims, broadcast_lod(x, y, dims, axis))


class Comparison(Operator):
    """The base of the comparisons."""

    abstract = True
    family = "shape"
    per_element = True
    X = operand(ANY, doc="any shape")
    Y = operand(ANY, same_type_as="X", doc="broadcast against X")
    Out = result(doc="bool, the broadcast shape")
    axis = attribute(AttrType.INT, -1, low=-1, doc="the axis of X for dim 0 of Y; -1 aligns the last dims")
    force_cpu = attribute(AttrType.BOOLEAN, False)
    gradient = ZERO_GRADIENT
    samples = [
        *(sample(X=f32(2, 3), Y=f32(2, 3)), sample(X=f32(2, 3, 5), Y=f32(3), axis=1), sample(X=f32(3), Y=f32(2, 3, 5), axis=1)),
        *(sample(X=i64(2, 3), Y=i64(3)), sample(X=i64(1, data=[3]), Y=i64(1, data=[4])), sample(X=b1(2, 3), Y=b1(2, 3)), sample(X=f32(0, 3), Y=f32())),
    ]

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        out = broadcast(X, Y, self.axis).with_dtype(BOOL)
        return out if X.value is None or Y.value is None else carry(out, compared(out, X, Y, self.type, self.axis))

    def _pair(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        return (X, aligned(Y, X, self.axis)) if X.dim() >= Y.dim() else (aligned(X, Y, self.axis), Y)


class Equal(Comparison):
    """Out = X == Y."""

    type = "equal"

    def computes(self) -> computations.ComparedElements:
        return computations.ComparedElements("equal", self.axis)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.eq(*self._pair(X, Y))


class NotEqual(Comparison):
    """Out = X != Y."""

    type = "not_equal"

    def computes(self) -> computations.ComparedElements:
        return computations.ComparedElements("not_equal", self.axis)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.ne(*self._pair(X, Y))


class LessThan(Comparison):
    """Out = X < Y."""

    type = "less_than"

    def computes(self) -> computations.ComparedElements:
        return computations.ComparedElements("less", self.axis)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.lt(*self._pair(X, Y))


class LessEqual(Comparison):
    """Out = X <= Y."""

    type = "less_equal"

    def computes(self) -> computations.ComparedElements:
        return computations.ComparedElements("less_equal", self.axis)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.le(*self._pair(X, Y))


class GreaterThan(Comparison):
    """Out = X > Y."""

    type = "greater_than"

    def computes(self) -> computations.ComparedElements:
        return computations.ComparedElements("greater", self.axis)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.gt(*self._pair(X, Y))


class GreaterEqual(Comparison):
    """Out = X >= Y."""

    type = "greater_equal"

    def computes(self) -> computations.ComparedElements:
        return computations.ComparedElements("greater_equal", self.axis)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.ge(*self._pair(X, Y))


class Logical(Operator):
    """The base of the logic of two tensors; a number other than 0 is true."""

    abstract = True
    family = "shape"
    per_element = True
    X = operand(ANY, doc="any shape")
    Y = operand(ANY, same_type_as="X", doc="broadcast against X")
    Out = result(doc="bool, the broadcast shape")
    gradient = ZERO_GRADIENT
    samples = [sample(X=b1(2, 3), Y=b1(2, 3)), sample(X=b1(2, 3), Y=b1(3)), sample(X=i64(2, 1, high=1), Y=i64(3, high=1)), sample(X=f32(0), Y=f32(0))]

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        return self._with_value(broadcast(X, Y).with_dtype(BOOL), X, Y)

    def _with_value(self, out: Spec, X: Spec, Y: Spec) -> Spec:
        if X.value is None or Y.value is None:
            return out

        def bits(a: Any, b: Any) -> int:
            p, q = (truth(a), truth(b)) if out.dtype is BOOL else (a, b)
            if not isinstance(p, int) or not isinstance(q, int):
                raise ShapeError("the bits of a size with symbols are not known")
            return p & q if self.type.endswith("and") else p ^ q if self.type.endswith("xor") else p | q

        return carry(out, combined(out, X, Y, bits))


class LogicalAnd(Logical):
    """Out = X and Y."""

    type = "logical_and"

    def computes(self) -> computations.Connective:
        return computations.Connective("and")

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.logical_and(X, Y)


class LogicalOr(Logical):
    """Out = X or Y."""

    type = "logical_or"

    def computes(self) -> computations.Connective:
        return computations.Connective("or")

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.logical_or(X, Y)


class LogicalXor(Logical):
    """Out = true where exactly one of X and Y is."""

    type = "logical_xor"

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.logical_xor(X, Y)


class LogicalNot(Operator):
    """Out = not X; a number other than 0 is true."""

    type = "logical_not"
    family = "shape"
    per_element = True
    X = operand(ANY, doc="any shape")
    Out = result(doc="bool, as X")
    gradient = ZERO_GRADIENT

    def computes(self) -> computations.Function:
        return computations.Function("logical_not")

    def infer_shape(self, X: Spec) -> Spec:
        out, answers = X.with_dtype(BOOL), mapped(X, truth)
        return out if answers is None or None in answers else carry(out, [1 - v for v in answers])

    def kernel(self, X: Tensor) -> Tensor:
        return torch.logical_not(X)

    samples = [sample(X=b1(2, 3)), sample(X=f32(2, 3)), sample(X=b1(0, 3))]


class Bitwise(Logical):
    """The base of the logic of bits."""

    abstract = True
    X = operand((BOOL, *INTEGER), doc="any shape")
    Y = operand((BOOL, *INTEGER), same_type_as="X", doc="broadcast against X")
    Out = result(doc="the broadcast shape", may_share="X")
    samples = [sample(X=b1(2, 3), Y=b1(2, 3)), sample(X=i64(2, 3), Y=i64(3))]

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        return self._with_value(broadcast(X, Y), X, Y)


class BitwiseAnd(Bitwise):
    """Out = X & Y, bit by bit."""

    type = "bitwise_and"

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.bitwise_and(X, Y, out=into)


class BitwiseOr(Bitwise):
    """Out = X | Y, bit by bit."""

    type = "bitwise_or"

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.bitwise_or(X, Y, out=into)


class BitwiseXor(Bitwise):
    """Out = X ^ Y, bit by bit."""

    type = "bitwise_xor"

    def kernel(self, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.bitwise_xor(X, Y, out=into)


class BitwiseNot(Operator):
    """Out = ~X, bit by bit."""

    type = "bitwise_not"
    per_element = True
    X = operand((BOOL, *INTEGER), doc="any shape")
    Out = result(doc="as X", may_share="X")
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.bitwise_not(X, out=into)

    samples = [sample(X=b1(2, 3)), sample(X=i64(2, 3))]


class IsClose(Operator):
    """Out = |Input - Other| <= atol + rtol * |Other|."""

    type = "isclose"
    Input = operand(FLOATING, doc="any shape")
    Other = operand(FLOATING, same_type_as="Input", doc="broadcast against Input")
    Rtol = operand((FP64,), optional=True, doc="rtol, as a tensor of one number")
    Atol = operand((FP64,), optional=True, doc="atol, as a tensor of one number")
    Out = result(doc="bool, the broadcast shape")
    rtol = attribute(AttrType.STRING, "1e-5", doc="a number, as text")
    atol = attribute(AttrType.STRING, "1e-8", doc="a number, as text")
    equal_nan = attribute(AttrType.BOOLEAN, False, doc="NaN is close to NaN")
    gradient = ZERO_GRADIENT

    def _tolerance(self, name: str, source: Any) -> float:
        text = getattr(self, name)
        if source is not None:
            fed = float(source.item())
            if fed >= 0:
                return fed
            raise ExecutionError(f"{self.type}: {name.capitalize()} must be at least 0; seen {fed}")
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        return number if number >= 0 else fail(f"{name} must write a number of at least 0; seen {text[:40]!r}", SchemaError)

    def infer_shape(self, Input: Spec, Other: Spec, Rtol: Spec | None, Atol: Spec | None) -> Spec:
        for name, source in (("rtol", Rtol), ("atol", Atol)):
            known_number(0, source, name.capitalize())
            self._tolerance(name, None)
        return broadcast(Input, Other, -1, ("Input", "Other")).with_dtype(BOOL)

    def workspace(self, Input: Spec, Other: Spec, Rtol: Spec | None, Atol: Spec | None) -> Size:
        return 4 * Input.known_dtype.itemsize * broadcast(Input, Other, -1, ("Input", "Other")).elements

    def kernel(self, Input: Tensor, Other: Tensor, Rtol: Tensor | None, Atol: Tensor | None) -> Tensor:
        x, y = aten.broadcast_tensors([Input, Other])  # older torch resizes the result of equal_nan to the dims of Input
        return torch.isclose(x, y, self._tolerance("rtol", Rtol), self._tolerance("atol", Atol), self.equal_nan)

    samples = [
        sample(Input=f32(2, 3), Other=f32(3)),
        sample(Input=f32(2, 3), Other=f32(2, 3), rtol="0.5", atol="1", equal_nan=True),
        sample(Input=f32(1, 3), Other=f32(2, 3), equal_nan=True),
    ]
    rejects = [reject(Input=f32(2), Other=f32(2), rtol="small", says="rtol must write a number", error=SchemaError)]


class AllClose(IsClose):
    """Out = true if all |Input - Other| <= atol + rtol * |Other|. Nothing is broadcast."""

    type = "allclose"
    Other = operand(FLOATING, same_type_as="Input", doc="as Input")
    Out = result(doc="bool, []")

    def infer_shape(self, Input: Spec, Other: Spec, Rtol: Spec | None, Atol: Spec | None) -> Spec:
        require_rank(Input.rank, Other, "Other")
        for axis, (a, b) in enumerate(zip(Input.known_dims, Other.known_dims, strict=True)):
            require_equal(a, b, "Other must have the dims of Input", Input=axis, Other=axis)
        return super().infer_shape(Input, Other, Rtol, Atol).dense(())

    def workspace(self, Input: Spec, Other: Spec, Rtol: Spec | None, Atol: Spec | None) -> Size:
        return (4 * Input.known_dtype.itemsize + 1) * Input.elements

    def kernel(self, Input: Tensor, Other: Tensor, Rtol: Tensor | None, Atol: Tensor | None) -> Tensor:
        return torch.isclose(Input, Other, self._tolerance("rtol", Rtol), self._tolerance("atol", Atol), self.equal_nan).all()

    samples = [
        sample(Input=f32(2, 3), Other=f32(2, 3)),
        sample(Input=f32(2, 3, low=0.9, high=1.0), Other=f32(2, 3, low=0.9, high=1.0), rtol="0.5", atol="1", equal_nan=True),
        sample(Input=f32(2), Other=f32(2), Rtol=f64(1, data=[0.1]), Atol=f64(1, data=[9.0])),
        sample(Input=f32(0, 3), Other=f32(0, 3)),
        sample(Input=f32(), Other=f32()),
    ]
    rejects = [reject(Input=f32(2), Other=f32(2), rtol="small", says="rtol must write a number", error=SchemaError)]


class EqualAll(Operator):
    """Out = true if X and Y have the same dims and elements; floating-point elements with a difference below 1e-8 count as the same."""

    type = "equal_all"
    X = operand(ANY, doc="any shape")
    Y = operand(ANY, same_type_as="X", doc="any shape")
    Out = result(doc="bool, []")
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        return X.dense((), BOOL)

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return X.nbytes + 2 * X.elements

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        if X.shape != Y.shape:
            return torch.zeros((), dtype=torch.bool, device=X.device)
        alike = X == Y
        return (alike.logical_or_((X - Y).abs_() < 1e-8) if X.dtype.is_floating_point else alike).all()

    samples = [
        sample(X=f32(2, 3), Y=f32(2, 3)),
        sample(X=f32(2, data=[1.0, 2.0]), Y=f32(2, data=[1.0, 2.0])),
        sample(X=f64(2, data=[1.0, math.inf]), Y=f64(2, data=[1.000000005, math.inf])),
        sample(X=f32(2, 3), Y=f32(3)),
        sample(X=i64(2, data=[1, 2]), Y=i64(2, data=[1, 2])),
        sample(X=b1(2, 3), Y=b1(2, 3)),
        sample(X=f32(0, 3), Y=f32(0, 3)),
        sample(X=f32(), Y=f32()),
    ]


class Where(Operator):
    """Out = X where Condition holds, else Y."""

    type = "where"
    gradient_reads_dims = ("X", "Y")
    family = "shape"
    per_element = True
    Condition = operand((BOOL,), doc="broadcast against X and Y")
    X = operand(ANY_OR_COMPLEX, doc="broadcast against Condition and Y")
    Y = operand(ANY_OR_COMPLEX, same_type_as="X", doc="broadcast against Condition and X")
    Out = result(doc="the broadcast shape", may_share="X")

    def infer_shape(self, Condition: Spec, X: Spec, Y: Spec) -> Spec:
        out = broadcast(broadcast(X, Y), Condition, -1, ("X", "Condition"))
        return out if X.value is None and Y.value is None else carry(out, selected(out, Condition, X, Y))

    def computes(self) -> computations.ChosenElements:
        return computations.ChosenElements()

    def kernel(self, Condition: Tensor, X: Tensor, Y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.where(Condition, X, Y, out=into)

    def _gradient_workspace(self, Condition: Spec, X: Spec, Y: Spec, d_out: Spec, *, requested: tuple[bool, ...]) -> Size:
        return before_sum(requested[0], X, d_out) + before_sum(requested[1], Y, d_out) + Condition.elements

    @gradient("Condition", "X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), may_share={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace)
    def backward(self, Condition: Tensor, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...], into: Tensor | None = None) -> Any:
        d_y = torch.where(Condition, 0.0, d_out).sum_to_size(Y.shape) if requested[1] else None
        return where_else_zero(Condition, d_out, into).sum_to_size(X.shape) if requested[0] else None, d_y

    samples = [
        sample(Condition=b1(2, 3), X=f32(2, 3), Y=f32(2, 3)),
        sample(Condition=b1(3), X=f32(2, 1), Y=f32()),
        sample(Condition=b1(5, 2, 3), X=f32(3), Y=f32(2, 3)),
        sample(Condition=b1(0, 3), X=f32(0, 3), Y=f32(0, 3)),
        sample(Condition=b1(2, 3), X=i64(2, 3), Y=i64(2, 3)),
        sample(Condition=b1(2, 3), X=c64(2, 3), Y=c64()),
    ]
    rejects = [reject(Condition=b1(2, 3), X=f32(2, 4), Y=f32(2, 4), says="the dims of X and Condition must be equal or 1")]
