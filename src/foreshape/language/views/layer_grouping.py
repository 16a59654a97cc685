"""The folding of repeated layers in a row into one with their number, and of long rows into parts, for short levels.

A long row is first divided at the places crossed by a single value. The layers between two such places, as within a residual connection, are a block.
Results without parameters, such as a mask for every layer, do not count there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Final

from foreshape.core.dims import Size
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program
from foreshape.language.views.outline import OutlineLayer, gradient_layers_of, layers_of, update_layers_of
from foreshape.language.views.parallel_branches import beside, parted, range_of

WIDEST: Final = 32
"""Layers beside each other within one group."""
SECTIONS: Final = ("forward", "backward", "updates")
_SHORT: Final = 12
"""A program of so many layers is not divided into blocks; named groups are not, as long as they are not too wide."""
_MOST_CROSSING: Final = 4
_LONGEST_PERIOD: Final = 64
_NUMBER: Final = re.compile(r"\d+")
_ASIDE: Final = frozenset({"seed", "fix_seed"})
"""Settings that do not distinguish layers."""


def folded_layers(program: Program) -> list[OutlineLayer]:
    """Return the layers of a program with repetitions folded: twelve encoder layers are one layer, ``times`` 12."""
    folding = _Folding(program)
    return folding.beside_each_other([folding.level(layers_of(program), _SHORT)])[0]


def folded_sections(program: Program) -> list[OutlineLayer]:
    """Return three groups of a training program: ``forward``, ``backward`` and ``updates``; of any other its folded layers."""
    folding = _Folding(program)
    sections = (layers_of(program), gradient_layers_of(program), update_layers_of(program))
    folded = [folding.beside_each_other([folding.level(layers, _SHORT)])[0] for layers in sections]
    if not folded[1] and not folded[2]:
        return folded[0]
    return [OutlineLayer(name, (), layers) for name, layers in zip(SECTIONS, folded, strict=True) if layers or name == "forward"]


def is_sections(layers: Sequence[OutlineLayer]) -> bool:
    """Tell whether these are the sections of a training program (`folded_sections`)."""
    return len(layers) > 1 and layers[0].name == "forward" and all(not layer.ops and layer.name in SECTIONS for layer in layers)


class _Folding:
    """Numbers for layers by their contents, to find equal ones quickly."""

    def __init__(self, program: Program) -> None:
        self.learned = _learned(program)
        self.numbers: dict[object, int] = {}
        self.exact: dict[int, int] = {}
        self.rough: dict[int, int] = {}
        self.bare: dict[int, int] = {}
        self.wiring: dict[int, frozenset[bool]] = {}
        self.held: list[OutlineLayer] = []
        self.own: dict[int, tuple[tuple[object, ...], tuple[object, ...]]] = {}
        self.has_kept: dict[int, bool] = {}
        self.kept_of: dict[int, tuple[str, ...]] = {}
        self.touched: dict[int, tuple[frozenset[str], frozenset[str]]] = {}

    def _touches(self, layer: OutlineLayer) -> tuple[frozenset[str], frozenset[str]]:
        """Return the learned values read by a layer, and its learned results."""
        touched = self.touched.get(id(layer))
        if touched is None:
            inner_layers = layer.members or layer.children
            parts = [self._touches(part) for part in inner_layers]
            if not layer.members:
                parts += [(self.learned.intersection(op.input_names()), self.learned.intersection(op.output_names())) for op in layer.ops]
            touched = parts[0] if len(parts) == 1 else (frozenset[str]().union(*(p[0] for p in parts)), frozenset[str]().union(*(p[1] for p in parts)))
            self.touched[id(layer)] = touched
            self.held.append(layer)  # so no other layer gets its id
        return touched

    def level(self, layers: Sequence[OutlineLayer], limit: int = WIDEST) -> list[OutlineLayer]:
        """Fold a row of layers, and all rows below. A row of more than so many layers is divided into blocks."""
        layers = self._blocks(layers) if len(layers) > limit else list(layers)
        for index, layer in enumerate(layers):
            if layer.children:
                layer.children = self.level(layer.children)
                if len(layer.children) == 1 and not layer.ops:  # a group of a repetition is the repetition
                    only = layer.children[0]
                    only.name = f"{layer.name}.{only.name}"
                    layers[index] = only
        self._name_row(layers)
        out = self._repeats(layers, self.exact, True)
        for names in (self.rough, self.bare):
            if len(out) > WIDEST:
                out = self._repeats(out, names, False)
        for exact in (True, False):
            if len(out) > WIDEST:
                out = parted(out, beside(out, self._names_alone(out, exact)), exact)
        return out if len(out) <= WIDEST else self._parts(out)

    def beside_each_other(self, alike: Sequence[Sequence[OutlineLayer]]) -> list[list[OutlineLayer]]:
        """Return rows of alike layers (one, or of the members of a group), and all below, with alike branches in each as one."""
        parts = [beside(row, self._names_alone(row, True)) for row in alike]
        rows = [parted(row, parts[0], True) for row in alike] if all(p == parts[0] for p in parts) else [list(row) for row in alike]
        for index in range(min(map(len, rows))):
            bodies = [body for row in rows for body in row[index].bodies()]
            for body, children in zip(bodies, self.beside_each_other([body.children for body in bodies]), strict=True):
                body.children = children
            for row in rows:
                row[index].children = row[index].bodies()[0].children
        return rows

    def _names_alone(self, layers: Sequence[OutlineLayer], exact: bool) -> list[int]:
        """Return numbers for layers by their contents, whatever their inputs; each layer without parameters, as mere glue, has its own."""
        out: list[int] = []
        for index, layer in enumerate(layers):
            has_kept = self._has_kept(layer)
            out.append(self._number(self._parts_of(layer, frozenset())[0 if exact else 1]) if has_kept else -1 - index)
        return out

    def _has_kept(self, layer: OutlineLayer) -> bool:
        """Tell whether a layer reads a persistable variable."""
        answer = self.has_kept.get(id(layer))
        if answer is None:
            answer = any(self._has_kept(part) for part in layer.members or layer.children)
            answer = answer or any(v.persistable for op in layer.ops for v in op.input_variables())
            self.has_kept[id(layer)] = answer
            self.held.append(layer)
        return answer

    def _blocks(self, layers: Sequence[OutlineLayer], limit: int = 1) -> list[OutlineLayer]:
        """Return a row, divided at the places crossed by at most so many values."""
        count = len(layers)
        makers: dict[str, int] = {}
        crossing = [0] * (count + 1)
        last: dict[tuple[str, int], int] = {}
        for index, layer in enumerate(layers):
            reads, makes = self._touches(layer)
            for name in reads:
                source = makers.get(name, index)
                if source < index:
                    last[name, source] = index
            makers.update(dict.fromkeys(makes, index))
        for (_, source), end in last.items():
            crossing[source] += 1
            crossing[end] -= 1
        out: list[OutlineLayer] = []
        piece: list[OutlineLayer] = []
        alive = 0
        computes = False  # computations of sizes go with their readers
        for index, layer in enumerate(layers):
            alive += crossing[index]
            piece.append(layer)
            computes = computes or bool(self._touches(layer)[1])
            if (alive <= limit and computes) or index == count - 1:
                if len(piece) == count and limit < _MOST_CROSSING:
                    return self._blocks(layers, limit + 1)
                if max(WIDEST, count // 4) < len(piece) < count and limit < _MOST_CROSSING:  # most of the network
                    out += self._blocks(piece, limit + 1)
                elif len(piece) > max(WIDEST, count * 3 // 4):  # it would be divided again, and so on
                    out += piece
                else:
                    out.append(piece[0] if len(piece) == 1 else OutlineLayer(_block_name(piece, self._has_kept), (), piece))
                piece, computes = [], False
        return list(layers) if len(out) == 1 else out

    def _name_row(self, layers: Sequence[OutlineLayer]) -> None:
        makers: dict[str, int] = {}
        for index, layer in enumerate(layers):
            self._name(layer, self._wiring(layer, index, makers))

    def _number(self, identity: object) -> int:
        return self.numbers.setdefault(identity, len(self.numbers))

    def _reach(self, layers: Sequence[OutlineLayer]) -> list[int]:
        """Return for each layer of a row the last reader of its results."""
        makers: dict[str, int] = {}
        out = list(range(len(layers)))
        for index, layer in enumerate(layers):
            reads, makes = self._touches(layer)
            for name in reads:
                if name in makers:
                    out[makers[name]] = index
            makers.update(dict.fromkeys(makes, index))
        return out

    def _wiring(self, layer: OutlineLayer, index: int, makers: dict[str, int]) -> frozenset[bool]:
        """Tell whether a layer reads the layer right before it in its row, and whether it reads earlier ones; ``makers``: the makers of values.

        The first layer with parameters reads the row's input, as its successors read their predecessors.
        """
        reads, makes = self._touches(layer)
        out = {makers[n] == index - 1 for n in reads if makers.get(n, index) != index}
        if makes and not makers:
            out.add(True)
        makers.update(dict.fromkeys(makes, index))
        return frozenset(out)

    def _name(self, layer: OutlineLayer, wiring: frozenset[bool]) -> None:
        self.held.append(layer)
        exact, rough = self._parts_of(layer, wiring)
        self.exact[id(layer)] = self._number(exact)
        self.rough[id(layer)] = self._number(rough)
        self.bare[id(layer)] = self._number(("kept", *self._kept_of(layer)) if self._has_kept(layer) else rough)
        self.wiring[id(layer)] = wiring

    def _known(self, layer: OutlineLayer, names: dict[int, int]) -> int:
        if id(layer) not in names:  # one that only divides a long row
            self._name(layer, frozenset())
        return names[id(layer)]

    def _parts_of(self, layer: OutlineLayer, wiring: frozenset[bool]) -> tuple[tuple[object, ...], tuple[object, ...]]:
        """Return the identity of a layer: with the sizes and settings of its ops, and without."""
        name = _NUMBER.sub("#", layer.name.split("…")[0])
        exact: list[object] = [name, wiring, layer.times, layer.beside, *(self._known(c, self.exact) for c in layer.children)]
        rough: list[object] = [name, wiring, *(self._known(c, self.rough) for c in layer.children)]
        identity = self.own.get(id(layer))
        if identity is None:
            identity = self.own[id(layer)] = _own_ops(layer)
            self.held.append(layer)
        return (*exact, identity[0]), (*rough, identity[1])

    def _kept_of(self, layer: OutlineLayer) -> tuple[str, ...]:
        """Return the computations of a layer on persistable variables, op by op, whatever else it does between."""
        types = self.kept_of.get(id(layer))
        if types is None:
            own_types = [op.type for op in layer.ops if any(v.persistable for v in op.input_variables())]
            types = self.kept_of[id(layer)] = (*own_types, *(part for child in layer.children for part in self._kept_of(child)))
            self.held.append(layer)
        return types

    def _repeats(self, layers: list[OutlineLayer], names: dict[int, int], exact: bool) -> list[OutlineLayer]:
        """Fold until nothing repeats any more."""
        while True:
            out = self._fold(layers, names, exact)
            if len(out) == len(layers):
                return out
            layers = out
            for layer in layers:
                if id(layer) not in self.exact:
                    self._name(layer, self.wiring[id(layer)])

    def _fold(self, layers: list[OutlineLayer], names: dict[int, int], exact: bool) -> list[OutlineLayer]:
        row = [names[id(layer)] for layer in layers]
        best = _best_periods(row)
        reach = self._reach(layers)
        out: list[OutlineLayer] = []
        index = 0
        while index < len(row):
            period, times = best[index]
            later = (reach[i] >= index + ((i - index) // period + 2) * period for i in range(index, index + period * (times - 1)))
            if times < 2 or True not in self.wiring[id(layers[index])] or any(later):  # beside each other, and not one after the other
                out.append(layers[index])
                index += 1
                continue
            members = [layers[index + k * period : index + (k + 1) * period] for k in range(times)]
            folded = _folded(members, exact, next((k for k in range(period) if self._has_kept(members[0][k])), 0))
            self.wiring[id(folded)] = self.wiring[id(layers[index])]
            self.held.append(folded)
            out.append(folded)
            index += period * times
        return out

    def _parts(self, layers: list[OutlineLayer]) -> list[OutlineLayer]:
        """Return a long row in parts, all about as long."""
        while len(layers) > WIDEST:
            size = min(WIDEST, max(2, math.ceil(math.sqrt(len(layers)))))
            pieces = [layers[index : index + size] for index in range(0, len(layers), size)]
            layers = [p[0] if len(p) == 1 else OutlineLayer(_block_name(p, self._has_kept), (), p) for p in pieces]
            makers: dict[str, int] = {}
            for index, layer in enumerate(layers):
                wiring = self._wiring(layer, index, makers)
                if id(layer) not in self.exact:
                    self._name(layer, wiring)
        return layers


def _best_periods(row: Sequence[int]) -> list[tuple[int, int]]:
    """Return at each place the period and the times of the longest repetition from there; of several the shortest period."""
    count = len(row)
    best = [(1, 1)] * count
    covered = [1] * count
    for period in range(1, min(_LONGEST_PERIOD, count // 2) + 1):
        run = 0
        for index in range(count - period - 1, -1, -1):
            run = run + 1 if row[index] == row[index + period] else 0
            times = run // period + 1
            if times > 1 and times * period > covered[index]:
                covered[index], best[index] = times * period, (period, times)
    return best


def _folded(members: Sequence[Sequence[OutlineLayer]], exact: bool, called: int) -> OutlineLayer:
    """Return alike rows as one layer, named after the one at this place in each."""
    first, last = members[0][called], members[-1][called]
    out = OutlineLayer(range_of(first.name, (last.members or [last])[-1].name), first.ops, first.children)
    if len(members[0]) == 1 and not any(row[0].beside for row in members):
        out.members = [m for row in members for m in (row[0].members or row)]
        out.same = exact and all(row[0].same for row in members)
        return out
    out.ops, out.children = [], list(members[0])
    out.members = [OutlineLayer(row[called].name, (), row) for row in members]
    out.same = exact
    return out


# --- blocks


def _learned(program: Program) -> frozenset[str]:
    """Return the values that depend on persistable variables, mostly parameters; not numbers, such as sizes of shapes."""
    out: set[str] = set()
    for op in program.all_ops():
        if any(n in out or ((v := op.block.find(n)) is not None and v.persistable) for n in op.input_names()):
            for name in op.output_names():
                variable = op.block.find(name)
                if variable is None or variable.dtype is None or not variable.dtype.is_integer:
                    out.add(name)
    return frozenset(out)


def _block_name(piece: Sequence[OutlineLayer], has_kept: Callable[[OutlineLayer], bool]) -> str:
    """Return the name of a block from the numbers of layers named as its first layer with parameters and a number."""
    names = [part for layer in [layer for layer in piece if has_kept(layer)] or piece for part in _ends(layer.name)]
    numbered = [n for n in names if _NUMBER.search(n)] or names
    alike = [n for n in numbered if _NUMBER.sub("#", n) == _NUMBER.sub("#", numbered[0])]
    alike.sort(key=lambda n: [int(d[:18]) for d in _NUMBER.findall(n)])
    return range_of(alike[0], alike[-1])


def _ends(name: str) -> list[str]:
    """Return ``conv2d_7`` and ``conv2d_12`` of ``conv2d_7…12``."""
    first, _, last = name.partition("…")
    return [first, first.rstrip("0123456789") + last] if last.isdecimal() else [first]


def _own_ops(layer: OutlineLayer) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return the identity of a layer's own ops, with sizes and settings and without."""
    makers: dict[str, int] = {}
    exact: list[object] = []
    rough: list[object] = []
    for index, op in enumerate(layer.ops):
        wired = tuple([makers.get(n, -1) for n in op.input_names()])
        rough.append((op.type, wired))
        exact.append((op.type, wired, _sizes(op), _settings(op)))
        makers.update(dict.fromkeys(op.output_names(), index))
    return tuple(exact), tuple(rough)


def _sizes(op: Op) -> tuple[object, ...]:
    """Return the sizes of an op's persistable inputs, and of its results."""
    out: list[tuple[Size, ...] | None] = []
    for name in op.input_names():
        variable = op.block.find(name)
        if variable is not None and variable.persistable:
            out.append(variable.spec.dims)
    for name in op.output_names():
        variable = op.block.find(name)
        out.append(variable.spec.dims if variable is not None else None)
    return tuple(out)


def _settings(op: Op) -> object:
    operator = op.operator
    if operator is None or op.sub_block_indices():
        return ""
    if _ASIDE.isdisjoint(operator.schema.attributes):
        return id(operator)  # there is one of each operator with the same settings
    return repr([(n, getattr(operator, n)) for n in operator.schema.attributes if n not in _ASIDE])
