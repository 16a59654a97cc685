"""Small charts of lines: a loss over its steps, the memory over the ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from foreshape.core.pictures.figures import plural
from foreshape.core.pictures.markup import Markup, tag
from foreshape.core.pictures.scene import number

_INK, _FILL = "#3b6ea8", "#c9d9ea"


def thinned(values: Sequence[float], limit: int) -> list[tuple[int, float, float]]:
    """Return at most so many columns of values: the place of the first, the least and the largest of each, without values that are no numbers."""
    count = len(values)
    step = max(1, math.ceil(count / limit))
    out: list[tuple[int, float, float]] = []
    for begin in range(0, count, step):
        good = [float(v) for v in values[begin : begin + step] if math.isfinite(v)]
        if good:
            out.append((begin, min(good), max(good)))
    return out


def drawn_points(values: Sequence[float | None], limit: int = 600) -> tuple[list[int], list[float | None]]:
    """Return the places and values of at most so many points of a line, as many as a drawing can show. Of a long line they are the least and the largest of
    each stretch, in their order.
    """
    count = len(values)
    if count <= limit:
        return list(range(count)), list(values)
    step = math.ceil(count / (limit // 2))
    places: list[int] = []
    for begin in range(0, count, step):
        good = [(v, index) for index in range(begin, min(begin + step, count)) if (v := values[index]) is not None and math.isfinite(v)]
        if good:
            places += sorted({min(good)[1], max(good)[1]})
    return places, [values[index] for index in places]


def line_chart(
    values: Sequence[float], title: str, label: str, width: int = 460, height: int = 120, filled: bool = False, words: Callable[[float], str] = "{:.4g}".format
) -> Markup:
    """Return a line over the places of its values, with the largest and the least (in ``words``) at the side. A fall to a fiftieth is drawn on a scale of
    logarithms.
    """
    columns = thinned(values, width // 2)
    if not columns:
        return Markup("")
    low, high = min(c[1] for c in columns), max(c[2] for c in columns)
    marks = (high, low)
    if 0 < low < high / 50 and not filled:
        columns = [(index, math.log(a), math.log(b)) for index, a, b in columns]
        low, high = math.log(low), math.log(high)
    low = min(low, 0.0) if filled else low
    span, last = (high - low) or 1.0, max(len(values) - 1, 1)
    left, top, bottom = 64, 8, height - 20

    def x(index: int) -> float:
        return left + index / last * (width - left - 8)

    def y(value: float) -> float:
        return bottom - (value - low) / span * (bottom - top)

    points = " ".join(
        f"{number(x(index))},{number(y(v))}" for index, least, high_value in columns for v in ((high_value, least) if least != high_value else (high_value,))
    )
    parts: list[Markup] = [tag("title", title), tag("rect", width=width, height=height, fill="#fff", rx=4)]
    if filled:
        parts.append(tag("polygon", points=f"{number(x(columns[0][0]))},{bottom} {points} {number(x(columns[-1][0]))},{bottom}", fill=_FILL))
    parts.append(tag("polyline", points=points, fill="none", stroke=_INK, stroke_width="1.3"))
    parts.append(tag("line", x1=left, y1=bottom, x2=width - 8, y2=bottom, stroke="#b9c3cd"))
    style = "font:11px system-ui,sans-serif"
    for value, place in zip((marks[0], low if filled else marks[1]), (top + 8, bottom), strict=True):
        parts.append(tag("text", words(value), x=left - 6, y=place, text_anchor="end", fill="#5b6672", style=style))
    parts.append(tag("text", plural(len(values), label), x=width - 8, y=height - 5, text_anchor="end", fill="#5b6672", style=style))
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", width=width, height=height, role="img",
               style="max-width:100%;height:auto;display:block")  # fmt: skip
