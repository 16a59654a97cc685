"""Every operator with its dims open: what a rule infers in symbols holds for whatever they turn out to be.

Each sample is opened in every way of `open_dims.openings`, and so is its gradient. Then the symbols get other numbers, equal and unequal ones,
none and one among them, and three are asked: the conditions that the rule left open, the rule itself with these numbers, and the kernel.

- Where the conditions hold, the rule takes the numbers too, and all dims are what the symbols say: of the rule and of the kernel.
- Where one does not hold, the rule refuses the numbers as well; a condition that asks for more than that is in `NARROWER`, with the reason.

``PYTHONPATH=src:tests python tests/ops/test_open_dims.py [TYPE ...]`` says how many dims were compared.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.harness import answer, with_kernels
from support.kernel_calls import Call, backward, forward, in_a_row
from support.open_dims import Place, openings, places, resized, sizes_like, values, with_sizes

from foreshape.core.dims import Size, evaluate, symbols_of
from foreshape.core.spec import LOD_TENSOR, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.tensor_array import TensorArray
from foreshape.errors import ForeshapeError
from foreshape.language.infer.rules import Answer, Key, replace_symbols
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.require import PLACEHOLDER, RuleError
from foreshape.language.operator.samples import Sample
from foreshape.language.ops import Offsets
from foreshape.language.ops.rules.ragged_rules import longest, longest_outermost

CASES = list(with_kernels())
TRIES = 5
"""How often all symbols of an opening get numbers by chance."""
OUTSIDE = re.compile(r"out of (the )?(bounds|range|DATA bounds)|no larger than|must not have negative|invalid multinomial distribution")
"""What torch says of numbers that are no indices of another operand, which no dims can tell."""
NARROWER: dict[str, str] = {
    "squeeze without axes drops what is": "how many dims are left would be open",
    "a dim of X must divide that of target_tensor": "a dim without entries is as often repeated as one likes",
    "a transposed vector of open size": "a dim of 1 that a vector brings is dropped, and how many dims are left would be open",
    "the dim at axis": "squeeze2 leaves a dim at its axes that is not 1, and how many dims are left would be open",
}
"""Conditions (their requirement, or its beginning) that ask for more than the operator does, and why."""
COUNTS = ("how many numbers it holds must be known before the run", "the dim that is taken apart must be known, since each entry is a variable")
"""What rules say of the dims that no program can leave open."""
UNTOLD: dict[str, str] = {
    **dict.fromkeys(("cross", "cross_grad"), "that one of several open dims is 3 is no condition of two sides: the kernel asks"),
    "read_from_array": "X_W only says how the element is described",
    **dict.fromkeys(
        (*(f"{kind}_interp{version}_grad" for kind in ("nearest", "linear", "bilinear", "bicubic", "trilinear") for version in ("", "_v2")), "expand_v2_grad"),
        "where X or a shape is open, only the run tells what it undoes",
    ),
    "reorder_lod_tensor_by_rank_grad": "what a loop hands back is described with a size of its own, and the kernel compares it with the table",
}
"""Operators of which what the rule takes in symbols may be more than what it takes in numbers, and why."""


class Seen(Counter[str]):
    """What was done: ``dims`` compared, ``runs`` of kernels, and what there was no comparison of."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, str] = {}

    def fault(self, kind: str, words: str) -> None:
        """Note a fault, the first of its kind in words."""
        self.faults.setdefault(re.sub(r"[0-9]+", "#", kind), words)


def prove(cls: type[Operator], sample: Sample, seen: Seen, seed: int = 1) -> None:
    """Compare a sample's rule in symbols with its rule in numbers and its kernel, and likewise its gradient's."""
    rng = np.random.RandomState(seed)
    first = forward(cls, sample)
    calls = [first] if (back := backward(first)) is None else [first, back]
    for call in calls:
        base = places(call.specs)
        made = [(call, True), *((one, call is first) for one in others(call, rng))]
        made += [(one, True) for one in gradients(first, seen)] if call is not first else []
        tries = [Try(one, frozenset(p for p, s in places(one.specs).items() if base.get(p) != s), genuine) for one, genuine in made
                 if places(one.specs).keys() == base.keys()]  # fmt: skip
        for way in openings(call.specs):
            specs = with_sizes(call.specs, way)
            try:
                found = answer(call.operator, specs)
            except RuleError as error:
                seen["counts of a program" if str(error).startswith(COUNTS) else "openings refused"] += 1
                continue
            taken = [judge(call, specs, found, way, one, seen) for one in tries if one.changed <= way.keys()]
            if not taken[0] and not any(c.requirement.startswith(tuple(NARROWER)) for c in found.conditions):
                seen.fault(f"{call.cls.type}: the sample itself is refused", f"{call.operator}: {specs} with {found.conditions}")


