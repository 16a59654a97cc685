"""`MappedWeights`: the tensors of safetensors files as numpy's arrays over the files, without torch."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foreshape.core.spec import BF16
from foreshape.interop.safetensors_file import Place, contents
from foreshape.language.wire.files import map_file

MAX_BYTES: Final = 2**40
"""The largest file accepted."""
_UNREAD: int | None = getattr(mmap, "MADV_DONTNEED", None)


class MappedWeights(Mapping[str, Any]):
    """The tensors of some files by name, read-only; bf16, unknown to numpy, as fp32 in memory of their own.

    Raises:
        FormatError: a file is damaged.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._maps = [map_file(file, MAX_BYTES, writable=False) for file in files]
        self._places: dict[str, tuple[Any, Place]] = {}
        for file, data in zip(files, self._maps, strict=True):
            self._places |= {name: (data, place) for name, place in contents(file, data)[1].items()}

    def __getitem__(self, name: str) -> Any:
        import numpy

        data, (dtype, dims, begin, end) = self._places[name]
        if dtype is BF16:
            bits = numpy.frombuffer(data, "<u2", (end - begin) // 2, begin).astype(numpy.uint32)
            bits <<= 16
            return bits.view(numpy.float32).reshape(dims)
        return numpy.frombuffer(data, dtype.numpy_name, (end - begin) // dtype.itemsize, begin).reshape(dims)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def forget_pages(self) -> None:
        """Give the pages read so far back to the system; pages read again come from the file."""
        for data in self._maps:
            if isinstance(data, mmap.mmap) and _UNREAD is not None:
                data.madvise(_UNREAD)
