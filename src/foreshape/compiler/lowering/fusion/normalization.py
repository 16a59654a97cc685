"""A normalization over each example and its gradient, without the variance that only the gradient reads.

Before: ``y, mean, variance = normalize(x, scale, shift)``, ``d_x, d_scale, d_shift = gradient(x, mean, variance, scale, shift, d_y)``
After: the same with the inverse deviation in the place of the variance, as torch's kernels give and take it
Unless: something else reads the mean or the variance; or they, the scale or the shift have another element type than x, or other dims than an example
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, backward_of, fused, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, Value
from foreshape.core.spec import tensor
from foreshape.language.operator.computations import LayerNorm
from foreshape.machine.kernels import layer_norm


@rewrite(RewriteStage.FUSE, begins=(LayerNorm,))
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i, computation) for i, computation in graph.computing(LayerNorm))


def _rewrite(graph: Graph, i: KernelCall, computation: LayerNorm) -> bool:
    x, *parameters = i.arguments
    back = graph.only_reader(i.results[1])
    if back is None or graph.only_reader(i.results[2]) is not back or backward_of(back, LayerNorm) != computation:
        return graph.stopped(i, "the mean and the variance are read by other than its gradient, or the step has no gradient of it")
    values = [v for v in parameters if isinstance(v, Value)]
    if back.arguments[:-1] != [x, *i.results[1:], *parameters] or not _fits(x, values, computation.begin):
        return graph.stopped(i, "scale or shift has another element type than x, or other dims than an example; or x is of 16 bits")
    has_parameters = parameters[0] is not None, parameters[1] is not None
    first, second, third = (not graph.unused(r) for r in back.results)
    spec = spec_of(x)
    assert spec is not None
    row = tensor(spec.known_dtype, *(d if axis < computation.begin else 1 for axis, d in enumerate(spec.known_dims)))  # as torch's kernels keep the dims
    mean, inverse = (Value(name, graph.fresh(), made=row) for name in ("example_mean", "inverse_deviation"))
    forth = fused(i, layer_norm.forward(computation.begin, computation.epsilon, has_parameters), [x, *values], [i.results[0], mean, inverse])
    kernel = layer_norm.gradient(computation.begin, has_parameters, (first, second, third), spec_of(values[0]) if values else None)
    return graph.replace({i: [forth], back: [fused(back, kernel, [back.arguments[-1], x, mean, inverse, *values], back.results)]})


def _fits(x: Argument, values: list[Value], begin: int) -> bool:
    of_x = spec_of(x)
    if of_x is None or of_x.dtype is None or of_x.dtype.itemsize < 4:  # halves have statistics of another type
        return False
    specs = [spec_of(v) for v in values]
    return all(s is not None and s.dtype is of_x.dtype and s.known_dims == of_x.known_dims[begin:] for s in specs)
