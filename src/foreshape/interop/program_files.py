"""Programs of every format known here, told apart by their content."""

from __future__ import annotations

import os
import re
from typing import Any, Final, Protocol

from foreshape.core.hints import near_path
from foreshape.errors import FormatError, border
from foreshape.interop.compiled_head import PROGRAM, is_compiled
from foreshape.interop.parameters import Stored
from foreshape.language import wire
from foreshape.language.program.program import Program
from foreshape.language.wire.files import path_of, read_file
from foreshape.language.wire.limits import DEFAULT_LIMITS, Limits
from foreshape.language.wire.other_formats import is_exported, is_onnx

MODEL: Final = "__model__"
"""The program's file in a folder with a file for each parameter."""
_ENDINGS: Final = (".pdmodel", ".json", ".onnx", ".pt2")
"""The endings of programs; whatever else than a ``.pdmodel`` stands in its place is told apart by its content."""
_LOOKED_AT: Final = 4096
_PADDLE_3: Final = re.compile(rb'"magic"\s*:\s*"pir"|"regions"\s*:\s*\[')


@border("the program cannot be read", FormatError)
def load_program(source: Any, limits: Limits | None = None) -> Program:
    """Load the program in a file (a path) or in bytes: PaddlePaddle's ``.pdmodel``, the ``.json`` of PaddlePaddle 3, an ``.onnx``, or torch's ``.pt2``.

    Args:
        source: a path, as `load_inference_model` takes it, or bytes. The format is told by the content.
        limits: the accepted sizes; by default `Limits()`.

    Raises:
        FormatError: it cannot be read, or it is no program; the message has the file and the place inside the file.
    """
    return open_program(source, limits)[0]


class HeldParameters(Protocol):
    """Parameters in the file of their program."""

    def put_into(self, scope: Any, device: str) -> None:
        """Put the values into a scope, large ones to be read at their first use."""
        ...

    def stored(self) -> dict[str, Stored]:
        """Return name -> the value, in the order of the names."""
        ...


def open_program(source: Any, limits: Limits | None = None) -> tuple[Program, HeldParameters | None]:
    """Return the program of a source, as `load_program` takes it, and its parameters, if its file holds them."""
    is_bytes = isinstance(source, (bytes, bytearray, memoryview))
    path: Any = None if is_bytes else _file_of(source)
    head = bytes(source[:_LOOKED_AT]) if is_bytes else _head(path)  # pyright: ignore[reportUnknownArgumentType]
    if is_onnx(head):
        from foreshape.interop.onnx import open_model

        return open_model(source if is_bytes else path, limits)  # pyright: ignore[reportUnknownArgumentType]
    if is_exported(head):
        from foreshape.interop.torch.exported_file import open_exported

        return open_exported(source if is_bytes else path, limits)  # pyright: ignore[reportUnknownArgumentType]
    if not is_bytes and is_compiled(path, PROGRAM):
        from foreshape.interop.compiled_program import open_compiled_program

        return open_compiled_program(os.fsdecode(path))
    if not is_paddle_3(head):
        return wire.load_program(source if is_bytes else path, limits), None  # pyright: ignore[reportUnknownArgumentType]
    from foreshape.interop.pir import read_program

    data = bytes(source) if is_bytes else read_file(path, (limits or DEFAULT_LIMITS).bytes)  # pyright: ignore[reportUnknownArgumentType]
    try:
        return read_program(data, limits), None
    except FormatError as error:
        raise error.reworded(f"{'this' if is_bytes else os.fsdecode(path)} is a program of PaddlePaddle 3 that cannot be read: {error}") from error


def find_program(source: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the paths of a program and of its parameters.

    Args:
        source: the path of the program, with or without its ending, or a folder with one program. Of a compiled program with changed
            files the paths of the network itself are returned, with a `ForeshapeWarning`.

    Raises:
        FormatError: there is nothing of this name; a folder without a program, or with several and none named ``inference``; a compiled program does not
            fit, and the network itself is not there.
    """
    path = path_of(source)
    if os.path.isdir(path):
        if os.path.exists(model := os.path.join(path, MODEL)):
            return model, path
        programs = programs_in(path)
        usual = [n for n in programs if n.startswith("inference.")]
        if len(usual) != 1 and len(programs) != 1:
            if not programs:
                raise FormatError(f"{path}: there is no program in this folder: no .pdmodel, .json of PaddlePaddle 3, .onnx, .pt2 or {MODEL}")
            raise FormatError(f"{path}: a folder with neither a file {MODEL} nor one program; give the path of one of its programs, such as {programs[0]}")
        path = os.path.join(path, (usual if len(usual) == 1 else programs)[0])
    if is_compiled(path, PROGRAM):
        from foreshape.interop.compiled_program import CompiledProgram

        file = CompiledProgram(path)
        reason = file.misfit()
        if not reason:
            return path, path
        file.use_network_itself(reason, 4)
        return file.model, file.params or find_program(file.model)[1]
    prefix = next((path.removesuffix(e) for e in _ENDINGS if path.endswith(e)), path)
    if path != prefix or os.path.isfile(path):
        return path, prefix + ".pdiparams"
    model = next((prefix + e for e in _ENDINGS if os.path.isfile(prefix + e)), None)
    if model is None:
        name = os.path.basename(os.path.normpath(prefix))
        raise FormatError(f"{path} cannot be read: there is no such file or folder, and no {name}.pdmodel or {name}.json{near_path(path)}")
    return model, prefix + ".pdiparams"


def programs_in(folder: str) -> list[str]:
    """Return the names of the programs in a folder, sorted; a ``.json`` of something else is none."""
    names = [n for n in sorted(os.listdir(folder)) if n.endswith(_ENDINGS)]
    return [n for n in names if not n.endswith(".json") or is_paddle_3(_head(os.path.join(folder, n)))]


def holds_onnx(path: str) -> bool:
    """Tell whether a file is a model of ONNX."""
    return is_onnx(_head(path))


def _file_of(source: Any) -> Any:
    """Return the program of a path; anything else is left to the reader: its error says so."""
    try:
        return source if os.path.isfile(source) else find_program(source)[0]
    except (ValueError, TypeError):
        return source


def is_paddle_3(head: bytes) -> bool:
    """Tell whether a file begins as the JSON of a program of PaddlePaddle 3."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and _PADDLE_3.search(head) is not None


def _head(path: Any) -> bytes:
    """Return the first bytes of a regular file; none of anything else: its reader names the mistake."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(_LOOKED_AT)
    except (OSError, ValueError, TypeError):  # its reader says so
        return b""
