"""A page out of its template and its data: one file that runs no script but its own, and fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from typing import Any, Final

from foreshape.core.folders import cannot_be_written, make_folder

_SCRIPT: Final = r"(?s)<script>(.*?)</script>"


def assemble(template: str, data: Any) -> str:
    """Return the template with ``"DATA"`` as JSON, and with ``POLICY`` as the digests of its scripts.

    Names in the data come from files. They are in the page only as JSON without a character with a meaning in HTML.
    """
    scripts = re.findall(_SCRIPT, template)
    policy = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return template.replace("POLICY", policy, 1).replace('"DATA"', harmless_json(data), 1)


def write_page_file(path: str | os.PathLike[str], text: str) -> None:
    """Write a page or a drawing, in a folder made if missing. Raise `FormatError` if the file cannot be written, or not all of it."""
    try:
        make_folder(path)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        raise cannot_be_written(path, error) from None


def harmless_json(value: Any) -> str:
    """Return JSON in ASCII without a character with a meaning in HTML."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
