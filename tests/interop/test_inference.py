"""Networks saved for use, and opened again."""

from pathlib import Path

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.wire import framework_pb2 as pb
from foreshape.transforms.passes import for_test

IMAGES = np.random.default_rng(3).standard_normal((5, 7)).astype(np.float32)


@pytest.fixture
def net():
    """A small classifier that is trained: variables by name, the executor and the scope."""
    x, label = layer.data("x", dims=7), layer.data("label", dims=1, dtype="int64")
    hidden = layer.fc(x, 6, activation="relu")
    out = layer.fc(hidden, 3, activation="softmax")
    cost = layer.mean(layer.softmax_with_cross_entropy(hidden, label))
    fs.optimizer.SGD(0.1).minimize(cost)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    return {"x": x, "label": label, "hidden": hidden, "out": out, "cost": cost, "executor": executor, "scope": scope}


def expected(net, fetch):
    return net["executor"].run(for_test(net["x"].block.program), {"x": IMAGES}, [f.name for f in fetch], scope=net["scope"])


def test_it_computes_the_same_in_a_scope_of_its_own(net, tmp_path):
    before = fs.default_main_program().to_bytes()
    fs.save_inference_model(tmp_path / "net", [net["x"]], [net["out"], net["hidden"]], net["executor"], scope=net["scope"])
    assert fs.default_main_program().to_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.pdiparams", "net.pdmodel"]
    for path in (tmp_path / "net", str(tmp_path / "net"), tmp_path / "net.pdmodel"):
        scope = fs.Scope()
        program, feeds, fetches = fs.load_inference_model(path, fs.Executor(), scope)
        assert feeds == ["x"] and [f.shape for f in fetches] == [[fs.UNK, 3], [fs.UNK, 6]]
        seen = fs.Executor().run(program, {"x": IMAGES}, fetches, scope=scope)
        assert all(np.array_equal(a, b) for a, b in zip(seen, expected(net, [net["out"], net["hidden"]]), strict=True))
        by_fetch_ops = fs.Executor().run(program, {"x": IMAGES}, scope=scope)
        assert all(np.array_equal(a, b) for a, b in zip(seen, by_fetch_ops, strict=True))


def test_inputs_are_told_with_the_lines_that_described_them(net, tmp_path):
    described = [net["x"].call_site.line, net["hidden"].call_site.line]
    fs.save_inference_model(tmp_path / "net", [net["x"], net["hidden"]], [net["out"]], scope=net["scope"])
    program, feeds, fetches = fs.load_inference_model(tmp_path / "net", scope=fs.Scope())
    assert [op.site[1] for op in program.global_block.ops if op.type == "feed"] == described
    with pytest.raises(fs.FeedError, match=rf"^x \(f32\[batch, 7\], described at test_inference\.py:{described[0]}\) is not fed"):
        program, feeds, fetches = fs.load_inference_model(tmp_path / "net", executor := fs.Executor(), scope := fs.Scope())
        executor.run(program, {feeds[1]: IMAGES[:, :6]}, [*fetches, "x"], scope=scope)
    fs.save_inference_model(tmp_path / "again", feeds, fetches, program=program, scope=net["scope"])
    again = fs.load_program(tmp_path / "again.pdmodel")
    assert [op.site[1] for op in again.global_block.ops if op.type == "feed"] == described
    for op in program.global_block.ops:
        op.site = None  # as of a model that PaddlePaddle has saved
    fs.save_inference_model(tmp_path / "again", feeds, fetches, program=program, scope=net["scope"])
    assert fs.load_program(tmp_path / "again.pdmodel").global_block.ops[0].site is None


