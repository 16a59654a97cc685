"""Errors of fc where its flatten_last is taken for PaddlePaddle's num_flatten_dims, which counts the other dims."""

from __future__ import annotations

import pytest

from foreshape import layer
from foreshape.errors import SchemaError, ShapeError


def test_features_count_from_the_end() -> None:
    assert "counted from the end" in str(layer.fc.__doc__).splitlines()[0]
    x = layer.data("x", ["batch", "time", 4, 6])
    assert str(layer.fc(x, 3, flatten_last=2).spec.known_dims) == "(batch, time, 3)"


def test_the_other_meaning_is_named_where_only_that_fits() -> None:
    x = layer.data("x", ["batch", "time", 512])
    with pytest.raises(ShapeError, match=r"(?s)last 2 dims; PaddlePaddle's num_flatten_dims=2 .* flatten_last=1 here.*test_fc_meaning.py"):
        layer.fc(x, 10, flatten_last=2)
    with pytest.raises(ShapeError, match="the last 2 dims; flatten_last=1 takes those that are known"):
        layer.fc(x, 10)
    with pytest.raises(ShapeError, match="seen -1; PaddlePaddle's -1, the last dim alone as features, is 1 here"):
        layer.fc(x, 10, flatten_last=-1)
    with pytest.raises(ShapeError, match=r"are the last dim\n") as caught:
        layer.fc(layer.data("y", ["batch", 3, "n"]), 10, flatten_last=1)
    assert "PaddlePaddle" not in str(caught.value)


def test_a_shared_weight_that_fits_the_other_meaning_only() -> None:
    x = layer.data("x", ["batch", 4, 6])
    layer.fc(x, 3, flatten_last=1, weight="w")
    with pytest.raises(ShapeError, match=r"24 features, and the shared weight w is f32\[6, 3\]; PaddlePaddle's num_flatten_dims=2 .* flatten_last=1 here"):
        layer.fc(x, 3, flatten_last=2, weight="w")
    with pytest.raises(SchemaError, match="is shared, and is"):
        layer.fc(layer.data("z", ["batch", 5]), 3, weight="w")
