"""`save_gguf`: a decoder written as a GGUF file, with the numbers of its packed weights."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from foreshape.apps.generation.architecture import Architecture
from foreshape.apps.generation.decoder_kinds import KINDS as DECODERS
from foreshape.apps.generation.decoder_source import DecoderOrigin
from foreshape.apps.generation.gguf_models import KINDS, PARTS, described_in, pairs_of_halves
from foreshape.apps.generation.gguf_vocabulary import vocabulary_facts
from foreshape.apps.generation.rotations import rotation_of
from foreshape.apps.generation.text_settings import TextSettings
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ForeshapeWarning, SchemaError
from foreshape.interop.gguf_blocks import BLOCKS, equal_kind, scale_change, stored_rows
from foreshape.interop.gguf_file import GgufFile, is_gguf
from foreshape.interop.gguf_writer import PlacedTensor, float_tensor, header_bytes, number, text, truth, whole, write_gguf
from foreshape.machine.kernels.grouped_weights import GroupedNumbers

_SAVED: Final = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "smollm3", "granite", "olmo2", "starcoder2")
_DIVISORS: Final = "rope_freqs.weight"
_FILE_TYPES: Final = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}
"""The numbers of ``general.file_type``, by the kind of most matrices."""
_ENDS: Final = ("eos", "eot", "eom")
_LEAST: Final = 2.0**-20
"""Smaller changes of a number are those of a factor that went in and out again."""
Weight = Tensor | GroupedNumbers
WeightOf = Callable[[str], "Weight"]
"""From the name of a parameter to its value on the host, in its dims."""


def save_gguf(path: Any, origin: DecoderOrigin, weight_of: WeightOf, settings: TextSettings) -> None:
    """Write a decoder.

    Args:
        path: of the file.
        origin: its description, and its folder or file.
        weight_of: from the name of a parameter to its value.
        settings: of texts.

    Raises:
        FormatError: the place cannot be written to, or the disk is full; the file of the origin cannot be read. SchemaError: a kind of network, or a setting,
            without a form in GGUF files.
    """
    architecture = origin.architecture
    kind = next((name for name in _SAVED if KINDS[name].model_type == origin.config["model_type"]), None)
    kind = "llama" if origin.config["model_type"] == "mistral" else kind
    if kind is None or architecture.turned_columns is not None:
        raise SchemaError.must("the network to be saved as a GGUF file", f"of the kind {', '.join(_SAVED)}", repr(origin.config["model_type"]))
    place = None if origin.place is None else Path(origin.place)
    tensors: dict[str, PlacedTensor] = {}
    if place is not None and is_gguf(place):
        file = GgufFile(place)
        facts = {name: file.fact_bytes(name) for name in (*file.facts, *file.texts)}
        if _DIVISORS in file.tensors:
            tensors[_DIVISORS] = _known(file.floats(_DIVISORS).float().clone())
    else:
        facts = {"general.architecture": text(kind), "general.type": text("model")} | _facts(kind, origin)
        if (divisors := _divisors(origin)) is not None:
            tensors[_DIVISORS] = _known(divisors)
        facts |= vocabulary_facts(place, architecture.vocabulary) if place is not None and place.is_dir() else {}
    facts |= {f"tokenizer.ggml.{name}_token_id": whole(word) for name, word in zip(_ENDS, settings.ends, strict=False)}
    rounded: list[float] = []
    for name in architecture.parameters():
        if (key := _place(name, architecture)) is not None:
            tensors[key] = _tensor(partial(_as_stored, name, weight_of, architecture, kind), rounded)
    kinds = [tensor.storage for tensor in tensors.values() if len(tensor.dims) > 1]
    facts["general.file_type"] = whole(_FILE_TYPES[max(set(kinds), key=kinds.count)])
    facts["general.quantization_version"] = whole(2)
    header = header_bytes(facts, tensors)
    known = next(iter(tensors.values())).data().tobytes() if _DIVISORS in tensors else b""
    _require_same(path, architecture, described_in(GgufFile(path, header + known, size=1 << 62)))
    write_gguf(path, header, tensors.values())
    if any(changed := [change > _LEAST for change in rounded]):
        words = f"{sum(changed)} of its weights have scales rounded to 16 bits, by up to {max(rounded):.1e} of a scale"
        warnings.warn(f"{path}: {words}", ForeshapeWarning, stacklevel=3)


# --- tensors


def _known(value: Tensor) -> PlacedTensor:
    return float_tensor(tuple(value.shape), "F32", lambda: value)


def _place(name: str, architecture: Architecture) -> str | None:
    """Return the name of a parameter's tensor; None for a bias of zeros, missing in sources."""
    place, kind = name.rsplit(".", 1)
    outside = {"words": "token_embd", "encoder.norm": "output_norm", "head": "output"}
    if place in outside:
        return f"{outside[place]}.{kind}"
    match = re.fullmatch(r"encoder\.(\d+)\.(.+)", place)
    assert match is not None, name
    if kind == "bias" and not architecture.has_bias(match[2]):
        return None
    return f"blk.{match[1]}.{PARTS[match[2]]}.{kind}"


