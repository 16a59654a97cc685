"""The plan as one HTML file: the arena as boxes with tooltips, the bytes needed at every op, the largest values at the peak."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foreshape.compiler.memory.draw import COLOURS
from foreshape.compiler.memory.figures import Figures
from foreshape.compiler.memory.records import CLASSES
from foreshape.core.pictures.page import assemble, write_page_file
from foreshape.language.operator.registry import layer_name
from foreshape.language.text.literal import escape

_TEMPLATE = Path(__file__).with_name("page.html")
_LONGEST = 300


def write_page(plan: Figures, path: str | os.PathLike[str], symbols: Mapping[str, int]) -> None:
    """Write the page of a plan. Raise `MemoryPlanError` if a symbol has no value, `FormatError` where it cannot be written."""
    write_page_file(path, page(plan, symbols))


def page(plan: Figures, symbols: Mapping[str, int]) -> str:
    """Return the page as text. Names from files are in it only as JSON without a character with a meaning in HTML, and are shown as text.

    The page's policy forbids other scripts and fetches nothing.
    """
    return assemble(_TEMPLATE.read_text(encoding="utf-8"), facts(plan, symbols))


def facts(plan: Figures, symbols: Mapping[str, int]) -> dict[str, Any]:
    """Return the data of the page's script: texts are kept once, in a list, and named by their place in it."""
    texts: dict[str, int] = {}

    def text(words: str) -> int:
        escaped = escape(words).replace("\n", " ")
        return texts.setdefault(escaped if len(escaped) <= _LONGEST else escaped[: _LONGEST - 1] + "…", len(texts))

    boxes = [
        [b.offset, b.size, b.first, b.last, CLASSES.index(b.what), text(b.name), text(b.spec), text(b.line), text(", ".join(b.names[1:4]))]
        for b in plan.buffers(**symbols)
        if b.size
    ]
    holders = [[text(h.name), h.size, CLASSES.index(h.what), text(h.spec), text(h.line)] for h in plan.holders(**symbols)[:200]]
    ops = [text(layer_name(op.type)) for op in plan.ops]
    lines = [text(op.call_site.short() if op.call_site is not None else "") for op in plan.ops]
    breakdown = plan.breakdown(**symbols)
    return {
        "symbols": {escape(n): v for n, v in symbols.items()},
        "peak": plan.peak(**symbols),
        "held": plan.held(**symbols),
        "formula": _short(plan.peak_words(**symbols)),
        "arena": max((b[0] + b[1] for b in boxes), default=0),
        "bound": plan.lower_bound(**symbols),
        "position": plan.peak_position(**symbols),
        "timeline": plan.timeline(**symbols).tolist(),
        "classes": [[c, COLOURS[c], breakdown[c]] for c in CLASSES],
        "ops": ops,
        "lines": lines,
        "boxes": boxes,
        "holders": holders,
        "texts": list(texts),
    }


def _short(text: str) -> str:
    escaped = escape(text)
    return escaped if len(escaped) <= 4000 else escaped[:3999] + "…"
