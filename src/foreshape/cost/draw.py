"""Drawings of what was predicted: a step's timeline, and a simulation over numbers of ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foreshape.cost.events import Compute, Start, Wait
from foreshape.cost.many_ranks import RanksPlan
from foreshape.cost.simulation import Point
from foreshape.errors import FormatError
from foreshape.memory.draw import ENDINGS
from foreshape.program.literal import escape

COMPUTING, SENDING, WAITING, STRAGGLING = "#3a78b0", "#d9772b", "#c1121f", "#7f7f9c"


def draw_simulation(results: Sequence[tuple[str, Sequence[Point]]], path: str | os.PathLike[str]) -> None:
    """Draw time per step, efficiency and memory against the number of ranks, a column for each network.

    Raises:
        FormatError: an ending that is no image's.
    """
    figure, save = _figure(path, (4.2 * max(len(results), 1) + 0.8, 8.2))
    rows = figure.subplots(3, len(results), squeeze=False, sharex=True)
    for column, (name, points) in enumerate(results):
        numbers = [p.ranks for p in points]
        time, efficiency, memory = (rows[k][column] for k in range(3))
        parts = [[1e3 * getattr(p, what) for p in points] for what in ("computing", "bandwidth", "latency", "waiting")]
        labels = ("computing", "waits for bytes", "waits for latency", "waits for stragglers")
        time.stackplot(numbers, parts, labels=labels, colors=(COMPUTING, SENDING, WAITING, STRAGGLING), alpha=0.85, linewidth=0)
        time.set_title(escape(name), fontsize=10, parse_math=False)
        efficiency.plot(numbers, [100 * p.efficiency for p in points], marker="o", markersize=3, color=COMPUTING)
        efficiency.set_ylim(0, 105)
        memory.plot(numbers, [p.peak / 2**30 for p in points], marker="o", markersize=3, color=COMPUTING)
        memory.set_ylim(0, 1.15 * max(p.peak for p in points) / 2**30)
        memory.set_xlabel("ranks")
        for axes, words in ((time, "ms per step"), (efficiency, "efficiency, %"), (memory, "GiB of a rank")):
            axes.set_xscale("log", base=2)
            axes.set_xticks(numbers, [f"{n:,}" for n in numbers], rotation=60, fontsize=7)
            axes.grid(alpha=0.25)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
            if column == 0:
                axes.set_ylabel(words)
        if column == 0:
            time.legend(fontsize=7, frameon=False, loc="upper left")
    save()


def draw_timeline(plan: RanksPlan, path: str | os.PathLike[str], **sizes: int) -> None:
    """Draw a rank's step: when it computes, when it waits, and when each message is on the link.

    Raises:
        FormatError: an ending that is no image's, or times are not known.
    """
    found = plan.timeline(**sizes)
    figure, save = _figure(path, (11, 3.4))
    axes = figure.subplots()
    now, ended = 0.0, found.run.ended
    computing: list[tuple[float, float]] = []
    waiting: list[tuple[float, float]] = []
    for item in found.items:
        if isinstance(item, Compute):
            computing.append((1e3 * now, 1e3 * item.seconds))
            now += item.seconds
        elif isinstance(item, Wait) and ended[item.message] > now:
            waiting.append((1e3 * now, 1e3 * (ended[item.message] - now)))
            now = ended[item.message]
        elif isinstance(item, Start):
            axes.axvline(1e3 * now, color="#56616e", linewidth=0.4, alpha=0.6)
    axes.broken_barh(computing, (1.1, 0.8), facecolors=COMPUTING, edgecolors="white", linewidth=0.2, label="kernels")
    axes.broken_barh(waiting, (1.1, 0.8), facecolors=WAITING, label="waits")
    sending = [(1e3 * b, 1e3 * (e - b)) for b, e in zip(found.run.began, found.run.ended, strict=True)]
    axes.broken_barh(sending, (0.1, 0.8), facecolors=SENDING, edgecolors="white", linewidth=0.4, label="messages")
    axes.set_yticks([0.5, 1.5], ["link", "rank"])
    axes.set_xlabel("ms")
    axes.set_xlim(0, 1e3 * found.seconds)
    words = f"{plan.name} on {plan.sizes.get('ranks', 1) if 'ranks' not in sizes else sizes['ranks']:,} ranks: {1e3 * found.seconds:.3g} ms"
    figure.suptitle(escape(f"{words}, {100 * found.hidden:.0f} % of the communication is hidden"), fontsize=10, x=0.01, ha="left", parse_math=False)
    axes.legend(fontsize=7, frameon=False, ncols=3, loc="upper right", bbox_to_anchor=(1, 1.16))
    save()


def _figure(path: str | os.PathLike[str], size: tuple[float, float]) -> tuple[Any, Any]:
    if Path(path).suffix.lower() not in ENDINGS:
        raise FormatError(f"a drawing is a file that ends in {', '.join(ENDINGS)}; seen {os.fspath(path)!r}")
    from matplotlib import rc_context  # pyright: ignore[reportUnknownVariableType]
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)

    def save() -> None:
        with rc_context({"svg.hashsalt": "plan", "font.size": 9}):
            made = {"Date": None} if os.fspath(path).lower().endswith(".svg") else None
            figure.savefig(os.fspath(path), dpi=150, metadata=made)

    return figure, save
