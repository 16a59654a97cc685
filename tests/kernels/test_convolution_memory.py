"""The workspaces of convolutions beside what torch's allocator hands out: of one small image, of wide windows, and of strided ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.measured import allocator_events

from foreshape.machine.kernels import onednn

LONE, PATCHES, STRIDED = (1, 8, 26, 26, 16, 3, 1), (2, 3, 64, 64, 32, 16, 16), (2, 3, 96, 96, 64, 7, 2)
"""Images, channels, height, width, filters, window, stride."""
SMALL = 64 << 10
"""The bytes for each thread by which a bound may be above small workspaces."""


def taken(run: Any) -> int:
    """The most bytes handed out beside those that stay."""
    run()
    events, _ = allocator_events(run)
    alive = np.cumsum([0, *events])
    return int(alive.max() - alive[-1])


@pytest.mark.parametrize(("sizes", "requested"), [(LONE, (True, True)), (LONE, (False, True)), (PATCHES, (False, True)), (STRIDED, (True, True))])
def test_the_bound_of_the_gradients_is_near(sizes: tuple[int, ...], requested: tuple[bool, bool]) -> None:
    images, channels, height, width, filters, window, stride = sizes
    x, w = torch.randn(images, channels, height, width), torch.randn(filters, channels, window, window)
    y = torch.conv2d(x, w, None, stride)
    settings = [stride] * 2, [0, 0], [1, 1]
    made = taken(lambda: torch.ops.aten.convolution_backward(y, x, w, None, *settings, False, [0, 0], 1, (*requested, False)))
    bound = onednn.convolution_backward(x.shape, w.shape, y.shape, 4, 1, [stride] * 2, [1, 1], (*requested, False))
    assert isinstance(bound, int)
    assert made <= bound + 1024 and bound <= 1.15 * made + SMALL * onednn.thread_count()


def test_one_small_image_is_torch_s_own_also_where_their_number_is_open() -> None:
    from foreshape.core.dims import evaluate, symbol

    images, filters, made = (3, 12, 12), (4, 3, 3, 3), (4, 10, 10)
    open_, lone, two = (onednn.convolution((n, *images), filters, (n, *made), 4, 1, [1, 1], [1, 1]) for n in (symbol("batch"), 1, 2))
    assert lone == 10 * 10 * 27 * 4
    assert [int(evaluate(open_, {"batch": n})) for n in (1, 2)] == [lone, two]
