"""Foreshape: describe a network, know everything about it, then run and train it.

>>> import foreshape as fs
>>> from foreshape import layer
"""

from __future__ import annotations

from foreshape import interrupts as interrupts  # before the slow imports  # isort: skip
import gc
import importlib
from typing import TYPE_CHECKING, Any

from foreshape.version import VERSION

if TYPE_CHECKING:
    from foreshape import layer, metrics, optimizer
    from foreshape.backward import append_backward
    from foreshape.cost import Network, plan
    from foreshape.engine import Executor, LoDTensor, Scope, SelectedRows, default_scope, reset
    from foreshape.errors import (
        DescriptionError,
        ExecutionError,
        FeedError,
        ForeshapeError,
        ForeshapeWarning,
        FormatError,
        GuardError,
        MemoryPlanError,
        RankError,
        SchemaError,
        ShapeError,
        TypeMismatchError,
    )
    from foreshape.interop import InferenceModel, Predictor, load_inference_model, load_safetensors, save_inference_model, save_safetensors
    from foreshape.layer import ParamAttr
    from foreshape.memory import Plan
    from foreshape.memory.recomputation import Recomputation, recompute
    from foreshape.operator import Operator
    from foreshape.passes import data_parallel, shard_optimizer, shard_parameters, split_layers, split_tables
    from foreshape.profiling import Profile, profile
    from foreshape.program import Block, Op, Program, Variable, default_main_program, default_startup_program, name_scope, program_guard
    from foreshape.program import new_program as program
    from foreshape.spec import BF16, BOOL, FP16, FP32, FP64, INT8, INT16, INT32, INT64, LOD_TENSOR, SELECTED_ROWS, STRING, UINT8, UNK
    from foreshape.training import Checkpoint, History, TrainingProgram, callbacks, evaluate, infer_shape, predict, train
    from foreshape.training import training_programs as training_program
    from foreshape.wire import Limits, load_program, save_program
    from foreshape.workers import Job, job, send

__version__ = VERSION

_ROOM: dict[str, str] = {
    "append_backward": "backward",
    **dict.fromkeys(("Executor", "LoDTensor", "Scope", "SelectedRows", "default_scope", "reset"), "engine"),
    **dict.fromkeys(("Profile", "profile"), "profiling"),
    **dict.fromkeys(("DescriptionError", "ExecutionError", "FeedError", "ForeshapeError", "ForeshapeWarning", "FormatError", "GuardError", "MemoryPlanError",
                     "RankError", "SchemaError", "ShapeError", "TypeMismatchError"), "errors"),
    **dict.fromkeys(("InferenceModel", "Predictor", "load_inference_model", "load_safetensors", "save_inference_model", "save_safetensors"), "interop"),
    **dict.fromkeys(("data_parallel", "shard_optimizer", "shard_parameters", "split_layers", "split_tables"), "passes"),
    "ParamAttr": "layer",
    **dict.fromkeys(("Network", "plan"), "cost"),
    "Plan": "memory",
    **dict.fromkeys(("Recomputation", "recompute"), "memory.recomputation"),
    "Operator": "ops",
    **dict.fromkeys(("Block", "Op", "Program", "Variable", "default_main_program", "default_startup_program", "name_scope", "program_guard"), "program"),
    **dict.fromkeys(("BF16", "BOOL", "FP16", "FP32", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UNK", "LOD_TENSOR", "SELECTED_ROWS",
                     "LOD_TENSOR_ARRAY", "INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS"), "spec"),
    **dict.fromkeys(("Checkpoint", "History", "TrainingProgram", "callbacks", "evaluate", "infer_shape", "predict", "train", "training_program"), "training"),
    **dict.fromkeys(("Limits", "load_program", "save_program"), "wire"),
    **dict.fromkeys(("Job", "job", "send"), "workers"),
}  # fmt: skip
"""Public name -> its room; a room is imported when its name is first used."""
_ROOMS = ("layer", "metrics", "optimizer", "ops", "passes", "dims", "interop", "memory", "program")

_CALLED_ELSEWHERE = {
    "fit": "fs.train(cost, data, ...)",
    "compile": "nothing: a loss is a variable that fs.train is given, with optimizer= and metrics=",
    **dict.fromkeys(("data", "Input", "input"), "layer.data(name, shape=['batch', ...])"),
    **dict.fromkeys(("layers", "nn"), "fs.layer"),
    **dict.fromkeys(("optim", "optimizers"), "fs.optimizer"),
    **dict.fromkeys(("SGD", "Adam", "AdamW", "Momentum", "RMSProp"), "in fs.optimizer"),
    **dict.fromkeys(("seed", "manual_seed", "set_seed"), "fs.train(..., seed=0), fs.Executor(seed=0) and program.random_seed"),
    "save": "fs.save_inference_model for use, fs.save_safetensors for values, fs.save_program for a program",
    "load": "fs.load_inference_model, fs.load_safetensors, fs.load_program",
    "summary": "fs.default_main_program().summary()",
    "Model": "nothing: layers are functions, and a program holds what they describe",
}


def __getattr__(name: str) -> Any:
    """Import a room at its first use, without garbage collections: modules are no garbage, and torch has many objects."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return _opened(name)
    finally:
        if collects:
            gc.enable()


def _opened(name: str) -> Any:
    room = _ROOM.get(name)
    if room is not None:
        if room != "wire" and room != "errors":
            importlib.import_module("foreshape.wire")  # a program can be saved from the first line on
        value = getattr(importlib.import_module(f"foreshape.{room}"), name)
    elif name in _ROOMS:
        importlib.import_module("foreshape.wire")
        value = importlib.import_module(f"foreshape.{name}")
    else:
        from foreshape.hints import no_such_name

        raise no_such_name("foreshape", name, _CALLED_ELSEWHERE, __dir__(), "fs")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names and the rooms, without the imports of this file."""
    return sorted({*__all__, *_ROOMS})


__all__ = [
    "BF16",
    "BOOL",
    "FP16",
    "FP32",
    "FP64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "LOD_TENSOR",
    "SELECTED_ROWS",
    "STRING",
    "UINT8",
    "UNK",
    "Block",
    "Checkpoint",
    "DescriptionError",
    "ExecutionError",
    "Executor",
    "FeedError",
    "ForeshapeError",
    "ForeshapeWarning",
    "FormatError",
    "GuardError",
    "History",
    "InferenceModel",
    "Job",
    "Limits",
    "LoDTensor",
    "MemoryPlanError",
    "Network",
    "Op",
    "Operator",
    "ParamAttr",
    "Plan",
    "Predictor",
    "Profile",
    "Program",
    "RankError",
    "Recomputation",
    "SchemaError",
    "Scope",
    "SelectedRows",
    "ShapeError",
    "TrainingProgram",
    "TypeMismatchError",
    "Variable",
    "append_backward",
    "callbacks",
    "data_parallel",
    "default_main_program",
    "default_scope",
    "default_startup_program",
    "evaluate",
    "infer_shape",
    "job",
    "layer",
    "load_inference_model",
    "load_program",
    "load_safetensors",
    "metrics",
    "name_scope",
    "optimizer",
    "plan",
    "predict",
    "profile",
    "program",
    "program_guard",
    "recompute",
    "reset",
    "save_inference_model",
    "save_program",
    "save_safetensors",
    "send",
    "shard_optimizer",
    "shard_parameters",
    "split_layers",
    "split_tables",
    "train",
    "training_program",
]
