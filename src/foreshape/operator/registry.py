"""The operators that there are, by type."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from typing import TYPE_CHECKING

from foreshape.errors import SchemaError

if TYPE_CHECKING:
    from foreshape.operator.operator import Operator

_registry: dict[str, type[Operator]] = {}
_refusals: dict[str, str] = {}
_walk_lock = threading.RLock()
_walked = False
_registered = 0


def find(type: str) -> type[Operator] | None:
    """The operator of this type, or None. The modules of this package are imported at the first question."""
    found = _registry.get(type)
    if found is None and not _walked:
        _walk()
        found = _registry.get(type)
    return found


def get(type: str) -> type[Operator]:
    """The operator of this type. Raises `SchemaError` where there is none."""
    found = find(type)
    if found is None:
        if type in _refusals:
            raise SchemaError(f"there can be no operator {type!r} here: {_refusals[type]}")
        import difflib

        near = difflib.get_close_matches(type[:100], _registry, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise SchemaError(f"there is no operator {type[:100]!r}{hint}")
    return found


def refuse(type: str, why: str) -> None:
    """Say why there can be no operator of this type here, in words for those who meet it. Somebody's own operator may still take the type."""
    _refusals[type] = why


def refusal(type: str) -> str | None:
    """Why there can be no operator of this type, where that was said."""
    return _refusals.get(type)


def registrations() -> int:
    """How many classes have been registered till now: what was bound to operators before may be out of date where this has changed."""
    return _registered


def all_operators() -> dict[str, type[Operator]]:
    """Every operator that is known now, by type, gradient operators included."""
    if not _walked:
        _walk()
    return dict(_registry)


def _walk() -> None:
    global _walked
    with _walk_lock:
        if not _walked:
            package = importlib.import_module("foreshape.ops")
            for module in pkgutil.walk_packages(package.__path__, "foreshape.ops."):
                importlib.import_module(module.name)
            _walked = True


def register(cls: type[Operator]) -> None:
    """Make an operator known by its type. Raises `SchemaError` where the type is taken by another class."""
    global _registered
    taken = _registry.get(cls.type)
    if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
        raise SchemaError(f"operator {cls.__module__}.{cls.__qualname__}: the type {cls.type!r} is taken by {taken.__module__}.{taken.__qualname__}")
    cls._instances = {}  # pyright: ignore[reportPrivateUsage]
    cls._described = {}  # pyright: ignore[reportPrivateUsage]
    _registry[cls.type] = cls
    _registered += 1
