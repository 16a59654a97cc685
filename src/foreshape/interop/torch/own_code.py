"""The code of a network and of its packages, read with other names of Python for the time of an export.

Its functions keep their namespaces: other threads find `math`, `len` and all else there as they are. Their code alone is another. It asks for a hidden name
of `builtins`, whose value differs from Python's own for the sizes of a trace alone.
"""

from __future__ import annotations

import builtins
import collections
import dis
import functools
import gc
import sys
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

from foreshape.interop.torch.untyped_torch import torch

Names = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Returns stand-ins for names in the code of a namespace."""
_HIDDEN: Final = " in an export"
"""Behind a name of Python: the name of its stand-in."""
_WRAPPERS: Final = (staticmethod, classmethod, property, functools.partial, functools.cached_property, type(functools.cache(abs)), CellType, MethodType)
_CONTAINERS: Final = (dict, list, tuple, set, collections.OrderedDict)
_BUILTINS: Final[dict[str, Any]] = builtins.__dict__
_LARGEST: Final = 10_000
"""Containers of more values hold no functions."""


def _spaces(module: Any) -> dict[int, dict[str, Any]]:
    """Return the namespaces of the code of a network, of its parts, and of their packages, by their identities."""
    spaces: list[dict[str, Any]] = [function.__globals__ for part in module.modules() if hasattr(function := part.forward, "__globals__")]
    packages = {type(part).__module__.partition(".")[0] for part in module.modules()} - {"torch", __name__.partition(".")[0]}
    spaces += [vars(other) for name, other in list(sys.modules.items()) if name.partition(".")[0] in packages and type(other) is ModuleType]
    return {id(space): space for space in spaces}


def _functions(module: Any, spaces: Mapping[int, Any]) -> list[FunctionType]:
    """Return the functions of these namespaces: of their classes, the network's, their wrappers, closures, objects and containers."""
    classes = {cls for part in module.modules() for cls in type(part).__mro__}
    pending: list[Any] = [*spaces.values(), *module.modules(), *classes]
    seen = {id(value) for value in pending}
    functions: list[FunctionType] = []

    known: dict[type, bool] = dict.fromkeys((type(None), torch.Tensor, torch.nn.Parameter), False)

    def is_own(cls: type) -> bool:
        answer = known.get(cls)
        if answer is None:
            answer = known[cls] = id(getattr(sys.modules.get(str(cls.__module__)), "__dict__", None)) in spaces
        return answer

    while pending:
        value = pending.pop()
        for part in gc.get_referents(value):
            if id(part) in seen or not gc.is_tracked(part):
                continue
            kind = cast("Any", type(part))
            if kind is FunctionType:
                if id(part.__globals__) in spaces:
                    functions.append(part)
                entered = part.__closure__ is not None or bool(part.__dict__) or part.__defaults__ is not None
            elif kind in _CONTAINERS:
                entered = len(part) <= _LARGEST and not (kind is dict and "__builtins__" in part)
            else:
                entered = kind in _WRAPPERS or is_own(part if issubclass(kind, type) else kind)
            if entered:
                seen.add(id(part))
                pending.append(part)
    return functions


# --- code that asks for stand-ins


def _is_in(names: frozenset[str], code: CodeType) -> bool:
    """Tell whether a code, or one within it, mentions one of the names."""
    return not names.isdisjoint(code.co_names) or any(_is_in(names, part) for part in code.co_consts if isinstance(part, CodeType))


def _asking_hidden(code: CodeType, names: frozenset[str]) -> CodeType:
    """Return a code with other names in the place of some, in the codes within it too."""
    consts = tuple([_asking_hidden(part, names) if isinstance(part, CodeType) and _is_in(names, part) else part for part in code.co_consts])
    table, text = list(code.co_names), bytearray(code.co_code)
    for name in names.intersection(table):
        place = table.index(name)
        if len(table) < _PLACES:
            for offset in range(0, len(text), 2):
                if text[offset] == _LOAD_GLOBAL and text[offset + 1] >> 1 == place:
                    text[offset + 1] = len(table) << 1 | text[offset + 1] & 1
            table.append(name + _HIDDEN)
        elif all(step.opcode == _LOAD_GLOBAL for step in dis.get_instructions(code) if step.opcode in dis.hasname and step.argval == name):
            table[place] = name + _HIDDEN
    return code.replace(co_consts=consts, co_names=tuple(table), co_code=bytes(text))


_LOAD_GLOBAL: Final = dis.opmap["LOAD_GLOBAL"]
_PLACES: Final = 128
"""So many names have places in one byte of an instruction, beside a bit of its own."""
_KNOWN: Final[dict[tuple[int, frozenset[str]], tuple[weakref.ref[CodeType], CodeType | None]]] = {}
"""The identity of a code and names -> the code, and the one with others in their place, if it mentions them."""


def _changed(code: CodeType, names: frozenset[str]) -> CodeType | None:
    """Return the same as `_asking_hidden`, made once for a code; None without a mention of the names."""
    key = id(code), names
    known = _KNOWN.get(key)
    if known is not None and known[0]() is code:
        return known[1]
    changed = _asking_hidden(code, names) if _is_in(names, code) else None
    _KNOWN[key] = weakref.ref(code, lambda _: _KNOWN.pop(key, None)), changed
    return changed


@contextmanager
def own_code(module: Any, names: Names) -> Generator[None]:
    """Have the code of a network and of its packages ask for stand-ins of names within the block."""
    if isinstance(module, torch.jit.ScriptModule):
        yield  # refused by torch
        return
    spaces = _spaces(module)
    stand_ins = {place: names(space) for place, space in spaces.items()}
    for replaced in stand_ins.values():
        _BUILTINS.update({name + _HIDDEN: value for name, value in replaced.items()})
    asked = {place: frozenset(replaced) for place, replaced in stand_ins.items()}
    before: list[tuple[FunctionType, CodeType, CodeType]] = []
    try:
        for function in _functions(module, spaces):
            code, space_names = function.__code__, asked[id(function.__globals__)]
            changed = _changed(code, space_names)
            if changed is not None and function.__builtins__ is _BUILTINS:
                before.append((function, code, changed))
                function.__code__ = changed
        yield
    finally:
        for function, code, changed in before:
            if function.__code__ is changed:
                function.__code__ = code
