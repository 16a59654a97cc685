"""Whole feeds and single inputs in the forms that users have them: tables, columns, tensors, tuples and data sets."""

from __future__ import annotations

import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer

X = np.arange(12, dtype="float32").reshape(4, 3)
N = np.array([5, 6, 7, 8])
WORDS = [[1, 2], [3], [], [4, 5, 6]]


def run(feed: Any, executor: fs.Executor | None = None, **described: tuple[Any, ...]) -> list[Any]:
    """What is taken of a feed for inputs of these shapes and element types: what the program has of each, unchanged."""
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        outs = [layer.scale(layer.data(name, shape=list(how[0]), dtype=how[1], lod_level=how[2] if len(how) > 2 else 0)) for name, how in described.items()]
    return (executor or fs.Executor()).run(main, feed, outs, fs.Scope())


def frame(library: str) -> Any:
    """A table with the columns a (int64), b (float64), words (lists) and pair (lists of 2), and one too many."""
    module: Any = pytest.importorskip(library)
    columns = {"a": [1, 2, 3, 4], "b": [0.5, 1.5, 2.5, 3.5], "words": WORDS, "pair": [[1.0, 2.0]] * 4}
    if library == "pyarrow":
        return module.table(columns)
    return module.DataFrame(columns)


LIBRARIES = ["pandas", "polars", "pyarrow"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_table_is_fed_by_the_names_of_its_columns(library: str) -> None:
    a, b, words, pair = run(frame(library), a=([-1, 1], "int64"), b=([-1], "fp32"), words=(["words", 1], "int32", 1), pair=([-1, 2], "fp32"))
    assert a.tolist() == [[1], [2], [3], [4]] and b.tolist() == [0.5, 1.5, 2.5, 3.5] and pair.tolist() == [[1.0, 2.0]] * 4
    assert words.sequence_lengths == [[2, 1, 0, 3]] and words.data.tolist() == [[1], [2], [3], [4], [5], [6]] and words.dtype == np.int32


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_table_lacks_or_has_too_much_is_said(library: str) -> None:
    table = frame(library)
    with pytest.raises(fs.FeedError, match=r"z .* is not fed; fed are: a, b, words, pair"):
        run(table, z=([-1], "fp32"))
    with pytest.raises(fs.FeedError, match="'b' is fed, and the program has no such input"):
        run(table, a=([-1], "int64"))
    with pytest.raises(fs.FeedError, match="a must be fp32; fed is int64: convert it with"):
        run({"a": table["a"]}, a=([-1], "fp32"))
    with pytest.raises(fs.FeedError, match=r"words is dense, and the lists that are fed (at depth 1 )?have 2 elements and, number 1, 1: describe it with"):
        run({"words": table["words"]}, words=([-1, 2], "int64"))


def test_missing_values_are_refused_where_a_column_knows_them() -> None:
    columns: list[Any] = []
    pandas: Any = pytest.importorskip("pandas")
    columns.append(pandas.Series([1, None, 3], dtype="Int64"))
    for library in ("polars", "pyarrow"):
        try:
            module: Any = __import__(library)
        except ImportError:
            continue
        columns.append(module.Series([1, None, 3]) if library == "polars" else module.array([1, None, 3]))
    for column in columns:
        for dtype in ("int64", "fp32"):
            with pytest.raises(fs.FeedError, match=r"x: (1 of the 3 values of the column are missing|a column that is fed has no missing values)"):
                run({"x": column}, x=([-1], dtype))


def test_columns_of_pandas() -> None:
    pandas: Any = pytest.importorskip("pandas")
    assert run({"x": pandas.Series([1, 2], dtype="Int32")}, x=([-1], "int64"))[0].tolist() == [1, 2]
    assert run({"x": pandas.DataFrame({"a": X[:, 0], "b": X[:, 1]})}, x=([-1, 2], "fp32"))[0].tolist() == X[:, :2].tolist()
    assert run({"x": pandas.Series(list(X))}, x=([-1, 3], "fp32"))[0].tolist() == X.tolist()
    assert run({"x": pandas.Series(list(X), index=[3, 2, 1, 0])}, x=(["rows", 1], "fp32", 1))[0].sequence_lengths == [[3] * 4], "the index is no order"
    for column, says in ((["a", "b"], "not an array of numbers"), (pandas.Categorical(["a", "b"]), "a column of categories has no numbers"), ([1, "b"], "x")):
        with pytest.raises(fs.FeedError, match=says):
            run({"x": pandas.Series(column)}, x=([-1], "int64"))
    twice = pandas.DataFrame(X, columns=["x", "y", "y"])
    with pytest.raises(fs.FeedError, match="2 columns that are called 'y'"):
        run(twice, x=([-1], "fp32"), y=([-1], "fp32"))


def test_columns_of_arrow_types_that_hold_lists() -> None:
    pa: Any = pytest.importorskip("pyarrow")
    pandas: Any = pytest.importorskip("pandas")
    lists = pandas.Series(WORDS, dtype=pandas.ArrowDtype(pa.list_(pa.int64())))
    assert run({"x": lists}, x=(["w"], "int64", 1))[0].sequence_lengths == [[2, 1, 0, 3]]
    cubes = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype="float32").reshape(2, 3, 4))
    assert run({"x": cubes}, x=([-1, 3, 4], "fp32"))[0].tolist() == np.arange(24).reshape(2, 3, 4).tolist()
    assert run({"x": pa.chunked_array([[1, 2], [3]])}, x=([-1], "int64"))[0].tolist() == [1, 2, 3]
    assert run(pa.record_batch({"x": [1, 2]}), x=([-1], "int64"))[0].tolist() == [1, 2]


