"""Layers that move and pick elements: what stays known of sizes, and what the kernels make of them."""

from __future__ import annotations

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.dims import Size, evaluate, symbol
from foreshape.core.values.rows import Rows
from foreshape.errors import ExecutionError, GuardError, ShapeError
from foreshape.language.ops.tensor.slicing import OPEN, backward_length, length
from foreshape.language.program import Program
from foreshape.transforms.backward import append_backward

BATCH = symbol("batch")


def run(feed: dict[str, np.ndarray], *fetch: object) -> list[np.ndarray]:
    return fs.Executor().run(fs.default_main_program(), feed, list(fetch))


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


def test_sizes_stay_known_from_shape_through_slice_to_reshape_and_fill() -> None:
    x = layer.data("x", [-1, 3, 4])
    size = layer.shape(x)
    assert size.spec.value == (BATCH, 3, 4)
    first = size[0]
    assert first.spec.dims == () and first.spec.value == (BATCH,)
    assert layer.reshape(x, [first, -1]).spec.dims == (BATCH, 12)
    assert layer.reshape(x, layer.concat([size[0:1], size[2:], size[1:2]])).spec.dims == (BATCH, 4, 3)
    assert layer.fill_constant([first, 2], "fp32", 1.0).spec.dims == (BATCH, 2)
    assert layer.expand(layer.reduce_sum(x, 1, keepdim=True), [first, 3, 4]).spec.dims == (BATCH, 3, 4)


def test_a_reshape_divides_what_is_left_or_leaves_a_guard() -> None:
    x = layer.data("x", [-1, 6])
    assert layer.reshape(x, [-1, 2]).spec.dims == (BATCH * 3, 2)
    y = layer.reshape(x, [-1, 4])
    assert y.spec.dims == (6 * BATCH // 4, 4)
    assert run({"x": numbers(2, 6)}, y)[0].shape == (3, 4)
    with pytest.raises(GuardError, match="must divide"):
        run({"x": numbers(3, 6)}, y)


def test_a_batch_of_nothing_is_reshaped_as_described() -> None:
    x = layer.data("x", [-1, 3, 4])
    y = layer.reshape(x, [0, -1])
    assert run({"x": numbers(0, 3, 4)}, y)[0].shape == (0, 12)


@pytest.mark.parametrize("stride", [1, -1])
def test_the_length_of_a_slice_is_that_of_python_for_every_size(stride: int) -> None:
    n = symbol("n")
    for start in (*range(-6, 7), OPEN):
        for end in (*range(-6, 7), OPEN):
            symbolic: Size | None = length(n, start, end) if stride > 0 else backward_length(n, start, end)
            assert symbolic is not None
            for size in range(6):
                if stride > 0:
                    want = len(range(size)[start:end])
                else:  # as PaddlePaddle: a start before the first entry is the first, an end of -1 is past it
                    first = start if start >= 0 else max(start + size, 0)
                    last = end if end >= -1 else max(end + size, 0)
                    want = len(range(min(first, size - 1), last, -1)) if size else 0
                assert evaluate(symbolic, {"n": size}) == want, (size, start, end)


def test_python_slices_are_numpys() -> None:
    x = layer.data("x", [-1, 5, 4])
    value = numbers(3, 5, 4)
    pairs = [
        (x[1:], value[1:]),
        (x[:, -2:, 1], value[:, -2:, 1]),
        (x[..., ::-1], value[..., ::-1]),
        (x[:, 3:0:-2], value[:, 3:0:-2]),
        (x[:, ::-2], value[:, ::-2]),
        (x[:, 3:-1:-1], value[:, 3:-1:-1]),
        (x[-1], value[-1]),
        (x[:, 1:-1:2], value[:, 1:-1:2]),
    ]
    for got, (variable, want) in zip(run({"x": value}, *[p[0] for p in pairs]), pairs, strict=True):
        np.testing.assert_array_equal(got, want)
        assert len(variable.spec.known_dims) == want.ndim


def test_an_index_past_a_batch_is_a_guard() -> None:
    x = layer.data("x", [-1, 2])
    third = x[2]
    assert run({"x": numbers(3, 2)}, third)[0].tolist() == [4.0, 5.0]
    with pytest.raises(GuardError, match="index 2 must be in the axis 0"):
        run({"x": numbers(2, 2)}, third)


def test_a_dim_that_a_squeeze_drops_must_be_one_when_it_is_fed() -> None:
    x = layer.data("x", ["rows", "columns"])
    y = layer.squeeze(x, [1])
    assert run({"x": numbers(3, 1)}, y)[0].shape == (3,)
    with pytest.raises(GuardError, match="which is squeezed, must be 1"):
        run({"x": numbers(3, 2)}, y)


@pytest.mark.parametrize("bad", [-1, 3])
def test_an_index_out_of_range_stops_the_run(bad: int) -> None:
    x = layer.data("x", [3, 2])
    index = layer.data("index", [2], dtype="int64")
    picked = [layer.gather(x, index), layer.gather(x, index, axis=0), layer.scatter(x, index, x[:2]), layer.one_hot(index, 3)]
    for y in picked:
        with pytest.raises(ExecutionError, match="must be in"):
            run({"x": numbers(3, 2), "index": np.array([0, bad])}, y)


def test_a_symbol_that_is_not_the_dim_in_its_place_is_refused() -> None:
    x = layer.data("x", [-1, 4])
    assert layer.reshape(x, [x.shape[0], 2, 2]).spec.dims == (BATCH, 2, 2)
    with pytest.raises(ShapeError, match="is not a number"):
        layer.reshape(x, [4, x.shape[0]])


def test_how_many_are_selected_is_a_size_of_its_own() -> None:
    x = layer.data("x", [-1, 4])
    mask = layer.data("mask", [-1, 4], dtype="bool")
    a, b = layer.masked_select(x, mask), layer.masked_select(x, mask)
    assert a.spec.dims != b.spec.dims
    got = run({"x": numbers(2, 4), "mask": numbers(2, 4) % 3 == 0}, a)[0]
    assert got.tolist() == [0.0, 3.0, 6.0]


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_borders_are_numpys(mode: str, channels_last: bool) -> None:
    x = layer.data("x", [-1, 3, 4, 5])
    y = layer.pad(x, [1, 2, 2, 0], mode=mode, data_format="NHWC" if channels_last else "NCHW")
    widths = [(0, 0), (2, 0), (1, 2), (0, 0)] if channels_last else [(0, 0), (0, 0), (2, 0), (1, 2)]
    value = numbers(2, 3, 4, 5)
    want = np.pad(value, widths, mode={"replicate": "edge", "circular": "wrap"}.get(mode, mode))  # pyright: ignore[reportArgumentType, reportCallIssue]
    np.testing.assert_array_equal(run({"x": value}, y)[0], want)


def test_points_that_do_not_align_are_interpolated_from_the_first() -> None:
    x = layer.data("x", [1, 1, 1, 4])
    y = layer.interpolate(x, output_size=[1, 8], mode="bilinear", align_mode=1)
    want = [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]  # half a pixel apart, none past the last
    assert run({"x": numbers(1, 1, 1, 4)}, y)[0].reshape(-1).tolist() == want
    z = layer.interpolate(x, output_size=[1, 3], mode="nearest", align_corners=True)
    assert run({"x": numbers(1, 1, 1, 4)}, z)[0].reshape(-1).tolist() == [0.0, 2.0, 3.0]


def test_a_product_of_zeros_has_the_gradient_of_the_others() -> None:
    x = layer.data("x", [3])
    out = layer.reduce_prod(x)
    x.stop_gradient = False
    gradient = append_backward(out, [x])[0][1]
    assert run({"x": np.array([2, 0, 5], "float32")}, gradient)[0].tolist() == [0.0, 10.0, 0.0]


def test_a_part_that_nobody_uses_has_the_gradient_zero() -> None:
    x = layer.data("x", [5])
    x.stop_gradient = False
    _, last = layer.split(x, [2, -1])
    gradient = append_backward(layer.reduce_sum(last), [x])[0][1]
    assert run({"x": numbers(5)}, gradient)[0].tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]


