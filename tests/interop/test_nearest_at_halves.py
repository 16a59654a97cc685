"""Reads of the nearest pixel at points between two: PaddlePaddle 2.6.2 takes the one away from 0, 3.3.1 and torch the even one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.pir_files import attribute, feed, fetch, file, op, tensor

import foreshape as fs
from foreshape import layer

PIXELS = [-1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6]
AWAY = {
    (True, "zeros"): [0, 0, 0, 0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 0, 0],
    (True, "reflection"): [2, 1, 1, 0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 4],
    (False, "border"): [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 5],
}
EVEN = {
    (True, "zeros"): [0, 0, 0, 0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 0, 0],
    (True, "reflection"): [2, 1, 1, 0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 4, 4],
    (False, "border"): [0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 4, 4, 5, 5, 5],
}
"""The numbers of both versions; at 0.5 the coordinate of the corners' form is rounded below the half in fp32."""
X = np.arange(6, dtype="float32").reshape(1, 1, 1, 6)


def _grid(align_corners: bool) -> np.ndarray:
    at = np.array(PIXELS, "float32")
    grid = np.zeros((1, 1, len(PIXELS), 2), "float32")
    grid[..., 0] = at / 5 * 2 - 1 if align_corners else (at * 2 + 1) / 6 - 1
    return grid


@pytest.mark.parametrize(("align_corners", "outside"), AWAY)
def test_the_version_tells_the_pixel_of_a_half(align_corners: bool, outside: str, tmp_path: Path) -> None:
    grid = _grid(align_corners)
    x, at = layer.data("x", shape=X.shape), layer.data("at", shape=grid.shape)
    found = fs.Executor().run(feed={"x": X, "at": grid}, fetch=[layer.grid_sample(x, at, "nearest", outside, align_corners)])[0]
    assert found.reshape(-1).tolist() == AWAY[align_corners, outside]
    more: dict[str, Any] = {"mode": "nearest", "padding_mode": outside, "align_corners": align_corners}
    of = tensor([1, 1, 1, 6]), tensor([1, 1, len(PIXELS), 2]), tensor([1, 1, 1, len(PIXELS)])
    ops = [feed(1, "x", of[0]), feed(2, "at", of[1]), op("grid_sample", [1, 2], [(3, of[2])], **{k: attribute(v) for k, v in more.items()})]
    (tmp_path / "inference.json").write_bytes(file(*ops, fetch(4, 3, "out", of[2])))
    network = fs.load_inference_model(tmp_path, scope=fs.Scope())
    assert network.run({"x": X, "at": grid})["out"].reshape(-1).tolist() == EVEN[align_corners, outside]


class Reading(torch.nn.Module):
    def forward(self, x: Any, at: Any) -> Any:
        return torch.nn.functional.grid_sample(x, at, mode="nearest", padding_mode="border", align_corners=False)


@pytest.mark.long
def test_a_network_of_torch_takes_the_even_pixel() -> None:
    given = torch.tensor(X), torch.tensor(_grid(False))
    model = fs.from_torch(Reading(), given)
    found = fs.Executor().run(model.program, dict(zip(model.feeds, given, strict=True)), model.fetches, scope=model.scope)[0]
    assert found.reshape(-1).tolist() == EVEN[False, "border"]
