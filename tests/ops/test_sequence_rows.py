"""The operators that change the rows of sequences, against plain loops over the sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.dims import symbol
from foreshape.core.spec import LOD_TENSOR, Lod, Spec, dtype
from foreshape.errors import ExecutionError, GuardError, ShapeError
from foreshape.language.program import Variable
from foreshape.transforms.backward import append_backward

LENGTHS = [[[4, 0, 5]], [[3]], [[0, 0]], [[]], [[2, 1, 0], [3, 0, 4]], [[0], []]]
"""Lengths of one and of two levels, with empty sequences, and batches of no sequences."""


def rng() -> np.random.RandomState:
    return np.random.RandomState(5)


def data(name: str, value: fs.LoDTensor | np.ndarray) -> Variable:
    """A variable that takes such values; how many rows and sequences they have is not known, and nobody else's."""
    array = np.asarray(value)
    lod = Lod(name, tuple(symbol(f"{name}.{k}") for k in range(value.lod_level))) if isinstance(value, fs.LoDTensor) else None
    spec = Spec(LOD_TENSOR, dtype(array.dtype), (symbol(name), *array.shape[1:]), lod)
    made = fs.default_main_program().global_block.create_variable(name, spec, need_check_feed=True)
    made.stop_gradient = False
    return made


