"""Attention, positions and blocks of transformers, beside torch's: values, gradients, training; and which kernels a step has of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.errors import SchemaError, ShapeError, TypeMismatchError

RNG = np.random.RandomState(3)
WIDTH, HEADS = 8, 2


def arrays(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype("float32")


def started(seed: int = 0) -> tuple[fs.Executor, fs.Scope]:
    """An executor and a scope in which all parameters are random, biases too."""
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    rng = np.random.RandomState(seed)
    for v in fs.default_main_program().parameters():
        scope.set(v.name, (rng.standard_normal([int(d) for d in v.dims]) * 0.3 + (1.0 if "norm.weight" in v.name else 0.0)).astype("float32"))
    return executor, scope


def of(scope: fs.Scope, name: str) -> torch.Tensor:
    return torch.from_numpy(np.array(scope.get(name)))


def put_attention(into: torch.nn.MultiheadAttention, scope: fs.Scope, prefix: str) -> None:
    with torch.no_grad():
        into.in_proj_weight.copy_(torch.cat([of(scope, f"{prefix}.{n}.weight").T for n in ("query", "key", "value")]))
        into.in_proj_bias.copy_(torch.cat([of(scope, f"{prefix}.{n}.bias") for n in ("query", "key", "value")]))
        into.out_proj.weight.copy_(of(scope, f"{prefix}.output.weight").T)
        into.out_proj.bias.copy_(of(scope, f"{prefix}.output.bias"))


def put_rest(into: Any, scope: fs.Scope, prefix: str, norms: list[str]) -> None:
    with torch.no_grad():
        for there, here in ((into.linear1, "mlp.inner"), (into.linear2, "mlp.outer")):
            there.weight.copy_(of(scope, f"{prefix}.{here}.weight").T)
            there.bias.copy_(of(scope, f"{prefix}.{here}.bias"))
        for at, here in enumerate(norms, 1):
            there = getattr(into, f"norm{at}")
            there.weight.copy_(of(scope, f"{prefix}.{here}.weight"))
            there.bias.copy_(of(scope, f"{prefix}.{here}.bias"))


def fused(executor: fs.Executor, fetch: list[Any]) -> tuple[int, int]:
    """How many attentions of a step are one kernel, and how many of their gradients."""
    source = executor.step(fs.default_main_program(), fetch).emitted.source
    assert "softmax" not in source.replace("log_softmax", "")
    return source.count("= attention"), source.count("= gradient")


def close(a: Any, b: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(a), b.detach().numpy() if isinstance(b, torch.Tensor) else b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("masked", ["", "causal", "keys", "both", "added"])
def test_attention_is_torchs_with_its_gradients_and_one_kernel_each_way(masked: str) -> None:
    x = layer.data("x", ["batch", "time", WIDTH], stop_gradient=False)
    given: dict[str, Any] = {"x": arrays(3, 5, WIDTH)}
    causal, mask, hidden, there = masked in ("causal", "both"), None, None, None
    if masked in ("keys", "both"):
        mask = layer.data("mask", ["batch", "time"], "bool")
        given["mask"] = np.arange(5) < np.array([[5], [2], [4]])
        hidden = torch.from_numpy(~given["mask"])
    if masked == "added":
        mask = layer.data("mask", [1, HEADS, "time", "time"])
        given["mask"] = arrays(1, HEADS, 5, 5)
        there = torch.from_numpy(given["mask"]).repeat(3, 1, 1, 1).flatten(0, 1)
    out = layer.multi_head_attention(x, heads=HEADS, causal=causal, mask=mask)
    assert str(out.spec.known_dims) == "(batch, time, 8)"
    fs.append_backward(layer.reduce_sum(layer.square(out)), [x, "attention.key.weight"])
    executor, scope = started()
    fetch = [out, "x@GRAD", "attention.key.weight@GRAD"]
    value, d_x, d_w = executor.run(feed=given, fetch=fetch, scope=scope)
    other = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    put_attention(other, scope, "attention")
    t = torch.from_numpy(given["x"]).requires_grad_()
    if causal:
        there = torch.triu(torch.full((5, 5), -torch.inf), 1)
        hidden = None if hidden is None else torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    expected, _ = other(t, t, t, key_padding_mask=hidden, attn_mask=there, need_weights=False)
    expected.square().sum().backward()
    close(value, expected)
    close(d_x, t.grad)
    close(d_w, other.in_proj_weight.grad[WIDTH : 2 * WIDTH].T)
    assert fused(executor, fetch) == (1, 1)
    called = re.findall(r"= attention\d*\((.*?)\)", executor.step(fs.default_main_program(), fetch).emitted.source)[0]
    assert len(called.split(",")) == (3 if masked in ("", "causal") else 4)  # what is later is left out, not hidden by a mask


def test_cross_attention_looks_at_another_width_and_is_torchs() -> None:
    x, memory = layer.data("x", ["batch", "time", WIDTH]), layer.data("memory", ["batch", "keys", 6])
    out = layer.multi_head_attention(x, memory, heads=HEADS, output_size=3, name="cross")
    assert str(out.spec.known_dims) == "(batch, time, 3)"
    executor, scope = started()
    given = {"x": arrays(2, 3, WIDTH), "memory": arrays(2, 5, 6)}
    (value,) = executor.run(feed=given, fetch=[out], scope=scope)
    q, k, v = (torch.from_numpy(given[n]) @ of(scope, f"cross.{w}.weight") + of(scope, f"cross.{w}.bias")
               for n, w in (("x", "query"), ("memory", "key"), ("memory", "value")))  # fmt: skip
    heads = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
    mixed = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    close(value, mixed @ of(scope, "cross.output.weight") + of(scope, "cross.output.bias"))
    assert fused(executor, [out]) == (1, 0)


@pytest.mark.parametrize("rotary", [False, True])
def test_ragged_attention_is_that_of_each_sequence_alone(rotary: bool) -> None:
    x = layer.data("x", ["rows", WIDTH], lod_level=1)
    out = layer.multi_head_attention(x, heads=HEADS, causal=True, rotary=rotary, name="a")
    executor, scope = started()
    rows, lengths = arrays(7, WIDTH), [4, 0, 1, 2]
    (value,) = executor.run(feed={"x": fs.LoDTensor(rows, [lengths])}, fetch=[out], scope=scope)
    alone = fs.Program(), fs.Program()
    with fs.program_guard(*alone):
        dense = layer.data("dense", ["batch", "time", WIDTH])
        other = layer.multi_head_attention(dense, heads=HEADS, causal=True, rotary=rotary, name="a")
    at = 0
    for n in lengths:
        if n:
            (expected,) = executor.run(alone[0], {"dense": rows[None, at : at + n]}, [other], scope)
            close(np.asarray(value)[at : at + n], expected[0])
        at += n


@pytest.mark.quick_cases("pre")
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_blocks_train_as_torchs(norm: str) -> None:
    """An encoder and a decoder, a few steps of gradient descent: the losses, and the weights at the end."""
    source, target = layer.data("source", ["batch", "words", WIDTH]), layer.data("target", ["batch", "time", WIDTH])
    is_word = layer.data("is_word", ["batch", "words"], "bool")
    memory = layer.transformer_encoder(source, 2, HEADS, 16, mask=is_word, norm=norm)
    out = layer.transformer_decoder(target, memory, 1, HEADS, 16, memory_mask=is_word, norm=norm)
    loss = layer.mse_loss(out, target)
    fs.optimizer.SGD(0.1).minimize(loss)
    executor, scope = started()
    settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": norm == "pre"}
    encoder = [torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 16, **settings) for _ in range(2)]
    decoder = torch.nn.TransformerDecoderLayer(WIDTH, HEADS, 16, **settings)
    last = [torch.nn.LayerNorm(WIDTH) for _ in range(2)] if norm == "pre" else []
    for i, block in enumerate(encoder):
        put_attention(block.self_attn, scope, f"encoder.{i}.attention")
        put_rest(block, scope, f"encoder.{i}", ["attention_norm", "mlp_norm"])
    put_attention(decoder.self_attn, scope, "decoder.0.attention")
    put_attention(decoder.multihead_attn, scope, "decoder.0.cross_attention")
    put_rest(decoder, scope, "decoder.0", ["attention_norm", "cross_attention_norm", "mlp_norm"])
    with torch.no_grad():
        for there, here in zip(last, ("encoder", "decoder"), strict=False):
            there.weight.copy_(of(scope, f"{here}.norm.weight"))
            there.bias.copy_(of(scope, f"{here}.norm.bias"))
    modules = torch.nn.ModuleList([*encoder, decoder, *last])
    descent = torch.optim.SGD(modules.parameters(), 0.1)
    given = {"source": arrays(3, 4, WIDTH), "target": arrays(3, 5, WIDTH), "is_word": np.arange(4) < np.array([[4], [1], [3]])}
    s, t, hidden = torch.from_numpy(given["source"]), torch.from_numpy(given["target"]), torch.from_numpy(~given["is_word"])
    for _ in range(3):
        (mine,) = executor.run(feed=given, fetch=[loss], scope=scope)
        m = s
        for block in encoder:
            m = block(m, src_key_padding_mask=hidden)
        m = last[0](m) if last else m
        o = decoder(t, m, tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(5), tgt_is_causal=True, memory_key_padding_mask=hidden)
        theirs = torch.nn.functional.mse_loss(last[1](o) if last else o, t)
        descent.zero_grad()
        theirs.backward()
        descent.step()
        close(mine, theirs)
    close(scope.get("encoder.0.mlp.inner.weight"), encoder[0].linear1.weight.T)
    close(scope.get("decoder.0.cross_attention.output.weight"), decoder.multihead_attn.out_proj.weight.T)
    assert fused(executor, [loss]) == (4, 4)
    places = {op.scope[:2] for op in fs.default_main_program().global_block.ops if op.type == "softmax"}
    assert places == {("encoder", "0"), ("encoder", "1"), ("decoder", "0")}


def test_positions() -> None:
    x, ragged = layer.data("x", ["batch", "time", 6]), layer.data("ragged", ["rows", 6], lod_level=1)
    fetch = [layer.position_numbers(x), layer.position_numbers(ragged), layer.sinusoidal_positions(x), layer.sinusoidal_positions(ragged)]
    assert [str(v.spec.known_dims) for v in fetch] == ["(time,)", "(rows,)", "(time, 6)", "(rows, 6)"]
    feed = {"x": arrays(3, 4, 6), "ragged": fs.LoDTensor(arrays(5, 6), [[2, 0, 3]])}
    numbers, of_rows, table, by_row = fs.Executor().run(feed=feed, fetch=fetch, scope=fs.Scope())
    angles = np.arange(4)[:, None] / 10000.0 ** (np.arange(0, 6, 2) / 6)
    expected = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(4, 6)
    close(table, expected)
    close(numbers, np.arange(4))
    close(np.asarray(of_rows), [0, 1, 0, 1, 2])
    close(np.asarray(by_row), expected[[0, 1, 0, 1, 2]])


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_positions_turn_pairs_and_keep_products_by_distance(interleaved: bool) -> None:
    x = layer.data("x", ["batch", "time", 2, 4], stop_gradient=False)
    out = layer.rotary_positions(x, interleaved=interleaved)
    assert out.spec is x.spec
    fs.append_backward(layer.reduce_sum(layer.square(out)), [x])
    given = np.broadcast_to(arrays(1, 1, 2, 4), (1, 5, 2, 4)).copy()
    value, d_x = fs.Executor().run(feed={"x": given}, fetch=[out, "x@GRAD"], scope=fs.Scope())
    close(d_x, 2 * given)  # what is turned keeps its length
    pairs = given.reshape(1, 5, 2, 2, 2) if interleaved else np.stack([given[..., :2], given[..., 2:]], -1)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * np.arange(5)[:, None] * 10000.0 ** (-np.arange(0, 4, 2) / 4))[None, :, None]
    parts = np.stack([turned.real, turned.imag], -1)
    close(value, parts.reshape(1, 5, 2, 4) if interleaved else np.concatenate([parts[..., 0], parts[..., 1]], -1))
    products = np.einsum("bqhd,bkhd->hqk", value, value)
    close(products[:, 0, 2], products[:, 2, 4])


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_tied_weight_has_the_sum_of_both_gradients(is_sparse: bool) -> None:
    words = layer.data("words", ["batch", "time"], "int64")
    h = layer.tanh(layer.embedding(words, [11, 4], is_sparse=is_sparse, weight="words.weight"))
    table = layer.create_parameter([11, 4], "fp32", "words.weight")
    loss = layer.mean(layer.softmax_with_cross_entropy(layer.matmul(h, table, transpose_y=True), layer.unsqueeze(words, 2)))
    fs.append_backward(loss)
    executor, scope = started()
    given = RNG.randint(0, 11, (2, 3))
    (d,) = executor.run(feed={"words": given}, fetch=["words.weight@GRAD"], scope=scope)
    w = of(scope, "words.weight").requires_grad_()
    logits = torch.nn.functional.embedding(torch.from_numpy(given), w).tanh() @ w.T
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(given).flatten()).backward()
    close(d, w.grad)
    assert [v.name for v in fs.default_main_program().parameters()] == ["words.weight"]


def test_split_divides_heads_and_network_without_gathering() -> None:
    x, mask = layer.data("x", ["batch", "time", WIDTH]), layer.data("mask", ["batch", "time"], "bool")
    cost = layer.mean(layer.square(layer.transformer_encoder(x, 1, HEADS, mask=mask, causal=True, split=True)))
    fs.optimizer.SGD(0.1).minimize(cost)
    made = fs.split_layers().apply(fs.default_main_program(), cost, 2, fs.default_startup_program())
    parts = {p.name.removesuffix("@SPLIT_0").removeprefix("encoder.0."): p.dims for p in made.parts}
    assert parts["attention.query.weight"] == (8, 4) and parts["attention.output.weight"] == (4, 8) and parts["mlp.inner.bias"] == (16,)
    assert not any(op.type in ("c_concat", "c_split") for op in made.program.global_block.ops)


def test_what_does_not_fit_is_refused_with_the_line() -> None:
    x, ragged = layer.data("x", ["batch", "time", WIDTH]), layer.data("ragged", ["rows", WIDTH], lod_level=1)

    def shared(x: fs.Variable, **named: Any) -> fs.Variable:
        return layer.multi_head_attention(x, heads=2, weight="w", **named)

    for error, words, call in [
        (ShapeError, "heads must divide the width 8; seen 3", lambda: layer.multi_head_attention(x, heads=3)),
        (ShapeError, "of a known width", lambda: layer.multi_head_attention(layer.data("y", ["batch", 3, "w"]))),
        (TypeMismatchError, "both be ragged, or both dense", lambda: layer.multi_head_attention(x, ragged, heads=2)),
        (SchemaError, "no padding to mask", lambda: layer.multi_head_attention(ragged, heads=2, mask=x)),
        (SchemaError, "seen dropout 0.1", lambda: layer.multi_head_attention(ragged, heads=2, dropout=0.1)),
        (ShapeError, "a mask must be", lambda: layer.attention_mask(x, mask=layer.data("m", ["batch"], "bool"))),
        (ShapeError, "as \\[time, keys\\]; say layer.unsqueeze", lambda: layer.attention_mask(x, mask=layer.data("n", ["time", "time"]))),
        (SchemaError, "the parameter w.output is shared", lambda: shared(shared(x), output_size=4)),
        (SchemaError, "at least 1 block", lambda: layer.transformer_encoder(x, 0)),
        (SchemaError, "norm must be 'pre' or 'post' or 'result'", lambda: layer.transformer_encoder_block(x, 2, norm="middle")),
        (ShapeError, "known and even", lambda: layer.sinusoidal_positions(layer.data("z", ["batch", "time", 5]))),
        (ShapeError, "heads 3", lambda: layer.rotary_positions(ragged, 3)),
    ]:
        with pytest.raises(error, match=words) as caught:
            call()
        assert "test_transformers.py" in str(caught.value)
