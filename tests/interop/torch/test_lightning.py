"""The recipe for Lightning in docs/coming-from-pytorch.md, where Lightning is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).parents[3] / "docs" / "coming-from-pytorch.md"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_recipe_for_lightning_trains_and_comes_back_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    (recipe,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    found: dict[str, Any] = {"__name__": "__recipe__"}
    exec(compile(recipe, PAGE.name, "exec"), found)
    assert found["accuracy"] > 0.95
    points, label = found["data"].tensors
    with torch.no_grad():
        assert (found["again"].eval().net(points).argmax(1) == label).float().mean() > 0.95
