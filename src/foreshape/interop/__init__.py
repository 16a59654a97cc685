"""Other people's formats: PaddlePaddle's saved models and parameters, and safetensors."""

from foreshape.interop.convert import convert_parameters
from foreshape.interop.inference import load_inference_model, save_inference_model
from foreshape.interop.model import InferenceModel
from foreshape.interop.parameters import open_parameters, read_parameters, write_parameters
from foreshape.interop.predictor import Predictor
from foreshape.interop.tensors import load_safetensors, save_safetensors

__all__ = [
    "InferenceModel", "Predictor", "convert_parameters", "load_inference_model", "load_safetensors", "open_parameters", "read_parameters",
    "save_inference_model", "save_safetensors", "write_parameters",
]  # fmt: skip
