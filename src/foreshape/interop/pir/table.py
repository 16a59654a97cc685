"""The operators of PaddlePaddle 3 and their equals of 2.x: `operators.txt`, a line each.

    name [type] | operands | results [| attributes]

``type`` is the operator here, if it has another name. Operands stand by their places: ``Slot``, or ``Slot@attribute`` for an attribute where it is
constant, ``@attribute`` for an attribute always, ``One/List@attribute`` where a list of tensors has another slot, ``-`` for one without a counterpart,
and ``~`` for one without a meaning. Results are slots. Attributes have one name in both, but for ``new>old``; ``new!value`` has no counterpart and means
the same only at this value (``*``: at any).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

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
    """

    type: str
    operands: tuple[OperandRow, ...]
    results: tuple[str, ...]
    renamed: Mapping[str, str]
    only: Mapping[str, Any]


@functools.cache
def _lines() -> dict[str, str]:
    text = resources.files("foreshape.interop.pir").joinpath("operators.txt").read_text()
    return {line.split(" ", 1)[0]: line for line in text.splitlines()}


def operators() -> tuple[str, ...]:
    """Return the names of all operators in the table."""
    return tuple(_lines())


@functools.cache
def row_of(name: str) -> TableRow | None:
    """Return the row of an operator; its form in place, with ``_`` at the end, has the same row."""
    line = _lines().get(name) or (_lines().get(name[:-1]) if name.endswith("_") else None)
    if line is None:
        return None
    head, operands, results, *extras = [part.split() for part in line.split("|")]
    renamed: dict[str, str] = {}
    only: dict[str, Any] = {}
    for word in extras[0] if extras else ():
        if ">" in word:
            key, _, target = word.partition(">")
            renamed[key] = target
        else:
            key, _, value = word.partition("!")
            only[key] = _value(value)
    return TableRow(head[-1], tuple([_operand(word) for word in operands]), tuple(["" if r == "-" else r for r in results]), renamed, only)


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
