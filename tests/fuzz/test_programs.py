"""Some programs drawn by chance, and all that were found to fail once: `make fuzz-programs` draws more."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn.chance import Chance, Seeded
from drawn.check import WAYS, Different, Failed, check, ways
from drawn.generator import draw
from drawn.in_foreshape import describe
from drawn.in_foreshape import run as run_in_foreshape
from drawn.in_torch import Runner
from drawn.kinds import KINDS
from drawn.measure import Reference, distance, flat
from drawn.program import Input, Optimizer, Parameter, Program, Step, every, parse
from drawn.shrink import shrunk
from programs import run

import foreshape as fs

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


def test_some_programs_give_what_torch_gives() -> None:
    counts = run(float("inf"), seed=0, count=8)
    assert not counts["FAILED"]
    assert counts["compared"] > 5


@pytest.mark.long
def test_more_programs_give_what_torch_gives() -> None:
    assert not run(float("inf"), seed=100_000, count=300)["FAILED"]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("path", FOUND, ids=[p.stem for p in FOUND])
def test_what_failed_once_does_not_fail_again(path: Path) -> None:
    check(parse(path.read_text()), list(WAYS)[:3])


def test_every_kind_and_way_is_drawn() -> None:
    programs = [draw(Chance(Seeded(seed))) for seed in range(250)]
    assert {s.kind for p in programs for s in every((*p.steps, *p.after))} == KINDS.keys()
    assert {w for seed in range(40) for w in ways(seed)} == WAYS.keys()
    assert sum(len(p.steps) > 25 for p in programs) > 25


def test_a_program_is_the_same_after_it_was_written_down() -> None:
    for seed in range(20):
        program = draw(Chance(Seeded(seed)))
        assert parse(program.text()).text() == program.text()


@pytest.mark.long
def test_a_wrong_gradient_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients in torch that are too large by 1e-5 the fuzzer must fail, and say so with few steps."""
    right = type(KINDS["fc"]).compute
    monkeypatch.setattr(type(KINDS["fc"]), "compute", lambda *given: [x + 1e-5 * (x - x.detach()) for x in right(*given)])
    for seed in range(60):
        program = draw(Chance(Seeded(seed)), most=8)
        try:
            check(program, [])
        except Failed as failure:
            assert isinstance(failure.__cause__, Different)
            small = shrunk(program, failure)
            assert "fc" in {s.kind for s in every(small.steps)}
            assert len(list(every(small.steps))) <= min(6, len(list(every(program.steps))))
            return
    raise AssertionError("a wrong gradient was never found")


def test_rounding_is_allowed_as_far_as_a_program_amplifies_it() -> None:
    """The gradient of what comes before a normalisation over the batch is zero but for rounding, of which Adam makes whole steps."""
    x, label = Input(0, "x0", ("batch", 3)), Input(1, "x1", ("batch", 2))
    fc = Step("fc", (0,), (2,), (("batch", 2),), {"width": 2, "flat": 1, "features": 1, "activation": None},
              {"weight0": Parameter("w10", (3, 2)), "bias": Parameter("w11", (2,))})  # fmt: skip
    norm = Step("batch_norm", (2,), (3,), (("batch", 2),), {"by_moving": False, "activation": None},
                {"weight": Parameter("w12", (2,)), "bias": Parameter("w13", (2,))})  # fmt: skip
    loss = Step("loss", (3, 1), (4,), ((),), {"how": "label"})
    adam = Optimizer("Adam", 0.0625, {"beta1": 0.875, "beta2": 0.96875, "epsilon": 2.0**-40})
    program = Program((x, label), (fc, norm, loss), 4, adam, (5, 5, 5), ((4,), (4,), (4,)), (), 1)
    of = describe(program, "fp32")
    ran = run_in_foreshape(of, [fs.Executor(seed=1)])
    reference = Reference(program, of.trained, ran.rates, Runner(program, of.trained, ran.rates).run())
    seen = flat(ran)
    assert distance(seen["w11"], reference.ran.state["w11"]) > 0.01, "the bias before the normalisation moves by rounding alone"
    assert reference.apart(seen, "fp32") is None
    wrong = {**seen, "w10": seen["w10"] + 0.03, "w13": seen["w13"] + 0.001}
    assert "w13" in (reference.apart(wrong, "fp32") or "")
