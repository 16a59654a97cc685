"""The engine: a program and a feed's shapes become one straight-line step on torch kernels."""

from foreshape.engine.executor import Executor
from foreshape.engine.scope import Scope, default_scope, reset
from foreshape.values.lod_tensor import LoDTensor
from foreshape.values.selected_rows import SelectedRows

__all__ = ["Executor", "LoDTensor", "Scope", "SelectedRows", "default_scope", "reset"]
