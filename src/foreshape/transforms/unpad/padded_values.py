"""A tensor of a padded batch as the proof sees it: the meaning of its axes, and the contents of its regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Final, TypeAlias

from foreshape.core.data_class import data_class
from foreshape.core.dims import Dim, Size
from foreshape.language.program import Op
from foreshape.transforms.unpad.contents import Content, either
from foreshape.transforms.unpad.index_forms import Place, Side

BATCH: Final = "b"
"""The texts along an axis."""
ROWS: Final = "t"
"""The rows of a text along an axis, padded."""
REVERSED: Final = "r"
"""The rows of a text from the last to the first, padded."""
Atom: TypeAlias = "str | int"
Axes: TypeAlias = "tuple[tuple[Atom, ...], ...]"
Region: TypeAlias = "frozenset[Place]"
"""The coordinates in masked rows; the others lie in the text's own."""
REAL: Final[Region] = frozenset()


@data_class(frozen=True)
class Fault:
    """The op where a masked row, or the padded size, gets into a text's own rows; ``words`` say how."""

    op: Op | None
    words: str


class Unsupported(Exception):
    """The rule of an op cannot follow the rows through it; its text says why."""


class NotPacked(Exception):
    """No op on packed rows computes a value."""


@data_class(frozen=True, eq=False)
class PaddedValue:
    """A tensor of a padded batch.

    Attributes:
        axes: the atoms of each axis, outermost first: `BATCH`, `ROWS`, `REVERSED`, or a size; none for a size of 1.
        regions: contents by the coordinates in masked rows.
        fault: the reason why its own rows differ from the text's alone; None if they do not.
    """

    axes: Axes
    regions: Mapping[Region, Content]
    fault: Fault | None = None

    @property
    def time_places(self) -> list[Place]:
        return time_places(self.axes)

    @property
    def real(self) -> Content:
        return self.regions[REAL]

    @property
    def per_text(self) -> bool:
        """Tell whether it has an axis of texts."""
        return any(BATCH in axis for axis in self.axes)

    def content(self, masked: Iterable[Place]) -> Content:
        """Return the content of a region; missing coordinates do not matter."""
        places = set(self.time_places)
        return self.regions[frozenset(p for p in masked if p in places)]

    def relocated(self, axes: Axes, places: Mapping[Place, Place]) -> PaddedValue:
        """Return it with the atoms at other places; all time atoms must be kept."""

        def content(old: Content) -> Content:
            if old.form is None and not old.parts and old.step is None:
                return old
            return relocated_content(old, places)

        regions = {frozenset(places[p] for p in region): content(c) for region, c in self.regions.items()}
        return PaddedValue(axes, regions, self.fault)

    def without_parts(self, side: Side, op: Op) -> PaddedValue:
        """Return it with one content for all entries of the last axis; an op takes their numbers as they are."""
        if not any(c.parts for c in self.regions.values()):
            return self
        fault = self.data_fault(side, op) if any(p.index is None or p.constant is None for p in self.real.parts) else self.fault
        return PaddedValue(self.axes, {r: either(c.parts) if c.parts else c for r, c in self.regions.items()}, fault)

    def data_fault(self, side: Side, op: Op) -> Fault | None:
        """Return the fault of its numbers where an op takes them as they are."""
        if self.fault is not None:
            return self.fault
        for content in (self.real, *self.real.parts):
            if content.form is not None and not content.form.same_without_padding(side, self.time_places):
                return Fault(op, "its operand depends on the padded length, or on the other texts")
        return None


@data_class(frozen=True, eq=False)
class WidenedRows:
    """Rows of texts with rows of zeros before and behind the padded time.

    Attributes:
        value: without them.
        axis: the axis of the rows.
        before, behind: the numbers of rows of zeros.
    """

    value: PaddedValue
    axis: int
    before: int
    behind: int

    def moved(self, value: PaddedValue) -> WidenedRows:
        """Return other dims of it, from those of the rows without zeros."""
        return WidenedRows(value, value.time_places[0][0], self.before, self.behind)


def relocated_content(content: Content, places: Mapping[Place, Place]) -> Content:
    """Return a content for a tensor with the atoms at other places."""
    parts = tuple(relocated_content(p, places) for p in content.parts)
    step = content.step and (content.step[0].relocated(places), *content.step[1:])
    return replace(content, form=content.form and content.form.relocated(places), parts=parts, step=step)


def columns(axes: Axes) -> int:
    """Return the number of columns of a row: the product of all numeric sizes."""
    return math.prod(atom for axis in axes for atom in axis if isinstance(atom, int))


def time_places(axes: Axes) -> list[Place]:
    """Return the places of rows in axes."""
    return [(a, k) for a, axis in enumerate(axes) for k, atom in enumerate(axis) if atom in (ROWS, REVERSED)]


def all_regions(axes: Axes) -> Iterator[Region]:
    """Yield every choice of coordinates in masked rows, the empty one first."""
    places = time_places(axes)
    for count in range(len(places) + 1):
        for chosen in combinations(places, count):
            yield frozenset(chosen)


def filled(axes: Axes, content: Callable[[Region], Content], fault: Fault | None = None) -> PaddedValue:
    """Return a value with a content for each region."""
    return PaddedValue(axes, {region: content(region) for region in all_regions(axes)}, fault)


class AxisReader:
    """Tells the meaning of sizes from the dims of the padded inputs."""

    def __init__(self, batch: Iterable[Size], time: Iterable[Size]) -> None:
        self._symbols = {_symbol(d): BATCH for d in batch} | {_symbol(d): ROWS for d in time}

    def symbol(self, name: str) -> str | None:
        """Return `BATCH` or `ROWS` for the name of a symbol."""
        return self._symbols.get(name)

    def axis(self, dim: Size) -> tuple[Atom, ...]:
        """Return the atoms of an axis of a size. Raise `Unsupported` for another size than of texts, rows and numbers."""
        if isinstance(dim, int):
            return () if dim == 1 else (dim,)
        if len(dim.terms) == 1:
            (monomial, coefficient), *_ = dim.terms
            atoms: list[Atom] = []
            for factor in monomial:
                if not factor.op:
                    meaning = self._symbols.get(factor.name)
                elif factor.op == "min" and 1 in factor.args:
                    continue  # a row of a text that has rows
                elif factor.op == "min":  # a table of positions, cut at the time; a longer text is refused by its sum with the rows
                    meaning = next((m for a in factor.args if not isinstance(a, int) and (m := self._symbols.get(_symbol(a))) == ROWS), None)
                else:
                    meaning = None
                if meaning is None:
                    raise Unsupported(f"a size is {dim}, neither of texts, nor of rows, nor a number")
                atoms.append(meaning)
            atoms.sort()  # texts, then rows, as a reshape joins them
            return (*atoms, coefficient) if coefficient != 1 else tuple(atoms)
        raise Unsupported(f"a size is {dim}, neither of texts, nor of rows, nor a number")

    def axes(self, dims: Iterable[Size]) -> Axes:
        return tuple(self.axis(d) for d in dims)


def _symbol(dim: Size) -> str:
    if isinstance(dim, Dim) and len(dim.terms) == 1 and len(dim.terms[0][0]) == 1 and dim.terms[0][1] == 1 and not dim.terms[0][0][0].op:
        return dim.terms[0][0][0].name
    return str(dim)


def covers(axes: Axes, result: Axes) -> bool:
    """Tell whether an operand has all columns of a result of the same rank."""
    return len(axes) == len(result) and all(a == b or all(isinstance(atom, str) for atom in b) for a, b in zip(axes, result, strict=True))
