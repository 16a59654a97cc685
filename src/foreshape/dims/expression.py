"""The normal form of sizes, and arithmetic and questions over it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TypeAlias
from weakref import WeakValueDictionary

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
CALLED = ("min", "max", "broadcast")
"""The operations that are written as calls."""
_SIGNED = "signed_size_"
"""How the name of a symbol begins that stands for an expression which may be negative."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@]*\Z")


class Atom:
    """What a polynomial is over: a symbol (``op == ""``), or ``op`` in ``// % min max broadcast`` applied to ``args``."""

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
        """For a symbol that replaced an expression past the limits: how that expression began."""
        self.text = _symbol_text(name) if not op else name if op in CALLED else f"({name})"
        """How it is written as a factor."""

    def __repr__(self) -> str:
        return self.text


class Dim:
    """A symbolic size. Made by `symbol` and by arithmetic; equal expressions are the same object."""

    __slots__ = ("__weakref__", "_bounds", "terms", "text")

    terms: tuple[tuple[Monomial, int], ...]
    text: str

    def __new__(cls) -> Dim:
        raise TypeError("make a Dim with symbol(name) and arithmetic")

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Callable[[str], Size], tuple[str]]:
        from foreshape.dims.reader import parse

        return (parse, (self.text,))

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: object) -> Dim:
        return self

    def __int__(self) -> int:
        raise ShapeError(f"the size {self.text} is not a number before values are fed")

    __index__ = __int__

    def __bool__(self) -> bool:
        from foreshape.dims.questions import equal

        answer = equal(self, 0)
        if answer is None:
            raise ShapeError(f"whether {self.text} is zero is not known before values are fed")
        return not answer

    def __add__(self, other: Size) -> Size:
        if isinstance(other, int):
            return self if other == 0 else _sum((self.terms, _constant_terms(other)))
        return _sum((self.terms, other.terms)) if isinstance(other, Dim) else NotImplemented  # pyright: ignore[reportUnnecessaryIsInstance]

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __rsub__(self, other: int) -> Size:
        return -self + other

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, int):
            if other == 1:
                return self
            return 0 if other == 0 else _make({m: c * other for m, c in self.terms})
        if not isinstance(other, Dim):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        out: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                m = tuple(sorted(m1 + m2, key=_atom_order))
                out[m] = out.get(m, 0) + c1 * c2
        return _make(out)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return floordiv(other, self)

    def __mod__(self, other: Size) -> Size:
        return mod(self, other)

    def __rmod__(self, other: int) -> Size:
        return mod(other, self)


def reaches(size: Size, least: int) -> Size:
    """1 where a size that is not negative is at least ``least``, which is more than 0, else 0; symbols stand for at least 1."""
    if isinstance(size, Dim) and len(size.terms) == 1:
        monomial, coefficient = size.terms[0]
        size, least = _make({monomial: 1}), -(-least // coefficient)
    if least <= 1 or isinstance(size, int):
        return int(least <= 0 or (size >= least)) if isinstance(size, int) else 1
    from foreshape.dims.questions import minimum

    return minimum(floordiv(size, least), 1)


def no_less(*sizes: Size) -> Size:
    """A polynomial that is at least as large as each of some sizes: of each product of symbols the largest coefficient.

    It is the largest of them where one has all the largest coefficients, and shorter than their `maximum` where none has.
    """
    out: dict[Monomial, int] = {}
    for size in sizes:
        for monomial, coefficient in size.terms if isinstance(size, Dim) else _constant_terms(size):
            out[monomial] = max(out.get(monomial, 0), coefficient)
    return _make(out)


_atoms: WeakValueDictionary[tuple[str, str, tuple[Size, ...]], Atom] = WeakValueDictionary()
_dims: WeakValueDictionary[tuple[tuple[Monomial, int], ...], Dim] = WeakValueDictionary()
_symbols: WeakValueDictionary[str, Dim] = WeakValueDictionary()


def symbol(name: str) -> Dim:
    """The size called ``name``; the same object each time.

    Raises:
        ShapeError: the name is empty or longer than 512 characters.
    """
    found = _symbols.get(name)
    if found is not None:
        return found
    if not name or len(name) > MAX_NAME:
        raise ShapeError(f"a symbol needs a name of 1 to {MAX_NAME} characters, not {len(name)}")
    made = of_atom(_atom("", name, ()))
    return _symbols.setdefault(name, made)


def symbol_after(name: str) -> Dim:
    """The size named after a variable or its axis, whose name may be longer than a symbol's."""
    return symbol(name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 40]}~{_digest((name,))}")


