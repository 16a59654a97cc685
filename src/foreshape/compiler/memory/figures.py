"""The figures of a liveness: the needs over time, for given sizes and as a formula, and the offset of each buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from operator import index
from typing import Any, NamedTuple

import numpy

from foreshape.compiler.lowering.call_memory import number
from foreshape.compiler.memory.byte_counts import byte_text, bytes_of
from foreshape.compiler.memory.ceiling import Ceiling, SequenceSymbols, ceiling, sequences_of
from foreshape.compiler.memory.formula import Formula, Terms, require_values
from foreshape.compiler.memory.largest import largest
from foreshape.compiler.memory.records import CLASSES, WORKSPACE, LiveBuffer, Liveness, UnknownMemory, unknown_words
from foreshape.core.dims import INT64_MAX, Size, is_symbol, only_atom, symbol, symbols_of
from foreshape.errors import MemoryPlanError, ShapeError
from foreshape.language.program import Op

_FEW_PIECES = 4


class Buffer(NamedTuple):
    """One piece of the arena: bytes, its offset, and the first and last op (positions) that need it.

    Views, and results in the memory of their operands, are in the record of their memory.
    """

    name: str
    size: int
    first: int
    last: int
    offset: int
    what: str
    names: tuple[str, ...]
    spec: str
    line: str


class Holder(NamedTuple):
    """A value alive at the peak: its name, bytes, class, type and dims, and the user's line of its op."""

    name: str
    size: int
    what: str
    spec: str
    line: str


class Figures:
    """The numbers of one liveness: every question takes the values of its symbols by name (see `foreshape.compiler.memory.plan.Plan`)."""

    def __init__(self, live: Liveness) -> None:
        self.live = live
        self.symbols: frozenset[str] = frozenset(n for r in _all_records(self.live) for n in symbols_of(r.size))
        """The names of the symbols in the sizes."""
        self.leading: tuple[str, ...] = tuple(_leading(self.live))
        """The symbols of the numbers of rows of inputs; of ragged inputs, of sequences."""
        self._formula: Formula | None = None

    @property
    def ops(self) -> list[Op]:
        """Return the ops in the order of their positions: the program's own, or one with less memory."""
        return self.live.ops

    # --- numbers

    def peak(self, **symbols: int) -> int:
        """Return the most bytes held at once in a run: parameters and state, inputs, and the values alive at the worst op.

        Unknown parts of an op's memory are left out; `unknown` tells their ops.
        """
        return self.held(**symbols) + self.lower_bound(**symbols)

    def unknown(self, **symbols: int) -> list[UnknownMemory]:
        """Return the ops with a part of unknown memory, since a rule of their operator fails, and why: all figures leave it out.

        With values of the symbols, ops whose rules give no bytes for these are included.
        """
        failures = list(self.live.unknown)
        if symbols:
            values = self._values(symbols)
            failures += [
                UnknownMemory(r.op, f"it gives no number of bytes with these sizes: {r.size}")
                for r in _all_records(self.live)
                if r.op is not None and _workspace(r, values) is None
            ]
        return failures

    def held(self, **symbols: int) -> int:
        """Return the bytes kept from run to run: parameters and optimizer state."""
        values = self._values(symbols, {n for r in self.live.held for n in symbols_of(r.size)})
        return sum(number(r.size, values) for r in self.live.held)

    def lower_bound(self, **symbols: int) -> int:
        """Return the largest sum of the sizes in the arena at one op: no layout can be smaller."""
        return int(self.timeline(**symbols).max(initial=0))

    def timeline(self, **symbols: int) -> Any:
        """Return the bytes of the arena needed at every op of the global block: int64 ``[ops]``."""
        sizes, records = self._sizes(symbols)
        change = numpy.zeros(self.live.positions + 1, dtype=numpy.int64)
        numpy.add.at(change, [r.counted for r in records], sizes)
        numpy.subtract.at(change, [r.last + 1 for r in records], sizes)
        return numpy.cumsum(change)[: self.live.positions]

    def arena(self, **symbols: int) -> int:
        """Return the bytes of the arena in the layout found."""
        return max((b.offset + b.size for b in self.buffers(**symbols)), default=0)

    def buffers(self, time_limit: float | None = None, **symbols: int) -> list[Buffer]:
        """Return everything in the arena with its place. ``time_limit``: seconds to look for a better layout."""
        from foreshape.compiler.memory.arena_layout import arena  # a run asks for the peak alone

        sizes, records = self._sizes(symbols)
        first, last = (numpy.array([getattr(r, n) for r in records], dtype=numpy.int64) for n in ("counted", "last"))
        offsets: list[int] = arena(numpy.minimum(first, last), last + 1, sizes, time_limit=time_limit).tolist() if records else []
        every = zip(records, sizes.tolist(), offsets, strict=True)
        return [Buffer(r.name, size, min(r.counted, r.last), r.last, offset, r.what, tuple(r.names), _spec(r), _line(r)) for r, size, offset in every]

    def breakdown(self, **symbols: int) -> dict[str, int]:
        """Return the bytes at the peak by class."""
        out: dict[str, int] = dict.fromkeys(CLASSES, 0)
        values = self._values(symbols)
        for r in self.live.held:
            out[r.what] += number(r.size, values)
        for record, size in self._alive_at_peak(symbols):
            out[record.what] += size
        return out

    def holders(self, **symbols: int) -> list[Holder]:
        """Return the values alive at the peak, the largest first, parameters and state included."""
        values = self._values(symbols)
        alive = self._alive_at_peak(values) + [(r, number(r.size, values)) for r in self.live.held]
        return [Holder(r.name, size, r.what, _spec(r), _line(r)) for r, size in sorted(alive, key=lambda a: (-a[1], a[0].name)) if size]

    def peak_position(self, **symbols: int) -> int:
        """Return the position of the op with the peak."""
        line = self.timeline(**symbols)
        return int(line.argmax()) if len(line) else 0

    def largest(self, name: str, /, within: int | str, **symbols: int) -> int:
        """Return the largest value of a symbol with a peak of at most ``within`` (bytes, or as "16 GiB").

        The peak need not grow with every step: a remainder may need a little more than the next size without one.

        Raises:
            MemoryPlanError: it does not fit even with 1, or the memory does not depend on the symbol, or rises and falls all the way.
        """
        limit = bytes_of(within)
        formula = self.peak_formula()
        values = self._values({name: 1, **symbols})
        names = [n for n in self._meant_by(name) if n in formula.symbols and n not in symbols]
        if not names:
            raise MemoryPlanError(f"the memory does not depend on {name}; it depends on {', '.join(sorted(formula.symbols)) or 'nothing'}")
        size = largest(formula, names, values, limit)
        if size is None:
            least = formula(values)
            raise MemoryPlanError(f"with {name} = 1 the program needs {byte_text(least)}, which is more than {byte_text(limit)}")
        return size

    def ceiling(self, **ranges: int | tuple[int, int]) -> Ceiling:
        """Return a proved bound of the peak over ranges of sizes: ``plan.ceiling(batch=(1, 64), time=(1, 512))``.

        The longest sequence of a ragged input, ``NAME.longest``, is of any length up to all rows unless it has a range.

        Args:
            ranges: symbol -> a size, or the least and the greatest.

        Returns:
            Its ``bytes``; the ``sizes`` of its symbols where they are reached; and whether they are: ``exact``.

        Raises:
            MemoryPlanError: a symbol has no range, or no feed has sizes in these.
        """
        lows = self._values({n: r[0] if isinstance(r, tuple) else r for n, r in ranges.items()}, ())
        highs = self._values({n: r[-1] if isinstance(r, tuple) else r for n, r in ranges.items()}, ())
        wrong = [n for n, r in ranges.items() if isinstance(r, tuple) and (len(r) != 2 or lows[n] > highs[n])]
        if wrong:
            raise MemoryPlanError(f"a range of sizes is (least, greatest); seen {', '.join(f'{n}={ranges[n]}' for n in wrong)}")
        formula, alias = self.peak_formula(), {n: "batch" for n in self._meant_by("batch") if n not in ranges}
        if "batch" in ranges and alias:  # one size, though each input has a symbol of its own
            formula = formula.substituted({n: symbol("batch") for n in alias})
        ragged = [SequenceSymbols(*(alias.get(n, n) for n in sequences)) for sequences in sequences_of(self.live)]
        limits = {n: (lows[n], highs[n]) for n in ranges}
        for rows, _, longest in ragged:
            if rows in limits:
                limits.setdefault(longest, (0, limits[rows][1]))
        require_values(formula.symbols, limits)
        ragged = [sequences for sequences in ragged if limits.keys() >= {*sequences}]
        needed = formula.symbols.union(*ragged)
        out = ceiling(formula, {n: limit for n, limit in limits.items() if n in needed}, ragged)
        return out._replace(sizes={n: size for n, size in sorted(out.sizes.items()) if n in formula.symbols})

    def peak_op(self, **symbols: int) -> Op | None:
        """Return the op with the peak; None without ops."""
        ops = self.ops
        return ops[self.peak_position(**symbols)] if ops else None

    # --- the formula

    def peak_formula(self) -> Formula:
        """Return the peak as a formula: the largest of some sums of products of the program's symbols."""
        if self._formula is None:
            terms = Terms(s for r in _all_records(self.live) for s in _either(r) or (r.size,))
            base = numpy.zeros(len(terms), dtype=numpy.int64)
            for record in self.live.held:
                _add(base, terms, record.size, 1)
            rows = _rows(self.live, terms)
            self._formula = Formula.of_pieces(terms, rows + base if len(rows) else base.reshape(1, -1))
        return self._formula

    def peak_words(self, **symbols: int) -> str:
        """Return the formula if short, else its largest piece with these values. The parts left out follow."""
        formula, left_out = self.peak_formula(), unknown_words(self.unknown(**symbols))
        if len(formula) <= _FEW_PIECES:
            return f"{formula}{left_out}"
        return f"{formula.at(self._values(symbols))}, the largest of {len(formula)} such sums with these sizes{left_out}"

    # --- helpers

    def _meant_by(self, name: str) -> tuple[str, ...]:
        return self.leading if name == "batch" and name not in self.symbols else (name,)

    def _values(self, symbols: Mapping[str, Any], needed: Collection[str] | None = None) -> dict[str, int]:
        """Return the values of all needed symbols. Raise `MemoryPlanError` if one is missing, or is no size."""
        values: dict[str, int] = {}
        for name, value in symbols.items():
            if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= (size := index(value)) <= INT64_MAX:
                raise MemoryPlanError(f"a size is a whole number of at least 0; seen {name}={value!r}")
            values[name] = size
        if "batch" in values:
            for name in self._meant_by("batch"):
                values.setdefault(name, values["batch"])
        require_values(self.symbols if needed is None else needed, values)
        return values

    def _sizes(self, symbols: Mapping[str, int]) -> tuple[Any, list[LiveBuffer]]:
        records, values = self.live.records, self._values(symbols)
        known_sizes: dict[Size, int] = {}  # layers repeat, and so do their sizes
        sizes: list[int] = []
        for r in records:
            size = known_sizes.get(r.size) if r.inner is None and r.what != WORKSPACE else None
            if size is None:
                size = record_size(r, values)
                if r.inner is None and r.what != WORKSPACE:
                    known_sizes[r.size] = size
            sizes.append(size if r.counted <= r.last else 0)
        if sum(sizes) > INT64_MAX:
            raise MemoryPlanError("with these values the sizes of this program together are past a 64-bit integer")
        return numpy.array(sizes, dtype=numpy.int64), records

    def _alive_at_peak(self, symbols: Mapping[str, int]) -> list[tuple[LiveBuffer, int]]:
        """Return the records in the arena at the peak; for an op with a block, the records alive within it then."""
        values, position = self._values(symbols), self.peak_position(**symbols)
        return [part for r in self.live.records if r.counted <= position <= r.last for part in _parts(r, values)]


