"""The number of oneDNN's kernels kept for the sizes met so far: bounded over all weights of the process."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

MOST = 96
"""The most sizes with kept kernels: a server's batches of up to 64 examples come again and again, and so do the parts of ragged rows."""
KERNELS = 2048
"""The most kernels kept in a process, of some 40 to 200 KB each; with many weights there are fewer sizes of each, but for ``LEAST``."""
LEAST = 8
_counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_counting = threading.Lock()


def count_kernels(owner: Any, kernels: int) -> None:
    """Note the kernels that an owner has for each size, as long as it lives."""
    with _counting:
        _counts[owner] = kernels


def sizes_kept() -> int:
    """Return the number of sizes with kept kernels for each owner now."""
    with _counting:
        return max(LEAST, min(MOST, KERNELS // max(sum(_counts.values()), 1)))
