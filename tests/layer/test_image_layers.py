"""Layers that take images apart and read them at places: their dims, also of images of open sizes, and their numbers beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import foreshape as fs
import foreshape.language.wire  # the codec
from foreshape import layer
from foreshape.core.dims import symbol
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program import Program, program_guard
from foreshape.optimizer import SGD
from foreshape.runtime.engine import Executor, Scope

X = np.random.RandomState(0).standard_normal((2, 4, 6, 8)).astype("float32")
ROW = np.random.RandomState(1).standard_normal((2, 4, 9)).astype("float32")
VOLUME = np.random.RandomState(2).standard_normal((2, 3, 4, 5, 6)).astype("float32")


def computed(describe: Callable[[Any], Any], x: np.ndarray, **more: np.ndarray) -> tuple[list[np.ndarray], Scope]:
    """What a layer gives of ``x``; ``more`` are further inputs, by the names that the layer's description takes."""
    main, startup = Program(), Program()
    with program_guard(main, startup):
        inputs = {n: layer.data(n, shape=list(a.shape), dtype=str(a.dtype)) for n, a in more.items()}
        out = describe(layer.data("x", shape=list(x.shape)), **inputs)
    executor, scope = Executor(seed=1), Scope()
    executor.run(startup, scope=scope)
    fetch = list(out) if isinstance(out, tuple) else [out]
    return [np.asarray(v) for v in executor.run(main, {"x": x, **more}, fetch, scope)], scope


def assert_as_torch(describe: Callable[[Any], Any], function: Callable[[torch.Tensor], torch.Tensor], x: np.ndarray = X) -> None:
    (seen,), _ = computed(describe, x)
    want = function(torch.from_numpy(x)).numpy()
    assert seen.shape == want.shape
    np.testing.assert_allclose(seen, want, rtol=1e-5, atol=1e-5)


def test_images_are_taken_apart_and_put_together() -> None:
    assert_as_torch(lambda x: layer.unfold(x, (2, 3), 2, 1, (1, 2)), lambda x: F.unfold(x, (2, 3), (1, 2), 1, 2))
    columns = F.unfold(torch.from_numpy(X), 3, padding=1).numpy()
    assert_as_torch(lambda x: layer.fold(x, (6, 8), 3, padding=1), lambda x: F.fold(x, (6, 8), 3, padding=1), columns)
    assert_as_torch(lambda x: layer.pixel_unshuffle(x, 2), lambda x: F.pixel_unshuffle(x, 2))
    assert_as_torch(lambda x: layer.channel_shuffle(x, 2), lambda x: F.channel_shuffle(x, 2))
    assert_as_torch(lambda x: layer.maxout(x, 2), lambda x: torch.maximum(x[:, ::2], x[:, 1::2]))
    assert_as_torch(lambda x: layer.lrn(x, 3, 1.0, 0.1), lambda x: F.local_response_norm(x, 3, 0.3))
    with program_guard(Program(), Program()):
        rows = layer.im2sequence(layer.data("x", shape=["batch", 3, 6, 8]), (6, 2), 2)
        assert rows.lod_level == 1 and rows.packed_shape == [4 * symbol("batch"), 36]


@pytest.mark.parametrize(("mode", "x", "size"), [
    ("nearest", X, (9, 5)), ("bilinear", X, (9, 5)), ("bicubic", X, (9, 5)), ("linear", ROW, (4,)), ("trilinear", VOLUME, (3, 7, 9)),
    ("nearest", VOLUME, (3, 7, 9)),
])  # fmt: skip
def test_images_rows_and_volumes_get_other_sizes(mode: str, x: np.ndarray, size: tuple[int, ...]) -> None:
    corners: Any = None if mode == "nearest" else False
    assert_as_torch(lambda v: layer.interpolate(v, size, mode=mode), lambda v: F.interpolate(v, size, mode=mode, align_corners=corners), x)
    with program_guard(Program(), Program()):
        names = ["batch", 3, "depth", "height", "width"]
        open_sizes = layer.data("x", shape=[*names[:2], *names[2 + 3 - len(size) :]])
        twice = layer.interpolate(open_sizes, scale=2, mode=mode).shape
        assert twice[2:] == [2 * symbol(str(n)) for n in names[2 + 3 - len(size) :]]


