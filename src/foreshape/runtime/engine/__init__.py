"""The engine: a program and a feed's shapes become one straight-line step on torch kernels."""

from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.selected_rows import SelectedRows
from foreshape.runtime.engine.executor import Executor
from foreshape.runtime.engine.scope import Scope, default_scope, reset

__all__ = ["Executor", "LoDTensor", "Scope", "SelectedRows", "default_scope", "reset"]
