"""The engine: a program and a feed's shapes become one straight-line step on torch kernels."""

from foreshape.engine.executor import Executor
from foreshape.engine.scope import Scope, default_scope
from foreshape.engine.values import LoDTensor, SelectedRows

__all__ = ["Executor", "LoDTensor", "Scope", "SelectedRows", "default_scope"]
