"""What a loss is a mean over, it is over whatever the batches are: in evaluations, in the history, and where several batches make one update."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support import mean_cases as cases
from support.some import each

import foreshape as fs
from foreshape import layer
from foreshape.transforms.passes.over_examples import OverExamples, Statistic

BATCHES = (1, 2, 3, 7, cases.EXAMPLES)


def expected(values: dict[str, Any]) -> dict[str, float]:
    """The losses by numpy, from what the network gives for all examples."""
    given = cases.data()
    each, scores, told = (values[n] for n in ("each", "scores", "told"))
    counts, label = given["label"] != -100, np.maximum(given["label"], 0)
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    sharp = np.exp(2 * scores) / np.exp(2 * scores).sum(1, keepdims=True)
    words = np.square(told.data - given["words"].data)
    found = 1 / (1 + np.exp(-values["out"]))
    likelihood = -logs[np.arange(len(label)), label][counts].mean()
    return {
        "sum": each.sum(), "weighted": (each * given["weight"]).sum() / given["weight"].sum(), "likelihood": likelihood,
        "masked": each[counts].sum() / (counts.sum() + 1e-6), "mean by mean": each[counts].mean(), "words": words.mean(),
        "two": 2 * each.mean() + 0.5 * np.square(scores).mean(), "divergence": (sharp * (np.log(sharp) - logs)).sum() / len(label),
        "by its size": each.mean(), "mixed": each.mean() + likelihood, "root": np.sqrt(each.mean()),
        "overlap": 1 - (2 * (found * given["weight"]).sum() + 1) / (found.sum() + given["weight"].sum() + 1),
    }  # fmt: skip


def test_an_evaluation_gives_one_number_whatever_the_batches() -> None:
    net = cases.Described()
    names = [n for n in (*cases.ONE_WEIGHT, *cases.OTHERS) if n != "number and penalty"]
    figures = {n: net.loss(n) for n in names}
    fs.Executor().run(fs.default_startup_program())
    given = cases.data()
    values = fs.predict({n: getattr(net, n) for n in ("each", "scores", "told", "out")}, given, batch_size=cases.EXAMPLES)
    exact = expected(values)
    for size in BATCHES:
        found = fs.evaluate(figures, given, batch_size=size)
        for name in names:
            assert found[name] == pytest.approx(exact[name], rel=1e-12), (name, size)


def test_f1_and_perplexity_that_are_described_are_those_of_the_whole_set() -> None:
    net = cases.Described("fp32")
    label = layer.cast(layer.not_equal(net.label, -100), "int64") * net.label
    found, true = layer.one_hot(layer.argmax(net.scores, 1), 4), layer.one_hot(label, 4)
    right, both = layer.reduce_sum(found * true, 0), layer.reduce_sum(found, 0) + layer.reduce_sum(true, 0)
    figures = {"f1": layer.mean(2.0 * right / (both + 1e-9)), "perplexity": layer.exp(layer.mean(net.each))}
    fs.Executor().run(fs.default_startup_program())
    given = cases.data(of="float32")
    whole = fs.evaluate(figures, given, batch_size=cases.EXAMPLES)
    for size in BATCHES[:-1]:
        np.testing.assert_allclose(list(fs.evaluate(figures, given, batch_size=size).values()), list(whole.values()), rtol=1e-5)


@pytest.mark.quick_cases("masked", "sum")
@pytest.mark.parametrize("name", each(3, cases.ONE_WEIGHT))
def test_groups_of_unequal_batches_update_as_one_large_batch(name: str) -> None:
    whole = cases.train(name, cases.EXAMPLES)
    for size in (4, 5, 12):  # whose last batches are smaller; in the first four examples nothing counts
        if name == "mean by mean" and size == 4:
            continue  # 0 / 0
        parts = cases.train(name, size, -(-cases.EXAMPLES // size))
        for key in whole.keys() - {"losses", "f1", "auc"}:
            np.testing.assert_allclose(parts[key], whole[key], rtol=1e-11, atol=1e-13, err_msg=f"{key} {size}")


@pytest.mark.parametrize("name", ["mixed", "root"])
def test_a_group_that_is_no_large_batch_is_said_to_be_none(name: str) -> None:
    with pytest.warns(fs.ForeshapeWarning, match="accumulate=: the loss .* each batch counts as much as any"):
        cases.train(name, 7, 3)


def test_weights_that_are_all_zero_move_nothing_and_are_nan_by_a_word() -> None:
    x, weight = layer.data("x", ["batch", 3]), layer.data("weight", ["batch", 1])
    each = layer.square(layer.fc(x, 1))
    loss, nan = layer.weighted_mean(each, weight), layer.weighted_mean(each, weight, empty="nan")
    scope, feed = fs.Scope(), {"x": np.ones((4, 3), "float32"), "weight": np.zeros((4, 1), "float32")}
    fs.Executor().run(fs.default_startup_program(), scope=scope)
    before = scope.get("fc_0.w_0")
    history = fs.train(loss, feed, scope=scope, progress=False)
    assert history.losses == [0.0]
    np.testing.assert_array_equal(scope.get("fc_0.w_0"), before)
    assert np.isnan(fs.evaluate({"nan": nan}, feed, scope=scope)["nan"]) and fs.evaluate({"loss": loss}, feed, scope=scope)["loss"] == 0.0
    with pytest.raises(fs.SchemaError, match="empty must be 'zero' or 'nan'; seen 'none'"):
        layer.weighted_mean(each, weight, empty="none")


def test_what_is_no_function_of_sums_is_said_to_depend_on_batches() -> None:
    net = cases.Described("fp32")
    largest, counter = layer.reduce_max(net.each), layer.create_parameter((1,), fs.FP32, prefix="counter")
    fs.Executor().run(fs.default_startup_program())
    with pytest.warns(fs.ForeshapeWarning, match=r"the figure 'largest' is a mean over batches, .* made by reduce_max \(test_over_examples.py:\d+\)"):
        fs.evaluate({"largest": largest}, cases.data(of="float32"), batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.ForeshapeWarning)
        assert fs.evaluate({"counter": counter + 0.0 * layer.mean(net.each)}, cases.data(of="float32"), batch_size=4)["counter"] is not None


def test_a_loss_that_ranks_cannot_make_is_refused_at_its_line() -> None:
    net = cases.Described("fp32")
    loss = layer.reduce_max(net.each)
    made = fs.training_program(loss)
    with pytest.raises(fs.SchemaError, match=r"must be made of means and sums over examples; reduce_max_0.* is made by reduce_max \(test_over"):
        fs.data_parallel().apply(made.program, made.loss, 2)


def test_statistics_are_told_by_their_operators() -> None:
    net = cases.Described("fp32")
    loss = layer.weighted_mean(net.each, net.weight)
    likelihood = net.loss("likelihood")
    over = OverExamples(loss.block)
    found = over.statistics(loss.name)
    assert found is not None and [s.is_sum for s in found.values()] == [True, True]
    one = over.statistic(likelihood.name)
    assert one is not None and len(one.by) == 1 and one.name == likelihood.name
    assert over.statistic(net.each.name) is None
    mean = layer.mean(net.told)
    assert OverExamples(loss.block).statistic(mean.name) == Statistic(mean.name, of=net.told.name)
