"""An LSTM kernel's workspace, and the pieces that must fit into the room that is planned for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.sequence_lengths import BATCH, LENGTHS

from foreshape.machine.kernels.lstm_memory import EXTRA, PAGE, PARTS, LstmMemory, of_ragged
from foreshape.machine.kernels.lstm_pieces import PieceCutter
from foreshape.machine.kernels.recurrence import cut

FEATURES = 96


@pytest.mark.parametrize(("features", "hidden"), [(64, 128), (256, 128), (17, 30), (300, 100), (20, 256)])
@pytest.mark.parametrize(("steps", "width"), [(1, 50), (25, 1), (16, 58)])
def test_the_workspace_of_onednn_is_that_of_the_formula(steps: int, width: int, features: int, hidden: int) -> None:
    state, bias = torch.zeros(width, hidden), torch.zeros(4 * hidden)
    with torch.inference_mode(), torch.set_grad_enabled(True):
        *_, workspace = torch.ops.aten.mkldnn_rnn_layer(
            torch.zeros(steps, width, features), torch.zeros(4 * hidden, features), torch.zeros(4 * hidden, hidden), bias, bias, state, state, False,
            [], 2, hidden, 1, True, False, False, True,
        )  # fmt: skip
    room = LstmMemory.of(features, hidden).room(steps, width)
    beside = 4 * hidden * width * (steps + 2)  # what comes out, and the last states
    assert isinstance(room.kept, int) and 0 <= room.kept - beside - workspace.numel() <= PARTS * PAGE


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("hidden", [64, 256])
@pytest.mark.parametrize("cell", [False, True])
def test_pieces_fit_into_the_room_that_is_planned(kind: str, hidden: int, cell: bool) -> None:
    for seed in range(10):
        lengths = LENGTHS[kind](np.random.RandomState(seed))
        alive = [sum(n > t for n in lengths) for t in range(max(lengths))]
        widths, pieces = cut(alive, PieceCutter(FEATURES, hidden, cell))
        room: Any = of_ragged(sum(lengths), BATCH, FEATURES + EXTRA * cell, hidden)
        kept, most, _ = LstmMemory.of(FEATURES + EXTRA * (cell and len(set(alive)) > 1), hidden).needs(pieces)
        assert kept <= room.kept and most <= room.kept + room.taken
        assert all(w >= a for w, a in zip(widths, alive, strict=True)) and [w for n, w in pieces for _ in range(n)] == widths
