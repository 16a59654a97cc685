"""Networks that are drawn: frozen, with kernels joined to series, they compute what they compute as they are, for sizes one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import ForeshapeError

WINDOWS = {"kernel_size": (1, 2, 3), "pool_type": ("max", "avg"), "pool_stride": (1, 2), "ceil_mode": (False, True)}


class Drawn:
    """Layers one after the other, each of one of the last values, or of two of one shape."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.RandomState(seed)
        self.channels = self.of(1, 3, 4, 8)
        self.values: list[fs.Variable] = [layer.data("x", shape=["batch", self.channels, "height", "width"])]
        for _ in range(self.chance.randint(3, 14)):
            value = self.values[self.chance.randint(max(0, len(self.values) - 3), len(self.values))]
            try:
                self.values.append(self.of_images(value) if len(value.dims) == 4 else self.of_rows(value))
            except ForeshapeError:  # images too small for it
                continue
        out = [v for v in self.values[1:-1] if self.chance.randint(0, 5) == 0]
        self.out = [*out, layer.scale(self.values[-1], 1.5)]

    def of(self, *choices: Any) -> Any:
        return choices[self.chance.randint(len(choices))]

    def another(self, value: fs.Variable, axes: slice) -> fs.Variable:
        """A value whose dims are the same along these axes; itself where there is no other."""
        return self.of(*(v for v in self.values if len(v.dims) == len(value.dims) and v.dims[axes] == value.dims[axes]))

    def branched(self, x: fs.Variable, several: Any, one: Any) -> fs.Variable:
        """A branch for several examples, and another for one."""
        return layer.cond(layer.slice(layer.shape(x), [0], [0], [1]) > 1, several, one)

    def of_images(self, x: fs.Variable) -> fs.Variable:
        channels = x.dims[1]

        def mean() -> fs.Variable:
            return layer.pool2d(x, 1, "avg", global_pooling=True)

        return self.of(
            lambda: layer.conv2d(x, self.of(1, 3, 8, 17), self.of(1, 3), stride=self.of(1, 1, 2), padding=1, activation=self.of(None, "relu", "sigmoid")),
            lambda: layer.conv2d(x, channels, 3, padding=1, groups=channels),
            lambda: layer.pool2d(x, *(self.of(*WINDOWS[n]) for n in ("kernel_size", "pool_type", "pool_stride")), ceil_mode=self.of(*WINDOWS["ceil_mode"])),
            lambda: x * layer.sigmoid(layer.conv2d(mean(), channels, 1)),
            lambda: layer.concat([layer.relu(x), self.another(x, slice(2, None))], 1),
            lambda: x + self.another(x, slice(None)),
            lambda: layer.hard_swish(x),
            lambda: layer.scale(x, self.of(0.5, -1.5)),
            lambda: layer.clip(x, -0.5, 1.0),
            lambda: layer.batch_norm(x, self.of(None, "relu", "swish"), is_test=True),
            lambda: layer.relu(layer.batch_norm(x, is_test=True) + self.another(x, slice(None))),
            lambda: self.of(*layer.split(x, [1, -1], 1)),
            lambda: layer.concat(layer.split(x, self.of(2, 3), 1)[::-1], 1),
            lambda: layer.slice(x, [1, 3], [self.of(0, 1, -3), self.of(0, 1)], [100, -1]),
            lambda: layer.slice(x, [2], [1], [2**31 - 1]),
            lambda: layer.channel_shuffle(x, self.of(2, 3)),
            lambda: layer.fc(layer.flatten(mean()), self.of(3, 8, 300)),
            lambda: self.branched(x, lambda: layer.relu(layer.conv2d(x, channels, 3, padding=1)), lambda: layer.batch_norm(x, is_test=True)),
        )()

    def of_rows(self, x: fs.Variable) -> fs.Variable:
        return self.of(
            lambda: layer.fc(x, self.of(2, 5, 64), activation=self.of(None, "relu", "tanh")),
            lambda: layer.softmax(x),
            lambda: layer.layer_norm(x),
            lambda: layer.concat([x, layer.relu(x)], 1),
            lambda: layer.reshape(x, [0, x.dims[1], 1, 1]),
            lambda: x + layer.sigmoid(x),
            lambda: layer.relu(x + layer.fc(x, x.dims[1])),
            lambda: self.branched(x, lambda: layer.fc(x, x.dims[1], activation="tanh"), lambda: layer.scale(x, 0.5)),
        )()


@pytest.mark.parametrize("seed", [108, 109, *(pytest.param(n, marks=pytest.mark.long) for n in range(100))])
def test_any_network_computes_frozen_what_it_computes(seed: int) -> None:
    with fs.program() as program:
        drawn = Drawn(seed)
    scope, plain, frozen = fs.Scope(), fs.Executor(seed=seed + 1), fs.Executor(frozen=True)
    plain.run(program.startup, scope=scope)
    for at in range(4):
        x = drawn.chance.standard_normal((drawn.of(1, 2, 3), drawn.channels, *drawn.chance.randint(5, 20, 2))).astype("float32")
        x = np.asfortranarray(x) if at % 2 else x
        try:
            wanted = plain.run(program, {"x": x}, drawn.out, scope)
        except ForeshapeError:  # windows that are larger than the images
            continue
        if not all(np.isfinite(w).all() for w in wanted):  # a window beyond the image has no maximum, and rectifiers make 0 of what is no number
            continue
        first, again = (frozen.run(program, {"x": x}, drawn.out, scope) for _ in range(2))
        for seen, same, want in zip(first, again, wanted, strict=True):
            np.testing.assert_allclose(seen, want, rtol=1e-4, atol=1e-5 * max(np.abs(want).max(initial=0.0), 1e-3))
            np.testing.assert_allclose(same, seen, rtol=1e-5, atol=1e-6 * max(np.abs(want).max(initial=0.0), 1e-3))


def test_a_window_that_is_larger_than_the_image_is_the_only_one_where_counts_are_rounded_up() -> None:
    x = layer.data("x", shape=["batch", 3, "height", "width"])
    y = layer.pool2d(layer.conv2d(x, 4, 3, padding=1, activation="relu"), 2, "max", 2, ceil_mode=True)
    scope, plain, frozen = fs.Scope(), fs.Executor(seed=1), fs.Executor(frozen=True)
    plain.run(fs.default_startup_program(), scope=scope)
    for size in (1, 4, 5):
        fed = {"x": np.random.RandomState(size).standard_normal((2, 3, size, size)).astype("float32")}
        seen, want = (e.run(fs.default_main_program(), fed, [y], scope)[0] for e in (frozen, plain))
        np.testing.assert_allclose(seen, want, rtol=1e-4, atol=1e-6)
