"""Loops of a network's code over an open size, as ``for t in range(x.shape[1])``, recorded round by round in a trace."""

from __future__ import annotations

import functools
import importlib
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from foreshape.interop.torch.node_sites import code_of, of_torch
from foreshape.interop.torch.replaced import asking_frame, exports_here
from foreshape.interop.torch.untyped_torch import defined_operators, is_list, torch

LONGEST: Final = 24
"""A trace at larger sizes than the example's has so many rounds at most."""
LEAST: Final = 3
"""Fewer rounds are written out."""
ROUND: Final = "<round of an open loop "
_STARTED: list[OpenLoops] = []


@dataclass
class OpenLoop:
    """A loop met in a trace: the open number of its rounds as torch has it, the number in this trace, and the rounds begun."""

    rounds: Any
    count: int
    begun: int = 0


class LongLoop(Exception):
    """A trace would have too many rounds."""


class OpenLoops:
    """The loops of one trace; ``longest`` rounds at most. ``asked``: a range or parts with an open end were given to its code."""

    def __init__(self, longest: int | None) -> None:
        self.longest = longest
        self.asked = False
        self.met: list[OpenLoop] = []
        self.inside: list[tuple[int, int]] = []

    def run(self, start: int, rounds: Any, count: int) -> Generator[int]:
        """Yield the numbers of a loop, each node made meanwhile being marked by its round."""
        if self.longest is not None and count > self.longest:
            raise LongLoop
        loop, number = OpenLoop(rounds, count), len(self.met)
        self.met.append(loop)
        for at in range(count):
            loop.begun += 1
            self.inside.append((number, at))
            try:
                yield start + at
            finally:
                self.inside.pop()


def _rounds(start: int, rounds: Any) -> Iterator[int] | None:
    """Return the recorded numbers of a loop; None for one written out."""
    known: OpenLoops | None = _STARTED[-1] if _STARTED else None
    count = getattr(rounds.node, "hint", None) if isinstance(rounds, torch.SymInt) else None
    if known is None or known.inside or count is None or count < LEAST:
        return None
    return known.run(start, rounds, int(count))


class _Rounds:
    """A range with an open end."""

    def __init__(self, start: int, stop: Any) -> None:
        self.start, self.stop = start, stop

    def whole(self) -> range:
        return range(self.start, int(self.stop))

    def __iter__(self) -> Iterator[int]:
        return _rounds(self.start, self.stop - self.start) or iter(self.whole())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole(), name)

    def __len__(self) -> int:
        return len(self.whole())

    def __getitem__(self, at: Any) -> Any:
        return cast("Any", self.whole())[at]

    def __reversed__(self) -> Iterator[int]:
        return reversed(self.whole())

    def __contains__(self, other: object) -> bool:
        return other in self.whole()


def records() -> bool:
    """Tell whether loops are recorded."""
    return bool(_STARTED)


def open_range(*given: Any) -> Any:
    """Return the builtin ``range``, with an open end where a loop is recorded."""
    start, stop = (0, *given) if len(given) == 1 else given if len(given) == 2 else (None, None)
    if _STARTED and exports_here() and isinstance(start, int) and isinstance(stop, torch.SymInt):
        _STARTED[-1].asked = True
        return _Rounds(start, stop)
    return range(*given)


@functools.cache
def calls_range(file: str) -> bool:
    """Tell whether the code of a file has loops over ranges, and has no need of the class itself."""
    text = code_of(file)
    return " in range(" in text and ", range)" not in text


@contextmanager
def recording(longest: int | None, asked: bool) -> Generator[OpenLoops]:
    """Record the loops over open sizes of a trace within the block, if asked for."""
    loops = OpenLoops(longest)
    if not asked:
        yield loops
        return
    _STARTED.append(loops)
    try:
        yield loops
    finally:
        _STARTED.pop()


# --- the entries of an open axis


class _Entries:
    """The entries of an open axis of a tensor one by one, as ``x.unbind(1)`` and ``x.split(1, 1)`` have them."""

    def __init__(self, x: Any, dim: int, whole: Callable[[], Any], entry: Callable[[int], Any]) -> None:
        self.x, self.dim, self.whole, self.entry = x, dim, whole, entry

    def __iter__(self) -> Iterator[Any]:
        found = _rounds(0, self.x.shape[self.dim])
        return iter(self.whole()) if found is None else map(self.entry, found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole(), name)

    def __len__(self) -> int:
        return len(self.whole())

    def __getitem__(self, at: Any) -> Any:
        return self.whole()[at]


