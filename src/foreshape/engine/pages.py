"""Keeping the allocator's pages: memory that is given back to the system and taken again costs a page fault per 4 KiB.

glibc returns large blocks to the system at once (``M_MMAP_THRESHOLD``) and trims the top of its heap (``M_TRIM_THRESHOLD``). A training
step frees and takes the same blocks again and again, so both are raised, once per process.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_done = False


def keep_pages() -> bool:
    """Raise glibc's thresholds, on Linux; returns whether they are. ``FORESHAPE_KEEP_PAGES=0`` turns it off."""
    global _done
    if _done:
        return True
    if os.environ.get("FORESHAPE_KEEP_PAGES", "1") == "0" or sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # older glibc takes no more than half a heap, 32 MiB
    mapped = bool(mallopt(_M_MMAP_THRESHOLD, 1 << 30)) or bool(mallopt(_M_MMAP_THRESHOLD, 32 << 20))
    _done = mapped and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
    return _done
