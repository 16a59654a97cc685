"""Small decoders of the transformers library with weights by a rule, and the texts that its own ``generate`` writes with them.

python tests/generation/decoders.py    # writes decoders.json; needs transformers
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

FILE = Path(__file__).with_suffix(".json")
WORDS = 12
_COMMON = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 48, "eos_token_id": 7}
_WIDE = _COMMON | {"hidden_size": 32, "intermediate_size": 40}
_SHARED = _WIDE | {"num_key_value_heads": 2}
_OLD = {"vocab_size": 50, "n_positions": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "eos_token_id": 7}
_TYPES = {"layer_types": ["sliding_attention", "full_attention"]}


def _turned(**settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"} | settings}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-J": ("GPTJ", _OLD | {"rotary_dim": 4}),
    "GPT-NeoX": ("GPTNeoX", _WIDE | _turned(partial_rotary_factor=0.25)),
    "GPT-NeoX, one after the other": ("GPTNeoX", _WIDE | {"use_parallel_residual": False} | _turned(partial_rotary_factor=0.5)),
    "OPT": ("OPT", _COMMON | {"hidden_size": 32, "ffn_dim": 40, "word_embed_proj_dim": 32}),
    "Phi": ("Phi", _SHARED | _turned(partial_rotary_factor=0.5)),
    "Phi 3, a window": ("Phi3", _SHARED | {"sliding_window": 6}),
    "Phi 3, longrope": (
        "Phi3",
        _SHARED
        | {"max_position_embeddings": 192, "original_max_position_embeddings": 48}
        | _turned(rope_type="longrope", short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[2.0, 3.0, 4.0, 5.0]),
    ),
    "Llama, linear": ("Llama", _SHARED | {"attention_bias": True, "mlp_bias": True, "head_dim": 12} | _turned(rope_type="linear", factor=2.0)),
    "Llama, yarn": ("Llama", _SHARED | _turned(rope_type="yarn", factor=4.0, original_max_position_embeddings=12)),
    "Llama, dynamic": ("Llama", _SHARED | _turned(rope_type="dynamic", factor=4.0)),
    "Mistral": ("Mistral", _SHARED | {"sliding_window": 7}),
    "Qwen 2, a window": ("Qwen2", _SHARED | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "Qwen 3": ("Qwen3", _SHARED | {"head_dim": 12}),
    "SmolLM 3": ("SmolLM3", _SHARED | {"no_rope_layers": [1, 0]}),
    "Granite": ("Granite", _SHARED | {"embedding_multiplier": 3.0, "logits_scaling": 0.5, "residual_multiplier": 0.7, "attention_multiplier": 0.5}),
    "OLMo 2": ("Olmo2", _SHARED),
    "Gemma": ("Gemma", _SHARED | {"head_dim": 12}),
    "Gemma 2": (
        "Gemma2",
        _SHARED | _TYPES | {"head_dim": 12, "sliding_window": 6, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    ),
    "Gemma 3": (
        "Gemma3Text",
        _SHARED
        | _TYPES
        | {"head_dim": 12, "sliding_window": 6, "query_pre_attn_scalar": 20}
        | {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in zip(_TYPES["layer_types"], (50.0, 5e3), strict=True)}},
    ),
    "StableLM": ("StableLm", _SHARED | {"use_qkv_bias": True}),
    "StarCoder 2": ("Starcoder2", _SHARED | {"sliding_window": 9}),
    "Cohere": ("Cohere", _SHARED | {"logit_scale": 2.0}),
}
NOISE = ("dropout", "pdrop", "return_dict", "output_", "is_", "transformers_version", "id2label", "label2id", "_", "architectures", "problem_type", "use_cache")
"""The beginnings and ends of fields that say nothing about a network."""


def value_of(name: str, dims: list[int]) -> np.ndarray:
    """Return a weight by its name: numbers with enough spread for scores to lie apart."""
    drawn = np.random.RandomState(crc32(name.encode()) % 2**31).standard_normal(dims)
    if len(dims) == 1:
        return (drawn * 0.2 + name.endswith("weight")).astype("float32")
    return (drawn * (0.06 if "embed_tokens" in name else 0.3)).astype("float32")


def prompts() -> list[list[int]]:
    random = np.random.RandomState(0)
    return [random.randint(8, 50, n).tolist() for n in (5, 17, 1, 30, 9)]


def written(cls: str, settings: dict[str, Any]) -> dict[str, Any]:
    import torch
    import transformers

    config = getattr(transformers, f"{cls}Config")(**settings, bos_token_id=1, pad_token_id=0, attn_implementation="eager")
    module = getattr(transformers, f"{cls.removesuffix('Text')}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, value in module.named_parameters():  # a tied table comes once
            value.copy_(torch.tensor(value_of(name, list(value.shape))))
    tied = getattr(config, "tie_word_embeddings", False)
    state = {n: list(v.shape) for n, v in module.state_dict().items() if not (tied and n.startswith("lm_head"))}
    texts: dict[str, Any] = {}
    for what, beams in (("greedy", {}), ("beams", {"num_beams": 3, "length_penalty": 0.7})):
        texts[what] = []
        for prompt in prompts():
            of = torch.tensor([prompt])
            out = module.generate(of, attention_mask=torch.ones_like(of), max_new_tokens=WORDS, do_sample=False, **beams)
            texts[what].append(out[0, len(prompt) :].tolist())
    told = {k: v for k, v in config.to_dict().items() if v is not None and not k.endswith(NOISE) and not k.startswith(NOISE)}
    return {"config": told, "state": state, **texts}


def main() -> None:
    lines = [f" {json.dumps(name)}: {json.dumps(written(*case))}" for name, case in CASES.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
