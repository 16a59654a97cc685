"""`train` of modules of torch beside torch's own loop, crossed: kinds of modules, optimizers, precisions, batches for an update, and ranks."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from support import launch_ranks
from support.processor import skip_without_bf16_lstm
from support.some import each
from support.torch_training import KINDS, OPTIMIZERS, brought, check_state, data_of, made, reference, trained

import foreshape as fs

DRAWN = {"dropout"}
"""Their losses are not torch's, whose generator draws other numbers."""
OF_EACH_RANK = {"averages"}
"""Each rank has a buffer of its own, of the inputs that it sees."""
HIDDEN = {"counts"}
"""They have changed a buffer that is in no state_dict."""
CASES = list(itertools.product(KINDS, OPTIMIZERS, ("fp32", "bf16"), (1, 2)))
QUICK = [(kind, ("SGD", "AdamW")[at % 2], ("fp32", "fp32", "bf16")[at % 3], 1 + at // 2 % 2) for at, kind in enumerate(KINDS)]


def check_training(kind: str, optimizer: str, precision: str, accumulate: int) -> None:
    if kind == "sequences" and precision == "bf16":
        skip_without_bf16_lstm()
    module, (x, y) = made(kind), data_of(kind)
    before = copy.deepcopy(module.state_dict())
    model = brought(module, x, y)
    again = copy.copy(model.scope)
    settings: dict[str, Any] = {"precision": precision, "accumulate": accumulate, "seed": 3}
    losses = [trained(model, x, y, OPTIMIZERS[optimizer][1](), scope=scope, **settings).losses for scope in (model.scope, again)]
    state = fs.state_dict(model.scope)
    assert losses[0] == losses[1]
    check_state(fs.state_dict(again), state, rtol=0, atol=0)
    module.load_state_dict(state)  # strict: names, shapes
    for name, parameter in module.named_parameters():
        assert parameter.requires_grad or torch.equal(state[name], before[name]), f"{name} is frozen"
    if kind not in HIDDEN:
        torch.testing.assert_close(model.for_test()(x), module.eval()(x), rtol=1e-4, atol=1e-5)
    if kind in DRAWN:
        assert not torch.equal(state["conv.weight"], before["conv.weight"])
        return
    theirs, wanted = reference(kind, optimizer, precision, accumulate)
    want = theirs.state_dict()
    if precision == "fp32":
        assert losses[0] == pytest.approx(wanted, rel=2e-6)
        check_state(state, want, rtol=1e-4, atol=1e-6)
        return
    assert losses[0] == pytest.approx(wanted, rel=2e-2)  # rounded elsewhere than by torch's autocast
    assert {n: (v.shape, v.dtype) for n, v in state.items()} == {n: (v.shape, v.dtype) for n, v in want.items()}
    floats = [n for n, v in want.items() if v.is_floating_point()]
    moved = torch.cat([(want[n] - before[n]).flatten() for n in floats])
    assert torch.cat([(state[n] - want[n]).flatten() for n in floats]).norm() < 0.2 * moved.norm()
    assert all(torch.equal(state[n], want[n]) for n in want.keys() - floats)


@pytest.mark.quick_cases("batch_norm_untracked-SGD-bf16-1")
@pytest.mark.parametrize("case", each(4, QUICK), ids=lambda c: "-".join(map(str, c)))
def test_steps_are_those_of_torch_and_the_state_goes_back(case: Any) -> None:
    check_training(*case)


@pytest.mark.long
@pytest.mark.parametrize("case", [c for c in CASES if c not in QUICK], ids=lambda c: "-".join(map(str, c)))
def test_all_of_the_cross(case: Any) -> None:
    check_training(*case)


SCRIPT = """
import os, sys, torch
rank = os.environ["RANK"]
import foreshape as fs
from support.torch_training import OPTIMIZERS, brought, data_of, made, trained
for case in sys.argv[2].split(","):
    kind, optimizer, precision, accumulate = case.split("-")
    x, y = data_of(kind)
    model = brought(made(kind), x, y)
    settings = {"precision": precision, "accumulate": int(accumulate), "ranks": fs.data_parallel(synchronise_batch_norm=True)}
    losses = trained(model, x, y, OPTIMIZERS[optimizer][1](), **settings).losses
    torch.save((losses, fs.state_dict(model.scope)), f"{sys.argv[1]}/{case}-{rank}")
"""


@pytest.mark.long
def test_two_ranks_train_as_torch_does_the_whole_batch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    cases = [case for case in QUICK if case[0] not in DRAWN | OF_EACH_RANK]
    listed = ["-".join(map(str, case)) for case in cases]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with launch_ranks.started(2, script, tmp_path, ",".join(listed), environment=environment, deadline=1200.0) as started:
        assert started.wait() == [0, 0], started.words()
    for case, name in zip(cases, listed, strict=True):
        module, losses = reference(*case)
        want = module.state_dict()
        for rank in range(2):
            found, state = torch.load(tmp_path / f"{name}-{rank}")
            want.pop("seen", None), state.pop("seen", None)  # of each rank's own part
            assert found == pytest.approx(losses, rel=1e-5 if "fp32" in case else 2e-2), name
            if "fp32" in case:
                check_state(state, want, rtol=1e-3, atol=1e-5)
