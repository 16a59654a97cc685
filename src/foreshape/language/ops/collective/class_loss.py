"""Cross-entropy over classes sharded over the ranks, without a gather of the classes."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, INDEX, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import AttrType, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_equal
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.collective.messages import ALL_REDUCE, Given, Messages
from foreshape.language.ops.collective.parts import COUNT_DOC
from foreshape.language.ops.collective.sums import Collective
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.machine.communication.process_group import ProcessGroup, team_of


class CSoftmaxWithCrossEntropy(Collective):
    """Loss = -log softmax(Logits)[Label] over the classes of all ranks. A rank's first class is its number times its count of classes.

    Three messages of a number for each example take over the ranks the largest logit, the sum of exp(logit - largest) and the logit of the label. The loss is
    log sum + largest - logit of the label. Loss is 0 where Label is ``ignore_index``.
    """

    type = "c_softmax_with_cross_entropy"
    Logits = operand(FLOATING, doc="[*, classes of this rank]")
    Label = operand(INDEX, doc="[*, 1], numbers of all classes")
    Softmax = result(doc="as Logits: the probabilities of this rank's classes")
    Loss = result(doc="as Label, of the type of Logits")
    ignore_index = attribute(AttrType.LONG, -100, doc="the label of an example without loss")
    rank = attribute(AttrType.INT, 0, low=0, doc="the rank the program was made for; ignored: the running rank's own number counts")
    nranks = attribute(AttrType.INT, 0, low=0, doc=COUNT_DOC)

    def _team(self) -> ProcessGroup | None:
        return team_of(self.ring_id, self.nranks, self.type)

    def sends(self, given: Given) -> Messages:
        """Return the messages: per example the largest logit, the sum over the classes, and the logit of its label."""
        (logits,), (label,) = given.specs["Logits"], given.specs["Label"]
        return [(ALL_REDUCE, label.elements * logits.known_dtype.itemsize)] * 3

    def infer_shape(self, Logits: Spec, Label: Spec) -> Any:
        return self._result_specs(Logits, Label)

    def _result_specs(self, Logits: Spec, Label: Spec) -> tuple[Spec, Spec]:
        require(Logits.rank > 0, "Logits must have at least 1 dim", Logits=None)
        require(Label.rank == Logits.rank, f"Label must have as many dims as Logits, {Logits.rank}; it has {Label.rank}", Label=None)
        for axis, (a, b) in enumerate(zip(Logits.known_dims[:-1], Label.known_dims, strict=False)):
            require_equal(a, b, "Label must have the dims of Logits, but for the last", Label=axis)
        require_equal(Label.known_dims[-1], 1, "the last dim of Label must be 1", Label=Label.rank - 1)
        return Logits.like(), Logits.with_dims(Label.known_dims)

    def workspace(self, Logits: Spec, Label: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Logits=Logits, Label=Label) + 2 * Logits.nbytes + (4 * Logits.known_dtype.itemsize + _EACH) * Label.elements

    def _own_classes(self, Label: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Return the labels as indices of this rank's classes (0 for those of other ranks), and the mask of its own labels."""
        team = self._team()
        index = Label.long() - (0 if team is None else team.rank * classes)
        mine = (index >= 0) & (index < classes) & (Label != self.ignore_index)
        return index.masked_fill_(~mine, 0), mine

    def _check(self, Label: Tensor, classes: int) -> None:
        outside = (Label < 0) | (Label >= classes)
        if bool(outside.logical_and_(Label != self.ignore_index).any()):
            finding = f"{int(Label.min())} to {int(Label.max())}"
            raise ExecutionError(f"{self.type}: Label must be in [0, {classes}), the classes of all ranks, or {self.ignore_index}; seen {finding}")

    def kernel(self, Logits: Tensor, Label: Tensor) -> tuple[Tensor, Tensor]:
        team, classes = self._team(), Logits.shape[-1]
        if not classes:
            return Logits.clone(), Logits.new_zeros(Label.shape)
        largest = Logits.amax(-1, keepdim=True)
        if team is not None:
            team.reduce(largest, "max", self.type)
        softmax = torch.exp(Logits - largest)
        total = softmax.sum(-1, keepdim=True)
        if team is not None:
            team.sum(total, self.type)
        self._check(Label, classes * (1 if team is None else team.ranks))
        index, mine = self._own_classes(Label, classes)
        chosen = Logits.gather(-1, index).sub_(largest).masked_fill_(~mine, 0.0)
        if team is not None:
            team.sum(chosen, self.type)
        loss = total.log().sub_(chosen).masked_fill_(Label == self.ignore_index, 0.0)
        return softmax.div_(total), loss

    def _infer_gradient(self, Softmax: Spec, Label: Spec, d_loss: Spec) -> Spec:
        check_made(Loss_GRAD=(d_loss, self._result_specs(Softmax, Label)[1]))
        return Softmax.like()

    def _gradient_workspace(self, Softmax: Spec, Label: Spec, d_loss: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Softmax=Softmax, Label=Label, Loss_GRAD=d_loss) + (2 * Softmax.known_dtype.itemsize + _EACH) * Label.elements

    @gradient("Softmax", "Label", "Loss@GRAD", gives="Logits@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, Softmax: Tensor, Label: Tensor, d_loss: Tensor) -> Tensor:
        classes = Softmax.shape[-1]
        d = d_loss.masked_fill(Label == self.ignore_index, 0.0)
        out = Softmax * d
        if classes:
            index, mine = self._own_classes(Label, classes)
            out.scatter_add_(-1, index, d.neg_().masked_fill_(~mine, 0.0))
        return out

    samples = [
        sample(Logits=f32(4, 6), Label=i64(4, 1, data=[[0], [5], [2], [-100]])),
        sample(Logits=f32(2, 3, 5), Label=i64(2, 3, 1, high=4), ignore_index=2),
        sample(Logits=f32(0, 5), Label=i64(0, 1)),
    ]
    rejects = [
        reject(Logits=f32(4, 6), Label=i64(4), says="Label must have as many dims as Logits"),
        reject(Logits=f32(4, 6), Label=i64(3, 1), says="the dims of Logits, but for the last"),
        reject(Logits=f32(), Label=i64(), says="at least 1 dim"),
    ]


_EACH = 3 * 8 + 4
"""Bytes for each label: its class here, and its place in the mask."""