def run(feed: dict[str, Any], *fetch: Any) -> list[Any]:
    plain = fs.Executor().run(fs.default_main_program(), feed, list(fetch))
    checked = fs.Executor(check=True).run(fs.default_main_program(), feed, list(fetch))
    for a, b in zip(plain, checked, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    return plain


def ragged(lengths: Sequence[Sequence[int]], *row: int, of: str = "float32") -> fs.LoDTensor:
    total = sum(lengths[-1])
    numbers = rng().standard_normal((total, *row)) if of.startswith("float") else rng().randint(0, 6, (total, *row))
    return fs.LoDTensor(numbers.astype(of), lengths)


def parts(value: fs.LoDTensor) -> list[np.ndarray]:
    """The innermost sequences."""
    ends = np.cumsum([0, *value.sequence_lengths[-1]])
    return [np.asarray(value)[a:b] for a, b in pairwise(ends)]


def same(got: Any, want: Sequence[np.ndarray], outer: Sequence[Sequence[int]], row: Sequence[int]) -> None:
    """A ragged result has these innermost sequences, grouped by these outer levels."""
    assert isinstance(got, fs.LoDTensor)
    assert got.sequence_lengths == [*map(list, outer), [len(w) for w in want]]
    np.testing.assert_array_equal(np.asarray(got), np.concatenate([np.zeros((0, *row), np.asarray(got).dtype), *want]))


def gradient_of(out: Variable, x: Variable, feed: dict[str, Any], weight: Any) -> np.ndarray:
    """d sum(out * weight) / dx."""
    given = data("weight", weight)
    (pair,) = append_backward(out, [x], loss_gradient=given)
    return np.asarray(fs.Executor().run(fs.default_main_program(), feed | {"weight": weight}, [pair[1]])[0])


def weights(like: Any) -> Any:
    numbers = rng().standard_normal(np.asarray(like).shape).astype("float32")
    return fs.LoDTensor(numbers, like.sequence_lengths) if isinstance(like, fs.LoDTensor) else numbers


each_lengths = pytest.mark.parametrize("lengths", LENGTHS, ids=str)


@each_lengths
def test_slice(lengths: list[list[int]]) -> None:
    value = ragged(lengths, 3)
    pick = rng()
    first = [pick.randint(0, n + 1) for n in lengths[-1]]
    count = [pick.randint(0, n - f + 1) for n, f in zip(lengths[-1], first, strict=True)]
    feed = {"x": value, "first": np.array(first, "int64").reshape(-1, 1), "count": np.array(count, "int32").reshape(-1, 1)}
    x = data("x", value)
    out = layer.sequence_slice(x, data("first", feed["first"]), data("count", feed["count"]))
    (got,) = run(feed, out)
    want = [p[f : f + c] for p, f, c in zip(parts(value), first, count, strict=True)]
    same(got, want, lengths[:-1], [3])
    weight = weights(got)
    d_x = [np.zeros_like(p) for p in parts(value)]
    for d, w, f, c in zip(d_x, parts(weight), first, count, strict=True):
        d[f : f + c] = w
    np.testing.assert_array_equal(gradient_of(out, x, feed, weight), np.concatenate([np.zeros((0, 3), "float32"), *d_x]))


@pytest.mark.parametrize(("first", "count"), [([[0], [3]], [[2], [2]]), ([[-1], [0]], [[1], [1]]), ([[0], [0]], [[-1], [1]])])
def test_a_slice_outside_of_its_sequence_is_refused(first: list[list[int]], count: list[list[int]]) -> None:
    value = ragged([[2, 4]], 3)
    out = layer.sequence_slice(data("x", value), layer.data("first", dims=[-1, 1], dtype="int64"), layer.data("count", dims=[-1, 1], dtype="int64"))
    with pytest.raises(ExecutionError, match="length of the sequence"):
        fs.Executor().run(fs.default_main_program(), {"x": value, "first": np.array(first), "count": np.array(count)}, [out])


@pytest.mark.quick_cases(one_in=2)
@each_lengths
@pytest.mark.parametrize("width", [None, 6])
@pytest.mark.parametrize("pad", ["number", "row"])
def test_pad_and_unpad_again(lengths: list[list[int]], width: int | None, pad: str) -> None:
    value = ragged(lengths, 3)
    fill = np.array([7.0, 8.0, 9.0], "float32") if pad == "row" else np.full(3, 2.5, "float32")
    x = data("x", value)
    padded, length = layer.sequence_pad(x, layer.assign(fill) if pad == "row" else 2.5, width)
    back = layer.sequence_unpad(padded, length)
    got, got_length, again = run({"x": value}, padded, length, back)
    longest = max(lengths[-1], default=0) if width is None else width
    want = np.broadcast_to(fill, (len(lengths[-1]), longest, 3)).copy()
    for row, p in zip(want, parts(value), strict=True):
        row[: len(p)] = p
    np.testing.assert_array_equal(np.asarray(got), want)
    assert np.asarray(got_length).dtype == np.int64 and np.asarray(got_length).tolist() == lengths[-1]
    if len(lengths) > 1:
        assert got.sequence_lengths == lengths[:-1] and got_length.sequence_lengths == lengths[:-1]
    same(again, parts(value), lengths[:-1], [3])
    weight = weights(got)
    d_x = [w[:n] for w, n in zip(np.asarray(weight), lengths[-1], strict=True)]
    np.testing.assert_array_equal(gradient_of(padded, x, {"x": value}, weight), np.concatenate([np.zeros((0, 3), "float32"), *d_x]))


def test_the_gradient_of_unpad_is_zero_past_the_lengths() -> None:
    value, length = rng().standard_normal((3, 4)).astype("float32"), np.array([2, 0, 4])
    x = data("x", value)
    out = layer.sequence_unpad(x, data("length", length))
    feed = {"x": value, "length": length}
    (got,) = run(feed, out)
    same(got, [value[0, :2, None], value[1, :0, None], value[2, :, None]], [], [1])
    weight = weights(got)
    want = np.zeros((3, 4), "float32")
    want[0, :2], want[2] = np.asarray(weight)[:2, 0], np.asarray(weight)[2:, 0]
    np.testing.assert_array_equal(gradient_of(out, x, feed, weight), want)


def test_padding_keeps_what_is_known() -> None:
    x = layer.data("x", dims=[-1, 3], lod_level=1)
    padded, length = layer.sequence_pad(x, 0.0)
    other, _ = layer.sequence_pad(layer.relu(x), 1.0)
    assert padded.spec.dims == other.spec.dims and padded.spec.dims is not None  # of the same offsets, so the same length
    assert padded.spec.dims[0] is symbol("batch") and length.spec.dims == (symbol("batch"),)
    layer.add(padded, other)
    assert not fs.default_main_program().guard_list()
    assert layer.sequence_pad(x, 0.0, 9)[0].spec.dims == (symbol("batch"), 9, 3)
    back = layer.sequence_unpad(padded, length)
    assert back.spec.lod is not None and back.spec.lod.counts == (symbol("batch"),) and back.spec.lod_level == 1
    assert layer.sequence_mask(length, 9).spec.dims == (symbol("batch"), 9)


@pytest.mark.parametrize(("maxlen", "of"), [(None, "int64"), (5, "float32"), (2, "bool")])
def test_mask(maxlen: int | None, of: str) -> None:
    lengths = np.array([[2, 0, 3], [4, 1, 1]])
    out = layer.sequence_mask(data("x", lengths), maxlen, of)
    (got,) = run({"x": lengths}, out)
    want = [[[int(j < n) for j in range(maxlen or 4)] for n in row] for row in lengths]
    np.testing.assert_array_equal(got, np.array(want, of))
    assert got.dtype == of


def test_mask_of_a_length_that_comes_as_a_tensor() -> None:
    lengths = np.array([2, 0, 3])
    x = data("x", lengths)
    assert layer.sequence_mask(x, layer.fill_constant([1], "int32", 4)).spec.dims == (symbol("x"), 4)
    out = layer.sequence_mask(x, layer.data("n", dims=[1], dtype="int32"))
    for n in (1, 4):
        assert run({"x": lengths, "n": np.array([n], "int32")}, out)[0].shape == (3, n)
    with pytest.raises((ExecutionError, GuardError), match="at least 1"):
        run({"x": lengths, "n": np.array([0], "int32")}, out)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("lengths", [[[4, 0, 2]], [[]], [[1, 2], [2, 0, 4]]], ids=str)
@pytest.mark.parametrize("new_dim", [2, 3, 4, 8, 6])
def test_reshape(lengths: list[list[int]], new_dim: int) -> None:
    value = ragged(lengths, 4)
    if any(n * 4 % new_dim for n in lengths[-1]):
        x = layer.data("x", dims=[-1, 4], lod_level=len(lengths))
        out = layer.sequence_reshape(x, new_dim)
        with pytest.raises((ExecutionError, GuardError), match="new_dim must divide"):
            fs.Executor().run(fs.default_main_program(), {"x": value}, [out])
        return
    x = data("x", value)
    out = layer.sequence_reshape(x, new_dim)
    (got,) = run({"x": value}, out)
    same(got, [p.reshape(-1, new_dim) for p in parts(value)], lengths[:-1], [new_dim])
    weight = weights(got)
    np.testing.assert_array_equal(gradient_of(out, x, {"x": value}, weight), np.asarray(weight).reshape(-1, 4))


def test_a_reshape_that_may_not_divide_is_a_guard() -> None:
    x = layer.data("x", dims=["words", 4], lod_level=1)
    assert layer.sequence_reshape(x, 2).spec.dims == (2 * symbol("words"), 2)
    assert not fs.default_main_program().guard_list()
    layer.sequence_reshape(x, 6)
    assert len(fs.default_main_program().guard_list()) == 1


@each_lengths
@pytest.mark.parametrize("window", [2, 7])
def test_enumerate(lengths: list[list[int]], window: int) -> None:
    value = ragged(lengths, 1, of="int64")
    (got,) = run({"x": value}, layer.sequence_enumerate(data("x", value), window, -9))
    want = [np.array([[p[i + j, 0] if i + j < len(p) else -9 for j in range(window)] for i in range(len(p))]).reshape(-1, window) for p in parts(value)]
    same(got, want, lengths[:-1], [window])


@pytest.mark.quick_cases(one_in=2)
@each_lengths
@pytest.mark.parametrize("tokens", [[], [2, 5], [0, 1, 2, 3, 4, 5]])
def test_erase(lengths: list[list[int]], tokens: list[int]) -> None:
    value = ragged(lengths, 1, of="int32")
    (got,) = run({"x": value}, layer.sequence_erase(data("x", value), tokens))
    same(got, [np.array([[v] for v in p[:, 0] if v not in tokens], "int32").reshape(-1, 1) for p in parts(value)], lengths[:-1], [1])


@each_lengths
def test_scatter(lengths: list[list[int]]) -> None:
    base = rng().standard_normal((len(lengths[-1]), 6)).astype("float32")
    ids, updates = ragged(lengths, 1, of="int64"), ragged(lengths, 1)
    x, u = data("x", base), data("u", updates)
    out = layer.sequence_scatter(x, data("ids", ids), u)
    feed = {"x": base, "ids": ids, "u": updates}
    (got,) = run(feed, out)
    want = base.copy()
    for row, i, v in zip(want, parts(ids), parts(updates), strict=True):
        np.add.at(row, i[:, 0], v[:, 0])
    np.testing.assert_allclose(got, want, rtol=1e-6)
    weight = weights(got)
    d_u = gradient_of(out, u, feed, weight)
    np.testing.assert_array_equal(d_u, np.concatenate([np.zeros((0, 1), "float32"), *(w[i] for w, i in zip(weight, parts(ids), strict=True))]))


def test_scatter_refuses_ids_outside_and_other_sequences() -> None:
    base, ids, updates = np.zeros((2, 3), "float32"), fs.LoDTensor(np.array([[0], [3]]), [[1, 1]]), ragged([[1, 1]], 1)
    out = layer.sequence_scatter(data("x", base), data("ids", ids), data("u", updates))
    with pytest.raises(ExecutionError, match="id must be in"):
        fs.Executor().run(fs.default_main_program(), {"x": base, "ids": ids, "u": updates}, [out])
    with pytest.raises(ExecutionError, match="the same sequences"):
        fs.Executor().run(fs.default_main_program(), {"x": base, "ids": fs.LoDTensor(np.array([[0], [2]]), [[2, 0]]), "u": updates}, [out])


def averages_of_largest(p: np.ndarray, r: int, c: int, topks: Sequence[int], channels: int) -> np.ndarray:
    matrices = p.reshape(channels, r, c)
    return np.array([[np.sort(matrices[j, i])[::-1][:k].sum() / k for j in range(channels) for k in topks] for i in range(r)]).reshape(r, channels * len(topks))


@pytest.mark.parametrize(("rows", "columns"), [([[2, 0, 3]], [[4, 2, 1]]), ([[]], [[]]), ([[2, 1], [1, 3, 2]], [[3], [5, 0, 2]])], ids=str)
@pytest.mark.parametrize("topks", [[1], [2, 4]], ids=str)
def test_topk_avg_pooling(rows: list[list[int]], columns: list[list[int]], topks: list[int]) -> None:
    channels = 2
    value = ragged([[channels * r * c for r, c in zip(rows[-1], columns[-1], strict=True)]], 1)
    row, column = ragged(rows, 3), ragged(columns, 3)
    x = data("x", value)
    feed = {"x": value, "row": row, "column": column}
    out = layer.sequence_topk_avg_pooling(x, data("row", row), data("column", column), topks, channels)
    (got,) = run(feed, out)
    want = [averages_of_largest(p, r, c, topks, channels) for p, r, c in zip(parts(value), rows[-1], columns[-1], strict=True)]
    assert got.sequence_lengths == rows
    np.testing.assert_allclose(np.asarray(got), np.concatenate([np.zeros((0, channels * len(topks))), *want]), rtol=1e-6, atol=1e-7)
    weight, step = weights(got), 1e-3
    d_x = gradient_of(out, x, feed, weight)
    for at in range(len(np.asarray(value))):
        ends: list[float] = []
        for sign in (1, -1):
            moved = fs.LoDTensor(np.asarray(value, "float64").copy(), value.sequence_lengths)
            moved.data[at] += sign * step
            pooled = [averages_of_largest(p, r, c, topks, channels) for p, r, c in zip(parts(moved), rows[-1], columns[-1], strict=True)]
            ends.append(float((np.concatenate(pooled) * np.asarray(weight)).sum()))
        assert d_x[at, 0] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-4)


