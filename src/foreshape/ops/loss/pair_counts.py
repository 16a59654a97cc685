"""Counts of right and wrong answers over minibatches: pairs of a query, and precision and recall of classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from foreshape.dims import Size
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.operator import (
    NOT_DIFFERENTIABLE,
    AttrType,
    Operator,
    attribute,
    axis_of,
    f32,
    i32,
    i64,
    operand,
    reject,
    require,
    require_equal,
    require_rank,
    result,
    sample,
    torch,
)
from foreshape.operator.require import require_at_most
from foreshape.spec import FP32, FP64, INT32, INT64, Spec

if TYPE_CHECKING:
    from torch import Tensor

_FLOATS = (FP32, FP64)


class PositiveNegativePair(Operator):
    """Of each two rows of one query whose labels differ, by column ``column`` of Score: PositivePair counts those in which the row with the larger
    label has the larger score, NegativePair the others, NeutralPair (as part of these) those whose scores are equal.

    With Weight a pair counts as the mean of its two weights. The accumulated counts, which are given all or none, are added.
    """

    type = "positive_negative_pair"
    gradient = NOT_DIFFERENTIABLE
    Score = operand(_FLOATS, doc="[rows, columns]")
    Label = operand(_FLOATS, same_type_as="Score", doc="[rows, 1]")
    QueryID = operand((INT64,), doc="[rows, 1]")
    AccumulatePositivePair = operand(_FLOATS, optional=True, same_type_as="Score", doc="[1]")
    AccumulateNegativePair = operand(_FLOATS, optional=True, same_type_as="Score", doc="[1]")
    AccumulateNeutralPair = operand(_FLOATS, optional=True, same_type_as="Score", doc="[1]")
    Weight = operand(_FLOATS, optional=True, same_type_as="Score", doc="[rows, 1]")
    PositivePair = result(doc="[1]")
    NegativePair = result(doc="[1]")
    NeutralPair = result(doc="[1]")
    column = attribute(AttrType.INT, 0, doc="may count from the back")

    def infer_shape(self, *specs: Any) -> Any:
        Score, Label, QueryID, positive, negative, neutral, Weight = specs
        require_rank(2, Score, "Score")
        columns = Score.known_dims[1]
        if isinstance(columns, int):
            axis_of(self.column, columns, "column", Score=1)
        else:
            require_at_most(self.column + 1 if self.column >= 0 else -self.column, columns, f"Score must have a column {self.column}", Score=1)
        for slot, spec in (("Label", Label), ("QueryID", QueryID), ("Weight", Weight)):
            if spec is not None:
                require_rank(2, spec, slot)
                require_equal(spec.known_dims[0], Score.known_dims[0], f"{slot} must have as many rows as Score", **{"Score": 0, slot: 0})
                require_equal(spec.known_dims[1], 1, f"{slot} must have 1 column", **{slot: 1})
        given = [s for s in (positive, negative, neutral) if s is not None]
        require(len(given) in (0, 3), "the three accumulated counts must be given together", Score=None)
        for slot, spec in (("AccumulatePositivePair", positive), ("AccumulateNegativePair", negative), ("AccumulateNeutralPair", neutral)):
            if spec is not None:
                require_equal(spec.elements, 1, f"{slot} must hold one number", **{slot: None})
        out = Score.dense((1,))
        return out, out, out

    def workspace(self, Score: Spec, *others: Spec | None) -> Size:
        rows = Score.known_dims[0]
        return (4 * Score.known_dtype.itemsize + 8) * rows * rows + 64 * rows

    def kernel(self, *tensors: Any) -> Any:
        Score, Label, QueryID, *before, Weight = tensors
        if not -Score.shape[1] <= self.column < Score.shape[1]:
            raise ExecutionError(f"positive_negative_pair: column must be one of the {Score.shape[1]} of Score; seen {self.column}")
        score, label, query = Score[:, self.column], Label.reshape(-1), QueryID.reshape(-1)
        counted = (query.unsqueeze(1) == query).triu_(1) & (label.unsqueeze(1) != label)
        weight = torch.ones_like(label) if Weight is None else Weight.reshape(-1)
        weights = torch.where(counted, (weight.unsqueeze(1) + weight) * 0.5, 0.0)
        apart = score.unsqueeze(1) - score
        even = weights[apart == 0.0].sum()
        right = weights[(apart * (label.unsqueeze(1) - label)) > 0.0].sum()
        out = [right, weights.sum() - right, even]
        return tuple((x if b is None else x + b.reshape(())).reshape(1) for x, b in zip(out, before, strict=True))

    _batch: ClassVar[dict[str, Any]] = {
        "Score": f32(7, 2, data=[[0.5, 1], [0.25, 2], [0.5, 3], [0.75, 4], [0.125, 2], [0.25, 3], [1, 0]]),
        "Label": f32(7, 1, data=[[1], [0], [2], [1], [0], [2], [1]]),
        "QueryID": i64(7, 1, data=[[4], [4], [4], [9], [9], [4], [9]]),
    }
    samples = [
        sample(**_batch),
        sample(**_batch, column=-1, Weight=f32(7, 1, low=0.5, high=2.0)),
        sample(**_batch, AccumulatePositivePair=f32(1, data=[3]), AccumulateNegativePair=f32(1, data=[2]), AccumulateNeutralPair=f32(1, data=[1])),
    ]
    rejects = [
        reject(Score=f32(4), Label=f32(4, 1), QueryID=i64(4, 1), says="Score must have 2 dims"),
        reject(Score=f32(4, 2), Label=f32(3, 1), QueryID=i64(4, 1), says="Label must have as many rows as Score"),
        reject(Score=f32(4, 2), Label=f32(4, 2), QueryID=i64(4, 1), says="Label must have 1 column"),
        reject(Score=f32(4, 2), Label=f32(4, 1), QueryID=i64(4, 1), column=2, says="column must be in [-2, 2)"),
        reject(Score=f32(4, 2), Label=f32(4, 1), QueryID=i64(4, 1), AccumulateNeutralPair=f32(1), says="must be given together"),
        reject(Score=f32(4, 2), Label=f32(4, 1), QueryID=i32(4, 1), says="int64", error=TypeMismatchError),
    ]


class PrecisionRecall(Operator):
    """BatchMetrics and AccumMetrics = the means over the classes of precision and of recall, the F1 score of these two means; and the same three of
    the counts of all classes together: of the minibatch, and of it and StatesInfo.

    AccumStatesInfo has for each class its true positives, false positives, true negatives and false negatives, of all that came. Precision
    and recall of a class that is not there are 1. A row of Weights weighs its row of Indices, the predicted classes, and of Labels.
    """

    type = "precision_recall"
    gradient = NOT_DIFFERENTIABLE
    MaxProbs = operand(_FLOATS, doc="[rows, 1], which only says the element type")
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

    def workspace(self, MaxProbs: Spec, *others: Spec | None) -> Size:
        return 64 * MaxProbs.elements + 256 * self.class_number

    def kernel(self, MaxProbs: Tensor, Indices: Tensor, Labels: Tensor, Weights: Tensor | None, StatesInfo: Tensor | None) -> Any:
        count = self.class_number
        found, label = Indices.reshape(-1).long(), Labels.reshape(-1).long()
        for slot, numbers in (("Indices", found), ("Labels", label)):
            if bool(((numbers < 0) | (numbers >= count)).any()):
                raise ExecutionError(f"precision_recall: {slot} must be from 0 to {count - 1}; seen {int(numbers.min())} to {int(numbers.max())}")
        weight = MaxProbs.new_ones(len(found)) if Weights is None else Weights.reshape(-1)
        right = torch.where(found == label, weight, 0.0)
        wrong = weight - right
        states = MaxProbs.new_zeros(count, 4)
        states[:, 0].index_add_(0, label, right)
        states[:, 1].index_add_(0, found, wrong)
        states[:, 3].index_add_(0, label, wrong)
        states[:, 2] = weight.sum() - states[:, 0] - states[:, 1] - states[:, 3]
        batch = self._metrics(states)
        if StatesInfo is not None:
            states += StatesInfo
        return batch, self._metrics(states), states

    def _metrics(self, states: Tensor) -> Tensor:
        found: list[Tensor] = []
        for counts, each in ((states, True), (states.sum(0, keepdim=True), False)):
            true, false, missed = counts[:, 0], counts[:, 1], counts[:, 3]
            both = [torch.where((true > 0) | (other > 0), true / (true + other), 1.0) for other in (false, missed)]
            precision, recall = (x.mean() if each else x[0] for x in both)
            total = precision + recall
            found += [precision, recall, torch.where(total > 0.0, 2.0 * precision * recall / total, 0.0)]
        return torch.stack(found).double()

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
    rejects = [
        reject(MaxProbs=f32(4, 1), Indices=i32(3, 1), Labels=i32(4, 1), class_number=3, says="Indices must have as many rows as MaxProbs"),
        reject(MaxProbs=f32(4, 1), Indices=i32(4, 2), Labels=i32(4, 1), class_number=3, says="Indices must have 1 column"),
        reject(MaxProbs=f32(4, 1), Indices=i32(4, 1), Labels=i32(4), class_number=3, says="Labels must have 2 dims"),
        reject(MaxProbs=f32(4, 1), Indices=i32(4, 1), Labels=i32(4, 1), StatesInfo=f32(2, 4), class_number=3, says="3 rows, one for each class"),
        reject(MaxProbs=f32(4, 1), Indices=i32(4, 1), Labels=i32(4, 1), StatesInfo=f32(3, 5), class_number=3, says="4 columns"),
        reject(MaxProbs=f32(4, 1), Indices=i32(4, 1), Labels=i32(4, 1), class_number=0, says="at least 1", error=SchemaError),
        reject(MaxProbs=f32(4, 1), Indices=i64(4, 1), Labels=i32(4, 1), class_number=3, says="int32", error=TypeMismatchError),
    ]
