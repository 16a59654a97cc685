"""Every sample of every operator that is written for ONNX, read back here: it computes the same. `tests/onnx_runtime` computes them there."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support.harness import of_each_operator, operators, sampled
from support.written_samples import REFUSED_EVERYWHERE, Written, differs, known, refusal_is_known, written

from foreshape.errors import ForeshapeError, FormatError
from foreshape.interop.forms.rules import onnx_writer, types_in_onnx
from foreshape.interop.onnx import open_model
from foreshape.interop.onnx.write.unwritten_ops import reason_of
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import get
from foreshape.language.operator.samples import Sample
from foreshape.runtime.engine import Executor, Scope

WRITTEN = [case for case in sampled() if onnx_writer(case[1].type) is not None]
UNREAD = {"lod_array_length-1": "cannot be imported: the place 2 in a sequence of 0"}
"""Samples that ONNX can be written for and not be run: an array with places that nothing has written."""
BLOCKS = ("control", "legacy", "recurrent", "sequence", "structured")
"""The rooms of operators with blocks, steps and sequences, and of old ones: some of them are written."""


def read_back(made: Written) -> list[Any]:
    program, parameters = open_model(made.model)
    scope = Scope()
    parameters.put_into(scope)
    ops = program.global_block.ops
    feed = {n: made.feed[n] for op in ops if op.type == "feed" and (n := op.output("Out")) is not None}
    fetch = [op.input("X") for op in ops if op.type == "fetch"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Executor("cpu").run(program, feed=feed, fetch=fetch, scope=scope)


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(WRITTEN, quick=24)
def test_what_is_written_and_read_back_computes_the_same(name: str, cls: type[Operator], sample: Sample) -> None:
    try:
        made = written(cls, sample)
    except FormatError as refused:
        assert refusal_is_known(name, str(refused)), f"{name}: {refused}"
        return
    assert name not in known()["refused"], f"{name} is refused no longer: take it out of written_samples.json"
    if not made.want:
        return
    if name in UNREAD:
        with pytest.raises(ForeshapeError, match=UNREAD[name]):
            read_back(made)
        return
    got = read_back(made)
    told = [f"{name}: {n}: {words}" for (n, want), g in zip(made.want.items(), got, strict=True) if (words := differs(np.asarray(g), want, made.exact))]
    if name in known()["here"]:
        assert told, f"{name} is the same now: take it out of written_samples.json"
    else:
        assert not told, "\n".join(told)


@pytest.mark.long
def test_general_refusals_are_needed() -> None:
    reasons: list[str] = []
    for _, cls, sample in WRITTEN:
        try:
            written(cls, sample)
        except FormatError as refused:
            reasons.append(str(refused))
    assert [words for words in REFUSED_EVERYWHERE if not any(words in reason for reason in reasons)] == []


def test_each_operator_is_written_or_has_a_reason() -> None:
    missing = [
        cls.type
        for cls in operators()
        if not (onnx_writer(cls.type) or cls.expand is not Operator.expand or reason_of(cls.type, cls.__module__))
        and cls.__module__.removeprefix("foreshape.language.ops.").split(".")[0] not in BLOCKS
        and cls.type not in ("feed", "fetch", "fusion_seqpool_cvm_concat", "stright_throuth_estimator_grad")
    ]
    assert missing == []
    assert [t for t in types_in_onnx() if reason_of(t, "") or get(t) is None] == []
