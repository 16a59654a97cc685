"""Functions of this house called by kernels, as they are at run time: of numbers alone, and of torch's element types."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NoReturn

import torch


def ceildiv(a: int, b: int) -> int:
    """Return ``a / b``, rounded up."""
    return -(-a // b)


def product(sizes: Iterable[int]) -> int:
    """Return the product of sizes (1 for none)."""
    return math.prod(sizes)


def maximum(*sizes: int) -> int:
    """Return the largest of sizes."""
    return max(sizes)


def minimum(*sizes: int) -> int:
    """Return the smallest of sizes."""
    return min(sizes)


def equal(a: int, b: int) -> bool:
    """Tell whether two sizes are equal."""
    return a == b


def fail(requirement: str, *_: Any, **__: Any) -> NoReturn:
    """Raise an error in these words."""
    raise ValueError(requirement)


def require(holds: bool, requirement: str, **_: Any) -> None:
    """Raise an error in these words unless something holds."""
    if not holds:
        raise ValueError(requirement)


def require_equal(a: int, b: int, requirement: str, **_: Any) -> int:
    """Raise an error in these words unless two sizes are equal."""
    if a != b:
        raise ValueError(requirement)
    return a


def require_at_most(a: int, b: int, requirement: str, **_: Any) -> None:
    """Raise an error in these words unless ``a <= b``."""
    if a > b:
        raise ValueError(requirement)


def require_divides(divisor: int, a: int, requirement: str, **_: Any) -> int:
    """Return ``a / divisor``; raise an error in these words unless it is whole."""
    if a % divisor:
        raise ValueError(requirement)
    return a // divisor


def axis_of(axis: int, rank: int, what: str = "axis", **_: Any) -> int:
    """Return an axis counted from the front."""
    if not -rank <= axis < rank:
        raise ValueError(f"{what} must be in [{-rank}, {rank})")
    return axis % rank


def require_room(*_: Any) -> None:
    """Do nothing: a run has no limit of memory here."""


def torch_dtype(of: int | torch.dtype) -> torch.dtype:
    """Return the element type of a number in PaddlePaddle's files."""
    if isinstance(of, torch.dtype):
        return of
    names = {0: "bool", 1: "int16", 2: "int32", 3: "int64", 4: "float16", 5: "float32", 6: "float64", 20: "uint8", 21: "int8", 22: "bfloat16"}
    return getattr(torch, names[of] if of in names else {23: "complex64", 24: "complex128"}[of])


def element_type(code: int) -> torch.dtype:
    """Return the element type of a number in PaddlePaddle's files."""
    return torch_dtype(code)


def dtype_of_torch(of: torch.dtype) -> torch.dtype:
    """Return the element type itself."""
    return of
