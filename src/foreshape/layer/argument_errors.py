"""The border of a room: the error handling of every function of `foreshape.layer` and of every constructor in it and in `foreshape.optimizer`.

One wrapper around each public function and constructor checks the arguments of failed calls. `close` puts it there at the door of the room:
within the room functions call each other without it.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from types import FunctionType, ModuleType, TracebackType
from typing import Any, Final, NamedTuple

from foreshape.core.hints import no_such_argument
from foreshape.errors import DescriptionError, ForeshapeError, SchemaError
from foreshape.language.operator.attributes import instead_of_variable
from foreshape.language.program.call_site import here, located
from foreshape.language.program.rollback import counts, take_back
from foreshape.layer.requirements import documented, fits, parameters_of, quick_looks, seen, signature_of, takes_variable, words

_OURS: Final = frozenset(("foreshape", "numpy")) | sys.stdlib_module_names
_OPERANDS: Final = frozenset(("x", "xs", "ids", "logits"))
"""First parameters named ``input`` in PaddlePaddle's functions."""
_closed: set[type] = set()
"""The classes with the border around their constructor: several may inherit one."""


def close(room: dict[str, Any], names: Iterable[str], *, first: bool = False) -> None:
    """Put the border around the functions and the constructors of these names.

    Args:
        room: the users' module, by its ``globals()``.
        names: names of anything else are left as they are.
        first: compare the arguments of functions with their annotations first, as those of constructors: their results are used much later.
    """
    done: dict[FunctionType, Callable[..., Any]] = {}  # a function may have two names
    for name in names:
        function = room[name]
        if isinstance(function, FunctionType):
            if function not in done:
                done[function] = bordered(function, first)
                done[function].__module__ = room["__name__"]  # where it is found, by pickle too
            room[name] = done[function]
        elif isinstance(function, type):
            owner = next(c for c in function.__mro__ if "__init__" in vars(c))
            begin = owner.__init__
            if isinstance(begin, FunctionType) and owner not in _closed:
                _closed.add(owner)
                owner.__init__ = _constructor(begin)


def hide_files(room: dict[str, Any], names: Collection[str]) -> None:
    """Hide the room's own files from its users, so that ``layer.attention`` is reported as a missing name.

    Imports find them all the same.

    Args:
        room: the users' module, by its ``globals()``.
        names: the names to keep.
    """
    for name in [n for n, value in room.items() if isinstance(value, ModuleType) and n not in names]:
        del room[name]


def bordered(function: FunctionType, first: bool = False) -> Callable[..., Any]:
    """Return a describing function with this package's errors and the user's line, whose failed calls leave nothing half described.

    Its first parameter, if an operand, may be given as ``input``, too, as in PaddlePaddle's programs. With ``first`` its arguments are compared with its
    annotations before it is called.

    Errors of the user's own functions pass as they are, and so does Python's word on missing or unknown arguments.
    """
    function = inspect.unwrap(function)  # as `tells_line` does
    code = function.__code__
    operand = code.co_varnames[0] if code.co_argcount and code.co_varnames[0] in _OPERANDS else ""

    @functools.wraps(function)
    def described(*args: Any, **keywords: Any) -> Any:
        if "input" in keywords and operand and operand not in keywords:
            keywords[operand] = keywords.pop("input")
        previous_counts = counts()
        try:
            if first and (wrong := _Called(function.__name__, function, function).misfits(args, keywords)):
                raise SchemaError(_Called(function.__name__, function, function).words(wrong))
            return function(*args, **keywords)
        except BaseException as error:
            take_back(previous_counts)
            if isinstance(error, DescriptionError):
                with_line = located(error, here())
                if with_line is error:
                    raise
                raise with_line from error.__cause__
            if not isinstance(error, Exception) or isinstance(error, (ForeshapeError, Warning, MemoryError)) or _is_not_ours(error):
                _hint(error, function.__name__, function)
                raise
            raise located(SchemaError(_Called(function.__name__, function, function).blame(args, keywords, error)), here()) from error

    return described


def _constructor(begin: FunctionType) -> Callable[..., None]:
    """Return a constructor that first compares its arguments with its annotations, since the object is used much later."""

    @functools.wraps(begin)
    def begun(self: Any, *args: Any, **keywords: Any) -> None:
        cls: type[object] = self.__class__
        if cls.__init__ is begun and not _are_plain(begin, args, keywords):  # a class's arguments for its base are its own affair
            call = _Called(cls.__name__, begin, cls, hidden=1)
            wrong = call.misfits((self, *args), keywords)
            if wrong:
                raise located(SchemaError(call.words(wrong)), here())
        try:
            begin(self, *args, **keywords)
        except DescriptionError as error:
            with_line = located(error, here())
            if with_line is error:
                raise
            raise with_line from error.__cause__
        except Exception as error:
            if isinstance(error, (ForeshapeError, Warning, MemoryError)) or _is_not_ours(error):
                _hint(error, cls.__name__, begin)
                raise
            raise located(SchemaError(_Called(cls.__name__, begin, cls, hidden=1).blame((self, *args), keywords, error)), here()) from error

    return begun


