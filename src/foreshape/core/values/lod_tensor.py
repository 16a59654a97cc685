"""`LoDTensor`: how ragged data is fed and fetched, packed rows with the lengths of their sequences."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from foreshape.core.values.conversion import is_masked, on_device, plain, to_tensor
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import FeedError

_FEW = 64
"""So many sequences are counted faster as numbers of Python's than as an array."""


class LoDTensor:
    """Packed rows and the lengths of their sequences.

    Args:
        data: ``[rows, *row]``.
        sequence_lengths: for each level, outermost first, the lengths of its sequences: of the last level in rows, of the
            others in sequences of the next level. ``[[3, 1, 2]]`` are three sequences of 3, 1 and 2 rows.

    Raises:
        FeedError: negative lengths, levels that do not fit together, or lengths that do not add up to the number of rows.
    """

    __slots__ = ("_lengths", "_offsets", "data")

    def __init__(self, data: Any, sequence_lengths: Sequence[Any]) -> None:
        self.data = _array(data)
        try:
            self._lengths = [_whole_numbers(level) for level in sequence_lengths]
        except (TypeError, ValueError, OverflowError):
            raise FeedError(f"sequence_lengths is a list of levels, each a list of whole numbers, as [[3, 1, 2]]{_one_level(sequence_lengths)}") from None
        self._offsets: Any = None
        for index, level in enumerate(self._lengths):
            few = level.tolist() if len(level) <= _FEW else None
            least = int(level.min()) if few is None else min(few, default=0)
            if least < 0:
                raise FeedError(f"sequence lengths must be at least 0; level {index} has {least}")
            last = index + 1 == len(self._lengths)
            below = len(self.data) if last else len(self._lengths[index + 1])
            total = int(level.sum()) if few is None and int(level.max()) <= below else sum(few or level.tolist())  # the first may wrap around
            if total != below:
                parts = "rows" if last else f"sequences of level {index + 1}"
                raise FeedError(f"the lengths of level {index} sum to {total}, and there are {below} {parts}{_are_offsets(level, below)}")

    @staticmethod
    def from_offsets(data: Any, offsets: Sequence[Any]) -> LoDTensor:
        """Return the rows ``data`` with the offsets of the sequences of each level: numbers from 0 to the count of parts of the next level. ``[[0, 3, 4,
        6]]`` are three sequences of 3, 1 and 2 rows.

        Raises:
            FeedError: offsets do not begin with 0, or fall, or end elsewhere.
        """
        try:
            levels = [_whole_numbers(level) for level in offsets]
        except (TypeError, ValueError, OverflowError):
            raise FeedError("offsets is a list of levels, each a list of whole numbers, as [[0, 3, 4, 6]]") from None
        for index, level in enumerate(levels):
            if not len(level) or int(level[0]) != 0:
                meant = ": lengths, as these may be, are for LoDTensor(data, lengths)" if len(level) else ""
                raise FeedError(f"offsets must begin with 0; those of level {index} {f'begin with {int(level[0])}' if len(level) else 'are empty'}{meant}")
            falls = (level[1:] < level[:-1]).nonzero()[0]  # a difference might wrap around
            if len(falls):
                place = int(falls[0])
                raise FeedError(f"offsets must not fall; those of level {index} go from {int(level[place])} to {int(level[place + 1])}, at {place}")
        return LoDTensor(data, [level[1:] - level[:-1] for level in levels])

    @staticmethod
    def of_lengths(data: Any, lengths: Sequence[Any]) -> LoDTensor:
        """Return the rows ``data``, an array or a tensor without copying, with the lengths of each level, known to fit."""
        out = object.__new__(LoDTensor)
        out.data = data
        out._lengths = [_whole_numbers(level.cpu() if hasattr(level, "cpu") else level) for level in lengths]
        out._offsets = None
        return out

    def with_data(self, data: Any) -> LoDTensor:
        """Return other rows, ``data``, as many, with the same sequences."""
        out = object.__new__(LoDTensor)
        out.data, out._lengths, out._offsets = data, self._lengths, self._offsets
        return out

    @staticmethod
    def of_offsets(data: Any, offsets: Any) -> LoDTensor:
        """Return the rows ``data`` with the engine's offsets, known to fit."""
        out = object.__new__(LoDTensor)
        out.data = data
        out._lengths = [level.diff().numpy() for level in offsets.on_host.levels]
        out._offsets = offsets
        return out

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the packed shape, ``(rows, *row)``."""
        return self.data.shape

    @property
    def dtype(self) -> Any:
        """Return the element type of the rows."""
        return self.data.dtype

    @property
    def sequence_lengths(self) -> list[list[int]]:
        """Return for each level the lengths of its sequences."""
        return [level.tolist() for level in self._lengths]

    @property
    def lod_level(self) -> int:
        return len(self._lengths)

    def __len__(self) -> int:
        """Return the number of outermost sequences."""
        return len(self._lengths[0]) if self._lengths else len(self.data)

    def __iter__(self) -> Iterator[Any]:
        """Return the outermost sequences, as `to_list` gives them."""
        return iter(self.to_list())

    def choose(self, sequences: Any) -> LoDTensor:
        """Return the outermost sequences of these numbers, in this order, as a ragged tensor of their own."""
        import numpy

        chosen = numpy.asarray(sequences, dtype=numpy.int64)
        lengths: list[Any] = []
        for level in self._lengths:
            chosen_lengths = level[chosen]
            begin = numpy.concatenate([[0], numpy.cumsum(level)])[:-1][chosen]
            # the parts of each chosen sequence stand one after the other: its first one, then one more each
            chosen = numpy.repeat(begin - numpy.concatenate([[0], numpy.cumsum(chosen_lengths)])[:-1], chosen_lengths) + numpy.arange(int(chosen_lengths.sum()))
            lengths.append(chosen_lengths)
        return LoDTensor.of_lengths(self.data[chosen], lengths)

    @staticmethod
    def joined(parts: Sequence[LoDTensor]) -> LoDTensor:
        """Return the outermost sequences of ragged tensors, ``parts``, of one depth, one after the other. Raise `FeedError` if their rows differ in shape."""
        import numpy

        try:
            rows = numpy.concatenate([numpy.asarray(p.data) for p in parts])
        except ValueError as error:
            raise FeedError(f"ragged tensors can be joined where their rows have one shape: {error}") from None
        return LoDTensor.of_lengths(rows, [numpy.concatenate(levels) for levels in zip(*(p._lengths for p in parts), strict=True)])

    def offsets(self) -> list[list[int]]:
        """Return the lengths as offsets: for each level a list from 0 on."""
        import numpy

        return [[0, *numpy.cumsum(level).tolist()] for level in self._lengths]

    def offsets_on(self, device: Any) -> Any:
        """Return the offsets for the engine's kernels, on the given device or the CPU; made once."""
        if self._offsets is None:
            if all(len(level) <= _FEW for level in self._lengths):
                self._offsets = Offsets([torch.tensor([0, *accumulate(level.tolist())], dtype=torch.int64, device="cpu") for level in self._lengths])
            else:
                self._offsets = Offsets.of_lengths(*[to_tensor(level) for level in self._lengths])
        if device is None:
            return self._offsets.on_host
        return self._offsets if self._offsets.last.device == device else _moved(self._offsets.on_host, device)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        return numpy.array(self.data, dtype=dtype, copy=copy) if copy is not None else numpy.asarray(self.data, dtype=dtype)

    def to_list(self) -> list[Any]:
        """Return the sequences as arrays ``[length, *row]``, in as many nested lists as there are levels. They are views of the rows."""
        parts: Any = self.data
        for offsets in reversed(self.offsets()):
            parts = [parts[a:b] for a, b in pairwise(offsets)]
        return parts if isinstance(parts, list) else list(parts)  # pyright: ignore[reportUnknownVariableType]

    def __repr__(self) -> str:
        levels = ", ".join(_shortened(level) for level in self._lengths)
        return f"LoDTensor({self.data.dtype}{list(self.data.shape)}, sequence_lengths=[{levels}],\n{self.data})"


