"""The container of a checkpoint: one safetensors file whose header also holds JSON and a checksum of every byte.

The checksum is the SHA-256 of the whole file with its own 64 digits written as zeros. A flipped bit anywhere is found, and every safetensors
reader opens the file. It has no pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foreshape.core.checked_json import bounded_json
from foreshape.errors import FormatError, TypeMismatchError, border
from foreshape.interop import safetensors_file
from foreshape.language.wire.files import map_file, replacing
from foreshape.language.wire.other_formats import CHECKPOINT, instead_of

if TYPE_CHECKING:
    from torch import Tensor

_NO_DIGITS = b"0" * 64
_KEY = b'"checksum":"'
_LARGEST = 1 << 44


def write(path: Any, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts (JSON values) to a file: to a temporary name, flushed, then renamed.

    Raises:
        FormatError: the path cannot be written to, or the disk is full; the former file is left.
    """
    head, ordered = safetensors_file.header(tensors, {"facts": json.dumps(facts), "checksum": _NO_DIGITS.decode()})
    offset = _digits_at(head, len(head))
    if offset is None:
        raise FormatError(f"{path}: a name or a fact of this run looks like the checksum's place")
    digest = hashlib.sha256(head)
    for tensor in ordered:
        for piece in safetensors_file.pieces(tensor):
            digest.update(piece)
    with replacing(path) as file:
        file.write(head[:offset] + digest.hexdigest().encode() + head[offset + 64 :])
        for tensor in ordered:
            for piece in safetensors_file.pieces(tensor):
                file.write(piece)


@border("the checkpoint cannot be read", FormatError)
def read(path: Any) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors and facts of a file, with only their form checked.

    The tensors are views of the file mapped into memory, and take no memory of their own.

    Raises:
        FormatError: it cannot be read, or differs from the bytes that were written.
    """
    data, offset = _begun(path)
    if _digest(data, offset) != data[offset : offset + 64]:
        raise FormatError(f"{path}: its bytes are not those that were written (the checksum differs)")
    try:
        metadata, tensors = safetensors_file.load(path, data)
        if metadata.keys() != {"facts", "checksum"}:
            raise FormatError(f"its metadata are facts and a checksum; seen {', '.join(sorted(metadata))[:200] or 'none'}")
        return tensors, bounded_json.parse(metadata["facts"].encode())
    except (FormatError, TypeMismatchError) as error:  # the checksum holds: somebody wrote it so
        raise FormatError(f"{path}: not a checkpoint: {error}") from None


def checksum(path: Any) -> str:
    """Return the checksum in a file's header. Raises `FormatError` if it has none."""
    data, offset = _begun(path)
    return bytes(data[offset : offset + 64]).decode("ascii", "replace")


def _begun(path: Any) -> tuple[Any, int]:
    """Return the bytes of a checkpoint, and the place of its checksum."""
    data = map_file(path, _LARGEST)
    offset = _digits_at(data, len(data))
    if offset is None:
        raise FormatError(f"{path}: no checkpoint: {instead_of(data, CHECKPOINT) or f'{len(data)} bytes that are none, or only the beginning of one'}")
    return data, offset


def _digits_at(data: Any, length: int) -> int | None:
    """Return the offset of the checksum's digits in the header, found exactly once; None otherwise."""
    size = int.from_bytes(data[:8], "little")
    if length < 8 or size > length - 8:
        return None
    offset = data.find(_KEY, 8, 8 + size)
    if offset < 0 or data.find(_KEY, offset + 1, 8 + size) >= 0 or offset + len(_KEY) + 64 > 8 + size:
        return None
    return offset + len(_KEY)


def _digest(data: Any, offset: int) -> bytes:
    """Return the checksum's digits, computed with zeros in their place at ``offset``."""
    view = memoryview(data)
    out = hashlib.sha256(view[:offset])
    out.update(_NO_DIGITS)
    out.update(view[offset + 64 :])
    return out.hexdigest().encode()
