"""The known encoders of the transformers library, described over ragged rows: texts of their own lengths, without padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshape import layer
from foreshape.apps.generation.rotations import rotation_of
from foreshape.core.data_class import data_class, field
from foreshape.errors import FormatError, SchemaError
from foreshape.language.program import Variable
from foreshape.layer.attention import shared_heads
from foreshape.layer.positions import Rotary, size_of

HEADS = {"ForSequenceClassification": "score", "ForTokenClassification": "labels", "ForMaskedLM": "words"}
"""The endings of architectures, and the results that they add to the rows."""


class EncoderNetwork:
    """A network under description. Its parameters have the names of their weights in the source.

    Attributes:
        config: of the source, with the defaults of its kind.
        inputs: the inputs by name.
        ids: the numbers of words, int64, ragged ``[rows]``.
        types: the numbers of the text of a pair, as ``ids``; None without such a table.
        turned: the names of weights that are ``[out, in]`` in the source.
        shifted: the names of weights that are less by 1 in the source.
        kind: its kind.
    """

    def __init__(self, kind: EncoderKind, config: Mapping[str, Any]) -> None:
        self.kind, self.config = kind, {**kind.defaults, **config}
        self.turned: set[str] = set()
        self.shifted: set[str] = set()
        self.ids = layer.data("input_ids", ["rows"], "int64", lod_level=1)
        types = self.size("type_vocab_size", default=0) if kind.types else 0
        self.inputs = {"input_ids": self.ids}
        self.types: Variable | None = None
        if types > 1:
            self.inputs["token_type_ids"] = layer.data("token_type_ids", ["rows"], "int64", lod_level=1)
            self.types = layer.lod_reset(self.inputs["token_type_ids"], self.ids)
        self._places: Variable | None = None
        self._lengths: Variable | None = None
        self.rows = kind.describe(self)

    def size(self, *names: str, default: Any = None) -> Any:
        """Return the first of some fields of the configuration. Raises `FormatError` without one and a default."""
        value = next((self.config[name] for name in names if self.config.get(name) is not None), default)
        if value is None:
            raise FormatError(f"the configuration of a {self.config.get('model_type')} must have {names[0]}")
        return value

    @property
    def width(self) -> int:
        return self.size("hidden_size", "dim", "d_model")

    @property
    def epsilon(self) -> float:
        return self.size("layer_norm_eps", "norm_eps", "rms_norm_eps", "layer_norm_epsilon", default=1e-12)

    def linear(self, x: Variable, size: int, name: str, bias: bool = True, activation: Any = None) -> Variable:
        self.turned.add(f"{name}.weight")
        return layer.fc(x, size, activation, weight=f"{name}.weight", bias=f"{name}.bias" if bias else False)

    def norm(self, x: Variable, name: str, bias: bool = True) -> Variable:
        return layer.layer_norm(x, epsilon=self.epsilon, weight=f"{name}.weight", bias=f"{name}.bias" if bias else False)

    def rms(self, x: Variable, name: str) -> Variable:
        if self.config["model_type"] == "gemma3_text":
            self.shifted.add(f"{name}.weight")
        return layer.rms_norm(x, self.epsilon, weight=f"{name}.weight")

    def table(self, ids: Variable, size: int, name: str, width: int | None = None) -> Variable:
        return layer.embedding(ids, [size, width or self.width], weight=f"{name}.weight")

    def words(self, name: str, width: int | None = None) -> Variable:
        return self.table(self.ids, self.size("vocab_size"), name, width)

    def activation(self, *names: str, default: str | None = None) -> Any:
        return activation_named(self.size(*names, default=default))

    def places(self) -> Variable:
        """Return 0, 1, 2, ... up to the longest text, fp32 ``[time]``."""
        if self._places is None:
            padded, self._lengths = layer.sequence_pad(layer.reshape(layer.cast(self.ids, "fp32"), [-1, 1]), 0.0)
            self._places = layer.cast(layer.range(0, size_of(padded, 1), 1, "int32"), "fp32")
        return self._places

    def lengths(self) -> Variable:
        """Return the number of words of each text, int64 ``[texts]``."""
        self.places()
        assert self._lengths is not None
        return self._lengths

    def distances(self) -> Variable:
        """Return the place of a key less the place of a row, fp32 ``[time, time]``: one row for each row."""
        places = self.places()
        return layer.unsqueeze(places, [0]) - layer.unsqueeze(places, [1])

    def window(self, reach: int) -> Variable:
        """Return the bias ``[1, time, time]`` that hides keys farther than ``reach`` from a row."""
        outside = layer.relu(layer.abs(self.distances()) - float(reach))
        return layer.unsqueeze(outside * -1e9, [0])

    def by_distance(self, bucket: Callable[[Any], Any], buckets: int, heads: int, reach: int, name: str) -> Variable:
        """Return the bias ``[heads, time, time]``, of a learned number for each bucket of distances.

        Args:
            bucket: from distances, key less row, to their buckets.
            buckets, heads: the table's dims.
            reach: the distances from here on have one bucket.
            name: of the table.
        """
        import numpy

        table = layer.embedding(layer.assign(numpy.asarray(bucket(numpy.arange(-reach, reach + 1)), "int64")), [buckets, heads], weight=f"{name}.weight")
        place = layer.cast(layer.clip(self.distances(), -float(reach), float(reach)) + float(reach), "int64")
        return layer.transpose(_square(layer.gather(table, layer.reshape(place, [-1])), place, heads), [2, 0, 1])

    def attention(
        self, q: Variable, k: Variable, v: Variable, heads: int, *, bias: Variable | None = None, scale: float | None = None,
        turn: tuple[Rotary, tuple[Variable, Variable]] | None = None, key_heads: int | None = None, causal: bool = False,
    ) -> Variable:  # fmt: skip
        """Return the mixed values of a row's own text, turned first by positions where ``turn`` is given."""
        key_heads = key_heads or heads
        size = q.spec.known_dims[-1]
        assert isinstance(size, int)
        size //= heads
        if turn is not None:
            q, k = (_turned(x, n, size, *turn) for x, n in ((q, heads), (k, key_heads)))
        k, v = (shared_heads(x, key_heads, size, heads) for x in (k, v))
        return layer.sequence_attention(q, k, v, heads, causal, scale, bias)

    def turn(self, size: int, of_layers: str | None = None) -> tuple[Rotary, tuple[Variable, Variable]]:
        """Return the rotation of heads of ``size`` columns, and its cosines and sines of all rows."""
        rotation = rotation_of(self.config, size, of_layers=of_layers)
        if rotation.turned is not None or rotation.factor != 1.0:
            raise SchemaError("rotations of a part of a head's columns, or with a factor, are not known here")
        return rotation.rotary, rotation.rotary.turn(layer.position_numbers(self.ids), size, self.ids_like())

    def ids_like(self) -> Variable:
        return layer.position_numbers(self.ids)


