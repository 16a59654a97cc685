"""Operators that are several in one, against the operators that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import foreshape as fs
from foreshape.core.spec import tensor
from foreshape.language.program import Program

RNG = np.random.RandomState(2)


def normal(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype("float32")


def computed(type: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None, result: str = "Out") -> np.ndarray:
    """One result of one op."""
    program = Program()
    block = program.global_block
    given: dict[str, Any] = {}
    feed: dict[str, np.ndarray] = {}
    for slot, value in inputs.items():
        for k, array in enumerate(value if isinstance(value, list) else [value]):
            feed[f"{slot}.{k}"] = array
            given.setdefault(slot, []).append(block.create_variable(f"{slot}.{k}", tensor(fs.core.spec.dtype(array.dtype), *array.shape), need_check_feed=True))
    op = block.append_op(type, given, None, attrs)
    return fs.Executor().run(program, feed, [op.outputs[result][0]], fs.Scope())[0]


def norm(x: np.ndarray, scale: np.ndarray | None = None, bias: np.ndarray | None = None, epsilon: float = 1e-5) -> np.ndarray:
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return y * (1 if scale is None else scale) + (0 if bias is None else bias)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, mask: np.ndarray | None) -> np.ndarray:
    """Of [batch, heads, steps, numbers], as [batch, steps, hidden]."""
    scores = q @ k.swapaxes(-1, -2) * scale + (0 if mask is None else mask)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ v
    return out.swapaxes(1, 2).reshape(out.shape[0], out.shape[2], -1)


def close(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_a_product_with_a_bias_and_a_rectifier() -> None:
    x, w, b = normal(2, 4, 5), normal(5, 3), normal(3)
    close(computed("fc", {"Input": x, "W": w, "Bias": b}, {"in_num_col_dims": 2, "activation_type": "relu"}), np.maximum(x @ w + b, 0))
    wide = normal(20, 3)
    close(computed("fc", {"Input": x, "W": wide}), x.reshape(2, 20) @ wide)
    padded = np.pad(w, ((0, 4), (0, 4)), constant_values=9)
    close(computed("fc", {"Input": x, "W": padded, "Bias": b}, {"in_num_col_dims": 2, "padding_weights": True}), x @ w + b)
    attrs: dict[str, Any] = {"activation": "relu", "trans_x": True, "trans_y": True}
    close(computed("fused_gemm_epilogue", {"X": np.ascontiguousarray(x[0].T), "Y": np.ascontiguousarray(w.T), "Bias": b}, attrs), np.maximum(x[0] @ w + b, 0))
    y, scale, bias = normal(2, 4, 3), normal(3), normal(3)
    given = {"X": x, "W": w, "Y": y, "Bias0": b, "Scale": scale, "Bias1": bias}
    attrs = {"x_num_col_dims": 2, "begin_norm_axis": 2, "activation_type": "relu"}
    close(computed("fused_fc_elementwise_layernorm", given, attrs), norm(np.maximum(x @ w + b, 0) + y, scale, bias))


@pytest.mark.parametrize("masked", [False, True])
def test_attention_over_one_product(masked: bool) -> None:
    x, w, b, mask = normal(2, 3, 8), normal(8, 3, 8), normal(3, 8), normal(2, 1, 1, 3)
    q, k, v = (np.einsum("bsi,io->bso", x, w[:, at]) + b[at] for at in range(3))
    q, k, v = (t.reshape(2, 3, 2, 4).swapaxes(1, 2) for t in (q, k, v))
    given = {"Input": x, "W": w, "Bias": b} | ({"BiasQK": mask} if masked else {})
    close(computed("multihead_matmul", given, {"head_number": 2, "alpha": 0.5}), attention(q, k, v, 0.5, mask if masked else None))


@pytest.mark.parametrize("first", [False, True])
def test_a_layer_of_attention(first: bool) -> None:
    x, w, b, mask = normal(2, 3, 8), normal(3, 2, 5, 8), normal(3, 2, 5), normal(2, 1, 3, 3)
    out_w, out_b, scale, bias = normal(10, 8), normal(8), normal(8), normal(8)
    inner = norm(x, scale, bias) if first else x
    q, k, v = (np.einsum("bsi,hdi->bhsd", inner, w[at]) + b[at][:, None] for at in range(3))
    heads = attention(q, k, v, 5**-0.5, mask)
    summed = 0.75 * ((0.5 * heads) @ out_w + out_b) + x
    norms = {"LnScale": scale, "LnBias": bias} if first else {"Ln2Scale": scale, "Ln2Bias": bias}
    given = {"X": x, "QKVW": w, "QKVBias": b, "SrcMask": mask, "OutLinearW": out_w, "OutLinearBias": out_b} | norms
    attrs = {"pre_layer_norm": first, "is_test": True, "attn_dropout_rate": 0.5, "dropout_rate": 0.25}
    close(computed("fused_attention", given, attrs, "Y"), summed if first else norm(summed, scale, bias))
    flat = {"QKVW": np.ascontiguousarray(w.reshape(30, 8).T), "QKVBias": b.reshape(-1)}
    close(computed("fused_attention", given | flat, attrs | {"transpose_qkv_wb": True, "num_heads": 2}, "Y"), summed if first else norm(summed, scale, bias))


@pytest.mark.parametrize("first", [False, True])
def test_two_products_after_attention(first: bool) -> None:
    x, w1, b1, w2, b2, scale, bias = normal(2, 3, 5), normal(5, 7), normal(7), normal(7, 5), normal(5), normal(5), normal(5)
    inner = norm(x, scale, bias) if first else x
    hidden = F.gelu(torch.from_numpy(inner @ w1 + b1)).numpy()
    summed = hidden @ w2 + b2 + x
    norms = {"Ln1Scale": scale, "Ln1Bias": bias} if first else {"Ln2Scale": scale, "Ln2Bias": bias}
    attrs = {"pre_layer_norm": first, "is_test": True, "dropout1_implementation": "upscale_in_train", "dropout2_implementation": "upscale_in_train"}
    given = {"X": x, "Linear1Weight": w1, "Linear1Bias": b1, "Linear2Weight": w2, "Linear2Bias": b2} | norms
    close(computed("fused_feedforward", given, attrs), summed if first else norm(summed, scale, bias))


def test_sums_with_a_norm() -> None:
    x, y, scale, bias, b = normal(2, 3, 5), normal(2, 3, 5), normal(5), normal(5), normal(5)
    given = {"X": x, "Residual": y, "Bias": b, "LnScale": scale, "LnBias": bias}
    close(computed("fused_bias_dropout_residual_layer_norm", given, {"is_test": True}, "Y"), norm(y + 0.5 * (x + b), scale, bias))
    close(computed("fused_dropout_add", {"x": x, "y": y}, {"is_test": True, "p": 0.25, "mode": "downscale_in_infer"}, "out"), 0.75 * x + y)
    tables, ids = [normal(7, 5), normal(4, 5)], [RNG.randint(0, 7, (2, 3)), RNG.randint(0, 4, (2, 3))]
    found = sum(t[i] for t, i in zip(tables, ids, strict=True))
    close(computed("fused_embedding_eltwise_layernorm", {"Ids": ids, "Embs": tables, "Scale": scale, "Bias": bias}), norm(found, scale, bias))
    with pytest.raises(fs.ExecutionError, match="Ids must be in"):
        computed("fused_embedding_eltwise_layernorm", {"Ids": [ids[0] + 7], "Embs": tables[:1], "Scale": scale, "Bias": bias})


def test_products_one_after_the_other_and_squared() -> None:
    x, a, b, c, d = normal(2, 3), normal(3, 4), normal(4), normal(4, 5), normal(5)
    found = computed("fusion_repeated_fc_relu", {"X": x, "W": [a, c], "Bias": [b, d]})
    close(found, np.maximum(np.maximum(x @ a + b, 0) @ c + d, 0))
    close(computed("fusion_squared_mat_sub", {"X": x, "Y": a}, {"scalar": 0.5}), 0.5 * ((x @ a) ** 2 - x**2 @ a**2))


def test_recurrences_with_their_products_are_those_after_products() -> None:
    program = Program()
    block = program.global_block
    x = block.create_variable("x", fs.layer.data("rows", shape=["rows", 5], lod_level=1).spec, need_check_feed=True)
    feed: dict[str, Any] = {"x": fs.LoDTensor(normal(7, 5), [[4, 3]])}

    def matrix(name: str, *dims: int) -> Any:
        feed[name] = normal(*dims)
        return block.create_variable(name, tensor(fs.FP32, *dims), need_check_feed=True)

    wx, wh, bias = matrix("wx", 5, 12), matrix("wh", 4, 12), matrix("bias", 1, 12)
    vx, vh, peep = matrix("vx", 5, 8), matrix("vh", 2, 8), matrix("peep", 1, 14)
    one = block.append_op("fusion_gru", {"X": x, "WeightX": wx, "WeightH": wh, "Bias": bias}, None, {"is_reverse": True})
    two = block.append_op("gru", {"Input": block.apply("mul", {"X": x, "Y": wx}), "Weight": wh, "Bias": bias}, None, {"is_reverse": True})
    three = block.append_op("fusion_lstm", {"X": x, "WeightX": vx, "WeightH": vh, "Bias": peep})
    four = block.append_op("lstm", {"Input": block.apply("mul", {"X": x, "Y": vx}), "Weight": vh, "Bias": peep})
    found = fs.Executor().run(program, feed, [op.outputs["Hidden"][0] for op in (one, two, three, four)], fs.Scope())
    for a, b in ((0, 1), (2, 3)):
        close(np.asarray(found[a]), np.asarray(found[b]))
        assert found[a].sequence_lengths == [[4, 3]]
