"""The drawing of a program: its layers as boxes, with the values between them as arrows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from foreshape.core.pictures import Picture
from foreshape.core.pictures.figures import plural
from foreshape.core.pictures.layered import Segment, layered
from foreshape.core.pictures.scene import LINE, MARGIN, Box, shown, svg_of
from foreshape.errors import SchemaError, border
from foreshape.language.operator import traits
from foreshape.language.program.inputs import inputs_of
from foreshape.language.program.op import Op, Role
from foreshape.language.program.program import Program
from foreshape.language.views.layer_grouping import SECTIONS, folded_layers, folded_sections, is_sections
from foreshape.language.views.outline import OutlineLayer, output_of
from foreshape.language.views.summary import dims_text

BOXES: Final = 80
"""So many boxes can be taken in at a look."""
_DEEPEST: Final = 6
_ENTRY: Final = -1
_EXIT: Final = -2
_ALL_INPUTS: Final = -3
_INPUTS: Final = 24
"""More inputs than this are one box."""
_DRAWN_AS: Final = {
    "nn": "image", "image": "image", "detection": "image", "math": "product", "fused": "product", "recurrent": "sequence", "sequence": "sequence",
    "structured": "sequence", "loss": "loss", "tensor": "shape", "control": "control", "quantization": "shape",
    **{name: name for name in ("activation", "norm", "product", "shape", "table")},
}  # fmt: skip
"""The color by the family of an operator."""


def family_of(layer: OutlineLayer) -> str:
    """Return the sort of a layer, by its first op."""
    operator = layer.ops[0].operator if layer.ops else None
    return _DRAWN_AS.get(traits.family_of(type(operator)), "other") if operator is not None else "other"


class Wiring:
    """The layers of each op of a program, and the values between layers."""

    def __init__(self, program: Program, layers: Sequence[OutlineLayer]) -> None:
        self.places: dict[int, list[tuple[OutlineLayer, int]]] = {}
        """Op -> its layers, outermost first, each with the number of the member. Layers are the shown ones: the first members."""
        self.arrows: dict[int, set[tuple[int, int]]] = {}
        """Layer (its id; 0: the program) -> arrows between its parts, by their ids; `_ENTRY` and `_EXIT` are its ends."""
        self.sections = is_sections(layers)
        self.inputs = inputs_of(program.global_block)
        many = len(self.inputs) > _INPUTS
        self.fed: dict[int, int] = {id(v): _ALL_INPUTS if many else id(v) for v in self.inputs}
        """Input (its id) -> its box."""
        self._place(layers, layers, [])
        self._connect(program)

    def _place(self, drawn: Sequence[OutlineLayer], actual: Sequence[OutlineLayer], above: list[tuple[OutlineLayer, int]]) -> None:
        for drawn_layer, layer in zip(drawn, actual, strict=False):
            for number, body in enumerate(layer.bodies()):
                path = [*above, (drawn_layer, number)]
                for op in body.ops:
                    self.places[id(op)] = path
                self._place(drawn_layer.children, body.children, path)

    def _connect(self, program: Program) -> None:
        makers: dict[int, Op] = {}
        for block in program.blocks:
            for op in block.ops:
                path = self.places.get(id(op))
                for variable in op.input_variables() if path is not None else ():
                    if variable.persistable or path is None:
                        continue
                    source = makers.get(id(variable))
                    if source is not None and id(source) in self.places:
                        self._arrow(self.places[id(source)], path)
                    elif id(variable) in self.fed:
                        self._enter(self.fed[id(variable)], path)
                for name in op.output_names() if path is not None else ():
                    result = op.block.find(name)
                    if result is not None:
                        makers[id(result)] = op

    def _add(self, group: int, a: int, b: int) -> None:
        if a != b:
            self.arrows.setdefault(group, set()).add((a, b))

    def _enter(self, source: int, path: Sequence[tuple[OutlineLayer, int]]) -> None:
        if self.sections and path[0][0].name != SECTIONS[0]:
            return
        self._add(0, source, id(path[0][0]))
        for (outer, _), (inner, _) in pairwise(path):
            self._add(id(outer), _ENTRY, id(inner))

    def _arrow(self, a: Sequence[tuple[OutlineLayer, int]], b: Sequence[tuple[OutlineLayer, int]]) -> None:
        depth = 0
        while depth < min(len(a), len(b)) and a[depth] == b[depth]:
            depth += 1
        if self.sections and not depth:  # values kept for the gradients leave everywhere
            self._add(0, id(a[0][0]), id(b[0][0]))
            return
        if depth == len(a) or depth == len(b):
            return  # within one layer, or between an op and its block
        if a[depth][0] is not b[depth][0]:
            self._add(id(a[depth - 1][0]) if depth else 0, id(a[depth][0]), id(b[depth][0]))
        for (outer, _), (inner, _) in pairwise(a[depth:]):
            self._add(id(outer), id(inner), _EXIT)
        for (outer, _), (inner, _) in pairwise(b[depth:]):
            self._add(id(outer), _ENTRY, id(inner))


@border("the program cannot be drawn", SchemaError)
def draw(program: Program, depth: int | None = None, boxes: int = BOXES, part: str | None = None) -> Picture:
    """Draw a program. A training program shows its network, and its gradients and updates as a box each; or one ``part`` alone.

    Raises:
        SchemaError: no level or no box; a part missing in the program.
    """
    if (depth is not None and depth < 1) or boxes < 1:
        raise SchemaError(f"a drawing has at least one level and one box; seen depth={depth}, boxes={boxes}")
    layers = folded_sections(program)
    sections = {layer.name: layer for layer in layers} if is_sections(layers) else {}
    if part is not None and part not in (sections or SECTIONS[:1]):
        raise SchemaError.one_of("part", sections or SECTIONS[:1], part)
    if part == SECTIONS[0] and sections:
        layers, sections = folded_layers(program), {}
    group = sections.get(part or "")
    inner = group.children if group is not None else layers[0].children if sections else layers
    opened = opened_within(inner, boxes) if depth is None else _down_to(inner, depth)
    if sections and group is None:
        opened.add(id(layers[0]))
    root = scene_of(Wiring(program, layers), inner if group is not None else layers, opened, group)
    ops = plural(sum(1 for layer in inner for _ in layer.all_ops()), "op")
    title = f"a network of {ops}" if group is None else f"the {part} part of a network, {ops},"
    sections_words = [f"{plural(sum(1 for _ in section.all_ops()), 'op')} of {section.name}" for section in layers[1:]] if sections and group is None else []
    return Picture(
        svg_of(root, title.rstrip(",")), f"{title} in {plural(len(inner), 'layer')}{', with ' if sections_words else ''}{' and '.join(sections_words)}"
    )


def _down_to(layers: Sequence[OutlineLayer], depth: int) -> set[int]:
    if depth <= 1:
        return set()
    return {id(layer) for layer in layers if layer.children}.union(*(_down_to(layer.children, depth - 1) for layer in layers))


def opened_within(layers: Sequence[OutlineLayer], boxes: int) -> set[int]:
    """Return the groups to open for so many boxes: level by level, the smallest first."""
    opened: set[int] = set()
    count, level = len(layers), list(layers)
    for _ in range(_DEEPEST - 1):
        below: list[OutlineLayer] = []
        for layer in sorted((x for x in level if x.children), key=lambda x: len(x.children)):
            if count + len(layer.children) > boxes:
                break
            count += len(layer.children)
            opened.add(id(layer))
            below += layer.children
        level = below
    return opened


def scene_of(wiring: Wiring, layers: Sequence[OutlineLayer], opened: set[int], group: OutlineLayer | None = None) -> Box:
    """Return the contents of a group, or of the whole program, as boxes with their places."""
    root = Box([])
    inputs: list[tuple[int, Box]] = []
    if group is None:
        inputs = [(id(v), Box([v.name, dims_text(v)], round=True)) for v in wiring.inputs[:_INPUTS]]
        if len(wiring.inputs) > _INPUTS:
            inputs = [(_ALL_INPUTS, Box([plural(len(wiring.inputs), "input")], round=True))]
    _fill(root, wiring, layers, opened, id(group) if group is not None else 0, inputs, MARGIN)
    return root


def _box(wiring: Wiring, layer: OutlineLayer, opened: set[int]) -> Box:
    box = Box([layer.label], family_of(layer), layer.times, id(layer), layer.times_words())
    if id(layer) in opened:
        box.lines = [shown(layer.label, 60)]
        _fill(box, wiring, layer.children, opened, id(layer), [], 10.0, LINE + 12)
        title = (len(box.lines[0]) + (len(box.many) + 3 if box.times > 1 else 0)) * 6.9 + 24
        if box.width < title:
            _widen(box, title)
        return box
    types = layer.types()
    if layer.children:
        types = plural(sum(1 for _ in layer.bodies()[0].all_ops()), "op")
    kinds = [] if types == layer.label else [types]
    box.lines = [layer.label + (f"  {layer.times_words()}" if layer.times > 1 else ""), *kinds, *_dims(layer)]
    box.measure()
    return box


def _dims(layer: OutlineLayer) -> Iterable[str]:
    last: Op | None = None
    for op in layer.bodies()[-1].all_ops():
        last = op
    if layer.children and last is not None and last.role & (Role.BACKWARD | Role.OPTIMIZE):
        return []  # the last of many gradients, or updates, is not the main result
    result = output_of(layer)
    return [dims_text(result)] if result is not None else []


def _fill(
    box: Box, wiring: Wiring, layers: Sequence[OutlineLayer], opened: set[int], key: int, extra_boxes: list[tuple[int, Box]], margin: float, head: float = 0.0
) -> None:
    """Put layers into a box, in places."""
    for _, inner in extra_boxes:
        inner.measure()
    boxes = extra_boxes + [(id(layer), _box(wiring, layer, opened)) for layer in layers]
    arrows = wiring.arrows.get(key, set())
    numbers = {k: index for index, (k, _) in enumerate(boxes)}
    sizes = [(b.width, b.height) for _, b in boxes]
    top = bottom = None
    if any(a == _ENTRY for a, _ in arrows):
        top = numbers[_ENTRY] = len(sizes)
        sizes.append((1.0, 0.0))
    if any(b == _EXIT for _, b in arrows):
        bottom = numbers[_EXIT] = len(sizes)
        sizes.append((1.0, 0.0))
    drawn = [(numbers[a], numbers[b]) for a, b in arrows if a in numbers and b in numbers and (a < 0 or b < 0 or numbers[a] < numbers[b])]
    layout = layered(sizes, drawn, top, bottom)
    for (_, inner), (x, y) in zip(boxes, layout.centres, strict=False):
        inner.x, inner.y = x - inner.width / 2 + margin, y - inner.height / 2 + margin + head
    box.inside = [b for _, b in boxes]
    box.width, box.height = layout.width + 2 * margin + (3 if box.times > 1 else 0), layout.height + 2 * margin + head
    box.segments = [_placed_segment(s, margin, margin + head, box, top, bottom) for s in layout.segments]


def _placed_segment(s: Segment, right: float, down: float, box: Box, top: int | None, bottom: int | None) -> Segment:
    """Return a piece of an arrow within a box. Arrows come in, or go out, in the middle of the edge, at the end of the arrow outside."""
    out = s._replace(x=s.x + right, y=s.y + down, bend=s.bend + down, to_x=s.to_x + right, land=s.land + down, to_y=s.to_y + down)
    if s.source == top and top is not None:
        out = out._replace(x=_middle(box), y=0.0)
    if s.target == bottom and bottom is not None:
        out = out._replace(to_x=_middle(box), to_y=box.height, arrow=False)
    return out


def _middle(box: Box) -> float:
    return box.width / 2


def _widen(box: Box, width: float) -> None:
    margin = (width - box.width) / 2
    for inner in box.inside:
        inner.x += margin
    box.segments = [s._replace(x=s.x + margin, to_x=s.to_x + margin) for s in box.segments]
    box.width = width