def test_topk_avg_pooling_refuses_matrices_of_another_size() -> None:
    value, row, column = ragged([[7]], 1), ragged([[2]], 1), ragged([[3]], 1)
    out = layer.sequence_topk_avg_pooling(data("x", value), data("row", row), data("column", column), [1], 1)
    with pytest.raises(ExecutionError, match="channel_num"):
        fs.Executor().run(fs.default_main_program(), {"x": value, "row": row, "column": column}, [out])


def reset_cases() -> list[tuple[Any, Callable[[Variable], Variable], dict[str, Any], list[list[int]]]]:
    dense, one, two = rng().standard_normal((4, 2)).astype("float32"), ragged([[3, 0, 1]], 2), ragged([[2, 1], [3, 0, 1]], 2)
    offsets = {"y": np.array([0, 1, 2, 2, 4], "int32")}
    return [
        (dense, lambda x: layer.lod_reset(x, target_lod=[0, 1, 1, 4]), {}, [[1, 0, 3]]),
        (two, lambda x: layer.lod_reset(x, target_lod=[0, 4]), {}, [[4]]),
        (one, lambda x: layer.lod_reset(x, data("y", two)), {"y": two}, [[2, 1], [3, 0, 1]]),
        (one, lambda x: layer.lod_reset(x, data("y", offsets["y"])), offsets, [[1, 1, 0, 2]]),
        (one, lambda x: layer.lod_append(x, [0, 1, 2, 2, 4]), {}, [[3, 0, 1], [1, 1, 0, 2]]),
        (one, lambda x: layer.lod_append(x, data("y", offsets["y"])), offsets, [[3, 0, 1], [1, 1, 0, 2]]),
        (two, lambda x: layer.lod_append(x, [0, 1, 2, 3, 4]), {}, [[2, 1], [3, 0, 1], [1, 1, 1, 1]]),
        (dense, lambda x: layer.lod_append(x, [0, 1, 4]), {}, [[1, 3]]),
        (one, lambda x: layer.lod_append(x, data("y", two)), {"y": two}, [[2, 1], [3, 0, 1]]),
    ]


