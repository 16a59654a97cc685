"""Operators of somebody's own are divided over ranks, planned and drawn as those of the package: passes ask them, and know none by its type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import launch_ranks as launch
from support import own_operators as own

import foreshape as fs
from foreshape import layer
from foreshape.language.views.graph import family_of
from foreshape.language.views.outline import layers_of


@pytest.fixture
def cost() -> Any:
    made = own.network()
    own.OwnOptimizer(0.02).minimize(made)
    return made


def of_ranks(cost: Any, strategy: Any) -> Any:
    return strategy.apply(cost.block.program, cost, 2, fs.default_startup_program())


def dims_of(program: fs.Program, type: str, slot: str) -> list[str]:
    block = program.global_block
    return [block.var(op.input(slot) or "").spec.text() for op in block.ops if op.type == type]


def test_what_stands_between_divided_layers_works_on_parts(cost: Any) -> None:
    made = of_ranks(cost, fs.split_layers())
    assert dims_of(made.program, "own_bend", "X") == dims_of(made.program, "own_bend_grad", "Out@GRAD") == ["f32[batch, 6]"]
    assert not {"c_concat", "c_split"} & {op.type for op in made.program.all_ops()}
    assert sorted(dims_of(made.program, "own_update", "Speed")) == ["f32[4]", "f32[6, 4]", "f32[6, 6]", "f32[6]"]
    assert {p.pieces[0].name for p in made.parts} == {"fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_0.w_0_speed_0", "fc_0.b_0_speed_0", "fc_1.w_0_speed_0"}


def test_pairs_of_layers_around_it_are_chosen() -> None:
    x, y = layer.data("x", input_size=6), layer.data("y", input_size=4)
    block = fs.default_main_program().global_block
    made = block.apply("own_loss", {"X": layer.fc(block.apply("own_bend", {"X": layer.fc(x, 12)}), 4), "Label": y})
    own.OwnOptimizer(0.02).minimize(made)
    assert dims_of(of_ranks(made, fs.split_layers(choose=True)).program, "own_bend", "X") == ["f32[batch, 6]"]


def test_its_loss_is_weighed_and_its_updates_are_made_by_parts(cost: Any) -> None:
    made = of_ranks(cost, fs.shard_optimizer())
    assert [op.input("X") for op in made.program.all_ops() if op.type == "weigh_by_examples"] == [cost.name]
    assert len([op for op in made.program.all_ops() if op.type == "own_update"]) == 1
    (state,) = made.parts
    assert len(state.pieces) == 4 and all("speed" in piece.name for piece in state.pieces)


@pytest.mark.parametrize("strategy", own.STRATEGIES)
def test_it_is_planned_for_ranks(cost: Any, strategy: str) -> None:
    two = fs.plan(cost.block.program, ranks=2, batch=8, strategies=[own.STRATEGIES[strategy]()])
    assert {c.type for c in two.collectives(batch=8)} >= {"count_examples", "c_allreduce_sum" if strategy != "shard_optimizer" else "c_reducescatter"}


def test_it_is_drawn_by_its_family(cost: Any) -> None:
    layers = layers_of(cost.block.program)
    families = {op.type: family_of(one) for one in layers for op in one.ops[:1]}
    assert families["own_loss"] == "loss"
    assert [op.type for op in layers[0].ops] == ["mul", "elementwise_add", "own_bend"], "it belongs to the layer before it"
    assert "own_loss" in str(cost.block.program.summary())


@pytest.mark.long
def test_ranks_train_with_them_as_one_does(tmp_path: Path) -> None:
    launch.run(2, Path(own.__file__), tmp_path / "out", *own.STRATEGIES)
    alone = own.trained()
    for strategy in own.STRATEGIES:
        for rank in range(2):
            found = dict(np.load(tmp_path / f"out.{strategy}.{rank}.npz"))
            np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-4)
            for name in found.keys() - {"losses"}:
                if found[name].shape == alone[name].shape:
                    np.testing.assert_allclose(found[name], alone[name], rtol=1e-3, atol=1e-5)
