"""The known encoders of the transformers library, described over ragged rows: texts of their own lengths, without padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshape import layer
from foreshape.apps.embedding.encoder_heads import (
    first_rows,
    last_score,
    modernbert_row,
    modernbert_score,
    modernbert_words,
    plain_labels,
    pooled_score,
    row_scores,
    two_layers,
    word_scores,
)
from foreshape.apps.embedding.encoder_network import EncoderKind, EncoderNetwork, activation_named, square
from foreshape.core.data_class import data_class
from foreshape.errors import SchemaError
from foreshape.language.program import Variable
from foreshape.layer.positions import size_of

HEADS = {"ForSequenceClassification": "score", "ForTokenClassification": "labels", "ForMaskedLM": "words"}
"""The endings of architectures, and their results beside the rows."""


# --- BERT and its relatives: normalized after each sum


@data_class(frozen=True)
class _BertNames:
    """The names of a block's parts."""

    block: str = "encoder.layer.{}."
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    inner: str = "intermediate.dense"
    outer: str = "output.dense"
    norm: str = "output.LayerNorm"


_BERT = _BertNames()
_MPNET = _BertNames(query="attention.attn.q", key="attention.attn.k", value="attention.attn.v", output="attention.attn.o", attention_norm="attention.LayerNorm")
_DEBERTA = _BertNames(query="attention.self.query_proj", key="attention.self.key_proj", value="attention.self.value_proj")
_DISTILBERT = _BertNames(
    "transformer.layer.{}.",
    "attention.q_lin",
    "attention.k_lin",
    "attention.v_lin",
    "attention.out_lin",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
)
_ALBERT = _BertNames(
    "encoder.albert_layer_groups.0.albert_layers.0.",
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.dense",
    "attention.LayerNorm",
    "ffn",
    "ffn_output",
    "full_layer_layer_norm",
)


def _bert_words(n: EncoderNetwork) -> Variable:
    """Return the sum of words, types and positions, normalized."""
    if n.size("position_embedding_type", default="absolute") != "absolute":
        raise SchemaError(f"positions of the kind {n.config['position_embedding_type']!r} are not known here")
    width = n.size("embedding_size", default=n.width)
    h = n.words("embeddings.word_embeddings", width)
    types = n.size("type_vocab_size", default=0)
    if n.types is not None:
        h = h + n.table(n.types, types, "embeddings.token_type_embeddings", width)
    elif types:
        row = layer.slice(layer.create_parameter([types, width], "fp32", "embeddings.token_type_embeddings.weight"), [0], [0], [1])
        h = h + row
    if n.size("position_biased_input", default=True):
        numbers = layer.cast(_positions(n), "int64")
        h = h + n.table(numbers, n.size("max_position_embeddings"), "embeddings.position_embeddings", width)
    h = n.norm(h, "embeddings.LayerNorm")
    if width == n.width:
        return h
    return n.linear(h, n.width, "encoder.embedding_hidden_mapping_in" if n.config.get("model_type") == "albert" else "embeddings_project")


def _positions(n: EncoderNetwork) -> Variable:
    """Return the number of each row in its text; after the padding's number, and counted without words of padding, for RoBERTa and its relatives."""
    if not n.kind.pad_positions:
        return layer.position_numbers(n.ids)
    padding = n.size("pad_token_id", default=1)
    words = layer.cast(layer.not_equal(n.ids, layer.fill_constant([1], "int64", padding)), "fp64")
    total = layer.cumsum(words, 0)
    text_starts = layer.sequence_expand_as(layer.sequence_first_step(layer.reshape(total - words, [-1, 1])), n.ids)
    return (total - layer.reshape(text_starts, [-1])) * words + float(padding)


def _bert(names: _BertNames) -> Callable[[EncoderNetwork], Variable]:
    def describe(n: EncoderNetwork) -> Variable:
        h = _bert_words(n)
        heads = n.size("num_attention_heads", "n_heads")
        bias = None
        if names is _MPNET:
            buckets = n.size("relative_attention_num_buckets", default=32)
            bias = n.distance_bias(lambda d: _t5_bucket(d, buckets, 128), buckets, heads, 128, "encoder.relative_attention_bias")
        return _bert_blocks(n, h, names, lambda q, k, v, block: n.attention(q, k, v, heads, bias=bias))

    return describe


