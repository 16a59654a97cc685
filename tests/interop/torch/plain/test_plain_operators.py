"""Every sample of every operator that is written as torch code: it computes the same."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.harness import of_each_operator, sampled
from support.plain_samples import differences

from foreshape.errors import FormatError
from foreshape.interop.forms.rules import types_in_torch
from foreshape.interop.torch.write.plain_writer import PlainWriter
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import get
from foreshape.language.operator.samples import Sample

FILE = Path(__file__).with_name("plain_samples.json")
GENERAL = ("it changes parameters, in training", "it speaks with other ranks")
"""Words of the refusals of whole rooms."""
MARKS = ("feed", "fetch")
"""They mark inputs and results, and are never run."""


@cache
def known() -> dict[str, dict[str, Any]]:
    """By kind, type or sample -> words: ``refused``, the reasons of operators; ``differs``, what differs of samples."""
    return json.loads(FILE.read_text())


CASES = [case for case in sampled() if case[1].type not in MARKS]
WRITTEN = frozenset(types_in_torch())


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(CASES, quick=24)
def test_what_is_written_computes_the_same(name: str, cls: type[Operator], sample: Sample) -> None:
    try:
        told = differences(cls, sample)
    except FormatError as refused:
        words = str(refused)
        assert any(w in words for w in (*GENERAL, *known()["refused"].get(cls.type, ()))), f"{name}: {words}"
        return
    if name in known()["differs"]:
        assert told, f"{name} is the same now: take it out of {FILE.name}"
    else:
        assert not told, f"{name}: {told}"


@pytest.mark.long_cases("recurrent/gru")
@of_each_operator([c for c in CASES if c[1].type in WRITTEN], quick=48)
def test_it_computes_the_same_where_nothing_is_known_before_the_run(name: str, cls: type[Operator], sample: Sample) -> None:
    """Samples with known whole numbers are constants otherwise, whatever the rule says."""
    folded = PlainWriter._known_sizes
    PlainWriter._known_sizes = lambda self, op: False
    try:
        told = differences(cls, sample)
    except FormatError:
        return
    finally:
        PlainWriter._known_sizes = folded
    assert name in known()["differs"] or not told, f"{name}: {told}"


@pytest.mark.long
def test_each_refusal_is_one_still(request: pytest.FixtureRequest) -> None:
    """With ``--update`` the refused operators and the differing samples are written again."""
    refused: dict[str, list[str]] = {}
    differs: dict[str, str] = {}
    counts: dict[str, int] = defaultdict(int)
    for name, cls, sample in CASES:
        try:
            told = differences(cls, sample)
            counts["written"] += 1
            if told:
                differs[name] = known()["differs"].get(name, told)
        except FormatError as error:
            counts["refused"] += 1
            words = str(error).split("code:")[-1].strip().split("): ")[-1]
            words = "is ragged" if "is ragged" in words else words
            if words not in (*GENERAL, *refused.get(cls.type, ())):
                refused.setdefault(cls.type, []).append(words)
    if request.config.getoption("--update"):
        FILE.write_text(json.dumps({"refused": refused, "differs": differs}, indent=4) + "\n")
    assert known()["refused"] == refused
    assert known()["differs"].keys() == differs.keys()
    assert counts["written"] > 2000


def test_each_rule_is_of_an_operator() -> None:
    assert [t for t in types_in_torch() if get(t) is None] == []
