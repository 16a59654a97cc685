"""Small encoders of each kind, with weights told by their names: the same here and in the transformers library."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, WORDS, LABELS = 16, 60, 3
IDS = [[7, 3, 51, 20, 8, 9, 44, 13, 5, 31, 17], [4, 59, 6]]
TYPES = [[0] * 6 + [1] * 5, [0, 1, 1]]
_BERT = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
_ROBERTA = {**_BERT, "pad_token_id": 1, "type_vocab_size": 1}
_DEBERTA = {
    **_BERT,
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "max_relative_positions": -1,
    "position_biased_input": False,
    "type_vocab_size": 0,
    "pooler_hidden_act": "gelu",
    "pooler_hidden_size": WIDTH,
}
_MODERN = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "local_attention": 6,
    "global_attn_every_n_layers": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
_DISTIL = {
    "vocab_size": WORDS,
    "dim": WIDTH,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 24,
    "max_position_embeddings": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "seq_classif_dropout": 0.0,
}
_QWEN = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
}
_T5 = {
    "vocab_size": WORDS,
    "d_model": WIDTH,
    "d_kv": 4,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 20,
}
_SIZES = {n: _BERT[n] for n in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")}

TASKS = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{name}{task}": (kind, config)
        for name, kind, config, count in [
            ("Bert", "bert", _BERT, 4),
            ("Roberta", "roberta", _ROBERTA, 4),
            ("XLMRoberta", "xlm-roberta", _ROBERTA, 2),
            ("Camembert", "camembert", _ROBERTA, 1),
            ("MPNet", "mpnet", {**_BERT, "pad_token_id": 1}, 4),
            ("Electra", "electra", {**_BERT, "embedding_size": 8}, 4),
            ("Albert", "albert", {**_BERT, "embedding_size": 8, "classifier_dropout_prob": 0.0}, 3),
            ("DebertaV2", "deberta-v2", _DEBERTA, 3),
            ("DistilBert", "distilbert", _DISTIL, 4),
            ("ModernBert", "modernbert", _MODERN, 4),
            ("Qwen3", "qwen3", {**_QWEN, "head_dim": 8}, 3),
            ("Qwen2", "qwen2", _QWEN, 2),
        ]
        for task in TASKS[:count]
    },
    "DebertaV2Model without buckets": (
        "deberta-v2",
        {
            **_DEBERTA,
            "position_buckets": -1,
            "norm_rel_ebd": "none",
            "share_att_key": False,
            "max_relative_positions": 20,
            "position_biased_input": True,
            "type_vocab_size": 2,
        },
    ),
    "ModernBertForSequenceClassification of means": ("modernbert", {**_MODERN, "classifier_pooling": "mean"}),
    "T5EncoderModel": ("t5", _T5),
    "T5EncoderModel gated": ("t5", {**_T5, "feed_forward_proj": "gated-gelu"}),
    "NomicBertModel": ("nomic_bert", _SIZES),
    "GteModel": ("gte", _SIZES),
    "Gemma3TextModel": (
        "gemma3_text",
        {
            **_QWEN,
            "head_dim": 8,
            "num_hidden_layers": 3,
            "sliding_window": 6,
            "use_bidirectional_attention": True,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
"""The class of transformers, and what else tells the case -> the kind, and the configuration."""


def weight(name: str, dims: Sequence[int]) -> np.ndarray:
    """The value of a weight: of its name in the network, without the first part."""
    numbers = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(dims).astype("float32")
    if len(dims) < 2:
        return numbers * np.float32(0.1) + np.float32("norm" in name.lower() and name.endswith("weight"))
    return numbers * np.float32(0.7 if "embed" in name or "relative_attention_bias" in name else np.prod(dims[1:]) ** -0.5)


def expected() -> dict[str, list[list[float]]]:
    """Numbers of transformers for each case: of each text the mean of its rows, and its last row; or its scores."""
    return json.loads(Path(__file__).with_name("expected_encoders.json").read_text())