class Try:
    """A call with other numbers, the places where they are others, and the results of its kernel, which runs once. ``genuine``: a gradient's
    operands are those that its forward kernel gives; where they are not, its kernel may refuse what no dims tell."""

    def __init__(self, call: Call, changed: frozenset[Place], genuine: bool) -> None:
        self.call, self.changed, self.genuine = call, changed, genuine
        self._made: list[tuple[Any, ...] | None] = []
        self.failed = ""

    def run(self) -> tuple[Any, ...] | None:
        """The results; None where the kernel refuses the values in words, or fails."""
        if not self._made:
            self._made.append(None)
            torch.default_generator.manual_seed(3)
            try:
                self._made[0] = self.call.laid(in_a_row).run()
            except ForeshapeError:
                pass
            except Exception as error:
                if self.genuine and not OUTSIDE.search(str(error)):
                    self.failed = str(error) or repr(error)
        return self._made[0]


def others(call: Call, rng: Any) -> Iterator[Call]:
    """The call with other numbers: each size wherever it is, each place alone, several by chance."""
    found = {p: s for p, s in places(call.specs).items() if isinstance(s, int)}
    sizes = sorted(set(found.values()))
    choices = [{p: to for p, s in found.items() if s == size} for size in sizes for to in sizes_like(size)]
    choices += [{p: to} for p, s in found.items() for to in (0, 1, s + 1) if to != s]
    for _ in range(TRIES):
        choices.append({p: int(rng.choice(sizes_like(s))) for p, s in found.items() if rng.rand() < 0.3})
        by_size = {s: int(rng.choice((s, *sizes_like(s)))) for s in sizes}
        choices.append({p: by_size[s] for p, s in found.items()})
    for choice in choices:
        made = resized(call, choice)
        if made is not None:
            yield made


def gradients(first: Call, seen: Seen) -> Iterator[Call]:
    """The gradient's calls for a forward call with other numbers."""
    of = {p: s for p, s in places(first.specs).items() if isinstance(s, int)}
    for size in sorted(set(of.values())):
        for to in sizes_like(size):
            for which in ([p for p, s in of.items() if s == size], *([p] for p, s in of.items() if s == size)):
                other = resized(first, dict.fromkeys(which, to))
                made = taken_back(other, seen) if other is not None else None
                if made is not None:
                    yield made


def taken_back(call: Call, seen: Seen) -> Call | None:
    """The gradient's call; None where the operator refuses these sizes."""
    try:
        answer(call.operator, call.specs)
        return backward(call)
    except (RuleError, ForeshapeError):
        return None
    except Exception as error:
        if not OUTSIDE.search(str(error)):
            seen.fault(f"{call.cls.type}: the kernel fails: {str(error)[:40]}", f"{call.operator} with {call.specs}: {error}")
        return None


def judge(call: Call, specs: Key, found: Answer, way: Mapping[Place, Size], tried: Try, seen: Seen) -> bool:
    """Compare; whether the conditions hold for these numbers."""
    other = tried.call
    known = values(way, other.specs)
    if known is None:
        seen["one symbol for two sizes"] += 1
        return False
    numbers = replace_symbols(specs, known)
    known |= told_by_the_run(other)
    broken = [c for c in found.conditions if c.symbols <= known.keys() and c.answer(known) is not True]
    title = f"{call.operator}: {specs} with {known}"
    try:
        exact = answer(call.operator, numbers)
    except RuleError as error:
        if not broken and not found.unknown and call.cls.type not in UNTOLD:
            seen.fault(f"{call.cls.type}: no condition is broken, and the rule refuses the numbers: {error}", title)
        seen["refused by both"] += 1
        return False
    if broken:
        narrow = [c for c in broken if not c.requirement.startswith(tuple(NARROWER) or ("-",))]
        if narrow and tried.run() is not None:
            seen.fault(f"{call.cls.type}: what {narrow[0].requirement!r} refuses is taken by the rule and the kernel", f"{title}: {narrow[0]}")
        seen["narrower"] += 1
        return False
    compare(found, exact, known, title, seen)
    got = tried.run()
    if tried.failed and not found.unknown:
        seen.fault(f"{call.cls.type}: the kernel fails: {tried.failed[:40]}", f"{title}: {tried.failed}")
    if got is None:
        seen["values refused"] += 1
        return True
    seen["runs"] += 1
    for spec, value in zip(found.results, got, strict=False) if tried.genuine and call.cls.type not in UNTOLD else ():
        compare_made(spec, value, known, title, seen)
    return True