def _square(x: Variable, like: Variable, *row: int) -> Variable:
    """Return entries ``[time * time, *row]`` as ``[time, time, *row]``."""
    return layer.reshape(x, [size_of(like, 0), size_of(like, 1), *row])


def _turned(x: Variable, heads: int, size: int, rotary: Rotary, turn: tuple[Variable, Variable]) -> Variable:
    dims = list(x.spec.known_dims)
    return layer.reshape(rotary.turned(layer.reshape(x, [dims[0], heads, size]), turn), dims)


@data_class(frozen=True)
class EncoderKind:
    """A kind of networks.

    Attributes:
        describe: from a network to its rows, ``[rows, width]``.
        base: the first part of the names of its weights where a head stands beside them.
        heads: from "score", "labels" and "words" to the description of a result, for a network and a number of labels.
        defaults: fields left out of configurations.
        types: True if the tokenizer's numbers of texts are read.
        padded: True if its scores are made of padded texts: a batch costs its longest text's square for each text.
        pad_positions: True if positions begin behind the number of the padding, which is not counted.
        renamed: from a name here to other names in sources, each with a part of the first dim (number, of how many) or None.
    """

    describe: Callable[[EncoderNetwork], Variable]
    base: str
    heads: Mapping[str, Callable[[EncoderNetwork, int], Variable]] = field(default_factory=dict[str, Callable[["EncoderNetwork", int], Variable]])
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    types: bool = False
    padded: bool = False
    pad_positions: bool = False
    renamed: Callable[[str], Sequence[tuple[str, tuple[int, int] | None]]] = lambda name: ()


