"""The border of the room: what every function of `foreshape.layer` does when it is called and cannot do what it is asked.

One wrapper around each public function, put there by `close` at the door of the room: within the room functions call each other without it.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from types import FunctionType, ModuleType, TracebackType
from typing import Any, Final

from foreshape.errors import DescriptionError, ForeshapeError, SchemaError
from foreshape.layer.requirements import documented, fits, parameters_of, seen, words
from foreshape.program.call_site import here, located
from foreshape.program.unfinished import mark

_OURS: Final = frozenset(("foreshape", "numpy")) | sys.stdlib_module_names


def close(room: ModuleType, names: Iterable[str]) -> None:
    """Put the border around the functions of these names.

    Args:
        room: the module that users take them from.
        names: those of other things are left as they are.
    """
    done: dict[FunctionType, Callable[..., Any]] = {}  # a function may have two names
    for name in names:
        function = getattr(room, name)
        if isinstance(function, FunctionType):
            if function not in done:
                done[function] = bordered(function)
                done[function].__module__ = room.__name__  # where it is found, by pickle too
            setattr(room, name, done[function])


def bordered(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that describes, whose errors are those of this package, have the user's line, and leave nothing half described.

    What its user's own functions raise passes as it is, and so does Python's word on arguments that are missing or have no parameter.
    """
    function = inspect.unwrap(function)  # it does what `tells_line` does

    @functools.wraps(function)
    def described(*args: Any, **named: Any) -> Any:
        before = mark()
        try:
            return function(*args, **named)
        except BaseException as error:
            before.take_back()
            if isinstance(error, DescriptionError):
                with_line = located(error, here())
                if with_line is error:
                    raise
                raise with_line from error.__cause__
            if not isinstance(error, Exception) or isinstance(error, (ForeshapeError, Warning, MemoryError)) or _is_not_ours(error):
                raise
            raise located(SchemaError(_words(function, args, named, error)), here()) from error

    return described


def _is_not_ours(error: Exception) -> bool:
    """Whether it was raised in a function of the user's, or because the call does not fit the signature."""
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None  # without the wrapper
    if trace is None:
        return True
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _OURS:
            return True
        trace = trace.tb_next
    return False


def _words(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], error: Exception) -> str:
    """What the parameters want and what they were given: those that do not fit their annotations; where all do, those that the failing line names."""
    given = _given(function, args, named)
    wanted, said = parameters_of(function), documented(function)
    wrong = [(name, value) for name, value in given if not fits(value, wanted[name])]
    because = ""
    if not wrong:
        because = f" cannot be described with these arguments: {type(error).__name__}: {error}"
        wrong = _suspects(given, function, error.__traceback__)
    parts = [_requirement(name, value, wanted[name], said.get(name)) for name, value in wrong]
    start = "" if because or len(parts) > 1 else " "
    return f"{function.__name__}:{because}{start}" + (parts[0] if start else "".join(f"\n    {part}" for part in parts))


def _requirement(name: str, value: object, wanted: Any, said: str | None) -> str:
    asked = f"must be {words(wanted)}" + (f" ({said})" if said else "") if wanted is not Any else f"must be: {said}" if said else "is wrong"
    return f"{name} {asked}; seen {seen(value)}"


def _given(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> list[tuple[str, Any]]:
    """The arguments that were given, by their parameters; each of several that one parameter takes."""
    signature = inspect.signature(function)
    out: list[tuple[str, Any]] = []
    for name, value in signature.bind(*args, **named).arguments.items():
        several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        out += [(name, one) for one in value] if several else [(name, value)]
    return out


def _suspects(given: list[tuple[str, Any]], function: Callable[..., Any], trace: TracebackType | None) -> list[tuple[str, Any]]:
    """The arguments that the line of the function names at which it failed; all where that is none."""
    while trace is not None and trace.tb_frame.f_code is not function.__code__:
        trace = trace.tb_next
    if trace is None:
        return given
    code = trace.tb_frame.f_code
    first, last, start, end = next(islice(code.co_positions(), trace.tb_lasti // 2, None))
    if first is None or last is None or start is None or end is None:
        return given
    lines = [linecache.getline(code.co_filename, at) for at in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    named = set(re.findall(r"\w+", "".join(lines)))
    return [(name, value) for name, value in given if name in named] or given
