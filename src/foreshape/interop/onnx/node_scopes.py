"""The scopes of nodes: the modules of the exported network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from foreshape.language.wire.onnx_records import NodeRecord

_OTHER: Final = re.compile(r"[^\w-]")
_QUOTED: Final = re.compile(r"'([^']*)'")


def scope_of(node: NodeRecord) -> str:
    """Return the path of a node's module, as ``/encoder/layer/0/``; empty for none.

    PyTorch's exporters say it in the node's name, ``/encoder/encoder.layer.0/MatMul``, or in its metadata, ``['', 'encoder', 'encoder.layer.0', 'mm']``.
    """
    text = node.metadata.get("pkg.torch.onnx.name_scopes")
    if text is not None:
        return _path([name for name in _QUOTED.findall(text)[:-1] if not name.startswith("_empty_nn_module_stack")])
    text = node.metadata.get("namespace")
    if text is not None:
        return _path([part.partition(":")[0] for part in text.split("/")[:-1]])
    return _path(node.name.split("/")[:-1]) if node.name.startswith("/") else ""


def _path(modules: Sequence[str]) -> str:
    """Return the path of modules; each may repeat the name of the one around it."""
    parts: list[str] = []
    outer = ""
    for name in modules:
        suffix = name.removeprefix(f"{outer}.") if outer else name
        parts += [_OTHER.sub("_", part) for part in suffix.split(".") if part]
        outer = name
    path = "/".join(parts)
    return f"/{path}/" if 0 < len(path) < 1000 else ""
