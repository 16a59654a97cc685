"""`shard_optimizer` as a pass: whose updates are divided, with what they keep; no processes."""

from __future__ import annotations

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.ops.update.updates import Update

STATE = {
    "SGD": 0, "Momentum": 1, "Adam": 2, "AdamW": 2, "Adagrad": 1, "RMSProp": 2, "Ftrl": 2, "Adadelta": 2, "Adamax": 2, "DecayedAdagrad": 1,
    "ProximalGD": 0, "Lion": 1,
}  # fmt: skip
"""How many tensors of the parameter's size each keeps."""


def divided(kind: str) -> tuple[fs.Program, int]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        loss = layer.mean(layer.fc(layer.fc(layer.data("x", ["batch", 7]), 5), 3))
        getattr(fs.optimizer, kind)(0.1).minimize(loss)
        made = fs.shard_optimizer().apply(main, loss, 2, startup)
    return made.program, len(made.parts)


@pytest.mark.parametrize("kind", STATE)
def test_one_update_of_a_part_stands_for_all(kind: str) -> None:
    program, parts = divided(kind)
    (update,) = [op for op in program.all_ops() if op.input("Param")]
    assert isinstance(update.operator, Update)
    assert parts == STATE[kind] == sum("@PART" in n for s, n in update.outputs.items() if s != "ParamOut" for n in n)


@pytest.mark.parametrize("kind", ["Lamb", "LarsMomentum"])
def test_what_needs_the_norm_of_a_whole_parameter_is_not_divided(kind: str) -> None:
    program, parts = divided(kind)
    assert len([op for op in program.all_ops() if op.input("Param")]) == 4 and not parts
