"""`ModelFolder`: the settings saved by sentence-transformers and transformers in a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from foreshape.apps.embedding.encoder_kinds import head_named
from foreshape.apps.embedding.text_network import POOLINGS
from foreshape.apps.generation.json_files import json_value
from foreshape.apps.tokenization.settings_files import read_settings
from foreshape.core.data_class import data_class, field
from foreshape.core.hints import near_path
from foreshape.errors import FormatError, SchemaError
from foreshape.interop.state_dict_files import read_state_dict

Step = Callable[[Any], Any]
"""From vectors ``[n, width]``, NumPy's, to others."""
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@data_class(frozen=True)
class ModelFolder:
    """The settings of a model.

    Attributes:
        network: the folder of the network and its tokenizer.
        head: of the network: "score", "words" or None.
        pooling: the modes; empty for a model without one.
        include_prompt: False if the prompt's words are left out of pooling.
        steps: of the vectors, behind pooling.
        assumed: True if nothing in the folder says how rows are pooled.
        sparse: the strategy ("max" or "sum") and the activation of SPLADE; None for others.
        prompts, default_prompt: by name, and the name of the one of plain texts.
        similarity: one of `SIMILARITIES`.
        max_length: of texts, or None.
        lower: texts are written in small letters first.
        activation: of a score, by the name of a class of torch; None for the default.
    """

    network: Path
    head: str | None = None
    pooling: Sequence[str] = ()
    include_prompt: bool = True
    steps: Sequence[Step] = ()
    assumed: bool = False
    sparse: tuple[str, str] | None = None
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    default_prompt: str | None = None
    similarity: str = "cosine"
    max_length: int | None = None
    lower: bool = False
    activation: str | None = None


def read_folder(folder: Path) -> ModelFolder:
    """Return the settings of a folder.

    Raises:
        FormatError: a file is missing or damaged. SchemaError: a module, or a setting of one, without a form here.
    """
    if not folder.is_dir():
        raise FormatError(f"{str(folder)[:300]} must be a folder with config.json, or an .onnx file{'' if folder.exists() else near_path(str(folder))}")
    texts = read_settings(folder / "config_sentence_transformers.json")
    if not (folder / "modules.json").is_file():
        return _plain(folder, texts)
    modules = [_module(entry, folder) for entry in cast("list[Any]", json_value(folder / "modules.json", list, "a list of modules"))]
    first = modules[0][0] if modules else "none"
    if first not in ("Transformer", "MLMTransformer"):
        raise SchemaError(f"{folder / 'modules.json'}: the first module must be a Transformer; seen {first}")
    network = modules[0][1]
    config = read_settings(network / "config.json")
    settings = next((read_settings(network / n) for n in _SETTINGS if (network / n).is_file()), dict[str, Any]())
    values: dict[str, Any] = {
        "network": network,
        "max_length": settings.get("max_seq_length"),
        "lower": bool(settings.get("do_lower_case", False)),
        "head": "words" if first == "MLMTransformer" else None,
        **_text_settings(texts),
    }
    if texts.get("model_type") == "CrossEncoder":
        values |= {"head": "score", "activation": _activation(config, texts)}
    steps: list[Step] = []
    for name, path in modules[1:]:
        details = read_settings(path / "config.json")
        if name == "Pooling":
            values |= {"pooling": _modes(details, path), "include_prompt": bool(details.get("include_prompt", True))}
        elif name == "Dense":
            steps.append(_dense(path, details))
        elif name == "Normalize":
            steps.append(normalized)
        elif name == "SpladePooling":
            values |= {"head": "words", "sparse": _splade(details)}
        elif name != "Dropout":
            raise SchemaError(f"{folder / 'modules.json'}: the module {name} is not known here")
    return ModelFolder(**values, steps=steps)


