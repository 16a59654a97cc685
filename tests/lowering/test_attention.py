"""Attention in one kernel each way: the same as op by op, in less memory, and only where nobody needs what is between."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.some import each_of_product

import foreshape as fs
from foreshape import layer

BATCH, HEADS = 2, 3
Net = Callable[[fs.Variable, fs.Variable, fs.Variable, Any], fs.Variable]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.RandomState(seed + sum(shape)).standard_normal(shape).astype("float32")


def usual(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The scale before the product, as most write it."""
    scores = layer.matmul(layer.scale(q, 0.3), k, transpose_y=True)
    return layer.matmul(layer.softmax(scores if mask is None else scores + mask), v)


def scaled_scores(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = layer.scale(layer.matmul(q, k, transpose_y=True), 0.3)
    return layer.matmul(layer.softmax(scores if mask is None else scores + mask), v)


def scaled_twice(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return scaled_scores(layer.scale(q, 1.7), k, v, mask)


def not_scaled(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = layer.matmul(q, k, transpose_y=True)
    return layer.matmul(layer.softmax(scores if mask is None else scores + mask, -1), v)


def turned(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The keys come as columns."""
    rank = len(k.shape)
    scores = layer.matmul(layer.scale(q, 0.3), layer.transpose(k, [*range(rank - 2), rank - 1, rank - 2]))
    return layer.matmul(layer.softmax(scores if mask is None else scores + mask), v)


def of_heads(net: Net) -> Net:
    """The operands come as [batch, time, heads, width], and so does the result."""

    def build(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return layer.transpose(net(*(layer.transpose(x, [0, 2, 1, 3]) for x in (q, k, v)), mask), [0, 2, 1, 3])

    return build


class Run:
    """What a network gives for what is fed, with the gradients of a weighted sum of that; fused, and as it is described."""

    def __init__(self, net: Net, feed: dict[str, Any], train: bool = True, more: Callable[[], list[str]] | None = None,
                 plainly: bool = True) -> None:  # fmt: skip
        self.main = fs.Program()
        with fs.program_guard(self.main, fs.Program()):
            inputs = [layer.data(n, ["batch", *feed[n].shape[1:]], stop_gradient=False) for n in "qkv"]
            mask = layer.data("mask", ["batch" if n == BATCH else n for n in feed["mask"].shape]) if "mask" in feed else None
            out = net(*inputs, mask)
            self.fetch: list[Any] = [out]
            if train:
                feed = {**feed, "weight": numbers(*(n if isinstance(n, int) else feed["q"].shape[0] for n in out.shape), seed=9)}
                given = layer.data("weight", list(out.shape))
                self.fetch += [g for _, g in fs.append_backward(out, inputs, loss_gradient=given)]
            self.fetch += more() if more else []
        self.feed, self.executor, self.scope = feed, fs.Executor(), fs.Scope()
        self.fused = self.executor.run(self.main, feed, self.fetch, self.scope)
        self.plain = fs.Executor(check=True).run(self.main, feed, self.fetch, fs.Scope()) if plainly else []
        self.source = self.executor.step(self.main, self.fetch).emitted.source

    def agree(self, within: float = 2e-5) -> None:
        for a, b in zip(self.fused, self.plain, strict=True):
            np.testing.assert_allclose(a, b, rtol=within, atol=within)

    def calls(self) -> tuple[int, int]:
        return self.source.count("= attention"), self.source.count("= gradient")


def heads(t: int = 7, s: int = 5, d: int = 8, batch: int = BATCH) -> dict[str, Any]:
    return {"q": numbers(batch, HEADS, t, d), "k": numbers(batch, HEADS, s, d, seed=1), "v": numbers(batch, HEADS, s, d, seed=2)}


def times(t: int = 7, s: int = 5, d: int = 8, batch: int = BATCH) -> dict[str, Any]:
    return {n: x.transpose(0, 2, 1, 3).copy() for n, x in heads(t, s, d, batch).items()}


NETS = [usual, scaled_scores, scaled_twice, not_scaled, turned]


MASKS = (None, (1, 1, 7, 5), (BATCH, 1, 1, 5), (BATCH, HEADS, 7, 5), (HEADS, 7, 5), (7, 5), (5,), (1, HEADS, 7, 1))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("net", "mask"), each_of_product(3, NETS, MASKS))
def test_attention_and_its_gradient(net: Net, mask: tuple[int, ...] | None) -> None:
    more = {} if mask is None else {"mask": numbers(*mask)}
    for run in (Run(net, heads() | more), Run(of_heads(net), times() | more)):
        run.agree()
        assert run.calls() == (1, 1)
        assert "softmax" not in run.source


@pytest.mark.parametrize("net", NETS)
def test_attention_alone(net: Net) -> None:
    for more in ({}, {"mask": numbers(7, 5)}):
        run = Run(net, heads() | more, train=False)
        run.agree()
        assert run.calls() == (1, 0)


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 9, 3), (9, 1, 17), (33, 34, 31), (200, 513, 5), (70, 40, 100), (0, 5, 8), (0, 0, 4), (5, 0, 4)])
def test_sizes(sizes: tuple[int, int, int], mask: bool) -> None:
    t, s, d = sizes
    more = {"mask": numbers(t, s)} if mask else {}
    for net in (usual, turned):
        run = Run(net, heads(t, s, d) | more)
        run.agree(1e-4)
        assert run.calls() == (1, 1)


def operands(run: Run) -> int:
    return len(re.findall(r"= attention\d*\((.*?)\)", run.source)[0].split(","))


def hiding(x: fs.Variable, y: fs.Variable, value: float = -1e9, diagonal: int = 1) -> fs.Variable:
    """A mask made of a constant, that hides from rows of x those of y which come later."""
    of_x, of_y = (v.spec.known_dims[2] for v in (x, y))
    time, keys = (n if isinstance(n, int) else layer.shape(v)[2:3] for n, v in ((of_x, x), (of_y, y)))
    return layer.triu(layer.fill_constant([1, 1, time, keys], "fp32", value), diagonal)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("sizes", [(7, 5), (5, 7), (1, 3), (70, 70), (300, 600), (5, 0)])
@pytest.mark.parametrize("net", [scaled_scores, turned])
def test_a_mask_that_hides_what_is_later_is_not_made(net: Net, sizes: tuple[int, int]) -> None:
    def masked(q: fs.Variable, k: fs.Variable, v: fs.Variable, mask: fs.Variable | None) -> fs.Variable:
        return net(q, k, v, hiding(q, v))

    for train in (True, False):
        run = Run(masked, heads(*sizes), train)
        run.agree(1e-4)
        assert run.calls() == (1, int(train)) and operands(run) == 3 and "value0" not in run.source


@pytest.mark.parametrize(("value", "diagonal"), [(-5.0, 1), (-1e9, 0)])
def test_another_triangle_is_a_mask_like_others(value: float, diagonal: int) -> None:
    run = Run(lambda q, k, v, _: scaled_scores(q, k, v, hiding(q, k, value, diagonal)), heads())
    run.agree()
    assert run.calls() == (1, 1) and operands(run) == 4


def test_a_mask_that_is_fetched_is_made() -> None:
    masks: list[fs.Variable] = []

    def masked(q: fs.Variable, k: fs.Variable, v: fs.Variable, _: fs.Variable | None) -> fs.Variable:
        masks.append(hiding(q, k))
        return scaled_scores(q, k, v, masks[0])

    run = Run(masked, heads(), more=lambda: [masks[0].name])
    run.agree()
    assert run.calls() == (1, 1) and operands(run) == 3


def test_no_examples() -> None:
    for more in ({}, {"mask": numbers(7, 5)}):
        run = Run(of_heads(usual), times(batch=0) | more)
        run.agree()
        assert run.calls() == (1, 1)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("net", NETS)
def test_without_heads(net: Net) -> None:
    feed = {n: x[:, 0] for n, x in heads().items()}
    for more in ({}, {"mask": numbers(7, 5)}, {"mask": numbers(BATCH, 7, 5)}, {"mask": numbers(BATCH, 1, 5)}):
        run = Run(net, feed | more)
        run.agree()
        assert run.calls() == (1, 1)


@pytest.mark.parametrize("sizes", [(7, 5, 8), (40, 900, 3)])
@pytest.mark.parametrize("low", [-1e4, -1e9, -3e38, 1e9])
def test_rows_that_a_mask_moves_far_away(low: float, sizes: tuple[int, int, int]) -> None:
    t, s, _ = sizes
    mask = np.zeros((BATCH, 1, t, s), "float32")
    mask[0, 0, 2, :] = low  # nothing to look at
    mask[1, 0, :, 3:] = low
    run = Run(usual, heads(*sizes) | {"mask": mask})
    run.agree()
    assert run.calls() == (1, 1)


def test_where_there_is_nothing_to_look_at_no_number_is_made() -> None:
    mask = np.zeros((BATCH, 1, 7, 5), "float32")
    mask[0, 0, 2, :] = -np.inf
    run = Run(usual, heads() | {"mask": mask}, plainly=False)
    assert run.calls() == (1, 1)
    assert np.isnan(run.fused[0][0, :, 2]).all()
    assert all(np.isfinite(x[1]).all() for x in run.fused)
    assert all(np.isnan(x[0]).any() for x in run.fused[1:])


def test_strided_operands() -> None:
    """A slice of a joint projection, an expanded tensor, and columns of a transposed one: what the kernel cannot take is copied."""

    def joint(q: Any, k: Any, v: Any, mask: Any) -> Any:
        both = layer.transpose(layer.concat([k, v], 3), [0, 1, 3, 2])
        k, v = (layer.transpose(x, [0, 1, 3, 2]) for x in layer.split(both, 2, 2))
        return usual(layer.expand(q, [-1, -1, 7, -1]), k, v, mask)

    feed = heads()
    run = Run(joint, feed | {"q": feed["q"][:, :, :1]})
    run.agree()
    assert run.calls() == (1, 1)


BETWEEN = ["scale", "matmul_v2", "elementwise_add", "softmax", "softmax@GRAD"]


@pytest.mark.parametrize("what", BETWEEN)
def test_what_is_fetched_is_made(what: str) -> None:
    def more() -> list[str]:
        kind, _, gradient = what.partition("@")
        op = next(op for op in fs.default_main_program().global_block.ops if op.type == kind)
        return [op.outputs["Out"][0] + (f"@{gradient}" if gradient else "")]

    run = Run(scaled_scores, heads() | {"mask": numbers(7, 5)}, more=more)
    run.agree()
    assert run.calls() == (0, 0)


def test_a_scaled_query_that_is_fetched_is_made() -> None:
    def more() -> list[str]:
        return [next(op for op in fs.default_main_program().global_block.ops if op.type == "scale").outputs["Out"][0]]

    run = Run(usual, heads(), more=more)
    run.agree()
    assert run.calls() == (1, 1)


def read_again(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = layer.softmax(layer.matmul(q, k, transpose_y=True))
    return layer.matmul(weights, v) + layer.reduce_sum(weights)


def over_queries(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return layer.matmul(layer.softmax(layer.matmul(q, k, transpose_y=True), 2), v)


def moved(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return layer.matmul(layer.softmax(layer.scale(layer.matmul(q, k, transpose_y=True), 0.3, bias=1.0)), v)


def learned_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The mask gets a gradient."""
    return layer.matmul(layer.softmax(layer.matmul(q, k, transpose_y=True) + layer.reduce_sum(v, [-1, -2], keepdim=True)), v)


def of_another_width(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return layer.matmul(layer.softmax(layer.matmul(q, k, transpose_y=True)), layer.concat([v, v], 3))


def broadcast_keys(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """One head of keys for all heads of queries."""
    return usual(q, layer.slice(k, [1], [0], [1]), v, mask)


@pytest.mark.parametrize("net", [read_again, over_queries, moved, learned_mask, of_another_width, broadcast_keys])
def test_what_is_not_the_pattern_stays(net: Net) -> None:
    run = Run(net, heads())
    run.agree()
    assert run.calls() == (0, 0)


@pytest.mark.parametrize("of", ["q", "k", "v"])
def test_gradients_that_nobody_wants(of: str) -> None:
    feed = heads()
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data(of, list(feed[of].shape), stop_gradient=False)
        out = usual(*(x if n == of else layer.data(n, list(feed[n].shape)) for n in "qkv"), None)
        given = layer.data("weight", list(out.shape))
        fetch = [out, *(g for _, g in fs.append_backward(out, [x], loss_gradient=given))]
    feed["weight"] = numbers(*feed["q"].shape, seed=9)
    executor = fs.Executor()
    for a, b in zip(executor.run(main, feed, fetch), fs.Executor(check=True).run(main, feed, fetch), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    if of != "v":  # the gradient of the weights is not asked for there
        assert "= gradient" in executor.step(main, fetch).emitted.source


@pytest.mark.parametrize(("of", "fused"), [("fp32", True), ("fp64", False)])
def test_sizes_that_are_known_to_be_equal_by_what_is_done_with_them(of: str, fused: bool) -> None:
    """Operands of open sizes, and a mask with sizes of its own: that they broadcast to those of the scores is what the product demands."""
    main, number = fs.Program(), {"fp32": "float32", "fp64": "float64"}[of]
    with fs.program_guard(main, fs.Program()):
        inputs = [layer.data(n, [-1, HEADS, time, 8], of, stop_gradient=False) for n, time in zip("qkv", ("time", "keys", "keys"), strict=True)]
        out = scaled_scores(*inputs, layer.data("mask", [-1, 1, 1, -1], of))
        fetch = [out, *(g for _, g in fs.append_backward(layer.reduce_sum(layer.square(out)), inputs))]
    executor, feed = fs.Executor(), {n: x.astype(number) for n, x in (heads() | {"mask": numbers(BATCH, 1, 1, 5)}).items()}
    for a, b in zip(executor.run(main, feed, fetch), fs.Executor(check=True).run(main, feed, fetch), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    source = executor.step(main, fetch).emitted.source
    assert (source.count("= attention"), source.count("= gradient")) == ((1, 1) if fused else (0, 0))


@pytest.mark.parametrize(("name", "calls"), [("mask", (0, 0)), ("q", (1, 1))])
def test_what_is_changed_before_its_gradient_is_read_as_it_was(name: str, calls: tuple[int, int]) -> None:
    """A mask, or a query that is scaled, which the scope holds, and to which the step adds something after the attention."""
    main, scopes, held = fs.Program(), [fs.Scope(), fs.Scope()], {"mask": numbers(7, 5), "q": numbers(1, HEADS, 7, 8)}[name]
    with fs.program_guard(main, fs.Program()):
        kept = main.global_block.create_variable(name, fs.core.spec.tensor(fs.FP32, *held.shape), persistable=True, stop_gradient=True)
        k, v = (layer.data(n, [1, HEADS, 5, 8], stop_gradient=False) for n in "kv")
        q, mask = (layer.data("q", [1, HEADS, 7, 8]), kept) if name == "mask" else (kept, layer.data("mask", [7, 5]))
        out = usual(q, k, v, mask)
        main.global_block.append_op("elementwise_add", {"X": kept, "Y": layer.data("more", list(held.shape))}, {"Out": kept})
        fetch = [out, *(g for _, g in fs.append_backward(layer.reduce_sum(layer.square(out)), [k, v]))]
    feed = heads(batch=1) | {"mask": numbers(7, 5), "more": numbers(*held.shape, seed=5)}
    feed.pop(name)
    for scope in scopes:
        scope.set(name, held)
    executor = fs.Executor()
    for a, b in zip(executor.run(main, feed, fetch, scopes[0]), fs.Executor(check=True).run(main, feed, fetch, scopes[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    source = executor.step(main, fetch).emitted.source
    assert (source.count("= attention"), source.count("= gradient")) == calls
