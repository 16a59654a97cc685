"""oneDNN's kernels over rows in numpy's memory, for networks of ragged rows without torch: products, normalizations, functions, softmax.

A kernel is for one number of rows, and takes longer to make than to run. So rows come in blocks of few sizes (`blocks_of`), a kernel is shared by all layers
of equal sizes, and all kernels of a network together have a bound in bytes (`KernelStore`).
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple

from foreshape.machine.kernels.onednn_library import (
    ADDED,
    BIAS,
    NOTHING_AFTER,
    RESULT,
    SCALE,
    SCRATCHPAD,
    SHIFT,
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

Array = Any
"""An array of numpy."""
BLOCK_SIZES = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 192, 256, 384, 512)
"""The numbers of rows of blocks: few, since each has kernels of its own."""
BLOCK = BLOCK_SIZES[-1]
"""The most rows of a block. Some kernels order a weight anew in each call, in a fifteenth of the time of 128 rows."""
ALIGNMENT = 64
KERNEL_BYTES = 112 << 10
"""The bytes of a kernel with the library's notes about it, as measured."""
KERNELS = 24 << 20
"""The most bytes of the kernels of a network: the ones not used for the longest time go first."""
CALLS, CALL_BYTES = 400, 7 << 10
"""The most prepared calls of a worker, and the bytes of each, as measured."""
_CONVOLUTION = "jit_1x1:avx2"
"""The kernel of convolutions faster than products for AVX2, most for few rows; by the library's name."""
_PAGE, SPREAD = 256, 16
"""Rows of a weight a multiple of so many numbers apart fall on few lines of a cache: they are stored so many numbers farther apart."""


_ROUNDED, _ROUNDING = 128, 16
"""Blocks of more rows compute at most a sixteenth more than there are."""


def rounded_rows(count: int) -> int:
    """Return the number of rows of the smallest block for so many, at most `BLOCK`."""
    return BLOCK_SIZES[bisect_left(BLOCK_SIZES, count)]


def blocks_of(count: int) -> list[tuple[int, int]]:
    """Return the first row and the rows of each block for so many rows: one at least. The last one may have rows more."""
    out: list[tuple[int, int]] = []
    begin, remaining = 0, max(count, 1)
    while remaining > 0:
        rows = BLOCK if remaining >= BLOCK else rounded_rows(remaining)
        if rows > _ROUNDED and rows - remaining > remaining // _ROUNDING:  # a smaller one, and the others in another
            rows = BLOCK_SIZES[bisect_left(BLOCK_SIZES, rows) - 1]
        out.append((begin, rows))
        begin, remaining = begin + rows, remaining - rows
    return out


def covered(count: int) -> int:
    """Return the number of rows in all blocks for so many."""
    begin, rows = blocks_of(count)[-1]
    return begin + rows


def address_of(array: Array) -> int:
    return array.__array_interface__["data"][0]


def aligned(count: int) -> Array:
    """Return memory for so many fp32, zeros, at an aligned address."""
    import numpy

    room = numpy.zeros(4 * count + ALIGNMENT, numpy.uint8)
    begin = -address_of(room) % ALIGNMENT
    return room[begin : begin + 4 * count].view(numpy.float32)


class _KernelArguments:
    """The arguments of a kernel, for one thread at a time."""

    __slots__ = ("addresses", "arguments", "memories", "owners")

    def __init__(self, library: Library, orders: dict[int, Handle], constants: dict[int, Handle]) -> None:
        handles = {name: library.memory(order, 0) for name, order in orders.items()}
        self.memories = [handle.value for handle in handles.values()]
        self.addresses = [0] * len(handles)
        every = arguments_of({**handles, **constants})
        self.owners = handles, every
        self.arguments = ctypes.addressof(every)


