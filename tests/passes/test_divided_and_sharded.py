"""Layers divided within groups of ranks, and state and parameters over the groups: the program, its parts, and their way to files and back."""

from typing import Any

import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.checkpoint.divided import ShardedCheckpoint, described, joined, write_own
from foreshape.apps.training.distributed.distributed_session import DistributedSession
from foreshape.apps.training.program import initialise_missing, persistables
from foreshape.core.dims import evaluate
from foreshape.machine.communication.join import Ranks
from foreshape.transforms.passes import for_test

STRATEGIES = {"shard_optimizer": fs.shard_optimizer, "shard_parameters": fs.shard_parameters}


def network() -> Any:
    """A layer by columns, one by rows, one that is whole."""
    x, y = layer.data("x", input_size=6), layer.data("y", input_size=4)
    hidden = layer.fc(layer.fc(x, 8, "relu", split="columns"), 10, split="rows")
    cost = layer.mean(layer.square(layer.fc(hidden, 4, bias=False) - y))
    fs.optimizer.Momentum(0.1, 0.9).minimize(cost)
    return cost


def of_ranks(cost: Any, strategy: Any, ranks: int) -> list[DistributedSession]:
    """What each rank makes of a program."""
    return [DistributedSession(Ranks(rank, ranks, None, None, owns_group=False), strategy, cost, fs.default_startup_program()) for rank in range(ranks)]


