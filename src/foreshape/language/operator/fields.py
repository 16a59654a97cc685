"""The declarations of an operator class: operands, results, attributes and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from foreshape.core.data_class import data_class, field
from foreshape.core.spec import ANY, LOD_TENSOR, SELECTED_ROWS, DType, Kind
from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import AttrType, coerce

DENSE: Final = (LOD_TENSOR,)
DENSE_OR_ROWS: Final = (LOD_TENSOR, SELECTED_ROWS)
FLOAT_RESULT_KINDS: Final = DENSE_OR_ROWS


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED: Final = _Required()
"""The default of a required attribute."""


Layout = Literal["same", "strided", "reshaped", "row"]
"""The layout of a result in memory.

A view has the element type of its base. "same": as its base. "strided": with strides of its own; several elements may be one number in memory, so
nothing can be written into it. (A scaled gradient has memory of its own then, as large as its base.) "reshaped": the same elements contiguous,
a view of a base either contiguous or of equal dims, and possibly a copy of another one. A gradient of another number of elements than its base
is a view only if "strided".

A result with memory of its own is "same": contiguous if all tensors among the operands are (and otherwise maybe not); or "row": always
contiguous.
"""


@data_class(frozen=True)
class Operand:
    """An input slot: the element types and kinds it takes, whether it may be absent, and whether it holds a list."""

    dtypes: tuple[DType, ...]
    doc: str
    many: bool
    optional: bool
    kinds: tuple[Kind, ...]
    same_type_as: str | None
    name: str = ""
    attribute: str | None = None
    unknown_dims: bool = False
    may_lack: bool = False


@data_class(frozen=True)
class Result:
    """An output slot. ``may_share``: the operand whose memory it may take over; ``view_of``: the base of the view, in a
    ``layout``; ``updates``: the operand changed in place; ``new_offsets``: its kernel returns the offsets of its rows, too.
    """

    doc: str
    many: bool
    optional: bool
    may_share: str | None
    view_of: str | None
    updates: str | None
    new_offsets: bool = False
    name: str = ""
    layout: Layout = "same"


@data_class(frozen=True)
class Attribute:
    """An attribute: its stored type, default, and allowed values."""

    type: AttrType
    default: Any
    doc: str
    choices: tuple[Any, ...] | None
    low: float | None
    high: float | None
    name: str = ""
    older: str = ""
    since: int = 2


def named(field: Operand | Result | Attribute, name: str) -> Operand | Result | Attribute:
    """Return the same field with a name; many times faster than `dataclasses.replace`, and run for every field of every operator."""
    values: list[Any] = [name if k == "name" else getattr(field, k) for k in field.__match_args__]
    return type(field)(*values)


def operand(
    dtypes: Sequence[DType] = ANY,
    *,
    doc: str = "",
    many: bool = False,
    optional: bool = False,
    kinds: Sequence[Kind] = DENSE,
    same_type_as: str | None = None,
    name: str = "",
    attribute: str | None = None,
    unknown_dims: bool = False,
    may_lack: bool = False,
) -> Any:
    """Declare an input slot of an operator; the class attribute's name is the slot's, unless ``name`` is given.

    Args:
        dtypes: the accepted element types.
        many: it holds a list of tensors, each checked.
        optional: it may be absent; rule and kernel then see None (or an empty tuple, for a list).
        kinds: the accepted kinds; by default dense.
        same_type_as: another slot of the same element type.
        attribute: the attribute saved in its place: the file format has no such slot, but the variables' names as the attribute's value.
        unknown_dims: True if its rule has an answer for unknown dims and an unknown rank.
        may_lack: True if its kernel takes None for the result of a block that did not run; other operators are not run then.
    """
    return Operand(tuple(dtypes), doc, many, optional, tuple(kinds), same_type_as, name, attribute, unknown_dims, may_lack)


def result(
    *,
    doc: str = "",
    many: bool = False,
    optional: bool = False,
    may_share: str | None = None,
    view_of: str | None = None,
    updates: str | None = None,
    new_offsets: bool = False,
    name: str = "",
    layout: Layout = "same",
) -> Any:
    """Declare an output slot of an operator; the class attribute's name is the slot's, unless ``name`` is given.

    Args:
        may_share: an operand (of a list the first element) of the same size. The kernel has a keyword-only ``into``: None, or this operand's tensor,
            free to take the result. One result may have it.
        view_of: the operand that is the base of the view, at least for results of a view's size.
        layout: the layout in memory; see `Layout`.
        updates: the operand changed in place by the kernel, and returned as the result.
        new_offsets: the result may be ragged with offsets of no operand (its rule gives it a `new_lod`). After its results
            the kernel returns one `Offsets` for each such slot, in the schema's order (None if the rule shared an operand's).
    """
    return Result(doc, many, optional, may_share, view_of, updates, new_offsets, name, layout)


def attribute(
    type: AttrType,
    default: Any = REQUIRED,
    *,
    doc: str = "",
    choices: Sequence[Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    older: str = "",
    since: int = 2,
) -> Any:
    """Declare an attribute.

    ``choices``: all allowed values; ``low`` and ``high``: inclusive bounds (of each element); ``older``: its name in an older version of the
    operator, read from a file without the present name; ``since``: the first version of PaddlePaddle with it. An op has one of a later version than
    2 only with another value than the default, so that its file stays one of PaddlePaddle 2.
    """
    coerced = default if isinstance(default, _Required) else coerce("default", type, default)
    if since > 2 and coerced is REQUIRED:
        raise SchemaError("an attribute that PaddlePaddle 2 lacks needs a default, the meaning of its files")
    return Attribute(type, coerced, doc, tuple(choices) if choices is not None else None, low, high, "", older, since)


# --- gradients


@data_class(frozen=True)
class NoGradient:
    """Why an operator has no gradient."""

    reason: str


ZERO_GRADIENT: Final = NoGradient("its gradient is zero")
NOT_DIFFERENTIABLE: Final = NoGradient("it is not differentiable")
NOT_WRITTEN: Final = NoGradient("its gradient is not written yet")


class BlockGradient:
    """The gradient of an operator with a block: an operator with a backward block."""


THROUGH_BLOCK: Final = BlockGradient()


@data_class(frozen=True)
class PartialGradient:
    """One gradient computable alone by another operator, with the same numbers in the same time, and from fewer operands."""

    gives: str
    type: str
    inputs: Mapping[str, str]
    """Its input slots -> slots of the gradient op."""
    result: str
    attributes: Mapping[str, Any]


@data_class(frozen=True)
class Gradient:
    """The declaration by `gradient`: the gradient op's input and output slots, its rule and its kernel."""

    inputs: tuple[str, ...]
    gives: tuple[str, ...]
    like: Mapping[str, str] = field(default_factory=dict[str, str])
    infer: Callable[..., Any] | None = None
    kinds: Callable[..., Any] | None = None
    may_share: Mapping[str, str] = field(default_factory=dict[str, str])
    view_of: Mapping[str, str] = field(default_factory=dict[str, str])
    layout: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    workspace: Callable[..., Any] | None = None
    absent: tuple[str, ...] = ()
    apart: Callable[..., PartialGradient | None] | None = None
    called: Mapping[str, str] = field(default_factory=dict[str, str])
    kernel: Callable[..., Any] = lambda: None

    def with_kernel(self, kernel: Callable[..., Any]) -> Gradient:
        return replace(self, kernel=kernel)


