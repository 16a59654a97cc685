"""Programs of every format that is known here, told apart by their content."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from foreshape import wire
from foreshape.errors import FormatError, border
from foreshape.program.program import Program
from foreshape.wire.files import read_file
from foreshape.wire.limits import DEFAULT_LIMITS, Limits

_LOOKED_AT: Final = 4096
_PADDLE_3: Final = re.compile(rb'"magic"\s*:\s*"pir"|"regions"\s*:\s*\[')


@border("the program cannot be read", FormatError)
def load_program(source: Any, limits: Limits | None = None) -> Program:
    """Load the program in a file (a path) or in bytes: PaddlePaddle's ``.pdmodel``, or the ``.json`` of PaddlePaddle 3.

    Args:
        source: a path, or bytes. The format is told by the content.
        limits: the accepted sizes; by default `Limits()`.

    Raises:
        FormatError: it cannot be read, or it is no program; the message has the file and the place inside the file.
    """
    given = isinstance(source, (bytes, bytearray, memoryview))
    if not is_paddle_3(bytes(source[:_LOOKED_AT]) if given else _head(source)):  # pyright: ignore[reportUnknownArgumentType]
        return wire.load_program(source, limits)
    from foreshape.interop.pir import read_program

    data = bytes(source) if given else read_file(source, (limits or DEFAULT_LIMITS).bytes)  # pyright: ignore[reportUnknownArgumentType]
    try:
        return read_program(data, limits)
    except FormatError as error:
        raise error.reworded(f"{'this' if given else os.fsdecode(source)} is a program of PaddlePaddle 3 that cannot be read: {error}") from error


def is_paddle_3(head: bytes) -> bool:
    """Tell whether a file begins as the JSON of a program of PaddlePaddle 3."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and _PADDLE_3.search(head) is not None


def _head(path: Any) -> bytes:
    """Return the first bytes of a regular file; none of anything else, whose reader says what is wrong."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(_LOOKED_AT)
    except (OSError, ValueError, TypeError):  # its reader says so
        return b""
