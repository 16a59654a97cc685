"""Ctrl-C during the imports of the ``foreshape`` command: one word in place of a traceback, as later.

It imports only modules that Python has imported itself. An interrupt before it, in Python's own start or in the few lines of pip's script for the
command, ends as Python ends it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # without an import of its module
if TYPE_CHECKING:
    from types import TracebackType


def _is_command() -> bool:
    """Tell whether this process is the command, and not a script with the package imported."""
    given = list(getattr(sys, "argv", ()))[:1] or [""]
    if given == ["-m"]:  # its package is imported before the name of its file is known
        after = iter(sys.orig_argv)
        return any(word == "-m" for word in after) and next(after, "") in ("foreshape", "foreshape.cli")
    return given[0].replace("\\", "/").rpartition("/")[2] in ("foreshape", "foreshape.exe")


if _is_command():
    _before = sys.excepthook

    def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Say the word; then Python ends by the signal itself, for the caller of the command to see."""
        if issubclass(kind, KeyboardInterrupt):
            sys.stderr.write("interrupted\n")
        else:
            _before(kind, error, trace)

    sys.excepthook = _told
