"""Names of a program's parameters in a module of torch: dots nest, as in every ``state_dict``."""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Iterable, Mapping

from foreshape.interop.torch.write.plain_names import identifier


def state_keys(names: Iterable[str]) -> dict[str, str]:
    """Return for each name its key in the module's ``state_dict``: the name itself wherever torch takes it.

    torch refuses empty parts between dots, a tensor and a module of one name, and attributes of its modules.
    """
    from torch import nn

    reserved = set(dir(nn.Module()))
    listed = list(names)
    modules = {".".join(parts[:depth]) for name in listed for parts in [name.split(".")] for depth in range(1, len(parts))}
    out: dict[str, str] = {}
    used = set(modules)
    for name in listed:
        parts = name.split(".")
        if all(parts) and not any(p in reserved for p in parts) and name not in modules:
            out[name] = name
            used.add(name)
    for name in listed:
        if name not in out:
            key = identifier(name)
            while key in used or key in reserved:
                key += "_"
            out[name] = key
            used.add(key)
    return out


def access(key: str) -> str:
    """Return the expression for a tensor of ``self``."""
    out = "self"
    for part in key.split("."):
        out = f"{out}.{part}" if _is_name(part) else f"getattr({out}, {part!r})"
    return out


def _is_name(part: str) -> bool:
    """Tell whether Python reads a name as it is written: it takes other letters of one form (NFKC) for the same name."""
    return part.isidentifier() and not keyword.iskeyword(part) and unicodedata.normalize("NFKC", part) == part


def renamed(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the other names in the module: key -> the program's name."""
    return {key: name for name, key in keys.items() if key != name}
