"""The symbols of sizes, and the substitution of sizes for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from foreshape.core.dims.expression import Atom, Dim, Size, checked, of_atom, only_atom
from foreshape.core.dims.extremes import apply
from foreshape.errors import ShapeError


def symbols_of(a: Size) -> set[str]:
    """Return the names of the symbols in ``a``."""
    return set(_names(a))


def _names(a: Size) -> frozenset[str]:
    if isinstance(a, (int, float)):  # a float is a known value of a tensor, as a `Ratio` is, which has its symbols
        return frozenset()
    try:
        return a.found_symbols
    except AttributeError:
        a.found_symbols = names = frozenset([atom.name for atom in _symbol_atoms(a)])
        return names


def broadcast_symbols(a: Size) -> set[str]:
    """Return the names of the bare symbols in the broadcasts of ``a``."""
    atoms = [atom for m, _ in a.terms for atom in m] if isinstance(a, Dim) else []
    return {inner.name for atom in atoms if atom.op == "broadcast" for x in atom.args if (inner := only_atom(x)) is not None and not inner.op}


def _symbol_atoms(a: Size) -> Iterator[Atom]:
    stack: list[Size] = [a]
    while stack:
        size = stack.pop()
        if isinstance(size, Dim):
            for m, _ in size.terms:
                for atom in m:
                    if atom.op:
                        stack.extend(atom.args)
                    else:
                        yield atom


def substitute(a: Size, values: Mapping[str, Size]) -> Size:
    """Return ``a`` with symbols replaced by sizes; symbols not in ``values`` stay.

    Raises:
        ShapeError: a division by zero, or a result past a 64-bit integer.
    """
    if isinstance(a, int) or not any(name in values for name in _names(a)):
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
    """Return ``a`` as a number.

    Raises:
        ShapeError: a symbol has no value, a division by zero, or a result past a 64-bit integer.
    """
    if isinstance(a, int):
        return a
    try:
        return _number(a, values)
    except KeyError:
        raise ShapeError(f"{a} needs a value for {', '.join(sorted(symbols_of(substitute(a, values))))}") from None


def _number(a: Dim, values: Mapping[str, int]) -> int:
    """Return the same without making sizes on the way. Raise `KeyError` for a symbol without a value."""
    out = 0
    for m, term in a.terms:
        for atom in m:
            if not atom.op:
                term *= values[atom.name]
                continue
            args = [x if isinstance(x, int) else _number(x, values) for x in atom.args]
            value = min(args) if atom.op == "min" else max(args) if atom.op == "max" else apply(atom.op, tuple(args))
            assert isinstance(value, int)
            term *= value
        out += term
    return checked(out)


def explain_symbols(a: Size) -> list[str]:
    """Return the meaning of each symbol in ``a`` in place of an expression past the limits."""
    meanings = {s.name: s.stands_for for s in _symbol_atoms(a) if s.stands_for}
    return [f"{name} stands for a size that is too long to keep: {text}" for name, text in sorted(meanings.items())]
