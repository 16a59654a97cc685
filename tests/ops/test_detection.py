"""Operators of detection against the plainest way to say what they do, box by box."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import LOD_TENSOR, Lod, Spec, dtype
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ExecutionError
from foreshape.language.program import Program
from foreshape.machine.kernels.boxes import BLOCK, CHUNK
from foreshape.runtime.engine import Executor, Scope

Array = np.ndarray


def ran(type: str, inputs: dict[str, Any], results: dict[str, int], **attrs: Any) -> list[Any]:
    """An operator's results, slot by slot."""
    program = Program()
    block = program.global_block
    feed: dict[str, Any] = {}

    def variable(name: str, value: Any) -> Any:
        lod = Lod(name, tuple(len(level) for level in value.sequence_lengths)) if isinstance(value, LoDTensor) else None
        feed[name] = value
        return block.create_variable(name, Spec(LOD_TENSOR, dtype(str(value.dtype)), tuple(value.shape), lod), need_check_feed=True)

    slots = {s: [variable(f"{s}{k}", x) for k, x in enumerate(v)] if isinstance(v, list) else variable(s, v) for s, v in inputs.items()}
    outputs = {slot: [f"{slot}_out{k}" for k in range(count)] for slot, count in results.items()}
    block.append_op(type, slots, outputs, attrs)
    return Executor().run(program, feed, [n for names in outputs.values() for n in names], Scope())


def drawn_boxes(rng: np.random.RandomState, *dims: int, coarse: bool = False) -> Array:
    corner, size = rng.rand(*dims, 2), rng.rand(*dims, 2) * 0.6
    if coarse:  # boxes and overlaps that are equal
        corner, size = np.round(corner * 8) / 8, np.round(size * 8) / 8
    return np.concatenate([corner, corner + size], -1).astype("float32")


def overlap(a: Array, b: Array, pixel: float) -> float:
    if b[0] > a[2] or b[2] < a[0] or b[1] > a[3] or b[3] < a[1]:
        return 0.0
    both = np.prod(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + np.float32(pixel))
    of_a, of_b = np.prod(a[2:] - a[:2] + np.float32(pixel)), np.prod(b[2:] - b[:2] + np.float32(pixel))
    with np.errstate(invalid="ignore"):
        return float(both / (of_a + of_b - both))


def greedy(boxes: Array, scores: Array, threshold: float, top_k: int, limit: float, eta: float, pixel: float) -> list[int]:
    order = sorted((k for k in range(len(scores)) if scores[k] > np.float32(threshold)), key=lambda k: -scores[k])
    order = order if top_k < 0 else order[:top_k]
    kept: list[int] = []
    now = np.float32(limit)
    for k in order:
        if all(overlap(boxes[k], boxes[j], pixel) <= now for j in kept):
            kept.append(k)
            now = now * np.float32(eta) if eta < 1 and now > 0.5 else now
    return kept


def detected(boxes: Array, scores: Array, *, score_threshold: float, nms_top_k: int, keep_top_k: int, nms_threshold: float, nms_eta: float,
             background_label: int, normalized: bool) -> tuple[list[list[float]], list[int]]:  # fmt: skip
    """Of one image the rows of Out, and which boxes they are."""
    found: list[tuple[float, int, int]] = []
    for c in range(len(scores)):
        if c != background_label:
            kept = greedy(boxes, scores[c], score_threshold, nms_top_k, nms_threshold, nms_eta, 0.0 if normalized else 1.0)
            found += [(scores[c][k], c, k) for k in kept]
    if -1 < keep_top_k < len(found):
        best = sorted(range(len(found)), key=lambda i: -found[i][0])[:keep_top_k]
        found = [found[i] for i in sorted(best)]
    return [[c, s, *boxes[k]] for s, c, k in found], [k for _, _, k in found]


