"""Element types between this package and torch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from foreshape.core.spec import TYPE_OF_CODE, DType, dtype
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import TypeMismatchError

if TYPE_CHECKING:
    import torch as torch_module

_TORCH_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


@cache
def torch_dtype(element: DType | int) -> torch_module.dtype:
    """Return the torch element type for ours, or for its number in the file format."""
    if isinstance(element, int):
        element = element_type(element)
    return getattr(torch, _TORCH_NAMES.get(element.name, element.name))


@cache
def dtype_of_torch(torch_type: torch_module.dtype) -> DType:
    """Return our element type for torch's. Raise `TypeMismatchError` if there is none."""
    return dtype(str(torch_type).removeprefix("torch."))


def element_type(code: int) -> DType:
    """Return the element type of its number. Refuse other numbers."""
    entry = TYPE_OF_CODE.get(code)
    if entry is None:
        raise TypeMismatchError(f"there is no element type number {code}")
    return entry
