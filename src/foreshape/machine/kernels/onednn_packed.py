"""Convolutions and products with a constant weight, by oneDNN's own library.

There is one kernel for each size; its arguments are held by one thread at a time. Sizes, element types and the order in memory are compared before the
library sees an address.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol
from weakref import ref

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ShapeError
from foreshape.machine.kernels.kept_kernels import count_kernels, drop_oldest, sizes_kept
from foreshape.machine.kernels.onednn_library import (
    ADDED,
    BIAS,
    RESULT,
    SCRATCHPAD,
    SOURCE,
    WEIGHTS,
    After,
    Function,
    Handle,
    Library,
    LibraryError,
    Memory,
    Primitive,
    Unimplemented,
    arguments_of,
)
from foreshape.machine.kernels.window_steps import effective_dilations, lacking

Paddings = Sequence[int] | Callable[[Sequence[int]], tuple[Sequence[int], Sequence[int]]]
"""Zeros around images: for each axis, at both ends; or from the sizes of the images to the zeros before and behind each axis."""
F32_ALONE: Mapping[int, int] = {}
"""No element types besides fp32."""
FEW = 400_000
"""So many multiplications repay no second thread. Reading an element of a weight counts as ``WEIGHT`` of them."""
WEIGHT = 4
SMALL = 1 << 16
"""A scratchpad of so many bytes stays."""


class _PackedCall:
    """The arguments of a kernel: memory objects with addresses set for each call, and a scratchpad, if small."""

    __slots__ = ("_kept", "arguments", "other", "result", "scratchpad", "source", "stream")

    def __init__(self, library: Library, described: dict[int, Handle], constants: dict[int, Handle], scratch: int) -> None:
        memories = {name: library.memory(order, 0) for name, order in described.items()}
        arguments, stream = arguments_of({**memories, **constants}), library.stream()
        held: Tensor | None = torch.empty(scratch, dtype=torch.uint8, device="cpu") if 0 < scratch <= SMALL else None
        self._kept = (memories, arguments, stream, held)
        self.arguments, self.stream = ctypes.addressof(arguments), stream.value
        self.source, self.result = memories[SOURCE].value, memories[RESULT].value
        self.other, self.scratchpad = (m.value if (m := memories.get(name)) is not None else None for name in (ADDED, SCRATCHPAD))
        if held is not None:
            library.place(self.scratchpad, held.data_ptr())


Kernel = Callable[["Tensor", "Tensor | None", "Tensor | None"], "Tensor"]
"""A kernel for one size: of its operand, an added one, and a place for the result; kernels besides the library's make another one."""


class DescribedPrimitive(NamedTuple):
    """A primitive's computation for one size, and its description.

    ``orders``: the layouts of all operands and the result of a call, by the names of the primitive's arguments: ``names`` are the operands', and `RESULT`.
    ``constants`` exist before, such as weights. ``dims`` and ``steps``, between elements, are the result's. ``part``: the range of bytes of the first operand
    to read, if not all of it. ``begins``: the bytes before the first element of operands, by their names.
    """

    description: Handle
    record: Primitive
    names: tuple[int, ...]
    orders: dict[int, Handle]
    constants: dict[int, Handle]
    dims: tuple[int, ...]
    steps: tuple[int, ...]
    part: tuple[int, int] | None = None
    begins: Mapping[int, int] = {}


def described(
    library: Library,
    record: Primitive,
    constants: dict[int, Handle],
    dims: Sequence[int],
    steps: Sequence[int],
    part: tuple[int, int] | None = None,
    description: Handle | None = None,
) -> DescribedPrimitive:
    """Return a computation with its description, as `DescribedPrimitive` has them; the one given, if it is of a certain kernel."""
    description = library.described(record) if description is None else description
    orders = {name: library.handle(memory) for name, memory in record.memories.items() if name not in constants}
    names = tuple([name for name in orders if name != RESULT])
    return DescribedPrimitive(description, record, names, orders, constants, tuple(dims), tuple(steps), part)


