"""All attributes of an op: those that its operator knows, bound to it, and those that are only kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from foreshape.errors import SchemaError
from foreshape.operator.attributes import AttrType, exact, words_for
from foreshape.operator.registry import find

if TYPE_CHECKING:
    from foreshape.operator.operator import Operator

BOOKKEEPING = frozenset({"op_namescope", "op_device", "op_callstack", "with_quant_attr", "use_mkldnn", "use_cudnn", "use_quantizer",
                         "mkldnn_data_type", "is_test"})  # fmt: skip
"""Attributes that any op may carry without a schema: hints to other programs, kept and never an error."""


class Attributes:
    """All attributes of an op, interned: those of its schema, bound in `operator`, and others that are only kept.

    ``entries`` are (name, type, value) in the order of the file; ``op_role`` and ``op_role_var`` stand there without a value,
    since each op has its own.
    """

    __slots__ = ("__weakref__", "_gradient", "entries", "error", "operands", "operator", "sub_blocks", "type", "values", "wire")

    type: str
    entries: tuple[tuple[str, AttrType, Any], ...]
    values: dict[str, Any]
    operator: Operator | None
    """None where the op type is unknown, or where `error` says what is wrong with the attributes."""
    error: SchemaError | None
    operands: dict[str, tuple[str, ...]]
    """Slot -> the names of variables that the file has in an attribute."""
    wire: Any
    """A place for the wire room to keep the serialised form."""
    sub_blocks: tuple[int, ...]
    """The blocks that an op with these attributes runs."""
    _gradient: Attributes | None

    @staticmethod
    def of(type: str, entries: tuple[tuple[str, AttrType, Any], ...], keys: tuple[Any, ...] | None = None) -> Attributes:
        """The attributes with these entries. ``keys``: what `exact` gives for each of them, where that is known."""
        cls = find(type)
        key = (cls, type, exact(entries) if keys is None else keys)  # a class that is made later, or made anew, is bound by what is read after that
        found = _attributes.get(key)
        if found is None:
            found = object.__new__(Attributes)
            found.type, found.entries = type, entries
            found.values = {n: v for n, _, v in entries}
            found.operator = None
            found.error = None
            found.operands = {}
            found.wire = None
            found._gradient = None
            found.sub_blocks = _sub_blocks(entries)
            if cls is not None:
                found.operands = _operands(cls, entries)
                try:
                    found.operator = cls.with_values(_loaded_values(cls, found))
                except SchemaError as error:
                    found.error = error
            found = _attributes.setdefault(key, found)
        return found

    @property
    def gradient(self) -> Attributes:
        """The same attributes for the operator ``<type>_grad``."""
        found = self._gradient
        if found is None:
            found = self._gradient = Attributes.of(self.type + "_grad", self.entries)
        return found


def _sub_blocks(entries: tuple[tuple[str, AttrType, Any], ...]) -> tuple[int, ...]:
    out: list[int] = []
    for _, type, value in entries:
        if type is AttrType.BLOCK and isinstance(value, int):
            out.append(value)
        elif type is AttrType.BLOCKS and isinstance(value, tuple):
            out.extend(value)  # pyright: ignore[reportUnknownArgumentType]
    return tuple(out)


_NAMING = (AttrType.VAR, AttrType.VARS)

_attributes: WeakValueDictionary[Any, Attributes] = WeakValueDictionary()


def _operands(cls: type[Operator], entries: tuple[tuple[str, AttrType, Any], ...]) -> dict[str, tuple[str, ...]]:
    """The variables that attributes name which an operand takes the place of."""
    out: dict[str, tuple[str, ...]] = {}
    for name, type, value in entries if cls.schema.in_attributes else ():
        slot = cls.schema.in_attributes.get(name)
        if slot is not None and type in _NAMING:
            names: list[Any] = [*value] if isinstance(value, tuple) else [value]
            if all(isinstance(n, str) for n in names):
                out[slot] = tuple(names)
    return out


def _loaded_values(cls: type[Operator], found: Attributes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    given = found.values
    named = {n for n, type, _ in found.entries if type in _NAMING}  # what is a variable's is not known here
    for name, field in cls.schema.attributes.items():
        if name in named and (name in cls.schema.in_attributes or cls.forward_class is not None):
            values[name] = field.default
        elif name in given:
            values[name] = cls.check_attribute(name, given[name])
        elif field.older and field.older in given:
            values[name] = cls.check_attribute(name, given[field.older])
        elif field.default.__class__.__name__ == "_Required":
            raise SchemaError(f"{cls.type} needs the attribute {name}: {words_for(field.type)}")
        else:
            values[name] = field.default
    return values