@pytest.mark.parametrize("at", range(9))
def test_reset_and_append(at: int) -> None:
    value, build, feed, want = reset_cases()[at]
    x = data("x", value)
    out = build(x)
    assert out.spec.lod_level == len(want)
    feed = feed | {"x": value}
    (got,) = run(feed, out)
    assert got.sequence_lengths == want
    np.testing.assert_array_equal(np.asarray(got), np.asarray(value))
    weight = weights(got)
    np.testing.assert_array_equal(gradient_of(out, x, feed, weight), np.asarray(weight))


def test_reset_to_offsets_that_do_not_fit() -> None:
    x = layer.data("x", dims=[-1, 2])
    out = layer.lod_reset(x, target_lod=[0, 1, 4])
    with pytest.raises(GuardError, match="number of rows"):
        fs.Executor().run(fs.default_main_program(), {"x": np.zeros((5, 2), "float32")}, [out])
    other = layer.lod_reset(x, layer.data("y", dims=["n"], dtype="int64"))
    for y in ([0, 5, 4], [1, 4], [0, 3], [0]):
        with pytest.raises((ExecutionError, GuardError), match="offsets"):
            fs.Executor().run(fs.default_main_program(), {"x": np.zeros((4, 2), "float32"), "y": np.array(y)}, [other])
    with pytest.raises(ShapeError, match="as many as rows"):
        layer.lod_append(layer.data("z", dims=[4, 2], lod_level=1), [0, 1, 4])


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, causal: bool, scale: float | None) -> np.ndarray:
    """Plain attention of one sequence; zeros where there is nothing to look at."""
    out = np.zeros(q.shape)
    for one in np.split(np.arange(q.shape[1]), heads):
        scores = q[:, one] @ k[:, one].T * (scale or len(one) ** -0.5)
        if causal:
            scores = np.where(np.arange(len(k)) <= np.arange(len(q))[:, None], scores, -np.inf)
        if len(k):
            weight = np.exp(scores - scores.max(1, keepdims=True))
            out[:, one] = weight / weight.sum(1, keepdims=True) @ v[:, one]
    return out