def is_symbol(dim: Size) -> bool:
    """Whether ``dim`` is one bare symbol."""
    return symbol_name(dim) is not None


def symbol_name(dim: Size) -> str | None:
    """The name of the one bare symbol that ``dim`` is; None where it is something else."""
    atom = only_atom(dim)
    return atom.name if atom is not None and not atom.op else None


def only_atom(size: Size) -> Atom | None:
    """The atom that ``size`` is, where it is just one."""
    if isinstance(size, int) or len(size.terms) != 1:
        return None
    (m, c) = size.terms[0]
    return m[0] if c == 1 and len(m) == 1 else None


def floordiv(a: Size, b: Size) -> Size:
    """``a // b``, rounded down. Raises `ShapeError` where ``b`` is zero."""
    if isinstance(b, int):
        if b == 0:
            raise ShapeError(f"division by zero: {a} // 0")
        if isinstance(a, int):
            return checked(a // b)
        if b == 1:
            return a
        if b < 0:
            return floordiv(-a, -b)
        whole: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for m, c in a.terms:
            q, r = divmod(c, b)
            if m and r:  # only whole multiples of a term may leave the division
                rest[m] = c
            else:
                if q:
                    whole[m] = q
                if r:
                    rest[m] = r
        if not rest:
            return _make(whole)
        left = _make(rest)
        low, high = bounds(left)
        if low is not None and high is not None and low // b == high // b:
            return _make(whole) + low // b
        inner = only_atom(left)
        if inner is not None and inner.op == "//" and isinstance(inner.args[1], int):  # (x // 2) // 3 == x // 6
            return _make(whole) + floordiv(inner.args[0], checked(inner.args[1] * b))
        return _make(whole) + compound("//", (left, b))
    if isinstance(a, int) and a == 0:
        return 0
    if a is b:
        return 1
    exact = _divide_by_monomial(a, b)
    return exact if exact is not None else compound("//", (a, b))


def ceildiv(a: Size, b: Size) -> Size:
    """``a / b``, rounded up. Raises `ShapeError` where ``b`` is zero."""
    if isinstance(a, int) and isinstance(b, int):
        out = floordiv(-a, b)
        return checked(-out) if isinstance(out, int) else -out
    low = bounds(b)[0]
    return floordiv(a + b - 1, b) if low is not None and low >= 0 else -floordiv(-a, b)


def mod(a: Size, b: Size) -> Size:
    """``a - b * (a // b)``. Raises `ShapeError` where ``b`` is zero."""
    if isinstance(b, int):
        if b == 0:
            raise ShapeError(f"division by zero: {a} % 0")
        if isinstance(a, int):
            return a % b
        if b < 0:
            return a - b * floordiv(a, b)
        left = _make({m: c % b for m, c in a.terms if c % b})
        low, high = bounds(left)
        if low is not None and high is not None and low // b == high // b:
            return left - b * (low // b)
        return compound("%", (left, b))
    if a is b or (isinstance(a, int) and a == 0):
        return 0
    if _divide_by_monomial(a, b) is not None:
        return 0
    return compound("%", (a, b))


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes (1 for none). Raises `ShapeError` where it passes a 64-bit integer."""
    out: Size = 1
    for size in sizes:
        out = out * size
    return checked(out) if isinstance(out, int) else out


def bounds(a: Size) -> tuple[int | None, int | None]:
    """The least and the greatest value that ``a`` can take; None where there is none, or none was found."""
    if isinstance(a, int):
        return a, a
    try:
        return a._bounds  # pyright: ignore[reportPrivateUsage]
    except AttributeError:
        a._bounds = found = _bounds_of(a.terms)  # pyright: ignore[reportPrivateUsage]
        return found


# --- the normal form


def checked(value: int) -> int:
    """``value``. Raises `ShapeError` where it does not fit a 64-bit integer."""
    if not INT64_MIN <= value <= INT64_MAX:
        shown = value if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"
        raise ShapeError(f"{shown} does not fit a 64-bit integer")
    return value


_atom_order = attrgetter("order")


def _depth(a: Size) -> int:
    return 0 if isinstance(a, int) else max((x.depth for m, _ in a.terms for x in m), default=0)


def _constant_terms(value: int) -> tuple[tuple[Monomial, int], ...]:
    return (((), value),)


def _sum(parts: Iterable[tuple[tuple[Monomial, int], ...]]) -> Size:
    out: dict[Monomial, int] = {}
    for terms in parts:
        for m, c in terms:
            out[m] = out.get(m, 0) + c
    return _make(out)


def _term_order(term: tuple[Monomial, int]) -> tuple[int, list[tuple[str, str]]]:
    return -len(term[0]), [a.order for a in term[0]]


def _make(terms: Mapping[Monomial, int]) -> Size:
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return checked(kept[0][1])
    kept.sort(key=_term_order)
    key = tuple(kept)
    found = _dims.get(key)
    if found is not None:
        return found
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
        return replacement((part for term in key for part in _term_text(term)), _bounds_of(key)[0])
    made: Dim = object.__new__(Dim)
    made.terms = key
    made.text = _text(key)
    return _dims.setdefault(key, made)


def replacement(text: Iterable[str], low: int | None) -> Dim:
    """A symbol that stands for an expression past the limits, named by its text, so that equals stay equal."""
    pieces = list(text)
    name = ("size_" if low is not None and low >= 0 else _SIGNED) + _digest(pieces)
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
    found = _atoms.get(key)
    return found if found is not None else _atoms.setdefault(key, Atom(op, name, args))


def of_atom(atom: Atom) -> Dim:
    """The size that is just this atom."""
    made = _make({(atom,): 1})
    assert isinstance(made, Dim)
    return made


def compound(op: str, args: tuple[Size, ...]) -> Size:
    """``op`` of ``args``, which has no simpler form."""
    for a in args:
        if isinstance(a, int):
            checked(a)
    name = f"{op}({', '.join(map(str, args))})" if op in CALLED else f"{_grouped(args[0])} {op} {_grouped(args[1])}"
    return of_atom(_atom(op, name, args))


def _divide_by_monomial(a: Size, b: Dim) -> Size | None:
    """``a / b`` where ``b`` is one term that divides every term of ``a``, else None.

    The quotient is the polynomial's; it is what a reshape means by the rest of the elements, also where ``b`` is zero.
    """
    if len(b.terms) != 1 or isinstance(a, int):
        return None
    divisor, by = b.terms[0]
    out: dict[Monomial, int] = {}
    for m, c in a.terms:
        left = list(m)
        for atom in divisor:
            if atom not in left:
                return None
            left.remove(atom)
        if c % by:
            return None
        out[tuple(left)] = c // by
    return _make(out)


def _bounds_of(terms: Iterable[tuple[Monomial, int]]) -> tuple[int | None, int | None]:
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
        return (None if atom.name.startswith(_SIGNED) else 0), None
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
        most = None if bh is None else max(bh - 1, 0)
        if low is not None and low >= 0 and high is not None:
            most = high if most is None else min(high, most)
        return 0, most
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


# --- the text form


def _symbol_text(name: str) -> str:
    if _PLAIN_NAME.match(name) and name not in CALLED:
        return name
    return json.dumps(name).replace(";", "\\u003b")  # a file separates sizes with semicolons


def _term_text(term: tuple[Monomial, int]) -> Iterator[str]:
    """A term with its sign, in pieces."""
    m, c = term
    yield " - " if c < 0 else " + "
    size = abs(c)
    if size != 1 or not m:
        yield str(size)
        if m:
            yield "*"
    for at, atom in enumerate(m):
        yield "*" + atom.text if at else atom.text


def _text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 and terms[0][0][0].op in ("//", "%"):
        return terms[0][0][0].name
    out = "".join([part for term in terms for part in _term_text(term)])
    return "-" + out[3:] if out[1] == "-" else out[3:]


def _grouped(a: Size) -> str:
    if isinstance(a, int):
        return str(a)
    atom = only_atom(a)
    return a.text if atom is not None and atom.op not in ("//", "%") else f"({a.text})"
