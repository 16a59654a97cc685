"""The backend of ``torch.compile``: ``torch.compile(model, backend="foreshape")``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshape.interop.torch.untyped_torch import torch
from foreshape.interop.torch_backend.graph_program import GraphProgram
from foreshape.interop.torch_backend.graph_step import CompiledGraph
from foreshape.interop.torch_backend.recomputed import recompute
from foreshape.interop.torch_backend.simpler_graph import simplify


def _compiled(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    device = next((str(x.device) for x in inputs if isinstance(x, torch.Tensor) and x.device.type != "cpu"), "cpu")
    dispatch: Any = importlib.import_module("torch.utils._python_dispatch")
    simplify(module.graph)
    with dispatch._disable_current_modes():  # constants are real tensors
        return CompiledGraph(GraphProgram(module), device)


def _partition(joint: Any, inputs: Any, **named: Any) -> Any:
    """Return the graphs of the forward and the backward pass."""
    compiling: Any = importlib.import_module("functorch.compile")
    global LAST
    LAST = recompute(joint.graph)
    joint.recompile()
    return compiling.default_partition(joint, inputs, **named)


LAST: Any = None


def foreshape_backend(graph: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return a graph of Dynamo, compiled.

    Args:
        graph: a `torch.fx.GraphModule`.
        inputs: torch's tensors without numbers, and sizes, for its inputs.
        mode: none of torch's modes has a meaning here.
        options: of ``torch.compile``.
    """
    common: Any = importlib.import_module("torch._dynamo.backends.common")
    return common.aot_autograd(fw_compiler=_compiled, bw_compiler=_compiled, partition_fn=_partition)(graph, inputs)
