"""Losses of one number for each example: of a score and a label, or of two scores in the right order."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, INDEX, INT64, Spec
from foreshape.core.values.torch_proxy import F, Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank, require_same_dims
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.operator.temporaries import copies, one_like
from foreshape.language.ops.loss.loss import check_classes, class_index
from foreshape.language.ops.rules.gradient_dims import check_made


def check_columns(first: str, **specs: Spec) -> Spec:
    """Require [examples, 1] for all, with equal numbers of examples. Returns the spec of ``first``."""
    for slot, spec in specs.items():
        require_rank(2, spec, slot, like=(*spec.known_dims[:1], 1))
        require_equal(spec.known_dims[1], 1, f"{slot} must have 1 column", **{slot: 1})
        require_equal(spec.known_dims[0], specs[first].known_dims[0], f"{slot} must have as many rows as {first}", **{slot: 0, first: 0})
    return specs[first].like()


class HingeLoss(Operator):
    """Loss = max(0, 1 - Logits * (2 * Labels - 1)), for labels of 0 and 1."""

    type = "hinge_loss"
    Logits = operand(FLOATING, doc="[examples, 1]")
    Labels = operand(FLOATING, same_type_as="Logits", doc="[examples, 1], 0 or 1")
    Loss = result(doc="[examples, 1]")

    def infer_shape(self, Logits: Spec, Labels: Spec) -> Spec:
        return check_columns("Logits", Logits=Logits, Labels=Labels)

    def kernel(self, Logits: Tensor, Labels: Tensor) -> Tensor:
        return (Labels * 2.0).sub_(1.0).mul_(Logits).neg_().add_(1.0).clamp_min_(0.0)

    def _gradient_workspace(self, Logits: Spec, Labels: Spec, d_loss: Spec) -> Size:
        return 2 * Logits.nbytes + Logits.elements

    @gradient("Logits", "Labels", "Loss@GRAD", gives="Logits@GRAD", workspace=_gradient_workspace)
    def backward(self, Logits: Tensor, Labels: Tensor, d_loss: Tensor) -> Tensor:
        signs = (Labels * 2.0).sub_(1.0)
        return (signs * Logits >= 1.0).logical_not_() * signs.neg_().mul_(d_loss)

    samples = [
        sample(Logits=f32(7, 1, distinct=True), Labels=f32(7, 1, data=[[0], [1], [1], [0], [0], [1], [1]])),
        sample(Logits=f32(0, 1), Labels=f32(0, 1)),
    ]
    rejects = [reject(Logits=f32(4, 1), Labels=f32(3, 1), says="Labels must have as many rows as Logits")]


class RankLoss(Operator):
    """Out = log(1 + exp(Left - Right)) - Label * (Left - Right), where Label is 1 if Left should be higher (Burges et al., 2005)."""

    type = "rank_loss"
    Label = operand(FLOATING, doc="[examples] or [examples, 1], from 0 to 1")
    Left = operand(FLOATING, same_type_as="Label", doc="as Label")
    Right = operand(FLOATING, same_type_as="Label", doc="as Label")
    Out = result(doc="as Label")

    def infer_shape(self, Label: Spec, Left: Spec, Right: Spec) -> Spec:
        if Label.rank != 1:
            check_columns("Label", Label=Label, Left=Left, Right=Right)
        require_same_dims(Label, Left, "Label", "Left")
        require_same_dims(Label, Right, "Label", "Right")
        return Left.like()

    def workspace(self, Label: Spec, Left: Spec, Right: Spec) -> Size:
        return Left.nbytes

    def kernel(self, Label: Tensor, Left: Tensor, Right: Tensor) -> Tensor:
        difference = Left - Right
        return F.softplus(difference).sub_(difference.mul_(Label))

    def _gradient_workspace(self, Label: Spec, Left: Spec, Right: Spec, d_out: Spec) -> Size:
        return Left.nbytes

    @gradient("Label", "Left", "Right", "Out@GRAD", gives=("Left@GRAD", "Right@GRAD"), workspace=_gradient_workspace)
    def backward(self, Label: Tensor, Left: Tensor, Right: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_left = (Left - Right).sigmoid_().sub_(Label).mul_(d_out)
        return d_left if requested[0] else None, d_left.neg() if requested[1] else None

    samples = [
        sample(Label=f32(7, 1, low=0.0, high=1.0), Left=f32(7, 1), Right=f32(7, 1)),
        sample(Label=f32(7, low=0.0, high=1.0), Left=f32(7), Right=f32(7)),
        sample(Label=f32(0, 1), Left=f32(0, 1), Right=f32(0, 1)),
    ]
    rejects = [
        reject(Label=f32(4, 2), Left=f32(4, 2), Right=f32(4, 2), says="Label must have 1 column"),
        reject(Label=f32(4, 1), Left=f32(4, 1), Right=f32(3, 1), says="Right must have as many rows as Label"),
        reject(Label=f32(4), Left=f32(4, 1), Right=f32(4), says="Left must have the dims of Label"),
    ]


class MarginRankLoss(Operator):
    """Out = max(0, -Label * (X1 - X2) + margin), where Label is 1 if X1 should be higher, and otherwise -1. Of PaddlePaddle 1.

    Activated is 1 where Out is above 0.
    """

    type = "margin_rank_loss"
    Label = operand(FLOATING, doc="[examples, 1], 1 or -1")
    X1 = operand(FLOATING, same_type_as="Label", doc="[examples, 1]")
    X2 = operand(FLOATING, same_type_as="Label", doc="[examples, 1]")
    Activated = result(doc="[examples, 1]")
    Out = result(doc="[examples, 1]")
    margin = attribute(AttrType.FLOAT, 0.0)

    def infer_shape(self, Label: Spec, X1: Spec, X2: Spec) -> tuple[Spec, Spec]:
        out = check_columns("Label", Label=Label, X1=X1, X2=X2)
        return out, out

    def workspace(self, Label: Spec, X1: Spec, X2: Spec) -> Size:
        return X1.elements

    def kernel(self, Label: Tensor, X1: Tensor, X2: Tensor) -> tuple[Tensor, Tensor]:
        out = (X2 - X1).mul_(Label).add_(self.margin).clamp_min_(0.0)
        return (out > 0.0).to(out.dtype), out

    def _infer_gradient(self, Label: Spec, Activated: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        check_made(Activated=(Activated, Label), Out_GRAD=(d_out, Label))
        return Label.like(), Label.like()

    @gradient("Label", "Activated", "Out@GRAD", gives=("X1@GRAD", "X2@GRAD"), infer=_infer_gradient, workspace=one_like("Label"))
    def backward(self, Label: Tensor, Activated: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d = (d_out * Activated).mul_(Label)
        return d.neg() if requested[0] else None, d if requested[1] else None

    samples = [
        sample(Label=f32(7, 1, data=[[-1], [1], [1], [-1], [-1], [1], [1]]), X1=f32(7, 1), X2=f32(7, 1), margin=0.1),
        sample(Label=f32(0, 1), X1=f32(0, 1), X2=f32(0, 1)),
    ]
    rejects = [reject(Label=f32(4, 2), X1=f32(4, 2), X2=f32(4, 2), says="Label must have 1 column")]


class BprLoss(Operator):
    """Y = the mean over the classes j, other than Label's, of log(1 + exp(X[j] - X[Label])) (Rendle et al., 2009).

    (In PaddlePaddle each of these is at most about 46 where the exponential is too large for its element type.)
    """

    type = "bpr_loss"
    X = operand(FLOATING, doc="[..., classes], 2 classes or more")
    Label = operand(INDEX, doc="class numbers [..., 1]")
    Y = result(doc="[..., 1]")

    def infer_shape(self, X: Spec, Label: Spec) -> Spec:
        dims, label = X.known_dims, Label.known_dims
        require(len(dims) > 0, "X must have the axis of the classes", X=None)
        require_rank(len(dims), Label, "Label", like=(*dims[:-1], 1))
        for axis, (a, b) in enumerate(zip(dims[:-1], label[:-1], strict=False)):
            require_equal(a, b, "X and Label must be of one minibatch: their dims must be equal", X=axis, Label=axis)
        require_equal(label[-1], 1, "Label must have 1 at the class axis", Label=len(label) - 1)
        require_at_most(2, dims[-1], "X must have at least 2 classes", X=len(dims) - 1)
        return X.with_dims((*dims[:-1], 1))

    def workspace(self, X: Spec, Label: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * X.nbytes + (0 if Label.dtype is INT64 else 8 * Label.elements) + 2 * X.known_dtype.itemsize * Label.elements + copies(strided, X=X)

    def _differences(self, X: Tensor, Label: Tensor) -> tuple[Tensor, Tensor]:
        index = check_classes(class_index(X, Label, -1), X.shape[-1], 0)
        return X - X.gather(-1, index), index

    def kernel(self, X: Tensor, Label: Tensor) -> Tensor:
        differences, index = self._differences(X, Label)
        terms = F.softplus(differences).scatter_(-1, index, 0.0)  # the label's own is log 2
        return terms.sum(-1, keepdim=True).div_(X.shape[-1] - 1)

    def _gradient_workspace(self, X: Spec, Label: Spec, d_y: Spec, *, strided: frozenset[str]) -> Size:
        return BprLoss.workspace(self, X, Label, strided=strided)  # pyright: ignore[reportArgumentType]

    @gradient("X", "Label", "Y@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Label: Tensor, d_y: Tensor) -> Tensor:
        differences, index = self._differences(X, Label)
        slopes = differences.sigmoid_().scatter_(-1, index, 0.0).mul_(d_y / (X.shape[-1] - 1))
        return slopes.scatter_(-1, index, -slopes.sum(-1, keepdim=True))

    samples = [
        sample(X=f32(4, 7), Label=i64(4, 1, high=6)),
        sample(X=f32(2, 3, 5), Label=i64(2, 3, 1, high=4)),
        sample(X=f32(0, 7), Label=i64(0, 1)),
    ]
    rejects = [
        reject(X=f32(4, 7), Label=i64(5, 1), says="of one minibatch"),
        reject(X=f32(4, 7), Label=i64(4, 7), says="Label must have 1 at the class axis"),
        reject(X=f32(4, 7), Label=i64(4), says="Label must have 2 dims"),
        reject(X=f32(4, 1), Label=i64(4, 1), says="at least 2 classes"),
    ]


class TeacherStudentSigmoidLoss(Operator):
    """The cross entropy of sigmoid(X) and a click, plus the one of sigmoid(X) and a teacher's score. Label has both:

    -2 is no click and no score, -1 a click and no score; from 0 to 1 no click and the score Label; from 1 a click and the score Label - 1. The gradient is 0
    where X is at or beyond one of the bounds.
    """

    type = "teacher_student_sigmoid_loss"
    X = operand(FLOATING, doc="[examples, 1], logits")
    Label = operand(FLOATING, same_type_as="X", doc="[examples, 1]")
    Y = result(doc="[examples, 1]")
    soft_max_up_bound = attribute(AttrType.FLOAT, 15.0)
    soft_max_lower_bound = attribute(AttrType.FLOAT, -15.0)

    def infer_shape(self, X: Spec, Label: Spec) -> Spec:
        return check_columns("X", X=X, Label=Label)

    def _parts(self, Label: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of cross entropies, and the sum of the factors of X in them."""
        has_score = (Label >= 0.0).to(Label.dtype)
        click = torch.where(Label < 0.0, Label >= -1.0, Label >= 1.0).to(Label.dtype)
        return has_score + 1.0, torch.where(Label < 0.0, click, Label)

    def workspace(self, X: Spec, Label: Spec) -> Size:
        return 6 * X.nbytes + 2 * X.elements

    def kernel(self, X: Tensor, Label: Tensor) -> Tensor:
        count, targets = self._parts(Label)
        return F.softplus(X).mul_(count).sub_(targets.mul_(X))

    def _gradient_workspace(self, X: Spec, Label: Spec, d_y: Spec) -> Size:
        return 6 * X.nbytes + 2 * X.elements

    @gradient("X", "Label", "Y@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Label: Tensor, d_y: Tensor) -> Tensor:
        count, targets = self._parts(Label)
        slope = torch.sigmoid(X).mul_(count).sub_(targets).mul_(d_y)
        return slope.masked_fill_((self.soft_max_up_bound <= X) | (self.soft_max_lower_bound >= X), 0.0)

    samples = [
        sample(X=f32(7, 1), Label=f32(7, 1, data=[[-2], [-1], [0], [0.25], [0.75], [1], [1.5]])),
        sample(X=f32(5, 1, data=[[-3], [-2], [0.5], [2], [3]]), Label=f32(5, 1, data=[[-2], [-1], [0.5], [0.25], [1.5]]), soft_max_up_bound=1.5,
               soft_max_lower_bound=-1.5, differentiate=False),
        sample(X=f32(0, 1), Label=f32(0, 1)),
    ]  # fmt: skip
