"""A series of oneDNN's kernels for one size, written down: each primitive with its places in memory, and run again without torch.

The written one may come from anywhere. So each number is checked, and no primitive is made with an operand or a result outside of its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from math import prod
from typing import Any, NamedTuple

from foreshape.checked_json.readers import Reader, anything, count, listing, number, one_of, optional, record, refuse, series, text, truth, tupled
from foreshape.errors import FormatError
from foreshape.kernels.onednn_chain import ALIGNMENT, ChainCall, ChainLine, MemoryPlace, PlacedPrimitive
from foreshape.kernels.onednn_library import (
    BIAS,
    BINARY,
    DIMS,
    ELEMENTWISE,
    OTHER,
    POOLING,
    RESULT,
    SCALE,
    SCRATCHPAD,
    SEVERAL,
    SHIFT,
    SOURCE,
    WEIGHTS,
    Handle,
    LibraryError,
)
from foreshape.kernels.onednn_packed import ADDED, order_of
from foreshape.kernels.recorded_library import RecordedLibrary

LARGEST = 2**40
"""The largest dim, step or offset, in elements or bytes."""
MOST_PRIMITIVES, _MOST_JOINED = 20_000, 1024


class DoesNotFit(FormatError):
    """The error for a network compiled for another library, machine or number of threads."""


# --- what is written


class _Memory(NamedTuple):
    """A tensor in memory: its dims and the steps between elements; without steps, in an order of the primitive's choice."""

    dims: tuple[int, ...]
    steps: tuple[int, ...] | None

    @property
    def nbytes(self) -> int:
        """Return the bytes from its first element to behind its last one; 0 without steps."""
        if self.steps is None:
            return 0
        return 4 * (1 + sum((n - 1) * s for n, s in zip(self.dims, self.steps, strict=True)))


class _After(NamedTuple):
    """The operations behind a computation: a tensor is added, and functions of each element follow."""

    added: _Memory | None
    functions: tuple[tuple[str, float, float], ...]


class _WrittenPrimitive(NamedTuple):
    """A primitive as it is written.

    ``threads``: 1, or 0 for all. ``kernel``: the name of its kernel. ``places``: argument, operand or result of the series (-1 for the
    piece of memory), byte in it. ``constants``: argument, number of the constant. ``layout`` is the weight's.
    """

    kind: str
    arguments: list[Any]
    threads: int
    kernel: str
    places: list[tuple[int, int, int]]
    constants: list[tuple[int, int]]
    layout: list[int]


class CompiledSize(NamedTuple):
    """A series for one size as it is written.

    ``given``: the dims of its operands; ``results``: the dims of its results; ``threads`` and ``nbytes``: the number of its threads, and of the bytes of values
    between kernels.
    """

    given: list[tuple[int, ...]]
    results: list[tuple[int, ...]]
    threads: int
    nbytes: int
    primitives: list[_WrittenPrimitive]


_dim, _step, _place = count(1, LARGEST), count(0, LARGEST), count(0, LARGEST)
_dims = tupled(_dim, DIMS, 1)
_pair = tupled(count(0, 2**31 - 1), DIMS)


def _signed(what: str, given: Any) -> int:
    return given if type(given) is int and abs(given) < 2**31 else refuse(what, "a whole number below 2^31", given)


def _memory(steps: bool) -> Reader[_Memory]:
    """Return a reader of a tensor in memory, with steps or without."""
    read = series(_Memory, _dims, tupled(_step, DIMS, 1) if steps else optional(anything))

    def checked(what: str, given: Any) -> _Memory:
        out = read(what, given)
        if out.steps is None:
            return out if not steps else refuse(what, "a tensor with steps between its elements", given)
        if not steps or len(out.steps) != len(out.dims):
            refuse(what, "dims, and as many steps" if steps else "dims alone", given)
        if out.nbytes > LARGEST or prod(out.dims) > LARGEST:
            refuse(what, f"within {LARGEST} bytes", given)
        return out

    return checked


_lies, _open = _memory(True), _memory(False)
_window, _moved = tupled(count(1, 2**31 - 1), DIMS), tupled(_signed, DIMS)


_function: Reader[tuple[str, float, float]] = series(lambda *of: of, one_of(*ELEMENTWISE), number, number)
_after = series(_After, optional(_lies), tupled(_function, 32))


class _Kind(NamedTuple):
    """A kind of computation: the readers of its arguments, and the tensors that it reads and writes, by the names of the primitive's arguments.

    A number is the place of the tensor's description among the arguments. ``constant``: the names of constants.
    """

    readers: tuple[Reader[Any], ...]
    names: Mapping[int, int]
    constant: frozenset[int] = frozenset()
    least: int | None = None
    """So many arguments are enough."""


