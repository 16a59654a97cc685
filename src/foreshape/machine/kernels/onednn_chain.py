"""Kernels of oneDNN's own library one after another by one call, for networks of many small ones.

Values between them lie in one piece of memory, divided once for each size of the operands. The primitives keep their addresses as long as the piece is at the
same place, so a kernel costs one call of a C function.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from math import prod
from time import perf_counter
from typing import Any, NamedTuple

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ShapeError
from foreshape.machine.kernels.kept_kernels import count_kernels, drop_oldest, sizes_kept
from foreshape.machine.kernels.onednn_grids import Kept, aligned, bytes_of
from foreshape.machine.kernels.onednn_library import (
    RESULT,
    SCRATCHPAD,
    Handle,
    Library,
    LibraryError,
    Memory,
    Primitive,
    Unimplemented,
    arguments_of,
)
from foreshape.machine.kernels.onednn_packed import DescribedPrimitive, order_of, row_major_strides
from foreshape.machine.kernels.onednn_stages import computed, lying
from foreshape.machine.kernels.onednn_steps import ChainKernel, PlannedStep, planned, planned_in_half


class KernelTime(NamedTuple):
    """The time of a kernel of a series, in seconds: of a step, by its number, or of a reordering of an operand (-1)."""

    step: int
    seconds: float
    kernel: str


class Series:
    """Steps by one call: it returns the results, or the single one.

    Args:
        count: the number of operands, all fp32.
        in_half: the values between its kernels are bf16.
    """

    def __init__(self, library: Library, steps: Sequence[ChainKernel], count: int, in_half: bool = False) -> None:
        self._library, self._steps, self._count, self._in_half = library, tuple(steps), count, in_half
        self._lines: dict[Hashable, Callable[[Sequence[Tensor]], Any]] = {}
        self._lock = threading.Lock()
        count_kernels(self, len(self._steps))
        self._out = [count + index for index, step in enumerate(steps) if step.slot is None]
        self._last = [[v for v in {*s.sources} if all(v not in later.sources for later in steps[index + 1 :])] for index, s in enumerate(steps)]

    def __call__(self, *given: Tensor) -> Any:
        return self.line_of(given)(given)

    def line_of(self, given: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Any]:
        """Return the kernels for the sizes of some operands: a `ChainLine`, or other kernels."""
        key = self._key(given)
        return self._lines.get(key) or self._find(key, given)

    def _key(self, given: Sequence[Tensor]) -> Hashable:
        """Return the key of a call's kernels."""
        for x in given:
            if x.dtype is not torch.float32 or not x.is_cpu:
                raise ShapeError(f"what comes in must be fp32 in memory; it is {x.dtype} on {x.device}")
        return (self._library.threads(), *[(x.shape, x.is_contiguous(memory_format=torch.channels_last) if x.dim() == 4 else None) for x in given])

    def clocked(self, *given: Tensor) -> tuple[Any, list[KernelTime]]:
        """Return the result of a call, and the times of its kernels; no times for sizes of other kernels."""
        line = self.line_of(given)
        if not isinstance(line, ChainLine):
            return line(given), []
        times: list[KernelTime] = []
        return line(given, times), times

    def line(self, library: Library, given: Sequence[Tensor]) -> ChainLine:
        """Return its kernels for the sizes of some operands, described by ``library``. Raises as `ChainLine`."""
        return ChainLine(library, self._steps, given, self._out, self._in_half)

    def part(self, begin: int, end: int) -> SeriesPart:
        """Return some successive steps, numbered as a series of their own."""
        steps, first = self._steps[begin:end], self._count + begin
        later = {v for s in self._steps[end:] for v in s.sources} | {*self._out}
        sources = sorted({v for s in steps for v in s.sources if v < first})
        results = [v for v in range(first, self._count + end) if v in later]
        numbers = {v: index for index, v in enumerate((*sources, *range(first, self._count + end)))}
        own = [s._replace(sources=tuple(numbers[v] for v in s.sources), slot=None if first + index in later else s.slot) for index, s in enumerate(steps)]
        return SeriesPart(own, sources, results, [v for v in (*sources, *results) if v not in later and v >= self._count])

    def forget(self, share: float) -> None:
        with self._lock:
            drop_oldest(self._lines, share)

    def _find(self, key: Hashable, given: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Any]:
        """Return the function for new sizes."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                try:
                    line = self.line(self._library, given) if all(x.numel() for x in given) else self.otherwise
                except Unimplemented:
                    line = self.otherwise
                while len(self._lines) >= sizes_kept():
                    del self._lines[next(iter(self._lines))]
                self._lines[key] = line
            return line

    def otherwise(self, given: Sequence[Tensor]) -> Any:
        """Run step by step, by other kernels."""
        values: list[Any] = [*given]
        for step, last in zip(self._steps, self._last, strict=True):
            values.append(step.compute(*[values[s] for s in step.sources]))
            for v in last:
                if v not in self._out:
                    values[v] = None
        out = [values[v] for v in self._out]
        return out[0] if len(out) == 1 else out


class SeriesPart(NamedTuple):
    """Successive steps of a series: the steps, and the numbers in the whole of their operands, of their results, and of values read last here."""

    steps: list[ChainKernel]
    sources: list[int]
    results: list[int]
    last: list[int]


_Where = tuple[int | None, int]
"""The number of an operand or a result (operands first), or None for the piece of memory; and the byte in it."""


class MemoryPlace(NamedTuple):
    """The place of a primitive's operand or result: its memory and layout."""

    tensor: int | None
    offset: int
    order: Handle


