"""Rules for parts of tensors.

Downwards PaddlePaddle 3 counts as Python does. In 2.x an end of -1 is past the first entry, and bounds before the first entry are the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from foreshape.core.spec import BOOL
from foreshape.interop.pir.by_table import write_by_row
from foreshape.interop.pir.constants import as_numbers, integer, numbers_of, real
from foreshape.interop.pir.pir_graph import GraphOp
from foreshape.interop.pir.rule_registry import rule
from foreshape.interop.pir.table import row_of
from foreshape.interop.pir.translation import Translation
from foreshape.interop.refused import Refused
from foreshape.language.program.op import Slots

_FAR: Final = (1 << 31) - 1


class _Cut(NamedTuple):
    """The bounds of a cut in 2.x: attributes, tensors by their slots, and the axes turned around before."""

    attrs: dict[str, list[int]]
    inputs: Slots
    flips: list[int]


@rule("strided_slice")
def strided_slice(t: Translation, op: GraphOp) -> None:
    """Write a strided slice with flags of sizes to infer: PaddlePaddle 2 reads them unchecked."""
    axes = numbers_of(op.attributes.get("axes"))
    row, flags = row_of(op.name), {"infer_flags": [1] * len(axes)}
    assert row is not None
    cut = _cut(t, op, 1, axes, "strides")
    if cut is None:
        write_by_row(t, op, row, flags)
        return
    inputs: Slots = {"Input": (_flip(t, t.tensor(op, 0), cut.flips),), **cut.inputs}
    t.write("strided_slice", inputs, {"Out": (t.output(op, 0),)}, {"axes": axes, **flags, **cut.attrs})


@rule("set_value", "set_value_", "set_value_with_tensor", "set_value_with_tensor_")
def set_value(t: Translation, op: GraphOp) -> None:
    """Write an assignment to a part; where axes are turned around before it, they are turned back after it."""
    dtype, with_tensor = t.type_of(op, 0), "with_tensor" in op.name
    attrs: dict[str, Any] = {name: numbers_of(op.attributes.get(name)) for name in ("axes", "decrease_axes", "none_axes")}
    attrs["dtype"] = dtype.code
    first = 2 if with_tensor else 1
    cut = _cut(t, op, first, attrs["axes"], "steps")
    if cut is None:
        cut = _Cut({}, {}, [])
        for place, name in enumerate(("starts", "ends", "steps"), first):
            _put_bounds(t, op, place, name, len(attrs["axes"]), cut)
    inputs: Slots = {"Input": (_flip(t, t.tensor(op, 0), cut.flips),), **cut.inputs}
    if with_tensor:
        inputs["ValueTensor"] = (t.tensor(op, 1),)
    else:
        values = numbers_of(op.attributes.get("values"))
        attrs["shape"] = numbers_of(op.attributes.get("shape"))
        attrs["values"] = [bool(v) if dtype is BOOL else integer(v) if dtype.is_integer else real(v) for v in values]
    out = t.output(op, 0)
    if not cut.flips:
        t.write("set_value", inputs, {"Out": (out,)}, attrs | cut.attrs)
        return
    result = t.temporary("set_value", None)
    t.write("set_value", inputs, {"Out": (result,)}, attrs | cut.attrs)
    t.write("flip", {"X": (result,)}, {"Out": (out,)}, {"axis": cut.flips})


def _cut(t: Translation, op: GraphOp, first: int, axes: Sequence[int], steps_name: str) -> _Cut | None:
    """Return the bounds of a cut with a step downwards, its operands from ``first`` on; None if it has none.

    Where 2.x understands a cut otherwise, its axis is turned around. Of n entries the place k is n - 1 - k then, or -1 - k counted from the other end.
    """
    starts, ends, steps = (as_numbers(t.operand(op, index)) for index in (first, first + 1, first + 2))
    for name, numbers in (("starts", starts), ("ends", ends), (steps_name, steps)):
        if numbers is not None and len(numbers.elements) != len(axes):
            raise Refused(f"it has {len(numbers.elements)} {name} for {len(axes)} axes: each axis needs one")
    if steps is None:
        if starts is None or ends is None or any(integer(n) < 0 for n in (*starts.elements, *ends.elements)):
            raise Refused(f"its {steps_name} are computed and may be negative: its bounds, counted from the end, mean other places in 2.x then")
        return None
    strides = [integer(s) for s in steps.elements]
    if all(s > 0 for s in strides):
        return None
    flips = list[int]()
    for index, step in enumerate(strides):
        if step < 0 and (starts is None or ends is None or not _means_the_same(integer(starts.elements[index]), integer(ends.elements[index]))):
            flips.append(index)
    cut = _Cut({steps_name: [-s if index in flips else s for index, s in enumerate(strides)]}, {}, [axes[index] for index in flips])
    for place, name, numbers in ((first, "starts", starts), (first + 1, "ends", ends)):
        if numbers is None:
            _put_bounds(t, op, place, name, len(axes), cut, flips)
            continue
        bounds = [integer(n) for n in numbers.elements]
        if name == "ends":
            bounds = [_downward(n) if step < 0 and index not in flips else n for index, (n, step) in enumerate(zip(bounds, strides, strict=True))]
        cut.attrs[name] = [max(-_FAR, min(_FAR, -1 - n if index in flips else n)) for index, n in enumerate(bounds)]
    return cut


def _means_the_same(start: int, end: int) -> bool:
    """Tell whether 2.x has a form for a cut downwards, for any size of the axis."""
    return start >= -1 and (end >= -1 or end < -_FAR)


def _downward(end: int) -> int:
    return -1 if end < -_FAR else _FAR if end == -1 else end


def _flip(t: Translation, name: str, axes: Sequence[int]) -> str:
    if not axes:
        return name
    out = t.temporary("flip", None)
    t.write("flip", {"X": (name,)}, {"Out": (out,)}, {"axis": list(axes)})
    return out


def _put_bounds(t: Translation, op: GraphOp, index: int, name: str, count: int, cut: _Cut, flips: Sequence[int] = ()) -> None:
    """Put an operand with numbers for the axes into a cut: known numbers as an attribute, others as tensors of one element each."""
    numbers = as_numbers(t.operand(op, index))
    if numbers is not None:
        cut.attrs[name] = [integer(n) for n in numbers.elements]
        return
    parts = t.tensors(op, index) if isinstance(t.operand(op, index), tuple) else _elements(t, t.tensor(op, index), count)
    slot = f"{name.capitalize()}TensorList"
    cut.inputs[slot] = tuple([_mirrored(t, part) if k in flips else part for k, part in enumerate(parts)])


def _mirrored(t: Translation, name: str) -> str:
    out = t.temporary("scale", None)
    t.write("scale", {"X": (name,)}, {"Out": (out,)}, {"scale": -1.0, "bias": -1.0, "bias_after_scale": True})
    return out


def _elements(t: Translation, name: str, count: int) -> tuple[str, ...]:
    """Write a tensor of one dim as a list of tensors of one element each."""
    if count == 1:
        return (name,)
    parts = tuple([t.temporary("split", None) for _ in range(count)])
    t.write("split", {"X": (name,)}, {"Out": parts}, {"num": count, "axis": 0})
    return parts
