"""`language_model`: GPT-2, Llama and their kin as the transformers library configures and saves them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foreshape import layer
from foreshape.data_class import data_class
from foreshape.engine import Scope
from foreshape.errors import FormatError, SchemaError, border
from foreshape.generation.cached_model import LanguageModel
from foreshape.interop.state_dicts import read_state_dict
from foreshape.layer.positions import Rotary
from foreshape.program import Program, Variable, program_guard
from foreshape.values.torch_proxy import Tensor, torch


@data_class(frozen=True)
class Architecture:
    """A decoder's description: of its blocks and their surroundings.

    Attributes:
        vocabulary, width, layers, context: its sizes; ``context`` is the longest text it was made for.
        blocks: the arguments of `layer.transformer_encoder`.
        positions: True if it adds a learned row for each position.
        tied: True if the table of words is the output layer too.
        end: the words at the end of a text.
    """

    vocabulary: int
    width: int
    layers: int
    context: int
    blocks: Mapping[str, Any]
    positions: bool
    tied: bool
    end: tuple[int, ...]

    def scores(self, words: Variable, cache: Any = None) -> Variable:
        """Describe the network: from ragged words to the hidden rows and the scores of each text's next word, ``[batch, vocabulary]``."""
        h = layer.embedding(words, [self.vocabulary, self.width], weight="words.weight")
        if self.positions:
            numbers = layer.cast(layer.position_numbers(words), "int64") if cache is None else cache.positions
            h = h + layer.embedding(numbers, [self.context, self.width], weight="positions.weight")
        h = layer.transformer_encoder(h, self.layers, causal=True, cache=cache, **self.blocks)
        last = layer.sequence_last_step(h)
        if self.tied:
            return layer.matmul(last, layer.create_parameter([self.vocabulary, self.width], "fp32", "words.weight"), transpose_y=True)
        return layer.fc(last, self.vocabulary, weight="head.weight", bias=False)


_Values = Callable[[str], "Tensor | None"]
"""The value of a name in the source; None if it is not there."""


def _gpt2(config: Mapping[str, Any]) -> Architecture:
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.get(name):
            raise SchemaError(f"a GPT-2 with {name} is not known here")
    width = config["n_embd"]
    blocks = {
        "heads": config["n_head"],
        "inner_size": config.get("n_inner") or 4 * width,
        "activation": _activation(config.get("activation_function", "gelu_new")),
        "epsilon": config.get("layer_norm_epsilon", 1e-5),
    }
    if not config.get("scale_attn_weights", True):
        raise SchemaError("a GPT-2 without scale_attn_weights is not known here")
    tied = config.get("tie_word_embeddings", True)
    return Architecture(config["vocab_size"], width, config["n_layer"], config["n_positions"], blocks, True, tied, _end(config))


def _gpt2_values(of: Architecture, value: _Values) -> dict[str, Tensor | None]:
    out = {"words.weight": value("wte.weight"), "positions.weight": value("wpe.weight")}
    out |= {f"encoder.norm.{what}": value(f"ln_f.{what}") for what in ("weight", "bias")}
    for at in range(of.layers):
        here, there = f"encoder.{at}", f"h.{at}"
        for what in ("weight", "bias"):
            joined = value(f"{there}.attn.c_attn.{what}")
            parts: Sequence[Tensor | None] = (None,) * 3 if joined is None else joined.chunk(3, -1)
            out |= {f"{here}.attention.{name}.{what}": part for name, part in zip(("query", "key", "value"), parts, strict=True)}
            out[f"{here}.attention.output.{what}"] = value(f"{there}.attn.c_proj.{what}")
            out[f"{here}.mlp.inner.{what}"] = value(f"{there}.mlp.c_fc.{what}")
            out[f"{here}.mlp.outer.{what}"] = value(f"{there}.mlp.c_proj.{what}")
            out[f"{here}.attention_norm.{what}"] = value(f"{there}.ln_1.{what}")
            out[f"{here}.mlp_norm.{what}"] = value(f"{there}.ln_2.{what}")
    return out


def _llama(config: Mapping[str, Any]) -> Architecture:
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        raise SchemaError(f"attention within a window of {config['sliding_window']} words is not known here")
    width, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or width // heads
    attention, mlp = config.get("attention_bias", config["model_type"] == "qwen2"), config.get("mlp_bias", False)
    blocks = {
        "heads": heads,
        "key_heads": config.get("num_key_value_heads") or heads,
        "head_size": size,
        "inner_size": config["intermediate_size"],
        "activation": _activation(config.get("hidden_act", "silu")),
        "epsilon": config.get("rms_norm_eps", 1e-6),
        "normalize": "rms",
        "gated": True,
        "rotary": _rotary(config, size),
        "bias": None if attention or mlp else False,
    }
    tied = config.get("tie_word_embeddings", False)
    return Architecture(config["vocab_size"], width, config["num_hidden_layers"], config["max_position_embeddings"], blocks, False, tied, _end(config))


def _llama_values(of: Architecture, value: _Values) -> dict[str, Tensor | None]:
    out = {"words.weight": value("embed_tokens.weight"), "encoder.norm.weight": value("norm.weight")}
    products = {
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.o_proj",
        "mlp.gate": "mlp.gate_proj",
        "mlp.inner": "mlp.up_proj",
        "mlp.outer": "mlp.down_proj",
    }
    for at in range(of.layers):
        here, there = f"encoder.{at}", f"layers.{at}"
        for name, its in products.items():
            weight = value(f"{there}.{its}.weight")
            out[f"{here}.{name}.weight"] = None if weight is None else weight.T
            if of.blocks["bias"] is not False:
                bias = value(f"{there}.{its}.bias")
                out[f"{here}.{name}.bias"] = torch.zeros(weight.shape[0]) if bias is None and weight is not None else bias
        out[f"{here}.attention_norm.weight"] = value(f"{there}.input_layernorm.weight")
        out[f"{here}.mlp_norm.weight"] = value(f"{there}.post_attention_layernorm.weight")
    return out


def _activation(name: str) -> Any:
    known: dict[str, Any] = {"gelu_new": _tanh_gelu, "gelu_pytorch_tanh": _tanh_gelu, "gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"}
    if name not in known:
        raise SchemaError(f"the activation must be one of {', '.join(known)}; seen {name!r}")
    return known[name]


def _tanh_gelu(x: Variable) -> Variable:
    return layer.gelu(x, approximate=True)


def _rotary(config: Mapping[str, Any], size: int) -> Rotary:
    """Return the rotation of positions; of the kinds "default", "linear" and "llama3"."""
    given: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = given.get("rope_type", given.get("type", "default"))
    base: float = given.get("rope_theta", config.get("rope_theta", 10000.0))
    if given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise SchemaError("a rotation of a part of each head is not known here")
    if kind == "default":
        return Rotary(base, interleaved=False)
    rates = [base ** (-2.0 * i / size) for i in range(size // 2)]
    if kind == "linear":
        return Rotary(base, False, [r / given["factor"] for r in rates])
    if kind != "llama3":
        raise SchemaError(f'the positions must be of the kind "default", "linear" or "llama3"; seen {kind!r}')
    factor, low, high, before = (given[n] for n in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))

    def slowed(rate: float) -> float:
        length = 2 * math.pi / rate
        if length < before / high:
            return rate
        if length > before / low:
            return rate / factor
        part = (before / length - low) / (high - low)
        return (1 - part) * rate / factor + part * rate

    return Rotary(base, False, list(map(slowed, rates)))


def _end(config: Mapping[str, Any]) -> tuple[int, ...]:
    given = config.get("eos_token_id")
    return () if given is None else (given,) if isinstance(given, int) else tuple(given)


_KNOWN: dict[str, tuple[Callable[[Mapping[str, Any]], Architecture], Callable[[Architecture, _Values], dict[str, Tensor | None]]]] = {
    "gpt2": (_gpt2, _gpt2_values),
    "llama": (_llama, _llama_values),
    "mistral": (_llama, _llama_values),
    "qwen2": (_llama, _llama_values),
}
_PREFIXES = ("", "transformer.", "model.")


@border("the language model cannot be read", FormatError)
def language_model(
    source: Any,
    state: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    users: int = 8,
    context: int | None = None,
    threads: int | None = None,
    memory_limit: int | str | None = None,
) -> LanguageModel:
    """Return a GPT-2, Llama, Mistral or Qwen2 of the transformers library, ready for `generate`.

    Args:
        source: a folder with ``config.json`` and weights (``.safetensors``, or files by ``torch.save``, of which no code is run); a module of
            transformers; or its configuration as a mapping, such as ``config.to_dict()``, and then ``state``.
        state: name -> tensor as of ``module.state_dict()``, or the file.
        users: the most texts at a time.
        context: the most words of a text; by default the network's own limit, at most 1,024.
        threads, memory_limit: as for `Executor`.

    Raises:
        FormatError: a file is missing or damaged, or a weight is missing or has other dims. SchemaError: another kind of network.
    """
    config, given = _opened(source, state)
    kind = config.get("model_type")
    if kind not in _KNOWN:
        raise SchemaError(f"the networks known here are {', '.join(_KNOWN)}; seen {kind!r}")
    describe, named = _KNOWN[kind]
    try:
        of = describe(config)
    except KeyError as missing:
        raise FormatError(f"the configuration of a {kind} must have {missing}") from None
    context = min(of.context, 1024) if context is None else context
    if context > of.context:
        raise SchemaError(f"the network was made for at most {of.context} words; seen context={context}")
    main, startup = Program(), Program()
    with program_guard(main, startup):
        words = layer.data("words", ["rows"], "int64", lod_level=1)
        cache = layer.attention_cache(words)
        scores = of.scores(words, cache)
    scope = Scope()
    _fill(main, scope, named(of, lambda name: _found(given, name)) | ({} if of.tied else {"head.weight": _head(given)}))
    return LanguageModel(words, scores, cache, scope, users=users, context=context, end=of.end, threads=threads, memory_limit=memory_limit)


def _opened(source: Any, state: Any) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
    if isinstance(source, Mapping):
        if state is None:
            raise SchemaError("a configuration alone has no weights: give state=, a state_dict or its file")
        return source, read_state_dict(state)  # pyright: ignore[reportUnknownVariableType]
    if hasattr(source, "config") and hasattr(source, "state_dict"):
        return source.config.to_dict(), read_state_dict(source.state_dict() if state is None else state)
    folder = Path(source)
    file = folder / "config.json"
    if not file.is_file():
        raise FormatError(f"{str(folder)[:300]} must be a folder with config.json")
    config = json.loads(file.read_text("utf-8"))
    if not isinstance(config, dict):
        raise FormatError(f"{file} must hold an object")
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if state is None and not files:
        raise FormatError(f"{str(folder)[:300]} has no weights: neither .safetensors nor pytorch_model.bin")
    return config, read_state_dict(state) if state is not None else {n: v for f in files for n, v in read_state_dict(f).items()}  # pyright: ignore[reportUnknownVariableType]


def _found(given: Mapping[str, Tensor], name: str) -> Tensor | None:
    return next((given[prefix + name] for prefix in _PREFIXES if prefix + name in given), None)


def _head(given: Mapping[str, Tensor]) -> Tensor | None:
    head = given.get("lm_head.weight")
    return None if head is None else head.T


def _fill(program: Program, scope: Scope, values: Mapping[str, Tensor | None]) -> None:
    """Put all weights into the scope, in fp32.

    Raises:
        FormatError: one is missing, or has other dims.
    """
    wanted = {v.name: v for v in program.parameters()}
    missing = [n for n in wanted if values.get(n) is None]
    if missing:
        raise FormatError(f"{len(missing)} weights are missing in the source, such as {', '.join(missing[:4])}")
    with torch.inference_mode():
        for name, variable in wanted.items():
            value = values[name]
            assert value is not None
            if list(value.shape) != list(variable.spec.known_dims):
                raise FormatError(f"{name} must be {variable.spec.text()}, and is {list(value.shape)} in the source")
            scope.store(name, value.detach().float().contiguous(), owned=False)
