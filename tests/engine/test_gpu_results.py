"""What a CPU computes, an NVIDIA GPU computes too: every operator's samples with their gradients, and whole programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine import test_attention_on_a_device as attention_cases
from engine import test_captured_steps as captured_cases
from engine import test_recurrence_on_a_device as recurrence_cases
from support.corpus import REPLAYED
from support.corpus import case as corpus_case
from support.harness import Case, build, of_each_operator, sampled
from support.zoo import NAMES, OVERFLOWS
from support.zoo import network as zoo_network

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import FP32, LOD_TENSOR, LOD_TENSOR_ARRAY, Spec
from foreshape.language.operator.fields import Gradient, NoGradient
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample
from foreshape.transforms.backward import append_backward

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def gpu() -> Any:
    """Convolutions and products of a GPU in whole fp32, as on a CPU."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def as_close(seen: Any, wanted: Any, what: str, bound: float = 1e-4) -> None:
    """Whole numbers are equal; the others within a part of the largest magnitude."""
    if isinstance(wanted, list):
        assert len(seen) == len(wanted), what
        for a, b in zip(seen, wanted, strict=True):
            as_close(a, b, what, bound)
        return
    if wanted is None:
        assert seen is None, what
        return
    if isinstance(wanted, fs.LoDTensor):
        assert seen.sequence_lengths == wanted.sequence_lengths, what
    a, b = (np.asarray(v.to_dense() if hasattr(v, "to_dense") else v) for v in (seen, wanted))
    assert a.shape == b.shape and a.dtype == b.dtype, f"{what}: {a.dtype}{a.shape}, and on the CPU {b.dtype}{b.shape}"
    if b.dtype.kind not in "fcV":
        np.testing.assert_array_equal(a, b, err_msg=what)
    elif b.size:
        kind = "complex128" if b.dtype.kind == "c" else "float64"
        wide = b.astype(kind)
        largest = np.abs(wide[np.isfinite(wide)]).max(initial=1e-3)
        np.testing.assert_allclose(a.astype(kind), wide, rtol=bound, atol=bound * largest, err_msg=what)


def both(case: Case, fetches: list[str]) -> None:
    """Random operators draw other numbers there: of them dims and element types are compared."""
    program, feed = case.program, case.feed
    wanted = fs.Executor(seed=1).run(program, feed, fetches, fs.Scope())
    seen = fs.Executor("cuda", seed=1).run(program, feed, fetches, fs.Scope())
    random = any(op.operator is not None and op.operator.random for op in program.all_ops())
    for at, (a, b) in enumerate(zip(seen, wanted, strict=True)):
        if random:
            assert np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype, fetches[at]
        else:
            as_close(a, b, fetches[at])


OF_EITHER_SIGN = ("svd", "eigh", "eigvalsh")
"""Their vectors are as good times -1."""


@of_each_operator(c for c in sampled() if c[2].exact and c[1].type not in ("fetch", *OF_EITHER_SIGN))
def test_an_operator_computes_the_same(name: str, cls: type[Operator], sample: Sample) -> None:
    case = build(cls, sample.arguments)
    fetches = [n for names in case.outputs.values() for n in names]
    alike = cls.type == "argsort" and not sample.arguments.get("stable")  # equal elements come in another order there
    both(case, fetches[:1] if alike or any(r.updates for r in cls.schema.results) else fetches)


@of_each_operator(c for c in sampled() if not isinstance(c[1].gradient, NoGradient) and c[2].differentiate and c[2].exact and c[1].type not in OF_EITHER_SIGN)
def test_a_gradient_is_the_same(name: str, cls: type[Operator], sample: Sample) -> None:
    case = build(cls, sample.arguments)
    block = case.block
    inputs = [n for n, a in case.feed.items() if np.asarray(a).dtype == np.float32]
    wanted = cls.gradient.inputs if isinstance(cls.gradient, Gradient) else [f"{slot}@GRAD" for slot in case.outputs]
    outs = [block.vars[n] for slot, names in case.outputs.items() if f"{slot}@GRAD" in wanted for n in names]
    outs = [v for v in outs if v.dtype is FP32 and v.kind is not LOD_TENSOR_ARRAY]
    if not inputs or not outs:
        return
    for n in inputs:
        block.vars[n].stop_gradient = False
    try:
        (out,) = fs.Executor(seed=1).run(case.program, case.feed, [outs[0].name])
        case.feed["weight"] = np.random.RandomState(3).standard_normal(np.shape(out)).astype("float32")
        weight = block.create_variable("weight", Spec(LOD_TENSOR, FP32, case.feed["weight"].shape), need_check_feed=True)
        weighted = block.apply("elementwise_mul", {"X": outs[0], "Y": weight}) if outs[0].spec.dims else outs[0]
        total = block.apply("reduce_sum", {"X": weighted}, {"reduce_all": True})
        pairs = append_backward(total, inputs)
    except Exception as error:
        if "nothing is to be trained" in str(error):
            return
        raise
    both(case, [g.name for _, g in pairs])


