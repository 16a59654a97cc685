"""The tanh approximation of GELU written out, recognized in torch's graph.

Written out, it keeps five values for its gradient, and as one operator its operand alone. The nodes are read as polynomials in the operand x and in a tanh T,
to find each order of the factors of x / 2 + x T / 2, with T of sqrt(2 / pi) (x + 0.044715 x^3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

Polynomial: TypeAlias = dict[tuple[int, int], float]
"""The powers of x and of T -> their factor."""

_CLOSE: Final = 1e-6
"""The part by which a factor may differ: networks write sqrt(2 / pi) in eight digits."""
_MOST: Final = 24
"""The nodes of one approximation, at most."""
_SCALE: Final = math.sqrt(2 / math.pi)
_RESULT: Final[Polynomial] = {(1, 0): 0.5, (1, 1): 0.5}
_WITHIN: Final[Polynomial] = {(1, 0): _SCALE, (3, 0): _SCALE * 0.044715}


def gelu_operand(node: Any) -> Any | None:
    """Return the operand of a product equal to a GELU in its tanh approximation, in a graph that changes nothing in place; None for other products."""
    nodes = _before(node)
    tanhs = [n for n in nodes if _name(n) == "tanh"]
    if len(tanhs) != 1:
        return None
    within = _before(tanhs[0].args[0])
    for x in within:
        if _is(_read(within[0], within, {x: {(1, 0): 1.0}}), _WITHIN) and _is(_read(node, nodes, {x: {(1, 0): 1.0}, tanhs[0]: {(0, 1): 1.0}}), _RESULT):
            return x if getattr(x.meta.get("val"), "dtype", None) == node.meta["val"].dtype else None
    return None


def _name(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else schema.name.removeprefix("aten::")


def _before(node: Any) -> list[Any]:
    """Return a node and its operands through arithmetic, the nearest ones first, and no more than one approximation has."""
    found, at = [node], 0
    while at < len(found) < _MOST:
        one = found[at]
        at += 1
        if _name(one) in _ARITHMETIC:
            found += dict.fromkeys(a for a in one.args if hasattr(a, "op") and a not in found)
    return found


_ARITHMETIC: Final = ("add", "mul", "div", "pow")


def _read(node: Any, within: Sequence[Any], known: dict[Any, Polynomial | None]) -> Polynomial | None:
    """Return one of some nodes, or a number, as a polynomial of the known ones; None if it is none. Each node is read once: operands may be shared."""
    if isinstance(node, int | float):
        return {(0, 0): float(node)}
    if node not in known:
        known[node] = _combined(node, within, known) if node in within else None
    return known[node]


def _combined(node: Any, within: Sequence[Any], known: dict[Any, Polynomial | None]) -> Polynomial | None:
    name = _name(node)
    if name not in _ARITHMETIC or len(node.args) != 2 or node.kwargs:
        return None
    a, b = (_read(one, within, known) for one in node.args)
    if a is None or b is None:
        return None
    if name == "add":
        return {power: a.get(power, 0.0) + b.get(power, 0.0) for power in {*a, *b}}
    if name == "mul":
        return _product(a, b)
    number = b.get((0, 0), 0.0)
    if set(b) != {(0, 0)} or number == 0.0:
        return None
    if name == "div":
        return {power: factor / number for power, factor in a.items()}
    return None if number not in (2, 3) else _product(a, a) if number == 2 else _product(a, _product(a, a) or {})


def _product(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Return a product of two polynomials; None where a power is above the highest of the approximation."""
    out: Polynomial = {}
    for (i, j), one in a.items():
        for (k, n), other in b.items():
            if i + k > 3 or j + n > 1:
                return None
            out[i + k, j + n] = out.get((i + k, j + n), 0.0) + one * other
    return out


def _is(found: Polynomial | None, wanted: Polynomial) -> bool:
    return found is not None and found.keys() == wanted.keys() and all(math.isclose(found[power], factor, rel_tol=_CLOSE) for power, factor in wanted.items())
