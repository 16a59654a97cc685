"""Decoders in GGUF files: their configurations from a file's facts, and the places of its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from foreshape.apps.generation.architecture import Architecture, Pick, WeightNames
from foreshape.apps.generation.decoder_kinds import architecture_of, half_of, share_of
from foreshape.apps.generation.decoder_source import DecoderOrigin, DecoderSource
from foreshape.apps.generation.text_settings import TextSettings, settings_of
from foreshape.core.data_class import data_class, field
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import FormatError, SchemaError
from foreshape.interop.gguf_file import GgufFile
from foreshape.language.program import Variable
from foreshape.machine.kernels.grouped_weights import GroupedNumbers

BLOCK: Final = 32
"""The numbers of a row with one scale in the simplest blocks."""
_MOST: Final = (1 << 31) - 1
_TOKENS, _CONTROL = "tokenizer.ggml.tokens", 3
_ENDS: Final = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<end_of_turn>", "<EOT>")
"""Words at the end of answers; many a file names that of plain texts alone."""
_JOINED: Final = "blk.0.attn_qkv.weight"
_WORDS, _OUTPUT = "token_embd.weight", "output.weight"
_DIVISORS: Final = "rope_freqs.weight"
_SHORT: Final = "rope_factors_short.weight"
_WITHOUT_PLACE: Final = (_DIVISORS, _SHORT, "rope_factors_long.weight")
PARTS: Final[Mapping[str, str | tuple[str, Pick]]] = {
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.output": "attn_output",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate",
    "mlp.inner": "ffn_up",
    "mlp.outer": "ffn_down",
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "attention_result_norm": "post_attention_norm",
    "mlp_result_norm": "post_ffw_norm",
}


@data_class(frozen=True)
class GgufKind:
    """A kind of decoder in GGUF files.

    Attributes:
        model_type: of transformers.
        pairs: the rows of queries and keys lie in pairs: rows i and i + size / 2 of a head are 2 i and 2 i + 1 in the file.
        parts: the tensors of a block with names of their own.
    """

    model_type: str
    pairs: bool = False
    parts: Mapping[str, str | tuple[str, Pick]] = field(default_factory=dict[str, "str | tuple[str, Pick]"])


_ONE_NORM: Final = {"mlp_norm": "attn_norm"}
KINDS: Final = {
    "llama": GgufKind("llama", pairs=True),
    "granite": GgufKind("granite", pairs=True),
    "smollm3": GgufKind("smollm3", pairs=True),
    "qwen2": GgufKind("qwen2"),
    "qwen3": GgufKind("qwen3"),
    "gemma": GgufKind("gemma"),
    "gemma2": GgufKind("gemma2"),
    "gemma3": GgufKind("gemma3_text"),
    "phi2": GgufKind("phi", parts=_ONE_NORM),
    "phi3": GgufKind("phi3", parts={"mlp.gate": ("ffn_up", half_of(0)), "mlp.inner": ("ffn_up", half_of(1))}),
    "olmo2": GgufKind("olmo2"),
    "starcoder2": GgufKind("starcoder2"),
    "stablelm": GgufKind("stablelm"),
    "command-r": GgufKind("cohere", parts=_ONE_NORM),
    "gptneox": GgufKind("gpt_neox"),
    "gpt2": GgufKind("gpt2"),
}


def gguf_source(path: Any, state: Any = None) -> DecoderSource:
    """Return the decoder in a GGUF file.

    Args:
        path: of the file.
        state: must be None: the file has its weights.

    Raises:
        FormatError: a damaged file, or one without a needed fact or tensor. SchemaError: a kind, or a setting, without a form here.
    """
    if state is not None:
        raise SchemaError("a GGUF file has its weights: leave state= out")
    file = GgufFile(path)
    facts = _Facts(file)
    config = _config(file, facts)
    architecture = _described(file, facts, config)
    weights = _PlacedWeights(file, architecture)
    return DecoderSource(
        architecture,
        facts.settings,
        weights.value,
        prepare=weights.prepare,
        is_rounded=weights.is_rounded,
        rounded=weights.rounded,
        origin=DecoderOrigin(architecture, config, file.path),
    )


def described_in(file: GgufFile) -> Architecture:
    """Return the description of the decoder in a file. Raises as `gguf_source`."""
    facts = _Facts(file)
    return _described(file, facts, _config(file, facts))


def _described(file: GgufFile, facts: _Facts, config: Mapping[str, Any]) -> Architecture:
    return replace(architecture_of(config), names=_names(file, facts.kind), norm_shift=0.0)


class _Facts:
    """The facts of a file, checked as they are asked for; names are without the architecture before them."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        name = file.facts.get("general.architecture")
        if not isinstance(name, str) or name not in KINDS:
            raise SchemaError(f"{file.path}: the networks of GGUF files known here are {', '.join(KINDS)}; seen {str(name)[:60]!r}")
        self.architecture, self.kind = name, KINDS[name]

    def whole(self, name: str, low: int, high: int = _MOST, default: int | None = None) -> int:
        """Return a whole number; of an array, the one that all layers have."""
        value = self._single(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high:,}", value)
        return value

    def number(self, name: str, default: float | None = None, low: float = 1e-12) -> float:
        value = self._single(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= 1e30:
            raise self._wrong(name, f"a number from {low:g} to 1e30", value)
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self._single(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self._single(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self._file.facts

    def layer_truths(self, name: str) -> list[bool]:
        """Return an array of numbers, one for each layer, as truths."""
        value = self._file.facts[f"{self.architecture}.{name}"]
        return [bool(number) for number in value.tolist()] if hasattr(value, "tolist") else []

    def settings(self) -> TextSettings:
        """Return the settings of texts: the words at their end, as the file says, and control words with the usual names."""
        words: list[Any] = [self._file.facts.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
        types: Any = self._file.facts.get("tokenizer.ggml.token_type")
        if hasattr(types, "tolist") and _TOKENS in self._file.texts:
            pairs = enumerate(zip(self._file.texts[_TOKENS](), types.tolist(), strict=False))
            words += [number for number, (word, kind) in pairs if word in _ENDS and kind == _CONTROL]
        return settings_of({"eos_token_id": [word for word in dict.fromkeys(words) if isinstance(word, int)]}, self._file.path)

    def _single(self, name: str, default: Any) -> Any:
        value = self._file.facts.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise FormatError(f"{self._file.path} must have the fact {self.architecture}.{name}")
        if hasattr(value, "tolist"):
            values = set(value.tolist())
            if len(values) != 1:
                raise SchemaError(f"{self._file.path}: layers with different {name} are not known here")
            return values.pop()
        return value

    def _wrong(self, name: str, expected: str, value: Any) -> FormatError:
        return FormatError.must(f"{self._file.path}: {self.architecture}.{name}", expected, repr(value)[:60])


def _config(file: GgufFile, facts: _Facts) -> dict[str, Any]:
    """Return the configuration of transformers for a file's network, with all sizes within those of its tensors."""
    words = _matrix(file, _WORDS)
    layers = facts.whole("block_count", 1, len(file.tensors))
    heads = facts.whole("attention.head_count", 1)
    key_heads = facts.whole("attention.head_count_kv", 1, default=heads)
    size = facts.whole("attention.key_length", 1, default=max(1, words[1] // heads))
    rows = (heads + 2 * key_heads if _JOINED in file.tensors else heads) * size
    first = _JOINED if _JOINED in file.tensors else "blk.0.attn_q.weight"
    if _matrix(file, first) != (rows, words[1]) or heads % key_heads or facts.whole("attention.value_length", 1, default=size) != size:
        seen = f"{heads} heads and {key_heads} of keys, of {size} columns, in {list(file.tensors[first].dims)}"
        raise FormatError.must(f"{file.path}: {first}", f"of the heads in the file's facts, with {words[1]} columns", seen)
    if facts.whole("expert_count", 0, default=0):
        raise SchemaError(f"{file.path}: a mixture of experts is not known here")
    context = facts.whole("context_length", 1)
    epsilon = "layer_norm_epsilon" if facts.has("attention.layer_norm_epsilon") else "layer_norm_rms_epsilon"
    window = facts.whole("attention.sliding_window", 0, default=0)
    config: dict[str, Any] = {
        "model_type": facts.kind.model_type,
        "vocab_size": words[0],
        "hidden_size": words[1],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": size,
        "intermediate_size": _matrix(file, "blk.0.ffn_down.weight")[1],
        "max_position_embeddings": context,
        "rms_norm_eps" if "rms" in epsilon else "layer_norm_eps": facts.number(f"attention.{epsilon}"),
        "tie_word_embeddings": _OUTPUT not in file.tensors,
        "sliding_window": window or None,
        **dict.fromkeys(("attention_bias", "use_qkv_bias"), "blk.0.attn_q.bias" in file.tensors),
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "use_bias": "blk.0.attn_output.bias" in file.tensors,
    }
    if facts.kind.model_type == "gpt_neox":
        del config["attention_bias"]
    if facts.kind.model_type == "llama" and window:
        config["model_type"] = "mistral"
    return config | _rotation(file, facts, size, context) | _special(file, facts, config)


def _rotation(file: GgufFile, facts: _Facts, size: int, context: int) -> dict[str, Any]:
    """Return the fields of rotated positions."""
    turned = facts.whole("rope.dimension_count", 2, size, default=size)
    if facts.kind.pairs and turned != size:
        raise SchemaError(f"{file.path}: a {facts.architecture} with {turned} of {size} turned columns is not known here")
    config: dict[str, Any] = {"rope_theta": facts.number("rope.freq_base", 10000.0, 1.0), "rotary_dim": turned}
    factor = facts.number("rope.scaling.factor", facts.number("rope.scale_linear", 1.0))
    kind = facts.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    original = facts.whole("rope.scaling.original_context_length", 1, default=context)
    divisors = next((name for name in (_DIVISORS, _SHORT) if name in file.tensors), None)
    attention = facts.number("rope.scaling.attn_factor", facts.number("rope.scaling.yarn_attn_factor", 1.0))
    if divisors is not None:
        if kind not in ("none", "longrope") or file.tensors[divisors].dims != (turned // 2,):
            raise SchemaError(f"{file.path}: {divisors} of {list(file.tensors[divisors].dims)}, with positions of the kind {kind[:40]!r}, is not known here")
        values = cast("list[float]", file.floats(divisors).tolist())  # pyright: ignore[reportUnknownMemberType]
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise FormatError.must(f"{file.path}: {divisors}", "numbers above 0", "others")
        length = context if divisors == _DIVISORS else original
        scaling: dict[str, Any] = {"short_factor": values, "attention_factor": attention, "original_max_position_embeddings": length}
        return config | {"rope_scaling": {"rope_type": "longrope"} | scaling}
    if kind == "yarn":
        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        scaling |= {name: facts.number(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow") if facts.has(f"rope.scaling.yarn_{name}")}
        if attention != 1.0:
            scaling["attention_factor"] = attention * (1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0)
        return config | {"rope_scaling": scaling}
    if kind not in ("none", "linear"):
        raise SchemaError.one_of(f"{file.path}: {facts.architecture}.rope.scaling.type", ("none", "linear", "yarn"), kind[:40])
    return config | ({"rope_scaling": {"rope_type": "linear", "factor": factor}} if kind == "linear" else {})


def _special(file: GgufFile, facts: _Facts, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of single kinds."""
    kind, size, layers = facts.kind.model_type, config["head_dim"], config["num_hidden_layers"]
    if kind == "granite":
        if not facts.truth("rope.scaling.finetuned", True):
            raise SchemaError(f"{file.path}: a granite without turned positions is not known here")
        names = {"embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}
        return {name: facts.number(fact, 1.0) for name, fact in names.items()} | {"attention_multiplier": facts.number("attention.scale", size**-0.5)}
    if kind == "cohere":
        return {"logit_scale": facts.number("logit_scale")}
    if kind == "smollm3":  # llama.cpp turns no columns in each fourth layer
        return {"no_rope_layers": [int(bool((index + 1) % 4)) for index in range(layers)]}
    if kind == "gpt_neox":
        return {"use_parallel_residual": facts.truth("use_parallel_residual", True)}
    if kind == "stablelm":
        return {"use_parallel_residual": "blk.0.ffn_norm.weight" not in file.tensors}
    if kind not in ("gemma2", "gemma3_text"):
        return {}
    largest = 46 if kind == "gemma2" else 62  # the networks of 27 billion weights divide by another root, which files do not tell
    out: dict[str, Any] = {"query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if layers == largest else size}
    if kind == "gemma2":
        out["sliding_window"] = config["sliding_window"] or 4096
    else:
        out["rope_local_base_freq"] = facts.number("rope.freq_base_swa", 10000.0, 1.0)
    caps = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
    out |= {name: facts.number(fact) for name, fact in caps.items() if facts.has(fact)}
    if facts.has("attention.sliding_window_pattern"):
        if truths := facts.layer_truths("attention.sliding_window_pattern"):
            if len(truths) != layers:
                raise FormatError.must(f"{file.path}: attention.sliding_window_pattern", f"of {layers} layers", f"{len(truths)} numbers")
            out["layer_types"] = ["sliding_attention" if truth else "full_attention" for truth in truths]
        else:
            out["sliding_window_pattern"] = facts.whole("attention.sliding_window_pattern", 1)
    return out


def _matrix(file: GgufFile, name: str) -> tuple[int, int]:
    if name not in file.tensors:
        raise FormatError(f"{file.path} has no tensor {name}")
    dims = file.tensors[name].dims
    if len(dims) != 2:
        raise FormatError.must(f"{file.path}: {name}", "a matrix", str(list(dims)))
    return dims[0], dims[1]


def _names(file: GgufFile, kind: GgufKind) -> WeightNames:
    """Return the places of a file's weights."""
    parts = {**PARTS, **kind.parts}
    for index, name in enumerate(("attention.query", "attention.key", "attention.value")):
        picks: list[Pick] = []
        if _JOINED in file.tensors:
            picks.append(share_of(index))
        if kind.pairs and index < 2:
            picks.append(_halves_of_pairs)
        if picks:
            parts[name] = ("attn_qkv" if _JOINED in file.tensors else str(PARTS[name]), _chained(picks))
    return WeightNames("token_embd", "output_norm", "blk.{}.", parts, positions="position_embd", head="output")


def _chained(picks: list[Pick]) -> Pick:
    def pick(value: Tensor, architecture: Architecture) -> Tensor:
        for each in picks:
            value = each(value, architecture)
        return value

    return pick


def _halves_of_pairs(value: Tensor, architecture: Architecture) -> Tensor:
    """Return the rows of each head with the first of all pairs before the second ones."""
    size = architecture.heads[2]
    return value.reshape(-1, size // 2, 2, *value.shape[1:]).transpose(1, 2).reshape(value.shape)


def pairs_of_halves(value: Tensor, architecture: Architecture) -> Tensor:
    """Return the rows of each head with the two of each pair side by side: the inverse of `_halves_of_pairs`."""
    size = architecture.heads[2]
    return value.reshape(-1, 2, size // 2, *value.shape[1:]).transpose(1, 2).reshape(value.shape)


class _PlacedWeights:
    """The weights of a network by the names of its parameters."""

    def __init__(self, file: GgufFile, architecture: Architecture) -> None:
        self._file, self._architecture = file, architecture
        self._unscaled = replace(architecture, query_factor=1.0, result_factor=1.0)

    def value(self, name: str) -> Tensor | None:
        """Return a value in floats; None if the file has none."""
        return self._architecture.value(name, self._read(self._file.floats))

    def is_rounded(self, name: str) -> bool:
        return any(self._file.tensors[key].is_quantized for key in self._places(name))

    def rounded(self, name: str) -> Tensor | GroupedNumbers | None:
        """Return the file's numbers, scales and offsets of a weight, its factors in the scales and offsets; in floats, if they are so there."""
        place = next((key for key in self._places(name)), None)
        if place is None or not self._file.tensors[place].is_quantized:
            return self.value(name)
        blocks = self._file.blocks(place)

        def part(value: Tensor, architecture: Architecture) -> Tensor:
            picked = architecture.value(name, self._read(lambda _: value))
            assert picked is not None
            return picked

        scales, offsets = (None if p is None else part(p, self._architecture).float() for p in (blocks.scales, blocks.offsets))
        assert scales is not None
        return GroupedNumbers(part(blocks.numbers, self._unscaled).to(torch.int8), scales, blocks.bits, offsets)

    def prepare(self, parameters: Mapping[str, Variable]) -> None:
        """Refuse a file with tensors of other dims than the parameters', without one, or with others: no number is read before."""
        for name, variable in parameters.items():
            places = self._places(name)
            if not places:
                raise FormatError(f"{self._file.path} has no tensor for the weight {name}")
            if self._dims(name) != list(variable.spec.known_dims):
                seen = ", ".join(f"{key} of {list(self._file.tensors[key].dims)}" for key in places)
                raise FormatError(f"{self._file.path}: the weight {name} must be {variable.spec.text()}, by the file's facts; seen {seen}")
        placed = {key for name in parameters for key in self._places(name)}
        unplaced = [name for name in self._file.tensors if name not in placed and not name.endswith(_WITHOUT_PLACE)]
        if unplaced:
            kind = self._file.facts["general.architecture"]
            raise SchemaError(
                f"{self._file.path}: {len(unplaced)} tensors have no place in a network of the kind {kind}, such as {', '.join(unplaced[:4])[:300]}"
            )

    def _dims(self, name: str) -> list[int] | None:
        """Return the dims of a value, of its tensor's first column; None if it has none."""
        columns: list[int] = []

        def column(key: str) -> Tensor:
            first, *rest = self._file.tensors[key].dims
            columns[:] = rest
            return torch.zeros([first, 1] if rest else [first])

        try:
            value = self._architecture.value(name, self._read(column))
        except RuntimeError:  # a part of a tensor beyond its rows
            return None
        if value is None or value.dim() == 1:
            return None if value is None else list(value.shape)
        return [value.shape[0], *columns] if name in ("words.weight", "positions.weight") else [*columns, value.shape[1]]

    def _places(self, name: str) -> list[str]:
        """Return the tensors of the file for a parameter."""
        asked: list[str] = []
        self._architecture.value(name, asked.append)  # pyright: ignore[reportArgumentType]
        return [key for key in asked if key in self._file.tensors]

    def _read(self, read: Callable[[str], Tensor]) -> Callable[[str], Tensor | None]:
        return lambda key: read(key) if key in self._file.tensors else None
