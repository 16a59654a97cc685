"""Constants of a fixed shape, made once, when the step is compiled.

Before: ``c = constant()``, of at most 1024 elements, in every run; also whole numbers known by inference, as from dims that are numbers
After: ``c``, a tensor shared by every run
Unless: c is fetched or stored, or something changes it in place
"""

from __future__ import annotations

from functools import partial
from typing import Any

from foreshape.compiler.lowering.fusion.graph import Graph, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import OpCall, Value, values_of
from foreshape.core.spec import Spec
from foreshape.core.values.torch_proxy import Lazy, torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import ExecutionError
from foreshape.language.operator.computations import Constant, Filled
from foreshape.machine.kernels import elementwise

MAX_ELEMENTS = 1024


@rewrite(RewriteStage.SIMPLIFY)
def apply(graph: Graph) -> int:
    count = 0
    for i, computation in [(i, computation) for kind in (Constant, Filled) for i, computation in graph.computing(kind) if not any(i.arguments)]:
        out, dims = i.results[0], dims_of(i.results[0])
        if dims is None or not isinstance(out, Value) or graph.is_fixed(out):
            continue
        elements = 1
        for d in dims:
            elements *= d if isinstance(d, int) else MAX_ELEMENTS + 1
        if elements > MAX_ELEMENTS or any(out in r.writes() for r in graph.readers(out)):
            continue
        count += graph.replace({i: [fused(i, elementwise.constant(Lazy(partial(_constant_of, i))), [], [out], computation)]})
    return count + sum(_inferred(graph, i) for i in graph.plain())


def _inferred(graph: Graph, i: OpCall) -> bool:
    """Replace a call by its result, known by inference, and drop the calls for it alone."""
    if not graph.is_left(i) or i.stores or i.copies or i.in_place or not graph.makes_one(i) or not i.results:
        return False
    out, operator = i.results[0], i.op.operator
    spec = spec_of(out)
    if spec is None or spec.value is None or operator is None or operator.side_effects or not isinstance(out, Value) or graph.is_fixed(out):
        return False
    numbers = [n for n in (*spec.value, *spec.known_dims) if isinstance(n, int)]
    if len(numbers) < len(spec.value) + spec.rank or len(spec.value) > MAX_ELEMENTS or any(out in r.writes() for r in graph.readers(out)):
        return False
    if not graph.replace({i: [fused(i, elementwise.constant(Lazy(partial(_tensor, spec))), [], [out])]}):
        return False
    graph.drop_unused(values_of(i.arguments))
    return True


def _tensor(spec: Spec) -> Any:
    """Return the tensor of known numbers."""
    numbers: Any = spec.value
    return torch.tensor(numbers, dtype=torch_dtype(spec.known_dtype)).reshape([int(d) for d in spec.known_dims])  # pyright: ignore[reportArgumentType]


def _constant_of(i: OpCall) -> Any:
    """Return the constant. Raise `ExecutionError` if its op's attributes describe none."""
    try:
        with torch.inference_mode():
            return i.kernel(*i.arguments)
    except Exception as error:
        site = i.op.call_site
        raise ExecutionError(f"{i.op.type}: the kernel failed: {error}{f' (at {site.short()})' if site is not None else ''}") from error