def _leading(live: Liveness) -> Iterator[str]:
    symbols: dict[str, None] = {}
    for record in live.records:
        spec = record.variable.spec if record.variable is not None and record.op is None else None
        if spec is not None and spec.dims:
            size = spec.dims[0] if spec.lod is None else spec.lod.counts[0]
            if is_symbol(size):
                symbols.update(dict.fromkeys(symbols_of(size)))
    yield from symbols


def _parts(record: LiveBuffer, values: Mapping[str, int]) -> list[tuple[LiveBuffer, int]]:
    """Return a record with its bytes; for an op with a block, the records of the worst position within."""
    if record.inner is None:
        return [(record, _workspace(record, values) or 0 if record.what == WORKSPACE else number(record.size, values))]
    inner = record.inner
    inner_parts = [_parts(r, values) for r in inner.records]  # each once: blocks lie in blocks
    change = [0] * (inner.positions + 1)
    for r, parts in zip(inner.records, inner_parts, strict=True):
        size = sum(size for _, size in parts)
        change[min(r.counted, inner.positions)] += size
        change[min(r.last + 1, inner.positions)] -= size
    alive, peak, worst = 0, 0, -1
    for position in range(inner.positions):
        alive += change[position]
        if alive > peak:
            peak, worst = alive, position
    return [part for r, parts in zip(inner.records, inner_parts, strict=True) if r.counted <= worst <= r.last for part in parts]


