"""Regions of torch's graphs without gradients (``torch.no_grad``), kept through torch's own pass, which writes them out."""

from __future__ import annotations

import functools
import operator
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from foreshape.interop.torch.untyped_torch import torch
from foreshape.interop.torch.writes import storage_of


@contextmanager
def kept_stops(program: Any) -> Generator[None]:
    """Detach the operands of regions without gradients for the time of a pass, but for written buffers."""
    made: list[Any] = []
    modules = [module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    for module in modules:
        for node in module.graph.nodes:
            if node.op == "call_function" and getattr(node.target, "__name__", "") == "wrap_with_set_grad_enabled" and node.args[0] is False:
                made += _detached(getattr(module, str(node.args[1].target)))
    try:
        yield
    finally:
        for node in made:
            node.replace_all_uses_with(node.args[0])
            node.graph.erase_node(node)
        for graph in {id(node.graph): node.graph for node in made}.values():
            graph.owning_module.recompile()


def _detached(region: Any) -> list[Any]:
    nodes = list(region.graph.nodes)
    written = {storage_of(value) for node in nodes if node.op == "call_function" for value in _written(node)}
    made: list[Any] = []
    for node in nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor) and storage_of(node) not in written and node.users:
            with region.graph.inserting_after(node):
                found = region.graph.call_function(torch.ops.aten.detach.default, (node,))
            found.meta = dict(node.meta)
            node.replace_all_uses_with(found, delete_user_cb=functools.partial(operator.is_not, found))
            made.append(found)
    if made:
        region.recompile()
    return made


def _written(node: Any) -> list[Any]:
    """Return the nodes written by an operator."""
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    places = [(at, a.name) for at, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    return [node.args[at] if at < len(node.args) else node.kwargs.get(name) for at, name in places]
