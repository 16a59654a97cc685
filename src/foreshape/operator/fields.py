"""What an operator class declares: operands, results, attributes, gradients, samples and rejects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from foreshape.data_class import data_class, field
from foreshape.errors import ShapeError
from foreshape.operator.attributes import AttrType, coerce
from foreshape.spec import ANY, BOOL, FP32, FP64, INT32, INT64, LOD_TENSOR, SELECTED_ROWS, DType, Kind

__all__ = [
    "DENSE",
    "DENSE_OR_ROWS",
    "NOT_DIFFERENTIABLE",
    "NOT_WRITTEN",
    "REQUIRED",
    "THROUGH_BLOCK",
    "ZERO_GRADIENT",
    "AttrType",
    "Attribute",
    "Gradient",
    "Layout",
    "NoGradient",
    "Operand",
    "Reject",
    "Result",
    "Sample",
    "Value",
    "attribute",
    "b1",
    "f32",
    "f64",
    "gradient",
    "i32",
    "i64",
    "operand",
    "reject",
    "result",
    "sample",
]

DENSE: Final = (LOD_TENSOR,)
DENSE_OR_ROWS: Final = (LOD_TENSOR, SELECTED_ROWS)
FLOAT_RESULT_KINDS: Final = DENSE_OR_ROWS


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED: Final = _Required()
"""The default of an attribute that has none."""


Layout = Literal["same", "strided", "reshaped", "row"]
"""How a result lies in memory.

Of a view: "same", as what it is a view of; "strided", with strides of its own, so that several elements may be one number in memory and
nothing can be written into it (what a gradient scales first is in memory of its own then, as much as what it is a view of);
"reshaped", as the same elements in a row, which is a view of what lies in a row itself or has the same dims, and may be a copy of what
does not. A view has the element type of what it is a view of; a gradient of another number of elements than that is no view, unless it
is "strided".

Of a result with memory of its own: "same", in a row where all tensors among the operands lie in a row (and maybe not where one does
not); "row", always in a row."""


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
    """An output slot. ``may_share``: the operand whose memory it may take over; ``view_of``: the operand it is a view of, in a
    ``layout``; ``updates``: the operand that it is, changed in place; ``new_offsets``: its kernel gives the offsets of its rows too."""

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
    """An attribute: its stored type, default, and what it may be."""

    type: AttrType
    default: Any
    doc: str
    choices: tuple[Any, ...] | None
    low: float | None
    high: float | None
    name: str = ""
    older: str = ""


def named(field: Operand | Result | Attribute, name: str) -> Operand | Result | Attribute:
    """The same field with a name; many times faster than `dataclasses.replace`, and asked for every field of every operator."""
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
        dtypes: the element types that it takes.
        many: it holds a list of tensors, each checked.
        optional: it may be absent; rule and kernel then see None (or an empty tuple, for a list).
        kinds: the kinds that it takes; dense unless said otherwise.
        same_type_as: another slot, whose element type this one must have.
        attribute: the attribute in whose place it is saved: the file format knows no such slot, and has the variables' names as the
            attribute's value.
        unknown_dims: whether its rule has an answer where nothing is known of the dims, not even how many there are.
        may_lack: whether its kernel takes None for what a block has not made, since it did not run; other operators are not run then.
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
        may_share: an operand (of a list the first element) of the same size. The kernel has a keyword-only ``into``: None, or that
            operand's tensor, which nothing needs any more and which the result is to be written into. One result may have it.
        view_of: an operand that the result is a view of, at least where it is of no other size than a view could have.
        layout: how the result lies in memory; see `Layout`.
        updates: an operand that the kernel changes in place and that the result is.
        new_offsets: the result may be ragged with offsets that no operand has (its rule gives it a `new_lod`). After its results
            the kernel returns one `Offsets` for each such slot, in the schema's order (None where the rule shared an operand's).
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
) -> Any:
    """Declare an attribute. ``choices``: all the values it may have; ``low`` and ``high``: inclusive bounds (of each element); ``older``: what
    an older version of the operator called it, by which it is read where a file has that and not the other."""
    held = default if isinstance(default, _Required) else coerce("default", type, default)
    return Attribute(type, held, doc, tuple(choices) if choices is not None else None, low, high, "", older)


# --- gradients


@data_class(frozen=True)
class NoGradient:
    """Why an operator has no gradient."""

    reason: str


ZERO_GRADIENT: Final = NoGradient("its gradient is zero")
NOT_DIFFERENTIABLE: Final = NoGradient("it is not differentiable")
NOT_WRITTEN: Final = NoGradient("its gradient is not written yet")


class BlockGradient:
    """The gradient of an operator that runs a block: an operator that runs a block which undoes it."""


THROUGH_BLOCK: Final = BlockGradient()


@data_class(frozen=True)
class Part:
    """One gradient that another operator computes alone, the same numbers in the same time, and needs less for it than all need together."""

    gives: str
    type: str
    inputs: Mapping[str, str]
    """Its input slots -> slots of the gradient op."""
    result: str
    attributes: Mapping[str, Any]


@data_class(frozen=True)
class Gradient:
    """What `gradient` declared: the slots that the gradient op takes, those that it gives, its rule and its kernel."""

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
    apart: Callable[..., Part | None] | None = None
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
    apart: Callable[..., Part | None] | None = None,
    called: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare the operator ``<type>_grad``; the decorated method is its kernel.

    Args:
        inputs: its input slots, in the order of the method's parameters: slots of the forward operator, and ``Out@GRAD`` for
            the gradient of its result ``Out``.
        gives: its output slots: ``X@GRAD`` for the gradient of the operand ``X``. The method returns them in this order. A
            keyword-only parameter ``requested`` receives a tuple of booleans, which of them are requested.
        like: for a gradient whose operand is not among ``inputs``: the slot that it is shaped like.
        infer: the shape rule ``(self, *specs) -> specs``; the default is that each gradient is shaped like its operand.
        kinds: the kind rule ``(self, *specs) -> kinds``; the default is LOD_TENSOR.
        may_share: for a gradient: the slot among ``inputs`` whose memory it may take over.
        view_of: for a gradient: the slot among ``inputs`` that it is a view of.
        layout: for a gradient: how it lies in memory; ``"same"`` where it is left out. See `Layout`.
        workspace: the rule ``(self, *specs) -> bytes``; see `Operator`.
        absent: the slots among ``inputs`` that may be None: gradients of single results, which are left out where nothing flows into the
            result (others are filled with zeros), and operands, which other makers leave out.
        apart: the rule ``(self, *specs) -> Part | None``: how one of the gradients is computed by another operator.
        called: for a slot among ``inputs``: what the gradient op calls it, where that is another name.
    """
    given = (gives,) if isinstance(gives, str) else tuple(gives)
    declared = Gradient(inputs, given, dict(like or {}), infer, kinds, dict(may_share or {}), dict(view_of or {}), dict(layout or {}),
                        workspace, tuple(absent), apart, dict(called or {}))  # fmt: skip
    return declared.with_kernel


