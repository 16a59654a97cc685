"""Operators of ONNX beside the results that ONNX's own tests want: small cases of each, with their tolerances."""

from typing import Any

import numpy as np
import pytest
from support.onnx_cases import cases

import foreshape as fs
from foreshape.errors import ForeshapeError
from foreshape.interop.onnx import open_model

CASES = cases()

REFUSED = {"test_image_decoder_decode_pnm_rgb": "ImageDecoder"}
"""Cases that are refused, and a word of the reason: a case that is no longer refused leaves this list."""


def results(case: dict[str, Any]) -> list[np.ndarray]:
    program, parameters = open_model(case["model"].tobytes())
    scope = fs.Scope()
    parameters.put_into(scope)
    ops = program.global_block.ops
    feeds, fetches = ([op.output("Out") for op in ops if op.type == "feed"], [op.input("X") for op in ops if op.type == "fetch"])
    fed = {name: case[f"in{at}"] for at, name in enumerate(feeds)}
    return [np.asarray(one) for one in fs.Executor("cpu").run(program, feed=fed, fetch=fetches, scope=scope)]


def groups() -> list[str]:
    return sorted({name.split("_")[1][:1] for name in CASES if name not in REFUSED})


@pytest.mark.parametrize("letter", groups())
def test_operators_give_what_onnx_wants(letter: str) -> None:
    failed: list[str] = []
    for name, case in CASES.items():
        if name in REFUSED or name.split("_")[1][:1] != letter:
            continue
        relative, absolute = case["tolerance"]
        for at, got in enumerate(results(case)):
            want = case[f"out{at}"]
            same = got.dtype == want.dtype and got.shape == want.shape
            if not same or not np.allclose(got, want, rtol=relative, atol=max(absolute, 1e-6), equal_nan=True):
                failed.append(f"{name}: result {at}: {got.dtype}{list(got.shape)}, wanted {want.dtype}{list(want.shape)}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("name", [name for name in REFUSED if name in CASES])
def test_refusals_say_what_is_missing(name: str) -> None:
    with pytest.raises(ForeshapeError, match=REFUSED[name]):
        results(CASES[name])
