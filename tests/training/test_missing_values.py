"""Values that data lack: where the form of the data knows that they are missing they are refused, at any depth, before they become NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import foreshape as fs
from foreshape import layer

X = np.random.RandomState(0).randn(10, 3).astype("float32")
HOLES: dict[str, Any] = {
    "value": [*X[:-1, 0].tolist(), None],
    "in a list": [*X.tolist()[:-1], [1.0, None, 3.0]],
    "list": [*X.tolist()[:-1], None],
}


class Rows:
    """What of a data set of Hugging Face is asked, over an Arrow table: a format of arrays has NaN for what is missing."""

    column_names: Any = ()

    def __init__(self, table: Any, kind: str | None = None) -> None:
        self.column_names = table.schema.names
        self.data, self.format = table, {"type": kind, "columns": self.column_names, "output_all_columns": False}

    def __len__(self) -> int:
        return len(self.data)

    def with_format(self, kind: str) -> Rows:
        return Rows(self.data, kind)

    def select_columns(self, names: list[str]) -> Rows:
        return Rows(self.data.select(names), self.format["type"])

    def __getitem__(self, rows: Any) -> Any:
        found = self.data[rows] if isinstance(rows, slice) else self.data.take(rows)
        if self.format["type"] == "arrow":
            return found
        return {n: np.array(found.column(n).to_pylist(), "float32") for n in self.column_names}


def described(width: int) -> tuple[fs.Variable, fs.Variable]:
    with fs.program():
        out = layer.fc(layer.data("x", width), 1)
        return out, layer.mean(out)


def refused(given: Any, width: int) -> str:
    out, cost = described(width)
    words: set[str] = set()
    for use in (lambda: fs.train(cost, given, progress=False, shuffle=False, batch_size=10), lambda: fs.predict(out, given, batch_size=10),
                lambda: fs.Executor().run(out.block.program, given, [out])):  # fmt: skip
        with pytest.raises(fs.FeedError) as caught:
            use()
        words.add(str(caught.value))
    (told,) = words
    return told


@pytest.mark.parametrize("hole", HOLES)
def test_a_data_set_that_lacks_a_value_is_refused_in_each_use(hole: str) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    whole = Rows(pa.table({"x": HOLES[hole]}))
    assert refused(whole, 1 if hole == "value" else 3) == "x: 10 rows of the column lack 1 value: fill what is missing, or leave such rows out"


def test_rows_that_lack_nothing_are_taken_from_a_column_that_does() -> None:
    pa: Any = pytest.importorskip("pyarrow")
    _, cost = described(3)
    rows = Rows(pa.table({"x": HOLES["in a list"]}))
    with pytest.raises(fs.FeedError, match="x: 2 rows of the column lack 1 value"):
        fs.train(cost, rows, batch_size=4, shuffle=False, progress=False)  # whose first batches are whole
    assert fs.train(cost, Rows(pa.table({"x": HOLES["in a list"]}).slice(0, 9)), batch_size=4, progress=False).steps == 3


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("hole", HOLES)
@pytest.mark.parametrize("kind", [None, "torch", "numpy", "pandas", "polars", "arrow"])
def test_data_sets_of_hugging_face_that_lack_values(kind: str | None, hole: str) -> None:
    sets: Any = pytest.importorskip("datasets")
    if kind in ("pandas", "polars"):
        pytest.importorskip(kind)
    whole = sets.Dataset.from_dict({"x": HOLES[hole]}).with_format(kind)
    assert "lack 1 value" in refused(whole, 1 if hole == "value" else 3)
    out, _ = described(1 if hole == "value" else 3)
    fs.Executor().run(out.block.program.startup)
    assert fs.predict(out, whole.select(range(9))).shape == (9, 1)


@pytest.mark.parametrize("hole", HOLES)
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "list"])
def test_columns_that_lack_values(library: str, hole: str) -> None:
    given: Any = HOLES[hole]
    if library != "list":
        module: Any = pytest.importorskip(library)
        given = module.array(given) if library == "pyarrow" else module.Series(given, dtype=object if library == "pandas" else None)
    assert "missing" in refused({"x": given}, 1 if hole == "value" else 3)


def test_lists_of_a_fixed_length_in_polars() -> None:
    pl: Any = pytest.importorskip("polars")
    for hole in ("in a list", "list"):
        assert "missing" in refused({"x": pl.Series(HOLES[hole], dtype=pl.Array(pl.Float32, 3))}, 3)
    with fs.program() as p:
        words = layer.data("words", ["words", 1], "int64", lod_level=1)
    (found,) = fs.Executor().run(p, {"words": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2))}, [words])
    assert found.sequence_lengths == [[2, 2]]
    assert "128 bits" in refused({"x": pl.Series([1, 2], dtype=pl.Int128)}, 1)


def test_a_ragged_row_that_is_missing() -> None:
    with fs.program() as p:
        words = layer.data("words", ["words", 1], "int64", lod_level=1)
    with pytest.raises(fs.FeedError, match=r"words\[1\] must be a sequence, and it is missing \(None\): leave its row out, or make it an empty list"):
        fs.Executor().run(p, {"words": [[1, 2], None]}, [words])


def test_what_has_no_rows_before_it_is_read() -> None:
    pads: Any = pytest.importorskip("pyarrow.dataset")
    table = pads.dataset(pytest.importorskip("pyarrow").table({"x": X.tolist()}))
    assert "has no rows before it is read: feed .to_table()" in refused(table, 3)
    _, cost = described(3)
    assert fs.train(cost, lambda: table.to_batches(batch_size=4), epochs=2, progress=False).steps == 6


def test_a_loader_that_would_take_lists_apart() -> None:
    pa: Any = pytest.importorskip("pyarrow")
    _, cost = described(3)
    with pytest.raises(fs.FeedError, match=r"puts the lists of a data set without a format together by their elements, not by rows: give it data.with_format"):
        fs.train(cost, DataLoader(Rows(pa.table({"x": X.tolist()})), batch_size=3), progress=False)  # pyright: ignore[reportArgumentType]


def test_a_dict_of_streamed_data_sets_and_a_transform_that_gives_no_dict() -> None:
    class Streamed:
        column_names = ("x",)

        def iter(self, batch_size: int) -> Any:
            yield {"x": X[:batch_size]}

    out, cost = described(3)
    with pytest.raises(fs.FeedError, match=r"a dict of data sets is given, train: give one of them, as \['train'\]"):
        fs.train(cost, {"train": Streamed()}, progress=False)

    class Transformed(Rows):
        def __getitem__(self, rows: Any) -> Any:
            return 3

    rows = Transformed(pytest.importorskip("pyarrow").table({"x": X.tolist()}), "custom")
    with pytest.raises(fs.FeedError, match="what a data set is transformed to must be a dict, input -> array; seen int"):
        fs.Executor().run(out.block.program, rows, [out])