def _as_stored(name: str, weight_of: WeightOf, architecture: Architecture, kind: str) -> Weight:
    """Return a value as files have it: rows of a product's results first, without factors, the rows of turned heads in pairs."""
    place, ending = name.rsplit(".", 1)
    part = re.sub(r"^encoder\.\d+\.", "", place)
    is_product = ending == "weight" and not part.endswith("norm") and part != "words"
    factor = architecture.factor_of(part)

    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.t() if is_product else tensor
        if KINDS[kind].pairs and part in ("attention.query", "attention.key"):
            tensor = pairs_of_halves(tensor, architecture)
        return tensor.contiguous()

    value = weight_of(name)
    if not isinstance(value, GroupedNumbers):
        return change(value) if factor == 1.0 else change(value) / factor
    value = value.changed(change)
    if factor == 1.0:
        return value
    return value._replace(scales=value.scales / factor, offsets=None if value.offsets is None else value.offsets / factor)


def _tensor(read: Callable[[], Weight], rounded: list[float]) -> PlacedTensor:
    """Return the tensor of a value in the smallest kind with its numbers; the change of its scales is added to ``rounded``.

    Args:
        read: returns the value, now and when it is written: only one is in memory.
        rounded: the changes so far.
    """
    value = read()
    if isinstance(value, GroupedNumbers):
        kind, change = equal_kind(value), scale_change(value)
        if kind is not None and change is not None:
            rounded.append(change)
            nbytes = value.numbers.numel() // 32 * BLOCKS[kind].size
            return PlacedTensor(kind, tuple(value.numbers.shape), nbytes, lambda: stored_rows(cast("GroupedNumbers", read()), kind))

    def floats() -> Tensor:
        again = read()
        return again.floats() if isinstance(again, GroupedNumbers) else again

    value = value.floats() if isinstance(value, GroupedNumbers) else value
    kinds = (name for name, dtype in (("F16", torch.float16), ("BF16", torch.bfloat16)) if _is_kept(value, dtype))
    storage = next(kinds, "F32") if value.dim() > 1 else "F32"
    return float_tensor(tuple(value.shape), storage, floats)


def _is_kept(value: Tensor, dtype: torch.dtype) -> bool:
    """Tell whether an element type has all numbers of a value."""
    return bool(((value.to(dtype).float() - value).abs() <= _LEAST * value.abs()).all())


# --- facts of a configuration


