"""Layers that pick, set and add elements at places, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.dims import symbol
from foreshape.errors import ExecutionError, GuardError, ShapeError
from foreshape.language.program import Variable
from foreshape.transforms.backward import append_backward

BATCH = symbol("batch")
COUNT = np.arange(60, dtype="float32").reshape(3, 4, 5)


def run(feed: dict[str, np.ndarray], *fetch: object) -> list[np.ndarray]:
    return fs.Executor().run(fs.default_main_program(), feed, list(fetch))


def images() -> Variable:
    return layer.data("x", [-1, 4, 5])


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(
    "index",
    [
        np.s_[1], np.s_[-1], np.s_[:, 1:3], np.s_[..., ::2], np.s_[:, ::-1, 1], np.s_[0, :, -2:], np.s_[:, 3:0:-2], np.s_[1:1], np.s_[:], np.s_[0, 1, 2],
    ],
)  # fmt: skip
@pytest.mark.parametrize("many", [False, True], ids=["a number", "a tensor"])
def test_an_assignment_to_an_index_is_numpys(index: object, many: bool) -> None:
    want = COUNT.copy()
    value = -np.arange(1, 1 + want[index].size, dtype="float32").reshape(want[index].shape) if many else -7.0
    want[index] = value
    x = images()
    out = layer.setitem(x, index, layer.assign(value) if many else value)
    assert out.spec.dims == (BATCH, 4, 5)
    assert np.array_equal(run({"x": COUNT}, out, x)[0], want)
    assert np.array_equal(run({"x": COUNT}, out, x)[1], COUNT)


def test_a_value_is_repeated_to_what_is_set_and_one_that_cannot_be_is_refused() -> None:
    x = images()
    out = layer.setitem(x, np.s_[:, 1:3], layer.assign(np.arange(5, dtype="float32")))
    want = COUNT.copy()
    want[:, 1:3] = np.arange(5)
    assert np.array_equal(run({"x": COUNT}, out)[0], want)
    with pytest.raises(ShapeError, match="the value has 5 where 4 entries are set"):
        layer.setitem(x, np.s_[..., 0], layer.assign(np.zeros(5, "float32")))
    with pytest.raises(ShapeError, match="index 4 must be in the axis 1"):
        layer.setitem(x, np.s_[:, 4], 0.0)


def test_an_entry_is_set_at_a_place_that_only_the_run_tells() -> None:
    x, at = images(), layer.data("at", shape=[1], dtype="int64")
    out = layer.set_value(x, [1], [at], [at + 1], -1.0, dropped=[1])
    for k in (0, 3):
        want = COUNT.copy()
        want[:, k] = -1
        assert np.array_equal(run({"x": COUNT, "at": np.array([k])}, out)[0], want)
    with pytest.raises(ExecutionError, match="an index is out of range"):
        run({"x": COUNT, "at": np.array([4])}, out)


def test_sizes_stay_known_where_one_of_a_shape_is_set() -> None:
    x = images()
    size = layer.setitem(layer.shape(x), 1, 20)
    assert size.spec.value == (BATCH, 20, 5)
    first = layer.setitem(layer.fill_constant([2], "int32", 1), 0, layer.shape(x)[0])
    assert first.spec.value == (BATCH, 1)
    assert layer.reshape(x, layer.concat([first, layer.assign(np.array([-1], "int32"))])).spec.dims == (BATCH, 1, 20)


def test_what_is_set_has_the_gradient_of_what_is_kept_and_of_the_value() -> None:
    x = images()
    value = layer.data("value", shape=[4, 1])
    for given in (x, value):
        given.stop_gradient = False
    loss = layer.reduce_sum(layer.setitem(x, np.s_[..., 1:3], value) * layer.assign(np.arange(20, dtype="float32").reshape(4, 5)))
    (_, d_x), (_, d_value) = append_backward(loss, [x, value])
    weight = np.broadcast_to(np.arange(20, dtype="float32").reshape(4, 5), COUNT.shape).copy()
    got = run({"x": COUNT, "value": np.ones((4, 1), "float32")}, d_x, d_value)
    assert np.array_equal(got[1].reshape(-1), weight[..., 1:3].sum((0, 2)))
    weight[..., 1:3] = 0
    assert np.array_equal(got[0], weight)


def test_grids_and_repetitions_are_numpys() -> None:
    x, n = layer.data("a", shape=["n"]), symbol("n")
    grid = layer.meshgrid(x, layer.cast(layer.range(3), "fp32"))
    assert [g.spec.dims for g in grid] == [(n, 3), (n, 3)]
    a = np.array([4.0, 5.0], "float32")
    for got, want in zip(run({"a": a}, *grid), np.meshgrid(a, np.arange(3.0), indexing="ij"), strict=True):
        assert np.array_equal(got, want)
    twice, each = layer.repeat_interleave(x, 2), layer.repeat_interleave(x, layer.cast(x, "int64") - 3)
    assert twice.spec.dims == (2 * n,)
    got = run({"a": a}, twice, each)
    assert np.array_equal(got[0], np.repeat(a, 2)) and np.array_equal(got[1], np.repeat(a, [1, 2]))
    with pytest.raises(GuardError, match="at least 0"):
        run({"a": a - 3}, each)
    one, other = layer.broadcast_tensors([layer.reshape(x, [-1, 1]), layer.cast(layer.range(3), "fp32")])
    assert one.spec.dims == other.spec.dims == (n, 3)


def test_diagonals_are_numpys() -> None:
    x = layer.data("m", shape=["n", 4])
    m = COUNT.reshape(-1, 4)[:3]
    vector = layer.cast(layer.range(3), "fp32")
    outs = [layer.diag(x, 1), layer.diagonal(x, -1), layer.diag(vector, -1, 9.0), layer.diag_embed(x), layer.fill_diagonal(x, 7.0, 1)]
    assert str(outs[0].spec.dims) == "(min(n, 3),)"
    got = run({"m": m}, *outs)
    assert np.array_equal(got[0], np.diagonal(m, 1)) and np.array_equal(got[1], np.diagonal(m, -1))
    want = np.full((4, 4), 9.0)
    want[[1, 2, 3], [0, 1, 2]] = [0, 1, 2]
    assert np.array_equal(got[2], want)
    assert np.array_equal(got[3], np.stack([np.diag(row) for row in m]))
    filled = m.copy()
    filled[[0, 1, 2], [1, 2, 3]] = 7
    assert np.array_equal(got[4], filled)


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("rows", range(5))
@pytest.mark.parametrize("columns", range(5))
def test_the_places_of_triangles_are_numpys(rows: int, columns: int) -> None:
    for offset in range(-6, 7):
        lower, upper = layer.tril_indices(rows, columns, offset), layer.triu_indices(rows, columns, offset)
        want = [np.stack(np.tril_indices(rows, offset, columns)), np.stack(np.triu_indices(rows, offset, columns))]
        assert [list(v.spec.known_dims) for v in (lower, upper)] == [list(w.shape) for w in want]
        for got, w in zip(run({}, lower, upper), want, strict=True):
            assert np.array_equal(got, w)


def test_what_is_different_is_numpys() -> None:
    x = layer.data("v", shape=["n"], dtype="int64")
    v = np.array([3, 1, 3, 2, 2, 1])
    got = run({"v": v}, *layer.unique(x, True, True, True))
    for one, want in zip(got, np.unique(v, True, True, True), strict=True):
        assert np.array_equal(one, want)
    kept, inverse, counts = run({"v": v}, *layer.unique_consecutive(x, True, True))
    assert kept.tolist() == [3, 1, 3, 2, 1] and inverse.tolist() == [0, 1, 2, 3, 3, 4] and counts.tolist() == [1, 1, 1, 2, 1]
    m = np.array([[2, 1], [1, 2], [2, 1]])
    matrix = layer.data("m", shape=["r", 2], dtype="int64")
    assert np.array_equal(run({"m": m}, layer.unique(matrix, axis=0))[0], np.unique(m, axis=0))
    places = layer.nonzero(matrix > 1)
    assert places.spec.known_dims[1] == 2
    assert np.array_equal(run({"m": m}, places)[0], np.argwhere(m > 1))


def test_elements_along_an_axis_are_numpys() -> None:
    x, index = images(), layer.data("i", shape=[-1, 4, 2], dtype="int64")
    i = np.random.RandomState(1).randint(0, 5, (3, 4, 2))
    taken, put = layer.take_along_axis(x, index, -1), layer.put_along_axis(x, index, -1.0, -1)
    want = COUNT.copy()
    np.put_along_axis(want, i, -1.0, -1)
    got = run({"x": COUNT, "i": i}, taken, put)
    assert np.array_equal(got[0], np.take_along_axis(COUNT, i, -1)) and np.array_equal(got[1], want)
    with pytest.raises(ExecutionError, match="an index must be in"):
        run({"x": COUNT, "i": i + 5}, taken)
    with pytest.raises(ShapeError, match="the dims of Input but at axis 2"):
        layer.take_along_axis(x, layer.data("wrong", shape=[-1, 3, 2], dtype="int64"), 2)


def test_elements_at_places_are_numpys() -> None:
    x, index = images(), layer.data("i", shape=["k"], dtype="int64")
    added = layer.data("y", shape=["rows", 4, 5])
    i, y = np.array([2, 0, 2]), np.ones((3, 4, 5), "float32")
    want = COUNT.copy()
    np.add.at(want, i, y)
    put = COUNT.copy()
    put[i] = 8.0
    outs = [layer.index_add(x, index, 0, added), layer.scatter_nd_add(x, layer.unsqueeze(index, 1), added), layer.index_select(x, index),
            layer.index_put(x, [index], layer.fill_constant([], "fp32", 8.0))]  # fmt: skip
    got = run({"x": COUNT, "i": i, "y": y}, *outs)
    for one, expected in zip(got, (want, want, COUNT[i], put), strict=True):
        assert np.array_equal(one, expected)
    with pytest.raises(GuardError, match="an entry for each of Index"):
        run({"x": COUNT, "i": i, "y": y[:2]}, outs[0])


def test_a_mask_of_bools_is_an_index() -> None:
    x = images()
    out = layer.index_put(x, [x > 30.0], layer.fill_constant([1], "fp32", -1.0))
    assert out.spec.dims == (BATCH, 4, 5)
    assert np.array_equal(run({"x": COUNT}, out)[0], np.where(COUNT > 30, -1, COUNT))


def test_parts_rows_and_shards() -> None:
    x = images()
    assert layer.crop(x, [-1, 2, -1], [1, 1, 2]).spec.dims == (BATCH - 1, 2, 3)
    ids = layer.data("ids", shape=[-1, 1], dtype="int64")
    rows = layer.multiplex([x, x * 2.0], ids)
    got = run({"x": COUNT, "ids": np.array([[1], [0], [1]])}, rows, layer.crop(x, [-1, 2, -1], [1, 1, 2]), layer.shard_index(ids, 4, 2, 0))
    assert np.array_equal(got[0], COUNT * np.array([2, 1, 2]).reshape(3, 1, 1))
    assert np.array_equal(got[1], COUNT[1:, 1:3, 2:])
    assert got[2].reshape(-1).tolist() == [1, 0, 1]
    scattered = layer.scatter_nd(layer.assign(np.array([[1], [3], [1]])), layer.assign(np.array([1.0, 2.0, 3.0], "float32")), [5])
    assert run({}, scattered)[0].tolist() == [0, 4, 0, 2, 0]
