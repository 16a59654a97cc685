"""The demands on sizes of a trace of torch, as ops: questions of the network's own code, each with its line, and equalities used by torch.

Other questions of torch's tracing (a size not 1, at least 2) are left out: our operators make guards of their own.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple, cast

from foreshape.core.dims import MAX_TEXT, Size, equal, floordiv, less_equal, maximum, minimum, mod, parse, product, substitute, symbol, symbols_of
from foreshape.errors import SchemaError
from foreshape.interop.torch.named_sizes import named_sizes
from foreshape.interop.torch.untyped_torch import torch
from foreshape.language.program import Program, Variable
from foreshape.language.program.call_site import Site, call_site, here, telling_site

_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_LAYERS: Final = os.path.join(_TORCH, "nn") + os.sep
_WORDS: Final = "the network's code took another way for other sizes"
_LIMITS: Final = "the network was exported for these sizes"


class TracedGuard(NamedTuple):
    """A relation of sympy between torch's symbols, and the line of the question; or the limits of a named size: name, least and largest value."""

    relation: Any
    site: Site
    own: bool
    """It is asked by code outside of torch, or by its layers; or torch went on with one size in the place of another."""
    meant: Mapping[str, Any] = {}
    """The name of a symbol for a long size -> the size."""

    def words(self) -> str:
        """Return the relation, between torch's symbols, and its line."""
        at = call_site(self.site)
        return f"{self.relation}" + ("" if at is None else f", asked in {at.source_line() or at.function}    {at.short()}")


def traced_guards(exported: Any) -> list[TracedGuard]:
    """Return the guards of torch's tracing."""
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                traced = size.node.shape_env
                replaced = {one.name for one in traced.replacements}
                names = named_sizes(traced)
                return [_told(guard, replaced) for guard in traced.guards] + [_told(guard, replaced, names.meant) for guard in names.guards]
    return []


def _told(guard: Any, replaced: set[str], meant: Mapping[str, Any] | None = None) -> TracedGuard:
    frame = guard.sloc.framework_loc
    file = getattr(frame, "filename", "")
    own = bool(file) and (not file.startswith(_TORCH) or file.startswith(_LAYERS))
    asked: Any = guard.sloc.maybe_user_loc
    site: Site = cast("Site", asked) if isinstance(asked, tuple) else None
    if file and not file.startswith(_TORCH):
        site = file, int(frame.lineno), frame.name
    if type(guard.expr).__name__ == "Equality":
        own = own or any((side.is_Symbol and side.name in replaced) or type(side).__name__ in ("Mod", "PythonMod") for side in guard.expr.args)
    return TracedGuard(guard.expr, site, own, meant or {})


# --- sympy's sizes as ours

_OPERATIONS: Final[dict[str, Callable[..., Size]]] = {
    "Add": lambda *of: reduce(operator.add, of),
    "Mul": lambda *of: product(of),
    **dict.fromkeys(("Mod", "PythonMod"), mod),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), floordiv),
    "Max": maximum,
    "Min": minimum,
}


_ROUNDED: Final = ("CeilToInt", "FloorToInt", "TruncToInt")


class _Foreign(Exception):
    """Sympy's expression has no form here."""


class _SizesBySymbol(dict[str, Size]):
    """Our sizes for torch's symbols, the ones of long sizes computed when asked for."""

    def __init__(self, symbols: Mapping[str, Size], meant: Mapping[str, Any]) -> None:
        super().__init__(symbols)
        self._meant = meant

    def __missing__(self, name: str) -> Size:
        if name not in self._meant:
            raise _Foreign
        found = self[name] = _size(self._meant[name], self)
        return found


def _size(expression: Any, symbols: Mapping[str, Size]) -> Size:
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return symbols[expression.name]
    name = type(expression).__name__
    if name in _ROUNDED and type(expression.args[0]).__name__ == "IntTrueDiv":  # as math.ceil(height / 2)
        over, under = (_size(one, symbols) for one in expression.args[0].args)
        return floordiv(over + (under - 1 if name == "CeilToInt" else 0), under)
    parts = [_size(one, symbols) for one in expression.args]
    if name in ("Pow", "PowByNatural") and isinstance(parts[1], int) and parts[1] > 0:
        return product([parts[0]] * parts[1])
    if name not in _OPERATIONS:
        raise _Foreign
    return _OPERATIONS[name](*parts)


