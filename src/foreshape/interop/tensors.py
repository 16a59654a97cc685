"""A scope as a safetensors file, readable by many other programs: names, element types (bf16 too), dims and data, no code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import FormatError, TypeMismatchError, border
from foreshape.interop import safetensors_file
from foreshape.interop.parameters import MAX_BYTES
from foreshape.language.wire import replacing
from foreshape.language.wire.files import map_file
from foreshape.language.wire.other_formats import CHECKPOINT, SAFETENSORS, instead_of
from foreshape.runtime.engine import Scope, default_scope


@border("the file cannot be written", FormatError)
def save_safetensors(path: str | os.PathLike[str], scope: Scope | None = None, names: Iterable[str] | None = None) -> None:
    """Write values of a scope to a file: to a temporary name, flushed, then renamed.

    Args:
        path: of the file.
        scope: the default scope if omitted.
        names: the values to write; all by default.

    Raises:
        ExecutionError: a name without a value. FormatError: the file cannot be written.
    """
    holder = scope if scope is not None else default_scope()
    write_tensors(path, {n: holder.tensor(n) for n in (holder.names() if names is None else names)})


def write_tensors(path: str | os.PathLike[str], values: Mapping[str, Tensor]) -> None:
    """Write tensors to a file, as `save_safetensors`."""
    head, tensors = safetensors_file.header(values)
    with replacing(path) as file:
        file.write(head)
        for tensor in tensors:
            for piece in safetensors_file.pieces(tensor):
                file.write(piece)


@border("the file cannot be read", FormatError)
def load_safetensors(path: str | os.PathLike[str], scope: Scope | None = None) -> list[str]:
    """Put the values of a file into a scope; returns their names. Nothing is put in from an incomplete file.

    Args:
        path: of the file.
        scope: the default scope if omitted.

    Raises:
        FormatError: it cannot be read, is no safetensors file, or holds an element type unknown to programs here.
    """
    data = map_file(path, MAX_BYTES)
    try:
        _, tensors = safetensors_file.load(path, data)
    except TypeMismatchError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)}: not a safetensors file: {instead_of(data, SAFETENSORS, CHECKPOINT) or error}") from None
    holder = scope if scope is not None else default_scope()
    holder.fill(tensors)
    return sorted(tensors)
