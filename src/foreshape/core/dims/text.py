"""The text of sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foreshape.core.dims.expression import Monomial

CALLED = ("min", "max", "broadcast")
"""The operations written as calls."""
_RESERVED = (*CALLED, "ceil")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@]*\Z")


def symbol_text(name: str) -> str:
    """Return the text of a symbol: a plain name as it is, another one in quotes."""
    if _PLAIN_NAME.match(name) and name not in _RESERVED:
        return name
    return json.dumps(name).replace(";", "\\u003b").replace("\x7f", "\\u007f")  # a file separates sizes with semicolons


def term_text(term: tuple[Monomial, int]) -> Iterator[str]:
    """Yield a term with its sign, in pieces."""
    m, c = term
    yield " - " if c < 0 else " + "
    size = abs(c)
    if size != 1 or not m:
        yield str(size)
        if m:
            yield "*"
    for index, atom in enumerate(m):
        yield "*" + atom.text if index else atom.text


def text_of_terms(terms: tuple[tuple[Monomial, int], ...]) -> str:
    """Return a polynomial."""
    if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 and terms[0][0][0].op in ("//", "%"):
        return terms[0][0][0].name
    out = "".join([part for term in terms for part in term_text(term)])
    return "-" + out[3:] if out[1] == "-" else out[3:]
