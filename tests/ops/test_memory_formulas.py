"""Rules about memory with every dim open: none asks whether a symbol is zero, and a formula is never below the rule asked at numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.harness import answer, with_kernels
from support.kernel_calls import Call, calls
from support.kernel_memory import longest_sequences
from support.open_dims import Place, openings, places, values, with_sizes

from foreshape.core.dims import Dim, Size, evaluate, explain_symbols, symbols_of
from foreshape.core.spec import Spec
from foreshape.language.infer.rules import Key
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import all_operators
from foreshape.language.operator.require import PLACEHOLDER, RuleError
from foreshape.language.operator.samples import Sample

CASES = [c for c in with_kernels() if any(cls.workspace is not Operator.workspace or cls.retained_bytes is not Operator.retained_bytes
                                     for cls in (c[1], c[1].grad_class) if cls is not None)]  # fmt: skip
TIMES = (1, 2, 7, 64)
"""How many times as large the sizes of a sample are made."""
ONLY_THE_RUN_TELLS = 40
"""What stands for a size of a result that only the run tells."""


@pytest.fixture(autouse=True)
def no_symbol_is_a_truth_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition on a symbol is a fault here, also where it could be answered for this one."""

    def refuse(self: Dim) -> bool:
        raise AssertionError(f"the size {self} was used as a truth value")

    monkeypatch.setattr(Dim, "__bool__", refuse)


def asked(call: Call, specs: Key, requested: tuple[bool, ...], strided: frozenset[str]) -> list[Size]:
    """All that the operator of a call says of its memory for some operands."""
    named: dict[str, Any] = {}
    if call.cls.workspace_requested:
        named["requested"] = requested
    if call.cls.workspace_strided:
        named["strided"] = strided
    if call.cls.workspace_rows:
        named["rows"] = 1000
    rule: Any = call.operator.workspace
    return [rule(*specs, **named), *(size for _, size in sorted(call.operator.retained(specs, requested).items()))]


def larger(call: Call) -> Iterator[dict[Place, int]]:
    """Sizes for the places of a call: all of them, and each size alone, some times as large; and empty."""
    found = {p: s for p, s in places(call.specs).items() if isinstance(s, int)}
    for times in TIMES:
        yield {p: s * times for p, s in found.items()}
        for size in sorted(set(found.values())) if times > 1 else ():
            yield {p: s * (times if s == size else 1) for p, s in found.items()}
    for size in sorted(set(found.values())):
        yield {p: 0 if s == size else s for p, s in found.items()}


QUICK = ("conv2d-0", "conv2d_transpose-1", "matmul_v2-6", "lookup_table-0", "layer_norm-0", "bilinear_interp_v2-0")


@pytest.mark.long_cases("conv2d_transpose-1", "conv2d-0")
@pytest.mark.parametrize(("name", "cls", "sample"), [pytest.param(*c, id=c[0], marks=() if c[0] in QUICK else pytest.mark.long) for c in CASES])
def test_formulas_are_made_for_all_that_can_be_open_and_are_no_smaller_than_the_numbers(name: str, cls: type[Operator], sample: Sample) -> None:
    for call in calls(cls, sample):
        slots = frozenset(o.name for o in call.cls.schema.operands)
        choices = [(call.requested, frozenset[str]()), (call.requested, slots)]
        choices += [(tuple(k == at for k in range(len(call.requested))), frozenset[str]()) for at in range(len(call.requested)) if len(call.requested) > 1]
        for way in openings(call.specs):
            compare(call, way, choices)


def compare(call: Call, way: dict[Place, Size], choices: list[tuple[tuple[bool, ...], frozenset[str]]]) -> None:
    specs = with_sizes(call.specs, way)
    try:
        found = answer(call.operator, specs)
    except RuleError:
        return  # the operator refuses what is open there
    formulas = [asked(call, specs, *choice) for choice in choices]
    for sizes in larger(call):
        numbers = with_sizes(call.specs, {p: sizes[p] for p in way})
        known = values(way, numbers)
        if known is None:
            continue
        try:
            answer(call.operator, numbers)
        except RuleError:
            continue
        if not all(c.answer(known) for c in found.conditions if c.symbols <= known.keys()):
            continue
        known |= longest(call, numbers)
        for formula, choice in zip(formulas, choices, strict=True):
            for said, number in zip(formula, asked(call, numbers, *choice), strict=True):
                if explain_symbols(said):
                    continue  # too long to be kept: a plan says that it is not known
                if _only_the_run_tells(said) and not _only_the_run_tells(number):
                    continue  # with this number it is the description that tells
                values_of = known | {n: ONLY_THE_RUN_TELLS for n in symbols_of(said) | symbols_of(number) if n.startswith(PLACEHOLDER)}
                assert symbols_of(said) <= values_of.keys(), f"{call.cls.type}: {said} has symbols that are not in its operands"
                bound, exact = evaluate(said, values_of), evaluate(number, values_of)
                assert bound >= exact, f"{call.cls.type}: {said} is {bound} with {known}, and the rule says {exact} for {numbers}, {choice}"


def _only_the_run_tells(size: Size) -> bool:
    return any(n.startswith(PLACEHOLDER) for n in symbols_of(size))


def longest(call: Call, specs: Key) -> dict[str, int]:
    """The symbols that say how long the longest sequences are, which are as long as all of them may be."""
    rows = {s.lod.source: s.dims[0] for k in specs for s in (k if isinstance(k, tuple) else (k,)) if isinstance(s, Spec) and s.lod is not None and s.dims}
    return {n: v if (v := max((r for r in rows.values() if isinstance(r, int)), default=0)) else 0 for n in longest_sequences(call)}


def test_most_operators_with_rules_have_samples_here() -> None:
    ours = {t: c for t, c in all_operators().items() if c.expand is Operator.expand and c.__module__.startswith("foreshape.")}
    with_rules = {t for t, c in ours.items() if c.workspace is not Operator.workspace}
    seen = {c[1].type for c in CASES} | {c[1].grad_class.type for c in CASES if c[1].grad_class is not None}
    assert with_rules <= seen, with_rules - seen
