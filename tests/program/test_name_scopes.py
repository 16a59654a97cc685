"""Name scopes: what parameters, variables and ops made within are called and carry, and what goes on with that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import SchemaError


def parameters() -> list[str]:
    return [v.name for v in fs.default_main_program().parameters()]


def small() -> tuple[fs.Variable, fs.Variable]:
    x = layer.data("x", 4)
    h = x
    with fs.name_scope("encoder"):
        for i in range(2):
            with fs.name_scope(str(i)):
                h = layer.fc(h, 4, "tanh", name="query")
    return x, h


def test_names_and_ops_say_the_scope() -> None:
    _, h = small()
    layer.fc(h, 2)
    assert parameters() == [f"encoder.{i}.query.{what}" for i in range(2) for what in ("weight", "bias")] + ["fc_0.w_0", "fc_0.b_0"]
    ops = fs.default_main_program().global_block.ops
    assert [op.attrs.get("op_namescope") for op in ops] == ["/encoder/0/"] * 3 + ["/encoder/1/"] * 3 + [None] * 2
    assert ops[0].scope == ("encoder", "0") and ops[-1].scope == ()
    assert h.name == "encoder.1.query.tmp_2"


def test_layers_without_a_name_are_called_by_their_kind_and_numbered_where_they_clash() -> None:
    x = layer.data("x", 4)
    with fs.name_scope("a"):
        layer.fc(layer.fc(x, 3), 3, name="out")
        layer.fc(x, 3)
        layer.fc(x, 3, name="out", weight="whole_name")
        layer.batch_norm(x)
        layer.create_parameter([2], "fp32")
        layer.create_parameter([2], "fp32")
    assert parameters() == ["a.fc.weight", "a.fc.bias", "a.out.weight", "a.out.bias", "a.fc_1.weight", "a.fc_1.bias", "whole_name", "a.out_1.bias",
                            "a.batch_norm.weight", "a.batch_norm.bias", "a.batch_norm.mean", "a.batch_norm.variance", "a.weight", "a.weight_1"]  # fmt: skip


def test_a_scope_that_is_entered_again_goes_on_or_is_another_one() -> None:
    x = layer.data("x", 4)

    def block(x: fs.Variable) -> fs.Variable:
        with fs.name_scope("block"), fs.name_scope("inner"):
            return layer.relu(layer.fc(x, 4, bias=False))

    block(block(x))
    for i in range(2):
        with fs.name_scope("net"), fs.name_scope(str(i)):
            layer.fc(x, 4, bias=False)
    assert parameters() == ["block.inner.fc.weight", "block_1.inner.fc.weight", "net.0.fc.weight", "net.1.fc.weight"]
    assert [op.scope[0] for op in fs.default_main_program().global_block.ops] == ["block", "block", "block_1", "block_1", "net", "net"]


def test_a_loaded_program_goes_on_with_names_of_its_own() -> None:
    small()
    loaded = fs.Program.from_bytes(fs.default_main_program().to_bytes())
    with fs.program_guard(loaded), fs.name_scope("encoder"), fs.name_scope("0"):
        layer.fc(loaded.var("x"), 4, name="query")
    assert loaded.parameters()[-2].name == "encoder_1.0.query.weight"


def test_gradient_ops_are_in_the_scope_of_what_they_undo() -> None:
    x, h = small()
    with fs.name_scope("twice"):
        h = h * x + h  # the gradient of h is a sum
    fs.append_backward(layer.mean(h))
    ops = fs.default_main_program().global_block.ops
    forward = {n: op.scope for op in ops if op.role == 0 for n in op.output_names()}
    back = [op for op in ops if op.role == 1 and op.scope]
    assert {op.type for op in back} >= {"sum", "tanh_grad", "mul_grad", "elementwise_mul_grad"}
    for op in back:
        if op.type.endswith("_grad"):
            assert op.scope == forward[next(n for n in op.input_names() if n.endswith("@GRAD")).split("@")[0]], op


def test_files_text_copies_and_pruning_keep_the_scopes() -> None:
    _, h = small()
    fs.optimizer.SGD(0.1).minimize(layer.mean(layer.fc(h, 1)))
    program = fs.default_main_program()
    scopes = [(op.type, op.scope) for op in program.global_block.ops]
    for other in (program.clone(), fs.Program.from_bytes(program.to_bytes()), fs.Program.parse(str(program))):
        assert [(op.type, op.scope) for op in other.global_block.ops] == scopes
        assert str(other) == str(program)
    assert "layout" not in str(program) and '{axis=1, op_namescope="/encoder/0/"}' in str(program)
    assert fs.Program.from_bytes(program.to_bytes()).to_bytes() == program.to_bytes()
    assert [op.scope for op in fs.default_startup_program().global_block.ops][:2] == [("encoder", "0")] * 2


def test_saved_models_and_parameters_keep_names_and_values(tmp_path: Path) -> None:
    x, h = small()
    executor = fs.Executor()
    executor.run(fs.default_startup_program())
    feed = {"x": np.ones((2, 4), "float32")}
    expected = executor.run(feed=feed, fetch=[h])[0]
    fs.save_inference_model(tmp_path / "net", [x], [h])
    model = fs.load_inference_model(tmp_path / "net")
    np.testing.assert_allclose(next(iter(model.run(feed).values())), expected, rtol=1e-6)
    inner = [op for op in model.program.global_block.ops if op.type == "mul"]
    assert [op.scope for op in inner] == [("encoder", "0"), ("encoder", "1")] and inner[0].input("Y") == "encoder.0.query.weight"


def test_a_recompute_scope_within_a_scope_computes_again_and_is_no_scope() -> None:
    x = layer.data("x", 4)
    with fs.name_scope("net"), layer.recompute_scope():
        h = layer.tanh(layer.fc(layer.fc(x, 4, "tanh"), 4))
    fs.append_backward(layer.mean(h))
    ops = fs.default_main_program().global_block.ops
    assert {op.scope for op in ops} == {("net",), ()} and sum(op.type == "tanh" for op in ops) > 2


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "recompute_scope_0", 3])
def test_a_name_that_cannot_be_is_refused_with_the_line(name: object) -> None:
    with pytest.raises(SchemaError, match=r"(?s)the name of a scope.*test_name_scopes.py"), fs.name_scope(name):  # type: ignore[arg-type]
        pass


def test_an_error_within_a_scope_leaves_it() -> None:
    with pytest.raises(fs.ShapeError), fs.name_scope("a"):
        layer.fc(layer.data("x", ["n"]), 3)
    assert layer.fc(layer.data("y", 4), 3).name == "fc_0.tmp_1"
