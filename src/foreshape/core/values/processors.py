"""The number of processors for this process, by its affinity mask and the quotas of its control groups; and the time spent waiting for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
_TASKS = Path("/proc/self/task")


@cache
def processors() -> int:
    """Return the most processors at once, within the quota; asked once, so a process computes alike from first to last."""
    granted = quota()
    return allowed() if granted is None else max(1, min(allowed(), int(granted + 0.5)))


def allowed() -> int:
    """Return the number of processors in the affinity mask; all of them on systems without masks."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota(root: Path = _ROOT) -> float | None:
    """Return the processors' time granted by the strictest control group; None without a limit, or without one to read."""
    limits = [*_limits("", root), *_limits("cpu", root)]
    return min(limits, default=None)


def groups(controller: str, root: Path = _ROOT) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, its own first, then the mounted ones around it.

    Args:
        controller: of version 1, as "cpu"; "" for version 2, with one tree for all.
        root: the root of the system's tree.
    """
    path = _own_group(controller, root)
    if path is None:
        return
    for top, mounted in _mounts(controller, root):
        try:
            parts = PurePosixPath(path).relative_to(top).parts
        except ValueError:  # a container is told of its path outside, and sees its own group as the top
            parts = ()
        if ".." in parts:
            parts = ()
        for depth in range(len(parts), -1, -1):
            yield root.joinpath(mounted.lstrip("/"), *parts[:depth])
        return


def _lines(path: Path) -> list[str]:
    """Return a file's lines; none if it cannot be read: an unknown limit limits nothing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _own_group(controller: str, root: Path) -> str | None:
    for line in _lines(root / "proc/self/cgroup"):
        number, _, ending = line.partition(":")
        names, _, path = ending.partition(":")
        if (controller in names.split(",")) if controller else (number == "0" and not names):
            return path
    return None


def _mounts(controller: str, root: Path) -> Iterator[tuple[str, str]]:
    """Yield the group at the top of each mounted tree, and its mount point."""
    for line in _lines(root / "proc/self/mountinfo"):
        left_part, _, right_part = line.partition(" - ")
        place, system = left_part.split(), right_part.split()
        if len(place) < 5 or len(system) < 3:
            continue
        if (system[0] == "cgroup" and controller in system[2].split(",")) if controller else system[0] == "cgroup2":
            yield _plain(place[3]), _plain(place[4])


def _plain(escaped: str) -> str:
    """Return a path as mountinfo writes it, with spaces and the like in octal."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), escaped)


def _limits(controller: str, root: Path) -> Iterator[float]:
    for folder in groups(controller, root):
        if controller:
            words = [w.strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") for w in _lines(folder / name)[:1]]
        else:
            words = " ".join(_lines(folder / "cpu.max")[:1]).split()
        # no limit is "max", or -1
        if len(words) == 2 and all(re.fullmatch(r"[0-9]{1,19}", w) for w in words) and min(map(int, words)) > 0:
            yield int(words[0]) / int(words[1])


def without_processor() -> float | None:
    """Return the total seconds of this process' threads ready to run and waiting for a processor; None if unknown."""
    total, counted = 0, False
    try:
        names = os.listdir(_TASKS)
    except OSError:
        return None
    for name in names:
        try:
            with open(_TASKS / name / "schedstat", "rb") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError, ValueError):  # an ended thread, or a system without counts
            continue
        counted = True
    return total / 1e9 if counted else None
