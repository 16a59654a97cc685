"""Measures of how good predictions are: accuracy, the area under the ROC curve, precision and recall."""

from __future__ import annotations

from typing import Any, ClassVar

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, FP32, FP64, INDEX, INT32, INT64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.totals import SUM, Total, Totals


class Accuracy(Operator):
    """Accuracy = the part of the rows with their Label among Indices; Correct is their number, and Total the number of rows.

    All three have the element type of Out, as PaddlePaddle describes them. Without rows the accuracy is 0. A row with NaN in Out is not right.
    """

    type = "accuracy"
    Out = operand(FLOATING, doc="[rows, k]: the k largest scores")
    Indices = operand(INDEX, doc="[rows, k]: the classes of these scores")
    Label = operand(INDEX, doc="[rows, 1]")
    Accuracy = result(doc="[]")
    Correct = result(doc="[]")
    Total = result(doc="[]")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Out: Spec, Indices: Spec, Label: Spec) -> tuple[Spec, Spec, Spec]:
        require_rank(2, Indices, "Indices")
        require_rank(2, Out, "Out")
        require_rank(2, Label, "Label", like=(Indices.known_dims[0], 1))
        for axis in (0, 1):
            require_equal(Out.known_dims[axis], Indices.known_dims[axis], "Out must have the dims of Indices", Out=axis, Indices=axis)
        require_equal(Indices.known_dims[0], Label.known_dims[0], "Indices and Label must be of one minibatch", Indices=0, Label=0)
        require_equal(Label.known_dims[1], 1, "Label must have 1 column", Label=1)
        number = Out.dense(())
        return number, number, number

    def totals(self) -> Totals:
        return {"Accuracy": Total(by=("Total",)), "Correct": SUM, "Total": SUM}

    def workspace(self, Out: Spec, Indices: Spec, Label: Spec) -> Size:
        return (1 if Indices.dtype is Label.dtype else 9) * Indices.elements + 2 * Out.elements + Label.nbytes

    def kernel(self, Out: Tensor, Indices: Tensor, Label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = Indices.shape[0]
        right = (Indices == Label).any(1)
        if Out.numel():  # NaN is the largest score: a row has it first
            right &= ~Out.isnan().any(1)
        correct = right.sum().to(Out.dtype)
        return correct / max(rows, 1), correct, torch.full((), rows, dtype=Out.dtype, device=Out.device)

    samples = [
        sample(Out=f32(4, 3), Indices=i64(4, 3, high=6), Label=i64(4, 1, high=6)),
        sample(Out=f32(5, 1), Indices=i64(5, 1, high=2), Label=i32(5, 1, high=2)),
        sample(Out=f32(0, 1), Indices=i64(0, 1), Label=i64(0, 1)),
    ]


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
        required = steps * (self.slide_steps + 1) + 1 if self.slide_steps else steps
        for slot, spec in (("StatPos", StatPos), ("StatNeg", StatNeg)):
            require_equal(spec.elements, required, f"{slot} must have {required} numbers", **{slot: None})
        return Predict.dense((), FP64), StatPos.like(), StatNeg.like()

    def workspace(self, Predict: Spec, Label: Spec, StatPos: Spec, StatNeg: Spec, InsTagWeight: Spec | None) -> Size:
        return 48 * Label.elements + 96 * (self.num_thresholds + 1)

    def kernel(self, Predict: Tensor, Label: Tensor, StatPos: Tensor, StatNeg: Tensor, InsTagWeight: Tensor | None) -> Any:
        score, label = Predict[:, -1], Label.reshape(-1) == 1
        if bool((~label & (Label.reshape(-1) != 0)).any()):
            raise ExecutionError(f"auc: Label must be 0 or 1; seen {int(Label.min())} to {int(Label.max())}")
        if len(score) and not (float(score.min()) >= 0 and float(score.max()) <= 1):
            raise ExecutionError(f"auc: Predict must be from 0 to 1; seen {float(score.min())} to {float(score.max())}")
        bins = (score * self.num_thresholds).long()
        positive, negative = self._counted(StatPos.view(-1), bins[label]), self._counted(StatNeg.view(-1), bins[~label])
        hits, under = positive.flip(0).cumsum(0).double(), negative.flip(0).cumsum(0).double()
        wide = torch.cat([under[:1], under[1:] - under[:-1]])
        previous = torch.cat([hits.new_zeros(1), hits[:-1]])
        rectangle = hits[-1] * under[-1]
        area = ((hits + previous) * wide).sum() / 2
        return torch.where(rectangle > 0, area / rectangle.clamp(min=1), torch.zeros_like(area)), StatPos, StatNeg

    def _counted(self, counts: Tensor, bins: Tensor) -> Tensor:
        """Add a minibatch to the counts, and return the counts of the area."""
        steps = self.num_thresholds + 1
        batch = torch.bincount(bins, minlength=steps)
        if not self.slide_steps:
            return counts.add_(batch)
        turn = int(counts[-1]) % self.slide_steps
        window, total = counts[turn * steps : (turn + 1) * steps], counts[self.slide_steps * steps : -1]
        total += batch - window
        window.copy_(batch)
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
    ]


_FLOATS = (FP32, FP64)


