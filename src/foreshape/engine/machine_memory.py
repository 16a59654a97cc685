"""How much memory there is for this process: the machine's, or what its container, or a limit of its own, leaves of that."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from foreshape.values.processors import groups

SHARE = 0.9
"""The part of the memory that a run may take where nobody says otherwise."""


@cache
def default_limit() -> int | None:
    """That many bytes; None where the system does not tell how much memory it has. Asked once."""
    least = min(found_limits(), default=None)
    return None if least is None else int(least * SHARE)


def found_limits(root: Path = Path("/")) -> Iterator[int]:
    """The bytes that the machine has, and those that each control group around this process and its own limits grant.

    Args:
        root: where the system's tree begins.
    """
    if hasattr(os, "sysconf") and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        pages = os.sysconf("SC_PHYS_PAGES")
        if pages > 0:
            yield pages * os.sysconf("SC_PAGE_SIZE")
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for folder in groups(controller, root):
            try:
                word = (folder / name).read_text(encoding="utf-8", errors="replace").strip()
            except OSError:  # what cannot be read limits nothing
                continue
            if re.fullmatch(r"[0-9]{1,20}", word) and int(word) > 0:  # no limit is "max", or a number that no machine has
                yield int(word)
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(what)
        if soft not in (resource.RLIM_INFINITY, -1) and soft > 0:
            yield soft
