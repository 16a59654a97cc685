"""The drawings of a network for its page: one of the whole, and one for each group that is closed in the drawing around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from foreshape.core.pictures.scene import Box, number, path_of
from foreshape.language.program import Op, Program
from foreshape.language.views.graph import Wiring, opened_within, scene_of
from foreshape.language.views.layer_costs import Meter
from foreshape.language.views.layer_grouping import folded_sections, is_sections
from foreshape.language.views.outline import OutlineLayer
from foreshape.runtime.report.texts import Texts

_BOXES: Final = 60
"""So many boxes are in one drawing."""


class Drawings:
    """The layers of a network, numbered, and their drawings."""

    def __init__(self, program: Program, texts: Texts, meter: Meter) -> None:
        self.texts = texts
        self.meter = meter
        self.layers: list[OutlineLayer] = []
        self.numbers: dict[int, int] = {}
        self.above: list[int] = []
        self.drawn_in: list[int] = []
        """Layer -> the drawing with its box."""
        self.opens: list[int] = []
        """Layer -> the drawing of its inside; -1 if it has none of its own."""
        self.drawings: list[dict[str, Any]] = []
        top = folded_sections(program)
        sections = is_sections(top)
        self.forward = top[0].children if sections else top
        self._number(top, -1)
        self.wiring = Wiring(program, top)
        waiting: list[tuple[Sequence[OutlineLayer], OutlineLayer | None]] = [(top, None)]
        while waiting:
            layers, group = waiting.pop(0)
            if group is None and sections:  # the network itself is shown at once, its training on demand
                opened = {id(top[0])} | opened_within(self.forward, _BOXES)
            else:
                opened = opened_within(layers, _BOXES)
            if group is not None:
                self.opens[self.numbers[id(group)]] = len(self.drawings)
            self._mark(layers, opened, waiting)
            box = scene_of(self.wiring, layers, opened, group)
            self.drawings.append({"of": self.numbers[id(group)] if group is not None else -1, "size": [round(box.width), round(box.height)],
                                  "boxes": [self._box(b) for b in box.inside], "lines": _lines(box)})  # fmt: skip

    def _number(self, layers: Sequence[OutlineLayer], above: int) -> None:
        for layer in layers:
            place = self.numbers[id(layer)] = len(self.layers)
            self.layers.append(layer)
            self.above.append(above)
            self.drawn_in.append(-1)
            self.opens.append(-1)
            self._number(layer.children, place)

    def _mark(self, layers: Sequence[OutlineLayer], opened: set[int], waiting: list[tuple[Sequence[OutlineLayer], OutlineLayer | None]]) -> None:
        """Note the layers of the next drawing, and its groups with a drawing of their own."""
        for layer in layers:
            self.drawn_in[self.numbers[id(layer)]] = len(self.drawings)
            if id(layer) in opened:
                self._mark(layer.children, opened, waiting)
            elif layer.children:
                waiting.append((layer.children, layer))

    def _box(self, box: Box) -> list[Any]:
        lines = [self.texts.put(line) for line in box.lines]
        inside = [[self._box(b) for b in box.inside], _lines(box)] if box.inside else 0
        place = [round(v, 1) for v in (box.x, box.y, box.width, box.height)]
        return [self.numbers.get(box.key, -1), *place, box.family, box.times, int(box.round), lines, inside]

    def facts(self) -> list[Any]:
        """Return each layer: name, operators, times, the layer around it, its drawing, the drawing of its inside, its values, and its times in words."""
        out: list[Any] = []
        put = self.texts.put
        parameters: dict[int, tuple[int, int]] = {}
        for index in range(len(self.layers) - 1, -1, -1):  # each after its inside
            layer = self.layers[index]
            if layer.times > 1 or not layer.children:
                parameters[index] = self.meter.all(layer.all_ops())[:2]
            else:
                totals = self.meter.all(layer.ops)
                inner = [parameters[self.numbers[id(c)]] for c in layer.children]
                parameters[index] = totals.parameters + sum(p for p, _ in inner), totals.parameter_bytes + sum(b for _, b in inner)
        for index, layer in enumerate(self.layers):
            out.append(
                [
                    put(layer.label),
                    put(layer.types()),
                    layer.times,
                    self.above[index],
                    self.drawn_in[index],
                    self.opens[index],
                    *parameters[index],
                    put(layer.times_words()),
                ]
            )
        return out

    def place_of(self, op: Op) -> tuple[int, int]:
        """Return the number of an op's layer, and of the member among equal layers (from 0); -1 if it is in none."""
        path = self.wiring.places.get(id(op))
        if path is None:
            return -1, 0
        return self.numbers[id(path[-1][0])], next((member for layer, member in path if layer.times > 1), 0)


def _lines(box: Box) -> list[Any]:
    """Return the arrows in a box: the path of each piece, whether it passes others, and where its head is."""
    return [[path_of(s), int(s.far), *([float(number(s.to_x)), float(number(s.to_y))] if s.arrow else [])] for s in box.segments]
