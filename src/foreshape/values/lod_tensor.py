"""`LoDTensor`: how ragged data is fed and fetched, packed rows with the lengths of their sequences."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from foreshape.errors import FeedError
from foreshape.values.conversion import is_masked, plain, to_tensor
from foreshape.values.offsets import Offsets


class LoDTensor:
    """Packed rows and how many of them belong to each sequence.

    Args:
        data: ``[rows, *row]``.
        sequence_lengths: for each level, outermost first, the lengths of its sequences: of the last level in rows, of the
            others in sequences of the next level. ``[[3, 1, 2]]`` are three sequences of 3, 1 and 2 rows.

    Raises:
        FeedError: negative lengths, levels that do not fit together, or lengths that are not the number of rows.
    """

    __slots__ = ("_lengths", "_offsets", "data")

    def __init__(self, data: Any, sequence_lengths: Sequence[Any]) -> None:
        self.data = _array(data)
        try:
            self._lengths = [_whole_numbers(level) for level in sequence_lengths]
        except (TypeError, ValueError, OverflowError):
            raise FeedError("sequence_lengths is a list of levels, each a list of whole numbers, as [[3, 1, 2]]") from None
        self._offsets: Any = None
        for at, level in enumerate(self._lengths):
            if len(level) and int(level.min()) < 0:
                raise FeedError(f"sequence lengths must be at least 0; level {at} has {int(level.min())}")
            last = at + 1 == len(self._lengths)
            below = len(self.data) if last else len(self._lengths[at + 1])
            total = int(level.sum()) if len(level) and int(level.max()) <= below else sum(level.tolist())  # the first may wrap around
            if total != below:
                what = "rows" if last else f"sequences of level {at + 1}"
                raise FeedError(f"the lengths of level {at} sum to {total}, and there are {below} {what}")

    @staticmethod
    def from_offsets(data: Any, offsets: Sequence[Any]) -> LoDTensor:
        """The rows ``data`` with, for each level, the offsets of its sequences: numbers that rise from 0 to the count of what they
        divide, ``[[0, 3, 4, 6]]`` for three sequences of 3, 1 and 2 rows.

        Raises:
            FeedError: offsets that do not begin with 0, that fall, or that end elsewhere.
        """
        try:
            levels = [_whole_numbers(level) for level in offsets]
        except (TypeError, ValueError, OverflowError):
            raise FeedError("offsets is a list of levels, each a list of whole numbers, as [[0, 3, 4, 6]]") from None
        for at, level in enumerate(levels):
            if not len(level) or int(level[0]) != 0:
                raise FeedError(f"offsets must begin with 0; those of level {at} " + (f"begin with {int(level[0])}" if len(level) else "are empty"))
            falls = (level[1:] < level[:-1]).nonzero()[0]  # a difference might wrap around
            if len(falls):
                where = int(falls[0])
                raise FeedError(f"offsets must not fall; those of level {at} go from {int(level[where])} to {int(level[where + 1])}, at {where}")
        return LoDTensor(data, [level[1:] - level[:-1] for level in levels])

    @staticmethod
    def of_lengths(data: Any, lengths: Sequence[Any]) -> LoDTensor:
        """The rows ``data``, an array or a tensor that stays where it is, with the lengths of each level, which are known to fit."""
        out = object.__new__(LoDTensor)
        out.data = data
        out._lengths = [_whole_numbers(level.cpu() if hasattr(level, "cpu") else level) for level in lengths]
        out._offsets = None
        return out

    def with_data(self, data: Any) -> LoDTensor:
        """Other rows, ``data``, as many, with the same sequences."""
        out = object.__new__(LoDTensor)
        out.data, out._lengths, out._offsets = data, self._lengths, self._offsets
        return out

    @staticmethod
    def of_offsets(data: Any, offsets: Any) -> LoDTensor:
        """The rows ``data`` with the engine's offsets, which are known to fit."""
        out = object.__new__(LoDTensor)
        out.data = data
        out._lengths = [level.diff().cpu().numpy() for level in offsets.levels]
        out._offsets = offsets
        return out

    @property
    def shape(self) -> tuple[int, ...]:
        """The packed shape, ``(rows, *row)``."""
        return self.data.shape

    @property
    def dtype(self) -> Any:
        """The element type of the rows."""
        return self.data.dtype

    @property
    def sequence_lengths(self) -> list[list[int]]:
        """For each level the lengths of its sequences."""
        return [level.tolist() for level in self._lengths]

    @property
    def lod_level(self) -> int:
        return len(self._lengths)

    def __len__(self) -> int:
        """The number of outermost sequences."""
        return len(self._lengths[0]) if self._lengths else len(self.data)

    def __iter__(self) -> Iterator[Any]:
        """The outermost sequences, as `to_list` gives them."""
        return iter(self.to_list())

    def choose(self, sequences: Any) -> LoDTensor:
        """The outermost sequences of these numbers, in this order, as a ragged tensor of their own."""
        import numpy

        chosen = numpy.asarray(sequences, dtype=numpy.int64)
        lengths: list[Any] = []
        for level in self._lengths:
            taken = level[chosen]
            begin = numpy.concatenate([[0], numpy.cumsum(level)])[:-1][chosen]
            # the parts of each chosen sequence stand one after the other: its first one, then one more each
            chosen = numpy.repeat(begin - numpy.concatenate([[0], numpy.cumsum(taken)])[:-1], taken) + numpy.arange(int(taken.sum()))
            lengths.append(taken)
        return LoDTensor.of_lengths(self.data[chosen], lengths)

    @staticmethod
    def joined(parts: Sequence[LoDTensor]) -> LoDTensor:
        """The outermost sequences of ragged tensors, ``parts``, of one depth, one after the other. Raises `FeedError` where their rows differ in shape."""
        import numpy

        try:
            rows = numpy.concatenate([numpy.asarray(p.data) for p in parts])
        except ValueError as error:
            raise FeedError(f"ragged tensors can be joined where their rows have one shape: {error}") from None
        return LoDTensor.of_lengths(rows, [numpy.concatenate(levels) for levels in zip(*(p._lengths for p in parts), strict=True)])

    def offsets(self) -> list[list[int]]:
        """The same as offsets: for each level a list that begins with 0."""
        import numpy

        return [[0, *numpy.cumsum(level).tolist()] for level in self._lengths]

    def offsets_on(self, device: Any) -> Any:
        """The offsets as the engine's kernels take them; made once, and on a device other than the CPU where that is given."""
        if self._offsets is None or self._offsets.levels[0].device != (device or self._offsets.levels[0].device):
            levels = [to_tensor(level) for level in self._lengths]
            self._offsets = Offsets.of_lengths(*(levels if device is None else [level.to(device) for level in levels]))
        return self._offsets

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        return numpy.array(self.data, dtype=dtype, copy=copy) if copy is not None else numpy.asarray(self.data, dtype=dtype)

    def to_list(self) -> list[Any]:
        """The sequences as arrays ``[length, *row]``, in as many nested lists as there are levels. They are views of the rows."""
        parts: Any = self.data
        for offsets in reversed(self.offsets()):
            parts = [parts[a:b] for a, b in pairwise(offsets)]
        return parts if isinstance(parts, list) else list(parts)  # pyright: ignore[reportUnknownVariableType]

    def __repr__(self) -> str:
        levels = ", ".join(_shortened(level) for level in self._lengths)
        return f"LoDTensor({self.data.dtype}{list(self.data.shape)}, sequence_lengths=[{levels}],\n{self.data})"


def _array(data: Any) -> Any:
    """Packed rows as an array. Raises `FeedError` for what has none."""
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


def _shortened(level: Any, most: int = 12) -> str:
    """The lengths of a level, as a list; of many the first and the last."""
    if len(level) <= most:
        return str(level.tolist())
    half = most // 2
    return f"[{', '.join(map(str, level[:half].tolist()))}, ... {len(level) - 2 * half} more ..., {', '.join(map(str, level[-half:].tolist()))}]"


def _whole_numbers(level: Any) -> Any:
    """The lengths of one level as int64. Raises `TypeError` where they are something else."""
    import numpy

    given = numpy.asarray(level)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
        given = numpy.array([operator.index(n) for n in level], dtype=numpy.int64)
    return given.astype(numpy.int64)