def _are_plain(begin: FunctionType, args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Tell whether the class of each argument says already its fit: the only cost of most calls."""
    in_order, by_name = quick_looks(begin)
    for quick, value in zip(in_order[1:], args, strict=False):  # how many there may be is for Python to tell
        if value.__class__ not in quick.classes and not isinstance(value, quick.bases):
            return False
    for name, value in keywords.items():
        quick = by_name.get(name)
        if quick is None or (value.__class__ not in quick.classes and not isinstance(value, quick.bases)):
            return False
    return True


def _hint(error: BaseException, called: str, function: Callable[..., Any]) -> None:
    """Raise Python's error on an unknown keyword with the nearest parameter."""
    if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
        hinted = no_such_argument(error, called, signature_of(function).parameters)
        if hinted is not error:
            raise hinted from None


def _is_not_ours(error: Exception) -> bool:
    """Tell whether an error was raised in a function of the user's, or because the call does not fit the signature."""
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None  # without the wrapper
    if trace is None:
        return True
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _OURS:
            return True
        trace = trace.tb_next
    return False


class _Called(NamedTuple):
    """A callable, to be named in an error."""

    name: str
    function: Callable[..., Any]
    documented: Callable[..., Any]
    """The function or class whose docstring explains the arguments."""
    hidden: int = 0
    """So many of the first parameters are no user's."""

    def misfits(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the arguments against their annotations; none if the call does not fit the signature, as Python tells."""
        try:
            arguments = self.arguments(args, keywords)
        except TypeError:
            return []
        annotations = parameters_of(self.function)
        return [(name, value) for name, value in arguments if not fits(value, annotations[name])]

    def arguments(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the given arguments, by their parameters; each of several for one parameter."""
        signature = signature_of(self.function)
        out: list[tuple[str, Any]] = []
        for name, value in list(signature.bind(*args, **keywords).arguments.items())[self.hidden :]:
            several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            out += [(name, element) for element in value] if several else [(name, value)]
        return out

    def blame(self, args: tuple[Any, ...], keywords: dict[str, Any], error: Exception) -> str:
        """Describe the requirements and values of parameters: of misfits; without any, of parameters in the failing line."""
        wrong = self.misfits(args, keywords)
        if wrong:
            return self.words(wrong)
        because = f" cannot be described with these arguments: {type(error).__name__}: {error}"
        return self.words(_suspects(self.arguments(args, keywords), self.function, error.__traceback__), because)

    def words(self, wrong: list[tuple[str, Any]], because: str = "") -> str:
        annotations, descriptions = parameters_of(self.function), documented(self.documented)
        parts = [_requirement(name, value, annotations[name], descriptions.get(name)) for name, value in wrong]
        if not because and len(parts) == 1:
            return f"{self.name}: {parts[0]}"
        return f"{self.name}:{because}" + "".join(f"\n    {part}" for part in parts)


def _requirement(name: str, value: object, annotation: Any, description: str | None) -> str:
    requirement = (
        f"must be {words(annotation)}" + (f" ({description})" if description else "")
        if annotation is not Any
        else f"must be: {description}"
        if description
        else "is wrong"
    )
    return f"{name} {requirement}; seen {seen(value)}{instead_of_variable(value) if takes_variable(annotation) else ''}"


def _suspects(arguments: list[tuple[str, Any]], function: Callable[..., Any], trace: TracebackType | None) -> list[tuple[str, Any]]:
    """Return the arguments named in the function's failing line; all if there are none."""
    while trace is not None and trace.tb_frame.f_code is not function.__code__:
        trace = trace.tb_next
    if trace is None:
        return arguments
    code = trace.tb_frame.f_code
    first, last, start, end = next(islice(code.co_positions(), trace.tb_lasti // 2, None))
    if first is None or last is None or start is None or end is None:
        return arguments
    lines = [linecache.getline(code.co_filename, line) for line in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    identifiers = set(re.findall(r"\w+", "".join(lines)))
    return [(name, value) for name, value in arguments if name in identifiers] or arguments