class PlacedPrimitive(NamedTuple):
    """A primitive of a series with its description, the places of its operands, result and scratchpad, and constants, by the names of its arguments."""

    primitive: Handle
    places: dict[int, MemoryPlace]
    constants: dict[int, Handle]
    description: Handle
    record: Primitive


def _reordered(library: Library, dims: Sequence[int]) -> DescribedPrimitive:
    """Return contiguous images with the channels innermost."""
    return computed(library, dims, "reordered", Memory(tuple(dims), row_major_strides(dims)), lying(dims))


class _Work(NamedTuple):
    """A primitive of a step, with the numbers of the values read and written; below 0 a byte of the room between values, -1 the first."""

    step: int
    described: DescribedPrimitive
    operands: tuple[int, ...]
    result: int


class ChainLine:
    """The kernels of a series for one size of the operands.

    Raises:
        Unimplemented: oneDNN has no kernel for one of them. ShapeError: sizes do not fit.
    """

    def __init__(self, library: Library, steps: Sequence[ChainKernel], given: Sequence[Tensor], out: Sequence[int], in_half: bool = False) -> None:
        self.onednn, self._given, self._in_half = library, len(given), in_half
        dims: list[tuple[int, ...]] = [tuple(x.shape) for x in given]
        grids: list[Kept] = [None] * len(given)
        roots = list(range(len(given)))  # the value in whose memory one lies
        work: list[_Work] = []
        room = 0  # for what is made of a step's operands, and of what its result is made
        for index, step in enumerate(steps):
            number = len(given) + index
            plan = self.plan(step, dims, grids, number, number in out)
            work += [_Work(index, *entry) for entry in plan.primitives]
            dims.append(plan.dims)
            grids.append(plan.grid)
            roots.append(number if plan.primitives else roots[step.sources[0]])
            room = max(room, plan.room)
        if not all(map(prod, dims)):
            raise Unimplemented("nothing is computed of nothing")
        self.primitives: list[PlacedPrimitive] = []
        self._step_of: list[int] = []  # of each primitive
        self._names: list[str] = []  # of their kernels, where somebody has asked
        self.last = [x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) for x in given]
        copied = {index: _reordered(library, x.shape) for index, x in enumerate(given) if x.dim() == 4 and not self.last[index]}
        self.nbytes = 0
        descriptions = [d.description for d in (*copied.values(), *(w.described for w in work))]
        self._scratch = self._take(max((library.nbytes(library.scratchpad(d)) for d in descriptions), default=0))
        self._between = self._take(room)
        sizes = [bytes_of(prod(d), grid) for d, grid in zip(dims, grids, strict=True)]
        places = [*[(index, 0) for index in range(len(given))], *self._divide(steps, sizes[len(given) :], [v - len(given) for v in out])]
        for index, reordered in copied.items():  # brought into order first
            place = (None, self._take(sizes[index]))
            self._add(-1, reordered, [(places[index], sizes[index]), (place, sizes[index])])
            places[index] = place
        for w in work:
            parts = [((None, self._between - 1 - v), room) if v < 0 else (places[roots[v]], sizes[v]) for v in (*w.operands, w.result)]
            self._add(w.step, w.described, parts)
        self.outs = [(torch.Size(dims[v]), order_of(dims[v])) for v in out]
        self._free: list[ChainCall] = []

    def plan(self, step: ChainKernel, dims: Sequence[tuple[int, ...]], grids: Sequence[Any], number: int, leaves: bool) -> PlannedStep:
        """Return the work of a step, as `planned`, or as `planned_in_half`."""
        plan = planned_in_half if self._in_half else planned
        return plan(self.onednn, step, dims, grids, number, leaves)

    def primitive(self, description: Handle) -> Handle:
        """Return the primitive of a description."""
        return self.onednn.primitive(description)

    def _divide(self, steps: Sequence[ChainKernel], needed: Sequence[int], out: Sequence[int]) -> list[_Where]:
        """Return the place of each step's result."""
        sizes: dict[int, int] = {}
        for step, size in zip(steps, needed, strict=True):
            if step.slot is not None:
                sizes[step.slot] = max(sizes.get(step.slot, 0), size)
        begins = {slot: self._take(size) for slot, size in sizes.items()}
        return [(None, begins[s.slot]) if s.slot is not None else (self._given + out.index(index), 0) for index, s in enumerate(steps)]

    def _take(self, size: int) -> int:
        """Return the begin of so many bytes in the piece of memory."""
        begin, self.nbytes = self.nbytes, self.nbytes + aligned(size)
        return begin

    def _add(self, step: int, described: DescribedPrimitive, where: Sequence[tuple[_Where, int]]) -> None:
        """Add the primitive of a step, with the places and the bytes of its operands and result."""
        library = self.onednn
        orders: dict[int, MemoryPlace] = {}
        for name, (place, size) in zip((*described.names, RESULT), where, strict=True):
            begin, used = (name == described.names[0] and described.part) or (0, library.nbytes(described.orders[name]))
            if name in described.begins:
                memory = described.record.memories.get(name)
                begin = described.begins[name]
                used = begin + (used if memory is None else memory.nbytes)
            if used > size:
                raise ShapeError(f"{used} bytes would be used of {size}")
            orders[name] = MemoryPlace(place[0], place[1] + begin, described.orders[name])
        pad = library.scratchpad(described.description)
        if library.nbytes(pad):
            orders[SCRATCHPAD] = MemoryPlace(None, self._scratch, pad)
        self.primitives.append(PlacedPrimitive(self.primitive(described.description), orders, described.constants, described.description, described.record))
        self._step_of.append(step)

    def __call__(self, given: Sequence[Tensor], times: list[KernelTime] | None = None, into: Sequence[Tensor] | None = None) -> Any:
        try:
            call = self._free.pop()
        except IndexError:  # the first one, or all are in use by other threads
            call = ChainCall(self.onednn, self.primitives, self._given + len(self.outs))
        piece = torch.empty(self.nbytes, dtype=torch.uint8, device="cpu")
        operands = [x if last else x.contiguous() for x, last in zip(given, self.last, strict=True)]
        out = into or [torch.empty_strided(dims, steps, dtype=torch.float32, device="cpu") for dims, steps in self.outs]
        call.place(piece.data_ptr(), [x.data_ptr() for x in (*operands, *out)])
        for execute in call.executions if times is None else self._clocked(call.executions, times):
            status = execute()
            if status:
                raise LibraryError(f"oneDNN could not compute a kernel of a series: status {status}")
        self._free.append(call)
        return out[0] if len(out) == 1 else out

    def _clocked(self, executions: Sequence[Callable[[], int]], times: list[KernelTime]) -> Iterator[Callable[[], int]]:
        """Yield the executions with a clock for each."""
        self._names = self._names or [self.onednn.implementation(primitive.description) for primitive in self.primitives]
        for execute, step, name in zip(executions, self._step_of, self._names, strict=True):
            began = perf_counter()
            yield execute
            times.append(KernelTime(step, perf_counter() - began, name))


