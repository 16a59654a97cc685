"""List columns that are fed as ragged data: stand-ins with the interfaces of Arrow and awkward, then the packages themselves where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from ragged_values import PACKED, SEQUENCES, check, fed
from support.counted import calls

from foreshape import layer
from foreshape.errors import FeedError
from foreshape.runtime.feeding.ragged import as_ragged


class ArrowNumbers:
    """What Arrow's arrays of numbers have."""

    def __init__(self, numbers: Any, null_count: int = 0) -> None:
        self.numbers, self.null_count, self.type = np.asarray(numbers), null_count, object()

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, offset: int, length: int) -> ArrowNumbers:
        return ArrowNumbers(self.numbers[offset : offset + length])

    def to_numpy(self, zero_copy_only: bool) -> np.ndarray:
        assert not zero_copy_only
        return self.numbers


class ArrowLists:
    """A list array, perhaps a slice of a longer one: the offsets are then those of its part."""

    def __init__(self, values: Any, offsets: Sequence[int], null_count: int = 0) -> None:
        self.values, self.offsets, self.null_count, self.type = values, ArrowNumbers(np.array(offsets, np.int32)), null_count, object()
        self.offsets.__class__.__array__ = lambda self, dtype=None, copy=None: self.numbers  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, offset: int, length: int) -> ArrowLists:
        return ArrowLists(self.values, self.offsets.numbers[offset : offset + length + 1].tolist())


class ArrowFixed:
    """Lists of one length."""

    class Size:
        list_size = 3

    def __init__(self, values: ArrowNumbers) -> None:
        self.values, self.null_count, self.type = values, 0, self.Size()

    def __len__(self) -> int:
        return len(self.values) // 3

    def slice(self, offset: int, length: int) -> ArrowFixed:
        return ArrowFixed(self.values.slice(offset * 3, length * 3))

    def flatten(self) -> ArrowNumbers:
        return self.values


class ArrowChunks:
    def __init__(self, whole: Any) -> None:
        self.chunks, self.whole = [whole], whole

    def combine_chunks(self) -> Any:
        return self.whole


for stand_in in (ArrowNumbers, ArrowLists, ArrowFixed, ArrowChunks):
    stand_in.__module__ = "pyarrow.lib"


class AwkwardNumbers:
    def __init__(self, data: Any) -> None:
        self.data = np.asarray(data)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, part: slice) -> AwkwardNumbers:
        return AwkwardNumbers(self.data[part])


class AwkwardIndex:
    def __init__(self, data: Any) -> None:
        self.data = np.asarray(data)


class AwkwardLists:
    def __init__(self, content: Any, offsets: Sequence[int]) -> None:
        self.content, self.offsets = content, AwkwardIndex(offsets)

    def __len__(self) -> int:
        return len(self.offsets.data) - 1

    def __getitem__(self, part: slice) -> AwkwardLists:
        return AwkwardLists(self.content, self.offsets.data[part.start : part.stop + 1].tolist())

    def to_ListOffsetArray64(self, start_at_zero: bool) -> AwkwardLists:
        first, last = int(self.offsets.data[0]), int(self.offsets.data[-1])
        return AwkwardLists(self.content[first:last], (self.offsets.data - first).tolist()) if start_at_zero else self


class AwkwardOption:
    is_option = True

    def __init__(self, content: Any, count: int) -> None:
        self.content, self.count = content, count

    def __len__(self) -> int:
        return self.count

    def project(self) -> Any:
        return self.content


class AwkwardRecords:
    is_record = True


class AwkwardArray:
    def __init__(self, layout: Any) -> None:
        self.layout = layout


AwkwardArray.__module__ = "awkward.highlevel"

IDS = [9, 9, 5, 3, 1, 2, 4, 9]
COLUMN = np.array([[5], [3], [1], [2], [4]])
ARROW_IDS = ArrowLists(ArrowNumbers(IDS), [2, 4, 4, 7])
AWKWARD_IDS = AwkwardLists(AwkwardNumbers(IDS), [2, 4, 4, 7])


def test_list_columns() -> None:
    for column in (ARROW_IDS, ArrowChunks(ARROW_IDS), AwkwardArray(AWKWARD_IDS), AwkwardArray(AwkwardOption(AWKWARD_IDS, 3))):
        check(fed(column, (-1, 1), dtype="int64"), COLUMN, [2, 0, 3])
        check(fed(column, (-1,), dtype="int64"), COLUMN[:, 0], [2, 0, 3])


