"""Drawings of predictions: a step's timeline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from foreshape.compiler.cost.events import Compute, Start, Wait
from foreshape.compiler.cost.measured import Measured, joined
from foreshape.compiler.cost.ranks_plan import RanksPlan
from foreshape.core.pictures.picture import require_image, save_figure
from foreshape.errors import needs
from foreshape.language.text.literal import escape

MOST_RANKS = 8
"""The most measured ranks in a drawing."""
COMPUTING, SENDING, WAITING = "#3a78b0", "#d9772b", "#c1121f"


def draw_timeline(plan: RanksPlan, path: str | os.PathLike[str], measured: Measured | None = None, **sizes: int) -> None:
    """Draw a rank's step: its computing and waiting, and each message on the link. The ranks of a measured step, if given, come below.

    Raises:
        FormatError: the file has no ending of an image, or times are unknown.
    """
    predicted = plan.timeline(**sizes)
    steps = measured.ranks[:MOST_RANKS] if measured is not None else ()
    figure, save = _figure(path, (11, 3.4 + 0.9 * len(steps)))
    axes = figure.subplots()
    clock, ended = 0.0, predicted.run.ended
    starts: list[float] = []
    waits: list[tuple[float, float]] = []
    for item in predicted.items:
        if isinstance(item, Compute):
            clock += item.seconds
        elif isinstance(item, Wait) and ended[item.message] > clock:
            waits.append((clock, ended[item.message]))
            clock = ended[item.message]
        elif isinstance(item, Start):
            starts.append(clock)
    count = 1 + len(steps)
    words = "" if measured is None else "planned: "
    names = [*_step(axes, 2 * (count - 1), words, predicted.seconds, waits, zip(predicted.run.began, ended, strict=True), starts, first=True)]
    for number, step in enumerate(steps):
        passing, begun = joined((m.started, m.done) for m in step.messages), [m.started for m in step.messages]
        names = [*_step(axes, 2 * (count - 2 - number), f"measured, rank {number}: ", step.seconds, step.waits, passing, begun), *names]
    axes.set_yticks([0.5 + row for row in range(2 * count)], names)
    axes.set_ylim(-0.1, 2 * count + 0.1)
    axes.set_xlabel("ms")
    axes.set_xlim(0, 1e3 * max([predicted.seconds, *(step.seconds for step in steps)]))
    title = f"{plan.name} on {plan.sizes.get('ranks', 1) if 'ranks' not in sizes else sizes['ranks']:,} ranks: {1e3 * predicted.seconds:.3g} ms"
    title += f", {100 * predicted.hidden:.0f} % of the communication is hidden"
    if measured is not None:
        title += f"; measured: {1e3 * measured.seconds:.3g} ms"
    figure.suptitle(escape(title), fontsize=10, x=0.01, ha="left", parse_math=False)
    axes.legend(fontsize=7, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    save()


def _step(
    axes: Any, row: int, words: str, seconds: float, waits: Iterable[tuple[float, float]], passing: Iterable[tuple[float, float]], starts: Sequence[float],
    first: bool = False,
) -> tuple[str, str]:  # fmt: skip
    """Draw one step in two rows from ``row`` on; their names."""
    waited = joined(waits)
    ends = [0.0, *(t for span in waited for t in span), seconds]
    computing = [(begin, end) for begin, end in zip(ends[::2], ends[1::2], strict=True) if end > begin]
    for rows, spans, colour, caption in ((1.1, computing, COMPUTING, "kernels"), (1.1, waited, WAITING, "waits"), (0.1, passing, SENDING, "messages")):
        bars = [(1e3 * begin, 1e3 * (end - begin)) for begin, end in spans]
        label = {"label": caption} if first else {}
        axes.broken_barh(bars, (row + rows, 0.8), facecolors=colour, edgecolors="white", linewidth=0.2, **label)
    axes.vlines([1e3 * t for t in starts], row + 0.1, row + 1.9, color="#56616e", linewidth=0.4, alpha=0.6)
    return f"{words}link", f"{words}rank"


def _figure(path: str | os.PathLike[str], size: tuple[float, float]) -> tuple[Any, Any]:
    require_image(path)
    with needs("a drawing"):
        from matplotlib import rc_context  # pyright: ignore[reportUnknownVariableType]
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    figure: Any = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)

    def save() -> None:
        with rc_context({"svg.hashsalt": "plan", "font.size": 9}):
            metadata = {"Date": None} if os.fspath(path).lower().endswith(".svg") else None
            save_figure(figure, path, dpi=150, metadata=metadata)

    return figure, save
