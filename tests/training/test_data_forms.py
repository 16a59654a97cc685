"""The forms in which training data come: tables, columns, tuples, loaders, data sets of rows; and which of their inputs are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.data.batches import as_data, batch_examples

RNG = np.random.RandomState(0)
X = RNG.randn(10, 3).astype("float32")
Y = (X @ RNG.randn(3, 1)).astype("float32")


def described() -> tuple[fs.Program, list[fs.Variable]]:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x, y = layer.data("x", 3), layer.data("y", 1)
    return main, [x, y]


def batches(given: Any, inputs: Any = None, size: int = 4, shuffle: bool = False) -> list[dict[str, Any]]:
    main, both = described()
    wanted = None if inputs is None else both[:inputs]
    return [{n: np.asarray(a).tolist() for n, a in b.items()} for b in as_data(given, size, shuffle, 7, main, wanted).epoch(1)]


PLAIN = [{"x": X[k : k + 4].tolist(), "y": Y[k : k + 4].tolist()} for k in (0, 4, 8)]


class Streaming:
    """Rows that come one after the other, as the documentation of ``datasets`` says it."""

    column_names = ["x", "y"]

    def iter(self, batch_size: int) -> Any:
        for k in range(0, 10, batch_size):
            yield {"x": X[k : k + batch_size].tolist(), "y": Y[k : k + batch_size].tolist()}


FORMS: dict[str, Any] = {
    "arrays": lambda: {"x": X, "y": Y},
    "tuple": lambda: (X, Y),
    "flat": lambda: (X, Y[:, 0]),
    "tensors": lambda: (torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)),
    "lists": lambda: {"x": X.tolist(), "y": Y[:, 0].tolist()},
    "loader": lambda: DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=4),
    "loader-of-dicts": lambda: DataLoader([{"x": x, "y": y} for x, y in zip(X, Y, strict=True)], batch_size=4),
    "tuples": lambda: [(X[k : k + 4], Y[k : k + 4]) for k in (0, 4, 8)],
    "function": lambda: lambda epoch: iter([[X[k : k + 4], Y[k : k + 4]] for k in (0, 4, 8)]),
    "rows": lambda: [[{"x": x.tolist(), "y": y.tolist()} for x, y in zip(X[k : k + 4], Y[k : k + 4], strict=True)] for k in (0, 4, 8)],
    "streaming": lambda: Streaming(),
}


@pytest.mark.parametrize("name", FORMS)
def test_all_forms_give_the_same_batches(name: str) -> None:
    given = batches(FORMS[name]())
    if name in ("flat",):
        assert [np.shape(b["y"]) for b in given] == [(4, 1), (4, 1), (2, 1)]
    assert given == PLAIN


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_tables(library: str) -> None:
    module: Any = pytest.importorskip(library)
    columns = {"x": X.tolist(), "y": Y[:, 0].tolist(), "name": ["n"] * 10}
    table = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    assert batches(table, inputs=2) == PLAIN
    assert batches(table, inputs=1) == [{"x": b["x"]} for b in PLAIN]
    main, _ = described()
    assert len({k for b in as_data(table[:8], 4, True, 0, main, main.global_block.apply_names(["x"])).epoch(2) for k in np.asarray(b["x"])[:, 0].tolist()}) == 8


@pytest.mark.parametrize("kind", [None, "torch", "numpy", "pandas", "polars", "arrow"])
def test_data_sets_of_hugging_face(kind: str | None) -> None:
    sets: Any = pytest.importorskip("datasets")
    if kind not in (None, "torch", "numpy"):
        pytest.importorskip({"arrow": "pyarrow"}.get(kind, kind))
    rows = sets.Dataset.from_dict({"x": X.tolist(), "y": Y[:, 0].tolist(), "name": ["n"] * 10}).with_format(kind)

    def numbers(given: Any) -> list[dict[str, Any]]:
        return [{n: np.asarray(v, "float32").reshape(-1, 3 if n == "x" else 1).tolist() for n, v in b.items()} for b in batches(given, inputs=2)]

    assert numbers(rows) == numbers(rows.to_iterable_dataset()) == numbers((X, Y))
    if kind == "torch":
        assert numbers(DataLoader(rows, batch_size=4)) == numbers((X, Y))
    with pytest.raises(fs.FeedError, match=r"a dict of data sets is given, train, test: give one of them, as \['train'\]"):
        batches(sets.DatasetDict({"train": rows, "test": rows}))


def test_what_is_not_wanted_is_left_out_and_what_is_must_be_there() -> None:
    x_only = [{"x": b["x"]} for b in PLAIN]
    for given in ({"x": X, "y": Y}, {"x": X}, (X, Y), X, torch.from_numpy(X), [(X[k : k + 4], Y[k : k + 4]) for k in (0, 4, 8)], [X[:4], X[4:8], X[8:]],
                  [{"x": X[k : k + 4], "z": 3} for k in (0, 4, 8)], lambda: iter([{"x": X[:4]}, {"x": X[4:8]}, {"x": X[8:]}])):  # fmt: skip
        assert batches(given, inputs=1) == x_only
    for given in ({"y": Y}, [{"y": Y}]):
        with pytest.raises(fs.FeedError, match=r"x \(f32\[batch, 3\], described at test_data_forms.*\) is not fed; fed are: y"):
            batches(given, inputs=1)
    assert [set(b) for b in batches({"x": X, "y": Y, "z": Y})] == [{"x", "y", "z"}] * 3, "for a training all that is given is fed, or refused"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"x": X.astype("int64"), "y": Y}, "x must be fp32; fed is int64"),
        ({"x": ["a"] * 10, "y": Y}, "x: list is not an array of numbers"),
        ({"x": [[1.0], [1.0, 2.0]], "y": Y}, "x is dense, and the lists that are fed have 1 elements and, number 1, 2"),
        ({"x": X[:, :2], "y": Y}, r"x must be f32\[batch, 3\]; fed is \[10, 2\]: dim 1 must be 3, not 2"),
        ((X, Y, Y), "3 values in order are fed, and the program has the inputs x, y"),
        ([X, Y], r"a list is a list of batches, and this one has arrays: give a tuple, \(x, y\)"),
        (X, "one ndarray is fed, and the program has the inputs x, y"),
        (TensorDataset(torch.from_numpy(X)), "seen TensorDataset, rows without batches: put it in a torch.utils.data.DataLoader"),
        ("words", "a batch is a dict, input -> array; seen str"),
    ],
)
def test_data_are_looked_at_before_a_step(given: Any, says: str) -> None:
    with pytest.raises(fs.FeedError, match=says):
        batches(given)


def test_batches_of_lists_count_their_examples() -> None:
    main, _ = described()
    counts = [batch_examples(b) for b in as_data([{"x": X[:7].tolist(), "y": Y[:7].tolist()}], 1, False, 0, main).epoch(1)]
    assert counts == [7]


def test_a_loader_trains_as_the_arrays_do() -> None:
    losses: list[list[float]] = []
    for data in ({"x": X, "y": Y}, DataLoader(TensorDataset(torch.from_numpy(X).bfloat16().float(), torch.from_numpy(Y)), batch_size=4),
                 {"x": torch.from_numpy(X).bfloat16(), "y": Y[:, 0].astype("float64")}):  # fmt: skip
        main, startup = fs.Program(), fs.Program()
        with fs.program_guard(main, startup):
            x, y = layer.data("x", 3), layer.data("y", 1)
            cost = layer.square(layer.fc(x, 1) - y)
        history = fs.train(cost, data, batch_size=4, epochs=2, shuffle=False, progress=False, scope=fs.Scope(), startup=startup)
        losses.append(history.losses)
    assert losses[1] == losses[2] == pytest.approx(losses[0], rel=2e-2) and len(losses[0]) == 6


def test_predictions_take_the_same_forms_and_need_no_label() -> None:
    with fs.program() as p:
        x, y = layer.data("x", 3), layer.data("y", 1)
        out = layer.fc(x, 1)
        error = layer.square(out - y)
    scope = fs.Scope()
    fs.Executor().run(p.startup, scope=scope)
    want = fs.predict(out, {"x": X}, batch_size=4, scope=scope)
    assert want.shape == (10, 1)
    for data in (X, (X, Y), (X,), {"x": X, "y": Y, "z": 3}, FORMS["loader"](), FORMS["rows"](), Streaming()):
        np.testing.assert_allclose(fs.predict(out, data, batch_size=4, scope=scope), want, rtol=1e-6)
    figures = [fs.evaluate({"error": error}, FORMS[form](), batch_size=4, scope=scope)["error"] for form in ("arrays", "flat", "loader", "function")]
    assert figures == pytest.approx([float(((want - Y) ** 2).mean())] * 4, rel=1e-5)
    with pytest.raises(fs.FeedError, match=r"x .* is not fed; fed are: y"):
        fs.predict(out, {"y": Y}, scope=scope)


def test_rows_in_their_order_are_parts_of_the_array() -> None:
    whole = np.arange(14.0, dtype="float32").reshape(7, 2)
    batches = list(as_data({"x": whole}, 3, False, 0).epoch(1, 1))
    assert [b["x"].tolist() for b in batches] == [whole[3:6].tolist(), whole[6:].tolist()]
    assert all(np.shares_memory(b["x"], whole) for b in batches)