def activation_named(name: str) -> Any:
    """Return the activation of a name of transformers. Raises `SchemaError` for another one."""
    names: dict[str, Any] = {
        "gelu": "gelu", "gelu_new": _tanh_gelu, "gelu_pytorch_tanh": _tanh_gelu, "gelu_fast": _tanh_gelu, "relu": "relu", "silu": "silu", "swish": "silu",
        "tanh": "tanh",
    }  # fmt: skip
    if name not in names:
        raise SchemaError.one_of("the activation", names, name)
    return names[name]


def _tanh_gelu(x: Variable) -> Variable:
    return layer.gelu(x, approximate=True)


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


_MPNET = _BertNames(query="attention.attn.q", key="attention.attn.k", value="attention.attn.v", output="attention.attn.o", attention_norm="attention.LayerNorm")
_DEBERTA = _BertNames(query="attention.self.query_proj", key="attention.self.key_proj", value="attention.self.value_proj")
_DISTILBERT = _BertNames(
    "transformer.layer.{}.", "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2",
    "output_layer_norm",
)  # fmt: skip
_ALBERT = _BertNames(
    "encoder.albert_layer_groups.0.albert_layers.0.", "attention.query", "attention.key", "attention.value", "attention.dense", "attention.LayerNorm",
    "ffn", "ffn_output", "full_layer_layer_norm",
)  # fmt: skip


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
    before = layer.sequence_expand_as(layer.sequence_first_step(layer.reshape(total - words, [-1, 1])), n.ids)
    return (total - layer.reshape(before, [-1])) * words + float(padding)


def _bert(names: _BertNames = _BertNames()) -> Callable[[EncoderNetwork], Variable]:
    def describe(n: EncoderNetwork) -> Variable:
        h = _bert_words(n)
        heads = n.size("num_attention_heads", "n_heads")
        bias = None
        if names is _MPNET:
            buckets = n.size("relative_attention_num_buckets", default=32)
            bias = n.by_distance(lambda d: _t5_bucket(d, buckets, 128), buckets, heads, 128, "encoder.relative_attention_bias")
        return _bert_blocks(n, h, names, lambda q, k, v, at: n.attention(q, k, v, heads, bias=bias))

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
    size, kinds = n.width // heads, n.config.get("pos_att_type") or []
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    farthest = n.size("max_relative_positions", default=-1)
    farthest = n.size("max_position_embeddings") if farthest < 1 else farthest
    buckets = n.size("position_buckets", default=-1)
    span = buckets if buckets > 0 else farthest
    positions = layer.create_parameter([2 * span, n.width], "fp32", "encoder.rel_embeddings.weight")
    if "layer_norm" in str(n.config.get("norm_rel_ebd", "none")):
        positions = n.norm(positions, "encoder.LayerNorm")
    reach = n.size("max_position_embeddings")
    place_of = numpy.clip(_log_bucket(numpy.arange(reach, -reach - 1, -1), buckets, farthest) + span, 0, 2 * span - 1)
    distances = layer.cast(layer.clip(n.distances(), -float(reach), float(reach)) + float(reach), "int64")
    place = layer.gather(layer.assign(place_of.astype("int64")), layer.reshape(distances, [-1]))
    place = layer.unsqueeze(_square(place, distances), [0, 1])
    factor = 1.0 / math.sqrt(size * (1 + len({"c2p", "p2c"} & {*kinds})))
    lengths = n.lengths()
    behind = layer.relu(layer.unsqueeze(n.places(), [0]) - layer.unsqueeze(layer.cast(lengths, "fp32"), [1]) + 1.0)
    mask = layer.unsqueeze(behind * -1e9, [1, 2])

    def by_head(x: Variable) -> Variable:
        padded = layer.sequence_pad(x, 0.0)[0]
        return layer.transpose(layer.reshape(padded, [*padded.spec.known_dims[:2], heads, size]), [0, 2, 1, 3])

    def of_places(block: str, shared: str, alone: str) -> Variable:
        name = shared if n.size("share_att_key", default=False) else alone
        return layer.transpose(layer.reshape(n.linear(positions, n.width, f"{block}attention.self.{name}"), [2 * span, heads, size]), [1, 2, 0])

    def mix(q: Variable, k: Variable, v: Variable, block: str) -> Variable:
        q, k, v = (by_head(x) for x in (q, k, v))
        scores = layer.matmul(q, k, transpose_y=True)
        every = layer.expand(place, [size_of(q, 0), heads, size_of(q, 2), size_of(q, 2)])
        if "c2p" in kinds:
            scores = scores + layer.take_along_axis(layer.matmul(q, of_places(block, "key_proj", "pos_key_proj")), every, -1)
        if "p2c" in kinds:
            to_places = layer.matmul(k, of_places(block, "query_proj", "pos_query_proj"))
            by_key = layer.transpose(every, [0, 1, 3, 2])
            scores = scores + layer.transpose(layer.take_along_axis(to_places, by_key, -1), [0, 1, 3, 2])
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
    return numpy.where(size <= half, distance, far * numpy.sign(distance)).astype("int64")


