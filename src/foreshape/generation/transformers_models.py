"""`language_model`: decoders as the transformers library configures and saves them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foreshape import layer
from foreshape.engine import Scope
from foreshape.errors import FormatError, SchemaError, border
from foreshape.generation.cached_model import LanguageModel
from foreshape.generation.decoder_kinds import architecture_of
from foreshape.interop.state_dict_files import read_state_dict
from foreshape.program import Program, program_guard
from foreshape.values.torch_proxy import Tensor, torch

_PREFIXES = ("", "transformer.", "model.", "gpt_neox.", "model.decoder.", "decoder.")


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
    """Return a decoder of the transformers library, such as a GPT-2, Llama, Mistral, Qwen or Gemma, ready for `generate`.

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
    of = architecture_of(config)
    context = min(of.context, 1024) if context is None else context
    if context > of.context:
        raise SchemaError(f"the network was made for at most {of.context} words; seen context={context}")
    main, startup = Program(), Program()
    with program_guard(main, startup):
        words = layer.data("words", ["rows"], "int64", lod_level=1)
        cache = layer.attention_cache(words)
        scores = of.scores(words, cache)
    scope = Scope()
    _fill(main, scope, lambda name: of.value(name, lambda there: _found(given, there)))
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


def _fill(program: Program, scope: Scope, value_of: Callable[[str], Tensor | None]) -> None:
    """Put all weights into the scope, in fp32.

    Raises:
        FormatError: one is missing, or has other dims.
    """
    wanted = {v.name: v for v in program.parameters()}
    with torch.inference_mode():
        values = {name: value_of(name) for name in wanted}
        missing = [n for n, value in values.items() if value is None]
        if missing:
            raise FormatError(f"{len(missing)} weights are missing in the source, such as {', '.join(missing[:4])}")
        for name, variable in wanted.items():
            value = values.pop(name)
            assert value is not None
            if list(value.shape) != list(variable.spec.known_dims):
                raise FormatError(f"{name} must be {variable.spec.text()}, and is {list(value.shape)} in the source")
            scope.store(name, value.detach().float().contiguous(), owned=False)
