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
    arguments = list(getattr(sys, "argv", ()))[:1] or [""]
    if arguments == ["-m"]:  # its package is imported before the name of its file is known
        words = iter(sys.orig_argv)
        return any(word == "-m" for word in words) and next(words, "") in ("foreshape", "foreshape.apps.cli")
    return arguments[0].replace("\\", "/").rpartition("/")[2] in ("foreshape", "foreshape.exe")


if _is_command():
    _previous_hook = sys.excepthook

    def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Say the word; then Python ends by the signal itself, for the caller of the command to see."""
        if issubclass(kind, KeyboardInterrupt):
            sys.stderr.write("interrupted\n")
        else:
            _previous_hook(kind, error, trace)

    sys.excepthook = _report
