"""sigmoid_focal_loss: a loss of many independent classes with a small weight for easy examples."""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.errors import TypeMismatchError
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import require, require_equal, require_rank
from foreshape.operator.samples import f32, i32, reject, sample
from foreshape.spec import FP32, FP64, INT32, Spec
from foreshape.values.torch_proxy import F, Tensor, torch

_LEAST = 1.1754943508222875e-38
"""The least operand of a logarithm."""


class SigmoidFocalLoss(Operator):
    """Out = for each class of each example -alpha (1 - p)^gamma log(p) / n if Label is the class, -(1 - alpha) p^gamma log(1 - p) / n otherwise.

    Here p = 1 / (1 + exp(-X)) and n = max(FgNum, 1). Classes are numbered from 1 in Label; an example with 0 has no class, and one with -1 does not count.
    Source: Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017.
    """

    type = "sigmoid_focal_loss"
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
        own, other = self._parts(X, Label, FgNum)
        p = X.sigmoid()
        out = own.mul_((1 - p).pow_(self.gamma)).mul_(p.clamp(min=_LEAST).log_())
        return out.add_(other.mul_(p.pow_(self.gamma)).mul_(F.logsigmoid(-X))).neg_()

    @gradient("X", "Label", "FgNum", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Label: Tensor, FgNum: Tensor, d_out: Tensor) -> Tensor:
        own, other = self._parts(X, Label, FgNum)
        p = X.sigmoid()
        rest = 1 - p
        own.mul_(rest.pow(self.gamma)).mul_(rest - p.clamp(min=_LEAST).log_().mul_(p).mul_(self.gamma))
        other.mul_(p.pow(self.gamma)).mul_(F.logsigmoid(-X).mul_(rest).mul_(self.gamma).sub_(p))
        return own.add_(other).neg_().mul_(d_out)

    samples = [
        sample(X=f32(4, 3), Label=i32(4, 1, data=[[1], [0], [-1], [3]]), FgNum=i32(1, data=[2])),
        sample(X=f32(2, 5), Label=i32(2, 1, low=0, high=5), FgNum=i32(1, data=[0]), gamma=1.5, alpha=0.6),
        sample(X=f32(0, 3), Label=i32(0, 1), FgNum=i32(1, data=[2])),
    ]
    rejects = [
        reject(X=f32(4, 3), Label=i32(5, 1), FgNum=i32(1), says="one Label for each row"),
        reject(X=f32(4, 3), Label=i32(4, 2), FgNum=i32(1), says="1 column"),
        reject(X=f32(4, 3), Label=i32(4, 1), FgNum=i32(2), says="one number"),
        reject(X=f32(4), Label=i32(4, 1), FgNum=i32(1), says="X must have 2 dims"),
        reject(X=f32(4, 3), Label=f32(4, 1), FgNum=i32(1), says="int32", error=TypeMismatchError),
    ]