class RowKernel:
    """A kernel of oneDNN for operands of certain sizes.

    Args:
        names: its operands and its result, in the order of the addresses of a call.
        weights: the order of its weight in memory; None if it has none.
        constants: numbers alike in all calls.
    """

    def __init__(
        self, library: Library, record: Primitive, names: Sequence[int], weights: Handle | None = None, constants: dict[int, Handle] | None = None
    ) -> None:
        with library.using(record.threads):
            description = library.quick(library.described(record))
            if record.kind == "convolution":
                description = library.without_garbage(description)
            self._primitive = library.primitive(description)
        self._library, self._constants = library, constants or {}
        self.nbytes = KERNEL_BYTES
        memories = record.memories
        self._orders = {name: weights if name == WEIGHTS and weights is not None else library.handle(memories[name]) for name in names}
        pad = library.scratchpad(description)
        self._scratch = library.nbytes(pad)
        if self._scratch:
            self._orders[SCRATCHPAD] = pad
        self._count = len(self._orders) + len(self._constants)
        self._free: list[_KernelArguments] = []

    def __call__(self, worker: Worker, *addresses: int) -> None:
        """Compute, and wait.

        Raises:
            LibraryError: the library could not.
        """
        try:
            call = self._free.pop()
        except IndexError:  # the first one, or all are in use by other threads
            call = _KernelArguments(self._library, self._orders, self._constants)
        self._placed(call, worker, addresses)
        _checked(self._library.execute(self._primitive.value, worker.stream.value, self._count, call.arguments))
        self._free.append(call)

    def prepared(self, worker: Worker, addresses: Sequence[int]) -> PreparedCall:
        """Return the call for operands that stay where they are, as long as the worker's memory does."""
        call = _KernelArguments(self._library, self._orders, self._constants)
        self._placed(call, worker, addresses)
        return PreparedCall((self._primitive.value, worker.stream.value, self._count, call.arguments), (self, call))

    def _placed(self, call: _KernelArguments, worker: Worker, addresses: Sequence[int]) -> None:
        if self._scratch:
            addresses = (*addresses, worker.scratch(self._scratch))
        last, place = call.addresses, self._library.place
        for index, address in enumerate(addresses):
            if last[index] != address:
                place(call.memories[index], address)
                last[index] = address


class PreparedCall(NamedTuple):
    """A call of a kernel with its operands: the arguments of `Library.execute`, and what they need."""

    arguments: tuple[Any, Any, int, int]
    owners: tuple[object, ...]


def execute_all(library: Library, calls: Sequence[PreparedCall]) -> None:
    """Compute calls one after the other. Raises `LibraryError` where the library could not."""
    execute = library.execute
    for arguments, _ in calls:
        _checked(execute(*arguments))


def _checked(status: int) -> None:
    if status:
        raise LibraryError(f"oneDNN could not compute a kernel of rows: status {status}")


class KernelStore:
    """The kernels of a network, by their sizes; and the forms of products.

    Args:
        limit: the most bytes of kernels.
    """

    def __init__(self, library: Library, limit: int = KERNELS) -> None:
        self.onednn, self._limit = library, limit
        self._kernels: OrderedDict[Hashable, RowKernel] = OrderedDict()
        self._layouts: dict[tuple[int, ...], Handle] = {}
        self._forms: dict[Hashable, ProductForm] = {}
        self._lock = Lock()
        self.nbytes = 0
        """The bytes of all kernels there are."""
        self.dropped = 0
        """The number of times that kernels were dropped: calls prepared before hold some of those."""

    def kernel(self, key: Hashable) -> RowKernel | None:
        """Return the kernel with a key, if it is there."""
        kernel = self._kernels.get(key)
        if kernel is not None:
            with suppress(KeyError):  # another thread dropped it meanwhile
                self._kernels.move_to_end(key)
        return kernel

    def add(self, key: Hashable, record: Primitive, names: Sequence[int], weights: Handle | None = None, constants: Any = None) -> RowKernel:
        """Make a kernel and keep it.

        Raises:
            Unimplemented: oneDNN has none for these sizes.
        """
        with self._lock:
            kernel = self._kernels.get(key)
            if kernel is None:
                kernel = RowKernel(self.onednn, record, names, weights, constants)
                self.nbytes += kernel.nbytes
                while self.nbytes > self._limit and self._kernels:
                    self.nbytes -= self._kernels.popitem(last=False)[1].nbytes
                    self.dropped += 1
                self._kernels[key] = kernel
            return kernel

    def forget(self) -> None:
        """Drop all kernels; they are made again when their sizes come again."""
        with self._lock:
            self._kernels.clear()
            self.nbytes = 0
            self.dropped += 1

    def form(self, k: int, n: int, adds: bool, functions: tuple[Function, ...]) -> ProductForm:
        """Return the form of products ``[rows, k]`` by ``[k, n]`` and their followers."""
        key = k, n, adds, functions
        if key not in self._forms:
            library = self.onednn
            description, convolves = library.described(product_record(BLOCK, k, n, adds, functions, None, 1)), False
            if library.implementation(description).startswith("gemm"):  # it orders the weight anew in each call
                with suppress(Unimplemented):
                    convolution = library.without_garbage(library.quick(library.described(product_record(BLOCK, k, n, adds, functions, None, 1, True))))
                    if library.implementation(convolution) == _CONVOLUTION:
                        description, convolves = convolution, True
                order = library.wanted_weights(description) if convolves else library.strided((k, n), (n + (SPREAD if n % _PAGE == 0 else 0), 1))
            else:
                order = library.wanted_weights(description)
            self._forms[key] = ProductForm(convolves, self._layouts.setdefault((convolves, *library.layout(order)), order))
        return self._forms[key]


