"""Small calls of a frozen step that inference knows better: sizes, picked entries, and views of views.

Before: whole numbers of ``shape(x)``, cut, joined or cast, each a dim of x or a number; ``y = gather(x, k)`` at one known entry of a known dim;
    ``select(xs, cast(truth))``; and ``z = view(y)`` of ``y = view(x)``, by reshapes, or by means over an axis of one entry
After: ``sizes = sizes_of(x)``; ``y``, a part of x; ``select(xs, truth)``; and ``z = view(x)``, or x itself where the dims are the same
Unless: the result is fetched or stored, or something changes it in place; or two dims or more of z are not known
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from foreshape.dims import Size, equal
from foreshape.kernels.fused import Effects, FusedKernel
from foreshape.lowering.fusion.graph import Graph, computes, dims_of, fused, fused_as, spec_of
from foreshape.lowering.kernel_calls import KernelCall, OpCall, Value, values_of
from foreshape.operator.computations import Cast, Picking, Reduction, Reshape, Selection
from foreshape.spec import BOOL
from foreshape.values.torch_proxy import Tensor, torch
from foreshape.values.torch_types import torch_dtype

_VIEW, _PART = (Effects(views={0: 0}, layouts={0: layout}) for layout in ("reshaped", "strided"))


def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    count = sum(_sizes(graph, i) for i in reversed(graph.plain()))
    count += sum(_picked(graph, i, of) for i, of in graph.computing(Picking)) + sum(_selected(graph, i) for i, _ in graph.computing(Selection))
    return count + sum(_viewed(graph, i) for i in graph.plain())


def is_plain(graph: Graph, i: OpCall) -> bool:
    """Return True for a call without effects, whose first result alone is needed, dense and not a part of the results."""
    if i.copies or i.stores or i.in_place or i.updated or i.region is not None or not i.results or not graph.is_left(i) or not graph.makes_one(i):
        return False
    values = [*i.reads(), *values_of(i.results[:1])]
    return all(v.lod is None and not v.may_lack and not v.levels for v in values) and not graph.is_fixed(i.results[0])


def are_equal(a: Sequence[Size] | None, b: Sequence[Size] | None) -> bool:
    """Return True if dims are known to be the same."""
    return a is not None and b is not None and len(a) == len(b) and all(equal(m, n) is True for m, n in zip(a, b, strict=True))


def slice_text(rank: int, cuts: Sequence[tuple[int, int, int]]) -> str:
    """Return the text of a slice of an operand: of some axes the first entry and the end."""
    of = {axis % rank: f"{begin}:{end}" for axis, begin, end in cuts}
    return f"{{0}}[{', '.join(of.get(axis, ':') for axis in range(rank))}]"


def _sizes(graph: Graph, i: OpCall) -> bool:
    """Replace a call for dims of a tensor that are made of other such calls."""
    if not is_plain(graph, i):
        return False
    spec, operator = spec_of(i.results[0]), i.op.operator
    if spec is None or spec.value is None or spec.rank > 1 or operator is None or operator.side_effects or all(isinstance(n, int) for n in spec.value):
        return False
    root = _root(graph, i)
    dims = graph.dims(root)
    if root is None or dims is None or graph.maker(root) is graph.maker(i.arguments[0]) or root in i.reads():
        return False
    found = (n if isinstance(n, int) else next((-1 - at for at, d in enumerate(dims) if equal(n, d) is True), None) for n in spec.value)
    places = [n for n in found if n is not None]
    if len(places) < len(spec.value) or any(isinstance(n, int) and n < 0 for n in spec.value):
        return False
    make = partial(_sizes_of, places=places, dtype=torch_dtype(spec.known_dtype), scalar=not spec.rank)
    if not graph.replace({i: [fused(i, FusedKernel("{op} sizes", "{sizes}({0})", {"sizes": make}), [root], i.results[:1])]}):
        return False
    graph.drop_unused(values_of(i.arguments))
    return True


def _root(graph: Graph, i: KernelCall) -> Value | None:
    """Return the tensor whose dims calls lead to a call, through whole numbers known by inference."""
    waiting, seen = [i], {id(i)}
    found: Value | None = None
    while waiting:
        for v in waiting.pop().reads():
            spec, made = spec_of(v), graph.maker(v)
            if spec is not None and spec.value is not None and spec.known_dtype.is_integer:
                if made is not None and id(made) not in seen:
                    seen.add(id(made))
                    waiting.append(made)
            elif found is not None and v is not found:
                return None
            else:
                found = v
    return found


def _sizes_of(x: Tensor, places: Sequence[int], dtype: Any, scalar: bool) -> Tensor:
    dims = x.shape
    found = [n if n >= 0 else dims[-1 - n] for n in places]
    return torch.tensor(found[0] if scalar else found, dtype=dtype)


def _picked(graph: Graph, i: OpCall, of: Picking) -> bool:
    """Replace the pick of one known entry."""
    x, index = i.arguments[:2]
    dims, spec, out = graph.dims(x), spec_of(index), dims_of(i.results[0])
    if dims is None or spec is None or spec.value is None or out is None or len(spec.value) != 1 or not is_plain(graph, i):
        return False
    axis, at = of.axis % len(dims), spec.value[0]
    size = dims[axis]
    if not isinstance(at, int) or not isinstance(size, int) or not 0 <= at < size:
        return False
    text = f"{{0}}.narrow({axis}, {at}, 1)" if len(out) == len(dims) else f"{{0}}.select({axis}, {at})"
    return graph.replace({i: [fused(i, FusedKernel("{op} part", text, effects=_PART), [x], i.results[:1])]})


def _selected(graph: Graph, i: OpCall) -> bool:
    """Let a selection read the truth value from which its number is cast."""
    made = graph.maker(i.arguments[1])
    truth = spec_of(made.arguments[0]) if made is not None and computes(made, Cast) is not None else None
    if made is None or truth is None or truth.dtype is not BOOL or not graph.replace({i: [replace(i, arguments=[i.arguments[0], made.arguments[0]])]}):
        return False
    graph.drop_unused(made.results)
    return True


def _viewed(graph: Graph, i: OpCall) -> bool:
    """Replace a view of a view."""
    out = i.results[0] if i.results else None
    wanted = graph.dims(out)
    if not isinstance(out, Value) or wanted is None or not _is_view(graph, i) or not is_plain(graph, i):
        return False
    x = i.arguments[0]
    while isinstance(x, Value):
        if x.lod is not None or x.levels or x.may_lack:
            return False
        if are_equal(graph.dims(x), wanted):
            return _replaced(graph, i, [], {out: x})
        made = graph.maker(x)
        if made is None or not (_is_view(graph, made) or fused_as(made, Reshape) is not None) or made.copies or made.stores:
            break
        x = made.arguments[0]
    if not isinstance(x, Value) or (x is i.arguments[0] and computes(i, Reshape) is not None):
        return False
    unknown = [n for n in wanted if not isinstance(n, int)]
    if len(unknown) > 1 or 0 in wanted:
        return False
    dims = ", ".join(str(n) if isinstance(n, int) else "-1" for n in wanted)
    made = fused(i, FusedKernel("{op} view", f"{{0}}.reshape({dims})" if wanted else "{0}.reshape(())", effects=_VIEW), [x], [out], Reshape())
    return _replaced(graph, i, [made])


def _replaced(graph: Graph, i: OpCall, new: list[KernelCall], instead: Mapping[Value, Value] | None = None) -> bool:
    done = graph.replace({i: new}, instead)
    graph.drop_unused(i.arguments[:1] if done else [])
    return done


def _is_view(graph: Graph, i: KernelCall) -> bool:
    """Return True for the same elements in other dims; a mean or sum over one entry is one too."""
    if computes(i, Reshape) is not None:
        return not any(i.arguments[1:])
    of, dims = computes(i, Reduction), graph.dims(i.arguments[0]) if i.arguments else None
    if of is None or not dims or of.how not in ("SUM", "AVERAGE"):
        return False
    return all(dims[axis] == 1 for axis in (range(len(dims)) if of.axes is None else of.axes))
