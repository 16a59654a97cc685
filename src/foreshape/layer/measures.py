"""Measures of a classification with counts kept in the scope from batch to batch, as in PaddlePaddle's programs; `foreshape.metrics` counts anew."""

from __future__ import annotations

from foreshape.core.spec import INT32, INT64, DType, tensor
from foreshape.errors import SchemaError
from foreshape.language.operator import require_rank
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.initializer import Constant
from foreshape.layer.labels import stating
from foreshape.layer.math import cast
from foreshape.layer.parameter import initialise
from foreshape.layer.weights import by_row


@tells_line
def auc(x: Variable, label: Variable, curve: str = "ROC", num_thresholds: int = 4095, slide_steps: int = 1) -> tuple[Variable, Variable, list[Variable]]:
    """Return the area under the curve of all batches so far, and of the last ``slide_steps``, each counted by steps of the score.

    Examples:
        >>> of_all, of_last, states = layer.auc(probabilities, label)

    The counts are in the scope and begin with zeros: over an epoch and over ranks `fs.metrics.AUC` is exact, and begins anew.

    Args:
        x: scores from 0 to 1, ``[batch, 1]``; or of both classes, ``[batch, 2]``.
        label: 0 or 1, ``[batch, 1]``, int64.
        curve: "ROC".
        num_thresholds: the number of steps from 0 to 1.
        slide_steps: the number of last batches for the second area; 0: all.

    Returns:
        Both areas, fp64 without dims; and their counts: positive and negative ones of the last batches, and of all.

    Raises:
        ShapeError: other dims. SchemaError: another curve, or numbers below 0.
    """
    for name, number, least in (("num_thresholds", num_thresholds, 1), ("slide_steps", slide_steps, 0)):
        if number < least:
            raise SchemaError.must(f"auc: {name}", f"at least {least}", f"{number!r}")
    _check_column("auc", x, label)
    steps, states, areas = num_thresholds + 1, list[Variable](), list[Variable]()
    for slides in (slide_steps, 0):
        count = steps * (slides + 1) + 1 if slides else steps
        counts = [_state(f"auc.{which}", INT64, count) for which in ("positive", "negative")]
        attrs = {"curve": curve, "num_thresholds": num_thresholds, "slide_steps": slides}
        inputs = {"Predict": x, "Label": label, "StatPos": counts[0], "StatNeg": counts[1]}
        op = current_block().append_op("auc", inputs, {"StatPosOut": counts[0], "StatNegOut": counts[1]}, attrs)
        areas.append(current_block().var(op.outputs["AUC"][0]))
        states += counts
    return areas[1], areas[0], states


@tells_line
def precision_recall(
    x: Variable, label: Variable, num_classes: int | None = None, sample_weight: Variable | None = None
) -> tuple[Variable, Variable, Variable]:
    """Return precision, recall and F1 of the batch, and of all batches so far: macro and micro averages.

    A class neither predicted nor true has precision and recall 1, and the F1 is of the two means, as in PaddlePaddle. `fs.metrics.F1` is the mean of
    the classes' F1, as in scikit-learn, begins anew with each epoch, and is exact over ranks.

    Args:
        x: scores ``[batch, classes]``.
        label: class numbers ``[batch, 1]``.
        num_classes: the number of classes; by default the columns of ``x``.
        sample_weight: ``[batch]`` or ``[batch, 1]``, of each example.

    Returns:
        Two times ``[6]``, fp64: macro precision, recall and F1, micro precision, recall and F1; and the counts ``[classes, 4]``: true
        and false positives, true and false negatives.

    Raises:
        ShapeError: other dims. SchemaError: an unknown number of classes.
    """
    block = current_block()
    classes = num_classes if num_classes is not None else x.spec.known_dims[-1]
    if not isinstance(classes, int):
        raise SchemaError(f"precision_recall: say how many classes there are, num_classes=...; the input is {x.spec.text()}")
    _check_column("precision_recall", x, label)
    best, index = block.apply("top_k_v2", {"X": x}, {"k": 1, "axis": -1, "largest": True, "sorted": False}, "precision_recall")
    state = _state("precision_recall.counts", x.spec.known_dtype, classes, 4)
    inputs = {"MaxProbs": best, "Indices": cast(index, "int32"), "Labels": label if label.dtype is INT32 else cast(label, "int32"), "StatesInfo": state}
    inputs |= {"Weights": by_row(sample_weight, x, "precision_recall")} if sample_weight is not None else {}
    op = block.append_op("precision_recall", inputs, {"AccumStatesInfo": state}, {"class_number": classes})
    return block.var(op.outputs["BatchMetrics"][0]), block.var(op.outputs["AccumMetrics"][0]), state


def _check_column(layer: str, x: Variable, label: Variable) -> None:
    """Refuse labels unless they are a column, ``[batch, 1]``."""
    with stating(layer, x=x, label=label):
        require_rank(2, label.spec, "label", like=(x.spec.known_dims[0], 1) if x.spec.rank else ())


def _state(name: str, dtype: DType, *dims: int) -> Variable:
    """Make counts kept between runs, with zeros at first."""
    block = current_block().program.global_block
    variable = block.create_variable(block.program.unique_name(name), tensor(dtype, *dims), persistable=True, stop_gradient=True)
    initialise(variable, Constant(0))
    return variable
