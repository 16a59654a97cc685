"""The known decoders of the transformers library: each a few settings, and the names of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foreshape import layer
from foreshape.apps.generation.architecture import Architecture, Pick, WeightNames
from foreshape.apps.generation.rotations import rotation_of
from foreshape.core.data_class import data_class, field
from foreshape.errors import FormatError, SchemaError
from foreshape.language.program import Variable
from foreshape.layer.attention import QueryNorm

_SLIDING, _FULL = "sliding_attention", "full_attention"


def _third(index: int) -> Pick:
    return lambda joined, architecture: joined.chunk(3)[index]


def _third_of_heads(index: int) -> Pick:
    """Return the share of queries, keys or values where each head has its three parts side by side."""
    return lambda joined, architecture: joined.reshape(architecture.heads[0], 3, architecture.heads[2], *joined.shape[1:])[:, index].reshape(
        -1, *joined.shape[1:]
    )


def share_of(index: int) -> Pick:
    """Return the part of queries (0), keys (1) or values (2) of a weight with all queries first, then keys, then values."""

    def pick(joined: Any, architecture: Architecture) -> Any:
        heads, key_heads, size = architecture.heads
        return joined.split([heads * size, key_heads * size, key_heads * size])[index]

    return pick


def half_of(index: int) -> Pick:
    """Return one half of a weight, by its first dim."""
    return lambda joined, architecture: joined.chunk(2)[index]


def _attention(under: str, output: str = "o_proj") -> dict[str, str]:
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": output}
    return {f"attention.{name}": f"{under}.{field}" for name, field in parts.items()}


_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_ONE_NORM = dict.fromkeys(_NORMS, "input_layernorm")
_GATED = {"mlp.gate": "mlp.gate_proj", "mlp.inner": "mlp.up_proj", "mlp.outer": "mlp.down_proj"}
_QUERY_NORM = {f"attention.{name}_norm": f"self_attn.{name[0]}_norm" for name in ("query", "key")}
_RESULT_NORMS = {"attention_result_norm": "post_attention_layernorm", "mlp_result_norm": "post_feedforward_layernorm"}
_LLAMA: dict[str, Any] = {**_attention("self_attn"), **_GATED, **_NORMS, **_QUERY_NORM}
_GEMMA = _LLAMA | _RESULT_NORMS | {"mlp_norm": "pre_feedforward_layernorm"}
_STARCODER = _LLAMA | {"mlp.inner": "mlp.c_fc", "mlp.outer": "mlp.c_proj"}
_PHI = {**_attention("self_attn", "dense"), "mlp.inner": "mlp.fc1", "mlp.outer": "mlp.fc2", **_ONE_NORM}
_QUERIES = ("attention.query", "attention.key", "attention.value")
_PHI3 = (
    _LLAMA
    | {name: ("self_attn.qkv_proj", share_of(at)) for at, name in enumerate(_QUERIES)}
    | {"mlp.gate": ("mlp.gate_up_proj", half_of(0)), "mlp.inner": ("mlp.gate_up_proj", half_of(1))}
)
_NEOX: dict[str, Any] = {
    **{name: ("attention.query_key_value", _third_of_heads(at)) for at, name in enumerate(_QUERIES)},
    "attention.output": "attention.dense",
    "mlp.inner": "mlp.dense_h_to_4h",
    "mlp.outer": "mlp.dense_4h_to_h",
    **_NORMS,
}
_GPT2: dict[str, Any] = {
    **{name: ("attn.c_attn", _third(at)) for at, name in enumerate(_QUERIES)},
    "attention.output": "attn.c_proj",
    "mlp.inner": "mlp.c_fc",
    "mlp.outer": "mlp.c_proj",
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
}
_GPTJ = {**_attention("attn", "out_proj"), "mlp.inner": "mlp.fc_in", "mlp.outer": "mlp.fc_out", "attention_norm": "ln_1", "mlp_norm": "ln_1"}
_OPT = {
    **_attention("self_attn", "out_proj"),
    "mlp.inner": "fc1",
    "mlp.outer": "fc2",
    "attention_norm": "self_attn_layer_norm",
    "mlp_norm": "final_layer_norm",
}


def _modern(parts: Mapping[str, Any] = _LLAMA, norm: str = "norm") -> WeightNames:
    return WeightNames("embed_tokens", norm, "layers.{}.", parts)


@data_class(frozen=True)
class DecoderKind:
    """The settings of a kind of decoder, where its configuration does not tell them.

    Attributes:
        names: of its weights.
        normalize, norm, gated: as for `layer.transformer_encoder_block`; ``norm`` may be the name of a field: "parallel" where it is true.
        biased: the parts with biases: always, or where a field of the configuration is true.
        tied: where the configuration does not say.
        part: the turned part of each head where the configuration does not say; 0 without rotation.
        interleaved: columns 2i and 2i + 1 are turned.
        window: the layers with a window: "all", the first of every so many ("2": one of two; "6": five of six), or "late" of a limit in the
            configuration; where the configuration has no ``layer_types``.
        query_norm: "head" or "row": `QueryNorm`.
        head_bias: the output layer has a bias.
        activation: the field with the small network's activation.
        tanh_gelu: "gelu" there is the form with tanh, as the first releases meant it.
        defaults: the values of fields left out of a configuration, of transformers' own class: older versions write the others alone.
        norm_shift, word_factor, skipped: as for `Architecture`; a ``word_factor`` of -1 is the root of the width.
        refused, needed: fields refused where they are true, and where they are false.
    """

    names: WeightNames
    normalize: str = "rms"
    norm: str = "pre"
    gated: bool = True
    biased: Mapping[str, bool | str] = field(default_factory=dict[str, "bool | str"])
    tied: bool = False
    part: float = 1.0
    interleaved: bool = False
    window: str = ""
    query_norm: str = ""
    head_bias: bool = False
    activation: str = "hidden_act"
    tanh_gelu: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    norm_shift: float = 0.0
    word_factor: float = 1.0
    positions: bool = False
    skipped: int = 0
    refused: Sequence[str] = ()
    needed: Sequence[str] = ()


_OF_LLAMA = {"qkv": "attention_bias", "output": "attention_bias", "mlp": "mlp_bias"}
_ALL: dict[str, bool | str] = dict.fromkeys(("qkv", "output", "mlp", "norm"), True)
_CLASSIC: dict[str, Any] = {"normalize": "layer", "gated": False}
_OF_GEMMA: dict[str, Any] = {"biased": {"qkv": "attention_bias", "output": "attention_bias"}, "tied": True, "norm_shift": 1.0, "word_factor": -1.0}
_INNER = {"intermediate_size": 11008}
_OF_QWEN = {"intermediate_size": 22016, "num_key_value_heads": 32, "sliding_window": 4096}
_GEMMA_FIELDS: dict[str, Any] = {
    **{"hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "intermediate_size": 9216},
    **{"num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096},
}
_LATER_GEMMA: dict[str, Any] = {"names": _modern(_GEMMA), **_OF_GEMMA, "norm": "both", "activation": "hidden_activation"}

KINDS: dict[str, DecoderKind] = {
    "gpt2": DecoderKind(
        WeightNames("wte", "ln_f", "h.{}.", _GPT2, positions="wpe", turned=False),
        activation="activation_function",
        defaults={"activation_function": "gelu_new"},
        **_CLASSIC,
        biased=_ALL,
        tied=True,
        part=0.0,
        positions=True,
        refused=("scale_attn_by_inverse_layer_idx", "add_cross_attention"),
        needed=("scale_attn_weights",),
    ),
    "gptj": DecoderKind(
        WeightNames("wte", "ln_f", "h.{}.", _GPTJ),
        activation="activation_function",
        defaults={"activation_function": "gelu_new", "rotary_dim": 64},
        **_CLASSIC,
        norm="parallel",
        biased={"mlp": True, "norm": True},
        interleaved=True,
        head_bias=True,
    ),
    "gpt_neox": DecoderKind(
        WeightNames("embed_in", "final_layer_norm", "layers.{}.", _NEOX, head="embed_out"),
        **_CLASSIC,
        defaults={"hidden_act": "gelu", "intermediate_size": 24576},
        norm="use_parallel_residual",
        needed=("attention_bias",),
        biased=_ALL,
        part=0.25,
    ),
    "opt": DecoderKind(
        WeightNames("embed_tokens", "final_layer_norm", "layers.{}.", _OPT, positions="embed_positions"),
        **_CLASSIC,
        activation="activation_function",
        defaults={"activation_function": "relu", "ffn_dim": 3072},
        biased=_ALL,
        tied=True,
        part=0.0,
        positions=True,
        skipped=2,
        refused=("_remove_final_layer_norm",),
        needed=("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"),
    ),
    "phi": DecoderKind(
        _modern(_PHI, "final_layernorm"),
        **_CLASSIC,
        defaults={"hidden_act": "gelu_new", "intermediate_size": 8192},
        norm="parallel",
        biased=_ALL,
        part=0.5,
        head_bias=True,
        refused=("qk_layernorm",),
    ),
    "phi3": DecoderKind(_modern(_PHI3), window="all", defaults={"intermediate_size": 8192, "rms_norm_eps": 1e-5}),
    "llama": DecoderKind(_modern(), biased=_OF_LLAMA, defaults=_INNER),
    "mistral": DecoderKind(_modern(), window="all", defaults={"intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096}),
    "qwen2": DecoderKind(_modern(), biased={"qkv": True}, window="late", defaults=_OF_QWEN),
    "qwen3": DecoderKind(_modern(), biased=_OF_LLAMA, window="late", query_norm="head", defaults={**_OF_QWEN, "head_dim": 128}),
    "smollm3": DecoderKind(_modern(), biased=_OF_LLAMA, tied=True, window="all", defaults={**_INNER, "rope_theta": 2e6}),
    "granite": DecoderKind(_modern(), biased=_OF_LLAMA, defaults={**_INNER, "attention_multiplier": 1.0}),
    "olmo2": DecoderKind(
        _modern(_LLAMA | _RESULT_NORMS),
        norm="result",
        biased={"qkv": "attention_bias", "output": "attention_bias"},
        query_norm="row",
        defaults={**_INNER, "rms_norm_eps": 1e-5},
    ),
    "gemma": DecoderKind(
        _modern(),
        **_OF_GEMMA,
        tanh_gelu=True,
        defaults={"hidden_act": "gelu_pytorch_tanh", "head_dim": 256, "intermediate_size": 24576, "num_key_value_heads": 16},
    ),
    "gemma2": DecoderKind(**_LATER_GEMMA, window="2", defaults={**_GEMMA_FIELDS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "gemma3_text": DecoderKind(
        **_LATER_GEMMA,
        window="6",
        query_norm="head",
        defaults={**_GEMMA_FIELDS, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
        refused=("use_bidirectional_attention",),
    ),
    "stablelm": DecoderKind(
        _modern(),
        normalize="layer",
        biased={"qkv": "use_qkv_bias", "norm": True},
        part=0.25,
        defaults={"intermediate_size": 6912, "num_key_value_heads": 32},
        refused=("qk_layernorm", "use_parallel_residual"),
    ),
    "starcoder2": DecoderKind(
        _modern(_STARCODER),
        **_CLASSIC,
        biased={"qkv": "use_bias", "output": "use_bias", "mlp": "use_bias", "norm": True},
        tied=True,
        window="all",
        defaults={"hidden_act": "gelu_pytorch_tanh", "intermediate_size": 12288, "num_key_value_heads": 2},
    ),
    "cohere": DecoderKind(
        _modern(_LLAMA | _ONE_NORM),
        normalize="layer",
        norm="parallel",
        biased={"qkv": "attention_bias", "output": "attention_bias"},
        tied=True,
        interleaved=True,
        defaults={"intermediate_size": 22528, "logit_scale": 0.0625, "rope_theta": 5e5},
        refused=("use_qk_norm",),
    ),
}


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the description of a decoder.

    Args:
        config: of transformers, as in ``config.json``.

    Raises:
        SchemaError: another kind, or an unknown setting. FormatError: a field is missing.
    """
    name = config.get("model_type")
    if name not in KINDS:
        raise SchemaError(f"the networks known here are {', '.join(KINDS)}; seen {name!r}")
    kind = KINDS[name]
    config = {**kind.defaults, **config}
    for expected, fields in ((True, kind.needed), (False, kind.refused)):
        if wrong := next((f for f in fields if bool(config.get(f, expected)) is not expected), None):
            raise SchemaError(f"a network of the kind {name} with {wrong}={config[wrong]} is not known here")
    try:
        return _described(kind, config)
    except KeyError as missing:
        raise FormatError(f"the configuration of a {name} must have {missing}") from None