def order_of(dims: Sequence[int]) -> tuple[int, ...]:
    """Return the steps between elements of all operands and results here: images have the channels innermost."""
    return channels_innermost(dims) if len(dims) == 4 else row_major_strides(dims)


def _kernel(library: Library, computation: DescribedPrimitive) -> Kernel:
    """Return the kernel of a described primitive."""
    primitive, order = library.primitive(computation.description), library.scratchpad(computation.description)
    scratch, orders, constants = library.nbytes(order), computation.orders, computation.constants
    if scratch:
        orders = {**orders, SCRATCHPAD: order}
    place, execute, empty, number, address = library.place, library.execute, torch.empty_strided, torch.float32, primitive.value
    count, shape, steps, large = len(orders) + len(constants), torch.Size(computation.dims), computation.steps, scratch > SMALL
    rows = steps == row_major_strides(shape)
    free: list[_PackedCall] = []

    def run(x: Tensor, other: Tensor | None, into: Tensor | None = None, primitive: Handle = primitive) -> Tensor:  # it holds the primitive
        if x.dtype is not number or not x.is_cpu:  # kernels are kept by sizes
            raise ShapeError(f"what comes in must be fp32 in memory; it is {x.dtype} {list(x.shape)} on {x.device}")
        try:
            call = free.pop()
        except IndexError:  # the first one, or all are in use by other threads
            call = _PackedCall(library, orders, constants, scratch)
        y = empty(shape, steps, dtype=number, device="cpu") if into is None else into  # whatever the user's defaults are
        place(call.source, x.data_ptr())
        place(call.result, y.data_ptr())
        if other is not None:
            if other.shape != shape or other.dtype is not number or not other.is_cpu:
                raise ShapeError(f"what is added must be fp32 of {list(shape)}, as the result is; it is {other.dtype} of {list(other.shape)}")
            other = other.contiguous(memory_format=torch.contiguous_format if rows else torch.channels_last)
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


class OtherProduct(Otherwise, Protocol):
    """Other kernels for products of rows."""

    def unpacked(self, x: Tensor, other: Tensor | None) -> Tensor:
        """Return the result over the weight as it is."""
        ...