def test_a_size_that_is_no_interpolation_of_these_dims_is_refused() -> None:
    with program_guard(Program(), Program()):
        x = layer.data("x", shape=["batch", 3, 6, 8])
        with pytest.raises(ShapeError, match="'trilinear' takes 5 dims"):
            layer.interpolate(x, (1, 2, 3), mode="trilinear")
        with pytest.raises(SchemaError, match="mode must be one of"):
            layer.interpolate(x, (1, 2), mode="area")
        with pytest.raises(SchemaError, match="size must have 2 numbers"):
            layer.interpolate(x, (1, 2, 3), mode="bilinear")
        with pytest.raises(SchemaError, match="takes one of output_size and scale"):
            layer.interpolate(x, (1, 2), scale=2)
        with pytest.raises(SchemaError, match="padding must be one number, two"):
            layer.unfold(x, 2, padding=(1, 2, 3))
        with pytest.raises(ShapeError, match="without output_size the sizes"):
            layer.max_unpool2d(layer.data("y", shape=["batch", 3, "height", 4]), layer.data("i", shape=["batch", 3, "height", 4], dtype="int32"), 2)


def test_images_are_read_at_the_points_of_an_affine_map() -> None:
    theta = np.random.RandomState(3).standard_normal((2, 2, 3)).astype("float32")
    for corners in (True, False):

        def read(x: Any, theta: Any, corners: bool = corners) -> Any:
            return layer.grid_sample(x, layer.affine_grid(theta, (2, 4, 5, 7), corners), "bilinear", "border", corners)

        (seen,), _ = computed(read, X, theta=theta)
        grid = F.affine_grid(torch.from_numpy(theta), [2, 4, 5, 7], align_corners=corners)
        want = F.grid_sample(torch.from_numpy(X), grid, "bilinear", "border", align_corners=corners).numpy()
        np.testing.assert_allclose(seen, want, rtol=1e-4, atol=1e-5)


def test_maxima_are_put_back_where_they_were() -> None:
    def there_and_back(x: Any) -> Any:
        return layer.max_unpool2d(*layer.max_pool2d_with_index(x, 2), 2)

    assert_as_torch(there_and_back, lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2))


def test_regions_of_images_are_pooled() -> None:
    boxes = np.array([[0, 0, 4, 4], [1, 1, 6, 3], [2, 0, 7, 5]], "float32")
    counts = np.array([1, 2], "int32")
    for pool in (layer.roi_align, layer.roi_pool):
        (seen,), _ = computed(lambda x, boxes, counts, p=pool: p(x, boxes, counts, (2, 3)), X, boxes=boxes, counts=counts)
        assert seen.shape == (3, 4, 2, 3)
    (whole,), _ = computed(lambda x, boxes, counts: layer.roi_pool(x, boxes, counts, 1), X, boxes=boxes, counts=counts)
    np.testing.assert_array_equal(whole[1, :, 0, 0], X[1, :, 1:4, 1:7].max((1, 2)))
    (own,), _ = computed(lambda x, boxes, counts: layer.psroi_pool(x, boxes, counts, (1, 2)), X, boxes=boxes, counts=counts)
    assert own.shape == (3, 2, 1, 2)
    with program_guard(Program(), Program()), pytest.raises(ShapeError, match="must be divisible by the 3 times 3"):
        layer.psroi_pool(layer.data("x", shape=[2, 4, 6, 8]), layer.data("b", shape=[3, 4]), None, 3)