def test_what_was_saved_for_inference_without_the_shape_of_before_can_be_trained() -> None:
    x = layer.data("x", [-1, 2, 3])
    w = layer.fc(layer.reshape(x, [0, 6]), 4)
    out = layer.mean(layer.transpose(layer.reshape(w, [0, 2, 2]), [1, 0, 2]))
    program = Program.from_bytes(fs.default_main_program().to_bytes())
    for op in program.global_block.ops:
        if "XShape" in op.outputs:
            del op.output_slots["XShape"]  # as a saved program for inference lacks it
    pairs = append_backward(program.var(out.name))
    assert [g.dims for _, g in pairs] == [[6, 4], [4]]


def test_norms_of_sparse_rows_count_repeated_ids_once() -> None:
    import torch

    from foreshape.language.ops.math.norms import ClipByNorm, SquaredL2Norm

    rows = Rows(torch.tensor([4, 1, 4]), torch.tensor([[1.0], [2.0], [3.0]]), 6)
    squared = SquaredL2Norm.with_values({})
    assert squared.kernel(rows).tolist() == [20.0]  # type: ignore[attr-defined]
    clipped = ClipByNorm.with_values({"max_norm": 1.0}).kernel(rows)  # type: ignore[attr-defined]
    assert clipped.rows.tolist() == [1, 4]
    np.testing.assert_allclose(np.asarray(clipped.values).reshape(-1), np.array([2, 4]) / 20**0.5, rtol=1e-6)


def test_bounds_of_numbers_in_a_row_may_be_sizes() -> None:
    x = layer.data("x", ["batch", "time"])
    width = layer.shape(x)[1]  # int32
    out = [layer.range(0, width), layer.range(width, 0, -1, dtype="int32"), layer.linspace(0, width, 3)]
    assert out[0].spec.text() == "i64[time]"
    found = fs.Executor().run(fs.default_main_program(), {"x": np.zeros((1, 4), "float32")}, out, fs.Scope())
    assert [v.tolist() for v in found] == [[0, 1, 2, 3], [4, 3, 2, 1], [0, 2, 4]]


def test_random_numbers_of_another_variable_s_shape() -> None:
    x = layer.data("x", ["batch", "time", 3])
    flat = layer.reshape(x, [-1, 3])
    out = [layer.gaussian_random(x.shape), layer.gaussian_random(flat.shape), layer.uniform_random([x.shape[0], 2])]
    assert [v.spec.text() for v in out] == ["f32[batch, time, 3]", "f32[batch*time, 3]", "f32[batch, 2]"]
    found = fs.Executor().run(fs.default_main_program(), {"x": np.zeros((2, 5, 3), "float32")}, out, fs.Scope())
    assert [v.shape for v in found] == [(2, 5, 3), (10, 3), (2, 2)]
    with fs.program(), pytest.raises(fs.ShapeError, match=r"no variable has the size batch\*time, so that nothing tells it in a run"):
        layer.gaussian_random(flat.shape)
