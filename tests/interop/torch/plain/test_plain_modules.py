"""Programs as modules of plain torch: the text, the files, training, and what needs nothing of this package."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.harness import build

import foreshape as fs
from foreshape import layer
from foreshape.apps.cli.model_conversion import print_converted
from foreshape.errors import FormatError
from foreshape.interop.forms.rules import torch_writer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.program_source import plain_source
from foreshape.interop.torch.write.sources import Sources
from foreshape.interop.torch_files import convert_to_torch
from foreshape.language.operator.registry import get
from foreshape.layer.detection import multiclass_nms
from foreshape.machine.kernels.products import matmul


def network() -> tuple[Any, Any]:
    """A network of images with a batch norm, a dropout and a classifier; its input and its scores."""
    images = layer.data("images", shape=["batch", 3, "height", "width"])
    with fs.name_scope("encoder"):
        features = layer.conv2d(images, num_filters=4, kernel_size=3, padding=1)
        features = layer.relu(layer.batch_norm(features))
    pooled = layer.dropout(layer.reduce_mean(features, [2, 3]), 0.5, implementation="upscale_in_train")
    return images, layer.softmax(layer.fc(pooled, 5))


def started() -> fs.Scope:
    scope = fs.Scope()
    fs.Executor().run(fs.default_startup_program(), scope=scope)
    return scope


def test_the_text_is_readable() -> None:
    _, scores = network()
    module = fs.to_torch(fs.default_main_program(), started(), fetches=scores, plain=True)
    lines = module.source.splitlines()
    forward = lines[next(at for at, line in enumerate(lines) if "def forward" in line) :]
    assert forward[0] == "    def forward(self, images):" and forward[1:3] == ["", "        # encoder"]
    assert forward[3] == "        x = F.conv2d(images, self.encoder.conv2d.weight, padding=1)  # encoder.conv2d.tmp_0: f32[batch, 4, height, width]"
    assert "        x = F.dropout(x, 0.5, self.training)" in module.source and forward[-1] == "        return x"
    assert "foreshape" not in module.source and max(map(len, lines)) <= 160


def test_parameters_have_the_programs_names() -> None:
    _, scores = network()
    scope = started()
    module = fs.to_torch(fs.default_main_program(), scope, fetches=scores, plain=True)
    state = module.state_dict()
    assert state.keys() == {n for n in scope.names() if n in state} and {"encoder.conv2d.weight", "fc_0.b_0"} <= state.keys()
    assert len(list(module.buffers())) == 2 and all(n.startswith("encoder.batch_norm.") for n, _ in module.named_buffers())
    for name, value in state.items():
        assert torch.equal(value, scope.tensor(name)) and value.data_ptr() != scope.tensor(name).data_ptr()


def test_training_follows_the_mode() -> None:
    x = layer.data("x", shape=["batch", 3, 4, 4])
    out = layer.batch_norm(x)
    scope = started()
    module = fs.to_torch(fs.default_main_program(), scope, fetches=out, plain=True)
    given = np.random.RandomState(3).randn(5, 3, 4, 4).astype("float32")
    assert module.training
    with torch.no_grad():
        seen = module(torch.from_numpy(given))
    wanted = fs.Executor().run(feed={"x": given}, fetch=[out], scope=scope)[0]
    np.testing.assert_allclose(seen, wanted, atol=1e-5)
    for name, value in module.named_buffers():  # as PaddlePaddle moves them
        torch.testing.assert_close(value, scope.tensor(name), atol=1e-5, rtol=1e-5)
    before = [b.clone() for b in module.buffers()]
    module.eval()(torch.from_numpy(given))
    assert all(map(torch.equal, before, module.buffers()))


def test_gradients_are_those_of_the_step() -> None:
    x, y = layer.data("x", shape=["batch", 6]), layer.data("y", shape=["batch", 1], dtype="int64")
    loss = layer.mean(layer.softmax_with_cross_entropy(layer.fc(layer.layer_norm(layer.fc(x, 8, activation="gelu")), 3), y))
    scope = started()
    module = fs.to_torch(fs.default_main_program(), scope, fetches=loss, plain=True)
    feed = {"x": np.random.RandomState(0).randn(7, 6).astype("float32"), "y": np.arange(7).reshape(7, 1) % 3}
    module(*map(torch.from_numpy, feed.values())).backward()
    gradients = dict(fs.append_backward(loss))
    names = [p.name for p in gradients]
    wanted = fs.Executor().run(feed=feed, fetch=[gradients[p] for p in gradients], scope=scope)
    for name, array in zip(names, wanted, strict=True):
        np.testing.assert_allclose(dict(module.named_parameters())[name].grad, array, atol=1e-6)


def test_loops_and_arrays_are_those_of_python() -> None:
    count = layer.data("count", shape=[1], dtype="int64")
    x = layer.data("x", shape=["batch", 2])
    _, total = layer.while_loop(
        lambda at, _: at < count, lambda at, so_far: [at + 1, so_far * 2.0], [layer.fill_constant([1], "int64", 0), layer.scale(x, 1.0)]
    )
    module = fs.to_torch(fs.default_main_program(), fs.Scope(), feeds=[count, x], fetches=total, plain=True)
    assert "while " in module.source
    given = np.ones((3, 2), "float32")
    for times in (0, 3):
        assert float(module(torch.tensor([times]), torch.from_numpy(given))[0, 0]) == 2.0**times


def test_ragged_rows_come_with_their_offsets() -> None:
    words = layer.data("words", shape=["words", 4], lod_level=1)
    pooled = layer.sequence_softmax(layer.fc(words, 1))
    scope = started()
    module = fs.to_torch(fs.default_main_program(), scope, fetches=pooled, plain=True)
    rows = np.random.RandomState(1).randn(5, 4).astype("float32")
    values, offsets = module(torch.from_numpy(rows), [torch.tensor([0, 2, 5])])
    wanted = fs.Executor().run(feed={"words": fs.LoDTensor(rows, [[2, 3]])}, fetch=[pooled], scope=scope)[0]
    np.testing.assert_allclose(values.detach(), np.asarray(wanted.data), atol=1e-6)
    assert offsets.tolist() == [0, 2, 5]


def test_a_ragged_network_becomes_a_file(tmp_path: Path) -> None:
    words = layer.data("words", shape=["words", 8], lod_level=1)
    pooled = layer.sequence_pool(layer.fc(words, 4), "average")
    fs.save_inference_model(str(tmp_path / "m"), [words], [pooled], scope=started())
    model = fs.load_inference_model(str(tmp_path / "m"), scope=fs.Scope())
    convert_to_torch(tmp_path / "m.pdmodel", tmp_path / "ragged_net.py")
    found = importlib.util.spec_from_file_location("ragged_net", tmp_path / "ragged_net.py")
    assert found is not None and found.loader is not None
    code = importlib.util.module_from_spec(found)
    found.loader.exec_module(code)
    rows = np.random.RandomState(1).randn(6, 8).astype("float32")
    seen = code.load()(torch.from_numpy(rows), torch.tensor([0, 2, 2, 6]))
    wanted = model.run({"words": fs.LoDTensor(rows, [[2, 0, 4]])})[0]
    np.testing.assert_allclose(seen.detach(), wanted, atol=1e-6)


def test_names_that_torch_refuses_get_others() -> None:
    x = layer.data("x", shape=["batch", 2])
    block = fs.default_main_program().global_block
    made = x
    for name in ("a.b", "a", "training", "w.", "1/2"):
        held = block.create_variable(name, fs.core.spec.Spec(fs.core.spec.LOD_TENSOR, fs.core.spec.FP32, (2,)), persistable=True)
        made = made + held
    scope = fs.Scope()
    for at, name in enumerate(("a.b", "a", "training", "w.", "1/2")):
        scope.set(name, np.full(2, 10.0**at, "float32"))
    module = fs.to_torch(fs.default_main_program(), scope, fetches=made, plain=True)
    assert module(torch.zeros(1, 2))[0, 0] == 11111.0
    assert {"a.b", "1/2"} <= module.state_dict().keys() and len(module.state_dict()) == 5


def test_what_is_not_written_is_named() -> None:
    x = layer.data("x", shape=["batch", 2])
    out = layer.sampling_id(layer.softmax(x)) + layer.sampling_id(layer.softmax(x))
    with pytest.raises(FormatError, match=r"sampling_id \(2 ops, the first is op \d of block 0\)"):
        fs.to_torch(fs.default_main_program(), fs.Scope(), fetches=out, plain=True)


RUN = """
import sys
sys.path.insert(0, sys.argv[1])
sys.modules["foreshape"] = None
import numpy, torch, net
given = torch.from_numpy(numpy.load(sys.argv[1] + "/given.npy"))
numpy.save(sys.argv[1] + "/seen.npy", net.load()(given).detach().numpy())
"""


def saved(folder: Path) -> Any:
    images, scores = network()
    scope = started()
    fs.save_inference_model(str(folder / "model"), [images], [scores], scope=scope)
    return fs.load_inference_model(str(folder / "model"), scope=fs.Scope())


@pytest.mark.long
def test_a_model_becomes_a_file_that_needs_torch_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path)
    assert print_converted(str(tmp_path / "model.pdmodel"), None, str(tmp_path / "net.py"), False)
    assert "net.py: " in capsys.readouterr().out and (tmp_path / "net.safetensors").exists()
    given = np.random.RandomState(2).randn(2, 3, 6, 5).astype("float32")
    np.save(tmp_path / "given.npy", given)
    subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "seen.npy"), next(iter(model.run({"images": given}).values())), atol=1e-6)


@pytest.mark.long
def test_a_model_is_exported_with_open_sizes(tmp_path: Path) -> None:
    model = saved(tmp_path)
    written = convert_to_torch(tmp_path / "model.pdmodel", tmp_path / "net.pt2")
    assert written.fixed == ()
    found = torch.export.load(tmp_path / "net.pt2").module()
    for dims in ((1, 3, 6, 5), (3, 3, 8, 4)):
        given = np.random.RandomState(2).randn(*dims).astype("float32")
        np.testing.assert_allclose(found(torch.from_numpy(given)).detach(), next(iter(model.run({"images": given}).values())), atol=1e-6)


def test_a_refusal_of_an_export_names_the_operators_whose_numbers_decide(tmp_path: Path) -> None:
    count, x = layer.data("count", shape=[1], dtype="int64"), layer.data("x", shape=["batch", 2])
    _, total = layer.while_loop(lambda at, _: at < count, lambda at, v: [at + 1, layer.concat([v, x], 1)], [layer.fill_constant([1], "int64", 0), x * 1.0])
    fs.save_inference_model(str(tmp_path / "m"), [count, x], [total], scope=fs.Scope())
    with pytest.raises(FormatError, match=r"numbers decide on its way or its sizes, in .*while.*is of another size in each round.*; write a \.py"):
        convert_to_torch(tmp_path / "m.pdmodel", tmp_path / "m.pt2")


def looped(of_known: bool) -> tuple[list[Any], Any]:
    """A loop of five rounds, or of as many as an input says, with a branch in each."""
    x = layer.data("x", shape=["batch", 2])
    count = layer.fill_constant([1], "int64", 5) if of_known else layer.data("count", shape=[1], dtype="int64")

    def turn(at: Any, v: Any) -> list[Any]:
        return [at + 1, layer.cond(layer.reduce_sum(v) > 3.0, lambda: v - 3.0, lambda: v * 2.0 + x)]

    _, total = layer.while_loop(lambda at, _: at < count, turn, [layer.fill_constant([1], "int64", 0), layer.scale(x, 1.0)])
    return [x] if of_known else [x, count], layer.scale(total, 2.0)


def branched() -> tuple[list[Any], Any]:
    x = layer.data("x", shape=["batch", 4])
    return [x], layer.cond(layer.reduce_sum(x) > 0.0, lambda: layer.fc(x, 3), lambda: layer.reduce_max(x, 1, keepdim=True) * layer.fc(x, 3))


def suppressed() -> tuple[list[Any], Any]:
    middle, scores = layer.data("middle", shape=["batch", 6, 2]), layer.data("scores", shape=["batch", 3, 6])
    found = multiclass_nms(layer.concat([middle - 0.7, middle + 0.7], 2), scores, 0.1, 4, 5, nms_threshold=0.2, nms_eta=0.9, background_label=1)
    return [middle, scores], [found[0], found[1], found[2]]


def recurrent() -> tuple[list[Any], Any]:
    x, lengths = layer.data("x", shape=["batch", "time", 3]), layer.data("lengths", shape=["batch"], dtype="int64")
    return [x, lengths], [layer.lstm(x, 4, bidirectional=True)[0], layer.gru(x, 4, length=lengths)[0]]


NUMBERS_DECIDE = {
    "known rounds": lambda: looped(True),
    "rounds of an input": lambda: looped(False),
    "branches": branched,
    "suppression": suppressed,
    "recurrence": recurrent,
}


@pytest.mark.long
@pytest.mark.parametrize("name", NUMBERS_DECIDE)
def test_what_numbers_decide_is_exported(name: str, tmp_path: Path) -> None:
    """Loops, branches, suppression and recurrent layers, with every open size open."""
    inputs, results = NUMBERS_DECIDE[name]()
    results = results if isinstance(results, list) else [results]
    fs.save_inference_model(str(tmp_path / "m"), inputs, results, scope=started())
    model = fs.load_inference_model(str(tmp_path / "m"), scope=fs.Scope())
    written = convert_to_torch(tmp_path / "m.pdmodel", tmp_path / "m.pt2")
    assert written.fixed == ()
    found = torch.export.load(tmp_path / "m.pt2").module()
    draws = np.random.RandomState(5)
    for batch in (1, 2, 5):
        sizes = {"batch": batch, "time": 7}
        feed: dict[str, np.ndarray] = {}
        for variable in inputs:
            dims = [d if isinstance(d, int) else sizes[str(d)] for d in variable.spec.known_dims]
            feed[variable.name] = draws.randint(1, 7, dims) if variable.spec.known_dtype.is_integer else draws.randn(*dims).astype("float32")
        seen = found(*map(torch.from_numpy, feed.values()))
        for one, wanted in zip(seen if isinstance(seen, tuple) else [seen], model.run(feed).values(), strict=True):
            np.testing.assert_allclose(one.detach(), np.asarray(wanted), atol=1e-5)


def test_a_branch_within_a_loop_is_written_though_its_condition_is_said_later() -> None:
    x, most = layer.data("x", shape=["batch", 2]), layer.data("most", shape=[1])

    def turn(v: Any, goes_on: Any) -> list[Any]:
        v = v * 2.0
        last = layer.cond(layer.reduce_sum(v) > 50.0, lambda: layer.scale(v, 0.0), lambda: layer.scale(v, 1.0))
        return [v, (layer.reduce_sum(last) < most) & (layer.reduce_sum(last) > 0.0)]

    total, _ = layer.while_loop(lambda _, goes_on: goes_on, turn, [layer.scale(x, 1.0), most > 0.0])
    module = fs.to_torch(fs.default_main_program(), fs.Scope(), feeds=[x, most], fetches=total, plain=True)
    for limit in (3.0, 40.0, 400.0):
        feed = {"x": np.ones((1, 2), "float32"), "most": np.full(1, limit, "float32")}
        np.testing.assert_array_equal(module(*map(torch.from_numpy, feed.values())), fs.Executor().run(feed=feed, fetch=[total])[0])


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"ends in \.py or \.pt2"):
        convert_to_torch(tmp_path / "model.pdmodel", tmp_path / "net.txt")


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("evil", ["x\nraise SystemExit(3)#", 'x"""\nraise SystemExit(3)', "x\\\rraise SystemExit(3)", "x'\nraise SystemExit(3)\t'"])
def test_names_of_a_file_are_words_alone(evil: str, tmp_path: Path) -> None:
    """A name with line breaks or quotes, of an input, a parameter, a value, a result or a scope, does not become code."""
    place = "z" * len(evil)
    with fs.name_scope(place):
        x = layer.data(f"{place}i", shape=["batch", 3])
        h = layer.relu(layer.fc(x, 4, name=f"{place}h"))
        out = layer.fc(h, 2, name=f"{place}o")
    scope = started()
    program = fs.Program.from_bytes(fs.default_main_program().to_bytes().replace(place.encode(), evil.encode()))
    named = {n: v for n, v in program.global_block.vars.items() if evil in n}
    assert len(named) > 4 and any(evil in part for op in program.all_ops() for part in op.scope)
    held = fs.Scope()
    for name in scope.names():
        held.set(name.replace(place, evil), scope.tensor(name))
    module = fs.to_torch(program, held, feeds=[x.name.replace(place, evil)], fetches=[out.name.replace(place, evil)], plain=True)
    given = np.ones((2, 3), "float32")
    expected = fs.Executor().run(program, {x.name.replace(place, evil): given}, [out.name.replace(place, evil)], held)[0]
    assert np.allclose(module(torch.from_numpy(given)).detach(), expected, atol=1e-6)
    fs.save_inference_model(tmp_path / "m", [x.name.replace(place, evil)], [out.name.replace(place, evil)], program=program, scope=held)
    convert_to_torch(tmp_path / "m.pdmodel", tmp_path / "n.py")
    assert compile((tmp_path / "n.py").read_text(encoding="utf-8"), "n.py", "exec")