class PrecisionRecall(Operator):
    """BatchMetrics and AccumMetrics = precision, recall and F1 score of the minibatch, and of it with StatesInfo.

    Each has the means over the classes of precision and of recall, and the F1 score of these two means. Then come the same three of the counts of all classes
    together.

    AccumStatesInfo has for each class its true positives, false positives, true negatives and false negatives so far. Precision and recall of an absent class
    are 1. A row of Weights weighs its row of Indices, the predicted classes, and of Labels.
    """

    type = "precision_recall"
    gradient = NOT_DIFFERENTIABLE
    MaxProbs = operand(_FLOATS, doc="[rows, 1]: the largest scores")
    Indices = operand((INT32,), doc="[rows, 1]")
    Labels = operand((INT32,), doc="[rows, 1]")
    Weights = operand(_FLOATS, optional=True, same_type_as="MaxProbs", doc="[rows, 1]")
    StatesInfo = operand(_FLOATS, optional=True, same_type_as="MaxProbs", doc="[class_number, 4]")
    BatchMetrics = result(doc="fp64 [6]")
    AccumMetrics = result(doc="fp64 [6]")
    AccumStatesInfo = result(doc="[class_number, 4]")
    class_number = attribute(AttrType.INT, low=1, high=1 << 24)

    def infer_shape(self, MaxProbs: Spec, Indices: Spec, Labels: Spec, Weights: Spec | None, StatesInfo: Spec | None) -> Any:
        for slot, spec in (("MaxProbs", MaxProbs), ("Indices", Indices), ("Labels", Labels), ("Weights", Weights)):
            if spec is not None:
                require_rank(2, spec, slot)
                require_equal(spec.known_dims[0], MaxProbs.known_dims[0], f"{slot} must have as many rows as MaxProbs", **{"MaxProbs": 0, slot: 0})
                require_equal(spec.known_dims[1], 1, f"{slot} must have 1 column", **{slot: 1})
        if StatesInfo is not None:
            require_rank(2, StatesInfo, "StatesInfo")
            require_equal(StatesInfo.known_dims[0], self.class_number, f"StatesInfo must have {self.class_number} rows, one for each class", StatesInfo=0)
            require_equal(StatesInfo.known_dims[1], 4, "StatesInfo must have 4 columns", StatesInfo=1)
        metrics = MaxProbs.dense((6,), FP64)
        return metrics, metrics, MaxProbs.dense((self.class_number, 4))

    def workspace(self, MaxProbs: Spec, *operands: Spec | None) -> Size:
        return 64 * MaxProbs.elements + 256 * self.class_number

    def kernel(self, MaxProbs: Tensor, Indices: Tensor, Labels: Tensor, Weights: Tensor | None, StatesInfo: Tensor | None) -> Any:
        count = self.class_number
        predicted, label = Indices.reshape(-1).long(), Labels.reshape(-1).long()
        for slot, numbers in (("Indices", predicted), ("Labels", label)):
            if bool(((numbers < 0) | (numbers >= count)).any()):
                raise ExecutionError(f"precision_recall: {slot} must be from 0 to {count - 1}; seen {int(numbers.min())} to {int(numbers.max())}")
        if bool(MaxProbs.isnan().any()):
            raise ExecutionError(f"precision_recall: MaxProbs must be numbers other than NaN; seen nan in {int(MaxProbs.isnan().sum())} rows")
        weight = MaxProbs.new_ones(len(predicted)) if Weights is None else Weights.reshape(-1)
        right = torch.where(predicted == label, weight, 0.0)
        wrong = weight - right
        states = MaxProbs.new_zeros(count, 4)
        states[:, 0].index_add_(0, label, right)
        states[:, 1].index_add_(0, predicted, wrong)
        states[:, 3].index_add_(0, label, wrong)
        states[:, 2] = weight.sum() - states[:, 0] - states[:, 1] - states[:, 3]
        batch = self._metrics(states)
        if StatesInfo is not None:
            states += StatesInfo
        return batch, self._metrics(states), states

    def _metrics(self, states: Tensor) -> Tensor:
        measures: list[Tensor] = []
        for counts, averaged in ((states, True), (states.sum(0, keepdim=True), False)):
            true, false, missed = counts[:, 0], counts[:, 1], counts[:, 3]
            shares = [torch.where((true > 0) | (errors > 0), true / (true + errors), 1.0) for errors in (false, missed)]
            precision, recall = (x.mean() if averaged else x[0] for x in shares)
            total = precision + recall
            measures += [precision, recall, torch.where(total > 0.0, 2.0 * precision * recall / total, 0.0)]
        return torch.stack(measures).double()

    _rows: ClassVar[dict[str, Any]] = {
        "MaxProbs": f32(7, 1, low=0.0, high=1.0),
        "Indices": i32(7, 1, data=[[0], [2], [1], [2], [2], [0], [1]]),
        "Labels": i32(7, 1, data=[[0], [2], [2], [1], [2], [1], [0]]),
    }
    samples = [
        sample(**_rows, class_number=3),
        sample(**_rows, class_number=5, Weights=f32(7, 1, low=0.5, high=2.0), StatesInfo=f32(5, 4, low=0.0, high=9.0)),
        sample(**_rows, class_number=4, StatesInfo=f32(4, 4, low=0.0, high=9.0)),
    ]
    rejects = [reject(MaxProbs=f32(4, 1), Indices=i32(4, 1), Labels=i32(4, 1), StatesInfo=f32(2, 4), class_number=3, says="3 rows, one for each class")]
