"""Layers over images and words: what they append, and what their parameters are called."""

from __future__ import annotations

import math

import numpy as np
import pytest

import foreshape.language.wire  # noqa: F401  the codec
from foreshape import layer
from foreshape.core.dims import symbol
from foreshape.errors import ExecutionError, SchemaError, ShapeError
from foreshape.language.program import Program, program_guard
from foreshape.optimizer import SGD
from foreshape.runtime.engine import Executor, Scope


def test_convolution_parameters_are_named_and_begun_as_in_paddlepaddle() -> None:
    main, startup = Program(), Program()
    with program_guard(main, startup):
        x = layer.data("x", shape=["batch", 6, 9, 9])
        assert layer.conv2d(x, 8, 3, stride=2, padding="SAME").shape == [symbol("batch"), 8, 5, 5]
        assert layer.conv2d(x, 12, 3, groups=6).shape == [symbol("batch"), 12, 7, 7]
        assert layer.conv2d_transpose(x, 4, 3, stride=2, padding=1).shape == [symbol("batch"), 4, 17, 17]
        assert layer.pool2d(x, 2, ceil_mode=True).shape == [symbol("batch"), 6, 5, 5]
        assert layer.pool2d(x, global_pooling=True, pool_type="avg").shape == [symbol("batch"), 6, 1, 1]
        assert layer.adaptive_pool2d(x, (4, 3)).shape == [symbol("batch"), 6, 4, 3]
        largest = layer.adaptive_pool2d(x, (4, 3), "max")  # of pool2d PaddlePaddle would compute other windows
        assert largest.shape == [symbol("batch"), 6, 4, 3] and largest.op is not None and largest.op.type == "max_pool2d_with_index"
    assert [p.name for p in main.parameters()] == [
        "conv2d_0.w_0", "conv2d_0.b_0", "depthwise_conv2d_0.w_0", "depthwise_conv2d_0.b_0", "conv2d_transpose_0.w_0", "conv2d_transpose_0.b_0",
    ]  # fmt: skip
    assert [op.type for op in main.all_ops()][:4] == ["conv2d", "elementwise_add", "depthwise_conv2d", "elementwise_add"]
    start = next(op for op in startup.all_ops() if op.outputs["Out"] == ("conv2d_0.w_0",))
    assert start.type == "gaussian_random" and start.attrs["std"] == pytest.approx(math.sqrt(2 / (9 * 6)))


def test_image_sizes_that_are_not_known_stay_expressions() -> None:
    with program_guard(Program(), Program()):
        x = layer.data("x", shape=["batch", 3, "height", "width"])
        height, width = symbol("height"), symbol("width")
        assert layer.conv2d(x, 4, 3, padding=1).shape == [symbol("batch"), 4, height, width]
        assert layer.conv2d(x, 4, 5, stride=2, padding="SAME").shape == [symbol("batch"), 4, (height + 1) // 2, (width + 1) // 2]


def test_batch_norm_keeps_statistics_that_are_saved_and_not_trained() -> None:
    main, startup = Program(), Program()
    with program_guard(main, startup):
        x = layer.data("x", shape=["batch", 3, 4, 4])
        y = layer.batch_norm(x, momentum=0.75)
        loss = layer.mean(layer.fc(y, 1))
        pairs = SGD(0.1).minimize(loss)
    del pairs
    mean, variance = main.var("batch_norm_0.w_1"), main.var("batch_norm_0.w_2")
    assert mean.persistable and variance.persistable and not mean.trainable and mean.stop_gradient
    assert not any(v.name.startswith("batch_norm_0.w_1@GRAD") for v in main.all_variables())
    executor, scope = Executor(), Scope()
    executor.run(startup, scope=scope)
    images = np.random.RandomState(0).standard_normal((5, 3, 4, 4)).astype(np.float32) + 2
    executor.run(main, feed={"x": images}, fetch=[loss], scope=scope)
    np.testing.assert_allclose(scope.get("batch_norm_0.w_1"), 0.25 * images.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(scope.get("batch_norm_0.w_2"), 0.75 + 0.25 * images.var((0, 2, 3)), rtol=1e-5)


def test_an_embedding_gives_sparse_rows_and_refuses_rows_that_are_none() -> None:
    main, startup = Program(), Program()
    with program_guard(main, startup):
        ids = layer.data("ids", shape=["batch", 2], dtype="int64")
        rows = layer.embedding(ids, size=[50, 3], is_sparse=True, padding_idx=-1)
        loss = layer.mean(rows)
        SGD(1.0).minimize(loss)
    assert rows.shape == [symbol("batch"), 2, 3]
    assert main.var("embedding_0.w_0@GRAD").kind.name == "SELECTED_ROWS"
    executor, scope = Executor(), Scope()
    executor.run(startup, scope=scope)
    before = np.array(scope.get("embedding_0.w_0"))
    gradient, out = executor.run(main, feed={"ids": np.array([[3, 49], [7, 3]])}, fetch=["embedding_0.w_0@GRAD", rows], scope=scope)
    assert sorted(gradient.rows.tolist()) == [3, 3, 7] and gradient.height == 50
    assert (out[0, 1] == 0).all()
    moved = np.nonzero((scope.get("embedding_0.w_0") != before).any(1))[0]
    assert moved.tolist() == [3, 7]
    for wrong in (50, -1):
        with pytest.raises(ExecutionError, match=r"Ids must be in \[0, 50\)"):
            executor.run(main, feed={"ids": np.array([[0, wrong]])}, fetch=[loss], scope=scope)


def test_dropout_keeps_the_mean_in_training_and_the_values_in_a_test() -> None:
    main = Program()
    with program_guard(main, Program()):
        x = layer.data("x", shape=["batch", 400])
        trained, tested = layer.dropout(x, 0.25), layer.dropout(x, 0.25, is_test=True)
        downgraded = layer.dropout(x, 0.25, is_test=True, implementation="downgrade_in_infer")
        seeded = layer.dropout(x, 0.25, seed=3)
    ones = np.ones((50, 400), np.float32)
    results = [Executor().run(main, feed={"x": ones}, fetch=[v], scope=Scope())[0] for v in (trained, tested, downgraded, seeded, seeded)]
    assert set(np.unique(results[0]).round(4)) == {0.0, np.float32(1 / 0.75).round(4)}
    assert results[0].mean() == pytest.approx(1, abs=0.02)
    np.testing.assert_array_equal(results[1], ones)
    np.testing.assert_allclose(results[2], 0.75 * ones)
    np.testing.assert_array_equal(results[3], results[4])


def test_what_a_layer_cannot_make_is_refused() -> None:
    with program_guard(Program(), Program()):
        x = layer.data("x", shape=["batch", 6, 9, 9])
        with pytest.raises(ShapeError, match="groups must divide"):
            layer.conv2d(x, 4, 3, groups=4)
        with pytest.raises(ShapeError, match="channels must be known"):
            layer.conv2d(layer.data("y", shape=["batch", "channels", 9, 9]), 4, 3)
        with pytest.raises(ShapeError, match="must fit into the padded image"):
            layer.conv2d(x, 4, 11)
        with pytest.raises(SchemaError, match="one number or two"):
            layer.conv2d(x, 4, [3, 3, 3])
        with pytest.raises(ShapeError, match="padding_idx must be in"):
            layer.embedding(layer.data("ids", shape=["batch"], dtype="int64"), [5, 3], padding_idx=5)
        with pytest.raises(ShapeError, match="begin_norm_axis"):
            layer.layer_norm(x, 4)
