"""Weights of losses: a weight for each example, and one for each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from foreshape.core.spec import FP64
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.operator.require import how_to_fit, require_equal
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.creation import assign, fill_like
from foreshape.layer.labels import stating
from foreshape.layer.logic import logical_not, not_equal
from foreshape.layer.manipulation import gather_nd, reshape, unsqueeze
from foreshape.layer.math import cast
from foreshape.layer.reductions import reduce_sum
from foreshape.layer.sequence import sequence_expand_as

ClassWeight: TypeAlias = "Variable | Sequence[float] | Mapping[int, float] | None"
"""One number for each class: a variable ``[classes]``, a list, or the weights other than 1 by class number."""


@tells_line
def weighted_mean(x: Variable, weight: Variable, *, empty: str = "zero") -> Variable:
    """Return sum(weight * x) / sum(weight), a tensor without dims: the weighted mean of losses.

    Examples:
        >>> loss = layer.weighted_mean(layer.softmax_with_cross_entropy(logits, label), weight)

    Over several batches or ranks, and in `fs.evaluate`, it is the mean of all examples.

    Args:
        x: ``[batch, ...]``, floating-point.
        weight: ``[batch]`` or ``[batch, 1]`` for each example, or of the dims of ``x``.
        empty: if all weights are 0, "zero" is 0 with a gradient of 0, as in `nll_loss` with every label ignored; "nan" is 0 / 0.

    Raises:
        ShapeError: weights of other dims. SchemaError: another word.
    """
    if empty not in ("zero", "nan"):
        raise SchemaError.one_of("weighted_mean: empty", ("zero", "nan"), empty)
    weighted_sum, ones = reduce_sum(by_example(x, weight, "weighted_mean")), fill_like(x, 1.0)
    ones.stop_gradient = True
    total = reduce_sum(by_example(ones, weight, "weighted_mean"))
    if empty == "zero":  # a sum of 0 is divided by 1
        total = total + cast(logical_not(cast(total, "bool")), total.spec.known_dtype)
    return weighted_sum / total


def by_example(loss: Variable, weight: Variable | None, layer: str) -> Variable:
    """Return a loss ``[batch, ...]`` times a weight for each example, ``[batch]`` or ``[batch, 1]``, or for each element.

    For ragged rows a dense weight has a number for each sequence, and for all its rows.
    """
    if weight is None:
        return loss
    spec, weight_spec = loss.spec, weight.spec
    if spec.lod is not None and weight_spec.lod is None and weight_spec.known_dims[:1] != spec.known_dims[:1]:
        if list(weight_spec.known_dims[1:]) not in ([], [1]):
            raise ShapeError(f"{layer}: sample_weight of ragged rows must be [sequences] or [sequences, 1], or ragged as the rows; it is {weight_spec.text()}")
        weight = sequence_expand_as(weight if weight_spec.rank == 2 else reshape(weight, [-1, 1]), loss)
        weight_spec = weight.spec
    rank, dims = spec.rank, list(weight_spec.known_dims)
    is_full = len(dims) == rank and not any(a == 1 and b != 1 for a, b in zip(spec.known_dims, dims, strict=True))  # or the loss would grow
    if not is_full and not (len(dims) == 1 or (len(dims) == 2 and dims[1] == 1)):
        fit = how_to_fit("sample_weight", dims, dims[:1])
        raise ShapeError(f"{layer}: sample_weight must be [batch], [batch, 1] or of the dims of the loss, {spec.text()}; it is {weight_spec.text()}{fit}")
    with stating(layer, loss=loss, sample_weight=weight):
        for axis, (a, b) in enumerate(zip(spec.known_dims, dims if is_full else dims[:1], strict=False)):
            if b != 1:  # the same for all
                require_equal(a, b, "sample_weight must have one number for each example, or for each element", loss=axis, sample_weight=axis)
    if len(dims) == 2 and rank != 2:
        weight = reshape(weight, [0, *[1] * (rank - 1)])
    if weight_spec.dtype is not spec.dtype:
        weight = cast(weight, spec.known_dtype)
    return current_block().apply("elementwise_mul", {"X": loss, "Y": weight}, {"axis": 0 if weight.spec.rank < rank else -1})


def class_weights(weights: ClassWeight, x: Variable, axis: int, layer: str) -> Variable:
    """Return the weights of the classes along an axis of ``x``, as ``[classes]`` of its element type."""
    if x.spec.rank < 2:
        raise ShapeError(f"{layer}: class_weight has one number for each class, and {x.name}, {x.spec.text()}, has none; write layer.unsqueeze({x.name}, [1])")
    classes = x.spec.known_dims[axis]
    if not isinstance(weights, Variable):
        if not isinstance(classes, int):
            raise ShapeError(f"{layer}: the number of classes must be known for class_weight to be a list; the input is {x.spec.text()}")
        weights = _written(weights, classes, x, layer)
    _check_classes(weights, classes, layer)
    return weights if weights.dtype is x.dtype else cast(weights, x.spec.known_dtype)


def by_row(weight: Variable, like: Variable, layer: str) -> Variable:
    """Return a weight for each row as ``[batch, 1]``, of the element type of ``like``."""
    dims = weight.spec.known_dims
    if list(dims[1:]) not in ([], [1]):
        fit = how_to_fit("sample_weight", dims, dims[:1])
        raise ShapeError(f"{layer}: sample_weight must be [batch] or [batch, 1]; it is {weight.spec.text()}{fit}")
    column = weight if len(dims) == 2 else reshape(weight, [-1, 1])
    return column if column.dtype is like.dtype else cast(column, like.spec.known_dtype)


def by_label(loss: Variable, weights: ClassWeight, label: Variable, classes: int | None, layer: str) -> Variable:
    """Return a loss ``[batch, 1]`` times the weight of each row's class."""
    if weights is None:
        return loss
    dims = label.spec.known_dims
    if list(dims[1:]) not in ([], [1]):
        raise ShapeError(
            f"{layer}: class_weight is of one true class for each row, so that the label must be [batch] or [batch, 1]; it is {label.spec.text()}"
            f"{how_to_fit('label', dims, dims[:1])}"
        )
    if not isinstance(weights, Variable):
        assert classes is not None
        weights = _written(weights, classes, loss, layer)
    _check_classes(weights, classes, layer)
    label = label if len(dims) == 2 else unsqueeze(label, [1])
    return loss * of_labels(weights if weights.dtype is loss.dtype else cast(weights, loss.spec.known_dtype), label, -100)


