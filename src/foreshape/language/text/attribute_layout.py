"""Attribute layouts: the attributes of an op and their order, without their values.

Ops described here carry their schema's attributes and the roles, sorted by name. Files carry more, in their own
order. The text form writes such an order once per operator, and each op only its deviations from the usual values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from foreshape.language.operator.attributes import AttrType, exact
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import find
from foreshape.language.program.scopes import ATTRIBUTE

ROLES: Final[Mapping[str, AttrType]] = {"op_role": AttrType.INT, "op_role_var": AttrType.STRINGS}
"""The attributes of each op's own, not shared with others of equal values."""


class Item(NamedTuple):
    """One place in a layout. Without a type it is of the operator's schema, or a role; with one it has a usual value."""

    name: str
    type: AttrType | None
    usual: Any


Layout: TypeAlias = tuple[Item, ...]
Shape: TypeAlias = tuple[tuple[str, AttrType], ...]


def own_layout(cls: type[Operator]) -> Layout:
    """Return the layout of an op described here, without the attributes that few ops have: those that PaddlePaddle 2 lacks."""
    return tuple(Item(name, None, None) for name in sorted({*cls.schema.attributes, *ROLES} - cls.schema.later.keys()))


def default_of(cls: type[Operator] | None, item: Item) -> Any:
    """Return the value of an attribute omitted in the text; the schema's `REQUIRED` if it may not be omitted."""
    if item.type is not None or cls is None or item.name not in cls.schema.attributes:
        return item.usual
    return cls.schema.attributes[item.name].default


def type_of(cls: type[Operator] | None, item: Item) -> AttrType:
    """Return the stored type of an attribute in a layout."""
    if item.type is not None:
        return item.type
    if cls is not None and item.name in cls.schema.attributes:
        return cls.schema.attributes[item.name].type
    return ROLES[item.name]


def layout_of(attributes: Attributes, cls: type[Operator] | None) -> Layout:
    """Return the layout of these attributes, with their own values as the usual ones."""
    items: list[Item] = []
    for name, type, value in attributes.entries:
        role = value is None and ROLES.get(name) is type
        schema = cls is not None and name in cls.schema.attributes and cls.schema.attributes[name].type is type
        items.append(Item(name, None, None) if role or schema else Item(name, type, value))
    return tuple(items)


def _without_additions(shape: Shape, cls: type[Operator], usual: Layout) -> Shape:
    """Return the shape without the scope and attributes that PaddlePaddle 2 lacks, which the op itself writes, if the others are those of an op
    described here, in order.
    """
    additions = {(a.name, a.type) for a in cls.schema.later.values()} | {(ATTRIBUTE, AttrType.STRING)}
    if len(shape) <= len(usual) or additions.isdisjoint(shape) or list(shape) != sorted(shape):
        return shape
    remaining = tuple(e for e in shape if e not in additions)
    return remaining if remaining == tuple((i.name, type_of(cls, i)) for i in usual) else shape


class AttributeLayouts:
    """The layouts of a program's ops, by operator type, in the order of their appearance."""

    __slots__ = ("_found", "by_type")

    def __init__(self, sets: Iterable[Attributes]) -> None:
        self.by_type: dict[str, dict[Shape, tuple[int, Layout]]] = {}
        self._found: dict[int, tuple[int, Layout]] = {}
        for attributes in sets:
            if id(attributes) in self._found:
                continue
            cls = find(attributes.type)
            if cls is None:
                continue
            shape = tuple((n, t) for n, t, _ in attributes.entries)
            usual = own_layout(cls)
            shape = _without_additions(shape, cls, usual)
            layouts = self.by_type.setdefault(attributes.type, {})
            entry = layouts.get(shape)
            if entry is None:
                entry = layouts[shape] = (len(layouts) + 1, usual if len(shape) < len(attributes.entries) else layout_of(attributes, cls))
            self._found[id(attributes)] = entry

    def of(self, attributes: Attributes) -> tuple[int, Layout]:
        """Return the number of the layout among its operator's, from 1, and the layout."""
        return self._found[id(attributes)]

    def written(self, type: str) -> list[Layout]:
        """Return the layouts of an operator for the text: none if all its ops are as described here."""
        layouts = [layout for _, layout in self.by_type[type].values()]
        cls = find(type)
        return [] if cls is not None and layouts == [own_layout(cls)] else layouts


def same(a: Any, b: Any) -> bool:
    """Tell whether two attribute values are the same, including NaN and signs of zero."""
    return exact(a) == exact(b)
