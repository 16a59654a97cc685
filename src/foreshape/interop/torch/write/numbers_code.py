"""Sizes and numbers as Python expressions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from foreshape.core.dims import Dim, Size
from foreshape.core.dims.expression import Atom

NameOf = Callable[[str], str]
"""Symbol -> the expression with its size."""

LONG_CONSTANT: Final = 64
"""Constants of more numbers than this are buffers of the module, not written out."""


def size_code(size: Size, name_of: NameOf) -> str:
    """Return a size as an expression of ints, without parentheses around it."""
    if not isinstance(size, Dim):
        return str(int(size))
    out = ""
    for atoms, factor in size.terms:
        parts = [_atom(atom, name_of) for atom in atoms]
        if abs(factor) != 1 or not parts:
            parts.insert(0, str(abs(factor)))
        out += (" - " if factor < 0 else " + ") + " * ".join(parts)
    return f"-{out[3:]}" if out.startswith(" - ") else out[3:]


def _atom(atom: Atom, name_of: NameOf) -> str:
    if not atom.op:
        return name_of(atom.name)
    args = [size_code(a, name_of) for a in atom.args]
    if atom.op in ("//", "%"):
        return f"({_grouped(args[0])} {atom.op} {_grouped(args[1])})"
    if atom.op in ("min", "max"):
        out = args[0]
        for argument in args[1:]:
            out = f"torch.sym_{atom.op}({out}, {argument})"  # also of the sizes of an export
        return out
    out = args[0]
    for argument in args[1:]:  # of broadcast sizes one is 1, or they are equal
        out = f"torch.sym_max({out}, {argument})"
    return out


def _grouped(text: str) -> str:
    return f"({text})" if " " in text and not (text[0] == "(" and text.find(")") == len(text) - 1) else text


def is_size(value: Any) -> bool:
    """Tell whether a known number of a tensor is a size: an int, or one in symbols."""
    return isinstance(value, (int, Dim)) and not isinstance(value, bool)


def number_code(value: Any) -> str:
    """Return a float as it stands in code: one of 32 bits, as attributes are, with its own few digits."""
    if value != value or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    for digits in range(1, 9) if abs(value) < 3e38 else ():
        text = f"{value:.{digits}g}"
        if struct.pack("f", float(text)) == struct.pack("f", value):
            return repr(float(text)) if struct.unpack("f", struct.pack("f", value))[0] == value else repr(value)
    return repr(value)


def one_symbol(size: Dim) -> tuple[str, int]:
    """Return the symbol of a size and its factor, for a symbol or a multiple of one; no name for others."""
    terms = size.terms
    if len(terms) == 1 and len(terms[0][0]) == 1 and not terms[0][0][0].op and terms[0][1] > 0:
        return terms[0][0][0].name, terms[0][1]
    return "", 1


def nested(items: Sequence[str], dims: Sequence[int]) -> str:
    """Return expressions as lists of some dims."""
    if not dims:
        return items[0]
    inner = len(items) // dims[0] if dims[0] else 0
    return f"[{', '.join(nested(items[row * inner : (row + 1) * inner], dims[1:]) for row in range(dims[0]))}]"
