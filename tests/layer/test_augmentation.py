"""Augmentation: each example in its own way, by the seed of the run, in training and never in a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.transforms.passes import for_test

RNG = np.random.default_rng(0)
IMAGES = RNG.random((32, 2, 6, 5), "float32") + 1.0  # nothing is 0
Make = Callable[[fs.Variable], fs.Variable]
LAYERS: dict[str, Make] = {
    "random_flip": layer.random_flip,
    "random_crop": lambda x: layer.random_crop(x, (6, 5), padding=1),
    "random_translation": lambda x: layer.random_translation(x, 1),
    "between pixels": lambda x: layer.random_translation(x, 0.2, 0.1, "border"),
    "random_rotation": lambda x: layer.random_rotation(x, 20),
    "random_zoom": lambda x: layer.random_zoom(x, 0.3),
    "random_affine": lambda x: layer.random_affine(x, 10, (0.9, 1.2), (0.1, 0.0), "reflection"),
    "gaussian_noise": lambda x: layer.gaussian_noise(x, 0.1),
    "random_brightness": lambda x: layer.random_brightness(x, 0.1),
    "random_contrast": lambda x: layer.random_contrast(x, 0.5),
    "cutout": lambda x: layer.cutout(x, 3),
    "mixup": lambda x: layer.mixup(x, layer.data("shares", 3))[0],
}


def image() -> fs.Variable:
    return layer.data("image", shape=["batch", 2, 6, 5])


def seen(out: fs.Variable, images: Any = IMAGES, seed: int = 0, **more: Any) -> Any:
    return fs.Executor(seed=seed).run(out.block.program, feed={"image": images, **more}, fetch=[out])[0]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", LAYERS)
def test_each_example_is_changed_by_the_seed_and_not_in_a_test(name: str) -> None:
    x = image()
    out = LAYERS[name](x)
    assert out.shape == x.shape and out.dtype is x.dtype and out.stop_gradient
    more = {"shares": np.eye(3, dtype="float32")[RNG.integers(3, size=32)]} if name == "mixup" else {}
    same = np.repeat(IMAGES[:1], 32, 0) if name != "mixup" else IMAGES
    once = seen(out, same, **more)
    assert np.array_equal(once, seen(out, same, **more)) and not np.array_equal(once, seen(out, same, seed=1, **more))
    assert not np.array_equal(once, same) and not all(np.array_equal(row, once[0]) for row in once)  # each in its own way
    tested = for_test(out.block.program)
    assert not {"select_input", "dropout", "grid_sampler", "uniform_random"} & {op.type for op in tested.all_ops()}
    assert np.array_equal(fs.predict(out, {"image": IMAGES} | ({"shares": np.zeros((32, 3), "float32")} if more else {})), IMAGES)


def test_pixels_are_moved_whole_mirrored_and_cut() -> None:
    x = image()
    moved, mirrored, part = layer.random_translation(x, 2, 1), layer.random_flip(x, probability=0.5), layer.random_crop(x, (4, 3))
    padded = np.pad(IMAGES, [(0, 0), (0, 0), (2, 2), (1, 1)])
    places: set[tuple[int, int]] = set()
    for one, found in zip(padded, seen(moved), strict=True):
        (at,) = [(i, j) for i in range(5) for j in range(3) if np.array_equal(one[:, i : i + 6, j : j + 5], found)]
        places.add(at)
    assert len(places) > 8
    flipped = seen(mirrored)
    turned = [np.array_equal(a, b[..., ::-1]) for a, b in zip(flipped, IMAGES, strict=True)]
    assert 5 < sum(turned) < 27 and all(t or np.array_equal(a, b) for t, a, b in zip(turned, flipped, IMAGES, strict=True))
    assert part.dims == [-1, 2, 4, 3]
    for one, found in zip(IMAGES, seen(part), strict=True):
        assert any(np.array_equal(one[:, i : i + 4, j : j + 3], found) for i in range(3) for j in range(3))
    np.testing.assert_array_equal(fs.predict(part, {"image": IMAGES}), IMAGES[:, :, 1:5, 1:4])  # the middle


def test_a_part_larger_than_the_image_has_zeros_around() -> None:
    part = layer.random_crop(image(), (8, 4), padding=1)
    assert np.array_equal(fs.predict(part, {"image": IMAGES}), np.pad(IMAGES, [(0, 0), (0, 0), (1, 1), (0, 0)])[..., :4])
    padded = np.pad(IMAGES, [(0, 0), (0, 0), (1, 1), (1, 1)])
    for one, found in zip(padded, seen(part), strict=True):
        assert any(np.array_equal(one[:, :, j : j + 4], found) for j in range(4))


def test_turning_agrees_with_pytorch() -> None:
    import torch

    x = image()
    out = layer.random_affine(x, degrees=30, zoom=(1.1, 1.3))
    numbers = [op for op in out.block.ops if op.type == "uniform_random"]
    found, angle, zoom = fs.Executor(seed=3).run(feed={"image": IMAGES}, fetch=[out, *(op.outputs["Out"][0] for op in numbers)])
    assert np.abs(angle).max() <= np.pi / 6 and zoom.min() >= 1.1 and zoom.max() <= 1.3
    y, x_ = np.meshgrid(np.arange(6) - 2.5, np.arange(5) - 2.0, indexing="ij")  # pixels from the middle
    c, s = (f(angle)[:, None, None] / zoom[:, None, None] for f in (np.cos, np.sin))
    points = np.stack([(c * x_ + s * y) / 2.5, (c * y - s * x_) / 3.0], -1).astype("float32")
    want = torch.nn.functional.grid_sample(torch.from_numpy(IMAGES), torch.from_numpy(points), align_corners=False)
    np.testing.assert_allclose(found, want.numpy(), atol=1e-4)


def test_a_blot_is_a_rectangle_and_mixing_mixes_labels_alike() -> None:
    x, label = image(), layer.data("label", 3)
    blotted = seen(layer.cutout(x, (2, 3), probability=0.5, value=-1.0))
    blots = blotted == -1.0
    assert np.array_equal(blotted[~blots], IMAGES[~blots]) and 4 < blots.any((1, 2, 3)).sum() < 28
    assert all(b[0].sum() == b[0].any(1).sum() * b[0].any(0).sum() <= 6 for b in blots)
    shares = np.eye(3, dtype="float32")[RNG.integers(3, size=32)]
    images, labels = fs.Executor(seed=0).run(feed={"image": IMAGES, "label": shares}, fetch=list(layer.mixup(x, label, 0.4)))
    s = ((images - IMAGES) / (np.roll(IMAGES, 1, 0) - IMAGES)).mean((1, 2, 3))
    assert s.min() >= 0 and s.max() < 0.41 and s.std() > 0.05
    np.testing.assert_allclose(labels, shares + s[:, None] * (np.roll(shares, 1, 0) - shares), atol=1e-3)
    np.testing.assert_allclose(labels.sum(1), 1, rtol=1e-5)


def test_your_own_by_in_training_and_what_it_refuses() -> None:
    x = image()
    h = layer.fc(x, 4)
    out = layer.in_training(h, lambda h: h * 2.0 + 1.0)
    cost = layer.mean(layer.square(out))
    ((_, gradient),) = [p for p in fs.append_backward(cost) if p[0].name.endswith("w_0")]
    executor, scope = fs.Executor(seed=0), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    fetched = executor.run(feed={"image": IMAGES}, fetch=[h, out, gradient], scope=scope)
    np.testing.assert_allclose(fetched[1], fetched[0] * 2 + 1, rtol=1e-6)
    want = IMAGES.reshape(32, -1).T @ (fetched[1] * 2 * 2 / fetched[1].size)
    np.testing.assert_allclose(fetched[2], want, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(fs.predict(out, {"image": IMAGES}, scope=scope), fs.predict(h, {"image": IMAGES}, scope=scope))
    for function, error, words in [
        (lambda h: layer.concat([h, h], 1), fs.ShapeError, r"keep the dims, or otherwise="),
        (lambda h: layer.cast(h, "int64"), fs.TypeMismatchError, "keep the element type"),
        (lambda h: (h, h), fs.SchemaError, "gives as many variables as it takes, 1; the function makes 2"),
        (lambda h: None, fs.SchemaError, "must be a variable"),
    ]:  # fmt: skip
        with pytest.raises(error, match=words):
            layer.in_training(h, function)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda x: layer.random_flip(x, 0), fs.ShapeError, "axis must be one of an example's"),
        (lambda x: layer.random_flip(x, probability=2), fs.SchemaError, "from 0 to 1"),
        (lambda x: layer.random_crop(x, 9, 1), fs.ShapeError, "must fit in the padded image"),
        (lambda x: layer.random_translation(x, -1), fs.SchemaError, "at least 0"),
        (lambda x: layer.random_translation(x, 1, fill="nothing"), fs.SchemaError, "fill must be one of 'zeros', 'border', 'reflection'"),
        (lambda x: layer.random_zoom(x, 1.0), fs.SchemaError, "from 0 to below 1"),
        (lambda x: layer.random_rotation(x, float("nan")), fs.SchemaError, "at least 0"),
        (lambda x: layer.random_rotation(layer.data("open", shape=["batch", 3, "height", "width"]), 9), fs.ShapeError, "whose height and width are numbers"),
        (lambda x: layer.random_rotation(layer.data("bytes", shape=["batch", 3, 4, 4], dtype="uint8"), 9), fs.TypeMismatchError, "floating"),
        (lambda x: layer.gaussian_noise(x, -1.0), fs.SchemaError, "at least 0"),
        (lambda x: layer.random_brightness(x, -0.1), fs.SchemaError, "at least 0"),
        (lambda x: layer.random_contrast(layer.data("rows", 3), 0.1), fs.ShapeError, r"must be \[batch, channels, ...\]"),
        (lambda x: layer.mixup(x, layer.data("label", 1, dtype="int64")), fs.TypeMismatchError, r"layer.one_hot\(label, classes\)"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why(make: Callable[[fs.Variable], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make(image())


def network() -> fs.Variable:
    x, y = image(), layer.data("y", 1)
    h = layer.gaussian_noise(layer.random_flip(layer.random_translation(x, 1)), 0.1)
    return layer.mean(layer.square(layer.fc(layer.dropout(h, 0.2), 1) - y))


def test_a_killed_run_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    class Kill(fs.callbacks.Callback):
        def on_batch_end(self, run: Any) -> None:
            if run.history.steps == 6:
                raise Killed

    def trained(scope: fs.Scope, **more: Any) -> list[float]:
        with fs.program():
            cost = network()
            data = {"image": IMAGES, "y": IMAGES.mean((1, 2, 3))}
            return fs.train(cost, data, optimizer=fs.optimizer.SGD(0.01), epochs=3, batch_size=8, progress=False, scope=scope, **more).losses

    whole = trained(fs.Scope())
    folder = fs.Checkpoint(tmp_path / "run", every=2)
    with pytest.raises(Killed):
        trained(fs.Scope(), checkpoint=folder, callbacks=[Kill()])
    assert trained(fs.Scope(), checkpoint=folder) == whole


def test_a_saved_model_has_nothing_of_it_and_a_program_has_it_again(tmp_path: Path) -> None:
    x = image()
    h = layer.cutout(layer.random_crop(x, 4), 2)
    scores = layer.fc(h, 3)
    fs.Executor(seed=0).run(fs.default_startup_program())
    fs.save_inference_model(str(tmp_path / "model"), [x], [scores])
    model = fs.load_inference_model(str(tmp_path / "model"), scope=fs.Scope())
    assert [op.type for op in model.program.global_block.ops if op.type not in ("feed", "fetch")] == ["slice", "mul", "elementwise_add", "scale"]
    again = fs.load_program(fs.default_main_program().to_bytes())
    assert [op.type for op in for_test(again).all_ops()] == [op.type for op in for_test(fs.default_main_program()).all_ops()]
