"""Sequence losses and decoding against enumeration, plain programs and torch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import LOD_TENSOR, Lod, Spec, dtype
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.language.program import Program
from foreshape.runtime.engine import Executor, Scope
from foreshape.transforms.backward import append_backward

LENGTHS = [[3, 0, 4, 1], [[2, 0, 2], [3, 0, 4, 1]]]
"""One level, and two."""


def levels_of(lengths: Any) -> list[list[int]]:
    return lengths if lengths and isinstance(lengths[0], list) else [lengths]


def run(type: str, inputs: dict[str, Any], fetch: list[str], attrs: dict[str, Any] | None = None, gradient_of: str = "", weight: Any = None) -> list[Any]:
    """One op over arrays and `LoDTensor`s: its results, then the gradients of its floating-point inputs."""
    program = Program()
    block = program.global_block
    given: dict[str, Any] = {}
    for slot, value in inputs.items():
        array = np.asarray(value)
        lod = Lod(slot, tuple(map(len, value.sequence_lengths))) if isinstance(value, LoDTensor) else None
        given[slot] = block.create_variable(slot, Spec(LOD_TENSOR, dtype(array.dtype), array.shape, lod), need_check_feed=True, stop_gradient=False)
    op = block.append_op(type, given, None, attrs)
    names = [op.outputs[slot][0] for slot in fetch]
    feed = dict(inputs)
    if gradient_of:
        out = block.vars[op.outputs[gradient_of][0]]
        feed["weight"] = weight
        seed = block.create_variable("weight", out.spec, need_check_feed=True)
        floating = [n for n, v in given.items() if v.dtype.is_floating]
        names += [g.name for _, g in append_backward(out, floating, loss_gradient=seed)]
    return Executor().run(program, feed, names, Scope())


def split(rows: Any, lengths: list[int]) -> list[Any]:
    return np.split(np.asarray(rows), np.cumsum(lengths)[:-1]) if lengths else []


def pad(parts: list[Any], width: int) -> np.ndarray:
    out = np.zeros((len(parts), width, *parts[0].shape[1:]), parts[0].dtype)
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return out


# --- conditional random fields


def path_weight(x: Any, w: Any, path: Any) -> Any:
    total = w[0, path[0]] + w[1, path[-1]]
    for t, tag in enumerate(path):
        total = total + x[t, tag]
        if t:
            total = total + w[path[t - 1] + 2, tag]
    return total


def enumerated(x: torch.Tensor, w: torch.Tensor, label: Any) -> torch.Tensor:
    """The negative log-likelihood by looking at all paths."""
    if not len(x):
        return torch.zeros((), dtype=x.dtype)
    paths = itertools.product(range(x.shape[1]), repeat=len(x))
    return torch.logsumexp(torch.stack([path_weight(x, w, p) for p in paths]), 0) - path_weight(x, w, list(label))


def crf_case(seed: int = 0, tags: int = 3, rows: int = 8, scale: float = 1.0) -> tuple[Any, Any, Any]:
    rng = np.random.RandomState(seed)
    return rng.randn(rows, tags) * scale, rng.randn(tags + 2, tags) * scale, rng.randint(0, tags, (rows, 1))


def reference(x: Any, w: Any, y: Any, lengths: list[int], weight: Any) -> tuple[Any, Any, Any]:
    xt, wt = torch.tensor(x, dtype=torch.float64, requires_grad=True), torch.tensor(w, dtype=torch.float64, requires_grad=True)
    parts = zip(torch.split(xt, lengths), split(y[:, 0], lengths), strict=True)
    costs = torch.stack([enumerated(a, wt, b) for a, b in parts])
    (costs * torch.tensor(weight[:, 0])).sum().backward()
    return costs.detach().numpy(), xt.grad.numpy(), wt.grad.numpy()  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("lengths", LENGTHS, ids=["level 1", "level 2"])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_crf_is_what_enumeration_gives(lengths: Any, scale: float) -> None:
    x, w, y = crf_case(scale=scale)
    levels = levels_of(lengths)
    weight = np.random.RandomState(1).randn(len(levels[-1]), 1)
    seed = LoDTensor(weight, levels[:-1]) if len(levels) > 1 else weight
    inputs = {"Emission": LoDTensor(x, levels), "Transition": w, "Label": LoDTensor(y, levels)}
    alpha, cost, d_x, d_w = run("linear_chain_crf", inputs, ["Alpha", "LogLikelihood"], None, "LogLikelihood", seed)
    want, want_x, want_w = reference(x, w, y, levels[-1], weight)
    if len(levels) > 1:
        assert cost.sequence_lengths == levels[:-1]
    np.testing.assert_allclose(np.asarray(cost)[:, 0], want, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(np.asarray(d_x), want_x, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(d_w, want_w, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(alpha.sum(1), 1)


def test_padded_crf_is_the_ragged_one() -> None:
    lengths = [3, 0, 4, 1]
    x, w, y = (v.astype(t) for v, t in zip(crf_case(), ("f4", "f4", "i8"), strict=True))
    weight = np.random.RandomState(1).randn(4, 1).astype("f4")
    fetch = ["Alpha", "EmissionExps", "TransitionExps", "LogLikelihood"]
    ragged = {"Emission": LoDTensor(x, [lengths]), "Transition": w, "Label": LoDTensor(y, [lengths])}
    a = run("linear_chain_crf", ragged, fetch, None, "LogLikelihood", weight)
    label = pad(split(y[:, 0], lengths), 5)
    label[:, 4] = 77  # padding is not looked at
    padded = {"Emission": pad(split(x, lengths), 5), "Transition": w, "Label": label, "Length": np.array(lengths)}
    b = run("linear_chain_crf", padded, fetch, None, "LogLikelihood", weight)
    np.testing.assert_allclose(b[0], pad(split(a[0], lengths), 5), rtol=1e-6)
    np.testing.assert_allclose(a[1], np.exp(x - x.max(1, keepdims=True)), rtol=1e-5)
    np.testing.assert_allclose(a[2], np.exp(w), rtol=1e-5)
    np.testing.assert_allclose(b[3], a[3], rtol=1e-6)
    np.testing.assert_allclose(b[4], pad(split(a[4], lengths), 5), rtol=1e-6)
    np.testing.assert_allclose(b[5], a[5], rtol=1e-6)


def test_crf_numbers_of_paddlepaddle() -> None:
    """Measured with PaddlePaddle 2.6.2 on these inputs."""
    rng = np.random.RandomState(0)
    x, w, y = rng.randn(6, 3).astype("f4"), rng.randn(5, 3).astype("f4"), rng.randint(0, 3, (6, 1))
    inputs = {"Emission": LoDTensor(x, [[2, 0, 4]]), "Transition": w, "Label": LoDTensor(y, [[2, 0, 4]])}
    alpha, cost, d_x, d_w = run("linear_chain_crf", inputs, ["Alpha", "LogLikelihood"], None, "LogLikelihood", np.ones((3, 1), "f4"))
    np.testing.assert_allclose(alpha[3], [0.66905, 0.03884, 0.29211], atol=1e-5)
    np.testing.assert_allclose(cost, [[3.49596], [0], [10.92659]], atol=1e-5)
    np.testing.assert_allclose(np.asarray(d_x)[5], [0.77914, 0.20548, -0.98462], atol=1e-5)
    np.testing.assert_allclose(d_w[2], [3.36046, 0.12197, 0.12409], atol=1e-5)


@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("rows", [[900.0, 0.0], [60.0, 0.0, 0.0, 0.0, 0.0]], ids=["at once", "bit by bit"])
def test_crf_is_exact_where_only_an_unlikely_path_is_allowed(kind: str, rows: list[float]) -> None:
    """Only tag 0 may follow tag 0, and the emissions say otherwise: exponentials alone would underflow."""
    x = np.zeros((len(rows), 2), kind)
    x[:, 1] = rows
    x[-1, 1] = 900
    w = np.array([[0, -1e4], [0, -1e4], [0, -1e4], [-1e4, 0]], kind)
    y = np.zeros((len(rows), 1), "i8")
    y[0] = 0
    inputs = {"Emission": LoDTensor(x, [[len(rows)]]), "Transition": w, "Label": LoDTensor(y, [[len(rows)]])}
    cost, d_x, d_w = run("linear_chain_crf", inputs, ["LogLikelihood"], None, "LogLikelihood", np.ones((1, 1), kind))
    want, want_x, want_w = reference(x, w, y, [len(rows)], np.ones((1, 1)))
    assert np.isfinite(cost).all()
    np.testing.assert_allclose(cost[:, 0], want, atol=1e-4)
    np.testing.assert_allclose(np.asarray(d_x), want_x, atol=1e-6)
    np.testing.assert_allclose(d_w, want_w, atol=1e-6)


def test_gradient_where_a_message_of_fp32_underflows() -> None:
    """A path that is e^-100 times as likely up to its middle, and the likely one after it: fp32 has lost its message by then."""
    x = np.array([[100, 0], [100, 0], [0, 400]], "f4")
    w = np.array([[0, 0], [0, 0], [0, -1000], [-1000, 0]], "f4")
    y = np.array([[1], [1], [1]])
    inputs = {"Emission": LoDTensor(x, [[3]]), "Transition": w, "Label": LoDTensor(y, [[3]])}
    cost, d_x, d_w = run("linear_chain_crf", inputs, ["LogLikelihood"], None, "LogLikelihood", np.ones((1, 1), "f4"))
    want, want_x, want_w = reference(x, w, y, [3], np.ones((1, 1)))
    np.testing.assert_allclose(cost[:, 0], want, atol=1e-4)
    np.testing.assert_allclose(np.asarray(d_x), want_x, atol=1e-6)
    np.testing.assert_allclose(d_w, want_w, atol=1e-6)


@pytest.mark.parametrize("lengths", LENGTHS, ids=["level 1", "level 2"])
def test_the_best_path_is_the_best_of_all(lengths: Any) -> None:
    levels = levels_of(lengths)
    for seed in range(10):
        x, w, y = crf_case(seed)
        best = [max(itertools.product(range(3), repeat=len(a)), key=lambda p, a=a: path_weight(a, w, p)) if len(a) else () for a in split(x, levels[-1])]
        want = np.array([tag for path in best for tag in path])
        (path,) = run("crf_decoding", {"Emission": LoDTensor(x, levels), "Transition": w}, ["ViterbiPath"])
        assert path.sequence_lengths == levels
        np.testing.assert_array_equal(np.asarray(path)[:, 0], want)
        (right,) = run("crf_decoding", {"Emission": LoDTensor(x, levels), "Transition": w, "Label": LoDTensor(y, levels)}, ["ViterbiPath"])
        np.testing.assert_array_equal(np.asarray(right)[:, 0], want == y[:, 0])
        inputs = {"Emission": pad(split(x, levels[-1]), 4), "Transition": w, "Length": np.array(levels[-1])[:, None]}
        (padded,) = run("crf_decoding", inputs, ["ViterbiPath"])
        np.testing.assert_array_equal(padded, pad(split(want, levels[-1]), 4))
        inputs["Label"] = pad(split(y, levels[-1]), 4)
        (padded,) = run("crf_decoding", inputs, ["ViterbiPath"])
        np.testing.assert_array_equal(padded, pad(split((want == y[:, 0]).astype("i8"), levels[-1]), 4))


@pytest.mark.parametrize("tag", [3, -1])
def test_a_tag_that_is_none_is_refused(tag: int) -> None:
    x, w, y = crf_case()
    y[4] = tag
    inputs = {"Emission": LoDTensor(x, [[3, 5]]), "Transition": w, "Label": LoDTensor(y, [[3, 5]])}
    with pytest.raises(fs.ExecutionError, match=r"a tag in Label must be in \[0, 3\)"):
        run("linear_chain_crf", inputs, ["LogLikelihood"])


@pytest.mark.parametrize("length", [9, -1])
def test_a_length_that_cannot_be_is_refused(length: int) -> None:
    inputs = {"Emission": np.zeros((2, 4, 3)), "Transition": np.zeros((5, 3)), "Length": np.array([2, length])}
    with pytest.raises(fs.ExecutionError, match=r"the lengths in Length must be in \[0, 4\]"):
        run("crf_decoding", inputs, ["ViterbiPath"])


def test_other_sequences_than_the_label_has_are_refused() -> None:
    x, w, y = crf_case()
    inputs = {"Emission": LoDTensor(x, [[3, 5]]), "Transition": w, "Label": LoDTensor(y, [[5, 3]])}
    with pytest.raises(fs.ExecutionError, match=r"divided into sequences alike.*\[3, 5\] and \[5, 3\]"):
        run("linear_chain_crf", inputs, ["LogLikelihood"])


# --- CTC


def by_alignments(scores: torch.Tensor, label: list[int], blank: int) -> torch.Tensor:
    """-log of the summed probability of all alignments that come out as the label."""
    p = torch.log_softmax(scores, 1)
    total: list[torch.Tensor] = []
    for path in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        if [k for k, _ in itertools.groupby(path) if k != blank] == label:
            total.append(sum((p[t, k] for t, k in enumerate(path)), torch.zeros((), dtype=p.dtype)))
    return -torch.logsumexp(torch.stack(total), 0) if total else torch.zeros((), dtype=p.dtype)


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_is_the_sum_of_all_alignments(blank: int) -> None:
    rng = np.random.RandomState(2)
    steps, sizes = [4, 5, 2, 3], [1, 3, 2, 0]
    x = rng.randn(14, 3)
    a, b = (k for k in range(3) if k != blank)
    labels = [[a], [a, b, b], [a, a], []]  # the third has no alignment
    y = np.array([k for label in labels for k in label], "i4")[:, None]
    weight = rng.randn(4, 1)
    inputs = {"Logits": LoDTensor(x, [steps]), "Label": LoDTensor(y, [sizes])}
    loss, d_x = run("warpctc", inputs, ["Loss"], {"blank": blank}, "Loss", weight)
    xt = torch.tensor(x, requires_grad=True)
    want = torch.stack([by_alignments(part, label, blank) for part, label in zip(torch.split(xt, steps), labels, strict=True)])
    (want * torch.tensor(weight[:, 0])).sum().backward()
    np.testing.assert_allclose(loss[:, 0], want.detach(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(np.asarray(d_x), xt.grad, rtol=1e-8, atol=1e-10)
    assert loss[2, 0] == 0
    assert not np.asarray(d_x)[9:11].any()


@pytest.mark.parametrize("norm_by_times", [False, True])
def test_ctc_is_torchs_in_both_forms(norm_by_times: bool) -> None:
    rng = np.random.RandomState(3)
    steps, sizes = [20, 7, 13], [4, 2, 6]
    x, y = rng.randn(40, 6), rng.randint(1, 6, (12, 1))
    weight = rng.randn(3, 1)
    xt = torch.tensor(x, requires_grad=True)
    scores = torch.nn.utils.rnn.pad_sequence(list(torch.split(xt, steps))).log_softmax(2)
    want = torch.nn.functional.ctc_loss(scores, torch.tensor(y[:, 0]), torch.tensor(steps), torch.tensor(sizes), reduction="none")
    per_step = torch.tensor(weight[:, 0]) / (torch.tensor(steps) if norm_by_times else 1)
    (want * per_step).sum().backward()
    attrs = {"norm_by_times": norm_by_times}
    inputs: dict[str, Any] = {"Logits": LoDTensor(x, [steps]), "Label": LoDTensor(y, [sizes])}
    loss, whole, d_x = run("warpctc", inputs, ["Loss", "WarpCTCGrad"], attrs, "Loss", weight)
    np.testing.assert_allclose(loss[:, 0], want.detach(), rtol=1e-10)
    np.testing.assert_allclose(np.asarray(d_x), xt.grad, rtol=1e-6, atol=1e-10)
    assert whole.shape == (20, 3, 6)
    padded = pad(split(x, steps), 20).transpose(1, 0, 2)
    padded[15:, 2] = np.nan  # padding is not looked at
    label = pad(split(y[:, 0], sizes), 6)
    label[1, 2:] = 99
    inputs = {"Logits": padded, "Label": label, "LogitsLength": np.array(steps), "LabelLength": np.array(sizes)[:, None]}
    other, again, d_padded = run("warpctc", inputs, ["Loss", "WarpCTCGrad"], attrs, "Loss", weight)
    np.testing.assert_array_equal(other, loss)
    np.testing.assert_allclose(again, whole, rtol=1e-12)
    np.testing.assert_allclose(d_padded, pad(split(xt.grad, steps), 20).transpose(1, 0, 2), rtol=1e-6, atol=1e-10)


def test_ctc_of_two_levels_takes_the_outer_one() -> None:
    rng = np.random.RandomState(4)
    x, y = rng.randn(9, 4), np.array([[3], [1], [1], [2]])
    weight = np.array([[0.3], [-2.0]])
    one = run("warpctc", {"Logits": LoDTensor(x, [[4, 5]]), "Label": LoDTensor(y, [[1, 3]])}, ["Loss"], None, "Loss", weight)
    inputs = {"Logits": LoDTensor(x, [[2, 1], [3, 1, 5]]), "Label": LoDTensor(y, [[2, 1], [0, 1, 3]])}
    two = run("warpctc", inputs, ["Loss"], None, "Loss", weight)
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(np.asarray(one[1]), np.asarray(two[1]))
    assert two[1].sequence_lengths == [[2, 1], [3, 1, 5]]


@pytest.mark.parametrize(("wrong", "says"), [(4, r"a class in Label must be in \[0, 4\)"), (-1, "a class in Label"), (0, "must not contain the blank")])
def test_ctc_refuses_labels_that_are_none(wrong: int, says: str) -> None:
    inputs = {"Logits": LoDTensor(np.zeros((9, 4)), [[4, 5]]), "Label": LoDTensor(np.array([[1], [wrong]]), [[1, 1]])}
    with pytest.raises(fs.ExecutionError, match=says):
        run("warpctc", inputs, ["Loss"])


def plain_align(numbers: Any, blank: int, merge: bool) -> list[int]:
    steps = [k for k, _ in itertools.groupby(numbers)] if merge else list(numbers)
    return [int(k) for k in steps if k != blank]


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_align(merge: bool, blank: int) -> None:
    rng = np.random.RandomState(5)
    lengths = [9, 0, 4, 12, 1]
    x = rng.randint(0, 3, (26, 1))
    attrs = {"blank": blank, "merge_repeated": merge}
    want = [plain_align(part[:, 0], blank, merge) for part in split(x, lengths)]
    (out,) = run("ctc_align", {"Input": LoDTensor(x, [lengths])}, ["Output"], attrs)
    assert out.sequence_lengths == [[len(w) for w in want]]
    assert np.asarray(out)[:, 0].tolist() == list(itertools.chain.from_iterable(want))
    padded = pad(split(x[:, 0], lengths), 12)
    out, count = run("ctc_align", {"Input": padded, "InputLength": np.array(lengths)}, ["Output", "OutputLength"], attrs | {"padding_value": -7})
    assert count[:, 0].tolist() == [len(w) for w in want]
    assert out.tolist() == [w + [-7] * (12 - len(w)) for w in want]
    two = LoDTensor(x, [[2, 1, 2], lengths])
    (out,) = run("ctc_align", {"Input": two}, ["Output"], attrs)
    ends = np.cumsum([0, 9, 4, 13])
    want = [plain_align(x[a:b, 0], blank, merge) for a, b in itertools.pairwise(ends)]
    assert out.sequence_lengths == [[len(w) for w in want]]
    assert np.asarray(out)[:, 0].tolist() == list(itertools.chain.from_iterable(want))


def test_nothing_is_left() -> None:
    (out,) = run("ctc_align", {"Input": LoDTensor(np.zeros((4, 1), "i4"), [[3, 1]])}, ["Output"])
    assert out.sequence_lengths == [[0, 0]]
    assert np.asarray(out).shape == (0, 1)


# --- edit distance


def plain_distance(a: Any, b: Any) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


@pytest.mark.parametrize("normalized", [False, True])
def test_edit_distance(normalized: bool) -> None:
    rng = np.random.RandomState(6)
    hyp, ref = [12, 0, 1, 30, 7], [9, 4, 1, 33, 2]
    x, y = rng.randint(0, 4, (50, 1)), rng.randint(0, 4, (49, 1))
    want = np.array([plain_distance(a[:, 0], b[:, 0]) for a, b in zip(split(x, hyp), split(y, ref), strict=True)], "f4")
    want = want / ref if normalized else want
    attrs = {"normalized": normalized}
    out, count = run("edit_distance", {"Hyps": LoDTensor(x, [hyp]), "Refs": LoDTensor(y, [ref])}, ["Out", "SequenceNum"], attrs)
    np.testing.assert_allclose(out[:, 0], want, rtol=1e-6)
    assert count.tolist() == [5]
    inputs = {"Hyps": pad(split(x[:, 0], hyp), 30), "Refs": pad(split(y[:, 0], ref), 40), "HypsLength": np.array(hyp), "RefsLength": np.array(ref)}
    (out,) = run("edit_distance", inputs, ["Out"], attrs)
    np.testing.assert_allclose(out[:, 0], want, rtol=1e-6)
    outer = [3, 0, 2]
    (out,) = run("edit_distance", {"Hyps": LoDTensor(x, [outer, hyp]), "Refs": LoDTensor(y, [outer, ref])}, ["Out"], attrs)
    np.testing.assert_allclose(np.asarray(out)[:, 0], want, rtol=1e-6)
    assert out.sequence_lengths == [outer]


def test_edit_distance_of_what_is_empty() -> None:
    x, y = np.zeros((3, 1), "i8"), np.zeros((2, 1), "i8")
    inputs = {"Hyps": LoDTensor(x, [[3, 0, 0]]), "Refs": LoDTensor(y, [[0, 2, 0]])}
    (out,) = run("edit_distance", inputs, ["Out"])
    assert out.tolist() == [[3], [2], [0]]
    with pytest.raises(fs.ExecutionError, match="number 0 is empty"):
        run("edit_distance", inputs, ["Out"], {"normalized": True})


# --- chunks


def plain_chunks(numbers: Any, scheme: str, types: int) -> set[tuple[int, int, int]]:
    """Begin, end (its last row) and type of each chunk."""
    tags = {"plain": "I", "IOB": "BI", "IOE": "IE", "IOBES": "BIES"}[scheme]
    named = [("O", -1) if k == types * len(tags) else (tags[k % len(tags)], k // len(tags)) for k in map(int, numbers)]
    out: set[tuple[int, int, int]] = set()
    begin = None
    for at, (tag, type) in enumerate(named):
        if tag == "O":
            begin = None
            continue
        if begin is None or tag in "BS" or named[at - 1][1] != type or named[at - 1][0] in "ES":
            begin = at
        after = named[at + 1] if at + 1 < len(named) else ("O", -1)
        if after[0] in "OBS" or after[1] != type or tag in "ES":
            out.add((begin, at, type))
    return out


@pytest.mark.parametrize("scheme", ["IOB", "IOE", "IOBES", "plain"])
@pytest.mark.parametrize("excluded", [[], [1], [0, 2]])
def test_chunk_eval(scheme: str, excluded: list[int]) -> None:
    rng = np.random.RandomState(7)
    outside = 3 * {"plain": 1, "IOB": 2, "IOE": 2, "IOBES": 4}[scheme]
    lengths = [40, 0, 25, 1, 14]
    y = rng.randint(0, outside + 1, (80, 1))
    x = np.where(rng.rand(80, 1) < 0.8, y, rng.randint(0, outside + 1, (80, 1)))
    found, true = ({(at, *c) for at, part in enumerate(split(v[:, 0], lengths)) for c in plain_chunks(part, scheme, 3) if c[2] not in excluded} for v in (x, y))
    right = len(found & true)
    assert 0 < right < len(true)
    precision, recall = right / len(found), right / len(true)
    want = [precision, recall, 2 * precision * recall / (precision + recall), len(found), len(true), right]
    slots = ["Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks"]
    attrs = {"num_chunk_types": 3, "chunk_scheme": scheme, "excluded_chunk_types": excluded}
    padded = {"Inference": pad(split(x, lengths), 40), "Label": pad(split(y, lengths), 40), "SeqLength": np.array(lengths)}
    for inputs in (
        {"Inference": LoDTensor(x, [lengths]), "Label": LoDTensor(y, [lengths])},
        {"Inference": LoDTensor(x, [[2, 3], lengths]), "Label": LoDTensor(y, [[2, 3], lengths])},
        padded,
    ):
        out = run("chunk_eval", inputs, slots, attrs)
        np.testing.assert_allclose([float(v[0]) for v in out], want, rtol=1e-6)


def test_chunk_eval_without_chunks_and_with_wrong_tags() -> None:
    slots = ["Precision", "Recall", "F1-Score", "NumInferChunks"]
    x = LoDTensor(np.full((3, 1), 4), [[3, 0]])
    assert [v.tolist() for v in run("chunk_eval", {"Inference": x, "Label": x}, slots, {"num_chunk_types": 2})] == [[0], [0], [0], [0]]
    wrong = LoDTensor(np.full((3, 1), 5), [[3, 0]])
    with pytest.raises(fs.ExecutionError, match=r"a tag in Label must be in \[0, 5\)"):
        run("chunk_eval", {"Inference": x, "Label": wrong}, slots, {"num_chunk_types": 2})


# --- layers


def test_a_tagger_learns() -> None:
    """Tag 1 follows tag 0 and tag 2 follows tag 1, whatever the inputs say: only the transitions can tell."""
    rng = np.random.RandomState(8)
    lengths = rng.randint(0, 9, 40).tolist()
    tags = np.concatenate([(np.arange(n) + rng.randint(3)) % 3 for n in lengths])
    words = np.where(rng.rand(len(tags)) < 0.6, tags, rng.randint(0, 3, len(tags)))
    main, startup = Program(), Program()
    with fs.program_guard(main, startup):
        word = layer.data("word", shape=[-1], dtype="int64", lod_level=1)
        tag = layer.data("tag", shape=[-1, 1], dtype="int64", lod_level=1)
        weights = layer.fc(layer.embedding(word, [3, 8]), 3)
        cost = layer.linear_chain_crf(weights, tag, transition="moves")
        assert cost.shape[1] == 1
        loss = layer.mean(cost)
        path = layer.crf_decoding(weights, "moves")
        right = layer.crf_decoding(weights, "moves", label=tag)
        f1 = layer.chunk_eval(path, tag, "plain", 3)[2]
        test = main.clone()
        fs.optimizer.Adam(0.05).minimize(loss)
    executor, scope = Executor(seed=2), Scope()
    executor.run(startup, scope=scope)
    feed = {"word": LoDTensor(words, [lengths]), "tag": LoDTensor(tags[:, None], [lengths])}
    costs = [float(executor.run(main, feed, [loss], scope)[0]) for _ in range(60)]
    assert costs[-1] < 0.3 * costs[0]
    good, score = executor.run(test, feed, [right.name, f1.name], scope)
    assert np.asarray(good).mean() > 0.9 > (words == tags).mean()
    assert score[0] > 0.9


def test_ctc_layers() -> None:
    rng = np.random.RandomState(9)
    x, y = rng.randn(9, 4).astype("f4"), np.array([[1], [2], [3]], "i4")
    with fs.program_guard(Program(), Program()):
        logits = layer.data("logits", shape=[-1, 4], lod_level=1)
        label = layer.data("label", shape=[-1, 1], dtype="int64", lod_level=1)
        loss = layer.warpctc(logits, label)
        decoded = layer.ctc_greedy_decoder(logits, 0)
        distance, count = layer.edit_distance(decoded, label, normalized=False)
        without, _ = layer.edit_distance(decoded, label, normalized=False, ignored_tokens=[1, 2, 3])
        padded = layer.data("padded", shape=[-1, 6, 4])
        lengths = layer.data("lengths", shape=[-1], dtype="int64")
        tokens, sizes = layer.ctc_greedy_decoder(padded, 0, lengths, pad_value=-1)
        steps = [6, 3]
        feed = {"logits": LoDTensor(x, [steps]), "label": LoDTensor(y.astype("i8"), [[1, 2]]), "padded": pad(split(x, steps), 6), "lengths": np.array(steps)}
        fetch = [loss, decoded, distance, count, without, tokens, sizes]
        out = Executor().run(fs.default_main_program(), feed, fetch, Scope())
    want = [plain_align(part.argmax(1), 0, True) for part in split(x, steps)]
    assert out[0].shape == (2, 1)
    assert out[1].to_list()[0][:, 0].tolist() == want[0]
    assert out[2][:, 0].tolist() == [plain_distance(want[0], [1]), plain_distance(want[1], [2, 3])]
    assert out[3].tolist() == [2]
    assert not out[4].any()
    assert out[5].tolist() == [w + [-1] * (6 - len(w)) for w in want]
    assert out[6][:, 0].tolist() == [len(w) for w in want]


def test_layers_say_what_is_wrong() -> None:
    with fs.program_guard(Program(), Program()):
        x = layer.data("x", shape=[-1, 3], lod_level=1)
        with pytest.raises(fs.SchemaError, match="no parameter 'moves'"):
            layer.crf_decoding(x, "moves")
        unknown = layer.data("unknown", shape=[-1, -1], lod_level=1)
        tag = layer.data("tag", shape=[-1, 1], dtype="int64", lod_level=1)
        with pytest.raises(fs.ShapeError, match="number of tags must be known"):
            layer.linear_chain_crf(unknown, tag)
        length = layer.data("length", shape=[-1], dtype="int64")
        ids = layer.data("ids", shape=[-1, 5], dtype="int64")
        with pytest.raises(fs.SchemaError, match="ragged sequences only"):
            layer.edit_distance(ids, ids, ignored_tokens=[1], input_length=length, label_length=length)