class Stand:
    """What a data set of rows can do, as the documentation of ``datasets`` says it."""

    def __init__(self, columns: dict[str, Any], kind: str | None = None) -> None:
        self.columns, self.kind = columns, kind

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    @property
    def format(self) -> dict[str, Any]:
        return {"type": self.kind}

    def with_format(self, kind: str) -> Stand:
        return Stand(self.columns, kind)

    def select_columns(self, names: list[str]) -> Stand:
        return Stand({n: self.columns[n] for n in names}, self.kind)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: Any) -> Any:
        chosen = range(len(self))[rows] if isinstance(rows, slice) else rows
        made = {n: [c[k] for k in chosen] for n, c in self.columns.items()}
        if self.kind != "numpy":
            return made
        out: dict[str, Any] = {}
        for name, values in made.items():
            if isinstance(values[0], list) and len({len(v) for v in values}) > 1:
                out[name] = np.empty(len(values), object)
                out[name][:] = [np.asarray(v) for v in values]
            else:
                out[name] = np.asarray(values)
        return out


def test_a_data_set_of_rows() -> None:
    rows = Stand({"x": X.tolist(), "y": N.tolist(), "words": WORDS})
    described: dict[str, Any] = {"x": ([-1, 3], "fp32"), "y": ([-1, 1], "int64"), "words": (["w"], "int64", 1)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for feed in (rows, rows[0:4], [{n: c[k] for n, c in rows.columns.items()} for k in range(4)]):
            x, y, words = run(feed, **described)
            assert x.tolist() == X.tolist() and y.tolist() == N[:, None].tolist() and words.sequence_lengths == [[2, 1, 0, 3]]
    with pytest.raises(fs.FeedError, match="row 0 has x, row 1 has y"):
        run([{"x": 1.0}, {"y": 2.0}], x=([-1], "fp32"))


# --- tuples and single values


def test_values_in_the_order_of_the_inputs() -> None:
    described: dict[str, Any] = {"x": ([-1, 3], "fp32"), "y": ([-1, 1], "int64")}
    Pair = namedtuple("Pair", ["y", "x"])
    for feed in ((X, N), [X, N], (torch.from_numpy(X), torch.from_numpy(N)), Pair(N, X)):
        x, y = run(feed, **described)
        assert x.tolist() == X.tolist() and y[:, 0].tolist() == N.tolist()
    assert run(X, x=described["x"])[0].tolist() == X.tolist()
    for feed, says in (
        ((X,), "1 value in order are fed, and the program has the inputs x, y"),
        ((X, N, N), "3 values in order"),
        (X, "one ndarray is fed, and the program has the inputs x, y: say which it is"),
        (X > 3, "one ndarray"),
        (7, "a feed is a mapping, input -> array, a table, or an array for each input; seen int 7"),
        ((X, "y"), "seen a sequence with str 'y'"),
    ):
        with pytest.raises(fs.FeedError, match=says):
            run(feed, **described)


def test_values_in_order_where_the_run_needs_fewer_inputs() -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data("x", shape=[-1, 3])
        layer.mean(layer.data("y", shape=[-1]))
        out = layer.scale(x)
    for feed in ((X, N), (X,), X):  # all inputs, or those that are needed
        assert fs.Executor().run(main, feed, [out])[0].tolist() == X.tolist()


# --- element types and dims


def test_numbers_that_stay_the_same_are_converted() -> None:
    big = np.array([[2**31 - 1], [-(2**31)]])
    assert run({"x": big}, x=([-1, 1], "int32"))[0].tolist() == big.tolist()
    fits = np.array([1, 255])
    for value in (fits.astype("uint16"), fits.astype("uint64"), fits, [1, 255], torch.tensor([1, 255], dtype=torch.uint16)):
        assert run({"x": value}, x=([-1], "uint8"))[0].tolist() == [1, 255]
    assert run({"x": [[1, 2.5], [3, 4]]}, x=([-1, 2], "fp32"))[0].tolist() == [[1.0, 2.5], [3.0, 4.0]]
    assert run({"x": [[1, 2], [3, 4]]}, x=([-1, 2], "fp16"))[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert run({"x": np.array([0.5, np.inf, 0.0], "float32")}, x=([-1], "bf16"))[0].tolist() == [0.5, np.inf, 0.0]
    for value, dtype, says in (
        (np.array([0.1], "float32"), "bf16", "x must be bf16; fed is fp32"),
        (big + 1, "int32", "x must be int32; fed is int64 with 2147483648, which int32 does not have"),
        (np.array([2**63], "uint64"), "int64", "x must be int64; fed is uint64 with 9223372036854775808, which int64 does not have"),
        (np.array([-1], "int8"), "uint8", "x must be uint8; fed is int8 with -1, which uint8 does not have"),
        (np.array([0.0]), "int64", "x must be int64; fed is fp64"),
        (np.array([1]), "fp32", "x must be fp32; fed is int64: convert it with"),
        (np.array([True]), "fp32", "x must be fp32; fed is bool"),
        (np.array([0.5]), "fp16", "x must be fp16; fed is fp64: convert it with .astype..float16"),
        ([1e39], "fp32", "x must be fp32; fed is fp64 with 1e.39, which fp32 does not have"),
        ([np.int64(3)], "fp32", "x must be fp32; fed is int64"),
    ):
        with pytest.raises(fs.FeedError, match=says):
            run({"x": value}, x=(list(np.shape(value)), dtype))


def test_tensors_of_torch_of_any_type() -> None:
    grad = torch.ones(2, 3, requires_grad=True)
    for of in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn):
        assert run({"x": grad.to(of)}, x=([-1, 3], "fp32"))[0].tolist() == [[1.0] * 3] * 2
        assert run({"x": [grad[0].to(of), grad[1].to(of)]}, x=(["rows", 1], "fp32", 1))[0].sequence_lengths == [[3, 3]] or of is torch.float8_e4m3fn
    assert run({"x": fs.LoDTensor(grad.bfloat16(), [[2]])}, x=(["rows", 3], "fp32", 1))[0].data.tolist() == [[1.0] * 3] * 2
    assert run({"x": [torch.tensor(1), torch.tensor(2)]}, x=([-1], "int64"))[0].tolist() == [1, 2]
    with pytest.raises(fs.FeedError, match="describe it with lod_level=1"):
        run({"x": [torch.ones(1), torch.ones(2)]}, x=([-1, 2], "fp32"))


def rounded(name: str) -> str:
    return f"{name} is float32 and is fed float64: it is rounded at every step; .astype('float32') once saves that"


def test_a_note_on_rounded_numbers_is_given_once_by_an_executor_and_at_the_users_line() -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data("x", shape=[-1, 3])
        one, two = layer.mean(x), layer.scale(x)
    executor = fs.Executor()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for fetch in ([one], [one], [two]):
            executor.run(main, {"x": X.astype("float64")}, fetch)
        executor.run(main, {"x": X.tolist()}, [one])
        executor.run(main, {"x": X.astype("float16")}, [one])
        assert [str(w.message) for w in seen] == [rounded("x")]
        fs.Executor().run(main, {"x": X.astype("float64")}, [one])
    assert [str(w.message) for w in seen] == [rounded("x")] * 2
    assert seen[0].category is fs.ForeshapeWarning and seen[0].filename == __file__


def test_a_note_on_rounded_numbers_is_given_once_in_each_training_prediction_and_evaluation() -> None:
    x, y = layer.data("x", 3), layer.data("y", 1)
    guess = layer.fc(x, 1)
    cost, wide = layer.mse_loss(guess, y), X.astype("float64")
    data = {"x": wide, "y": np.ones((len(X), 1))}
    executor = fs.Executor()

    def told(call: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call()
        assert all(w.filename == __file__ for w in seen)
        return [str(w.message) for w in seen]

    def train() -> None:
        def between(epoch: int, row: Any) -> None:
            between_epochs.extend(told(lambda: fs.predict(guess, {"x": wide}, batch_size=1, executor=executor)))

        fs.train(cost, data, epochs=3, batch_size=1, validation=data, executor=executor, progress=False, callbacks=[between])

    for _ in range(2):
        between_epochs: list[str] = []
        assert told(train) == [rounded("x"), rounded("y")] and between_epochs == [rounded("x")] * 3
        assert told(lambda: fs.predict(guess, {"x": wide}, batch_size=1)) == [rounded("x")]
        assert told(lambda: fs.evaluate(cost, data, batch_size=1)) == [rounded("x"), rounded("y")]


def test_a_dim_of_1_at_the_end_may_be_left_out() -> None:
    described: dict[str, Any] = {"x": ([-1, 3], "fp32"), "y": ([-1, 1], "int64")}
    executor = fs.Executor(align_feeds=True, memory_limit="1GiB")
    for feed in ({"x": X, "y": N}, {"x": X, "y": N[:, None]}):
        assert run(feed, executor, **described)[1].tolist() == N[:, None].tolist()
    assert run({"x": X}, x=([-1, 3, 1], "fp32"))[0].shape == (4, 3, 1)
    for feed, says in (
        ({"x": X, "y": np.int64(3)}, "y must have 2 dims"),
        ({"x": X[0], "y": N}, "x must have 2 dims"),
        ({"x": X, "y": N[:, None, None]}, "y must have 2 dims"),
        ({"x": X[:2], "y": N}, "another input or a parameter makes that 2"),
    ):
        with pytest.raises(fs.FeedError, match=says):
            run(feed, **described)
    with pytest.raises(fs.FeedError, match="x must have 2 dims"):
        run({"x": N}, x=([-1, 2], "int64"))