class ProductForm(NamedTuple):
    """The form of a product for the library.

    Attributes:
        convolves: as a convolution over the rows by a filter of one row. For AVX2 its kernels read a weight in order, and the products' kernels do not.
        weights: the order of the weight in memory.
    """

    convolves: bool
    weights: Handle


def product_record(
    rows: int, k: int, n: int, adds: bool, functions: tuple[Function, ...], weights: Handle | None, threads: int, convolves: bool = False
) -> Primitive:
    """Return the computation ``functions(x w + bias [+ added])`` of so many rows, with a weight in some order, or of the library's choice."""
    if convolves:
        source, result, bias = Memory((1, k, rows), (rows * k, 1, k)), Memory((1, n, rows), (rows * n, 1, n)), Memory((n,), (1,))
        after = After(result if adds else None, functions)
        return Primitive("convolution", (source, weights or Memory((n, k, 1), None), bias, result, (1,), (1,), (0,), (0,), after), threads)
    result = Memory((rows, n), (n, 1))
    arguments = (Memory((rows, k), (k, 1)), weights or Memory((k, n), None), Memory((1, n), (n, 1)), result, After(result if adds else None, functions))
    return Primitive("product", arguments, threads)


class Worker:
    """A stream, scratch memory, and the number of threads of kernels, for one thread at a time."""

    def __init__(self, library: Library, threads: int) -> None:
        self.stream, self.threads = library.stream(), threads
        self._scratch = self._scores = aligned(0)
        self.calls: dict[Hashable, list[PreparedCall]] = {}
        """Calls on memory of the worker: another dictionary once some of it lies elsewhere."""

    def prepare(self, calls: dict[Hashable, list[PreparedCall]], key: Hashable, kernels: Sequence[tuple[RowKernel, tuple[int, ...]]]) -> None:
        """Keep calls in the place of the oldest ones, unless memory of the worker lies elsewhere since ``calls`` were its own."""
        if calls is self.calls:
            calls[key] = [kernel.prepared(self, addresses) for kernel, addresses in kernels]
            while sum(map(len, calls.values())) > CALLS and len(calls) > 1:
                del calls[next(iter(calls))]

    def scratch(self, nbytes: int) -> int:
        """Return the address of scratch memory for a kernel."""
        if self._scratch.nbytes < nbytes:
            self._scratch, self.calls = aligned(-(-nbytes // 4)), {}
        return address_of(self._scratch)

    def scores(self, count: int) -> Array:
        """Return memory for so many scores of attention."""
        if self._scores.size < count:
            self._scores = aligned(count)
        return self._scores[:count]

    @property
    def nbytes(self) -> int:
        """Return the bytes of its memory."""
        return self._scratch.nbytes + self._scores.nbytes + CALL_BYTES * sum(map(len, self.calls.values()))


class RowComputation(ABC):
    """A computation of blocks of rows by a kernel for each number of rows."""

    @abstractmethod
    def call(self, worker: Worker, x: Array, out: Array, added: Array | None = None) -> tuple[RowKernel, tuple[int, ...]]:
        """Return the kernel, and the addresses of its operands.

        Args:
            worker: for its number of threads.
            x: contiguous rows.
            out: memory of the result.
            added: rows of its shape, where the computation adds some.
        """

    def __call__(self, worker: Worker, x: Array, out: Array, added: Array | None = None) -> None:
        """Compute, as for `call`."""
        kernel, addresses = self.call(worker, x, out, added)
        kernel(worker, *addresses)


class RowProduct(RowComputation):
    """``functions(x weight + bias [+ added])`` of blocks of rows.

    Args:
        weight: [k, n], fp32 or a type converted to it. It is copied, in the order for its kernels.
        bias: [n], or None.
    """

    def __init__(self, store: KernelStore, weight: Array, bias: Array | None, adds: bool = False, functions: tuple[Function, ...] = ()) -> None:
        import numpy

        self._store, self._adds, self._functions = store, adds, functions
        self.k, self.n = weight.shape
        library = store.onednn
        self._form = store.form(self.k, self.n, adds, functions)
        strides = [s // weight.itemsize for s in weight.strides]
        plain = weight if weight.dtype == numpy.float32 and sorted(strides) in ([1, self.k], [1, self.n]) else numpy.ascontiguousarray(weight, numpy.float32)
        order = self._form.weights
        self._weight = aligned(library.nbytes(order) // 4)
        steps = [s // 4 for s in plain.strides]
        source = library.strided((self.n, self.k, 1), (*steps[::-1], 1)) if self._form.convolves else library.strided(weight.shape, steps)
        library.reorder(source, address_of(plain), order, address_of(self._weight))
        self._bias = aligned(self.n)
        if bias is not None:
            self._bias[:] = bias
        self._constant_addresses = address_of(self._weight), address_of(self._bias)
        self._key = "product", self.k, self.n, adds, functions, self._form

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weight and the bias."""
        return self._weight.nbytes + self._bias.nbytes

    def call(self, worker: Worker, x: Array, out: Array, added: Array | None = None) -> tuple[RowKernel, tuple[int, ...]]:
        """Return the kernel for contiguous rows ``[rows, k]`` and ``out`` ``[rows, n]``, and the addresses; ``added`` is of its shape."""
        key = self._key, len(x), worker.threads
        kernel = self._store.kernel(key)
        if kernel is None:
            form = self._form
            record = product_record(len(x), self.k, self.n, self._adds, self._functions, form.weights, worker.threads, form.convolves)
            names = (SOURCE, WEIGHTS, BIAS, RESULT, *((ADDED,) if self._adds else ()))
            kernel = self._store.add(key, record, names, form.weights)
        return kernel, (address_of(x), *self._constant_addresses, address_of(out), *(() if added is None else (address_of(added),)))


class RowNorm(RowComputation):
    """The normalization of each row by its own mean and variance, with a scale and a shift for each column."""

    def __init__(self, store: KernelStore, width: int, epsilon: float, scale: Array | None, shift: Array | None) -> None:
        self._store, self._width, self._epsilon = store, width, epsilon
        self._numbers = aligned(2 * width).reshape(2, width)
        self._numbers[0] = 1.0 if scale is None else scale
        self._numbers[1] = 0.0 if shift is None else shift
        self._constant_addresses = address_of(self._numbers[0]), address_of(self._numbers[1])

    def call(self, worker: Worker, x: Array, out: Array, added: Array | None = None) -> tuple[RowKernel, tuple[int, ...]]:
        """Return the kernel for contiguous rows, possibly ``out`` itself, and the addresses."""
        key = "norm", len(x), self._width, self._epsilon, worker.threads
        kernel = self._store.kernel(key)
        if kernel is None:
            memory = Memory((len(x), self._width), (self._width, 1))
            record = Primitive("normalized_rows", (memory, self._epsilon, True, True, NOTHING_AFTER), worker.threads)
            kernel = self._store.add(key, record, (SOURCE, SCALE, SHIFT, RESULT))
        return kernel, (address_of(x), *self._constant_addresses, address_of(out))


class RowFunction(RowComputation):
    """A function of each element."""

    def __init__(self, store: KernelStore, function: Function) -> None:
        self._store, self._function = store, function

    def call(self, worker: Worker, x: Array, out: Array, added: Array | None = None) -> tuple[RowKernel, tuple[int, ...]]:
        """Return the kernel for contiguous elements, possibly ``out`` itself, and the addresses."""
        key = "function", x.size, self._function, worker.threads
        kernel = self._store.kernel(key)
        if kernel is None:
            record = Primitive("elementwise", (self._function, Memory((x.size,), (1,)), NOTHING_AFTER), worker.threads)
            kernel = self._store.add(key, record, (SOURCE, RESULT))
        return kernel, (address_of(x), address_of(out))
