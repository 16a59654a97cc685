"""Losses of class numbers, of pairs and of rows, and activations that draw, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape.core.spec import tensor
from foreshape.language.operator import all_operators
from foreshape.language.program import Program

RNG = np.random.RandomState(5)
N, C = 6, 4
LABELS = np.array([3, 0, 1, 1, 2, 3])


def computed(type: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None, result: str = "Out") -> np.ndarray:
    """One result of one op."""
    program = Program()
    block = program.global_block
    given = {s: block.create_variable(s, tensor(fs.core.spec.dtype(a.dtype), *a.shape), need_check_feed=True) for s, a in inputs.items()}
    op = block.append_op(type, given, None, attrs)
    return fs.Executor().run(program, inputs, [op.outputs[result][0]], fs.Scope())[0]


def normal(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


@pytest.mark.parametrize("weighted", [False, True])
def test_negative_log_likelihood(weighted: bool) -> None:
    x, weight = normal(N, C, 3, 2), RNG.rand(C) if weighted else np.ones(C)
    label = RNG.randint(0, C, (N, 3, 2))
    given = {"X": x, "Label": label} | ({"Weight": weight} if weighted else {})
    scale = weight[label] * (label != 1)
    losses = -np.take_along_axis(x, label[:, None], 1)[:, 0] * scale
    for reduction, want in (("none", losses), ("sum", losses.sum()), ("mean", losses.sum() / scale.sum())):
        np.testing.assert_allclose(computed("nll_loss", given, {"reduction": reduction, "ignore_index": 1}), want, rtol=1e-12)
        total = computed("nll_loss", given, {"reduction": reduction, "ignore_index": 1}, "Total_weight")
        np.testing.assert_allclose(total, 0.0 if reduction == "none" else scale.sum(), rtol=1e-12)


def test_a_label_that_is_no_class_is_refused() -> None:
    for bad in (-1, C):
        for type, label in (("nll_loss", np.array([bad, 0])), ("bpr_loss", np.array([[bad], [0]]))):
            with pytest.raises(fs.ExecutionError, match="a class number must be in"):
                computed(type, {"X": normal(2, C), "Label": label}, None, "Out" if type == "nll_loss" else "Y")


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("image", [(), (3, 2)], ids=["rows", "images"])
def test_the_gradient_alone_refuses_such_a_label(image: tuple[int, ...], reduction: str) -> None:
    of = all_operators()["nll_loss_grad"]
    operator: Any = of.with_values(dict(of.describe({"reduction": reduction}).values))
    label = torch.full((2, *image), 10**6)
    d_out = torch.ones(label.shape if reduction == "none" else ())
    with pytest.raises(fs.ExecutionError, match="a class number must be in"):  # torch's kernel would write beside its memory
        operator.kernel(torch.randn(2, C, *image), label, None, d_out, torch.tensor(2.0))


def test_ranking_by_pairs_of_classes() -> None:
    x = normal(N, C)
    others = [[softplus(row[j] - row[k]) for j in range(C) if j != k] for row, k in zip(x, LABELS, strict=True)]
    np.testing.assert_allclose(computed("bpr_loss", {"X": x, "Label": LABELS[:, None]}, None, "Y"), np.mean(others, 1, keepdims=True), rtol=1e-9)


def test_losses_of_a_score_or_two() -> None:
    x, y, label = normal(N, 1) * 2, normal(N, 1), (LABELS[:, None] % 2).astype("float64")
    sign = 2 * label - 1
    z = x * sign
    cases: list[tuple[str, dict[str, Any], dict[str, Any], str, np.ndarray]] = [
        ("hinge_loss", {"Logits": x, "Labels": label}, {}, "Loss", np.maximum(0, 1 - z)),
        ("rank_loss", {"Label": label, "Left": x, "Right": y}, {}, "Out", softplus(x - y) - label * (x - y)),
        ("margin_rank_loss", {"Label": sign, "X1": x, "X2": y}, {"margin": 0.25}, "Out", np.maximum(0, -sign * (x - y) + 0.25)),
    ]
    for type, given, attrs, result, want in cases:
        np.testing.assert_allclose(computed(type, given, attrs, result), want, rtol=1e-9, atol=1e-12, err_msg=type)


def test_the_loss_of_a_teacher_and_a_student() -> None:
    x = normal(N, 1)
    label = np.array([-2, -1, 0, 0.25, 1, 1.75])[:, None]
    click, score = np.array([0, 1, 0, 0, 1, 1])[:, None], np.array([np.nan, np.nan, 0, 0.25, 0, 0.75])[:, None]
    want = softplus(x) - click * x + np.where(np.isnan(score), 0, softplus(x) - np.nan_to_num(score) * x)
    np.testing.assert_allclose(computed("teacher_student_sigmoid_loss", {"X": x, "Label": label}, None, "Y"), want, rtol=1e-9)


def test_distances_of_rows() -> None:
    x, y, one = normal(N, 3, 2), normal(N, 3, 2), normal(1, 3, 2)
    inside, outside = RNG.rand(N, 3, 2), RNG.rand(N, 3, 2)
    d = inside * (x - y)
    loss = outside * np.where(np.abs(d) < 0.25, 2 * d * d, np.abs(d) - 0.125)  # sigma 2
    given = {"X": x, "Y": y, "InsideWeight": inside, "OutsideWeight": outside}
    np.testing.assert_allclose(computed("smooth_l1_loss", given, {"sigma": 2.0}), loss.reshape(N, -1).sum(1, keepdims=True), rtol=1e-9)
    for other in (y, one):
        a, b = x.reshape(N, -1), np.broadcast_to(other, x.shape).reshape(N, -1)
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        np.testing.assert_allclose(computed("cos_sim", {"X": x, "Y": other}), cosine[:, None], rtol=1e-9)


def test_centers_move_towards_their_classes() -> None:
    x, centers, rate = normal(N, 3), normal(C + 1, 3), np.array([0.5])
    given = {"X": x, "Label": LABELS[:, None], "Centers": centers, "CenterUpdateRate": rate}
    d = x - centers[LABELS]
    np.testing.assert_allclose(computed("center_loss", given, None, "Loss"), (d * d).sum(1, keepdims=True) / 2, rtol=1e-9)
    moved = centers.copy()
    for k in range(C + 1):
        moved[k] += 0.5 * d[k == LABELS].sum(0) / (1 + (k == LABELS).sum())
    after = computed("center_loss", given | {"Centers": centers.copy()}, {"need_update": True}, "CentersOut")
    np.testing.assert_allclose(after, moved, rtol=1e-9)


def test_random_slopes_are_between_their_bounds() -> None:
    x = normal(200, 5)
    out = computed("rrelu", {"X": x}, {"lower": 0.1, "upper": 0.3})
    np.testing.assert_array_equal(out[x >= 0], x[x >= 0])
    slopes = out[x < 0] / x[x < 0]
    assert slopes.min() >= 0.1 and slopes.max() <= 0.3 and abs(slopes.mean() - 0.2) < 0.02 and slopes.std() > 0.03
    np.testing.assert_allclose(computed("rrelu", {"X": x}, {"lower": 0.1, "upper": 0.3, "is_test": True}), np.where(x < 0, 0.2 * x, x), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, -1])
def test_a_softmax_with_noise_picks_as_the_softmax_says(axis: int) -> None:
    p = np.array([0.5, 0.3, 0.2])
    x = np.log(np.broadcast_to(p, (4000, 3)))
    x, back = (x.T, np.transpose) if axis == 0 else (x, np.asarray)
    hard = back(computed("gumbel_softmax", {"X": np.ascontiguousarray(x)}, {"hard": True, "axis": axis}))
    assert set(np.unique(hard)) == {0.0, 1.0} and (hard.sum(1) == 1).all()
    np.testing.assert_allclose(hard.mean(0), p, atol=0.04)
    soft = back(computed("gumbel_softmax", {"X": np.ascontiguousarray(x)}, {"axis": axis, "temperature": 0.5}))
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-9)
    np.testing.assert_allclose((soft == soft.max(1, keepdims=True)).mean(0), p, atol=0.04)
