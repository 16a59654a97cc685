"""oneDNN itself, if its shared library is installed (``pip install 'foreshape[inference]'``): the used part of its C interface.

torch has oneDNN inside, but prepares each call anew, in some 45 microseconds. Here it is prepared once for each size, and a call costs 4. See
https://uxlfoundation.github.io/oneDNN for the meaning of primitives, their arguments and their post-operations.

A computation is a record, `Primitive`, of which the library makes a description. Nothing here checks a size: the callers do.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from foreshape.core.values.openmp import loading_openmp
from foreshape.errors import ForeshapeError

SWITCH = "FORESHAPE_ONEDNN"
"""The environment variable for torch's oneDNN, with the value "torch"."""
_DISTRIBUTION, _FILE, _MAJOR = "onednn-cpu-gomp", "libdnnl.so.3", 3
"""The build for processors with GNU's OpenMP, whose threads are torch's."""

_CPU, _IN_ORDER, _FORWARD, _DIRECT, _TRANSPOSED_DIRECT, _ANY = 1, 1, 96, 1, 10, 1
BF16, F32, S32, S8, U8 = 2, 3, 4, 5, 6
"""The element types of memory."""
SIZES = {BF16: 2, F32: 4, S32: 4, S8: 1, U8: 1}
"""Their bytes."""
_DOTS = 0x48
"""The instructions with exact sums of products of bytes: VNNI, with vectors of 256 or 512 bits."""
_HALF_DOTS = 0x80
"""The instructions with products of bf16: AVX512_BF16, or AMX."""
_WEIGHTS_WANTED, _SCRATCHPAD_WANTED, _IMPLEMENTATION = 131, 136, 8
_UNIMPLEMENTED, _LAST = 3, 4
_REFUSALS = (2, _UNIMPLEMENTED)
"""The statuses for no primitive as described. Sizes were compared before, so "invalid" means a valid call without a kernel too."""
_STATUS = {1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 4: "last implementation reached", 5: "runtime error", 6: "not required"}
DIMS = 12
"""So many dims has a tensor of the library at most."""
_SMALL = 4 << 20
"""The most bytes that one thread reorders alone: on a busy machine a call waits for other threads each time."""
_FEW = 64
"""So many elements take a reference kernel no longer than a call."""
SOURCE, OTHER, RESULT, WEIGHTS, BIAS, SCALE, SHIFT, SCRATCHPAD = 1, 2, 17, 33, 41, 51, 52, 80
"""Names of the operands and results of a primitive."""
SEVERAL, ADDED = 1024, 1 << 15 | OTHER
STEP_OF, ZERO_OF = 4096, 8192
"""With the name of an operand or a result: its step, and its zero point."""
BINARY = {"add": 0x1FFF0, "multiply": 0x1FFF1, "divide": 0x1FFF4, "subtract": 0x1FFF5}
REDUCTIONS = {"max": 0x2FFF2, "min": 0x2FFF3, "sum": 0x2FFF4}
POOLING = {"max": 0x1FF, "mean with padding": 0x2FF, "mean": 0x3FF}
_SOFTMAX, _NEAREST, _WITH_SCALE, _WITH_SHIFT = 0x30000, 0x2FFF0, 2, 4
ELEMENTWISE = {
    "relu": 0x20, "leaky_relu": 0x20, "tanh": 0x21, "square": 0x23, "sqrt": 0x25,
    "linear": 0x26, "hardsigmoid": 0x28, "sigmoid": 0x29, "gelu_tanh": 0x2B, "swish": 0x2C, "hardtanh": 0x2E,
    "gelu": 0x31, "hardswish": 0x34,
}  # fmt: skip
"""The functions of each element, by the names of `foreshape.language.operator.computations.Activation`; two powers; and "linear", a number times it, and one
more."""
POWERS = {0.5: "sqrt", 2.0: "square"}
"""The functions that are a power."""
_PACKED = {SOURCE: 0, WEIGHTS: 1, BIAS: 2, RESULT: 3}
_MEMORIES: dict[str, Mapping[int, int]] = {
    "convolution": _PACKED,
    "product": _PACKED,
    "binary": {SOURCE: 1, OTHER: 2, RESULT: 3},
    "elementwise": {SOURCE: 1, RESULT: 1},
    "pooling": {SOURCE: 1, RESULT: 2},
    "softmax": {SOURCE: 0, RESULT: 0},
    "softmax_to": {SOURCE: 0, RESULT: 1},
    "normalized_rows": {SOURCE: 0, RESULT: 0},
    "nearest": {SOURCE: 0, RESULT: 1},
    "joined": {RESULT: 1},
    "reduced": {SOURCE: 1, RESULT: 2},
    "reordered": {SOURCE: 0, RESULT: 1},
}
"""The places of the tensors among the arguments of each kind of computation."""
_STRIDES, _COUNT, _DIMS, _PADDED, _KIND, _INNER_COUNT, _INNER_BLOCKS, _INNER_AXES = 14, 256, 257, 260, 262, 263, 264, 265
"""Properties of a description of memory."""


