"""Rank tables, as PaddlePaddle 2.6.2 gave them: sequences are taken apart by the step, and put together again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.described import build, count, differentiable, forms_of, run, same

import foreshape as fs
from foreshape import layer
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ExecutionError
from foreshape.transforms.backward import append_backward


def ranked() -> tuple[fs.Program, dict[str, Any]]:
    def describe() -> dict[str, Any]:
        x, h = differentiable("x", [-1, 2], lod_level=1), differentiable("h", ["batch", 3])
        table = layer.lod_rank_table(x)
        array = layer.lod_tensor_to_array(x, table)
        out: dict[str, Any] = {"table": table, "longest": layer.max_sequence_len(table), "array": array, "length": layer.array_length(array)}
        out["reordered"] = layer.reorder_lod_tensor_by_rank(h, table)
        out["shrunk"] = layer.shrink_memory(out["reordered"], count(1), table)
        out["element"] = layer.array_read(array, count(1))
        out["sequences"] = layer.reorder_lod_tensor_by_rank(x, table)
        out["back"] = layer.array_to_lod_tensor(array, table)
        out["joined"], out["sizes"] = layer.tensor_array_to_tensor(array)
        parts = [out["shrunk"], out["element"], out["back"] * out["back"], out["sequences"] * out["sequences"], out["joined"]]
        means = [layer.mean(p) for p in parts]
        append_backward(means[0] + means[1] + means[2] + means[3] + means[4], [x, h])
        return out

    program, _, out = build(describe)
    return program, out


def test_a_table_takes_sequences_apart_and_puts_them_together() -> None:
    program, out = ranked()
    assert out["back"].spec.text() == "f32[x | batch, 2]" and out["back"].spec.lod is program.var("x").spec.lod
    assert out["sequences"].spec.text() == "f32[x | batch, 2]"
    assert out["reordered"].spec.text() == "f32[batch, 3]"
    assert program.var("h@GRAD").spec.text() == "f32[batch, 3]"
    x = np.arange(20, dtype="float32").reshape(10, 2)
    feed = {"x": LoDTensor(x, [[2, 3, 4, 1]]), "h": np.arange(12, dtype="float32").reshape(4, 3)}
    for one in forms_of(program):
        got = dict(zip([*out, "x@GRAD", "h@GRAD"], run(one, feed, [*out.values(), "x@GRAD", "h@GRAD"]), strict=True))
        assert got["table"] == [(2, 4), (1, 3), (0, 2), (3, 1)]
        assert got["longest"].tolist() == got["length"].tolist() == [4]
        same(got["reordered"], [[6, 7, 8], [3, 4, 5], [0, 1, 2], [9, 10, 11]])
        same(got["shrunk"], [[6, 7, 8], [3, 4, 5], [0, 1, 2]])
        for element, want in zip(got["array"], ([5, 2, 0, 9], [6, 3, 1], [7, 4], [8]), strict=True):
            same(element, x[want])
        same(got["element"], x[[6, 3, 1]])
        same(got["sequences"], x[[5, 6, 7, 8, 2, 3, 4, 0, 1, 9]])
        assert got["sequences"].sequence_lengths == [[4, 3, 2, 1]]
        same(got["back"], x)
        assert got["back"].sequence_lengths == got["x@GRAD"].sequence_lengths == [[2, 3, 4, 1]]
        same(got["joined"], x[[5, 2, 0, 9, 6, 3, 1, 7, 4, 8]])
        assert got["sizes"].tolist() == [4, 3, 2, 1]
        first = [0.05, 0.6166666746139526, 0.8500000238418579, 1.4166667461395264, 1.6500000953674316, 2.049999952316284, 2.616666793823242, 2.8499999046325684]
        same(np.asarray(got["x@GRAD"])[:, 0], [*first, 3.25, 3.6500000953674316])
        same(got["h@GRAD"], np.repeat([[1 / 9], [1 / 9], [1 / 9], [0]], 3, axis=1))


def test_a_table_of_the_outer_level_takes_sequences_of_sequences_apart() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=[-1, 1], lod_level=2)
        table = layer.lod_rank_table(x)
        array = layer.lod_tensor_to_array(x, table)
        shrunk = layer.shrink_memory(x, count(1), table)
        return array, layer.array_read(array, count(1)), layer.reorder_lod_tensor_by_rank(x, table), layer.array_to_lod_tensor(array, table), shrunk

    program, _, out = build(describe)
    x = LoDTensor(np.arange(10, dtype="float32").reshape(10, 1), [[2, 1, 3], [1, 2, 3, 1, 2, 1]])
    for one in forms_of(program):
        array, element, reordered, back, shrunk = run(one, {"x": x}, out)
        for got, rows, lengths in zip(array, ([6, 0, 3, 4, 5], [7, 8, 1, 2], [9]), ([1, 1, 3], [2, 2], [1]), strict=True):
            assert np.asarray(got).reshape(-1).tolist() == rows and got.sequence_lengths == [lengths]
        assert element.sequence_lengths == [[2, 2]]
        assert np.asarray(reordered).reshape(-1).tolist() == [6, 7, 8, 9, 0, 1, 2, 3, 4, 5] and reordered.sequence_lengths == [[3, 2, 1], [1, 2, 1, 1, 2, 3]]
        assert back.sequence_lengths == x.sequence_lengths
        same(back, x)
        assert np.asarray(shrunk).reshape(-1).tolist() == [0, 1, 2, 3, 4, 5] and shrunk.sequence_lengths == [[2, 1], [1, 2, 3]]


def test_what_does_not_fit_a_table_is_refused_when_it_runs() -> None:
    def describe() -> Any:
        x, y, h = (layer.data(n, shape=["others" if n == "h" else -1, 2], lod_level=int(n != "h")) for n in "xyh")
        table = layer.lod_rank_table(x)
        array = layer.array_write(layer.data("e", shape=["rows", 2]), count(0))
        return layer.lod_tensor_to_array(y, table), layer.shrink_memory(h, count(0), table), layer.array_to_lod_tensor(array, table)

    program, _, (array, shrunk, back) = build(describe)
    rows = np.zeros((3, 2), "float32")
    x = LoDTensor(rows, [[2, 1]])
    with pytest.raises(ExecutionError, match=r"X must be grouped as what the table was made of; it has \[0, 1, 3\], the table \[0, 2, 3\]"):
        run(program, {"x": x, "y": LoDTensor(rows, [[1, 2]])}, [array])
    with pytest.raises(ExecutionError, match="2 sequences are longer than 0, and X is of 1"):
        run(program, {"x": x, "h": rows[:1]}, [shrunk])
    with pytest.raises(ExecutionError, match=r"the elements must have \[2, 1\] rows, as many as sequences are longer; seen \[3\]"):
        run(program, {"x": x, "e": rows}, [back])
