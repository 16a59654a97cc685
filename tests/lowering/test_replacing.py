"""What stands in the place of others: every rewrite is asked who reads what vanishes, and whether the order still holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.some import each_of_product

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering import lower
from foreshape.compiler.lowering.fusion import apply_all
from foreshape.compiler.lowering.fusion.graph import Graph, fused
from foreshape.compiler.lowering.kernel_calls import KernelCall, Value
from foreshape.machine.kernels.call_record import X
from foreshape.machine.kernels.fused import FusedKernel

RNG = np.random.RandomState(0)
FEED = {"x": RNG.standard_normal((4, 3, 3)).astype("f"), "rows": RNG.standard_normal((4, 5)).astype("f"), "label": RNG.randint(0, 3, (4, 1)),
        "images": RNG.standard_normal((2, 2, 5, 5)).astype("f"), "ids": RNG.randint(0, 9, (4, 3))}  # fmt: skip


def same(describe: Callable[[], list[Any]]) -> dict[str, int]:
    """Run twice what is described, fused, fused and checked, and op by op: all must give the same. How often each rewrite was found."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        fetch = describe()
    feed = {n: v for n, v in FEED.items() if main.global_block.find(n) is not None}
    runs: list[list[Any]] = []
    for check in (True, False, "fused"):
        executor, scope = fs.Executor(seed=1, check=check), fs.Scope()
        executor.run(startup, scope=scope)
        runs.append([v for _ in range(2) for v in executor.run(main, feed, fetch, scope)] + [scope.get(n) for n in scope.names()])
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    return apply_all(lower(main.global_block, [v.name for v in fetch]))


# --- attention


def attention(values: Callable[..., Any], mask: Callable[..., Any] | None = None, scaled: bool = True) -> Callable[[], list[Any]]:
    def describe() -> list[Any]:
        x = layer.data("x", ["batch", 3, 3], stop_gradient=False)
        q = layer.scale(x, 0.25) if scaled else x
        scores = layer.matmul(q, q, transpose_y=True)
        weights = layer.softmax(scores if mask is None else scores + mask(scores, x))
        out = layer.matmul(weights, values(weights, scores, x, q))
        return [out, *(g for _, g in fs.append_backward(layer.reduce_sum(layer.square(out)), [x]))]

    return describe


VALUES: dict[str, Callable[..., Any]] = {
    "of its own": lambda w, s, x, q: layer.tanh(x), "the operand": lambda w, s, x, q: x, "the queries": lambda w, s, x, q: q,
    "the weights": lambda w, s, x, q: w,
    "the scores": lambda w, s, x, q: s,
}  # fmt: skip


MASKS: dict[str, Callable[..., Any] | None] = {
    "none": None, "the scores": lambda s, x: s, "the operand": lambda s, x: x, "of its own": lambda s, x: layer.data("rows", ["batch", 5])[:1, :3],
}  # fmt: skip


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize(("values", "mask", "scaled"), each_of_product(3, VALUES, MASKS, (True, False)))
def test_attention_of_one_value_in_several_places(values: str, mask: str, scaled: bool) -> None:
    describe = attention(VALUES[values], MASKS[mask], scaled)
    same(describe)
    assert same(lambda: describe()[:1])["attention"] == (values not in ("the weights", "the scores") and mask != "the scores")


def test_attention_without_heads_trains_in_a_checked_run() -> None:
    assert same(attention(VALUES["of its own"]))["attention"] == 1


# --- what stands behind


def losses() -> tuple[Any, Any, Any]:
    rows, label = layer.data("rows", ["batch", 5]), layer.data("label", ["batch", 1], "int64")
    each, softmax = layer.softmax_with_cross_entropy(layer.fc(rows, 3), label, return_softmax=True)
    loss = layer.mean(each)
    fs.optimizer.SGD(0.1).minimize(loss)
    return loss, each, softmax


def mean_behind_its_gradient() -> list[Any]:
    return [layer.mean(losses()[1])]


