"""What the symbols of a program are while a step runs: some from the beginning, others since an op has made a value, in each round anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from foreshape.dims import Size, evaluate, is_symbol, symbols_of
from foreshape.program import Block, Program

_JOINED = ("loop", "either", "each")
"""What symbols end in, but for a number, that stand for a size of a variable which differs from one way or round to another."""


class Symbols:
    """The values of symbols, block by block as these are entered.

    Args:
        given: what the feeds, and the conditions on their sizes, have made known.
    """

    def __init__(self, given: Mapping[str, int], program: Program) -> None:
        inside = {name for block in program.blocks[1:] for name in block.vars}
        fixed = {n: v for n, v in given.items() if not _is_joined(n) and not any(owner in inside for owner in _owners(n))}
        self._frames: list[_Frame] = [_Frame(dict(fixed), frozenset(), frozenset(), False)]

    def enter(self, block: Block) -> None:
        """A block begins a round: what it makes, or what the block made that it undoes, is not known yet."""
        blocks = block.program.blocks
        own = [block, *(blocks[b.forward_idx] for b in (block,) if 0 <= b.forward_idx < len(blocks))] if block.idx else []
        makes = frozenset(n for b in own for n in b.vars)
        self._frames.append(_Frame({}, makes, frozenset(n for b in own for n in b.outer_names()[1]), block.forward_idx >= 0))

    def leave(self) -> None:
        """The round is over."""
        self._frames.pop()

    def wanted(self, name: str, dims: Sequence[Size], seen: Sequence[int], comes: bool) -> list[int | None]:
        """What the dims of a value of a variable must be; None where that is open. Symbols that the value makes are known from now on.

        Args:
            comes: it is what a block begins with or has left, which its joined sizes are about; what is written on the way may differ.
        """
        of, gradient, _ = name.partition("@GRAD")
        out: list[int | None] = []
        for dim, size in zip(dims, seen, strict=False):
            own = not isinstance(dim, int) and any(_is_joined(n) and of in _owners(n) for n in symbols_of(dim))
            if own and (gradient or not comes):  # the gradient of what a round leaves comes in where the round begins
                out.append(None)
            elif is_symbol(dim) and ((own and self._find(str_of(dim)) is not None) or self._find(str_of(dim)) is _UNBOUND):
                self._bind(str_of(dim), size)
                out.append(None)
            else:
                out.append(self._evaluated(dim))
        return out + [None] * (len(dims) - len(out))

    def _bind(self, name: str, size: int) -> None:
        frame = self._frames[-1].values
        before = frame.get(name, size)
        frame[name] = size if before == size else None  # values of either are about: nothing is said of them

    def _evaluated(self, dim: Size) -> int | None:
        if isinstance(dim, int):
            return dim
        values: dict[str, int] = {}
        for name in symbols_of(dim):
            found = self._find(name)
            if not isinstance(found, int):
                return None
            values[name] = found
        return evaluate(dim, values)

    def _find(self, name: str) -> int | object | None:
        for frame in reversed(self._frames):
            if name in frame.values:
                return frame.values[name]
            changes = _is_joined(name) and any(o in frame.changes for o in _owners(name))
            if changes and frame.undoes:
                return None  # where a round begins, and where it ends
            if changes or any(o in frame.makes for o in _owners(name)):
                break  # what it was in another round, or is outside, has nothing to say here
        return _UNBOUND


class _Frame(NamedTuple):
    """What is known in one round of a block: of the symbols of what it makes, and of what it changes outside, nothing from outside."""

    values: dict[str, int | None]
    makes: frozenset[str]
    changes: frozenset[str]
    undoes: bool


_UNBOUND = object()


def str_of(symbol: Size) -> str:
    """The name of a symbol."""
    return next(iter(symbols_of(symbol)))


def _is_joined(name: str) -> bool:
    return any(part.rstrip("0123456789") in _JOINED for part in name.split(".")[1:])


def _owners(name: str) -> list[str]:
    """The names of which a symbol may be made: all that stands before a dot."""
    return [name[:at] for at, character in enumerate(name) if character == "."]
