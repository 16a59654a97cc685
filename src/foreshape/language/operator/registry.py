"""The registered operators, by type."""

from __future__ import annotations

import importlib
import os
import pkgutil
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from foreshape.core.hints import did_you_mean
from foreshape.errors import SchemaError

if TYPE_CHECKING:
    from foreshape.language.operator.operator import Operator

_registry: dict[str, type[Operator]] = {}
_promised: dict[str, Callable[[], Any]] = {}
"""Gradient operators not asked for yet: the type, and the function to make and register the class."""
_refusals: dict[str, str] = {}
_walk_lock = threading.RLock()
_PACKAGE = "foreshape.language.ops"
_DEFINES = b'\n    type = "'
_GRADIENT = "_grad"


class _Progress:
    """The state of the registry beside its tables."""

    walked = False
    """All modules of operators are imported."""
    registered = 0
    """The number of registrations."""
    defined: ClassVar[dict[str, list[str]]] = {}
    """Type -> the modules whose text defines it, of the folders read so far."""
    unread: list[list[tuple[str, str]]] | None = None


def find(type: str) -> type[Operator] | None:
    """Return the operator of this type, or None.

    The first request imports the module whose text defines the type; without one, all others. So a small program does not wait for unused operators.
    The types of this package are words, so nothing is imported for ``onnx.If``.
    """
    operator = _registry.get(type) or _kept_promise(type)
    if operator is None and not _Progress.walked and type.isidentifier():
        with _walk_lock:
            _import_modules_with(type)
            if type not in _registry and type not in _promised:
                _walk()
        operator = _registry.get(type) or _kept_promise(type)
    return operator


def promise(type: str, make: Callable[[], Any]) -> None:
    """Let there be an operator of this type, whose class is made and registered when somebody asks for it."""
    _promised[type] = make
    _Progress.registered += 1


def _kept_promise(type: str) -> Any:
    """Return the operator of a promised type, or one made by another thread meanwhile."""
    with _walk_lock:
        make = _promised.pop(type, None)
        if make is not None:
            make()
        return _registry.get(type)


def get(type: str) -> type[Operator]:
    """Return the operator of this type. Raises `SchemaError` if there is none."""
    operator = _registry.get(type) or find(type)
    if operator is None:
        if type in _refusals:
            raise SchemaError(f"there can be no operator {type!r} here: {_refusals[type]}")
        raise SchemaError(f"there is no operator {type[:100]!r}{did_you_mean(type, all_operators(), str)}")
    return operator


def layer_name(type: str) -> str:
    """Return the user's name of an operator, of its layer function: ``embedding`` for ``lookup_table_v2``; its type, if it has no other.

    A gradient operator has its forward operator's name: ``embedding_grad``.
    """
    forward = type.removesuffix(_GRADIENT)
    operator = _registry.get(forward) or (find(forward) if type.isidentifier() else None)
    name: str = "" if operator is None else vars(operator).get("layer_function", "")
    return name + type[len(forward) :] if name else type


def shown_type(type: str) -> str:
    """Return an operator for an error: the user's name, and the type beside it if that is another, as ``embedding (lookup_table_v2)``."""
    name = layer_name(type)
    return type if name == type else f"{name} ({type})"


def refuse(type: str, why: str) -> None:
    """Record the reason why there can be no operator of this type here. A user's own operator may still take the type."""
    _refusals[type] = why


def refusal(type: str) -> str | None:
    """Return the reason why there can be no operator of this type, if recorded."""
    return _refusals.get(type)


def registrations() -> int:
    """Return the number of registrations so far: bindings to operators are out of date after a change of it."""
    return _Progress.registered


def all_operators() -> dict[str, type[Operator]]:
    """Return every registered operator by type, including gradient operators."""
    if not _Progress.walked:
        _walk()
    for type in list(_promised):
        _kept_promise(type)
    return dict(_registry)


def _import_modules_with(type: str) -> None:
    for name in modules_with(type):
        importlib.import_module(name)


def modules_with(type: str) -> list[str]:
    """Return the modules with a type defined by ``type = "..."``, or a gradient's forward type."""
    with _walk_lock:
        modules, unread = _Progress.defined, _unread()
        while unread and (type not in modules or type.endswith(_GRADIENT)):  # a gradient's forward type, unless it is defined itself
            for name, path in unread.pop():
                with open(path, "rb") as file:
                    defined = {tail[: tail.index(b'"')] for tail in file.read().split(_DEFINES)[1:]}
                for forward in defined:
                    modules.setdefault(forward.decode(), []).append(name)
    while type not in modules and type.endswith(_GRADIENT):
        type = type.removesuffix(_GRADIENT)
    return modules.get(type, [])


def defined_types() -> list[str]:
    """Return the types defined in the files of this package, without an import of the files."""
    modules_with("")
    return sorted(_Progress.defined)


def _unread() -> list[list[tuple[str, str]]]:
    """Return the modules whose texts are not read yet, and their files: by folders, the largest last, since it is most likely asked for."""
    unread = _Progress.unread
    if unread is None:
        folders = {name: path for folder in importlib.import_module(_PACKAGE).__path__ for name, path in _folders(folder, _PACKAGE)}
        unread = _Progress.unread = sorted([_files(path, name) for name, path in folders.items()], key=len)
    return unread


def _folders(folder: str, package: str) -> Iterator[tuple[str, str]]:
    """Yield a package and the packages within, each with its folder."""
    yield package, folder
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _folders(entry.path, f"{package}.{entry.name}")


def _files(folder: str, package: str) -> list[tuple[str, str]]:
    """Return the modules of a package, each with its file."""
    names = [file.removesuffix(".py") for file in sorted(os.listdir(folder)) if file.endswith(".py")]
    return [(package if name == "__init__" else f"{package}.{name}", os.path.join(folder, f"{name}.py")) for name in names]


def _walk() -> None:
    with _walk_lock:
        if not _Progress.walked:
            package = importlib.import_module(_PACKAGE)
            for module in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."):
                importlib.import_module(module.name)
            _Progress.walked = True


def in_package(cls: type[Operator]) -> bool:
    """Tell whether an operator is one of this package's own."""
    return cls.__module__.startswith(f"{_PACKAGE}.")


def register(cls: type[Operator]) -> None:
    """Make an operator known by its type. Raises `SchemaError` if the type is taken by another class."""
    if not in_package(cls):
        _import_modules_with(cls.type)  # a type of this package is taken, also if not asked for yet
    previous = _kept_promise(cls.type) if cls.type in _promised else _registry.get(cls.type)
    if previous is not None and (previous.__module__, previous.__qualname__) != (cls.__module__, cls.__qualname__):
        raise SchemaError(f"operator {cls.__module__}.{cls.__qualname__}: the type {cls.type!r} is taken by {previous.__module__}.{previous.__qualname__}")
    cls._instances = {}  # pyright: ignore[reportPrivateUsage]
    cls._described = {}  # pyright: ignore[reportPrivateUsage]
    _registry[cls.type] = cls
    _Progress.registered += 1
