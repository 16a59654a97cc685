"""The state of a network beside its parameters and buffers: numbers, lists, tables and other objects of Python, before and after its code has run."""

from __future__ import annotations

import ast
import collections
import inspect
import os
import random
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.interop.torch.node_sites import of_torch
from foreshape.interop.torch.untyped_torch import is_of, torch

MODULES: Final = frozenset(torch.nn.Module().__dict__) - {"training"}
"""The attributes of every module of torch."""
_MOST: Final = 100_000
"""So many values are looked at; a network with more keeps its data in itself."""
_CONTAINERS: Final = (list, dict, set, collections.OrderedDict, collections.defaultdict, collections.deque)
_ABSENT: Final = object()
Key = tuple[int, str]


class ChangedValue(NamedTuple):
    """A value changed by a network's code: its holder, a module or a class, its name there, the old value and the new one."""

    holder: Any
    name: str
    old: Any
    new: Any

    @property
    def is_number(self) -> bool:
        return type(self.old) in (int, float) and type(self.new) in (int, float)

    @property
    def is_generator(self) -> bool:
        return isinstance(self.new, GeneratorState)

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.old, torch.Tensor) and isinstance(self.new, torch.Tensor)

    def words(self) -> str:
        """Return the name, and the line of the change."""
        owner = self.holder if isinstance(self.holder, type) else type(self.holder)
        name = f"{owner.__name__}.{self.name}" if type(self.holder) is not type(sys) else f"{self.holder.__name__}.{self.name}"
        seen = f" from {self.old} to {self.new}" if self.is_number else ""
        line = line_of(self.holder, self.name)
        return f"{name}{seen}{f'    {line}' if line else ''}"


class GeneratorState(NamedTuple):
    """The state of a generator of random numbers."""

    numbers: Any


