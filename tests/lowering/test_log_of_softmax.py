"""A softmax and then a loss of its logarithm trains where probabilities are too small to be numbers, as in PaddlePaddle, whatever else reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering import lower
from foreshape.compiler.lowering.fusion import apply_all

LOGITS = np.array([[200, -200, 0], [0, 1, 2], [300, 300, -500], [-1e30, 5, 1e30]], "float32")
NUMBERS = np.array([[1], [0], [2], [0]])
IGNORED = np.array([[1], [-100], [2], [0]])
SOFT = np.array([[0.1, 0.8, 0.1], [0.5, 0.25, 0.25], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], "float32")


def softmax(x: np.ndarray) -> np.ndarray:
    """In fp64, bounded as PaddlePaddle's kernel for processors does it: 64 below the largest."""
    e = np.exp(np.maximum(x.astype("float64") - x.max(-1, keepdims=True), -64.0))
    return e / e.sum(-1, keepdims=True)


def unsoftened(p: Any, label: Any) -> Any:
    attrs = {"use_softmax": False, "soft_label": label.dtype is fs.FP32}
    found = fs.default_main_program().global_block.apply("softmax_with_cross_entropy", {"Logits": p, "Label": label}, attrs)
    found[0].stop_gradient = True
    return found[1]


def second(p: Any, label: Any) -> Any:
    return fs.default_main_program().global_block.apply("cross_entropy2", {"X": p, "Label": label}, {})[0]


def picked(p: Any, label: Any) -> Any:
    return layer.reshape(layer.nll_loss(layer.log(p), layer.squeeze(label, [1]), reduction="none"), [-1, 1])


def summed(p: Any, label: Any) -> Any:
    return layer.reduce_sum(layer.log(p) * label, 1, True) * -1.0


LOSSES: dict[str, tuple[Callable[[Any, Any], Any], np.ndarray, int]] = {
    "class numbers": (layer.cross_entropy, NUMBERS, 1), "ignored ones": (layer.cross_entropy, IGNORED, 1), "a distribution": (layer.cross_entropy, SOFT, 1),
    "smoothed": (lambda p, label: layer.cross_entropy(p, label, label_smoothing=0.1), NUMBERS, 1), "the second": (second, NUMBERS, 0),
    "without its softmax": (unsoftened, NUMBERS, 0), "a distribution without its softmax": (unsoftened, SOFT, 0),
    "picked of the logarithm": (picked, NUMBERS, 1), "summed by hand": (summed, SOFT, 1),
}  # fmt: skip


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_and_its_gradient_are_what_they_are_in_paddlepaddle(name: str, more: bool) -> None:
    loss, label, count = LOSSES[name]
    x = layer.data("x", ["batch", 3], stop_gradient=False)
    given = layer.data("label", ["batch", label.shape[1]], "float32" if label.dtype == np.float32 else "int64")
    p = layer.softmax(x)
    each = loss(p, given)
    fetch = [each, fs.append_backward(layer.reduce_sum(each), parameters=[x])[0][1], *([p, layer.argmax(p, 1)] if more else [])]
    want = softmax(LOGITS)
    target = label.astype("float64") if label.dtype == np.float32 else np.eye(3)[label[:, 0] % 100] * (label != -100) if name == "ignored ones" else None
    if target is None:
        target = np.eye(3)[label[:, 0]]
    target = 0.9 * target + 0.1 / 3 if name == "smoothed" else target
    main = fs.default_main_program()
    for check in (False, True, "fused"):
        found = fs.Executor(check=check).run(main, {"x": LOGITS, "label": label}, fetch, fs.Scope())
        np.testing.assert_allclose(found[0], -(target * np.log(want)).sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[1], want * target.sum(1, keepdims=True) - target, rtol=1e-5, atol=1e-6)
        if more:
            np.testing.assert_allclose(found[2], want, rtol=1e-5)
    frozen = fs.Executor(frozen=True).run(main, {"x": LOGITS, "label": label}, fetch[:1], fs.Scope())
    np.testing.assert_allclose(frozen[0], -(target * np.log(want)).sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    assert apply_all(lower(main.global_block, [v.name for v in fetch]))["log_of_softmax"] == count


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_softmax_alone_is_bounded(axis: int, dtype: str) -> None:
    given = LOGITS.astype(dtype) if axis else np.ascontiguousarray(LOGITS.T).astype(dtype)
    x = layer.data("x", list(given.shape), dtype, stop_gradient=False)
    out = layer.softmax(x, axis)
    gradient = fs.append_backward(layer.reduce_sum(layer.log(out)), parameters=[x])[0][1]
    for check in (False, True):
        found, d = fs.Executor(check=check).run(fs.default_main_program(), {"x": given}, [out, gradient], fs.Scope())
        want = softmax(LOGITS) if axis else softmax(LOGITS).T
        np.testing.assert_allclose(found, want, rtol=1e-5)
        np.testing.assert_allclose(d, 1.0 - 3 * want, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_others_read_is_made() -> None:
    x, label = layer.data("x", ["batch", 3], stop_gradient=False), layer.data("label", ["batch", 1], "int64")
    p = layer.softmax(x)
    loss = layer.reduce_sum(layer.cross_entropy(p, label))
    fs.append_backward(loss, parameters=[x])
    main = fs.default_main_program()
    fetch = [main.global_block.var(f"{n}@GRAD").name for n in (x.name, p.name)]
    assert apply_all(lower(main.global_block, fetch))["log_of_softmax"] == 0
    found = fs.Executor().run(main, {"x": LOGITS, "label": NUMBERS}, fetch, fs.Scope())
    assert all(np.isfinite(v).all() for v in found)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_pixels_that_are_not_scaled_are_learned(precision: str) -> None:
    rng = np.random.default_rng(0)
    centre, numbers = rng.integers(0, 256, (10, 64)), rng.integers(0, 10, (100, 1))
    pixels = np.clip(centre[numbers[:, 0]] + rng.normal(0, 30, (100, 64)), 0, 255).astype("float32")
    x, label = layer.data("x", ["batch", 64]), layer.data("label", ["batch", 1], "int64")
    p = layer.fc(x, 10, "softmax")
    scope = fs.Scope()
    history = fs.train(layer.mean(layer.cross_entropy(p, label)), {"x": pixels, "label": numbers}, optimizer=fs.optimizer.SGD(0.01), epochs=20, batch_size=50,
                       seed=1, progress=False, scope=scope, precision=precision)  # fmt: skip
    assert np.isfinite(history.losses).all()
    assert (fs.predict(p, {"x": pixels}, scope=scope, progress=False).argmax(1) == numbers[:, 0]).mean() > 0.9
