"""Data classes that are quick to define: they share their methods, while Python's `dataclasses` compiles them for each class anew.

Python's take 0.4 to 0.7 ms for each class, these 0.05, and some seventy lie between a file and its first answer. They are data classes for
`dataclasses.fields`, `replace` and `asdict` too, and have ``__slots__``. ``__post_init__``, order, and fields outside the constructor need
Python's. So do the classes that users construct: their constructors show their parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, field
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, NamedTuple, TypeVar, dataclass_transform

__all__ = ["data_class", "field"]

_Class = TypeVar("_Class", bound=type)


class _Form(NamedTuple):
    """The facts of a class for the shared methods."""

    names: tuple[str, ...]
    puts: tuple[Callable[[Any, Any], None], ...]
    """The setters of an object's fields, also of a frozen object."""
    defaults: Mapping[str, Any]
    factories: Mapping[str, Callable[[], Any]]
    key: Callable[[Any], tuple[Any, ...]]
    """From an object to the values by which it is compared."""
    repr_names: tuple[str, ...]


@dataclass_transform(field_specifiers=(field,))
def data_class(*, frozen: bool = False, eq: bool = True, repr: bool = True) -> Callable[[_Class], _Class]:
    """Return a decorator that makes a data class with ``__slots__``; methods defined by the class stand.

    Args:
        frozen: assigning raises `dataclasses.FrozenInstanceError`, and objects compared by value can be hashed.
        eq: objects of one class are compared by value.
        repr: objects are shown with their values.
    """

    def decorate(cls: _Class) -> _Class:
        shared: dict[str, Any] = {"__init__": _init}
        if repr:
            shared["__repr__"] = _repr
        if eq:
            shared |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
        if frozen:
            shared |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete, "__getstate__": _state, "__setstate__": _set_state}
        for name, method in shared.items():
            if name not in cls.__dict__ or (name == "__hash__" and cls.__dict__[name] is None):  # Python puts None where __eq__ is
                setattr(cls, name, method)
        fields, out = _with_slots(cls)
        out._form = _Form(
            tuple(f.name for f in fields),
            tuple(getattr(out, f.name).__set__ for f in fields),
            {f.name: f.default for f in fields if f.default is not MISSING},
            {f.name: f.default_factory for f in fields if f.default_factory is not MISSING},
            _values_of(tuple(f.name for f in fields if f.compare)),
            tuple(f.name for f in fields if f.repr),
        )
        return out

    return decorate


def _with_slots(cls: Any) -> tuple[tuple[dataclasses.Field[Any], ...], Any]:
    out = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    return dataclasses.fields(out), out


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _init(self: Any, *values: Any, **keywords: Any) -> None:
    puts = self._form.puts
    if keywords or len(values) != len(puts):
        values = (*values, *_remaining_values(type(self), len(values), keywords))
    for put, value in zip(puts, values):  # noqa: B905  # equally many; the argument would cost time
        put(self, value)


def _remaining_values(cls: Any, count: int, keywords: dict[str, Any]) -> list[Any]:
    """Return the values of the fields behind the first ones, by name or by default."""
    names, _, defaults, factories, _, _ = cls._form
    if count > len(names):
        raise TypeError(f"{cls.__name__} takes {len(names)} values; seen {count}")
    out: list[Any] = []
    for name in names[count:]:
        if name in keywords:
            out.append(keywords.pop(name))
        elif name in defaults:
            out.append(defaults[name])
        elif name in factories:
            out.append(factories[name]())
        else:
            raise TypeError(f"{cls.__name__} needs {name}")
    if keywords:
        name = next(iter(keywords))
        raise TypeError(f"{cls.__name__} is given {name} twice" if name in names else f"{cls.__name__} has no {name}")
    return out


@recursive_repr()
def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._form.repr_names)})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    key = self._form.key
    return key(self) == key(other)


def _hash(self: Any) -> int:
    return hash(self._form.key(self))


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self._form.names]


def _set_state(self: Any, values: list[Any]) -> None:
    for put, value in zip(self._form.puts, values, strict=True):
        put(self, value)
