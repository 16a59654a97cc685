"""The identity of a rank's process, and a test for an ended one on this machine."""

from __future__ import annotations

import os


def this_process() -> str:
    """Return the identity of this process among all: its machine, its number, and the time of its start; nothing if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            machine = file.read().strip()
        return f"{machine} {os.stat('/proc/self/ns/pid').st_ino} {os.getpid()} {_began(os.getpid())}"
    except (OSError, ValueError):  # no Linux
        return ""


def has_ended(process: str) -> bool:
    """Return whether a process, by its `this_process`, was one of this machine and has ended; False if unknown."""
    parts, own_parts = process.split(), this_process().split()
    if len(parts) != 4 or len(own_parts) != 4 or parts[:2] != own_parts[:2] or not parts[2].isdecimal():
        return False
    try:
        return _began(int(parts[2])) != parts[3]
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _began(process: int) -> str:
    """Return the start of a process of this machine, in ticks of the system; nothing for an ended one that is still listed."""
    with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
