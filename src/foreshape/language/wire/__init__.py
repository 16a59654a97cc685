"""The file format: the only room that converts a `Program` to protobuf and back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from foreshape.errors import FormatError, border
from foreshape.language.wire.files import read_file, replacing
from foreshape.language.wire.limits import DEFAULT_LIMITS, Limits
from foreshape.language.wire.other_formats import PROGRAM, instead_of

if TYPE_CHECKING:
    from foreshape.language.program.program import Program


_BY_ENDING = {".onnx": "ONNX model", ".pt2": "exported program of torch", ".json": "program of PaddlePaddle 3"}
"""The ending of a file -> the format that its name promises."""


@border("the program cannot be read", FormatError)
def load_program(source: Any, limits: Limits | None = None) -> Program:
    """Load the program in a file (a path) or in bytes.

    Args:
        source: a path, or bytes.
        limits: the accepted sizes; by default `Limits()`.

    Raises:
        FormatError: it cannot be read, or it is no program; the message has the file and the byte offset or the path inside the file.
    """
    from foreshape.language.wire.decode import decode  # with protobuf, which files of other kinds do not await

    bounds = limits or DEFAULT_LIMITS
    is_bytes = isinstance(source, (bytes, bytearray, memoryview))
    data = bytes(source) if is_bytes else read_file(source, bounds.bytes)  # pyright: ignore[reportUnknownArgumentType]
    try:
        return decode(data, bounds)
    except FormatError as error:
        words = instead_of(data, PROGRAM)
        if is_bytes and not words:
            raise
        kind = _BY_ENDING.get(os.path.splitext("" if is_bytes else os.fsdecode(source))[1].lower(), "program (.pdmodel)")
        raise FormatError(f"{'this' if is_bytes else os.fsdecode(source)} is no {kind}: {words or error}") from error


def save_program(program: Program, path: Any = None) -> bytes:
    """Return the program's bytes, also written to ``path`` if given.

    Raises:
        FormatError: the path cannot be written to.
    """
    from foreshape.language.wire.encode import encode

    data = encode(program)
    if path is not None:
        with replacing(path) as file:
            file.write(data)
    return data


__all__ = ["DEFAULT_LIMITS", "Limits", "load_program", "read_file", "replacing", "save_program"]
