"""Columns of Arrow and awkward as flat values and lengths, without importing either: known by the module of their class.

Offsets are taken as whole arrays; a slice of a column, whose offsets do not begin with 0, is cut out of its values.
"""

from __future__ import annotations

from typing import Any

from foreshape.errors import FeedError

_MOST_DEPTH = 64


def column_of(name: str, column: Any, levels: int) -> tuple[Any, list[Any], list[Any]] | None:
    """Return the flat values of a list column, the lengths of each of its ``levels`` levels of sequences, and of each list level below.

    None if it is no column.

    Raises:
        FeedError: too few levels, missing values, or invalid offsets.
    """
    package = type(column).__module__.partition(".")[0]
    if package == "pyarrow":
        lengths, values = _arrow(name, column)
    elif package == "awkward":
        lengths, values = _awkward(name, getattr(column, "layout", column))
    else:
        return None
    while len(lengths) < levels and len(values.shape) > 1:  # even sequences are a block of numbers
        lengths.append(_even(values.shape[0], values.shape[1]))
        values = values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])
    if len(lengths) < levels:
        if len(values):
            required_words, found_words = (f"{n} level{'s' * (n != 1)} of" for n in (levels, len(lengths)))
            raise FeedError(f"{name} has {required_words} sequences; fed is a column with {found_words} lists")
        lengths += [_even(0, 0)] * (levels - len(lengths))  # of nothing awkward knows no levels
    return values, lengths[:levels], lengths[levels:]


def _even(count: int, length: int) -> Any:
    import numpy

    return numpy.full(count, length, dtype=numpy.int64)


def _lengths(name: str, offsets: Any, count: int, below: int) -> tuple[int, int, Any]:
    """Return the range of the parts that a list level takes from the next, and the lengths of its lists."""
    import numpy

    offsets = numpy.asarray(offsets)
    if offsets.dtype.kind not in "iu" or offsets.shape != (count + 1,):
        raise FeedError(f"{name}: a list column of {count} lists must have {count + 1} offsets; seen {offsets.dtype.name} {list(offsets.shape)}")
    offsets = offsets.astype(numpy.int64)
    lengths = numpy.diff(offsets)
    if (count and int(lengths.min()) < 0) or int(offsets[0]) < 0 or int(offsets[-1]) > below:
        falls = (lengths < 0).nonzero()[0]
        place = int(falls[0]) if len(falls) else 0
        fault = f"they fall from {int(offsets[place])} to {int(offsets[place + 1])}" if len(falls) else f"they go from {int(offsets[0])} to {int(offsets[-1])}"
        raise FeedError(f"{name}: the offsets of a list column must rise from 0 to at most {below}; {fault}")
    return int(offsets[0]), int(offsets[-1]), lengths


def _arrow(name: str, array: Any) -> tuple[list[Any], Any]:
    lengths: list[Any] = []
    if hasattr(array, "combine_chunks"):
        array = array.combine_chunks()
    for _ in range(_MOST_DEPTH):
        if hasattr(array, "chunks"):
            raise FeedError(f"{name}: an Arrow column that does not fit one array; feed it in parts")
        if hasattr(array, "storage"):  # an extension type
            array = array.storage
            continue
        if array.null_count:
            raise FeedError(f"{name}: a column that is fed has no missing values; fed is an Arrow column with {array.null_count} of them")
        if hasattr(array.type, "list_size"):
            lengths.append(_even(len(array), array.type.list_size))
            array = array.flatten()
        elif hasattr(array, "offsets") and hasattr(array, "sizes"):
            counts, array = _viewed(name, array)
            lengths.append(counts)
        elif hasattr(array, "offsets") and hasattr(array, "values"):
            values = array.values
            begin, end, counts = _lengths(name, array.offsets, len(array), len(values))
            lengths.append(counts)
            array = values.slice(begin, end - begin)
        elif hasattr(array, "indices") and hasattr(array, "dictionary"):
            raise FeedError(f"{name}: a column of categories has no numbers of its own: feed its .indices, of .combine_chunks()")
        else:
            return lengths, _numbers(name, array.to_numpy(zero_copy_only=False), f", Arrow's {array.type}")
    raise FeedError(f"{name}: a column of more than {_MOST_DEPTH} levels of lists")


def _viewed(name: str, array: Any) -> tuple[Any, Any]:
    """Return the lengths of lists that begin anywhere in their values, and these values in the order of the lists."""
    import numpy

    values, starts, counts = array.values, numpy.asarray(array.offsets).astype(numpy.int64), numpy.asarray(array.sizes).astype(numpy.int64)
    if len(counts) and (int(starts.min()) < 0 or int(counts.min()) < 0 or int((starts + counts).max()) > len(values)):
        raise FeedError(
            f"{name}: the lists of a column must be within its {len(values)} values; they go from {int(starts.min())} to {int((starts + counts).max())}"
        )
    return counts, values.take(numpy.repeat(starts - counts.cumsum() + counts, counts) + numpy.arange(int(counts.sum())))


def missing_in(array: Any) -> int:
    """Count the missing values of an Arrow column, at the outermost depth with any."""
    if hasattr(array, "chunks"):
        return sum(missing_in(chunk) for chunk in array.chunks)
    if hasattr(array, "storage"):  # an extension type
        return missing_in(array.storage)
    if array.null_count or not (hasattr(array.type, "list_size") or hasattr(array, "offsets")):
        return array.null_count
    return missing_in(array.flatten())


def _awkward(name: str, layout: Any) -> tuple[list[Any], Any]:
    import numpy

    lengths: list[Any] = []
    for _ in range(_MOST_DEPTH):
        if getattr(layout, "is_option", False) or getattr(layout, "is_indexed", False):
            count = len(layout)
            layout = layout.project()
            if len(layout) != count:
                raise FeedError(f"{name}: a column that is fed has no missing values; fed is an awkward array with {count - len(layout)} of them")
        elif getattr(layout, "is_unknown", False):
            return lengths, numpy.zeros(0, dtype=bool)  # the narrowest type: of nothing any will do
        elif hasattr(layout, "to_ListOffsetArray64"):
            lists = layout.to_ListOffsetArray64(True)
            content = lists.content
            offsets = lists.offsets
            begin, end, counts = _lengths(name, getattr(offsets, "data", offsets), len(lists), len(content))
            lengths.append(counts)
            layout = content[begin:end]
        elif hasattr(layout, "data") and not getattr(layout, "is_record", False):
            return lengths, _numbers(name, numpy.asarray(layout.data))
        else:
            raise FeedError(f"{name}: a ragged column is made of lists of numbers; fed is an awkward array with a {type(layout).__name__}")
    raise FeedError(f"{name}: a column of more than {_MOST_DEPTH} levels of lists")


def _numbers(name: str, array: Any, suffix: str = "") -> Any:
    if array.dtype.kind not in "iufb":
        raise FeedError(f"{name}: a column is made of numbers or lists of numbers; fed are elements of {array.dtype.name}{suffix}")
    return array
