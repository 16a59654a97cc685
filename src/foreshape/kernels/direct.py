"""Convolutions and products with a weight that never changes, by oneDNN's own library.

For each size that comes there is one kernel; what it is called with is taken by one thread at a time. Sizes, element types and the order in
memory are compared before the library sees an address.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from foreshape.errors import ShapeError
from foreshape.kernels.onednn_library import (
    BIAS,
    FIRST_POST_OPERATION,
    OTHER,
    RESULT,
    SCRATCHPAD,
    SOURCE,
    WEIGHTS,
    Function,
    Handle,
    Library,
    LibraryError,
    Unimplemented,
    arguments_of,
)  # fmt: skip
from foreshape.values.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST = 32
"""Of so many sizes the kernels are kept."""
FEW = 400_000
"""So many multiplications repay no second thread."""
SMALL = 1 << 16
"""A scratchpad of so many bytes stays."""
_ADDED = FIRST_POST_OPERATION | OTHER


class _Call:
    """What a kernel is called with: memory objects whose addresses are set for each call, and a scratchpad, where that is small."""

    __slots__ = ("_kept", "arguments", "other", "result", "scratchpad", "source", "stream")

    def __init__(self, library: Library, described: dict[int, Handle], constants: dict[int, Handle], scratch: int) -> None:
        memories = {name: library.memory(order, 0) for name, order in described.items()}
        arguments, stream = arguments_of({**memories, **constants}), library.stream()
        held: Tensor | None = torch.empty(scratch, dtype=torch.uint8, device="cpu") if 0 < scratch <= SMALL else None
        self._kept = (memories, arguments, stream, held)
        self.arguments, self.stream = ctypes.addressof(arguments), stream.value
        self.source, self.result = memories[SOURCE].value, memories[RESULT].value
        self.other, self.scratchpad = (m.value if (m := memories.get(name)) is not None else None for name in (_ADDED, SCRATCHPAD))
        if held is not None:
            library.place(self.scratchpad, held.data_ptr())


Kernel = Callable[["Tensor", "Tensor | None"], "Tensor"]
"""A kernel for one size: of what comes in, and of what is added to it."""


def _kernel(
    library: Library, described: Handle, orders: dict[int, Handle], constants: dict[int, Handle], dims: Sequence[int], strides: Sequence[int]
) -> Kernel:  # fmt: skip
    """The kernel of a described primitive.

    Args:
        orders: how source and result lie, and what is added.
        constants: weight and bias, by their names.
        dims, strides: of the tensor that comes out.
    """
    primitive, order = library.primitive(described), library.scratchpad(described)
    scratch = library.nbytes(order)
    if scratch:
        orders = {**orders, SCRATCHPAD: order}
    place, execute, empty, number, address = library.place, library.execute, torch.empty_strided, torch.float32, primitive.value
    count, shape, steps, large = len(orders) + len(constants), torch.Size(dims), tuple(strides), scratch > SMALL
    free: list[_Call] = []

    def run(x: Tensor, other: Tensor | None, primitive: Handle = primitive) -> Tensor:  # which holds the primitive
        if x.dtype is not number or not x.is_cpu:  # kernels are kept by sizes
            raise ShapeError(f"what comes in must be fp32 in memory; it is {x.dtype} {list(x.shape)} on {x.device}")
        try:
            call = free.pop()
        except IndexError:  # the first one, or all are in use by other threads
            call = _Call(library, orders, constants, scratch)
        y = empty(shape, steps, dtype=number, device="cpu")  # whatever the user's defaults are
        place(call.source, x.data_ptr())
        place(call.result, y.data_ptr())
        if other is not None:
            if other.shape != shape or other.dtype is not torch.float32:
                raise ShapeError(f"what is added must be fp32 of {list(shape)}, as the result is; it is {other.dtype} of {list(other.shape)}")
            other = other.contiguous(memory_format=torch.channels_last)
            place(call.other, other.data_ptr())
        if large:
            room: Tensor = torch.empty(scratch, dtype=torch.uint8, device="cpu")
            place(call.scratchpad, room.data_ptr())
        status = execute(address, call.stream, count, call.arguments)
        if status:
            raise LibraryError(f"oneDNN could not compute {list(shape)}: status {status}")
        free.append(call)
        return y

    return run


class Otherwise(Protocol):
    """Other kernels for the same."""

    def __call__(self, x: Tensor) -> Tensor: ...
    def add(self, x: Tensor, other: Tensor) -> Tensor: ...


class _Packed:
    """A weight, in the order that kernels want, which is mostly the same for all sizes; and the kernels.

    Args:
        dims, steps: of the weight, as the library has them, with the steps between elements as it lies in rows.
        otherwise: makes of the weight in rows what takes sizes for which the library has no kernel, and tensors without elements.
    """

    def __init__(
        self, library: Library, weight: Tensor, dims: Sequence[int], steps: Sequence[int], bias: Tensor | None, function: Function | None,
        otherwise: Callable[[Tensor], Any],
    ) -> None:  # fmt: skip
        out = dims[0] * dims[1] if len(dims) == 5 else dims[-1] if len(dims) == 2 else dims[0]
        if any(t.dtype is not torch.float32 or t.device.type != "cpu" for t in (weight, *(() if bias is None else (bias,)))):
            raise ShapeError("a weight and its bias must be fp32 in memory")
        if bias is not None and tuple(bias.shape) != (out,):
            raise ShapeError(f"a bias must have one number for each of {out} results; it is {list(bias.shape)}")
        self._library, self._function, self._otherwise = library, function, otherwise
        self._value: Tensor = weight.contiguous()
        self._shape, self._order = tuple(weight.shape), library.strided(dims, steps)
        self._rows, self._any = self._order, library.any(dims)
        self._bias = None if bias is None else bias.contiguous()
        self._kernels: dict[Hashable, Kernel] = {}
        self._lock = threading.Lock()

    def _find(self, key: Hashable, x: Tensor, adds: bool) -> Kernel:
        """The kernel of a size that comes for the first time."""
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                try:
                    found = self._made(x, adds) if x.numel() else self._other()
                except Unimplemented:
                    found = self._other()
                if len(self._kernels) >= MOST:
                    del self._kernels[next(iter(self._kernels))]
                self._kernels[key] = found
            return found

    def _made(self, x: Tensor, adds: bool) -> Kernel:
        raise NotImplementedError

    def _other(self) -> Kernel:
        weight = self._value
        if not self._library.same(self._order, self._rows):
            weight = torch.empty(prod(self._shape), dtype=torch.float32, device="cpu")
            self._library.reorder(self._order, self._value.data_ptr(), self._rows, weight.data_ptr())
        kernel = self._otherwise(weight.view(self._shape))
        return lambda x, other: kernel(x) if other is None else kernel.add(x, other)

    def _finish(self, described: Handle, orders: dict[int, Handle], bias: Handle | None, dims: Sequence[int], strides: Sequence[int]) -> Kernel:
        """The kernel of a described primitive. The order that the first one wants is the weight's from then on."""
        library, value = self._library, self._value
        wanted = library.wanted_weights(described)
        if not library.same(wanted, self._order):
            value = torch.empty(library.nbytes(wanted), dtype=torch.uint8, device="cpu")
            library.reorder(self._order, self._value.data_ptr(), wanted, value.data_ptr())
            if not self._kernels:
                self._value, self._order = value, wanted
        constants = {WEIGHTS: library.memory(wanted, value.data_ptr(), value)}
        if self._bias is not None and bias is not None:
            constants[BIAS] = library.memory(bias, self._bias.data_ptr(), self._bias)
        return _kernel(library, described, orders, constants, dims, strides)

    def _bias_order(self, dims: Sequence[int]) -> Handle | None:
        return None if self._bias is None else self._library.strided(dims, in_rows(dims))