def test_the_file_has_what_paddlepaddle_expects(net, tmp_path):
    fs.save_inference_model(tmp_path / "net", ["x"], net["out"], program=fs.default_main_program(), scope=net["scope"])
    block = pb.ProgramDesc.FromString((tmp_path / "net.pdmodel").read_bytes()).blocks[0]
    types = [op.type for op in block.ops]
    assert types == ["feed", "mul", "elementwise_add", "relu", "mul", "elementwise_add", "softmax", "scale", "fetch"]
    kinds = {v.name: (pb.VarType.Type.Name(v.type.type), v.persistable) for v in block.vars}
    assert kinds["feed"] == ("FEED_MINIBATCH", True) and kinds["fetch"] == ("FETCH_LIST", True)
    assert kinds["save_infer_model/scale_0.tmp_0"] == ("LOD_TENSOR", False)
    assert {a.name: a.i for a in block.ops[0].attrs}["col"] == 0
    assert block.ops[0].inputs[0].arguments == ["feed"] and block.ops[-1].outputs[0].arguments == ["fetch"]
    assert not any(op.type.endswith("_grad") or op.type == "sgd" for op in block.ops)
    assert {v.name for v in block.vars if v.persistable} == {"feed", "fetch", "fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"}


def test_saving_what_was_opened_gives_the_same_again(net, tmp_path):
    fs.save_inference_model(tmp_path / "a", [net["x"]], [net["out"]], scope=net["scope"])
    scope = fs.Scope()
    program, feeds, fetches = fs.load_inference_model(tmp_path / "a", scope=scope)
    fs.save_inference_model(tmp_path / "b", feeds, fetches, scope=scope)
    again, _, more = fs.load_inference_model(tmp_path / "b", scope=fs.Scope())
    assert [op.type for op in again.global_block.ops] == [op.type for op in program.global_block.ops]
    assert [v.name for v in more] == [v.name for v in fetches]
    assert (tmp_path / "a.pdiparams").read_bytes() == (tmp_path / "b.pdiparams").read_bytes()


def test_a_missing_feed_is_named_with_its_line(net, tmp_path):
    with pytest.raises(fs.SchemaError, match=r"needs label .*not among the feeds.*test_inference\.py"):
        fs.save_inference_model(tmp_path / "net", [net["x"]], [net["cost"]], scope=net["scope"])
    assert list(tmp_path.iterdir()) == []


def test_a_parameter_without_a_value_is_named(net, tmp_path):
    with pytest.raises(fs.ExecutionError, match=r"not initialised: fc_0\.b_0"):
        fs.save_inference_model(tmp_path / "net", [net["x"]], [net["out"]], scope=fs.Scope())


def test_names_that_are_not_there_or_of_another_program_are_refused(net, tmp_path):
    with pytest.raises(fs.SchemaError, match="no variable 'nothing'"):
        fs.save_inference_model(tmp_path / "net", ["x"], ["nothing"], scope=net["scope"])
    with pytest.raises(fs.SchemaError, match="of another program"):
        fs.save_inference_model(tmp_path / "net", [net["x"]], [net["out"]], program=fs.Program(), scope=net["scope"])
    with pytest.raises(fs.SchemaError, match="twice"):
        fs.save_inference_model(tmp_path / "net", ["x", "x"], [net["out"]], scope=net["scope"])


def test_parameters_of_another_network_leave_the_scope_as_it_was(net, tmp_path):
    fs.save_inference_model(tmp_path / "net", [net["x"]], [net["out"]], scope=net["scope"])
    fs.save_inference_model(tmp_path / "half", [net["x"]], [net["hidden"]], scope=net["scope"])
    scope = fs.Scope()
    for program, parameters in (("net", "half"), ("half", "net")):
        with pytest.raises(fs.FormatError, match="parameter"):
            fs.load_inference_model(tmp_path / program, scope=scope, params=tmp_path / f"{parameters}.pdiparams")
    assert scope.names() == []


def test_a_folder_of_separate_files_opens(net, tmp_path):
    from foreshape.interop import write_parameters

    fs.save_inference_model(tmp_path / "net", [net["x"]], [net["out"]], scope=net["scope"])
    folder = tmp_path / "old"
    folder.mkdir()
    (tmp_path / "net.pdmodel").rename(folder / "__model__")
    for name in ("fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"):
        write_parameters(folder / name, {name: net["scope"].get(name)})
    scope = fs.Scope()
    program, _, fetches = fs.load_inference_model(folder, scope=scope)
    seen = fs.Executor().run(program, {"x": IMAGES}, fetches, scope=scope)
    assert np.array_equal(seen[0], expected(net, [net["out"]])[0])


