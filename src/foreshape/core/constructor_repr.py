"""Objects shown as the call of their constructor, such as ``Adam(learning_rate=0.01, beta1=0.8)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

_MISSING = object()


class ConstructorRepr:
    """The base of classes whose ``repr`` is their constructor's call, without arguments equal to their defaults.

    A parameter's value is the attribute of its name; `_arguments` returns the others. A user's class may name its attributes otherwise: the known ones
    are shown.
    """

    __slots__ = ()

    always_shown: ClassVar[tuple[str, ...]] = ()
    """The parameters shown even at their defaults."""

    def _arguments(self) -> Mapping[str, Any]:
        """Return parameter -> value, for parameters that are no attributes of their names."""
        return {}

    def __repr__(self) -> str:
        import inspect

        arguments = self._arguments()
        texts: list[str] = []
        for name, parameter in [*inspect.signature(type(self).__init__).parameters.items()][1:]:
            value: Any = arguments[name] if name in arguments else getattr(self, name, _MISSING)
            several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if several or value is _MISSING:
                texts += ["..."] if parameter.default is parameter.empty and not several else []
            elif name in self.always_shown or not _is_same(value, parameter.default):
                texts.append(repr(value) if parameter.default is parameter.empty else f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(texts)})"


def _is_same(value: Any, default: Any) -> bool:
    """Tell whether a value is a default, without calling ``==`` of other classes."""
    return value is default or (type(value) is type(default) and bool(value == default))