def _bert_blocks(n: EncoderNetwork, h: Variable, names: _BertNames, mix: Callable[[Variable, Variable, Variable, str], Variable]) -> Variable:
    activation = n.activation("hidden_act", "activation", default="gelu")
    for index in range(n.size("num_hidden_layers", "n_layers")):
        block = names.block.format(index)
        q, k, v = (n.linear(h, n.width, block + part) for part in (names.query, names.key, names.value))
        mixed = mix(q, k, v, block)
        h = n.norm(n.linear(mixed, n.width, block + names.output) + h, block + names.attention_norm)
        inner = n.linear(h, n.size("intermediate_size", "hidden_dim"), block + names.inner, activation=activation)
        h = n.norm(n.linear(inner, n.width, block + names.outer) + h, block + names.norm)
    return h


def _deberta(n: EncoderNetwork) -> Variable:
    """Return the rows of DeBERTa (He et al., 2021), whose scores are of words and of places: they are made of padded texts."""
    import numpy

    for name, expected in (("relative_attention", True), ("conv_kernel_size", 0), ("talking_head", False)):
        if (n.config.get(name) or type(expected)()) != expected:
            raise SchemaError(f"a network of the kind deberta-v2 with {name}={n.config.get(name)} is not known here")
    h, heads = _bert_words(n), n.size("num_attention_heads")
    size, added = n.width // heads, n.size("pos_att_type", default="")
    kinds: list[str] = added.split("|") if isinstance(added, str) else list(added)
    farthest = n.size("max_relative_positions", default=-1)
    farthest = n.size("max_position_embeddings") if farthest < 1 else farthest
    buckets = n.size("position_buckets", default=-1)
    span = buckets if buckets > 0 else farthest
    positions = layer.create_parameter([2 * span, n.width], "fp32", "encoder.rel_embeddings.weight")
    if "layer_norm" in str(n.config.get("norm_rel_ebd", "none")):
        positions = n.norm(positions, "encoder.LayerNorm")
    reach = n.size("max_position_embeddings")
    bucket_places = numpy.clip(_log_bucket(numpy.arange(reach, -reach - 1, -1), buckets, farthest) + span, 0, 2 * span - 1)
    distances = layer.cast(layer.clip(n.distances(), -float(reach), float(reach)) + float(reach), "int64")
    place = layer.gather(layer.assign(bucket_places.astype("int64")), layer.reshape(distances, [-1]))
    place = layer.unsqueeze(square(place, distances), [0, 1])
    factor = 1.0 / math.sqrt(size * (1 + len({"c2p", "p2c"} & {*kinds})))
    lengths = n.lengths()
    behind = layer.relu(layer.unsqueeze(n.places(), [0]) - layer.unsqueeze(layer.cast(lengths, "fp32"), [1]) + 1.0)
    mask = layer.unsqueeze(behind * -1e9, [1, 2])

    def padded_heads(x: Variable) -> Variable:
        padded = layer.sequence_pad(x, 0.0)[0]
        return layer.transpose(layer.reshape(padded, [*padded.spec.known_dims[:2], heads, size]), [0, 2, 1, 3])

    def projected_places(block: str, shared: str, alone: str) -> Variable:
        name = shared if n.size("share_att_key", default=False) else alone
        return layer.transpose(layer.reshape(n.linear(positions, n.width, f"{block}attention.self.{name}"), [2 * span, heads, size]), [1, 2, 0])

    def mix(q: Variable, k: Variable, v: Variable, block: str) -> Variable:
        q, k, v = (padded_heads(x) for x in (q, k, v))
        scores = layer.matmul(q, k, transpose_y=True)
        every = layer.expand(place, [size_of(q, 0), heads, size_of(q, 2), size_of(q, 2)])
        if "c2p" in kinds:
            scores = scores + layer.take_along_axis(layer.matmul(q, projected_places(block, "key_proj", "pos_key_proj")), every, -1)
        if "p2c" in kinds:
            to_places = layer.matmul(k, projected_places(block, "query_proj", "pos_query_proj"))
            key_places = layer.transpose(every, [0, 1, 3, 2])
            scores = scores + layer.transpose(layer.take_along_axis(to_places, key_places, -1), [0, 1, 3, 2])
        mixed = layer.transpose(layer.matmul(layer.softmax(scores * factor + mask), v), [0, 2, 1, 3])
        padded = layer.reshape(mixed, [*mixed.spec.known_dims[:2], n.width])
        return layer.lod_reset(layer.sequence_unpad(padded, lengths), n.ids)

    return _bert_blocks(n, h, _DEBERTA, mix)


