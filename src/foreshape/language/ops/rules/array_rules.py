"""The shape rules of arrays: one spec describes all elements, and sizes that differ between elements have names of their own.

The spec of an array has the element type, dims and levels of its elements. A size that is not the same in all of them is a symbol called ``each``, as
``outputs.each0``. A read element gets a size of its own for it.
"""

from __future__ import annotations

import re
from typing import Any

from foreshape.core.dims import Size, product, symbols_of
from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, Lod, Spec
from foreshape.language.operator.require import RuleError, require_equal, unknown_size
from foreshape.language.ops.rules.ragged_rules import new_lod

ARRAY = (LOD_TENSOR_ARRAY,)
EACH = "each"
_EACH = re.compile(rf"\.{EACH}\d*(?:\.|\Z)")


def differs(size: Size) -> bool:
    """Tell whether a size may differ between elements."""
    return not isinstance(size, int) and any(_EACH.search(n) for n in symbols_of(size))


def array_of(element: Spec) -> Spec:
    """Return the spec of an array of elements of this spec."""
    return Spec(LOD_TENSOR_ARRAY, element.dtype, element.dims, element.lod)


def known_array(array: Spec, slot: str) -> tuple[Size, ...]:
    """Return the dims of the elements of the array in ``slot``."""
    if array.dims is None:
        raise RuleError(f"nothing is written to {slot} before, so that nothing is known of its elements", {slot: None})
    return array.dims


def element_of(array: Spec, slot: str, name: str = "Out") -> Spec:
    """Return one element of the array in ``slot``: a size that differs between elements is known at run time."""
    dims = tuple(own_size(d, f"size{axis}") for axis, d in enumerate(known_array(array, slot)))
    lod: Lod | None = None
    if array.lod is not None:
        lod = new_lod(name, [own_size(c, f"level{k}") for k, c in enumerate(array.lod.counts)])
    return Spec(LOD_TENSOR, array.dtype, dims, lod)


def own_size(size: Size, name: str) -> Size:
    """Return a size of one element: itself, or a new one if it differs between elements."""
    return unknown_size(name) if differs(size) else size


def one_position(I: Spec) -> None:
    """Require one whole number in ``I``."""
    require_equal(product(I.known_dims), 1, "I must be one whole number, a position in an array", I=None)


def d_out_slot(value: Any) -> dict[str, Any]:
    """Return a slot ``Out@GRAD``, not a name in Python, for samples and rules."""
    return {"Out@GRAD": value}


def sum_of_an_element(self: Any, *specs: Any) -> Size:
    """Return the `workspace` of an operator with an array as its last operand, adding each element to another: the sum of one.

    If a size differs between elements, no description tells the largest, and nothing is counted.
    """
    dims = specs[-1].dims
    return 0 if dims is None or any(differs(d) for d in dims) else product(dims) * specs[-1].known_dtype.itemsize


def no_workspace(self: Any, *specs: Any) -> Size:
    """Return the `workspace` 0 of an operator that passes its operand on, or makes its result alone: without a statement it is not proved."""
    return 0
