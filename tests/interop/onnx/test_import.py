"""ONNX's models opened: what a file says, what is refused, and where."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_writer import Graph, function, model, node, opened, tensor, value

import foreshape as fs
from foreshape.apps.cli.check import print_check
from foreshape.interop.convert_models import convert_model

RNG = np.random.default_rng(4)
IMAGES = RNG.standard_normal((2, 3, 8, 8)).astype("float32")


def one(operator: str, inputs: dict[str, Any], outputs: str = "y", opset: int = 18, tensors: Any = (), **attributes: Any) -> bytes:
    names = " ".join([*inputs, *(name for name, _ in tensors)])
    fed = [value(name, str(array.dtype), array.shape) for name, array in inputs.items()]
    results = [value(name, "float32", None) for name in outputs.split()]
    return model(Graph([node(operator, names, outputs, **attributes)], fed, results, [tensor(n, a) for n, a in tensors]), opset)


def test_a_network_is_opened_run_and_saved_for_paddlepaddle(tmp_path: Path) -> None:
    weight, matrix = RNG.standard_normal((4, 3, 3, 3)).astype("float32"), RNG.standard_normal((64, 5)).astype("float32")
    nodes = [
        node("Conv", "x w", "c", name="/stem/Conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "c", "r", name="/stem/Relu"),
        node("Flatten", "r", "f", name="/Flatten"),
        node("Gemm", "f m", "y", name="/head/Gemm"),
    ]
    graph = Graph(nodes, [value("x", "float32", ["batch", 3, 8, 8])], [value("y", "float32", ["batch", 5])], [tensor("w", weight), tensor("m", matrix)])
    net = opened(model(graph), tmp_path)
    assert net.feeds == ["x"] and [v.name for v in net.fetches] == ["y"] and str(net.fetches[0].spec) == "f32[batch, 5]"
    assert [op.scope for op in net.program.global_block.ops if op.type == "conv2d"] == [("stem",)]
    (y,) = net.run(IMAGES).values()
    import torch

    image = torch.nn.functional.conv2d(torch.from_numpy(IMAGES), torch.from_numpy(weight), stride=2, padding=1).relu()
    assert np.allclose(y, image.flatten(1).numpy() @ matrix, atol=1e-4)
    fs.save_inference_model(tmp_path / "again", net.feeds, net.fetches, program=net.program, scope=net.scope)
    assert np.array_equal(fs.load_inference_model(tmp_path / "again", scope=fs.Scope()).run(IMAGES)["y"], y)


def test_names_of_dims_are_symbols_and_a_question_mark_is_none(tmp_path: Path) -> None:
    graph = Graph([node("Add", "a b", "y")], [value("a", "float32", ["n", "?", "-1"]), value("b", "float32", ["n", "?", "-1"])], [value("y", "float32", None)])
    program = fs.load_program(model(graph))
    assert str(program.global_block.vars["a"].spec) == "f32[n, a.1, a.2]"
    assert all(one.call_site is None for one in (*program.all_ops(), *program.all_variables()))  # no line of Python describes it
    assert ".py" not in str(program)
    with pytest.raises(fs.FeedError):
        opened(model(graph), tmp_path).run({"a": np.ones((2, 3, 4), "float32"), "b": np.ones((3, 3, 4), "float32")})


def test_what_is_not_known_is_worked_around_and_refused_in_a_run(tmp_path: Path) -> None:
    nodes = [node("Wonder", "x", "a", domain="far.away"), node("Relu", "a", "b"), node("Abs", "x", "y")]
    graph = Graph(nodes, [value("x", "float32", [2])], [value("b", "float32", None), value("y", "float32", None)])
    program = fs.load_program(model(graph, domains=["far.away"]))
    unknown, _ = program.diagnose()
    assert [op.type for op in unknown] == ["far.away.Wonder"]
    with pytest.raises(fs.ForeshapeError, match=r"far\.away\.Wonder|depends on"):
        opened(model(graph, domains=["far.away"]), tmp_path).run({"x": np.ones(2, "float32")})


def test_a_reason_names_the_node(tmp_path: Path) -> None:
    data = one("Dropout", {"x": IMAGES}, tensors=[("r", np.float32(0.5)), ("t", np.array(True))], name="/drop")
    with pytest.raises(fs.SchemaError, match=r"Dropout \(/drop\) cannot be imported: a dropout of training"):
        opened(data, tmp_path).run(IMAGES)


def test_functions_of_the_model_are_written_out(tmp_path: Path) -> None:
    own = function("Twice", "a", "b", [node("Add", "a a", "b")])
    graph = Graph([node("Twice", "x", "h", domain="own"), node("Twice", "h", "y", domain="own")], [value("x", "float32", [2])], [value("y", "float32", [2])])
    net = opened(model(graph, functions=[own], domains=["own"]), tmp_path)
    assert net.run(np.float32([1, 2]))["y"].tolist() == [4, 8]
    again = function("Loop", "a", "b", [node("Loop", "a", "b", domain="own")])
    graph = Graph([node("Loop", "x", "y", domain="own")], [value("x", "float32", [2])], [value("y", "float32", [2])])
    with pytest.raises(fs.FormatError, match="calls itself"):
        fs.load_program(model(graph, functions=[again], domains=["own"]))


@pytest.mark.parametrize("known", [True, False])
def test_a_branch_is_chosen_by_its_condition(known: bool, tmp_path: Path) -> None:
    then, otherwise = (Graph([node("Mul", f"x {by}", "z")], [], [value("z", "float32", None)]) for by in ("two", "three"))
    fed = [value("x", "float32", [2])] + ([] if known else [value("c", "bool", [])])
    tensors = [tensor("two", np.float32(2)), tensor("three", np.float32(3)), *([tensor("c", np.array(False))] if known else [])]
    graph = Graph([node("If", "c", "y", then_branch=then, else_branch=otherwise)], fed, [value("y", "float32", None)], tensors)
    net = opened(model(graph), tmp_path)
    x = np.float32([1, 2])
    assert net.run({"x": x} if known else {"x": x, "c": np.array(False)})["y"].tolist() == [3, 6]
    assert len(net.program.blocks) == (1 if known else 3)


def test_data_beside_the_model_is_read_and_stays_within_its_folder(tmp_path: Path) -> None:
    weight = RNG.standard_normal((100, 3)).astype("float32")
    (tmp_path / "net.data").write_bytes(b"1234" + weight.tobytes())
    (tmp_path.parent / "outside.data").write_bytes(weight.tobytes())

    def net(location: str, offset: int = 4) -> bytes:
        held = tensor("w", weight, {"location": location, "offset": offset, "length": weight.nbytes})
        return model(Graph([node("MatMul", "x w", "y")], [value("x", "float32", ["n", 100])], [value("y", "float32", None)], [held]))

    x = RNG.standard_normal((2, 100)).astype("float32")
    assert np.allclose(opened(net("net.data"), tmp_path).run(x)["y"], x @ weight, atol=1e-4)
    for location, offset, says in (("../outside.data", 0, "within the model's folder"), (str(tmp_path / "net.data"), 4, "within the model's folder"),
                                   ("net.data", 8, "which has"), ("none.data", 0, "cannot be read")):  # fmt: skip
        with pytest.raises(fs.FormatError, match=says):
            opened(net(location, offset), tmp_path)


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_a_file_that_is_cut_off_is_refused_with_its_place(cut: float) -> None:
    data = one("Add", {"a": IMAGES, "b": IMAGES}, tensors=())
    with pytest.raises(fs.FormatError, match=r"byte|graph"):
        fs.load_program(data[: int(len(data) * cut)])


def test_names_that_are_used_before_they_are_made_or_made_twice() -> None:
    fed, results = [value("x", "float32", [2])], [value("y", "float32", None)]
    for nodes, says in (([node("Relu", "z", "y")], "not made before"), ([node("Relu", "x", "y"), node("Abs", "x", "y")], "made twice")):
        with pytest.raises(fs.FormatError, match=says):
            fs.load_program(model(Graph(nodes, fed, results)))


def test_graphs_within_graphs_end() -> None:
    graph = Graph([node("Relu", "x", "y")], [], [value("y", "float32", None)])
    for _ in range(80):
        graph = Graph([node("If", "c", "y", then_branch=graph, else_branch=graph)] if len(graph.data) < 2000 else
                      [node("If", "c", "y", then_branch=graph)], [], [value("y", "float32", None)])  # fmt: skip
    with pytest.raises(fs.FormatError, match="deep"):
        fs.load_program(model(graph))


def test_a_model_becomes_a_pair_for_paddlepaddle(tmp_path: Path) -> None:
    weight = RNG.standard_normal((100, 3)).astype("float32")
    graph = Graph([node("MatMul", "x w", "y")], [value("x", "float32", ["n", 100])], [value("y", "float32", None)], [tensor("w", weight)])
    (tmp_path / "m.onnx").write_bytes(model(graph))
    assert sorted(convert_model(tmp_path / "m.onnx", tmp_path / "out.pdmodel").parameters) == ["w"]
    x = RNG.standard_normal((2, 100)).astype("float32")
    ours = fs.load_inference_model(tmp_path / "m.onnx", scope=fs.Scope()).run(x)["y"]
    assert np.array_equal(fs.load_inference_model(tmp_path / "out", scope=fs.Scope()).run(x)["y"], ours)


def test_attributes_of_another_kind_are_refused_with_their_place() -> None:
    graph = Graph([node("If", "c", "y")], [value("c", "bool", [])], [value("y", "float32", None)])
    with pytest.raises(fs.FormatError, match=r"graph\.node\[0\]: no If as ONNX has it"):
        fs.load_program(model(graph))


def test_one_byte_is_no_model() -> None:
    with pytest.raises(fs.FormatError):
        fs.load_program(b"\x08")


@pytest.mark.parametrize("truncated", [0, 1])
def test_remainders_are_exact_and_keep_the_signs_of_zeros(truncated: int, tmp_path: Path) -> None:
    values = np.float32([1e10, -1e10, 7, -7, 4, -4, 0.0, -0.0, 5.5, np.inf, -np.inf, np.nan])
    x, y = np.meshgrid(values, np.float32([3, -3, 2, -2, np.inf, -np.inf, 0.0, np.nan]))
    with np.errstate(invalid="ignore"):
        want = (np.fmod if truncated else np.mod)(x, y)
    got = opened(one("Mod", {"x": x, "y": y}, outputs="z", fmod=truncated), tmp_path).run({"x": x, "y": y})["z"]
    assert np.array_equal(got, want, equal_nan=True)
    definite = ~np.isnan(want) if not truncated else ~np.isnan(want) & (x != 0)  # of a dividend -0 ONNX allows both zeros
    assert np.array_equal(np.signbit(got)[definite], np.signbit(want)[definite])


def test_an_input_needs_a_name() -> None:
    with pytest.raises(fs.FormatError, match="an input has no name"):
        fs.load_program(model(Graph([node("Relu", "x", "y")], [value("", "float32", [2])], [value("y", "float32", None)])))


def test_scopes_are_the_modules_of_names_or_metadata() -> None:
    torch = "pkg.torch.onnx.name_scopes"
    nodes = [
        node("Relu", "x", "a", name="/encoder/encoder.layer.0/output/Relu"),
        node(
            "Relu", "a", "b", metadata={"pkg.torch.onnx.stack_trace": "x" * 5000, torch: "['', 'encoder', 'encoder.layer.0', 'encoder.layer.0.output', 'relu']"}
        ),
        node("Relu", "b", "c", metadata={"namespace": ": Net/encoder: Encoder/encoder.layer.0: Layer/encoder.layer.0.output: Output/relu: aten.relu"}),
        node("Relu", "c", "y", name="relu/1"),
    ]
    program = fs.load_program(model(Graph(nodes, [value("x", "float32", [2])], [value("y", "float32", None)])))
    assert [op.scope for op in program.all_ops() if op.type == "relu"] == [("encoder", "layer", "0", "output")] * 3 + [()]


def test_declared_shapes_that_inference_contradicts_warn_and_are_not_trusted() -> None:
    nodes = [node("Relu", "x", "a", name="/first"), node("Cast", "a", "b", to=7), node("Flatten", "a", "y")]

    def load(**declared: bytes) -> fs.Program:
        graph = Graph(nodes, [value("x", "float32", ["n", 3, 4])], [declared.pop("y", value("y", "float32", ["n", 12]))], described=list(declared.values()))
        return fs.load_program(model(graph))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(a=value("a", "float32", ["n", 3, 4]), b=value("b", "int64", ["other", "m", "?"]))
    for name, wrong, inferred in (
        ("a", value("a", "float32", ["n", 3, 5]), r"a of Relu \(/first\) is declared as f32\[n, 3, 5\] and inferred as f32\[n, 3, 4\]"),
        ("b", value("b", "int32", ["n", 3, 4]), "declared as i32.* inferred as i64"),
        ("y", value("y", "float32", ["n", 3, 4]), r"y of Flatten .* inferred as f32\[n, 12\]"),
    ):
        with pytest.warns(fs.ForeshapeWarning, match=inferred) as found:
            program = load(**{name: wrong})
        assert found[0].filename == __file__
        assert str(program.global_block.vars["y"].spec) == "f32[n, 12]"


@pytest.mark.parametrize(
    ("operator", "first", "number", "type"),
    [
        ("Mul", False, 3.0, "scale"), ("Mul", True, 3.0, "scale"), ("Add", False, 0.1, "scale"), ("Add", True, 0.1, "scale"), ("Sub", False, 0.1, "scale"),
        ("Sub", True, 0.1, "scale"), ("Div", False, 4.0, "scale"), ("Div", False, 3.0, "elementwise_div"), ("Div", True, 4.0, "elementwise_div"),
        ("Mul", False, float("inf"), "elementwise_mul"), ("Add", False, [[[[0.1]]]], "elementwise_add"), ("Add", False, [0.1, 0.2, 0.3], "elementwise_add"),
    ],
)  # fmt: skip
def test_arithmetic_with_one_constant_number_is_a_scale_with_the_same_bits(operator: str, first: bool, number: Any, type: str, tmp_path: Path) -> None:
    x, by = np.array([[9.0, 0.7, -1.3], [1e-3, 5.0, 7.0]], "float32"), np.array(number, "float32")
    graph = Graph([node(operator, "c x" if first else "x c", "y")], [value("x", "float32", ["n", 3])], [value("y", "float32", None)], [tensor("c", by)])
    net = opened(model(graph), tmp_path)
    assert [op.type for op in net.program.global_block.ops if op.type not in ("feed", "fetch", "fill_constant")] == [type]
    function = {"Mul": np.multiply, "Add": np.add, "Sub": np.subtract, "Div": np.divide}[operator]
    wanted = function(by, x) if first else function(x, by)
    (seen,) = net.run(x).values()
    assert seen.shape == wanted.shape and np.array_equal(seen, wanted)


def test_a_check_tells_refused_nodes_from_unknown_operators(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node("Dropout", "x r t", "d", name="/drop"), node("Relu", "d", "y"), node("Wonder", "x", "z", domain="far")]
    results = [value("y", "float32", None), value("z", "float32", None)]
    graph = Graph(nodes, [value("x", "float32", [2])], results, [tensor("r", np.float32(0.5)), tensor("t", np.array(True))])
    assert not print_check(fs.load_program(model(graph, domains=["far"])), {}, True, False)
    told = json.loads(capsys.readouterr().out)
    support = {one["type"]: one["support"] for one in told["operators"]}
    assert support["far.Wonder"] == "not known" and support["onnx.Dropout"] == support["onnx.Relu"] == "no: refused, or an operand is"


def test_a_node_without_an_operand_that_it_needs_is_refused_in_words() -> None:
    graph = Graph([node("Pad", "x", "y")], [value("x", "float32", [2])], [value("y", "float32", None)])
    with pytest.raises(fs.FormatError, match=r"no Pad as ONNX has it"):
        fs.load_program(model(graph))