class _PackedWindows(_Packed):
    """What windows compute of images, with the channels innermost in memory."""

    def __call__(self, x: Tensor) -> Tensor:
        """Of fp32 images ``[n, channels, height, width]``."""
        key = (x.shape, self._library.threads(), False)
        kernel = self._kernels.get(key) or self._find(key, x, False)
        return kernel(x.contiguous(memory_format=torch.channels_last), None)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """With ``other``, of the result's shape, added before the function."""
        key = (x.shape, self._library.threads(), True)
        kernel = self._kernels.get(key) or self._find(key, x, True)
        return kernel(x.contiguous(memory_format=torch.channels_last), other)

    def _check(self, x: Tensor, channels: int) -> None:
        if x.dim() != 4 or x.shape[1] != channels or x.dtype is not torch.float32 or x.device.type != "cpu":
            raise ShapeError(f"images must be fp32 [n, {channels}, height, width] in memory; they are {x.dtype} {list(x.shape)} on {x.device}")


class PackedConvolution(_PackedWindows):
    """``function(convolution(x, weight) + bias [+ other])``.

    Args:
        weight: [out, channels / groups, height, width], fp32.
        bias: [out], or None.
    """

    def __init__(
        self, library: Library, weight: Tensor, bias: Tensor | None, strides: Sequence[int], paddings: Sequence[int], dilations: Sequence[int], groups: int,
        function: Function | None, otherwise: Callable[[Tensor], Otherwise],
    ) -> None:  # fmt: skip
        out, per, *window = weight.shape
        dims = (groups, out // groups, per, *window) if groups > 1 else (out, per, *window)
        super().__init__(library, weight, dims, in_rows(dims), bias, function, otherwise)
        self._settings = (tuple(strides), tuple(dilations), tuple(paddings))
        self._channels = per * groups

    def _made(self, x: Tensor, adds: bool) -> Kernel:
        self._check(x, self._channels)
        strides, dilations, paddings = self._settings
        windows = zip(x.shape[2:], self._shape[2:], strides, dilations, paddings, strict=True)
        dims = (x.shape[0], self._shape[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, d, p in windows))
        if min(dims) < 1:
            raise ShapeError(f"windows of {list(self._shape[2:])} do not fit into images {list(x.shape)} with paddings {list(paddings)}")
        strides = [min(s, n + 2 * p) for n, s, p in zip(x.shape[2:], strides, paddings, strict=True)]  # a longer step ends behind the image too
        dilations = _dilations(dilations, self._shape[2:])
        library, steps = self._library, channels_innermost(dims)
        source, result, bias = library.strided(x.shape, channels_innermost(x.shape)), library.strided(dims, steps), self._bias_order(self._shape[:1])
        with library.using(1 if prod(dims) * prod(self._shape[1:]) < FEW else None):
            attributes = library.attributes(result if adds else None, self._function)
            described = library.convolution(source, self._any, bias, result, strides, dilations, paddings, paddings, attributes[-1])
            orders = {SOURCE: source, RESULT: result, **({_ADDED: result} if adds else {})}
            return self._finish(described, orders, bias, dims, steps)


class PackedTransposedConvolution(_PackedWindows):
    """``function(transposed convolution(x, weight) + bias)``. Nothing can be added.

    Args:
        weight: [channels, out, height, width], fp32.
        bias: [out], or None.
        more: rows and columns of the result behind what the windows reach with their paddings taken off.
    """

    def __init__(
        self, library: Library, weight: Tensor, bias: Tensor | None, strides: Sequence[int], paddings: Sequence[int], more: Sequence[int],
        dilations: Sequence[int], function: Function | None, otherwise: Callable[[Tensor], Any],
    ) -> None:  # fmt: skip
        channels, out, height, width = weight.shape
        one = height * width
        super().__init__(library, weight, (out, channels, height, width), (one, out * one, width, 1), bias, function, otherwise)
        self._settings = (tuple(strides), tuple(dilations), tuple(paddings), tuple(more))

    def _made(self, x: Tensor, adds: bool) -> Kernel:
        channels, out, *window = self._shape
        self._check(x, channels)
        strides, dilations, paddings, more = self._settings
        each = zip(x.shape[2:], window, strides, dilations, paddings, more, strict=True)
        dims = (x.shape[0], out, *((n - 1) * s + d * (k - 1) + 1 - 2 * p + m for n, k, s, d, p, m in each))
        if min(dims) < 1:
            raise ShapeError(f"nothing is left of {list(x.shape)} by windows of {window}: the result would be {list(dims)}")
        strides = [s if n > 1 else 1 for n, s in zip(x.shape[2:], strides, strict=True)]
        dilations = _dilations(dilations, window)
        library, steps = self._library, channels_innermost(dims)
        source, result, bias = library.strided(x.shape, channels_innermost(x.shape)), library.strided(dims, steps), self._bias_order((out,))
        with library.using(1 if x.numel() * out * prod(window) < FEW else None):
            behind = [p - m for p, m in zip(paddings, more, strict=True)]
            described = library.convolution(
                source, self._any, bias, result, strides, dilations, paddings, behind, library.attributes(None, self._function)[-1], transposed=True
            )
            return self._finish(described, {SOURCE: source, RESULT: result}, bias, dims, steps)


class PackedProduct(_Packed):
    """``function(x weight + bias)`` of rows.

    Args:
        weight: [k, n], fp32.
        bias: [n], or None.
    """

    def __init__(
        self, library: Library, weight: Tensor, bias: Tensor | None, function: Function | None, otherwise: Callable[[Tensor], Callable[[Tensor], Tensor]]
    ) -> None:  # fmt: skip
        super().__init__(library, weight, weight.shape, in_rows(weight.shape), bias, function, otherwise)

    def __call__(self, x: Tensor) -> Tensor:
        """Of fp32 rows ``[..., k]``."""
        key = (x.shape, self._library.threads())
        kernel = self._kernels.get(key) or self._find(key, x, False)
        return kernel(x.contiguous(), None)

    def _made(self, x: Tensor, adds: bool) -> Kernel:
        k, n = self._shape
        if x.dim() < 1 or x.shape[-1] != k or x.dtype is not torch.float32 or x.device.type != "cpu":
            raise ShapeError(f"rows must be fp32 [..., {k}] in memory; they are {x.dtype} {list(x.shape)} on {x.device}")
        library, rows = self._library, x.numel() // k
        source, result = library.strided((rows, k), (k, 1)), library.strided((rows, n), (n, 1))
        bias, dims = self._bias_order((1, n)), (*x.shape[:-1], n)
        with library.using(1 if rows * k * n < FEW else None):
            described = library.product(source, self._any, bias, result, library.attributes(None, self._function)[-1])
            return self._finish(described, {SOURCE: source, RESULT: result}, bias, dims, in_rows(dims))


def _dilations(given: Sequence[int], window: Sequence[int]) -> list[int]:
    """Those that say something: in a window of one pixel nothing is apart, and the library takes no number without limits."""
    return [d if k > 1 else 1 for d, k in zip(given, window, strict=True)]


def in_rows(dims: Sequence[int]) -> tuple[int, ...]:
    """The steps between elements where the last dim is innermost."""
    return tuple(prod(dims[k + 1 :]) for k in range(len(dims)))


def channels_innermost(dims: Sequence[int]) -> tuple[int, ...]:
    """The steps between elements of images ``[n, channels, height, width]`` with the channels innermost."""
    _, channels, height, width = dims
    return (height * width * channels, 1, width * channels, channels)
