"""Programs with loops, branches, arrays and recurrences, written as ONNX's models, opened again here, and there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.written_networks import NETWORKS, UNREAD

import foreshape as fs
from foreshape.language.wire.onnx_model import read_model
from foreshape.transforms.passes import for_test


def written(name: str, path: Path) -> tuple[list[str], list[tuple[dict[str, Any], list[Any]]]]:
    """Write a network; return the names of its results, and each feed with what it gives."""
    build, fed = NETWORKS[name]
    feeds, fetches = build()
    executor = fs.Executor()
    executor.run(fs.default_startup_program())
    fs.save_onnx(path, feeds, fetches)
    program, names = for_test(fs.default_main_program()), [f.name for f in fetches]
    return names, [(dict(feed), executor.run(program, feed=dict(feed), fetch=names)) for feed in fed]


def require_same(names: list[str], got: Any, want: list[Any]) -> None:
    for at, name in enumerate(names):
        assert got[at].shape == want[at].shape and got[at].dtype == want[at].dtype, name
        np.testing.assert_allclose(got[at], want[at], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", [n for n in NETWORKS if n not in UNREAD])
def test_a_network_computes_the_same_when_it_is_read_again(name: str, tmp_path: Path) -> None:
    names, cases = written(name, tmp_path / "m.onnx")
    opened = fs.load_inference_model(tmp_path / "m.onnx", scope=fs.Scope())
    for feed, want in cases:
        require_same(names, opened.run(feed), want)


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_computes_the_same(name: str, tmp_path: Path) -> None:
    onnxruntime, checker = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx.checker")
    names, cases = written(name, tmp_path / "m.onnx")
    checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    for feed, want in cases:
        require_same(names, session.run(None, feed), want)


def test_a_loop_carries_only_what_is_read_again(tmp_path: Path) -> None:
    written("counted_loop", tmp_path / "m.onnx")
    (loop,) = [n for n in read_model(tmp_path / "m.onnx").graph.nodes if n.operator == "Loop"]
    assert len(loop.outputs) == 2  # the number of the round, and y


def test_a_loop_of_ragged_rows_is_refused_in_words(tmp_path: Path) -> None:
    x, n = fs.layer.data("x", [-1, 3], lod_level=1), fs.layer.data("n", [1], "int64")
    i = fs.layer.fill_constant([1], "int64", 0)
    _, y = fs.layer.while_loop(lambda i, y: fs.layer.less_than(i, n), lambda i, y: [i + 1, y * 2.0], [i, x])
    with pytest.raises(fs.FormatError, match="ragged"):
        fs.save_onnx(tmp_path / "m.onnx", [x, n], y)
