"""Nodes that were read are written as they were, and only while their ops are: what is changed since then is written op by op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_cases import cases
from support.onnx_writer import Graph, model, node, tensor, value

import foreshape as fs
from foreshape.interop.inference import columns
from foreshape.interop.onnx import open_model
from foreshape.interop.onnx.write.models import model_of
from foreshape.interop.parameters import Stored
from foreshape.language.program import Program
from foreshape.language.wire.onnx_encode import encode_model
from foreshape.language.wire.onnx_model import read_model
from foreshape.transforms.passes import for_test

X = value("x", "float32", ["n", 4])
Y = value("y", "float32", None)


def opened(data: bytes) -> tuple[Program, dict[str, Stored]]:
    program, parameters = open_model(data)
    program.refresh()
    return program, parameters.stored()


def written(program: Program, values: dict[str, Stored], opset: int | None = None, more: str = "") -> tuple[bytes, list[str]]:
    fetches = [*columns(program, "fetch", outputs=False), *([more] if more else [])]
    made = model_of(program, columns(program, "feed", outputs=True), {name: name for name in fetches}, values, opset)
    return b"".join(map(bytes, encode_model(made))), [one.operator for one in made.graph.nodes]


def results(program: Program, values: dict[str, Stored], feed: dict[str, Any]) -> list[Any]:
    scope = fs.Scope()
    for name, stored in values.items():
        scope.set(name, np.array(stored.numbers()))
    return [np.asarray(one) for one in fs.Executor("cpu").run(program, feed=feed, fetch=columns(program, "fetch", outputs=False), scope=scope)]


def check(program: Program, values: dict[str, Stored], feed: dict[str, Any], opset: int | None = None) -> list[str]:
    """Write a program, compare what is read again with it, and return the operators."""
    data, operators = written(program, values, opset)
    for a, b in zip(results(program, values, feed), results(*opened(data), feed), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)
    return operators


SQUARES = model(Graph([node("ReduceSumSquare", "x", "y", axes=[1])], [X], [Y]), 13)
FEED = {"x": np.linspace(-2, 3, 12, dtype="float32").reshape(3, 4)}


def test_a_node_of_several_ops_stays_one_in_a_copy_and_with_operands_for_its_attributes() -> None:
    program, values = opened(SQUARES)
    assert len([op for op in program.all_ops() if op.is_run]) > 1
    assert check(for_test(program.clone()), values, FEED) == ["ReduceSumSquare"]
    assert check(program, values, FEED, 13) == ["ReduceSumSquare"]


def summing(program: Program) -> Any:
    return next(op for op in program.all_ops() if op.type == "reduce_sum")


def changed_attribute(program: Program) -> None:
    summing(program).set_attribute("dim", [0])


def changed_operand(program: Program) -> None:
    op = summing(program)
    twice = op.block.append_op("scale", {"X": op.operand(0)}, None, {"scale": 2.0}, index=op.block.ops.index(op))
    op.set_input("X", twice.result())


def another_op(program: Program) -> None:
    op = summing(program)
    given, made, at = op.operand(0), op.result(), op.block.ops.index(op)
    op.block.remove_op(op)
    op.block.append_op("reduce_max", {"X": given}, {"Out": made}, {"dim": [1], "keep_dim": True}, index=at)


@pytest.mark.parametrize("change", [changed_attribute, changed_operand, another_op])
def test_changed_ops_are_written_as_they_are(change: Any) -> None:
    program, values = opened(SQUARES)
    change(program)
    assert "ReduceSumSquare" not in check(program, values, FEED)


def test_what_is_read_between_the_ops_is_written_with_them() -> None:
    program, values = opened(SQUARES)
    data, operators = written(program, values, more=summing(program).operand(0))
    assert "ReduceSumSquare" not in operators
    again, held = opened(data)
    np.testing.assert_allclose(results(again, held, FEED)[1], np.square(FEED["x"]), rtol=1e-6)


def trained(values: dict[str, Stored]) -> dict[str, Stored]:
    def twice(one: Stored) -> Stored:
        return one._replace(data=memoryview((np.array(one.numbers()) * 2).tobytes()))

    return {name: twice(one) for name, one in values.items()}


@pytest.mark.parametrize("name", ["test_lstm_defaults", "test_gru_with_initial_bias", "test_conv_with_strides_no_padding", "test_gemm_beta"])
def test_trained_weights_are_written_as_they_are_now(name: str) -> None:
    case = cases()[name]
    record = read_model(case["model"].tobytes())
    fixed = {v.name: case[f"in{at}"] for at, v in enumerate(record.graph.inputs) if at}
    nodes = [
        node(one.operator, " ".join(n or "_" for n in one.inputs), " ".join(n or "_" for n in one.outputs), **one.attributes) for one in record.graph.nodes
    ]
    given, *_ = record.graph.inputs
    outputs = [value(v.name, "float32", None) for v in record.graph.outputs]
    data = model(Graph(nodes, [value(given.name, "float32", case["in0"].shape)], outputs, [tensor(n, a) for n, a in fixed.items()]), record.opsets[""])
    program, values = opened(data)
    assert values and record.graph.nodes[0].operator in check(program, values, {given.name: case["in0"]}, max(record.opsets[""], 13))
    check(program, trained(values), {given.name: case["in0"]}, max(record.opsets[""], 13))


def test_a_node_of_another_domain_is_written_by_the_standards_nodes_that_it_is_made_of() -> None:
    made = node("QLinearAdd", "x s zero x s zero s zero", "y", "com.microsoft", "/block/add/QLinearAdd")
    tensors = [tensor("s", np.array(0.5, "float32")), tensor("zero", np.array(3, "uint8"))]
    program, values = opened(model(Graph([made], [value("x", "uint8", ["n", 4])], [value("y", "uint8", ["n", 4])], tensors), domains=["com.microsoft"]))
    assert check(program, values, {"x": np.arange(12, dtype="uint8").reshape(3, 4)}) == ["DequantizeLinear", "DequantizeLinear", "Add", "QuantizeLinear"]


def test_a_node_with_sizes_of_its_import_is_not_written_for_other_sizes() -> None:
    """The ops of a Resize by scales hold the sizes that they gave."""
    nodes = [node("Upsample", "x s", "y", mode="nearest")]
    data = model(Graph(nodes, [value("x", "float32", [1, 1, 2, 3])], [Y], [tensor("s", np.array([1, 1, 2, 1.5], "float32"))]), 9)
    program, values = opened(data)
    feed = {"x": np.arange(6, dtype="float32").reshape(1, 1, 2, 3)}
    check(program, values, feed)
    other = program.with_feed_shapes({"x": [1, 1, 4, 3]})
    check(other, values, {"x": np.arange(12, dtype="float32").reshape(1, 1, 4, 3)})


def test_a_loop_keeps_its_graph_until_an_op_in_it_is_changed() -> None:
    body = Graph(
        [node("Add", "s x", "t"), node("Identity", "c", "go")],
        [value("i", "int64", []), value("c", "bool", []), value("s", "float32", ["n", 4])],
        [value("go", "bool", []), value("t", "float32", ["n", 4])],
    )
    graph = Graph([node("Loop", "m _ x", "y", body=body)], [value("m", "int64", []), X], [value("y", "float32", ["n", 4])])
    program, values = opened(model(graph))
    feed = {"m": np.array(3), **FEED}
    assert check(program, values, feed)[:1] == ["Loop"] and len(program.blocks) > 1
    assert "onnx" not in str(opened(written(program, values)[0])[0])
    inner = next(op for op in program.all_ops() if op.type == "elementwise_add" and op.block.idx)
    inner.block.append_op("scale", {"X": inner.result()}, {"Out": inner.result()}, {"scale": 2.0}, index=inner.block.ops.index(inner) + 1)
    assert len(check(program, values, feed)) > 2


def test_the_operator_set_of_the_model_is_the_default_one_if_it_is_newer() -> None:
    program, values = opened(model(Graph([node("Gelu", "x", "y")], [X], [Y]), 21))
    record = model_of(program, ["x"], {"y": "y"}, values)
    assert record.opsets == {"": 21} and [one.operator for one in record.graph.nodes] == ["Gelu"]


def test_a_tried_branch_leaves_no_constants(tmp_path: Path) -> None:
    """The rest after an If whose results differ in their number of dims is tried in each branch first."""
    c = lambda name, array: node("Constant", "", name, value=np.asarray(array))  # noqa: E731
    inner = Graph(
        [node("If", "c", "z", then_branch=Graph([node("Squeeze", "x", "a")], [], [value("a", "float32", None)]),
              else_branch=Graph([node("Identity", "x", "b")], [], [value("b", "float32", None)])),
         c("k", np.array([1.5, 2.5], "float32")), node("Sub", "z k", "w")],
        [], [value("w", "float32", None)],
    )  # fmt: skip
    other = Graph([c("l", np.array([1.0, 2.0], "float32")), node("Squeeze", "x", "flat"), node("Sub", "flat l", "v")], [], [value("v", "float32", None)])
    graph = Graph(
        [node("If", "d", "y", then_branch=inner, else_branch=other)], [value("c", "bool", []), value("d", "bool", []), value("x", "float32", [1, 2])], [Y]
    )
    program, _ = opened(model(graph))
    made = [name for op in program.global_block.ops for name in op.output_names()]
    assert len(set(made)) == len(made)
