"""A scope as a safetensors file, which many other programs read: names, element types (bf16 too), dims and data, no code."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from foreshape.engine import Scope, default_scope
from foreshape.errors import ExecutionError, FormatError, TypeMismatchError
from foreshape.interop.parameters import MAX_BYTES
from foreshape.ops.torch_types import dtype_of_torch
from foreshape.wire import read_file, replacing


def save_safetensors(path: str | os.PathLike[str], scope: Scope | None = None, names: Iterable[str] | None = None) -> None:
    """Write values of a scope to a file: to a temporary name, flushed, then renamed.

    Args:
        scope: the default scope where it is left out.
        names: which values; all where it is left out.

    Raises:
        ExecutionError: a name that has no value. FormatError: the file cannot be written.
    """
    held = scope if scope is not None else default_scope()
    # safetensors refuses tensors that share memory, so that each is copied
    tensors = {n: held.tensor(n).detach().cpu().contiguous().clone() for n in (held.names() if names is None else names)}
    data: bytes = _library().save(tensors)
    with replacing(path) as file:
        file.write(data)


def load_safetensors(path: str | os.PathLike[str], scope: Scope | None = None) -> list[str]:
    """Put the values of a file into a scope; returns their names. Nothing is put in where the file is not whole.

    Raises:
        FormatError: it cannot be read, is no safetensors file, or holds an element type that no program here has.
    """
    data = read_file(path, MAX_BYTES)
    try:
        tensors = _library().load(data)
        for tensor in tensors.values():
            dtype_of_torch(tensor.dtype)
    except ExecutionError:
        raise
    except TypeMismatchError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None
    except Exception as error:  # the library has its own errors, and passes on those of json and torch
        raise FormatError(f"{os.fspath(path)}: not a safetensors file: {error}") from None
    held = scope if scope is not None else default_scope()
    for name, tensor in tensors.items():
        held.set(name, tensor)
    return sorted(tensors)


def _library() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise ExecutionError(f"this needs safetensors, which is not installed: pip install 'foreshape[train]' ({error})") from error
    return safetensors.torch
