"""The operators of PaddlePaddle 3 and their equals of 2.x, as the rows of `foreshape.interop.forms.rows` have them.

    type [| operands | results [| attributes]]

Without columns the operator here has the same slots, in this order. Operands stand by their places: ``Slot``, or ``Slot@attribute`` for an
attribute where it is constant, ``@attribute`` for an attribute always, ``One/List@attribute`` where a list of tensors has another slot, ``-`` for one
without a counterpart, and ``~`` for one without a meaning. Results are slots. Attributes have one name in both, but for ``new>old``; ``new!value``
has no counterpart and means the same only at this value (``*``: at any); ``old=value`` always has this value here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from foreshape.interop.forms.rows import pir_columns
from foreshape.language.operator.registry import get

_WORDS: Mapping[str, Any] = {"true": True, "false": False, "{}": [], '""': ""}


class OperandRow(NamedTuple):
    """An operand of the new operator: its slot for a tensor, its slot for a list, and its attribute; empty where there is none."""

    slot: str
    many: str
    attribute: str
    ignored: bool = False


class TableRow(NamedTuple):
    """An operator of PaddlePaddle 3 and its counterpart.

    Attributes:
        type: the operator here.
        operands: by place.
        results: their slots, by place; empty for one without a counterpart.
        renamed: attribute there -> here.
        only: attributes without a counterpart, and the value at which they mean nothing; None for any.
        fixed: attributes here with one value for this operator.
    """

    type: str
    operands: tuple[OperandRow, ...]
    results: tuple[str, ...]
    renamed: Mapping[str, str]
    only: Mapping[str, Any]
    fixed: Mapping[str, Any] = {}


def operators() -> tuple[str, ...]:
    """Return the names of all operators with a row."""
    return tuple(pir_columns())


@functools.cache
def row_of(name: str) -> TableRow | None:
    """Return the row of an operator; its form in place, with ``_`` at the end, has the same row."""
    line = pir_columns().get(name) or (pir_columns().get(name[:-1]) if name.endswith("_") else None)
    if line is None:
        return None
    (type,), *columns = [part.split() for part in line.split("|")]
    if not columns:
        schema = get(type).schema
        return TableRow(type, tuple([OperandRow(o.name, o.name, "") for o in schema.operands]), tuple([r.name for r in schema.results]), {}, {})
    operands, results, *extras = columns
    renamed: dict[str, str] = {}
    only: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for word in extras[0] if extras else ():
        if ">" in word:
            key, _, target = word.partition(">")
            renamed[key] = target
        elif "=" in word:
            key, _, value = word.partition("=")
            fixed[key] = _value(value)
        else:
            key, _, value = word.partition("!")
            only[key] = _value(value)
    return TableRow(type, tuple([_operand(word) for word in operands]), tuple(["" if r == "-" else r for r in results]), renamed, only, fixed)


def _operand(word: str) -> OperandRow:
    if word in "-~":
        return OperandRow("", "", "", word == "~")
    slots, _, attribute = word.partition("@")
    slot, _, many = slots.partition("/")
    return OperandRow(slot, many or slot, attribute)


def _value(word: str) -> Any:
    if word == "*":
        return None
    if word in _WORDS:
        return _WORDS[word]
    if word.startswith('"'):
        return word.strip('"')
    return float(word) if "." in word or "e" in word else int(word)
