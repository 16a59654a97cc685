"""Values divided along an axis: a checkpoint's parts are read by as many ranks as like, and a layout that does not hold together is refused."""

import copy

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.checkpoint.divided import ShardedCheckpoint, axis_part, described, write_own
from foreshape.apps.training.distributed.distributed_session import DistributedSession
from foreshape.core.spec import FP32
from foreshape.machine.communication.join import Ranks
from foreshape.transforms.passes import ShardedValue, ShardPiece

SPLIT = {"split": "columns", "bias": False}
WHOLE = torch.arange(48, dtype=torch.float32).view(4, 12)


def part(ways, axis, stride=1):
    dims = tuple(d // ways if at == axis else d for at, d in enumerate(WHOLE.shape))
    return ShardedValue("w@SPLIT", FP32, dims, (ShardPiece("w", 0, tuple(WHOLE.shape)),), axis=axis, ways=ways, stride=stride)


def written(path, one, ranks):
    checksums = []
    for rank in range(ranks):
        scope = fs.Scope()
        scope.set(one.name, axis_part(one.axis, one.ways, WHOLE, one.place(rank, ranks)).numpy())
        checksums.append(write_own(path, [one], scope, rank, ranks))
    return described([one], checksums)


@pytest.mark.parametrize(("ways", "stride", "ranks"), [(2, 1, 2), (4, 1, 4), (2, 1, 4), (2, 2, 4)])
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_along_an_axis_are_put_together_and_divided_otherwise(tmp_path, ways, stride, ranks, axis):
    path = str(tmp_path / "step")
    found = ShardedCheckpoint.read(path, written(path, part(ways, axis, stride), ranks))
    assert torch.equal(found.whole("w"), WHOLE) and found.spec_text("w") == "f32[4, 12]"
    for other, count in ((part(2, axis), 2), (part(4, 1), 4), (part(2, 0, 2), 4)):
        for rank in range(count):
            assert torch.equal(found.own(other, rank, count, {}), axis_part(other.axis, other.ways, WHOLE, other.place(rank, count)))


def test_parts_that_are_whole_pieces_one_after_the_other_are_read_as_columns(tmp_path):
    path = str(tmp_path / "step")
    flat = ShardedValue("w@PART", FP32, (32,), (ShardPiece("w", 8, tuple(WHOLE.shape)),))
    checksums = []
    for rank in range(2):
        scope = fs.Scope()
        scope.set(flat.name, np.concatenate([np.zeros(8, np.float32), WHOLE.numpy().reshape(-1), np.zeros(8, np.float32)])[rank * 32 : rank * 32 + 32])
        checksums.append(write_own(path, [flat], scope, rank, 2))
    found = ShardedCheckpoint.read(path, described([flat], checksums))
    for rank in range(2):
        assert torch.equal(found.own(part(2, 1), rank, 2, {}), WHOLE[:, rank * 6 : rank * 6 + 6])
    assert ShardedCheckpoint.read(path, described([flat], checksums)).own(flat, 1, 2, {}) is not None


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("axis", 2, "cannot be divided along axis 2"),
        ("axis", -1, "axis must be a whole number"),
        ("axis", True, "axis must be a whole number"),
        ("ways", 0, "ways must be a whole number from 1"),
        ("ways", 3, "cannot be of 3 parts"),
        ("ways", 1, "cannot be divided along axis 1 into 1 parts"),
        ("stride", 0, "stride must be a whole number from 1"),
        ("stride", 5, "cannot be of 2 parts, each for 5 ranks"),
        ("stride", 2**60, "stride must be a whole number"),
        ("dealt", True, "cannot be dealt and have an axis"),
        ("size", 6, "cannot be divided along axis 1"),
        ("pieces", [], "must be one, where it is dealt or has an axis"),
        ("pieces", [["w", 1, [4, 12]]], "cannot be divided along axis 1"),
        ("pieces", [["w", 0, [4, 11]]], "cannot be divided along axis 1"),
        ("pieces", [["w", 0, []]], "cannot be divided along axis 1"),
    ],
)
def test_a_layout_that_does_not_hold_together_is_refused(tmp_path, key, value, says):
    path = str(tmp_path / "step")
    facts = written(path, part(2, 1), 4)
    ShardedCheckpoint.read(path, copy.deepcopy(facts))
    facts["layout"]["w@SPLIT"][key] = value
    with pytest.raises(fs.FormatError, match=says):
        ShardedCheckpoint.read(path, facts)


def test_a_layout_without_its_axis_is_refused(tmp_path):
    path = str(tmp_path / "step")
    facts = written(path, part(2, 1), 2)
    del facts["layout"]["w@SPLIT"]["axis"]
    with pytest.raises(fs.FormatError, match="lacks 'axis'"):
        ShardedCheckpoint.read(path, facts)


def test_a_metric_that_each_rank_has_a_part_of_is_refused():
    hidden = layer.fc(layer.data("x", input_size=6), 4, **SPLIT)
    cost = layer.mean(layer.square(hidden))
    fs.optimizer.SGD(0.1).minimize(cost)
    over = DistributedSession(Ranks(0, 2, None, None, owns_group=False), fs.split_layers(), cost, fs.default_startup_program())
    over.check_figures([("cost", cost)])
    with pytest.raises(fs.SchemaError, match=r"the metric 'columns' is fc_0\.tmp_0, of which each rank has a part only"):
        over.check_figures([("cost", cost), ("columns", hidden)])


def test_the_ranks_of_a_group_have_the_same_share_and_one_of_them_counts():
    cost = layer.mean(layer.fc(layer.data("x", input_size=6), 4, **SPLIT))
    fs.optimizer.SGD(0.1).minimize(cost)
    strategy = fs.split_layers(degree=2)
    found = [DistributedSession(Ranks(rank, 4, None, None, owns_group=False), strategy, cost, fs.default_startup_program()) for rank in range(4)]
    assert [(o.share, o.shares, o.counts) for o in found] == [(0, 2, True), (0, 2, False), (1, 2, True), (1, 2, False)]
    batch = {"x": np.arange(30, dtype=np.float32).reshape(5, 6)}
    shares = [o.part(batch)["x"] for o in found]
    for one, rows in zip(shares, (slice(0, 2), slice(0, 2), slice(2, 5), slice(2, 5)), strict=True):
        np.testing.assert_array_equal(one, batch["x"][rows])
