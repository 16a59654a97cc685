"""Whether an example of a batch changes another's results is told by what the operators declare."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import FLOATING, Spec
from foreshape.language.infer.example_flow import ExampleFlow, Mixed
from foreshape.language.operator import NOT_DIFFERENTIABLE, operand, result
from foreshape.language.operator.operator import Operator
from foreshape.language.program import Variable


class KeptAsItIs(Operator):
    """Out = X; it does not say so."""

    type = "test_kept_as_it_is"
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="as X")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Spec) -> Spec:
        return X

    def kernel(self, X: Any) -> Any:
        return X.clone()


def attention(x: Variable) -> Variable:
    heads = layer.transpose(layer.reshape(x, [0, 0, 2, 4]), [0, 2, 1, 3])
    scores = layer.softmax(layer.matmul(heads, layer.transpose(heads, [0, 1, 3, 2])))
    return layer.reshape(layer.transpose(layer.matmul(scores, heads), [0, 2, 1, 3]), [0, 0, 8])


def by_rows(x: Variable) -> Variable:
    """Rows of all examples in one matrix, and back."""
    return layer.reshape(layer.fc(layer.reshape(x, [-1, 8]), 3), [-1, 5, 3])


def positions(x: Variable) -> Variable:
    return x + layer.cast(layer.unsqueeze(layer.range(0, layer.shape(x)[1], 1, dtype="int64"), [0, 2]), "float32")


def of_examples(x: Variable) -> Variable:
    return x + layer.cast(layer.unsqueeze(layer.range(0, layer.shape(x)[0], 1, dtype="int64"), [1, 2]), "float32")


def numbers(x: Variable, axis: int) -> Variable:
    return layer.range(0, layer.shape(x)[axis], 1, dtype="int64")


def rows_at(x: Variable, length: int = 5, first: int = 0, more: int = 0) -> Variable:
    """Rows read at ``example * length + position``, where no number is negative: as traced networks read masks."""
    example, position = layer.unsqueeze(numbers(x, 0), [1]) * length, layer.unsqueeze(numbers(x, 1) + first, [0])
    places = layer.reshape(example + position, [-1])
    places = layer.where(places < 0, places + 40, places)
    return layer.reshape(layer.gather(layer.reshape(x, [-1, 8]), places + more), [-1, 5, 8])


def places(x: Variable, negative: bool = False) -> Variable:
    """Elements read at rows of (example, position)."""
    example = layer.expand(layer.unsqueeze(numbers(x, 0), [1, 2]), [-1, 5, 1])
    position = layer.expand(layer.unsqueeze(numbers(x, 1), [0, 2]), [layer.shape(x)[0], 5, 1])
    return layer.gather_nd(x, layer.concat([example - 1 if negative else example, position], 2))


APART: dict[str, Callable[[Variable], Variable]] = {
    "linear": lambda x: layer.relu(layer.fc(layer.reshape(x, [0, -1]), 4)),
    "attention": attention,
    "rows": by_rows,
    "normalized": lambda x: layer.layer_norm(x, begin_norm_axis=2),
    "over time": lambda x: layer.reduce_mean(x, [1]) / layer.cast(layer.shape(x)[1], "float32"),
    "time first": lambda x: layer.transpose(layer.cumsum(layer.transpose(x, [1, 0, 2]), 0), [1, 0, 2]),
    "positions": positions,
    "sorted features": lambda x: layer.argsort(x, 2)[0],
    "rows at numbers": rows_at,
    "places": places,
    "repeated": lambda x: layer.reshape(x, [-1, 2, 4]) * layer.tile(layer.range(0.0, 5.0, 1.0, "float32")[:, None, None], [layer.shape(x)[0], 1, 1]),
    "filled": lambda x: layer.concat([x, layer.fill_like(x, 1.0)], 2),
}
MIXED: dict[str, tuple[Callable[[Variable], Variable], str]] = {
    "largest": (lambda x: x + layer.relu(layer.reduce_max(x, [0], keepdim=True) - 100.0), "reduce_max"),
    "mean": (lambda x: x - layer.reduce_mean(x, [0], keepdim=True), "reduce_mean"),
    "over the batch": (lambda x: layer.softmax(x, 0), "softmax"),
    "running sum": (lambda x: layer.cumsum(x, 0), "cumsum"),
    "sorted": (lambda x: layer.argsort(x, 0)[0], "argsort"),
    "similarity": (lambda x: layer.matmul(x, layer.reduce_sum(layer.matmul(x, x, transpose_x=True), [0])), "reduce_sum"),
    "divided by the batch": (lambda x: x / layer.cast(layer.shape(x)[0], "float32"), "elementwise_div"),
    "numbered": (of_examples, "elementwise_add"),
    "batch norm in training": (lambda x: layer.batch_norm(x), "batch_norm"),
    "scattered": (lambda x: layer.reshape(layer.transpose(x, [1, 0, 2]), [-1, 5, 8]), "reshape2"),
    "first": (lambda x: x - layer.slice(x, [0], [0], [1]), "slice"),
    "rows at other numbers": (lambda x: rows_at(x, 4), "gather"),
    "rows beside": (lambda x: rows_at(x, more=-1), "gather"),
    "rows behind": (lambda x: rows_at(x, first=1), "gather"),
    "places beside": (lambda x: places(x, True), "gather_nd"),
    "an entry by the example's number": (
        lambda x: layer.index_sample(layer.reshape(x, [-1, 40]), layer.unsqueeze(numbers(x, 0), [1])),
        "index_sample",
    ),
    "turned round": (lambda x: layer.flip(x, [0]), "flip"),
}


def flow(network: Callable[[Variable], Variable]) -> tuple[ExampleFlow, Variable]:
    x = layer.data("x", ["batch", 5, 8])
    y = network(x)
    return ExampleFlow(fs.default_main_program(), ["x"]), y


@pytest.mark.parametrize("name", APART)
def test_examples_are_apart_and_computed_so(name: str) -> None:
    followed, y = flow(APART[name])
    assert followed.mixture([y.name]) is None
    executor, draw = fs.Executor(), np.random.default_rng(0)
    executor.run(fs.default_startup_program())
    first, second = (draw.standard_normal((n, 5, 8)).astype("float32") * 10 for n in (2, 3))
    parts = [executor.run(fs.default_main_program(), {"x": x}, [y])[0] for x in (first, second)]
    whole = executor.run(fs.default_main_program(), {"x": np.concatenate([first, second])}, [y])[0]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "apart"), [("int64", True), ("int32", True), ("int8", False)])
def test_numbers_cut_to_a_narrower_type_name_other_places(dtype: str, apart: bool) -> None:
    """299 is 43 in a byte, and 200 is negative: the place of another example."""
    x = layer.data("x", ["batch", 300])
    position = layer.cast(layer.cast(numbers(x, 1), dtype), "int64")
    places = layer.reshape(layer.unsqueeze(numbers(x, 0), [1]) * 300 + layer.unsqueeze(position, [0]), [-1])
    y = layer.reshape(layer.gather(layer.reshape(x, [-1]), places), [-1, 300])
    assert (ExampleFlow(fs.default_main_program(), ["x"]).mixture([y.name]) is None) is apart


@pytest.mark.parametrize("name", MIXED)
def test_what_computes_over_examples_is_named_with_its_line(name: str) -> None:
    network, type = MIXED[name]
    followed, y = flow(network)
    mixture = followed.mixture([y.name])
    assert mixture is not None and mixture.proven and str(mixture).startswith(f"{type} (test_example_flow.py:")


def test_an_operator_that_says_nothing_leaves_it_open() -> None:
    followed, y = flow(lambda x: fs.default_main_program().global_block.apply("test_kept_as_it_is", {"X": x}, {}))
    assert isinstance(state := followed.state(y.name), Mixed) and not state.proven and "does not tell" in str(state)


def test_sequences_are_apart_and_padding_is_not() -> None:
    words = layer.data("words", ["words", 4], lod_level=1)
    pooled = layer.fc(layer.sequence_pool(layer.fc(words, 8), "max"), 2)
    expanded = layer.sequence_expand_as(pooled, words)
    padded, _ = layer.sequence_pad(words, 0.0)
    followed = ExampleFlow(fs.default_main_program(), ["words"])
    assert followed.mixture([pooled.name, expanded.name]) is None
    assert followed.mixture([padded.name]) is not None


@pytest.mark.parametrize("over_batch", [False, True])
def test_loops_are_followed(over_batch: bool) -> None:
    x = layer.data("x", ["batch", 4])
    count, total = layer.fill_constant([1], "int64", 0), layer.assign(x)

    def more(k: Variable, sum: Variable) -> Variable:
        return layer.less_than(k, layer.fill_constant([1], "int64", 3))

    def body(k: Variable, sum: Variable) -> list[Variable]:
        return [k + 1, sum + (layer.reduce_mean(x, [0], keepdim=True) if over_batch else layer.tanh(x))]

    _, y = layer.while_loop(more, body, [count, total])
    mixture = ExampleFlow(fs.default_main_program(), ["x"]).mixture([y.name])
    assert (mixture is None) if not over_batch else (mixture is not None and "reduce_mean" in str(mixture))


def test_rows_of_several_examples_are_warned_of_at_their_line() -> None:
    x, label = layer.data("x", ["batch", 5, 8]), layer.data("label", ["batch", 1])
    for order, warns in (([1, 0, 2], True), ([0, 2, 1], False)):
        cost = layer.mse_loss(layer.fc(layer.reshape(layer.transpose(x, order), [-1, 40]), 1), label)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fs.training_program(cost, fs.optimizer.SGD(0.1))
        assert [str(w.message).partition(":")[0] for w in caught] == ["reshape2 takes f32[5, batch, 8] to f32[batch, 40]"] * warns
        assert all(w.filename == __file__ for w in caught)


def test_a_symbol_that_broadcasting_puts_twice_is_warned_of() -> None:
    x, y = layer.data("x", ["batch", 1]), layer.data("y", ["batch"])
    with pytest.warns(fs.ForeshapeWarning, match="batch stands twice in the result"):
        _ = x - y
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = x - layer.unsqueeze(y, [1]), x - layer.unsqueeze(y, [0]), x * 2.0, y + layer.fill_constant([1], "float32", 1.0)


@pytest.mark.parametrize("loss", ["softmax", "log_softmax", "sigmoid"])
def test_probabilities_in_the_place_of_scores_are_warned_of(loss: str) -> None:
    scores, label, truth = layer.data("scores", ["batch", 3]), layer.data("label", ["batch", 1], "int64"), layer.data("truth", ["batch", 3])
    losses: dict[str, Callable[[Variable], Variable]] = {
        "softmax": lambda x: layer.softmax_with_cross_entropy(x, label),
        "log_softmax": layer.log_softmax,
        "sigmoid": lambda x: layer.sigmoid_cross_entropy_with_logits(x, truth),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses[loss](layer.relu(scores))
    shares = layer.sigmoid(scores) if loss == "sigmoid" else layer.reshape(layer.softmax(scores), [-1, 3])
    maker = "sigmoid" if loss == "sigmoid" else "softmax"
    with pytest.warns(fs.ForeshapeWarning, match=rf"takes scores, .* is a result of {maker} already: leave that {maker} out"):
        losses[loss](shares)


def test_an_activation_of_another_loss_is_warned_of_by_its_own_name() -> None:
    x, label = layer.data("x", ["batch", 8]), layer.data("label", ["batch", 1], "int64")
    with pytest.warns(
        fs.ForeshapeWarning, match="softmax_with_cross_entropy takes scores, .*; fc_0.tmp_2 is a result of sigmoid already: leave that sigmoid out"
    ):
        layer.softmax_with_cross_entropy(layer.fc(x, 3, activation="sigmoid"), label)


def test_an_equality_that_0_alone_fulfils_is_an_error_where_it_is_made() -> None:
    x, label = layer.data("x", ["batch", 8]), layer.data("label", ["batch", 1])
    with pytest.raises(fs.ShapeError, match="batch // 2 == batch holds for batch = 0 alone") as caught:
        layer.square_error_cost(layer.fc(layer.reshape(x, [-1, 16]), 1), label)
    assert caught.value.site is not None and caught.value.site.file == __file__


def test_no_nearest_size_is_0() -> None:
    x = layer.data("x", ["batch", 6])
    layer.reshape(x, [-1, 4])
    assert fs.default_main_program().feeds.nearest(x=[1, 6]) == {"x": [2, 6]}


def test_updates_by_one_loss_are_appended_once() -> None:
    x = layer.data("x", ["batch", 4])
    cost = layer.mean(layer.square(layer.fc(layer.fc(x, 3, weight="first"), 1, weight="second")))
    optimizer = fs.optimizer.SGD(0.1)
    optimizer.minimize(cost, parameters=["first"])
    fs.optimizer.SGD(0.5).minimize(cost, parameters=["second"])  # each is updated once
    for wanted in (None, ["first"]):
        with pytest.raises(fs.SchemaError, match=r"of mean_0\.tmp_0 already, by sgd; .*: minimize a loss once, .* parameters="):
            optimizer.minimize(cost, parameters=wanted)
