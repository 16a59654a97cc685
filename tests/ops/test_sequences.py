"""Poolings, context and repetitions of sequences against loops over the sequences, at one, two and three levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.dims import symbol
from foreshape.core.spec import FP32, FP64, LOD_TENSOR, Lod, Spec
from foreshape.errors import SchemaError, ShapeError, TypeMismatchError

Lengths = list[list[int]]
LEVELS: dict[str, Lengths] = {
    "one level": [[4, 0, 5, 1]],
    "two levels": [[3, 0, 1], [4, 0, 5, 1]],
    "three levels": [[2, 0], [0, 4], [4, 0, 5, 1]],
    "one sequence": [[6]],
    "only empty ones": [[0, 0]],
    "no sequences": [[]],
    "no sequences of two levels": [[], []],
    "empty ones of two levels": [[1, 0], [0]],
}
every_raggedness = pytest.mark.parametrize("lengths", LEVELS.values(), ids=list(LEVELS))


def numbers(rows: int, *row: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed + rows).standard_normal((rows, *row))


def ragged(lengths: Lengths, *row: int, seed: int = 0) -> fs.LoDTensor:
    return fs.LoDTensor(numbers(sum(lengths[-1]), *row, seed=seed), lengths)


def spans(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Where the sequences of one level begin and end."""
    ends = np.cumsum([0, *lengths]).tolist()
    return list(pairwise(ends))


def outer_spans(lengths: Lengths, level: int) -> list[tuple[int, int]]:
    """The same for the sequences of ``level``, in rows."""
    out = spans(lengths[level])
    for below in lengths[level + 1 :]:
        ends = np.cumsum([0, *below]).tolist()
        out = [(ends[a], ends[b]) for a, b in out]
    return out


def described(name: str, fed: Any) -> fs.Variable:
    """An input for what is fed, with symbols of its own for every size that may vary."""
    data = np.asarray(fed)
    lod = Lod(name, tuple(symbol(f"{name}.level{k}") for k in range(fed.lod_level))) if isinstance(fed, fs.LoDTensor) else None
    spec = Spec(LOD_TENSOR, FP64 if data.dtype == np.float64 else FP32, (symbol(name), *data.shape[1:]), lod)
    return fs.default_main_program().global_block.create_variable(name, spec, need_check_feed=True)


