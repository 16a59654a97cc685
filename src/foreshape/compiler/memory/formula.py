"""The largest of several sums of sizes, as a formula in a program's symbols: prepared once, then evaluated in microseconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from keyword import iskeyword
from typing import Any

import numpy

from foreshape.compiler.memory.byte_counts import byte_text
from foreshape.core.dims import INT64_MAX, Dim, Size, evaluate, product, substitute, symbols_of
from foreshape.core.dims.expression import Atom, Monomial, of_atom
from foreshape.core.pictures.figures import plural
from foreshape.core.pictures.markup import cut
from foreshape.errors import MemoryPlanError
from foreshape.language.text.literal import quoted


class Terms:
    """The products of symbols in some sizes, numbered.

    Raises:
        MemoryPlanError: sizes whose sum may be past a 64-bit integer.
    """

    def __init__(self, sizes: Iterable[Size]) -> None:
        self._columns: dict[Monomial, int] = {(): 0}
        self._of: dict[Size, list[tuple[int, int]]] = {}
        total = 0
        for size in sizes:
            total += sum(abs(c) for _, c in self.of(size))
        if total > INT64_MAX:
            raise MemoryPlanError("the sizes of this program together are past a 64-bit integer")

    def __len__(self) -> int:
        return len(self._columns)

    def monomials(self) -> list[Monomial]:
        """Return the products, by number."""
        return list(self._columns)

    def of(self, size: Size) -> list[tuple[int, int]]:
        """Return a size as (number of the product, coefficient) pairs."""
        pairs = self._of.get(size)
        if pairs is None:
            terms = size.terms if isinstance(size, Dim) else (((), size),)
            pairs = self._of[size] = [(self._columns.setdefault(m, len(self._columns)), c) for m, c in terms]
        return pairs


class Formula:
    """``max`` over some pieces, each a polynomial in the symbols with whole coefficients, in bytes.

    Args:
        sizes: the terms of the pieces.
        counts: ``[pieces, sizes]``: the count of each in each piece.
    """

    def __init__(self, sizes: Sequence[Size], counts: Any) -> None:
        terms = Terms(sizes)
        of_sizes = numpy.zeros((len(sizes), len(terms)), dtype=numpy.int64)
        for row, size in enumerate(sizes):
            for column, coefficient in terms.of(size):
                of_sizes[row, column] = coefficient
        self._monomials = terms.monomials()
        pieces = _envelope(numpy.asarray(counts, dtype=numpy.int64).reshape(len(counts), len(sizes)) @ of_sizes)
        self._pieces = _undominated(pieces, *_limits(self._monomials, pieces))

    @classmethod
    def of_pieces(cls, terms: Terms, pieces: Any) -> Formula:
        """Return the formula of the coefficients of the terms, ``[pieces, terms]``."""
        formula = object.__new__(cls)
        pieces = _envelope(pieces)
        formula._monomials = terms.monomials()
        formula._pieces = _undominated(pieces, *_limits(formula._monomials, pieces))
        return formula

    def substituted(self, values: Mapping[str, Size]) -> Formula:
        """Return the formula with other sizes in the place of symbols: of the whole, where a symbol is a part of it."""
        return Formula([substitute(product([of_atom(atom) for atom in m]), values) for m in self._monomials], self._pieces)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Return the names of its symbols."""
        used = self._pieces.any(axis=0)
        return frozenset(n for m, u in zip(self._monomials, used.tolist(), strict=True) if u for atom in m for n in symbols_of(of_atom(atom)))

    def __call__(self, values: Mapping[str, int]) -> int:
        """Return the number of bytes. Raise `MemoryPlanError` if a symbol has no value."""
        require_values(self.symbols, values)
        factors = self._factors(values)
        return max((sum(c * f for c, f in zip(piece, factors, strict=True) if c) for piece in self.pieces), default=0)

    def at(self, values: Mapping[str, int]) -> str:
        """Return the largest piece with these values, in words. Raise `MemoryPlanError` if a symbol has no value."""
        require_values(self.symbols, values)
        factors = self._factors(values)
        return self._text(max(self.pieces, key=lambda p: sum(c * f for c, f in zip(p, factors, strict=True) if c))) if self.pieces else "0 B"

    def __len__(self) -> int:
        """Return the number of its pieces."""
        return len(self._pieces)

    def _factors(self, values: Mapping[str, int]) -> list[int]:
        out: list[int] = []
        for sizes, used in self._factored:
            factor = 1
            for size in sizes:
                factor *= evaluate(size, values) if used <= values.keys() else 0
            out.append(factor)
        return out

    @cached_property
    def _factored(self) -> list[tuple[list[Dim], frozenset[str]]]:
        """Return the factors of each product, and their symbols."""
        factors = [[of_atom(atom) for atom in m] for m in self._monomials]
        return [(sizes, frozenset(n for size in sizes for n in symbols_of(size))) for sizes in factors]

    @cached_property
    def pieces(self) -> list[list[int]]:
        """Return the coefficients of the products of symbols, for each piece."""
        return self._pieces.tolist()

    @property
    def factors(self) -> list[list[Dim]]:
        """Return the factors of each product of symbols."""
        return [sizes for sizes, _ in self._factored]

    def __str__(self) -> str:
        """Return the formula in words: ``max(4.1 MiB + 12.3 KiB*batch, 16.4 KiB*batch)``."""
        texts = list(dict.fromkeys(self._text(p) for p in self._pieces.tolist())) or ["0 B"]  # equal when rounded
        return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"

    __repr__ = __str__

    def brief(self, words: Callable[[str], str] = str, limit: int = 4, width: int = 110) -> list[str]:
        """Return its sums in a line each, as ``words`` has them. The number of terms and sums left out stands in their place."""
        sums = list(dict.fromkeys(tuple(map(words, self._terms(p))) for p in self._pieces.tolist())) or [("0 B",)]
        left_out = [f"... {plural(len(sums) - limit, 'more sum')}"] if len(sums) > limit else []
        return [*(_begun(terms, width) for terms in sums[:limit]), *left_out]

    def _text(self, piece: Sequence[int]) -> str:
        return _sum_text(self._terms(piece))

    def _terms(self, piece: Sequence[int]) -> list[str]:
        """Return the terms of a sum, conditional ones at the end."""
        groups: dict[Monomial, list[str]] = {}
        for m, c in zip(self._monomials, piece, strict=True):
            if c:
                switches = tuple(dict.fromkeys(atom for atom in m if _is_switch(atom)))
                text = _product_text(abs(c), [atom for atom in m if atom not in switches])
                groups.setdefault(switches, []).append("-" + text if c < 0 else text)
        parts: list[str] = []
        for switches, terms in sorted(groups.items(), key=lambda g: len(g[0])):
            parts += terms if not switches else [f"({' + '.join(terms)} where {' and '.join(map(_switch_text, switches))})"]
        return parts


