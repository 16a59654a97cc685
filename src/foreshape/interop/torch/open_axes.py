"""Open sizes of a network's inputs: the names that the user gives, or that torch's Dims have, and their limits."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from foreshape.errors import SchemaError
from foreshape.interop.torch.jagged_tensors import is_jagged, parts_of
from foreshape.interop.torch.packed_sequences import is_packed
from foreshape.interop.torch.traced_guards import TracedGuard
from foreshape.interop.torch.untyped_torch import is_list, torch

Axes: TypeAlias = Mapping[int, str]
Bounds: TypeAlias = Mapping[str, tuple[int, "int | None"]]
"""The name of a size -> its least and its largest value; None for no limit."""
_UNBOUNDED: Final = 2**62
_BATCH: Final = object()
"""The entry of an input without named axes."""
_SOURCE: Final = re.compile(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]")
_ANY_SOURCE: Final = re.compile(r"L(\['.*\])\.size\(\)\[(\d+)\]")


def flat_axes(inputs: Sequence[Any], dynamic: Sequence[Any] | None) -> tuple[list[Axes], Bounds]:
    """Return axis -> name for each tensor of the inputs, in the order of torch's pytrees, and the limits.

    Where nothing is said the first axis is "batch", if it is as long as that of the first tensor.

    Args:
        inputs: of a call.
        dynamic: for each input None, axis -> a name or a ``torch.export.Dim``, or such in a list or dict as the input is.

    Raises:
        SchemaError: another number of entries than inputs; an axis beyond a tensor's; neither a name nor a Dim; a name of two sizes.
    """
    if dynamic is not None and len(dynamic) != len(inputs):
        raise SchemaError(f"dynamic must have one entry for each of the {len(inputs)} inputs, None or a mapping of axes to names; seen {len(dynamic)}")
    out: list[Axes] = []
    bounds: dict[str, tuple[int, int | None]] = {}
    sizes: dict[str, tuple[int, str]] = {}
    alike: list[Any] = []
    for at, value in enumerate(inputs):
        for leaf, said in _leaves(value, _BATCH if dynamic is None else dynamic[at], alike):
            shown = f"{said}"
            if not isinstance(leaf, torch.Tensor):
                continue
            if said is _BATCH:  # of another size than the first tensor's first axis it is no batch
                many = leaf.dim() and sizes.setdefault("batch", (leaf.shape[0], ""))[0] == leaf.shape[0]
                out.append({0: "batch"} if many else {})
                continue
            if said is None:
                out.append({})
                continue
            if is_list(said) and len(said) == leaf.dim():
                said = dict(enumerate(said))
            if not isinstance(said, Mapping) or not all(isinstance(axis, int) for axis in cast("Mapping[Any, Any]", said)):
                raise SchemaError.must("dynamic", f"None or a mapping of axes to names for the input {at}, as {{0: 'batch'}}", shown)
            said = cast("Mapping[int, Any]", said)
            wrong = [axis for axis in said if not 0 <= axis < leaf.dim()]
            if wrong:
                raise SchemaError(f"dynamic: the input {at} has {leaf.dim()} dims; seen axis {wrong[0]}")
            named = {axis: _named(name, at, bounds) for axis, name in said.items() if name is not None}
            for axis, name in named.items():
                size, where = sizes.setdefault(name, (leaf.shape[axis], f"axis {axis} of the input {at}"))
                if size != leaf.shape[axis]:
                    raise SchemaError(
                        f"dynamic: equal names are equal sizes; {name} is {size} at {where}, and {leaf.shape[axis]} at axis {axis} of the input {at}"
                    )
            out.append(named)
    return out, bounds


def input_axis(source: str) -> tuple[str, int] | None:
    """Return the place of an input among the arguments, as ``['x'][0]``, and the axis meant by torch's source of a size; None for another source."""
    found = _ANY_SOURCE.fullmatch(source)
    return None if found is None else (found[1], int(found[2]))


def _named(given: Any, at: int, bounds: dict[str, tuple[int, int | None]]) -> str:
    if isinstance(given, str):
        return given
    name = getattr(given, "__name__", None)
    if name is None or not hasattr(given, "min"):
        raise SchemaError(f'dynamic must give each open axis a name, as "batch", or a torch.export.Dim; seen {given!r} for the input {at}')
    most = given.max
    bounds[name] = int(given.min), None if not isinstance(most, int) or most >= _UNBOUNDED else most
    return name


def _leaves(value: Any, said: Any, alike: list[Any]) -> Generator[tuple[Any, Any]]:
    if is_packed(value):
        yield from _of_packed(value, said)
    elif isinstance(value, torch.Tensor) and value.is_nested:
        yield from _of_jagged(value, said, alike)
    elif isinstance(value, dict):
        held = cast("dict[Any, Any]", value)
        names = cast("dict[Any, Any]", said) if isinstance(said, dict) else {}
        by_name = bool(names) and not all(isinstance(k, int) for k in names)
        for key, one in held.items():
            yield from _leaves(one, names.get(key) if by_name else said, alike)
    elif is_list(value):
        for at, one in enumerate(value):
            yield from _leaves(one, said[at] if is_list(said) and len(said) == len(value) else said, alike)
    else:
        yield value, said


