"""Counts of right and wrong answers over minibatches: pairs of a query, and precision and recall of classes."""

from __future__ import annotations

from typing import Any, ClassVar

from foreshape.dims import Size
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require_equal, require_rank
from foreshape.operator.samples import f32, i32, i64, reject, sample
from foreshape.spec import FP32, FP64, INT32, Spec
from foreshape.values.torch_proxy import Tensor, torch

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
    MaxProbs = operand(_FLOATS, doc="[rows, 1], read for the element type only")
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
