"""Requirements of functions and constructors on their arguments, from annotations and docstrings, in words for a failed call."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import index
from typing import Any, Final, NamedTuple, SupportsIndex, Union, cast, get_args, get_origin, get_type_hints

from foreshape.core.dims import Dim
from foreshape.language.operator.attributes import shown
from foreshape.language.program.variable import Variable

_LONGEST_DOC: Final = 140
_PLAIN: Final[dict[Any, tuple[str, str]]] = {
    Variable: ("a variable", "variables"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "bools"),
    str: ("a string", "strings"),
    types.NoneType: ("None", "Nones"),
    Dim: ("a symbol", "symbols"),
}
"""A class -> the words for one of it, and for several."""
_IN_ALIASES: Final = {"Sequence": Sequence, "Mapping": Mapping, "Callable": Callable, "Dim": Dim, "Variable": Variable}
"""Classes in aliases given as strings, for modules with the alias but without its classes."""


signature_of = functools.cache(inspect.signature)
"""The signature of a function of this package, looked up once."""


@functools.cache
def parameters_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return parameter -> its annotation as an object, looked up once; Any where it has none. Aliases may be strings, and unions of these."""
    names: dict[str, Any] = {**_IN_ALIASES, **vars(inspect.getmodule(function))}
    for name, value in list(names.items()):
        if isinstance(value, str) and name[:1].isupper():
            try:
                names[name] = _meant(value, names)
            except (NameError, SyntaxError, TypeError):  # a text of another kind
                continue
    out: dict[str, Any] = {}
    for name, parameter in signature_of(function).parameters.items():
        annotation = parameter.annotation
        out[name] = Any if annotation is parameter.empty else _meant(annotation, names) if isinstance(annotation, str) else annotation
    return out


class Quick(NamedTuple):
    """Classes of fitting values, for a quick check before `fits`.

    Attributes:
        classes: instances of exactly one of these fit.
        bases: instances of one of these or of a derived class fit.
    """

    classes: frozenset[type]
    bases: tuple[type, ...]


@functools.cache
def quick_looks(function: Callable[..., Any]) -> tuple[tuple[Quick, ...], Mapping[str, Quick]]:
    """Return the quick looks at the arguments of a function, by position and by name, made once."""
    by_name = {name: _quick(annotation) for name, annotation in parameters_of(function).items()}
    later_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return tuple(by_name[name] for name, p in signature_of(function).parameters.items() if p.kind not in later_kinds), by_name


def _quick(annotation: Any) -> Quick:
    if get_origin(annotation) in (Union, types.UnionType):
        members = [_quick(member) for member in get_args(annotation)]
        return Quick(frozenset().union(*(q.classes for q in members)), tuple(base for q in members for base in q.bases))
    if annotation is Any or annotation is object:
        return Quick(frozenset(), (object,))
    if annotation is None or annotation in (int, float, bool, str, types.NoneType):  # True is no number
        return Quick(frozenset((int, float) if annotation is float else (types.NoneType if annotation is None else annotation,)), ())
    return Quick(frozenset(), (annotation,) if isinstance(annotation, type) and get_origin(annotation) is None else ())


def _meant(annotation: str, names: dict[str, Any]) -> Any:
    """Return the object of an annotation in a string."""
    return get_type_hints(types.SimpleNamespace(__annotations__={"it": annotation}), names)["it"]


def fits(value: object, annotation: Any) -> bool:
    """Tell whether a value fits an annotation, where numpy's numbers are numbers, and any iterable is a sequence."""
    kind = get_origin(annotation)
    inner = get_args(annotation)
    if annotation is Any or annotation is object:
        return True
    if kind is Union or kind is types.UnionType:
        return any(fits(value, element) for element in inner)
    if annotation is bool:
        return isinstance(value, bool) or value.__class__.__name__ == "bool_"
    if annotation is int or annotation is float:
        return _is_number(value, whole_only=annotation is int)
    if kind is None:
        return isinstance(value, types.NoneType if annotation is None else annotation)
    if kind is tuple and Ellipsis not in inner:
        return isinstance(value, (tuple, list)) and len(cast("list[Any]", value)) == len(inner) and all(map(fits, cast("list[Any]", value), inner))
    if issubclass(kind, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in mapping.items())
    if issubclass(kind, Iterable):
        if isinstance(value, str):
            return inner[0] is str  # one name in the place of several
        if isinstance(value, (bytes, Variable, Mapping)) or not hasattr(value, "__iter__") or getattr(value, "ndim", 1) == 0:
            return False
        if not isinstance(value, (list, tuple)):  # an iterator would be used up
            return not (hasattr(value, "dtype") or hasattr(value, "shape")) or all(
                fits(element, inner[0]) for element in islice(cast("Iterable[Any]", value), 1)
            )
        return all(fits(element, inner[0]) for element in cast("list[Any]", value))
    return callable(value) if kind is Callable else isinstance(value, kind)


def takes_variable(annotation: Any) -> bool:
    """Tell whether a variable, alone or in a list, fits an annotation."""
    return annotation is Variable or any(takes_variable(member) for member in get_args(annotation))


def _is_number(value: object, whole_only: bool) -> bool:
    if isinstance(value, (bool, str, bytes)):
        return False
    try:
        index(cast("SupportsIndex", value))
        return True
    except TypeError:
        pass
    if whole_only or not hasattr(value, "__float__"):
        return False
    try:
        float(cast("float", value))
        return True
    except OverflowError:
        return True
    except (TypeError, ValueError):
        return False


def words(annotation: Any, several: bool = False) -> str:
    """Say an annotation in words."""
    if annotation is Any or annotation is object:
        return "things" if several else "what its documentation says"
    if annotation is None:
        annotation = types.NoneType
    plain = _PLAIN.get(annotation)
    if plain is not None:
        return plain[several]
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Union or kind is types.UnionType:
        choices = list(dict.fromkeys(words(member, several) for member in inner if member is not int or float not in inner))
        return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
    if kind is None:
        called = str(annotation.__name__)
        return f"{called}s" if several else f"{'an' if called[0] in 'AEIO' else 'a'} {called}"
    if kind is Callable:
        return "functions" if several else "a function"
    if kind is tuple and Ellipsis not in inner:
        parts = f"{len(inner)} values: {', '.join(words(member) for member in inner)}"
        return f"tuples of {parts}" if several else f"a tuple of {parts}"
    if issubclass(kind, Mapping):
        return f"{'dicts' if several else 'a dict'} from {words(inner[0], True)} to {words(inner[1], True)}"
    ending = "" if inner[0] is Any else f" of {words(inner[0], True)}"
    return f"{'lists' if several else 'a list'}{ending}"


def documented(function: Callable[..., Any]) -> dict[str, str]:
    """Return parameter -> the first words of its description in the docstring."""
    text = inspect.getdoc(function) or ""
    match = re.search(r"^Args:\n((?:(?: .*)?\n?)*)", text, re.MULTILINE)
    out: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \S)", match[1].rstrip()) if match is not None else ():
        names, _, description = entry.strip().partition(": ")
        first = re.split(r"[.;](?:\s|$)", " ".join(description.split()), maxsplit=1)[0].removesuffix(".")
        for name in names.split(", "):
            if 0 < len(first) <= _LONGEST_DOC:
                out[name.strip("*")] = first
    return out


def seen(value: object) -> str:
    """Return a value in an error, on one line; its class, where its text cannot be had."""
    try:
        return " ".join(shown(value).split())
    except Exception:  # whatever the text of a stranger's object does, the error is told
        return f"a {type(value).__name__}"
