"""Rewrites of a step's instructions that save kernels and memory and change no result beyond rounding.

Each module of `REWRITES` is one rewrite: its docstring tells the calls before and after, and the exceptions. ``apply(graph) -> int`` returns the number of
rewrites. It asks operators for their computations (`foreshape.language.operator.computations`) and knows none by its type. The program is never touched. The
other
modules are no rewrites: `graph` serves all of them, `plain_calls`, `products` and `images` some.

Rewrites match by hand, with the queries of `graph`. Declared patterns were tried on `linear`, `linear_gradient`, `convolution` and `attention`: the steps
of 123 programs were the same, the rewrites 43 lines shorter, the matcher 90 lines long, and the four took up to 90 % longer. Most of a rewrite is
conditions on dims and the new call, which a pattern leaves as they are. And a pattern is tried from its last call: each sum for a product before it.
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion import (
    attention,
    bags,
    bias_gradient,
    class_loss,
    constant,
    convolution,
    convolution_gradient,
    descent,
    frozen_activation,
    frozen_affine,
    frozen_convolution,
    frozen_direct,
    frozen_linear,
    frozen_normalization,
    frozen_picks,
    frozen_rounding,
    frozen_rows,
    frozen_series,
    frozen_shuffle,
    frozen_values,
    identity,
    in_place,
    kept_dims,
    known_dims,
    linear,
    linear_gradient,
    log_of_softmax,
    normalization,
    operand_dims,
    passed_gradients,
    read_sizes,
    rectifier,
    rectifier_gradient,
    update_groups,
    views,
)
from foreshape.compiler.lowering.fusion.graph import Graph
from foreshape.compiler.lowering.kernel_calls import Step

BEFORE_ORDER = (
    known_dims,
    constant,
    identity,
    frozen_rounding,
    frozen_rows,
    frozen_picks,
    views,
    frozen_activation,
    bags,
    passed_gradients,
    operand_dims,
    attention,
    bias_gradient,
    class_loss,
    log_of_softmax,
    frozen_linear,
    linear,
    linear_gradient,
    frozen_convolution,
    frozen_affine,
    frozen_shuffle,
    frozen_normalization,
    normalization,
    frozen_values,
    convolution,
    convolution_gradient,
    rectifier,
    rectifier_gradient,
    descent,
    read_sizes,
    in_place,
    kept_dims,
)
AFTER_ORDER = (frozen_series, frozen_direct, update_groups)
"""These join calls that now stand together."""
REWRITES = (*BEFORE_ORDER, *AFTER_ORDER)
"""In this order. The order of the remaining calls is chosen before the last ones."""


def fuse(lowered: Step) -> Step:
    """Return the same step with every rewrite applied, in their order."""
    apply_all(lowered)
    return lowered


def apply_all(lowered: Step) -> dict[str, int]:
    """Apply every rewrite to a step, in their order; return the number of rewrites of each, by the name of its module."""
    graph = Graph(lowered)
    counts = [rewrite.apply(graph) for rewrite in BEFORE_ORDER]
    graph.drop_constants()
    graph.reorder()
    counts += [rewrite.apply(graph) for rewrite in AFTER_ORDER]
    graph.drop_constants()
    graph.finish()
    return {rewrite.__name__.rpartition(".")[2]: count for rewrite, count in zip(REWRITES, counts, strict=True)}
