"""What a training run gave: the loss of every step, and a row of figures for every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from foreshape.errors import needs

RATE = "learning rate"
"""The name of its figure."""


@dataclass(slots=True)
class History:
    """The losses and figures of a run; prints as a small table."""

    losses: list[float] = field(default_factory=list[float])
    """The loss of every step."""
    epochs: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """For every finished epoch: ``loss`` and each metric (means over its examples), the same of the validation data as
    ``validation NAME``, ``learning rate`` (of its last step; left out where updates have several), and ``seconds``."""

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return len(self.losses)

    def column(self, name: str) -> list[float]:
        """One figure of every epoch. Raises `KeyError` where there is none of this name."""
        return [row[name] for row in self.epochs]

    def __str__(self) -> str:
        names = list(dict.fromkeys(n for row in self.epochs for n in row))
        lines = [["epoch", *names], *([str(at), *(number(row.get(n)) for n in names)] for at, row in enumerate(self.epochs, 1))]
        widths = [max(len(line[c]) for line in lines) for c in range(len(lines[0]))]
        return "\n".join("  ".join(text.rjust(w) for text, w in zip(line, widths, strict=True)) for line in lines)

    def plot(self, path: Any) -> None:
        """Draw the losses, and below them the epochs' other figures, into an image file (PNG, SVG or PDF, by its ending)."""
        with needs("a drawing"):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure

        figures = [n for n in dict.fromkeys(n for row in self.epochs for n in row) if n not in ("seconds", RATE) and not n.endswith("loss")]
        figure: Any = Figure(figsize=(8, 6 if figures else 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes: Sequence[Any] = figure.subplots(2 if figures else 1, 1, squeeze=False)[:, 0]
        axes[0].plot(range(1, len(self.losses) + 1), self.losses, linewidth=0.8, alpha=0.5, label="loss of each step")
        per_epoch = len(self.losses) / max(1, len(self.epochs))
        for name in ("loss", "validation loss"):
            if any(name in row for row in self.epochs):
                axes[0].plot([per_epoch * (e + 1) for e in range(len(self.epochs))], [row.get(name) for row in self.epochs], marker=".", label=name)
        axes[0].set(xlabel="step", ylabel="loss", yscale="log" if self.losses and min(self.losses) > 0 else "linear")
        for name in figures:
            axes[1].plot(range(1, len(self.epochs) + 1), [row.get(name) for row in self.epochs], marker=".", label=name)
        if figures:
            axes[1].set(xlabel="epoch")
            axes[1].xaxis.get_major_locator().set_params(integer=True)
        for a in axes:
            a.grid(alpha=0.3)
            a.legend()
        figure.savefig(path)


def number(value: float | None) -> str:
    """A figure with four digits that count."""
    return "" if value is None else f"{value:.4g}"
