"""Distances and similarities of rows, as in PaddlePaddle 1: operands of their gradients are results."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, INDEX, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_broadcast_to, require_equal, require_one_per_row, require_rank, require_same_dims
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.loss.loss import check_classes
from foreshape.language.ops.rules.gradient_dims import check_made


class SmoothL1Loss(Operator):
    """Out = the sum over each row of OutsideWeight * loss(Diff), where Diff = InsideWeight * (X - Y). Of PaddlePaddle 1.

    loss(d) = sigma^2 * d^2 / 2 where |d| < 1 / sigma^2, else |d| - 1 / (2 sigma^2) (Girshick, 2015). The weights are 1 by default; both are given, or neither.
    """

    type = "smooth_l1_loss"
    layer_function = "smooth_l1"
    X = operand(FLOATING, doc="[rows, ...]")
    Y = operand(FLOATING, same_type_as="X", doc="as X")
    InsideWeight = operand(FLOATING, optional=True, same_type_as="X", doc="as X")
    OutsideWeight = operand(FLOATING, optional=True, same_type_as="X", doc="as X")
    Diff = result(doc="as X")
    Out = result(doc="[rows, 1]")
    sigma = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(self, X: Spec, Y: Spec, InsideWeight: Spec | None, OutsideWeight: Spec | None) -> tuple[Spec, Spec]:
        require(X.rank >= 2, f"X must have at least 2 dims, not {X.rank}", X=None)
        require(self.sigma > 0.0, f"sigma must be more than 0, not {self.sigma}")
        require_same_dims(X, Y, "X", "Y")
        require((InsideWeight is None) is (OutsideWeight is None), "InsideWeight and OutsideWeight are given both, or neither", X=None)
        for slot, spec in (("InsideWeight", InsideWeight), ("OutsideWeight", OutsideWeight)):
            if spec is not None:
                require_same_dims(X, spec, "X", slot)
        return X.like(), X.with_dims((X.known_dims[0], 1))

    def workspace(self, X: Spec, Y: Spec, InsideWeight: Spec | None, OutsideWeight: Spec | None, *, strided: frozenset[str]) -> Size:
        return (3 if strided else 2) * X.nbytes

    def kernel(self, X: Tensor, Y: Tensor, InsideWeight: Tensor | None, OutsideWeight: Tensor | None) -> tuple[Tensor, Tensor]:
        diff = X - Y
        if InsideWeight is not None:
            diff.mul_(InsideWeight)
        size = diff.abs()
        square = self.sigma * self.sigma
        inside = size.clamp(max=1.0 / square)
        loss = size.sub_(inside, alpha=0.5).mul_(inside).mul_(square)  # both pieces
        if OutsideWeight is not None:
            loss.mul_(OutsideWeight)
        return diff, loss.flatten(1).sum(1, keepdim=True)

    def _infer_gradient(self, InsideWeight: Spec | None, OutsideWeight: Spec | None, Diff: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        weights = {slot: (spec, Diff) for slot, spec in (("InsideWeight", InsideWeight), ("OutsideWeight", OutsideWeight)) if spec is not None}
        require(Diff.rank >= 2, "Diff must have the dims of X", Diff=None)
        check_made(Out_GRAD=(d_out, Diff.with_dims((Diff.known_dims[0], 1))), **weights)
        return Diff.like(), Diff.like()

    @gradient("InsideWeight", "OutsideWeight", "Diff", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), infer=_infer_gradient)
    def backward(self, InsideWeight: Tensor | None, OutsideWeight: Tensor | None, Diff: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        square = self.sigma * self.sigma
        d_x = Diff.clamp(-1.0 / square, 1.0 / square).mul_(square).mul_(d_out.reshape(-1, *[1] * (Diff.dim() - 1)))
        for weight in (InsideWeight, OutsideWeight):
            if weight is not None:
                d_x.mul_(weight)
        return d_x if requested[0] else None, d_x.neg() if requested[1] else None

    samples = [
        sample(X=f32(4, 7), Y=f32(4, 7)),
        sample(X=f32(4, 3, 2), Y=f32(4, 3, 2), InsideWeight=f32(4, 3, 2), OutsideWeight=f32(4, 3, 2), sigma=2.0),
        sample(X=f32(0, 3), Y=f32(0, 3)),
    ]
    rejects = [
        reject(X=f32(4), Y=f32(4), says="at least 2 dims"),
        reject(X=f32(4, 7), Y=f32(4, 7), InsideWeight=f32(4, 7), says="both, or neither"),
        reject(X=f32(4, 7), Y=f32(4, 7), sigma=0.0, says="sigma must be more than 0"),
    ]


def check_rows(X: Spec, Y: Spec) -> None:
    """Require the dims of X for Y, or 1 row for all."""
    require(X.rank >= 2, f"X must have at least 2 dims, not {X.rank}", X=None)
    require_rank(X.rank, Y, "Y", like=X.known_dims)
    for axis, (a, b) in enumerate(zip(X.known_dims, Y.known_dims, strict=True)):
        if axis:
            require_equal(a, b, "Y must have the dims of X", X=axis, Y=axis)
        else:
            require_broadcast_to(b, a, "Y must have 1 row, or as many as X", X=axis, Y=axis)


def to_rows(d: Tensor, target: Tensor) -> Tensor:
    """Return the gradient of Y: for its one row the sum of all."""
    return d if d.shape[0] == target.shape[0] else d.sum(0, keepdim=True)


OF_ROWS = [
    sample(X=f32(4, 7), Y=f32(4, 7)),
    sample(X=f32(4, 3, 2), Y=f32(1, 3, 2)),
    sample(X=f32(0, 3), Y=f32(0, 3)),
]
NOT_OF_ROWS = [
    reject(X=f32(4, 7), Y=f32(3, 7), says="Y must have 1 row, or as many as X"),
    reject(X=f32(4), Y=f32(4), says="at least 2 dims"),
]
"""Rejects of operators with a row of Y for each row of X, or one for all."""


def _is_no_direction(x_norm: Tensor, y_norm: Tensor) -> Tensor:
    """Return the mask of pairs with a row of zeros."""
    return (x_norm == 0.0) | (y_norm == 0.0)


class CosSim(Operator):
    """Out = the cosine of the angle between each row of X and its row of Y; Y may have 1 row for all. Of PaddlePaddle 1.

    XNorm and YNorm are the rows' lengths; if one is 0, Out is 0, and so are the gradients.
    """

    type = "cos_sim"
    X = operand(FLOATING, doc="[rows, ...]")
    Y = operand(FLOATING, same_type_as="X", doc="as X, or with 1 row")
    Out = result(doc="[rows, 1]")
    XNorm = result(doc="[rows, 1]")
    YNorm = result(doc="[rows of Y, 1]")

    def infer_shape(self, X: Spec, Y: Spec) -> tuple[Spec, Spec, Spec]:
        check_rows(X, Y)
        out = X.with_dims((X.known_dims[0], 1))
        return out, out, Y.with_dims((Y.known_dims[0], 1))

    def workspace(self, X: Spec, Y: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * X.nbytes + copies(strided, X=X, Y=Y)

    def kernel(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y = X.flatten(1), Y.flatten(1)
        x_norm, y_norm = x.square().sum(1, keepdim=True).sqrt_(), y.square().sum(1, keepdim=True).sqrt_()
        out = (x * y).sum(1, keepdim=True).div_(x_norm).div_(y_norm)
        return out.masked_fill_(_is_no_direction(x_norm, y_norm), 0.0), x_norm, y_norm

    def _infer_gradient(self, X: Spec, Y: Spec, XNorm: Spec, YNorm: Spec, Out: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        out, x_norm, y_norm = CosSim.infer_shape(self, X, Y)  # pyright: ignore[reportArgumentType]
        check_made(XNorm=(XNorm, x_norm), YNorm=(YNorm, y_norm), Out=(Out, out), Out_GRAD=(d_out, out))
        return X.like(), Y.like()

    def _gradient_workspace(self, X: Spec, Y: Spec, XNorm: Spec, YNorm: Spec, Out: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 4 * X.nbytes + 7 * Out.nbytes + Out.elements + copies(strided, X=X, Y=Y)

    @gradient("X", "Y", "XNorm", "YNorm", "Out", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, XNorm: Tensor, YNorm: Tensor, Out: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        x, y = X.flatten(1), Y.flatten(1)
        d = d_out.masked_fill(nothing := _is_no_direction(XNorm, YNorm), 0.0)
        x_norm, y_norm = XNorm.masked_fill(nothing, 1.0), YNorm.masked_fill(nothing, 1.0)
        scaled, cosine = d / x_norm / y_norm, d * Out
        d_x = (y * scaled).sub_(x * (cosine / x_norm.square())).reshape(X.shape) if requested[0] else None
        d_y = to_rows((x * scaled).sub_(y * (cosine / y_norm.square())).reshape(X.shape), Y) if requested[1] else None
        return d_x, d_y

    samples = OF_ROWS
    rejects = NOT_OF_ROWS


class CenterLoss(Operator):
    """Loss = half the squared distance of each row of X to the center of its class; SampleCenterDiff = X - Centers[Label]
    (Wen et al., 2016). Of PaddlePaddle 1.

    With ``need_update`` each center moves towards the rows of its class by CenterUpdateRate * sum(their SampleCenterDiff) / (1 + their number).
    """

    type = "center_loss"
    X = operand(FLOATING, doc="[rows, features]")
    Label = operand(INDEX, doc="class numbers, [rows, 1] or [rows]")
    Centers = operand(FLOATING, same_type_as="X", doc="[classes, features]")
    CenterUpdateRate = operand(FLOATING, same_type_as="X", doc="one number")
    SampleCenterDiff = result(doc="[rows, features]")
    Loss = result(doc="[rows, 1]")
    CentersOut = result(updates="Centers", doc="[classes, features]")
    moving = ("CentersOut",)
    cluster_num = attribute(AttrType.INT, 0, doc="ignored: the rows of Centers count")
    need_update = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec, Label: Spec, Centers: Spec, CenterUpdateRate: Spec) -> tuple[Spec, Spec, Spec]:
        require_rank(2, X, "X")
        require_rank(2, Centers, "Centers")
        require_one_per_row(Label, "Label", X.known_dims[0], "X")
        require_equal(X.known_dims[1], Centers.known_dims[1], "Centers must have as many columns as X", X=1, Centers=1)
        require_equal(CenterUpdateRate.elements, 1, "CenterUpdateRate must hold one number", CenterUpdateRate=None)
        return X.like(), X.with_dims((X.known_dims[0], 1)), Centers

    def workspace(self, X: Spec, Label: Spec, Centers: Spec, CenterUpdateRate: Spec) -> Size:
        return X.nbytes + 2 * Centers.nbytes + (8 + 2 * X.known_dtype.itemsize) * Label.elements

    def kernel(self, X: Tensor, Label: Tensor, Centers: Tensor, CenterUpdateRate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        index = check_classes(Label.reshape(-1).long(), Centers.shape[0], 0)
        difference = X - Centers.index_select(0, index)
        if self.need_update:
            sums = torch.zeros_like(Centers).index_add_(0, index, difference)
            counts = Centers.new_ones(Centers.shape[0]).index_add_(0, index, Centers.new_ones(index.shape[0]))
            Centers.add_(sums.mul_(CenterUpdateRate.reshape(())).div_(counts.unsqueeze(1)))
        return difference, difference.square().sum(1, keepdim=True).mul_(0.5), Centers

    def _infer_gradient(self, SampleCenterDiff: Spec, d_loss: Spec) -> Spec:
        require_rank(2, SampleCenterDiff, "SampleCenterDiff")
        check_made(Loss_GRAD=(d_loss, SampleCenterDiff.with_dims((SampleCenterDiff.known_dims[0], 1))))
        return SampleCenterDiff.like()

    @gradient("SampleCenterDiff", "Loss@GRAD", gives="X@GRAD", infer=_infer_gradient)
    def backward(self, SampleCenterDiff: Tensor, d_loss: Tensor) -> Tensor:
        return SampleCenterDiff * d_loss

    samples = [
        sample(X=f32(7, 5), Label=i64(7, 1, high=3), Centers=f32(4, 5), CenterUpdateRate=f32(1, data=[0.5]), cluster_num=4),
        sample(X=f32(7, 5), Label=i64(7, high=3), Centers=f32(4, 5), CenterUpdateRate=f32(1, data=[0.5]), need_update=True, differentiate=False),
        sample(X=f32(0, 5), Label=i64(0, 1), Centers=f32(4, 5), CenterUpdateRate=f32(data=0.5), need_update=True, differentiate=False),
    ]
    rejects = [reject(X=f32(7, 5), Label=i64(6, 1), Centers=f32(4, 5), CenterUpdateRate=f32(1), says="one number for each row of X")]
