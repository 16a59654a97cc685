"""Ragged data as users have them: lists, LoDTensor, torch nested tensors, list columns; and what is wrong with some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.errors import FeedError
from foreshape.values.lod_tensor import LoDTensor

nested: Any = torch.nested


def fed(value: Any, shape: Sequence[Any] = (-1, 3), levels: int = 1, dtype: str = "fp32") -> LoDTensor:
    """The value after a program has taken it in and given it back."""
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", shape=list(shape), lod_level=levels, dtype=dtype)
        y = program.global_block.apply("assign", {"X": x})
    out = fs.Executor().run(program, {"x": value}, [y], fs.Scope())[0]
    assert isinstance(out, LoDTensor)
    return out


def rows(*lengths: int, width: int = 3) -> list[np.ndarray]:
    """Sequences of these lengths, every number different."""
    total = sum(lengths)
    data = np.arange(total * width, dtype=np.float32).reshape(total, width)
    return np.split(data, np.cumsum(lengths)[:-1])


def check(got: LoDTensor, data: Any, *lengths: Sequence[int]) -> None:
    assert got.sequence_lengths == [list(level) for level in lengths]
    np.testing.assert_array_equal(got.data, data)
    assert got.data.shape == np.shape(data)


SEQUENCES = rows(4, 0, 5)
PACKED = np.concatenate(SEQUENCES)


# --- the values themselves


def test_offsets_say_what_lengths_say() -> None:
    a = LoDTensor(PACKED, [[2, 1], [4, 0, 5]])
    b = LoDTensor.from_offsets(PACKED, [[0, 2, 3], [0, 4, 4, 9]])
    assert a.offsets() == b.offsets() == [[0, 2, 3], [0, 4, 4, 9]]
    assert b.sequence_lengths == [[2, 1], [4, 0, 5]]
    check(fed(b, levels=2), PACKED, [2, 1], [4, 0, 5])


def test_iterating_gives_the_outermost_sequences() -> None:
    for value in (LoDTensor(PACKED, [[4, 0, 5]]), LoDTensor(PACKED, [[2, 1], [4, 0, 5]])):
        assert len(list(value)) == len(value)
    for got, wanted in zip(LoDTensor(PACKED, [[4, 0, 5]]), SEQUENCES, strict=True):
        np.testing.assert_array_equal(got, wanted)
    outer = list(LoDTensor(PACKED, [[2, 1], [4, 0, 5]]))
    assert [[len(inner) for inner in sequence] for sequence in outer] == [[4, 0], [5]]


def test_none_is_no_value() -> None:
    with pytest.raises(FeedError, match=r"x \(f32\[x \| batch, 3\], described at .*\) is fed None, which is no value"):
        fed(None)


def test_the_number_of_rows_is_not_that_of_sequences() -> None:
    with pytest.raises(fs.ShapeError, match=r"""data\("x"\) is ragged: .* name it otherwise, as in \['words', 3\]"""):
        fed(SEQUENCES, shape=("batch", 3))


def test_a_layer_that_cannot_be_made_of_ids_says_what_they_are_and_where() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        ids = layer.data("ids", shape=["words"], dtype="int64", lod_level=1)
        with pytest.raises(fs.ShapeError, match=r"fc\(ids\): the input must be .* it is i64\[words \| batch\]\n    at layer.fc\(ids, 3\)"):
            layer.fc(ids, 3)
        with pytest.raises(fs.ShapeError, match=r"sequence_conv\(ids\): .* it is i64\[words \| batch\]\n    at layer.sequence_conv\(ids, 3\)"):
            layer.sequence_conv(ids, 3)


def test_a_mean_is_an_average() -> None:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", shape=["rows", 3], lod_level=1)
        pooled = [layer.sequence_pool(x, name) for name in ("mean", "average")]
    mean, average = fs.Executor().run(program, {"x": SEQUENCES}, pooled, fs.Scope())
    np.testing.assert_array_equal(mean, average)
    np.testing.assert_allclose(mean, [SEQUENCES[0].mean(0), np.zeros(3), SEQUENCES[2].mean(0)])


@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        ([[]], "must begin with 0; those of level 0 are empty"),
        ([[1, 9]], "must begin with 0; those of level 0 begin with 1"),
        ([[-1, 9]], "begin with -1"),
        ([[0, 5, 4, 9]], "must not fall; those of level 0 go from 5 to 4, at 1"),
        ([[0, -(2**63), 9]], "must not fall"),
        ([[0, 4]], "sum to 4, and there are 9 rows"),
        ([[0, 10]], "sum to 10, and there are 9 rows"),
        ([[0, 1], [0, 4, 9]], "sum to 1, and there are 2 sequences of level 1"),
        ([[0, 9.5]], "list of whole numbers"),
        ([0, 9], "list of whole numbers"),
        (None, "list of levels"),
    ],
)
def test_offsets_that_are_none_are_refused(offsets: Any, says: str) -> None:
    with pytest.raises(FeedError) as caught:
        LoDTensor.from_offsets(PACKED, offsets)
    assert says in str(caught.value)


def test_what_has_no_rows_is_refused() -> None:
    for data in (np.float32(1), [[1.0], [1.0, 2.0]], np.ma.masked_array(PACKED, PACKED > 3)):
        with pytest.raises(FeedError):
            LoDTensor(data, [[1, 8]])


def test_a_ragged_tensor_as_lists() -> None:
    parts = LoDTensor(PACKED, [[4, 0, 5]]).to_list()
    assert [p.shape for p in parts] == [(4, 3), (0, 3), (5, 3)]
    np.testing.assert_array_equal(np.concatenate(parts), PACKED)
    deep = LoDTensor(PACKED, [[2, 0, 1], [4, 0, 5]]).to_list()
    assert [[p.shape for p in d] for d in deep] == [[(4, 3), (0, 3)], [], [(5, 3)]]
    assert LoDTensor(PACKED[:0], [[]]).to_list() == []
    check(fed(deep, levels=2), PACKED, [2, 0, 1], [4, 0, 5])


def test_it_prints_what_it_is() -> None:
    assert repr(LoDTensor(np.array([[1], [2], [3]]), [[1, 0, 2]])) == "LoDTensor(int64[3, 1], sequence_lengths=[[1, 0, 2]],\n[[1]\n [2]\n [3]])"
    long = repr(LoDTensor(np.zeros((2000, 4)), [[2] * 1000]))
    assert "[2, 2, 2, 2, 2, 2, ... 988 more ..., 2, 2, 2, 2, 2, 2]" in long and len(long) < 500


# --- lists


def test_lists_of_arrays() -> None:
    check(fed(SEQUENCES), PACKED, [4, 0, 5])
    check(fed(tuple(SEQUENCES)), PACKED, [4, 0, 5])
    check(fed([torch.from_numpy(s) for s in SEQUENCES]), PACKED, [4, 0, 5])
    check(fed([SEQUENCES[0], torch.from_numpy(SEQUENCES[1]), torch.from_numpy(SEQUENCES[2])]), PACKED, [4, 0, 5])
    check(fed([s.tolist() for s in SEQUENCES]), PACKED, [4, 0, 5])
    check(fed([SEQUENCES[0], [], SEQUENCES[2].tolist()]), PACKED, [4, 0, 5])
    check(fed([s[::-1] for s in SEQUENCES]), np.concatenate([s[::-1] for s in SEQUENCES]), [4, 0, 5])
    check(fed([s.astype(">f4") for s in SEQUENCES]), PACKED, [4, 0, 5])
    objects = np.empty(3, dtype=object)
    objects[:] = SEQUENCES
    check(fed(objects), PACKED, [4, 0, 5])


def test_lists_of_lists_of_arrays() -> None:
    check(fed([SEQUENCES[:2], SEQUENCES[2:]], levels=2), PACKED, [2, 1], [4, 0, 5])
    check(fed([[], SEQUENCES], levels=2), PACKED, [0, 3], [4, 0, 5])
    check(fed([[SEQUENCES[:2], []], [SEQUENCES[2:]]], levels=3), PACKED, [2, 1], [2, 0, 1], [4, 0, 5])


def test_lists_of_ids_with_the_last_dim_left_out() -> None:
    ids, lengths = [[5, 3], [], [1, 2, 4]], [2, 0, 3]
    column = np.array([[5], [3], [1], [2], [4]])
    check(fed(ids, (-1, 1), dtype="int64"), column, lengths)
    check(fed(ids, (-1,), dtype="int64"), column[:, 0], lengths)
    check(fed([np.array(s, np.int64) for s in ids], (-1, 1), dtype="int64"), column, lengths)
    check(fed([np.array(s, np.int64)[:, None] for s in ids], (-1, 1), dtype="int64"), column, lengths)
    check(fed([[[5], [3]], [], [[1], [2], [4]]], (-1, 1), dtype="int64"), column, lengths)
    check(fed(LoDTensor(column[:, 0], [lengths]), (-1, 1), dtype="int64"), column, lengths)
    check(fed([ids, [[7]]], (-1, 1), levels=2, dtype="int64"), np.array([[5], [3], [1], [2], [4], [7]]), [3, 1], [2, 0, 3, 1])


def test_numbers_of_python_take_the_programs_type() -> None:
    assert fed([[1, 2], [3]], (-1,), dtype="int32").data.dtype == np.int32
    assert fed([[1, 2], [3]], (-1,), dtype="fp32").data.dtype == np.float32
    assert fed([[1.5], [3]], (-1, 1), dtype="fp64").data.tolist() == [[1.5], [3.0]]
    assert fed([[True], [False, True]], (-1,), dtype="bool").data.tolist() == [True, False, True]
    for wrong, dtype in (([[1.5]], "int64"), ([[2**40]], "int32"), ([[True]], "int64"), ([[-1]], "uint8"), ([[2**70]], "int64"), ([[1]], "bool")):
        with pytest.raises(FeedError, match="x"):
            fed(wrong, (-1,), dtype=dtype)


def test_batches_of_nothing() -> None:
    check(fed([]), np.zeros((0, 3), np.float32), [])
    check(fed([], levels=2), np.zeros((0, 3), np.float32), [], [])
    check(fed([[], []]), np.zeros((0, 3), np.float32), [0, 0])
    check(fed([[], [[], []]], levels=2), np.zeros((0, 3), np.float32), [0, 2], [0, 0])
    check(fed([np.zeros((0, 7), np.float32)], (-1, -1)), np.zeros((0, 7), np.float32), [0])
    check(fed(LoDTensor(np.zeros((0, 3), np.float32), [[]])), np.zeros((0, 3), np.float32), [])
    with pytest.raises(FeedError, match="nothing tells the size of a row"):
        fed([], (-1, -1))


WRONG: dict[str, tuple[Any, int, str]] = {
    "dense": (PACKED, 1, "x is ragged, f32[x | batch, 3]: feed a LoDTensor(data, sequence_lengths), a list of arrays"),
    "a-number": (3.0, 1, "x is ragged"),
    "text": ("text", 1, "x is ragged"),
    "sparse": (fs.SelectedRows([0], np.ones((1, 3), np.float32), 2), 1, "sparse rows were fed"),
    "levels": (LoDTensor(PACKED, [[4, 5]]), 2, "x has 2 levels of sequences; fed are 1"),
    "too-shallow": (SEQUENCES, 2, "x[0] must be a list, since x has 2 levels of sequences (a list of lists of arrays); seen float32 [4, 3]"),
    "too-shallow-below": ([SEQUENCES, [1.0]], 2, "x[1][0] must be one sequence of"),
    "too-deep": ([SEQUENCES[:2], SEQUENCES[2:]], 1, "x[0] must be one sequence of f32[x | batch, 3], [length, 3]"),
    "too-deep-even": ([[SEQUENCES[0], SEQUENCES[0]]], 1, "seen float32 [2, 4, 3]"),
    "a-row-too-many": ([SEQUENCES[0], SEQUENCES[2][0]], 1, "x[1] must be one sequence of f32[x | batch, 3], [length, 3]; seen float32 [3]"),
    "width": ([SEQUENCES[0], SEQUENCES[2][:, :2]], 1, "x[1] must be one sequence of f32[x | batch, 3], [length, 3]; seen float32 [5, 2]"),
    "width-deep": ([[], [SEQUENCES[0], SEQUENCES[2][:, :2]]], 2, "x[1][1] must be one sequence"),
    "numbers": ([1.0, 2.0], 1, "x[0] must be one sequence of"),
    "ragged-rows": ([[[1.0, 2.0, 3.0], [1.0]]], 1, "x[0] must be one sequence of"),
    "texts": ([["a"]], 1, "x[0] must be one sequence of"),
    "nothing": ([None], 1, "x[0] must be one sequence of"),
    "nothing-deep": ([None], 2, "x[0] must be a list"),
    "mixed": ([SEQUENCES[0], SEQUENCES[2].astype(np.int64)], 1, "x: all sequences must be of one kind of number; seen are float32, int64"),
    "mixed-tensors": ([SEQUENCES[0], torch.ones(2, 3, dtype=torch.int64)], 1, "x: all sequences must be of one kind of number"),
    "doubles": ([SEQUENCES[0].astype(np.float64)], 1, "x must be fp32; fed is fp64"),
    "masked": ([np.ma.masked_array(PACKED, PACKED > 3)], 1, "without masked elements"),
    "a-dict": ([{"a": 1}], 1, "x[0] must be one sequence of"),
    "rows-of-a-lod-tensor": (LoDTensor(PACKED[:, :2], [[4, 5]]), 1, "dim 1 must be 3, not 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_the_programs_is_refused_with_words(name: str) -> None:
    value, levels, says = WRONG[name]
    with pytest.raises(FeedError) as caught:
        fed(value, levels=levels)
    assert says in str(caught.value) and "x" in str(caught.value)


def test_rows_whose_size_is_a_symbol_must_agree() -> None:
    check(fed(SEQUENCES, (-1, "width")), PACKED, [4, 0, 5])
    with pytest.raises(FeedError, match=r"x\[2\] must be \[length, 3\], as the sequences before it; seen float32 \[5, 2\]"):
        fed([SEQUENCES[0], SEQUENCES[1], SEQUENCES[2][:, :2]], (-1, "width"))


# --- torch nested tensors


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=["jagged", "strided"])
def test_nested_tensors(layout: Any) -> None:
    def made(parts: Sequence[np.ndarray]) -> Any:
        return nested.nested_tensor([torch.tensor(p) for p in parts], layout=layout)

    check(fed(made(SEQUENCES)), PACKED, [4, 0, 5])
    check(fed(made([s[:, 0] for s in SEQUENCES]), (-1, 1)), PACKED[:, :1], [4, 0, 5])
    check(fed(made([s[:, 0] for s in SEQUENCES]), (-1,)), PACKED[:, 0], [4, 0, 5])
    check(fed(made([p.reshape(-1, 3, 1) for p in SEQUENCES]), (-1, 3, 1)), PACKED[:, :, None], [4, 0, 5])
    with pytest.raises(FeedError, match="x has 2 levels of sequences; fed is a nested tensor, which has 1"):
        fed(made(SEQUENCES), levels=2)
    with pytest.raises(FeedError, match="dim 1 must be 3, not 2"):
        fed(made([s[:, :2] for s in SEQUENCES]))
    grown = made(SEQUENCES).requires_grad_()
    check(fed(grown), PACKED, [4, 0, 5])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_other_layouts() -> None:
    whole = torch.arange(24.0).reshape(2, 4, 3)
    narrow = nested.narrow(whole, 1, torch.tensor([1, 0]), torch.tensor([2, 3]), layout=torch.jagged)  # rows are left out between them
    check(fed(narrow), torch.cat([whole[0, 1:3], whole[1, :3]]).numpy(), [2, 3])
    turned = nested.nested_tensor([torch.from_numpy(s.T.copy()) for s in SEQUENCES]).transpose(1, 2)
    check(fed(turned), PACKED, [4, 0, 5])
    check(fed(nested.nested_tensor([])), np.zeros((0, 3), np.float32), [])
    with pytest.raises(FeedError, match="differ in more than dim 0: \\[2, 3\\], \\[2, 4\\]"):
        fed(nested.nested_tensor([torch.ones(2, 3), torch.ones(2, 4)]))
    with pytest.raises(FeedError, match="must be dim 1"):
        fed(nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged).transpose(1, 2))


# --- columns: stand-ins with the interfaces of Arrow and awkward, then the packages themselves where they are installed


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
    "texts": (ArrowLists(ArrowNumbers(np.array(["a", "b"], object)), [0, 2]), 1, "made of lists of numbers; fed are elements of object"),
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
    import sys

    def calls(count: int) -> int:
        offsets = np.arange(0, 5 * count + 1, 5)
        column, seen = make(np.arange(5 * count), offsets), [0]
        spec = layer_spec()
        sys.setprofile(lambda *_: seen.__setitem__(0, seen[0] + 1))
        try:
            as_ragged("x", column, spec)
        finally:
            sys.setprofile(None)
        return seen[0]

    from foreshape.engine.ragged import as_ragged

    def layer_spec() -> Any:
        with fs.program_guard(fs.Program(), fs.Program()):
            return layer.data("x", shape=[-1, 1], lod_level=1, dtype="int64").spec

    calls(1)
    assert calls(10_000) == calls(10)


@pytest.mark.parametrize("check", [False, True])
def test_rows_of_other_sequences_are_not_added(check: bool) -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x, y = (layer.data(n, shape=[-1, 2], lod_level=1) for n in "xy")
        both = layer.sequence_pool(x + y, "sum")
    ones = np.ones((6, 2), "float32")
    executor = fs.Executor(check=check)
    feed = {"x": fs.LoDTensor(ones, [[2, 4]]), "y": fs.LoDTensor(ones, [[2, 4]])}
    assert executor.run(main, feed, [both])[0].tolist() == [[4, 4], [8, 8]]
    with pytest.raises(fs.ExecutionError, match=r"x and y must be grouped into the same sequences; their lengths are \[2, 4\] and \[3, 3\]"):
        executor.run(main, feed | {"y": fs.LoDTensor(ones, [[3, 3]])}, [both])