_SETTINGS = tuple(f"sentence_{name}_config.json" for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"))


def _plain(folder: Path, texts: Mapping[str, Any]) -> ModelFolder:
    """Return the settings of a folder of transformers alone."""
    config = read_settings(folder / "config.json")
    head = head_named(config)
    if head == "score":
        return ModelFolder(folder, "score", activation=_activation(config, texts), **_text_settings(texts))
    if head == "words":
        return ModelFolder(folder, "words", ("mean",), assumed=True, sparse=("max", "relu"), **_text_settings(texts))
    return ModelFolder(folder, None, ("mean",), assumed=True, **_text_settings(texts))


def _text_settings(texts: Mapping[str, Any]) -> dict[str, Any]:
    table: Any = texts.get("prompts") or {}
    prompts, default, similarity = cast("dict[str, Any]", table), texts.get("default_prompt_name"), texts.get("similarity_fn_name") or "cosine"
    if not isinstance(table, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise FormatError("config_sentence_transformers.json: prompts must be an object of texts")
    if default is not None and default not in prompts:
        raise FormatError(f"config_sentence_transformers.json: default_prompt_name {default!r} is none of the prompts")
    if similarity not in SIMILARITIES:
        raise SchemaError.one_of("config_sentence_transformers.json: similarity_fn_name", SIMILARITIES, similarity)
    return {"prompts": prompts, "default_prompt": default, "similarity": similarity}


def _activation(config: Mapping[str, Any], texts: Mapping[str, Any]) -> str | None:
    inner: Any = config.get("sentence_transformers")
    inside = cast("dict[str, Any]", inner if isinstance(inner, dict) else {})
    places: list[Any] = [inside.get("activation_fn"), config.get("sbert_ce_default_activation_function"), texts.get("activation_fn")]
    return next((str(p).rpartition(".")[2] for p in places if p), None)


def _module(entry: Any, folder: Path) -> tuple[str, Path]:
    """Return the last word of a module's class, whatever the version calls its place, and its folder."""
    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    kind, path = fields.get("type"), fields.get("path")
    if not isinstance(kind, str) or not isinstance(path, str):
        raise FormatError(f"{folder / 'modules.json'}: a module must have a type and a path; seen {str(fields)[:200]}")
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise FormatError(f"{folder / 'modules.json'}: the path of a module must be within the folder; seen {path[:200]!r}")
    return kind.rpartition(".")[2], folder / path


def _modes(details: Mapping[str, Any], path: Path) -> list[str]:
    modes: Any = details.get("pooling_mode")
    if modes is None:
        old = {"mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens", "lasttoken": "pooling_mode_lasttoken"}
        modes = [mode for mode in POOLINGS if details.get(old.get(mode, f"pooling_mode_{mode}_tokens"), details.get(f"pooling_mode_{mode}_token", False))] or [
            "mean"
        ]
    modes = [modes] if isinstance(modes, str) else modes
    for mode in modes:
        if mode not in POOLINGS:
            raise SchemaError.one_of(f"{path / 'config.json'}: the mode of pooling", POOLINGS, mode)
    return list(modes)


def _splade(details: Mapping[str, Any]) -> tuple[str, str]:
    strategy, activation = details.get("pooling_strategy", "max"), details.get("activation_function", "relu")
    if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise SchemaError(f"SpladePooling with the strategy {strategy!r} and the activation {activation!r} is not known here")
    return strategy, activation


def _dense(path: Path, details: Mapping[str, Any]) -> Step:
    """Return a product with a table of weights, and its activation."""
    import numpy

    if details.get("use_residual"):
        raise SchemaError(f"{path / 'config.json'}: a Dense with a residual is not known here")
    name = str(details.get("activation_function") or "torch.nn.modules.linear.Identity").rpartition(".")[2]
    activation = ACTIVATIONS.get(name)
    if activation is None:
        raise SchemaError.one_of(f"{path / 'config.json'}: the activation of a Dense", ACTIVATIONS, name)
    state = read_state_dict(path)
    if "linear.weight" not in state:
        raise FormatError(f"{path} must have the weight linear.weight; seen {', '.join([*state][:4])}")
    weight: Any = numpy.asarray(state["linear.weight"].float().numpy()).T.copy()
    bias: Any = numpy.asarray(state["linear.bias"].float().numpy()).copy() if "linear.bias" in state else numpy.float32(0.0)
    return lambda x: activation(x @ weight + bias)


def normalized(x: Any) -> Any:
    """Return vectors of length 1; zeros as they are.

    Args:
        x: ``[n, width]``.
    """
    import numpy

    return x / numpy.maximum(numpy.linalg.norm(x, axis=1, keepdims=True), numpy.float32(1e-12))


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)).

    Args:
        x: numbers of any shape.
    """
    import numpy

    return (1.0 / (1.0 + numpy.exp(-x.astype("float64")))).astype("float32")


def _numpy(name: str, *numbers: float) -> Step:
    def function(x: Any) -> Any:
        import numpy

        return getattr(numpy, name)(x, *numpy.array(numbers, "float32"))

    return function


ACTIVATIONS: Mapping[str, Step] = {
    "Identity": lambda x: x,
    "Tanh": _numpy("tanh"),
    "ReLU": _numpy("maximum", 0.0),
    "Sigmoid": sigmoid,
    "SiLU": lambda x: x * sigmoid(x),
}
"""Activations of vectors and scores by the names of torch's classes."""
