"""Values kept for the dims that a gradient reads of them: the dims are kept in their place, without the numbers.

Before: ``y = slice(x)``, and much later ``d_x = slice_gradient(x, d_y)``, reading the dims of x alone (`Operator.gradient_reads_dims`)
After: ``dims = x.new_empty_strided(x.shape, (0, 0))`` of one element, and ``d_x = slice_gradient(dims, d_y)``
Unless: the numbers of x, or of a value in the same memory, are read as late
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from foreshape.compiler.lowering.fusion.graph import Graph, fused, spec_of
from foreshape.compiler.lowering.fusion.operand_dims import read_for_dims
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, Value
from foreshape.language.program import Role
from foreshape.machine.kernels.call_record import TupleRecord, X, method
from foreshape.machine.kernels.fused import FusedKernel
from foreshape.machine.kernels.view_calls import shape

_SMALL = 1 << 10
"""The most bytes of a value kept as it is: it would cost a kernel call to save them."""


@rewrite(RewriteStage.MEMORY)
def apply(graph: Graph) -> int:
    calls: dict[KernelCall, list[int]] = {i: operands for i in graph.plain() if i.op.role & Role.BACKWARD and (operands := read_for_dims(graph, i))}
    if not calls:
        return 0
    roots, last = _last_reads(graph, calls)
    hollow: dict[Value, Value] = {}
    count = 0
    for i, operands in calls.items():
        arguments = list(i.arguments)
        for index in operands:
            arguments[index] = _instead(graph, i, arguments[index], roots, last, hollow)
        changed = [index for index in operands if arguments[index] is not i.arguments[index]]
        if changed and graph.replace({i: [replace(i, arguments=arguments)]}):
            count += len(changed)
    return count


def _last_reads(graph: Graph, calls: Mapping[KernelCall, list[int]]) -> tuple[dict[Value, Value], dict[Value, int]]:
    """Return value -> the value whose memory it may be in, and of these the last place at which numbers in that memory are read."""
    roots: dict[Value, Value] = {}
    last: dict[Value, int] = {}
    for index, place in enumerate(graph.places):
        for i in place:
            dims_only = calls.get(i, ())
            for value in (*i.uses(), *i.updates) if not dims_only else _numbers(i, dims_only):
                last[roots.get(value, value)] = index
            for value, source in i.memory():
                if source is not None:
                    roots[value] = roots.get(source, source)
    return roots, last


def _numbers(i: KernelCall, dims_only: list[int]) -> list[Value]:
    """Return the values whose numbers a call reads."""
    values = [v for index, a in enumerate(i.arguments) if index not in dims_only for v in (a if isinstance(a, list) else [a]) if v is not None]
    among = {*values, *(v for index in dims_only for a in [i.arguments[index]] for v in (a if isinstance(a, list) else [a]) if v is not None)}
    return values + [v for v in i.uses() if v not in among]


def _instead(graph: Graph, i: KernelCall, argument: Argument, roots: dict[Value, Value], last: dict[Value, int], hollow: dict[Value, Value]) -> Argument:
    """Return the dims in the place of an operand, or of the elements of a list; the operand itself where they save nothing."""
    if isinstance(argument, list):
        elements = [_instead(graph, i, element, roots, last, hollow) for element in argument]
        return argument if all(a is b for a, b in zip(elements, argument, strict=True)) else [v for v in elements if not isinstance(v, list)]
    if argument is None or argument in hollow:
        return argument if argument is None else hollow[argument]
    root, maker, spec = roots.get(argument, argument), graph.maker(argument), spec_of(argument)
    if (
        maker is None
        or spec is None
        or spec.dtype is None
        or spec.lod is not None
        or argument.lod is not None
        or graph.is_fixed(root)
        or graph.is_fixed(argument)
    ):
        return argument
    size = spec.nbytes
    late = last.get(root, -1) >= graph.position(i)
    if late or maker.op.role & Role.BACKWARD or argument.hollow or not spec.dims or (isinstance(size, int) and size <= _SMALL):
        return argument
    dims = Value(f"{argument.name}.dims", graph.fresh(), made=spec, hollow=True)
    kernel = FusedKernel("dims", method(X, "new_empty_strided", shape(), TupleRecord((0,) * spec.rank)))
    if not graph.replace({maker: [maker, fused(maker, kernel, [argument], [dims])]}):
        return argument
    hollow[argument] = dims
    return dims