def _check_classes(weights: Variable, classes: Any, layer: str) -> None:
    if weights.spec.rank != 1 or (isinstance(classes, int) and isinstance(weights.spec.known_dims[0], int) and weights.spec.known_dims[0] != classes):
        classes_text = "each class" if classes is None else f"each of the {classes} classes"
        raise ShapeError(f"{layer}: class_weight must have one number for {classes_text}; it is {weights.spec.text()}")


def _written(weights: Any, classes: int, x: Variable, layer: str) -> Variable:
    import numpy

    numbers = [1.0] * classes
    if isinstance(weights, Mapping):
        for index, weight in weights.items():  # pyright: ignore[reportUnknownVariableType]
            if not isinstance(index, int) or not 0 <= index < classes:
                raise SchemaError(f"{layer}: class_weight names the classes by numbers from 0 to {classes - 1}; seen {index!r}")
            numbers[index] = float(weight)  # pyright: ignore[reportUnknownArgumentType]
    else:
        numbers = [float(weight) for weight in weights]
        if len(numbers) != classes:
            raise ShapeError(f"{layer}: class_weight must have one number for each of the {classes} classes; seen {len(numbers)}")
    return assign(numpy.asarray(numbers, "float64" if x.dtype is FP64 else "float32"))


def of_labels(weights: Variable, label: Variable, ignore_index: int) -> Variable:
    """Return the weights of the classes at class numbers, in the dims of the label; any for ignored ones."""
    return gather_nd(weights, unsqueeze(label * cast(counted(label, ignore_index), label.spec.known_dtype), [label.spec.rank]))


def counted(label: Variable, ignore_index: int) -> Variable:
    """Tell where a class number is not the ignored one."""
    return not_equal(label, ignore_index)
