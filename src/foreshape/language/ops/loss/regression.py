"""Losses elementwise: of regression, and of independent probabilities."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_same_dims
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies, one_like
from foreshape.language.operator.totals import SUM, Total, Totals
from foreshape.language.ops.rules.gradient_dims import check_made


class SigmoidCrossEntropyWithLogits(Operator):
    """Out = max(X, 0) - X * Label + log(1 + exp(-|X|)): the cross entropy of sigmoid(X) and Label, elementwise.

    It is 0 where Label is ``ignore_index``; ``normalize`` divides it by the number of the other elements. ``pos_weight`` multiplies the logarithm alone, as in
    PaddlePaddle 2.6.2 (for negative X this does not weigh the positive examples).
    """

    type = "sigmoid_cross_entropy_with_logits"
    takes_scores = ("X",)
    X = operand(FLOATING, doc="any shape")
    Label = operand(FLOATING, same_type_as="X", doc="as X, in [0, 1]")
    pos_weight = operand(FLOATING, optional=True, same_type_as="X", doc="as X")
    Out = result(doc="as X")
    normalize = attribute(AttrType.BOOLEAN, False)
    ignore_index = attribute(AttrType.INT, -100)

    def infer_shape(self, X: Spec, Label: Spec, pos_weight: Spec | None) -> Spec:
        require_same_dims(X, Label, "X", "Label")
        if pos_weight is not None:
            require_same_dims(X, pos_weight, "X", "pos_weight")
        return X.like()

    def _masked(self, out: Tensor, label: Tensor) -> Tensor:
        ignored = label == self.ignore_index
        out.masked_fill_(ignored, 0.0)
        return out.div_((ignored.numel() - torch.count_nonzero(ignored)).clamp_(min=1)) if self.normalize else out

    def workspace(self, X: Spec, Label: Spec, pos_weight: Spec | None, *, strided: frozenset[str]) -> Size:
        return X.nbytes + copies(strided, X=X)

    def kernel(self, X: Tensor, Label: Tensor, pos_weight: Tensor | None) -> Tensor:
        if pos_weight is None:
            return self._masked(aten.binary_cross_entropy_with_logits(X, Label, None, None, 0), Label)
        logarithm = X.abs().neg_().exp_().log1p_()
        return self._masked(X.clamp(min=0.0).addcmul_(X, Label, value=-1.0).addcmul_(logarithm, pos_weight), Label)

    def _gradient_workspace(self, X: Spec, Label: Spec, pos_weight: Spec | None, d_out: Spec) -> Size:
        return X.elements + (0 if pos_weight is None else X.nbytes)

    @gradient("X", "Label", "pos_weight", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Label: Tensor, pos_weight: Tensor | None, d_out: Tensor) -> Tensor:
        if pos_weight is None:
            return self._masked(torch.sigmoid(X).sub_(Label).mul_(d_out), Label)
        slope = torch.sign(X)
        slope.mul_(X.abs().neg_().sigmoid_()).mul_(pos_weight).neg_().add_(X > 0)
        return self._masked(slope.sub_(Label).mul_(d_out), Label)

    samples = [
        sample(X=f32(2, 3, 5), Label=f32(2, 3, 5, low=0.0, high=1.0)),
        sample(X=f32(5), Label=f32(5, data=[0.0, 1.0, -1.0, 0.25, -1.0]), ignore_index=-1, normalize=True),
        sample(X=f32(0, 4), Label=f32(0, 4), normalize=True),
        sample(X=f32(2, 3), Label=f32(2, 3, low=0.0, high=1.0), pos_weight=f32(2, 3, low=0.5, high=3.0)),
        sample(X=f32(5), Label=f32(5, data=[0.0, 1.0, -1.0, 0.25, -1.0]), pos_weight=f32(5, low=0.5, high=3.0), ignore_index=-1, normalize=True),
    ]


class HuberLoss(Operator):
    """Residual = Y - X; Out = Residual^2 / 2 where |Residual| <= ``delta``, otherwise delta * (|Residual| - delta / 2) (Huber, 1964)."""

    type = "huber_loss"
    X = operand(FLOATING, doc="any shape")
    Y = operand(FLOATING, same_type_as="X", doc="as X")
    Residual = result(doc="as X")
    Out = result(doc="as X")
    delta = attribute(AttrType.FLOAT, low=0.0)

    def infer_shape(self, X: Spec, Y: Spec) -> tuple[Spec, Spec]:
        require_same_dims(X, Y, "X", "Y")
        return X.like(), X.like()

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return X.nbytes

    def kernel(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        residual = torch.sub(Y, X)
        size = residual.abs()
        inside = size.clamp(max=self.delta)  # inside * (size - inside / 2) is both pieces
        return residual, size.sub_(inside, alpha=0.5).mul_(inside)

    def _infer_gradient(self, Residual: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        check_made(Out_GRAD=(d_out, Residual))
        return Residual.like(), Residual.like()

    @gradient("Residual", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), like={"X@GRAD": "Residual", "Y@GRAD": "Residual"}, infer=_infer_gradient)
    def backward(self, Residual: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_y = Residual.clamp(-self.delta, self.delta).mul_(d_out)
        return d_y.neg() if requested[0] else None, d_y if requested[1] else None

    samples = [sample(X=f32(4, 1), Y=f32(4, 1), delta=1.0), sample(X=f32(2, 3, 5), Y=f32(2, 3, 5), delta=0.5), sample(X=f32(0, 1), Y=f32(0, 1), delta=1.0)]
    rejects = [reject(X=f32(4, 1), Y=f32(4, 2), delta=1.0, says="Y must have the dims of X")]


class BceLoss(Operator):
    """Out = -Label * log(X) - (1 - Label) * log(1 - X), elementwise; a logarithm counts as at least -100."""

    type = "bce_loss"
    X = operand(FLOATING, doc="probabilities, any shape")
    Label = operand(FLOATING, same_type_as="X", doc="as X, in [0, 1]")
    Out = result(doc="as X")

    def infer_shape(self, X: Spec, Label: Spec) -> Spec:
        require_same_dims(X, Label, "X", "Label")
        return X.like()

    def kernel(self, X: Tensor, Label: Tensor) -> Tensor:
        return aten.binary_cross_entropy(X, Label, None, 0)

    @gradient("X", "Label", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Label: Tensor, d_out: Tensor) -> Tensor:
        return aten.binary_cross_entropy_backward(d_out, X, Label, None, 0)

    samples = [sample(X=f32(2, 3, 5, low=0.1, high=0.9), Label=f32(2, 3, 5, low=0.0, high=1.0)), sample(X=f32(0, 3), Label=f32(0, 3))]


class LogLoss(Operator):
    """Loss = -Labels * log(Predicted + epsilon) - (1 - Labels) * log(1 - Predicted + epsilon), elementwise."""

    type = "log_loss"
    Predicted = operand(FLOATING, doc="probabilities, any shape")
    Labels = operand(FLOATING, same_type_as="Predicted", doc="as Predicted, 0 or 1")
    Loss = result(doc="as Predicted")
    epsilon = attribute(AttrType.FLOAT)

    def infer_shape(self, Predicted: Spec, Labels: Spec) -> Spec:
        require_same_dims(Predicted, Labels, "Predicted", "Labels")
        return Predicted.like()

    def workspace(self, Predicted: Spec, Labels: Spec) -> Size:
        return Predicted.nbytes

    def kernel(self, Predicted: Tensor, Labels: Tensor) -> Tensor:
        loss = (1.0 + self.epsilon - Predicted).log_().mul_(1.0 - Labels)
        return loss.add_((Predicted + self.epsilon).log_().mul_(Labels)).neg_()

    @gradient("Predicted", "Labels", "Loss@GRAD", gives="Predicted@GRAD", workspace=one_like("Predicted"))
    def backward(self, Predicted: Tensor, Labels: Tensor, d_loss: Tensor) -> Tensor:
        zeros = (1.0 - Labels).div_(1.0 + self.epsilon - Predicted)
        ones = Predicted + self.epsilon
        return zeros.sub_(torch.div(Labels, ones, out=ones)).mul_(d_loss)

    samples = [sample(Predicted=f32(4, 1, low=0.1, high=0.9), Labels=f32(4, 1, low=0.0, high=1.0), epsilon=1e-4)]
    rejects = [reject(Predicted=f32(4, 1), Labels=f32(3, 1), epsilon=1e-4, says="Labels must have the dims of Predicted")]


class KldivLoss(Operator):
    """Loss = Target * (log(Target) - X), elementwise, 0 where Target is not above 0; X is the logarithm of a distribution.

    With ``log_target`` Target is one, too: Loss = exp(Target) * (Target - X).
    ``reduction``: "none", or its "sum", its "mean", or "batchmean", the sum over the size of dim 0.
    """

    type = "kldiv_loss"
    gradient_reads_dims = ("X",)
    X = operand(FLOATING, doc="any shape, with a dim 0 for batchmean")
    Target = operand(FLOATING, same_type_as="X", doc="as X")
    Loss = result(doc="as X for none, otherwise []")
    reduction = attribute(AttrType.STRING, "mean", choices=["none", "sum", "mean", "batchmean"])
    log_target = attribute(AttrType.BOOLEAN, False, since=3)

    def infer_shape(self, X: Spec, Target: Spec) -> Spec:
        require_same_dims(X, Target, "X", "Target")
        require(len(X.known_dims) > 0 or self.reduction != "batchmean", "X must have a dim 0 for batchmean", X=None)
        return X.like() if self.reduction == "none" else X.dense(())

    def totals(self) -> Totals:
        if self.reduction == "none":
            return {}
        return {"Loss": SUM if self.reduction == "sum" else Total(of="X", rows=self.reduction == "batchmean")}

    def _count(self, x: Tensor) -> int:
        return x.numel() if self.reduction == "mean" else x.shape[0] if self.reduction == "batchmean" else 1

    def workspace(self, X: Spec, Target: Spec) -> Size:
        return X.nbytes if self.reduction == "none" else 2 * X.nbytes

    def kernel(self, X: Tensor, Target: Tensor) -> Tensor:
        if self.log_target:
            loss = torch.exp(Target).mul_(Target - X)
        else:
            loss = torch.xlogy(Target, Target).sub_(Target * X).masked_fill_(Target <= 0, 0.0)
        return loss if self.reduction == "none" else loss.sum().div_(self._count(X))

    @gradient("X", "Target", "Loss@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Target: Tensor, d_loss: Tensor) -> Tensor:
        return (torch.exp(Target) if self.log_target else Target.clamp(min=0.0)).mul_(d_loss).div_(-self._count(X))

    samples = [
        *(sample(X=f32(4, 7), Target=f32(4, 7, low=0.1, high=0.9), reduction=r) for r in ("none", "sum", "mean", "batchmean")),
        *(sample(X=f32(4, 7), Target=f32(4, 7, low=-3.0), reduction=r, log_target=True) for r in ("none", "batchmean")),
        sample(X=f32(), Target=f32(low=0.1, high=0.9)),
    ]
    rejects = [reject(X=f32(), Target=f32(), reduction="batchmean", says="X must have a dim 0 for batchmean")]
