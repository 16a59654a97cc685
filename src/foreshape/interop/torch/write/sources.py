"""Functions and classes of plain torch code as text, with their own needs, for files without imports of this package.

The text is that of the functions in `helpers`, of sequences, and of the order of an introsort. Operators' kernels are never copied: an edit of a kernel
changes no export.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import symtable
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from foreshape.core.values.torch_private import NAMES
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.numbers_code import number_code

_IMPORTED: Final = {
    "torch": "import torch",
    "F": "import torch.nn.functional as F",
    "Tensor": "from torch import Tensor",
    "math": "import math",
    "numpy": "import numpy",
}
_ROOMS: Final = (
    "foreshape.interop.torch.write.helpers.",
    "foreshape.machine.kernels.introsort",
    "foreshape.core.values.offsets",
    "foreshape.core.values.torch_types",
)
"""The modules whose functions may be copied."""


class Sources:
    """The functions and classes of a file, each written once, after its needs.

    Attributes:
        imports: the lines of imports, by the imported name.
        texts: name -> the source.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self._names: dict[Any, str] = {}

    def add(self, thing: Callable[..., Any]) -> str:
        """Write a function or class with its needs, and return its name. Raises `Refused` if it is not among those to be copied."""
        name = self._names.get(thing)
        if name is not None:
            return name
        name, module = thing.__name__, str(getattr(thing, "__module__", ""))
        if not module.startswith(_ROOMS):
            raise Refused(f"it uses {module}.{name}, which is no torch code")
        if name in self.texts or name in self._names.values():
            raise Refused(f"two functions in its file would have the name {name}")
        self._names[thing] = name
        text = textwrap.dedent(inspect.getsource(thing)).rstrip()
        self.texts[name] = self._with_needs(text, vars(inspect.getmodule(thing)), name)
        return name

    def _with_needs(self, text: str, namespace: Mapping[str, Any], name: str) -> str:
        """Write everything used by a text of its module, and return the text with functions of torch in place of names for them."""
        if "private" in free_names(text):
            text = re.sub(r"\bprivate\.(\w+)", lambda match: f"torch.{NAMES[match[1]].path}", text)
            namespace = {**namespace, "torch": None}
        free = free_names(text) - {name}
        for needed in sorted(free):
            if needed in namespace:
                self._add_name(needed, namespace[needed])
        for needed in sorted(all_names(text) - free - {name}):  # of annotations
            value = namespace.get(needed)
            if needed in _IMPORTED or str(getattr(value, "__module__", "")) in ("typing", "collections.abc"):
                self._add_name(needed, value)
        return text

    def _add_name(self, name: str, value: Any) -> None:
        if name in _IMPORTED:
            self.imports[name] = _IMPORTED[name]
        elif isinstance(value, types.ModuleType):
            self.imports[name] = f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
            module = value.__module__
            if module.split(".")[0] == "foreshape":
                self.add(value)
            else:
                self.imports[name] = f"from {module} import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
        elif (constant := _literal(value)) is not None:
            self.texts.setdefault(name, f"{name} = {constant}")
        else:
            self.imports[name] = f"from {value.__module__} import {value.__name__}"


@functools.lru_cache(4096)  # here and below: the sources of helpers, read for each file that has them
def free_names(source: str) -> frozenset[str]:
    """Return the names taken by a source of its module, or of Python: without annotations."""
    bare = ast.unparse(ast.fix_missing_locations(_Bare().visit(ast.parse(source))))
    names: set[str] = set()
    waiting = [symtable.symtable(bare, "source", "exec")]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        top = table.get_type() == "module"
        names.update(s.get_name() for s in table.get_symbols() if s.is_referenced() and (s.is_global() or (top and not s.is_assigned())))
    return frozenset(names)


@functools.lru_cache(4096)
def all_names(source: str) -> frozenset[str]:
    """Return every name of a source, the ones in annotations among them."""
    return frozenset(node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))


class _Bare(ast.NodeTransformer):
    """The removal of annotations."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is not None:
            return ast.Assign([node.target], self.visit(node.value))
        return ast.Expr(ast.Constant(None))


def _literal(value: Any) -> str | None:
    """Return a constant as code; None if it is none."""
    if isinstance(value, float):
        return number_code(value)
    if value is None or isinstance(value, (int, str, bool)):
        return repr(value)
    if isinstance(value, tuple):
        parts = [_literal(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
        return None if None in parts else f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"
    return None
