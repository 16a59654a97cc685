"""Rewrites of a step's instructions that save kernels and memory and change no result beyond rounding.

Each module with a function under `rewrite` is one: its docstring tells the calls before and after, and the exceptions. ``apply(graph) -> int`` returns the
number of rewrites. It asks operators for their computations (`foreshape.language.operator.computations`) and knows none by its type. The program is never
touched.
The other modules are no rewrites: `graph` serves all of them, `plain_calls`, `products` and `images` some.

Rewrites match by hand, with the queries of `graph`. Declared patterns were tried on `linear`, `linear_gradient`, `convolution` and `attention`: the steps
of 123 programs were the same, the rewrites 43 lines shorter, the matcher 90 lines long, and the four took up to 90 % longer. Most of a rewrite is
conditions on dims and the new call, which a pattern leaves as they are. And a pattern is tried from its last call: each sum for a product before it.
"""

from __future__ import annotations

from itertools import groupby

from foreshape.compiler.lowering.fusion.attempts import Attempts
from foreshape.compiler.lowering.fusion.graph import Graph
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrites
from foreshape.compiler.lowering.kernel_calls import Step

__all__ = ["apply_all", "fuse", "rewrites"]


def fuse(lowered: Step) -> Step:
    """Return the same step with every rewrite applied, in their order."""
    apply_all(lowered)
    return lowered


def apply_all(lowered: Step, attempts: Attempts | None = None) -> dict[str, int]:
    """Apply every rewrite for the target of a step, in their order; return the number of rewrites of each, by its name.

    Args:
        lowered: rewritten.
        attempts: takes notes of each rewrite's attempts.
    """
    graph = Graph(lowered, attempts)
    counts: dict[str, int] = {}
    for joins, members in groupby([r for r in rewrites() if lowered.target.has(*r.needs)], key=lambda r: r.stage is RewriteStage.JOIN):
        if joins:
            graph.reorder()
        for r in members:
            if attempts is not None:
                attempts.rewrite = r.name
            counts[r.name] = r.apply(graph) if graph.may_match(r) else 0
        graph.drop_constants()
    graph.finish()
    return counts