def _facts(kind: str, origin: DecoderOrigin) -> dict[str, bytes]:
    """Return the facts of a network of transformers. Raises `SchemaError` for positions without a form."""
    architecture, config = origin.architecture, {**DECODERS[origin.config["model_type"]].defaults, **origin.config}
    blocks, (heads, key_heads, size) = architecture.blocks, architecture.heads
    epsilon = "layer_norm_epsilon" if blocks["normalize"] == "layer" else "layer_norm_rms_epsilon"
    facts: dict[str, bytes] = {
        "vocab_size": whole(architecture.vocabulary),
        "context_length": whole(architecture.context),
        "embedding_length": whole(architecture.width),
        "block_count": whole(architecture.layers),
        "feed_forward_length": whole(blocks["inner_size"]),
        "attention.head_count": whole(heads),
        "attention.head_count_kv": whole(key_heads),
        "attention.key_length": whole(size),
        "attention.value_length": whole(size),
        f"attention.{epsilon}": number(blocks["epsilon"]),
        "rope.dimension_count": whole(size),
    }
    rope = _full_rope(config)
    facts["rope.freq_base"] = number(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    turn = rope.get("rope_type", rope.get("type", "default"))
    if turn not in ("default", "linear", "yarn", "llama3"):
        raise SchemaError(f"positions of the kind {turn!r} have no form in the GGUF files of this network")
    if turn in ("linear", "yarn"):
        facts |= {"rope.scaling.type": text(turn), "rope.scaling.factor": number(rope["factor"])}
    if turn == "yarn":
        facts["rope.scaling.original_context_length"] = whole(rope.get("original_max_position_embeddings") or architecture.context)
        facts |= {f"rope.scaling.yarn_{name}": number(rope[name]) for name in ("beta_fast", "beta_slow") if rope.get(name)}
    windows = {entry["window"] for entry in architecture.each if entry.get("window")}
    if windows:
        facts["attention.sliding_window"] = whole(max(windows))
    elif kind in ("gemma2", "gemma3") and config.get("sliding_window"):
        facts["attention.sliding_window"] = whole(config["sliding_window"])
    if kind == "gemma3":
        every: dict[str, Any] = config.get("rope_parameters") or {}
        local: dict[str, Any] = every.get("sliding_attention") or {}
        facts["rope.freq_base_swa"] = number(local.get("rope_theta", config.get("rope_local_base_freq", 10000.0)))
    caps = {"attn_logit_softcapping": config.get("attn_logit_softcapping"), "final_logit_softcapping": config.get("final_logit_softcapping")}
    facts |= {name: number(cap) for name, cap in caps.items() if cap is not None}
    if kind == "granite":
        facts |= {
            "attention.scale": number(config.get("attention_multiplier", size**-0.5)),
            "embedding_scale": number(config.get("embedding_multiplier", 1.0)),
            "residual_scale": number(config.get("residual_multiplier", 1.0)),
            "logit_scale": number(config.get("logits_scaling", 1.0)),
            "rope.scaling.finetuned": truth(True),
        }
    return {f"{kind}.{name}": fact for name, fact in facts.items()}


def _full_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rotation of layers without a window."""
    rope: Any = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope.get("full_attention", rope)


def _divisors(origin: DecoderOrigin) -> Tensor | None:
    """Return the divisors of the rates of Llama 3's positions, one for each pair of columns; None for other positions."""
    rope, size = _full_rope(origin.config), origin.architecture.heads[2]
    if rope.get("rope_type", rope.get("type")) != "llama3":
        return None
    rotary = rotation_of(origin.config, size).rotary
    assert rotary.rates is not None
    return torch.tensor([rotary.base ** (-2.0 * i / size) / rate for i, rate in enumerate(rotary.rates)], dtype=torch.float32)


# --- the check


def _require_same(path: Any, expected: Architecture, seen: Architecture) -> None:
    """Refuse a network with a setting unknown to the file. Raises `SchemaError`."""
    size = expected.heads[2]
    names = ("vocabulary", "width", "layers", "context", "blocks", "each", "positions", "tied", "head_bias", "biased", "word_factor", "score_factor")
    for name in (*names, "score_cap", "query_factor", "result_factor", "turned_columns"):
        required, written = getattr(expected, name), getattr(seen, name)
        if not _is_close(required, written, size):
            raise SchemaError(f"{path}: {name} of the network has no form in a GGUF file: it must be {str(required)[:200]}, and would be {str(written)[:200]}")


def _is_close(required: Any, written: Any, size: int) -> bool:
    """Tell whether settings are the same, but for the rounding of numbers to fp32."""
    if isinstance(required, float) or isinstance(written, float):
        return required == written or (required is not None and written is not None and abs(required - written) <= 1e-5 * abs(required))
    if hasattr(required, "rates") and hasattr(written, "rates"):
        rates: list[Any] = [r.rates or [r.base ** (-2.0 * i / size) for i in range(size // 2)] for r in (required, written)]
        return bool(required.interleaved == written.interleaved) and _is_close(rates[0], rates[1], size)
    if hasattr(required, "by_head") and hasattr(written, "by_head"):
        return bool(required.by_head == written.by_head) and _is_close(required.epsilon, written.epsilon, size)
    if isinstance(required, Mapping) and isinstance(written, Mapping):
        first, second = cast("Mapping[str, Any]", required), cast("Mapping[str, Any]", written)
        return first.keys() == second.keys() and all(_is_close(first[name], second[name], size) for name in first)
    if isinstance(required, list | tuple) and isinstance(written, list | tuple):
        first, second = cast("list[Any]", required), cast("list[Any]", written)
        return len(first) == len(second) and all(_is_close(a, b, size) for a, b in zip(first, second, strict=True))
    return bool(required == written)
