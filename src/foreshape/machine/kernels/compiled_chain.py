"""A written series of oneDNN's kernels, run again without torch.

It may come from anywhere. So each number is checked, and no primitive is made with an operand or a result outside of its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from foreshape.errors import FormatError
from foreshape.machine.kernels.onednn_chain import ChainCall, MemoryPlace, PlacedPrimitive
from foreshape.machine.kernels.onednn_grids import ALIGNMENT
from foreshape.machine.kernels.onednn_library import (
    F32,
    RESULT,
    S32,
    SCRATCHPAD,
    SOURCE,
    STEP_OF,
    WEIGHTS,
    ZERO_OF,
    After,
    Handle,
    Library,
    LibraryError,
    Memory,
    Primitive,
)
from foreshape.machine.kernels.onednn_packed import order_of
from foreshape.machine.kernels.written_chain import KINDS, LARGEST, CompiledSize, WrittenPrimitive, arguments_read

_ANYWHERE = {"reordered": (SOURCE,), "product of values": (SOURCE, WEIGHTS)}
"""The arguments of kinds with a begin at any element: columns of rows."""


class DoesNotFit(FormatError):
    """The error for a network compiled for another library, machine or number of threads."""


class CompiledChain:
    """A series for one size, made again.

    Args:
        of: as it was written.
        constants: the address and the bytes of each constant, to be kept by the caller.
        threads: of a series with several; by default as many as it was written for, if OpenMP has them.

    Raises:
        DoesNotFit: the library has another kernel here, or another order of a weight. FormatError: what is written does not fit together.
    """

    def __init__(self, library: Library, of: CompiledSize, constants: Sequence[tuple[int, int]], threads: int | None = None) -> None:
        self._library, self._of, self._constants = library, of, constants
        self.threads = of.threads if of.threads == 1 else min(of.threads, library.threads()) if threads is None else threads
        self._rooms = [4 * prod(dims) for dims in (*of.given, *of.results)]
        if max(self._rooms, default=0) > LARGEST:
            raise FormatError(f"an operand or a result has more than {LARGEST} bytes")
        with library.using(self.threads):
            self._primitives = [self._placed(index, primitive) for index, primitive in enumerate(of.primitives)]
        written = {place.tensor for p in self._primitives for name, place in p.places.items() if name == RESULT}
        if len(written - {None}) != len(of.results):
            raise FormatError("not every result is computed")
        self._free: list[tuple[ChainCall, Any]] = []

    def _placed(self, index: int, written: WrittenPrimitive) -> PlacedPrimitive:
        """Return a primitive with its places."""
        library, what, kind = self._library, f"primitive {index}, a {written.kind}", KINDS[written.kind]
        arguments = arguments_read(what, written.arguments, kind)
        _check(what, written.kind, arguments)
        record = Primitive(kind.primitive or written.kind, arguments, written.threads or None)
        orders = record.memories
        handles: dict[int, Handle] = {name: library.handle(m) for name, m in orders.items()}
        grids = _grids(what, orders, record.after)
        with library.using(record.threads):
            description = self._described(what, written, record)
        sizes = {name: m.nbytes for name, m in orders.items()} | {name: 4 * n for name, n in grids.items()}
        handles.update({name: library.strided((n,), (1,), F32 if name < ZERO_OF else S32) for name, n in grids.items()})
        if WEIGHTS in handles and WEIGHTS in kind.constant:
            handles[WEIGHTS] = wanted = library.wanted_weights(description)
            if library.layout(wanted) != written.layout:
                raise DoesNotFit(f"{what}: oneDNN orders the weight otherwise here")
            sizes[WEIGHTS] = library.nbytes(wanted)
        pad = library.scratchpad(description)
        if nbytes := library.nbytes(pad):
            handles[SCRATCHPAD], sizes[SCRATCHPAD] = pad, nbytes
        places, numbers = {name: (tensor, begin) for name, tensor, begin in written.places}, dict(written.constants)
        names = [*(name for name, _, _ in written.places), *(name for name, _ in written.constants)]
        if sorted(names) != sorted(handles) or not kind.constant & handles.keys() <= numbers.keys() or numbers.keys() & {RESULT, SCRATCHPAD}:
            raise FormatError(f"{what}: its operands and results are others than those with places")
        for name, (tensor, begin) in places.items():
            anywhere = name in _ANYWHERE.get(written.kind, ())
            self._check_place(what, name, tensor, begin, sizes[name], 4 if anywhere else ALIGNMENT)
        for output in (RESULT, SCRATCHPAD):
            operands = [name for name in places if name != output and not (written.kind == "softmax_to" and arguments[0] == arguments[1] and name == SOURCE)]
            if output in places and any(_overlap((*places[output], sizes[output]), (*places[name], sizes[name])) for name in operands):
                raise FormatError(f"{what}: its result or its scratchpad lies where another operand does")
        for name, n in numbers.items():
            if n >= len(self._constants) or self._constants[n][1] < sizes[name]:
                raise FormatError(f"{what}: constant {n} has less than the {sizes[name]} bytes that are read")
        memories = {name: library.memory(handles[name], self._constants[n][0]) for name, n in numbers.items()}
        memory_places = {name: MemoryPlace(None if tensor < 0 else tensor, begin, handles[name]) for name, (tensor, begin) in places.items()}
        return PlacedPrimitive(library.primitive(description), memory_places, memories, description, record)

    def _described(self, what: str, written: WrittenPrimitive, record: Primitive) -> Handle:
        """Return the description of a primitive, with its old kernel."""
        library = self._library
        try:
            description = library.described(record)
            while library.implementation(description) != written.kernel:
                description = library.another(description)
        except LibraryError as error:
            raise DoesNotFit(f"{what}: {error} (its kernel was {written.kernel})") from None
        return description

    def _check_place(self, what: str, name: int, tensor: int, begin: int, nbytes: int, alignment: int) -> None:
        rooms, inputs = self._rooms, len(self._of.given)
        if tensor >= len(rooms) or (0 <= tensor < inputs and name in (RESULT, SCRATCHPAD)):
            raise FormatError(f"{what}: argument {name} has no place of number {tensor}")
        room = self._of.nbytes if tensor < 0 else rooms[tensor]
        if name == RESULT and tensor >= 0 and (begin or nbytes != room):
            raise FormatError(f"{what}: result {tensor - inputs} has {room} bytes, and {nbytes} are computed")
        if begin % alignment or begin + nbytes > room:
            raise FormatError(
                f"{what}: argument {name} lies at {begin} to {begin + nbytes}; it begins at a multiple of {alignment}, and there are {room} bytes"
            )

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """Return the results, arrays of numpy, of contiguous arrays of fp32 with the dims of the operands. Images lie with their channels innermost."""
        import numpy

        of, library = self._of, self._library
        for x, dims in zip(given, of.given, strict=True):
            if x.shape != dims or x.dtype != numpy.float32 or not x.flags.c_contiguous:
                raise FormatError.must("an operand", f"contiguous, fp32 and {list(dims)}", f"{x.dtype} {list(x.shape)}")
        try:
            call, piece = self._free.pop()
        except IndexError:  # the first one, or all are in use by other threads
            call, piece = ChainCall(library, self._primitives, len(self._rooms)), _room(of.nbytes)
        out = [_room(4 * prod(dims)) for dims in of.results]
        call.place(_address(piece), [*map(_address, given), *map(_address, out)])
        with library.using(self.threads):
            for execute in call.executions:
                if status := execute():
                    raise LibraryError(f"oneDNN could not compute a kernel of a series: status {status}")
        self._free.append((call, piece))
        return [_shaped(room, dims) for room, dims in zip(out, of.results, strict=True)]


def _grids(what: str, orders: dict[int, Memory], after: After) -> dict[int, int]:
    """Return the constants of grids with the numbers of their elements: steps, for some axes each its own, and zero points."""
    out: dict[int, int] = {}
    for name, axes in after.grids:
        dims = orders[name].dims if name in orders else ()
        if not dims or axes >> len(dims) or STEP_OF | name in out:
            raise FormatError(f"{what}: steps of argument {name} along the axes {axes:b}, which are not there")
        out[STEP_OF | name] = prod(n for at, n in enumerate(dims) if axes >> at & 1)
    for name in after.zeros:
        if name not in orders or ZERO_OF | name in out:
            raise FormatError(f"{what}: a zero point of argument {name}, which is not there")
        out[ZERO_OF | name] = 1
    return out


def _overlap(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    """Return True if two places have bytes in common, each a tensor, a begin and a number of bytes."""
    return a[0] == b[0] and a[1] < b[1] + b[2] and b[1] < a[1] + a[2]


def _check(what: str, kind: str, given: Sequence[Any]) -> None:
    """Refuse axes of other tensors, and windows outside of their images; the library might not."""
    if kind == "convolution":
        rank = len(given[0].dims) - 2
        if rank < 1 or any(len(of) != rank for of in given[4:8]):
            raise FormatError(f"{what}: steps and paddings are not for {rank} axes of images")
    if kind == "pooling":
        images, strides, window, before, behind = given[1].dims[2:], *given[3:7]
        if len(images) != 2 or any(len(of) != 2 for of in (strides, window, before, behind)):
            raise FormatError(f"{what}: steps, windows and paddings are not for two axes of images")
        for n, out, s, k, b in zip(images, given[2].dims[2:], strides, window, before, strict=True):
            if b >= k or (out - 1) * s >= n + b:
                raise FormatError(f"{what}: a window lies in the padding altogether")
    if kind == "reduced" and (len(given[1].dims) != len(given[2].dims) or any(n not in (1, m) for m, n in zip(given[1].dims, given[2].dims, strict=True))):
        raise FormatError(f"{what}: the result of {list(given[1].dims)} has dims {list(given[2].dims)}")
    axis, of = {"softmax": (1, 0), "softmax_to": (2, 0), "joined": (2, 1)}.get(kind, (None, 0))
    if axis is not None and given[axis] >= len(given[of].dims):
        raise FormatError(f"{what}: there is no axis {given[axis]}")


def _room(nbytes: int) -> Any:
    """Return so many bytes, aligned."""
    import numpy

    room = numpy.empty(nbytes + ALIGNMENT, numpy.uint8)
    begin = -_address(room) % ALIGNMENT
    return room[begin : begin + nbytes]


def _address(of: Any) -> int:
    return of.__array_interface__["data"][0]


def _shaped(room: Any, dims: tuple[int, ...]) -> Any:
    """Return fp32 in some dims."""
    import numpy

    return numpy.ndarray(dims, numpy.float32, room, strides=[4 * s for s in order_of(dims)])
