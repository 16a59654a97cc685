"""Operators of ONNX beside the results that ONNX's own tests want: small cases of each, with their tolerances."""

import pytest
from support.onnx_cases import cases, is_wanted, results
from support.some import one_in

from foreshape.errors import ForeshapeError

CASES = cases()

REFUSED = {"test_image_decoder_decode_pnm_rgb": "ImageDecoder"}
"""Cases that are refused, and a word of the reason: a case that is no longer refused leaves this list."""


def groups() -> list[str]:
    return sorted({name.split("_")[1][:1] for name in CASES if name not in REFUSED})


@pytest.mark.parametrize("letter", one_in(4, groups()))
def test_operators_give_what_onnx_wants(letter: str) -> None:
    failed: list[str] = []
    for name, case in CASES.items():
        if name in REFUSED or name.split("_")[1][:1] != letter:
            continue
        for at, got in enumerate(results(case)):
            if not is_wanted(case, at, got):
                want = case[f"out{at}"]
                failed.append(f"{name}: result {at}: {got.dtype}{list(got.shape)}, wanted {want.dtype}{list(want.shape)}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("name", [name for name in REFUSED if name in CASES])
def test_refusals_say_what_is_missing(name: str) -> None:
    with pytest.raises(ForeshapeError, match=REFUSED[name]):
        results(CASES[name])
