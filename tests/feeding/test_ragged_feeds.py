"""Ragged data as users have them: lists, LoDTensor, torch nested tensors; and what is wrong with some."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from ragged_values import PACKED, SEQUENCES, check, fed

import foreshape as fs
from foreshape import layer
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import FeedError

nested: Any = torch.nested


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


@pytest.mark.parametrize(
    ("pair", "remedy"),
    [
        ((PACKED, [4, 0, 5]), r"lengths: feed fs.LoDTensor\(data, \[\[4, 0, 5\]\]\)"),
        ((PACKED, np.array([0, 4, 4, 9])), r"offsets: feed fs.LoDTensor.from_offsets\(data, \[\[0, 4, 4, 9\]\]\)"),
        ((torch.as_tensor(PACKED), [4, 5]), r"lengths: feed fs.LoDTensor\(data, \[\[4, 5\]\]\)"),
    ],
)
def test_a_tuple_of_rows_and_their_lengths_is_no_pair_of_sequences(pair: Any, remedy: str) -> None:
    with pytest.raises(FeedError, match=f"x is fed a tuple of 9 rows and, as it seems, their {remedy}, or two sequences as a list"):
        fed(pair)


def test_ids_and_their_lengths_of_one_kind_are_warned_of() -> None:
    ids = layer.data("ids", ["words"], "int64", lod_level=1)
    run = fs.Executor().run
    with pytest.raises(FeedError, match=r"feed fs.LoDTensor\(data, \[\[3, 6\]\]\)"):
        run(feed={"ids": (np.arange(9), [3, 6])}, fetch=[ids])
    with pytest.warns(fs.ForeshapeWarning, match=r"feed fs.LoDTensor\(data, \[\[3, 6\]\]\), .*; it is taken as two sequences"):
        (got,) = run(feed={"ids": (np.arange(9), np.array([3, 6]))}, fetch=[ids])
    assert got.sequence_lengths == [[9, 2]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in ([np.arange(9), [3, 6]], (np.arange(9), [3, 5]), (np.arange(9), [3, 5, 1], [2])):
            run(feed={"ids": given}, fetch=[ids])


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
    "nothing": ([None], 1, "x[0] must be a sequence, and it is missing (None)"),
    "nothing-deep": ([None], 2, "x[0] must be a list"),
    "mixed": ([SEQUENCES[0], SEQUENCES[2].astype(np.int64)], 1, "x: all sequences must be of one kind of number; seen are float32, int64"),
    "mixed-tensors": ([SEQUENCES[0], torch.ones(2, 3, dtype=torch.int64)], 1, "x: all sequences must be of one kind of number"),
    "doubles": ([SEQUENCES[0].astype(np.float64) + 1e300], 1, "x must be fp32; fed is fp64 with 1e+300"),
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


@pytest.mark.quick_cases("strided")
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
