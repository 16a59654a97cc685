"""Losses of class numbers: the negative log likelihood, the focal loss, and label smoothing."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, FP32, FP64, INDEX, INT32, INT64, Spec
from foreshape.core.values.torch_proxy import F, Tensor, aten, aten_into, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.totals import SUM, Total, Totals
from foreshape.language.ops.loss.loss import check_classes
from foreshape.language.ops.rules.gradient_dims import check_made

_REDUCTIONS = ("none", "mean", "sum")
"""As torch's kernels number them."""


class NllLoss(Operator):
    """Out = -Weight[Label] * X[Label] for each label, 0 where it is ``ignore_index``; X is the logarithm of distributions along axis 1.

    ``reduction``: "none"; or their "sum"; or their "mean", the sum over Total_weight (0 where Total_weight is 0). Total_weight is the sum of Weight[Label]
    where the label is not ignored, and 0 for "none". Without Weight all weights are 1.
    """

    type = "nll_loss"
    gradient_reads_dims = ("X",)
    X = operand(FLOATING, doc="[examples, classes] or [examples, classes, height, width]")
    Label = operand(INDEX, doc="class numbers, as X without axis 1")
    Weight = operand(FLOATING, optional=True, same_type_as="X", doc="[classes]")
    Out = result(doc="as Label for none, otherwise []")
    Total_weight = result(doc="[]")
    ignore_index = attribute(AttrType.LONG, -100)
    reduction = attribute(AttrType.STRING, "mean", choices=_REDUCTIONS)

    def infer_shape(self, X: Spec, Label: Spec, Weight: Spec | None) -> tuple[Spec, Spec]:
        dims = X.known_dims
        require(len(dims) in (2, 4), f"X must have 2 or 4 dims, not {len(dims)}", X=None)
        require_rank(len(dims) - 1, Label, "Label", like=(dims[0], *dims[2:]))
        for axis, size in enumerate(Label.known_dims):
            place = axis if axis == 0 else axis + 1
            require_equal(size, dims[place], "X and Label must be of one minibatch: their dims must be equal", X=place, Label=axis)
        if Weight is not None:
            require_rank(1, Weight, "Weight")
            require_equal(Weight.known_dims[0], dims[1], "Weight must have one number for each class of X", Weight=0, X=1)
        require_at_most(1, dims[1], "X must have at least 1 class", X=1)
        return X.with_dims(Label.known_dims if self.reduction == "none" else ()), X.dense(())

    def totals(self) -> Totals:
        if self.reduction == "none":
            return {}
        return {"Out": Total(by=("Total_weight",)) if self.reduction == "mean" else SUM, "Total_weight": SUM}

    def _weights(self, X: Tensor, Label: Tensor, Weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the labels as an index (0 where ignored), and the weight of each (0 where ignored)."""
        index = check_classes(Label.long(), X.shape[1], self.ignore_index)
        counted = index != self.ignore_index
        index = index * counted
        return index, Weight.take(index).masked_fill_(counted.logical_not_(), 0.0)

    def workspace(self, X: Spec, Label: Spec, Weight: Spec | None, *, strided: frozenset[str]) -> Size:
        weight_bytes = 0 if Weight is None else 9 + 3 * X.known_dtype.itemsize
        return (weight_bytes + (0 if Label.dtype is INT64 else 8)) * Label.elements + copies(strided, X=X, Label=Label, Weight=Weight)

    def _unweighted(self, X: Tensor, Label: Tensor) -> tuple[Tensor, Tensor]:
        index, forward = Label.long(), aten.nll_loss_forward if X.dim() == 2 else aten.nll_loss2d_forward
        if not X.is_cpu:
            index = check_classes(index, X.shape[1], self.ignore_index)  # a kernel of a GPU that stops ends all work on it
        try:
            out, total = forward(X, index, None, _REDUCTIONS.index(self.reduction), self.ignore_index)
        except IndexError:
            check_classes(index, X.shape[1], self.ignore_index)
            raise
        if self.reduction == "none":
            return out, X.new_zeros(())  # torch's kernel for GPUs writes no total
        return (torch.where(total == 0.0, 0.0, out) if self.reduction == "mean" else out), total

    def kernel(self, X: Tensor, Label: Tensor, Weight: Tensor | None) -> tuple[Tensor, Tensor]:
        if Weight is None:
            return self._unweighted(X, Label)
        index, weights = self._weights(X, Label, Weight)
        losses = X.gather(1, index.unsqueeze(1)).squeeze(1).mul_(weights).neg_()
        losses.masked_fill_(weights == 0.0, 0.0)  # not the NaN of an infinite logarithm
        if self.reduction == "none":
            return losses, X.new_zeros(())
        total = weights.sum()
        if self.reduction == "sum":
            return losses.sum(), total
        return torch.where(total == 0.0, 0.0, losses.sum() / total), total

    def _gradient_workspace(self, X: Spec, Label: Spec, Weight: Spec | None, d_out: Spec, Total_weight: Spec, *, strided: frozenset[str]) -> Size:
        return NllLoss.workspace(self, X, Label, Weight, strided=strided)  # pyright: ignore[reportArgumentType]

    def _infer_gradient(self, X: Spec, Label: Spec, Weight: Spec | None, d_out: Spec, Total_weight: Spec) -> Spec:
        out, total = NllLoss.infer_shape(self, X, Label, Weight)  # pyright: ignore[reportArgumentType]
        check_made(Out_GRAD=(d_out, out), Total_weight=(Total_weight, total))
        return X.like()

    @gradient("X", "Label", "Weight", "Out@GRAD", "Total_weight", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Label: Tensor, Weight: Tensor | None, d_out: Tensor, Total_weight: Tensor) -> Tensor:
        if Weight is None:
            out = X.new_empty(X.shape)
            index = check_classes(Label.long(), X.shape[1], self.ignore_index)  # torch's kernel of images compares not all: it would write beside its memory
            back = aten_into.nll_loss_backward if X.dim() == 2 else aten_into.nll_loss2d_backward
            return back(d_out, X, index, None, _REDUCTIONS.index(self.reduction), self.ignore_index, Total_weight, into=out)
        index, weights = self._weights(X, Label, Weight)
        slopes = weights.mul_(d_out).neg_()
        if self.reduction == "mean":
            slopes.div_(torch.where(Total_weight == 0.0, 1.0, Total_weight))
        return X.new_zeros(X.shape).scatter_(1, index.unsqueeze(1), slopes.unsqueeze(1))

    samples = [
        sample(X=f32(4, 7), Label=i64(4, high=6)),
        sample(X=f32(4, 7), Label=i64(4, data=[1, 2, 3, 6]), Weight=f32(7, low=0.1), ignore_index=2),
        sample(X=f32(2, 5, 3, 4), Label=i64(2, 3, 4, high=4), Weight=f32(5, low=0.1), reduction="sum"),
        sample(X=f32(2, 5, 3, 4), Label=i64(2, 3, 4, high=4), reduction="none", ignore_index=1),
        sample(X=f32(2, 5, 3, 4), Label=i64(2, 3, 4, high=4), Weight=f32(5, low=0.1)),
        sample(X=f32(3, 5), Label=i64(3, data=[2, 2, 2]), ignore_index=2),
        sample(X=f32(0, 7), Label=i64(0)),
    ]
    rejects = [
        reject(X=f32(4, 7), Label=i64(5), says="of one minibatch"),
        reject(X=f32(4, 7), Label=i64(4, 1), says="Label must have 1 dims"),
        reject(X=f32(4, 7, 3), Label=i64(4, 3), says="X must have 2 or 4 dims"),
        reject(X=f32(4, 7), Label=i64(4), Weight=f32(6), says="one number for each class"),
    ]


class LabelSmooth(Operator):
    """Out = (1 - epsilon) * X + epsilon * PriorDist; without PriorDist it is 1 over the number of classes (Szegedy et al., 2016)."""

    type = "label_smooth"
    X = operand(FLOATING, doc="distributions [..., classes]")
    PriorDist = operand(FLOATING, optional=True, same_type_as="X", doc="classes numbers, usually [1, classes]")
    Out = result(doc="as X", may_share="X")
    epsilon = attribute(AttrType.FLOAT, 0.0, low=0.0, high=1.0)

    def infer_shape(self, X: Spec, PriorDist: Spec | None) -> Spec:
        require(X.rank > 0, "X must have the axis of the classes", X=None)
        classes = X.known_dims[-1]
        if PriorDist is not None:
            require_equal(PriorDist.elements, classes, "PriorDist must have one number for each class of X", PriorDist=None, X=X.rank - 1)
        else:
            require_at_most(1, classes, "X must have at least 1 class", X=X.rank - 1)
        return X.like()

    def workspace(self, X: Spec, PriorDist: Spec | None) -> Size:
        return 0 if PriorDist is None else PriorDist.nbytes

    def kernel(self, X: Tensor, PriorDist: Tensor | None, *, into: Tensor | None = None) -> Tensor:
        epsilon: float = self.epsilon
        out = torch.mul(X, 1.0 - epsilon, out=into)
        return out.add_(epsilon / X.shape[-1]) if PriorDist is None else out.add_(PriorDist.reshape(-1), alpha=epsilon)

    @gradient("Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"}, may_share={"X@GRAD": "Out@GRAD"})
    def backward(self, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.mul(d_out, 1.0 - self.epsilon, out=into)

    samples = [
        sample(X=f32(4, 7), epsilon=0.1),
        sample(X=f32(2, 3, 5), PriorDist=f32(1, 5, low=0.0, high=1.0), epsilon=0.25),
        sample(X=f32(5), PriorDist=f32(5, low=0.0, high=1.0), epsilon=0.25),
        sample(X=f32(0, 7), epsilon=0.1),
    ]
    rejects = [
        reject(X=f32(4, 7), PriorDist=f32(1, 6), says="one number for each class"),
        reject(X=f32(), says="the axis of the classes"),
    ]


_LEAST = 1.1754943508222875e-38
"""The least operand of a logarithm."""


class SigmoidFocalLoss(Operator):
    """Out = for each class of each example -alpha (1 - p)^gamma log(p) / n if Label is the class, -(1 - alpha) p^gamma log(1 - p) / n otherwise.

    Here p = 1 / (1 + exp(-X)) and n = max(FgNum, 1). Classes are numbered from 1 in Label; an example with 0 has no class, and one with -1 does not count.
    Source: Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017.
    """

    type = "sigmoid_focal_loss"
    takes_scores = ("X",)
    X = operand((FP32, FP64), doc="[examples, classes]")
    Label = operand((INT32,), doc="[examples, 1]")
    FgNum = operand((INT32,), doc="one number: the count of examples with a class")
    Out = result(doc="as X")
    gamma = attribute(AttrType.FLOAT, 2.0)
    alpha = attribute(AttrType.FLOAT, 0.25)

    def infer_shape(self, X: Spec, Label: Spec, FgNum: Spec) -> Spec:
        require_rank(2, X, "X")
        require_rank(2, Label, "Label", like=(X.known_dims[0], 1))
        require_equal(Label.known_dims[1], 1, "Label must have 1 column", Label=1)
        require_equal(X.known_dims[0], Label.known_dims[0], "there must be one Label for each row of X", X=0, Label=0)
        require(FgNum.rank > 0, "FgNum must have a dim", FgNum=None)
        require_equal(FgNum.elements, 1, "FgNum must be one number", FgNum=None)
        return X.like()

    def _parts(self, X: Tensor, Label: Tensor, FgNum: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of each element for its own class, and for another class; 0 elsewhere."""
        number = FgNum.reshape(-1).clamp(min=1).to(X.dtype)
        is_own = Label == torch.arange(1, X.shape[1] + 1, dtype=Label.dtype, device=Label.device)
        is_other = (Label != -1) & ~is_own
        return is_own * (self.alpha / number), is_other * ((1.0 - self.alpha) / number)

    def workspace(self, X: Spec, Label: Spec, FgNum: Spec) -> Size:
        return 8 * X.nbytes + 16 * X.known_dims[1]

    def _gradient_workspace(self, X: Spec, Label: Spec, FgNum: Spec, d_out: Spec) -> Size:
        return 9 * X.nbytes + 16 * X.known_dims[1]

    def kernel(self, X: Tensor, Label: Tensor, FgNum: Tensor) -> Tensor:
        positive, negative = self._parts(X, Label, FgNum)
        p = X.sigmoid()
        out = positive.mul_((1 - p).pow_(self.gamma)).mul_(p.clamp(min=_LEAST).log_())
        return out.add_(negative.mul_(p.pow_(self.gamma)).mul_(F.logsigmoid(-X))).neg_()

    @gradient("X", "Label", "FgNum", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Label: Tensor, FgNum: Tensor, d_out: Tensor) -> Tensor:
        positive, negative = self._parts(X, Label, FgNum)
        p = X.sigmoid()
        complement = 1 - p
        positive.mul_(complement.pow(self.gamma)).mul_(complement - p.clamp(min=_LEAST).log_().mul_(p).mul_(self.gamma))
        negative.mul_(p.pow(self.gamma)).mul_(F.logsigmoid(-X).mul_(complement).mul_(self.gamma).sub_(p))
        return positive.add_(negative).neg_().mul_(d_out)

    samples = [
        sample(X=f32(4, 3), Label=i32(4, 1, data=[[1], [0], [-1], [3]]), FgNum=i32(1, data=[2])),
        sample(X=f32(2, 5), Label=i32(2, 1, low=0, high=5), FgNum=i32(1, data=[0]), gamma=1.5, alpha=0.6),
        sample(X=f32(0, 3), Label=i32(0, 1), FgNum=i32(1, data=[2])),
    ]
