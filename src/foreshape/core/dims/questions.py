"""Questions about sizes: their bounds, and their equality."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foreshape.core.dims.expression import Atom, Monomial, Size

SIGNED = "signed_size_"
"""The prefix of symbols in place of possibly negative expressions."""


def equal(a: Size, b: Size) -> bool | None:
    """Return ``a == b``: True, False, or None if it depends on the symbols."""
    if a is b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    difference = _difference(a, b)
    low, high = bounds_of_terms(difference)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    if low == 0 == high:
        return True
    divisor = 0
    constant = 0
    for m, c in difference:
        if m:
            divisor = gcd(divisor, c)
        else:
            constant = c
    return False if divisor and constant % divisor else None


def less_equal(a: Size, b: Size) -> bool | None:
    """Return ``a <= b``: True, False, or None if it depends on the symbols."""
    low, high = bounds_of_terms(_difference(b, a))
    if low is not None and low >= 0:
        return True
    return False if high is not None and high < 0 else None


def broadcasts(a: Size, b: Size) -> bool | None:
    """Return True if ``a`` and ``b`` are equal or one of them is 1, False if not, or None if it depends on the symbols."""
    answers = (equal(a, b), equal(a, 1), equal(b, 1))
    return True if True in answers else None if None in answers else False


def _difference(a: Size, b: Size) -> list[tuple[Monomial, int]]:
    """Return the terms of ``a - b``, without making a size of them: they only answer a question."""
    out: dict[Monomial, int] = {(): a} if isinstance(a, int) else dict(a.terms)
    for m, c in (((), b),) if isinstance(b, int) else b.terms:
        out[m] = out.get(m, 0) - c
    return [(m, c) for m, c in out.items() if c]


def bounds(a: Size) -> tuple[int | None, int | None]:
    """Return the least and the greatest value of ``a``; None for no bound, or none found."""
    if isinstance(a, int):
        return a, a
    try:
        return a.found_bounds
    except AttributeError:
        a.found_bounds = limits = bounds_of_terms(a.terms)
        return limits


def bounds_of_terms(terms: Iterable[tuple[Monomial, int]]) -> tuple[int | None, int | None]:
    """Return the `bounds` of a polynomial, found term by term."""
    low: int | None = 0
    high: int | None = 0
    for m, c in terms:
        l, h = _monomial_bounds(m)
        if c < 0:
            l, h = h, l
        low = None if low is None or l is None else low + c * l
        high = None if high is None or h is None else high + c * h
    return low, high


def _monomial_bounds(m: Monomial) -> tuple[int | None, int | None]:
    low = 1
    high: int | None = 1
    for atom in m:
        l, h = _atom_bounds(atom)
        if l is None or l < 0:
            return None, None
        low, high = low * l, None if high is None or h is None else high * h
    return low, high


def _atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    if not atom.op:
        return (None if atom.name.startswith(SIGNED) else 0), None
    limits = [bounds(x) for x in atom.args]
    if atom.op == "//":
        (low, high), (bl, bh) = limits
        if bl is not None and bl >= 1 and bl == bh:
            return None if low is None else low // bl, None if high is None else high // bl
        if low is not None and low >= 0 and bl is not None and bl >= 0:
            return 0 if bh is None else low // max(bh, 1), None if high is None else high // max(bl, 1)
        return None, None
    if atom.op == "%":
        (low, high), (bl, bh) = limits
        if bl is None or bl < 0:
            return None, None
        bound = None if bh is None else max(bh - 1, 0)
        if low is not None and low >= 0 and high is not None:
            bound = high if bound is None else min(high, bound)
        return 0, bound
    lows = [l for l, _ in limits]
    highs = [h for _, h in limits]
    if atom.op == "broadcast":  # one of them
        return (
            min(l for l in lows if l is not None) if None not in lows else None,
            max(h for h in highs if h is not None) if None not in highs else None,
        )
    pick = min if atom.op == "min" else max
    known_lows = [x for x in lows if x is not None]
    known_highs = [x for x in highs if x is not None]
    if atom.op == "min":
        return (pick(known_lows) if len(known_lows) == len(lows) else None, pick(known_highs) if known_highs else None)
    return (pick(known_lows) if known_lows else None, pick(known_highs) if len(known_highs) == len(highs) else None)
