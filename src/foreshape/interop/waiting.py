"""Parameters of large files: each tensor is read into its own memory, of a large file at its first use.

Kernels compute on tensors aligned to 64 bytes, and in a parameter file they begin anywhere. Mapped memory would have to be
copied all the same. So the file is mapped only for its description, and stays open for tensors to be read into their own memory.
A file cut off or overwritten meanwhile is then an error with the tensor's name, where a mapping would end the process.
A replaced file is still there for its readers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from threading import Lock
from typing import IO, Any, NamedTuple

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import FormatError, border
from foreshape.interop.parameters import LARGE, MAX_BYTES, Fits, Stored, combined, inside
from foreshape.language.wire.files import map_opened, open_file
from foreshape.machine.kernels.pages import empty

DIRECT = 1 << 20
"""The least size in bytes of a large file: its descriptions are found first, and each tensor is read into its own memory."""


class DeferredParameters(NamedTuple):
    """Name -> the reader of the tensor; and True to read at its first use."""

    parameters: dict[str, Callable[[], Tensor]]
    large: bool


@border("the parameters cannot be read", FormatError)
def waiting_parameters(source: Any, names: Iterable[str], fits: Fits, device: str) -> DeferredParameters | None:
    """Return readers for the tensors of a file; None for a small one, or no file, or a folder without much in it.

    Raises:
        FormatError: as `read_parameters`, from all but the numbers.
    """
    if not isinstance(source, (str, os.PathLike)) or sys.byteorder != "little":
        return None
    path: str = os.fsdecode(source)  # pyright: ignore[reportUnknownArgumentType]
    if os.path.isdir(path):
        files = {name: inside(path, name) for name in sorted(names)}
        if sum(map(_size_of, files.values())) < LARGE:
            return None  # opened and read at once
        for name, file in files.items():  # looked through now; opened again when it is used, since there may be thousands
            _Opened(file, [name], fits)
        return DeferredParameters({name: lambda name=name, file=file: _Opened(file, [name], fits).read(name, device) for name, file in files.items()}, True)
    size = _size_of(path)
    if size < min(DIRECT, LARGE):
        return None
    sorted_names = sorted(names)
    opened = _Opened(path, sorted_names, fits)
    return DeferredParameters({name: lambda name=name: opened.read(name, device) for name in sorted_names}, size >= LARGE)


def _size_of(path: str) -> int:
    return os.path.getsize(path) if os.path.isfile(path) else 0


class _Opened:
    """A parameter file kept open, with the places of its tensors."""

    def __init__(self, path: str, names: list[str], fits: Fits) -> None:
        self._path, self._lock = path, Lock()
        self._file: IO[bytes] = open_file(path, MAX_BYTES)
        self._was = self._state()
        tensors = combined(map_opened(self._file, writable=False), names, fits, path)
        self._places = {name: Stored(tensor.dtype, tensor.dims, memoryview(b""), tensor.at) for name, tensor in tensors.items()}

    def read(self, name: str, device: str) -> Tensor:
        """Read one tensor. Raises `FormatError` if the file has changed."""
        place = self._places[name]
        out = empty(place.dims, torch_dtype(place.dtype))
        with torch.inference_mode(), self._lock:
            left = memoryview(out.reshape(-1).view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]
            try:
                self._file.seek(place.at)
                while len(left) and (count := self._file.readinto(left)):  # type: ignore[attr-defined]
                    left = left[count:]
                changed = self._state() != self._was
            except OSError as error:
                raise FormatError(f"{self._path}: the parameter {name[:100]!r} cannot be read: {error.strerror or error}") from None
        if len(left) or changed:
            raise FormatError(f"{self._path} was changed after it was opened, and the parameter {name[:100]!r} is not in memory: open it again")
        return out.to(device)

    def _state(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns
