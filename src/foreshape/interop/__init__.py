"""Other people's formats: PaddlePaddle's saved models and parameters, and safetensors."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreshape.interop.convert import convert_parameters
    from foreshape.interop.inference import load_inference_model, save_inference_model
    from foreshape.interop.model import InferenceModel
    from foreshape.interop.parameters import open_parameters, read_parameters, write_parameters
    from foreshape.interop.predictor import Predictor
    from foreshape.interop.tensors import load_safetensors, save_safetensors

_FILE = {
    "convert_parameters": "convert",
    **dict.fromkeys(("load_inference_model", "save_inference_model"), "inference"),
    "InferenceModel": "model",
    **dict.fromkeys(("open_parameters", "read_parameters", "write_parameters"), "parameters"),
    "Predictor": "predictor",
    **dict.fromkeys(("load_safetensors", "save_safetensors"), "tensors"),
}
"""Name -> its file, imported when the name is first used: a saved network answers without the other formats."""


def __getattr__(name: str) -> Any:
    if name not in _FILE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_FILE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "InferenceModel", "Predictor", "convert_parameters", "load_inference_model", "load_safetensors", "open_parameters", "read_parameters",
    "save_inference_model", "save_safetensors", "write_parameters",
]  # fmt: skip
