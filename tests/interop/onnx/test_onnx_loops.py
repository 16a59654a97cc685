"""ONNX's loops, scans and sequences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, opened, tensor, value

import foreshape as fs

ANY = [value("y", "float32", None)]
YES = tensor("yes", np.array(True))


def body(nodes: list[bytes], state: str, outputs: str) -> Graph:
    ends = [value(n, "float32", None) for n in outputs.split()]
    return Graph(
        nodes, [value("i", "int64", []), value("c", "bool", []), *(value(n, "float32", None) for n in state.split())], [value("go", "bool", []), *ends]
    )


@pytest.mark.parametrize("known", [True, False])
def test_what_rounds_give_is_stacked_and_a_state_may_grow(known: bool, tmp_path: Path) -> None:
    inner = body([node("Identity", "c", "go"), node("Cast", "i", "f", to=1), node("Add", "x f", "out"), node("Concat", "h x", "h2", axis=0)], "h", "h2 out")
    fed = [value("x", "float32", [2] if known else ["n"])] + ([] if known else [value("m", "int64", [])])
    tensors = [YES, *([tensor("m", np.array(3))] if known else [])]
    graph = Graph([node("Loop", "m yes x", "last every", body=inner)], fed, [value("last", "float32", None), value("every", "float32", None)], tensors)
    net = opened(model(graph), tmp_path)
    assert ("while" in [op.type for op in net.program.global_block.ops]) == (not known)
    x = np.float32([1, 2])
    got = net.run({"x": x} if known else {"x": x, "m": np.array(3)})
    assert np.array_equal(got["last"], np.tile(x, 4)) and np.array_equal(got["every"], [x, x + 1, x + 2])
    if not known:
        got = net.run({"x": x, "m": np.array(0)})
        assert np.array_equal(got["last"], x) and got["every"].shape[0] == 0 and got["every"].ndim == 2


def test_a_loop_ends_where_its_condition_fails(tmp_path: Path) -> None:
    inner = body([node("Add", "h h", "h2"), node("ReduceMax", "h2", "top", keepdims=0), node("Less", "top ten", "go")], "h", "h2")
    graph = Graph([node("Loop", "_ yes x", "y", body=inner)], [value("x", "float32", [2])], ANY, [YES, tensor("ten", np.float32(10))])
    assert opened(model(graph), tmp_path).run(np.float32([1, 2]))["y"].tolist() == [8, 16]


@pytest.mark.parametrize("length", [3, "n"])
def test_a_scan_goes_over_a_known_or_an_open_number_of_entries(length: int | str, tmp_path: Path) -> None:
    inner = Graph([node("Add", "h e", "h2"), node("Mul", "h2 h2", "out")], [value("h", "float32", [2]), value("e", "float32", [2])],
                  [value("h2", "float32", [2]), value("out", "float32", [2])])  # fmt: skip
    scan = node("Scan", "a x", "y every", body=inner, num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[-1],
                scan_output_directions=[1])  # fmt: skip
    graph = Graph([scan], [value("a", "float32", [2]), value("x", "float32", [2, length])], [*ANY, value("every", "float32", None)])
    a, x = np.float32([1, 2]), np.arange(6, dtype="float32").reshape(2, 3)
    got = opened(model(graph), tmp_path).run({"a": a, "x": x})
    sums = a[:, None] + np.cumsum(x[:, ::-1], 1)
    assert np.array_equal(got["y"], sums[:, -1]) and np.array_equal(got["every"], np.square(sums)[:, ::-1])


def test_sequences_are_lists_while_the_model_is_read(tmp_path: Path) -> None:
    nodes = [
        node("SplitToSequence", "x two", "s", axis=1),
        node("SequenceAt", "s last", "e"),
        node("SequenceInsert", "s e first", "t"),
        node("SequenceErase", "t last", "u"),
        node("SequenceLength", "u", "n"),
        node("ConcatFromSequence", "u", "y", axis=1),
    ]
    tensors = [tensor("two", np.array(2)), tensor("last", np.array(-1)), tensor("first", np.array(0))]
    graph = Graph(nodes, [value("x", "float32", ["b", 5])], [*ANY, value("n", "int64", [])], tensors)
    x = np.arange(10, dtype="float32").reshape(2, 5)
    got = opened(model(graph), tmp_path).run(x)
    assert got["n"] == 3 and np.array_equal(got["y"], np.concatenate([x[:, 4:], x[:, :4]], 1))


def test_a_sequence_that_only_the_run_knows_is_refused_in_words(tmp_path: Path) -> None:
    inner = body([node("Identity", "c", "go"), node("SequenceInsert", "h x", "h2")], "h", "h2")
    nodes = [node("SequenceEmpty", "", "s"), node("Loop", "m yes s", "t", body=inner), node("ConcatFromSequence", "t", "y", axis=0)]
    graph = Graph(nodes, [value("x", "float32", [2]), value("m", "int64", [])], ANY, [YES])
    with pytest.raises(fs.ForeshapeError, match=r"Loop .* cannot be imported: a sequence or an optional value as the state"):
        opened(model(graph), tmp_path).run({"x": np.float32([1, 2]), "m": np.array(2)})
    nodes[1] = node("Loop", "three yes s", "t", body=inner)
    graph = Graph(nodes, [value("x", "float32", [2])], ANY, [YES, tensor("three", np.array(3))])
    assert opened(model(graph), tmp_path).run(np.float32([1, 2]))["y"].tolist() == [1, 2] * 3


def test_gradients_flow_through_the_rounds_of_a_loop(tmp_path: Path) -> None:
    inner = Graph([node("Mul", "h e", "p"), node("Tanh", "p", "h2"), node("Identity", "h2", "out")], [value("h", "float32", [2]), value("e", "float32", [2])],
                  [value("h2", "float32", [2]), value("out", "float32", [2])])  # fmt: skip
    a, x = np.float32([1, 2]), np.linspace(-1, 1, 8, dtype="float32").reshape(4, 2)
    found = []
    for length in (4, "n"):
        scan = node("Scan", "a x", "y every", body=inner, num_scan_inputs=1)
        graph = Graph([scan], [value("a", "float32", [2]), value("x", "float32", [length, 2])], [*ANY, value("every", "float32", None)])
        net = opened(model(graph), tmp_path)
        with fs.program_guard(net.program):
            given = [net.program.global_block.vars[n] for n in ("a", "x")]
            for v in given:
                v.stop_gradient = False
            pairs = fs.append_backward(fs.layer.reduce_sum(fs.layer.square(net.fetches[1])), given)
        found.append(fs.Executor().run(net.program, {"a": a, "x": x}, [g for _, g in pairs], scope=net.scope))
    assert all(np.abs(g).max() > 0.1 and np.allclose(g, other, atol=1e-6) for g, other in zip(*found, strict=True))
