"""Tensors one after the other, with zeros between and behind, whatever was in memory before; and each rank's part of that."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.values.torch_proxy import torch
from foreshape.machine.communication.process_group import ProcessGroup, set_team

DIMS = ([3, 2], [40], [0, 4], [1])
ALIGNED = 16
"""The elements of 4 bytes that a place is a multiple of."""


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    yield request.param
    set_team(0, None)


def test_the_parts_of_the_ranks_are_the_whole(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *dims, **more: empty(self, *dims, **more).fill_(np.nan))
    given = [np.random.default_rng(at).random(dims, "float32") for at, dims in enumerate(DIMS)]
    wanted: list[float] = []
    for x in given:
        wanted += [*x.ravel().tolist(), *[0.0] * (-x.size % ALIGNED)]
    wanted += [0.0] * (-len(wanted) % (ALIGNED * ranks))
    with fs.program() as program:
        xs = [layer.data(f"x{at}", shape=dims) for at, dims in enumerate(DIMS)]
        whole = program.global_block.apply("coalesce_parts", {"X": xs}, {"nranks": ranks})
        part = program.global_block.apply("own_part", {"X": xs}, {"nranks": ranks})
    feed = {f"x{at}": x for at, x in enumerate(given)}
    parts: list[float] = []
    for rank in range(ranks):
        set_team(0, ProcessGroup(rank, ranks, None))
        of_all, of_one = fs.Executor().run(program, feed, [whole.name, part.name], fs.Scope())
        np.testing.assert_array_equal(of_all, np.float32(wanted))
        parts += of_one.tolist()
    np.testing.assert_array_equal(np.float32(parts), np.float32(wanted))