class PackedWeight:
    """A weight, in the order for its kernels (mostly the same for all sizes), and the kernels.

    Args:
        weight: fp32, or a function that makes it for the first kernel of fp32 operands.
        shape: of the weight.
        dims, steps: of the weight, as the library has them, with the steps between elements of a contiguous one.
        otherwise: makes, of the contiguous weight, the kernel for sizes without a kernel of the library, and for tensors without elements.
    """

    def __init__(
        self, library: Library, weight: Tensor | Callable[[], Tensor], shape: Sequence[int], dims: Sequence[int], steps: Sequence[int],
        bias: Tensor | None, functions: Sequence[Function], otherwise: Callable[[Tensor], Any],
    ) -> None:  # fmt: skip
        out = dims[0] * dims[1] if len(dims) == 5 else dims[-1] if len(dims) == 2 else dims[0]
        if any(t.dtype is not torch.float32 or t.device.type != "cpu" for t in (weight, bias) if isinstance(t, Tensor)):
            raise ShapeError("a weight and its bias must be fp32 in memory")
        if bias is not None and tuple(bias.shape) != (out,):
            raise ShapeError(f"a bias must have one number for each of {out} results; it is {list(bias.shape)}")
        self._library, self._functions, self._otherwise = library, tuple(functions), otherwise
        self._value: Tensor | None = weight.contiguous() if isinstance(weight, Tensor) else None
        self._make = None if isinstance(weight, Tensor) else weight
        self._shape, self._order = tuple(shape), library.strided(dims, steps)
        self._rows, self._any = self._order, Memory(tuple(dims), None)
        self._bias = None if bias is None else bias.contiguous()
        self._kernels: dict[Hashable, Kernel] = {}
        self._packed = False
        self._lock = threading.Lock()
        count_kernels(self, 1)

    def forget(self, share: float) -> None:
        with self._lock:
            drop_oldest(self._kernels, share)

    def _find(self, key: Hashable, x: Tensor, adds: bool) -> Kernel:
        """Return the kernel of a new size."""
        with self._lock:
            kernel = self._kernels.get(key)
            if kernel is None:
                self._check(x)
                try:
                    kernel = self._unpacked(x) or (_kernel(self._library, self._described(x.shape, adds)) if x.numel() else self._other())
                except Unimplemented:
                    kernel = self._other()
                while len(self._kernels) >= sizes_kept():
                    del self._kernels[next(iter(self._kernels))]
                self._kernels[key] = kernel
            return kernel

    def described(self, library: Library, dims: Sequence[Sequence[int]], elements: Mapping[int, int] = F32_ALONE) -> DescribedPrimitive:
        """Return the computation for an operand of these dims, and for a second, added one.

        Args:
            library: is its own.
            dims: of the operands.
            elements: the element types of the operands, the weight and the result where they are not fp32.

        Raises:
            Unimplemented: oneDNN has no kernel for these sizes. ShapeError: they do not fit.
        """
        with self._lock:
            computation = self._described(dims[0], len(dims) > 1, elements)
        if len(dims) > 1 and tuple(dims[1]) != computation.dims:
            raise ShapeError(f"what is added must be fp32 of {list(computation.dims)}, as the result is; it is {list(dims[1])}")
        return computation

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weight."""
        return 4 * prod(self._shape) if self._value is None else self._value.nbytes

    def _numbers(self) -> Tensor:
        """Return the weight as it is held, or made now."""
        value, make = self._value, self._make
        if value is None:
            assert make is not None
            value = make().contiguous()
        return value

    def _unpacked(self, x: Tensor) -> Kernel | None:
        """Return the kernel over the weight as it was given, if that is the fastest one."""
        return None

    def _check(self, x: Tensor) -> None:
        """Refuse operands that no kernel takes."""
        raise NotImplementedError

    def _described(self, dims: Sequence[int], adds: bool, elements: Mapping[int, int] = F32_ALONE) -> DescribedPrimitive:
        """Return the computation for an operand of these dims."""
        raise NotImplementedError

    def _other(self) -> Kernel:
        weight = numbers = self._numbers()
        if not self._library.same(self._order, self._rows):
            weight = torch.empty(prod(self._shape), dtype=torch.float32, device="cpu")
            self._library.reorder(self._order, numbers.data_ptr(), self._rows, weight.data_ptr())
        kernel = self._otherwise(weight.view(self._shape))
        return lambda x, other, into: kernel(x) if other is None else kernel.add(x, other)

    def _finish(self, description: Handle, record: Primitive, bias: Memory | None, dims: Sequence[int], steps: Sequence[int]) -> DescribedPrimitive:
        """Return a described primitive with its weight. The order wanted by the first one is the weight's from then on."""
        library, order = self._library, self._order
        value = numbers = self._numbers()
        layout = library.wanted_weights(description)
        if not library.same(layout, order):
            value = torch.empty(library.nbytes(layout), dtype=torch.uint8, device="cpu")
            library.reorder(order, numbers.data_ptr(), layout, value.data_ptr())
        if not self._packed:
            self._value, self._order = value, layout
        self._packed = True
        constants = {WEIGHTS: library.memory(layout, value.data_ptr(), value)}
        if self._bias is not None and bias is not None:
            constants[BIAS] = library.memory(library.handle(bias), self._bias.data_ptr(), self._bias)
        return described(library, record, constants, dims, steps, description=description)

    def _bias_order(self, dims: Sequence[int]) -> Memory | None:
        return None if self._bias is None else Memory(tuple(dims), row_major_strides(dims))


