"""The memory available to this process: the machine's, less the limits of its container and its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from foreshape.core.values.processors import groups
from foreshape.machine.process.this_run import MemoryLimit

SHARE = 0.9
"""The default share of the memory for a run."""


class FoundLimit(NamedTuple):
    """A limit of the memory of this process: bytes, and its origin in words."""

    size: int
    words: str


@cache
def default_limit() -> MemoryLimit | None:
    """Return the default limit; None if the system does not tell its memory. Asked once."""
    least = min(found_limits(), default=None)
    return None if least is None else MemoryLimit(int(least.size * SHARE), f"{SHARE:.0%} of {least.words}, as no memory_limit is set")


def found_limits(root: Path = Path("/")) -> Iterator[FoundLimit]:
    """Yield the machine's memory, and the limits of each control group around this process and its own.

    Args:
        root: the root of the system's tree.
    """
    if hasattr(os, "sysconf") and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        pages = os.sysconf("SC_PHYS_PAGES")
        if pages > 0:
            yield FoundLimit(pages * os.sysconf("SC_PAGE_SIZE"), "the memory of this machine")
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for folder in groups(controller, root):
            try:
                word = (folder / name).read_text(encoding="utf-8", errors="replace").strip()
            except OSError:  # an unreadable file limits nothing
                continue
            if re.fullmatch(r"[0-9]{1,20}", word) and int(word) > 0:  # no limit is "max", or a number beyond any machine
                yield FoundLimit(int(word), f"the limit of its control group in {folder / name}")
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    for limit, option in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        soft, _ = resource.getrlimit(limit)
        if soft not in (resource.RLIM_INFINITY, -1) and soft > 0:
            yield FoundLimit(soft, f"the limit of this process (ulimit {option})")
