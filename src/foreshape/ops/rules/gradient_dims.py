"""Checks of the dims of a gradient op's operands against the forward op's: many backward kernels read memory by them, unchecked."""

from __future__ import annotations

from foreshape.errors import TypeMismatchError
from foreshape.operator.require import fail, require, require_equal
from foreshape.spec import Spec


def check_made(**pairs: tuple[Spec | None, Spec]) -> None:
    """Require for each slot the dims of the forward rule's result in the seen spec (None if absent), and for a gradient its element type.

    The slot of a gradient ``Y@GRAD`` is written ``Y_GRAD``, since it is a keyword here.
    """
    for key, (seen, made) in pairs.items():
        if seen is None:
            continue
        slot = key.replace("_GRAD", "@GRAD")
        if slot.endswith("@GRAD") and seen.dtype is not None and made.dtype is not None and seen.dtype is not made.dtype:
            fail(f"{slot} must be {made.dtype.name}, as the forward op gives it; it is {seen.dtype.name}", TypeMismatchError, **{slot: None})
        what = f"{slot} must have the dims that the forward op gives, {made.text()}"
        require(seen.rank == made.rank, f"{what}; it has {seen.rank}", **{slot: None})
        for at, (a, b) in enumerate(zip(seen.known_dims, made.known_dims, strict=True)):
            require_equal(a, b, what, **{slot: at})
