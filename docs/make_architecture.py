"""Draws docs/architecture.svg from the map of docs/architecture.md. With --check it only compares: python docs/make_architecture.py [--check]"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).parent
PICTURE, PAGE = DOCS / "architecture.svg", DOCS / "architecture.md"
FORMS = {"language": "Program", "transforms": "training Program", "compiler": "kernel calls, plan", "runtime": "step, results"}
"""The wings that a program goes through, and the form in which it leaves each."""
ABOVE, BELOW = ("The top", "apps", "interop"), ("machine", "core")
"""What is drawn over these wings, which it uses, and under them, which stand on it."""
WIDTH, COLUMN, GAP, LINE, PAD = 960, 216, 32, 26, 12
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2933}.room{font-family:ui-monospace,monospace;font-size:12px}.name{font-weight:600}
.group{fill:#f4f6f8;stroke:#c3ccd5}.chip{fill:#fff;stroke:#c3ccd5}.form{fill:#2563a8}.form-text{fill:#fff;font-weight:600}.way{stroke:#2563a8;stroke-width:2;fill:none}
@media(prefers-color-scheme:dark){text{fill:#dde3ea}.group{fill:#1d242c;stroke:#46525e}.chip{fill:#151a20;stroke:#46525e}}"""


def wings() -> dict[str, list[str]]:
    """Return the wings of the map with their rooms, in their order."""
    _, _, text = PAGE.read_text(encoding="utf-8").partition("## The map of the house\n")
    text = text.partition("\n## ")[0]
    rooms: dict[str, list[str]] = {}
    for part in text.split("\n### ")[1:]:
        title, _, body = part.partition("\n")
        rooms[title.strip("`/")] = [name for cell in re.findall(r"^\| (`[^|]*) \|", body, re.M) for name in re.findall(r"`([^`]+)`", cell)]
    return rooms


def chip(x: float, y: float, name: str, width: float) -> str:
    """Return one room: a box with its name."""
    return f'<rect class="chip" x="{x:g}" y="{y:g}" width="{width:g}" height="{LINE - 6}" rx="4"/><text class="room" x="{x + 8:g}" y="{y + 14:g}">{name}</text>'


def bands(titles: Sequence[str], rooms: Mapping[str, Sequence[str]], top: float) -> tuple[list[str], float]:
    """Return wings one below the other, each as a band of its rooms, and the place below the last."""
    out: list[str] = []
    for title in titles:
        x, y, chips = 150.0, top + 6, list[str]()
        for name in rooms[title]:
            width = 7.3 * len(name) + 16
            if x + width > WIDTH - PAD:
                x, y = 150.0, y + LINE
            chips.append(chip(x, y, name, width))
            x += width + 8
        out.append(f'<rect class="group" x="0" y="{top:g}" width="{WIDTH}" height="{y - top + LINE + 2:g}" rx="6"/>')
        out += [f'<text class="name" x="{PAD}" y="{top + 20:g}">{title}</text>', *chips]
        top = y + LINE + 2 + PAD
    return out, top


def picture() -> str:
    """Return the drawing: the way of a program through four wings, over them those that use them, and under them those that they stand on."""
    rooms = wings()
    out, top = bands(ABOVE, rooms, 0.0)
    height = max(len(rooms[title]) for title in FORMS) * LINE + 3 * PAD + 14
    for index, (title, form) in enumerate(FORMS.items()):
        x = index * (COLUMN + GAP)
        out.append(f'<rect class="form" x="{x:g}" y="{top:g}" width="{COLUMN}" height="30" rx="15"/>'
                   f'<text class="form-text" x="{x + COLUMN / 2:g}" y="{top + 20:g}" text-anchor="middle">{form}</text>')  # fmt: skip
        if index:
            out.append(f'<path class="way" marker-end="url(#tip)" d="M{x - GAP + 2:g} {top + 15:g}H{x - 8:g}"/>')
        out.append(f'<rect class="group" x="{x:g}" y="{top + 46:g}" width="{COLUMN}" height="{height}" rx="6"/>'
                   f'<text class="name" x="{x + PAD:g}" y="{top + PAD + 56:g}">{title}</text>')  # fmt: skip
        out += [chip(x + PAD, top + 2 * PAD + 58 + i * LINE, name, COLUMN - 2 * PAD) for i, name in enumerate(rooms[title])]
    below, bottom = bands(BELOW, rooms, top + 46 + height + PAD)
    tip = '<marker id="tip" markerWidth="8" markerHeight="8" refX="4" refY="3" orient="auto"><path class="form" d="M0 0L6 3L0 6z"/></marker>'
    title = "<title>The wings and rooms of the house, and the forms that a program takes on its way through them</title>"
    size = f'viewBox="0 0 {WIDTH} {bottom - PAD + 1:g}" width="{WIDTH}" height="{bottom - PAD + 1:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{title}<style>{STYLE}</style><defs>{tip}</defs>\n' + "\n".join([*out, *below]) + "\n</svg>\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        same = PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == picture()
        sys.exit(0 if same else f"{PICTURE.name} is not what docs/architecture.md says; run docs/make_architecture.py")
    PICTURE.write_text(picture(), encoding="utf-8")
