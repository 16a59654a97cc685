"""Each line of the table of docs/mathematics.md gives the same numbers on both sides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

import foreshape as fs

PAGE = Path(__file__).parents[2] / "docs" / "mathematics.md"
SPAN = re.compile(r"`([^`]+)`")


class Special:
    """Functions of scipy.special, by torch."""

    i1, i1e = (staticmethod(lambda x, of=of: of(torch.from_numpy(x)).numpy()) for of in (torch.special.i1, torch.special.i1e))

    @staticmethod
    def polygamma(n: int, x: np.ndarray) -> np.ndarray:
        return torch.special.polygamma(n, torch.from_numpy(x)).numpy()


def test_both_sides_of_the_table_agree() -> None:
    text = PAGE.read_text(encoding="utf-8")
    ours: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)[:2]:
        exec(block, ours)
    theirs = {"np": np, "special": Special, **ours["arrays"]}
    pairs: list[tuple[str, Any, Any]] = []
    for line in text.splitlines():
        if line.startswith("| `"):
            left, right = (SPAN.findall(cell) for cell in line.split(" | "))
            assert len(left) == len(right), line
            pairs += [(r, eval(le.replace(r"\|", "|"), theirs), eval(r, ours)) for le, r in zip(left, right, strict=True)]
    assert len(pairs) > 35
    feed = {**ours["arrays"], "x": np.zeros((1, 4, 3), "float32")}
    found = fs.Executor().run(fs.default_main_program(), feed, [made for _, _, made in pairs], fs.Scope())
    for (code, want, made), got in zip(pairs, found, strict=True):
        assert tuple(made.spec.known_dims) == np.shape(want) == got.shape, code
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4, err_msg=code)
