"""Functions of two tensors beyond arithmetic: interpolation, distances, cross and Kronecker products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, equal
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import axis_of, require, require_at_most, require_equal, require_rank
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.math.compare import broadcast
from foreshape.language.ops.math.extremes import GIVES, NUMBERS
from foreshape.language.ops.rules.broadcast import before_sum, broadcast_lod, sum_to

_ANY_AXIS = 9
"""The axis of `cross` for the first dim of 3."""


def same_dims(x: Spec, y: Spec, slots: tuple[str, str] = ("X", "Y")) -> tuple[Size, ...]:
    """Return the dims both tensors must have."""
    require_rank(x.rank, y, slots[1])
    requirement = f"{slots[1]} must have the dims of {slots[0]}"
    return tuple(require_equal(a, b, requirement, **{slots[0]: k, slots[1]: k}) for k, (a, b) in enumerate(zip(x.known_dims, y.known_dims, strict=True)))


class Lerp(Operator):
    """Out = X + Weight * (Y - X): X where Weight is 0, Y where it is 1. Weight has no gradient."""

    type = "lerp"
    gradient_reads_dims = ("X", "Y")
    per_element = True
    X = operand(FLOATING, doc="any shape")
    Y = operand(FLOATING, same_type_as="X", doc="broadcast against X")
    Weight = operand(FLOATING, same_type_as="X", doc="broadcast against both")
    Out = result(doc="the broadcast shape", may_share="X")

    def infer_shape(self, X: Spec, Y: Spec, Weight: Spec) -> Spec:
        return broadcast(broadcast(X, Y), Weight, -1, ("X", "Weight"))

    def kernel(self, X: Tensor, Y: Tensor, Weight: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.lerp(X, Y, Weight, out=into)

    def _gradient_workspace(self, X: Spec, Y: Spec, Weight: Spec, Out: Spec, d_out: Spec, *, requested: tuple[bool, ...]) -> Size:
        return before_sum(requested[0], X, d_out) + before_sum(requested[1], Y, d_out) + Weight.nbytes

    @gradient("X", "Y", "Weight", "Out", "Out@GRAD", gives=GIVES, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, Weight: Tensor, Out: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_x = sum_to(d_out * (1.0 - Weight), X, Y, -1) if requested[0] else None
        return d_x, sum_to(d_out * Weight, Y, X, -1) if requested[1] else None

    samples = [
        sample(X=f32(2, 3), Y=f32(2, 3), Weight=f32(1, low=0.0, high=1.0)),
        sample(X=f32(2, 3, 5), Y=f32(5), Weight=f32(3, 1)),
        sample(X=f32(3), Y=f32(2, 3), Weight=f32(2, 1)),
        sample(X=f32(3), Y=f32(3), Weight=f32(2, 3)),
        sample(X=f32(), Y=f32(), Weight=f32()),
        sample(X=f32(0, 3), Y=f32(3), Weight=f32()),
    ]
    rejects = [reject(X=f32(2, 3), Y=f32(2, 3), Weight=f32(2), says="the dims of X and Weight must be equal or 1")]


class NextAfter(Operator):
    """out = the next number of the element type after x in the direction of y; y if both are equal. Nothing is broadcast."""

    type = "nextafter"
    per_element = True
    x = operand(FLOATING, doc="any shape")
    y = operand(FLOATING, same_type_as="x", doc="as x")
    out = result(doc="as x", may_share="x")
    gradient = ZERO_GRADIENT

    def infer_shape(self, x: Spec, y: Spec) -> Spec:
        return x.with_dims(same_dims(x, y, ("x", "y")))

    def kernel(self, x: Tensor, y: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.nextafter(x, y, out=into)

    samples = [sample(x=f32(2, 3), y=f32(2, 3)), sample(x=f32(0, 3), y=f32(0, 3)), sample(x=f32(), y=f32())]


class Cross(Operator):
    """Out = the cross products of the vectors of three numbers along the axis ``dim`` of X and Y.

    ``dim`` 9, the default, is the first axis with a dim of 3; if a dim before it is open, the run finds the axis.
    """

    type = "cross"
    X = operand(NUMBERS, doc="a dim of 3")
    Y = operand(NUMBERS, same_type_as="X", doc="as X")
    Out = result(doc="as X")
    dim = attribute(AttrType.INT, _ANY_AXIS)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        dims = same_dims(X, Y)
        if self.dim != _ANY_AXIS:
            axis = axis_of(self.dim, len(dims), "dim", X=None)
            require_equal(dims[axis], 3, f"vectors of a cross product have 3 numbers: the dim at axis {axis} must be 3", X=axis, Y=axis)
            return X.with_dims(dims)
        requirement = "vectors of a cross product have 3 numbers: a dim must be 3"
        answers = [equal(d, 3) for d in dims]
        require(any(a is not False for a in answers), requirement, X=None, Y=None)
        if True not in answers and answers.count(None) == 1:
            axis = answers.index(None)
            require_equal(dims[axis], 3, requirement, X=axis, Y=axis)
        return X.with_dims(dims)

    def _axis(self, x: Tensor) -> int:
        if self.dim != _ANY_AXIS:
            return self.dim
        if 3 not in x.shape:  # the rule leaves it open if several dims may be 3
            raise ExecutionError(f"cross: a dim of X and Y must be 3; they are {list(x.shape)}")
        return x.shape.index(3)

    def workspace(self, X: Spec, Y: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X, Y=Y)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return aten.linalg_cross(X, Y, dim=self._axis(X))

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X, Y=Y, Out_GRAD=d_out)

    @gradient("X", "Y", "Out@GRAD", gives=GIVES, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        axis = self._axis(X)
        d_y = aten.linalg_cross(d_out, X, dim=axis) if requested[1] else None
        return aten.linalg_cross(Y, d_out, dim=axis) if requested[0] else None, d_y

    samples = [
        sample(X=f32(2, 3), Y=f32(2, 3)),
        sample(X=f32(3, 4), Y=f32(3, 4), dim=0),
        sample(X=f32(3, 3), Y=f32(3, 3)),
        sample(X=f32(2, 5, 3), Y=f32(2, 5, 3), dim=-1),
        sample(X=f32(0, 3), Y=f32(0, 3)),
        sample(X=f32(3), Y=f32(3)),
        sample(X=i64(2, 3), Y=i64(2, 3), dim=1),
    ]
    rejects = [
        reject(X=f32(2, 4), Y=f32(2, 4), says="a dim must be 3"),
        reject(X=f32(2, 4), Y=f32(2, 4), dim=0, says="the dim at axis 0 must be 3"),
    ]


class Dist(Operator):
    """Out = the norm of order ``p`` of X - Y: (sum |X - Y|^p)^(1/p).

    The norm of order infinity is the largest |X - Y|, of order 0 the count of nonzero elements.

    If X and Y are equal the gradient is 0.
    """

    type = "dist"
    X = operand(FLOATING, doc="any shape")
    Y = operand(FLOATING, same_type_as="X", doc="broadcast against X")
    Out = result(doc="[]")
    p = attribute(AttrType.FLOAT, 2.0)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        require(not math.isnan(self.p), "p must be a number, not NaN")
        for slot, spec in (("X", X), ("Y", Y)):
            for axis, size in enumerate(spec.known_dims):
                require_at_most(1, size, f"a distance needs an element: the dim at axis {axis} of {slot} must be at least 1", **{slot: axis})
        return broadcast(X, Y).dense(())

    def _difference(self, X: Spec, Y: Spec) -> Size:
        return broadcast(X, Y).nbytes

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return self._difference(X, Y)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return aten.linalg_vector_norm(X - Y, self.p)

    def _gradient_workspace(self, X: Spec, Y: Spec, Out: Spec, d_out: Spec) -> Size:
        joint = broadcast(X, Y)
        return 4 * joint.nbytes + joint.elements

    @gradient("X", "Y", "Out", "Out@GRAD", gives=GIVES, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, Out: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        apart, p = X - Y, self.p
        if p == 0:
            d = torch.zeros_like(apart)
        elif math.isinf(p):
            d = apart.sign().mul_(apart.abs() == Out).mul_(d_out)
        elif p == 1:
            d = apart.sign().mul_(d_out)
        elif p == 2:
            d = apart.mul_(torch.where(Out == 0, 0.0, d_out / Out))
        else:
            d = apart.abs().div_(Out).pow_(p - 1).mul_(d_out).mul_(apart.sign()).masked_fill_(apart == 0, 0.0)
        d_y = sum_to(d, Y, X, -1).neg() if requested[1] else None
        return sum_to(d, X, Y, -1) if requested[0] else None, d_y

    samples = [
        sample(X=f32(2, 3), Y=f32(2, 3)),
        sample(X=f32(2, 3), Y=f32(3), p=1.0),
        sample(X=f32(2, 1), Y=f32(1, 3), p=3.0),
        sample(X=f32(3), Y=f32(2, 3), p=0.5),
        sample(X=f32(2, 3), Y=f32(2, 3), p=-2.0),
        sample(X=f32(2, 3, distinct=True), Y=f32(), p=math.inf),
        sample(X=f32(2, 3, distinct=True), Y=f32(), p=-math.inf),
        sample(X=f32(2, 3), Y=f32(2, 3), p=0.0),
        sample(X=f32(), Y=f32()),
        sample(X=f32(3, data=[1.0, 2.0, 3.0]), Y=f32(3, data=[1.0, 2.0, 3.0]), differentiate=False),
    ]
    rejects = [
        reject(X=f32(0, 3), Y=f32(0, 3), says="must be at least 1"),
        reject(X=f32(2), Y=f32(2), p=math.nan, says="p must be a number"),
    ]


def _padded(dims: Sequence[Any], rank: int) -> tuple[Any, ...]:
    return (1,) * (rank - len(dims)) + tuple(dims)


class Kron(Operator):
    """Out = the Kronecker product: every element of X times the whole of Y, block by block. The lower rank gets dims of 1 in front."""

    type = "kron"
    X = operand(NUMBERS, doc="any shape")
    Y = operand(NUMBERS, same_type_as="X", doc="any shape")
    Out = result(layout="row", doc="the products of the dims of X and Y")

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        rank = max(X.rank, Y.rank)
        dims = tuple(a * b for a, b in zip(_padded(X.known_dims, rank), _padded(Y.known_dims, rank), strict=True))
        return Spec(X.kind, X.dtype, dims, broadcast_lod(X, Y, dims))

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        rank = max(X.dim(), Y.dim())
        x, y = _padded(X.shape, rank), _padded(Y.shape, rank)
        out = X.new_empty([size for pair in zip(x, y, strict=True) for size in pair])  # the block, and the place in it, axis by axis
        torch.mul(X.reshape([size for d in x for size in (d, 1)]), Y.reshape([size for d in y for size in (1, d)]), out=out)
        return out.view([a * b for a, b in zip(x, y, strict=True)])

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return d_out.nbytes + copies(strided, X=X, Y=Y, Out_GRAD=d_out)

    @gradient("X", "Y", "Out@GRAD", gives=GIVES, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        rank = d_out.dim()
        x, y = _padded(X.shape, rank), _padded(Y.shape, rank)
        blocks = d_out.reshape([size for pair in zip(x, y, strict=True) for size in pair])
        matrix = blocks.permute([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]).reshape(X.numel(), Y.numel())  # a row for each element of X
        d_x = torch.mv(matrix, Y.reshape(-1)).view(X.shape) if requested[0] else None
        return d_x, torch.mv(matrix.t(), X.reshape(-1)).view(Y.shape) if requested[1] else None

    samples = [
        sample(X=f32(2, 3), Y=f32(5, 4)),
        sample(X=f32(3), Y=f32(2, 4)),
        sample(X=f32(2, 3, 4), Y=f32(5)),
        sample(X=f32(2, 3), Y=f32()),
        sample(X=f32(), Y=f32()),
        sample(X=f32(0, 3), Y=f32(2, 2)),
        sample(X=i64(2, 3), Y=i64(5, 1)),
    ]
