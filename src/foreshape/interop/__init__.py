"""Formats of other tools, both ways: PaddlePaddle's saved models and parameters, ONNX's models, networks of torch, and safetensors.

In come files, bytes and modules of torch; out come programs with their values, and files and code of programs.

- `forms`: each operator in the other formats. Begin with `forms.activations`.
- `pir`: programs of PaddlePaddle 3; `onnx`: models of ONNX; `torch`: exported graphs, and in ``torch.write`` programs as code.
- The files beside them: `model` and `predictor` for use, `compiling` for networks in one file, `convert_models`, `safetensors_file`.

These rooms need one another, file by file, and never in a circle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.core.lazy_names import lazy_names, lazy_value

if TYPE_CHECKING:
    from foreshape.interop.exports import *

_EXPORTS = "foreshape.interop.exports"
"""The list of names and their files, each imported when its name is first used: a saved network answers without the other formats."""


def __getattr__(name: str) -> Any:
    if name not in lazy_names(_EXPORTS):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = lazy_value(_EXPORTS, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "InferenceModel", "Predictor", "compile_model", "convert_model", "convert_parameters", "convert_to_onnx", "convert_to_torch", "from_torch",
    "load_inference_model", "load_safetensors", "load_state_dict", "open_parameters", "read_parameters", "save_inference_model", "save_onnx",
    "save_safetensors", "state_dict", "write_parameters",
]  # fmt: skip