def peak_lines(formula: Formula, words: Callable[[str], str] = str, width: int = 110) -> list[str]:
    """Return ``peak = ...`` in one line if short, or in a few."""
    lines = formula.brief(words, width=width)
    text = f"peak = {lines[0]}" if len(lines) == 1 else f"peak = max({', '.join(lines)})"
    return [text] if len(lines) == 1 or len(text) <= width else ["peak = max(", *(f"    {line}," for line in lines[:-1]), f"    {lines[-1]})"]


def _begun(terms: Sequence[str], width: int) -> str:
    """Return as many terms of a sum as a line has room for, and how many more there are."""
    count = len(terms)
    while count > 1 and len(_sum_text(terms[:count])) > (width if count == len(terms) else width - 20):
        count -= 1
    beginning = cut(_sum_text(terms[:count]), width)
    return beginning if count == len(terms) else f"{beginning} ... {plural(len(terms) - count, 'more term')}"


def _sum_text(terms: Sequence[str]) -> str:
    return " + ".join(terms).replace("+ -", "- ") or "0 B"


def _product_text(count: int, atoms: Sequence[Atom]) -> str:
    """Return so many bytes times some atoms; for a single minimum or maximum, its arguments in bytes: ``min(264 B*words, 1.1 MiB)``."""
    if len(atoms) == 1 and atoms[0].op in ("min", "max"):
        return f"{atoms[0].op}({', '.join(_bytes_text(count, a) for a in atoms[0].args)})"
    return "*".join([byte_text(count), *map(str, atoms)])


def _bytes_text(count: int, size: Size) -> str:
    if isinstance(size, int):
        return byte_text(count * size)
    terms = [("-" if c < 0 else "") + _product_text(count * abs(c), m) for m, c in size.terms]
    return " + ".join(terms).replace("+ -", "- ")


def require_values(symbols: Collection[str], values: Mapping[str, object]) -> None:
    """Raise `MemoryPlanError` with the names of the symbols without a value."""
    missing = sorted(set(symbols) - values.keys())
    if missing:
        plain = all(n.isidentifier() and not iskeyword(n) for n in missing)
        words = ", ".join(f"{n}=..." for n in missing) if plain else "**{" + ", ".join(f"{quoted(n)}: ..." for n in missing) + "}"
        error = MemoryPlanError(
            f"the memory of this program depends on {', '.join(missing)}: give {'it a value' if len(missing) == 1 else 'them values'}, as in plan.peak({words})"
        )
        error.missing = tuple(missing)
        raise error


def _is_switch(atom: Atom) -> bool:
    """Return True if an atom is 0 or 1: ``min(1, ...)`` of sizes, which are at least 0."""
    return atom.op == "min" and len(atom.args) == 2 and 1 in atom.args


