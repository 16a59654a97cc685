"""Programs of PaddlePaddle 3 compute what it computed: one op each, and whole networks, in each way that a program is run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from differences import DIFFERENT, UNKNOWN
from support.paddle3 import FOLDER, TOLERANCE, Case, apart, cases, numbers
from support.some import each

import foreshape as fs
from foreshape.interop import write_parameters

OPERATORS, NETWORKS = cases("operators"), cases("networks")
RUN = [n for n in NETWORKS if n not in UNKNOWN]


def wrong(names: Iterable[str], of: dict[str, Case]) -> list[str]:
    """What is said of each case that is not as PaddlePaddle has it, or as it is listed."""
    out: list[str] = []
    for name in names:
        if name in UNKNOWN:
            continue
        found = of[name].differences(of[name].run())
        listed, _ = DIFFERENT.get(name, ((), ""))
        out += [f"{name}: result {at}: {words}" for at, words in found.items() if at not in listed]
        out += [f"{name}: result {at} is listed as different, and is not" for at in listed if at not in found]
    return out


def test_the_cases_are_here() -> None:
    assert len(OPERATORS) == 894 and len(NETWORKS) == 26 and len(cases("twins")) == 6
    assert {*DIFFERENT, *UNKNOWN} <= {*OPERATORS, *NETWORKS} and not DIFFERENT.keys() & UNKNOWN.keys()


def test_the_comparison_can_fail() -> None:
    of = OPERATORS["softmax-0"]
    (want,) = of.want
    assert of.differences([want]) == {}
    for other in (want.T, want.astype(np.float64), want + 2 * TOLERANCE * np.abs(want).max(), np.where(want == want.max(), np.nan, want)):
        assert set(of.differences([other])) == {0}
    assert apart(np.array([1.0, np.inf]), np.array([1.0, np.inf])) == 0.0 and apart(np.array([np.inf]), np.array([1.0])) == np.inf


def test_every_program_of_one_op_computes_as_in_paddlepaddle() -> None:
    assert not wrong(OPERATORS, OPERATORS)


@pytest.mark.parametrize("name", UNKNOWN)
def test_operators_that_are_not_known_are_named(name: str) -> None:
    of = OPERATORS.get(name) or NETWORKS[name]
    with pytest.raises(fs.ExecutionError, match=f"operator '{UNKNOWN[name]}' is not known"):
        of.run()


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", RUN)
def test_a_network_computes_as_in_paddlepaddle(name: str) -> None:
    assert not wrong([name], NETWORKS)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", each(3, RUN))
def test_a_network_that_is_saved_as_pdmodel_is_the_same(name: str, tmp_path: Path) -> None:
    """Its file in the format of 2.x is read as the same program, computes bit by bit the same, and so does the frozen network, nearly."""
    of = NETWORKS[name]
    program = fs.load_program(of.data)
    program.refresh()
    plain = of.run(program)
    program.save(tmp_path / "n.pdmodel")
    again = fs.load_program(tmp_path / "n.pdmodel")
    assert again.to_bytes() == program.to_bytes() and str(again) == str(program)
    for a, b in zip(plain, of.run(again), strict=True):
        assert torch.equal(torch.as_tensor(numbers(a)).nan_to_num(), torch.as_tensor(numbers(b)).nan_to_num())
    frozen = of.run(program, frozen=True)
    listed, _ = DIFFERENT.get(name, ((), ""))
    assert set(of.differences(frozen)) <= set(listed)


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("name", each(3, RUN))
def test_a_network_opens_with_its_parameter_file(name: str, tmp_path: Path) -> None:
    """Feeds and fetches have the file's names and order, and parameters are found in the order of the parameter file."""
    of = NETWORKS[name]
    (tmp_path / "inference.json").write_bytes(of.data)
    if of.saved():
        write_parameters(tmp_path / "inference.pdiparams", of.saved())
    model = fs.load_inference_model(tmp_path, scope=fs.Scope())
    assert list(model.feeds) == of.ends("feed")
    assert {v.name for v in model.program.global_block.vars.values() if v.persistable} - {"feed", "fetch"} == set(of.saved())
    found = model.run(of.feed)
    assert list(found) == of.ends("fetch")
    listed, _ = DIFFERENT.get(name, ((), ""))
    assert set(of.differences(list(found.values()))) <= set(listed)
    predictor = fs.Predictor(tmp_path)
    answered: Any = predictor.run(of.feed)
    assert set(of.differences(list(answered.values()))) <= set(listed)


def test_a_parameter_file_of_paddlepaddle_is_read() -> None:
    of = NETWORKS["half_weights"]
    program = fs.load_program(of.data)
    names = sorted(v.name for v in program.global_block.vars.values() if v.persistable and v.name not in ("feed", "fetch"))
    held = fs.interop.read_parameters(FOLDER / "half_weights.pdiparams", names)
    assert names == sorted(of.saved())
    for name, given in of.saved().items():
        np.testing.assert_array_equal(numbers(held[name]), numbers(given))
