"""The text of a profile, at a prompt and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from foreshape.core.pictures.figures import plural, share, short_count
from foreshape.core.pictures.markup import card, cut, escape, folded, markup_table
from foreshape.core.pictures.widths import fit, left, right, wide

_SHOWN, _KINDS, _LISTED = 15, 6, 500
_HEADS: Final = ("ms", "share", "calls", "what", "result", "Gmac/s", "of best", "kernel")
_RIGHT: Final = (0, 1, 2, 5, 6)
_ROOM: Final = ((110, range(len(_HEADS))), (64, (0, 1, 3, 4)), (0, (0, 1, 3)))
"""The columns, by the least characters of a line."""
_NUMBERS: Final = frozenset(_HEADS[c] for c in _RIGHT)
_WIDTH: Final = 160
_LEAST: Final = 12
"""The characters left of a text, where the lines are too long."""
_RATED: Final = 0.02
"""The least share of the time for a comparison with the best rate: shorter calls hardly compute."""


@dataclass(frozen=True, slots=True)
class ProfiledCall:
    """One kernel call of a step, or a kernel of a call of several.

    Attributes:
        what: the types of the ops that it computes.
        result: the first variable that it makes, and ``dims``, its dims with this run's sizes.
        seconds: the median over the runs of its time in a run.
        calls: the number of calls in the last run: a block of a loop may call it often.
        work: multiply-adds in one call; None unless it is a product.
        kernel: the name of oneDNN's kernel, if known.
        line: the user's line of its op.
    """

    what: str
    result: str
    dims: str
    seconds: float
    calls: int
    work: int | None
    kernel: str
    line: str

    @property
    def rate(self) -> float | None:
        """Return multiply-adds in a second."""
        return self.work * self.calls / self.seconds if self.work and self.seconds else None


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """The times of the kernel calls of a step.

    Attributes:
        calls: in the order of the step; the calls of blocks behind it.
        step: the median of the seconds of a step without clocks.
        runs: the number of measured runs.
        sizes: the values of the program's symbols.
        threads: the threads of the step; a small one has one.
        best: multiply-adds per second of a large product of matrices on as many threads.
    """

    calls: list[ProfiledCall]
    step: float
    runs: int
    sizes: dict[str, int]
    threads: int
    best: float

    @property
    def seconds(self) -> float:
        """Return the time of all calls together."""
        return sum(c.seconds for c in self.calls)

    def slowest(self) -> list[ProfiledCall]:
        """Return the calls, the longest first."""
        return sorted(self.calls, key=lambda c: -c.seconds)

    def by_type(self) -> list[tuple[str, float, int]]:
        """Return the types of the ops, the seconds of all their calls, and the number of these, the longest first."""
        totals: dict[str, tuple[float, int]] = {}
        for c in self.calls:
            seconds, count = totals.get(c.what, (0.0, 0))
            totals[c.what] = seconds + c.seconds, count + 1
        return sorted(((kind, *entry) for kind, entry in totals.items()), key=lambda row: -row[1])

    def lost(self, call: ProfiledCall) -> float:
        """Return the seconds of a call beyond its multiply-adds at the best rate; 0 without any."""
        return max(0.0, call.seconds - call.work * call.calls / self.best) if call.work else 0.0

    # --- text

    def _heading(self) -> list[str]:
        sizes = ", ".join(f"{escape(n)} = {v:,}" for n, v in sorted(self.sizes.items()))
        products = [c for c in self.calls if c.work]
        first = f"Profile: {_ms(self.step)} ms a step, {plural(self.runs, 'run')}, {plural(self.threads, 'thread')}" + (f", {sizes}" if sizes else "")
        lines = [first, f"{plural(len(self.calls), 'call')} in {_ms(self.seconds)} ms, clocks included"]
        if products:
            seconds, lost = sum(c.seconds for c in products), sum(map(self.lost, products))
            lines.append(
                f"products take {_ms(seconds)} ms; at the rate of a large one, {short_count(self.best)} multiply-adds a second, "
                f"they would take {_ms(seconds - lost)} ms"
            )
        return lines

    def _cells(self, c: ProfiledCall) -> tuple[str, ...]:
        rate = c.rate
        rated = rate is not None and c.seconds >= _RATED * self.seconds
        gives = f"{escape(c.result)} {c.dims}".strip()
        return (_ms(c.seconds), share(c.seconds, self.seconds), f"{c.calls:,}" if c.calls != 1 else "", c.what, gives,
                f"{rate / 1e9:.3g}" if rate else "", share(rate, self.best) if rated else "", c.kernel)  # fmt: skip

    def text(self, width: int = _WIDTH, most: int | None = None) -> str:
        """Return the table of the longest calls.

        Args:
            width: the most characters of a line; narrow lines have the most important columns alone.
            most: the most calls shown; None for all.
        """
        calls = self.slowest()[:most]
        remaining = self.slowest()[len(calls) :]
        which = next(columns for least, columns in _ROOM if width >= least)
        table = _table([_HEADS[c] for c in which], [[cells[c] for c in which] for cells in map(self._cells, calls)], width)
        head = [part for line in self._heading() for part in wrap(line, width, subsequent_indent="    ")]
        if remaining:
            table.append(f"and {plural(len(remaining), 'more call')}: {_ms(sum(c.seconds for c in remaining))} ms")
        rows = [(_ms(s), share(s, self.seconds), f"{n:,}", kind) for kind, s, n in self.by_type()[:_KINDS]]
        kinds = _table(("ms", "share", "calls", "by what is computed"), rows, width)
        return "\n".join([*head, "", *(fit(line, width) for line in [*table, "", *kinds])])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text(most=_SHOWN)

    def _repr_html_(self) -> str:
        heads = self._heading()
        calls, kinds = self.slowest(), [(_ms(s), share(s, self.seconds), f"{n:,}", kind) for kind, s, n in self.by_type()]
        table = markup_table(_HEADS, [self._cells(c) for c in calls[:_SHOWN]], _RIGHT)
        by_type = markup_table(("ms", "share", "calls", "what"), kinds[:_LISTED], (0, 1, 2))
        parts: list[object] = [" · ".join(heads[1:]), table, folded("by what is computed", by_type)]
        if len(calls) > _SHOWN:
            title = "all calls" if len(calls) <= _LISTED else f"the {_LISTED} longest of {len(calls):,} calls"
            parts.append(folded(title, markup_table((*_HEADS, "line"), [(*self._cells(c), c.line) for c in calls[:_LISTED]], _RIGHT)))
        return card(cut(heads[0], _WIDTH), *parts)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}" if seconds < 0.01 else f"{1e3 * seconds:,.1f}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """Return the lines of a table; texts are cut to its ``width``."""
    lines = [heads, *rows]
    widths = [max(wide(line[c]) for line in lines) for c in range(len(heads))]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    words = [c for c, head in enumerate(heads) if head not in _NUMBERS]
    for c in sorted(words, key=lambda c: -widths[c]):
        if excess > 0:
            reduced = min(widths[c], max(_LEAST, widths[c] - excess))
            excess, widths[c] = excess - (widths[c] - reduced), reduced

    def cell(c: int, text: str) -> str:
        return left(fit(text, widths[c]), widths[c]) if c in words else right(text, widths[c])

    return ["  ".join(cell(c, text) for c, text in enumerate(line)).rstrip() for line in lines]
