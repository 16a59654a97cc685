"""Padded texts as the rows of all texts, and results of such rows in the form of padded ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from foreshape.core.dims import Size
from foreshape.core.spec import Spec
from foreshape.errors import FeedError
from foreshape.interop.batch_layout import Part
from foreshape.interop.results import Results

Array = Any


class PackedTexts(NamedTuple):
    """Some padded texts without padding.

    Attributes:
        rows: input -> the rows of all texts, ``[rows, ...]``.
        lengths: of the texts, int64 ``[texts]``.
        time: the padded length.
    """

    rows: dict[str, Array]
    lengths: Array
    time: int

    @property
    def is_full(self) -> bool:
        """Return True if no text has padding."""
        return len(self.lengths) * self.time == self.lengths.sum()


class UnprovedTexts(FeedError):
    """Padded texts outside the proof: their mask is not ones and zeros behind them, or a number is below 0 in an input of whole numbers."""


def packed_texts(feed: Mapping[str, Array], mask: str, inputs: Mapping[str, Spec]) -> PackedTexts:
    """Return padded texts without padding.

    Args:
        feed: inputs of texts, each ``[texts, time, ...]``, and the mask, ``[texts, time]``, or the lengths of the texts, ``[texts]``.
        mask: its name.
        inputs: the descriptions of all of them.

    Raises:
        UnprovedTexts: the proof says nothing of them. FeedError: the sizes of the inputs differ, or an input has another kind of numbers.
    """
    import numpy

    feed = {name: _typed(name, array, inputs[name]) for name, array in feed.items()}
    if not all(_fits(array, inputs[name].known_dims) for name, array in feed.items()) or len({array.shape[: feed[mask].ndim] for array in feed.values()}) > 1:
        expected, seen = ", ".join(f"{n} {spec.text()}" for n, spec in inputs.items()), ", ".join(f"{n} {[*array.shape]}" for n, array in feed.items())
        raise FeedError.must("the inputs", f"of the same texts and rows: {expected}", seen)
    arrays = {name: array for name, array in feed.items() if name != mask}
    if len({array.shape[:2] for array in arrays.values()}) > 1:
        raise FeedError.must("the inputs", "of the same padded length", ", ".join(f"{n} {[*array.shape]}" for n, array in arrays.items()))
    texts, time = next(iter(arrays.values())).shape[:2]
    lengths = _lengths(feed[mask], time)
    if lengths is None or not texts:
        raise UnprovedTexts(f"{mask} must be 1 for the rows of each text, one at least, and 0 for those behind them")
    if any(array.dtype.kind == "i" and array.size and array.min() < 0 for array in arrays.values()):
        raise UnprovedTexts("inputs of whole numbers must be 0 or more, as ids and positions are")
    if (lengths == time).all():
        return PackedTexts({name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()}, lengths, time)
    is_text: Array = numpy.arange(time) < lengths[:, None]  # pyright: ignore[reportUnknownVariableType]
    return PackedTexts({name: array[is_text] for name, array in arrays.items()}, lengths, time)


def _typed(name: str, array: Array, spec: Spec) -> Array:
    """Return an input in its element type, as a feed of whole or floating numbers comes into it."""
    import numpy

    dtype = numpy.dtype(spec.known_dtype.numpy_name or "void")
    if array.dtype == dtype:
        return array
    if (array.dtype.kind in "iu") != (dtype.kind in "iu") or array.dtype.kind not in "iuf" or dtype.kind not in "iuf":
        raise FeedError.must(name, f"of {dtype}", str(array.dtype))
    return array.astype(dtype)


def _fits(array: Array, dims: Sequence[Size]) -> bool:
    return array.ndim == len(dims) and all(size == n or not isinstance(size, int) for n, size in zip(array.shape, dims, strict=True))


def _lengths(mask: Array, time: int) -> Array | None:
    """Return the lengths of texts; None where rows are masked in another way than behind their text, or all of a text."""
    import numpy

    if mask.ndim == 1:
        return mask.astype("int64") if ((mask >= 1) & (mask <= time)).all() else None
    ones = mask == 1
    lengths = numpy.count_nonzero(ones, axis=1)
    if not (lengths >= 1).all():
        return None
    if (lengths == time).all():
        return lengths
    return lengths if (ones == (numpy.arange(time) < lengths[:, None])).all() and (ones | (mask == 0)).all() else None


class PackedJoining:
    """The joining of packed texts of several requests; see `Joining`.

    Args:
        row_results: the results with a row for each of a text; others have one for each text.
    """

    batch = "texts"
    growing = frozenset({"texts", "rows"})

    def __init__(self, row_results: frozenset[str]) -> None:
        self._row_results = row_results

    def part(self, feed: Mapping[str, Any]) -> Part:
        packed: PackedTexts = feed["packed"]
        sizes = {"texts": len(packed.lengths), "rows": int(packed.lengths.sum()), "longest": int(packed.lengths.max())}
        return Part({**feed}, sizes, ())

    def together(self, sizes: Mapping[str, int], part_sizes: Mapping[str, int]) -> dict[str, int]:
        return {name: size + part_sizes[name] if name in self.growing else max(size, part_sizes[name]) for name, size in sizes.items()}

    def joined(self, parts: Sequence[Part]) -> dict[str, Any]:
        import numpy

        several: list[PackedTexts] = [part.feed["packed"] for part in parts]
        if len(several) == 1:
            return {"packed": several[0]}
        rows = {name: numpy.concatenate([packed.rows[name] for packed in several]) for name in several[0].rows}
        return {"packed": PackedTexts(rows, numpy.concatenate([packed.lengths for packed in several]), max(packed.time for packed in several))}

    def split(self, results: Results, parts: Sequence[Part]) -> Iterator[Results]:
        first_text = first_row = 0
        for part in parts:
            text, row = first_text + part.sizes["texts"], first_row + part.sizes["rows"]
            yield Results(
                {
                    name: _padded(part.feed["packed"], value[first_row:row]) if name in self._row_results else value[first_text:text]
                    for name, value in results.items()
                },
                results.asked,
            )
            first_text, first_row = text, row


def _padded(packed: PackedTexts, rows: Array) -> Array:
    """Return the rows of texts as ``[texts, time, ...]``, with zeros for padding."""
    import numpy

    shape = (len(packed.lengths), packed.time, *rows.shape[1:])
    if packed.is_full:
        return rows.reshape(shape)
    out = numpy.zeros(shape, rows.dtype)
    out[numpy.arange(packed.time) < packed.lengths[:, None]] = rows
    return out
