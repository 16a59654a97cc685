"""The values of a program's symbols while a step runs: known from the beginning, or since an op made a value, in each round anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from foreshape.core.dims import Size, evaluate, is_symbol, symbols_of
from foreshape.language.program import Block, Program

_JOINED = ("loop", "either", "each")
"""The endings of symbols, but for a number, for sizes of a variable that differ between branches or rounds."""


class Symbols:
    """The values of symbols, block by block as these are entered.

    Args:
        given: the values from the feeds, and from the conditions on their sizes.
    """

    def __init__(self, sizes: Mapping[str, int], program: Program) -> None:
        inside = {name for block in program.blocks[1:] for name in block.vars}
        fixed = {n: v for n, v in sizes.items() if not _is_joined(n) and not any(owner in inside for owner in _owners(n))}
        self._frames: list[_Frame] = [_Frame(dict(fixed), frozenset(), frozenset(), False)]

    def enter(self, block: Block) -> None:
        """Begin a round of a block: its own results, or its forward block's, are not known yet."""
        blocks = block.program.blocks
        scopes = [block, *(blocks[b.forward_idx] for b in (block,) if 0 <= b.forward_idx < len(blocks))] if block.idx else []
        makes = frozenset(n for b in scopes for n in b.vars)
        self._frames.append(_Frame({}, makes, frozenset(n for b in scopes for n in b.outer_names()[1]), block.forward_idx >= 0))

    def leave(self) -> None:
        """End a round."""
        self._frames.pop()

    def required(self, name: str, dims: Sequence[Size], sizes: Sequence[int], comes: bool) -> list[int | None]:
        """Return the required dims of a value of a variable; None if open. Symbols that the value sets are known from now on.

        Args:
            comes: the value begins or ends a round, and joined sizes are about it; values written on the way may differ.
        """
        owner, gradient, _ = name.partition("@GRAD")
        out: list[int | None] = []
        for dim, size in zip(dims, sizes, strict=False):
            local = not isinstance(dim, int) and any(_is_joined(n) and owner in _owners(n) for n in symbols_of(dim))
            if local and (gradient or not comes):  # the gradient of a round's results comes in at its beginning
                out.append(None)
            elif is_symbol(dim) and ((local and self._find(str_of(dim)) is not None) or self._find(str_of(dim)) is _UNBOUND):
                self._bind(str_of(dim), size)
                out.append(None)
            else:
                out.append(self._evaluated(dim))
        return out + [None] * (len(dims) - len(out))

    def _bind(self, name: str, size: int) -> None:
        frame = self._frames[-1].values
        previous = frame.get(name, size)
        frame[name] = size if previous == size else None  # values of either are about: nothing is said of them

    def _evaluated(self, dim: Size) -> int | None:
        if isinstance(dim, int):
            return dim
        values: dict[str, int] = {}
        for name in symbols_of(dim):
            value = self._find(name)
            if not isinstance(value, int):
                return None
            values[name] = value
        return evaluate(dim, values)

    def _find(self, name: str) -> int | object | None:
        for frame in reversed(self._frames):
            if name in frame.values:
                return frame.values[name]
            changes = _is_joined(name) and any(o in frame.changes for o in _owners(name))
            if changes and frame.undoes:
                return None  # where a round begins, and where it ends
            if changes or any(o in frame.makes for o in _owners(name)):
                break  # its size in another round, or outside, has nothing to say here
        return _UNBOUND


class _Frame(NamedTuple):
    """The known values in one round of a block: its own symbols and changed ones, nothing of these from outside."""

    values: dict[str, int | None]
    makes: frozenset[str]
    changes: frozenset[str]
    undoes: bool


_UNBOUND = object()


def str_of(symbol: Size) -> str:
    """Return the name of a symbol."""
    return next(iter(symbols_of(symbol)))


def _is_joined(name: str) -> bool:
    return any(part.rstrip("0123456789") in _JOINED for part in name.split(".")[1:])


def _owners(name: str) -> list[str]:
    """Return the possible owners of a symbol: each part before a dot."""
    return [name[:index] for index, character in enumerate(name) if character == "."]