def compare(found: Answer, exact: Answer, known: Mapping[str, int], title: str, seen: Seen) -> None:
    """The rule's answer in symbols against its answer in numbers."""
    for slot, number in zip(found.results, exact.results, strict=True):
        a, b = flat(slot), flat(number)
        if len(a) != len(b):
            seen.fault(f"{title.partition('(')[0]}: other results in numbers", f"{title}: {a} in symbols, {b} in numbers")
            continue
        for one, other in zip(a, b, strict=True):
            if one is None or other is None or one.dims is None or other.dims is None:
                continue
            if len(one.dims) != len(other.dims) or any(
                isinstance(y, int) and symbols_of(x) <= known.keys() and evaluate(x, known) != y for x, y in zip(one.dims, other.dims, strict=True)
            ):
                seen.fault(f"{title.partition('(')[0]}: other dims in numbers", f"{title}: the rule says {one} in symbols and {other} in numbers")
            seen["dims of rules"] += len(one.dims)


def flat(slot: Any) -> list[Spec | None]:
    return list(slot) if isinstance(slot, tuple) else [slot]


def compare_made(slot: Any, value: Any, known: Mapping[str, int], title: str, seen: Seen) -> None:
    """The dims of what a kernel gave against the rule's."""
    pairs = zip(slot, value, strict=True) if isinstance(slot, tuple) and isinstance(value, (list, tuple)) else [(slot, value)]
    for spec, one in pairs:
        if spec is None or spec.dims is None or one is None or isinstance(one, (Offsets, TensorArray)):
            continue
        shape = (one.height, *one.values.shape[1:]) if isinstance(one, Rows) else tuple(one.shape)
        told = [x if symbols_of(x) <= known.keys() else None for x in spec.dims]
        wrong = len(shape) != len(told) or any(x is not None and evaluate(x, known) != n for x, n in zip(told, shape, strict=True))
        if wrong or any(x is None and not any(s.startswith(PLACEHOLDER) for s in symbols_of(d)) for x, d in zip(told, spec.dims, strict=True)):
            seen.fault(f"{title.partition('(')[0]}: the kernel gives other dims", f"{title}: {spec} was inferred, and the kernel gives {shape}")
        seen["dims"] += len(told) - told.count(None)
        seen["dims that only the run tells"] += told.count(None)


def told_by_the_run(call: Call) -> dict[str, int]:
    """The symbols that say how long the longest sequences are."""
    out: dict[str, int] = {}
    for spec, offsets in zip(call.specs, call.offsets, strict=True):
        for one, lod in zip(flat(spec), offsets if isinstance(offsets, list) else [offsets], strict=False):
            if isinstance(one, Spec) and one.lod is not None and isinstance(lod, Offsets):
                for size, length in ((longest(one.lod), lod.longest), (longest_outermost(one.lod), lod.in_rows(0).longest)):
                    out.update(dict.fromkeys(symbols_of(size), length))
    return out


QUICK = frozenset({"elementwise_add", "matmul_v2", "lookup_table", "clip", "concat", "expand_v2", "squeeze2", "conv2d", "batch_norm", "adam", "slice",
                   "softmax_with_cross_entropy", "gather", "sequence_pad", "viterbi_decode", "top_k"})  # fmt: skip
"""Operators whose rules ask each kind of question; of each, the first sample is looked at in every run of the suite."""


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize(("name", "cls", "sample"), [
    pytest.param(*c, id=c[0], marks=() if c[1].type in QUICK and c[0].endswith("-0") else pytest.mark.long) for c in CASES
])  # fmt: skip
def test_what_is_inferred_in_symbols_holds_for_any_numbers(name: str, cls: type[Operator], sample: Sample) -> None:
    seen = Seen()
    prove(cls, sample, seen)
    assert not seen.faults, "\n".join(f"{kind}\n    {words}" for kind, words in seen.faults.items())
    sizes = [v for s in flat_specs(forward(cls, sample).specs) for v in (s.dims or ())]
    all_are_counts = seen["counts of a program"] and not seen["openings refused"]
    assert seen["runs"] or not sizes or all_are_counts, f"nothing was compared: {dict(seen)}"


def flat_specs(specs: Key) -> list[Spec]:
    return [s for k in specs for s in flat(k) if s is not None and s.kind is LOD_TENSOR]


def report(types: Sequence[str]) -> int:
    """Try all samples, of these types where there are some; print what was found and how much was compared."""
    seen = Seen()
    for _, cls, sample in CASES:
        if not types or cls.type in types:
            prove(cls, sample, seen)
            if len(types) == 1:
                print(cls.type, dict(seen))
    for kind, words in sorted(seen.faults.items()):
        print(f"{kind}\n    {words}")
    print(", ".join(f"{n:,} {what}" for what, n in sorted(seen.items())))
    return int(bool(seen.faults))


if __name__ == "__main__":
    sys.exit(report(sys.argv[1:]))
