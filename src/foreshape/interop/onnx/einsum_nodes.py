"""Einsum: any number of operands, written as products of two; diagonals for repeated letters."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.errors import FormatError
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.elementwise_nodes import result
from foreshape.interop.onnx.node_rules import onnx
from foreshape.program.variable import Variable
from foreshape.spec import FP64

_DOTS = "..."


@onnx("Einsum")
def einsum(c: Call) -> Any:
    """The letters right of ``->`` are kept; without it the letters of one place are, sorted. Whole numbers are exact below 2^53."""
    left, arrow, out = str(c.attribute("equation")).replace(" ", "").partition("->")
    terms, of = left.split(","), c.x(0).spec.known_dtype
    operands = [c.cast(x, FP64) if of.is_integer else x for x in c.all()]
    if len(terms) != len(operands):
        raise FormatError(f"{c.node.place}: Einsum has {len(operands)} operands; its equation is of {len(terms)}")
    if not arrow:
        out = (_DOTS if _DOTS in left else "") + "".join(sorted(letter for letter in set(left) if letter.isalpha() and left.count(letter) == 1))
    numbers = [x for term, x in zip(terms, operands, strict=True) if not term]
    pairs = [_diagonal(c, term, x) for term, x in zip(terms, operands, strict=True) if term]
    while len(pairs) > 2:
        (first, x), (second, y) = pairs[:2]
        needed = {*out}.union(*(term for term, _ in pairs[2:]))
        kept = "".join(letter for letter in dict.fromkeys(first + second) if letter in needed and letter != ".")
        kept = (_DOTS if _DOTS in first or _DOTS in second else "") + kept
        pairs[:2] = [(kept, _product(c, [(first, x), (second, y)], kept))]
    made = _product(c, pairs, out) if pairs else numbers.pop(0)
    for number in numbers:
        made = made * number
    return c.cast(made, of)


def _product(c: Call, pairs: list[tuple[str, Variable]], out: str) -> Variable:
    terms = [term for term, _ in pairs]
    if terms == [out]:
        return pairs[0][1]
    return result(c.op("einsum", {"equation": f"{','.join(terms)}->{out}"}, Operands=[x for _, x in pairs]))


def _diagonal(c: Call, term: str, x: Variable) -> tuple[str, Variable]:
    """Return an operand whose letters stand once: a repeated letter is for the diagonal, the last axis of the result."""
    while (twice := next((letter for letter in term if letter != "." and term.count(letter) > 1), None)) is not None:
        before, dots, after = term.partition(_DOTS)
        places = [at if at < len(before) else at - len(before) - len(dots) - len(after) if dots else at for at, one in enumerate(term) if one == twice]
        x = layer.diagonal(x, axis1=places[0], axis2=places[1])
        taken, left = 0, ""
        for letter in term:
            taken += letter == twice
            left += "" if letter == twice and taken <= 2 else letter
        term = left + twice
    return term, x
