"""Data classes that are quick to define: they share their methods, while Python's `dataclasses` compiles them for each class anew.

Python's take 0.4 to 0.7 ms for each class, these 0.02, and some 150 lie between a file and its first answer. They are data classes for
`dataclasses.fields`, `replace` and `asdict` too, and have ``__slots__``. ``__post_init__``, order, and fields outside the constructor need
Python's. So do the classes that users construct: their constructors show their parameters.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, field
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, NamedTuple, TypeAlias, TypeVar, dataclass_transform

__all__ = ["data_class", "field"]

_Class = TypeVar("_Class", bound=type)


_Fields: TypeAlias = "dict[str, tuple[Any, dataclasses.Field[Any]]]"
"""Name -> annotation and settings."""
_NO_FIELD = ("ClassVar", "typing.ClassVar")


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
    fields: _Fields


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
        form, out = _with_slots(cls)
        names = tuple(form)
        out._form = _Form(
            names,
            tuple([getattr(out, name).__set__ for name in names]),
            {name: f.default for name, (_, f) in form.items() if f.default is not MISSING},
            {name: f.default_factory for name, (_, f) in form.items() if f.default_factory is not MISSING},
            _values_of(tuple([name for name, (_, f) in form.items() if f.compare])),
            tuple([name for name, (_, f) in form.items() if f.repr]),
            form,
        )
        return out

    return decorate


class _PythonsAttribute:
    """An attribute of Python's data classes, made when it is first asked for, by `dataclasses.fields` and the like: of most classes it never is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: Any) -> Any:
        fields = [(name, annotation, f) for name, (annotation, f) in owner._form.fields.items()]
        value = getattr(dataclasses.make_dataclass(owner.__name__, fields, init=False, repr=False, eq=False), self._name)
        setattr(owner, self._name, value)
        return value


_PYTHONS_ATTRIBUTES = {name: _PythonsAttribute(name) for name in ("__dataclass_fields__", "__dataclass_params__")}


def _with_slots(cls: Any) -> tuple[_Fields, Any]:
    """Return the fields of a class, the ones of its bases first, and the same class with slots for them."""
    members = dict(cls.__dict__)
    form: _Fields = {}
    for base in cls.__mro__[:0:-1]:
        if isinstance(base_form := base.__dict__.get("_form"), _Form):
            form |= base_form.fields
    inherited = set(form)
    for name, annotation in inspect.get_annotations(cls).items():
        if not str(annotation).startswith(_NO_FIELD):
            default = members.pop(name, MISSING)
            if default.__class__.__hash__ is None:
                raise ValueError(f"{cls.__name__}.{name} has a mutable default, which all objects would share: it must be field(default_factory=...)")
            form[name] = annotation, default if isinstance(default, dataclasses.Field) else field(default=default)
    for name in ("__dict__", "__weakref__"):
        members.pop(name, None)
    members |= {"__slots__": tuple([name for name in form if name not in inherited]), "__match_args__": tuple(form), **_PYTHONS_ATTRIBUTES}
    out = type(cls)(cls.__name__, cls.__bases__, members)
    out.__qualname__ = cls.__qualname__
    return form, out


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
    names, _, defaults, factories, *_ = cls._form
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
