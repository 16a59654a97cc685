"""`Scene`: boxes within boxes and the arrows between them, and how they become an SVG."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foreshape.core.data_class import data_class, field
from foreshape.core.pictures.layered import Segment
from foreshape.core.pictures.markup import Markup, escape, tag
from foreshape.core.pictures.widths import wide

LINE, MARGIN = 15.0, 12.0
_WIDE: Final = 6.7
"""The rough width of a character in the font of the drawing."""
_LONGEST: Final = 44

STYLE: Final = """
.fs-graph{--paper:#fff;--ink:#1c2127;--soft:#5b6672;--line:#8a96a3;--frame:#b9c3cd;--group:#f5f7f9;--far:#3b6ea8;
--image:#dbe9f8;--product:#fbe6cc;--norm:#e6e0f5;--activation:#e3f2dd;--sequence:#d6f0ee;--table:#f7e0ea;--loss:#f9d9d6;--shape:#eceff2;
--control:#f4edc7;--other:#eceff2}
@media (prefers-color-scheme:dark){.fs-graph{--paper:#15191d;--ink:#e6eaee;--soft:#bcc6d0;--line:#6f7c89;--frame:#46525e;--group:#1c2228;
--far:#7fb2ea;--image:#23405e;--product:#5a4020;--norm:#40386a;--activation:#2c4a26;--sequence:#1d4a48;--table:#572c40;--loss:#5e2b28;
--shape:#2c343c;--control:#4a4520;--other:#2c343c}}
.fs-graph{font:12px system-ui,-apple-system,"DejaVu Sans",sans-serif}
.fs-graph .paper{fill:var(--paper)}.fs-graph text{fill:var(--ink)}.fs-graph .soft{fill:var(--soft);font-size:11px}
.fs-graph .times{font-weight:600}.fs-graph .group{fill:var(--group);stroke:var(--frame)}.fs-graph .inner .inner>.group{fill:var(--paper)}
.fs-graph .inner .inner .inner>.group{fill:var(--group)}
.fs-graph .arrow{fill:none;stroke:var(--line);stroke-width:1.2}.fs-graph .far{stroke:var(--far);stroke-width:1.4}
.fs-graph .head{fill:var(--line)}.fs-graph .end{fill:none;stroke:var(--frame)}.fs-graph .box{stroke:var(--frame)}
"""


@data_class()
class Box:
    """A box with lines of text, or around other boxes. ``x`` and ``y`` are its corner's, within the box around it."""

    lines: list[str]
    family: str = "other"
    times: int = 1
    key: int = -1
    """The key for the code that draws it."""
    many: str = ""
    """``times`` in words: ``x 12``."""
    inside: list[Box] = field(default_factory=list["Box"])
    segments: list[Segment] = field(default_factory=list[Segment])
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    round: bool = False

    def measure(self) -> None:
        """Size it for its text."""
        self.lines = [shown(line) for line in self.lines]
        widest = max((wide(line) for line in self.lines), default=0)
        self.width = max(46.0, widest * _WIDE + 18) + (3.0 if self.times > 1 else 0.0)
        self.height = len(self.lines) * LINE + 9


def shown(text: str, limit: int = _LONGEST) -> str:
    """Return a text as a line of a box."""
    line = escape(text).replace("\n", " ")
    return line if len(line) <= limit else line[: limit // 2 - 1] + "…" + line[-(limit - limit // 2) :]


def number(value: float) -> str:
    """Return a coordinate."""
    return f"{value:.1f}".removesuffix(".0")


def path_of(s: Segment) -> str:
    """Return the line of a piece of an arrow."""
    middle = (s.bend + s.land) / 2
    n = number
    start = f"M{n(s.x)} {n(s.y)}V{n(s.bend)}" if s.bend > s.y else f"M{n(s.x)} {n(s.y)}"
    curve = f"C{n(s.x)} {n(middle)} {n(s.to_x)} {n(middle)} {n(s.to_x)} {n(s.land)}" if abs(s.to_x - s.x) > 0.05 else f"V{n(s.land)}"
    return start + curve + (f"V{n(s.to_y)}" if s.to_y > s.land else "")


def svg_of(root: Box, title: str) -> str:
    """Return the drawing of the inside of a box, in colours for light and dark."""
    width, height = number(root.width), number(root.height)
    parts = [tag("title", title), tag("style", Markup(STYLE)), tag("rect", class_="paper", width=width, height=height), *_inside(root)]
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", width=width, height=height,
               class_="fs-graph", role="img", style="max-width:100%;height:auto")  # fmt: skip


def _inside(box: Box) -> Iterator[Markup]:
    for s in box.segments:
        yield tag("path", class_="arrow far" if s.far else "arrow", d=path_of(s))
    for s in box.segments:
        if s.arrow:
            yield tag("path", class_="head", d=f"M{number(s.to_x)} {number(s.to_y)}l-3.5 -6h7z")
    for member in box.inside:
        yield _drawn(member)


def _drawn(box: Box) -> Markup:
    place = f"translate({number(box.x)} {number(box.y)})"
    width, height = box.width, box.height
    corner = "11" if box.round else "4"
    parts: list[Markup] = []
    if box.times > 1:  # a second sheet behind
        parts.append(tag("rect", class_="end", x="3.5", y="3.5", width=number(width - 3), height=number(height), rx=corner))
        width -= 3
    if box.inside:
        parts.append(tag("rect", class_="group", width=number(width), height=number(height), rx="6"))
        parts += [_line(line, 9, 16 + LINE * index, "soft" if index else None) for index, line in enumerate(box.lines)]
        if box.times > 1:
            parts.append(_line(box.many, width - 8, 16, "times", "end"))
        return tag("g", *parts, *_inside(box), class_="inner", transform=place)
    fill = None if box.round else f"fill:var(--{box.family})"
    parts.append(tag("rect", class_="end" if box.round else "box", width=number(width), height=number(height), rx=corner, style=fill))
    for index, line in enumerate(box.lines):
        parts.append(_line(line, width / 2, 17 + LINE * index, "soft" if index else None, "middle"))
    return tag("g", *parts, transform=place)


def _line(text: str, x: float, y: float, kind: str | None = None, anchor: str | None = None) -> Markup:
    return tag("text", text, x=number(x), y=number(y), class_=kind, text_anchor=anchor)