def test_texts_in_a_file_are_words_alone() -> None:
    """A text among an op's attributes, wrong as it is, does not become code: it is refused."""
    evil = 'ij,jk->ik", exit(3), "'
    x, y = layer.data("x", shape=[2, 3]), layer.data("y", shape=[3, 4])
    out = layer.einsum(f"ij{' ' * (len(evil) - 9)},jk->ik", x, y)
    data = fs.default_main_program().to_bytes()
    program = fs.Program.from_bytes(data.replace(f"ij{' ' * (len(evil) - 9)},jk->ik".encode(), evil.encode()))
    assert any(op.attributes.values.get("equation") == evil for op in program.all_ops())
    with pytest.raises(fs.ForeshapeError):
        fs.to_torch(program, fs.Scope(), feeds=["x", "y"], fetches=[out.name], plain=True)(torch.ones(2, 3), torch.ones(3, 4))


def test_an_operator_without_a_form_is_refused_by_its_name() -> None:
    cls = get("chunk_eval")
    assert torch_writer("chunk_eval") is None
    case = build(cls, cls.samples[0].arguments)
    with pytest.raises(FormatError, match=r"chunk_eval \(op 0 of block 0\): it is not written in torch code"):
        plain_source(case.program, [*case.feed], [case.outputs["Precision"][0]])


def test_no_text_of_a_kernel_is_copied() -> None:
    with pytest.raises(Refused, match=r"foreshape\.language\.ops\.\S+, which is no torch code"):
        Sources().add(get("relu"))
    with pytest.raises(Refused, match=r"foreshape\.machine\.kernels\.products\.matmul, which is no torch code"):
        Sources().add(matmul)
