"""The container of a checkpoint: one safetensors file whose header also holds JSON and a checksum of every byte.

The checksum is the SHA-256 of the whole file with its own 64 digits written as zeros, so that a bit that flips anywhere is
found, and the file stays one that every safetensors reader opens. There is no pickle in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foreshape.errors import ExecutionError, FormatError
from foreshape.wire.files import read_file, replacing

if TYPE_CHECKING:
    from torch import Tensor

_NO_DIGITS = b"0" * 64
_KEY = b'"checksum":"'
_LARGEST = 1 << 44
_CHUNK = 1 << 22


def write(path: Any, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts (what JSON can say) to a file: to a temporary name, flushed, then renamed.

    Raises:
        FormatError: the place cannot be written to, or the disk is full; what was there before is left.
    """
    save = _safetensors().save
    own = {name: t.detach().cpu().clone() for name, t in tensors.items()}  # safetensors refuses tensors that share memory
    data: bytes = save(own, {"facts": json.dumps(facts), "checksum": _NO_DIGITS.decode()})
    del own
    at = _digits_at(data)
    if at is None:
        raise FormatError(f"{path}: safetensors wrote the header in a way that is not known here")
    digits = _digest(data, at)
    with replacing(path) as file:
        file.write(data[:at] + digits)
        view = memoryview(data)[at + 64 :]
        for start in range(0, len(view), _CHUNK):
            file.write(view[start : start + _CHUNK])


def read(path: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a file.

    Raises:
        FormatError: it cannot be read, or is not, byte for byte, what was written.
    """
    load = _safetensors().load
    data = read_file(path, _LARGEST)
    at = _digits_at(data)
    if at is None:
        raise FormatError(f"{path}: {len(data)} bytes that are no checkpoint, or only the beginning of one")
    if _digest(data, at) != data[at : at + 64]:
        raise FormatError(f"{path}: its bytes are not those that were written (the checksum differs)")
    try:
        size = int.from_bytes(data[:8], "little")
        facts = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["facts"])
        return load(data), facts
    except Exception as error:  # the checksum holds, so that somebody wrote it so
        raise FormatError(f"{path}: not a checkpoint: {error}") from None


def _digits_at(data: bytes) -> int | None:
    """Where the checksum's digits are: in the header, once."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        return None
    at = data.find(_KEY, 8, 8 + size)
    if at < 0 or data.find(_KEY, at + 1, 8 + size) >= 0 or at + len(_KEY) + 64 > 8 + size:
        return None
    return at + len(_KEY)


def _digest(data: bytes, at: int) -> bytes:
    """The checksum's digits, were they zeros at ``at``."""
    view = memoryview(data)
    out = hashlib.sha256(view[:at])
    out.update(_NO_DIGITS)
    out.update(view[at + 64 :])
    return out.hexdigest().encode()


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise ExecutionError(f"checkpoints need safetensors, which is not installed: pip install 'foreshape[train]' ({error})") from error
    return safetensors.torch
