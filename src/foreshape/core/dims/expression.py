"""The normal form of sizes, and arithmetic over it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from operator import attrgetter
from typing import TypeAlias
from weakref import WeakValueDictionary

from foreshape.core.dims.questions import SIGNED, bounds, bounds_of_terms, equal, less_equal
from foreshape.core.dims.text import CALLED, symbol_text, term_text, text_of_terms
from foreshape.errors import ShapeError

Size: TypeAlias = "int | Dim"
Monomial: TypeAlias = "tuple[Atom, ...]"

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
MAX_TERMS = 48
"""An expression with more terms than this is replaced by a symbol of its own (see `Atom.stands_for`)."""
MAX_DEPTH = 12
"""Divisions, minima and maxima nested deeper than this are replaced by a symbol of their own."""
MAX_LENGTH = 3000
"""An expression whose factors are written with more characters than this is replaced by a symbol of its own."""
MAX_NAME = 512
"""The longest name of a symbol, in characters."""


class Atom:
    """A factor in a polynomial: a symbol (``op == ""``), or ``op`` in ``// % min max broadcast`` applied to ``args``."""

    __slots__ = ("__weakref__", "args", "depth", "name", "op", "order", "stands_for", "text")

    def __init__(self, op: str, name: str, args: tuple[Size, ...]) -> None:
        self.op = op
        self.name = name
        """A symbol's own name; the text of other atoms."""
        self.args = args
        self.order = (name, op)
        """Orders the factors of a term; no two atoms have the same."""
        self.depth = 0 if not op else 1 + max(_depth(a) for a in args)
        self.stands_for: str | None = None
        """For a symbol in place of an expression past the limits: the beginning of the expression."""
        self.text = symbol_text(name) if not op else name if op in CALLED or (name[-1] == ")" and isinstance(args[-1], int)) else f"({name})"
        """Its text as a factor."""

    def __repr__(self) -> str:
        return self.text


class Dim:
    """A symbolic size. Made by `symbol` and by arithmetic; equal expressions are the same object."""

    __slots__ = ("__weakref__", "_text", "found_bounds", "found_symbols", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    """In order, a constant last."""

    def __new__(cls) -> Dim:
        raise TypeError("make a Dim with symbol(name) and arithmetic")

    @property
    def text(self) -> str:
        """Return its text, made late: most sizes are on the way to another one, and need none."""
        try:
            return self._text
        except AttributeError:
            self._text = words = text_of_terms(self.terms)
            return words

    def __repr__(self) -> str:
        return self.text

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: object) -> Dim:
        return self

    def __int__(self) -> int:
        raise ShapeError(f"the size {self.text} is not a number before values are fed")

    __index__ = __int__

    def __bool__(self) -> bool:
        answer = equal(self, 0)
        if answer is None:
            raise ShapeError(f"whether {self.text} is zero is not known before values are fed")
        return not answer

    def __add__(self, other: Size) -> Size:
        if isinstance(other, int):
            return self if other == 0 else _plus_number(self.terms, other)
        return _sum((self.terms, other.terms)) if isinstance(other, Dim) else NotImplemented  # pyright: ignore[reportUnnecessaryIsInstance]

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return _sum((self.terms, [(m, -c) for m, c in other.terms])) if isinstance(other, Dim) else self + -other

    def __rsub__(self, other: int) -> Size:
        return _plus_number(tuple([(m, -c) for m, c in self.terms]), other)

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, int):
            if other == 1:
                return self
            return 0 if other == 0 else _of_ordered(tuple([(m, c * other) for m, c in self.terms]))
        if not isinstance(other, Dim):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        out: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                m = tuple(sorted(m1 + m2, key=atom_order))
                out[m] = out.get(m, 0) + c1 * c2
        return of_terms(out)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return floordiv(other, self)

    def __mod__(self, other: Size) -> Size:
        return mod(self, other)

    def __rmod__(self, other: int) -> Size:
        return mod(other, self)


_atoms: WeakValueDictionary[tuple[str, str, tuple[Size, ...]], Atom] = WeakValueDictionary()
_dims: WeakValueDictionary[tuple[tuple[Monomial, int], ...], Dim] = WeakValueDictionary()
_symbols: WeakValueDictionary[str, Dim] = WeakValueDictionary()


def symbol(name: str) -> Dim:
    """Return the size called ``name``; the same object each time. Raise `ShapeError`: the name is empty or longer than 512 characters."""
    known_size = _symbols.get(name)
    if known_size is not None:
        return known_size
    if not name or len(name) > MAX_NAME:
        raise ShapeError(f"a symbol needs a name of 1 to {MAX_NAME} characters, not {len(name)}")
    size = of_atom(_atom("", name, ()))
    return _symbols.setdefault(name, size)


