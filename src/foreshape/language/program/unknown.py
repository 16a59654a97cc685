"""Ops with unknown operators: their types, numbers and first places, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from foreshape.core.data_class import data_class
from foreshape.language.operator.registry import refusal
from foreshape.language.program.op import Op


@data_class(frozen=True)
class UnknownType:
    """An op type unknown here.

    Attributes:
        type: as in the file.
        count: the number of its ops.
        first: the first of them.
        reason: why there can be no such operator here, if known.
    """

    type: str
    count: int
    first: Op
    reason: str | None

    @property
    def place(self) -> str:
        """Return the place of the first one: ``op 3 of block 0 (net.py:12)``."""
        block, site = self.first.block, self.first.call_site
        number = next((number for number, op in enumerate(block.ops) if op is self.first), None)
        words = f"block {block.idx}" if number is None else f"op {number} of block {block.idx}"
        return words if site is None else f"{words} ({site.short()})"

    @property
    def words(self) -> str:
        """Return ``the operator 'matrix_thing' is not known here (3 ops, the first is op 3 of block 0)``; with the reason, if known."""
        places = f"({self.place})" if self.count == 1 else f"({self.count:,} ops, the first is {self.place})"
        why = "is not known here" if self.reason is None else f"cannot run here: {self.reason}"
        return f"the operator {self.type[:100]!r} {why} {places}"


def is_unknown(op: Op) -> bool:
    """Tell whether only the names of an op are known. One with wrong attributes is known."""
    return op.attributes.operator is None and op.attributes.error is None


def unknown_types(ops: Iterable[Op]) -> list[UnknownType]:
    """Return the unknown types among ``ops``, in the order of their first ops."""
    ops_of_type: dict[str, list[Op]] = {}
    for op in ops:
        if is_unknown(op):
            ops_of_type.setdefault(op.type, []).append(op)
    return [UnknownType(type, len(those), those[0], refusal(type)) for type, those in ops_of_type.items()]


def with_inner(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield ops, and the ops of their blocks, each once."""
    visited: set[int] = set()
    left = list(ops)[::-1]
    while left:
        op = left.pop()
        yield op
        for index in op.sub_block_indices():
            if index not in visited and 0 <= index < len(op.block.program.blocks):
                visited.add(index)
                left.extend(reversed(op.block.program.blocks[index].ops))


def unknown_words(types: Sequence[UnknownType]) -> str:
    """Return the unknown types as a sentence: for one type in one line, else a line for each."""
    if len(types) == 1:
        return types[0].words
    return f"{len(types):,} operators are not known here:" + "".join(f"\n    {unknown.words.removeprefix('the operator ')}" for unknown in types)
