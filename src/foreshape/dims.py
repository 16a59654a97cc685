"""Arithmetic over dimensions: a dim is an ``int`` or a `Dim`, a symbolic expression over named symbols.

A `Dim` is a polynomial with integer coefficients over atoms; an atom is a symbol, or a floor division, modulo, minimum or
maximum that does not reduce to a polynomial. Expressions are kept in one normal form and interned, so that equal
expressions are the same object and are compared by identity. Symbols stand for sizes: integers of at least zero.

Questions (`equal`, `less_equal`) have three answers: True, False and None, which says that it depends on the symbols.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
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


class Atom:
    """What a polynomial is over: a symbol (``op == ""``), or ``op`` in ``// % min max`` applied to ``args``."""

    __slots__ = ("__weakref__", "args", "depth", "name", "op", "stands_for")

    def __init__(self, op: str, name: str, args: tuple[Size, ...], stands_for: str | None = None) -> None:
        self.op = op
        self.name = name
        """A symbol's own name; for other atoms the text, which also orders them."""
        self.args = args
        self.depth = 0 if not op else 1 + max(_depth(a) for a in args)
        self.stands_for = stands_for
        """For a symbol that replaced an expression past `MAX_TERMS` or `MAX_DEPTH`: how that expression began."""

    def __repr__(self) -> str:
        return self.name


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
        return (parse, (self.text,))

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
            return self if other == 0 else _sum((self.terms, _constant_terms(other)))
        return _sum((self.terms, other.terms)) if isinstance(other, Dim) else NotImplemented

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
        if not isinstance(other, Dim):
            return NotImplemented
        out: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                m = tuple(sorted(m1 + m2, key=_atom_name))
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
    if not name or len(name) > 512:
        raise ShapeError(f"a symbol needs a name of 1 to 512 characters, not {len(name)}")
    made = _of_atom(_atom("", name, ()))
    return _symbols.setdefault(name, made)


def is_symbol(dim: Size) -> bool:
    """Whether ``dim`` is one bare symbol."""
    return isinstance(dim, Dim) and len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1 and not dim.terms[0][0][0].op


