"""Operators that say that they compute each example on its own do so: two parts behind one another give their results behind one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.harness import build, of_each_operator, sampled

import foreshape as fs
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample, SampleTensor

CASES = [c for c in sampled() if c[1].examples and c[2].exact and c[2].arguments.get("InitHidden") is None]
"""First states [layers, sequences, hidden] have the examples along another axis."""


def count_of(value: SampleTensor) -> int:
    """The examples of a sample tensor: its outermost sequences, or its rows."""
    return len(value.lengths[0]) if value.lengths else value.dims[0] if value.dims else 0


def part_of(value: SampleTensor, numbers: Any, begin: int, end: int) -> SampleTensor:
    levels = list[tuple[int, ...]]()
    for level in value.lengths:
        before, inside = sum(level[:begin]), sum(level[begin:end])
        levels.append(tuple(level[begin:end]))
        begin, end = before, before + inside
    rows = np.asarray(numbers)[begin:end]
    return replace(value, data=rows, dims=rows.shape, lengths=tuple(levels))


def results_of(cls: type[Operator], arguments: Mapping[str, Any]) -> dict[str, Any]:
    case = build(cls, arguments)
    names = {f"{slot}.{k}": n for slot, of in case.outputs.items() for k, n in enumerate(of)}
    found = fs.Executor().run(case.program, case.feed, list(names.values()), fs.Scope())
    return dict(zip(names, found, strict=True))


def hold_to_examples(cls: type[Operator], arguments: Mapping[str, Any], slots: tuple[str, ...]) -> int:
    """Compare the results of all examples with those of the first one and of the others. Says how many were compared."""
    case = build(cls, arguments)
    present = {s: arguments[s] for s in slots if arguments.get(s) is not None}
    counts = {count_of(v) for of in present.values() for v in (of if isinstance(of, list) else [of])}
    if len(counts) != 1 or (count := counts.pop()) < 2:
        return 0

    def cut(slot: str, begin: int, end: int) -> Any:
        of = arguments[slot]
        if isinstance(of, list):
            return [part_of(v, case.feed[f"{slot}.{k}"], begin, end) for k, v in enumerate(of)]
        return part_of(of, case.feed[slot], begin, end)

    def held(slot: str, of: Any) -> Any:
        if isinstance(of, list):
            return [replace(v, data=np.asarray(case.feed[f"{slot}.{k}"])) for k, v in enumerate(of)]
        return replace(of, data=np.asarray(case.feed[slot])) if isinstance(of, SampleTensor) else of

    whole_of = {s: held(s, of) if s in cls.schema.operand_names else of for s, of in arguments.items()}
    whole = results_of(cls, whole_of)
    parts = [results_of(cls, {**whole_of, **{s: cut(s, begin, end) for s in present}}) for begin, end in ((0, 1), (1, count))]
    compared = {n: v for n, v in whole.items() if not cls.example_results or n.rpartition(".")[0] in cls.example_results}
    for name, value in compared.items():
        found = [p[name] for p in parts]
        if isinstance(value, LoDTensor) or any(isinstance(f, LoDTensor) for f in found):
            joined = LoDTensor.joined(found)
            assert joined.sequence_lengths == value.sequence_lengths, name
            numbers, wanted = np.asarray(joined.data), np.asarray(value.data)
        else:
            numbers, wanted = np.concatenate([np.asarray(f) for f in found]), np.asarray(value)
        np.testing.assert_allclose(numbers, wanted, rtol=1e-4, atol=1e-5, err_msg=name)
    return len(compared)


@pytest.mark.quick_cases(one_in=3)
@of_each_operator(CASES, quick=3)
def test_parts_behind_one_another_give_their_results_behind_one_another(name: str, cls: type[Operator], sample: Sample) -> None:
    hold_to_examples(cls, sample.arguments, cls.examples)