@pytest.mark.quick_cases(one_in=2)
@each_lengths
@pytest.mark.parametrize(("heads", "causal", "scale"), [(1, False, None), (2, True, None), (4, False, 0.3)])
def test_attention_within_sequences(lengths: list[list[int]], heads: int, causal: bool, scale: float | None) -> None:
    q, k, v = (fs.LoDTensor(np.asarray(ragged(lengths, 8)) * f, lengths) for f in (1.0, -0.7, 1.3))
    out = layer.sequence_attention(data("q", q), data("k", k), data("v", v), heads, causal, scale)
    (got,) = run({"q": q, "k": k, "v": v}, out)
    assert got.sequence_lengths == lengths
    want = [attended(a, b, c, heads, causal, scale) for a, b, c in zip(parts(q), parts(k), parts(v), strict=True)]
    np.testing.assert_allclose(np.asarray(got), np.concatenate([np.zeros((0, 8)), *want]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("k_lengths", [[3, 7, 3, 1, 7, 2], [2, 0, 5, 1, 7, 4]], ids=["same", "other"])
def test_attention_and_its_gradient_are_those_of_padded_attention(k_lengths: list[int], causal: bool) -> None:
    import torch

    q_lengths, heads, width = [3, 7, 3, 1, 7, 2], 3, 12
    made = rng()
    q = fs.LoDTensor(made.standard_normal((sum(q_lengths), width)), [q_lengths])
    k, v = (fs.LoDTensor(made.standard_normal((sum(k_lengths), width)), [k_lengths]) for _ in range(2))
    weight = fs.LoDTensor(made.standard_normal((sum(q_lengths), width)), [q_lengths])
    names = {"q": q, "k": k, "v": v}
    variables = [data(n, x) for n, x in names.items()]
    out = layer.sequence_attention(*variables, heads=heads, causal=causal)
    pairs = append_backward(out, variables, loss_gradient=data("weight", weight))
    got = fs.Executor().run(fs.default_main_program(), names | {"weight": weight}, [out, *(g for _, g in pairs)])

    def padded(x: fs.LoDTensor) -> torch.Tensor:
        rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(p) for p in parts(x)], batch_first=True)
        return rows.unflatten(2, (heads, -1)).transpose(1, 2).requires_grad_()

    tq, tk, tv = padded(q), padded(k), padded(v)
    seen = torch.arange(tk.shape[2]) < torch.tensor(k_lengths).view(-1, 1, 1, 1)
    if causal:
        seen = seen & torch.ones(tq.shape[2], tk.shape[2], dtype=torch.bool).tril()
    scores = (tq @ tk.transpose(2, 3) / (width // heads) ** 0.5).masked_fill(~seen, -1e300)
    whole = (torch.softmax(scores, -1) * seen) @ tv
    (whole * padded(weight).detach()).sum().backward()
    expected = [("out", whole, q_lengths), ("q", tq.grad, q_lengths), ("k", tk.grad, k_lengths), ("v", tv.grad, k_lengths)]
    for result, (name, x, lengths) in zip(got, expected, strict=True):
        rows = x.detach().transpose(1, 2).flatten(2)
        want = torch.cat([r[:n] for r, n in zip(rows, lengths, strict=True)]).numpy()
        np.testing.assert_allclose(np.asarray(result), want, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[3, 7, 0, 3, 1], [4, 4], [5], [150, 2, 150]], ids=str)
@pytest.mark.parametrize("entries", [1, 3])
def test_a_bias_is_added_to_the_scores_and_its_gradient_is_the_sum_over_sequences(entries: int, lengths: list[int], causal: bool) -> None:
    import torch

    heads, width, longest = 3, 6, max(lengths)
    generator = rng()
    q, k, v, weight = (fs.LoDTensor(generator.standard_normal((sum(lengths), width)), [lengths]) for _ in range(4))
    bias = generator.standard_normal((entries, longest + 2, longest + 1))
    bias[:, 0, 1:] = -np.inf  # a row that sees one key alone
    bias[:, longest:] = np.nan  # not read
    bias[:, :, longest:] = np.nan
    feed = {"q": q, "k": k, "v": v, "bias": bias}
    variables = [data(n, x) for n, x in feed.items()]
    out = layer.sequence_attention(*variables[:3], heads=heads, causal=causal, scale=0.4, bias=variables[3])
    pairs = append_backward(out, variables, loss_gradient=data("weight", weight))
    results = fs.Executor().run(fs.default_main_program(), feed | {"weight": weight}, [out, *(g for _, g in pairs)])

    leaves = [torch.tensor(np.asarray(x)).requires_grad_() for x in feed.values()]
    texts = [x.split(lengths) for x in leaves[:3]]
    expected: list[torch.Tensor] = []
    for parts_of_text in zip(*texts, strict=True):
        a, b, c = (x.unflatten(1, (heads, -1)).transpose(0, 1) for x in parts_of_text)
        scores = a @ b.mT * 0.4 + leaves[3][:, : a.shape[1], : a.shape[1]]
        if causal:
            scores = scores.masked_fill(torch.ones(a.shape[1], a.shape[1], dtype=torch.bool).triu(1), -torch.inf)
        expected.append((scores.softmax(-1) @ c).transpose(0, 1).flatten(1))
    total = torch.cat(expected)
    (total * torch.tensor(np.asarray(weight))).sum().backward()
    for result, want in zip(results, [total, *(x.grad for x in leaves)], strict=True):
        np.testing.assert_allclose(np.asarray(result), want.detach().numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ((1, 3, 9), "dim 1 of Bias must be at least the longest sequence of Q, 4; seen 3"),
        ((2, 4, 3), "dim 2 of Bias must be at least the longest sequence of K, 4; seen 3"),
    ],
)
def test_a_bias_of_fewer_rows_than_a_sequence_is_refused(dims: tuple[int, ...], words: str) -> None:
    q, bias = ragged([[2, 4]], 4), np.zeros(dims, "float32")
    x = data("q", q)
    out = layer.sequence_attention(x, x, x, 2, bias=data("bias", bias))
    with pytest.raises(ExecutionError, match=words):
        fs.Executor().run(fs.default_main_program(), {"q": q, "bias": bias}, [out])


