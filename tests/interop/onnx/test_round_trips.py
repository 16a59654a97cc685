"""Models read, written and read again are the same programs but for names: ONNX's own small cases, and which of them come back as other ops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.onnx_cases import cases
from support.program_forms import forms_of
from support.some import is_quick

from foreshape.errors import FormatError
from foreshape.interop.inference import columns
from foreshape.interop.onnx import open_model
from foreshape.interop.onnx.write.models import model_of
from foreshape.interop.parameters import Stored
from foreshape.language.program import Program
from foreshape.language.wire.onnx_encode import encode_model
from foreshape.language.wire.onnx_model import read_model

KNOWN: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "round_trips.json").read_text())
"""As read, and ``by ops`` without the notes of the nodes behind the ops: ``others``, the cases that come back as other ops; ``refused``, the cases without a
form, and words of the reason."""
CASES = cases()


def opened(model: bytes) -> tuple[Program, dict[str, Stored]]:
    program, parameters = open_model(model)
    program.refresh()
    return program, parameters.stored()


def written_again(model: bytes, program: Program, values: dict[str, Stored]) -> bytes:
    opset = read_model(model).opsets.get("", 18)
    feeds, fetches = columns(program, "feed", outputs=True), columns(program, "fetch", outputs=False)
    made = model_of(program, feeds, {name: name for name in fetches}, values, opset if opset >= 18 else None)
    return b"".join(map(bytes, encode_model(made)))


def comes_back(name: str, way: str) -> bool:
    model = CASES[name]["model"].tobytes()
    program, values = opened(model)
    for op in program.all_ops() if way == "by ops" else ():
        op.origin = None
    again, held = opened(written_again(model, program, values))
    return forms_of(program, values) == forms_of(again, held)


def groups() -> list[Any]:
    letters = sorted({name.split("_")[1][:1] for name in CASES})
    return [pytest.param(letter, share, marks=() if share == "quick" else pytest.mark.long) for letter in letters for share in ("quick", "others")]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("way", KNOWN)
@pytest.mark.parametrize(("letter", "share"), groups())
def test_a_model_comes_back_as_the_same_program(letter: str, share: str, way: str) -> None:
    known, wrong = KNOWN[way], list[str]()
    for name in CASES:
        if name.split("_")[1][:1] != letter or is_quick(name, 10) is not (share == "quick"):
            continue
        if name in known["refused"]:
            with pytest.raises(FormatError, match=known["refused"][name]):
                comes_back(name, way)
        elif comes_back(name, way) is (name in known["others"]):
            wrong.append(f"{name} {'comes back the same now' if name in known['others'] else 'comes back as other ops'}")
    assert not wrong, "\n".join(wrong)
