"""The names of `foreshape.interop` and their files: a list for type checkers and for the imports at first use, never run itself."""

from foreshape.interop.compiling import compile_model as compile_model
from foreshape.interop.convert import convert_parameters as convert_parameters
from foreshape.interop.convert_models import convert_model as convert_model
from foreshape.interop.inference import load_inference_model as load_inference_model
from foreshape.interop.inference import save_inference_model as save_inference_model
from foreshape.interop.model import InferenceModel as InferenceModel
from foreshape.interop.onnx_files import convert_to_onnx as convert_to_onnx
from foreshape.interop.onnx_files import save_onnx as save_onnx
from foreshape.interop.parameters import open_parameters as open_parameters
from foreshape.interop.parameters import read_parameters as read_parameters
from foreshape.interop.parameters import write_parameters as write_parameters
from foreshape.interop.predictor import Predictor as Predictor
from foreshape.interop.program_files import load_program as load_program
from foreshape.interop.state_dicts import load_state_dict as load_state_dict
from foreshape.interop.state_dicts import state_dict as state_dict
from foreshape.interop.tensors import load_safetensors as load_safetensors
from foreshape.interop.tensors import save_safetensors as save_safetensors
from foreshape.interop.torch.to_torch import to_torch as to_torch
from foreshape.interop.torch.torch_model import from_torch as from_torch
from foreshape.interop.torch_files import convert_to_torch as convert_to_torch
