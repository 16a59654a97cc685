"""The results of a training run: the loss of every step, and a row of figures for every epoch."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from foreshape.core.hints import did_you_mean
from foreshape.core.pictures.chart import drawn_points, line_chart
from foreshape.core.pictures.figures import plural
from foreshape.core.pictures.markup import card, cut, ends, folded, markup_table
from foreshape.core.pictures.picture import require_image, save_figure
from foreshape.core.pictures.widths import right, wide
from foreshape.errors import ExecutionError, needs

RATE = "learning rate"
"""The name of its figure."""
LEFT_OUT = "updates left out"
"""The name of the figure that counts updates left out for gradients that were not finite."""
_FIRST, _LAST = 3, 12
"""So many epochs a prompt shows, of its beginning and its end."""
_LISTED = 200
"""So many epochs a notebook shows, half of them of the beginning."""
_NAMED, _NAME = 12, 40
"""So many figures a drawing names, and the characters of a name."""


@dataclass(slots=True, repr=False)
class History:
    """The losses and figures of a run; ``print`` writes the table of all epochs, a prompt and a notebook show a short one."""

    losses: list[float] = field(default_factory=list[float])
    """The loss of every step."""
    epochs: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """The figures of every finished epoch, means over its examples: ``loss`` and each metric.

    The validation data add the same as ``validation NAME``. ``learning rate`` is the last step's, left out if updates have several. A scaled loss
    adds ``updates left out``, the number of updates whose gradients were not finite. ``seconds`` is the time.
    """

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return len(self.losses)

    def column(self, name: str) -> list[float]:
        """Return one figure of every epoch. Raises `KeyError` for an unknown name."""
        if self.epochs and name not in (names := self._names()):
            raise KeyError(f"there is no figure {name!r}; there are {', '.join(map(repr, names))}{did_you_mean(name, names)}")
        return [row[name] for row in self.epochs]

    def __str__(self) -> str:
        return "\n".join(self._table(range(len(self.epochs))))

    def _names(self) -> list[str]:
        return list(dict.fromkeys(n for row in self.epochs for n in row))

    def _table(self, which: Sequence[int]) -> list[str]:
        """Return lines for these epochs, with a row of three dots for omitted ones."""
        names = self._names()
        lines = [["epoch", *names]]
        for epoch, previous in zip(which, [-1, *which], strict=False):
            if epoch != previous + 1:
                lines.append(["...", *("" for _ in names)])
            lines.append([str(epoch + 1), *(number(self.epochs[epoch].get(n)) for n in names)])
        widths = [max(wide(line[c]) for line in lines) for c in range(len(lines[0]))]
        return ["  ".join(right(text, w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines]

    def _heading(self) -> str:
        last = f", loss {number(self.losses[-1])} in the last" if self.losses else ""
        return f"History: {plural(self.steps, 'step')} in {plural(len(self.epochs), 'whole epoch')}{last}"

    def __repr__(self) -> str:
        count = len(self.epochs)
        which = range(count) if count <= _FIRST + _LAST else [*range(_FIRST), *range(count - _LAST, count)]
        return "\n".join(cut(line, 160) for line in [self._heading(), *(self._table(which) if count else [])])

    def _repr_html_(self) -> str:
        names, count = self._names(), len(self.epochs)
        left_out = ("…", *("" for _ in names))
        rows = [left_out if epoch is None else (str(epoch + 1), *(number(self.epochs[epoch].get(n)) for n in names)) for epoch in ends(count, _LISTED)]
        last = rows[-1:] if rows else []
        parts: list[object] = [line_chart(self.losses, "the loss of every step", "step")]
        if last:
            parts.append(markup_table(("epoch", *names), last, range(1 + len(names))))
        if len(rows) > 1:
            heading = "every epoch" if count <= _LISTED else f"the first and the last {_LISTED // 2} of {count:,} epochs"
            parts.append(folded(heading, markup_table(("epoch", *names), rows, range(1 + len(names)))))
        return card(self._heading(), *parts)

    def plot(self, path: Any = None) -> Any:
        """Draw the losses, and below them the epochs' other figures. Needs matplotlib.

        Args:
            path: an image file to write (PNG, SVG or PDF, by its ending). Without it a notebook shows the figure.

        Returns:
            matplotlib's figure.

        Raises:
            FormatError: another ending. ExecutionError: matplotlib is not installed.
        """
        if isinstance(path, (str, os.PathLike)):
            require_image(cast("str | os.PathLike[str]", path))
        with needs("a drawing"):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure

        figures = [n for n in self._names() if n not in ("seconds", RATE, LEFT_OUT) and not n.endswith("loss")]

        class Shown(Figure):
            """A figure shown by a notebook without an import of pyplot."""

            def _repr_png_(self) -> bytes:
                data = io.BytesIO()
                self.savefig(data, format="png", dpi=110)  # pyright: ignore[reportUnknownMemberType]
                return data.getvalue()

        figure: Any = Shown(figsize=(8, 6 if figures else 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes: Sequence[Any] = figure.subplots(2 if figures else 1, 1, squeeze=False)[:, 0]
        steps, values = drawn_points(self.losses)
        axes[0].plot([a + 1 for a in steps], values, linewidth=0.8, alpha=0.5, label="loss of each step")
        per_epoch = len(self.losses) / max(1, len(self.epochs))
        for name in ("loss", "validation loss"):
            if any(name in row for row in self.epochs):
                steps, values = drawn_points([row.get(name) for row in self.epochs])
                axes[0].plot([per_epoch * (e + 1) for e in steps], values, marker=".", label=name)
        axes[0].set(xlabel="step", ylabel="loss", yscale="log" if self.losses and min(self.losses) > 0 else "linear")
        for name in figures:
            steps, values = drawn_points([row.get(name) for row in self.epochs])
            axes[1].plot([e + 1 for e in steps], values, marker=".", label=cut(name, _NAME))
        if figures:
            axes[1].set(xlabel="epoch")
            axes[1].xaxis.get_major_locator().set_params(integer=True)
        for a in axes:
            a.grid(alpha=0.3)
            self._name_lines(a)
        if path is not None:
            save_figure(figure, path)
        return figure

    @staticmethod
    def _name_lines(axes: Any) -> None:
        """Draw a legend within some axes, without taking room from them however long the names are; of many lines only the first."""
        lines, names = axes.get_legend_handles_labels()
        if len(lines) > _NAMED:
            lines, names = [*lines[: _NAMED - 1], lines[_NAMED]], [*names[: _NAMED - 1], f"and {len(lines) - _NAMED + 1} more"]
        legend = axes.legend(lines, names, **({"fontsize": "small"} if len(lines) > _NAMED // 2 else {}))
        legend.set_in_layout(False)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a name may have a $


def check_row(row: dict[str, Any]) -> None:
    """Let a row written by callbacks hold Python's numbers alone. Raise `ExecutionError`: a figure of another type, by its name."""
    for name, value in row.items():
        try:
            row[name] = float(value)
        except (TypeError, ValueError):
            raise ExecutionError(f"the figure {name!r} of an epoch must be a number; a callback has written {value!r:.60}") from None


def number(value: float | None) -> str:
    """Format a figure with four significant digits."""
    return "" if value is None else f"{value:.4g}"
