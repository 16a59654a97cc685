"""Constants of a fixed shape are made once, when the step is compiled."""

from __future__ import annotations

from functools import partial
from typing import Any

from foreshape.errors import ExecutionError
from foreshape.lowering.fusion.graph import Graph, dims_of, fused
from foreshape.lowering.instruction import Instruction, Value
from foreshape.values.torch_proxy import Late, torch

MAX_ELEMENTS = 1024


def apply(graph: Graph) -> bool:
    """``fill_constant`` without operands, whose result nothing changes or keeps, becomes a tensor that every step shares."""
    changed = False
    for i in graph.instructions("fill_constant"):
        out, dims = i.results[0], dims_of(i.results[0])
        if dims is None or not isinstance(out, Value) or graph.is_fixed(out) or any(i.arguments):
            continue
        count = 1
        for d in dims:
            count *= d if isinstance(d, int) else MAX_ELEMENTS + 1
        if count > MAX_ELEMENTS or any(out in r.writes() for r in graph.readers(out)):
            continue
        graph.replace(i, fused(i, "{value}", [], [out], "constant", value=Late(partial(_made, i))))
        changed = True
    return changed


def _made(i: Instruction) -> Any:
    """The constant. Raises `ExecutionError` where its op's attributes describe none."""
    try:
        with torch.inference_mode():
            return i.kernel(None, [], None)
    except Exception as error:
        site = i.op.call_site
        raise ExecutionError(f"{i.op.type}: the kernel failed: {error}{f' (at {site.short()})' if site is not None else ''}") from error