def test_a_network_without_parameters(tmp_path):
    x = layer.data("x", dims=7)
    fs.save_inference_model(tmp_path / "net", x, layer.relu(x))
    program, feeds, fetches = fs.load_inference_model(tmp_path / "net", scope=fs.Scope())
    (seen,) = fs.Executor().run(program, {feeds[0]: IMAGES}, fetches, scope=fs.Scope())
    assert np.array_equal(seen, np.maximum(IMAGES, 0))
    (tmp_path / "net.pdiparams").unlink()
    fs.load_inference_model(tmp_path / "net", scope=fs.Scope())


def test_bf16_parameters_come_back_exactly(tmp_path):
    x = layer.data("x", shape=["batch", 7], dtype="bf16")
    out = layer.fc(x, 3)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    fs.save_inference_model(tmp_path / "net", x, out, scope=scope)
    opened = fs.Scope()
    program, _, _ = fs.load_inference_model(tmp_path / "net", scope=opened)
    assert program.var("fc_0.w_0").dtype is fs.BF16
    assert opened.tensor("fc_0.w_0").dtype == scope.tensor("fc_0.w_0").dtype
    assert opened.tensor("fc_0.w_0").equal(scope.tensor("fc_0.w_0"))


def test_two_ops_of_one_column_are_refused(net, tmp_path):
    fs.save_inference_model(tmp_path / "net", [net["x"]], [net["out"], net["hidden"]], scope=net["scope"])
    changed = pb.ProgramDesc.FromString((tmp_path / "net.pdmodel").read_bytes())
    for op in changed.blocks[0].ops:
        for attr in op.attrs:
            if attr.name == "col":
                attr.i = 0
    (tmp_path / "net.pdmodel").write_bytes(changed.SerializeToString())
    with pytest.raises(fs.FormatError, match="two fetch ops have the column 0"):
        fs.load_inference_model(tmp_path / "net", scope=fs.Scope())


def test_a_program_that_does_not_hold_together_is_refused(net, tmp_path):
    fs.save_inference_model(tmp_path / "net", [net["x"]], [net["out"]], scope=net["scope"])
    changed = pb.ProgramDesc.FromString((tmp_path / "net.pdmodel").read_bytes())
    next(v for v in changed.blocks[0].vars if v.name == "fc_1.w_0").type.lod_tensor.tensor.dims[0] = 5
    (tmp_path / "net.pdmodel").write_bytes(changed.SerializeToString())
    scope = fs.Scope()
    with pytest.raises(fs.ShapeError, match="mul"):
        fs.load_inference_model(tmp_path / "net", scope=scope)
    assert scope.names() == []


def test_a_file_that_does_not_say_what_must_be_checked_needs_no_checks_in_the_run(tmp_path: Path) -> None:
    x = layer.data("x", shape=["batch", 3, "height", "width"])
    y = layer.reduce_mean(layer.conv2d(layer.conv2d(x, 4, 3, stride=2), 2, 3), [2, 3])
    fs.Executor().run(fs.default_startup_program())
    fs.save_inference_model(tmp_path / "net", [x], [y])
    program, _, fetches = fs.load_inference_model(tmp_path / "net", scope=fs.Scope())
    program.global_block.vars["x"].need_check_feed = False  # as older files have it
    program.forget()
    program.infer()
    step = fs.Executor().step(program, fetches)
    assert "check" not in step.emitted.source and step.emitted.source.count("conv") >= 2


def test_a_truth_is_a_result(tmp_path: Path) -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", input_size=3)
        fs.save_inference_model(tmp_path / "net", [x], {"above": x > 0.0}, scope=fs.Scope())
        fs.save_inference_model(tmp_path / "plain", [x], [x > 0.0], scope=fs.Scope())
    array = np.array([[1.0, -1.0, 0.0]], "float32")
    assert fs.load_inference_model(tmp_path / "net").run(array)["above"].tolist() == [[True, False, False]]
    assert fs.load_inference_model(tmp_path / "plain").run(array)[0].tolist() == [[True, False, False]]