@pytest.mark.parametrize("seed", range(12))
def test_suppression_keeps_what_the_plain_way_keeps(seed: int) -> None:
    rng = np.random.RandomState(seed)
    images, classes, count = rng.randint(1, 4), rng.randint(1, 5), rng.randint(1, 30)
    boxes = drawn_boxes(rng, images, count, coarse=seed % 2 == 0)
    scores = rng.rand(images, classes, count).astype("float32")
    scores = np.round(scores * 6) / np.float32(6) if seed % 3 == 0 else scores
    attrs = {
        "score_threshold": float(rng.rand()) * 0.5, "nms_top_k": int(rng.choice([-1, 4, 20])), "keep_top_k": int(rng.choice([-1, 0, 7])),
        "nms_threshold": float(rng.rand()), "nms_eta": float(rng.choice([1.0, 0.7])), "background_label": int(rng.choice([-1, 0])),
        "normalized": bool(rng.randint(2)),
    }  # fmt: skip
    each = [detected(b, s, **attrs) for b, s in zip(boxes, scores, strict=True)]
    wanted = np.array([row for rows, _ in each for row in rows], "float32").reshape(-1, 6)
    index = [[at * count + k] for at, (_, which) in enumerate(each) for k in which]
    numbers = [len(rows) for rows, _ in each]
    given = {"BBoxes": boxes, "Scores": scores}
    out, which, number = ran("multiclass_nms3", given, {"Out": 1, "Index": 1, "NmsRoisNum": 1}, **attrs)
    np.testing.assert_array_equal(out, wanted)
    assert which.tolist() == index and number.tolist() == numbers
    (ragged,) = ran("multiclass_nms", given, {"Out": 1}, **attrs)
    assert ragged.sequence_lengths == [numbers]
    np.testing.assert_array_equal(np.asarray(ragged), wanted)


def test_suppression_of_more_boxes_than_are_compared_at_once() -> None:
    rng = np.random.RandomState(3)
    count = BLOCK + CHUNK + 100
    boxes = (drawn_boxes(rng, 1, count) * [9, 9, 9, 9]).astype("float32")  # small and spread, so that many stay
    boxes[..., 2:] = boxes[..., :2] + 0.4
    scores = rng.rand(1, 2, count).astype("float32")
    attrs = {"score_threshold": 0.0, "nms_top_k": -1, "keep_top_k": -1, "nms_threshold": 0.2, "nms_eta": 1.0, "background_label": 0, "normalized": True}
    out, which, _ = ran("multiclass_nms3", {"BBoxes": boxes, "Scores": scores}, {"Out": 1, "Index": 1, "NmsRoisNum": 1}, **attrs)
    rows, wanted = detected(boxes[0], scores[0], **attrs)
    assert which[:, 0].tolist() == wanted and BLOCK < len(wanted) < count
    np.testing.assert_array_equal(out, np.array(rows, "float32"))
    order = np.argsort(-scores[0, 1])
    (kept,) = ran("nms", {"Boxes": boxes[0][order]}, {"KeepBoxesIdxs": 1}, iou_threshold=0.2)
    assert order[kept].tolist() == wanted


def test_boxes_of_their_own_for_each_class_keep_their_order() -> None:
    rng = np.random.RandomState(1)
    boxes, scores = drawn_boxes(rng, 9, 3), rng.rand(9, 3).astype("float32")
    attrs = {"score_threshold": 0.1, "nms_top_k": -1, "keep_top_k": 6, "nms_threshold": 0.3}
    numbers = np.array([4, 0, 5], "int32")
    given = {"BBoxes": LoDTensor(boxes, [numbers]), "Scores": LoDTensor(scores, [numbers])}
    out, which = ran("multiclass_nms2", given, {"Out": 1, "Index": 1}, **attrs)
    dense = ran("multiclass_nms3", {"BBoxes": boxes, "Scores": scores, "RoisNum": numbers}, {"Out": 1, "Index": 1, "NmsRoisNum": 1}, **attrs)
    np.testing.assert_array_equal(np.asarray(out), dense[0])
    assert out.sequence_lengths == which.sequence_lengths == [dense[2].tolist()] and dense[2].tolist()[1] == 0
    at = np.asarray(which)[:, 0]
    np.testing.assert_array_equal(np.asarray(out)[:, 2:], boxes.reshape(-1, 4)[at])
    np.testing.assert_array_equal(np.asarray(out)[:, 0], at % 3)
    label = np.asarray(out)[:, 0]
    first = int(dense[2][0])
    for rows in (slice(0, first), slice(first, None)):
        assert all(a < b for a, b, same in zip(at[rows], at[rows][1:], label[rows][1:] == label[rows][:-1], strict=False) if same)
    with pytest.raises(ExecutionError, match="RoisNum must say how many of 9 rows"):
        ran("multiclass_nms3", {"BBoxes": boxes, "Scores": scores, "RoisNum": numbers + 1}, {"Out": 1, "Index": 1}, **attrs)