def _described(kind: DecoderKind, config: Mapping[str, Any]) -> Architecture:
    width, heads, layers = (
        _first(config, *names) for names in (("hidden_size", "n_embd"), ("num_attention_heads", "n_head"), ("num_hidden_layers", "n_layer"))
    )
    context = _first(config, "max_position_embeddings", "n_positions")
    if (config.get("word_embed_proj_dim") or width) != width:
        raise SchemaError(f"words of {config['word_embed_proj_dim']} columns in a network of {width} are not known here")
    size = config.get("head_dim") or width // heads
    inner = config.get("intermediate_size") or config.get("ffn_dim") or config.get("n_inner") or 4 * width
    biased = {part for part, field in kind.biased.items() if (config.get(field, _BIASED.get(field, False)) if isinstance(field, str) else field)}
    norm = kind.norm if kind.norm in ("pre", "result", "both", "parallel") else "parallel" if config.get(kind.norm, True) else "pre"
    epsilon = next((config[n] for n in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon") if n in config), _EPSILON[kind.normalize])
    blocks: dict[str, Any] = {
        "heads": heads,
        "key_heads": config.get("num_key_value_heads") or heads,
        "head_size": size,
        "inner_size": inner,
        "activation": _activation(_activation_name(kind, config)),
        "epsilon": epsilon,
        "normalize": kind.normalize,
        "norm": norm,
        "gated": kind.gated,
        "bias": None if biased else False,
    }
    if kind.query_norm:
        blocks["query_norm"] = QueryNorm(epsilon, kind.query_norm == "head")
    if (cap := config.get("attn_logit_softcapping")) is not None:
        blocks["score_cap"] = cap
    factor = _query_factor(config, size)
    columns: int | None = None
    options: list[dict[str, Any]] = [{} for _ in range(layers)]
    types = _layer_types(kind, config, layers)
    if kind.part:
        config = {"partial_rotary_factor": kind.part, **config} if "rotary_pct" not in config else config
        rotations = {layer_type: rotation_of(config, size, kind.interleaved, layer_type) for layer_type in sorted(set(types))}
        rotation = next(iter(rotations.values()))
        if any((r.factor, r.turned) != (rotation.factor, rotation.turned) for r in rotations.values()):
            raise SchemaError("layers whose rotations have different factors are not known here")
        factor, columns = factor * rotation.factor**2, rotation.turned
        context = min(context, *(r.context or context for r in rotations.values()))
        turns = config.get("no_rope_layers") or [1] * layers
        for entry, layer_type, turn in zip(options, types, turns, strict=False):
            entry["rotary"] = rotations[layer_type].rotary if turn else False
    for entry, layer_type in zip(options, types, strict=True):
        if layer_type == _SLIDING and config["sliding_window"] < context:
            entry["window"] = config["sliding_window"]
    return Architecture(
        config["vocab_size"],
        width,
        layers,
        context,
        blocks,
        kind.names,
        each=options,
        positions=kind.positions,
        skipped=kind.skipped,
        tied=config.get("tie_word_embeddings", kind.tied),
        head_bias=kind.head_bias,
        biased=frozenset(biased),
        word_factor=config.get("embedding_multiplier", width**0.5 if kind.word_factor < 0 else kind.word_factor),
        score_factor=config.get("logit_scale", 1.0) / config.get("logits_scaling", 1.0),
        score_cap=config.get("final_logit_softcapping"),
        query_factor=factor,
        result_factor=config.get("residual_multiplier", 1.0),
        norm_shift=kind.norm_shift,
        turned_columns=columns,
    )


_EPSILON = {"rms": 1e-6, "layer": 1e-5}
_BIASED = {"use_bias": True}
"""Fields left out of a configuration, and true."""


def _first(config: Mapping[str, Any], *names: str) -> Any:
    value = next((config[name] for name in names if config.get(name) is not None), None)
    if value is None:
        raise KeyError(names[0])
    return value


def _query_factor(config: Mapping[str, Any], size: int) -> float:
    """Return the factor of scores beside one over the root of a head's columns."""
    if (scalar := config.get("query_pre_attn_scalar")) is not None:
        return (size / scalar) ** 0.5
    return config.get("attention_multiplier", size**-0.5) * size**0.5


def _layer_types(kind: DecoderKind, config: Mapping[str, Any], layers: int) -> list[str]:
    """Return the kind of attention of each layer: within a window, or to all rows before."""
    if not kind.window or not config.get("sliding_window") or not config.get("use_sliding_window", kind.window != "late"):
        return [_FULL] * layers
    if types := config.get("layer_types"):
        if wrong := sorted({*types} - {_SLIDING, _FULL}):
            raise SchemaError(f"layers of the kind {wrong[0]!r} are not known here")
        return list(types)
    if kind.window == "late":
        return [_SLIDING if index >= config.get("max_window_layers", 28) else _FULL for index in range(layers)]
    every = 0 if kind.window == "all" else config.get("sliding_window_pattern", int(kind.window))
    return [_FULL if every and not (index + 1) % every else _SLIDING for index in range(layers)]


def _activation_name(kind: DecoderKind, config: Mapping[str, Any]) -> str:
    name = config.get(kind.activation) or kind.defaults.get(kind.activation, "silu")
    return "gelu_pytorch_tanh" if kind.tanh_gelu and name == "gelu" else name


def _activation(name: str) -> Any:
    activations: dict[str, Any] = {"gelu_new": _tanh_gelu, "gelu_pytorch_tanh": _tanh_gelu, "gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"}
    if name not in activations:
        raise SchemaError.one_of("the activation", activations, name)
    return activations[name]


def _tanh_gelu(x: Variable) -> Variable:
    return layer.gelu(x, approximate=True)
