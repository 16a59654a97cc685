"""Small models of one node, with their inputs, wanted results and tolerances, from ONNX's own tests."""

from __future__ import annotations

import io
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parent.parent / "interop" / "onnx" / "node_cases.npz.xz"


@cache
def cases() -> dict[str, dict[str, Any]]:
    """By name: ``model`` (bytes as uint8), ``in0`` and so on, ``out0`` and so on, ``tolerance`` (relative, absolute)."""
    out: dict[str, dict[str, Any]] = {}
    with np.load(io.BytesIO(lzma.decompress(FILE.read_bytes()))) as file:
        for key in file.files:
            name, _, what = key.partition("/")
            out.setdefault(name, {})[what] = file[key]
    return out