def test_a_bias_without_a_number_makes_rows_without_one() -> None:
    q, bias = ragged([[2, 4]], 4), np.zeros((1, 4, 4), "float32")
    bias[0, 3, 1] = np.nan
    x = data("q", q)
    out = layer.sequence_attention(x, x, x, bias=data("bias", bias))
    (rows,) = fs.Executor().run(fs.default_main_program(), {"q": q, "bias": bias}, [out])
    assert np.isnan(np.asarray(rows)).any(1).tolist() == [False] * 5 + [True]


def test_attention_needs_keys_and_values_of_the_same_sequences() -> None:
    q, k, v = ragged([[2, 2]], 4), ragged([[1, 3]], 4), ragged([[3, 1]], 4)
    out = layer.sequence_attention(data("q", q), data("k", k), data("v", v))
    with pytest.raises(ExecutionError, match="K and V must have the same sequences"):
        fs.Executor().run(fs.default_main_program(), {"q": q, "k": k, "v": v}, [out])


@pytest.mark.parametrize(("levels", "count"), [([[3, 0, 4]], 3), ([[2, 1, 1], [3, 0, 4, 0]], 4)], ids=str)
def test_a_batch_size_like_that_of_ragged_rows_counts_innermost_sequences(levels: list[list[int]], count: int) -> None:
    value = ragged(levels, 2)
    x = data("x", value)
    block = fs.default_main_program().global_block
    out = block.apply("fill_constant_batch_size_like", {"Input": x}, {"shape": [-1, 3], "value": 1.5})
    np.testing.assert_array_equal(run({"x": value}, out)[0], np.full((count, 3), 1.5, "float32"))
