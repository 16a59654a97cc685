"""Conversion between arrays and torch's tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch

_DISPATCH = "__torch_dispatch__"
"""The method that takes over all operations on a class of tensors."""


def to_tensor(array: Any) -> Tensor:
    """Return a tensor with an array's numbers; it shares the memory if possible, and never writes to it. A copy has memory of torch's own.

    Raises:
        TypeError, ValueError: it has no numbers, or not one for each element.
    """
    import numpy

    if isinstance(array, torch.Tensor):
        return _detached(array) if type(array) is torch.Tensor else _plain(array)
    array = numpy.asarray(array)
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":  # of the package ml_dtypes, as jax and onnx have it: torch takes its bits
        return to_tensor(array.view("int16")).view(torch.bfloat16)
    flags = array.flags
    if array.dtype.isnative and flags.writeable and ((flags.c_contiguous and array.size) or all(s >= 0 for s in array.strides)):
        return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
    out = torch.empty(array.shape, dtype=_type_of(array.dtype), device="cpu")
    out.numpy()[...] = array
    return out


def on_device(tensor: Tensor, device: Any) -> Tensor:
    """Return a tensor on a device. From the host to CUDA it goes by pinned memory, so that nothing waits until it is there."""
    if device.type == "cuda" and tensor.is_cpu:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@cache
def _type_of(dtype: Any) -> Any:
    """Return torch's element type for numpy's. Raise `TypeError` if it has none."""
    import numpy

    return torch.from_numpy(numpy.empty(0, dtype.newbyteorder("="))).dtype  # pyright: ignore[reportUnknownMemberType]


def _detached(array: Tensor) -> Tensor:
    """Return a plain tensor, without its gradient, with the numbers that it shows."""
    if array.layout is not torch.strided or array.is_meta or array.is_quantized or array.is_nested:
        kind = "a meta" if array.is_meta else "a quantized" if array.is_quantized else "a nested" if array.is_nested else "a sparse"
        raise TypeError(f"{kind} tensor has no number for each element in memory")
    if private.is_functorch_wrapped_tensor(array):
        raise TypeError("this tensor stands for others, as within torch.func, and has no numbers in memory")
    return array.detach().resolve_conj().resolve_neg()


def _plain(array: Tensor) -> Tensor:
    """Return the same for a subclass of tensors, whose own methods must not reach into a step."""
    if getattr(type(array), _DISPATCH) is not getattr(torch.Tensor, _DISPATCH):
        raise TypeError(f"a {type(array).__name__} is no tensor with a number for each element in memory")
    with private.DisableTorchFunctionSubclass():
        return _detached(array.as_subclass(torch.Tensor))


def to_numpy(value: Tensor) -> Any:
    """Return an array with a tensor's numbers (bf16 as fp32, since numpy has no bf16)."""
    if not value.is_cpu:
        value = value.cpu()
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy()


def plain(array: Any) -> Any:
    """Return a tensor of torch, of any element type, with a gradient or on a device, as an array with its numbers. Return other objects unchanged."""
    if type(array).__module__.partition(".")[0] != "torch" or not hasattr(array, "detach") or getattr(array, "is_nested", False):
        return array
    return to_numpy(to_tensor(array))


def is_masked(array: Any) -> bool:
    """Return True for an array with masked elements."""
    return type(array).__name__ == "MaskedArray" and bool(array.mask.any())
