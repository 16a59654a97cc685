"""Long sizes in an export, each with a symbol of its own: sympy takes minutes for the nested quotients of windows and paddings.

A question about such sizes is answered for the example, and told among the guards with what the symbols stand for. Sizes in the program are inferred
by its own rules.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from foreshape.interop.torch import finite_values, replaced
from foreshape.interop.torch.untyped_torch import torch

LONGEST: Final = 40
"""A size of more parts gets a symbol."""
_FIRST: Final = 10**6
_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_LAYERS: Final = os.path.join(_TORCH, "nn") + os.sep
_SIZES: Final = tuple(
    os.path.join("torch", *path)
    for path in (("__init__.py",), ("fx", "experimental", "symbolic_shapes.py"), ("fx", "experimental", "sym_node.py"), ("fx", "experimental", "recording.py"))
)
"""torch's files for sizes: they ask for others."""
_OURS: Final = (__file__, finite_values.__file__, replaced.__file__)
_NAMES: Final = "foreshape_named_sizes"
"""The attribute of torch's table of sizes with the `NamedSizes`."""


class NamedSizes:
    """The named sizes of one trace.

    Attributes:
        meant: the name of a symbol -> its size, of other symbols.
        guards: the questions about them, as torch notes others.
    """

    def __init__(self) -> None:
        self.meant: dict[str, Any] = {}
        self.guards: list[LongSizeQuestion] = []
        self.symbols: dict[Any, Any] = {}
        self.known: set[Any] = set()


class LongSizeQuestion(NamedTuple):
    """A question about named sizes, in the form of torch's own."""

    expr: Any
    sloc: Any


def named_sizes(shapes: Any) -> NamedSizes:
    """Return the named sizes of torch's table of sizes."""
    found = getattr(shapes, _NAMES, None)
    if found is None:
        found = NamedSizes()
        setattr(shapes, _NAMES, found)
    return found


@functools.lru_cache(1 << 14)
def _is_long(expression: Any) -> bool:
    parts, count = [expression], 0
    while parts:
        count += 1
        if count > LONGEST:
            return True
        parts.extend(parts.pop().args)
    return False


def _symbol(shapes: Any, expression: Any) -> Any:
    """Return the symbol of a long size, with its value in the example and its limits; the size itself if it depends on values."""
    names = named_sizes(shapes)
    found = names.symbols.get(expression)
    if found is not None:
        return found
    of: Any = importlib.import_module("torch.utils._sympy.symbol")
    ranges: Any = importlib.import_module("torch.utils._sympy.value_ranges")
    if not expression.free_symbols <= shapes.backed_var_to_val.keys():
        return expression
    limits = ranges.bound_sympy(expression, shapes.var_to_range)
    kinds = {"positive": True} if limits.lower >= 1 else {"nonnegative": True} if limits.lower >= 0 else {}
    found = of.make_symbol(of.SymT.SIZE, _FIRST + len(names.symbols), integer=True, **kinds)
    shapes.backed_var_to_val[found] = expression.xreplace(shapes.backed_var_to_val)
    shapes.var_to_range[found] = limits
    names.symbols[expression] = found
    names.known.add(found)
    names.meant[found.name] = expression
    return found


def _is_of_torch() -> bool:
    """Tell whether torch's operators ask, and not the network's code or a layer of torch: the program's own rules ask such questions themselves."""
    frame: Any = inspect.currentframe()
    while frame is not None and (frame.f_code.co_filename in _OURS or frame.f_code.co_filename.endswith(_SIZES)):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_TORCH) and not frame.f_code.co_filename.startswith(_LAYERS)


@contextmanager
def long_sizes_named() -> Generator[None]:
    """Give long sizes symbols within the block."""
    nodes: Any = importlib.import_module("torch.fx.experimental.sym_node").SymNode
    table: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    shapes = table.ShapeEnv
    made, answered = nodes.__init__, getattr(shapes, "_evaluate_expr", None)
    if answered is None or not hasattr(shapes, "_get_sloc"):
        yield
        return
    table.uninteresting_files().add(__file__)

    def make(node: Any, expr: Any, shape_env: Any, pytype: Any, *rest: Any, **named: Any) -> None:
        if pytype is int and shape_env is not None and getattr(expr, "args", ()) and _is_long(expr) and replaced.exports_here():
            expr = _symbol(shape_env, expr)
        made(node, expr, shape_env, pytype, *rest, **named)

    def answer(env: Any, expr: Any, *rest: Any, **named: Any) -> Any:
        names: NamedSizes | None = getattr(env, _NAMES, None)
        symbols = expr.free_symbols if names is not None else ()
        if names is None or names.known.isdisjoint(symbols) or not symbols <= env.backed_var_to_val.keys():
            return answered(env, expr, *rest, **named)
        value = expr.xreplace(env.backed_var_to_val)
        if _is_of_torch():
            return value
        relation = expr if value == True else ~expr if value == False else table.sympy.Eq(expr, value)  # noqa: E712  (sympy's own)
        names.guards.append(LongSizeQuestion(relation, env._get_sloc()))
        return value

    with replaced.replaced_for_all(nodes, __init__=make), replaced.replaced(shapes, _evaluate_expr=answer):
        yield
