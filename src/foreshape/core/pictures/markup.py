"""HTML and SVG out of parts: text is escaped, and made visible, everywhere; only tags made here are markup."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

_VOID: Final = frozenset({"br", "hr", "meta"})
_GEOMETRY: Final = frozenset({"d", "points"})
"""The attributes that are places of a drawing: never cut, since half a line is none."""
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
"""As `html.escape`, whose module reads the names of all characters first."""
LONGEST: Final = 2000
"""The most characters of one text in a page: names come from files, at any length."""


def escape(text: str) -> str:
    """Return ``text`` for a terminal: unprintable characters, such as control characters, become escapes; line ends stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def cut(text: str, limit: int) -> str:
    """Return ``text`` in at most so many characters; of a longer one both ends, to tell names apart."""
    if len(text) <= limit:
        return text
    head = max(0, (limit - 1) * 2 // 5)
    return text[:head] + "…" + text[len(text) - (limit - 1 - head) :]


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


def _full_text(value: object) -> Markup:
    """Return a value as text of any length."""
    return Markup(escape(str(value)).translate(_ESCAPES))


def words(value: object) -> Markup:
    """Return any value as the text of an element."""
    return value if isinstance(value, Markup) else _full_text(cut(str(value), LONGEST))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return one element. A child other than `Markup` is text. ``class_`` is written ``class``, ``stroke_width`` ``stroke-width``; None is left out. Texts
    are cut to `LONGEST`; places of a drawing (``points``, ``d``) are not.
    """
    settings = "".join(f' {n.rstrip("_").replace("_", "-")}="{_full_text(v) if n in _GEOMETRY else words(v)}"' for n, v in attributes.items() if v is not None)
    if name in _VOID:
        return Markup(f"<{name}{settings}>")
    return Markup(f"<{name}{settings}>{''.join(map(words, children))}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Return the parts joined."""
    return Markup("".join(map(words, parts)))


_CELL: Final = "padding:2px 12px 2px 0;text-align:{};vertical-align:top;border:0;background:none;white-space:{}"

_TABLE: Final = "border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums"


def markup_table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()) -> Markup:
    """Return a table for any notebook; ``right``: the columns of numbers."""
    numbers = frozenset(right)

    def line(cells: Sequence[object], kind: str) -> Markup:
        return tag(
            "tr",
            *(
                tag(kind, c, style=_CELL.format("right" if column in numbers else "left", "nowrap" if column in numbers else "normal"))
                for column, c in enumerate(cells)
            ),
        )

    return tag("table", line(columns, "th"), *(line(cells, "td") for cells in rows), style=_TABLE)


def ends(count: int, limit: int) -> list[int | None]:
    """Return the places of ``limit`` of so many things: the first and the last, and None for the ones between."""
    return [*range(count)] if count <= limit else [*range(limit // 2), None, *range(count - limit // 2, count)]


def folded(heading: object, *children: object, open: bool = False) -> Markup:
    """Return content that unfolds by its heading."""
    inside = tag("div", *children, style="padding:4px 0 8px 16px")
    summary = tag("summary", heading, style="cursor:pointer;display:list-item")
    return tag("details", summary, inside, open="" if open else None)


def preformatted(text: str) -> Markup:
    """Return lines as they are."""
    lines = "\n".join(cut(line, LONGEST) for line in escape(text).split("\n"))
    return tag("pre", Markup(lines.translate(_ESCAPES)), style="font-size:12px;line-height:1.35;margin:4px 0;overflow-x:auto")


def card(heading: object, *children: object) -> Markup:
    """Return a notebook's view of one object: a line in bold, and its content."""
    style = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.5;max-width:100%;overflow-x:auto"
    return tag("div", tag("div", heading, style="font-weight:600"), *children, style=style)
