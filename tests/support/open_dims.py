"""Kernel calls of operators' samples with their dims opened: which dims are symbols, in which ways, and other sizes for them.

A place is one dim of one operand, or one count of its sequences. `openings` gives ways to put symbols in places, `resized` the same call with
other sizes in some of them, and `values` the sizes that a call has where another has symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from foreshape.core.dims import Size, symbol
from foreshape.core.spec import LOD_TENSOR, Lod, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.tensor_array import TensorArray
from foreshape.language.infer.rules import Key
from foreshape.language.ops import Offsets
from support.kernel_calls import Call

Place = tuple[int, int, int]
"""Operand, number in its list (0 where there is none), axis; counts of sequences are the axes from `COUNTS` on."""
COUNTS = 100


def places(specs: Key) -> dict[Place, Size]:
    """Every place of some operands with the size that is there."""
    out: dict[Place, Size] = {}
    for at, given in enumerate(specs):
        for k, spec in enumerate(given if isinstance(given, tuple) else (given,)):
            if isinstance(spec, Spec) and spec.dims is not None:
                out |= {(at, k, axis): d for axis, d in enumerate(spec.dims)}
                out |= {(at, k, COUNTS + level): c for level, c in enumerate(spec.lod.counts if spec.lod is not None else ())}
    return out


def with_sizes(specs: Key, sizes: Mapping[Place, Size]) -> Key:
    """The same operands with other sizes in some places; a tensor of other dims has no known value."""

    def one(spec: Spec | None, at: int, k: int) -> Spec | None:
        if not isinstance(spec, Spec) or spec.dims is None:
            return spec
        dims = tuple(sizes.get((at, k, axis), d) for axis, d in enumerate(spec.dims))
        lod = spec.lod and Lod(spec.lod.source, tuple(sizes.get((at, k, COUNTS + level), c) for level, c in enumerate(spec.lod.counts)))
        return Spec(spec.kind, spec.dtype, dims, lod, spec.value if dims == spec.dims else None)

    return tuple(tuple(one(s, at, k) for k, s in enumerate(g)) if isinstance(g, tuple) else one(g, at, 0) for at, g in enumerate(specs))  # pyright: ignore


def openings(specs: Key) -> Iterator[dict[Place, Size]]:
    """Ways to put symbols in places: one alone, all with symbols of their own, all of one size with one symbol, and of those each size alone."""
    found = {p: s for p, s in places(specs).items() if isinstance(s, int)}
    own = {p: symbol(f"s{p[0]}_{p[1]}_{p[2]}") for p in found}
    by_size = {s: symbol(f"n{s}") for s in sorted(set(found.values()))}
    seen: set[tuple[tuple[Place, Size], ...]] = set()
    ways: list[dict[Place, Size]] = [own, {p: by_size[s] for p, s in found.items()}, {p: by_size[s] for p, s in found.items() if s > 1}]
    ways += [{p: by_size[s] for p, s in found.items() if s == size} for size in by_size]
    ways += [{p: own[p]} for p in found]
    for way in ways:
        key = tuple(way.items())
        if way and key not in seen:
            seen.add(key)
            yield way


def values(way: Mapping[Place, Size], specs: Key) -> dict[str, int] | None:
    """What the symbols of an opening are for operands with these sizes; None where one would be two numbers, or the places are others."""
    found = places(specs)
    out: dict[str, int] = {}
    for place, name in way.items():
        size = found.get(place)
        if not isinstance(size, int) or out.setdefault(str(name), size) != size:
            return None
    return out


def resized(call: Call, sizes: Mapping[Place, int]) -> Call | None:
    """The call with other sizes in some places, of tensors whose numbers repeat; None where sequences cannot be made so."""
    if any(isinstance(a, (Offsets, TensorArray)) for a in call.arguments):  # which are of other operands' sizes
        return None
    arguments, offsets, specs = list(call.arguments), list(call.offsets), list(call.specs)
    for at, (given, spec) in enumerate(zip(arguments, specs, strict=True)):
        many = isinstance(spec, tuple)
        made: list[tuple[Any, Any, Any]] = []
        lods = offsets[at] if many and offsets[at] is not None else [offsets[at]]
        for k, (value, of) in enumerate(zip(given if many else [given], spec if many else [spec], strict=True)):
            lod = lods[k] if k < len(lods) else None
            wanted = {axis: n for (a, b, axis), n in sizes.items() if (a, b) == (at, k)}
            if wanted:
                if not isinstance(value, Tensor) or hasattr(value, "kept"):
                    return None
                changed = _resized(value, lod, of, wanted)
                if changed is None:
                    return None
                value, lod, of = changed
            made.append((value, lod, of))
        if many:
            arguments[at], specs[at] = [m[0] for m in made], tuple(m[2] for m in made)
            offsets[at] = [m[1] for m in made] if offsets[at] is not None else None
        else:
            arguments[at], offsets[at], specs[at] = made[0]
    return replace(call, arguments=arguments, offsets=offsets, specs=tuple(specs))


def _resized(value: Tensor, lod: Offsets | None, spec: Spec, sizes: Mapping[int, int]) -> tuple[Tensor, Offsets | None, Spec] | None:
    dims = list(value.shape)
    for axis, to in sizes.items():
        if axis < COUNTS:
            if to and not value.shape[axis]:
                value = torch.zeros([*value.shape[:axis], 1, *value.shape[axis + 1 :]], dtype=value.dtype)
            index = torch.arange(to) % max(value.shape[axis], 1)
            value = value.index_select(axis, index)
            dims[axis] = to
    counts = {axis - COUNTS: to for axis, to in sizes.items() if axis >= COUNTS}
    made = spec.lod
    if lod is not None and made is not None and (counts or 0 in sizes):
        lod = _sequences([counts.get(level, len(x) - 1) for level, x in enumerate(lod.levels)], dims[0])
        if lod is None:
            return None
        made = Lod(made.source, tuple(len(x) - 1 for x in lod.levels))
    known = spec.value
    if known is not None and value.shape != spec.dims:
        known = tuple(int(x) for x in value.reshape(-1).tolist()) if value.numel() <= 64 else None
    return value.contiguous(), lod, Spec(LOD_TENSOR, spec.dtype, tuple(dims), made, known)


def _sequences(counts: list[int], rows: int) -> Offsets | None:
    """So many sequences at each level, of so many rows in all."""
    levels: list[Tensor] = []
    for count, below in zip(counts, [*counts[1:], rows], strict=True):
        if count == 0 and below:
            return None
        levels.append(torch.tensor([below * k // count for k in range(count + 1)] if count else [0], dtype=torch.int64))
    return Offsets(levels)


def sizes_like(size: int) -> tuple[int, ...]:
    """Other sizes to put where one is: none, one, and some near and far from it."""
    return tuple(dict.fromkeys(n for n in (0, 1, size - 1, size + 1, 2 * size) if n >= 0 and n != size))


def mapped_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A value whose tensors are changed, sparse rows as they are."""
    if isinstance(value, Rows):
        return value
    if isinstance(value, list):
        return [mapped_tensors(v, change) for v in value]
    return change(value) if isinstance(value, Tensor) else value
