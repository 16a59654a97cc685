"""Networks of the zoo as PaddlePaddle 3 has them: the same program but for names, the same results, and the same training."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paddle3 import cases
from support.zoo import TOLERANCE, network

import foreshape as fs
from foreshape import layer
from foreshape.interop import write_parameters
from foreshape.transforms.passes import for_training

TWINS = cases("twins")
SPLIT: dict[str, dict[str, int]] = {
    "ocr_crnn_mv3": {"stack": 2},
    "ocr_slanet": {"stack": 4, "fill_constant": 4, "assign_value": -4},
}
"""Twin -> its further ops: sizes in one tensor where 2.x has a list of them, and constants of 3.x. Loops have copies (assign) of their values, too."""
SAYING_NOTHING = {"force_cpu", "str_value"}
"""Attributes of constants: where they are computed, and the same number as a text."""
EXTRA = {**{t: {"XShape"} for t in ("transpose2", "reshape2", "squeeze2", "unsqueeze2", "flatten_contiguous_range")}, "dropout": {"Mask"}}
"""Results for gradients alone, which one of the files leaves out."""
QUICK = ("ocr_crnn_mv3",)


def form(program: fs.Program) -> list[tuple[str, Any, Any, dict[str, Any]]]:
    """The ops with their values numbered as they are made."""
    names = {v.name: v.name for v in program.all_variables() if v.persistable}
    out: list[tuple[str, Any, Any, dict[str, Any]]] = []
    for op in program.all_ops():
        inputs = {slot: tuple(names[n] for n in given) for slot, given in op.inputs.items() if given}
        for slot, made in op.outputs.items():
            names.update({n: names.get(n, f"{len(out)}.{slot}.{at}") for at, n in enumerate(made)})
        dropped = EXTRA.get(op.type, set())
        outputs = {slot: tuple(names[n] for n in made) for slot, made in op.outputs.items() if made and slot not in dropped}
        assert op.operator is not None
        said = {n: f.default for n, f in op.operator.schema.attributes.items()} | dict(op.attributes.values)
        nothing = {"shape"} if any(slot.startswith("ShapeTensor") for slot in inputs) else SAYING_NOTHING  # of a shape that is computed
        told = {n: said[n] for n in op.operator.schema.attributes if n not in nothing}
        out.append((op.type, inputs, outputs, told))
    return out


@pytest.mark.quick_cases("ocr_crnn_mv3", "seg_segformer_b0")
@pytest.mark.parametrize("name", TWINS)
def test_a_twin_has_the_parameters_and_operators_of_the_other(name: str) -> None:
    ours, theirs = fs.load_program(TWINS[name].data), fs.load_program(network(name).data)
    kept = [{v.name: v.spec.text() for v in p.global_block.vars.values() if v.persistable} for p in (ours, theirs)]
    assert kept[0] == kept[1] and len(kept[0]) > 100
    marked = [{v.name for v in for_training(p, list(network(name).feed), network(name).fetches).parameters()} for p in (ours, theirs)]
    assert marked[0] == marked[1], marked[0] ^ marked[1]
    counts = Counter(op.type for op in ours.all_ops())
    counts.subtract(Counter(op.type for op in theirs.all_ops()))
    assert {t: n for t, n in counts.items() if n and t != "assign"} == SPLIT.get(name, {}) and (not counts["assign"] or name == "ocr_slanet")


@pytest.mark.long_cases("clas_SwinTransformer_tiny_patch4_window7_224")
@pytest.mark.parametrize("name", [n for n in TWINS if n not in SPLIT])
def test_a_twin_is_the_same_program_but_for_names(name: str) -> None:
    wrong: list[str] = []
    ours, theirs = form(fs.load_program(TWINS[name].data)), form(fs.load_program(network(name).data))
    assert len(ours) == len(theirs)
    for at, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a[:3] != b[:3]:
            wrong.append(f"{at}: {a[:3]}, and there {b[:3]}")
        wrong += [f"{at}: {a[0]}.{k} = {a[3][k]!r}, and there {b[3].get(k)!r}" for k in a[3] if a[3][k] != b[3].get(k)]
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in TWINS])
def test_a_twin_computes_what_paddlepaddle_2_computed(name: str) -> None:
    of, ours = network(name), TWINS[name]
    assert ours.ends("feed") == list(of.feed) and ours.ends("fetch") == of.fetches
    for frozen in (False, True):
        found = fs.Executor("cpu", frozen=frozen).run(fs.load_program(ours.data), of.feed, of.fetches, of.scope())
        assert of.error([np.asarray(v) for v in found]) <= TOLERANCE


def tuned(folder: Path, cut: str, dims: tuple[int, ...], steps: int) -> dict[str, np.ndarray]:
    """The parameters after some steps of training with a new head."""
    model = fs.load_inference_model(folder, scope=fs.Scope())
    base = model.for_training(cut)
    (features,) = base.fetches
    random = np.random.default_rng(3)
    with fs.program_guard(base.program, startup := fs.Program()):
        label = layer.data("label", dims=1, dtype="int64")
        scores = layer.softmax(layer.fc(features, 3, flatten_last=3, weight=fs.ParamAttr("head.w"), bias=fs.ParamAttr("head.b")))
        cost = layer.mean(layer.cross_entropy(scores, label))
    examples = {model.feeds[0]: random.standard_normal((2 * steps, *dims)).astype("f4"), "label": np.arange(2 * steps).reshape(-1, 1) % 3}
    optimizer = fs.optimizer.Momentum(0.01, 0.9)
    fs.train(cost, examples, optimizer=optimizer, epochs=1, batch_size=2, scope=base.scope, startup=startup, progress=False, shuffle=False, seed=1)
    return {v.name: base.scope.get(v.name) for v in base.program.parameters()}


def test_a_network_is_trained_as_its_pdmodel(tmp_path: Path) -> None:
    of = cases("networks")["vision_lenet"]
    for file in ("json", "pdmodel"):
        (tmp_path / file).mkdir()
        write_parameters(tmp_path / file / "inference.pdiparams", of.saved())
    (tmp_path / "json/inference.json").write_bytes(of.data)
    fs.load_program(of.data).save(tmp_path / "pdmodel/inference.pdmodel")
    ours, theirs = (tuned(tmp_path / file, "last pool", (1, 28, 28), 4) for file in ("json", "pdmodel"))
    assert ours.keys() == theirs.keys() and len(ours) == 6
    first = of.saved()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-7, err_msg=name)
        assert name.startswith("head") or not np.array_equal(ours[name], first[name]), f"{name} is not trained"


@pytest.mark.long
def test_a_twin_is_trained_as_the_other(tmp_path: Path) -> None:
    name = "clas_EfficientNetB0"
    values = {n: network(name).scope().get(n) for n in network(name).about["parameters"]}
    for file, data in (("json", TWINS[name].data), ("pdmodel", network(name).data)):
        (tmp_path / file).mkdir()
        write_parameters(tmp_path / file / "inference.pdiparams", values)
        (tmp_path / file / f"inference.{file}").write_bytes(data)
    ours, theirs = (tuned(tmp_path / file, "last pool", (3, 64, 64), 1) for file in ("json", "pdmodel"))
    assert ours.keys() == theirs.keys() and len(ours) > 150
    for n in ours:
        np.testing.assert_allclose(ours[n], theirs[n], rtol=1e-4, atol=1e-6, err_msg=n)
