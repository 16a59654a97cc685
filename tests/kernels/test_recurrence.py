"""The schedule of sequences that run together: where a batch is cut, and where its rows go."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foreshape.language.ops import Offsets
from foreshape.machine.kernels.recurrence import Cheapest, StepSchedule, cut


def test_a_batch_is_cut_where_it_is_cheapest() -> None:
    alive = [4, 4, 3, 3, 3, 1]
    assert cut(alive, None) == (alive, [(2, 4), (3, 3), (1, 1)])
    assert cut(alive, Cheapest(0.0, 1.0, 1.0)) == (alive, [(2, 4), (3, 3), (1, 1)])
    assert cut(alive, Cheapest(1e9, 1.0, 1.0)) == ([4] * 6, [(6, 4)])
    assert cut(alive, Cheapest(2.5, 1.0, 1.0)) == ([4] * 2 + [3] * 4, [(2, 4), (4, 3)])
    assert cut([], None) == ([], []) and cut([], Cheapest(1.0, 1.0, 1.0)) == ([], [])
    many = list(range(200, 0, -1))
    widths, pieces = cut(many, Cheapest(1.0, 1.0, 1.0))
    assert all(w >= a for w, a in zip(widths, many, strict=True)) and sum(n for n, _ in pieces) == 200


@pytest.mark.parametrize("cutter", [None, Cheapest(3.0, 1.0, 1.0), Cheapest(1e9, 1.0, 1.0)])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_go_to_their_places_and_back(reverse: bool, cutter: Any) -> None:
    lengths = [2, 0, 5, 1, 5]
    schedule = StepSchedule.of(Offsets.of_lengths(torch.tensor(lengths)), reverse, cutter)
    rows = torch.arange(13.0).view(13, 1) + 1
    placed = schedule.to_places(rows, clear=True)
    assert torch.equal(schedule.to_rows(placed), rows) and placed.sum() == rows.sum()
    step = [int(v) for v in placed[: schedule.widths[0], 0]]
    assert step == ([7, 13, 2, 8] if reverse else [3, 9, 1, 8])
    start = torch.zeros(5, 1)
    assert schedule.last(placed, start)[:, 0].tolist() == ([1, 0, 3, 8, 9] if reverse else [2, 0, 7, 8, 13])
