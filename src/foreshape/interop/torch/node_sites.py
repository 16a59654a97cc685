"""Nodes of torch's graphs: their lines of the user's code, and their modules."""

from __future__ import annotations

import linecache
import os
import re
from typing import Any, Final, TypeAlias

from foreshape.interop.torch.untyped_torch import torch
from foreshape.language.program.call_site import Site, caller

TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_HERE: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ELSEWHERE: Final = tuple(os.sep + os.path.join(of, "torch", "") for of in ("site-packages", "dist-packages"))
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


def of_torch(file: str) -> bool:
    """Tell whether a file of a trace is torch's, of this machine or of the trace's, or this package's."""
    return file.startswith((TORCH, _HERE)) or any(part in file for part in _ELSEWHERE)


def code_of(file: str) -> str:
    """Return the text of code: of a file, read at once, for many are looked through; else what Python knows of it, as of a cell of a notebook."""
    try:
        with open(file, "rb") as held:
            return held.read().decode(errors="replace")
    except OSError:
        return "".join(linecache.getlines(file))


def calling_site() -> Site:
    """Return the innermost frame outside of torch and of its import: of a network's code, or of the import's caller."""
    return caller(lambda file: os.sep not in file or of_torch(file))


def own_site(node: Any) -> Site:
    """Return the innermost line of the network's own code in the trace of a node; None if there is none."""
    return next((one for one in reversed(frames_of(node)) if os.sep in one[0] and not of_torch(one[0])), None)


def site_of(node: Any) -> Site:
    """Return the innermost line of the network's own code, else of torch's."""
    return own_site(node) or next(reversed(frames_of(node)), None)


class NodeLines:
    """The user's line of each node.

    A node without a line of the network's own code has the one of an operand, or of a reader; in a branch or a body, the one of the
    operator around it. A network of torch's layers alone has none: there it is the line that began the import, else torch's.
    """

    def __init__(self) -> None:
        self.otherwise: Site = caller()

    def of(self, node: Any, around: Site = None) -> Site:
        """Return the line of a node, in a graph within an operator at the line ``around``."""
        found = own_site(node)
        if found is not None:
            return found
        beside = (own_site(other) for other in (*node.all_input_nodes, *node.users))
        found = next((site for site in beside if site is not None), around or self.otherwise)
        return found or site_of(node)

    def place_of(self, node: Any, inside: str = "") -> str:
        """Return the module and the line of a node, in words."""
        site, path = self.of(node), path_of(node, inside) or "the module itself"
        return f"{path} ({os.path.basename(site[0])}:{site[1]})" if site is not None else path
