"""Arithmetic over dimensions: a dim is an ``int`` or a `Dim`, a symbolic expression over named symbols.

A `Dim` is a polynomial with integer coefficients over atoms. An atom is a symbol, or a floor division, modulo, minimum, maximum or broadcast without a
polynomial form. Expressions are kept in one normal form and interned: equal expressions are the same object and are compared by identity. Symbols stand for
sizes: integers of at least zero.

Questions (`equal`, `less_equal`) have three answers: True, False, and None if it depends on the symbols.
"""

from __future__ import annotations

from foreshape.core.dims.derived import ceildiv, product
from foreshape.core.dims.expression import (
    INT64_MAX,
    INT64_MIN,
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_TERMS,
    Dim,
    Size,
    floordiv,
    is_symbol,
    mod,
    only_atom,
    symbol,
    symbol_after,
    symbol_name,
)
from foreshape.core.dims.extremes import broadcast, caps, maximum, minimum, no_less, reaches
from foreshape.core.dims.questions import bounds, broadcasts, equal, less_equal
from foreshape.core.dims.ratio import Ratio, ratio
from foreshape.core.dims.reader import MAX_TEXT, parse
from foreshape.core.dims.symbols import broadcast_symbols, evaluate, explain_symbols, substitute, symbols_of

__all__ = [
    "INT64_MAX",
    "INT64_MIN",
    "MAX_DEPTH",
    "MAX_LENGTH",
    "MAX_TERMS",
    "MAX_TEXT",
    "Dim",
    "Ratio",
    "Size",
    "bounds",
    "broadcast",
    "broadcast_symbols",
    "broadcasts",
    "caps",
    "ceildiv",
    "equal",
    "evaluate",
    "explain_symbols",
    "floordiv",
    "is_symbol",
    "less_equal",
    "maximum",
    "minimum",
    "mod",
    "no_less",
    "only_atom",
    "parse",
    "product",
    "ratio",
    "reaches",
    "substitute",
    "symbol",
    "symbol_after",
    "symbol_name",
    "symbols_of",
]
