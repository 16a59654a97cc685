"""What kernels take from torch's allocator while they run, beside what their operators say: ``PYTHONPATH=tests python -m support.kernel_memory [TYPE ...]``.

A sample is measured as it is, and with each of its sizes made larger, so that what grows with a size is seen to. All calls run in one
profile, with marks between them (a tensor of a size that nothing else has, taken and dropped), since a profile is slow to start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foreshape.core.dims import evaluate, symbols_of
from foreshape.core.spec import Spec
from foreshape.core.values.rows import Rows
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample
from foreshape.language.ops import Offsets
from foreshape.language.ops.rules.ragged_rules import longest, longest_outermost
from support.harness import with_kernels
from support.kernel_calls import Call, calls, in_a_row, in_natural_order, permuted, resized, sizes_of, tensors_of
from support.measured import allocator_events, between_marks, mark

SMALL = 1024
"""Bytes that a kernel may take beside its bound: scalars, shapes, the offsets of a few sequences."""
ELEMENTS = 4096
"""About as many elements the largest operand has after a size was made larger."""
UNTOLD = tuple(f"{kind}_interp{version}" for kind in ("nearest", "linear", "bilinear", "bicubic", "trilinear") for version in ("", "_v2"))
"""They take what grows with a size that a tensor holds: no rule can say that."""
AT_ONCE = 500
"""Calls in one profile."""


@dataclass(frozen=True)
class Measured:
    """A kernel call, the most bytes that it had beside operands and results, those that it keeps beside its results, and the bound."""

    name: str
    call: Call
    most: int
    kept: int
    bound: int

    @property
    def over(self) -> int:
        """By how much the bound is exceeded."""
        return self.most - self.bound - SMALL


def workspaces(given: Sequence[tuple[str, Call]]) -> list[Measured]:
    """What each call needs while it runs: the most that was allocated above the start, without what stays.

    What stays is the results, and what a kernel keeps with offsets so that the next one finds it.
    """
    held: list[Any] = []

    def run() -> None:
        for _, call in given:
            mark()
            held.append(call.run())
            mark()
            held[-1] = result_bytes(call, held[-1])

    parts = list(between_marks(allocator_events(run)[0]))
    assert len(parts) == 2 * len(given) + 1, "marks and calls are not one to one"
    out: list[Measured] = []
    for (name, call), part, size in zip(given, parts[1::2], held, strict=True):
        alive = np.cumsum([0, *part])
        last = int(alive[-1])
        out.append(Measured(name, call, int(alive.max()) - last, max(last - size, 0), bound(call)))
    return out


def result_bytes(call: Call, made: tuple[Any, ...]) -> int:
    """The bytes of memory of the results' own."""
    given = {t.untyped_storage().data_ptr() for v in call.arguments for t in tensors_of(v)}
    own = {s.data_ptr(): s.nbytes() for v in made for t in tensors_of(v) if (s := t.untyped_storage()).data_ptr() not in given}
    return sum(own.values())


def has_bound(cls: type[Operator]) -> bool:
    """Whether an operator has a `workspace` rule of its own."""
    return cls.workspace is not Operator.workspace


def bound(call: Call) -> int:
    """The bytes that the operator says."""
    named: dict[str, Any] = {}
    if call.cls.workspace_requested:
        named["requested"] = call.requested
    if call.cls.workspace_strided:
        strided = (o.name for o, v in zip(call.cls.schema.operands, call.arguments, strict=True) if any(not in_natural_order(t) for t in tensors_of(v)))
        named["strided"] = frozenset(strided)
    if call.cls.workspace_rows:
        given = [v for v in call.arguments if isinstance(v, Rows)]
        named["rows"] = sum(v.rows.numel() * (8 + v.values[:1].numel() * v.values.element_size()) for v in given)
    size: Any = call.operator.workspace(*call.specs, **named)
    return int(evaluate(size, longest_sequences(call)))


def longest_sequences(call: Call) -> dict[str, int]:
    """The symbols that say how long the longest sequences of the ragged operands are."""
    found: dict[str, int] = {}
    for spec, offsets in zip(call.specs, call.offsets, strict=True):
        if isinstance(spec, Spec) and spec.lod is not None and isinstance(offsets, Offsets):
            for size, seen in ((longest(spec.lod), offsets), (longest_outermost(spec.lod), offsets.in_rows(0))):
                found.update(dict.fromkeys(symbols_of(size), seen.longest))
    return found


def larger(name: str, cls: type[Operator], sample: Sample) -> Iterator[tuple[str, Call]]:
    """The calls of a sample, and those of the sample with each of its sizes made larger, operands in rows and permuted."""
    made: list[tuple[str, Call]] = [(name, c) for c in calls(cls, sample)]
    most = max((t.numel() for _, c in made for v in c.arguments for t in tensors_of(v)), default=0)
    for size in sizes_of(cls, sample) if most else ():
        axes = max(t.shape.count(size) for _, c in made for v in c.arguments for t in tensors_of(v))  # each of them becomes larger
        times = max(2, int((ELEMENTS // most) ** (1 / max(axes, 1))))
        made += [(f"{name}, {size} -> {size * times}", c) for c in resized(cls, sample, size, size * times)]
    for title, call in made:
        if cls.type in UNTOLD and any(o.name in ("OutSize", "SizeTensor", "Scale") for o, v in zip(call.cls.schema.operands, call.specs, strict=True) if v):
            continue
        yield title, call.laid(in_a_row)
        if any(t.dim() > 1 for v in call.arguments for t in tensors_of(v)):
            yield f"{title}, permuted", call.laid(permuted)


def measured(types: Sequence[str] = (), first: bool = False) -> list[Measured]:
    """Of the operators of these types (all, where there are none) and their gradients, every call of every sample, or of the ``first``."""
    wanted = set(types)
    out: list[Measured] = []
    given: list[tuple[str, Call]] = []
    for name, cls, sample in with_kernels():
        if first and not name.endswith("-0"):
            continue
        if not wanted or cls.type in wanted or (cls.grad_class is not None and cls.grad_class.type in wanted):
            given += [(n, c) for n, c in larger(name, cls, sample) if not wanted or c.cls.type in wanted]
        if len(given) > AT_ONCE:
            out += workspaces(given)
            given = []
    return out + workspaces(given)


def report(types: Sequence[str]) -> None:
    """Print, for each operator, the call that exceeds its bound by most; with types, all calls of theirs."""
    found = measured(types)
    if types:
        for m in found:
            operands = [tuple(t.shape) for v in m.call.arguments for t in tensors_of(v)]
            print(f"{m.most:>9,} of {m.bound:>9,} {'over ' if m.over > 0 else '     '} kept {m.kept:>8,}  {m.call.cls.type:28} {m.name}: {operands}")
        return
    worst: dict[str, Measured] = {}
    for m in found:
        held = worst.get(m.call.cls.type)
        if held is None or m.over > held.over:
            worst[m.call.cls.type] = m
    over = sorted((m for m in worst.values() if m.over > 0), key=lambda m: -m.over)
    for m in over:
        print(f"{m.call.cls.type:36} {m.most:>9,} of {m.bound:>9,}  {'' if has_bound(m.call.cls) else 'no rule'}  {m.name}")
    print(f"{len(over)} of {len(worst)} operators need more than they say, in {len(found)} calls")


if __name__ == "__main__":
    report(sys.argv[1:])