def symbol_after(name: str) -> Dim:
    """Return the size named after a variable or its axis, whose name may be longer than a symbol's."""
    return symbol(name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 40]}~{_digest((name,))}")


def is_symbol(dim: Size) -> bool:
    """Return True if ``dim`` is one bare symbol."""
    return symbol_name(dim) is not None


def symbol_name(dim: Size) -> str | None:
    """Return the name of ``dim`` if it is one bare symbol, else None."""
    atom = only_atom(dim)
    return atom.name if atom is not None and not atom.op else None


def only_atom(size: Size) -> Atom | None:
    """Return the atom of ``size`` if it is just one, else None."""
    if isinstance(size, int) or len(size.terms) != 1:
        return None
    (m, c) = size.terms[0]
    return m[0] if c == 1 and len(m) == 1 else None


def floordiv(a: Size, b: Size) -> Size:
    """Return ``a // b``, rounded down. Raise `ShapeError` if ``b`` is zero."""
    if isinstance(b, int):
        if b == 0:
            raise ShapeError(f"division by zero: {a} // 0")
        if isinstance(a, int):
            return checked(a // b)
        if b == 1:
            return a
        if b < 0:
            return floordiv(-a, -b)
        multiples: dict[Monomial, int] = {}
        remaining: dict[Monomial, int] = {}
        for m, c in a.terms:
            q, r = divmod(c, b)
            if m and r:  # only whole multiples of a term may leave the division
                remaining[m] = c
            else:
                if q:
                    multiples[m] = q
                if r:
                    remaining[m] = r
        left = of_terms(remaining)
        low, high = bounds(left)
        if low is not None and high is not None and low // b == high // b:
            return of_terms(multiples) + low // b
        return of_terms(multiples) + _divided_rest(remaining, left, b)
    if isinstance(a, int) and a == 0:
        return 0
    if a is b:
        return 1
    exact = _divide_exactly(a, b)
    return exact if exact is not None else compound("//", (a, b))


def _divided_rest(remaining: Mapping[Monomial, int], left: Size, b: int) -> Size:
    """Return ``left // b``. ``left`` is the sum of ``remaining``, no whole multiple of ``b`` can leave the division, and ``b`` is above 1."""
    common = gcd(b, *[c for m, c in remaining.items() if m])
    if common > 1:  # (4*x + 3) // 6 == (2*x + 1) // 3
        return floordiv(of_terms({m: c // common for m, c in remaining.items()}), b // common)
    constant = remaining.get((), 0)
    if len(remaining) == (2 if constant else 1):
        (m, c) = next(iter(remaining.items())) if not constant else next(t for t in remaining.items() if t[0])
        if c == 1 and len(m) == 1 and m[0].op == "//" and isinstance(divisor := m[0].args[1], int) and divisor * b <= INT64_MAX:
            return floordiv(m[0].args[0] + constant * divisor, divisor * b)  # ((x + 1) // 2 + 1) // 2 == (x + 3) // 4
        if c == 1 and len(m) == 1 and m[0].op == "max" and len(m[0].args) == 2 and isinstance(least := m[0].args[1], int):
            x, least = floordiv(m[0].args[0] + constant, b), (least + constant) // b
            either = x if less_equal(least, x) else least if less_equal(x, least) else None
            return compound("max", (x, least)) if either is None else either  # max(x // 2, 4) // 2 == max(x // 4, 2)
    return compound("//", (left, b))


def mod(a: Size, b: Size) -> Size:
    """Return ``a - b * (a // b)``. Raise `ShapeError` if ``b`` is zero."""
    if isinstance(b, int):
        if b == 0:
            raise ShapeError(f"division by zero: {a} % 0")
        if isinstance(a, int):
            return a % b
        if b < 0:
            return a - b * floordiv(a, b)
        left = of_terms({m: c % b for m, c in a.terms if c % b})
        low, high = bounds(left)
        if low is not None and high is not None and low // b == high // b:
            return left - b * (low // b)
        return compound("%", (left, b))
    if a is b or (isinstance(a, int) and a == 0):
        return 0
    if _divide_exactly(a, b) is not None:
        return 0
    return compound("%", (a, b))


# --- the normal form


def checked(value: int) -> int:
    """Return ``value``. Raise `ShapeError` if it does not fit a 64-bit integer."""
    if not INT64_MIN <= value <= INT64_MAX:
        text = value if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"
        raise ShapeError(f"{text} does not fit a 64-bit integer")
    return value


def _depth(a: Size) -> int:
    return 0 if isinstance(a, int) else max((x.depth for m, _ in a.terms for x in m), default=0)


def _plus_number(terms: tuple[tuple[Monomial, int], ...], number: int) -> Size:
    """Return the sum of terms of a size, in their order, and a number."""
    m, c = terms[-1]
    if not m:
        terms, number = terms[:-1], c + number
    return _of_ordered((*terms, ((), number)) if number else terms)


def _sum(parts: Iterable[Iterable[tuple[Monomial, int]]]) -> Size:
    out: dict[Monomial, int] = {}
    for terms in parts:
        for m, c in terms:
            out[m] = out.get(m, 0) + c
    return of_terms(out)


def of_terms(terms: Mapping[Monomial, int]) -> Size:
    """Return the sum of these products, each times its factor."""
    nonzero = [(m, c) for m, c in terms.items() if c]
    if not nonzero:
        return 0
    if len(nonzero) == 1 and not nonzero[0][0]:
        return checked(nonzero[0][1])
    if len(nonzero) > 1:
        nonzero.sort(key=term_order)
    return _of_ordered(tuple(nonzero))


def _of_ordered(key: tuple[tuple[Monomial, int], ...]) -> Dim:
    """Return the sum of these products in their order, with at least one symbol."""
    known_size = _dims.get(key)
    if known_size is not None:
        return known_size
    length = depth = 0
    for m, c in key:
        if not -INT64_MAX <= c <= INT64_MAX:
            raise ShapeError(f"the factor {c} of a size does not fit a 64-bit integer")
        for atom in m:
            length += len(atom.text)
            if atom.depth > depth:
                depth = atom.depth
    is_bare = len(key) == 1 and len(key[0][0]) == 1 and not key[0][0][0].op
    if not is_bare and (len(key) > MAX_TERMS or depth > MAX_DEPTH or length > MAX_LENGTH):
        return replacement((part for term in key for part in term_text(term)), bounds_of_terms(key)[0])
    size: Dim = object.__new__(Dim)
    size.terms = key
    return _dims.setdefault(key, size)


def replacement(text: Iterable[str], low: int | None) -> Dim:
    """Return a symbol in place of an expression past the limits, named by its text, so equals stay equal."""
    pieces = list(text)
    name = ("size_" if low is not None and low >= 0 else SIGNED) + _digest(pieces)
    atom = _atom("", name, ())
    atom.stands_for = "".join(pieces[:120])[:120] + " ..."
    return of_atom(atom)


def _digest(pieces: Iterable[str]) -> str:
    out = hashlib.blake2b(digest_size=12)
    for piece in pieces:
        out.update(piece.encode("utf-8", "surrogatepass"))
    return out.hexdigest()


def _atom(op: str, name: str, args: tuple[Size, ...]) -> Atom:
    key = (op, name, args)
    atom = _atoms.get(key)
    return atom if atom is not None else _atoms.setdefault(key, Atom(op, name, args))


def of_atom(atom: Atom) -> Dim:
    """Return the size of just this atom."""
    size = of_terms({(atom,): 1})
    assert isinstance(size, Dim)
    return size


def compound(op: str, args: tuple[Size, ...]) -> Size:
    """Return ``op`` of ``args`` without a simpler form."""
    for a in args:
        if isinstance(a, int):
            checked(a)
    if op in CALLED:
        name = f"{op}({', '.join(map(str, args))})"
    else:
        name = (op == "//" and _rounded_up(*args)) or f"{_grouped(args[0])} {op} {_grouped(args[1])}"
    return of_atom(_atom(op, name, args))


def _rounded_up(a: Size, b: Size) -> str | None:
    """Return the text of ``a // b`` if it is a division rounded up: ``(x + 3) // 4`` is ``ceil(x / 4)``."""
    if isinstance(b, int) and isinstance(a, Dim) and b == a.terms[-1][1] + 1 and not a.terms[-1][0]:
        numerator = a.text.removesuffix(f" + {b - 1}")
        return f"ceil({numerator} / {b})" if len(a.terms) == 2 else f"ceil(({numerator}) / {b})"
    return None


def _grouped(a: Size) -> str:
    if isinstance(a, int):
        return str(a)
    atom = only_atom(a)
    return a.text if atom is not None and (atom.op not in ("//", "%") or atom.text is atom.name) else f"({a.text})"


def _divide_exactly(a: Size, b: Dim) -> Size | None:
    """Return ``a / b`` if ``b`` divides it as a polynomial, else None.

    The quotient is the polynomial's: the rest of the elements for a reshape, also if ``b`` is zero.
    """
    terms = None if isinstance(a, int) else exact_quotient(a.terms, b.terms)
    return None if terms is None else of_terms(terms)


# --- The order of the terms of a polynomial, and its exact quotient by another one.


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