class LibraryError(ForeshapeError):
    """The error for a call that oneDNN refused."""


class Unimplemented(LibraryError):
    """The error for sizes without a kernel of oneDNN."""


Function = tuple[str, float, float]
"""A function of each element, by its name in `ELEMENTWISE`, with its numbers."""


class Memory(NamedTuple):
    """A tensor in memory: its dims, the steps between elements, or none for an order of the primitive's choice, and its element type."""

    dims: Sequence[int]
    steps: Sequence[int] | None
    element: int = F32

    @property
    def nbytes(self) -> int:
        """Return the bytes from its first element to behind its last one; 0 without steps."""
        if self.steps is None:
            return 0
        return SIZES[self.element] * (1 + sum((n - 1) * s for n, s in zip(self.dims, self.steps, strict=True)))


class After(NamedTuple):
    """The attributes of a computation: a tensor is added, functions of each element follow, and bytes have steps and zero points.

    ``grids``: the names of operands and results with steps, each with the axes that have steps of their own, as bits; ``zeros``: of those with a zero point.
    """

    added: Memory | None = None
    functions: Sequence[Function] = ()
    grids: Sequence[tuple[int, int]] = ()
    zeros: Sequence[int] = ()


NOTHING_AFTER = After()


class Primitive(NamedTuple):
    """A computation: its kind, the name of a method of `Library`; the arguments of that; and the number of threads, None for all."""

    kind: str
    arguments: Sequence[Any]
    threads: int | None = None

    @property
    def after(self) -> After:
        """Return its attributes."""
        last = self.arguments[-1]
        return last if isinstance(last, After) else self.arguments[-2]  # behind those of a convolution may stand whether it is transposed

    def of_elements(self, elements: Mapping[int, int]) -> Primitive:
        """Return the same computation of tensors of other element types, by the names of the primitive's arguments."""
        arguments, after = list(self.arguments), self.after
        for name, n in _MEMORIES[self.kind].items():
            if name in elements and arguments[n] is not None:
                arguments[n] = arguments[n]._replace(element=elements[name])
        if self.kind == "joined":
            arguments[0] = [m._replace(element=elements.get(SEVERAL + index, m.element)) for index, m in enumerate(arguments[0])]
        if ADDED in elements and after.added is not None:
            place = next(n for n, a in enumerate(arguments) if a is after)
            arguments[place] = after._replace(added=after.added._replace(element=elements[ADDED]))
        return self._replace(arguments=arguments)

    @property
    def memories(self) -> dict[int, Memory]:
        """Return the tensors of a call, by the names of the primitive's arguments."""
        arguments = self.arguments
        out = {name: arguments[n] for name, n in _MEMORIES[self.kind].items() if arguments[n] is not None}
        if self.kind == "joined":
            out.update({SEVERAL + index: memory for index, memory in enumerate(arguments[0])})
        if self.kind == "normalized_rows":
            row = Memory(arguments[0].dims[-1:], (1,))
            out.update({name: row for name, exists in ((SCALE, arguments[2]), (SHIFT, arguments[3])) if exists})
        if (added := self.after.added) is not None:
            out[ADDED] = added
        return out


class Argument(ctypes.Structure):
    """A memory object with a primitive's name for it."""

    _fields_ = [("name", c_int), ("memory", c_void_p)]


def _check(status: int, what: str, refusals: Sequence[int] = (_UNIMPLEMENTED,)) -> None:
    if status:
        kind = Unimplemented if status in refusals else LibraryError
        raise kind(f"oneDNN: {what}: {_STATUS.get(status, f'status {status}')}")


