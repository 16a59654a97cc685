"""What repeats in a row of layers is folded into one with a number of times, and long rows into parts, so that each level is short.

A long row is first divided where a single value goes from what is before to what is after: what lies between two such places, as what a
residual connection goes around, is a block. What computes with no parameter, such as a mask that every layer reads, does not count there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from foreshape.dims import Size
from foreshape.program.op import Op
from foreshape.program.outline import Layer, layers_of

if TYPE_CHECKING:
    from foreshape.program.program import Program

WIDEST: Final = 32
"""Layers beside each other within one group."""
_SHORT: Final = 12
"""A program of so many layers is not divided into blocks; named groups are not, as long as they are not too wide."""
_MOST_CROSSING: Final = 4
_LONGEST_PERIOD: Final = 64
_NUMBER: Final = re.compile(r"\d+")
_ASIDE: Final = frozenset({"seed", "fix_seed"})
"""Settings that make no other layer of one."""


def folded_layers(program: Program) -> list[Layer]:
    """The layers of a program with what repeats folded: twelve encoder layers are one layer, ``times`` 12."""
    return _Folding(program).level(layers_of(program), _SHORT)


class _Folding:
    """Numbers for what layers are, so that equal ones are found quickly."""

    def __init__(self, program: Program) -> None:
        self.learned = _learned(program)
        self.numbers: dict[object, int] = {}
        self.exact: dict[int, int] = {}
        self.rough: dict[int, int] = {}
        self.wiring: dict[int, frozenset[bool]] = {}
        self.held: list[Layer] = []

    def level(self, layers: Sequence[Layer], most: int = WIDEST) -> list[Layer]:
        """A row of layers, and all rows below, folded. One of more than so many is divided into blocks."""
        layers = _blocks(layers, self.learned) if len(layers) > most else list(layers)
        before: dict[str, int] = {}
        for at, layer in enumerate(layers):
            if layer.children:
                layer.children = self.level(layer.children)
                if len(layer.children) == 1 and not layer.ops:  # a group of what repeats is that
                    only = layer.children[0]
                    only.name = f"{layer.name}.{only.name}"
                    layer = layers[at] = only
            self._name(layer, self._wiring(layer, at, before))
        out = self._repeats(layers, self.exact, True)
        if len(out) > WIDEST:
            out = self._repeats(out, self.rough, False)
        return out if len(out) <= WIDEST else self._parts(out)

    def _number(self, what: object) -> int:
        return self.numbers.setdefault(what, len(self.numbers))

    def _reach(self, layers: Sequence[Layer]) -> list[int]:
        """Of each layer of a row the last one that reads what it makes."""
        made: dict[str, int] = {}
        out = list(range(len(layers)))
        for at, layer in enumerate(layers):
            ops = list(layer.all_ops())
            for name in (n for op in ops for n in op.input_names() if n in made):
                out[made[name]] = at
            made.update((n, at) for op in ops for n in op.output_names() if n in self.learned)
        return out

    def _wiring(self, layer: Layer, at: int, before: dict[str, int]) -> frozenset[bool]:
        """Whether a layer reads what the one right before it in its row makes, and what others before it make; ``before``: which made what.
        The first that computes with parameters reads what comes into the row, as the ones after it read on."""
        out: set[bool] = set()
        made: list[str] = []
        for op in layer.all_ops():
            out.update(before[n] == at - 1 for n in op.input_names() if before.get(n, at) != at)
            made += (n for n in op.output_names() if n in self.learned)
        if made and not before:
            out.add(True)
        before.update(dict.fromkeys(made, at))
        return frozenset(out)

    def _name(self, layer: Layer, wiring: frozenset[bool]) -> None:
        self.held.append(layer)
        name = _NUMBER.sub("#", layer.name.split("…")[0])
        made: dict[str, int] = {}
        exact: list[object] = [name, wiring, layer.times, *(self.exact[id(c)] for c in layer.children)]
        rough: list[object] = [name, wiring, *(self.rough[id(c)] for c in layer.children)]
        for at, op in enumerate(layer.ops):
            wired = tuple(made.get(n, -1) for n in op.input_names())
            rough.append((op.type, wired))
            exact.append((op.type, wired, _sizes(op), _settings(op)))
            made.update(dict.fromkeys(op.output_names(), at))
        self.exact[id(layer)] = self._number(tuple(exact))
        self.rough[id(layer)] = self._number(tuple(rough))
        self.wiring[id(layer)] = wiring

    def _repeats(self, layers: list[Layer], names: dict[int, int], same: bool) -> list[Layer]:
        """Fold until nothing repeats any more."""
        while True:
            out = self._fold(layers, names, same)
            if len(out) == len(layers):
                return out
            layers = out
            for layer in layers:
                if id(layer) not in self.exact:
                    self._name(layer, self.wiring[id(layer)])

    def _fold(self, layers: list[Layer], names: dict[int, int], same: bool) -> list[Layer]:
        row = [names[id(layer)] for layer in layers]
        best = _best_periods(row)
        reach = self._reach(layers)
        out: list[Layer] = []
        at = 0
        while at < len(row):
            period, times = best[at]
            later = (reach[i] >= at + ((i - at) // period + 2) * period for i in range(at, at + period * (times - 1)))
            if times < 2 or True not in self.wiring[id(layers[at])] or any(later):  # beside each other, and not one after the other
                out.append(layers[at])
                at += 1
                continue
            members = [layers[at + k * period : at + (k + 1) * period] for k in range(times)]
            folded = _folded(members, same)
            self.wiring[id(folded)] = self.wiring[id(layers[at])]
            self.held.append(folded)  # so that no other layer gets its id
            out.append(folded)
            at += period * times
        return out

    def _parts(self, layers: list[Layer]) -> list[Layer]:
        """A long row in parts, all about as long."""
        while len(layers) > WIDEST:
            size = min(WIDEST, max(2, math.ceil(math.sqrt(len(layers)))))
            pieces = [layers[at : at + size] for at in range(0, len(layers), size)]
            layers = [p[0] if len(p) == 1 else Layer(_block_name(p), (), p) for p in pieces]
            before: dict[str, int] = {}
            for at, layer in enumerate(layers):
                wiring = self._wiring(layer, at, before)
                if id(layer) not in self.exact:
                    self._name(layer, wiring)
        return layers


def _best_periods(row: Sequence[int]) -> list[tuple[int, int]]:
    """At each place, the period and the times of the repetition from there that covers most; the shortest period of those."""
    count = len(row)
    best = [(1, 1)] * count
    covered = [1] * count
    for period in range(1, min(_LONGEST_PERIOD, count // 2) + 1):
        run = 0
        for at in range(count - period - 1, -1, -1):
            run = run + 1 if row[at] == row[at + period] else 0
            times = run // period + 1
            if times > 1 and times * period > covered[at]:
                covered[at], best[at] = times * period, (period, times)
    return best


def _folded(members: Sequence[Sequence[Layer]], same: bool) -> Layer:
    first, last = members[0][0], members[-1][0]
    out = Layer(range_of(first.name, (last.members or [last])[-1].name), first.ops, first.children)
    if len(members[0]) == 1:
        out.members = [m for row in members for m in (row[0].members or row)]
        out.same = same and all(row[0].same for row in members)
        return out
    out.ops, out.children = [], list(members[0])
    out.members = [Layer(row[0].name, (), row) for row in members]
    out.same = same
    return out


def range_of(first: str, last: str) -> str:
    """``conv2d_7…12``."""
    first, last = first.split("…")[0], last.split("…")[0]
    at = 0
    while at < min(len(first), len(last)) and first[at] == last[at]:
        at += 1
    while at and first[at - 1].isdigit():
        at -= 1
    return first if first == last else f"{first}…{last[at:]}"


# --- blocks


def _learned(program: Program) -> set[str]:
    """The values that depend on what is kept, parameters mostly; not numbers of things, such as what only the shape of those tells."""
    out: set[str] = set()
    for op in program.all_ops():
        if any(n in out or ((v := op.block.find(n)) is not None and v.persistable) for n in op.input_names()):
            for name in op.output_names():
                variable = op.block.find(name)
                if variable is None or variable.dtype is None or not variable.dtype.is_integer:
                    out.add(name)
    return out


def _blocks(layers: Sequence[Layer], learned: set[str], most: int = 1) -> list[Layer]:
    """A row, divided where at most so many values go from what is before to what is after."""
    count = len(layers)
    made: dict[str, int] = {}
    crossing = [0] * (count + 1)
    last: dict[tuple[str, int], int] = {}
    for at, layer in enumerate(layers):
        ops = list(layer.all_ops())
        for name in (n for op in ops for n in op.input_names()):
            source = made.get(name, at)
            if source < at and name in learned:
                last[name, source] = at
        for op in ops:
            for name in op.output_names():
                made[name] = at
    for (_, source), end in last.items():
        crossing[source] += 1
        crossing[end] -= 1
    out: list[Layer] = []
    piece: list[Layer] = []
    alive = 0
    for at, layer in enumerate(layers):
        alive += crossing[at]
        piece.append(layer)
        if alive <= most or at == count - 1:
            if len(piece) == count and most < _MOST_CROSSING:
                return _blocks(layers, learned, most + 1)
            if WIDEST < len(piece) < count and most < _MOST_CROSSING:
                out += _blocks(piece, learned, most + 1)
            else:
                out.append(piece[0] if len(piece) == 1 else Layer(_block_name(piece), (), piece))
            piece = []
    return list(layers) if len(out) == 1 else out


def _block_name(piece: Sequence[Layer]) -> str:
    """After those in it that are called as the first one with a number is: the least and the largest number."""
    names = [part for layer in piece for part in _ends(layer.name)]
    named = [n for n in names if _NUMBER.search(n)] or names
    alike = [n for n in named if _NUMBER.sub("#", n) == _NUMBER.sub("#", named[0])]
    alike.sort(key=lambda n: [int(d[:18]) for d in _NUMBER.findall(n)])
    return range_of(alike[0], alike[-1])


def _ends(name: str) -> list[str]:
    """``conv2d_7`` and ``conv2d_12`` of ``conv2d_7…12``."""
    first, _, last = name.partition("…")
    return [first, first.rstrip("0123456789") + last] if last.isdecimal() else [first]


def _sizes(op: Op) -> tuple[object, ...]:
    """The sizes of what an op reads that is kept, and of its results."""
    out: list[tuple[Size, ...] | None] = []
    for name in op.input_names():
        variable = op.block.find(name)
        if variable is not None and variable.persistable:
            out.append(variable.spec.dims)
    for name in op.output_names():
        variable = op.block.find(name)
        out.append(variable.spec.dims if variable is not None else None)
    return tuple(out)


def _settings(op: Op) -> str:
    operator = op.operator
    if operator is None or op.sub_block_indices():
        return ""
    return repr([(n, getattr(operator, n)) for n in operator.schema.attributes if n not in _ASIDE])
