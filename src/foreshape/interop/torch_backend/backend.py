"""The backend of ``torch.compile``: ``torch.compile(model, backend="foreshape")``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from foreshape.errors import ForeshapeError
from foreshape.interop.torch.untyped_torch import torch
from foreshape.interop.torch_backend.compile_options import CompileOptions
from foreshape.interop.torch_backend.graph_facts import GraphFacts, forget_all, forget_record, new_record
from foreshape.interop.torch_backend.graph_program import GraphProgram
from foreshape.interop.torch_backend.graph_step import CompiledGraph
from foreshape.interop.torch_backend.input_updates import move_updates, without_unread_state, write_updates
from foreshape.interop.torch_backend.node_seconds import nbytes_of
from foreshape.interop.torch_backend.prepared_graph import prepare
from foreshape.interop.torch_backend.recomputed import recompute, repeat_views
from foreshape.interop.torch_backend.simpler_graph import simplify
from foreshape.interop.torch_backend.whole_operators import with_whole_operators
from foreshape.language.program.call_site import warn_user


def foreshape_backend(graph: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return a graph of Dynamo as a function of its inputs, compiled by way of AOTAutograd.

    Args:
        graph: a `torch.fx.GraphModule`.
        inputs: torch's tensors without numbers, and sizes, for its inputs.
        mode: of ``torch.compile``; none but "default" has a meaning here.
        options: of ``torch.compile``: ``memory``, ``recompute`` and ``precision``.

    Raises:
        SchemaError, MemoryPlanError: an unknown option, or a value it does not take.
    """
    settings = CompileOptions.parsed(options, mode)
    common: Any = importlib.import_module("torch._dynamo.backends.common")
    guards: Any = importlib.import_module("torch._guards")
    record = new_record(graph, str(guards.CompileContext.current_compile_id() or ""))
    forward, backward = (partial(_compiled, record, settings, is_backward) for is_backward in (False, True))
    compiler = common.aot_autograd(
        fw_compiler=forward, bw_compiler=backward, partition_fn=partial(_partition, record, settings), keep_inference_input_mutations=True
    )
    try:
        with with_whole_operators(), torch.autocast("cpu", torch.bfloat16) if settings.precision == "bf16" else nullcontext():
            return compiler(graph, inputs)
    except BaseException:  # torch traces the code once more in another way, or the user is told
        forget_record(record)
        raise


def _partition(record: GraphFacts, settings: CompileOptions, joint: Any, inputs: Any, **options_of_torch: Any) -> Any:
    """Return the graphs of the forward and the backward pass, out of the joint one."""
    without_unread_state(joint.graph)
    move_updates(joint.graph)
    repeat_views(joint.graph)
    if not settings.keeps:
        limit = settings.recompute
        if settings.memory is not None:
            inputs_bytes = sum(
                nbytes_of(node.meta["val"]) for node in joint.graph.nodes if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
            )
            limit = max(min(settings.memory - inputs_bytes, settings.memory if limit is None else limit), 0)
        record.recomputed = recompute(joint.graph, limit)
    joint.recompile()
    compiling: Any = importlib.import_module("functorch.compile")
    return compiling.default_partition(joint, inputs, **options_of_torch)


def _compiled(record: GraphFacts, settings: CompileOptions, is_backward: bool, module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return a pass of a graph as a function of the list of its inputs; by eager torch where the graph has no form here."""
    device = next((str(x.device) for x in inputs if isinstance(x, torch.Tensor) and x.device.type != "cpu"), "cpu")
    dispatch: Any = importlib.import_module("torch.utils._python_dispatch")
    guards: Any = importlib.import_module("torch._guards")
    facts = None if (context := guards.TracingContext.try_get()) is None else context.fw_metadata
    results = next(len(node.args[0]) for node in module.graph.nodes if node.op == "output")
    of_user = results if facts is None else min(facts.num_forward_returns, results)
    prepare(module)
    simplify(module.graph)
    write_updates(module.graph)
    with dispatch._disable_current_modes():  # constants are real tensors
        try:
            compiled = CompiledGraph(GraphProgram(module, is_backward, of_user, settings.precision == "eager"), device, settings.memory)
        except ForeshapeError as error:
            module.recompile()
            which = "backward" if is_backward else "forward"
            record.by_eager.append(f"the {which} pass: {error}")
            warn_user(f"the {which} pass of the graph {record.name} of torch.compile runs by eager torch: {error}")
            functions: Any = importlib.import_module("functorch.compile")
            boxed = functions.make_boxed_func(module.forward)
            boxed.record = record  # it lives as long as its graph
            return boxed
    compiled.record = record
    if is_backward:
        record.backward = compiled
    else:
        record.forward = compiled
    return compiled


setattr(foreshape_backend, "reset", forget_all)  # noqa: B010 (torch calls it where it forgets its graphs)
