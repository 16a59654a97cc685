"""Nodes of torch's graphs: the lines of the user's code, and the modules, that they come from."""

from __future__ import annotations

import os
import re
from typing import Any, Final, TypeAlias

from foreshape.interop.torch.untyped_torch import torch
from foreshape.program.call_site import Site

TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_HERE: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_FILE: Final = re.compile(r'File "(.*?)", line (\d+), in (\S+)')
_MARK: Final = re.compile(r"[^\w.-]")
Frame: TypeAlias = tuple[str, int, str]
"""A file, a line and a function."""


def path_of(node: Any, inside: str = "") -> str:
    """Return the path of the node's module, as ``/encoder/layer/0/``; empty for the outermost one. ``inside`` is left out at its beginning."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    paths: list[str] = [path for path, _ in stack.values() if path and not path.startswith("_empty")]
    parts = [_MARK.sub("_", part) for part in paths[-1].removeprefix(inside.rstrip(".")).split(".") if part] if paths else []
    return f"/{'/'.join(parts)}/" if parts else ""


def frames_of(node: Any) -> tuple[Frame, ...]:
    """Return the lines of the trace of a node, the innermost last."""
    return tuple((file, int(line), function) for file, line, function in _FILE.findall(node.meta.get("stack_trace") or ""))


def site_of(node: Any) -> Site:
    """Return the user's line: the innermost one of the trace outside of torch."""
    found = frames_of(node)
    own = [one for one in found if not one[0].startswith((TORCH, _HERE)) and os.sep in one[0]]
    return (own or found or [None])[-1]


def place_of(node: Any, inside: str = "") -> str:
    """Return the module and the line of a node, in words."""
    site, path = site_of(node), path_of(node, inside) or "the module itself"
    return f"{path} ({os.path.basename(site[0])}:{site[1]})" if site is not None else path