def _t5_bucket(distance: Any, buckets: int, farthest: int) -> Any:
    """Return the buckets of distances, key less row (Raffel et al., "T5", 2020): a bucket each of short ones, then by logarithms."""
    import numpy

    half = buckets // 2
    exact = half // 2
    size = abs(distance)
    far = numpy.log(numpy.maximum(size, 1).astype("float32") / exact) / numpy.float32(math.log(farthest / exact)) * numpy.float32(half - exact)
    far = numpy.minimum(exact + far.astype("int64"), half - 1)
    return (distance > 0) * half + numpy.where(size < exact, size, far)


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
    bias = n.by_distance(lambda d: _t5_bucket(d, buckets, farthest), buckets, heads, farthest, table)
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
    windows = {"full_attention": None}
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
    return activation(x) if callable(activation) else getattr(layer, activation)(x)


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
    "layers.": "encoder.layers.", "self_attn.o_proj": "attn.out_proj", "mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12", "mlp.down_proj": "mlp.fc2",
    "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2", "embeddings.LayerNorm": "emb_ln",
}  # fmt: skip
_GTE_NAMES = {
    "layers.": "encoder.layer.", "self_attn.o_proj": "attention.o_proj", "post_attention_layernorm": "attn_ln", "post_mlp_layernorm": "mlp_ln",
}  # fmt: skip
_QUERIES = tuple(f"self_attn.{part}_proj" for part in "qkv")


def _names(table: Mapping[str, str], *joined: tuple[Sequence[str], str]) -> Callable[[str], Sequence[tuple[str, tuple[int, int] | None]]]:
    """Return names of a network's first code: with other parts, and with some weights joined as one."""

    def other(name: str) -> Sequence[tuple[str, tuple[int, int] | None]]:
        for part, theirs in table.items():
            name = name.replace(part, theirs)
        for parts, whole in joined:
            for index, part in enumerate(parts):
                if part in name:
                    return [(name.replace(part, whole), (index, len(parts)))]
        return [(name, None)]

    return other


# --- heads


def _first(n: EncoderNetwork) -> Variable:
    return layer.sequence_first_step(n.rows)


def _plain_labels(n: EncoderNetwork, labels: int) -> Variable:
    return n.linear(n.rows, labels, "classifier")


def _pooled_score(pooler: str, activation: str = "tanh") -> Callable[[EncoderNetwork, int], Variable]:
    def head(n: EncoderNetwork, labels: int) -> Variable:
        name = n.config.get("pooler_hidden_act", activation) if activation == "pooler_hidden_act" else activation
        return n.linear(n.linear(_first(n), n.width, pooler, activation=activation_named(name)), labels, "classifier")

    return head


