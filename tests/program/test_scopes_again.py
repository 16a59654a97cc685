"""A scope that is described again with `reuse=True`, and blocks whose weights have names: one set of parameters, whose gradients are summed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import SchemaError

Described = Callable[[fs.Variable], Any]

BLOCKS: dict[str, Described] = {
    "fc": lambda x: layer.fc(layer.fc(x, 8, "relu", 1), 8, None, 1),
    "fc of several": lambda x: layer.fc([x, x], 8, "tanh", 1),
    "norms": lambda x: layer.batch_norm(layer.layer_norm(x, 2)),
    "parameters": lambda x: x * layer.create_parameter([8], "fp32") + layer.create_parameter([8], "fp32", prefix="shift"),
    "a slope": lambda x: layer.prelu(x, "channel"),
    "attention": lambda x: layer.multi_head_attention(layer.multi_head_attention(x, heads=2), heads=2),
    "encoder": lambda x: layer.transformer_encoder(x, 2, 2),
    "decoder": lambda x: layer.transformer_decoder(x, x, 2, 2),
    "recurrent": lambda x: layer.gru(layer.lstm(x, 8, 2, True)[0], 8)[0],
    "scopes within": lambda x: layer.mlp(layer.mlp(x, 4), 4),
    "a loop": lambda x: layer.while_loop(lambda v: layer.less_than(layer.mean(v), 0.0), lambda v: layer.fc(v, 8, "relu", 1), [x]),
    "a table": lambda x: layer.embedding(layer.argmax(x, 2), [8, 4]),
}


def names() -> list[str]:
    return [v.name for v in fs.default_main_program().parameters()]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_that_is_described_again_has_the_same_parameters(block: str) -> None:
    describe = BLOCKS[block]
    x, y = layer.data("x", ["batch", 3, 8]), layer.data("y", ["batch", 3, 8])
    with fs.name_scope("net"), fs.name_scope("block"):
        describe(x)
    first, startup = names(), len(fs.default_startup_program().global_block.ops)
    reads = [op.all_reads() for op in fs.default_main_program().all_ops()]
    for again in (y, x):
        with fs.name_scope("net"), fs.name_scope("block", reuse=True):
            describe(again)
    assert names() == first and all(n.startswith("net.block.") for n in first)
    assert len(fs.default_startup_program().global_block.ops) == startup
    used = [set(first) & r for r in reads if set(first) & r]
    now = [set(first) & op.all_reads() for op in fs.default_main_program().all_ops() if set(first) & op.all_reads()]
    assert sorted(map(sorted, now)) == sorted(map(sorted, used * 3))


def tower(x: fs.Variable, **scope: Any) -> fs.Variable:
    with fs.name_scope(scope.pop("name", "tower"), **scope):
        return layer.fc(layer.fc(x, 6, "tanh"), 3)


def gradients(feed: dict[str, Any], of: list[str], values: dict[str, Any]) -> list[Any]:
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    for name, value in values.items():
        scope.set(name, value)
    return executor.run(feed=feed, fetch=[f"{n}@GRAD" for n in of], scope=scope)


def test_gradients_of_both_towers_are_summed() -> None:
    rng = np.random.RandomState(0)
    feed = {n: rng.standard_normal((5, 4)).astype("float32") for n in ("x", "y")}
    ends = ["fc.weight", "fc.bias", "fc_1.weight", "fc_1.bias"]
    values = {e: rng.standard_normal(dims).astype("float32") for e, dims in zip(ends, [(4, 6), (6,), (6, 3), (3,)], strict=True)}
    with fs.program():  # two sets of parameters with equal values
        a, b = tower(layer.data("x", 4)), tower(layer.data("y", 4))
        fs.append_backward(layer.mean(layer.square(a - b)))
        apart = [f"{t}.{e}" for t in ("tower", "tower_1") for e in ends]
        parts = gradients(feed, apart, {n: values[n.partition(".")[2]] for n in apart})
    a, b = tower(layer.data("x", 4)), tower(layer.data("y", 4), reuse=True)
    fs.append_backward(layer.mean(layer.square(a - b)))
    assert names() == [f"tower.{e}" for e in ends]
    summed = gradients(feed, names(), {f"tower.{e}": v for e, v in values.items()})
    for got, one, other in zip(summed, parts[:4], parts[4:], strict=True):
        np.testing.assert_allclose(got, one + other, rtol=1e-4, atol=1e-6)


def test_parameters_are_counted_once() -> None:
    tower(layer.data("x", 4))
    numbers = str(4 * 6 + 6 + 6 * 3 + 3)
    assert f"parameters: {numbers} numbers" in str(fs.default_main_program().summary())
    tower(layer.data("y", 4), reuse=True)
    assert f"parameters: {numbers} numbers" in str(fs.default_main_program().summary())
    assert [op.scope for op in fs.default_main_program().all_ops()] == [("tower",)] * 10


def test_which_scope_is_used_again_is_said_exactly() -> None:
    x = layer.data("x", 4)
    tower(x), tower(x)
    assert {n.partition(".")[0] for n in names()} == {"tower", "tower_1"}
    before = names()
    tower(x, reuse=True), tower(x, name="tower_1", reuse=True)
    assert names() == before
    reads = [op.input("Y") for op in fs.default_main_program().all_ops() if op.type == "mul"]
    assert reads == [f"{t}.{e}" for t in ("tower", "tower_1") * 2 for e in ("fc.weight", "fc_1.weight")]
    tower(x)
    assert names()[len(before)].startswith("tower_2.")  # who does not say it has another set, as before


def test_a_loaded_program_is_described_on_with_its_parameters() -> None:
    tower(layer.data("x", 4))
    loaded = fs.Program.from_bytes(fs.default_main_program().to_bytes())
    with fs.program_guard(loaded):
        tower(layer.data("y", 4), reuse=True)
    assert [v.name for v in loaded.parameters()] == names()


@pytest.mark.parametrize(
    ("describe", "words"),
    [
        (lambda x: tower(x, name="towr", reuse=True), r"no parameter is in a scope towr to be used again; .*begin with: tower"),
        (lambda x: tower(layer.data("z", 5), reuse=True), r"the parameter tower.fc.weight is shared, and is f32\[4, 6\], made at .*, not f32\[5, 6\]"),
        (lambda x: tower(tower(x, reuse="yes")), r"reuse must be True or False; seen 'yes'"),
    ],
)
def test_what_cannot_be_used_again_is_refused_with_the_line(describe: Described, words: str) -> None:
    x = layer.data("x", 4)
    tower(x)
    with pytest.raises(SchemaError, match=rf"(?s){words}.*test_scopes_again.py"):
        describe(x)


def test_another_layer_than_there_were_is_refused_and_nothing_of_it_is_left() -> None:
    x = layer.data("x", 4)
    tower(x)
    before = names()
    with fs.name_scope("tower", reuse=True):
        h = layer.fc(layer.fc(x, 6), 3)
        with pytest.raises(SchemaError, match=r"(?s)tower.fc_2.weight is not among the parameters of tower, .*tower.fc.weight, .*test_scopes_again.py"):
            layer.fc(h, 3)
        with pytest.raises(SchemaError, match=r"tower.conv2d.weight is not among"):
            layer.conv2d(layer.data("image", ["batch", 3, 8, 8]), 4, 3)
    assert names() == before


@pytest.mark.parametrize(
    ("describe", "first"),
    [
        (lambda x, **named: layer.multi_head_attention(x, heads=2, **named), "query"),
        (lambda x, **named: layer.mlp(x, 16, **named), "inner"),
        (lambda x, **named: layer.transformer_encoder_block(x, 2, **named), "attention_norm"),
        (lambda x, **named: layer.transformer_decoder_block(x, x, 2, **named), "attention_norm"),
        (lambda x, **named: layer.transformer_encoder(x, 2, 2, **named), "0.attention_norm"),
        (lambda x, **named: layer.transformer_decoder(x, x, 2, 2, **named), "0.attention_norm"),
    ],
)
def test_blocks_take_names_of_weights(describe: Callable[..., fs.Variable], first: str) -> None:
    x = layer.data("x", ["batch", 3, 8])
    describe(x, weight="w", bias=fs.ParamAttr("b", learning_rate=2.0))
    before = names()
    assert before[:2] == [f"w.{first}", f"b.{first}"] and all(n.startswith(("w.", "b.")) for n in before)
    describe(x, weight="w", bias="b")
    assert names() == before
    with fs.program():
        describe(layer.data("x", ["batch", 3, 8]), weight=layer.Normal(0.0, 0.02), bias=False)
        kinds = {v.name.rpartition(".")[2]: v.name for v in fs.default_main_program().parameters()}
        made = {op.output("Out"): op.type for op in fs.default_startup_program().all_ops()}
        assert kinds.keys() == {"weight"}
        assert all((kind == "gaussian_random") == ("norm" not in str(name)) for name, kind in made.items())
