"""`language_model`: decoders as the transformers library configures and saves them, and those of GGUF files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from foreshape import layer
from foreshape.apps.generation.cached_model import LanguageModel
from foreshape.apps.generation.decoder_kinds import architecture_of
from foreshape.apps.generation.decoder_source import DecoderOrigin, DecoderSource
from foreshape.apps.generation.gguf_models import BLOCK, gguf_source
from foreshape.apps.generation.json_files import json_object
from foreshape.apps.generation.packed_weights import Rows, Weights, packed_network
from foreshape.apps.generation.text_settings import TextSettings, settings_of
from foreshape.apps.quantization.grouped_layers import WEIGHTS, require_rows
from foreshape.core.hints import near_path
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ForeshapeWarning, FormatError, SchemaError, border
from foreshape.interop.gguf_file import is_gguf
from foreshape.interop.state_dict_files import is_folder_of_weights, read_state_dict
from foreshape.language.program import Program, Variable, program_guard
from foreshape.machine.kernels.grouped_weights import GroupedNumbers
from foreshape.runtime.engine import Scope

_BUFFERS = ("inv_freq", ".masked_bias", ".attn.bias", ".attention.bias", "lm_head.weight", "embed_out.weight")
"""The ends of the names of values computed anew, and of output layers: a tied one is the table of words."""
_PREFIXES = ("", "transformer.", "model.", "gpt_neox.", "model.decoder.", "decoder.")


@border("the language model cannot be read", FormatError)
def language_model(
    source: Any,
    state: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    users: int = 8,
    context: int | None = None,
    weights: Weights | Literal["float"] | None = None,
    group: int = 64,
    rows: Rows = "fp32",
    generation_config: Mapping[str, Any] | None = None,
    threads: int | None = None,
    memory_limit: int | str | None = None,
    device: str = "cpu",
) -> LanguageModel:
    """Return a decoder of the transformers library, such as a GPT-2, Llama, Mistral, Qwen or Gemma, ready for `generate`.

    Args:
        source: a folder with ``config.json`` and weights (``.safetensors``, or files by ``torch.save``, of which no code is run); a module of
            transformers; its configuration as a mapping, such as ``config.to_dict()``, and then ``state``; or a GGUF file.
        state: name -> tensor as of ``module.state_dict()``, or the file.
        users: the most texts at a time.
        context: the most words of a text; by default the network's own limit, at most 1,024.
        weights: "int8" or "int4": constant matrices are packed as they are read, as by `LanguageModel.quantized`. "float": they are kept in fp32. By
            default a GGUF file's keep their bits, in groups of 32, and all others are kept in fp32.
        group: as there.
        rows: "fp32", or "int8": rounded in products with packed weights, as there. A model without packed weights refuses it.
        generation_config: the settings of texts, by the names of transformers' ``GenerationConfig``; by default of the folder's
            ``generation_config.json``, or of the module. Without one the configuration of the network has them.
        threads, memory_limit, device: as for `LanguageModel`.

    Raises:
        FormatError: a file is missing or damaged, or a weight is missing or has other dims. SchemaError: another kind of network, or a
        setting without a form here.
    """
    if weights is not None and weights not in (*WEIGHTS, "float"):
        raise SchemaError.one_of("weights", (*WEIGHTS, "float"), weights)
    require_rows(rows)
    decoder = gguf_source(source, state) if is_gguf(source) else _opened(source, state)
    architecture = decoder.architecture
    settings = decoder.settings() if generation_config is None else settings_of(generation_config, "generation_config")
    context = min(architecture.context, 1024) if context is None else context
    if context > architecture.context:
        raise SchemaError(f"the network was made for at most {architecture.context} words; seen context={context}")
    main, startup = Program(), Program()
    with program_guard(main, startup):
        words = layer.data("words", ["rows"], "int64", lod_level=1)
        cache = layer.attention_cache(words)
        scores = architecture.scores(words, cache)
    scope = Scope()
    parameters = {v.name: v for v in main.parameters()}
    decoder.prepare(parameters)

    def packed_value(name: str) -> Tensor | GroupedNumbers:
        value = decoder.value(name) if weights is not None else decoder.rounded(name)
        return _require_dims(parameters[name], value) if isinstance(value, GroupedNumbers) else _matching(parameters[name], value)

    rounded = {name for name in parameters if decoder.is_rounded(name)} if weights is None else None
    if weights in WEIGHTS or rounded:
        kind, most = ("int8", BLOCK) if weights is None or weights == "float" else (weights, group)
        packed = packed_network(words, scores, cache, packed_value, kind, most, only=rounded, rows=rows)
        words, scores, cache, main = packed.words, packed.scores, packed.cache, packed.scores.block.program
        for name, array in packed.values.items():
            scope.set(name, array)
    elif rows != "fp32":
        raise SchemaError(f'rows= is for products with packed weights: give weights="int8" or "int4" too; seen rows={rows!r}')
    store_weights(main, scope, decoder.value)
    decoder.check()
    model = LanguageModel(
        words, scores, cache, scope, users=users, context=context, settings=settings, threads=threads, memory_limit=memory_limit, device=device
    )
    model.origin = decoder.origin
    return model


def _opened(source: Any, state: Any) -> DecoderSource:
    """Return the source of a folder, a module, or a configuration with its weights. Raises as `language_model`."""
    config, state_dict, settings = _parts(source, state)
    for field in ("quantization_config", "compression_config"):
        if config.get(field):
            how = cast("dict[str, Any]", config[field]) if isinstance(config[field], dict) else {}
            raise SchemaError(
                f"the network is quantized ({field} with quant_method={how.get('quant_method')!r}): its weights are no numbers without scales. Save it in "
                "floats first, as dequantize() of transformers does"
            )
    architecture = architecture_of(config)
    used: set[str] = set()
    return DecoderSource(
        architecture,
        settings,
        lambda name: architecture.value(name, lambda key: _found(state_dict, key, used)),
        check=lambda: _check_unused(state_dict, used),
        origin=DecoderOrigin(architecture, config, os.fsdecode(cast("str", source)) if isinstance(source, str | os.PathLike) else None),
    )


def _parts(source: Any, state: Any) -> tuple[Mapping[str, Any], Mapping[str, Tensor], Callable[[], TextSettings]]:
    if isinstance(source, Mapping):
        if state is None:
            raise SchemaError("a configuration alone has no weights: give state=, a state_dict or its file")
        return source, read_state_dict(state), lambda: _legacy_settings(source)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if hasattr(source, "config") and hasattr(source, "state_dict"):
        config = source.config.to_dict()
        settings = getattr(source, "generation_config", None)
        weights = read_state_dict(source.state_dict() if state is None else state)
        if settings is None:
            return config, weights, lambda: _legacy_settings(config)
        return config, weights, lambda: settings_of(_without_default(settings.to_dict()), "the module's settings of texts")
    folder = Path(source)
    if not (folder / "config.json").is_file():
        raise FormatError(f"{str(folder)[:300]} must be a folder with config.json{'' if folder.exists() else near_path(str(folder))}")
    config = json_object(folder / "config.json")
    return config, read_state_dict(state) if state is not None else folder_weights(folder), lambda: _settings_of_folder(folder, config)


def _settings_of_folder(folder: Path, config: Mapping[str, Any]) -> TextSettings:
    file = folder / "generation_config.json"
    return settings_of(json_object(file), file.name) if file.is_file() else settings_of(config, "config.json", alone=False)


def _legacy_settings(config: Mapping[str, Any]) -> TextSettings:
    return settings_of(_without_default(config), "the configuration", alone=False)


def _without_default(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the length written into each configuration by older versions of transformers."""
    return {name: value for name, value in config.items() if (name, value) != ("max_length", 20)}