class PackedWindows(PackedWeight):
    """Windows over images, with the channels innermost in memory."""

    _channels: int

    def __call__(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the result of fp32 images ``[n, channels, height, width]``, with ``other``, of its shape, added before the function."""
        key = (x.shape, self._library.threads(), other is not None)
        kernel = self._kernels.get(key) or self._find(key, x, other is not None)
        return kernel(x.contiguous(memory_format=torch.channels_last), other, None)

    add = __call__

    def _check(self, x: Tensor) -> None:
        self._fit(x.shape)
        if x.dtype is not torch.float32 or not x.is_cpu:
            raise ShapeError(f"images must be fp32 [n, {self._channels}, height, width] in memory; they are {x.dtype} {list(x.shape)} on {x.device}")

    def _fit(self, dims: Sequence[int]) -> None:
        if len(dims) != 4 or dims[1] != self._channels:
            raise ShapeError(f"images must be fp32 [n, {self._channels}, height, width]; they are {list(dims)}")


class PackedConvolution(PackedWindows):
    """``function(convolution(x, weight) + bias [+ other])``.

    Args:
        weight: [out, channels / groups, height, width], fp32, or a function that makes it, of this ``shape``.
        bias: [out], or None.
        paddings: for each axis, at both ends; or from the sizes of the images to the zeros before and behind.
        columns: of images of width 1 the weight and the settings are those of rows. They lie in memory alike, and the library computes rows faster.
    """

    def __init__(
        self, library: Library, weight: Tensor | Callable[[], Tensor], bias: Tensor | None, strides: Sequence[int], paddings: Paddings,
        dilations: Sequence[int], groups: int, functions: Sequence[Function], otherwise: Callable[[Tensor], Otherwise], columns: bool = False,
        shape: Sequence[int] = (),
    ) -> None:  # fmt: skip
        shape = weight.shape if isinstance(weight, Tensor) else shape
        out, per, *window = shape
        dims = (groups, out // groups, per, *window) if groups > 1 else (out, per, *window)
        super().__init__(library, weight, shape, dims, row_major_strides(dims), bias, functions, otherwise)
        self._settings = (tuple(strides), tuple(dilations), paddings)
        self._channels, self._columns = per * groups, columns

    def _described(self, dims: Sequence[int], adds: bool, elements: Mapping[int, int] = F32_ALONE) -> DescribedPrimitive:
        library = self._library
        dims, out, settings = self.windows(dims)
        result, bias = Memory(out, order_of(out)), self._bias_order(self._shape[:1])
        arguments = (Memory(dims, order_of(dims)), self._any, bias, result, *settings, After(result if adds else None, self._functions))
        record = Primitive("convolution", arguments, 1 if (prod(out) + WEIGHT * self._shape[0]) * prod(self._shape[1:]) < FEW else None)
        record = record.of_elements(elements)
        with library.using(record.threads):
            description = library.described(record)
            if self._shape[0] * self._shape[1] == self._channels:
                description = library.without_garbage(description)
            out = self.upright(out)
            return self._finish(description, record, bias, out, order_of(out))

    def upright(self, out: Sequence[int]) -> tuple[int, ...]:
        """Return the dims of the result where the library's are ``out``."""
        return (*out[:2], out[3], 1) if self._columns else tuple(out)

    def windows(self, dims: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Sequence[int], ...]]:
        """Return the library's dims of images and of the result, its steps and dilations, and the zeros before and behind."""
        self._fit(dims)
        if self._columns and dims[3] != 1:
            raise Unimplemented(f"the images must be columns; they are {list(dims)}")
        dims = (*dims[:2], 1, dims[2]) if self._columns else tuple(dims)
        strides, dilations, paddings = self._settings
        front, behind = paddings(dims[2:]) if callable(paddings) else (paddings, paddings)
        spans = [d * (k - 1) + 1 for k, d in zip(self._shape[2:], dilations, strict=True)]
        lacks = (int(lacking(n, span, a + b, s)) for n, span, a, b, s in zip(dims[2:], spans, front, behind, strides, strict=True))
        behind = [b + (m if m < s else 0) for b, m, s in zip(behind, lacks, strides, strict=True)]
        padded = [n + a + b for n, a, b in zip(dims[2:], front, behind, strict=True)]
        out = (dims[0], self._shape[0], *((n - span) // s + 1 for n, span, s in zip(padded, spans, strides, strict=True)))
        if min(out) < 1 or min(*front, *behind) < 0:
            words = f"paddings {list(front)} and {list(behind)}"
            raise ShapeError(f"windows of {list(self._shape[2:])} do not fit into images {list(dims)} with {words}")
        strides = [min(s, n) for n, s in zip(padded, strides, strict=True)]  # a longer step ends behind the image too
        return dims, out, (strides, effective_dilations(dilations, self._shape[2:]), front, behind)


class PackedProduct(PackedWeight):
    """``function(x weight + bias [+ other])`` of rows.

    Args:
        weight: [k, n], fp32, or a function that makes it, of this ``shape``.
        bias: [n], or None.
    """

    def __init__(
        self,
        library: Library,
        weight: Tensor | Callable[[], Tensor],
        bias: Tensor | None,
        functions: Sequence[Function],
        otherwise: Callable[[Tensor], OtherProduct],
        shape: Sequence[int] = (),
    ) -> None:
        shape = weight.shape if isinstance(weight, Tensor) else shape
        super().__init__(library, weight, shape, shape, row_major_strides(shape), bias, functions, otherwise)
        self._given = None if self._value is None else ref(self._value)

    def _unpacked(self, x: Tensor) -> Kernel | None:
        """Return the kernel of a single row if its weight is still there as given: all its time goes to reading that, and torch's product reads faster."""
        weight = self._given() if self._given is not None and x.numel() == self._shape[0] else None
        if weight is None:
            return None
        unpacked = self._otherwise(weight).unpacked
        return lambda x, other, into: unpacked(x, other)

    def __call__(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the result of fp32 rows ``[..., k]``, with ``other``, of its shape, added before the function."""
        return self.kernel_of(x, other)(x.contiguous(), other, None)

    add = __call__

    def kernel_of(self, x: Tensor, other: Tensor | None) -> Kernel:
        """Return the kernel for rows, and for a tensor to be added."""
        key = (x.shape, self._library.threads(), other is not None)
        return self._kernels.get(key) or self._find(key, x, other is not None)

    def _check(self, x: Tensor) -> None:
        self._fit(x.shape)
        if x.dtype is not torch.float32 or not x.is_cpu:
            raise ShapeError(f"rows must be fp32 [..., {self._shape[0]}] in memory; they are {x.dtype} {list(x.shape)} on {x.device}")

    def _fit(self, dims: Sequence[int]) -> None:
        if len(dims) < 1 or dims[-1] != self._shape[0]:
            raise ShapeError(f"rows must be fp32 [..., {self._shape[0]}]; they are {list(dims)}")

    def _described(self, dims: Sequence[int], adds: bool, elements: Mapping[int, int] = F32_ALONE) -> DescribedPrimitive:
        self._fit(dims)
        k, n = self._shape
        library, rows, out = self._library, prod(dims[:-1]), (*dims[:-1], n)
        result, bias = Memory((rows, n), (n, 1)), self._bias_order((1, n))
        arguments = (Memory((rows, k), (k, 1)), self._any, bias, result, After(result if adds else None, self._functions))
        record = Primitive("product", arguments, 1 if (rows + WEIGHT) * k * n < FEW else None).of_elements(elements)
        with library.using(record.threads):
            return self._finish(library.described(record), record, bias, out, row_major_strides(out))


def row_major_strides(dims: Sequence[int]) -> tuple[int, ...]:
    """Return the steps between elements where the last dim is innermost."""
    return tuple(prod(dims[k + 1 :]) for k in range(len(dims)))


def channels_innermost(dims: Sequence[int]) -> tuple[int, ...]:
    """Return the steps between elements of images ``[n, channels, height, width]`` with the channels innermost."""
    _, channels, height, width = dims
    return (height * width * channels, 1, width * channels, channels)
