"""docs/onnx.md tells how the cases of ONNX's own tests come out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_cases import cases, is_wanted, node_of, results
from support.onnx_slopes import CLOSE, compare_slopes

from foreshape.errors import ForeshapeError

sys.path.insert(0, str(Path(__file__).parents[3] / "docs"))
import make_onnx_reference as reference


def error_of(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference by the largest magnitude."""
    if not np.issubdtype(want.dtype, np.floating) or not want.size:
        return 0.0
    finite = np.isfinite(want)
    most = np.abs(want[finite].astype("float64")).max(initial=0.0)
    return float(np.abs(got[finite].astype("float64") - want[finite]).max(initial=0.0) / (most or 1.0))


def measured() -> dict[str, dict[str, Any]]:
    """By operator: its cases, so many with the wanted results, the largest error of these, and those with compared gradients."""
    out: dict[str, dict[str, Any]] = {}
    for case in cases().values():
        node = node_of(case)
        of = out.setdefault(f"{node.domain}.{node.operator}".strip("."), {"cases": 0, "equal": 0, "error": 0.0, "slopes": 0})
        of["cases"] += 1
        try:
            found = results(case)
        except ForeshapeError:
            continue
        if all(is_wanted(case, at, got) for at, got in enumerate(found)):
            of["equal"] += 1
            of["error"] = max(of["error"], *(error_of(got, case[f"out{at}"]) for at, got in enumerate(found)))
        apart = compare_slopes(case)
        of["slopes"] += bool(apart) and all(one < CLOSE for one in apart.values())
    return {name: {**of, "error": f"{of['error']:.0e}" if of["error"] else "0"} for name, of in out.items()}


@pytest.mark.long
def test_the_results_are_those_of_the_page(update: bool) -> None:
    found = measured()
    if update:
        reference.keep(results=found)
        reference.main([])
    told = reference.record()["results"]
    counts = lambda of: {name: [one[key] for key in ("cases", "equal", "slopes")] for name, one in of.items()}  # noqa: E731
    assert counts(found) == counts(told), "run this test with --update"