def test_a_deformable_convolution_without_offsets_is_a_convolution() -> None:
    offset, mask = np.zeros((2, 18, 6, 8), "float32"), np.full((2, 9, 6, 8), 0.5, "float32")

    def both(x: Any, offset: Any, mask: Any) -> Any:
        return layer.deform_conv2d(x, offset, None, 5, 3, padding=1, name="plain"), layer.deform_conv2d(x, offset, mask, 5, 3, padding=1, name="masked")

    (plain, masked), scope = computed(both, X, offset=offset, mask=mask)
    w = {n: torch.from_numpy(np.asarray(scope.get(f"{n}.w_0"))) for n in ("plain", "masked")}
    np.testing.assert_allclose(plain, F.conv2d(torch.from_numpy(X), w["plain"], padding=1).numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(masked, 0.5 * F.conv2d(torch.from_numpy(X), w["masked"], padding=1).numpy(), rtol=1e-4, atol=1e-5)


def test_convolutions_of_rows_and_volumes() -> None:
    (row,), scope = computed(lambda x: layer.conv1d(x, 6, 3, 2, 1, groups=2, name="row"), ROW)
    want = F.conv1d(torch.from_numpy(ROW), torch.from_numpy(np.asarray(scope.get("row.w_0"))), stride=2, padding=1, groups=2).numpy()
    np.testing.assert_allclose(row, want, rtol=1e-4, atol=1e-5)
    (made, back, pooled), scope = computed(
        lambda x: (layer.conv3d(x, 4, (2, 3, 3), padding=1, name="there"), layer.conv3d_transpose(x, 2, 2, stride=2, name="back"), layer.pool3d(x, 2)), VOLUME
    )
    of = {n: torch.from_numpy(np.asarray(scope.get(f"{n}.w_0"))) for n in ("there", "back")}
    np.testing.assert_allclose(made, F.conv3d(torch.from_numpy(VOLUME), of["there"], padding=1).numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(back, F.conv_transpose3d(torch.from_numpy(VOLUME), of["back"], stride=2).numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(pooled, F.max_pool3d(torch.from_numpy(VOLUME), 2).numpy())
    with program_guard(Program(), Program()):
        last = layer.conv1d(layer.data("x", shape=["batch", "time", 4]), 6, 3, padding="SAME", data_format="NLC")
        assert last.shape == [symbol("batch"), symbol("time"), 6]
        volume = layer.conv3d(layer.data("v", shape=["batch", "depth", 5, 6, 3]), 4, 3, stride=2, padding="SAME", data_format="NDHWC")
        assert volume.shape == [symbol("batch"), (symbol("depth") + 1) // 2, 3, 3, 4]
        with pytest.raises(ShapeError, match="groups must divide"):
            layer.conv1d(layer.data("y", shape=["batch", 4, 9]), 6, 3, groups=4)


def test_a_weight_with_a_spectral_norm_is_trained_and_its_vectors_are_not() -> None:
    main, startup = Program(), Program()
    with program_guard(main, startup):
        weight = layer.create_parameter((4, 3), foreshape.core.spec.FP32, prefix="w")
        normed = layer.spectral_norm(weight, power_iters=30)
        pairs = SGD(0.1).minimize(layer.mean(layer.matmul(layer.data("x", shape=["batch", 4]), normed)))
    assert [p.name for p in main.parameters() if p.trainable] == [weight.name]
    del pairs
    executor, scope = Executor(seed=1), Scope()
    executor.run(startup, scope=scope)
    before = {n: np.asarray(scope.get(n)) for n in scope.names() if n != weight.name}
    (value,) = executor.run(main, {"x": np.ones((2, 4), "float32")}, [normed], scope)
    np.testing.assert_allclose(np.linalg.svd(value)[1][0], 1.0, rtol=1e-4)
    assert all(np.array_equal(before[n], scope.get(n)) for n in before)


@pytest.mark.parametrize(("points", "limit", "error"), [(2**31 - 1, None, fs.ExecutionError), (2**24, "512 MiB", fs.MemoryPlanError)])
def test_regions_are_not_read_at_more_points_than_the_run_has_room_for(points: int, limit: str | None, error: type[fs.ForeshapeError]) -> None:
    images, boxes = layer.data("images", shape=[1, 1, 4, 4]), layer.data("boxes", shape=[1, 4])
    counts = layer.data("counts", shape=[1], dtype="int32")
    out = layer.roi_align(images, boxes, counts, 1, sampling_ratio=points)
    feed = {"images": np.ones((1, 1, 4, 4), "float32"), "boxes": np.array([[0, 0, 3, 3]], "float32"), "counts": np.array([1], "int32")}
    with pytest.raises(error, match=r"too many points|points each way"):
        fs.Executor(memory_limit=limit).run(feed=feed, fetch=out, scope=fs.Scope())