def _array(data: Any) -> Any:
    """Return packed rows as an array. Raise `FeedError` for objects without rows."""
    import numpy

    if is_masked(data):
        raise FeedError("a masked array has elements without a value: use .filled(...)")
    try:
        array: Any = numpy.asarray(plain(data))
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeedError.must("the rows of a ragged tensor", "an array", f"{type(data).__name__}: {error}") from None
    if array.ndim < 1:
        raise FeedError("a ragged tensor needs at least the dim of its rows")
    return array


def _shortened(level: Any, limit: int = 12) -> str:
    """Return the lengths of a level, as a list; of many the first and the last."""
    if len(level) <= limit:
        return str(level.tolist())
    half = limit // 2
    return f"[{', '.join(map(str, level[:half].tolist()))}, ... {len(level) - 2 * half} more ..., {', '.join(map(str, level[-half:].tolist()))}]"


def _whole_numbers(level: Any) -> Any:
    """Return the lengths of one level as int64. Raise `TypeError` if they are something else."""
    import numpy

    array = numpy.asarray(level)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        array = numpy.array([operator.index(n) for n in level], dtype=numpy.int64)
    return array.astype(numpy.int64)


def _one_level(lengths: Any) -> str:
    """Return the form of a single level for lengths without it; empty for other values."""
    try:
        return f": a single level is [{[int(n) for n in _whole_numbers(lengths)]}]"[:80]
    except (TypeError, ValueError, OverflowError):
        return ""


def _are_offsets(level: Any, below: int) -> str:
    """Return the call for offsets in the place of lengths: numbers up to the count of parts that never fall."""
    numbers = [int(n) for n in level]
    if not numbers or numbers[-1] != below or any(a > b for a, b in pairwise(numbers)):
        return ""
    offsets = numbers if numbers[0] == 0 else [0, *numbers]
    return f": these are offsets, of LoDTensor.from_offsets(data, [{offsets if len(offsets) <= 12 else '...'}])"


def _moved(offsets: Offsets, device: Any) -> Offsets:
    """Return offsets of the host on a device, made once; what is asked as numbers of the host is answered without reading them back."""
    return offsets.kept(("on", device), lambda: Offsets([on_device(level, device) for level in offsets.levels], offsets))
