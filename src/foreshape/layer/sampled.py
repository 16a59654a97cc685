"""Large vocabularies: losses on a part of the classes, and draws from distributions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, INT32, LOD_TENSOR, DType, Spec
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.initializer import Initializer
from foreshape.layer.parameter import create_parameter, initialise
from foreshape.layer.weights import ClassWeight, by_example, by_label, by_row

_SAMPLERS = {"uniform": 0, "log_uniform": 1, "custom_dist": 2}


class _Written(Initializer):
    """The numbers themselves, written in the startup program."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[float]) -> None:
        self.numbers = list(numbers)

    def op(self, shape: Sequence[Size], of: DType) -> tuple[str, dict[str, Any]]:
        return "assign_value", {"shape": list(shape), "dtype": of.code, ("fp32_values" if of.is_floating else "int32_values"): self.numbers}


@tells_line
def nce(
    x: Variable, label: Variable, num_classes: int, sample_weight: Variable | None = None, num_neg_samples: int = 10,
    sampler: str = "uniform", custom_dist: Sequence[float] | None = None, seed: int = 0, is_sparse: bool = False, *, weight: Any = None,
    bias: Any = None, class_weight: ClassWeight = None, name: str | None = None,
) -> Variable:  # fmt: skip
    """Apply noise-contrastive estimation (Gutmann and Hyvärinen, 2010): tell the true classes of each row from a few drawn ones.

    The time of a step does not grow with the vocabulary.

    Args:
        x: ``[batch, width]``, dense or ragged.
        label: the true classes (int64), ``[batch, labels]``.
        num_classes: the number of classes.
        sample_weight: the factor of each row's cost, ``[batch]`` or ``[batch, 1]``.
        num_neg_samples: the number of classes drawn for each row.
        sampler: "uniform"; "log_uniform", for classes numbered by falling frequency; "custom_dist".
        custom_dist: the probability of each class, for "custom_dist"; its numbers are stored in the program.
        seed: draws the same classes in every step; 0 draws others each time, from the executor's generator.
        is_sparse: the weight's gradient is the rows used, not a whole table.
        weight, bias: ``[classes, width]`` and ``[classes, 1]``: a name, an initializer or a `ParamAttr`; ``bias=False`` leaves the bias out.
        class_weight: a further factor of each row's cost, by its only true class: a variable ``[classes]``, a
            list, or a dict of the weights other than 1.
        name: the prefix of the parameters' names.

    Returns:
        The cost ``[batch, 1]``, divided by ``num_neg_samples + 1``.

    Raises:
        SchemaError: an unknown sampler, or one without its distribution. ShapeError: mismatched operands.
    """
    block = current_block()
    prefix = block.program.layer_name("nce", name)
    if sampler not in _SAMPLERS:
        raise SchemaError.one_of(f"nce({x.name}): sampler", _SAMPLERS, sampler)
    if (sampler == "custom_dist") != (custom_dist is not None):
        raise SchemaError(f"nce({x.name}): the sampler custom_dist, and no other, takes the argument custom_dist; seen sampler {sampler!r}")
    width = _width("nce", x)
    slots = {"Input": x, "Label": label}
    slots["Weight"] = create_parameter((num_classes, width), x.spec.known_dtype, weight, prefix=prefix)
    if bias is not False:
        slots["Bias"] = create_parameter((num_classes, 1), x.spec.known_dtype, bias, prefix=prefix, suffix="b", is_bias=True)
    if sample_weight is not None:
        slots["SampleWeight"] = by_row(sample_weight, x, "nce")
    if custom_dist is not None:
        probabilities = [float(p) for p in custom_dist]
        if len(probabilities) != num_classes or not all(p >= 0.0 for p in probabilities) or abs(sum(probabilities) - 1.0) > 1e-3:
            raise SchemaError(
                f"nce({x.name}): custom_dist must have {num_classes} probabilities whose sum is 1; seen {len(probabilities)} "
                f"numbers whose sum is {sum(probabilities)}"
            )
        alias, keep = alias_tables(probabilities)
        slots["CustomDistProbs"] = _constant(prefix, FP32, probabilities)
        slots["CustomDistAlias"] = _constant(prefix, INT32, alias)
        slots["CustomDistAliasProbs"] = _constant(prefix, FP32, keep)
    attrs = {"num_total_classes": num_classes, "num_neg_samples": num_neg_samples, "sampler": _SAMPLERS[sampler], "seed": seed,
             "is_sparse": is_sparse, "remote_prefetch": is_sparse}  # fmt: skip
    cost = block.apply("nce", slots, attrs, prefix)[0]
    cost = block.apply("scale", {"X": cost}, {"scale": 1.0 / (num_neg_samples + 1)}, prefix)
    return by_label(cost, class_weight, label, num_classes, "nce")


def alias_tables(probabilities: Sequence[float]) -> tuple[list[int], list[float]]:
    """Return the tables of the alias method (Walker, 1977) for draws of classes.

    A class is drawn uniformly, and kept with the second table's probability, else replaced by the first table's class (-1 if it is always kept).
    """
    count = len(probabilities)
    alias, keep = [-1] * count, [1.0] * count
    scaled = [p * count for p in probabilities]
    large = deque(c for c, p in enumerate(scaled) if p > 1.0)
    small = deque(c for c, p in enumerate(scaled) if p < 1.0)
    while large and small:
        greater, lesser = large.popleft(), small.popleft()
        alias[lesser], keep[lesser] = greater, scaled[lesser]
        scaled[greater] += scaled[lesser] - 1.0
        if scaled[greater] > 1.0:
            large.append(greater)
        elif scaled[greater] < 1.0:
            small.append(greater)
    return alias, keep


