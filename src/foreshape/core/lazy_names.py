"""Names of a package that are imported when they are first used, as listed by the imports of a file that is read and never run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any


@cache
def lazy_names(listing: str) -> Mapping[str, tuple[str, str]]:
    """Return the names imported by a module: name -> the module with it, and its name there.

    Type checkers read the same imports, behind ``if TYPE_CHECKING: from listing import *``.
    """

    from importlib.machinery import PathFinder

    def record(module: str, _globals: object, _locals: object, names: tuple[str, ...], _level: int) -> SimpleNamespace:
        return SimpleNamespace(**{name: (module, name) for name in names})

    spec = PathFinder.find_spec(listing, sys.modules[listing.rpartition(".")[0]].__path__)
    assert spec is not None
    loader: Any = spec.loader
    namespace: dict[str, Any] = {"__builtins__": {"__import__": record}}
    exec(loader.get_code(listing), namespace)
    return {name: origin for name, origin in namespace.items() if not name.startswith("__")}


def lazy_value(listing: str, name: str) -> Any:
    """Import the module of a listed name, and return the value of the name."""
    module, source_name = lazy_names(listing)[name]
    return getattr(importlib.import_module(module), source_name)