def folder_weights(folder: Path) -> dict[str, Tensor]:
    if (folder / "adapter_config.json").is_file():
        raise SchemaError(
            f"{str(folder)[:300]} has an adapter beside its weights (adapter_config.json): save the network with the adapter merged into it, as peft's "
            "merge_and_unload does, or give state=, the file of the weights alone"
        )
    if is_folder_of_weights(folder):
        return read_state_dict(folder)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise FormatError(f"{str(folder)[:300]} has no weights: neither .safetensors nor pytorch_model.bin")
    return {name: value for file in files for name, value in read_state_dict(file).items()}


def _found(weights: Mapping[str, Tensor], name: str, used: set[str]) -> Tensor | None:
    """Return the weight of a name, noted in ``used``. Raises `SchemaError` if it is no weight in floats."""
    key = next((prefix + name for prefix in _PREFIXES if prefix + name in weights), None)
    if key is None:
        return None
    value = weights[key]
    if not value.dtype.is_floating_point or value.dtype.itemsize < 2:
        raise SchemaError.must(f"the weight {key}", "in floats of 16, 32 or 64 bits", str(value.dtype))
    used.add(key)
    return value


def _check_unused(weights: Mapping[str, Tensor], used: set[str]) -> None:
    """Refuse scales and the like beside weights, and warn of other values without a place in the network."""
    owners = {name.rpartition(".")[0] for name in used}
    unused = [name for name in weights if name not in used]
    for name in unused:
        owner, _, ending = name.rpartition(".")
        while owner and owner not in owners:
            owner, _, part = owner.rpartition(".")
            ending = f"{part}.{ending}"
        if owner and ending != "bias" and not ending.startswith("rotary_emb"):
            raise SchemaError(f"the source has {name} beside the weight of {owner}: quantized weights and adapters are not known here")
    unplaced = [n for n in unused if not n.endswith(_BUFFERS)]
    if unplaced:
        warnings.warn(f"{len(unplaced)} values of the source have no place in the network, such as {', '.join(unplaced[:4])}", ForeshapeWarning, stacklevel=5)


Given = TypeVar("Given", Tensor, GroupedNumbers)


def _require_dims(variable: Variable, value: Given | None) -> Given:
    """Return a value. Raises `FormatError` if it is missing, or has other dims than its parameter."""
    if value is None:
        raise FormatError(f"the weight {variable.name} is missing in the source")
    dims = list(value.numbers.shape if isinstance(value, GroupedNumbers) else value.shape)
    if dims != list(variable.spec.known_dims):
        raise FormatError(f"{variable.name} must be {variable.spec.text()}, and is {dims} in the source")
    return value


def _matching(variable: Variable, value: Tensor | None) -> Tensor:
    """Return a copy of a value in fp32. Raises as `_require_dims`."""
    value = _require_dims(variable, value)
    return torch.empty(value.shape).copy_(value.detach())


def store_weights(program: Program, scope: Scope, value_of: Callable[[str], Tensor | None]) -> None:
    """Put all weights into the scope, in fp32.

    Raises:
        FormatError: one is missing, or has other dims.
    """
    parameters = {v.name: v for v in program.parameters()}
    with torch.inference_mode():
        missing: list[str] = []
        for name, variable in parameters.items():
            value = value_of(name)
            if value is None:
                missing.append(name)
            else:
                scope.store(name, _matching(variable, value))  # one by one: two copies of all, beside the file, are three times the network
        if missing:
            raise FormatError(f"{len(missing)} weights are missing in the source, such as {', '.join(missing[:4])}")