def _log_bucket(distance: Any, buckets: int, farthest: int) -> Any:
    import numpy

    if buckets <= 0:
        return distance
    half = buckets // 2
    size = numpy.where(abs(distance) < half, half - 1, abs(distance)).astype("float32")
    far = numpy.ceil(numpy.log(size / half) / numpy.log(numpy.float32((farthest - 1) / half)) * (half - 1)) + half
    select: Any = numpy.where
    return select(size <= half, distance, far * numpy.sign(distance)).astype("int64")


def _t5_bucket(distance: Any, buckets: int, farthest: int) -> Any:
    """Return the buckets of distances, key less row (Raffel et al., "T5", 2020): a bucket each of short ones, then by logarithms."""
    import numpy

    half = buckets // 2
    exact = half // 2
    size = abs(distance)
    far = numpy.log(numpy.maximum(size, 1).astype("float32") / exact) / numpy.float32(math.log(farthest / exact)) * numpy.float32(half - exact)
    far = numpy.minimum(exact + far.astype("int64"), half - 1)
    select: Any = numpy.where
    return (distance > 0) * half + select(size < exact, size, far)


# --- normalized before each part


def _t5(n: EncoderNetwork) -> Variable:
    heads, size, buckets, farthest = (
        n.size(*names) for names in (("num_heads",), ("d_kv",), ("relative_attention_num_buckets",), ("relative_attention_max_distance",))
    )
    way = n.size("feed_forward_proj", default="relu")
    gated, name = way.startswith("gated-"), way.removeprefix("gated-")
    activation = activation_named("gelu_new" if gated and name == "gelu" else name)
    h = n.words("shared")
    table = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    bias = n.distance_bias(lambda d: _t5_bucket(d, buckets, farthest), buckets, heads, farthest, table)
    for index in range(n.size("num_layers")):
        block = f"encoder.block.{index}.layer."
        x = n.rms(h, f"{block}0.layer_norm")
        q, k, v = (n.linear(x, heads * size, f"{block}0.SelfAttention.{part}", False) for part in "qkv")
        h = h + n.linear(n.attention(q, k, v, heads, bias=bias, scale=1.0), n.width, f"{block}0.SelfAttention.o", False)
        x = n.rms(h, f"{block}1.layer_norm")
        inner = n.linear(x, n.size("d_ff"), f"{block}1.DenseReluDense.{'wi_0' if gated else 'wi'}", False, activation)
        if gated:
            inner = inner * n.linear(x, n.size("d_ff"), f"{block}1.DenseReluDense.wi_1", False)
        h = h + n.linear(inner, n.width, f"{block}1.DenseReluDense.wo", False)
    return n.rms(h, "encoder.final_layer_norm")


