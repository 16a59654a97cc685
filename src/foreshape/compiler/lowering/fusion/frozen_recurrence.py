"""Recurrent layers with constant weights, as one call in machine code, where numba is installed.

Before: ``out, states = rnn(x, first states, weights, lengths)`` of fp32; the weights are persistables of a frozen step, or made of these alone
After: ``out, *states = layers(x, first states, lengths)``, with the weights in tiles
Unless: dropout is between the layers, or the gradient needs their values
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from foreshape.compiler.lowering.call_memory import workspace_of
from foreshape.compiler.lowering.fusion.frozen_values import constant_results, constants_of
from foreshape.compiler.lowering.fusion.graph import Graph, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, OpCall, Value, values_of
from foreshape.core.dims import no_less
from foreshape.core.spec import FP32
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.operator.sequence_computations import RecurrentLayers
from foreshape.machine.kernels import packed_recurrence
from foreshape.machine.kernels.recurrent_net import RecurrentNet
from foreshape.machine.targets import Feature


@rewrite(RewriteStage.FUSE, begins=(RecurrentLayers,), needs=(Feature.THREADS,))
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen or not packed_recurrence.can_pack():
        return 0
    return sum(_rewrite(graph, i, computation) for i, computation in graph.computing(RecurrentLayers))


def _rewrite(graph: Graph, i: OpCall, computation: RecurrentLayers) -> bool:
    x, states, weights, lengths = i.arguments[:4]
    spec, first, listed = spec_of(x), values_of([states]), values_of([weights])
    dims = [dims_of(w) for w in listed]
    if spec is None or spec.dtype is not FP32 or not all(d is not None and all(isinstance(n, int) for n in d) for d in dims):
        return graph.stopped(i, "its operands are no fp32 tensors, or the sizes of its weights are not known")
    calls, inputs = dict[int, KernelCall](), dict[Value, None]()
    if not all(_add_sources(graph, w, calls, inputs) for w in listed):
        return graph.stopped(i, "a weight is no persistable that keeps its value, and is not made of these alone")
    net = RecurrentNet(computation.mode, computation.layers, computation.directions, computation.hidden)
    features = dims[0][1] if dims[0] is not None else 0
    assert isinstance(features, int)
    make = _maker(net, partial(constants_of, tuple(calls.values()), tuple(map(repr, inputs)), tuple(map(repr, listed))), i.kernel)
    name = graph.pack("layers", list(inputs), packed_recurrence.packed_bytes(net, features), make)
    steps, batch, _ = spec.known_dims
    otherwise = workspace_of(i)
    kernel = packed_recurrence.layers(name, len(first), lengths is not None, lambda: no_less(otherwise, packed_recurrence.workspace_bytes(net, steps, batch)))
    operands: list[Argument] = [x, *first, *([] if lengths is None else [lengths])]
    results: list[Argument] = [i.results[0], *(i.results[2] if isinstance(i.results[2], list) else [None] * len(first))]
    if not graph.replace({i: [fused(i, kernel, operands, results)]}):
        return False
    graph.drop_unused(listed)
    return True


def _add_sources(graph: Graph, value: Value, calls: dict[int, KernelCall], inputs: dict[Value, None]) -> bool:
    """Add the frozen persistables of a value, and the calls that make it of these alone; return False if there are others."""
    if graph.is_frozen(value):
        inputs[value] = None
        return True
    maker = graph.maker(value)
    if maker is None or value not in constant_results(graph, maker) or not all(_add_sources(graph, v, calls, inputs) for v in maker.reads()):
        return False
    calls.setdefault(id(maker), maker)
    return True


def _maker(net: RecurrentNet, weights_of: Callable[..., list[Tensor]], kernel: Callable[..., Any]) -> Callable[..., packed_recurrence.PackedRecurrentNet]:
    def make(*values: Tensor) -> packed_recurrence.PackedRecurrentNet:
        weights = weights_of(*values)

        def otherwise(x: Tensor, states: Sequence[Tensor], lengths: Tensor | None) -> tuple[Tensor, ...]:
            out, _, last, _ = kernel(x, list(states), weights, lengths, requested=(True, False, True, False))
            return out, *last

        return packed_recurrence.PackedRecurrentNet(net, weights, otherwise)

    return make
