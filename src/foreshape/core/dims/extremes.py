"""The smallest and the largest of sizes, and their broadcast."""

from __future__ import annotations

from functools import lru_cache

from foreshape.core.dims.expression import MAX_TERMS, Dim, Monomial, Size, compound, floordiv, mod, of_terms, only_atom, replacement
from foreshape.core.dims.questions import bounds, equal, less_equal


def minimum(*sizes: Size) -> Size:
    """Return the smallest of one or more sizes."""
    return _extreme("min", sizes)


def maximum(*sizes: Size) -> Size:
    """Return the largest of one or more sizes."""
    return _extreme("max", sizes)


@lru_cache(1 << 12)
def broadcast(*sizes: Size) -> Size:
    """Return the broadcast of sizes that are equal or 1 (see `broadcasts`): the one other than 1, if any.

    Of numbers that do not broadcast it is the largest; a caller that needs a broadcast asks first, or leaves a guard.
    """
    group: dict[Size, None] = {}
    for operand in sizes:
        atom = only_atom(operand)
        group.update(dict.fromkeys(atom.args if atom is not None and atom.op == "broadcast" else (operand,)))
    numbers = [size for size in group if isinstance(size, int) and size != 1]
    if numbers:
        return max(numbers)
    open_ones = [s for s in group if not isinstance(s, int) and not any(_adds_nothing(s, x) for x in group if x is not s)]
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


def caps(least: Size, x: Size) -> list[Size] | None:
    """Return the other sizes of which, with ``x``, ``least`` is the smallest: ``[64]`` for ``min(x, 64)``. None if it is no such minimum."""
    if isinstance(least, int) or isinstance(x, int):
        return None
    constant = least.terms[-1][1] if not least.terms[-1][0] else 0
    atom = only_atom(least - constant)
    if atom is None or atom.op != "min":
        return None
    sizes = [size + constant for size in atom.args]
    return [size for size in sizes if size is not x] if any(size is x for size in sizes) else None


def _adds_nothing(least: Size, x: Size) -> bool:
    """Return True for ``min(x, 64)`` beside ``x``: they broadcast where they are equal, or the first is 1."""
    remaining = caps(least, x)
    return remaining is not None and all((bounds(size)[0] or 0) >= 1 for size in remaining)


def no_less(*sizes: Size) -> Size:
    """Return a polynomial at least as large as each of some sizes: of each product of symbols the largest coefficient.

    It is the largest of them if one has all the largest coefficients, and otherwise shorter than their `maximum`.
    """
    out: dict[Monomial, int] = {}
    for size in sizes:
        for monomial, coefficient in size.terms if isinstance(size, Dim) else (((), size),):
            out[monomial] = max(out.get(monomial, 0), coefficient)
    return of_terms(out)


def reaches(size: Size, least: int) -> Size:
    """Return 1 if a size of at least 0 is at least ``least``, which is above 0, else 0; symbols are at least 1."""
    if isinstance(size, Dim) and len(size.terms) == 1:
        monomial, coefficient = size.terms[0]
        size, least = of_terms({monomial: 1}), -(-least // coefficient)
    if least <= 1 or isinstance(size, int):
        return int(least <= 0 or (size >= least)) if isinstance(size, int) else 1
    return minimum(floordiv(size, least), 1)


def apply(op: str, args: tuple[Size, ...]) -> Size:
    """Return ``op`` in ``// % min max broadcast`` of ``args``."""
    if op == "//":
        return floordiv(args[0], args[1])
    if op == "broadcast":
        return broadcast(*args)
    return mod(args[0], args[1]) if op == "%" else _extreme(op, args)


@lru_cache(1 << 12)
def _extreme(op: str, sizes: tuple[Size, ...]) -> Size:
    group: dict[Size, int] = {}  # each argument, and the size that it came with: arguments of one size are compared already
    numbers: list[int] = []
    for index, operand in enumerate(sizes):
        constant = operand.terms[-1][1] if isinstance(operand, Dim) and not operand.terms[-1][0] else 0
        atom = only_atom(operand - constant)
        for size in (x + constant for x in atom.args) if atom is not None and atom.op == op else (operand,):  # max(max(x, 3) - 1, y) == max(x - 1, 2, y)
            if isinstance(size, int):
                numbers.append(size)
            else:
                group.setdefault(size, index)
    distinct: list[Size] = list(group)
    if numbers:
        distinct.append(min(numbers) if op == "min" else max(numbers))
    if len(distinct) > MAX_TERMS:
        limits = [bounds(size) for size in distinct]
        lows = [low for low, _ in limits if low is not None]
        low = max(lows, default=None) if op == "max" else min(lows) if len(lows) == len(limits) else None
        return replacement([f"{op}(", *(f"{text}, " for text in sorted(map(str, distinct))), ")"], low)
    extremes: list[Size] = []
    groups = [-1 if isinstance(size, int) else group[size] for size in distinct]
    for index, size in enumerate(distinct):
        beaten = False
        for other_at, rival in enumerate(distinct):
            if groups[other_at] != groups[index]:
                no_better = less_equal(rival, size) if op == "min" else less_equal(size, rival)
                if no_better and (other_at < index or equal(size, rival) is not True):
                    beaten = True
                    break
        if not beaten:
            extremes.append(size)
    if len(extremes) == 1:
        return extremes[0]
    extremes.sort(key=lambda s: (isinstance(s, int), str(s)))
    return compound(op, tuple(extremes))