class Handle:
    """An object of the library, destroyed with this one, and the owners of its memory."""

    __slots__ = ("__weakref__", "_destroy", "held", "kernel", "record", "value")

    def __init__(self, value: int | None, destroy: Callable[[int | None], int]) -> None:
        self.value, self._destroy = value, destroy
        self.held: Any = None
        self.kernel: KernelChoice | None = None
        """The kernel of a description."""
        self.record: Any = None
        """The computation of a description."""

    def borrow(self, value: int | None, owner: Handle) -> None:
        """Stand for an object within another one, in place of an own one."""
        old, destroy = self.value, self._destroy
        self.value, self._destroy, self.held = value, _nothing, owner
        destroy(old)

    def __del__(self) -> None:
        self._destroy(self.value)


class KernelChoice(NamedTuple):
    """The kernel of a description: the threads it is made for, its computation as written by ``repr``, and its rank among the kernels of this."""

    threads: int
    computation: str
    rank: int


def _nothing(value: int | None) -> int:
    return 0


class Library:
    """The functions of the shared library, as methods in Python's terms. Element type fp32 unless told otherwise.

    The methods that return the description of a computation take `Memory` and `After`. They raise `Unimplemented` if oneDNN has none for these sizes, or,
    except for products and convolutions, only the slowest one.
    """

    def __init__(self, path: str) -> None:
        self._functions = functions = ctypes.CDLL(path)
        self._makers: dict[tuple[str, str], tuple[Callable[..., int], Callable[[int | None], int], str]] = {}
        """The functions that make and destroy an object of a kind, and the name of the first."""
        short = ctypes.PyDLL(path)  # too short to let other threads in between
        self.execute = functions.dnnl_primitive_execute
        self.execute.argtypes = [c_void_p, c_void_p, c_int, c_void_p]
        self.place = short.dnnl_memory_set_data_handle
        self.place.argtypes = [c_void_p, c_void_p]
        functions.dnnl_primitive_desc_query_md.restype = c_void_p
        functions.dnnl_primitive_desc_query_md.argtypes = [c_void_p, c_int, c_int]
        functions.dnnl_memory_desc_get_size.restype = c_size_t
        self.threads: Callable[[], int] = short.omp_get_max_threads  # of OpenMP, the library's own
        self._choose_threads = short.omp_set_num_threads
        # Kernels are kept here, by sizes. With the library's own cache too, a process with many networks crashed while it made a kernel.
        _check(functions.dnnl_set_primitive_cache_capacity(c_int(0)), "to keep nothing")
        self.handle = lru_cache(256)(self._handle)
        self._primitives: WeakValueDictionary[KernelChoice, Handle] = WeakValueDictionary()
        self._engine = self._make("engine", c_int(_CPU), c_size_t(0))

    def _make(self, kind: str, *arguments: Any, by: str = "create", destroyed: str | None = None) -> Handle:
        maker = self._makers.get((kind, by))
        if maker is None:
            name = f"dnnl_{kind}_{by}"
            destroy = getattr(self._functions, f"dnnl_{destroyed or kind}_destroy")
            destroy.argtypes = [c_void_p]
            maker = self._makers[kind, by] = getattr(self._functions, name), destroy, name
        create, destroy, name = maker
        pointer = c_void_p()
        _check(create(byref(pointer), *arguments), name, _REFUSALS if destroyed == "primitive_desc" else (_UNIMPLEMENTED,))
        return Handle(pointer.value, destroy)

    def described(self, primitive: Primitive) -> Handle:
        """Return the description of a computation: of a primitive that is there, its own one."""
        with self.using(primitive.threads):
            kernel = KernelChoice(self.threads(), repr(primitive), 0)
        existing = self._primitives.get(kernel)
        if existing is None:
            description = self._first_described(primitive)
        else:
            description = Handle(None, _nothing)
            self._borrow(description, existing)
        description.kernel, description.record = kernel, primitive
        return description

    def _first_described(self, primitive: Primitive) -> Handle:
        """Return a new description of a computation."""
        with self.using(primitive.threads):
            return getattr(self, primitive.kind)(*primitive.arguments)

    def _described(self, kind: str, *arguments: Any) -> Handle:
        """Return the description of a computation; records are given by pointers to their handles."""
        handles = [self.handle(a) if isinstance(a, Memory) else self._attributes(a) if isinstance(a, After) else a for a in (self._engine, *arguments)]
        pointers = [_pointer(a) if a is None or isinstance(a, Handle) else a for a in handles]
        return self._make(f"{kind}_primitive_desc", *pointers, destroyed="primitive_desc")

    @contextmanager
    def using(self, threads: int | None) -> Generator[None]:
        """Make kernels meanwhile, in this thread, for so many threads; None for OpenMP's number."""
        previous = self.threads()
        self._choose_threads(threads or previous)
        try:
            yield
        finally:
            self._choose_threads(previous)

    def stream(self) -> Handle:
        return self._make("stream", _pointer(self._engine), c_int(_IN_ORDER))

    def strided(self, dims: Sequence[int], strides: Sequence[int], of: int = F32) -> Handle:
        """Return the description of memory with these steps between elements of a type.

        Raises:
            Unimplemented: there are more dims than the library has.
        """
        if len(dims) > DIMS:
            raise Unimplemented(f"oneDNN: at most {DIMS} dims, not {len(dims)}")
        return self._make("memory_desc", c_int(len(dims)), _dims(dims), c_int(of), _dims(strides), by="create_with_strides")

    def any(self, dims: Sequence[int], of: int = F32) -> Handle:
        """Return the description of memory whose order is the primitive's to choose."""
        return self._make("memory_desc", c_int(len(dims)), _dims(dims), c_int(of), c_int(_ANY), by="create_with_tag")

    def _handle(self, memory: Memory) -> Handle:
        """Return the description of memory. Raises as `strided`."""
        if memory.steps is None:
            return self.any(memory.dims, memory.element)
        return self.strided(memory.dims, memory.steps, memory.element)

    @property
    def multiplies_bytes(self) -> bool:
        """Return True if products of bytes have exact sums and are fast: other processors lose a bit, or take more time than for fp32."""
        return bool(self._functions.dnnl_get_effective_cpu_isa() & _DOTS)

    @property
    def multiplies_halves(self) -> bool:
        """Return True if products of bf16 are faster than of fp32 on this processor."""
        return bool(self._functions.dnnl_get_effective_cpu_isa() & _HALF_DOTS)

    def number(self, of: int | float, rank: int = 1) -> Handle:
        """Return memory of one number, a float or a whole one, of so many dims."""
        value, ones = c_int32(of) if isinstance(of, int) else c_float(of), (1,) * rank
        return self.memory(self.strided(ones, ones, S32 if isinstance(of, int) else F32), ctypes.addressof(value), value)

    def same(self, a: Handle, b: Handle) -> bool:
        return bool(self._functions.dnnl_memory_desc_equal(_pointer(a), _pointer(b)))

    def nbytes(self, description: Handle) -> int:
        return self._functions.dnnl_memory_desc_get_size(_pointer(description))

    def memory(self, description: Handle, address: int, held: Any = None) -> Handle:
        handle = self._make("memory", _pointer(description), _pointer(self._engine), c_void_p(address))
        handle.held = held
        return handle

    def _attributes(self, after: After) -> Handle:
        """Return attributes; the scratchpad is the caller's."""
        out = self._make("primitive_attr")
        _check(self._functions.dnnl_primitive_attr_set_scratchpad_mode(_pointer(out), c_int(1)), "who holds the scratchpad")
        for name, axes in after.grids:
            _check(self._functions.dnnl_primitive_attr_set_scales_mask(_pointer(out), c_int(name), c_int(axes)), "steps")
        for name in after.zeros:
            _check(self._functions.dnnl_primitive_attr_set_zero_points_mask(_pointer(out), c_int(name), c_int(0)), "zero points")
        if after.added is None and not after.functions:
            return out
        operations = self._make("post_ops")
        if after.added is not None:
            added = self.handle(after.added)
            _check(self._functions.dnnl_post_ops_append_binary(_pointer(operations), c_int(BINARY["add"]), _pointer(added)), "to add")
        for name, first, second in after.functions:
            _check(self._functions.dnnl_post_ops_append_eltwise(_pointer(operations), c_int(ELEMENTWISE[name]), c_float(first), c_float(second)), name)
        _check(self._functions.dnnl_primitive_attr_set_post_ops(_pointer(out), _pointer(operations)), "what follows")
        return out

    def convolution(
        self, source: Memory, weights: Memory, bias: Memory | None, result: Memory, strides: Sequence[int], dilations: Sequence[int],
        before: Sequence[int], behind: Sequence[int], after: After, transposed: bool = False,
    ) -> Handle:  # fmt: skip
        """Return the description of a convolution, with so many rows and columns of padding."""
        kind, algorithm = ("deconvolution", _TRANSPOSED_DIRECT) if transposed else ("convolution", _DIRECT)
        among = _dims([d - 1 for d in dilations])
        places = (_dims(strides), among, _dims(before), _dims(behind))
        return self._described(f"{kind}_forward", c_int(_FORWARD), c_int(algorithm), source, weights, bias, result, *places, after)

    def product(self, source: Memory, weights: Memory, bias: Memory | None, result: Memory, after: After) -> Handle:
        """Return the description of a product of matrices."""
        return self._described("matmul", source, weights, bias, result, after)

    def quick(self, description: Handle, dims: Sequence[int] | None = None) -> Handle:
        """Return the description. Refuse reference kernels, which take a hundred times as long for each number; of few ``dims`` they do as well."""
        if dims is not None and prod(dims) <= _FEW:
            return description
        name = self.implementation(description)
        if name.startswith("ref"):
            raise Unimplemented(f"oneDNN: only {name} computes this")
        return description

    def binary(self, kind: str, x: Memory, y: Memory, result: Memory, after: After) -> Handle:
        """Return the description of a sum or a product of elements; where y has a dim of 1 it is broadcast."""
        return self.quick(self._described("binary", c_int(BINARY[kind]), x, y, result, after), result.dims)

    def elementwise(self, function: Function, source: Memory, after: After) -> Handle:
        """Return the description of a function of each element."""
        name, first, second = function
        arguments = (c_int(_FORWARD), c_int(ELEMENTWISE[name]), source, source, c_float(first), c_float(second))
        return self.quick(self._described("eltwise_forward", *arguments, after), source.dims)

    def pooling(
        self, kind: str, source: Memory, result: Memory, strides: Sequence[int], window: Sequence[int], before: Sequence[int], behind: Sequence[int],
        after: After,
    ) -> Handle:  # fmt: skip
        """Return the description of maxima or means of windows, with so many rows and columns of padding."""
        windows = (_dims(strides), _dims(window), _dims([0] * len(window)), _dims(before), _dims(behind))
        leading = (c_int(_FORWARD), c_int(POOLING[kind]), source, result)
        return self.quick(self._described("pooling_forward", *leading, *windows, after))

    def softmax(self, source: Memory, axis: int, after: After) -> Handle:
        """Return the description of a softmax along an axis."""
        return self.quick(self._described("softmax_forward", c_int(_FORWARD), c_int(_SOFTMAX), source, source, c_int(axis), after))

    def softmax_to(self, source: Memory, result: Memory, axis: int, after: After) -> Handle:
        """Return the description of a softmax along an axis, with a result of another element type."""
        return self.quick(self._described("softmax_forward", c_int(_FORWARD), c_int(_SOFTMAX), source, result, c_int(axis), after))

    def normalized_rows(self, rows: Memory, epsilon: float, scales: bool, shifts: bool, after: After) -> Handle:
        """Return the description of a normalization of each row by its own mean and variance, possibly with a scale and a shift for each column."""
        flags = c_uint(_WITH_SCALE * scales | _WITH_SHIFT * shifts)
        arguments = (c_int(_FORWARD), rows, rows, c_void_p(None), c_float(epsilon), flags)
        return self.quick(self._described("layer_normalization_forward", *arguments, after))

    def nearest(self, source: Memory, result: Memory, after: After) -> Handle:
        """Return the description of images in another size, each pixel the nearest to its center."""
        return self.quick(self._described("resampling_forward", c_int(_FORWARD), c_int(_NEAREST), None, source, result, after))

    def joined(self, sources: Sequence[Memory], result: Memory, axis: int, after: After) -> Handle:
        """Return the description of tensors put behind one another along an axis."""
        handles = [self.handle(s) for s in sources]
        arguments = (c_int(len(sources)), c_int(axis), (c_void_p * len(sources))(*(handle.value for handle in handles)))
        return self.quick(self._described("concat", result, *arguments, after))

    def reduced(self, kind: str, source: Memory, result: Memory, after: After) -> Handle:
        """Return the description of the largest, the smallest or the sum of the numbers along the axes where the result has a dim of 1."""
        unused = (c_float(0.0), c_float(0.0))
        return self.quick(self._described("reduction", c_int(REDUCTIONS[kind]), source, result, *unused, after))

    def reordered(self, source: Memory, result: Memory, after: After) -> Handle:
        """Return the description of a copy in another order."""
        read, written, attributes, engine = self.handle(source), self.handle(result), self._attributes(after), _pointer(self._engine)
        places = (_pointer(read), engine, _pointer(written), engine)
        return self._make("reorder_primitive_desc", *places, _pointer(attributes), destroyed="primitive_desc")

    def implementation(self, description: Handle) -> str:
        """Return the name of the kernel of a description."""
        name = c_char_p()
        status = self._functions.dnnl_primitive_desc_query(c_void_p(description.value), c_int(_IMPLEMENTATION), c_int(0), byref(name))
        _check(status, "which kernel")
        return (name.value or b"").decode()

    def another(self, description: Handle) -> Handle:
        """Return the same description with its next kernel.

        Raises:
            Unimplemented: there is none, or only the slowest one.
        """
        kernel = description.kernel
        if description.held is not None:  # a primitive's own description stays as it is
            record, rank = description.record, 0 if kernel is None else kernel.rank
            description = self._first_described(record)
            description.record = record
            for _ in range(rank):
                self._advance(description)
        self._advance(description)
        if kernel is not None:
            description.kernel = kernel._replace(rank=kernel.rank + 1)
        return self.quick(description)

    def _advance(self, description: Handle) -> None:
        _check(self._functions.dnnl_primitive_desc_next_impl(_pointer(description)), "another kernel", (_LAST,))

    def without_garbage(self, description: Handle) -> Handle:
        """Return the description of a convolution with one filter to a group, by a kernel of steady speed.

        Kernels of 2023.2 for AVX2 load one number of a vector and multiply all eight. The others are leftovers, and denormal ones take a hundred times as
        long.
        """
        while (name := self.implementation(description)).endswith("avx2") and "brgconv" in name:
            description = self.another(description)
        return description

    def primitive(self, description: Handle) -> Handle:
        """Return the primitive of a description, the same one for equal descriptions as long as somebody holds it.

        Its code has some 20 to 200 KB, and a description 100 KB, so the description becomes the primitive's own.
        """
        kernel = description.kernel
        primitive = None if kernel is None else self._primitives.get(kernel)
        if primitive is None:
            primitive = self._make("primitive", _pointer(description))
            primitive.kernel = kernel
            primitive = primitive if kernel is None else self._primitives.setdefault(kernel, primitive)
        if description.held is not primitive:
            self._borrow(description, primitive)
        return primitive

    def _borrow(self, description: Handle, primitive: Handle) -> None:
        """Let a description be the one within a primitive."""
        pointer = c_void_p()
        _check(self._functions.dnnl_primitive_get_primitive_desc(_pointer(primitive), byref(pointer)), "the description of a primitive")
        description.borrow(pointer.value, primitive)

    def wanted_weights(self, primitive: Handle) -> Handle:
        """Return the weight layout that a described primitive wants."""
        return self._wanted(primitive, _WEIGHTS_WANTED)

    def scratchpad(self, primitive: Handle) -> Handle:
        """Return the scratchpad of a described primitive."""
        return self._wanted(primitive, _SCRATCHPAD_WANTED)

    def _wanted(self, primitive: Handle, which: int) -> Handle:
        order = self._functions.dnnl_primitive_desc_query_md(primitive.value, which, 0)  # the primitive's own
        return self._make("memory_desc", c_void_p(order), by="clone")

    def layout(self, order: Handle) -> list[int]:
        """Return the whole order of elements in memory."""
        count, blocks = self._number(order, _COUNT), self._number(order, _INNER_COUNT)
        inner = [*self._numbers(order, _INNER_BLOCKS, blocks), *self._numbers(order, _INNER_AXES, blocks)] if blocks else []
        return [self._number(order, _KIND), *(n for which in (_DIMS, _PADDED, _STRIDES) for n in self._numbers(order, which, count)), *inner]

    def identity(self) -> str:
        """Return its version, and its instructions on this machine."""
        functions = self._functions
        functions.dnnl_version.restype = POINTER(_Version)
        version = functions.dnnl_version().contents
        return f"{version.major}.{version.minor}.{version.patch} {(version.hash or b'').decode('ascii', 'replace')} {functions.dnnl_get_effective_cpu_isa()}"

    def _number(self, order: Handle, which: int) -> int:
        number = c_int32()
        self._functions.dnnl_memory_desc_query(_pointer(order), c_int(which), byref(number))
        return number.value

    def _numbers(self, order: Handle, which: int, count: int) -> list[int]:
        numbers = POINTER(c_int64)()
        self._functions.dnnl_memory_desc_query(_pointer(order), c_int(which), byref(numbers))
        return [numbers[index] for index in range(count)]

    def reorder(self, source: Handle, at: int, result: Handle, to: int) -> None:
        """Copy a tensor at one address in one order to another, in another."""
        engine = _pointer(self._engine)
        with self.using(1 if self.nbytes(source) <= _SMALL else None):
            description = self._make("reorder_primitive_desc", _pointer(source), engine, _pointer(result), engine, None, destroyed="primitive_desc")
            read, written = self.memory(source, at), self.memory(result, to)
            self.run(self.primitive(description), {SOURCE: read, RESULT: written})

    def can_reorder(self, source: Handle, result: Handle) -> bool:
        """Return True if a tensor in one order can be copied to another."""
        engine = _pointer(self._engine)
        try:
            self._make("reorder_primitive_desc", _pointer(source), engine, _pointer(result), engine, None, destroyed="primitive_desc")
        except Unimplemented:
            return False
        return True

    def add_product(self, sizes: tuple[int, int, int], by: float, a: int, step_a: int, b: int, step_b: int, c: int, step_c: int, keep: float = 1.0) -> None:
        """Compute ``c = keep c + by a b`` of matrices ``[m, k]`` and ``[k, n]`` at these addresses, in one pass over ``c``.

        Args:
            sizes: m, n and k.
            keep: if 0, ``c`` is not read.
            step_a, step_b, step_c: the elements from row to row; if negative, from column to column.
        """
        turns, (m, n, k) = [b"T" if step < 0 else b"N" for step in (step_a, step_b)], sizes
        steps = [c_int64(abs(step)) for step in (step_a, step_b, step_c)]
        arguments = (c_char(turns[0]), c_char(turns[1]), c_int64(m), c_int64(n), c_int64(k), c_float(by), c_void_p(a), steps[0], c_void_p(b), steps[1])
        _check(self._functions.dnnl_sgemm(*arguments, c_float(keep), c_void_p(c), steps[2]), "a product added to memory")

    def run(self, primitive: Handle, memories: dict[int, Handle]) -> None:
        """Execute once, and wait."""
        stream, arguments = self.stream(), arguments_of(memories)
        _check(self.execute(primitive.value, stream.value, len(memories), ctypes.addressof(arguments)), "to execute")


def arguments_of(memories: dict[int, Handle]) -> ctypes.Array[Argument]:
    """Return the arguments for executing a primitive."""
    return (Argument * len(memories))(*(Argument(n, m.value) for n, m in memories.items()))


def _pointer(of: Handle | None) -> c_void_p:
    return c_void_p(None if of is None else of.value)


def _dims(of: Sequence[int]) -> ctypes.Array[c_int64]:
    return (c_int64 * DIMS)(*of)


def library() -> Library | None:
    """Return oneDNN's library, if it is installed for this machine and not switched off."""
    return None if os.environ.get(SWITCH) == "torch" else _installed()


@cache
def _installed() -> Library | None:
    from importlib import metadata  # it takes long to import

    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    paths = [f for f in files if f.name == _FILE]
    if not paths:
        return None
    path = str(paths[0].locate())
    if not os.path.exists(path):
        return None
    with loading_openmp():
        return Library(path) if _version(path) == _MAJOR else None


class _Version(ctypes.Structure):
    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", c_char_p), ("threads", c_uint), ("gpu", c_uint)]


def _version(path: str) -> int:
    functions = ctypes.CDLL(path)
    functions.dnnl_version.restype = POINTER(_Version)
    return functions.dnnl_version().contents.major