@pytest.mark.parametrize("gaussian", [False, True])
def test_scores_decay_as_the_plain_way_says(gaussian: bool) -> None:
    rng = np.random.RandomState(5)
    boxes, scores = drawn_boxes(rng, 1, 20), rng.rand(1, 2, 20).astype("float32")
    out, which, number = ran("matrix_nms", {"BBoxes": boxes, "Scores": scores}, {"Out": 1, "Index": 1, "RoisNum": 1}, score_threshold=0.2, nms_top_k=15,
                             keep_top_k=8, post_threshold=0.05, use_gaussian=gaussian, gaussian_sigma=1.5)  # fmt: skip
    order = [k for k in np.argsort(-scores[0, 1]) if scores[0, 1, k] > 0.2][:15]
    most: list[float] = []
    rows: list[tuple[float, int]] = []
    for at, k in enumerate(order):
        with_better = [overlap(boxes[0, k], boxes[0, j], 0.0) for j in order[:at]]
        left = [np.exp(1.5 * (m * m - o * o)) if gaussian else (1 - o) / (1 - m) for o, m in zip(with_better, most, strict=True)]
        most.append(max(with_better, default=0.0))
        rows.append((scores[0, 1, k] * min([1.0, *left]), k))
    wanted = sorted((r for r in rows if r[0] > 0.05), key=lambda r: -r[0])[:8]
    assert which[:, 0].tolist() == [k for _, k in wanted] and number.tolist() == [8]
    np.testing.assert_allclose(out[:, 1], [s for s, _ in wanted], rtol=1e-5)
    assert (out[:, 0] == 1).all()


def test_decoding_undoes_encoding() -> None:
    rng = np.random.RandomState(2)
    priors, targets = drawn_boxes(rng, 5) + np.float32([0, 0, 0.1, 0.1]), drawn_boxes(rng, 3) + np.float32([0, 0, 0.1, 0.1])
    variances = (rng.rand(5, 4) + 0.1).astype("float32")
    given = {"PriorBox": priors, "PriorBoxVar": variances}
    (coded,) = ran("box_coder", given | {"TargetBox": targets}, {"OutputBox": 1})
    (back,) = ran("box_coder", given | {"TargetBox": coded}, {"OutputBox": 1}, code_type="decode_center_size")
    np.testing.assert_allclose(back, np.broadcast_to(targets[:, None], back.shape), atol=1e-5)


def test_regions_come_back_from_the_levels_of_a_pyramid() -> None:
    rng = np.random.RandomState(4)
    rois = (drawn_boxes(rng, 12) * 300).astype("float32")
    attrs = {"min_level": 2, "max_level": 5, "refer_level": 4, "refer_scale": 120, "pixel_offset": False}
    *levels, restore = ran("distribute_fpn_proposals", {"FpnRois": LoDTensor(rois, [[5, 0, 7]])}, {"MultiFpnRois": 4, "RestoreIndex": 1}, **attrs)
    assert [sum(x) for x in zip(*(level.sequence_lengths[0] for level in levels), strict=True)] == [5, 0, 7]
    np.testing.assert_array_equal(np.concatenate([np.asarray(x) for x in levels])[restore[:, 0]], rois)
    for at, level in enumerate(levels):
        size = np.sqrt(np.prod(np.asarray(level)[:, 2:] - np.asarray(level)[:, :2], axis=1))
        assert (np.clip(np.floor(4 + np.log2(size / 120 + 1e-6)), 2, 5) == 2 + at).all()
    numbers = {"FpnRois": rois, "RoisNum": np.array([5, 0, 7], "int32")}
    *dense, _ = ran("distribute_fpn_proposals", numbers, {"MultiFpnRois": 4, "MultiLevelRoIsNum": 4, "RestoreIndex": 1}, **attrs)
    for seen, number, level in zip(dense[:4], dense[4:], levels, strict=True):
        np.testing.assert_array_equal(seen, np.asarray(level))
        assert [number.tolist()] == level.sequence_lengths
    scores = [LoDTensor(rng.rand(len(level.data), 1).astype("float32"), level.sequence_lengths) for level in levels]
    (best, number) = ran("collect_fpn_proposals", {"MultiLevelRois": levels, "MultiLevelScores": scores}, {"FpnRois": 1, "RoisNum": 1}, post_nms_topN=6)
    image = np.concatenate([np.repeat([0, 1, 2], level.sequence_lengths[0]) for level in levels])
    score, all_rois = np.concatenate([s.data[:, 0] for s in scores]), np.concatenate([np.asarray(x) for x in levels])
    order = sorted(np.argsort(-score)[:6], key=lambda k: (image[k], -score[k]))
    np.testing.assert_array_equal(np.asarray(best), all_rois[order])
    assert best.sequence_lengths == [number.tolist()] == [np.bincount(image[order], minlength=3).tolist()]


