"""Questions about sizes, the smallest and largest of them, and putting values in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import gcd

from foreshape.dims.expression import MAX_TERMS, Atom, Dim, Size, bounds, checked, compound, floordiv, mod, of_atom, only_atom, replacement
from foreshape.errors import ShapeError


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
    if low == 0 == high:
        return True
    divisor = 0
    constant = 0
    for m, c in difference.terms:
        if m:
            divisor = gcd(divisor, c)
        else:
            constant = c
    return False if divisor and constant % divisor else None


def less_equal(a: Size, b: Size) -> bool | None:
    """Whether ``a <= b``: True, False, or None where it depends on the symbols."""
    low, high = bounds(b - a)
    if low is not None and low >= 0:
        return True
    return False if high is not None and high < 0 else None


def broadcasts(a: Size, b: Size) -> bool | None:
    """Whether ``a`` and ``b`` are equal or one of them is 1: True, False, or None where it depends on the symbols."""
    answers = (equal(a, b), equal(a, 1), equal(b, 1))
    return True if True in answers else None if None in answers else False


def symbols_of(a: Size) -> set[str]:
    """The names of the symbols that ``a`` depends on."""
    return {atom.name for atom in _symbol_atoms(a)}


def broadcast_symbols(a: Size) -> set[str]:
    """The names of the symbols that stand in the broadcasts of ``a`` by themselves."""
    atoms = [atom for m, _ in a.terms for atom in m] if isinstance(a, Dim) else []
    return {inner.name for atom in atoms if atom.op == "broadcast" for x in atom.args if (inner := only_atom(x)) is not None and not inner.op}


def _symbol_atoms(a: Size) -> Iterator[Atom]:
    stack: list[Size] = [a]
    while stack:
        at = stack.pop()
        if isinstance(at, Dim):
            for m, _ in at.terms:
                for atom in m:
                    if atom.op:
                        stack.extend(atom.args)
                    else:
                        yield atom


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
                term = term * (of_atom(atom) if value is None else value)
            else:
                term = term * apply(atom.op, tuple(substitute(x, values) for x in atom.args))
        out = out + term
    return checked(out) if isinstance(out, int) else out


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
    found = {s.name: s.stands_for for s in _symbol_atoms(a) if s.stands_for}
    return [f"{name} stands for a size that is too long to keep: {text}" for name, text in sorted(found.items())]


def minimum(*sizes: Size) -> Size:
    """The smallest of one or more sizes."""
    return _extreme("min", sizes)


def maximum(*sizes: Size) -> Size:
    """The largest of one or more sizes."""
    return _extreme("max", sizes)


@lru_cache(1 << 12)
def broadcast(*sizes: Size) -> Size:
    """The size to which sizes broadcast that are equal or 1 (see `broadcasts`): the one that is not 1, where there is one.

    Of numbers that do not fit it is the largest; whoever needs that they fit asks first, or leaves a guard.
    """
    group: dict[Size, None] = {}
    for given in sizes:
        atom = only_atom(given)
        group.update(dict.fromkeys(atom.args if atom is not None and atom.op == "broadcast" else (given,)))
    numbers = [size for size in group if isinstance(size, int) and size != 1]
    if numbers:
        return max(numbers)
    # min(x, 1) beside x adds nothing: it is 1, or both are 0
    open_ones = [s for s in group if not isinstance(s, int) and not any(s is minimum(x, 1) for x in group if x is not s)]
    if not open_ones:
        return 1
    open_ones.sort(key=str)
    never_1 = next((s for s in open_ones if equal(s, 1) is False), None)
    if never_1 is not None or len(open_ones) == 1:
        return never_1 if never_1 is not None else open_ones[0]
    if len(open_ones) > MAX_TERMS:
        lows = [low for low, _ in map(bounds, open_ones) if low is not None]
        return replacement(["broadcast(", *(f"{size}, " for size in open_ones), ")"], min(lows) if len(lows) == len(open_ones) else None)
    return compound("broadcast", tuple(open_ones))


def apply(op: str, args: tuple[Size, ...]) -> Size:
    """``op`` in ``// % min max broadcast`` of ``args``."""
    if op == "//":
        return floordiv(args[0], args[1])
    if op == "broadcast":
        return broadcast(*args)
    return mod(args[0], args[1]) if op == "%" else _extreme(op, args)


@lru_cache(1 << 12)
def _extreme(op: str, sizes: tuple[Size, ...]) -> Size:
    group: dict[Size, int] = {}  # each argument, and which of the sizes it came with: those of one are compared already
    numbers: list[int] = []
    for at, given in enumerate(sizes):
        atom = only_atom(given)
        for size in atom.args if atom is not None and atom.op == op else (given,):
            if isinstance(size, int):
                numbers.append(size)
            else:
                group.setdefault(size, at)
    distinct: list[Size] = list(group)
    if numbers:
        distinct.append(min(numbers) if op == "min" else max(numbers))
    if len(distinct) > MAX_TERMS:
        limits = [bounds(size) for size in distinct]
        lows = [low for low, _ in limits if low is not None]
        low = max(lows, default=None) if op == "max" else min(lows) if len(lows) == len(limits) else None
        return replacement([f"{op}(", *(f"{text}, " for text in sorted(map(str, distinct))), ")"], low)
    kept: list[Size] = []
    groups = [-1 if isinstance(size, int) else group[size] for size in distinct]
    for at, size in enumerate(distinct):
        beaten = False
        for other_at, other in enumerate(distinct):
            if groups[other_at] != groups[at]:
                no_better = less_equal(other, size) if op == "min" else less_equal(size, other)
                if no_better and (other_at < at or equal(size, other) is not True):
                    beaten = True
                    break
        if not beaten:
            kept.append(size)
    if len(kept) == 1:
        return kept[0]
    kept.sort(key=lambda s: (isinstance(s, int), str(s)))
    return compound(op, tuple(kept))
