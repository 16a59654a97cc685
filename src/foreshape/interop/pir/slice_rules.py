"""Rules for parts of tensors.

Downwards PaddlePaddle 3 counts as Python does. In 2.x an end of -1 is past the first entry, and bounds before the first entry are the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from foreshape.interop.pir.by_table import write_by_row
from foreshape.interop.pir.constants import as_numbers, numbers_of, real, whole
from foreshape.interop.pir.pir_graph import GraphOp
from foreshape.interop.pir.rule_registry import rule
from foreshape.interop.pir.table import row_of
from foreshape.interop.pir.translation import Translation
from foreshape.interop.refused import Refused
from foreshape.program.op import Slots
from foreshape.spec import BOOL

_FAR: Final = (1 << 31) - 1


class _Cut(NamedTuple):
    """The bounds of a cut in 2.x: attributes, tensors by their slots, and the axes turned around before."""

    attrs: dict[str, list[int]]
    inputs: Slots
    turned: list[int]


@rule("strided_slice")
def strided_slice(t: Translation, op: GraphOp) -> None:
    """Write a strided slice with flags of sizes to infer: PaddlePaddle 2 reads them unchecked."""
    axes = numbers_of(op.attributes.get("axes"))
    row, more = row_of(op.name), {"infer_flags": [1] * len(axes)}
    assert row is not None
    cut = _cut(t, op, 1, axes, "strides")
    if cut is None:
        write_by_row(t, op, row, more)
        return
    inputs: Slots = {"Input": (_turned(t, t.tensor(op, 0), cut.turned),), **cut.inputs}
    t.write("strided_slice", inputs, {"Out": (t.one(op, 0),)}, {"axes": axes, **more, **cut.attrs})


@rule("set_value", "set_value_", "set_value_with_tensor", "set_value_with_tensor_")
def set_value(t: Translation, op: GraphOp) -> None:
    """Write an assignment to a part; where axes are turned around before it, they are turned back after it."""
    of, with_tensor = t.type_of(op, 0), "with_tensor" in op.name
    attrs: dict[str, Any] = {name: numbers_of(op.attributes.get(name)) for name in ("axes", "decrease_axes", "none_axes")}
    attrs["dtype"] = of.code
    first = 2 if with_tensor else 1
    cut = _cut(t, op, first, attrs["axes"], "steps")
    if cut is None:
        cut = _Cut({}, {}, [])
        for place, name in enumerate(("starts", "ends", "steps"), first):
            _put_bounds(t, op, place, name, len(attrs["axes"]), cut)
    inputs: Slots = {"Input": (_turned(t, t.tensor(op, 0), cut.turned),), **cut.inputs}
    if with_tensor:
        inputs["ValueTensor"] = (t.tensor(op, 1),)
    else:
        values = numbers_of(op.attributes.get("values"))
        attrs["shape"] = numbers_of(op.attributes.get("shape"))
        attrs["values"] = [bool(v) if of is BOOL else whole(v) if of.is_integer else real(v) for v in values]
    out = t.one(op, 0)
    if not cut.turned:
        t.write("set_value", inputs, {"Out": (out,)}, attrs | cut.attrs)
        return
    made = t.temporary("set_value", None)
    t.write("set_value", inputs, {"Out": (made,)}, attrs | cut.attrs)
    t.write("flip", {"X": (made,)}, {"Out": (out,)}, {"axis": cut.turned})


def _cut(t: Translation, op: GraphOp, first: int, axes: Sequence[int], steps_name: str) -> _Cut | None:
    """Return the bounds of a cut with a step downwards, its operands from ``first`` on; None if it has none.

    Where 2.x understands a cut otherwise, its axis is turned around. Of n entries the place k is n - 1 - k then, or -1 - k counted from the other end.
    """
    starts, ends, steps = (as_numbers(t.given(op, at)) for at in (first, first + 1, first + 2))
    for name, numbers in (("starts", starts), ("ends", ends), (steps_name, steps)):
        if numbers is not None and len(numbers.elements) != len(axes):
            raise Refused(f"it has {len(numbers.elements)} {name} for {len(axes)} axes: each axis needs one")
    if steps is None:
        if starts is None or ends is None or any(whole(n) < 0 for n in (*starts.elements, *ends.elements)):
            raise Refused(f"its {steps_name} are computed and may be negative: its bounds, counted from the end, mean other places in 2.x then")
        return None
    by = [whole(s) for s in steps.elements]
    if all(s > 0 for s in by):
        return None
    turned = list[int]()
    for at, step in enumerate(by):
        if step < 0 and (starts is None or ends is None or not _means_the_same(whole(starts.elements[at]), whole(ends.elements[at]))):
            turned.append(at)
    cut = _Cut({steps_name: [-s if at in turned else s for at, s in enumerate(by)]}, {}, [axes[at] for at in turned])
    for place, name, numbers in ((first, "starts", starts), (first + 1, "ends", ends)):
        if numbers is None:
            _put_bounds(t, op, place, name, len(axes), cut, turned)
            continue
        given = [whole(n) for n in numbers.elements]
        if name == "ends":
            given = [_downward(n) if step < 0 and at not in turned else n for at, (n, step) in enumerate(zip(given, by, strict=True))]
        cut.attrs[name] = [max(-_FAR, min(_FAR, -1 - n if at in turned else n)) for at, n in enumerate(given)]
    return cut


def _means_the_same(start: int, end: int) -> bool:
    """Tell whether 2.x has a form for a cut downwards, for any size of the axis."""
    return start >= -1 and (end >= -1 or end < -_FAR)


def _downward(end: int) -> int:
    return -1 if end < -_FAR else _FAR if end == -1 else end


def _turned(t: Translation, name: str, axes: Sequence[int]) -> str:
    if not axes:
        return name
    out = t.temporary("flip", None)
    t.write("flip", {"X": (name,)}, {"Out": (out,)}, {"axis": list(axes)})
    return out


def _put_bounds(t: Translation, op: GraphOp, at: int, name: str, count: int, cut: _Cut, turned: Sequence[int] = ()) -> None:
    """Put an operand with numbers for the axes into a cut: known numbers as an attribute, others as tensors of one element each."""
    numbers = as_numbers(t.given(op, at))
    if numbers is not None:
        cut.attrs[name] = [whole(n) for n in numbers.elements]
        return
    parts = t.tensors(op, at) if isinstance(t.given(op, at), tuple) else _elements(t, t.tensor(op, at), count)
    slot = f"{name.capitalize()}TensorList"
    cut.inputs[slot] = tuple([_mirrored(t, part) if k in turned else part for k, part in enumerate(parts)])


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
