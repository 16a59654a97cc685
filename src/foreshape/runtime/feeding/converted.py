"""Exact conversion of fed numbers to the element type of the program."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import UNSIGNED, DType
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import FeedError, TypeMismatchError


def converted(name: str, tensor: Tensor, want: DType, torch_type: Any, advice: str = "") -> tuple[Tensor, bool]:
    """Return a tensor in the element type ``want`` (``torch_type`` in torch), and True if numbers may be rounded (float64 to float32).

    Args:
        advice: ends the error, in place of the conversion.

    Raises:
        FeedError: another kind of number, a float type that holds less (other numbers than bf16 has), or an integer that the type does not have.
    """
    try:
        dtype = dtype_of_torch(tensor.dtype)
    except TypeMismatchError as error:
        exact = _native(name, tensor, want)
        if exact is None:
            raise FeedError(f"{name} must be {want.name}: {error}") from None
        tensor, dtype = exact, dtype_of_torch(exact.dtype)
    if dtype is want:
        return tensor, False
    if dtype in UNSIGNED and (exact := _native(name, tensor, want)) is not None:
        tensor, dtype = exact, dtype_of_torch(exact.dtype)
    if dtype.family == want.family:
        same_sign = dtype.is_unsigned is want.is_unsigned
        if dtype.itemsize <= want.itemsize if same_sign else dtype.is_unsigned and dtype.itemsize < want.itemsize:
            return tensor.to(torch_type), False
        if want.is_integer:
            return _narrowed(name, tensor, dtype, want, torch_type), False
        if tensor.dim() == 0:
            return tensor.to(torch_type), False
        if want.name == "fp32":
            return _rounded(name, tensor, want, torch_type), True
        if want.name == "bf16" and bool((((out := tensor.to(torch_type)).to(tensor.dtype) == tensor) | tensor.isnan()).all()):
            return out, False  # numpy has no bf16, and gives its numbers as fp32
    raise FeedError.must(name, f"{want.name}", f"{dtype.name}", "fed is", advice or _conversion(tensor, dtype, want))


def _conversion(tensor: Tensor, dtype: DType, want: DType) -> str:
    """Return the user's code for a conversion; for fractions and whole numbers the reason against it."""
    if not want.numpy_name or dtype.family == "complex":
        return ""
    if want.is_integer and dtype.is_floating and bool((fraction := tensor != tensor.trunc()).any()):
        return f": {float(tensor[fraction][0]):g} is no whole number, as of a class or a row"
    return f": convert it with .astype('{want.numpy_name}')"


def _native(called: str, tensor: Tensor, want: DType) -> Tensor | None:
    """Return a tensor of a foreign type (uint16, float8) in a type that holds all of its numbers; None without one."""
    name = str(tensor.dtype).removeprefix("torch.")
    if want.is_integer and name in ("uint16", "uint32", "uint64"):
        integers = tensor.to(torch.int64)
        if name == "uint64" and bool((lost := integers < 0).any()):
            raise FeedError.must(called, f"{want.name}", f"uint64 with {int(integers[lost][0]) + 2**64}, which {want.name} does not have", "fed is")
        return integers
    return tensor.to(torch.float32) if want.is_floating and name.startswith("float8") else None


def _narrowed(name: str, tensor: Tensor, dtype: DType, want: DType, torch_type: Any) -> Tensor:
    out, limits, integers = tensor.to(torch_type), torch.iinfo(torch_type), tensor.to(torch.int64)
    lost = (integers < limits.min) | (integers > min(limits.max, 2**63 - 1))
    if bool(lost.any()):
        raise FeedError.must(name, f"{want.name}", f"{dtype.name} with {int(tensor[lost][0])}, which {want.name} does not have", "fed is")
    return out


def _rounded(name: str, tensor: Tensor, want: DType, torch_type: Any) -> Tensor:
    out = tensor.to(torch_type)
    lost = out.isinf() & tensor.isfinite()
    if bool(lost.any()):
        raise FeedError.must(name, f"{want.name}", f"fp64 with {float(tensor[lost][0])!r}, which {want.name} does not have", "fed is")
    return out
