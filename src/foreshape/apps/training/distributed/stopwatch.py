"""Measured steps of a run: the times of each message's start, wait and end, on each rank. The step of median time is written to a file."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Final, TypeVar

from foreshape.compiler.cost.measured import Measured, MeasuredMessage, MeasuredStep, step_of
from foreshape.core.folders import require_writable
from foreshape.core.values.torch_proxy import torch
from foreshape.machine.communication.join import Ranks
from foreshape.machine.communication.process_group import Passage, all_teams, numbers_of

T = TypeVar("T")
VARIABLE: Final = "FORESHAPE_TIMELINE"
"""The environment variable that names the file."""
FIRST: Final = 3
"""The number of steps before the measurement, in which memory and plans are made."""
KEPT: Final = 101
"""So many of the last steps are kept."""


class Stopwatch:
    """A stopwatch for the steps of a rank, if asked for; otherwise it only runs them."""

    def __init__(self, ranks: Ranks, path: str | None = None) -> None:
        self.ranks = ranks
        self.path = path if path is not None else os.environ.get(VARIABLE) or None
        if self.path is not None and ranks.first:
            require_writable(self.path)
        self._count = 0
        self._steps: deque[tuple[int, MeasuredStep]] = deque(maxlen=KEPT)

    def step(self, run: Callable[[], T]) -> T:
        """Run a step."""
        self._count += 1
        if self.path is None or self._count <= FIRST:
            return run()
        teams, passages = all_teams(), list[Passage]()
        for team in teams:
            team.passages = passages
        try:
            began = time.perf_counter()
            output = run()
            seconds = time.perf_counter() - began
        finally:
            for team in teams:
                team.passages = None
        messages = [MeasuredMessage(p.what, p.ring, p.size, p.started - began, p.waited - began, p.done - began, p.came - began) for p in passages if p.came]
        self._steps.append((self._count, MeasuredStep(seconds, tuple(messages))))
        return output

    def write(self) -> None:
        """Write the step with the median time on rank 0, as it was on every rank. All ranks call it together.

        Raises:
            FormatError: the file cannot be written.
        """
        if not self.ranks.same_for_all(int(self.path is not None and bool(self._steps))):
            return
        ordered = sorted(self._steps, key=lambda one: one[1].seconds)
        chosen = self.ranks.same_for_all(ordered[len(ordered) // 2][0] if ordered else 0)
        median = next((step for number, step in self._steps if number == chosen), MeasuredStep(0.0, ()))
        encoded = torch.tensor(list(json.dumps(asdict(median)).encode()), dtype=torch.uint8)
        team = self.ranks.team
        all_of = [encoded] if team is None else [rows for (rows,) in team.gather_uneven([encoded], "timeline")]
        if self.ranks.first and self.path is not None:
            steps = tuple(step_of(json.loads(bytes(numbers_of(one)))) for one in all_of)
            Measured(chosen, len(self._steps), steps).save(self.path)
