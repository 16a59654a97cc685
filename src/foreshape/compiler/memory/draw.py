"""A drawing of the arena: offset against op, every buffer a box coloured by its class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from foreshape.compiler.memory.byte_counts import byte_text
from foreshape.compiler.memory.figures import Buffer, Figures
from foreshape.compiler.memory.records import CLASSES, GRADIENTS, INPUTS, KEPT, PARAMETERS, STATE, TEMPORARIES, WORKSPACE, unknown_words
from foreshape.core.pictures.picture import require_image, save_figure
from foreshape.errors import needs
from foreshape.language.operator.registry import layer_name
from foreshape.language.text.literal import escape

COLOURS: dict[str, str] = {
    PARAMETERS: "#3b4252",
    STATE: "#7f7f9c",
    INPUTS: "#a3adb8",
    GRADIENTS: "#d9772b",
    KEPT: "#3a78b0",
    TEMPORARIES: "#8fbf8f",
    WORKSPACE: "#c25b8c",
}
"""The colours of the classes, of different lightness for the colour-blind."""
_LABELS = 40


def draw(plan: Figures, path: str | os.PathLike[str], symbols: Mapping[str, int]) -> None:
    """Draw a plan into an image file.

    Raises:
        FormatError: the file has no ending of an image. MemoryPlanError: a symbol has no value.
    """
    require_image(path)
    buffers, line, held_bytes = plan.buffers(**symbols), plan.timeline(**symbols), plan.held(**symbols)
    position, op = plan.peak_position(**symbols), plan.peak_op(**symbols)

    with needs("a drawing"):
        from matplotlib import rc_context  # pyright: ignore[reportUnknownVariableType]
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "plan", "font.size": 9}):
        figure = Figure(figsize=(11, 6.2), layout="constrained")
        FigureCanvasAgg(figure)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3.4))
        height = max((b.offset + b.size for b in buffers), default=0)
        scale, unit = _scale(max(height, 1))
        steps = max(len(line), 1)
        _boxes(below, buffers, scale, steps, height)
        above.stairs(line / scale, range(len(line) + 1), fill=True, color="#c9d3de", edgecolor="#56616e", linewidth=0.8)
        for axes, top in ((above, float(line.max(initial=0)) / scale), (below, height / scale)):
            axes.axvspan(position, position + 1, color="#c1121f", alpha=0.12, linewidth=0)
            axes.axvline(position + 0.5, color="#c1121f", linewidth=1)
            axes.set_xlim(0, steps)
            axes.set_ylim(0, max(top * 1.06, 1e-9))
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        above.set_ylim(0, max(float(line.max(initial=0)) / scale * 1.35, 1e-9))
        above.set_ylabel(f"needed, {unit}")
        below.set_ylabel(f"offset in the arena, {unit}")
        below.set_xlabel("op")
        words = f"peak of the arena: {byte_text(int(line.max(initial=0)))}" + (f", at op {position}, {layer_name(op.type)}" if op is not None else "")
        left = position < steps / 2
        above.annotate(escape(words), (position + 0.5, 1), xycoords=("data", "axes fraction"), xytext=(5 if left else -5, -2), textcoords="offset points",
                       ha="left" if left else "right", va="top", color="#8f0d17", parse_math=False)  # fmt: skip
        _title(figure, plan, symbols, height, held_bytes)
        _legend(figure, plan.breakdown(**symbols))
        metadata = {"Date": None} if os.fspath(path).lower().endswith(".svg") else None
        save_figure(figure, path, dpi=150, metadata=metadata)


def _scale(height: int) -> tuple[float, str]:
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if height >= 2 * unit:
            return float(unit), name
    return 1.0, "bytes"


def _boxes(axes: Any, buffers: Sequence[Buffer], scale: float, steps: int, height: int) -> None:
    from matplotlib.collections import PolyCollection

    visible_buffers = [b for b in buffers if b.size]
    corners = [_corners(b, scale) for b in visible_buffers]
    thin = 0.6 if len(visible_buffers) < 400 else 0.25 if len(visible_buffers) < 3000 else 0.0
    axes.add_collection(PolyCollection(corners, facecolors=[COLOURS[b.what] for b in visible_buffers], edgecolors="white", linewidths=thin))
    for b in sorted(visible_buffers, key=lambda b: -b.size * (b.last + 1 - b.first))[:_LABELS]:
        room = (b.last + 1 - b.first) / steps * 125  # characters in a box, roughly
        name = escape(b.name)
        if b.size / max(height, 1) > 0.028 and room >= len(name):  # whole names alone: a page has those that do not fit
            middle, size = ((b.first + b.last + 1) / 2, (b.offset + b.size / 2) / scale), min(7.0, 200 * b.size / max(height, 1))
            colour = "white" if b.what in (KEPT, PARAMETERS, STATE) else "#1c2127"
            axes.text(*middle, name, ha="center", va="center", fontsize=size, clip_on=True, zorder=5, color=colour, parse_math=False)


def _corners(b: Buffer, scale: float) -> list[tuple[float, float]]:
    left, right, low, high = b.first, b.last + 1, b.offset / scale, (b.offset + b.size) / scale
    return [(left, low), (right, low), (right, high), (left, high)]


def _title(figure: Any, plan: Figures, symbols: Mapping[str, int], height: int, held_bytes: int) -> None:
    sizes = ", ".join(f"{n} = {v:,}" for n, v in symbols.items())
    words = f"peak {byte_text(plan.peak(**symbols))}" + (f" for {sizes}" if sizes else "") + unknown_words(plan.unknown(**symbols))
    second_line = f"arena of {byte_text(height)}, and {byte_text(held_bytes)} of parameters and state beside it, kept from run to run"
    figure.suptitle(escape(f"{words}\n{second_line}"), fontsize=10, x=0.01, ha="left", parse_math=False)


def _legend(figure: Any, breakdown: Mapping[str, int]) -> None:
    from matplotlib.patches import Patch

    entries = [Patch(facecolor=COLOURS[c], label=f"{c}  {byte_text(breakdown[c])}") for c in CLASSES if breakdown[c]]
    if entries:
        figure.legend(handles=entries, loc="outside lower center", ncols=min(len(entries), 5), frameon=False, fontsize=8, title="at the peak", title_fontsize=8)
