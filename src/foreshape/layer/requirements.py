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

from foreshape.dims import Dim
from foreshape.operator.attributes import shown
from foreshape.program.variable import Variable

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
        given = parameter.annotation
        out[name] = Any if given is parameter.empty else _meant(given, names) if isinstance(given, str) else given
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
    by_name = {name: _quick(wanted) for name, wanted in parameters_of(function).items()}
    others = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return tuple(by_name[name] for name, p in signature_of(function).parameters.items() if p.kind not in others), by_name


def _quick(wanted: Any) -> Quick:
    if get_origin(wanted) in (Union, types.UnionType):
        of = [_quick(one) for one in get_args(wanted)]
        return Quick(frozenset().union(*(q.classes for q in of)), tuple(base for q in of for base in q.bases))
    if wanted is Any or wanted is object:
        return Quick(frozenset(), (object,))
    if wanted is None or wanted in (int, float, bool, str, types.NoneType):  # True is no number
        return Quick(frozenset((int, float) if wanted is float else (types.NoneType if wanted is None else wanted,)), ())
    return Quick(frozenset(), (wanted,) if isinstance(wanted, type) and get_origin(wanted) is None else ())


def _meant(annotation: str, names: dict[str, Any]) -> Any:
    """Return the object of an annotation in a string."""
    return get_type_hints(types.SimpleNamespace(__annotations__={"it": annotation}), names)["it"]


def fits(value: object, wanted: Any) -> bool:
    """Tell whether a value fits an annotation, where numpy's numbers are numbers, and any iterable is a sequence."""
    kind = get_origin(wanted)
    inner = get_args(wanted)
    if wanted is Any or wanted is object:
        return True
    if kind is Union or kind is types.UnionType:
        return any(fits(value, one) for one in inner)
    if wanted is bool:
        return isinstance(value, bool) or value.__class__.__name__ == "bool_"
    if wanted is int or wanted is float:
        return _is_number(value, whole=wanted is int)
    if kind is None:
        return isinstance(value, types.NoneType if wanted is None else wanted)
    if kind is tuple and Ellipsis not in inner:
        return isinstance(value, (tuple, list)) and len(cast("list[Any]", value)) == len(inner) and all(map(fits, cast("list[Any]", value), inner))
    if issubclass(kind, Mapping):
        given = cast("Mapping[Any, Any]", value)
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in given.items())
    if issubclass(kind, Iterable):
        if isinstance(value, str):
            return inner[0] is str  # one name in the place of several
        if isinstance(value, (bytes, Variable, Mapping)) or not hasattr(value, "__iter__") or getattr(value, "ndim", 1) == 0:
            return False
        if not isinstance(value, (list, tuple)):  # an iterator would be used up
            return not (hasattr(value, "dtype") or hasattr(value, "shape")) or all(fits(one, inner[0]) for one in islice(cast("Iterable[Any]", value), 1))
        return all(fits(one, inner[0]) for one in cast("list[Any]", value))
    return callable(value) if kind is Callable else isinstance(value, kind)


def takes_variable(wanted: Any) -> bool:
    """Tell whether a variable, alone or in a list, fits an annotation."""
    return wanted is Variable or any(takes_variable(one) for one in get_args(wanted))


def _is_number(value: object, whole: bool) -> bool:
    if isinstance(value, (bool, str, bytes)):
        return False
    try:
        index(cast("SupportsIndex", value))
        return True
    except TypeError:
        pass
    if whole or not hasattr(value, "__float__"):
        return False
    try:
        float(cast("float", value))
        return True
    except OverflowError:
        return True
    except (TypeError, ValueError):
        return False


def words(wanted: Any, several: bool = False) -> str:
    """Say an annotation in words."""
    if wanted is Any or wanted is object:
        return "things" if several else "what its documentation says"
    if wanted is None:
        wanted = types.NoneType
    plain = _PLAIN.get(wanted)
    if plain is not None:
        return plain[several]
    kind, inner = get_origin(wanted), get_args(wanted)
    if kind is Union or kind is types.UnionType:
        said = list(dict.fromkeys(words(one, several) for one in inner if one is not int or float not in inner))
        return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} or {said[-1]}"
    if kind is None:
        called = str(wanted.__name__)
        return f"{called}s" if several else f"{'an' if called[0] in 'AEIO' else 'a'} {called}"
    if kind is Callable:
        return "functions" if several else "a function"
    if kind is tuple and Ellipsis not in inner:
        parts = f"{len(inner)} values: {', '.join(words(one) for one in inner)}"
        return f"tuples of {parts}" if several else f"a tuple of {parts}"
    if issubclass(kind, Mapping):
        return f"{'dicts' if several else 'a dict'} from {words(inner[0], True)} to {words(inner[1], True)}"
    of = "" if inner[0] is Any else f" of {words(inner[0], True)}"
    return f"{'lists' if several else 'a list'}{of}"


def documented(function: Callable[..., Any]) -> dict[str, str]:
    """Return parameter -> the first words of its description in the docstring."""
    text = inspect.getdoc(function) or ""
    found = re.search(r"^Args:\n((?:(?: .*)?\n?)*)", text, re.MULTILINE)
    out: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \S)", found[1].rstrip()) if found is not None else ():
        names, _, said = entry.strip().partition(": ")
        first = re.split(r"[.;](?:\s|$)", " ".join(said.split()), maxsplit=1)[0].removesuffix(".")
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
