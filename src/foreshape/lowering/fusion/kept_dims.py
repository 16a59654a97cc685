"""Values kept for the dims that a gradient reads of them: the dims are kept in their place, without the numbers.

Before: ``y = slice(x)``, and much later ``d_x = slice_gradient(x, d_y)``, reading the dims of x alone (`Operator.gradient_reads_dims`)
After: ``dims = x.new_empty_strided(x.shape, (0, 0))`` of one element, and ``d_x = slice_gradient(dims, d_y)``
Unless: the numbers of x, or of a value in the same memory, are read as late
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from foreshape.kernels.fused import FusedKernel
from foreshape.lowering.fusion.graph import Graph, fused, spec_of
from foreshape.lowering.fusion.operand_dims import read_for_dims
from foreshape.lowering.kernel_calls import Argument, KernelCall, Value
from foreshape.program import Role

_SMALL = 1 << 10
"""The most bytes of a value kept as it is: it would cost a kernel call to save them."""


def apply(graph: Graph) -> int:
    found: dict[KernelCall, list[int]] = {i: at for i in graph.plain() if i.op.role & Role.BACKWARD and (at := read_for_dims(graph, i))}
    if not found:
        return 0
    roots, last = _last_reads(graph, found)
    hollow: dict[Value, Value] = {}
    count = 0
    for i, operands in found.items():
        arguments = list(i.arguments)
        for at in operands:
            arguments[at] = _instead(graph, i, arguments[at], roots, last, hollow)
        changed = [at for at in operands if arguments[at] is not i.arguments[at]]
        if changed and graph.replace({i: [replace(i, arguments=arguments)]}):
            count += len(changed)
    return count


def _last_reads(graph: Graph, found: Mapping[KernelCall, list[int]]) -> tuple[dict[Value, Value], dict[Value, int]]:
    """Return value -> the value whose memory it may be in, and of these the last place at which numbers in that memory are read."""
    roots: dict[Value, Value] = {}
    last: dict[Value, int] = {}
    for at, place in enumerate(graph.places):
        for i in place:
            dims_only = found.get(i, ())
            for value in (*i.uses(), *i.updates) if not dims_only else _numbers(i, dims_only):
                last[roots.get(value, value)] = at
            for value, source in i.memory():
                if source is not None:
                    roots[value] = roots.get(source, source)
    return roots, last


def _numbers(i: KernelCall, dims_only: list[int]) -> list[Value]:
    """Return the values whose numbers a call reads."""
    given = [v for at, a in enumerate(i.arguments) if at not in dims_only for v in (a if isinstance(a, list) else [a]) if v is not None]
    among = {*given, *(v for at in dims_only for a in [i.arguments[at]] for v in (a if isinstance(a, list) else [a]) if v is not None)}
    return given + [v for v in i.uses() if v not in among]


def _instead(graph: Graph, i: KernelCall, given: Argument, roots: dict[Value, Value], last: dict[Value, int], hollow: dict[Value, Value]) -> Argument:
    """Return the dims in the place of an operand, or of the elements of a list; the operand itself where they save nothing."""
    if isinstance(given, list):
        made = [_instead(graph, i, one, roots, last, hollow) for one in given]
        return given if all(a is b for a, b in zip(made, given, strict=True)) else [v for v in made if not isinstance(v, list)]
    if given is None or given in hollow:
        return given if given is None else hollow[given]
    root, maker, spec = roots.get(given, given), graph.maker(given), spec_of(given)
    if maker is None or spec is None or spec.dtype is None or spec.lod is not None or given.lod is not None or graph.is_fixed(root) or graph.is_fixed(given):
        return given
    size = spec.nbytes
    late = last.get(root, -1) >= graph.position(i)
    if late or maker.op.role & Role.BACKWARD or given.hollow or not spec.dims or (isinstance(size, int) and size <= _SMALL):
        return given
    dims = Value(f"{given.name}.dims", graph.fresh(), made=spec, hollow=True)
    strides = ", ".join("0" * spec.rank)
    kernel = FusedKernel("dims", f"{{0}}.new_empty_strided({{0}}.shape, ({strides},))")
    if not graph.replace({maker: [maker, fused(maker, kernel, [given], [dims])]}):
        return given
    hollow[given] = dims
    return dims
