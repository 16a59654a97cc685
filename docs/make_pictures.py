"""Draws the pictures of docs/looking.md from its own code. With --check it only compares: python docs/make_pictures.py [--check]"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import foreshape as fs

DOCS = Path(__file__).parent
PICTURE = DOCS / "looking-network.svg"


def picture() -> str:
    """The drawing of the network that the first block of the page describes."""
    code = re.search(r"^```python\n(.*?)^```", (DOCS / "looking.md").read_text(encoding="utf-8"), re.M | re.S)
    assert code is not None
    names: dict[str, Any] = {}
    with fs.program_guard(fs.Program(), fs.Program()):
        exec(code[1].replace("print(", "str("), names)
        return names["program"].graph().svg + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        same = PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == picture()
        sys.exit(0 if same else f"{PICTURE.name} is not what docs/looking.md describes; run docs/make_pictures.py")
    PICTURE.write_text(picture(), encoding="utf-8")