def gradient(
    *inputs: str,
    gives: str | Sequence[str],
    like: Mapping[str, str] | None = None,
    infer: Callable[..., Any] | None = None,
    kinds: Callable[..., Any] | None = None,
    may_share: Mapping[str, str] | None = None,
    view_of: Mapping[str, str] | None = None,
    layout: Mapping[str, Layout] | None = None,
    workspace: Callable[..., Any] | None = None,
    absent: Sequence[str] = (),
    apart: Callable[..., PartialGradient | None] | None = None,
    called: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare the operator ``<type>_grad``; the decorated method is its kernel, or its ``expand`` where the first parameter is ``of``.

    Args:
        inputs: its input slots, in the order of the method's parameters: slots of the forward operator, and ``Out@GRAD`` for
            the gradient of its result ``Out``.
        gives: its output slots: ``X@GRAD`` for the gradient of the operand ``X``. The method returns them in this order. A keyword-only parameter
            ``requested`` receives a tuple of booleans, True for requested ones.
        like: for a gradient whose operand is not among ``inputs``: the slot with its shape.
        infer: the shape rule ``(self, *specs) -> specs``; by default each gradient is shaped like its operand.
        kinds: the kind rule ``(self, *specs) -> kinds``; the default is LOD_TENSOR.
        may_share: for a gradient: the slot among ``inputs`` whose memory it may take over.
        view_of: for a gradient: the slot among ``inputs`` that is its base.
        layout: for a gradient: its layout in memory, by default ``"same"``. See `Layout`.
        workspace: the rule ``(self, *specs) -> bytes``; see `Operator`.
        absent: the slots among ``inputs`` that may be None: gradients of single results without gradient flow, and operands left out by other writers.
            Other gradients are filled with zeros.
        apart: the rule ``(self, *specs) -> Part | None``: the gradient computable by another operator.
        called: for a slot among ``inputs``: its name in the gradient op, if different.
    """
    slots = (gives,) if isinstance(gives, str) else tuple(gives)
    declared = Gradient(inputs, slots, dict(like or {}), infer, kinds, dict(may_share or {}), dict(view_of or {}), dict(layout or {}),
                        workspace, tuple(absent), apart, dict(called or {}))  # fmt: skip
    return declared.with_kernel