_PACKED = {SOURCE: 0, WEIGHTS: 1, BIAS: 2, RESULT: 3}
_KINDS: dict[str, _Kind] = {
    "convolution": _Kind((_lies, _open, optional(_lies), _lies, _window, _window, _pair, _moved, _after, truth), _PACKED, frozenset({WEIGHTS, BIAS}), 9),
    "product": _Kind((_lies, _open, optional(_lies), _lies, _after), _PACKED, frozenset({WEIGHTS, BIAS})),
    "binary": _Kind((one_of(*BINARY), _lies, _lies, _lies, _after), {SOURCE: 1, OTHER: 2, RESULT: 3}),
    "elementwise": _Kind((_function, _lies, _after), {SOURCE: 1, RESULT: 1}),
    "pooling": _Kind((one_of(*POOLING), _lies, _lies, _window, _window, _pair, _pair, _after), {SOURCE: 1, RESULT: 2}),
    "softmax": _Kind((_lies, count(0, DIMS), _after), {SOURCE: 0, RESULT: 0}),
    "normalized_rows": _Kind((_lies, number, truth, truth, _after), {SOURCE: 0, RESULT: 0}),
    "nearest": _Kind((_lies, _lies, _after), {SOURCE: 0, RESULT: 1}),
    "joined": _Kind((tupled(_lies, _MOST_JOINED, 1), _lies, count(0, DIMS), _after), {RESULT: 1}),
    "reordered": _Kind((_lies, _lies, _after), {SOURCE: 0, RESULT: 1}),
}


def _arguments(what: str, given: list[Any], kind: _Kind) -> list[Any]:
    return series(lambda *of: list(of), *kind.readers, or_first=kind.least)(what, given)


_number = count(0, 2**31 - 1)
_written: Reader[_WrittenPrimitive] = series(
    _WrittenPrimitive,
    one_of(*_KINDS),
    anything,
    count(0, 1),
    text(200),
    listing(series(lambda *of: of, _number, count(-1, 10_000), _place), 2 * _MOST_JOINED),
    listing(series(lambda *of: of, _number, _number), 16),
    listing(count(-LARGEST, LARGEST), 200),
)
compiled_size: Reader[CompiledSize] = record(
    CompiledSize,
    given=listing(_dims, 1000),
    results=listing(_dims, 1000, 1),
    threads=count(1, 4096),
    nbytes=count(0, LARGEST),
    primitives=listing(_written, MOST_PRIMITIVES, 1),
)
"""The reader of a series for one size."""


# --- writing


def write(line: ChainLine, library: RecordedLibrary, given: Sequence[tuple[int, ...]], operands: Sequence[Any], number: Callable[[Any], int]) -> dict[str, Any]:
    """Return a series for one size in words of JSON.

    Args:
        line: the series, described by ``library``.
        given: the dims of the arrays of each call.
        operands: of the series: the number of one of these, or a tensor of torch with constant elements.
        number: keeps a constant, and returns its number.
    """
    tensors = [*(one if isinstance(one, int) else None for one in operands), *(len(given) + at for at in range(len(line.outs)))]
    primitives: list[Any] = []
    for of in line.primitives:
        recipe = library.made[id(of.description)][1]
        places: list[list[int]] = []
        kept = [[name, number(memory.held)] for name, memory in of.constants.items()]
        for name, place in of.places.items():
            tensor = -1 if place.tensor is None else tensors[place.tensor]
            if tensor is None:
                kept.append([name, number(operands[place.tensor or 0])])
            else:
                places.append([name, tensor, place.offset])
        layout = library.layout(library.wanted_weights(of.description)) if WEIGHTS in of.constants else []
        arguments = [_in_words(library, a) for a in (*recipe.arguments, *recipe.named.values())]
        primitives.append([recipe.method, arguments, int(recipe.threads == 1), library.implementation(of.description), places, kept, layout])
    results = [list(dims) for dims, _ in line.outs]
    return {"given": [list(d) for d in given], "results": results, "threads": library.threads(), "nbytes": line.nbytes, "primitives": primitives}


def _in_words(library: RecordedLibrary, given: Any) -> Any:
    """Return an argument of a description in words of JSON."""
    if isinstance(given, Handle):
        made = library.made.get(id(given))
        if made is not None:  # attributes
            of = {**dict(zip(("added", "functions", "steps", "zeros"), made[1].arguments, strict=False)), **made[1].named}
            if of.get("steps") or of.get("zeros"):
                raise LibraryError("kernels of bytes are not compiled")
            added, functions = of.get("added"), of.get("functions")
            return [_in_words(library, added), [*map(list, functions or ())]]
        return [library.dims(given), None if library.is_open(given) else library.steps(given)]
    if isinstance(given, (list, tuple)):
        return [_in_words(library, one) for one in given]  # pyright: ignore[reportUnknownVariableType]
    return given


# --- reading and running