def test_list_columns_of_two_levels() -> None:
    for column in (ArrowLists(ARROW_IDS, [1, 2, 2, 3]), AwkwardArray(AwkwardLists(AWKWARD_IDS, [1, 2, 2, 3]))):
        check(fed(column, (-1, 1), levels=2, dtype="int64"), COLUMN[2:], [1, 0, 1], [0, 3])


def test_list_columns_of_rows() -> None:
    flat = PACKED.reshape(-1)
    even = [*range(0, 28, 3)]
    for column in (
        ArrowLists(ArrowFixed(ArrowNumbers(flat)), [0, 4, 4, 9]),
        ArrowLists(ArrowLists(ArrowNumbers(flat), even), [0, 4, 4, 9]),
        AwkwardArray(AwkwardLists(AwkwardLists(AwkwardNumbers(flat), even), [0, 4, 4, 9])),
        AwkwardArray(AwkwardLists(AwkwardNumbers(PACKED), [0, 4, 4, 9])),
    ):
        check(fed(column), PACKED, [4, 0, 5])
    check(fed(AwkwardArray(AwkwardNumbers(PACKED.reshape(3, 3, 3)))), PACKED, [3, 3, 3])
    uneven = [0, 3, 5, *range(9, 28, 3)]
    for column in (ArrowLists(ArrowLists(ArrowNumbers(flat), uneven), [0, 9]), AwkwardArray(AwkwardLists(AwkwardLists(AwkwardNumbers(flat), uneven), [0, 9]))):
        with pytest.raises(FeedError, match=r"x must have rows \[3\]; the lists of the column at depth 2 have 3 elements and, number 1, 2"):
            fed(column)


def test_list_columns_of_nothing() -> None:
    class Unknown:
        is_unknown = True

        def __len__(self) -> int:
            return 0

        def __getitem__(self, part: slice) -> Any:
            return self

    check(fed(ArrowLists(ArrowNumbers(np.zeros(0, np.float32)), [0])), np.zeros((0, 3), np.float32), [])
    check(fed(ArrowLists(ArrowLists(ArrowNumbers(np.zeros(0, np.float32)), [0]), [0, 0])), np.zeros((0, 3), np.float32), [0])
    check(fed(ArrowLists(ArrowNumbers(np.zeros(0, np.int64)), [0, 0]), (-1, 1), dtype="int64"), np.zeros((0, 1), np.int64), [0])
    check(fed(AwkwardArray(AwkwardLists(Unknown(), [0, 0, 0])), (-1, 1)), np.zeros((0, 1), np.float32), [0, 0])
    check(fed(AwkwardArray(Unknown()), levels=2), np.zeros((0, 3), np.float32), [], [])


BAD_COLUMNS: dict[str, tuple[Any, int, str]] = {
    "fall": (ArrowLists(ArrowNumbers(IDS), [0, 4, 2, 7]), 1, "the offsets of a list column must rise from 0 to at most 8; they fall from 4 to 2"),
    "past": (ArrowLists(ArrowNumbers(IDS), [0, 9]), 1, "must rise from 0 to at most 8; they go from 0 to 9"),
    "negative": (ArrowLists(ArrowNumbers(IDS), [-1, 7]), 1, "they go from -1 to 7"),
    "nulls": (ArrowLists(ArrowNumbers(IDS), [0, 8], null_count=1), 1, "no missing values; fed is an Arrow column with 1 of them"),
    "nones": (AwkwardArray(AwkwardOption(AWKWARD_IDS, 5)), 1, "no missing values; fed is an awkward array with 2 of them"),
    "shallow": (ARROW_IDS, 2, "x has 2 levels of sequences; fed is a column with 1 level of lists"),
    "flat": (ArrowNumbers(IDS), 1, "x has 1 level of sequences; fed is a column with 0 levels of lists"),
    "texts": (ArrowLists(ArrowNumbers(np.array(["a", "b"], object)), [0, 2]), 1, "made of numbers or lists of numbers; fed are elements of object"),
    "records": (AwkwardArray(AwkwardRecords()), 1, "made of lists of numbers; fed is an awkward array with a AwkwardRecords"),
    "deep": (ArrowLists(ARROW_IDS, [0, 3]), 1, "x must have rows [1]; the lists of the column at depth 2 have 2 elements and, number 1, 0"),
}