def _two_layers(activation: str) -> Callable[[EncoderNetwork, int], Variable]:
    def head(n: EncoderNetwork, labels: int) -> Variable:
        return n.linear(n.linear(_first(n), n.width, "classifier.dense", activation=activation_named(activation)), labels, "classifier.out_proj")

    return head


def _modernbert_row(n: EncoderNetwork, x: Variable) -> Variable:
    bias = n.size("classifier_bias", default=False)
    dense = n.linear(x, n.width, "head.dense", bias, n.activation("classifier_activation", default="gelu"))
    return n.norm(dense, "head.norm", n.size("norm_bias", default=False))


def _modernbert_score(n: EncoderNetwork, labels: int) -> Variable:
    pooled = layer.sequence_pool(n.rows, "average") if n.size("classifier_pooling", default="cls") == "mean" else _first(n)
    return n.linear(_modernbert_row(n, pooled), labels, "classifier")


def _last_score(n: EncoderNetwork, labels: int) -> Variable:
    return n.linear(layer.sequence_last_step(n.rows), labels, "score", False)


def _word_scores(dense: str, norm: str, table: str, bias: str, activation: str = "") -> Callable[[EncoderNetwork, int], Variable]:
    """Return the head of masked words: a product, an activation and a normalization, then the table of words as the output layer."""

    def head(n: EncoderNetwork, labels: int) -> Variable:
        if not n.size("tie_word_embeddings", default=True):
            raise SchemaError("an output layer of words beside the table of words is not known here")
        width = n.size("embedding_size", default=n.width)
        how = activation_named(activation) if activation else n.activation("hidden_act", "activation", default="gelu")
        x = n.norm(n.linear(n.rows, width, dense, activation=how), norm)
        return _to_words(n, x, width, table, bias)

    return head


def _to_words(n: EncoderNetwork, x: Variable, width: int, table: str, bias: str) -> Variable:
    words = n.size("vocab_size")
    scores = layer.matmul(x, layer.create_parameter([words, width], "fp32", f"{table}.weight"), transpose_y=True)
    return scores + layer.create_parameter([words], "fp32", bias, is_bias=True)


def _modernbert_words(n: EncoderNetwork, labels: int) -> Variable:
    return _to_words(n, _modernbert_row(n, n.rows), n.width, "embeddings.tok_embeddings", "decoder.bias")


_WORDS = "embeddings.word_embeddings"
_BERT_HEADS = {
    "score": _pooled_score("pooler.dense"),
    "labels": _plain_labels,
    "words": _word_scores("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", _WORDS, "cls.predictions.bias"),
}
_ROBERTA_HEADS = {
    "score": _two_layers("tanh"),
    "labels": _plain_labels,
    "words": _word_scores("lm_head.dense", "lm_head.layer_norm", _WORDS, "lm_head.bias", "gelu"),
}
_ROBERTA = EncoderKind(_bert(), "roberta.", _ROBERTA_HEADS, {"pad_token_id": 1}, pad_positions=True)
_DECODERS = {"score": _last_score, "labels": lambda n, labels: n.linear(n.rows, labels, "score")}
_NOMIC_FIELDS = {
    "hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions", "layer_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base",
}  # fmt: skip