class CompiledChain:
    """A series for one size, made again.

    Args:
        of: as it was written.
        constants: the address and the bytes of each constant, to be kept by the caller.
        threads: of a series with several; by default as many as it was written for, if OpenMP has them.

    Raises:
        DoesNotFit: the library has another kernel here, or another order of a weight. FormatError: what is written does not fit together.
    """

    def __init__(self, library: RecordedLibrary, of: CompiledSize, constants: Sequence[tuple[int, int]], threads: int | None = None) -> None:
        self._library, self._of, self._constants = library, of, constants
        self.threads = of.threads if of.threads == 1 else min(of.threads, library.threads()) if threads is None else threads
        self._rooms = [4 * prod(dims) for dims in (*of.given, *of.results)]
        if max(self._rooms, default=0) > LARGEST:
            raise FormatError(f"an operand or a result has more than {LARGEST} bytes")
        with library.using(self.threads):
            self._primitives = [self._made(at, one) for at, one in enumerate(of.primitives)]
        written = {place.tensor for p in self._primitives for name, place in p.places.items() if name == RESULT}
        if len(written - {None}) != len(of.results):
            raise FormatError("not every result is computed")
        self._free: list[tuple[ChainCall, Any]] = []

    def _made(self, at: int, of: _WrittenPrimitive) -> PlacedPrimitive:
        """Return a primitive with its places."""
        library, what, kind = self._library, f"primitive {at}, a {of.kind}", _KINDS[of.kind]
        given = _arguments(what, of.arguments, kind)
        _check(what, of.kind, given)
        orders: dict[int, _Memory] = {name: given[n] for name, n in kind.names.items() if isinstance(given[n], _Memory)}
        if of.kind == "joined":
            orders.update({SEVERAL + k: one for k, one in enumerate(given[0])})
        if of.kind == "normalized_rows":
            row = _Memory(given[0].dims[-1:], (1,))
            orders.update({name: row for name, wanted in ((SCALE, given[2]), (SHIFT, given[3])) if wanted})
        after: _After = given[next(n for n, read in enumerate(kind.readers) if read is _after)]
        if after.added is not None:
            orders[ADDED] = after.added
        handles: dict[int, Handle] = {name: self._handle(m) for name, m in orders.items()}
        with library.using(1) if of.threads else nullcontext():
            description = self._described(what, of, kind, given, handles, after)
        sizes = {name: m.nbytes for name, m in orders.items()}
        if WEIGHTS in handles:
            handles[WEIGHTS] = wanted = library.wanted_weights(description)
            if library.layout(wanted) != of.layout:
                raise DoesNotFit(f"{what}: oneDNN orders the weight otherwise here")
            sizes[WEIGHTS] = library.nbytes(wanted)
        pad = library.scratchpad(description)
        if nbytes := library.nbytes(pad):
            handles[SCRATCHPAD], sizes[SCRATCHPAD] = pad, nbytes
        places, kept = {name: (tensor, begin) for name, tensor, begin in of.places}, dict(of.constants)
        named = [*(name for name, _, _ in of.places), *(name for name, _ in of.constants)]
        if sorted(named) != sorted(handles) or not kind.constant & handles.keys() <= kept.keys() or kept.keys() & {RESULT, SCRATCHPAD}:
            raise FormatError(f"{what}: its operands and results are others than those with places")
        for name, (tensor, begin) in places.items():
            self._check_place(what, name, tensor, begin, sizes[name], 4 if of.kind == "reordered" and name == SOURCE else ALIGNMENT)
        for one in (RESULT, SCRATCHPAD):
            if one in places and any(_overlap((*places[one], sizes[one]), (*place, sizes[name])) for name, place in places.items() if name != one):
                raise FormatError(f"{what}: its result or its scratchpad lies where another operand does")
        for name, n in kept.items():
            if n >= len(self._constants) or self._constants[n][1] < sizes[name]:
                raise FormatError(f"{what}: constant {n} has less than the {sizes[name]} bytes that are read")
        memories = {name: library.memory(handles[name], self._constants[n][0]) for name, n in kept.items()}
        found = {name: MemoryPlace(None if tensor < 0 else tensor, begin, handles[name]) for name, (tensor, begin) in places.items()}
        return PlacedPrimitive(library.primitive(description), found, memories, description)

    def _handle(self, of: _Memory) -> Handle:
        return self._library.any(of.dims) if of.steps is None else self._library.strided(of.dims, of.steps)

    def _described(self, what: str, of: _WrittenPrimitive, kind: _Kind, given: list[Any], handles: dict[int, Handle], after: _After) -> Handle:
        """Return the description of a primitive, with its old kernel."""
        library = self._library
        by_argument: dict[int, Handle] = {n: handles[name] for name, n in kind.names.items() if name in handles}
        attributes = library.attributes(handles.get(ADDED), after.functions)
        arguments: list[Any] = []
        for n, value in enumerate(given):
            is_joined = of.kind == "joined" and n == 0
            taken = attributes[-1] if value is after else [handles[SEVERAL + k] for k in range(len(value))] if is_joined else by_argument.get(n, value)
            arguments.append(taken)
        try:
            description: Handle = getattr(library, of.kind)(*arguments)
            while library.implementation(description) != of.kernel:
                description = library.another(description)
        except LibraryError as error:
            raise DoesNotFit(f"{what}: {error} (its kernel was {of.kernel})") from None
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
    axis, of = {"softmax": (1, 0), "joined": (2, 1)}.get(kind, (None, 0))
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
