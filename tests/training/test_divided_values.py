"""Values in the parts of many ranks: put together, divided otherwise and written elsewhere, in pieces that are never all of a value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.checkpoint.checkpoint import SavedValues, divided
from foreshape.apps.training.checkpoint.divided import NOTHING, ShardedCheckpoint
from foreshape.apps.training.distributed.distributed_session import put_together
from foreshape.core.spec import BF16, FP32
from foreshape.interop.parameters import Pieces, read_parameters, write_parameters
from foreshape.transforms.passes.for_ranks import ShardedValue, ShardPiece

HEIGHT, WIDTH = 12, 8
VALUES = {"v": torch.arange(HEIGHT * WIDTH, dtype=torch.float32).reshape(HEIGHT, WIDTH), "w": torch.arange(5, dtype=torch.float32) + 1000}


def dealt(ranks: int) -> ShardedValue:
    return ShardedValue("P", FP32, (-(-HEIGHT // ranks), WIDTH), (ShardPiece("v", 0, (HEIGHT, WIDTH)),), dealt=True)


def along(axis: int, ways: int, stride: int = 1) -> ShardedValue:
    dims = tuple(d // ways if k == axis else d for k, d in enumerate((HEIGHT, WIDTH)))
    return ShardedValue("P", FP32, dims, (ShardPiece("v", 0, (HEIGHT, WIDTH)),), axis=axis, ways=ways, stride=stride)


def in_a_row(ranks: int) -> ShardedValue:
    """Two values one after the other, with a gap."""
    total = HEIGHT * WIDTH + 3 + 5
    return ShardedValue("P", FP32, (-(-total // ranks),), (ShardPiece("v", 0, (HEIGHT, WIDTH)), ShardPiece("w", HEIGHT * WIDTH + 3, (5,))))


def cut(axis: int, ranks: int) -> ShardedValue:
    """Two ranks have each a half of the value along an axis, and of that a part."""
    dims = tuple(d // 2 if k == axis else d for k, d in enumerate((HEIGHT, WIDTH)))
    groups = ranks // 2
    return ShardedValue("P", FP32, (-(-math.prod(dims) // groups),), (ShardPiece("v", 0, dims, axis, 2, "v@OWN"),), ways=groups, stride=2)


LAYOUTS = {
    "dealt over 2": (dealt(2), 2), "dealt over 5": (dealt(5), 5), "rows over 3": (along(0, 3), 3), "columns over 4": (along(1, 4), 4),
    "columns over 2 of 4": (along(1, 2, 2), 4), "in a row over 3": (in_a_row(3), 3), "in a row over 1": (in_a_row(1), 1),
    "halves of rows over 4": (cut(0, 4), 4), "halves of columns over 6": (cut(1, 6), 6),
}  # fmt: skip


def own_of(part: ShardedValue, ranks: int, of: Mapping[str, Any]) -> list[torch.Tensor]:
    found = [NOTHING.own(part, rank, ranks, of) for rank in range(ranks)]
    assert all(one is not None for one in found)
    return [one for one in found if one is not None]


def written(folder: Path, part: ShardedValue, ranks: int) -> ShardedCheckpoint:
    path, digits = str(folder / "kept"), list[str]()
    for rank, held in enumerate(own_of(part, ranks, VALUES)):
        scope = fs.Scope()
        scope.set("P", held)
        digits.append(divided.write_own(path, [part], scope, rank, ranks))
    return ShardedCheckpoint.read(path, divided.described([part], digits))


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("most", [1, 50, 10**6])
def test_ranks_put_values_together_block_by_block(name: str, most: int) -> None:
    part, ranks = LAYOUTS[name]
    held = own_of(part, ranks, VALUES)
    asked: list[int] = []

    def all_of(given: torch.Tensor) -> list[torch.Tensor]:
        """What the ranks give that are as far as this one."""
        flat = [one.reshape(-1) if given.dim() == 1 else one for one in held]
        begin = sum(asked)
        asked.append(len(given))
        return [one[begin : begin + len(given)] for one in flat] if given.shape != held[0].shape else held

    for value, found in put_together(part, held[0], all_of, ranks, most).items():
        assert torch.equal(found, VALUES[value])
    assert most > 1 or len(asked) >= min(len(held[0]), 1)


@pytest.mark.parametrize("name", LAYOUTS)
def test_from_each_layout_to_each_other(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = written(tmp_path, *LAYOUTS[name])
    for value in found.names:
        assert torch.equal(found.whole(value), VALUES[value])
        for most in (1, 100, 10**6):
            blocks = list(found.blocks(value, most))
            assert torch.equal(torch.cat([rows for _, rows in blocks]), VALUES[value])
            assert all(rows.nbytes <= max(most, VALUES[value][0].nbytes) for _, rows in blocks)
    monkeypatch.setattr(ShardedCheckpoint, "whole", lambda *_: pytest.fail("a value was put together"))
    monkeypatch.setattr(ShardedCheckpoint.blocks, "__defaults__", (100,))
    for other, (part, ranks) in LAYOUTS.items():
        if not all(q.name in found.names for q in part.pieces):
            continue
        for rank, wanted in enumerate(own_of(part, ranks, VALUES)):
            made = found.own(part, rank, ranks, {})
            assert made is not None and torch.equal(made.reshape(wanted.shape), wanted), f"{other}, rank {rank}"


def test_a_network_is_written_from_parts_as_one_rank_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardedCheckpoint.blocks, "__defaults__", (100,))
    with fs.program_guard(fs.Program(), fs.Program()):
        out = layer.fc(layer.data("x", input_size=HEIGHT), WIDTH, weight="v", bias=False)
        scope = fs.Scope()
        scope.set("v", VALUES["v"])
        fs.save_inference_model(tmp_path / "one", ["x"], [out], scope=scope)
        for at, (part, ranks) in enumerate(LAYOUTS.values()):
            (folder := tmp_path / str(at)).mkdir()
            fs.save_inference_model(tmp_path / "parts", ["x"], [out], scope=SavedValues({}, written(folder, part, ranks)))
            assert (tmp_path / "parts.pdiparams").read_bytes() == (tmp_path / "one.pdiparams").read_bytes()
        with pytest.raises(fs.FormatError, match=r"the parameter 'v': the program says f32\[12, 8\], and the file has f32\[3\]"):
            fs.save_inference_model(tmp_path / "other", ["x"], [out], scope=SavedValues({"v": torch.zeros(3)}, NOTHING))
        with pytest.raises(fs.ExecutionError, match="not initialised: v"):
            fs.save_inference_model(tmp_path / "other", ["x"], [out], scope=SavedValues({}, NOTHING))


def test_pieces_of_16_bits_are_written_as_a_whole_is(tmp_path: Path) -> None:
    given = np.linspace(-3, 3, 50, dtype=np.float32).reshape(10, 5)
    for path, value in (("one", given), ("pieces", Pieces(BF16, (10, 5), (given[at : at + 3] for at in range(0, 10, 3))))):
        write_parameters(tmp_path / path, {"v": value}, {"v": BF16})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "pieces").read_bytes()
    assert read_parameters(tmp_path / "pieces", ["v"])["v"].shape == (10, 5)


def test_a_checkpoint_of_a_run_is_a_network(tmp_path: Path) -> None:
    r = np.random.RandomState(0)
    with fs.program_guard(fs.Program(), fs.Program()):
        x, y, scope = layer.data("x", input_size=4), layer.data("y", input_size=1), fs.Scope()
        guess = layer.fc(x, 1)
        data = {"x": r.rand(8, 4).astype("float32"), "y": r.rand(8, 1).astype("float32")}
        fs.train(layer.square(guess - y), data, batch_size=4, scope=scope, checkpoint=tmp_path / "runs", progress=False)
        fs.save_inference_model(tmp_path / "scope", [x], [guess], scope=scope)
        fs.save_inference_model(tmp_path / "kept", [x], [guess], scope=fs.Checkpoint(tmp_path / "runs").values())
    assert (tmp_path / "scope.pdiparams").read_bytes() == (tmp_path / "kept.pdiparams").read_bytes()
    with pytest.raises(fs.FormatError, match="has no checkpoint that is whole"):
        fs.Checkpoint(tmp_path / "empty").values()