@pytest.mark.parametrize("name", REPLAYED)
def test_a_program_of_paddlepaddle_trains_alike(name: str) -> None:
    of = corpus_case(name)
    program, results = fs.load_program(of.path("main.pdmodel")), []
    for device in ("cpu", "cuda"):
        scope = of.start(fs.Executor(seed=1))
        executor = fs.Executor(device, seed=1)
        results.append([executor.run(program, feed=of.feed, fetch=of.about["fetches"], scope=scope) for _ in range(of.about["steps"])])
    for at, (wanted, seen) in enumerate(zip(*results, strict=True)):
        as_close(seen, wanted, f"step {at}", 1e-3)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OVERFLOWS])
def test_a_network_of_a_zoo_infers_alike(name: str) -> None:
    network = zoo_network(name)
    program = fs.load_program(network.data)
    seen = fs.Executor("cuda").run(program, feed=network.feed, fetch=network.fetches, scope=network.scope())
    assert network.error([np.asarray(v) for v in seen]) <= 1e-3


def classifier() -> tuple[fs.Variable, fs.Variable, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 1, 8, 8)).astype("float32")
    y = x.reshape(96, 64)[:, :3].argmax(1)[:, None].astype("int64")
    image, label = layer.data("x", shape=["batch", 1, 8, 8]), layer.data("y", shape=["batch", 1], dtype="int64")
    hidden = layer.batch_norm(layer.conv2d(image, 4, 3, padding=1), activation="relu")
    hidden = layer.fc(layer.pool2d(hidden, 2, "max", 2), 16, activation="tanh")
    scores = layer.fc(hidden, 3)
    return layer.mean(layer.softmax_with_cross_entropy(scores, label)), scores, {"x": x, "y": y}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_training_predicting_and_saving_on_a_gpu(precision: str, tmp_path: Any) -> None:
    results = []
    for device in ("cpu", "cuda"):
        with fs.program() as described:
            cost, scores, data = classifier()
        scope, executor = fs.Scope(), fs.Executor(device, seed=1)
        fs.Executor(seed=1).run(described.startup, scope=scope)
        shared: dict[str, Any] = {"executor": executor, "scope": scope, "progress": False, "batch_size": 32}
        history = fs.train(cost, data, optimizer=fs.optimizer.Adam(0.01), epochs=3, precision=precision, checkpoint=str(tmp_path / device), **shared)
        again = fs.train(cost, data, optimizer=fs.optimizer.Adam(0.01), epochs=4, precision=precision, checkpoint=str(tmp_path / device), **shared)
        assert again.steps == 12 and again.losses[:9] == history.losses
        predicted = fs.predict(scores, {"x": data["x"]}, **shared)
        fs.save_inference_model(tmp_path / f"model.{device}", ["x"], [scores], executor, described, scope)
        opened = fs.load_inference_model(tmp_path / f"model.{device}")
        np.testing.assert_allclose(opened.run({"x": data["x"]})[0], predicted, rtol=1e-3, atol=1e-3)
        served = fs.Predictor(tmp_path / f"model.{device}", device=device)
        np.testing.assert_allclose(served.run({"x": data["x"]})[0], predicted, rtol=1e-3, atol=1e-3)
        results.append((again.losses, predicted))
    bound = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 2e-2}[precision]
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=bound, atol=bound)


def test_a_checked_run_on_a_gpu() -> None:
    cost, _, data = classifier()
    fs.optimizer.SGD(0.1).minimize(cost)
    for check in (True, "fused"):
        scope, executor = fs.Scope(), fs.Executor("cuda", seed=1, check=check)
        executor.run(fs.default_startup_program(), scope=scope)
        first = float(executor.run(fs.default_main_program(), data, [cost], scope)[0])
        assert float(executor.run(fs.default_main_program(), data, [cost], scope)[0]) < first


@pytest.mark.parametrize("mask", attention_cases.MASKS)
@pytest.mark.parametrize(("time", "width"), [(40, 32), (33, 8), (33, 6)])
def test_attention_by_its_kernel(mask: str, time: int, width: int) -> None:
    main, fetches, feed = attention_cases.network(mask, time, time, width, width == 8)
    wanted = fs.Executor().run(main, feed, fetches)
    for name, a, b in zip(fetches, fs.Executor("cuda:0").run(main, feed, fetches), wanted, strict=True):
        as_close(a, b, name, 2e-3 if mask == "far" else 1e-4)


@pytest.mark.parametrize("case", recurrence_cases.CASES, ids=str)
def test_recurrent_layers_by_cudnn(case: tuple[Any, ...]) -> None:
    main, startup, fetches, feed = recurrence_cases.network(*case[:-1], 0.0)  # dropout is drawn by the device's own generator
    scopes = [fs.Scope(), fs.Scope()]
    for scope in scopes:
        fs.Executor(seed=5).run(startup, scope=scope)
    wanted = fs.Executor().run(main, feed, fetches, scopes[0])
    for name, a, b in zip(fetches, fs.Executor("cuda:0").run(main, feed, fetches, scopes[1]), wanted, strict=True):
        as_close(a, b, name)


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W5", "W6", "W8"])
def test_steps_by_cuda_graphs(name: str) -> None:
    workload = captured_cases.workloads.load(name, 4096)
    by_kernels, by_graph = (captured_cases.with_foreshape.Training(workload, "cuda:0") for _ in range(2))
    by_graph.executor = fs.Executor("cuda:0", graphs=True)
    for step in range(6):
        as_close(np.asarray(by_graph(step)), np.asarray(by_kernels(step)), f"step {step}", 1e-3)
    assert not captured_cases.graphs_of(by_graph.executor).refused