KINDS: dict[str, EncoderKind] = {
    "bert": EncoderKind(_bert(), "bert.", _BERT_HEADS, {"type_vocab_size": 2}, types=True),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": EncoderKind(_bert(_MPNET), "mpnet.", _ROBERTA_HEADS, {"pad_token_id": 1}, pad_positions=True),
    "distilbert": EncoderKind(
        _bert(_DISTILBERT),
        "distilbert.",
        {
            "score": lambda n, labels: n.linear(n.linear(_first(n), n.width, "pre_classifier", activation="relu"), labels, "classifier"),
            "labels": _plain_labels,
            "words": _word_scores("vocab_transform", "vocab_layer_norm", _WORDS, "vocab_projector.bias"),
        },
    ),
    "electra": EncoderKind(
        _bert(),
        "electra.",
        {
            "score": _two_layers("gelu"),
            "labels": _plain_labels,
            "words": _word_scores("generator_predictions.dense", "generator_predictions.LayerNorm", _WORDS, "generator_lm_head.bias", "gelu"),
        },
        {"type_vocab_size": 2, "embedding_size": 128},
        types=True,
    ),
    "albert": EncoderKind(
        _bert(_ALBERT),
        "albert.",
        {"score": _pooled_score("pooler"), "labels": _plain_labels},
        {"type_vocab_size": 2, "embedding_size": 128, "hidden_act": "gelu_new"},
        types=True,
    ),
    "deberta-v2": EncoderKind(
        _deberta,
        "deberta.",
        {"score": _pooled_score("pooler.dense", "pooler_hidden_act"), "labels": _plain_labels},
        {"pooler_hidden_act": "gelu", "layer_norm_eps": 1e-7},
        types=True,
        padded=True,
    ),
    "modernbert": EncoderKind(
        _modernbert,
        "model.",
        {"score": _modernbert_score, "labels": lambda n, labels: n.linear(_modernbert_row(n, n.rows), labels, "classifier"), "words": _modernbert_words},
        {"norm_eps": 1e-5},
    ),
    "qwen3": EncoderKind(_qwen3, "model.", _DECODERS, {"rms_norm_eps": 1e-6}),
    "qwen2": EncoderKind(_qwen3, "model.", _DECODERS, {"rms_norm_eps": 1e-6}),
    "t5": EncoderKind(
        _t5, "", {}, {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6},
        renamed=lambda name: [("encoder.embed_tokens.weight", None)] if name == "shared.weight" else [],
    ),
    "gemma3_text": EncoderKind(_gemma3, "model.", {}, {"rms_norm_eps": 1e-6}),
    "gte": EncoderKind(
        _gated_bert(True), "new.", {}, {"hidden_act": "gelu", "type_vocab_size": 1, "rope_theta": 160000.0}, types=True,
        renamed=_names(_GTE_NAMES, (_QUERIES, "attention.qkv_proj"), (("mlp.up_proj", "mlp.gate_proj"), "mlp.up_gate_proj")),
    ),
    "nomic_bert": EncoderKind(_gated_bert(False), "", {}, {"hidden_act": "silu", "type_vocab_size": 2, "rope_theta": 1000.0}, types=True, renamed=_names(_NOMIC_NAMES, (_QUERIES, "attn.Wqkv"))),
}  # fmt: skip


def normal_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the fields of transformers for those of a network's first code.

    Raises:
        SchemaError: a kind or a setting without a form here.
    """
    name = config.get("model_type")
    if name not in KINDS:
        raise SchemaError(f"the encoders known here are {', '.join(KINDS)}; seen the model_type {name!r}")
    if name != "nomic_bert" or "n_embd" not in config:
        return dict(config)
    expected = {"prenorm": False, "rotary_emb_fraction": 1.0, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "activation_function": "swiglu",
                "rotary_emb_interleaved": False, "use_rms_norm": False, "parallel_block": False}  # fmt: skip
    for field_name, value in expected.items():
        if (config.get(field_name) if config.get(field_name) is not None else value) != value:
            raise SchemaError(f"a network of the kind nomic_bert with {field_name}={config[field_name]!r} is not known here")
    positions = config.get("max_trained_positions") if config.get("rotary_scaling_factor") else config.get("n_positions")
    return {**config, **{ours: config[theirs] for ours, theirs in _NOMIC_FIELDS.items() if config.get(theirs) is not None},
            "max_position_embeddings": positions or config.get("n_positions")}  # fmt: skip


def head_named(config: Mapping[str, Any]) -> str | None:
    """Return the head of a configuration's architecture: "score", "labels", "words", or None."""
    for name in config.get("architectures") or []:
        for ending, head in HEADS.items():
            if str(name).endswith(ending):
                return head
    return None
