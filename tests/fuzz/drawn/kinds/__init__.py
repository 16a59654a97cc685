"""The kinds of steps: each is drawn, described with the layer API, and computed with torch, in one place.

A new kind is a class in one of the modules here; nothing else is edited.
"""

from __future__ import annotations

import importlib
import pkgutil

from drawn.kinds.base import KINDS, Kind

for _found in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_found.name}")

__all__ = ["KINDS", "Kind"]
