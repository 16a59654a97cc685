"""The user's own line: the first frame outside of this package."""

from __future__ import annotations

import os
import sys
from typing import TypeAlias

from foreshape.infer.messages import CallSite

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
Site: TypeAlias = "tuple[str, int, str] | None"
"""A call site as it is kept: file, line, function."""


def here() -> Site:
    """The innermost frame that is not this package's own."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return (code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


def call_site(site: Site) -> CallSite | None:
    """The same as an object with words."""
    return None if site is None else CallSite(*site)
