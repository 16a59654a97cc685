"""Small networks of decoders.json as GGUF files, with the names and the changes of llama.cpp's converter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import decoders
import numpy as np

TOLD = json.loads(decoders.FILE.read_text())
ARCHITECTURES = {"gemma3_text": "gemma3", "phi": "phi2", "mistral": "llama", "cohere": "command-r", "gpt_neox": "gptneox"}
"""Names in GGUF files, where they are others than transformers'."""
PAIRS = ("llama", "mistral", "granite", "smollm3")
NAMES = (
    *("Llama, linear", "Llama, yarn", "Mistral", "Qwen 2", "Qwen 3", "Gemma", "Gemma 2", "Gemma 3", "Phi 3, a window", "Phi 3, longrope", "GPT-2"),
    *("SmolLM 3", "Granite", "OLMo 2", "Phi", "StarCoder 2", "StableLM", "Cohere", "GPT-NeoX", "GPT-NeoX, one after the other"),
)


def told(name: str, **settings: Any) -> dict[str, Any]:
    """Return a network whose settings GGUF files can say: `settings` change others."""
    if name == "GPT-2":
        return gpt2()
    case = TOLD["Qwen 2, a window" if name == "Qwen 2" else name]
    config = case["config"] | settings
    if config["model_type"] == "qwen2":  # its windows are not said there
        config["use_sliding_window"] = False
    if config["model_type"] == "smollm3":  # the layers without turned columns are each fourth one
        config["no_rope_layers"] = [1, 1]
    if config["model_type"] in ("starcoder2", "mistral"):
        config["sliding_window"] = config["sliding_window"] if config["model_type"] == "mistral" else None
    if config["model_type"] in ("gemma2", "gemma3_text"):  # the divisor of scores is that of the released networks
        config["query_pre_attn_scalar"] = config["head_dim"]
    if config["model_type"] == "gemma3_text":  # the released pattern: five of six
        config["layer_types"] = ["sliding_attention"] * 2
    return case | {"config": config}


def gpt2() -> dict[str, Any]:
    config = {"model_type": "gpt2", "vocab_size": 50, "n_positions": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "eos_token_id": 7}
    state: dict[str, list[int]] = {"wte.weight": [50, 32], "wpe.weight": [48, 32]}
    dims = {"attn.c_attn": [32, 96], "attn.c_proj": [32, 32], "mlp.c_fc": [32, 128], "mlp.c_proj": [128, 32], "ln_1": [32], "ln_2": [32]}
    for block in range(2):
        for part, sizes in dims.items():
            state |= {f"h.{block}.{part}.weight": sizes, f"h.{block}.{part}.bias": sizes[-1:]}
    return {"config": config, "state": state | {"ln_f.weight": [32], "ln_f.bias": [32]}}


def written(
    path: Path,
    case: dict[str, Any],
    kind: str = "F32",
    *,
    facts: dict[str, int] | None = None,
    further: dict[str, np.ndarray] | None = None,
    architecture: str = "",
    joined: bool = False,
) -> dict[str, np.ndarray]:
    """Write a network; return its state dict, with the numbers of the file.

    Args:
        path: of the file.
        case: with ``config``, and ``state``: the dims of each name.
        kind: of the blocks of matrices whose rows have whole ones; the others are kept in F32.
        facts: further ones, or others.
        further: tensors beside those of the state.
        architecture: to be named in place of the right one.
        joined: the weights of queries, keys and values in one tensor.
    """
    import gguf

    config = case["config"]
    own = ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, architecture or own)
    _write_facts(writer, config)
    for name, value in (facts or {}).items():
        key = name if name.startswith(("tokenizer", "split")) else f"{own}.{name}"
        for shard in writer.kv_data:
            shard.pop(key, None)
        writer.add_uint32(key, value)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    names = gguf.get_tensor_name_map(next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == own), layers)
    heads = config.get("num_attention_heads") or config["n_head"]
    state: dict[str, np.ndarray] = {}
    apart: dict[str, list[np.ndarray]] = {}
    for name, dims in case["state"].items():
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert place is not None, name
        stored = np.ascontiguousarray(_turned(name, decoders.value_of(name, dims), config, heads))
        storage = gguf.GGMLQuantizationType[kind]
        if stored.ndim < 2 or stored.shape[-1] % gguf.GGML_QUANT_SIZES[storage][0] or "wpe" in name:
            storage = gguf.GGMLQuantizationType.F32
        blocks = k_blocks(stored, storage) if storage.name.endswith("_K") else gguf.quants.quantize(stored, storage)
        state[name] = _back(name, gguf.quants.dequantize(blocks, storage).reshape(stored.shape), config, heads)
        if joined and any(f"attn_{part}." in place for part in "qkv"):
            apart.setdefault(place.replace("attn_q.", "attn_qkv.").replace("attn_k.", "attn_qkv.").replace("attn_v.", "attn_qkv."), []).append(blocks)
        else:
            writer.add_tensor(place, blocks, raw_dtype=storage if blocks.dtype == np.uint8 else None)
    for place, parts in apart.items():
        writer.add_tensor(place, np.concatenate(parts))
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        further = {f"rope_factors_{size}.weight": np.array(rope[f"{size}_factor"], "float32") for size in ("short", "long")}
    for place, value in (further or {}).items():
        writer.add_tensor(place, value)
    finish(writer)
    return state