def _of_packed(value: Any, said: Any) -> Generator[tuple[Any, Any]]:
    """Yield rows, batch sizes and orders of a packed sequence; the numbers of rows and steps are open where the number of sequences is."""
    said = {0: "batch"} if said is _BATCH else said
    if said is not None and not (isinstance(said, Mapping) and [*cast("Mapping[Any, Any]", said)] == [0]):
        raise SchemaError.must("dynamic", "None, or {0: name} with the name for the number of sequences, for a PackedSequence", f"{said}")
    name = None if said is None else cast("Mapping[int, Any]", said)[0]
    for part, leaf in zip(("rows", "steps", "", ""), value, strict=True):
        shown = name if isinstance(name, str) or name is None else name.__name__
        yield leaf, None if leaf is None or name is None else {0: f"{shown}_{part}" if part else name}


def _of_jagged(value: Any, said: Any, alike: list[Any]) -> Generator[tuple[Any, Any]]:
    """Yield rows and lengths of a jagged tensor. The number of rows is always open; equal sequences have one name for it, the others one each."""
    if not is_jagged(value) or isinstance(value.shape[1], int):
        seen = f"{list(value.shape)}" if is_jagged(value) else f"a nested tensor of the layout {value.layout}"
        raise SchemaError.must("example_inputs", "dense tensors, or nested ones of the layout torch.jagged that are ragged in axis 1", seen)
    said = {0: _BATCH} if said is _BATCH else dict(enumerate(said)) if is_list(said) else said or {}
    if not isinstance(said, Mapping) or not all(isinstance(axis, int) and 0 <= axis < value.dim() for axis in cast("Mapping[Any, Any]", said)):
        raise SchemaError.must("dynamic", f"None or a mapping of the axes 0 to {value.dim() - 1} of a jagged tensor to names", f"{said}")
    said = cast("Mapping[int, Any]", said)
    if value.shape[1] not in alike:
        alike.append(value.shape[1])
    at = alike.index(value.shape[1])
    rows = said.get(1) or (f"rows_{at}" if at else "rows")
    if not isinstance(rows, str):
        raise SchemaError.must("dynamic", "a name for the ragged axis of a jagged tensor, of all its rows", f"{rows}")
    parts, batch = parts_of(value), said.get(0)
    yield parts.rows, {0: rows, **{axis - 1: name for axis, name in said.items() if axis > 1}}
    yield parts.lengths, batch if batch is _BATCH else {0: batch}


def size_bounds(bounds: Bounds) -> list[TracedGuard]:
    """Return the limits as demands; torch's own least size of 2 is none."""
    return [TracedGuard((name, least if least > 2 else 0, most), None, True) for name, (least, most) in bounds.items() if least > 2 or most is not None]


def exported_axes(exported: Any, dynamic: Sequence[Any] | None = None) -> tuple[list[Axes], list[TracedGuard]]:
    """Return axis -> name for each tensor among the inputs of an exported program, and the demands of its ranges.

    Args:
        exported: the program.
        dynamic: for each tensor None, or axis -> name, where torch's own names are not to be kept.
    """
    given = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder" and node.name in given and isinstance(node.meta.get("val"), torch.Tensor)]
    if dynamic is not None and len(dynamic) != len(nodes):
        raise SchemaError(f"dynamic must have one entry for each of the {len(nodes)} tensors, None or a mapping of axes to names; seen {len(dynamic)}")
    names: dict[str, str] = {}
    first = {symbol for node in nodes for symbol in _symbols(node).values() if _symbols(node).get(0) == symbol}
    for at, node in enumerate(nodes):
        told = _dim_names(node)
        for axis, symbol in _symbols(node).items():
            said: dict[int, str] = (dynamic[at] or {}) if dynamic is not None else {}
            own = said.get(axis)
            if own is not None or symbol not in names:
                names[symbol] = own or told.get((node.name, axis)) or ("batch" if axis == 0 and len(first) == 1 else symbol)
    bounds: dict[str, tuple[int, int | None]] = {}
    for symbol, held in exported.range_constraints.items():
        name = names.get(str(symbol))
        if name is not None:
            bounds[name] = int(held.lower), int(held.upper) if getattr(held.upper, "is_Integer", False) and held.upper < _UNBOUNDED else None
    return [{axis: names[symbol] for axis, symbol in _symbols(node).items()} for node in nodes], size_bounds(bounds)


def _symbols(node: Any) -> dict[int, str]:
    shape = node.meta["val"].shape
    return {axis: n.node.expr.name for axis, n in enumerate(shape) if not isinstance(n, int) and n.node.expr.is_Symbol}


def _dim_names(node: Any) -> dict[tuple[str, int], str]:
    """Return input and axis -> the name of torch's Dim, where it is known: not in a file."""
    for size in node.meta["val"].shape:
        if not isinstance(size, int):
            known: dict[str, str] = getattr(size.node.shape_env, "source_name_to_debug_name", None) or {}
            found = ((_SOURCE.fullmatch(source), name) for source, name in known.items())
            return {(match[1], int(match[2])): name for match, name in found if match is not None and name.isidentifier()}
    return {}
