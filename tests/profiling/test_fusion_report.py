"""Why an op has a kernel call of its own: what is fused says by which rewrite, and each near miss names the condition that it lacks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commanded import call

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering import lower
from foreshape.compiler.lowering.fusion import apply_all
from foreshape.errors import SchemaError
from foreshape.runtime.engine import Executor
from foreshape.runtime.profiling import fusion_report


def weight(*dims: int) -> Any:
    return layer.create_parameter(list(dims), fs.FP32)


def rows(width: int = 5) -> Any:
    return layer.data("x", shape=["batch", width])


def trained(loss: Any, **settings: Any) -> list[Any]:
    fs.optimizer.SGD(0.1).minimize(loss)
    return [loss]


def product(shared: bool = False, wide: bool = False) -> list[Any]:
    h = layer.matmul(rows(), weight(5, 3))
    out = h + (weight(1, 3) if wide else weight(3))
    return [out, layer.tanh(h)] if shared else [out]


def images(shared: bool = False) -> list[Any]:
    h = layer.conv2d(layer.data("images", shape=["batch", 3, 6, 6]), 4, 3, bias=False)
    out = fs.default_main_program().global_block.apply("elementwise_add", {"X": h, "Y": weight(4)}, {"axis": 1})
    return [out, h] if shared else [out]


def classes(words: tuple[int, ...] = (), total: bool = False) -> list[Any]:
    label, x = layer.data("label", shape=["batch", *words, 1], dtype="int64"), layer.data("x", shape=["batch", *words, 3])
    each = layer.softmax_with_cross_entropy(x, label)
    return [layer.reduce_sum(each) if total else layer.mean(each)]


def bag(pooled: bool = True, fetched: bool = False) -> list[Any]:
    looked_up = layer.embedding(layer.data("ids", shape=["batch", 7], dtype="int64"), size=(9, 3))
    out = layer.reduce_sum(looked_up, 1) if pooled else layer.tanh(looked_up)
    return [out, looked_up] if fetched else [out]


def normalized(train: bool = True) -> list[Any]:
    loss = layer.mean(layer.square(layer.layer_norm(rows())))
    return trained(loss) if train else [loss]


def copied(fetched: bool = False) -> list[Any]:
    copy = layer.assign(layer.tanh(rows()))
    return [layer.exp(copy), copy] if fetched else [layer.exp(copy)]


Case = tuple[Callable[[], list[Any]], str, str, str]
CASES: list[Case] = [
    (product, "elementwise_add", "linear", ""),
    (lambda: product(shared=True), "elementwise_add", "linear", r"matmul_v2_0\.tmp_0 is read by tanh \(test_fusion_report\.py:\d+\) too"),
    (lambda: product(wide=True), "elementwise_add", "linear", "it adds no vector with a number for each column of the product"),
    (images, "elementwise_add", "convolution", ""),
    (lambda: images(shared=True), "elementwise_add", "convolution", r"conv2d_0\.tmp_0 is fetched or stored"),
    (classes, "softmax_with_cross_entropy", "class_loss", ""),
    (lambda: classes(words=(4,)), "softmax_with_cross_entropy", "class_loss", "the logits are no matrix with the classes along its last axis"),
    (lambda: classes(total=True), "softmax_with_cross_entropy", "class_loss", "the loss of each row does not go into a mean over all rows"),
    (bag, "lookup_table_v2", "bags", ""),
    (lambda: bag(fetched=True), "lookup_table_v2", "bags", r"embedding_0\.tmp_0 is fetched or stored"),
    (lambda: bag(pooled=False), "lookup_table_v2", "bags", "no sum or mean over dim 1 of three"),
    (normalized, "layer_norm", "normalization", ""),
    (lambda: normalized(train=False), "layer_norm", "normalization", "the step has no gradient of it"),
    (copied, "assign", "identity", ""),
    (lambda: copied(fetched=True), "assign", "identity", "its result is fetched or stored"),
    (lambda: [layer.relu(rows()) + 1.0 * weight(5)], "elementwise_add", "in_place", r"its pattern is not there: new = a \+ x"),
]


@pytest.mark.parametrize(("describe", "type_", "rewrite", "reason"), CASES)
def test_an_op_is_taken_or_the_condition_that_it_lacks_is_named(describe: Callable[[], list[Any]], type_: str, rewrite: str, reason: str) -> None:
    fetch = describe()
    program = fs.default_main_program()
    number = next(n for n, op in enumerate(program.global_block.ops) if op.type == type_)
    (entry,) = fusion_report(program, fetch, number)
    attempt = next(a for a in entry.attempts if a.rewrite == rewrite)
    assert attempt.applied is not bool(reason) and re.search(reason, attempt.reason) and entry.number == number
    assert entry.line.startswith("test_fusion_report.py:") and entry.alone is (type_ in own_kernels(program, fetch))


def images_by_fed_filters() -> list[Any]:
    x, w = layer.data("images", shape=["batch", 3, 6, 6]), layer.data("filters", shape=[4, 3, 3, 3])
    return [fs.default_main_program().global_block.apply("conv2d", {"Input": x, "Filter": w})]


@pytest.mark.parametrize(("describe", "rewrite", "reason"), [
    (lambda: [layer.matmul(rows(40), weight(40, 40))], "frozen_linear", ""),
    (lambda: [layer.matmul(rows(40), layer.data("w", shape=[40, 40]))], "frozen_linear", "the matrix is no persistable"),
    (lambda: [layer.conv2d(layer.data("images", shape=["batch", 3, 6, 6]), 4, 3)], "frozen_convolution", ""),
    (images_by_fed_filters, "frozen_convolution", "the filters are no persistable"),
])  # fmt: skip
def test_a_frozen_step_takes_constants_alone(describe: Callable[[], list[Any]], rewrite: str, reason: str) -> None:
    entry = fusion_report(fs.default_main_program(), describe(), 0, frozen=True)[0]
    attempt = next(a for a in entry.attempts if a.rewrite == rewrite)
    assert attempt.applied is not bool(reason) and reason in attempt.reason


def own_kernels(program: fs.Program, fetch: list[Any]) -> set[str]:
    """Return the operators whose own kernels the executor calls."""
    lowered = lower(program.global_block, [v.name for v in fetch])
    apply_all(lowered)
    return {i.op.type for i in lowered.calls if hasattr(i, "operator")}


def test_ops_that_stayed_alone_are_all_that_the_executor_has_kernels_for() -> None:
    fetch = trained(layer.mean(layer.square(layer.tanh(layer.fc(rows(), 3)))))
    program = fs.default_main_program()
    report = fusion_report(program, fetch)
    executor = Executor()
    calls = executor.step(program, fetch).emitted.lowered.calls
    assert sorted(e.number for e in report) == sorted({program.global_block.ops.index(i.op.whole) for i in calls if hasattr(i, "operator")})
    assert all(e.alone for e in report) and any("no rewrite looks at it" in e.text() for e in report)


@pytest.mark.parametrize(("op", "says"), [
    (99, "there is no op 99; the program has 2, numbered from 0"), ("nothing", "no op makes 'nothing'"),
    ("tanh_0.tmp_0", "the step does not compute tanh_0.tmp_0"),
])  # fmt: skip
def test_an_op_that_is_not_there_is_refused(op: Any, says: str) -> None:
    x = rows()
    layer.tanh(x)
    out = layer.exp(x)
    with pytest.raises(SchemaError, match=says):
        fusion_report(fs.default_main_program(), [out], op)


def test_the_command_prints_why(tmp_path: Path) -> None:
    x = rows()
    out = layer.cumsum(layer.fc(x, 3), 1)
    fs.Executor(seed=1).run(fs.default_startup_program())
    fs.save_inference_model(tmp_path / "net", [x], [out])
    code, printed, _ = call("run", tmp_path / "net.pdmodel", "--why", "alone")
    assert code == 0 and "cumsum" in printed and "a call of its own" in printed and not [*tmp_path.glob("*.npy")]
    code, printed, _ = call("run", tmp_path / "net.pdmodel", "--why", "fc_0.tmp_1")
    assert code == 0 and "fused" in printed and "linear: it takes it" in printed
    code, _, told = call("run", tmp_path / "net.pdmodel", "--why", "other")
    assert code and "no op makes 'other'" in told
