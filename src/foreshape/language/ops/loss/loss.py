"""The cross entropy of logits and a label, and the checks of a classification's label."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, INDEX, INT64, Spec
from foreshape.core.values.late_checks import classes_within, limited, no_class
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import axis_of, fail, how_to_fit, require_equal
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made


def picking(label: Spec) -> Size:
    """Return the bytes to pick the elements at labels: the mask of ignored ones, the labels without them, and other types as int64."""
    return (9 if label.dtype is INT64 else 17) * label.elements


def check_label(x: Spec, label: Spec, axis: int, soft: bool, x_slot: str) -> tuple[Any, ...]:
    """Return the dims of a classification loss: ``x`` with 1 at ``axis``. The label is a distribution or a class number."""
    dims = x.known_dims
    dtype = label.known_dtype
    if soft and not dtype.is_floating:
        fail(f"a soft Label must be floating-point, not {dtype.name}", TypeMismatchError, Label=None)
    if not soft and not dtype.is_integer:
        how = "layer.cast(label, 'int64') makes them of it, and for a distribution say soft_label=True"
        fail(f"Label must hold class numbers (int32, int64), not {dtype.name}; {how}", TypeMismatchError, Label=None)
    label_dims = label.known_dims
    slots: dict[str, Any] = {x_slot: None, "Label": None}
    if not soft and len(label_dims) == len(dims) - 1:
        label_dims = (*label_dims[:axis], 1, *label_dims[axis:])
    if len(label_dims) != len(dims):
        required = dims if soft else (*dims[:axis], 1, *dims[axis + 1 :])
        fail(f"Label must have {len(dims)} dims, as {x_slot} has, not {len(label_dims)}{how_to_fit('Label', label_dims, required)}", **slots)
    for place, (a, b) in enumerate(zip(dims, label_dims, strict=True)):
        if place != axis:
            require_equal(a, b, f"{x_slot} and Label must be of one minibatch: their dims must be equal", **{x_slot: place, "Label": place})
        elif soft:
            require_equal(a, b, f"the distribution in Label must have as many classes as {x_slot}", **{x_slot: place, "Label": place})
        else:
            one_hot = "one-hot rows are a distribution, of floats, with soft_label=True"
            require_equal(b, 1, f"a Label of class numbers must have 1 at the class axis; {one_hot}", **{x_slot: place, "Label": place})
    return (*dims[:axis], 1, *dims[axis + 1 :])


def class_index(x: Tensor, label: Tensor, axis: int) -> Tensor:
    """Return class numbers as int64 with 1 at ``axis``, in the rank of ``x``."""
    label = label if label.dim() == x.dim() else label.unsqueeze(axis)
    return label if label.dtype == torch.int64 else label.long()


class SoftmaxWithCrossEntropy(Operator):
    """Softmax = softmax(Logits) along ``axis``; Loss = -log of the probability of Label in Softmax.

    With ``soft_label`` the Label is a distribution, and Loss = -sum(Label * log Softmax).
    """

    type = "softmax_with_cross_entropy"
    takes_scores = ("Logits",)
    Logits = operand(FLOATING, doc="[..., classes, ...]")
    Label = operand((*FLOATING, *INDEX), doc="class numbers with 1 at axis, or a distribution as Logits")
    Softmax = result(doc="as Logits")
    Loss = result(doc="as Logits, with 1 at axis")
    soft_label = attribute(AttrType.BOOLEAN, False)
    ignore_index = attribute(AttrType.INT, -100, doc="a class number with a loss and a gradient of zero")
    axis = attribute(AttrType.INT, -1)
    numeric_stable_mode = attribute(AttrType.BOOLEAN, True)
    use_softmax = attribute(AttrType.BOOLEAN, True, doc="False: Logits are probabilities already")

    def infer_shape(self, Logits: Spec, Label: Spec) -> tuple[Spec, Spec]:
        axis = axis_of(self.axis, Logits.rank, Logits=None)
        dims = check_label(Logits, Label, axis, self.soft_label, "Logits")
        return Logits.like(), Logits.with_dims(dims)

    def computes(self) -> computations.SoftmaxCrossEntropy | None:
        plain = self.use_softmax and not self.soft_label
        return computations.SoftmaxCrossEntropy(self.axis, self.ignore_index) if plain else None

    def kernel(self, Logits: Tensor, Label: Tensor, *, requested: tuple[bool, ...]) -> Any:
        log_p = torch.log_softmax(Logits, self.axis) if self.use_softmax else Logits.log()
        loss = self._loss(log_p, Label)
        if not requested[0]:
            return None, loss
        return log_p.exp_() if self.use_softmax else log_p.copy_(Logits), loss

    def _loss(self, log_p: Tensor, Label: Tensor) -> Tensor:
        if self.soft_label:
            return (Label * log_p).sum(self.axis, keepdim=True).neg_()
        index = class_index(log_p, Label, self.axis)
        axis: int = self.axis
        index = check_classes(index, log_p.shape[axis], self.ignore_index)
        ignored = index == self.ignore_index
        return log_p.gather(self.axis, index.masked_fill(ignored, 0)).masked_fill_(ignored, 0.0).neg_()

    def workspace(self, Logits: Spec, Label: Spec, *, requested: tuple[bool, ...], strided: frozenset[str]) -> Size:
        logs = 0 if requested[0] else Logits.nbytes
        return logs + (Label.nbytes if self.soft_label else picking(Label)) + copies(strided, Logits=Logits, Label=Label)

    def _gradient_workspace(self, Label: Spec, Softmax: Spec, d_loss: Spec) -> Size:
        return d_loss.nbytes if self.soft_label else picking(Label) + 2 * d_loss.nbytes

    def _infer_gradient(self, Label: Spec, Softmax: Spec, d_loss: Spec) -> Spec:
        check_made(Loss_GRAD=(d_loss, SoftmaxWithCrossEntropy.infer_shape(self, Softmax, Label)[1]))
        return Softmax.like()

    @gradient("Label", "Softmax", "Loss@GRAD", gives="Logits@GRAD", may_share={"Logits@GRAD": "Softmax"}, infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, Label: Tensor, Softmax: Tensor, d_loss: Tensor, *, into: Tensor | None = None) -> Tensor:
        if self.soft_label:
            if not self.use_softmax:
                return torch.div(Label, Softmax, out=into).neg_().mul_(d_loss)
            return torch.mul(Softmax, Label.sum(self.axis, keepdim=True), out=into).sub_(Label).mul_(d_loss)
        index = class_index(Softmax, Label, self.axis)
        ignored = index == self.ignore_index
        d_loss = d_loss.masked_fill(ignored, 0.0)
        axis: int = self.axis
        safe = limited(index.masked_fill(ignored, 0), Softmax.shape[axis])
        if not self.use_softmax:
            slopes = -d_loss / Softmax.gather(self.axis, safe)
            return (torch.zeros_like(Softmax) if into is None else into.zero_()).scatter_(self.axis, safe, slopes)
        return torch.mul(Softmax, d_loss, out=into).scatter_add_(self.axis, safe, -d_loss)

    samples = [
        sample(Logits=f32(4, 7), Label=i64(4, 1, high=6)),
        sample(Logits=f32(4, 7), Label=i64(4, 1, data=[[1], [-100], [3], [6]])),
        sample(Logits=f32(4, 7), Label=i64(4, 1, data=[[1], [2], [3], [6]]), ignore_index=2),
        sample(Logits=f32(2, 5, 3), Label=i64(2, 1, 3, high=4), axis=1),
        sample(Logits=f32(4, 7), Label=f32(4, 7, low=0.0, high=0.3), soft_label=True),
        sample(Logits=f32(4, 7, low=0.1, high=0.9), Label=i64(4, 1), use_softmax=False),
        sample(Logits=f32(0, 7), Label=i64(0, 1)),
    ]
    rejects = [
        reject(Logits=f32(4, 7), Label=i64(5, 1), says="one minibatch"),
        reject(Logits=f32(4, 7), Label=f32(4, 1), says="class numbers", error=TypeMismatchError),
        reject(Logits=f32(4, 7), Label=f32(4, 6), soft_label=True, says="as many classes"),
        reject(Logits=f32(4, 7), Label=i64(4, 7), says="1 at the class axis"),
    ]


def check_classes(index: Tensor, classes: int, ignore_index: int) -> Tensor:
    """Refuse a class number outside of 0..classes-1 (other than the ignored one): torch's kernels may not check it. Return them.

    On a device the refusal comes with the step's results, and the numbers are limited to the classes until then.
    """
    if not index.is_cpu:
        return classes_within(index, classes, ignore_index)
    if index.numel():
        low, high = index.aminmax()
        if (low.item() < 0 or high.item() >= classes) and bool((((index < 0) | (index >= classes)) & (index != ignore_index)).any()):
            raise no_class(classes, low.item(), high.item())
    return index
