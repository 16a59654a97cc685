"""A weight's gradient that only its step of gradient descent reads goes into the weight at once.

Before: ``g = mm(x', d)``, ``w -= rate * g``
After: ``w.addmm_(x', d, alpha=-rate)``, or oneDNN's product in pieces that are added; of another dense gradient ``w.add_(g, alpha=-rate)``
Unless: the step keeps the weight in full precision besides; and of the product, something else reads g, or reads w in between
"""

from __future__ import annotations

from collections.abc import Callable

from foreshape.dims import Size
from foreshape.kernels import products
from foreshape.lowering.fusion.graph import Graph, dims_of, fused, spec_of
from foreshape.lowering.fusion.products import choice, elements_for_onednn, rows_of
from foreshape.lowering.instruction import Instruction, Value
from foreshape.operator.computations import Descent


def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i) for i, _ in graph.computing(Descent))


def _rewrite(graph: Graph, i: Instruction) -> bool:
    param, grad, rate = i.arguments[:3]
    if not isinstance(param, Value) or not isinstance(rate, Value) or i.copies or i.stores:
        return False
    if spec_of(grad) is None or not isinstance(grad, Value) or not graph.is_constant(rate) or not param.persistable:
        return False
    number = f"{rate}_number"
    maker, dims = graph.maker(grad), dims_of(param)
    done = False
    if maker is not None and maker.tag == "weight gradient" and dims is not None and len(dims) == 2:
        x, d = maker.arguments
        text, needs = _product_text(maker, param, number)
        made = fused(
            i, text, [x, d, param], [param], workspace=needs, in_rows=maker.in_rows, in_order=maker.in_order, gaps=maker.gaps,
            add_product_=products.add_product_,
        )  # fmt: skip
        made.in_place = frozenset({0})
        done = graph.replace({maker: [made], i: ()})
    if not done:
        made = fused(i, f"{{0}}.add_({{1}}, alpha=-{number})", [param, grad], [param])
        made.in_place = frozenset({0})
        done = graph.replace({i: [made]})
    line = f"{number} = {rate}.item()"  # the learning rate as a number, read once a step
    if done and line not in graph.lowered.prologue:
        graph.lowered.prologue.append(line)
    return done


def _product_text(maker: Instruction, param: Value, number: str) -> tuple[str, Callable[[], Size] | None]:
    """``param -= rate x' d`` and the rule of its workspace: into the weight at once where the product is small, since oneDNN cannot add to memory."""
    dims, rank = dims_of(param), len(dims_of(maker.arguments[0]) or ())
    assert dims is not None
    flat = "" if rank == 2 else ".flatten(0, -2)"
    a, b = f"{{0}}{flat}.t()", f"{{1}}{flat}"
    large, small = f"{{add_product_}}({{2}}, {a}, {b}, -{number})", f"{{2}}.addmm_({a}, {b}, alpha=-{number})"
    least = elements_for_onednn(dims[0], dims[1], param)
    if least is None:
        return small, None
    rows = rows_of(maker.arguments[0])
    return choice(large, small, "{0}", least), lambda: products.adding_workspace(dims[0], rows, dims[1])
