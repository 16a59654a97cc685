"""Checks of the dims of a gradient op's operands against the forward op's: many backward kernels read memory by them, unchecked."""

from __future__ import annotations

from foreshape.core.spec import Spec
from foreshape.errors import TypeMismatchError
from foreshape.language.operator.require import fail, require, require_equal


def check_made(**pairs: tuple[Spec | None, Spec]) -> None:
    """Require for each slot the dims of the forward rule's result in the seen spec (None if absent), and for a gradient its element type.

    The slot of a gradient ``Y@GRAD`` is written ``Y_GRAD``, since it is a keyword here.
    """
    for key, (spec, expected) in pairs.items():
        if spec is None:
            continue
        slot = key.replace("_GRAD", "@GRAD")
        if slot.endswith("@GRAD") and spec.dtype is not None and expected.dtype is not None and spec.dtype is not expected.dtype:
            fail(f"{slot} must be {expected.dtype.name}, as the forward op gives it; it is {spec.dtype.name}", TypeMismatchError, **{slot: None})
        requirement = f"{slot} must have the dims that the forward op gives, {expected.text()}"
        require(spec.rank == expected.rank, f"{requirement}; it has {spec.rank}", **{slot: None})
        for axis, (a, b) in enumerate(zip(spec.known_dims, expected.known_dims, strict=True)):
            require_equal(a, b, requirement, **{slot: axis})