def a_product_with_what_was_updated() -> list[Any]:
    losses()
    block = fs.default_main_program().global_block
    return [layer.fc(block.var("rows"), 3, weight=block.ops[0].inputs["Y"][0], bias=False)]


def gradients_behind() -> list[Any]:
    losses()
    block = fs.default_main_program().global_block
    return [layer.scale(block.var(f"{n}@GRAD"), 2.0) for op in block.ops if op.type == "sgd" for n in op.inputs["Param"]]


def a_gradient_of_a_bias_in_between() -> list[Any]:
    y = layer.conv2d(layer.data("images", ["batch", 2, 5, 5]), 3, 3)
    loss = layer.mean(y * y)
    fs.optimizer.Momentum(0.1, 0.9).minimize(loss)
    block = fs.default_main_program().global_block
    return [loss, *(layer.scale(block.var(f"{n}@GRAD"), 2.0) for op in block.ops if op.type == "momentum" for n in op.inputs["Param"])]


def a_mean_of_weights() -> list[Any]:
    loss, *_ = losses()
    block = fs.default_main_program().global_block
    w = block.var(block.ops[0].inputs["Y"][0])
    mean = layer.create_parameter([5, 3], fs.FP32, "mean")
    layer.assign(mean * 0.9 + w * 0.1, mean)
    return [loss, mean]


def rows_of_a_bag() -> list[Any]:
    rows = layer.embedding(layer.data("ids", ["batch", 3], "int64"), (9, 4), weight="table")
    loss = layer.mean(layer.square(layer.reduce_mean(rows, 1)))
    fs.optimizer.SGD(0.5).minimize(loss)
    return [loss, layer.reduce_sum(rows, 1)]


def a_weight_in_its_own_gradient() -> list[Any]:
    w = layer.create_parameter([5, 5], fs.FP32, "w")
    loss = layer.mean(layer.square(layer.matmul(layer.transpose(w, [1, 0]), layer.matmul(w, layer.data("rows", ["batch", 5]), transpose_y=True))))
    fs.optimizer.SGD(0.1).minimize(loss)
    return [loss, layer.reduce_sum(w)]


def stored_beside_its_own_view() -> list[Any]:
    w = layer.create_parameter([3, 3], fs.FP32, "w")
    turned = layer.transpose(w, [1, 0])
    layer.assign(w + turned, w)
    return [layer.scale(turned, 1.0), layer.reduce_sum(w, 0)]


BEHIND = [mean_behind_its_gradient, a_product_with_what_was_updated, gradients_behind, a_gradient_of_a_bias_in_between, a_mean_of_weights, rows_of_a_bag,
          a_weight_in_its_own_gradient, stored_beside_its_own_view]  # fmt: skip


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("describe", BEHIND, ids=lambda f: f.__name__)
def test_what_stands_behind_the_updates_reads_what_it_says(describe: Callable[[], list[Any]]) -> None:
    same(describe)


@pytest.mark.parametrize("check", [True, False, "fused"])
def test_a_view_of_a_parameter_stays_what_it_was(check: Any) -> None:
    """As in PaddlePaddle, where a reshaped tensor is another one."""
    w = layer.create_parameter([4, 3], fs.FP32, "w")
    view = layer.reshape(w, [12])
    fs.optimizer.SGD(0.25).minimize(layer.reduce_sum(layer.square(view)))
    behind = layer.scale(view, 2.0)
    scope, executor = fs.Scope(), fs.Executor(check=check)
    executor.run(fs.default_startup_program(), scope=scope)
    scope.set("w", np.ones((4, 3), "float32"))
    found = executor.run(fs.default_main_program(), {}, [view, behind, w], scope)
    assert [float(f.mean()) for f in found] == [1.0, 2.0, 0.5]


# --- the question itself


def graph(describe: Callable[[], Any]) -> tuple[Graph, list[KernelCall]]:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        out = describe()
    lowered = lower(program.global_block, [out.name])
    return Graph(lowered), lowered.calls


