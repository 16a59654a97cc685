"""What a training run is besides the values in its scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foreshape.training.history import History
from foreshape.training.random_state import RandomState

Sums = dict[str, Any]
"""What figures are made of, fp64: ``[n]`` are added over batches and ranks, such as a sum and what it is divided by; ``[rows, n]`` are joined."""


Number = str | int | float | bool | None
"""What a checkpoint holds of a callback besides tensors."""


@dataclass(slots=True)
class Kept:
    """What a callback knows, as a checkpoint holds it."""

    kind: str
    numbers: dict[str, Number] = field(default_factory=dict[str, Number])
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """By attribute: values of the program, by name."""


@dataclass(slots=True)
class Position:
    """Where in the data a run is: ``batch`` batches of epoch ``epoch`` (from 1) are done."""

    epoch: int = 1
    batch: int = 0


@dataclass(slots=True)
class State:
    """All that a run is besides the values in its scope, and the facts that it depends on."""

    position: Position
    history: History
    random: RandomState
    epoch_random: RandomState
    """Where the random generators were when the epoch began: data that draw from them are drawn again from there."""
    sums: Sums = field(default_factory=dict[str, Any])
    """Those of the current epoch, from which its figures are made."""
    seconds: float = 0.0
    """How long the current epoch has run before."""
    first: str | None = None
    """A digest of the current epoch's first batch, where data have none of their own."""
    others: Any = None
    """Where the generators of all ranks' executors are, uint8 ``[ranks, bytes]``, where there are several."""
    callbacks: list[Kept] = field(default_factory=list[Kept])
    """What the callbacks know, in their order, of those that keep something."""
