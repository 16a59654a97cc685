"""A series of oneDNN's kernels for one size in words of JSON: each primitive with its arguments, and the places of its operands in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from foreshape.core.checked_json.readers import Reader, anything, count, listing, number, one_of, optional, record, refuse, series, text, truth, tupled
from foreshape.machine.kernels.onednn_chain import ChainLine
from foreshape.machine.kernels.onednn_library import (
    BIAS,
    BINARY,
    DIMS,
    ELEMENTWISE,
    F32,
    OTHER,
    POOLING,
    REDUCTIONS,
    RESULT,
    S8,
    S32,
    SOURCE,
    U8,
    WEIGHTS,
    After,
    Library,
    Memory,
)

LARGEST = 2**40
"""The largest dim, step or offset, in elements or bytes."""
MOST_PRIMITIVES, _MOST_JOINED = 20_000, 1024


# --- what is written


class WrittenPrimitive(NamedTuple):
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
    primitives: list[WrittenPrimitive]


_dim, _step, _place = count(1, LARGEST), count(0, LARGEST), count(0, LARGEST)
_dims = tupled(_dim, DIMS, 1)
_pair = tupled(count(0, 2**31 - 1), DIMS)


def _signed(what: str, given: Any) -> int:
    return given if type(given) is int and abs(given) < 2**31 else refuse(what, "a whole number below 2^31", given)


def _among(*numbers: int) -> Reader[int]:
    """Return a reader of one of some numbers."""
    return lambda what, given: given if type(given) is int and given in numbers else refuse(what, f"one of {', '.join(map(str, numbers))}", given)


def _memory(steps: bool) -> Reader[Memory]:
    """Return a reader of a tensor in memory, with steps or without."""
    read = series(Memory, _dims, tupled(_step, DIMS, 1) if steps else optional(anything), _among(F32, S32, S8, U8), or_first=2)

    def checked(what: str, given: Any) -> Memory:
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
_named = _among(SOURCE, OTHER, WEIGHTS, RESULT)
read_after: Reader[After] = series(
    After, optional(_lies), tupled(_function, 32), tupled(series(lambda *of: of, _named, count(0, 2**DIMS - 1)), 4), tupled(_named, 4), or_first=2
)


class KernelKind(NamedTuple):
    """A kind of computation: the readers of its arguments, and the names of constants."""

    readers: tuple[Reader[Any], ...]
    constant: frozenset[int] = frozenset()
    least: int | None = None
    """So many arguments are enough."""
    primitive: str = ""
    """The library's kind, if it is another one."""


KINDS: dict[str, KernelKind] = {
    "convolution": KernelKind((_lies, _open, optional(_lies), _lies, _window, _window, _pair, _moved, read_after, truth), frozenset({WEIGHTS, BIAS}), 9),
    "product": KernelKind((_lies, _open, optional(_lies), _lies, read_after), frozenset({WEIGHTS, BIAS})),
    "product of values": KernelKind((_lies, _lies, optional(_lies), _lies, read_after), frozenset({BIAS}), primitive="product"),
    "binary": KernelKind((one_of(*BINARY), _lies, _lies, _lies, read_after)),
    "elementwise": KernelKind((_function, _lies, read_after)),
    "pooling": KernelKind((one_of(*POOLING), _lies, _lies, _window, _window, _pair, _pair, read_after)),
    "softmax": KernelKind((_lies, count(0, DIMS), read_after)),
    "softmax_to": KernelKind((_lies, _lies, count(0, DIMS), read_after)),
    "reduced": KernelKind((one_of(*REDUCTIONS), _lies, _lies, read_after)),
    "normalized_rows": KernelKind((_lies, number, truth, truth, read_after)),
    "nearest": KernelKind((_lies, _lies, read_after)),
    "joined": KernelKind((tupled(_lies, _MOST_JOINED, 1), _lies, count(0, DIMS), read_after)),
    "reordered": KernelKind((_lies, _lies, read_after)),
}


def arguments_read(what: str, given: list[Any], kind: KernelKind) -> list[Any]:
    return series(lambda *of: list(of), *kind.readers, or_first=kind.least)(what, given)


_number = count(0, 2**31 - 1)
_written: Reader[WrittenPrimitive] = series(
    WrittenPrimitive,
    one_of(*KINDS),
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


def write(line: ChainLine, library: Library, given: Sequence[tuple[int, ...]], operands: Sequence[Any], number: Callable[[Any], int]) -> dict[str, Any]:
    """Return a series for one size in words of JSON.

    Args:
        line: the series.
        given: the dims of the arrays of each call.
        operands: of the series: the number of one of these, or a tensor of torch with constant elements.
        number: keeps a constant, a tensor or a number of C, and returns its number.
    """
    tensors = [*(operand if isinstance(operand, int) else None for operand in operands), *(len(given) + index for index in range(len(line.outs)))]
    primitives: list[Any] = []
    for primitive in line.primitives:
        computation = primitive.record
        places: list[list[int]] = []
        constants = [[name, number(memory.held)] for name, memory in primitive.constants.items()]
        for name, place in primitive.places.items():
            tensor = -1 if place.tensor is None else tensors[place.tensor]
            if tensor is None:
                constants.append([name, number(operands[place.tensor or 0])])
            else:
                places.append([name, tensor, place.offset])
        layout = library.layout(library.wanted_weights(primitive.description)) if WEIGHTS in primitive.constants else []
        kernel, one_thread = library.implementation(primitive.description), int(1 in (computation.threads, library.threads()))
        kind = "product of values" if computation.kind == "product" and WEIGHTS not in primitive.constants else computation.kind
        primitives.append([kind, [*map(_in_words, computation.arguments)], one_thread, kernel, places, constants, layout])
    results = [list(dims) for dims, _ in line.outs]
    return {"given": [list(d) for d in given], "results": results, "threads": library.threads(), "nbytes": line.nbytes, "primitives": primitives}


def _in_words(argument: Any) -> Any:
    """Return an argument of a primitive in words of JSON."""
    if isinstance(argument, Memory):
        return [argument.dims, argument.steps, *([] if argument.element == F32 else [argument.element])]
    if isinstance(argument, After):
        return [_in_words(argument.added), argument.functions, *([argument.grids, argument.zeros] if argument.grids or argument.zeros else [])]
    return [*map(_in_words, argument)] if isinstance(argument, (list, tuple)) else argument  # pyright: ignore[reportUnknownArgumentType]
