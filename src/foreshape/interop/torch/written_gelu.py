"""The tanh approximation of GELU written out, recognized in torch's graph.

Written out, it keeps five values for its gradient, and as one operator its operand alone. The nodes are read as polynomials in the operand x and in a tanh T,
to find each order of the factors of x / 2 + x T / 2, with T of sqrt(2 / pi) (x + 0.044715 x^3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from foreshape.interop.torch.writes import written_argument

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
    """Return the operand of a product equal to a GELU in its tanh approximation; None for other products."""
    tanhs = [n for n in _before(node) if _name(n) == "tanh"]
    if len(tanhs) != 1 or any(n.op == "call_function" and written_argument(n.target) is not None for n in node.graph.nodes):
        return None
    for x in _before(tanhs[0].args[0]):
        if _is(_read(tanhs[0].args[0], x, None), _WITHIN) and _is(_read(node, x, tanhs[0]), _RESULT):
            return x if getattr(x.meta.get("val"), "dtype", None) == node.meta["val"].dtype else None
    return None


def _name(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else schema.name.removeprefix("aten::")


def _before(node: Any) -> Iterator[Any]:
    """Yield a node and its operands through arithmetic, the nearest ones first, and at most some two dozen of them."""
    seen, left = {node}, [node]
    while left and len(seen) <= _MOST:
        one = left.pop(0)
        yield one
        if _name(one) in _ARITHMETIC:
            new = [a for a in one.args if hasattr(a, "op") and a not in seen]
            seen.update(new)
            left += dict.fromkeys(new)


_ARITHMETIC: Final = ("add", "mul", "div", "pow")


def _read(node: Any, x: Any, tanh: Any) -> Polynomial | None:
    """Return a node, or a number, as a polynomial in x and in a tanh; None if it is none."""
    if node is x:
        return {(1, 0): 1.0}
    if tanh is not None and node is tanh:
        return {(0, 1): 1.0}
    if isinstance(node, int | float):
        return {(0, 0): float(node)}
    name = _name(node) if hasattr(node, "op") else ""
    if name not in _ARITHMETIC or len(node.args) != 2 or node.kwargs:
        return None
    a, b = (_read(one, x, tanh) for one in node.args)
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