@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_columns_that_are_wrong_are_refused_with_words(name: str) -> None:
    column, levels, says = BAD_COLUMNS[name]
    with pytest.raises(FeedError) as caught:
        fed(column, (-1, 1), levels=levels, dtype="int64")
    assert says in str(caught.value) and "x" in str(caught.value)


def test_arrows_own_columns() -> None:
    pa: Any = pytest.importorskip("pyarrow")
    lists = [[9, 9], [5, 3], [], [1, 2, 4], [9]]
    column = pa.array(lists, pa.list_(pa.int64())).slice(1, 3)
    for given in (column, pa.array(lists, pa.large_list(pa.int64())).slice(1, 3), pa.chunked_array([column.slice(0, 1), column.slice(1, 2)])):
        check(fed(given, (-1, 1), dtype="int64"), COLUMN, [2, 0, 3])
    views = pa.ListViewArray.from_arrays([4, 0, 1, 0], [1, 2, 0, 3], pa.array([1, 2, 4, 8, 16]))  # in any order, and with parts in common
    check(fed(views, (-1, 1), dtype="int64"), np.array([[16], [1], [2], [1], [2], [4]]), [1, 2, 0, 3])
    check(fed(views.slice(1, 2), (-1, 1), dtype="int64"), np.array([[1], [2]]), [2, 0])
    with pytest.raises(FeedError, match="x: the lists of a column must be within its 2 values; they go from 0 to 3"):
        fed(pa.ListViewArray.from_arrays([0], [3], pa.array([1, 2])), (-1, 1), dtype="int64")
    deep = pa.array([[[9]], [[], [1, 2, 4]], []]).slice(1, 2)
    check(fed(deep, (-1, 1), levels=2, dtype="int64"), COLUMN[2:], [2, 0], [0, 3])
    vectors = pa.array([s.tolist() for s in SEQUENCES], pa.list_(pa.list_(pa.float32(), 3)))
    check(fed(vectors), PACKED, [4, 0, 5])
    check(fed(vectors.slice(1, 2)), PACKED[4:], [0, 5])
    check(fed(pa.array([], pa.list_(pa.int64())), (-1, 1), dtype="int64"), np.zeros((0, 1), np.int64), [])
    for wrong in (pa.array([[1], None]), pa.array([[1, None]]), pa.array([["a"]]), pa.array([1, 2])):
        with pytest.raises(FeedError):
            fed(wrong, (-1, 1), dtype="int64")


def test_awkwards_own_arrays() -> None:
    ak: Any = pytest.importorskip("awkward")
    whole = ak.Array([[9, 9], [5, 3], [], [1, 2, 4], [9]])
    for given in (whole[1:4], whole[[1, 2, 3]], ak.Array([[5, 3], None, [], [1, 2, 4]])[[0, 2, 3]]):
        check(fed(given, (-1, 1), dtype="int64"), COLUMN, [2, 0, 3])
    check(fed(ak.Array([[[9]], [[], [1, 2, 4]], []])[1:], (-1, 1), levels=2, dtype="int64"), COLUMN[2:], [2, 0], [0, 3])
    check(fed(ak.values_astype(ak.Array([s.tolist() for s in SEQUENCES]), "float32")), PACKED, [4, 0, 5])
    check(fed(ak.Array([]), (-1, 1), dtype="int64"), np.zeros((0, 1), np.int64), [])
    for wrong in (ak.Array([[1], None]), ak.Array([[1, None]]), ak.Array([["a"]]), ak.Array([{"a": 1}]), ak.Array([1, 2])):
        with pytest.raises(FeedError):
            fed(wrong, (-1, 1), dtype="int64")


MAKERS = [lambda v, o: ArrowLists(ArrowNumbers(v), o), lambda v, o: AwkwardArray(AwkwardLists(AwkwardNumbers(v), o))]


@pytest.mark.parametrize("make", MAKERS, ids=["arrow", "awkward"])
def test_a_column_is_taken_without_looking_at_each_element(make: Callable[[Any, Any], Any]) -> None:
    spec = layer.data("x", shape=[-1, 1], lod_level=1, dtype="int64").spec

    def taken(count: int) -> int:
        column = make(np.arange(5 * count), np.arange(0, 5 * count + 1, 5))
        return calls(lambda: as_ragged("x", column, spec))

    taken(1)
    assert taken(10_000) == taken(10)