class PythonState:
    """The state of a network at one time."""

    def __init__(self, module: Any) -> None:
        self.parts = list(module.modules())
        self.attributes = [(part, {n: v for n, v in part.__dict__.items() if n not in MODULES}) for part in self.parts]
        self.values: dict[Key, tuple[Any, str, Any]] = {}
        self.containers: list[tuple[Any, Any]] = []
        for holder, name, value in self._roots():
            self._look(holder, name, value)

    def _roots(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield the attributes of modules and of their classes, and the values beside these classes, each with its holder and name."""
        for part in self.parts:
            for name, value in part.__dict__.items():
                if name not in MODULES:
                    yield part, name, value
        classes = dict.fromkeys(base for part in self.parts for base in type(part).__mro__ if not of_torch(_file(base)) and base is not object)
        for one in classes:
            for name, value in vars(one).items():
                if not name.startswith("__") and (value is None or isinstance(value, (*_CONTAINERS, int, float, torch.Tensor))):
                    yield one, name, value
        for space in dict.fromkeys(sys.modules[one.__module__] for one in classes if one.__module__ in sys.modules):
            for name, value in list(vars(space).items()):
                if not name.startswith("__") and (value is None or isinstance(value, (*_CONTAINERS, int, float, torch.Tensor))):
                    yield space, name, value

    def _look(self, holder: Any, name: str, value: Any, depth: int = 0) -> None:
        if len(self.values) >= _MOST or (id(holder), name) in self.values:
            return
        self.values[id(holder), name] = holder, name, drawn(value)
        if depth > 4 or any(value is known for known, _ in self.containers[-8:]):
            return
        if is_of(value, dict) and "__builtins__" in value:
            return  # the names of some code, which may be running
        if is_of(value, _CONTAINERS):
            self.containers.append((value, value.copy()))
            listed: Any = value.items() if is_of(value, Mapping) else enumerate(value)
            for key, one in list(listed):
                self._look(holder, f"{name}[{key!r}]", one, depth + 1)
        elif _is_object(value):
            self.containers.append((value, dict(value.__dict__)))
            for key, one in list(value.__dict__.items()):
                self._look(holder, f"{name}.{key}", one, depth + 1)

    def changes(self, module: Any) -> list[ChangedValue]:
        """Return the values changed since, entries of containers one by one."""
        now, out = PythonState(module), list[ChangedValue]()
        for key in dict.fromkeys((*self.values, *now.values)):
            holder, name, _ = self.values.get(key) or now.values[key]
            old, new = (one.values[key][2] if key in one.values else _ABSENT for one in (self, now))
            if old is not new and not _same(old, new):
                out.append(ChangedValue(holder, name, old, new))
        return out

    def restore(self) -> None:
        """Give modules and classes their attributes again, and containers and objects their contents; values beside classes in place of tensors of a trace."""
        for part, before in self.attributes:
            of: dict[str, Any] = part.__dict__
            for name in [n for n in of if n not in before and n not in MODULES]:
                del of[name]
            of.update(before)
        for value, contents in self.containers:
            if not _differs(value, contents):
                continue
            if _is_object(value):
                value.__dict__.clear()
                value.__dict__.update(contents)
            else:
                value.clear()
                getattr(value, "extend" if isinstance(value, (list, collections.deque)) else "update")(contents)
        for holder, name, value in self.values.values():
            if isinstance(holder, torch.nn.Module) or "[" in name or "." in name:
                continue
            now = getattr(holder, name, value)
            if now is not value and (isinstance(holder, type) or isinstance(now, torch.Tensor)):
                setattr(holder, name, value)


def _differs(value: Any, contents: Any) -> bool:
    now: Any = value.__dict__ if _is_object(value) else value
    if len(now) != len(contents) or is_of(now, set):
        return bool(now != contents)
    pairs: Any = zip(*((one.items() if is_of(one, Mapping) else enumerate(one)) for one in (now, contents)), strict=True)
    return any(a[0] != b[0] or a[1] is not b[1] for a, b in pairs)


def _file(cls: Any) -> str:
    return str(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")


def _is_object(value: Any) -> bool:
    """Tell whether it is an object of a class of the network's own, with attributes."""
    if isinstance(value, (torch.nn.Module, torch.Tensor, type, *_CONTAINERS)) or callable(value) or not hasattr(value, "__dict__"):
        return False
    file = _file(type(value))
    return bool(file) and not of_torch(file) and not file.startswith(os.path.dirname(os.__file__) + os.sep + "collections") and "site-packages" not in file


def drawn(value: Any) -> Any:
    """Return the state of a generator of random numbers; another value itself."""
    if isinstance(value, random.Random):
        return GeneratorState(value.getstate())
    if type(value).__module__.startswith("numpy.random"):
        generator: Any = getattr(value, "bit_generator", getattr(value, "_bit_generator", None))
        return GeneratorState(repr(generator.state))
    return value


def _same(old: Any, new: Any) -> bool:
    """Tell whether values are equal numbers, texts, or tuples of them."""
    if type(old) is not type(new) or not is_of(old, (int, float, str, bytes, tuple)):
        return False
    if is_of(old, tuple):
        pairs: Any = zip(old, new, strict=False)
        return len(old) == len(new) and all(a is b or _same(a, b) for a, b in pairs)
    return bool(old == new) or old != old


def line_of(holder: Any, name: str) -> str:
    """Return the line of a change of an attribute, as ``net.py:12``, in the methods of its class; empty if none is known."""
    first = name.split("[")[0].split(".")[0]
    classes = holder.__mro__ if isinstance(holder, type) else type(holder).__mro__ if isinstance(holder, torch.nn.Module) else ()
    for cls in classes:
        if of_torch(_file(cls)) or cls is object:
            continue
        try:
            lines, start = inspect.getsourcelines(cls)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):  # no source, as of code that was typed in
            continue
        found = [line for _, line in sorted(_writes(tree, first))]
        if found:
            return f"{os.path.basename(_file(cls))}:{start + found[0] - 1}"
    return ""


def _writes(tree: ast.AST, name: str) -> Iterator[tuple[int, int]]:
    """Yield the lines with changes of an attribute, the surer ones with the smaller number before."""
    methods = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    for method in methods:
        late = method.name == "__init__"
        for node in ast.walk(method):
            targets: Sequence[Any] = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []
            if any(_names(target, name) for target in targets):
                yield (2 if late else 0), getattr(node, "lineno", 0)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _names(node.func.value, name):
                yield (3 if late else 1), node.lineno


def _names(node: Any, name: str) -> bool:
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(_names(one, name) for one in node.elts)
    while isinstance(node, ast.Attribute):
        if node.attr == name:
            return True
        node = node.value
    return False
