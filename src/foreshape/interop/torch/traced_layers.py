"""Layers of torch as a trace takes them: masks not read, batch normalizations without a momentum, and modules asked to be as they are."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, Final

from foreshape.interop.torch.packed_sequences import packed_layer
from foreshape.interop.torch.replaced import replaced, replaced_methods
from foreshape.interop.torch.torch_call import CUMULATIVE
from foreshape.interop.torch.untyped_torch import torch


def _said_causal(mask: Any, is_causal: bool | None = None, size: Any = None) -> bool:
    return bool(is_causal)


@contextmanager
def _open_time() -> Generator[None]:
    """Keep the lengths of sequences open in nn.Transformer, where numbers of a mask are asked for."""
    transformer: Any = importlib.import_module("torch.nn.modules.transformer")
    name = "_detect_is_causal_mask"
    with replaced(transformer, **({name: _said_causal} if hasattr(transformer, name) else {})):
        yield


@contextmanager
def _cumulative(module: Any) -> Generator[None]:
    """Give batch normalizations without a momentum, of the mean of all batches, a number for it known to their import."""
    of = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)
    changed = [part for part in module.modules() if isinstance(part, of) and part.momentum is None and part.running_mean is not None]
    for part in changed:
        part.momentum = CUMULATIVE
    try:
        yield
    finally:
        for part in changed:
            part.momentum = None


# --- modules asked to be as they are


def _wanted(given: Any, named: Any) -> Iterator[Any]:
    """Yield the element types and devices of arguments of ``Module.to``."""
    for one in (*given, *named.values()):
        if isinstance(one, torch.Tensor):
            yield from (one.dtype, one.device)
        elif isinstance(one, torch.dtype):
            yield one
        elif isinstance(one, (str, torch.device)):
            yield torch.device(one)


def _is_already(module: Any, wanted: Iterator[Any]) -> bool:
    tensors = [*module.parameters(), *module.buffers()]

    def has(tensor: Any, one: Any) -> bool:
        if isinstance(one, torch.dtype):
            return tensor.dtype == one or not (tensor.is_floating_point() or tensor.is_complex())
        return tensor.device.type == one.type

    return all(has(tensor, one) for one in wanted for tensor in tensors)


_NAMED: Final = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16, "cpu": torch.device("cpu")}


def _as_asked(name: str, before: Any) -> Any:
    @functools.wraps(before)
    def call(module: Any, *given: Any, **named: Any) -> Any:
        wanted = _wanted(given, named) if name == "to" else iter((_NAMED[name],))
        return module if _is_already(module, wanted) else before(module, *given, **named)

    return call


_KEPT: Final = {name: _as_asked(name, getattr(torch.nn.Module, name)) for name in ("to", *_NAMED)}
"""Methods of modules: asked for their own element type and device, they return the module; torch would give it new parameters."""


# --- clusters of classes


def _by_logarithms(layer: Any, x: Any, target: Any) -> Any:
    """Return the results of AdaptiveLogSoftmaxWithLoss from all classes: torch's own asks for the clusters with targets."""
    found = layer.log_prob(x if x.dim() > 1 else x.unsqueeze(0))
    output = found.gather(1, target.reshape(-1, 1)).squeeze(1)
    return _adaptive()._ASMoutput(output if x.dim() > 1 else output.squeeze(0), -output.mean())


def _adaptive() -> Any:
    return importlib.import_module("torch.nn.modules.adaptive")


def make_ready(module: Any, inputs: Any) -> None:
    """Run a module with lazy layers once, as in a test, to give them parameters."""
    lazy: Any = importlib.import_module("torch.nn.parameter")
    if not any(lazy.is_lazy(one) for one in (*module.parameters(), *module.buffers())):
        return
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            module(*inputs)
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def traced_layers(module: Any) -> Generator[None]:
    """Keep to such forms while a module is exported."""
    clusters = _adaptive().AdaptiveLogSoftmaxWithLoss
    parts = [] if isinstance(module, torch.jit.ScriptModule) else [*module.modules()]
    methods = [(part, name, MethodType(function, part)) for part in parts for name, function in _KEPT.items()]
    methods += [(part, "forward", MethodType(_by_logarithms, part)) for part in parts if isinstance(part, clusters)]
    methods += [(part, "forward", MethodType(function, part)) for part in parts if (function := packed_layer(part)) is not None]
    with _open_time(), _cumulative(module), replaced_methods(methods):
        yield
