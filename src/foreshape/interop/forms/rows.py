"""Operators one to one in another format: `operators.txt`, a line for each operator of ours.

    type; pir NAME ...; onnx NODE; from onnx NODE; to onnx NODE; from torch CALL; to torch EXPRESSION

Lines stand in the order of types, and the parts in this order. An absent part is a function (`foreshape.interop.forms.rules`), or no form at all.
``onnx`` is both ways.

    leaky_relu; pir leaky_relu | X | Out | negative_slope>alpha; onnx LeakyRelu(X, alpha=0.01); to torch F.leaky_relu(X, alpha)

- ``NODE`` is an operator of ONNX with its operands by our slots and its attributes: ``alpha=0.01`` is ours of the same name, with ONNX's default;
  ``beta:offset=0.5`` is their beta and our offset. Without brackets all operands are given, and no attribute.
- ``CALL`` is a function of ATen with its arguments likewise; only its name means one tensor, in the element type of the result.
- ``EXPRESSION`` is torch code; our slots and attributes in it stand for their values.
- ``pir`` says the operator of PaddlePaddle 3, and its operands, results and attributes here (`foreshape.interop.pir.table`); only its name means
  the slots of the operator here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final, NamedTuple

_DIRECTIONS: Final = {"onnx": ("from onnx", "to onnx"), "from onnx": ("from onnx",), "to onnx": ("to onnx",)}


class MappedAttribute(NamedTuple):
    """An attribute of a node or call: its name there, its name here, and the default there."""

    name: str
    attribute: str
    default: Any


class Signature(NamedTuple):
    """An operator of another format: its name, its operands by our slots (None: all of them), and its attributes."""

    name: str
    slots: tuple[str, ...] | None
    arguments: tuple[MappedAttribute, ...]


class OperatorRow(NamedTuple):
    """An operator's line: its type, and direction -> its form."""

    type: str
    signatures: Mapping[str, Signature]
    code: str


class _Table(NamedTuple):
    rows: dict[str, OperatorRow]
    from_onnx: dict[str, str]
    from_torch: dict[str, str]
    pir: dict[str, str]


@functools.cache
def _table() -> _Table:
    table = _Table({}, {}, {}, {})
    for line in resources.files(__package__ or "").joinpath("operators.txt").read_text().splitlines():
        type, *parts = line.split("; ")
        signatures: dict[str, Signature] = {}
        code = ""
        for part in parts:
            if part.startswith("pir "):
                names, *columns = part[4:].split(" | ")
                table.pir.update(dict.fromkeys(names.split(), " | ".join([type, *columns])))
            elif part.startswith("to torch "):
                code = part[9:]
            elif part.startswith("from torch "):
                signatures["from torch"] = _signature(part[11:])
                table.from_torch[signatures["from torch"].name] = type
            else:
                direction = next(name for name in _DIRECTIONS if part.startswith(f"{name} "))
                signatures.update(dict.fromkeys(_DIRECTIONS[direction], _signature(part[len(direction) + 1 :])))
        if "from onnx" in signatures:
            table.from_onnx[signatures["from onnx"].name] = type
        table.rows[type] = OperatorRow(type, signatures, code)
    return table


def _signature(text: str) -> Signature:
    name, _, arguments = text.partition("(")
    if not arguments:
        return Signature(name, None, ())
    words = arguments.removesuffix(")").split(", ")
    return Signature(name, tuple(w for w in words if "=" not in w), tuple(_argument(w) for w in words if "=" in w))


def _argument(word: str) -> MappedAttribute:
    name, _, default = word.partition("=")
    there, _, here = name.partition(":")
    return MappedAttribute(there, here or there, float(default) if "." in default else int(default))


# --- by name


def row(type: str) -> OperatorRow:
    """Return the row of an operator of ours. Raises `KeyError` if it has none."""
    return _table().rows[type]


def row_from_onnx(name: str) -> OperatorRow | None:
    """Return the row of an operator of ONNX."""
    type = _table().from_onnx.get(name)
    return None if type is None else _table().rows[type]


def row_from_torch(name: str) -> OperatorRow | None:
    """Return the row of an operator of ATen."""
    type = _table().from_torch.get(name)
    return None if type is None else _table().rows[type]


def row_to(direction: str, type: str) -> OperatorRow | None:
    """Return the row of an operator of ours if it has a form in a direction: ``to onnx``, ``to torch``."""
    row = _table().rows.get(type)
    return row if row is not None and (bool(row.code) if direction == "to torch" else direction in row.signatures) else None


def types_to(direction: str) -> list[str]:
    """Return the types of the operators with a row in a direction."""
    return [type for type in _table().rows if row_to(direction, type) is not None]


def names_from_onnx() -> list[str]:
    """Return the names of the operators of ONNX with a row."""
    return list(_table().from_onnx)


def pir_columns() -> Mapping[str, str]:
    """Return the operators of PaddlePaddle 3 -> their columns: the type here, and where they are said the operands, results and attributes."""
    return _table().pir
