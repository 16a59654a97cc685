"""`Summary`: the layers of a program as a table of one screen: results, parameters, bytes and work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Final, NamedTuple

from foreshape.core.dims import Size, substitute
from foreshape.core.pictures.figures import plural, share, short_bytes, short_count
from foreshape.core.pictures.markup import Markup, card, escape, folded, markup_table, tag
from foreshape.core.pictures.widths import begin, fit, left, wide
from foreshape.errors import SchemaError, ShapeError, border
from foreshape.language.program.inputs import inputs_of, size_of
from foreshape.language.program.op import Role
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable
from foreshape.language.views.layer_costs import Measure, Meter, SymbolNumbers
from foreshape.language.views.layer_grouping import folded_layers
from foreshape.language.views.outline import OutlineLayer, output_of

ROWS: Final = 32
"""So many layers are one screen, with the lines around them."""
_DEEPEST_SHOWN: Final = 6
_NARROW: Final = 60
"""The smallest width with the columns side by side."""
_COLUMNS: Final = ("layer", "output", "parameters", "results", "work")


class Row(NamedTuple):
    """One line: a layer, or ops outside of all layers.

    Attributes:
        depth: the number of groups around it.
        name: of the layer, without the names of the groups around it.
        types: its operators; empty for a group.
        times: the number of consecutive alike layers.
        output: the dims of its result, as text.
        measure: of all of the ``times`` together.
        hidden: the number of its inner layers without a line of their own.
    """

    depth: int
    name: str
    types: str
    times: int
    output: str
    measure: Measure
    hidden: int
    many: str = ""
    """``times`` in words: ``x 12``; ``x 3 in parallel``."""


class Summary:
    """The layers of a program. ``str`` of it is a table of at most 80 columns (`text` takes other widths), and a notebook shows it foldable."""

    @border("the program cannot be summed up", SchemaError)
    def __init__(self, program: Program, batch: int | None = None, depth: int | None = None, rows: int = ROWS, sizes: dict[str, int] | None = None,
                 layers: Sequence[OutlineLayer] | None = None, meter: Meter | None = None) -> None:  # fmt: skip
        if (depth is not None and depth < 1) or rows < 1:
            raise SchemaError(f"a summary has at least one level and one row; seen depth={depth}, rows={rows}")
        self.sizes = meter.sizes if meter is not None else SymbolNumbers(program, batch, sizes)
        self._meter = meter if meter is not None else Meter(program, self.sizes)
        self._layers = list(layers) if layers is not None else folded_layers(program)
        self._depth = depth if depth is not None else _deepest_within(self._layers, rows)
        self.inputs: list[tuple[str, str]] = [(v.name, dims_text(v, self.sizes.given)) for v in inputs_of(program.global_block)]
        self.rows: list[Row] = [row for layer in self._layers for row in self._rows([layer], 0)]
        self.more: list[Row] = list(self._others(program))
        """The gradients and updates of a training program."""
        self.total: Measure = self._meter.all(op for layer in self._layers for op in layer.all_ops())
        for row in self.more:
            self.total += row.measure
        read = {n for op in program.all_ops() for n in op.input_names()}
        unread = [v for v in self._meter.parameters if v.spec.dims is not None and v.name not in read]
        self._tail = list(self._tail_lines(program, unread))

    def _rows(self, alike: Sequence[OutlineLayer], depth: int) -> Iterator[Row]:
        """Yield the line of a layer, for all at its place in repetitions; then the lines of its inner layers."""
        yield self._row(alike, depth, hide=depth + 1 >= self._depth)
        if depth + 1 < self._depth:
            for below in _below(alike):
                yield from self._rows(below, depth + 1)

    def _row(self, alike: Sequence[OutlineLayer], depth: int, hide: bool) -> Row:
        layer = alike[0]
        hidden = _leaves(layer.children) if hide and layer.children else 0
        measure = self._meter.all(op for member in alike for op in member.all_ops())
        return Row(depth, layer.label, layer.types(), layer.times, _output(alike[-1], self.sizes.given), measure, hidden, layer.times_words())

    def _others(self, program: Program) -> Iterator[Row]:
        ops = [op for op in program.global_block.ops if op.is_run]
        backward = [op for op in ops if op.role & Role.BACKWARD]
        updates = [op for op in ops if not op.role & Role.BACKWARD and op.role & (Role.OPTIMIZE | Role.LEARNING_RATE)]
        for name, group in (("gradients", backward), ("updates", updates)):
            if group:
                inner = [o for op in group for i in op.sub_block_indices() if 0 <= i < len(program.blocks) for o in program.blocks[i].ops]
                yield Row(0, name, plural(len(group) + len(inner), "op"), 1, "", self._meter.all([*group, *inner]), 0)

    def _tail_lines(self, program: Program, unread: Sequence[Variable]) -> Iterator[str]:
        number, total = self.sizes.number, self.total
        extra = sum(number(v.spec.elements) or 0 for v in unread)
        size = total.parameter_bytes + sum(number(size_of(v)) or 0 for v in unread)
        yield f"parameters: {total.parameters + extra:,} numbers, {short_bytes(size) or '0B'}"
        state = sum(number(size_of(v)) or 0 for v in self._meter.state)
        if state:
            yield f"other state: {short_bytes(state)}"
        words = self.sizes.words()
        unsized = f", without {plural(self._meter.uncounted, 'result')} of unknown size" if self._meter.uncounted else ""
        yield f"{words + ': ' if words else ''}results {short_bytes(total.result_bytes) or '0B'}, {short_count(total.work) or '0'} multiply-adds{unsized}"

    # --- text

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def text(self, width: int = 80) -> str:
        """Return the table in lines of at most so many characters (from 24 on). Below 60 a layer is its name, and under it its result and figures."""
        width = max(width, 24)
        lines = [self._cells(row) for row in (*self.rows, *self.more)]
        head = [fit(f"input {escape(n)}  {d}", width) for n, d in self.inputs[:4]]
        if len(self.inputs) > 4:
            head.append(f"and {plural(len(self.inputs) - 4, 'more input')}")
        tail = [part for words in self._tail for part in wrap(words, width, subsequent_indent="    ")]
        if width < _NARROW:
            return "\n".join([*head, "", *(part for line in lines for part in _apart(line, width)), "", *tail])
        numbers = [max(len(line[c]) for line in [_COLUMNS, *lines]) for c in (2, 3, 4)]
        room = width - sum(numbers) - 2 * 4
        name = max(wide(line[0]) for line in [_COLUMNS, *lines])
        if name + max(wide(line[1]) for line in lines or [_COLUMNS]) > room:
            lines = [(line[0], line[1].replace(", ", ","), *line[2:]) for line in lines]
        output = min(max(wide(line[1]) for line in [_COLUMNS, *lines]), max(room * 9 // 20, 10))
        name = min(name, room - output)

        def line(cells: Sequence[str]) -> str:
            first = f"{left(_fit(cells[0], name), name)}  {left(_fit_dims(cells[1], output), output)}"
            return "  ".join([first, *(c.rjust(w) for c, w in zip(cells[2:], numbers, strict=True))]).rstrip()

        rule = "-" * min(width, name + output + sum(numbers) + 8)
        return "\n".join([*head, line(_COLUMNS), rule, *map(line, lines), rule, *tail])

    def _cells(self, row: Row) -> tuple[str, str, str, str, str]:
        m, total = row.measure, self.total
        figures = [
            (short_count(m.parameters), share(m.parameters, total.parameters)),
            (short_bytes(m.result_bytes), share(m.result_bytes, total.result_bytes)),
            (short_count(m.work), share(m.work, total.work)),
        ]
        parameters, results, work = (f"{text} {part:>4}" if text else "" for text, part in figures)
        return "  " * row.depth + _name(row), row.output, parameters, results, work

    # --- a notebook

    def _repr_html_(self) -> str:
        heads = [tag("div", f"input {name}  {dims}") for name, dims in self.inputs[:4]]
        return card("Summary", *heads, self._tables(), *(tag("div", line) for line in self._tail))

    def _tables(self) -> Markup:
        """Return every level, each group to be unfolded."""
        return Markup("".join([self._level([[layer] for layer in self._layers], 0), _table([self._cells(r) for r in self.more]) if self.more else ""]))

    def _level(self, layers: Sequence[Sequence[OutlineLayer]], depth: int) -> Markup:
        out: list[Markup] = []
        waiting: list[Sequence[object]] = []
        for alike in layers:
            cells = self._cells(self._row(alike, 0, hide=True))
            if not alike[0].children or depth >= _DEEPEST_SHOWN:
                waiting.append(cells)
                continue
            if waiting:
                out.append(_table(waiting))
                waiting = []
            out.append(folded(" · ".join(" ".join(c.split()) for c in cells if c), self._level(_below(alike), depth + 1)))
        return Markup("".join([*out, _table(waiting) if waiting else ""]))


def _table(lines: Sequence[Sequence[object]]) -> Markup:
    return markup_table(_COLUMNS, lines, (2, 3, 4))


def _below(alike: Sequence[OutlineLayer]) -> list[tuple[OutlineLayer, ...]]:
    """Return the layers at each place within alike layers."""
    return list(zip(*(body.children for layer in alike for body in layer.bodies()), strict=False))


def _name(row: Row) -> str:
    """Return ``conv2d_7…12, relu  x 3``: the name of a layer, its operators if not in the name, and the number of layers."""
    stem = row.name.rpartition("_")[0] if row.name.rpartition("_")[2][:1].isdigit() else row.name
    first, _, other_types = row.types.partition(", ")
    kinds = plural(row.hidden, "layer") if row.hidden else other_types if first == stem else row.types
    label = escape(row.name).replace("\n", " ") + (f" {row.many}" if row.many else "")
    return label + (f"  {escape(kinds)}" if kinds else "")


def _leaves(layers: Iterable[OutlineLayer]) -> int:
    return sum(_leaves(layer.children) if layer.children else 1 for layer in layers)


def _output(layer: OutlineLayer, values: Mapping[str, int]) -> str:
    result = output_of(layer)
    return dims_text(result, values) if result is not None else ""


def dims_text(variable: Variable, values: Mapping[str, int] | None = None) -> str:
    """Return ``[batch, 64, 56, 56]``; for ragged values of the packed rows; the kind if it has no dims. ``values`` sizes are numbers."""
    spec = variable.spec
    if spec.dims is None:
        return spec.kind.name.lower() if spec.dtype is None else f"{spec.dtype.short}[?]"
    dims = spec.dims if not values else [_with(d, values) for d in spec.dims]
    return f"[{', '.join(escape(str(d)) for d in dims)}]" + ("" if variable.known else " ?")


def _with(dim: Size, values: Mapping[str, int]) -> Size:
    try:
        return substitute(dim, values)
    except ShapeError:  # the network does not take these sizes
        return dim


def _fit_dims(text: str, width: int) -> str:
    """Return dims in a width: the longest of them give way first, each as a whole."""
    if wide(text) <= width or not text.startswith("["):
        return fit(text, width)
    inside, end = text[1:].rpartition("]")[::2]
    apart = ", " if ", " in inside else ","
    parts: list[str] = []
    for part in inside.split(apart):  # within parentheses it is no end of a dim
        if parts and parts[-1].count("(") > parts[-1].count(")"):
            parts[-1] += apart + part
        else:
            parts.append(part)
    while wide(line := f"[{apart.join(parts)}]{end}") > width and max(map(len, parts)) > 1:
        longest = max(range(len(parts)), key=lambda axis: len(parts[axis]))
        parts[longest] = "…"
    return fit(line, width)


def _apart(cells: Sequence[str], width: int) -> Iterator[str]:
    """Yield a line of the table in several: the layer, then its other cells, each after its column's name."""
    indent = " " * (len(cells[0]) - len(cells[0].lstrip(" ")) + 4)
    yield _fit(cells[0], width)
    line = ""
    for part in [cells[1], *(f"{name} {' '.join(cell.split())}" for name, cell in zip(_COLUMNS[2:], cells[2:], strict=True) if cell)]:
        if line and len(indent) + wide(line) + 2 + wide(part) > width:
            yield indent + line
            line = ""
        line += f", {part}" if line else _fit_dims(part, width - len(indent))
    if line:
        yield indent + line


def _fit(text: str, width: int) -> str:
    """Return the name of a layer in a width: its operators give way first."""
    if wide(text) <= width:
        return text
    name, gap, kinds = text.rpartition("  ")
    if gap and name.strip() and wide(name) + 6 <= width:
        return f"{name}  {begin(kinds, width - wide(name) - 3)}…"
    return fit(name if gap and name.strip() else text, width)


def _deepest_within(layers: Sequence[OutlineLayer], rows: int) -> int:
    """Return the number of levels shown in so many rows; at least one."""
    depth, count, level = 1, len(layers), list(layers)
    while depth < _DEEPEST_SHOWN:
        level = [c for layer in level for c in layer.children]
        count += len(level)
        if not level or count > rows:
            break
        depth += 1
    return depth
