"""Ctrl-C in the first moments of the ``foreshape`` command, while modules are imported: a word, as later.

It imports nothing that Python has not imported itself. What is before it, Python's own start and the few lines that pip writes as the command's
script, ends as Python ends it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # without the module that has it
if TYPE_CHECKING:
    from types import TracebackType


def _is_command() -> bool:
    """Whether this process is the command, and not a script that imports the package."""
    given = list(getattr(sys, "argv", ()))[:1] or [""]
    if given == ["-m"]:  # its package is imported before the name of its file is known
        after = iter(sys.orig_argv)
        return any(word == "-m" for word in after) and next(after, "") in ("foreshape", "foreshape.cli")
    return given[0].replace("\\", "/").rpartition("/")[2] in ("foreshape", "foreshape.exe")


if _is_command():
    _before = sys.excepthook

    def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Python ends by the signal itself after this, so that whoever called the command knows."""
        if issubclass(kind, KeyboardInterrupt):
            sys.stderr.write("interrupted\n")
        else:
            _before(kind, error, trace)

    sys.excepthook = _told
