"""The states of a run's random generators, as values of a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from foreshape.core.values.conversion import to_tensor
from foreshape.errors import ExecutionError, FormatError
from foreshape.language.ops.tensor.random_state import STATE_BYTES, check_state
from foreshape.runtime.engine import Executor

if TYPE_CHECKING:
    from torch import Tensor

NOW: Final = "random/"
EPOCH: Final = "epoch_random/"
_WORDS: Final = 624
"""The words of the Mersenne twister, the generator on the CPU."""
_PYTHON: Final = 3
"""The version of Python's state."""


@dataclass(slots=True)
class GeneratorStates:
    """The states of the generators, as arrays: the executor's, torch's default one, numpy's and Python's global ones."""

    executor: Any
    torch: Any
    numpy_key: Any
    numpy_rest: Any
    """The next word's index, 1 if a normal number is kept, and the normal number."""
    python: Any
    """The version, the words, the next one's index, 1 if a normal number is kept, and the normal number."""

    @staticmethod
    def names() -> list[str]:
        return [f.name for f in fields(GeneratorStates)]

    @staticmethod
    def layout() -> dict[str, tuple[str, int | None]]:
        """Return each array's element type (torch's word) and length, None if that is the device's."""
        return {
            "executor": ("uint8", None),
            "torch": ("uint8", STATE_BYTES),
            "numpy_key": ("int64", _WORDS),
            "numpy_rest": ("float64", 3),
            "python": ("float64", _WORDS + 4),
        }


def random_state(executor: Executor) -> GeneratorStates:
    """Return the present states of the generators."""
    import numpy
    import torch

    numpy_state = numpy.random.get_state(legacy=True)
    if not isinstance(numpy_state, tuple):
        raise ExecutionError(f"a checkpoint holds numpy's own global generator, MT19937; this program has set {numpy_state.get('bit_generator')}")
    _, key, place, has_normal, normal = numpy_state
    version, words, spare = random.getstate()
    return GeneratorStates(
        executor.random_state(),
        torch.get_rng_state().numpy().copy(),
        numpy.asarray(key).astype(numpy.int64),
        numpy.array([place, has_normal, normal], dtype=numpy.float64),
        numpy.array([version, *words, spare is not None, 0.0 if spare is None else spare], dtype=numpy.float64),  # words have 32 bits
    )


def set_global_state(state: GeneratorStates) -> None:
    """Put torch's, numpy's and Python's generators where they were; the executor's is set by itself."""
    import numpy
    import torch

    torch.set_rng_state(to_tensor(state.torch))
    place, has_normal, normal = state.numpy_rest.tolist()
    numpy.random.set_state(("MT19937", state.numpy_key.astype(numpy.uint32), int(place), int(has_normal), normal))
    version, *words, has_kept, spare = state.python.tolist()
    random.setstate((int(version), tuple(int(w) for w in words), spare if has_kept else None))


def to_tensors(prefix: str, state: GeneratorStates) -> dict[str, Tensor]:
    """Return the state as tensors with names of their own."""
    return {prefix + f.name: to_tensor(getattr(state, f.name)) for f in fields(state)}


def from_tensors(prefix: str, tensors: Mapping[str, Tensor]) -> GeneratorStates:
    """Return the inverse of `to_tensors`, of tensors checked against `GeneratorStates.layout`: generators do not check their input as closely.

    Raises:
        FormatError: invalid numbers for any of these generators.
    """
    out = GeneratorStates(*(tensors[prefix + name].numpy().copy() for name in GeneratorStates.names()))
    try:
        check_state(to_tensor(out.torch))
    except ValueError as error:
        raise FormatError(f"{prefix}torch: {error}") from None
    place, has_normal, normal = out.numpy_rest.tolist()
    _check_words(prefix + "numpy_key", out.numpy_key)
    _check_place(prefix + "numpy_rest", place, has_normal, normal)
    version, *_, python_at, has_kept, spare = out.python.tolist()
    if version != _PYTHON:
        raise FormatError.must(f"{prefix}python", f"of version {_PYTHON}", version)
    _check_words(prefix + "python", out.python[1 : _WORDS + 1])
    _check_place(prefix + "python", python_at, has_kept, spare)
    return out


def _check_words(name: str, words: Any) -> None:
    import numpy

    if not bool(((words >= 0) & (words < 2**32) & (words == numpy.floor(words))).all()):  # NaN is none of it
        raise FormatError(f"{name} must be words of 32 bits")


def _check_place(name: str, place: float, has_kept: float, spare: float) -> None:
    if not (place in range(_WORDS + 1) and has_kept in (0.0, 1.0) and abs(spare) < float("inf")):
        raise FormatError.must(name, f"a place from 0 to {_WORDS}, 0 or 1, and a number", f"{place}, {has_kept}, {spare}")