def size_of_expression(expression: Any, symbols: Mapping[str, Size]) -> Size:
    """Return a size of torch's as ours, by torch's symbol -> our size. Raises `SchemaError` for one without a form here."""
    try:
        return _size(expression, symbols)
    except _Foreign:
        raise SchemaError(f"the size {expression} has no form here") from None


def _demands(relation: Any, symbols: Mapping[str, Size]) -> list[tuple[Size, str, Size]]:
    """Return the demands, as left, relation and right, of a relation of sympy, or of limits."""
    if isinstance(relation, tuple):
        name, least, most = cast("tuple[str, int, int | None]", relation)
        size = symbol(name)
        return [*([(least, "<=", size)] if least else []), *([(size, "<=", most)] if most is not None else [])]
    name = type(relation).__name__
    if name == "And":
        return [one for part in relation.args for one in _demands(part, symbols)]
    if name not in ("Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan"):
        raise _Foreign
    left, right = (_size(side, symbols) for side in relation.args)
    if name == "Equality":
        sympy_left = relation.args[0]
        if right == 0 and type(sympy_left).__name__ in ("Mod", "PythonMod"):
            return [(_size(sympy_left.args[1], symbols), "divides", _size(sympy_left.args[0], symbols))]
        return [(left, "==", right)]
    if name == "Unequality":
        off = left - right
        return [(1, "<=", left if right == 0 else product([off, off]))]  # sizes are not negative
    if name.endswith("GreaterThan"):
        left, right = right, left
    return [(left + 1 if name.startswith("Strict") else left, "<=", right)]


def demands_of(guard: TracedGuard, symbols: Mapping[str, Size]) -> list[tuple[Size, str, Size]] | None:
    """Return the demands of a guard, as left, relation and right; None where it has no form here."""
    try:
        return _demands(guard.relation, _SizesBySymbol(symbols, guard.meant))
    except _Foreign:
        return None


# --- ops


def write_demands(
    program: Program, guards: Sequence[TracedGuard], symbols: Mapping[str, Size], places: Mapping[str, tuple[Variable, int]]
) -> list[TracedGuard]:
    """Append an op for each guard to be kept, unless it holds for all sizes.

    Args:
        program: with the inputs; the ops go to the end of its first block.
        guards: as torch has them.
        symbols: torch's symbol -> our size.
        places: the name of our symbol -> an input and the axis of this size.

    Returns:
        The guards of own code without a form here.
    """
    left_out: list[TracedGuard] = []
    seen: set[tuple[Size, str, Size]] = set()
    for guard in guards:
        if not guard.own:
            continue
        demands = demands_of(guard, symbols)
        if demands is None:
            left_out.append(guard)
            continue
        for demand in demands:
            if demand not in seen and not _holds(*demand):
                seen.add(demand)
                if not _write(program, demand, guard, places):
                    left_out.append(guard)
    return left_out


def _holds(left: Size, relation: str, right: Size) -> bool:
    if relation == "divides":
        return not isinstance(left, int) or right % left == 0
    return (equal if relation == "==" else less_equal)(left, right) is True


def _write(program: Program, demand: tuple[Size, str, Size], guard: TracedGuard, places: Mapping[str, tuple[Variable, int]]) -> bool:
    """Append the op of a demand; False if it is of other sizes than the inputs', or too long to be read again."""
    left, relation, right = demand
    names = sorted(symbols_of(left) | symbols_of(right))
    if any(name not in places for name in names):
        return False
    inputs: list[Variable] = []
    as_read: dict[str, Size] = {}
    for name in names:
        variable, axis = places[name]
        if not any(variable is one for one in inputs):
            inputs.append(variable)
        as_read[name] = symbol(f"x{next(at for at, one in enumerate(inputs) if one is variable)}.{axis}")
    sides = [substitute(side, as_read) for side in (left, right)]
    if any(len(str(side)) > MAX_TEXT or parse(str(side)) != side for side in sides):
        return False
    attrs = {"left": str(sides[0]), "relation": relation, "right": str(sides[1]), "requirement": _LIMITS if isinstance(guard.relation, tuple) else _WORDS}
    with telling_site(guard.site or here()):
        program.global_block.append_op("size_demand", {"X": inputs}, {}, attrs)
    return True
