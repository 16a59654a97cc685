"""The random generators that a run can draw from, as values that a checkpoint holds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from foreshape.engine import Executor
from foreshape.engine.scope import to_tensor
from foreshape.errors import ExecutionError, FormatError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class RandomState:
    """Where each generator is, as arrays: the executor's, torch's default one, numpy's and Python's global ones."""

    executor: Any
    torch: Any
    numpy_key: Any
    numpy_rest: Any
    python: Any


def random_state(executor: Executor) -> RandomState:
    """Where the generators are now."""
    import numpy
    import torch

    given = numpy.random.get_state(legacy=True)
    if not isinstance(given, tuple):
        raise ExecutionError(f"a checkpoint holds numpy's own global generator, MT19937; this program has set {given.get('bit_generator')}")
    _, key, at, has_normal, normal = given
    version, words, kept = random.getstate()
    return RandomState(
        executor.random_state(),
        torch.get_rng_state().numpy().copy(),
        numpy.asarray(key).astype(numpy.int64),
        numpy.array([at, has_normal, normal], dtype=numpy.float64),
        numpy.array([version, *words, kept is not None, 0.0 if kept is None else kept], dtype=numpy.float64),  # words have 32 bits
    )


def set_global_state(state: RandomState) -> None:
    """Put torch's, numpy's and Python's generators where they were; the executor's is set by itself."""
    import numpy
    import torch

    torch.set_rng_state(to_tensor(state.torch))
    at, has_normal, normal = state.numpy_rest.tolist()
    numpy.random.set_state(("MT19937", state.numpy_key.astype(numpy.uint32), int(at), int(has_normal), normal))
    version, *words, has_kept, kept = state.python.tolist()
    random.setstate((int(version), tuple(int(w) for w in words), kept if has_kept else None))


def to_tensors(prefix: str, state: RandomState) -> dict[str, Tensor]:
    """The state as tensors with names of their own."""
    return {prefix + f.name: to_tensor(getattr(state, f.name)) for f in fields(state)}


def from_tensors(prefix: str, tensors: Mapping[str, Tensor]) -> RandomState:
    """The inverse of `to_tensors`. Raises `FormatError` where one is missing."""
    missing = [f.name for f in fields(RandomState) if prefix + f.name not in tensors]
    if missing:
        raise FormatError(f"the checkpoint lacks {prefix}{missing[0]}")
    return RandomState(*(tensors[prefix + f.name].numpy().copy() for f in fields(RandomState)))
