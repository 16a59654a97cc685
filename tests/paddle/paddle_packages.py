"""Packages of networks, of which only the modules with networks are imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def bare(package: str, inner: Sequence[str], absent: Mapping[str, Mapping[str, Any]]) -> bool:
    """Make a package importable without running its own ``__init__``, which imports what training needs. Whether that was still to be done.

    Args:
        package: what it is called when it is imported.
        inner: packages in it whose ``__init__`` is not run either.
        absent: modules that it imports for training alone, and what is to be in them where they are not installed.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    if package in sys.modules:
        return False
    found = importlib.util.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError(f"{package} is not installed")
    for name, holds in absent.items():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__dict__.update({"__path__": [], **holds})
    root = Path(next(iter(found.submodule_search_locations)))
    for name in (package, *inner):
        made: Any = types.ModuleType(name)
        made.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = made
    return True