def record_size(record: LiveBuffer, values: Mapping[str, int]) -> int:
    """Return the bytes of a record; for an op with a block, at the worst position within."""
    return sum(size for _, size in _parts(record, values))


def _workspace(record: LiveBuffer, values: Mapping[str, int]) -> int | None:
    """Return the bytes of a kernel's workspace; None if its operator's rule fails for these sizes. 0 of another record."""
    if record.what != WORKSPACE:
        return 0
    try:
        return number(record.size, values)
    except (ShapeError, MemoryPlanError):
        return None


def _add(row: Any, terms: Terms, size: Size, sign: int) -> None:
    for column, coefficient in terms.of(size):
        row[column] += sign * coefficient


def _rows(live: Liveness, terms: Terms) -> Any:
    """Return the needs at each op, as coefficients of the terms; for an op with a block a row for each op inside of it."""
    change = numpy.zeros((live.positions + 1, len(terms)), dtype=numpy.int64)
    inner: dict[int, list[Liveness]] = {}
    ways: dict[int, list[tuple[Size, ...]]] = {}
    for r in live.records:
        if r.inner is not None:
            inner.setdefault(r.first, []).append(r.inner)
        elif (either := _either(r)) is not None:
            ways.setdefault(r.first, []).append(either)
        else:
            _add(change[r.counted], terms, r.size, 1)
            _add(change[r.last + 1], terms, r.size, -1)
    rows = numpy.cumsum(change[:-1], axis=0)
    row_groups: list[Any] = [rows]
    for position in dict.fromkeys((*inner, *ways)):
        variants = rows[position : position + 1]
        for either in ways.get(position, ()):
            added = numpy.zeros((len(either), len(terms)), dtype=numpy.int64)
            for row, size in zip(added, either, strict=True):
                _add(row, terms, size, 1)
            variants = (variants[:, None, :] + added[None, :, :]).reshape(-1, rows.shape[1])
        for block in inner.get(position, ()):
            inner_rows = _rows(block, terms)
            if len(inner_rows):
                variants = (variants[:, None, :] + inner_rows[None, :, :]).reshape(-1, rows.shape[1])
        row_groups.append(variants)
    return numpy.concatenate(row_groups)


def _either(record: LiveBuffer) -> tuple[Size, ...] | None:
    """Return the sizes in the maximum that is a kernel's workspace; None if it is no maximum."""
    atom = only_atom(record.size) if record.what == WORKSPACE else None
    return atom.args if atom is not None and atom.op == "max" else None


def _all_records(live: Liveness) -> list[LiveBuffer]:
    out: list[LiveBuffer] = list(live.held)
    for r in live.records:
        out.append(r)
        if r.inner is not None:
            out += _all_records(r.inner)
    return out


def _line(record: LiveBuffer) -> str:
    site = record.op.call_site if record.op is not None else record.variable.call_site if record.variable is not None else None
    return site.short() if site is not None else ""


def _spec(record: LiveBuffer) -> str:
    return record.variable.spec.text() if record.variable is not None else ""
