"""The state of a training run besides the values in its scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foreshape.apps.training.checkpoint.random_state import GeneratorStates
from foreshape.apps.training.history import History

Sums = dict[str, Any]
"""The sums behind figures, fp64: ``[n]`` are added over batches and ranks, such as a sum and its divisor; ``[rows, n]`` are joined."""


Number = str | int | float | bool | None
"""The state of a callback in a checkpoint besides tensors."""


@dataclass(slots=True)
class CallbackState:
    """The state of a callback in a checkpoint."""

    kind: str
    numbers: dict[str, Number] = field(default_factory=dict[str, Number])
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """By attribute: values of the program, by name."""


@dataclass(slots=True)
class Position:
    """The position of a run in the data: ``batch`` batches of epoch ``epoch`` (from 1) are done."""

    epoch: int = 1
    batch: int = 0


@dataclass(slots=True)
class State:
    """The state of a run besides the values in its scope, and its facts."""

    position: Position
    history: History
    random: GeneratorStates
    epoch_random: GeneratorStates
    """The states of the random generators at the beginning of the epoch: data drawn from them are drawn again from there."""
    sums: Sums = field(default_factory=dict[str, Any])
    """The sums of the current epoch's figures."""
    seconds: float = 0.0
    """The seconds of the current epoch before a resumption."""
    first: str | None = None
    """A digest of the current epoch's first batch, where data have none of their own."""
    others: Any = None
    """The states of the generators of all ranks' executors, uint8 ``[ranks, bytes]``, if there are several."""
    callbacks: list[CallbackState] = field(default_factory=list[CallbackState])
    """The state of each callback that keeps some, in their order."""
