"""Values of a series of oneDNN's kernels: their dims, means, logarithms and attentions. Shared by rewrites of frozen steps; no rewrite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, OpCall, Value, values_of
from foreshape.core.dims import Size, equal
from foreshape.language.operator.computations import Concat, Identity, MatrixProduct, Reduction, Reshape, Scaling, Slicing, Split, Transposition
from foreshape.language.operator.sequence_computations import AttentionInSequences
from foreshape.machine.kernels.onednn_stages import Same
from foreshape.machine.kernels.onednn_texts import Attended

_WITHOUT_LOGARITHMS = (MatrixProduct, Identity, Scaling, Reshape, Slicing, Split, Concat, Transposition)
"""A softmax may have zeros where all that is made of it is one of these; a product sums over it."""


def is_mean_of_pixels(computation: Reduction) -> bool:
    """Return True for the mean of each channel of images."""
    return computation.how == "AVERAGE" and computation.axes is not None and {axis % 4 for axis in computation.axes} == {2, 3}


def takes_no_logarithm(graph: Graph, value: Argument) -> bool:
    """Return whether nothing in the step can take the logarithm of a softmax: the library's own has zeros, where that of `softmax` is bounded."""
    waiting: list[Argument] = [value]
    values = set(values_of([value]))
    while waiting:
        for r in graph.readers(waiting.pop()):
            if not any(computes(r, kind) is not None for kind in _WITHOUT_LOGARITHMS):
                return False
            if computes(r, MatrixProduct) is None:
                new = [v for v in values_of(r.results) if v not in values]
                values.update(new)
                waiting += new
    return True


def same(graph: Graph, x: Value, out: Argument) -> Same | None:
    """Return the elements as they lie, in other dims, where images have one pixel or one channel."""
    a, b = graph.dims(x), graph.dims(out)
    if a is None or b is None or any(len(d) == 4 and not (d[1] == 1 or (d[2] == 1 and d[3] == 1)) for d in (a, b)):
        return None
    return in_dims(a, b)


def in_dims(a: Sequence[Size] | None, b: Sequence[Size] | None) -> Same | None:
    """Return the elements as they lie, in other dims; None if one of these is neither a number nor a dim before."""
    if a is None or b is None:
        return None
    dims: list[int] = []
    for size in b:
        axis = None if isinstance(size, int) else next((index for index, n in enumerate(a) if equal(size, n) is True), None)
        if not isinstance(size, int) and axis is None:
            return None
        dims.append(size if isinstance(size, int) else -1 - (axis or 0))
    return Same(tuple(dims))


def attention_stage(graph: Graph, i: KernelCall) -> Attended | None:
    """Return the computation of an attention within sequences of one ragged value; None of another call."""
    computation, values = computes(i, AttentionInSequences), values_of(i.arguments)
    if computation is None or not isinstance(i, OpCall) or computation.causal or graph.lowered.whole or len(values) != 3:
        return None
    rows, dims, result = values[0].lod, dims_of(values[0]), i.results[0]
    if rows is None or dims is None or any(o is not rows for o in values_of(i.offsets or [])) or not isinstance(result, Value) or result.lod is not rows:
        return None
    width = dims[1]
    return Attended(computation.heads, computation.scale or (width // computation.heads) ** -0.5) if isinstance(width, int) else None


def attending(i: OpCall) -> Callable[..., Any]:
    """Return the kernel of an attention as a function of Q, K, V and their offsets."""
    return partial(_attend, i.kernel)


def _attend(kernel: Callable[..., Any], q: Any, k: Any, v: Any, offsets: Any) -> Any:
    return kernel(q, k, v, None, offsets=[offsets] * 3, requested=(True, False))[0]
