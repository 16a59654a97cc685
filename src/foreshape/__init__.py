"""Foreshape: describe a network, know everything about it, then run and train it.

>>> import foreshape as fs
>>> from foreshape import layer
"""

from __future__ import annotations

from foreshape.core import interrupts as interrupts  # before the slow imports  # isort: skip
import importlib
from typing import TYPE_CHECKING, Any

from foreshape.core.gc_pause import collector_waits
from foreshape.core.lazy_names import lazy_names, lazy_value
from foreshape.core.version import VERSION

if TYPE_CHECKING:
    from foreshape.exports import *

__version__ = VERSION

_EXPORTS = "foreshape.exports"
"""The list of public names and their rooms; a room is imported when its name is first used."""
_ROOMS = ("layer", "metrics", "optimizer", "ops", "passes", "dims", "interop", "memory", "training")

_FUNCTIONS = ("batch_norm", "cross_entropy", "dropout", "gelu", "layer_norm", "leaky_relu", "log_softmax", "mse_loss", "relu", "sigmoid", "softmax", "tanh")
_LAYERS = (*_FUNCTIONS, "concat", "conv2d", "embedding", "fc", "gru", "lstm", "matmul", "multi_head_attention", "pool2d", "reshape", "stack", "transpose")
"""Layers that are looked for here: a list, since the room is slow to import."""

_CALLED_ELSEWHERE = {
    "fit": "fs.train(cost, data, ...)",
    "compile": "nothing: a loss is a variable that fs.train is given, with optimizer= and metrics=; fs.compile_model is for answers",
    **dict.fromkeys(("data", "Input", "input"), "layer.data(name, shape=['batch', ...])"),
    **dict.fromkeys(("layers", "nn"), "fs.layer"),
    **dict.fromkeys(("optim", "optimizers"), "fs.optimizer"),
    **dict.fromkeys(("SGD", "Adam", "AdamW", "Momentum", "RMSProp"), "in fs.optimizer"),
    **dict.fromkeys(("seed", "manual_seed", "set_seed"), "fs.train(..., seed=0), fs.Executor(seed=0) and program.random_seed"),
    "save": "fs.save_inference_model for use, fs.save_safetensors for values, fs.save_program for a program",
    "load": "fs.load_inference_model, fs.load_safetensors, fs.load_program",
    **dict.fromkeys(("Model", "Module", "Sequential"), "nothing: layers are functions, and a program holds what they describe"),
    **dict.fromkeys(("Linear", "Dense", "linear", "dense"), "layer.fc(x, output_size)"),
    **dict.fromkeys(("Conv2d", "Conv2D"), "layer.conv2d"),
    **dict.fromkeys(("Dropout", "Embedding", "Softmax", "ReLU"), "a function of fs.layer, as layer.dropout, layer.embedding, layer.softmax and layer.relu"),
    **dict.fromkeys(("LSTM", "GRU"), "layer.lstm, layer.gru"),
    **dict.fromkeys(("cat", "concatenate"), "layer.concat"),
    **{name: f"layer.{name}" for name in _LAYERS},
}


@collector_waits  # modules are no garbage, and torch has many objects
def __getattr__(name: str) -> Any:
    """Import a room at its first use."""
    if name == "__all__":
        return sorted(lazy_names(_EXPORTS))
    origin = lazy_names(_EXPORTS).get(name)
    if origin is None:
        from foreshape.core.hints import no_such_name

        raise no_such_name("foreshape", name, _CALLED_ELSEWHERE, __dir__(), "fs")
    if origin[0] not in ("foreshape.language.wire", "foreshape.errors", "foreshape.interop"):
        importlib.import_module("foreshape.language.wire")  # a program can be saved from the first line on
    value = importlib.import_module(f"{origin[0]}.{name}") if name in _ROOMS else lazy_value(_EXPORTS, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names and the rooms, without the imports of this file."""
    return sorted(lazy_names(_EXPORTS))
