"""The notebook's view of a plan: the peak, its classes, the memory at every op; unfolded, the largest values then."""

from __future__ import annotations

from typing import Final

from foreshape.compiler.memory.byte_counts import byte_text
from foreshape.compiler.memory.draw import COLOURS
from foreshape.compiler.memory.figures import Figures
from foreshape.compiler.memory.records import unknown_words
from foreshape.core.pictures.chart import line_chart
from foreshape.core.pictures.markup import Markup, card, cut, folded, join, markup_table, tag
from foreshape.language.operator.registry import layer_name

_LISTED: Final = 20
_LONGEST: Final = 2000


def plan_html(plan: Figures) -> str:
    """Return the plan in HTML, with 1 for every symbol by default."""
    symbols = dict.fromkeys(sorted(plan.symbols), 1)
    sizes = ", ".join(f"{n} = 1" for n in symbols)
    peak = plan.peak(**symbols)
    breakdown = plan.breakdown(**symbols)
    op = plan.peak_op(**symbols)
    parts: list[object] = [_bar(breakdown, peak)]
    parts.append(tag("div", "peak = ", tag("code", cut(str(plan.peak_formula()), _LONGEST)), unknown_words(plan.unknown(**symbols))))
    line = plan.timeline(**symbols)
    if len(line):
        parts.append(line_chart(line.tolist(), "bytes of the arena at every op", "op", filled=True, words=byte_text))
    holders = plan.holders(**symbols)[:_LISTED]
    rows = [(cut(h.name, 120), h.spec, f"{h.size:,}", h.what, h.line) for h in holders]
    if rows:
        parts.append(
            folded(
                "the largest at the peak" + (f", op {plan.peak_position(**symbols)}, {layer_name(op.type)}" if op is not None else ""),
                markup_table(("name", "type and dims", "bytes", "for", "line"), rows, (2,)),
            )
        )
    return card(f"Plan: peak {byte_text(peak)}" + (f" for {cut(sizes, 200)}" if sizes else ""), *parts)


def _bar(breakdown: dict[str, int], peak: int) -> Markup:
    """Return a bar of the classes at the peak, with its legend."""
    categories = [(category, size) for category, size in breakdown.items() if size]
    pieces = [
        tag("span", style=f"display:inline-block;height:14px;width:{100 * size / max(peak, 1):.2f}%;background:{COLOURS[category]}")
        for category, size in categories
    ]
    marks = [
        tag(
            "span",
            tag("span", style=f"display:inline-block;width:10px;height:10px;margin-right:5px;background:{COLOURS[category]}"),
            f"{category} {byte_text(size)}",
            style="margin-right:16px;white-space:nowrap",
        )
        for category, size in categories
    ]
    return join([tag("div", *pieces, style="max-width:560px;white-space:nowrap;overflow:hidden;line-height:0"), tag("div", *marks)])