def floordiv(a: Size, b: Size) -> Size:
    """``a // b``, rounded down. Raises `ShapeError` where ``b`` is zero."""
    if isinstance(b, int):
        if b == 0:
            raise ShapeError(f"division by zero: {a} // 0")
        if isinstance(a, int):
            return _checked(a // b)
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
        if isinstance(left, Dim) and len(left.terms) == 1:  # (x // 2) // 3 == x // 6
            (m, c) = left.terms[0]
            if c == 1 and len(m) == 1 and m[0].op == "//" and isinstance(m[0].args[1], int):
                return _make(whole) + floordiv(m[0].args[0], m[0].args[1] * b)
        return _make(whole) + _compound("//", (left, b))
    if isinstance(a, int) and a == 0:
        return 0
    if a is b:
        return 1
    exact = _divide_by_monomial(a, b)
    return exact if exact is not None else _compound("//", (a, b))


def ceildiv(a: Size, b: Size) -> Size:
    """``a / b``, rounded up. Raises `ShapeError` where ``b`` is zero."""
    return -floordiv(-a, b) if isinstance(a, int) and isinstance(b, int) else floordiv(a + b - 1, b)


def mod(a: Size, b: Size) -> Size:
    """``a - b * (a // b)``. Raises `ShapeError` where ``b`` is zero."""
    if isinstance(b, int):
        if b == 0:
            raise ShapeError(f"division by zero: {a} % 0")
        if isinstance(a, int):
            return a % b
        if b < 0:
            return a - b * floordiv(a, b)
        left = _make({m: (c if m and c % b else c % b) for m, c in a.terms if c % b})
        low, high = bounds(left)
        if low is not None and high is not None and low // b == high // b:
            return left - b * (low // b)
        return _compound("%", (left, b))
    if a is b or (isinstance(a, int) and a == 0):
        return 0
    if _divide_by_monomial(a, b) is not None:
        return 0
    return _compound("%", (a, b))


def minimum(*sizes: Size) -> Size:
    """The smallest of one or more sizes."""
    return _extreme("min", sizes)


def maximum(*sizes: Size) -> Size:
    """The largest of one or more sizes."""
    return _extreme("max", sizes)


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes (1 for none). Raises `ShapeError` where it passes a 64-bit integer."""
    out: Size = 1
    for size in sizes:
        out = out * size
    return _checked(out) if isinstance(out, int) else out


def bounds(a: Size) -> tuple[int | None, int | None]:
    """The least and the greatest value that ``a`` can take; None where there is none, or none was found."""
    if isinstance(a, int):
        return a, a
    try:
        return a._bounds  # pyright: ignore[reportAttributeAccessIssue]
    except AttributeError:
        low: int | None = 0
        high: int | None = 0
        for m, c in a.terms:
            l, h = _monomial_bounds(m)
            if c < 0:
                l, h = h, l
            low = None if low is None or l is None else low + c * l
            high = None if high is None or h is None else high + c * h
        a._bounds = (low, high)  # pyright: ignore[reportAttributeAccessIssue]
        return low, high


def equal(a: Size, b: Size) -> bool | None:
    """Whether ``a == b``: True, False, or None where it depends on the symbols."""
    if a is b:
        return True
    difference = a - b
    if isinstance(difference, int):
        return difference == 0
    low, high = bounds(difference)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    divisor = 0
    constant = 0
    for m, c in difference.terms:
        if m:
            divisor = _gcd(divisor, c)
        else:
            constant = c
    return False if divisor and constant % divisor else None


def less_equal(a: Size, b: Size) -> bool | None:
    """Whether ``a <= b``: True, False, or None where it depends on the symbols."""
    low, high = bounds(b - a)
    if low is not None and low >= 0:
        return True
    return False if high is not None and high < 0 else None


def symbols_of(a: Size) -> set[str]:
    """The names of the symbols that ``a`` depends on."""
    names: set[str] = set()
    stack: list[Size] = [a]
    while stack:
        at = stack.pop()
        if isinstance(at, Dim):
            for m, _ in at.terms:
                for atom in m:
                    if atom.op:
                        stack.extend(atom.args)
                    else:
                        names.add(atom.name)
    return names


def substitute(a: Size, values: Mapping[str, Size]) -> Size:
    """``a`` with symbols replaced by sizes; symbols that ``values`` lacks stay.

    Raises:
        ShapeError: a division by zero, or a result past a 64-bit integer.
    """
    if isinstance(a, int):
        return a
    out: Size = 0
    for m, c in a.terms:
        term: Size = c
        for atom in m:
            if not atom.op:
                value = values.get(atom.name)
                term = term * (_of_atom(atom) if value is None else value)
            else:
                term = term * _apply(atom.op, tuple(substitute(x, values) for x in atom.args))
        out = out + term
    return _checked(out) if isinstance(out, int) else out


def evaluate(a: Size, values: Mapping[str, int]) -> int:
    """``a`` as a number.

    Raises:
        ShapeError: a symbol has no value, a division by zero, or a result past a 64-bit integer.
    """
    out = substitute(a, values)
    if isinstance(out, Dim):
        raise ShapeError(f"{a} needs a value for {', '.join(sorted(symbols_of(out)))}")
    return out


def explain_symbols(a: Size) -> list[str]:
    """For each symbol in ``a`` that replaced an expression past the limits: what it stands for."""
    if isinstance(a, int):
        return []
    return [f"{s.name} stands for a size that is too long to keep: {s.stands_for}" for m, _ in a.terms for s in m if s.stands_for]


# --- the normal form


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return abs(a)


def _checked(value: int) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise ShapeError(f"{value} does not fit a 64-bit integer")
    return value


def _atom_name(atom: Atom) -> str:
    return atom.name


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


def _term_order(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    return -len(term[0]), [a.name for a in term[0]]


def _make(terms: Mapping[Monomial, int]) -> Size:
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return _checked(kept[0][1])
    kept.sort(key=_term_order)
    key = tuple(kept)
    found = _dims.get(key)
    if found is not None:
        return found
    for _, c in key:
        _checked(c)
    made: Dim = object.__new__(Dim)
    made.terms = key
    made.text = _text(key)
    if len(key) > MAX_TERMS or _depth(made) > MAX_DEPTH:
        return _replacement(made.text)
    return _dims.setdefault(key, made)


def _replacement(text: str) -> Dim:
    """A symbol that stands for an expression past the limits, named by its text, so that equals stay equal."""
    name = f"size_{zlib.crc32(text.encode()):08x}_{len(text)}"
    atom = _atom("", name, ())
    atom.stands_for = text[:120] + " ..."
    return _of_atom(atom)


def _atom(op: str, name: str, args: tuple[Size, ...]) -> Atom:
    key = (op, name, args)
    found = _atoms.get(key)
    return found if found is not None else _atoms.setdefault(key, Atom(op, name, args))


def _of_atom(atom: Atom) -> Dim:
    made = _make({(atom,): 1})
    assert isinstance(made, Dim)
    return made


def _compound(op: str, args: tuple[Size, ...]) -> Size:
    name = f"{op}({', '.join(map(str, args))})" if op in ("min", "max") else f"{_grouped(args[0])} {op} {_grouped(args[1])}"
    return _of_atom(_atom(op, name, args))


def _apply(op: str, args: tuple[Size, ...]) -> Size:
    if op == "//":
        return floordiv(args[0], args[1])
    return mod(args[0], args[1]) if op == "%" else _extreme(op, args)


def _extreme(op: str, sizes: tuple[Size, ...]) -> Size:
    flat: list[Size] = []
    for size in sizes:
        if isinstance(size, Dim) and len(size.terms) == 1 and size.terms[0][1] == 1 and len(size.terms[0][0]) == 1 and size.terms[0][0][0].op == op:
            flat.extend(size.terms[0][0][0].args)
        else:
            flat.append(size)
    kept: list[Size] = []
    for at, size in enumerate(flat):
        beaten = False
        for other_at, other in enumerate(flat):
            if other_at != at:
                no_better = less_equal(other, size) if op == "min" else less_equal(size, other)
                if no_better and (other_at < at or equal(size, other) is not True):
                    beaten = True
                    break
        if not beaten:
            kept.append(size)
    if len(kept) == 1:
        return kept[0]
    kept.sort(key=lambda s: (isinstance(s, int), str(s)))
    return _compound(op, tuple(kept))


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


def _monomial_bounds(m: Monomial) -> tuple[int | None, int | None]:
    low: int | None = 1
    high: int | None = 1
    for atom in m:
        l, h = _atom_bounds(atom)
        if low is None or l is None or low < 0 or l < 0:
            return None, None
        low, high = low * l, None if high is None or h is None else high * h
    return low, high


def _atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    if not atom.op:
        return 0, None
    limits = [bounds(x) for x in atom.args]
    if atom.op == "//":
        (low, high), (bl, bh) = limits
        if bl is not None and bl >= 1 and bl == bh:
            return None if low is None else low // bl, None if high is None else high // bl
        if low is not None and low >= 0 and bl is not None and bl >= 0:
            return 0, high
        return None, None
    if atom.op == "%":
        low, high = limits[1]
        return (0, None if high is None else high - 1) if low is not None and low >= 0 else (None, None)
    lows = [l for l, _ in limits]
    highs = [h for _, h in limits]
    pick = min if atom.op == "min" else max
    known_lows = [x for x in lows if x is not None]
    known_highs = [x for x in highs if x is not None]
    if atom.op == "min":
        return (pick(known_lows) if len(known_lows) == len(lows) else None, pick(known_highs) if known_highs else None)
    return (pick(known_lows) if known_lows else None, pick(known_highs) if len(known_highs) == len(highs) else None)


# --- the text form

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@]*\Z")


def _atom_text(atom: Atom) -> str:
    if atom.op:
        return atom.name if atom.op in ("min", "max") else f"({atom.name})"
    plain = _PLAIN_NAME.match(atom.name) and atom.name not in ("min", "max")
    return atom.name if plain else json.dumps(atom.name)


def _text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    out = ""
    for m, c in terms:
        size = abs(c)
        factors = ([str(size)] if size != 1 or not m else []) + [_atom_text(a) for a in m]
        if len(terms) == 1 and c == 1 and len(m) == 1 and m[0].op in ("//", "%"):
            return m[0].name
        sign = ("-" if c < 0 else "") if not out else (" - " if c < 0 else " + ")
        out += sign + "*".join(factors)
    return out


def _grouped(a: Size) -> str:
    if isinstance(a, int):
        return str(a)
    simple = len(a.terms) == 1 and a.terms[0][1] == 1 and len(a.terms[0][0]) == 1 and a.terms[0][0][0].op not in ("//", "%")
    return a.text if simple else f"({a.text})"


_TOKEN = re.compile(r'\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_.@]*)|("(?:[^"\\]|\\.)*")|(//|[-+*%(),]))')
MAX_TEXT = 8192
"""The longest text that `parse` takes, in characters."""


def parse(text: str) -> Size:
    """The size that ``text`` writes, such as ``2*batch*words + 1``; the inverse of ``str``.

    Raises:
        ShapeError: the text is not a size, is longer than `MAX_TEXT`, or is nested too deeply.
    """
    if len(text) > MAX_TEXT:
        raise ShapeError(f"a size of {len(text)} characters is longer than the {MAX_TEXT} that are read")
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if not match:
            raise ShapeError(f"{text!r} is not a size: character {at} is not understood")
        tokens.append(match.group().strip())
        at = match.end()
    reader = _Reader(text, tokens)
    out = reader.sum(0)
    if reader.at != len(tokens):
        raise ShapeError(f"{text!r} is not a size: {tokens[reader.at]!r} was not expected")
    return out


class _Reader:
    __slots__ = ("at", "text", "tokens")

    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text, self.tokens, self.at = text, tokens, 0

    def next(self) -> str:
        if self.at >= len(self.tokens):
            raise ShapeError(f"{self.text!r} is not a size: it ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def sum(self, depth: int) -> Size:
        if depth > 2 * MAX_DEPTH + 2:
            raise ShapeError("a size is nested too deeply to be read")
        out = self.term(depth)
        while self.peek() in ("+", "-"):
            sign = self.next()
            right = self.term(depth)
            out = out + right if sign == "+" else out - right
        return _checked(out) if isinstance(out, int) else out

    def term(self, depth: int) -> Size:
        out = self.factor(depth)
        while self.peek() in ("*", "//", "%"):
            op = self.next()
            right = self.factor(depth)
            out = out * right if op == "*" else _apply(op, (out, right))
        return out

    def factor(self, depth: int) -> Size:
        token = self.next()
        if token == "-":
            return -self.factor(depth + 1) if depth <= 2 * MAX_DEPTH + 2 else self.sum(depth + 1)
        if token == "(":
            out = self.sum(depth + 1)
            if self.next() != ")":
                raise ShapeError(f"{self.text!r} is not a size: a bracket is not closed")
            return out
        if token[0].isdigit():
            if len(token) > 19:
                raise ShapeError(f"{token} does not fit a 64-bit integer")
            return _checked(int(token))
        if token in ("min", "max") and self.peek() == "(":
            self.next()
            args = [self.sum(depth + 1)]
            while (mark := self.next()) == ",":
                args.append(self.sum(depth + 1))
            if mark != ")":
                raise ShapeError(f"{self.text!r} is not a size: a bracket is not closed")
            return _extreme(token, tuple(args))
        if token[0] == '"':
            try:
                return symbol(json.loads(token))
            except ValueError:
                raise ShapeError(f"{self.text!r} is not a size: {token} is not a name") from None
        if token[0].isalpha() or token[0] == "_":
            return symbol(token)
        raise ShapeError(f"{self.text!r} is not a size: {token!r} was not expected")