def wide(name: str) -> dict[str, Any]:
    """Return a network with rows of 256 numbers, as blocks of the kinds "K" need them."""
    case = told(name)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 50}
    width, inner = case["config"]["hidden_size"], case["config"]["intermediate_size"]
    state = {key: [256 if size in (width, inner) and not (key.endswith("q_norm.weight") or key.endswith("k_norm.weight")) else size for size in dims]
             for key, dims in case["state"].items()}  # fmt: skip
    heads = {f"{part}_proj.weight": case["config"][field] * case["config"]["head_dim"] for part, field in _HEADS.items()}
    state |= {key: [heads[end], 256] for key in state for end in heads if key.endswith(end)}
    state |= {key: [256, heads["q_proj.weight"]] for key in state if key.endswith("o_proj.weight")}
    return case | {"config": case["config"] | sizes, "state": state}


_HEADS = {"q": "num_attention_heads", "k": "num_key_value_heads", "v": "num_key_value_heads"}
_HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""The places of numbers of fp16 in blocks."""


def k_blocks(value: np.ndarray, storage: Any) -> np.ndarray:
    """Return drawn blocks for a matrix, with scales for numbers of about its size: the package writes none of these kinds."""
    import gguf

    size = gguf.GGML_QUANT_SIZES[storage][1]
    blocks = np.random.RandomState(value.shape[0]).randint(0, 256, (value.shape[0], value.shape[1] // 256, size)).astype("uint8")
    for place in _HALVES[storage.name]:
        blocks[..., place : place + 2] = np.frombuffer(np.float16(2e-4).tobytes(), "uint8")
    return blocks.reshape(value.shape[0], -1)


def finish(writer: Any) -> None:
    """Write what a writer holds, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_facts(writer: Any, config: dict[str, Any]) -> None:
    model, size = config["model_type"], config.get("head_dim")
    heads = config.get("num_attention_heads") or config["n_head"]
    width = config.get("hidden_size") or config["n_embd"]
    writer.add_name("small")
    writer.add_token_list(["a", "b", "c"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_context_length(config.get("max_position_embeddings") or config["n_positions"])
    writer.add_embedding_length(width)
    writer.add_block_count(config.get("num_hidden_layers") or config["n_layer"])
    writer.add_feed_forward_length(config.get("intermediate_size") or 4 * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    if size:
        writer.add_key_length(size)
        writer.add_value_length(size)
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config.get("norm_epsilon") or 1e-5)
    rope = config.get("rope_parameters") or {}
    if model == "gemma3_text":
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    if rope:
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_rope_dimension_count(int((size or width // heads) * rope.get("partial_rotary_factor", 1.0)))
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(getattr(_gguf().RopeScalingType, kind.upper()))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        long, short = config["max_position_embeddings"], rope["original_max_position_embeddings"]
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(long / short) / np.log(short))))
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if model == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if model == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if model == "cohere":
        writer.add_logit_scale(config["logit_scale"])
    if model == "gpt_neox":
        writer.add_parallel_residual(config["use_parallel_residual"])


def _gguf() -> Any:
    import gguf

    return gguf


def _heads_of(name: str, config: dict[str, Any], heads: int) -> int:
    return heads if ".q_proj" in name else config.get("num_key_value_heads") or heads


def _turned(name: str, value: np.ndarray, config: dict[str, Any], heads: int) -> np.ndarray:
    """Return a value as llama.cpp's converter writes it."""
    model = config["model_type"]
    if model in PAIRS and (".q_proj" in name or ".k_proj" in name):
        count = _heads_of(name, config, heads)
        return value.reshape(count, 2, value.shape[0] // count // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
    if model.startswith("gemma") and name.endswith("norm.weight"):
        return value + np.float32(1)
    if model == "gpt_neox" and "query_key_value" in name:
        return value.reshape(heads, 3, -1, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)
    if model == "gpt2" and value.ndim == 2 and name.startswith("h."):
        return value.T
    return value


def _back(name: str, value: np.ndarray, config: dict[str, Any], heads: int) -> np.ndarray:
    """Undo `_turned`."""
    model = config["model_type"]
    if model in PAIRS and (".q_proj" in name or ".k_proj" in name):
        count = _heads_of(name, config, heads)
        return value.reshape(count, value.shape[0] // count // 2, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
    if model.startswith("gemma") and name.endswith("norm.weight"):
        return value - np.float32(1)
    if model == "gpt_neox" and "query_key_value" in name:
        return value.reshape(3, heads, -1, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)
    if model == "gpt2" and value.ndim == 2 and name.startswith("h."):
        return value.T
    return value
