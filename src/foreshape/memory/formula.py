"""The largest of several sums of sizes, as a formula in a program's symbols: prepared once, then evaluated in microseconds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

import numpy

from foreshape.dims import INT64_MAX, Dim, Size, evaluate, symbols_of
from foreshape.errors import MemoryPlanError
from foreshape.program.literal import quoted

if TYPE_CHECKING:
    from foreshape.dims.expression import Atom, Monomial

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def byte_text(count: int | float) -> str:
    """A number of bytes as a person writes it: ``4.1 MiB``."""
    size, unit = float(count), 0
    while abs(size) >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{int(size)} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}" if abs(size) < 100 else f"{size:.0f} {_UNITS[unit]}"


class Terms:
    """The products of symbols that occur in some sizes, numbered.

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
        """The products, by number."""
        return list(self._columns)

    def of(self, size: Size) -> list[tuple[int, int]]:
        """A size as (number of the product, coefficient) pairs."""
        found = self._of.get(size)
        if found is None:
            terms = size.terms if isinstance(size, Dim) else (((), size),)
            found = self._of[size] = [(self._columns.setdefault(m, len(self._columns)), c) for m, c in terms]
        return found


class Formula:
    """``max`` over some pieces, each a polynomial in the symbols with whole coefficients, in bytes.

    Args:
        sizes: the terms that the pieces are made of.
        counts: ``[pieces, sizes]``: how often each is in each piece.
    """

    def __init__(self, sizes: Sequence[Size], counts: Any) -> None:
        terms = Terms(sizes)
        of_sizes = numpy.zeros((len(sizes), len(terms)), dtype=numpy.int64)
        for at, size in enumerate(sizes):
            for column, coefficient in terms.of(size):
                of_sizes[at, column] = coefficient
        self._monomials = terms.monomials()
        self._pieces = _undominated(numpy.asarray(counts, dtype=numpy.int64).reshape(len(counts), len(sizes)) @ of_sizes)

    @classmethod
    def of_pieces(cls, terms: Terms, pieces: Any) -> Formula:
        """From the coefficients of the terms, ``[pieces, terms]``."""
        made = object.__new__(cls)
        made._monomials = terms.monomials()
        made._pieces = _undominated(pieces)
        return made

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols that it depends on."""
        used = self._pieces.any(axis=0)
        return frozenset(n for m, u in zip(self._monomials, used.tolist(), strict=True) if u for atom in m for n in symbols_of(_dim_of(atom)))

    def __call__(self, values: Mapping[str, int]) -> int:
        """The number of bytes. Raises `MemoryPlanError` where a symbol has no value."""
        require_values(self.symbols, values)
        factors = self._factors(values)
        return max((sum(c * f for c, f in zip(piece, factors, strict=True) if c) for piece in self._pieces.tolist()), default=0)

    def at(self, values: Mapping[str, int]) -> str:
        """The piece that is the largest with these values, as a person reads it. Raises `MemoryPlanError` where a symbol has no value."""
        require_values(self.symbols, values)
        factors = self._factors(values)
        pieces: list[list[int]] = self._pieces.tolist()
        return self._text(max(pieces, key=lambda p: sum(c * f for c, f in zip(p, factors, strict=True) if c))) if pieces else "0 B"

    def __len__(self) -> int:
        """How many pieces it has."""
        return len(self._pieces)

    def _factors(self, values: Mapping[str, int]) -> list[int]:
        out: list[int] = []
        for m in self._monomials:
            factor = 1
            for atom in m:
                factor *= evaluate(_dim_of(atom), values) if symbols_of(_dim_of(atom)) <= values.keys() else 0
            out.append(factor)
        return out

    def rises_in(self, name: str) -> bool:
        """Whether it can only grow with a symbol, as it does unless sizes are subtracted."""
        for piece in self._pieces.tolist():
            for m, c in zip(self._monomials, piece, strict=True):
                if c and any(name in symbols_of(_dim_of(atom)) and (c < 0 or not _rises(atom, name)) for atom in m):
                    return False
        return True

    def __str__(self) -> str:
        """As a person reads it: ``max(4.1 MiB + 12.3 KiB*batch, 16.4 KiB*batch)``."""
        texts = [self._text(p) for p in self._pieces.tolist()] or ["0 B"]
        return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"

    __repr__ = __str__

    def _text(self, piece: Sequence[int]) -> str:
        terms: list[str] = []
        for m, c in zip(self._monomials, piece, strict=True):
            if c:
                terms.append("*".join([byte_text(abs(c)), *(str(atom) for atom in m)]))
                if c < 0:
                    terms[-1] = "-" + terms[-1]
        return " + ".join(terms).replace("+ -", "- ") or "0 B"


def require_values(symbols: Collection[str], values: Mapping[str, int]) -> None:
    """Raise `MemoryPlanError` with the names of the symbols that have no value."""
    missing = sorted(set(symbols) - values.keys())
    if missing:
        plain = all(n.isidentifier() and not iskeyword(n) for n in missing)
        given = ", ".join(f"{n}=..." for n in missing) if plain else "**{" + ", ".join(f"{quoted(n)}: ..." for n in missing) + "}"
        raise MemoryPlanError(f"the memory of this program depends on {', '.join(missing)}: give {'it a value' if len(missing) == 1 else 'them values'}, "
                              f"as in plan.peak({given})")  # fmt: skip


def _rises(atom: Atom, name: str) -> bool:
    """Whether an atom can only grow with a symbol."""
    if atom.op not in ("", "//", "min", "max") or (atom.op == "//" and name in symbols_of(atom.args[1])):
        return False
    terms = [t for a in atom.args if isinstance(a, Dim) for t in a.terms]
    return all(c > 0 and _rises(inner, name) for m, c in terms for inner in m if name in symbols_of(_dim_of(inner)))


def _dim_of(atom: Any) -> Dim:
    from foreshape.dims.expression import of_atom

    return of_atom(atom)


def _undominated(pieces: Any) -> Any:
    """The rows that no other row is at least as large as in every coefficient: only they can be the largest."""
    if not len(pieces):
        return pieces
    pieces = numpy.unique(pieces, axis=0)
    order = numpy.argsort(-pieces.astype(numpy.float64).sum(axis=1), kind="stable")
    order = pieces[order]
    for row in order[:8]:  # most are below one of the largest few
        order = order[~(order <= row).all(axis=1) | (order == row).all(axis=1)]
    kept = numpy.empty_like(order)
    count = 0
    for row in order:
        if not (kept[:count] >= row).all(axis=1).any():
            kept[count] = row
            count += 1
    return kept[:count].copy()
