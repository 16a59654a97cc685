"""The errors raised on purpose by this package.

One base class, so that a caller can tell them from bugs; one subclass per question that a caller
may treat differently. Each message says the requirement, the given values and the place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from operator import index
from types import TracebackType
from typing import Protocol, Self, SupportsIndex, cast

from foreshape.core.hints import did_you_mean

_KEPT = "\n\t\xa0\u3000"
_MOST = 20_000


def _printable(text: str) -> str:
    if len(text) > _MOST:
        text = f"{text[: _MOST // 2]} ... {text[-_MOST // 2 :]}"
    return text if text.isprintable() else "".join(c if c.isprintable() or c in _KEPT else ascii(c)[1:-1] for c in text)


class Line(Protocol):
    """A line of the user's code."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...


class ForeshapeError(Exception):
    """The base of all errors raised on purpose by this package.

    Its text never has control characters but newlines, whatever the names in a program, and is of bounded length. Its fields
    say the same, as far as the place that raised it knew; the others are None.
    """

    op: str | None = None
    """The type of the operator."""
    slot: str | None = None
    """The operand, the input that is fed, or the field of a file."""
    required: str | None = None
    """The requirement in words."""
    seen: str | None = None
    """The dims, the element type or the value instead."""
    site: Line | None = None
    """The user's line."""

    def told(self, *, op: str | None = None, slot: str | None = None, required: object = None, seen: object = None, site: Line | None = None) -> Self:
        """Set those of the fields `op`, `slot`, `required`, `seen` and `site` that are given, and return the error."""
        fields = {"op": op, "slot": slot, "required": required, "seen": seen, "site": site}
        for name, value in fields.items():
            if value is not None:
                setattr(self, name, value if name == "site" else _printable(str(value)))
        return self

    @classmethod
    def must(cls, slot: str, required: str, seen: object, verb: str = "seen", hint: str = "") -> Self:
        """Return the error that ``slot`` must be ``required``; ``verb`` stands before the ``seen`` value, the ``hint`` at the end."""
        return cls(f"{slot} must be {required}; {verb} {seen}{hint}").told(slot=slot, required=required, seen=seen)

    @classmethod
    def one_of(cls, slot: str, choices: Iterable[object], seen: object) -> Self:
        """Return the error that ``slot`` must be one of the ``choices``, with the nearest to ``seen``."""
        options = list(choices)
        words = [repr(c) for c in options]
        required = " or ".join(words) if len(words) == 2 else f"one of {', '.join(words)}"
        return cls.must(slot, required, f"{seen!r:.100}", hint=did_you_mean(seen, options))

    def reworded(self, text: str) -> Self:
        """Return the same error, its class and fields, with another text."""
        out = self.__class__(text)
        out.__dict__.update(self.__dict__)
        return out

    def __str__(self) -> str:
        return _printable(super().__str__())


class DescriptionError(ForeshapeError):
    """A mistake in describing a network: the message has the requirement, both sides, and the user's lines."""


class ShapeError(DescriptionError):
    """Dimensions that do not fit together, or exceed the limits of a tensor."""


class TypeMismatchError(DescriptionError):
    """An element type or a kind (dense, sparse rows, ...) not accepted by the operation."""


class SchemaError(DescriptionError):
    """A use of an operation against its definition: a slot, an attribute, a name, an unknown type."""


class NoValueError(SchemaError, TypeError):
    """A use of a variable as if it had a value while the network is described. For Python it is a `TypeError`: an operator then tries the other side."""


class UnpadError(DescriptionError):
    """A padded network whose masked rows reach a text's own rows or results: the message has the op, and the way from it to the result."""


class FormatError(ForeshapeError):
    """Bytes against the format: the message has the byte offset or the path of the message inside the file."""


class FeedError(ForeshapeError):
    """A fed value that is missing, unknown, or of another shape, element type or raggedness than in the program."""


class GuardError(ForeshapeError):
    """A condition left open by the description of the network, and broken by the fed values."""


class ExecutionError(ForeshapeError):
    """A run that cannot continue: an uninitialised parameter, a value outside of its range, a NaN in checked mode."""


class RankError(ExecutionError):
    """Another rank of the run has died, stalled, stopped or is out of step: the message has the rank, its place, and the reason."""

    explained = False
    """True if it names the rank already."""


class MemoryPlanError(ForeshapeError):
    """A memory limit out of reach; the message has the smallest memory found."""

    least: int | None = None
    """The smallest memory found, in bytes, if there was a search."""
    missing: tuple[str, ...] = ()
    """The symbols without a value, if they are the reason."""


class needs(contextlib.ContextDecorator):
    """A context that turns a missing optional package into an error with the line that installs it.

    Args:
        what: begins the message: the feature in need of the package.
        extra: the extra of this package that brings it.
    """

    __slots__ = ("extra", "what")

    def __init__(self, purpose: str, extra: str = "train") -> None:
        self.subject, self.extra = purpose, extra

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None and error.name.partition(".")[0] != __package__:
            raise ExecutionError(f"{self.subject} needs the package {error.name}: pip install 'foreshape[{self.extra}]'") from error


class ForeshapeWarning(UserWarning):
    """A warning by Python's `warnings` on something that works and may not be meant. Its text is as an error's."""

    def __str__(self) -> str:
        return _printable(super().__str__())


class border(contextlib.ContextDecorator):
    """The last resort of a public function: any other exception becomes an error of this package, with its cause.

    It is for unforeseen exceptions. The package's own errors pass as they are. So do a call
    with wrong arguments, and KeyboardInterrupt, SystemExit and other exceptions outside of ``Exception``.

    Args:
        what: begins the message: the failed action.
        kind: the class of the error.
    """

    __slots__ = ("kind", "what")

    def __init__(self, event: str, kind: type[ForeshapeError]) -> None:
        self.subject, self.kind = event, kind

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, TypeError) and trace is not None and trace.tb_next is None and trace.tb_frame.f_code.co_filename == contextlib.__file__:
            return  # the call had unknown arguments, and the function did not begin: Python says so
        if isinstance(error, Exception) and not isinstance(error, ForeshapeError):
            raise self.kind(f"{self.subject}: {type(error).__name__}: {error}") from error


def whole(argument: str, value: object, least: int, kind: type[ForeshapeError]) -> int:
    """Return an argument as a whole number of at least ``least``, be it numpy's.

    Args:
        argument: begins the message: the argument's name.
        kind: the class of the error for anything else.
    """
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            number = index(cast("SupportsIndex", value))
        except TypeError:  # an array of several
            number = least - 1
        if number >= least:
            return number
    raise kind.must(argument, f"a whole number of at least {least}", repr(value))