def _modernbert(n: EncoderNetwork) -> Variable:
    heads, layers, bias = n.size("num_attention_heads"), n.size("num_hidden_layers"), n.size("norm_bias", default=False)
    size, in_attention, in_mlp = n.width // heads, n.size("attention_bias", default=False), n.size("mlp_bias", default=False)
    every = n.size("global_attn_every_n_layers", default=3)
    kinds = n.config.get("layer_types") or ["sliding_attention" if index % every else "full_attention" for index in range(layers)]
    bases = {"full_attention": n.config.get("global_rope_theta", 160000.0), "sliding_attention": n.config.get("local_rope_theta", 10000.0)}
    if not n.config.get("rope_parameters"):
        n.config["rope_parameters"] = {kind: {"rope_theta": base} for kind, base in bases.items()}
    turns = {kind: n.turn(size, kind) for kind in sorted({*kinds})}
    windows: dict[str, Variable | None] = {"full_attention": None}
    if "sliding_attention" in kinds:
        windows["sliding_attention"] = n.window(n.size("local_attention", default=128) // 2)
    h = n.norm(n.words("embeddings.tok_embeddings"), "embeddings.norm", bias)
    activation = n.activation("hidden_activation", default="gelu")
    for index, kind in enumerate(kinds):
        block = f"layers.{index}."
        x = n.norm(h, f"{block}attn_norm", bias) if index else h
        q, k, v = layer.split(n.linear(x, 3 * n.width, f"{block}attn.Wqkv", in_attention), 3, 1)
        mixed = n.attention(q, k, v, heads, bias=windows[kind], turn=turns[kind])
        h = h + n.linear(mixed, n.width, f"{block}attn.Wo", in_attention)
        inner, gate = layer.split(n.linear(n.norm(h, f"{block}mlp_norm", bias), 2 * n.size("intermediate_size"), f"{block}mlp.Wi", in_mlp), 2, 1)
        h = h + n.linear(_activated(inner, activation) * gate, n.width, f"{block}mlp.Wo", in_mlp)
    return n.norm(h, "final_norm", bias)


def _activated(x: Variable, activation: Any) -> Variable:
    activated: Variable = getattr(layer, activation)(x) if isinstance(activation, str) else activation(x)
    return activated


def _qwen3(n: EncoderNetwork) -> Variable:
    heads, key_heads = n.size("num_attention_heads"), n.size("num_key_value_heads", "num_attention_heads")
    size = n.size("head_dim", default=n.width // heads)
    if n.config.get("use_sliding_window") and (n.config.get("sliding_window") or 1 << 30) < n.size("max_position_embeddings"):
        raise SchemaError("a network of the kind qwen3 with a sliding window is not known here")
    bias, turn, normed = n.size("attention_bias", default=n.config.get("model_type") == "qwen2"), n.turn(size), n.config.get("model_type") == "qwen3"
    h, activation = n.words("embed_tokens"), n.activation("hidden_act", default="silu")
    for index in range(n.size("num_hidden_layers")):
        block = f"layers.{index}."
        x = n.rms(h, f"{block}input_layernorm")
        q, k, v = (n.linear(x, count * size, f"{block}self_attn.{part}_proj", bias) for part, count in (("q", heads), ("k", key_heads), ("v", key_heads)))
        if normed:
            q, k = (_normed(n, x, count, size, f"{block}self_attn.{part}_norm") for x, part, count in ((q, "q", heads), (k, "k", key_heads)))
        mixed = n.attention(q, k, v, heads, turn=turn, key_heads=key_heads, causal=not n.config.get("use_bidirectional_attention"))
        h = h + n.linear(mixed, n.width, f"{block}self_attn.o_proj", bias and normed)
        x = n.rms(h, f"{block}post_attention_layernorm")
        inner = n.linear(x, n.size("intermediate_size"), f"{block}mlp.gate_proj", False, activation)
        h = h + n.linear(inner * n.linear(x, n.size("intermediate_size"), f"{block}mlp.up_proj", False), n.width, f"{block}mlp.down_proj", False)
    return n.rms(h, "norm")


def _normed(n: EncoderNetwork, x: Variable, heads: int, size: int, name: str) -> Variable:
    rows = x.spec.known_dims[0]
    return layer.reshape(n.rms(layer.reshape(x, [rows, heads, size]), name), [rows, heads * size])


def _gated_bert(bias: bool) -> Callable[[EncoderNetwork], Variable]:
    """Return the description of networks such as Nomic's and GTE's: as BERT, with rotations and a gated part."""

    def describe(n: EncoderNetwork) -> Variable:
        heads, turn = n.size("num_attention_heads"), n.turn(n.width // n.size("num_attention_heads"))
        h = n.words("embeddings.word_embeddings")
        types = n.size("type_vocab_size", default=0)
        if types:
            h = h + n.table(n.ids * 0 if n.types is None else n.types, types, "embeddings.token_type_embeddings")
        h, activation = n.norm(h, "embeddings.LayerNorm"), n.activation("hidden_act")
        for index in range(n.size("num_hidden_layers")):
            block = f"layers.{index}."
            q, k, v = (n.linear(h, n.width, f"{block}self_attn.{part}_proj", bias) for part in "qkv")
            mixed = n.linear(n.attention(q, k, v, heads, turn=turn), n.width, f"{block}self_attn.o_proj", bias)
            h = n.norm(mixed + h, f"{block}post_attention_layernorm")
            inner = n.linear(h, n.size("intermediate_size"), f"{block}mlp.gate_proj", False, activation)
            inner = inner * n.linear(h, n.size("intermediate_size"), f"{block}mlp.up_proj", False)
            h = n.norm(n.linear(inner, n.width, f"{block}mlp.down_proj", bias) + h, f"{block}post_mlp_layernorm")
        return h

    return describe


def _gemma3(n: EncoderNetwork) -> Variable:
    if not n.config.get("use_bidirectional_attention"):
        raise SchemaError("a network of the kind gemma3_text without use_bidirectional_attention is not known here")
    heads, key_heads, size, layers = (n.size(name) for name in ("num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers"))
    every = n.size("_sliding_window_pattern", "sliding_window_pattern", default=6)
    kinds = n.config.get("layer_types") or ["sliding_attention" if (index + 1) % every else "full_attention" for index in range(layers)]
    turns = {kind: n.turn(size, kind) for kind in sorted({*kinds})}
    windows = {"full_attention": None, "sliding_attention": n.window(n.size("sliding_window") // 2)}
    h, activation = n.words("embed_tokens") * n.width**0.5, n.activation("hidden_activation", default="gelu_pytorch_tanh")
    for index, kind in enumerate(kinds):
        block = f"layers.{index}."
        x = n.rms(h, f"{block}input_layernorm")
        q, k, v = (n.linear(x, count * size, f"{block}self_attn.{part}_proj", False) for part, count in (("q", heads), ("k", key_heads), ("v", key_heads)))
        q, k = (_normed(n, x, count, size, f"{block}self_attn.{part}_norm") for x, part, count in ((q, "q", heads), (k, "k", key_heads)))
        scale = n.size("query_pre_attn_scalar", default=size) ** -0.5
        mixed = n.attention(q, k, v, heads, bias=windows[kind], scale=scale, turn=turns[kind], key_heads=key_heads)
        h = h + n.rms(n.linear(mixed, n.width, f"{block}self_attn.o_proj", False), f"{block}post_attention_layernorm")
        x = n.rms(h, f"{block}pre_feedforward_layernorm")
        inner = n.linear(x, n.size("intermediate_size"), f"{block}mlp.gate_proj", False, activation)
        inner = inner * n.linear(x, n.size("intermediate_size"), f"{block}mlp.up_proj", False)
        h = h + n.rms(n.linear(inner, n.width, f"{block}mlp.down_proj", False), f"{block}post_feedforward_layernorm")
    return n.rms(h, "norm")


_NOMIC_NAMES = {
    "layers.": "encoder.layers.",
    "self_attn.o_proj": "attn.out_proj",
    "mlp.up_proj": "mlp.fc11",
    "mlp.gate_proj": "mlp.fc12",
    "mlp.down_proj": "mlp.fc2",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
    "embeddings.LayerNorm": "emb_ln",
}
_GTE_NAMES = {
    "layers.": "encoder.layer.",
    "self_attn.o_proj": "attention.o_proj",
    "post_attention_layernorm": "attn_ln",
    "post_mlp_layernorm": "mlp_ln",
}
_QUERIES = tuple(f"self_attn.{part}_proj" for part in "qkv")


def _names(table: Mapping[str, str], *joined: tuple[Sequence[str], str]) -> Callable[[str], Sequence[tuple[str, tuple[int, int] | None]]]:
    """Return names of a network's first code: with other parts, and with some weights joined as one."""

    def renamed(name: str) -> Sequence[tuple[str, tuple[int, int] | None]]:
        for part, theirs in table.items():
            name = name.replace(part, theirs)
        for parts, joined_name in joined:
            for index, part in enumerate(parts):
                if part in name:
                    return [(name.replace(part, joined_name), (index, len(parts)))]
        return [(name, None)]

    return renamed


_WORDS = "embeddings.word_embeddings"
_BERT_HEADS = {
    "score": pooled_score("pooler.dense"),
    "labels": plain_labels,
    "words": word_scores("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", _WORDS, "cls.predictions.bias"),
}
_ROBERTA_HEADS = {
    "score": two_layers("tanh"),
    "labels": plain_labels,
    "words": word_scores("lm_head.dense", "lm_head.layer_norm", _WORDS, "lm_head.bias", "gelu"),
}
_ROBERTA = EncoderKind(_bert(_BERT), "roberta.", _ROBERTA_HEADS, {"pad_token_id": 1}, pad_positions=True)
_DECODERS = {"score": last_score, "labels": row_scores}
_NOMIC_FIELDS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}

KINDS: dict[str, EncoderKind] = {
    "bert": EncoderKind(_bert(_BERT), "bert.", _BERT_HEADS, {"type_vocab_size": 2}, types=True),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": EncoderKind(_bert(_MPNET), "mpnet.", _ROBERTA_HEADS, {"pad_token_id": 1}, pad_positions=True),
    "distilbert": EncoderKind(
        _bert(_DISTILBERT),
        "distilbert.",
        {
            "score": lambda n, labels: n.linear(n.linear(first_rows(n), n.width, "pre_classifier", activation="relu"), labels, "classifier"),
            "labels": plain_labels,
            "words": word_scores("vocab_transform", "vocab_layer_norm", _WORDS, "vocab_projector.bias"),
        },
    ),
    "electra": EncoderKind(
        _bert(_BERT),
        "electra.",
        {
            "score": two_layers("gelu"),
            "labels": plain_labels,
            "words": word_scores("generator_predictions.dense", "generator_predictions.LayerNorm", _WORDS, "generator_lm_head.bias", "gelu"),
        },
        {"type_vocab_size": 2, "embedding_size": 128},
        types=True,
    ),
    "albert": EncoderKind(
        _bert(_ALBERT),
        "albert.",
        {"score": pooled_score("pooler"), "labels": plain_labels},
        {"type_vocab_size": 2, "embedding_size": 128, "hidden_act": "gelu_new"},
        types=True,
    ),
    "deberta-v2": EncoderKind(
        _deberta,
        "deberta.",
        {"score": pooled_score("pooler.dense", "pooler_hidden_act"), "labels": plain_labels},
        {"pooler_hidden_act": "gelu", "layer_norm_eps": 1e-7},
        types=True,
        padded=True,
    ),
    "modernbert": EncoderKind(
        _modernbert,
        "model.",
        {"score": modernbert_score, "labels": lambda n, labels: n.linear(modernbert_row(n, n.rows), labels, "classifier"), "words": modernbert_words},
        {"norm_eps": 1e-5},
    ),
    "qwen3": EncoderKind(_qwen3, "model.", _DECODERS, {"rms_norm_eps": 1e-6}),
    "qwen2": EncoderKind(_qwen3, "model.", _DECODERS, {"rms_norm_eps": 1e-6}),
    "t5": EncoderKind(
        _t5,
        "",
        {},
        {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6},
        renamed=lambda name: [("encoder.embed_tokens.weight", None)] if name == "shared.weight" else [],
    ),
    "gemma3_text": EncoderKind(_gemma3, "model.", {}, {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4}),
    "gte": EncoderKind(
        _gated_bert(True),
        "new.",
        {},
        {"hidden_act": "gelu", "type_vocab_size": 1, "rope_theta": 160000.0},
        types=True,
        renamed=_names(_GTE_NAMES, (_QUERIES, "attention.qkv_proj"), (("mlp.up_proj", "mlp.gate_proj"), "mlp.up_gate_proj")),
    ),
    "nomic_bert": EncoderKind(
        _gated_bert(False),
        "",
        {},
        {"hidden_act": "silu", "type_vocab_size": 2, "rope_theta": 1000.0},
        types=True,
        renamed=_names(_NOMIC_NAMES, (_QUERIES, "attn.Wqkv")),
    ),
}


def normal_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the fields of transformers, where a network's first code has others.

    Raises:
        SchemaError: a kind or a setting without a form here.
    """
    name = config.get("model_type")
    if name not in KINDS:
        raise SchemaError(f"the encoders known here are {', '.join(KINDS)}; seen the model_type {name!r}")
    if name != "nomic_bert" or "n_embd" not in config:
        return dict(config)
    expected = {
        "prenorm": False,
        "rotary_emb_fraction": 1.0,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "activation_function": "swiglu",
        "rotary_emb_interleaved": False,
        "use_rms_norm": False,
        "parallel_block": False,
    }
    for field_name, value in expected.items():
        if (config.get(field_name) if config.get(field_name) is not None else value) != value:
            raise SchemaError(f"a network of the kind nomic_bert with {field_name}={config[field_name]!r} is not known here")
    positions = config.get("max_trained_positions") if config.get("rotary_scaling_factor") else config.get("n_positions")
    return {
        **config,
        **{ours: config[theirs] for ours, theirs in _NOMIC_FIELDS.items() if config.get(theirs) is not None},
        "max_position_embeddings": positions or config.get("n_positions"),
    }


def head_named(config: Mapping[str, Any]) -> str | None:
    """Return the head of a configuration's architecture: "score", "labels", "words", or None."""
    names: list[Any] = config.get("architectures") or []
    for name in names:
        for ending, head in HEADS.items():
            if str(name).endswith(ending):
                return head
    return None
