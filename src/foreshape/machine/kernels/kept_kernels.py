"""The number of oneDNN's kernels kept for the sizes met so far: bounded over all weights of the process, and given up where memory is short."""

from __future__ import annotations

import threading
from collections.abc import MutableMapping
from itertools import islice
from typing import Any, Protocol
from weakref import WeakKeyDictionary

MOST = 96
"""The most sizes with kept kernels: a server's batches of up to 64 examples come again and again, and so do the parts of ragged rows."""
KERNELS = 2048
"""The most kernels kept in a process, of some 40 to 200 KB each; with many weights there are fewer sizes of each, but for ``LEAST``."""
LEAST = 8


class KernelOwner(Protocol):
    """An owner of kernels for many sizes."""

    def forget(self, share: float) -> None:
        """Drop this share of its kernels, the oldest first; calls under way keep theirs."""
        ...


_counts: WeakKeyDictionary[KernelOwner, int] = WeakKeyDictionary()
_counting = threading.Lock()


def count_kernels(owner: KernelOwner, kernels: int) -> None:
    """Note the kernels that an owner has for each size, as long as it lives."""
    with _counting:
        _counts[owner] = kernels


def kernels_of_a_size() -> int:
    """Return the number of kernels for one new size of everything in this process."""
    with _counting:
        return sum(_counts.values())


def sizes_kept() -> int:
    """Return the number of sizes with kept kernels for each owner now."""
    return max(LEAST, min(MOST, KERNELS // max(kernels_of_a_size(), 1)))


def forget_kernels(share: float = 1.0) -> None:
    """Drop this share of all kernels of the process, the oldest first: they are made again where their sizes come again."""
    with _counting:
        owners = list(_counts)
    for owner in owners:
        owner.forget(share)


def drop_oldest(kernels: MutableMapping[Any, Any], share: float) -> None:
    """Drop this share of the entries of a table, the oldest first."""
    for key in list(islice(kernels, round(share * len(kernels)))):
        del kernels[key]
