"""Constants of a fixed shape, made once, when the step is compiled.

Before: ``c = constant()``, of at most 1024 elements, in every run
After: ``c``, a tensor shared by every run
Unless: c is fetched or stored, or something changes it in place
"""

from __future__ import annotations

from functools import partial
from typing import Any

from foreshape.errors import ExecutionError
from foreshape.kernels import elementwise
from foreshape.lowering.fusion.graph import Graph, dims_of, fused
from foreshape.lowering.kernel_calls import OpCall, Value
from foreshape.operator.computations import Constant, Filled
from foreshape.values.torch_proxy import Lazy, torch

MAX_ELEMENTS = 1024


def apply(graph: Graph) -> int:
    count = 0
    for i, of in [(i, of) for kind in (Constant, Filled) for i, of in graph.computing(kind) if not any(i.arguments)]:
        out, dims = i.results[0], dims_of(i.results[0])
        if dims is None or not isinstance(out, Value) or graph.is_fixed(out):
            continue
        elements = 1
        for d in dims:
            elements *= d if isinstance(d, int) else MAX_ELEMENTS + 1
        if elements > MAX_ELEMENTS or any(out in r.writes() for r in graph.readers(out)):
            continue
        count += graph.replace({i: [fused(i, elementwise.constant(Lazy(partial(_made, i))), [], [out], of)]})
    return count


def _made(i: OpCall) -> Any:
    """Return the constant. Raise `ExecutionError` if its op's attributes describe none."""
    try:
        with torch.inference_mode():
            return i.kernel(*i.arguments)
    except Exception as error:
        site = i.op.call_site
        raise ExecutionError(f"{i.op.type}: the kernel failed: {error}{f' (at {site.short()})' if site is not None else ''}") from error
