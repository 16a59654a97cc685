"""Loops that count and stop by values of the block around them, written in place: those of `paddle.nn.RNN` and `paddle.static.nn.While`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs


def tensor(element: str, *dims: int) -> dict[str, Any]:
    return {"#": "0.t_dtensor", "D": [{"#": f"0.{element}"}, list(dims), "NCHW", [], 0]}


def op(type: str, operands: list[int], results: list[tuple[int, dict[str, Any]]], /, **attributes: tuple[str, Any]) -> dict[str, Any]:
    return {
        "#": type,
        "I": [{"%": n} for n in operands],
        "O": [{"%": n, "TT": of} for n, of in results],
        "A": [{"N": n, "AT": {"#": kind, "D": value}} for n, (kind, value) in attributes.items()],
    }


def full(result: int, value: float, dtype: str, of: dict[str, Any]) -> dict[str, Any]:
    return op("1.full", [], [(result, of)], shape=("1.a_intarray", []), value=("0.a_f64", value), dtype=("1.a_dtype", dtype), place=("1.a_place", [1, 0, ""]))


INT, TRUTH, TENSOR = tensor("t_i64"), tensor("t_bool"), tensor("t_f32", -1, 3)
ARRAY = {"#": "1.t_dense_tensor_array", "D": [{"#": "0.t_f32"}, [-1, 3], "NCHW"]}


def counting() -> bytes:
    """A program that adds the counter 0, 1, 2, 3 to x, each sum in an array, and joins them."""
    body = [
        op("1.cast", [2], [(10, tensor("t_f32"))], dtype=("1.a_dtype", "float32")),
        op("1.add", [1, 10], [(11, TENSOR)]),
        op("1.array_write_", [5, 11, 2], [(12, ARRAY)]),
        op("1.increment_", [2], [(13, INT)], value=("0.a_f32", 1.0)),
        op("1.less_than", [2, 3], [(14, TRUTH)]),
        op("1.assign_out_", [14, 4], [(15, TRUTH)]),
        op("2.yield", [4], []),
    ]
    loop = op("1.while", [4], []) | {"regions": [{"#": "region_1", "blocks": [{"#": "block_1", "args": [], "ops": body}]}]}
    ops = [
        op(
            "1.data", [], [(1, TENSOR)], name=("0.a_str", "x"), shape=("1.a_intarray", [-1, 3]), dtype=("1.a_dtype", "float32"), place=("1.a_place", [0, 0, ""])
        ),
        full(2, 0.0, "int64", INT),
        full(3, 4.0, "int64", INT),
        op("1.less_than", [2, 3], [(4, TRUTH)]),
        op("1.create_array", [], [(5, ARRAY)], dtype=("1.a_dtype", "float32")),
        loop,
        op("1.array_to_tensor", [5], [(20, tensor("t_f32", -1, 3)), (21, tensor("t_i32", -1))], axis=("0.a_i32", 0), use_stack=("0.a_bool", False)),
        op("1.fetch", [20], [(22, tensor("t_f32", -1, 3))], name=("0.a_str", "sums"), col=("0.a_i32", 0)),
        op("1.fetch", [2], [(23, INT)], name=("0.a_str", "count"), col=("0.a_i32", 1)),
    ]
    block = {"#": "block_0", "args": [], "ops": ops}
    return json.dumps({"base_code": {"magic": "pir", "version": 4}, "program": {"regions": [{"#": "region_0", "blocks": [block]}]}}).encode()


def test_the_counter_and_the_condition_are_written_for_the_next_round(tmp_path: Path) -> None:
    (tmp_path / "inference.json").write_bytes(counting())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = fs.load_inference_model(tmp_path, scope=fs.Scope()).run({"x": x})
    np.testing.assert_array_equal(found["sums"], np.concatenate([x + i for i in range(4)]))
    assert found["count"] == 4
