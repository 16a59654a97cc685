"""The questions of a network's code whether it is trained, recorded while it is exported.

The program of a training is made into one for a test by its operators alone: dropout, batch normalization and others know both. Where the code itself
goes another way in a test, `asks_itself` tells it.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from foreshape.interop.torch.node_sites import of_torch
from foreshape.interop.torch.replaced import exports_here, replaced
from foreshape.interop.torch.untyped_torch import torch

Frames = Sequence[tuple[str, int, str]]
"""Files, lines and functions, the innermost last."""
_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_OF_USERS: Final = os.path.join(_TORCH, "nn", "utils") + os.sep
"""Code of torch with another way in a test, as networks' own code has, such as a spectral norm."""


class Read(NamedTuple):
    """A line that asks for a module's mode."""

    file: str
    line: int
    function: str


class ModeAware(NamedTuple):
    """A node of a graph with another form in a test.

    ``frames``: its place in the network's code. ``active``: it does in training what it does not in a test.
    """

    frames: Frames
    active: bool


@contextmanager
def recorded_reads() -> Generator[dict[Read, None]]:
    """Record the lines that ask for ``module.training``."""
    reads: dict[Read, None] = {}

    def get(module: Any) -> bool:
        own = inspect.currentframe()
        if exports_here() and own is not None and (frame := own.f_back) is not None:
            reads[Read(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)] = None
        if "training" not in module.__dict__:
            raise AttributeError("training")
        return module.__dict__["training"]

    def put(module: Any, value: bool) -> None:
        module.__dict__["training"] = value

    with replaced(torch.nn.Module, training=property(get, put)):
        yield reads


def asks_itself(reads: Iterable[Read], aware: Sequence[ModeAware]) -> list[str]:
    """Return the lines by which the network goes another way in a test than its operators do.

    A line outside of torch that asks for the mode is none of these if it hands it to such an operator. An operator in training form, such as a
    dropout, must have been asked for by the mode: one that is always on has no other form in a test.
    """
    reads = list(reads)
    functions = {(read.file, read.function) for read in reads}
    places = {frame[:2] for node in aware for frame in node.frames}
    found: dict[str, None] = {}
    statements: dict[str, list[ast.stmt]] = {}
    for read in reads:
        if read.file.startswith(_TORCH) and not read.file.startswith(_OF_USERS):
            continue
        if read.file not in statements:
            statements[read.file] = _statements(read.file)
        lines = _handing_on(statements[read.file], read.line)
        if lines is None or not any((read.file, line) in places for line in lines):
            found[f"{read.file}:{read.line}"] = None
    for node in aware:
        if node.active and not any((file, function) in functions for file, _, function in node.frames):
            file, line, _ = next((frame for frame in reversed(node.frames) if not of_torch(frame[0])), ("", 0, ""))
            found[f"{file}:{line}"] = None
    return list(found)


def _handing_on(statements: Sequence[ast.stmt], line: int) -> range | None:
    """Return the lines of the simple statement at a line; None for a choice between ways: an ``if``, or one with a call in its branches."""
    found: ast.stmt | None = None
    for one in statements:
        if one.lineno <= line <= (one.end_lineno or one.lineno) and (found is None or one.lineno >= found.lineno):
            found = one
    if found is None or hasattr(found, "body"):
        return None
    for part in ast.walk(found):
        branches = [part.body, part.orelse] if isinstance(part, ast.IfExp) else part.values if isinstance(part, ast.BoolOp) else []
        if any(isinstance(inner, ast.Call) for branch in branches for inner in ast.walk(branch)):
            return None
    return range(found.lineno, (found.end_lineno or found.lineno) + 1)


def _statements(file: str) -> list[ast.stmt]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # not the text that runs
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