def started(cost: Any) -> dict[str, torch.Tensor]:
    """The whole values, each element another number."""
    scope = fs.Scope()
    initialise_missing(fs.Executor(), cost.block.program, fs.default_startup_program(), scope)
    names = [v.name for v in persistables(cost.block.program)]
    return {n: torch.arange(scope.tensor(n).numel(), dtype=torch.float32).view(scope.tensor(n).shape) + 1000 * at for at, n in enumerate(names)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_state_is_divided_by_all_ranks_and_each_part_says_of_which_values(name: str) -> None:
    made = fs.split_layers(STRATEGIES[name](), degree=2).apply(network().block.program, "mean_0.tmp_0", 4, fs.default_startup_program())
    pieces = {q.name: (q.dims, q.axis, q.ways, q.whole) for p in made.parts for q in p.pieces if p.axis is None}
    assert pieces["fc_0.w_0_velocity_0"] == ((6, 4), 1, 2, (6, 8))
    assert pieces["fc_1.w_0_velocity_0"] == ((4, 10), 0, 2, (8, 10))
    assert pieces["fc_2.w_0_velocity_0"] == ((10, 4), None, 1, (10, 4))
    flat = [p for p in made.parts if p.axis is None]
    assert {(p.ways, p.stride) for p in flat} == {(2, 2)}
    whole = {p.pieces[0].name for p in made.parts if p.axis is not None}
    assert whole == (set() if name == "shard_parameters" else {"fc_0.w_0", "fc_0.b_0", "fc_1.w_0"})
    names = set(made.program.global_block.vars)
    assert all(p.name in names for p in made.parts)
    assert not any("velocity" in n and "@PART" not in n for n in names)


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_summed_in_groups_and_what_over_them(name: str) -> None:
    made = fs.split_layers(STRATEGIES[name](), degree=2).apply(network().block.program, "mean_0.tmp_0", 4)
    rings: dict[str, set[int]] = {}
    for op in made.program.global_block.ops:
        if "ring_id" in op.attrs:
            rings.setdefault(op.type, set()).add(op.attrs["ring_id"])
    assert rings["c_reducescatter"] == rings["c_allgather"] == {2}
    assert rings["c_allreduce_sum"] == {1, 2}
    assert rings["count_examples"] == {0}


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_rank_holds_the_state_divided_by_all(name: str) -> None:
    cost = network()
    values = started(cost)
    of = of_ranks(cost, fs.split_layers(STRATEGIES[name](), degree=2), 4)
    for part in of[0].parts:
        if part.axis is None and "velocity" in part.name:
            own = int(evaluate(part.size, {}))
            whole = sum(values[q.name].numel() // q.ways for q in part.pieces)
            assert 2 * own < whole + 2 * 16 * len(part.pieces)  # gaps of 64 bytes
    for over in of:
        held = over.in_parts(values)
        assert {p.name for p in over.parts} <= held.keys()
        assert not {q.name for p in over.parts for q in p.pieces} & held.keys()


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(("ranks", "degree"), [(4, 2), (6, 2), (4, 4), (2, 2), (2, 1)])
def test_parts_are_put_together_again(name: str, ranks: int, degree: int) -> None:
    cost = network()
    values = started(cost)
    of = of_ranks(cost, fs.split_layers(STRATEGIES[name](), degree=degree), ranks)
    held = [over.in_parts(values) for over in of]
    for part in of[0].parts:
        for piece, whole in joined(part, [one[part.name] for one in held]).items():
            assert torch.equal(whole, values[piece]), piece


WRITERS = {
    "4 ranks in groups of 2, parameters": (4, lambda: fs.split_layers(fs.shard_parameters(), degree=2)),
    "4 ranks in groups of 2, state": (4, lambda: fs.split_layers(fs.shard_optimizer(), degree=2)),
    "2 ranks, layers": (2, fs.split_layers),
    "3 ranks, parameters": (3, fs.shard_parameters),
}


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("reader", WRITERS)
def test_files_of_one_layout_are_read_in_another(writer: str, reader: str, tmp_path: Any) -> None:
    cost = network()
    values = started(cost)
    path = str(tmp_path / "step")
    ranks, strategy = WRITERS[writer]
    of = of_ranks(cost, strategy(), ranks)
    checksums: list[str] = []
    for rank, over in enumerate(of):
        scope = fs.Scope()
        scope.fill(over.in_parts(values))
        checksums.append(write_own(path, over.parts, scope, rank, ranks))
    inside = {q.name for p in of[0].parts for q in p.pieces}
    found = ShardedCheckpoint.read(path, described(of[0].parts, checksums))
    assert set(found.names) == inside
    for name in inside:
        assert torch.equal(found.whole(name), values[name]), name
        assert found.spec_text(name) == f"f32[{', '.join(map(str, values[name].shape))}]"
    ranks, strategy = WRITERS[reader]
    for over in of_ranks(cost, strategy(), ranks):
        expected, read = over.in_parts(values), over.in_parts({n: v for n, v in values.items() if n not in inside}, found)
        for part in over.parts:
            assert torch.equal(read[part.name], expected[part.name]), part.name


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(
    ("cut", "says"),
    [
        ([2, 2], "cannot be of 2 parts along axis 2"),
        ([1, 3], "cannot be of 3 parts along axis 1"),
        ([1, 0], "cannot be of 0 parts"),
        ([-1, 2], "pieces must be a whole number .* seen .-1"),
        ([1, True], "pieces must be a whole number .* seen .True"),
        ([1], "pieces must be a list of 3 or 5"),
    ],
)
def test_pieces_that_do_not_hold_together_are_refused(cut: list[Any], says: str, tmp_path: Any) -> None:
    cost = network()
    path = str(tmp_path / "step")
    of = of_ranks(cost, fs.split_layers(fs.shard_parameters(), degree=2), 4)
    checksums: list[str] = []
    for rank, over in enumerate(of):
        scope = fs.Scope()
        scope.fill(over.in_parts(started(cost)))
        checksums.append(write_own(path, over.parts, scope, rank, 4))
    facts = described(of[0].parts, checksums)
    for entry in facts["layout"].values():
        for piece in entry["pieces"]:
            if piece[0] == "fc_0.w_0":
                piece[3:] = cut
    with pytest.raises(fs.FormatError, match=says):
        ShardedCheckpoint.read(path, facts)


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_evaluation_reads_what_ranks_hold(name: str) -> None:
    cost = network()
    strategy = fs.split_layers(STRATEGIES[name](), degree=2)
    made = strategy.apply(cost.block.program, cost, 4, fs.default_startup_program())
    evaluated = strategy.evaluated(for_test(cost.block.program), made.parts, 4)
    held = {v.name for v in persistables(evaluated)}
    assert held <= {v.name for v in persistables(made.program)}
    gathers = [op.attrs["ring_id"] for op in evaluated.global_block.ops if op.type == "c_allgather"]
    assert (set(gathers) == {2}) is (name == "shard_parameters")
    assert sum(op.type == "c_allreduce_sum" for op in evaluated.global_block.ops) == 1
