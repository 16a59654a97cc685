"""Layers: functions that append ops to the default main program and return their results."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from foreshape.core.lazy_names import lazy_names, lazy_value

if TYPE_CHECKING:
    from foreshape.layer.public_layers import *

_EXPORTS = "foreshape.layer.public_layers"
"""The list of public names and their files, each imported when its name is first used: a saved network needs few of them for its answer."""
_ROOMS = ("detection",)


class _Room(ModuleType):
    """A module with files hidden from its users: ``layer.attention`` is reported as a missing name. Imports find them all the same."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, ModuleType) or name in _ROOMS:
            super().__setattr__(name, value)


import_module(__name__).__class__ = _Room

if not TYPE_CHECKING:  # type checkers have the names of the list, and report a wrong one
    __all__ = sorted(lazy_names(_EXPORTS))  # noqa: PLE0605  a list

    def __getattr__(name: str) -> Any:
        if name not in lazy_names(_EXPORTS):
            from foreshape.core.hints import no_such_name
            from foreshape.layer.called_elsewhere import CALLED_ELSEWHERE

            raise no_such_name(__name__, name, CALLED_ELSEWHERE, __all__, "layer")
        if name in _ROOMS:
            return import_module(f"{__name__}.{name}")
        from foreshape.layer.argument_errors import close

        globals()[name] = lazy_value(_EXPORTS, name)
        close(globals(), [name])
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
