"""The order of the terms of a polynomial, and its exact quotient by another one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foreshape.core.dims.expression import Monomial

atom_order = attrgetter("order")


def term_order(term: tuple[Monomial, int]) -> tuple[int, list[tuple[str, str]]]:
    """Return the key of a term: longer products come first."""
    return -len(term[0]), [a.order for a in term[0]]


def exact_quotient(terms: Sequence[tuple[Monomial, int]], divisors: Sequence[tuple[Monomial, int]]) -> dict[Monomial, int] | None:
    """Return the terms of the quotient of two polynomials, if nothing is left over, and it has no more terms than the first; else None."""
    divisor, factor = divisors[0]
    remaining: dict[Monomial, int] = dict(terms)
    out: dict[Monomial, int] = {}
    for _ in range(len(terms)):
        m, c = min(remaining.items(), key=term_order)
        left = list(m)
        for atom in divisor:
            if atom not in left:
                return None
            left.remove(atom)
        if c % factor:
            return None
        quotient = tuple(left)
        out[quotient] = c // factor
        for n, k in divisors:
            monomial = tuple(sorted(n + quotient, key=atom_order)) if n else quotient
            coefficient = remaining.get(monomial, 0) - out[quotient] * k
            if coefficient:
                remaining[monomial] = coefficient
            else:
                remaining.pop(monomial, None)
        if not remaining:
            return out
    return None
