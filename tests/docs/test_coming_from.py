"""The tables of docs/coming-from-*.md are true: every code span of the right column runs, from top to bottom; of the left one those in PyTorch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("coming-from-*.md"))
SPAN = re.compile(r"`([^`]+)`")
TORCH = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
t = torch.rand(64, 64)
pictures, tokens, classes = torch.rand(4, 3, 16, 16), torch.zeros(4, 20, dtype=torch.int64), torch.arange(64) % 10
dataset, model = torch.utils.data.TensorDataset(t), nn.Linear(64, 10)
"""


def rows(page: Path) -> list[tuple[int, str, str]]:
    """The line, the left and the right cell of each row of the tables of two columns."""
    found: list[tuple[int, str, str]] = []
    for line, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        cells = [c.strip() for c in text.strip("|").split(" | ")]
        if text.startswith("| `"):
            assert len(cells) == 2, f"{page.name}:{line}"
            found.append((line, cells[0].rstrip(" |"), cells[1].rstrip(" |")))
    return found


def spans(cell: str) -> list[str]:
    """The code of a cell; what is in brackets behind it is a remark."""
    return SPAN.findall(cell.partition("` (")[0] + "`") if not cell.startswith("(") else []


@pytest.mark.quick_cases("coming-from-keras", "coming-from-paddlepaddle")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_each_line_of_the_tables_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours: dict[str, Any] = {"__name__": "__page__"}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        exec(block, ours)
    theirs: dict[str, Any] = {}
    if page.stem.endswith("pytorch"):
        exec(TORCH, theirs)
    found = rows(page)
    assert len(found) > 20
    for line, left, right in found:
        for cell, names in ((left, theirs), (right, ours)):
            for code in spans(cell) if names else ():
                if code == "torch.set_num_threads(1)":
                    continue  # of the whole process
                try:
                    exec(compile(code, f"{page.name}:{line}", "exec"), names)
                except Exception as error:
                    raise AssertionError(f"{page.name}:{line}: {code}") from error
