"""A normalization of rows with constant parameters, as a part of a series of oneDNN's kernels.

Before: ``y = scale * (x - mean) / sqrt(variance + epsilon) + shift`` of fp32, with the mean and the variance of each example; scale and shift,
    if any, are persistables of a frozen step. It is one operator, or written out: ``d = x - mean(x)``, ``y = d / sqrt(mean(d^2) + epsilon)``,
    over the last dims, then a product with scale and a sum with shift
After: ``y = normalized(x)``, with these inside
Unless: the mean or the variance is read, or anything between; images have four dims, and oneDNN has their channels innermost; or oneDNN's own library is
    not there
"""

from __future__ import annotations

from functools import partial

from foreshape.compiler.lowering.fusion.frozen import affine_of, is_frozen_fp32
from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, Value
from foreshape.core.dims import Size, product
from foreshape.core.spec import FP32
from foreshape.language.operator.computations import LayerNorm, Power, Product, Quotient, Reduction, Subtraction, Sum
from foreshape.machine.kernels import packed
from foreshape.machine.kernels.normalized_rows import STATISTICS, normalized_rows
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.targets import Feature


@rewrite(RewriteStage.FUSE, begins=(LayerNorm, Power), needs=(Feature.ONEDNN,))
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    roots = [i for i, computation in graph.computing(Power) if computation.of in (0.5, -0.5)]
    operators = list(graph.computing(LayerNorm))
    if not (roots or operators) or library() is None:  # asked last: the library takes some ms to load
        return 0
    return sum(_rewrite(graph, i, computation) for i, computation in operators) + sum(_written_out(graph, i) for i in roots)


def _rewrite(graph: Graph, i: KernelCall, computation: LayerNorm) -> bool:
    x, *parameters = i.arguments
    return all(graph.unused(r) for r in i.results[1:]) and _stand_in(graph, x, parameters, computation, [], i)


def _stand_in(graph: Graph, x: Argument, parameters: list[Argument], computation: LayerNorm, gone: list[KernelCall], last: KernelCall) -> bool:
    """Replace the calls of a normalization of x by a packed kernel; the last one makes its result."""
    spec = spec_of(x)
    if spec is None or spec.dtype is not FP32 or spec.rank == 4 or (isinstance(x, Value) and x.lod is not None and (spec.rank != 2 or computation.begin != 1)):
        return False
    values = [v for v in parameters if isinstance(v, Value)]
    if not all(is_frozen_fp32(graph, v) for v in values):
        return False
    rows: Size = product(spec.known_dims[: computation.begin])
    name = graph.pack("normalization", values, 0, partial(normalized_rows, computation.begin, computation.epsilon, *(isinstance(v, Value) for v in parameters)))
    call = fused(last, packed.normalization(name, lambda: rows * STATISTICS), [x], [last.results[0]])
    return graph.replace({**dict.fromkeys(gone, ()), last: [call]})


def _written_out(graph: Graph, root: KernelCall) -> bool:
    """Rewrite a normalization by its root of the variance."""
    addition = graph.maker(root.arguments[0])
    affine = None if addition is None else affine_of(graph, addition)
    if addition is None or affine is None or affine[0] != 1.0:
        return False
    variance = graph.maker(addition.arguments[0])
    squares = None if variance is None else graph.maker(variance.arguments[0])
    distance = None if squares is None else graph.maker(squares.arguments[0])
    if variance is None or squares is None or distance is None or computes(distance, Subtraction) is None or not _is_square(squares):
        return False
    x, center = distance.arguments[0], distance.arguments[1]
    mean, dims = graph.maker(center), dims_of(x)
    begin = _begin(mean, dims)
    if mean is None or dims is None or begin is None or mean.arguments[0] is not x or _begin(variance, dims) != begin:
        return False
    gone = [mean, distance, squares, variance, addition, root]
    last = _divided(graph, distance.results[0], root, gone)
    if last is None:
        return False
    parameters: list[Argument] = []
    for kind in (Product, Sum):
        gone.append(last)
        reader = graph.only_reader(last.results[0])
        parameter = None if reader is None else _by_example(graph, reader, last.results[0], kind, dims, begin)
        parameters.append(parameter)
        last = reader if reader is not None and parameter is not None else gone.pop()
    inside = {id(i) for i in gone}
    if any(graph.is_fixed(i.results[0]) or any(id(r) not in inside and r is not last for r in graph.readers(i.results[0])) for i in gone):
        return False
    return _stand_in(graph, x, parameters, LayerNorm(begin, affine[1]), gone, last)


def _is_square(i: KernelCall) -> bool:
    power = computes(i, Power)
    return power.of == 2.0 if power is not None else computes(i, Product) is not None and i.arguments[0] is i.arguments[1]


def _begin(i: KernelCall | None, dims: tuple[Size, ...] | None) -> int | None:
    """Return the first of the last dims whose mean is taken, each kept as a dim of 1; None for any other call."""
    computation = computes(i, Reduction)
    if computation is None or dims is None or computation.how != "AVERAGE" or not computation.keeps or computation.axes is None:
        return None
    axes = sorted(axis % len(dims) for axis in computation.axes)
    return axes[0] if axes == [*range(len(dims) - len(axes), len(dims))] and axes[0] else None


def _divided(graph: Graph, distance: Argument, root: KernelCall, gone: list[KernelCall]) -> KernelCall | None:
    """Return the division by the root; a call for its reciprocal joins the ones ``gone``."""
    computation = computes(root, Power)
    divisor, reader = root.results[0], graph.only_reader(root.results[0])
    times = computation is not None and computation.of < 0.0
    inverse = computes(reader, Power)
    if not times and reader is not None and inverse is not None and inverse.of == -1.0:
        gone.append(reader)
        divisor, times = reader.results[0], True
        reader = graph.only_reader(divisor)
    if reader is None or computes(reader, Product if times else Quotient) is None:
        return None
    operands = reader.arguments[:2]
    return reader if operands == [distance, divisor] or (times and operands == [divisor, distance]) else None


def _by_example(graph: Graph, i: KernelCall, x: Argument, kind: type[Product] | type[Sum], dims: tuple[Size, ...], begin: int) -> Argument:
    """Return the other operand of a product or a sum, if it has one number for each element of an example."""
    computation = computes(i, kind)
    if computation is None or i.arguments[0] is not x:
        return None
    narrow = dims_of(i.arguments[1])
    fits = narrow == dims[begin:] and computation.axis in (-1, begin)
    return i.arguments[1] if fits and is_frozen_fp32(graph, i.arguments[1]) else None
