"""Every error that this package raises on purpose.

One base class, so that a caller can catch the package's answers apart from bugs; one subclass per question that a caller
may want to treat differently. Each message says what was required, what was seen and where.
"""

from __future__ import annotations

import contextlib
from operator import index
from types import TracebackType
from typing import SupportsIndex, cast

_KEPT = "\n\t\xa0\u3000"
_MOST = 20_000


def _printable(text: str) -> str:
    if len(text) > _MOST:
        text = f"{text[:_MOST // 2]} ... {text[-_MOST // 2:]}"
    return text if text.isprintable() else "".join(c if c.isprintable() or c in _KEPT else ascii(c)[1:-1] for c in text)


class ForeshapeError(Exception):
    """The base of every error that this package raises on purpose.

    Its text never has control characters but newlines, whatever the names in a program are, and is of bounded length.
    """

    def __str__(self) -> str:
        return _printable(super().__str__())


class DescriptionError(ForeshapeError):
    """A mistake in describing a network: the message has the requirement, the sides that were seen, and the user's lines."""


class ShapeError(DescriptionError):
    """Dimensions that do not fit together, or that no tensor can have."""


class TypeMismatchError(DescriptionError):
    """An element type or a kind (dense, sparse rows, ...) that the operation cannot take."""


class SchemaError(DescriptionError):
    """An operation used in a way that its definition does not allow: a slot, an attribute, a name, an unknown type."""


class FormatError(ForeshapeError):
    """Bytes that are not what the format says: the message has the byte offset or the path of the message inside the file."""


class FeedError(ForeshapeError):
    """A fed value that is missing, unknown, or of another shape, element type or raggedness than the program says."""


class GuardError(ForeshapeError):
    """A condition that was left open when the network was described, and that the fed values break."""


class ExecutionError(ForeshapeError):
    """A run that cannot go on: an uninitialised parameter, a value outside of its range, a NaN in checked mode."""


class RankError(ExecutionError):
    """Another rank of the run has died, stalled, stopped or is at something else: the message says which, where it was, and why."""

    explained = False
    """Whether it names the rank already."""


class MemoryPlanError(ForeshapeError):
    """A memory limit that cannot be met; the message has the least that was reached."""

    least: int | None = None
    """The least that was reached, in bytes, where a search was made."""
    missing: tuple[str, ...] = ()
    """The symbols that have no value, where that is what is wrong."""


class needs(contextlib.ContextDecorator):
    """Where a package is missing that the description of programs does without: an error with the line that installs it.

    Args:
        what: begins the message: what needs the package.
        extra: of this package's, which brings it.
    """

    __slots__ = ("extra", "what")

    def __init__(self, what: str, extra: str = "train") -> None:
        self.what, self.extra = what, extra

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None and error.name.partition(".")[0] != __package__:
            raise ExecutionError(f"{self.what} needs the package {error.name}: pip install 'foreshape[{self.extra}]'") from error


class ForeshapeWarning(UserWarning):
    """What this package warns of, by Python's `warnings`: something that works and that the user may not mean. Its text is as that of its errors."""

    def __str__(self) -> str:
        return _printable(super().__str__())


class border(contextlib.ContextDecorator):
    """The last resort of a public entrance: whatever other exception leaves the block becomes an error of this package, with its cause.

    For what nobody has foreseen; what is foreseen has words of its own, which pass as they are. So do a call
    with wrong arguments, and what is no ``Exception``: KeyboardInterrupt, SystemExit.

    Args:
        what: begins the message: what could not be done.
        kind: the class of the error.
    """

    __slots__ = ("kind", "what")

    def __init__(self, what: str, kind: type[ForeshapeError]) -> None:
        self.what, self.kind = what, kind

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, TypeError) and trace is not None and trace.tb_next is None and trace.tb_frame.f_code.co_filename == contextlib.__file__:
            return  # the function was called with arguments that it does not have, and did not begin: Python says that
        if isinstance(error, Exception) and not isinstance(error, ForeshapeError):
            raise self.kind(f"{self.what}: {type(error).__name__}: {error}") from error


def whole(what: str, given: object, least: int, kind: type[ForeshapeError]) -> int:
    """An argument that must be a whole number, be it numpy's, of at least ``least``.

    Args:
        what: begins the message: the argument's name.
        kind: the class of the error where it is none.
    """
    if not isinstance(given, bool) and hasattr(given, "__index__"):
        try:
            number = index(cast("SupportsIndex", given))
        except TypeError:  # an array of several
            number = least - 1
        if number >= least:
            return number
    raise kind(f"{what} must be a whole number of at least {least}; seen {given!r}")