def _switch_text(atom: Atom) -> str:
    """Return the condition of a switch that is 1, in words."""
    tested = next((a for a in atom.args if isinstance(a, Dim)), None)
    inner = tested.terms[0][0][0] if tested is not None and len(tested.terms) == 1 and len(tested.terms[0][0]) == 1 and tested.terms[0][1] == 1 else None
    if inner is not None and inner.op == "//" and isinstance(inner.args[1], int):
        return f"{inner.args[0]} >= {inner.args[1]}"
    if inner is not None and inner.op == "%":
        return f"{inner.args[0]} is not a multiple of {inner.args[1]}"
    return f"{tested} > 0"


def _limits(monomials: Sequence[Monomial], pieces: Any) -> tuple[Any, Any]:
    """Return lower and upper bounds of the pieces: with a factor of 0 or 1, a term is at most as large as without it."""
    base: dict[Monomial, int] = {m: column_index for column_index, m in enumerate(monomials)}
    upper, lower = pieces.copy(), pieces.copy()
    for column_index, m in enumerate(monomials):
        plain = tuple(atom for atom in m if not _is_switch(atom))
        if len(plain) == len(m) or not len(pieces):
            continue
        column = pieces[:, column_index]
        upper[:, column_index] = lower[:, column_index] = 0
        if plain in base:
            upper[:, base[plain]] += numpy.maximum(column, 0)
            lower[:, base[plain]] += numpy.minimum(column, 0)
        else:  # nothing else has these symbols: it stays as it is above, and counts nothing below if positive
            upper[:, column_index] = column
            lower[:, column_index] = numpy.minimum(column, 0)
    return upper, lower


def _undominated(pieces: Any, upper: Any, lower: Any) -> Any:
    """Return the rows without another row at least as large in every coefficient: only they can be the largest.

    ``upper`` and ``lower`` are limits of the rows in the same terms: a row with an upper limit below another's lower one falls too.
    """
    if not len(pieces):
        return pieces
    pieces, first = numpy.unique(pieces, axis=0, return_index=True)
    upper, lower = upper[first], lower[first]
    order = numpy.argsort(-lower.astype(numpy.float64).sum(axis=1), kind="stable")
    pieces, upper, lower = pieces[order], upper[order], lower[order]
    for row in range(min(8, len(pieces))):  # most are below one of the largest few
        below = (pieces <= pieces[row]).all(axis=1) | (upper <= lower[row]).all(axis=1)
        below[: row + 1] = False
        if row < len(pieces):
            pieces, upper, lower = pieces[~below], upper[~below], lower[~below]
        if row + 1 >= len(pieces):
            break
    undominated = numpy.zeros(len(pieces), dtype=bool)
    for row in range(len(pieces)):
        earlier = undominated.copy()
        undominated[row] = not ((pieces[earlier] >= pieces[row]).all(axis=1) | (lower[earlier] >= upper[row]).all(axis=1)).any()
    # an earlier row in this order may still be below it
    for row in numpy.flatnonzero(undominated):
        undominated[row] = False
        undominated[row] = not ((pieces[undominated] >= pieces[row]).all(axis=1) | (lower[undominated] >= upper[row]).all(axis=1)).any()
    return _envelope(pieces[undominated])


def _envelope(pieces: Any) -> Any:
    """Return the largest rows anywhere, among rows with differences in a constant and one other coefficient only: lines from 0 on."""
    if len(pieces) <= 8 or pieces.shape[1] < 2:
        return pieces.copy()
    column = 1 + int(numpy.argmax([len(numpy.unique(pieces[:, row])) for row in range(1, pieces.shape[1])]))
    groups: dict[bytes, list[int]] = {}
    for row, coefficients in enumerate(numpy.delete(pieces, [0, column], axis=1)):
        groups.setdefault(coefficients.tobytes(), []).append(row)
    hull_rows: list[int] = []
    for members in groups.values():
        hull: list[tuple[int, int, int]] = []
        for slope, constant, row in sorted((int(pieces[row, column]), int(pieces[row, 0]), row) for row in members):
            while hull and (constant >= hull[-1][1] or (len(hull) > 1 and _is_below(hull[-2], hull[-1], (slope, constant, row)))):
                hull.pop()
            hull.append((slope, constant, row))
        hull_rows += [row for _, _, row in hull]
    return pieces[sorted(hull_rows)].copy()


def _is_below(a: tuple[int, int, int], b: tuple[int, int, int], c: tuple[int, int, int]) -> bool:
    """Return True if the middle one of three lines, by rising slope and falling constant, is nowhere above both others."""
    return (a[1] - c[1]) * (b[0] - a[0]) <= (a[1] - b[1]) * (c[0] - a[0])