def standing_for(i: KernelCall, reads: list[Any], makes: list[Any]) -> KernelCall:
    return fused(i, FusedKernel("", X), reads, makes)


def a_chain() -> Any:
    x = layer.data("x", [3])
    return layer.exp(layer.tanh(layer.relu(x)))


def test_what_others_read_does_not_vanish() -> None:
    g, (relu, tanh, exp) = graph(a_chain)
    before = list(g.places)
    assert not g.replace({relu: ()}) and not g.replace({exp: ()}) and not g.replace({relu: (), tanh: [standing_for(tanh, tanh.arguments, tanh.results)]})
    assert g.places == before and g.readers(relu.results[0]) == [tanh]
    assert g.replace({relu: (), tanh: [standing_for(tanh, relu.arguments, tanh.results)]})
    assert not g.is_left(relu) and not g.replace({relu: ()})


def test_nothing_is_read_before_it_is_made_nor_made_behind_its_reader() -> None:
    g, (relu, tanh, exp) = graph(a_chain)
    assert not g.replace({relu: [standing_for(relu, exp.results, relu.results)]})
    assert not g.replace({relu: (), exp: [standing_for(exp, relu.arguments, relu.results), standing_for(exp, exp.arguments, exp.results)]})
    assert not g.replace({relu: [standing_for(relu, relu.arguments, exp.results)], exp: [standing_for(exp, tanh.results, relu.results)]})
    new = Value("new", g.fresh())
    assert not g.replace({relu: [standing_for(relu, [new], relu.results)], exp: [standing_for(exp, exp.arguments, [*exp.results, new])]})
    assert g.replace({relu: [standing_for(relu, relu.arguments, [*relu.results, new])], exp: [standing_for(exp, [new], exp.results)], tanh: ()})


def an_update() -> Any:
    w = layer.create_parameter([3, 3], fs.FP32, "w")
    before = layer.relu(w)
    layer.assign(before, w)
    return layer.tanh(layer.relu(w)) + before


def test_nothing_is_read_on_the_other_side_of_a_change() -> None:
    g, (relu, store, again, tanh, total) = graph(an_update)
    assert not g.replace({relu: (), store: [standing_for(store, store.arguments, store.results)]})
    assert not g.replace({again: (), tanh: [standing_for(tanh, relu.arguments, tanh.results)]}), "the parameter as it was"
    assert not g.replace({store: (), total: [standing_for(total, total.arguments, [*total.results, *store.results])]}), "others read what is stored"
    assert g.replace({again: (), tanh: [standing_for(tanh, again.arguments, tanh.results)]})


def test_what_is_made_for_what_cannot_be_is_not_made() -> None:
    g, (relu, *_) = graph(lambda: layer.tanh(layer.relu(layer.create_parameter([3], fs.FP32, "w"))))
    g.pack("what", [relu.arguments[0]], 12, lambda x: x)  # pyright: ignore[reportArgumentType]
    assert not g.replace({relu: ()}) and not g.lowered.derived and g.lowered.packed == 0
    name = g.pack("what", [relu.arguments[0]], 12, lambda x: x)  # pyright: ignore[reportArgumentType]
    assert g.replace({relu: [standing_for(relu, [], relu.results)]})
    assert [n for n, *_ in g.lowered.derived] == [name] and g.lowered.packed == 12


def test_gradients_of_several_batches_are_added_in_place_though_the_update_changes_them_again() -> None:
    loss = layer.mean(layer.fc(layer.fc(layer.data("x", ["batch", 4]), 3), 2))
    training = fs.training_program(loss, fs.optimizer.Adam(0.1), accumulate=2)
    programs = [found for n in dir(training) if not n.startswith("_") and isinstance(found := getattr(training, n), fs.Program)]
    counts = [apply_all(lower(p.global_block, [loss.name] if p.global_block.find(loss.name) is not None else []))["in_place"] for p in programs]
    assert max(counts) >= 4  # two weights and two biases
