"""How many processors this process may use: by its affinity mask, by the quotas of the control groups that it
is in; and how long it waited for them."""

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
    """As many as may run at once, and no more than the quota pays for; asked once, so that a process computes alike from first to last."""
    granted = quota()
    return allowed() if granted is None else max(1, min(allowed(), int(granted + 0.5)))


def allowed() -> int:
    """How many processors the affinity mask has; all of them where the system has no such masks."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota(root: Path = _ROOT) -> float | None:
    """How many processors' time the control groups grant, by the strictest of them; None where there is no limit, or none that can be read."""
    found = [*_limits("", root), *_limits("cpu", root)]
    return min(found, default=None)


def groups(controller: str, root: Path = _ROOT) -> Iterator[Path]:
    """The folders of the control groups that this process is in, its own first, then those around it as far as they are mounted.

    Args:
        controller: of version 1, as "cpu"; "" for version 2, which has one tree for all.
        root: where the system's tree begins.
    """
    own = _own(controller, root)
    if own is None:
        return
    for top, mounted in _mounts(controller, root):
        try:
            parts = PurePosixPath(own).relative_to(top).parts
        except ValueError:  # a container is told of its path outside, and sees its own group as the top
            parts = ()
        if ".." in parts:
            parts = ()
        for depth in range(len(parts), -1, -1):
            yield root.joinpath(mounted.lstrip("/"), *parts[:depth])
        return


def _lines(path: Path) -> list[str]:
    """A file's lines; none where it cannot be read: what is not known limits nothing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _own(controller: str, root: Path) -> str | None:
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (controller in names.split(",")) if controller else (number == "0" and not names):
            return path
    return None


def _mounts(controller: str, root: Path) -> Iterator[tuple[str, str]]:
    """The group that is the top of a mounted tree, and where it is mounted."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        place, system = before.split(), after.split()
        if len(place) < 5 or len(system) < 3:
            continue
        if (system[0] == "cgroup" and controller in system[2].split(",")) if controller else system[0] == "cgroup2":
            yield _plain(place[3]), _plain(place[4])


def _plain(escaped: str) -> str:
    """A path as mountinfo writes it, with spaces and the like in octal."""
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
    """How many seconds the threads of this process have been ready to run and waiting for a processor, in all; None where nobody says."""
    total, told = 0, False
    try:
        names = os.listdir(_TASKS)
    except OSError:
        return None
    for name in names:
        try:
            with open(_TASKS / name / "schedstat", "rb") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError, ValueError):  # a thread that has just ended, or a system that does not count
            continue
        told = True
    return total / 1e9 if told else None
