"""Small models of one node, with their inputs, wanted results and tolerances: from ONNX's own tests, and as onnxruntime computes them.

Onnxruntime's are of its own operators, and models by chance of windows, regions, grids and resizing, with open sizes.
"""

from __future__ import annotations

import io
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent.parent / "interop" / "onnx"


@cache
def cases() -> dict[str, dict[str, Any]]:
    """By name: ``model`` (bytes as uint8), ``in0`` and so on, ``out0`` and so on, ``tolerance`` (relative, absolute)."""
    out: dict[str, dict[str, Any]] = {}
    for path in ("node_cases.npz.xz", "contrib_cases.npz.xz", "random_cases.npz.xz"):
        with np.load(io.BytesIO(lzma.decompress((FOLDER / path).read_bytes()))) as file:
            for key in file.files:
                name, _, what = key.partition("/")
                out.setdefault(name, {})[what] = file[key]
    return out
