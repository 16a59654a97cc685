"""Recurrent layers by cuDNN: what the calls are given and what becomes of their results, on a pretended device."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.pretended_device import pretended

import foreshape as fs
from foreshape import layer

HIDDEN = 4
CASES = [(kind, layers, both, form) for kind in ("lstm", "gru", "simple_rnn") for layers, both in ((1, False), (2, True)) for form in ("dense", "lengths", "ragged")]


def program(kind: str, layers: int, both: bool, form: str) -> tuple[Any, list[str], dict[str, Any]]:
    """Return a program with the gradients of everything, what to fetch, and a feed."""
    rng = np.random.default_rng(3)
    main = fs.Program()
    units = layers * (2 if both else 1)
    with fs.program_guard(main, fs.Program()):
        lengths, feed = {}, {}
        if form == "ragged":
            x = layer.data("x", shape=[3], dtype="float32", lod_level=1)
    raise NotImplementedError
