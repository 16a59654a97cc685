"""The order of the terms of a polynomial, and its exact quotient by another one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foreshape.dims.expression import Monomial

atom_order = attrgetter("order")


def term_order(term: tuple[Monomial, int]) -> tuple[int, list[tuple[str, str]]]:
    """Return the key of a term: longer products come first."""
    return -len(term[0]), [a.order for a in term[0]]


def exact_quotient(terms: Sequence[tuple[Monomial, int]], by: Sequence[tuple[Monomial, int]]) -> dict[Monomial, int] | None:
    """Return the terms of the quotient of two polynomials, if nothing is left over, and it has no more terms than the first; else None."""
    divisor, factor = by[0]
    rest: dict[Monomial, int] = dict(terms)
    out: dict[Monomial, int] = {}
    for _ in range(len(terms)):
        m, c = min(rest.items(), key=term_order)
        left = list(m)
        for atom in divisor:
            if atom not in left:
                return None
            left.remove(atom)
        if c % factor:
            return None
        quotient = tuple(left)
        out[quotient] = c // factor
        for n, k in by:
            at = tuple(sorted(n + quotient, key=atom_order)) if n else quotient
            now = rest.get(at, 0) - out[quotient] * k
            if now:
                rest[at] = now
            else:
                rest.pop(at, None)
        if not rest:
            return out
    return None
