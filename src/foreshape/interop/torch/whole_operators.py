"""Operators of torch kept whole in an export.

It would write out each step of a recurrent layer, and so fix the length of the sequences; and the arithmetic of an alpha dropout, which a test leaves out.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import torch

_KINDS: Final = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
"""The name in torch -> the number of states."""
_RECURRENT: Final = "(Tensor x, Tensor[] states, Tensor[] weights, bool biases, int layers, float dropout, bool train, bool both, bool batch_first) -> Tensor[]"
_DROPOUTS: Final = ("alpha_dropout", "feature_alpha_dropout")
_DROPOUT: Final = "(Tensor x, float p, bool train) -> Tensor"


@functools.cache
def _operators() -> Any:
    """Define the operators ``foreshape::lstm`` and its like in torch, once; they live as long as the returned object."""
    from torch import library as custom_operators

    defining: Any = custom_operators
    fragment = defining.Library("foreshape", "FRAGMENT")
    for kind in _KINDS:
        fragment.define(f"{kind}{_RECURRENT}")
        fragment.impl(kind, functools.partial(_computed, kind), "CompositeExplicitAutograd")
        defining.register_fake(f"foreshape::{kind}", _shaped, lib=fragment)
    for kind in _DROPOUTS:
        fragment.define(f"{kind}{_DROPOUT}")
        fragment.impl(kind, functools.partial(_dropped, kind), "CompositeExplicitAutograd")
        defining.register_fake(f"foreshape::{kind}", _as_given, lib=fragment)
    return fragment


def _computed(kind: str, x: Any, states: Any, weights: Any, *settings: Any) -> Any:
    given = tuple(states) if kind == "lstm" else states[0]
    return [one.clone() for one in getattr(torch, kind)(x, given, list(weights), *settings)]


def _shaped(x: Any, states: Any, weights: Any, biases: Any, layers: Any, dropout: Any, train: Any, both: bool, batch_first: Any) -> Any:
    width = states[0].shape[-1] * (2 if both else 1)
    return [x.new_empty((*x.shape[:-1], width)), *[torch.empty_like(one) for one in states]]


def _dropped(kind: str, x: Any, p: float, train: bool) -> Any:
    return getattr(torch, kind)(x, p, train).clone()


def _as_given(x: Any, p: float, train: bool) -> Any:
    return torch.empty_like(x)


class _Whole:
    """torch's functions, these whole; recurrent layers of packed sequences as they were."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._before, name)
        if name.rstrip("_") in _DROPOUTS:
            return getattr(torch.ops.foreshape, name.rstrip("_"))
        if name not in _KINDS:
            return function

        def call(x: Any, states: Any, weights: Any, *rest: Any) -> Any:
            if isinstance(weights, torch.Tensor) or len(rest) != 6:  # packed
                return function(x, states, weights, *rest)
            given = list(states) if name == "lstm" else [states]
            return tuple(getattr(torch.ops.foreshape, name)(x, given, list(weights), *rest))

        return call


@contextmanager
def whole_operators() -> Generator[None]:
    """Keep recurrent layers and alpha dropouts whole while a module is exported."""
    _operators()
    users: list[Any] = [importlib.import_module(name) for name in ("torch.nn.modules.rnn", "torch.nn.functional")]
    before = [user._VF for user in users]
    for user, functions in zip(users, before, strict=True):
        user._VF = _Whole(functions)
    try:
        yield
    finally:
        for user, functions in zip(users, before, strict=True):
            user._VF = functions
