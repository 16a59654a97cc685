"""Focal, contrastive, triplet and dice losses, smoothed labels, weights of classes and examples: values and gradients beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import foreshape as fs
from foreshape import layer
from foreshape.errors import SchemaError, ShapeError

RNG = np.random.RandomState(11)
X = RNG.standard_normal((5, 4)).astype("float32")
Y = np.array([[1], [3], [-100], [0], [2]], "int64")
SOFT = RNG.dirichlet(np.ones(4), 5).astype("float32")
W = np.array([0.5, 2.0, 1.0, 3.0], "float32")
S = np.array([1.0, 0.0, 2.0, 0.5, 3.0], "float32")


def both(mine: Callable[..., fs.Variable], theirs: Callable[..., torch.Tensor], **feed: np.ndarray) -> None:
    """Compare values, and the gradients of ``x`` (and of what else is fp32 and begins with x) for a gradient of 1, 2, 3, ... of the loss."""
    inputs = {n: layer.data(n, ["batch", *a.shape[1:]] if n != "w" else list(a.shape), str(a.dtype)) for n, a in feed.items()}
    out = mine(**inputs)
    wanted = [v for n, v in inputs.items() if n.startswith("x")]
    tensors = {n: torch.from_numpy(a).requires_grad_(n.startswith("x")) for n, a in feed.items()}
    expected = theirs(**tensors)
    ramp = np.arange(1, expected.numel() + 1, dtype="float32").reshape(expected.shape)
    found = fs.append_backward(out, wanted, loss_gradient=layer.data("ramp", ["batch", *out.spec.known_dims[1:]] if out.spec.rank else []))
    values = fs.Executor().run(feed={**feed, "ramp": ramp.reshape([5, *(int(d) for d in out.spec.known_dims[1:])] if out.spec.rank else ())},
                               fetch=[out, *(g for _, g in found)], scope=fs.Scope())  # fmt: skip
    expected.backward(torch.from_numpy(ramp))
    np.testing.assert_allclose(values[0].reshape(expected.shape), expected.detach().numpy(), rtol=2e-5, atol=1e-6)
    for (variable, _), value in zip(found, values[1:], strict=True):
        np.testing.assert_allclose(value, tensors[variable.name].grad.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("probabilities", [False, True])
def test_cross_entropies(smoothing: float, weighted: bool, soft: bool, probabilities: bool) -> None:
    def mine(x: fs.Variable, y: fs.Variable, s: fs.Variable, w: fs.Variable) -> fs.Variable:
        more: dict[str, Any] = {"label_smoothing": smoothing, "class_weight": w if weighted else None, "sample_weight": s}
        if probabilities:
            return layer.cross_entropy(layer.softmax(x), y, **more)
        return layer.softmax_with_cross_entropy(x, y, soft_label=soft, **more)

    def theirs(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return s * F.cross_entropy(x, y if soft else y[:, 0], w if weighted else None, label_smoothing=smoothing, reduction="none")

    both(mine, theirs, x=X, y=SOFT if soft else Y, s=S, w=W)


def test_cross_entropy_along_another_axis_and_labels_without_it() -> None:
    x, y = RNG.standard_normal((5, 4, 3)).astype("float32"), RNG.randint(0, 4, (5, 3))
    both(lambda x, y: layer.softmax_with_cross_entropy(x, y, axis=1, class_weight=list(W), label_smoothing=0.2),
         lambda x, y: F.cross_entropy(x, y, torch.from_numpy(W), label_smoothing=0.2, reduction="none"), x=x, y=y)  # fmt: skip


def test_the_softmax_that_is_returned_is_that_of_the_logits() -> None:
    x, y = layer.data("x", 4), layer.data("y", 4)
    loss, p = layer.softmax_with_cross_entropy(x, y, soft_label=True, class_weight={3: 2.0}, return_softmax=True)
    _, value = fs.Executor().run(feed={"x": X, "y": SOFT}, fetch=[loss, p], scope=fs.Scope())
    np.testing.assert_allclose(value, torch.softmax(torch.from_numpy(X), -1).numpy(), rtol=1e-5)


LABELS = RNG.randint(0, 2, (5, 4)).astype("float32")
P = (0.05 + 0.9 * RNG.rand(5, 4)).astype("float32")
COLUMN = RNG.standard_normal((5, 1)).astype("float32")
SIDES = np.array([[1], [-1], [1], [1], [-1]], "float32")
IMAGES = RNG.rand(5, 2, 3, 3).astype("float32")


def focal(x: torch.Tensor, y: torch.Tensor, alpha: float, gamma: float) -> torch.Tensor:
    p = x.sigmoid()
    q = p * y + (1 - p) * (1 - y)
    return -(alpha * y + (1 - alpha) * (1 - y)) * (1 - q) ** gamma * q.log()


def nce(x: torch.Tensor, xk: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.normalize(x) @ F.normalize(xk).T / 0.2, torch.arange(len(x)), reduction="none")


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, np.ndarray]]] = {
    "sigmoid": (lambda x, y, s: layer.sigmoid_cross_entropy_with_logits(x, y, positive_weight=[1, 3, 2, 1], class_weight=list(W), sample_weight=s),
                lambda x, y, s: s[:, None] * F.binary_cross_entropy_with_logits(x, y, torch.from_numpy(W), pos_weight=torch.tensor([1.0, 3, 2, 1]),
                                                                                reduction="none"), {"x": X, "y": LABELS, "s": S}),
    "bce": (lambda x, y, s: layer.bce_loss(x, y, class_weight=list(W), sample_weight=s),
            lambda x, y, s: s * F.binary_cross_entropy(x, y, torch.from_numpy(W), reduction="none"), {"x": P, "y": LABELS, "s": S[:, None]}),
    "log": (lambda x, y, s: layer.log_loss(x, y, 1e-7, sample_weight=s), lambda x, y, s: s[:, None] * F.binary_cross_entropy(x, y, reduction="none"),
            {"x": P[:, :1].copy(), "y": LABELS[:, :1].copy(), "s": S}),
    "square": (lambda x, y, s: layer.square_error_cost(x, y, sample_weight=s), lambda x, y, s: s[:, None] * F.mse_loss(x, y, reduction="none"),
               {"x": X, "y": LABELS, "s": S}),
    "mse": (lambda x, y, s: layer.mse_loss(x, y, sample_weight=s), lambda x, y, s: (s * (x - y) ** 2).mean(), {"x": X, "y": LABELS, "s": S[:, None]}),
    "huber": (lambda x, y, s: layer.huber_loss(x, y, 0.7, sample_weight=s), lambda x, y, s: s * F.huber_loss(x, y, reduction="none", delta=0.7),
              {"x": COLUMN, "y": COLUMN[::-1].copy(), "s": S[:, None]}),
    "kldiv": (lambda x, y, s: layer.kldiv_loss(x, y, "batchmean", sample_weight=s),
              lambda x, y, s: (s[:, None] * F.kl_div(x, y, reduction="none")).sum() / len(x), {"x": X, "y": SOFT, "s": S}),
    "nll": (lambda x, y, s, w: layer.nll_loss(x, y, w, sample_weight=s),
            lambda x, y, s, w: (s * F.nll_loss(x, y, w, reduction="none")).sum() / w[y[y >= 0]].sum(), {"x": X, "y": Y[:, 0].copy(), "s": S, "w": W}),
    "smooth_l1": (lambda x, y, s: layer.smooth_l1(x, y, sample_weight=s), lambda x, y, s: s * F.smooth_l1_loss(x, y, reduction="none").sum(1),
                  {"x": X, "y": LABELS, "s": S}),
    "hinge": (lambda x, y, s: layer.hinge_loss(x, y, sample_weight=s), lambda x, y, s: s[:, None] * (1 - x * (2 * y - 1)).clamp(min=0),
              {"x": COLUMN, "y": LABELS[:, :1].copy(), "s": S}),
    "rank": (lambda x, xr, y, s: layer.rank_loss(y, x, xr, sample_weight=s),
             lambda x, xr, y, s: s * F.binary_cross_entropy_with_logits(x - xr, y, reduction="none"),
             {"x": COLUMN, "xr": COLUMN[::-1].copy(), "y": LABELS[:, :1].copy(), "s": S[:, None]}),
    "margin_rank": (lambda x, xr, y, s: layer.margin_rank_loss(y, x, xr, 0.3, sample_weight=s),
                    lambda x, xr, y, s: s[:, None] * F.margin_ranking_loss(x, xr, y, 0.3, reduction="none"),
                    {"x": COLUMN, "xr": COLUMN[::-1].copy(), "y": SIDES, "s": S}),
    "bpr": (lambda x, y, s: layer.bpr_loss(x, y, sample_weight=s),
            lambda x, y, s: s[:, None] * (F.softplus(x - x.gather(1, y)).sum(1, keepdim=True) - np.log(2)) / 3, {"x": X, "y": abs(Y % 4), "s": S}),
    "sigmoid_focal": (lambda x, y, s, w: layer.sigmoid_focal_loss(x, y, 0.3, 1.5, class_weight=w, sample_weight=s),
                      lambda x, y, s, w: s[:, None] * w * focal(x, y, 0.3, 1.5), {"x": X, "y": LABELS, "s": S, "w": W}),
    "softmax_focal": (lambda x, y, s, w: layer.softmax_focal_loss(x, y, 0.5, class_weight=w, sample_weight=s),
                      lambda x, y, s, w: s * (1 - x.softmax(1).gather(1, y.clamp(0))[:, 0]) ** 0.5 * F.cross_entropy(x, y[:, 0], w, reduction="none"),
                      {"x": X, "y": Y, "s": S, "w": W}),
    "info_nce": (lambda x, xk, s: layer.info_nce_loss(x, xk, 0.2, sample_weight=s), lambda x, xk, s: s * nce(x, xk), {"x": X, "xk": P, "s": S}),
    "info_nce both ways": (lambda x, xk: layer.info_nce_loss(x, xk, 0.2, symmetric=True), lambda x, xk: (nce(x, xk) + nce(xk, x)) / 2, {"x": X, "xk": P}),
    "contrastive": (lambda x, xk, y, s: layer.contrastive_loss(x, xk, y, 2.0, sample_weight=s),
                    lambda x, xk, y, s: s[:, None] / 2 * (y * F.pairwise_distance(x, xk, keepdim=True) ** 2
                                                          + (1 - y) * (2 - F.pairwise_distance(x, xk, keepdim=True)).clamp(min=0) ** 2),
                    {"x": X, "xk": P, "y": LABELS[:, :1].copy(), "s": S}),
    "triplet": (lambda x, xp, xn, s: layer.triplet_margin_loss(x, xp, xn, 0.8, swap=True, sample_weight=s),
                lambda x, xp, xn, s: s * F.triplet_margin_loss(x, xp, xn, 0.8, swap=True, reduction="none"), {"x": X, "xp": P, "xn": X[::-1] * 0.5, "s": S}),
    "dice": (lambda x, y, s: layer.dice_loss(x, y, 0.1, sample_weight=s),
             lambda x, y, s: s * (1 - (2 * (x * y).flatten(1).sum(1) + 0.1) / (x.flatten(1).sum(1) + y.flatten(1).sum(1) + 0.1)),
             {"x": IMAGES, "y": (IMAGES[::-1] > 0.5).astype("float32"), "s": S}),
    "weighted mean": (lambda x, s: layer.weighted_mean(layer.square(x), s), lambda x, s: (s[:, None] * x**2).sum() / (4 * s.sum()), {"x": X, "s": S}),
}  # fmt: skip


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    mine, theirs, feed = CASES[name]
    both(mine, theirs, **feed)


def test_what_does_not_fit_is_refused_with_the_line() -> None:
    x, y, s = layer.data("x", 4), layer.data("y", 1, "int64"), layer.data("s", 3)
    soft = layer.data("soft", 4)
    for error, words, call in [
        (ShapeError, "one number for each of the 4 classes; seen 3", lambda: layer.cross_entropy(x, y, class_weight=[1.0, 2.0, 3.0])),
        (SchemaError, "numbers from 0 to 3; seen 4", lambda: layer.softmax_with_cross_entropy(x, y, class_weight={4: 1.0})),
        (ShapeError, "sample_weight must be", lambda: layer.cross_entropy(x, y, sample_weight=s)),
        (SchemaError, "label_smoothing must be from 0 to 1; seen 2", lambda: layer.cross_entropy(x, y, label_smoothing=2)),
        (SchemaError, "gamma must be at least 0", lambda: layer.softmax_focal_loss(x, y, -1.0)),
        (SchemaError, "temperature must be above 0", lambda: layer.info_nce_loss(x, x, 0.0)),
        (SchemaError, "goes without", lambda: layer.sigmoid_cross_entropy_with_logits(x, soft, 5, positive_weight=[1.0] * 4)),
        (ShapeError, "must be \\[batch, features\\]", lambda: layer.triplet_margin_loss(x, x, layer.data("z", [2, 2, 2]))),
    ]:
        with pytest.raises(error, match=words) as caught:
            call()
        assert "test_weighted_losses.py" in str(caught.value), words
