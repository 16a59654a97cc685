"""Rooms of functions found by name, one module for each family: the modules are imported by looking into the folder, and no list is kept."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable


def import_families(package: str, folders: Iterable[str], mark: str) -> None:
    """Import the modules of a package whose names have ``mark`` as a part between underscores: their functions register themselves."""
    for module in pkgutil.iter_modules(folders):
        if not module.ispkg and mark in module.name.split("_"):
            importlib.import_module(f"{package}.{module.name}")