# --- samples and rejects, which feed the tests that are written once for all operators


@data_class(frozen=True)
class Value:
    """A sample tensor: element type, dims, the range of its numbers, and whether they are all different."""

    dtype: DType
    dims: tuple[int, ...]
    low: float
    high: float
    distinct: bool = False
    data: Any = None
    """The exact numbers, where random ones will not do."""
    lengths: tuple[tuple[int, ...], ...] = ()
    """Where ragged: for each level, outermost first, the lengths of its sequences."""

    def ragged(self, *lengths: Sequence[int]) -> Value:
        """The same rows grouped into sequences: for each level, outermost first, their lengths; those of the last level sum to
        the first dim."""
        return replace(self, lengths=tuple(tuple(level) for level in lengths))


@data_class(frozen=True)
class Sample:
    """Inputs (slot -> `Value`, a list, or None) and attributes with which an operator must work.

    ``differentiate``: whether finite differences are defined there (False at kinks, or for random results);
    ``exact``: whether the kernel is a function of its inputs (False for random ones).
    """

    arguments: Mapping[str, Any]
    differentiate: bool = True
    exact: bool = True


@data_class(frozen=True)
class Reject:
    """Inputs and attributes that an operator must refuse, with a part of the message and the class of the error."""

    arguments: Mapping[str, Any]
    says: str
    error: type[Exception]


def sample(*, differentiate: bool = True, exact: bool = True, **arguments: Any) -> Sample:
    """A case that must work; keyword arguments are slots and attributes. Make the dims pairwise different."""
    return Sample(arguments, differentiate, exact)


def reject(*, says: str, error: type[Exception] = ShapeError, **arguments: Any) -> Reject:
    """A case that must be refused with a message that has ``says`` in it."""
    return Reject(arguments, says, error)


def _value(of: DType, dims: Sequence[int], low: float, high: float, distinct: bool, data: Any) -> Value:
    return Value(of, tuple(dims), low, high, distinct, data, ())


def f32(*dims: int, low: float = -2.0, high: float = 2.0, distinct: bool = False, data: Any = None) -> Value:
    """fp32 numbers, uniform in [low, high]; ``distinct`` keeps them apart, for maxima and sorting."""
    return _value(FP32, dims, low, high, distinct, data)


def f64(*dims: int, low: float = -2.0, high: float = 2.0, distinct: bool = False, data: Any = None) -> Value:
    return _value(FP64, dims, low, high, distinct, data)


def i64(*dims: int, low: float = 0, high: float = 5, distinct: bool = False, data: Any = None) -> Value:
    """int64 numbers, uniform in low..high, both included."""
    return _value(INT64, dims, low, high, distinct, data)


def i32(*dims: int, low: float = 0, high: float = 5, distinct: bool = False, data: Any = None) -> Value:
    return _value(INT32, dims, low, high, distinct, data)


def b1(*dims: int, data: Any = None) -> Value:
    """bool values, both as likely."""
    return _value(BOOL, dims, 0, 1, False, data)
