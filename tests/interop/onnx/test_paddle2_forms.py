"""A pair of files for PaddlePaddle 2: operators whose kernels there take less than ours have an older form, of the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, opened, value

import foreshape as fs
from foreshape import layer
from foreshape.interop.convert_models import convert_model
from foreshape.interop.paddle2_forms import write_older_forms
from foreshape.language.operator import all_operators

RNG = np.random.default_rng(8)
CONDITION = np.array([[True], [False]])
BYTES = np.uint8([[250, 3], [7, 200]])


def uneven(op: fs.Op) -> bool:
    return op.type == "where" and len({op.block.var(n).spec.dims for n in op.input_names()}) > 1


def narrow(op: fs.Op) -> bool:
    return op.type != "cast" and any(op.block.var(n).spec.dtype in (fs.BOOL, fs.UINT8) for n in op.input_names()) and op.type not in ("feed", "fetch", "where")


def recurrent(op: fs.Op) -> bool:
    return op.type == "rnn" and not op.output("DropoutState")


def exclusive(op: fs.Op) -> bool:
    return op.type == "cumsum" and bool(op.attributes.values.get("exclusive"))


STATE = {"x": RNG.random((3, 2, 4), "float32"), "w": RNG.random((1, 5, 4), "float32"), "r": RNG.random((1, 5, 5), "float32")}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], Any]] = {
    "where": ("Where", {"c": CONDITION, "a": np.float32([1, 2, 3]), "b": np.float32(5)}, {}, uneven),
    "where of bytes": ("Where", {"c": CONDITION, "a": BYTES, "b": np.uint8([9])}, {}, uneven),
    "gather of bools": ("Gather", {"x": CONDITION, "i": np.int64([1, 0, 1])}, {}, narrow),
    "sum of bytes": ("Add", {"a": BYTES, "b": BYTES}, {}, narrow),
    "rnn": ("RNN", STATE, {"hidden_size": 5}, recurrent),
    "cumsum": ("Hardmax", {"x": RNG.random((3, 4), "float32")}, {"axis": 1}, exclusive),
}


@pytest.mark.parametrize("name", CASES)
def test_the_older_form_gives_the_same(name: str, tmp_path: Path) -> None:
    operator, feeds, attributes, lacking = CASES[name]
    fed = [value(n, str(a.dtype), a.shape) for n, a in feeds.items()]
    graph = Graph([node(operator, " ".join(feeds), "y", **attributes)], fed, [value("y", "float32", None)])
    net = opened(model(graph, 18), tmp_path)
    assert any(map(lacking, net.program.all_ops()))
    convert_model(tmp_path / "m.onnx", tmp_path / "out.pdmodel")
    older = fs.load_inference_model(tmp_path / "out", scope=fs.Scope())
    assert not any(map(lacking, older.program.all_ops()))
    want, got = (next(iter(one.run(feeds).values())) for one in (net, older))
    assert got.dtype == want.dtype and np.array_equal(got, want)


def test_groups_of_rows_are_multiplied_by_operators_of_paddlepaddle(tmp_path: Path) -> None:
    x, y, ends = layer.data("x", ["rows", 4]), layer.data("y", [3, 4, 5]), layer.data("ends", [3], dtype="int32")
    fs.save_inference_model(tmp_path / "m", [x, y, ends], [layer.grouped_matmul(x, y, ends)])
    assert not convert_model(tmp_path / "m.pdmodel", tmp_path / "out.pdmodel").lacking
    older = fs.load_inference_model(tmp_path / "out", scope=fs.Scope())
    assert all(op.operator is None or type(op.operator).since <= 2 for op in older.program.all_ops())
    feeds = {"x": RNG.random((7, 4), "float32"), "y": RNG.random((3, 4, 5), "float32"), "ends": np.int32([2, 2, 6])}
    rows = [feeds["x"][at] @ feeds["y"][group] for at, group in enumerate([0, 0, 2, 2, 2, 2])]
    np.testing.assert_allclose(older.run(feeds)[0], [*rows, np.zeros(5)], rtol=1e-6)


def test_operators_of_ours_alone_are_listed_as_lacking(tmp_path: Path) -> None:
    feeds = {"b": RNG.random((1, 6, 4), "float32"), "s": RNG.random((1, 2, 6), "float32"), "n": np.int64([3])}
    fed = [value(n, str(a.dtype), a.shape) for n, a in feeds.items()]
    opened(model(Graph([node("NonMaxSuppression", "b s n", "y")], fed, [value("y", "int64", None)]), 18), tmp_path)
    with pytest.raises(fs.FormatError, match=r"needs what PaddlePaddle 2\.6\.2 lacks[^\n]*\n    non_max_suppression \(op 3 of block 0\)"):
        convert_model(tmp_path / "m.onnx", tmp_path / "out.pdmodel")


def test_an_operator_is_of_paddlepaddle_2_where_it_was_compared_with_it() -> None:
    """An operator of ours alone says so (`since`): otherwise a conversion would write what PaddlePaddle cannot run."""
    compared = json.loads((Path(__file__).parents[3] / "docs" / "compatibility.json").read_text(encoding="utf-8"))["operators"]
    of_one_process = {name: cls for name, cls in all_operators().items() if cls.samples and not cls.__module__.startswith("foreshape.language.ops.collective.")}
    newer = {name for name, cls in of_one_process.items() if cls.__module__.startswith("foreshape.language.ops.") and cls.since <= 2 and name not in compared}
    assert newer <= {"feed", "fetch", "select_input_array_grad", "sync_batch_norm_grad", "c_dropout_grad", "sync_batch_norm"}, newer


def test_an_assertion_names_values_to_print() -> None:
    condition = layer.data("condition", shape=[1], dtype="bool")
    program = condition.block.program
    program.global_block.append_op("assert", {"Cond": condition})
    write_older_forms(program)
    assert program.global_block.ops[-1].inputs["Data"] == ("condition",)
