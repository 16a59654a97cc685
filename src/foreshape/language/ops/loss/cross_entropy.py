"""The cross entropy of probabilities and a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, INDEX, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import require, require_equal
from foreshape.language.operator.samples import SampleTensor, f32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.loss.loss import check_classes, check_label, class_index, picking

_LOG_BOUND = 1e20
"""PaddlePaddle's bound for the infinite logarithm of a probability of 0."""


def _log_bound(tensor: Tensor) -> float:
    """Return the bound in the element type of a tensor; the largest number of half precision is less."""
    return min(_LOG_BOUND, torch.finfo(tensor.dtype).max)


def _is_bounded(p: Tensor) -> Tensor:
    """Return the mask of probabilities with a bounded logarithm, with a slope of 0, or with a 1 / p outside of the element type."""
    return p < torch.finfo(p.dtype).tiny


class CrossEntropy(Operator):
    """Y = -log of the probability of Label in X, along the last axis.

    With ``soft_label`` the Label is a distribution, and Y = -sum(Label * log X). The logarithm of 0 counts as -1e20, with a slope of 0 (PaddlePaddle's is
    infinite).
    """

    type = "cross_entropy"
    X = operand(FLOATING, doc="probabilities [..., classes]")
    Label = operand((*FLOATING, *INDEX), doc="class numbers [..., 1], or a distribution as X")
    Y = result(doc="[..., 1]; [...] if Label is")
    soft_label = attribute(AttrType.BOOLEAN, False)
    ignore_index = attribute(AttrType.INT, -100, doc="a class number with a loss and a gradient of zero")

    def infer_shape(self, X: Spec, Label: Spec) -> Spec:
        return X.with_dims(_loss_dims(X, Label, self.soft_label))

    def computes(self) -> computations.CrossEntropy:
        return computations.CrossEntropy(self.soft_label, self.ignore_index)

    def kernel(self, X: Tensor, Label: Tensor) -> Tensor:
        if self.soft_label:
            return (X.log().clamp_(min=-_log_bound(X)) * Label).sum(-1, keepdim=True).neg_()
        return _picked_loss(_picked(X, Label, self.ignore_index)[0], Label)

    def workspace(self, X: Spec, Label: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * X.nbytes if self.soft_label else _picking_workspace(X, Label) + copies(strided, X=X, Label=Label)

    def _gradient_workspace(self, X: Spec, Label: Spec, d_y: Spec) -> Size:
        return X.elements if self.soft_label else _picking_workspace(X, Label)

    @gradient("X", "Label", "Y@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Label: Tensor, d_y: Tensor) -> Tensor:
        if self.soft_label:
            return Label.div(X).mul_(d_y).neg_().masked_fill_(_is_bounded(X), 0.0)
        picked, index = _picked(X, Label, self.ignore_index)
        return _scattered(X.shape, picked, index, Label, d_y, self.ignore_index)

    samples = [
        sample(X=f32(4, 7, low=0.1, high=0.9), Label=i64(4, 1, high=6)),
        sample(X=f32(4, 7, low=0.1, high=0.9), Label=i64(4, 1, data=[[1], [-100], [3], [6]])),
        sample(X=f32(2, 3, 5, low=0.1, high=0.9), Label=i64(2, 3, 1, high=4), ignore_index=2),
        sample(X=f32(2, 3, 5, low=0.1, high=0.9), Label=i64(2, 3, high=4)),
        sample(X=f32(4, 7, low=0.1, high=0.9), Label=f32(4, 7, low=0.0, high=0.3), soft_label=True),
        sample(X=f32(0, 7, low=0.1, high=0.9), Label=i64(0, 1)),
    ]
    rejects = [
        reject(X=f32(4, 7), Label=i64(5, 1), says="X and Label must be of one minibatch"),
        reject(X=f32(4, 7), Label=f32(4, 1), says="class numbers", error=TypeMismatchError),
        reject(X=f32(4, 7), Label=i64(4, 7), soft_label=True, says="a soft Label must be floating-point", error=TypeMismatchError),
        reject(X=f32(4, 100), Label=f32(4, 10), soft_label=True, says="must have as many classes as X"),
        reject(X=f32(4, 7), Label=i64(4, 7), says="1 at the class axis"),
        reject(X=f32(), Label=i64(), says="X must have the axis of the classes"),
    ]


class CrossEntropy2(Operator):
    """Y = -log of the probability of the class number Label in X, along the last axis, as `cross_entropy`.

    MatchX is this probability, and XShape has the dims of X and a 0, and no data: the gradient needs no more of X.
    """

    type = "cross_entropy2"
    X = operand(FLOATING, doc="probabilities [..., classes]")
    Label = operand(INDEX, doc="class numbers [..., 1]")
    Y = result(doc="[..., 1]; [...] if Label is")
    MatchX = result(doc="[..., 1]")
    XShape = result(doc="[..., classes, 0]")
    ignore_index = attribute(AttrType.INT, -100, doc="a class number with a loss and a gradient of zero")

    def infer_shape(self, X: Spec, Label: Spec) -> tuple[Spec, Spec, Spec]:
        dims = X.known_dims
        y = X.with_dims(_loss_dims(X, Label, False))
        return y, X.with_dims((*dims[:-1], 1)), X.with_dims((*dims, 0))

    def kernel(self, X: Tensor, Label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        picked, _ = _picked(X, Label, self.ignore_index)
        return _picked_loss(picked, Label), picked, X.new_empty((*X.shape, 0))

    def workspace(self, X: Spec, Label: Spec, *, strided: frozenset[str]) -> Size:
        return _picking_workspace(X, Label) + copies(strided, X=X, Label=Label)

    def gradient_ops(self, slots: GradientSlots) -> None:
        if any(n in slots.available for n in slots.output("MatchX")):
            raise SchemaError("cross_entropy2 has no gradient through its result MatchX: nothing is to be trained through it")
        inputs = {"Label": slots.input("Label"), "MatchX": slots.output("MatchX"), "XShape": slots.output("XShape"), "Y@GRAD": slots.grad_of_output("Y")}
        slots.add("cross_entropy_grad2", inputs, {"X@GRAD": slots.input("X")}, {"ignore_index": self.ignore_index})

    samples = [
        sample(X=f32(4, 7, low=0.1, high=0.9), Label=i64(4, 1, high=6)),
        sample(X=f32(2, 3, 5, low=0.1, high=0.9), Label=i64(2, 3, 1, high=4), ignore_index=2),
        sample(X=f32(4, 7, low=0.1, high=0.9), Label=i64(4, data=[1, -100, 3, 6])),
        sample(X=f32(0, 7, low=0.1, high=0.9), Label=i64(0, 1)),
    ]
    rejects = [reject(X=f32(4, 7), Label=i64(5, 1), says="X and Label must be of one minibatch")]


def _d_y(value: SampleTensor) -> dict[str, Any]:
    return {"Y@GRAD": value}


class CrossEntropyGrad2(Operator):
    """The gradient of cross_entropy2, under PaddlePaddle's name for it."""

    type = "cross_entropy_grad2"
    Label = operand(INDEX, doc="class numbers [..., 1]")
    MatchX = operand(FLOATING, doc="the probabilities at Label, [..., 1]")
    XShape = operand(FLOATING, doc="[..., classes, 0]")
    d_y = replace(operand(FLOATING, doc="as Label"), name="Y@GRAD")
    d_x = replace(result(doc="[..., classes]"), name="X@GRAD")
    ignore_index = attribute(AttrType.INT, -100)
    gradient = NOT_WRITTEN

    def infer_shape(self, *specs: Spec) -> Spec:
        label, match, shape, d_y = specs
        dims = shape.known_dims
        require(len(dims) > 1, "XShape must have the dims of X and a 0", XShape=None)
        x = shape.with_dims(dims[:-1])
        of_x = x.with_dims((*x.known_dims[:-1], 1))
        require(len(match.known_dims) == of_x.rank, "MatchX must have the rank of X", MatchX=None)
        for axis, (a, b) in enumerate(zip(match.known_dims, of_x.known_dims, strict=True)):
            require_equal(a, b, "MatchX must have the dims of X, with 1 at the class axis", MatchX=axis, XShape=axis)
        y = _loss_dims(x, label, False)
        require(len(y) == len(d_y.known_dims), "Y@GRAD must have the rank of Label", Label=None, **{"Y@GRAD": None})
        for axis, (a, b) in enumerate(zip(y, d_y.known_dims, strict=True)):
            require_equal(a, b, "Y@GRAD must have the dims of the loss", **{"XShape": axis, "Y@GRAD": axis})
        return x

    def workspace(self, *specs: Spec) -> Size:
        return _picking_workspace(specs[1], specs[0])

    def kernel(self, *tensors: Tensor) -> Tensor:
        label, match, shape, d_y = tensors
        index = check_classes(class_index(match, label, -1), shape.shape[-2], self.ignore_index)
        index = index.masked_fill(index == self.ignore_index, 0)
        return _scattered(shape.shape[:-1], match, index, label, d_y, self.ignore_index)

    samples = [
        sample(Label=i64(4, 1, data=[[1], [-100], [3], [6]]), MatchX=f32(4, 1, low=0.1), XShape=f32(4, 7, 0), **_d_y(f32(4, 1))),
        sample(Label=i64(2, 3, high=4), MatchX=f32(2, 3, 1, low=0.1), XShape=f32(2, 3, 5, 0), **_d_y(f32(2, 3))),
    ]
    rejects = [
        reject(Label=i64(4, 1), MatchX=f32(3, 1), XShape=f32(4, 7, 0), says="MatchX must have the dims of X", **_d_y(f32(4, 1))),
        reject(Label=i64(4, 1), MatchX=f32(4, 1), XShape=f32(4, 7, 0), says="Y@GRAD must have the dims of the loss", **_d_y(f32(3, 1))),
    ]


def _loss_dims(x: Spec, label: Spec, soft: bool) -> tuple[Size, ...]:
    """Return the dims of a loss along the last axis of ``x``; without it if the label has no axis for the class."""
    rank = len(x.known_dims)
    require(rank > 0, "X must have the axis of the classes", X=None)
    dims = check_label(x, label, rank - 1, soft, "X")
    return dims if len(label.known_dims) == rank else dims[:-1]


def _picking_workspace(x: Spec, label: Spec) -> Size:
    """Return the bytes to pick the probabilities at the labels and to compute with them."""
    return picking(label) + 2 * x.known_dtype.itemsize * label.elements


def _picked(x: Tensor, label: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return the probabilities at the labels (1 where ignored, for a loss of 0), and the labels as an index (0 where ignored)."""
    index = check_classes(class_index(x, label, -1), x.shape[-1], ignore_index)
    ignored = index == ignore_index
    index = index.masked_fill(ignored, 0)
    return x.gather(-1, index).masked_fill_(ignored, 1.0), index


def _picked_loss(picked: Tensor, label: Tensor) -> Tensor:
    loss = picked.log().neg_().clamp_(max=_log_bound(picked))
    return loss if label.dim() == loss.dim() else loss.squeeze(-1)


def _scattered(shape: Sequence[int], picked: Tensor, index: Tensor, label: Tensor, d_y: Tensor, ignore_index: int) -> Tensor:
    """Return the gradient of the probabilities: -d_y / picked at the labels, zero elsewhere, where ignored, and where the loss is bounded."""
    nothing = (label.reshape(picked.shape) == ignore_index).logical_or_(_is_bounded(picked))
    grad = d_y.reshape(picked.shape).div(picked).neg_().masked_fill_(nothing, 0.0)
    return grad.new_zeros(shape).scatter_(-1, index, grad)