def compute(build: Callable[..., fs.Variable], weight: Callable[[Any], np.ndarray] | None = None, **feed: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """What ``build`` gives for what is fed, and the gradients of sum(weight * that) by input. Run as described, read back from
    its file and from its text, and op by op: all the same."""
    with fs.program_guard(fs.Program()):
        inputs = {name: described(name, fed) for name, fed in feed.items()}
        out = build(**inputs)
        program, executor = fs.default_main_program(), fs.Executor()
        value = executor.run(program, feed, [out])[0]
        names = [out.name]
        if weight is not None:
            given = fs.default_main_program().global_block.create_variable("weight", out.spec.like(), need_check_feed=True)
            w = weight(value)
            feed = feed | {"weight": fs.LoDTensor(w, value.sequence_lengths) if isinstance(value, fs.LoDTensor) else w}
            names += [g.name for _, g in fs.append_backward(out, list(inputs), loss_gradient=given)]
        values = executor.run(program, feed, names)
        saved = program.to_bytes()
        for other in (fs.Program.from_bytes(saved), fs.Program.parse(str(program))):
            assert str(other) == str(program)
            same(values, executor.run(other, feed, names))
        fresh = fs.Program.from_bytes(saved)
        fresh.forget()
        fresh.infer()
        same(values, fs.Executor(check=True).run(fresh, feed, names))
        return values[0], {n.removesuffix("@GRAD"): np.asarray(v) for n, v in zip(names[1:], values[1:], strict=True)}


def same(first: list[Any], second: list[Any]) -> None:
    for a, b in zip(first, second, strict=True):
        assert lengths_of(a) == lengths_of(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-12, atol=1e-12)


def lengths_of(value: Any) -> Lengths | None:
    return value.sequence_lengths if isinstance(value, fs.LoDTensor) else None


def weights(value: Any) -> np.ndarray:
    return numbers(*np.shape(value), seed=5)


def close(seen: Any, expected: np.ndarray) -> None:
    assert np.shape(seen) == expected.shape
    np.testing.assert_allclose(np.asarray(seen), expected, rtol=1e-12, atol=1e-12)


# --- pooling


def pooled(x: np.ndarray, kind: str, pad: float) -> np.ndarray:
    if len(x) == 0:
        return np.full(x.shape[1:], pad)
    return {"sum": x.sum, "average": x.mean, "sqrt": lambda _: x.sum(0) / np.sqrt(len(x)), "max": x.max, "min": x.min,
            "first": lambda _: x[0], "last": lambda _: x[-1]}[kind](0)  # fmt: skip


def spread(x: np.ndarray, d: np.ndarray, kind: str) -> np.ndarray:
    """The gradient of one sequence's rows."""
    out = np.zeros_like(x)
    if len(x) == 0:
        return out
    if kind in ("first", "last"):
        out[0 if kind == "first" else -1] = d
    elif kind in ("max", "min"):
        at = (x.argmax if kind == "max" else x.argmin)(0)
        np.put_along_axis(out, at[None], d[None], 0)
    else:
        out[:] = d / {"sum": 1.0, "average": len(x), "sqrt": np.sqrt(len(x))}[kind]
    return out


@pytest.mark.quick_cases(one_in=4, turn=3)
@pytest.mark.parametrize("kind", ["sum", "average", "sqrt", "max", "min", "first", "last"])
@every_raggedness
def test_a_pooled_sequence_is_one_row_and_its_gradient_goes_back_to_its_rows(lengths: Lengths, kind: str) -> None:
    x = ragged(lengths, 3)
    out, grads = compute(lambda x: layer.sequence_pool(x, kind, pad_value=2.5), weights, x=x)
    assert lengths_of(out) == (lengths[:-1] or None)
    where = spans(lengths[-1])
    close(out, np.array([pooled(x.data[a:b], kind, 2.5) for a, b in where]).reshape(-1, 3))
    d = weights(out)
    close(grads["x"], np.concatenate([np.zeros((0, 3)), *(spread(x.data[a:b], d[k], kind) for k, (a, b) in enumerate(where))]))


@pytest.mark.parametrize("kind", ["sum", "max", "last"])
def test_pooling_twice_empties_both_levels(kind: str) -> None:
    lengths = [[2, 0, 3], [3, 1, 2, 0, 4]]
    x = ragged(lengths, 2)
    out, grads = compute(lambda x: layer.sequence_pool(layer.sequence_pool(x, kind), kind), weights, x=x)
    inner = np.array([pooled(x.data[a:b], kind, 0.0) for a, b in spans(lengths[1])])
    close(out, np.array([pooled(inner[a:b], kind, 0.0) for a, b in spans(lengths[0])]))
    d = weights(out)
    d_inner = np.concatenate([spread(inner[a:b], d[k], kind) for k, (a, b) in enumerate(spans(lengths[0]))])
    close(grads["x"], np.concatenate([spread(x.data[a:b], d_inner[k], kind) for k, (a, b) in enumerate(spans(lengths[1]))]))


def test_the_place_of_a_maximum_is_the_first_of_equal_rows_and_none_of_an_empty_sequence() -> None:
    data = np.array([[1, 5], [1, 7], [0, 7], [3, 3], [3, 4]], "float32")
    x = layer.data("x", [-1, 2], lod_level=1)
    out, index = fs.default_main_program().global_block.apply("sequence_pool", {"X": x}, {"pooltype": "MAX"})
    feed = {"x": fs.LoDTensor(data, [[3, 0, 2]])}
    seen = fs.Executor().run(fs.default_main_program(), feed, [out, index])
    assert seen[0].tolist() == [[1, 7], [0, 0], [3, 4]]
    assert seen[1].tolist() == [[0, 1], [-1, -1], [3, 4]]
    assert index.lod_level == 0 and index.packed_dims == [-1, 2]
    with pytest.raises(SchemaError, match="MaxIndex"):
        fs.append_backward(layer.reduce_sum(index), [x])


@pytest.mark.parametrize("kind", ["max", "min"])
def test_a_nan_is_the_extreme_and_its_gradient_goes_to_one_row(kind: str) -> None:
    x = layer.data("x", [-1, 1], lod_level=1, stop_gradient=False)
    out = layer.sequence_pool(x, kind)
    ((_, gradient),) = fs.append_backward(layer.reduce_sum(out), [x])
    fed = fs.LoDTensor(np.array([[1], [np.nan], [2], [4]], "float32"), [[3, 1]])
    value, d = fs.Executor().run(fs.default_main_program(), {"x": fed}, [out, gradient])
    assert np.isnan(value[0, 0]) and value[1, 0] == 4
    assert np.asarray(d).tolist() == [[1], [0], [0], [1]]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("kind", ["sum", "average", "sqrt", "max", "min", "first", "last"])
def test_every_element_type_is_pooled(kind: str, dtype: str) -> None:
    lengths = [3, 0, 2]
    x = layer.data("x", [-1, 2], "fp32", lod_level=1)
    out = layer.cast(layer.sequence_pool(layer.cast(x, dtype), kind), "fp32")
    data = np.random.RandomState(2).randint(-8, 8, (5, 2)).astype("float32")
    value = fs.Executor().run(fs.default_main_program(), {"x": fs.LoDTensor(data, [lengths])}, [out])[0]
    expected = np.array([pooled(data[a:b], kind, 0.0) for a, b in spans(lengths)])
    np.testing.assert_allclose(value, expected, rtol=1e-2 if dtype == "bf16" else 2e-3)


def test_sizes_are_known_after_pooling_and_a_label_is_proved() -> None:
    words = layer.data("words", [-1, 8], lod_level=1)
    label = layer.data("label", [-1, 1], "int64")
    out = layer.sequence_pool(words, "sum")
    assert out.shape == [symbol("batch"), 8] and out.lod_level == 0
    layer.cross_entropy(layer.fc(out, 4, "softmax"), label)
    assert not list(fs.default_main_program().guards)
    nested = layer.data("nested", [-1, 8], lod_level=2)
    assert layer.sequence_last_step(nested).lod_level == 1 and layer.sequence_first_step(nested).packed_shape == [symbol("nested.level1"), 8]


def test_what_is_not_ragged_or_no_pooling_is_refused() -> None:
    with pytest.raises(TypeMismatchError, match="X must be ragged"):
        layer.sequence_pool(layer.data("x", [-1, 8]))
    with pytest.raises(SchemaError, match="pooltype must be one of"):
        layer.sequence_pool(layer.data("y", [-1, 8], lod_level=1), "median")


# --- softmax


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("row", [(), (1,)])
@every_raggedness
def test_a_softmax_sums_to_one_over_each_sequence(lengths: Lengths, row: tuple[int, ...]) -> None:
    x = ragged(lengths, *row)
    x.data[:2] *= 300.0  # past the largest exp
    out, grads = compute(layer_softmax, weights, x=x)
    assert lengths_of(out) == lengths
    expected, d_x, d = np.zeros_like(x.data), np.zeros_like(x.data), weights(out)
    for a, b in spans(lengths[-1]):
        if a < b:
            e = np.exp(x.data[a:b] - x.data[a:b].max())
            expected[a:b] = y = e / e.sum()
            d_x[a:b] = y * (d[a:b] - (y * d[a:b]).sum())
    close(out, expected)
    close(grads["x"], d_x)


def layer_softmax(x: fs.Variable) -> fs.Variable:
    return layer.sequence_softmax(x)


# --- convolution


CONTEXTS = [(3, -1), (1, 0), (2, 1), (4, -2), (6, -3), (2, -4), (2, 3)]


@pytest.mark.quick_cases(one_in=4, turn=2)
@pytest.mark.parametrize("trained", [False, True], ids=["zeros outside", "rows outside"])
@pytest.mark.parametrize(("length", "start"), CONTEXTS)
@every_raggedness
def test_a_row_is_multiplied_with_its_neighbours(lengths: Lengths, length: int, start: int, trained: bool) -> None:
    x, w = ragged(lengths, 2), numbers(length * 2, 3)
    before, after = max(0, -start), max(0, start + length - 1)
    p = numbers(before + after, 2, seed=9) if trained else np.zeros((before + after, 2))

    def build(x: fs.Variable, w: fs.Variable, p: fs.Variable) -> fs.Variable:
        attrs = {"contextLength": length, "contextStart": start, "paddingTrainable": trained}
        return fs.default_main_program().global_block.apply("sequence_conv", {"X": x, "PaddingData": p, "Filter": w}, attrs)

    with fs.program_guard(fs.Program()):  # the numbers of rows of w and p are fixed
        inputs = {n: layer.data(n, list(v.shape), "fp64") for n, v in (("w", w), ("p", p))}
        x_in = described("x", x)
        out = build(x_in, **inputs)
        value = fs.Executor().run(fs.default_main_program(), {"x": x, "w": w, "p": p}, [out])[0]
        given = fs.default_main_program().global_block.create_variable("d", out.spec.like(), need_check_feed=True)
        pairs = fs.append_backward(out, [x_in, *inputs.values()], loss_gradient=given)
        d = weights(value)
        feed = {"x": x, "w": w, "p": p, "d": fs.LoDTensor(d, lengths)}
        grads = {v.name: np.asarray(g) for (v, _), g in zip(pairs, fs.Executor().run(fs.default_main_program(), feed, [g for _, g in pairs]), strict=True)}
    expected, d_x, d_w, d_p = np.zeros((len(x.data), 3)), np.zeros_like(x.data), np.zeros_like(w), np.zeros_like(p)
    for a, b in spans(lengths[-1]):
        for row in range(a, b):
            for k in range(length):
                at, part = row - a + start + k, slice(2 * k, 2 * k + 2)
                if 0 <= at < b - a:
                    neighbour, gradient = x.data[a + at], d_x[a + at]
                else:
                    place = before + (at if at < 0 else at - (b - a))
                    neighbour, gradient = p[place], d_p[place]
                expected[row] += neighbour @ w[part]
                gradient += w[part] @ d[row]
                d_w[part] += np.outer(neighbour, d[row])
    assert lengths_of(value) == lengths
    close(value, expected)
    close(grads["x"], d_x)
    close(grads["w"], d_w)
    close(grads["p"], d_p if trained else np.zeros_like(p))


def test_the_layer_makes_parameters_bias_and_activation() -> None:
    x = layer.data("x", [-1, 8], lod_level=2)
    out = layer.sequence_conv(x, 16, 3, activation="relu", name="context")
    assert out.packed_shape == [symbol("x"), 16] and out.lod_level == 2
    block = fs.default_main_program().global_block
    assert {n: v.packed_dims for n, v in block.vars.items() if v.is_parameter} == {"context.w_0": [24, 16], "context.b_0": [16]}
    assert [op.type for op in block.ops] == ["sequence_conv", "elementwise_add", "relu"]
    assert block.ops[0].attrs["contextStart"] == -1
    layer.sequence_conv(x, 4, 4, 1, trainable_padding=True, bias=False, name="after")
    assert block.var("after.w_1").packed_dims == [4, 8] and block.ops[-1].attrs["paddingTrainable"] is True
    with pytest.raises(SchemaError, match="kernel_size must be at least 1"):
        layer.sequence_conv(x, 4, 0)
    with pytest.raises(ShapeError, match="known width"):
        layer.sequence_conv(layer.data("y", [-1, -1], lod_level=1), 4)


# --- repetitions


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(
    ("lengths", "level"),
    [pytest.param(of, level, id=f"{name}-{level}") for name, of in LEVELS.items() for level in (-1, 0, 1) if level < len(of)],
)
def test_dense_rows_are_repeated_after_the_parts_of_a_level(lengths: Lengths, level: int) -> None:
    times = lengths[level]
    x, y = numbers(len(times), 2), ragged(lengths, 1)
    out, grads = compute(lambda x, y: layer.sequence_expand(x, y, level), weights, x=x, y=y)
    assert lengths_of(out) is None and "y" not in grads
    close(out, np.repeat(x, times, 0))
    d = weights(out)
    close(grads["x"], np.array([d[a:b].sum(0) for a, b in spans(times)]).reshape(-1, 2))


@pytest.mark.parametrize(("of_x", "of_y", "level"), [
    ([2, 2], [[2, 2], [3, 3, 1, 1]], 0), ([1, 0, 3], [[1, 3, 2]], -1), ([1, 0, 3], [[1, 0, 2]], 0), ([4, 2, 1], [[2, 1], [0, 3, 1]], 1),
    ([2, 3], [[2], [0, 2], [4, 1]], 1), ([], [[]], -1), ([1, 2], [[0, 0]], -1), ([0, 0], [[2, 3]], -1),
])  # fmt: skip
def test_sequences_are_repeated_one_after_the_other(of_x: list[int], of_y: Lengths, level: int) -> None:
    x, y = ragged([of_x], 2), ragged(of_y, 1)
    out, grads = compute(lambda x, y: layer.sequence_expand(x, y, level), weights, x=x, y=y)
    times = of_y[level]
    assert lengths_of(out) == [[n for n, t in zip(of_x, times, strict=True) for _ in range(t)]]
    places = [r for (a, b), t in zip(spans(of_x), times, strict=True) for _ in range(t) for r in range(a, b)]
    close(out, x.data[places])
    d_x = np.zeros_like(x.data)
    for place, row in zip(places, weights(out), strict=True):
        d_x[place] += row
    close(grads["x"], d_x)


@every_raggedness
def test_a_row_for_each_row_of_a_sequence(lengths: Lengths) -> None:
    x, y = numbers(len(lengths[-1]), 4), ragged(lengths, 1)
    out, grads = compute(lambda x, y: layer.sequence_expand_as(x, y), weights, x=x, y=y)
    assert lengths_of(out) == lengths
    close(out, np.repeat(x, lengths[-1], 0))
    d = weights(out)
    close(grads["x"], np.array([d[a:b].sum(0) for a, b in spans(lengths[-1])]).reshape(-1, 4))


def test_what_was_expanded_as_words_is_pooled_as_words() -> None:
    """What shares offsets is known to: nothing is left to be checked when values are fed."""
    words = layer.data("words", [-1, 8], lod_level=2)
    means = layer.sequence_pool(words, "average")
    centred = words - layer.sequence_expand_as(means, words)
    assert centred.spec is words.spec and not list(fs.default_main_program().guards)
    assert layer.sequence_expand(means, words).packed_shape == words.packed_shape or means.lod_level == 1


# --- joined and turned round


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("lengths", [
    [[[4, 0, 2]], [[0, 3, 2]]], [[[4, 0, 2]], [[0, 3, 2]], [[1, 1, 0]]], [[[3]]], [[[]], [[]]], [[[0]], [[0]]],
    [[[2, 1], [3, 0, 4]], [[0, 2], [1, 3]]], [[[1, 1], [2, 0], [1, 2]], [[0, 1], [3], [4, 0, 1]]], [[[], []], [[], []]],
])  # fmt: skip
def test_sequences_are_joined_first_with_first(lengths: list[Lengths]) -> None:
    fed = {f"x{k}": ragged(of, 2, seed=k) for k, of in enumerate(lengths)}
    out, grads = compute(lambda **xs: layer.sequence_concat(list(xs.values())), weights, **fed)
    rows, d, at = [], weights(out), 0
    expected: dict[str, np.ndarray] = {n: np.zeros_like(x.data) for n, x in fed.items()}
    joined: Lengths = [[] for _ in lengths[0]]
    for i in range(len(lengths[0][0])):
        joined[0].append(sum(of[0][i] for of in lengths))
        for (name, x), of in zip(fed.items(), lengths, strict=True):
            a, b = outer_spans(of, 0)[i]
            rows.append(x.data[a:b])
            expected[name][a:b] = d[at : at + b - a]
            at += b - a
            parts = spans(of[0])[i]
            for level in range(1, len(of)):
                joined[level] += of[level][slice(*parts)]
                parts = tuple(np.cumsum([0, *of[level]])[list(parts)].tolist())
    assert lengths_of(out) == joined
    close(out, np.concatenate([np.zeros((0, 2)), *rows]))
    for name, gradient in expected.items():
        close(grads[name], gradient)


def test_a_value_is_joined_with_itself() -> None:
    x = ragged([[2, 0, 1]], 2)
    out, grads = compute(lambda x: layer.sequence_concat([x, x]), weights, x=x)
    assert lengths_of(out) == [[4, 0, 2]]
    close(out, x.data[[0, 1, 0, 1, 2, 2]])
    d = weights(out)
    close(grads["x"], np.array([d[0] + d[2], d[1] + d[3], d[4] + d[5]]))


@every_raggedness
def test_a_sequence_is_turned_round(lengths: Lengths) -> None:
    x = ragged(lengths, 2)
    out, grads = compute(lambda x: layer.sequence_reverse(x), weights, x=x)
    order = [r for a, b in spans(lengths[-1]) for r in reversed(range(a, b))]
    assert lengths_of(out) == lengths
    close(out, x.data[order])
    close(grads["x"], weights(out)[order])


def test_new_offsets_are_used_by_what_comes_after() -> None:
    """Joined sequences are repeated, weighed and pooled by the offsets that joining and repeating made."""
    x, y = ragged([[2, 0, 1]], 2), ragged([[1, 2, 0]], 2, seed=3)

    def build(x: fs.Variable, y: fs.Variable) -> fs.Variable:
        again = layer.sequence_expand(layer.sequence_concat([x, y]), y)
        share = layer.sequence_softmax(layer.reduce_sum(again * 0.0, 1, keepdim=True))
        return layer.sequence_pool(again * share, "sum")

    out, grads = compute(build, weights, x=x, y=y)
    means = np.array([np.stack([*x.data[0:2], y.data[0]]).mean(0), y.data[1:3].mean(0), x.data[2]])
    close(out, np.repeat(means, [1, 2, 0], 0))
    d = weights(out)
    close(grads["x"], np.array([d[0] / 3, d[0] / 3, [0, 0]]))
    close(grads["y"], np.array([d[0] / 3, (d[1] + d[2]) / 2, (d[1] + d[2]) / 2]))


def test_a_wrong_number_of_sequences_that_follows_from_others_is_refused() -> None:
    x, y = described("x", ragged([[1], [2]], 2)), described("y", ragged([[1], [2]], 2))
    out = layer.sequence_concat([x, y])
    again = fs.default_main_program().global_block.create_variable("again", out.spec.like(), need_check_feed=True)
    total = layer.sequence_pool(out, "sum") + layer.sequence_pool(again, "sum")
    feed = {"x": ragged([[1], [2]], 2), "y": ragged([[2], [1, 2]], 2), "again": ragged([[2], [2, 3]], 2)}
    with pytest.raises(fs.FeedError, match=r"the number of sequences of level 1 must be x\.level1 \+ y\.level1 = 3; fed is 2"):
        fs.Executor().run(fs.default_main_program(), feed, [total])