def _constant(prefix: str, dtype: DType, numbers: Sequence[float]) -> Variable:
    """Return a persistable variable with these numbers, unchanged by training."""
    block = current_block().program.global_block
    variable = block.create_variable(block.program.unique_name(f"{prefix}.w"), Spec(LOD_TENSOR, dtype, (len(numbers),)), persistable=True, stop_gradient=True)
    initialise(variable, _Written(numbers))
    return variable


@tells_line
def hierarchical_sigmoid(
    x: Variable, label: Variable, num_classes: int, path_table: Variable | None = None, path_code: Variable | None = None,
    is_sparse: bool = False, *, weight: Any = None, bias: Any = None, class_weight: ClassWeight = None, sample_weight: Variable | None = None,
    name: str | None = None,
) -> Variable:  # fmt: skip
    """Return the loss of a hierarchical softmax (Morin and Bengio, 2005).

    Each class is a leaf of a binary tree, and a row uses only the inner nodes on the path to its class.

    Args:
        x: ``[batch, width]``, dense or ragged.
        label: the classes (int64), ``[batch, 1]``.
        num_classes: of the complete tree, its leaves; of a tree by path_table, its inner nodes.
        path_table, path_code: the path of each row in a tree of your own (int64), ``[batch, longest path]``: inner nodes from the root,
            and 1 or 0 for the path's turn there; -1 after its end.
        is_sparse: the weight's gradient is the rows used, not a whole table.
        weight, bias: ``[inner nodes, width]`` and ``[inner nodes, 1]``: a name, an initializer or a `ParamAttr`; ``bias=False`` leaves
            the bias out.
        class_weight: the factor of each row's cost, by its class: a variable ``[classes]``; of the complete tree a list, too, or
            a dict of the weights other than 1.
        sample_weight: ``[batch]`` or ``[batch, 1]``: the factor of each row's cost.
        name: the prefix of the parameters' names.

    Returns:
        The cost, ``[batch, 1]``. As in PaddlePaddle, a path shorter than the longest adds log(2) for each free place.

    Raises:
        SchemaError: a path_table without path_code, or with a list of weights. ShapeError: mismatched operands or weights.
    """
    block = current_block()
    prefix = block.program.layer_name("hierarchical_sigmoid", name)
    if (path_table is None) != (path_code is None):
        raise SchemaError(f"hierarchical_sigmoid({x.name}): path_table and path_code come together")
    nodes = num_classes if path_table is not None else num_classes - 1
    slots = {"X": x, "Label": label}
    slots["W"] = create_parameter((nodes, _width("hierarchical_sigmoid", x)), x.spec.known_dtype, weight, prefix=prefix)
    if bias is not False:
        slots["Bias"] = create_parameter((nodes, 1), x.spec.known_dtype, bias, prefix=prefix, suffix="b", is_bias=True)
    if path_table is not None and path_code is not None:
        slots |= {"PathTable": path_table, "PathCode": path_code}
    if path_table is not None and class_weight is not None and not isinstance(class_weight, Variable):
        raise SchemaError(
            f"hierarchical_sigmoid({x.name}): of a tree of your own the number of classes is not known: class_weight must be a variable "
            f"with one number for each; seen {type(class_weight).__name__}"
        )
    cost = block.apply("hierarchical_sigmoid", slots, {"num_classes": num_classes, "is_sparse": is_sparse}, prefix)[0]
    cost = by_label(cost, class_weight, label, None if path_table is not None else num_classes, "hierarchical_sigmoid")
    return by_example(cost, sample_weight, "hierarchical_sigmoid")


def _width(layer: str, input: Variable) -> int:
    dims = input.spec.known_dims
    if len(dims) != 2 or not isinstance(dims[1], int):
        raise ShapeError(f"{layer}({input.name}): the input must be [batch, width] with a known width to make a weight; it is {input.spec.text()}")
    return dims[1]


def sampling_id(x: Variable, min: float = 0.0, max: float = 1.0, seed: int = 0) -> Variable:
    """Draw a column of each row of ``x`` with its probability.

    Args:
        x: ``[batch, classes]``, each row a distribution.
        min, max: the deciding uniform number is drawn from [min, max).
        seed: draws the same numbers in every step; 0 others each time.

    Returns:
        int64 ``[batch]``.
    """
    return current_block().apply("sampling_id", {"X": x}, {"min": min, "max": max, "seed": seed})


def multinomial(x: Variable, num_samples: int = 1, replacement: bool = False) -> Variable:
    """Return ``num_samples`` columns of each row of ``x`` (int64), drawn with probabilities in proportion to its numbers, none of them negative.

    Args:
        x: floats, ``[rows, columns]`` or ``[columns]``.
        num_samples: the number of draws.
        replacement: a column may be drawn again.
    """
    return current_block().apply("multinomial", {"X": x}, {"num_samples": num_samples, "replacement": replacement})


def bernoulli(x: Variable) -> Variable:
    """Draw 1 with the probability x at each place, else 0; floats of any shape."""
    return current_block().apply("bernoulli", {"X": x})


def poisson(x: Variable) -> Variable:
    """Draw a number of Poisson's distribution for each mean in x; floats of any shape, none negative."""
    return current_block().apply("poisson", {"X": x})


def exponential(x: Variable, rate: float = 1.0) -> Variable:
    """Draw numbers of the exponential distribution, as many as x has.

    Args:
        x: floats of any shape; its numbers are not read.
        rate: one over the mean, above 0.
    """
    return current_block().apply("exponential", {"X": x}, {"lambda": rate})


def dirichlet(x: Variable) -> Variable:
    """Draw numbers that sum to 1 along the last axis from Dirichlet's distribution with the concentrations x, floats ``[..., k]`` above 0."""
    return current_block().apply("dirichlet", {"Alpha": x})
