"""A digest of data: equal data give equal ones, and of large data a sample is looked at, spread evenly."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from foreshape.core.values.conversion import to_numpy
from foreshape.errors import FeedError, border
from foreshape.runtime.engine import LoDTensor, SelectedRows

SAMPLE: Final = 1 << 24
"""The bytes of an array that are digested; all of a smaller one."""
_DIGITS: Final = 16


@border("the data cannot be looked at", FeedError)
def digest(value: Any) -> str:
    """Return the digest of an array, a ragged or sparse tensor, or of nested lists and dicts of them. Raise `FeedError`: it is nothing of the kind."""
    out = hashlib.sha256()
    _add(out, value)
    return out.hexdigest()[:_DIGITS]


def _add(out: Any, value: Any) -> None:
    import numpy

    if isinstance(value, LoDTensor):
        for level in value.sequence_lengths:
            _add_array(out, numpy.asarray(level, dtype=numpy.int64))
        _add(out, value.data)
    elif isinstance(value, SelectedRows):
        _add_array(out, value.rows)
        _add(out, value.values)
    elif isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        for name in sorted(mapping, key=str):
            out.update(f"{name}:".encode(errors="surrogatepass"))
            _add(out, mapping[name])
    elif isinstance(value, (list, tuple)) and not _is_numbers(cast("Sequence[Any]", value)):
        parts = cast("Sequence[Any]", value)
        out.update(f"[{len(parts)}".encode())
        for part in _spread(parts, max(1, SAMPLE // 1024)):
            _add(out, part)
    else:
        _add_array(out, _array(value))


def _is_numbers(parts: Sequence[Any]) -> bool:
    """Tell whether a list holds plain numbers, for numpy to read at once."""
    return all(isinstance(part, (int, float)) for part in parts)


def _spread(parts: Sequence[Any], count: int) -> Sequence[Any]:
    return parts if len(parts) <= count else [parts[step * (len(parts) - 1) // (count - 1)] for step in range(count)]


def _array(value: Any) -> Any:
    import numpy

    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "is_nested"):
        return _array(list(value.unbind())) if value.is_nested else to_numpy(value.detach())
    return numpy.asarray(value)


def _add_array(out: Any, array: Any) -> None:
    import numpy

    out.update(f"{array.dtype.str}{list(array.shape)}".encode())
    if array.dtype.hasobject:
        for part in _spread(array.reshape(-1), 1024):
            out.update(repr(part)[:1000].encode(errors="surrogatepass"))
        return
    if array.nbytes > SAMPLE and array.shape[0] > 1:
        rows = max(2, SAMPLE * len(array) // array.nbytes)
        array = array[numpy.linspace(0, len(array) - 1, rows).astype(numpy.int64)]
    out.update(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data if array.size else b"")