def test_rows_and_columns_are_matched_from_the_most_alike_on() -> None:
    like = np.float32([[0.9, 0.8, 0.1, 0.0], [0.9, 0.7, 0.6, 0.0], [0.2, 0.3, 0.0, 0.0]])
    index, how = ran("bipartite_match", {"DistMat": like}, {"ColToRowMatchIndices": 1, "ColToRowMatchDist": 1})
    assert index.tolist() == [[0, 1, -1, -1]]  # row 2 has column 2 left, which is not like it at all
    np.testing.assert_array_equal(how, np.float32([[0.9, 0.7, 0, 0]]))
    ragged = LoDTensor(np.concatenate([like, like[::-1]]), [[3, 0, 3]])
    index, _ = ran("bipartite_match", {"DistMat": ragged}, {"ColToRowMatchIndices": 1, "ColToRowMatchDist": 1}, match_type="per_prediction",
                   dist_threshold=0.55)  # fmt: skip
    assert index.tolist() == [[0, 1, 1, -1], [-1] * 4, [1, 2, 1, -1]]


def test_the_tail_of_a_detector_is_described_and_runs_on_images_of_any_number() -> None:
    x = layer.data("x", shape=["batch", 14, 3, 3])
    size = layer.data("size", shape=["batch", 2], dtype="int32")
    boxes, scores = layer.detection.yolo_box(x, size, [10, 13, 30, 40], 2, conf_threshold=0.1)
    found, which, numbers = layer.detection.multiclass_nms(boxes, layer.transpose(scores, [0, 2, 1]), 0.05, 50, 10, 0.4)
    assert str(boxes.shape) == "[batch, 18, 4]" and str(numbers.shape) == "[batch]"
    assert found.shape[0] is which.shape[0] and found.shape[1] == 6
    rng = np.random.RandomState(0)
    for batch in (1, 3, 0):
        feed = {"x": rng.randn(batch, 14, 3, 3).astype("float32"), "size": np.full((batch, 2), 96, "int32")}
        rows, index, number = fs.Executor(check=True).run(fs.default_main_program(), feed, [found, which, numbers])
        assert len(rows) == len(index) == number.sum() and number.shape == (batch,) and (number <= 10).all()
        assert ((rows[:, 2:] >= 0) & (rows[:, 2:] <= 95)).all()


def test_what_easy_examples_cost_is_little() -> None:
    x = np.float32([[4.0, -4.0, 0.0], [-4.0, 4.0, 0.0]])
    (loss,) = ran("sigmoid_focal_loss", {"X": x, "Label": np.int32([[1], [-1]]), "FgNum": np.int32([4])}, {"Out": 1}, gamma=1.5, alpha=0.3)
    p = 1 / (1 + np.exp(-x.astype("float64")))
    own, other = -0.3 / 4 * (1 - p) ** 1.5 * np.log(p), -0.7 / 4 * p**1.5 * np.log(1 - p)
    np.testing.assert_allclose(loss, [[own[0, 0], other[0, 1], other[0, 2]], [0, 0, 0]], rtol=1e-4)
    assert loss[0, 0] < 1e-4 < loss[0, 2]


def test_a_network_learns_where_a_box_is() -> None:
    x = layer.data("x", shape=["batch", 3, 4, 4])
    features = layer.conv2d(x, 7, 3, padding=1, weight=layer.Normal(0.0, 0.1))
    box, label = layer.data("box", shape=["batch", 2, 4]), layer.data("label", shape=["batch", 2], dtype="int32")
    loss = layer.mean(layer.detection.yolo_loss(features, box, label, [30, 40], [0], 2, 0.7, 32))
    fs.optimizer.Adam(0.05).minimize(loss)
    rng = np.random.RandomState(0)
    feed = {"x": rng.rand(2, 3, 4, 4).astype("float32"), "label": np.int32([[1, 0], [0, 0]]),
            "box": np.float32([[[0.3, 0.6, 0.2, 0.4], [0, 0, 0, 0]], [[0.8, 0.1, 0.3, 0.2], [0.4, 0.4, 0.2, 0.2]]])}  # fmt: skip
    executor, scope = fs.Executor(seed=1), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    costs = [float(executor.run(fs.default_main_program(), feed, [loss], scope)[0]) for _ in range(40)]
    assert costs[-1] < 0.5 * costs[0]
    feed["box"][0, 0, 0] = 1.5
    with pytest.raises(ExecutionError, match=r"must be in the image, from 0 to below 1; seen 0.1 to 1.5"):
        executor.run(fs.default_main_program(), feed, [loss], scope)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", layer.detection.__all__)
def test_each_layer_has_words_and_an_operator(name: str) -> None:
    assert (getattr(layer.detection, name).__doc__ or "").strip()
