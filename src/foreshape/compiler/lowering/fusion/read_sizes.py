"""Sizes read at once, instead of a call for each step of their arithmetic.

Before: whole numbers of ``shape(x)``, cut, joined or cast, each a dim of x or a number; and ``y = fill(sizes)``, or ``y = size == number``
After: ``sizes = sizes_of(x)``; and ``y``, filled by the dims of x, or the truth of the comparison of these
Unless: the result is fetched or stored, or something changes it in place; or nothing else would hold x for so long
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from foreshape.compiler.lowering.fusion.graph import Graph, fused, spec_of
from foreshape.compiler.lowering.fusion.plain_calls import is_plain
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall, OpCall, Value, values_of
from foreshape.core.dims import equal
from foreshape.core.spec import DType
from foreshape.core.values.torch_proxy import Lazy, Tensor, torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.language.operator.computations import ComparedElements, Filled
from foreshape.machine.kernels.call_record import NamedConstant, X, call
from foreshape.machine.kernels.fused import FusedKernel
from foreshape.machine.kernels.pages import full


@rewrite(RewriteStage.MEMORY)
def apply(graph: Graph) -> int:
    count = sum(_compared(graph, i, computation) for i, computation in graph.computing(ComparedElements))
    count += sum(_sizes(graph, i) for i in reversed(graph.plain()))
    return count + sum(
        _filled(graph, i, computation.number) for i, computation in graph.computing(Filled) if computation.number is not None and any(i.arguments)
    )


def _sizes(graph: Graph, i: OpCall) -> bool:
    """Replace a call for dims of a tensor that are made of other such calls."""
    spec, operator = spec_of(i.results[0]) if i.results else None, i.op.operator
    if spec is None or spec.value is None or spec.rank > 1 or operator is None or operator.side_effects or all(isinstance(n, int) for n in spec.value):
        return False
    if any(isinstance(n, float) for n in spec.value) or not is_plain(graph, i):
        return False
    root = _root(graph, i)
    if root is None or graph.maker(root) is graph.maker(i.arguments[0]):
        return False
    places = _places(graph, i, root, spec.value)
    if places is None:
        return False
    make = Lazy(partial(_sizes_call, places, spec.known_dtype, not spec.rank))
    if not graph.replace({i: [fused(i, FusedKernel("{op} sizes", call(NamedConstant("sizes", make), X)), [root], i.results[:1])]}):
        return False
    graph.drop_unused(values_of(i.arguments))
    return True


def _compared(graph: Graph, i: OpCall, computation: ComparedElements) -> bool:
    """Replace the comparison of one size with another, or with a number."""
    sides, spec = [spec_of(a) for a in i.arguments[:2]], spec_of(i.results[0])
    values = [s.value[0] for s in sides if s is not None and s.value is not None and len(s.value) == 1 and not isinstance(s.value[0], float)]
    if len(values) < 2 or spec is None or not is_plain(graph, i):
        return False
    root = _root(graph, i)
    places = None if root is None else _places(graph, i, root, values)
    if root is None or places is None:
        return False
    make = Lazy(partial(_compared_call, places, getattr(np, computation.how), spec.rank))
    if not graph.replace({i: [fused(i, FusedKernel("{op} of dims", call(NamedConstant("compared", make), X)), [root], i.results[:1])]}):
        return False
    graph.drop_unused(values_of(i.arguments))
    return True


def _filled(graph: Graph, i: OpCall, number: float) -> bool:
    """Replace a call for a tensor of one number in sizes that are made of dims."""
    spec = spec_of(i.results[0])
    if spec is None or spec.dims is None or not is_plain(graph, i):
        return False
    root = _root(graph, i)
    places = None if root is None else _places(graph, i, root, spec.dims)
    if root is None or places is None:
        return False
    make = Lazy(partial(_filled_call, places, number, spec.known_dtype))
    if not graph.replace({i: [fused(i, FusedKernel("{op} by dims", call(NamedConstant("filled", make), X)), [root], i.results[:1])]}):
        return False
    graph.drop_unused(values_of(i.arguments))
    return True


def _places(graph: Graph, i: OpCall, root: Value, sizes: Sequence[Any]) -> list[int] | None:
    """Return each size: a number, or ``-1 - axis`` for a dim of x. Return None for another size, or where reading x would hold it longer."""
    dims = graph.dims(root)
    if dims is None or root in i.reads():
        return None
    if not (root.feed or graph.is_fixed(root)) and all(graph.position(r) < graph.position(i) for r in graph.readers(root)):
        return None
    numbers = (n if isinstance(n, int) else next((-1 - axis for axis, d in enumerate(dims) if equal(n, d) is True), None) for n in sizes)
    places = [n for n in numbers if n is not None]
    return None if len(places) < len(sizes) or any(isinstance(n, int) and n < 0 for n in sizes) else places


def _root(graph: Graph, i: KernelCall) -> Value | None:
    """Return the tensor whose dims calls lead to a call, through whole numbers known by inference."""
    waiting, ids = [i], {id(i)}
    root: Value | None = None
    while waiting:
        for v in waiting.pop().reads():
            spec, maker = spec_of(v), graph.maker(v)
            if spec is not None and spec.value is not None and spec.known_dtype.is_integer:
                if maker is not None and id(maker) not in ids:
                    ids.add(id(maker))
                    waiting.append(maker)
            elif root is not None and v is not root:
                return None
            else:
                root = v
    return root


def _read(x: Tensor, places: Sequence[int]) -> list[int]:
    dims = x.shape
    return [n if n >= 0 else dims[-1 - n] for n in places]


def _sizes_call(places: Sequence[int], dtype: DType, scalar: bool) -> Callable[[Tensor], Tensor]:
    return partial(_sizes_of, places=places, dtype=torch_dtype(dtype), scalar=scalar)


def _filled_call(places: Sequence[int], number: float, dtype: DType) -> Callable[[Tensor], Tensor]:
    return partial(_filled_by, places=places, number=number, dtype=torch_dtype(dtype))


def _compared_call(places: Sequence[int], relation: Callable[[int, int], Any], rank: int) -> Callable[[Tensor], Tensor]:
    return partial(_compared_sizes, places=places, relation=relation, dims=(1,) * rank)


def _sizes_of(x: Tensor, places: Sequence[int], dtype: Any, scalar: bool) -> Tensor:
    sizes = _read(x, places)
    return torch.tensor(sizes[0] if scalar else sizes, dtype=dtype, device=x.device)


def _filled_by(x: Tensor, places: Sequence[int], number: float, dtype: Any) -> Tensor:
    sizes = _read(x, places)
    return full(sizes, number, dtype) if x.is_cpu else torch.full(sizes, number, dtype=dtype, device=x.device)


def _compared_sizes(x: Tensor, places: Sequence[int], relation: Callable[[int, int], Any], dims: Sequence[int]) -> Tensor:
    return torch.full(dims, bool(relation(*_read(x, places))), dtype=torch.bool, device=x.device)
