"""All attributes of an op: known ones bound to its operator, and others merely kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import AttrType, entry_key, exact, words_for
from foreshape.language.operator.fields import REQUIRED
from foreshape.language.operator.registry import find

if TYPE_CHECKING:
    from foreshape.language.operator.operator import Operator

BOOKKEEPING = frozenset(
    {"op_namescope", "op_device", "op_callstack", "with_quant_attr", "use_mkldnn", "use_cudnn", "use_quantizer", "mkldnn_data_type", "is_test"}
)
"""Attributes of any op outside of schemas: hints to other programs, kept and never an error."""


class Attributes:
    """All attributes of an op, interned: the schema's, bound in `operator`, and others merely kept.

    ``entries`` are (name, type, value) in the order of the file; ``op_role`` and ``op_role_var`` stand there without a value,
    since each op has its own.
    """

    __slots__ = ("__weakref__", "_gradient", "entries", "error", "keys", "operands", "operator", "sub_blocks", "type", "values", "wire")

    type: str
    entries: tuple[tuple[str, AttrType, Any], ...]
    keys: tuple[Any, ...]
    """The results of `exact` for the entries."""
    values: dict[str, Any]
    operator: Operator | None
    """The bound operator; None for an unknown op type, or with an `error` of the attributes."""
    error: SchemaError | None
    operands: dict[str, tuple[str, ...]]
    """Slot -> the names of variables stored in an attribute of the file."""
    wire: Any
    """A place for the wire room to keep the serialised form."""
    sub_blocks: tuple[int, ...]
    """The blocks of an op with these attributes."""
    _gradient: Attributes | None

    @staticmethod
    def of(type: str, entries: tuple[tuple[str, AttrType, Any], ...], keys: tuple[Any, ...] | None = None, bound: Operator | None = None) -> Attributes:
        """Return the attributes with these entries. ``keys``: the results of `exact` for them, if known; ``bound``: their operator, if known."""
        cls = find(type)
        keys = exact(entries) if keys is None else keys
        key = (cls, type, keys)  # a class that is made later, or made anew, is bound by later reads
        attributes = _attributes.get(key)
        if attributes is None:
            attributes = object.__new__(Attributes)
            attributes.type, attributes.entries, attributes.keys = type, entries, keys  # pyright: ignore[reportAttributeAccessIssue]
            attributes.values = {n: v for n, _, v in entries}
            attributes.operator = None
            attributes.error = None
            attributes.operands = {}
            attributes.wire = None
            attributes._gradient = None
            attributes.sub_blocks = _sub_blocks(entries)
            if cls is not None:
                attributes.operands = _operands(cls, entries)
                try:
                    attributes.operator = bound if bound.__class__ is cls else cls.with_values(_loaded_values(cls, attributes))
                except SchemaError as error:
                    attributes.error = error
            attributes = _attributes.setdefault(key, attributes)
        return attributes

    def with_text(self, name: str, value: str) -> Attributes:
        """Return the same attributes with a text beside those of the schema, in place of the former one."""
        entries = [(e, k) for e, k in zip(self.entries, self.keys, strict=True) if e[0] != name]
        place = sum(e[0] < name for e, _ in entries)
        entries.insert(place, ((name, AttrType.STRING, value), entry_key(name, AttrType.STRING, value)))
        return Attributes.of(self.type, tuple([e for e, _ in entries]), tuple([k for _, k in entries]), self.operator)

    def refused(self, error: SchemaError) -> Attributes:
        """Return the same attributes of an op, unfit for any operator for the reason ``error``."""
        out = object.__new__(Attributes)
        for name in ("type", "entries", "keys", "values", "operands", "wire", "sub_blocks", "_gradient"):
            setattr(out, name, getattr(self, name))
        out.operator, out.error = None, error
        return out

    @property
    def gradient(self) -> Attributes:
        """Return the same attributes for the operator ``<type>_grad``."""
        attributes = self._gradient
        if attributes is None:
            attributes = self._gradient = Attributes.of(self.type + "_grad", self.entries)
        return attributes


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
    """Return the variables named by attributes in place of operands."""
    out: dict[str, tuple[str, ...]] = {}
    for name, type, value in entries if cls.schema.in_attributes else ():
        slot = cls.schema.in_attributes.get(name)
        if slot is not None and type in _NAMING:
            names: list[Any] = [*value] if isinstance(value, tuple) else [value]
            if all(isinstance(n, str) for n in names):
                out[slot] = tuple(names)
    return out


def _loaded_values(cls: type[Operator], attributes: Attributes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    entries = attributes.values
    variables = {n for n, type, _ in attributes.entries if type in _NAMING}  # the variable's value is unknown here
    for name, field in cls.schema.attributes.items():
        if name in variables and (name in cls.schema.in_attributes or cls.forward_class is not None):
            values[name] = field.default
        elif name in entries:
            values[name] = cls.check_attribute(name, entries[name])
        elif field.older and field.older in entries:
            values[name] = cls.check_attribute(name, entries[field.older])
        elif field.default is REQUIRED:
            raise SchemaError(f"{cls.type} needs the attribute {name}: {words_for(field.type)}")
        else:
            values[name] = field.default
    return values
