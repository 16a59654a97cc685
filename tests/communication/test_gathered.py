"""Gradients of several batches in one update, and products in 16 bits, by each strategy: as one rank does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import every_strategy
from support import launch_ranks as launch
from support import rank_cases as cases
from support.ranks_compared import AMPLIFIED, EXACT, apart, one, rounding

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.training_programs import TrainingProgram, training_program
from foreshape.language.program import Role
from foreshape.transforms.passes import ForRanks
from foreshape.transforms.passes.accumulate_distributed import gathered_over_ranks, sums_of

ALL = [*cases.GATHERED, *cases.LOWERED]
RUNS = [
    (2, ["data_parallel", "shard_optimizer", "shard_parameters", "split_layers"]),
    (3, ["shard_optimizer", "split_tables and shard_parameters"]),
    (4, ["split_layers_2", "split_layers_2_optimizer", "split_layers_2_all"]),
]
RESUME = """
import sys
sys.path.insert(0, sys.argv[1])
import os, numpy
from support import rank_cases as cases
_, _, out, folder, strategy, epochs = sys.argv
numpy.savez(f"{out}.{os.environ['RANK']}", **cases.run("gathered_parts", "fp64", strategy, int(epochs), folder))
"""


def made(**options: Any) -> TrainingProgram:
    with fs.program_guard(fs.Program(), fs.Program()):
        hidden = layer.fc(layer.data("x", ["batch", 7]), 5, "tanh")
        return training_program(layer.square(layer.fc(hidden, 3)), fs.optimizer.Adam(0.1), **options)


def divided(strategy: Any, one: TrainingProgram) -> ForRanks:
    assert one.ungathered is not None
    return gathered_over_ranks(strategy, one.ungathered, one.program, one.loss.name, 2)


def test_a_rank_gathers_the_gradients_that_it_updates_with() -> None:
    whole = made(accumulate=4)
    found = divided(fs.shard_parameters(), whole)
    (total,) = sums_of(found.program).values()
    (part,) = [p for p in found.parts if p.name == total]
    assert {q.name for q in part.pieces} == set(sums_of(whole.program).values()) and not part.begins_whole
    assert found.program.global_block.var(total).spec.known_dims == part.dims
    in_each_step = [op.type for op in found.program.global_block.ops if not op.role & Role.LEARNING_RATE]
    (update,) = [op for op in found.program.global_block.ops if op.type == "conditional_block"]
    inner = [op.type for op in found.program.blocks[update.sub_block_indices()[0]].ops]
    assert in_each_step.index("c_reducescatter") < in_each_step.index("elementwise_add", in_each_step.index("c_reducescatter"))
    assert "adam" in inner and "c_allgather" not in inner and in_each_step.count("c_allgather") == 2
    assert divided(fs.data_parallel(), whole).parts == ()


def test_what_is_gathered_after_an_update_is_gathered_after_updates_alone() -> None:
    found = divided(fs.shard_optimizer(), made(accumulate=4))
    assert not any(op.type == "c_allgather" for op in found.program.global_block.ops)
    assert any(op.type == "c_allgather" for op in found.program.all_ops())


def test_ranks_agree_on_gradients_that_are_not_finite_where_each_sees_its_part() -> None:
    whole = made(precision="fp16")
    agreed = [op.type for op in divided(fs.shard_optimizer(), whole).program.global_block.ops].count("c_allreduce_max")
    assert (agreed, [op.type for op in divided(fs.data_parallel(), whole).program.global_block.ops].count("c_allreduce_max")) == (1, 0)


def test_a_program_whose_updates_may_not_happen_is_not_divided_as_one_whose_do() -> None:
    whole = made(accumulate=4)
    for strategy in (fs.shard_optimizer(), fs.shard_parameters()):
        with pytest.raises(fs.SchemaError, match=r"requires updates that are made in each step; those of conditional_block .* are not: divide the program"):
            strategy.apply(whole.program, whole.loss, 2)


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "strategies"), [pytest.param(*run, id=f"{run[0]}") for run in RUNS])
def test_updates_of_several_batches_and_in_16_bits(ranks: int, strategies: list[str], tmp_path: Path) -> None:
    launch.run(ranks, Path(every_strategy.__file__), tmp_path / "out", *(f"{s}={','.join(ALL)}" for s in strategies))
    found: list[dict[str, Any]] = [dict(np.load(tmp_path / f"out.{rank}.npz")) for rank in range(ranks)]
    for strategy in strategies:
        for name in ALL:
            for of in ("fp32",) if name in cases.UNEQUAL else ("fp64", "fp32"):
                begin = f"{strategy}/{name}/{of}/"
                first, *others = ({k.removeprefix(begin): v for k, v in values.items() if k.startswith(begin)} for values in found)
                assert first.keys() == one(name, of).keys(), begin
                for key, value in first.items():
                    if name != "scaled" or ranks == 2:  # of more ranks each sums less in 16 bits, and updates are left out at other scales
                        assert apart(value, nearest(name)[key]) <= farthest(name, of, key), begin + key
                    for other in others:
                        np.testing.assert_array_equal(other[key], value, begin + key)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sums_of_sparse_gradients(ranks: int, tmp_path: Path) -> None:
    """Rows that wait for their update are those of all ranks, on each of them."""
    strategies = ["data_parallel", "shard_optimizer"]
    launch.run(ranks, Path(every_strategy.__file__), tmp_path / "out", *(f"{s}={','.join(cases.ROWS)}" for s in strategies))
    found: list[dict[str, Any]] = [dict(np.load(tmp_path / f"out.{rank}.npz")) for rank in range(ranks)]
    for strategy in strategies:
        for name in cases.ROWS:
            for of in ("fp64", "fp32"):
                begin = f"{strategy}/{name}/{of}/"
                first, *others = ({k.removeprefix(begin): v for k, v in values.items() if k.startswith(begin)} for values in found)
                assert first.keys() == one(name, of).keys() and any(len(v) for k, v in first.items() if k.endswith("/rows")), begin
                for key, value in first.items():
                    assert apart(value, one(name, "fp64")[key]) <= (EXACT if of == "fp64" else rounding(name)), begin + key
                    for other in others:
                        np.testing.assert_array_equal(other[key], value, begin + key)


def nearest(name: str) -> dict[str, Any]:
    """What one rank makes with the most digits."""
    return one({"brain": "wider"}.get(name, name), "fp32" if name in cases.LOWERED else "fp64")


def farthest(name: str, of: str, key: str) -> float:
    """How far ranks may be from that."""
    if name == "brain":
        return AMPLIFIED * max(apart(value, nearest(name)[k]) for k, value in one(name, "fp32").items())
    if name == "scaled":  # whether an update is left out is the same, and what it does is of 16 bits
        return 0.0 if "loss_scaling" in key or "accumulated_batches" in key else 0.2
    return EXACT if of == "fp64" else rounding(name)


@pytest.mark.long
def test_a_checkpoint_between_updates_opens_on_other_ranks(tmp_path: Path) -> None:
    """Sums of gradients that wait for their update: of 2 ranks -> 1 rank, and -> 4 ranks in groups of 2; an epoch each."""
    script, tests = tmp_path / "resume.py", Path(__file__).parents[1]
    script.write_text(RESUME)

    def train(ranks: int, strategy: str, epochs: int) -> dict[str, Any]:
        if ranks == 1:
            return cases.run("gathered_parts", "fp64", epochs=epochs, checkpoint=str(tmp_path / "kept"))
        launch.run(ranks, script, tests, tmp_path / "out", tmp_path / "kept", strategy, epochs)
        return dict(np.load(tmp_path / "out.0.npz"))

    exact = [cases.run("gathered_parts", "fp64", epochs=epochs) for epochs in (1, 2, 3)]
    for epochs, (ranks, strategy) in enumerate([(2, "shard_parameters"), (1, ""), (4, "split_layers_2_optimizer")], 1):
        found = train(ranks, strategy, epochs)
        assert found["value/fc_0.w_0_accumulated_0"].any() == (epochs != 2)  # of 6 batches in an epoch 4 make one update
        assert found.keys() == exact[epochs - 1].keys()
        for key, value in found.items():
            assert apart(value, exact[epochs - 1][key]) <= EXACT, (epochs, key)
