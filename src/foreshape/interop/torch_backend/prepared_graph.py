"""Graphs of AOTAutograd as the import takes them: each call with its results without numbers, and effects without torch's tokens."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import torch

EFFECT: Final = "foreshape_effect"
"""The mark of a call with an effect besides its results, among the facts of a node."""


def prepare(module: Any) -> None:
    """Complete a graph in place."""
    _complete(module)
    _drop_tokens(module.graph)


def _complete(module: Any) -> None:
    """Give results without numbers to calls of torch's own passes, as for the states of generators."""
    for node in module.graph.nodes:
        if node.op != "call_function" or "val" in node.meta:
            continue

        def value(item: Any) -> Any:
            return getattr(module, item.target) if item.op == "get_attr" else item.meta.get("val")

        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value)
        tensors = [item.meta["val"] for item in node.all_input_nodes if isinstance(item.meta.get("val"), torch.Tensor)]
        mode = next((item.fake_mode for item in tensors if hasattr(item, "fake_mode")), None)
        with nullcontext() if mode is None else mode:
            node.meta["val"] = node.target(*args, **kwargs)


def _drop_tokens(graph: Any) -> None:
    """Turn calls with a token, torch's thread through effects, into calls kept in their place: a step runs them in the order of the graph."""
    for node in [*graph.nodes]:
        if node.op != "call_function" or str(getattr(node.target, "name", lambda: "")()) != "with_effects":
            continue
        operator, arguments = node.args[1], node.args[2:]
        count = len(operator._schema.returns)
        value = node.meta["val"][1:]
        with graph.inserting_before(node):
            call = graph.call_function(operator, arguments, node.kwargs)
        call.meta = {**node.meta, "val": None if not count else value[0] if count == 1 else value, EFFECT: True}
        for part in [*node.users]:
            place = part.args[1]
            if not place:
                for user in [*part.users]:
                    user.args = _without(user.args, part)
            elif count == 1:
                part.replace_all_uses_with(call)
            else:
                part.args = call, place - 1
            if not part.users:
                graph.erase_node(part)
        graph.erase_node(node)


def _without(arguments: Any, gone: Any) -> Any:
    """Return arguments of a node with None in the place of one."""

    def instead(item: Any) -> Any:
        return None if item is gone else item

    return torch.fx.node.map_arg(arguments, instead)
