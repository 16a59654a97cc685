"""The area under the ROC curve of a classifier, from counts of its scores."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.errors import ExecutionError, SchemaError
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require, require_at_most, require_equal, require_rank
from foreshape.operator.samples import f32, i64, reject, sample
from foreshape.spec import FP32, FP64, INT64, Spec
from foreshape.values.torch_proxy import Tensor, torch


class Auc(Operator):
    """AUC = the area under the curve of true positives over false ones, by ``num_thresholds`` steps of the score.

    StatPos and StatNeg count, for each step, the positive and the negative examples. Without ``slide_steps`` they count all examples so far. With it they have
    the counts of the last ``slide_steps`` minibatches, one after the other. Then come the sums of these, and last the number of minibatches so far. An
    example's score is the last column of Predict. If all examples are of one kind the area is 0.
    """

    type = "auc"
    gradient = NOT_DIFFERENTIABLE
    Predict = operand((FP32, FP64), doc="[examples, 1 or 2]: scores from 0 to 1")
    Label = operand((INT64,), doc="[examples, 1]: 0, or 1")
    StatPos = operand((INT64,), doc="num_thresholds + 1 numbers; with slide_steps (slide_steps + 1) times as many, and one")
    StatNeg = operand((INT64,), doc="as StatPos")
    InsTagWeight = operand(optional=True, doc="must be absent: not supported")
    AUC = result(doc="fp64, one number without dims")
    StatPosOut = result(updates="StatPos", doc="StatPos")
    StatNegOut = result(updates="StatNeg", doc="StatNeg")
    curve = attribute(AttrType.STRING, "ROC", choices=("ROC",))
    num_thresholds = attribute(AttrType.INT, 4095, low=1, high=2**24)
    slide_steps = attribute(AttrType.INT, 1, low=0)

    def infer_shape(self, Predict: Spec, Label: Spec, StatPos: Spec, StatNeg: Spec, InsTagWeight: Spec | None) -> Any:
        require(InsTagWeight is None, "InsTagWeight is not supported", InsTagWeight=None)
        require_rank(2, Predict, "Predict")
        require_at_most(1, Predict.known_dims[1], "Predict must have 1 or 2 columns", Predict=1)
        require_at_most(Predict.known_dims[1], 2, "Predict must have 1 or 2 columns", Predict=1)
        require_equal(Label.elements, Predict.known_dims[0], "there must be a label for each row of Predict", Label=None, Predict=0)
        steps = self.num_thresholds + 1
        wanted = steps * (self.slide_steps + 1) + 1 if self.slide_steps else steps
        for slot, spec in (("StatPos", StatPos), ("StatNeg", StatNeg)):
            require_equal(spec.elements, wanted, f"{slot} must have {wanted} numbers", **{slot: None})
        return Predict.dense((), FP64), StatPos.like(), StatNeg.like()

    def workspace(self, Predict: Spec, Label: Spec, StatPos: Spec, StatNeg: Spec, InsTagWeight: Spec | None) -> Size:
        return 48 * Label.elements + 96 * (self.num_thresholds + 1)

    def kernel(self, Predict: Tensor, Label: Tensor, StatPos: Tensor, StatNeg: Tensor, InsTagWeight: Tensor | None) -> Any:
        score, label = Predict[:, -1], Label.reshape(-1) != 0
        if len(score) and not (float(score.min()) >= 0 and float(score.max()) <= 1):
            raise ExecutionError(f"Predict must be from 0 to 1; seen {float(score.min())} to {float(score.max())}")
        at = (score * self.num_thresholds).long()
        positive, negative = self._counted(StatPos.view(-1), at[label]), self._counted(StatNeg.view(-1), at[~label])
        over, under = positive.flip(0).cumsum(0).double(), negative.flip(0).cumsum(0).double()
        wide = torch.cat([under[:1], under[1:] - under[:-1]])
        before = torch.cat([over.new_zeros(1), over[:-1]])
        whole = over[-1] * under[-1]
        area = ((over + before) * wide).sum() / 2
        return torch.where(whole > 0, area / whole.clamp(min=1), torch.zeros_like(area)), StatPos, StatNeg

    def _counted(self, counts: Tensor, at: Tensor) -> Tensor:
        """Add a minibatch to the counts, and return the counts of the area."""
        steps = self.num_thresholds + 1
        now = torch.bincount(at, minlength=steps)
        if not self.slide_steps:
            return counts.add_(now)
        turn = int(counts[-1]) % self.slide_steps
        here, total = counts[turn * steps : (turn + 1) * steps], counts[self.slide_steps * steps : -1]
        total += now - here
        here.copy_(now)
        counts[-1] += 1
        return total

    samples = [
        sample(Predict=f32(5, 2, low=0.0, high=1.0), Label=i64(5, 1, high=1), StatPos=i64(1, 8, high=3), StatNeg=i64(1, 8, high=3), num_thresholds=7,
               slide_steps=0),
        sample(Predict=f32(5, 1, low=0.0, high=1.0), Label=i64(5, 1, high=1), StatPos=i64(1, 8, high=3), StatNeg=i64(1, 8, high=3), num_thresholds=7,
               slide_steps=0),
        sample(Predict=f32(5, 2, low=0.0, high=1.0), Label=i64(5, 1, high=1), StatPos=i64(25, data=[*range(8), *[2] * 8, *range(2, 10), 5]),
               StatNeg=i64(25, data=[*range(8), *[2] * 8, *range(2, 10), 5]), num_thresholds=7, slide_steps=2),
        sample(Predict=f32(3, 2, low=0.0, high=1.0), Label=i64(3, 1, data=[[1], [1], [1]]), StatPos=i64(17, high=0), StatNeg=i64(17, high=0),
               num_thresholds=7),
    ]  # fmt: skip
    rejects = [
        reject(Predict=f32(5, 3), Label=i64(5, 1), StatPos=i64(1, 8), StatNeg=i64(1, 8), num_thresholds=7, slide_steps=0, says="1 or 2 columns"),
        reject(Predict=f32(5, 2), Label=i64(4, 1), StatPos=i64(1, 8), StatNeg=i64(1, 8), num_thresholds=7, slide_steps=0, says="a label for each row"),
        reject(Predict=f32(5, 2), Label=i64(5, 1), StatPos=i64(1, 8), StatNeg=i64(1, 8), num_thresholds=7, says="StatPos must have 17 numbers"),
        reject(Predict=f32(5, 2), Label=i64(5, 1), StatPos=i64(1, 8), StatNeg=i64(1, 8), curve="PR", says="one of", error=SchemaError),
    ]