class ChainCall:
    """The arguments of primitives, for one thread at a time: memory objects, with the addresses of the last time."""

    __slots__ = ("_addresses", "_inside", "_kept", "_outside", "_piece", "_place", "executions")

    def __init__(self, library: Library, primitives: Sequence[PlacedPrimitive], count: int) -> None:
        self._piece, self._addresses, self._place = 0, [0] * count, library.place
        self._inside: list[tuple[int | None, int]] = []
        self._outside: list[list[tuple[int | None, int]]] = [[] for _ in range(count)]
        self.executions: list[Callable[[], int]] = []
        stream = library.stream()
        self._kept: list[Any] = [stream, primitives]
        for primitive, places, constants, *_ in primitives:
            memories = {name: library.memory(p.order, 0) for name, p in places.items()}
            for name, p in places.items():
                value = memories[name].value
                if p.tensor is None:
                    self._inside.append((value, p.offset))
                else:
                    self._outside[p.tensor].append((value, p.offset))
            arguments = arguments_of({**memories, **constants})
            self._kept.append((memories, arguments))
            self.executions.append(partial(library.execute, primitive.value, stream.value, len(arguments), ctypes.addressof(arguments)))

    def place(self, piece: int, addresses: list[int]) -> None:
        """Take the addresses of the piece of memory, and of the operands and results."""
        place = self._place
        if piece != self._piece:
            for memory, offset in self._inside:
                place(memory, piece + offset)
            self._piece = piece
        if addresses != self._addresses:
            for memories, address in zip(self._outside, addresses, strict=True):
                for memory, offset in memories:
                    place(memory, address + offset)
            self._addresses = addresses