def _by_entries(name: str, before: Any) -> Any:
    """Return a method of tensors for the entries of an axis, open where a loop is recorded and a network asks."""

    @functools.wraps(before)
    def call(x: Any, *given: Any, **named: Any) -> Any:
        dims = given[name == "split" :]
        dim = named.get("dim", dims[0] if dims else 0)
        known = isinstance(dim, int) and len(dims) <= 1 and named.keys() <= {"dim"} and isinstance(x, torch.Tensor) and x.dim() > 0
        if not _STARTED or not known or of_torch(asking_frame(name, "__iter__").f_code.co_filename) or (name == "split" and given[:1] != (1,)):
            return before(x, *given, **named)
        if not isinstance(x.shape[dim], torch.SymInt):
            return before(x, *given, **named)
        _STARTED[-1].asked = True

        def whole() -> Any:
            return before(x, *given, **named)

        entries = _Entries(x, dim % x.dim(), whole, (lambda at: x.narrow(dim, at, 1)) if name == "split" else (lambda at: x.select(dim, at)))
        return entries

    return call


def open_entries() -> dict[Any, Any]:
    """Return stand-ins for the functions of the entries of an axis: it stays open where a loop goes over them."""
    holders: list[Any] = [torch.Tensor, importlib.import_module("torch")]
    return {function: _by_entries(name, function) for holder in holders for name in ("unbind", "split") for function in [getattr(holder, name)]}


# --- the values of all rounds in one tensor

ALL_ROUNDS: Final = "(Tensor[] xs, SymInt rounds, int dim, bool stack) -> Tensor"
"""A stack or a concatenation of a list with the values of all rounds, each of whose dims is as open as the number of rounds."""


def joined_rounds(xs: Any, rounds: int, dim: int, stack: bool) -> Any:
    return (_STACK if stack else _CAT)(list(xs), dim)


def shape_of_rounds(xs: Any, rounds: Any, dim: int, stack: bool) -> Any:
    """Return the shape, for tensors whose number is ``rounds``, or more by the ones before the loop."""
    more = len(xs) - int(rounds.node.hint if isinstance(rounds, torch.SymInt) else rounds)
    sizes = list(xs[-1].shape)
    if stack:
        sizes.insert(dim, rounds + more)
    else:
        sizes[dim] = rounds * sizes[dim] if more == 0 else sum(x.shape[dim] for x in xs[:more]) + rounds * sizes[dim]
    return xs[-1].new_empty(sizes)


def _joining(before: Any, stack: bool) -> Any:
    @functools.wraps(before)
    def call(tensors: Any, *given: Any, **named: Any) -> Any:
        tensors = tensors.whole() if isinstance(tensors, _Entries) else tensors
        met = _STARTED[-1] if _STARTED else None
        dim = given[0] if given else named.get("dim", named.get("axis", 0))
        if met is None or met.inside or len(given) > 1 or not named.keys() <= {"dim", "axis"} or not is_list(tensors) or not isinstance(dim, int):
            return before(tensors, *given, **named)
        loop = next((one for one in reversed(met.met) if one.begun == one.count and len(tensors) - one.count in (0, 1)), None)
        if loop is None:
            return before(tensors, *given, **named)
        rank = tensors[-1].dim() + stack
        return defined_operators().all_rounds(list(tensors), loop.rounds, dim % rank, stack)

    return call


_STACK: Final[Any] = torch.stack
_CAT: Final[Any] = torch.cat
stacked: Final = _joining(_STACK, True)
concatenated: Final = _joining(_CAT, False)


def round_frames() -> list[Any]:
    """Return a frame for the trace of a node, with the round of the loop around it; none outside."""
    if not _STARTED or not _STARTED[-1].inside:
        return []
    number, at = _STARTED[-1].inside[-1]
    return [traceback.FrameSummary(f"{ROUND}{number}>", at + 1, "loop", lookup_line=False, line="")]
