"""Validation: figures of a network for other data after each epoch."""

from __future__ import annotations

from collections.abc import Mapping

from foreshape.apps.training.checkpoint.state import Sums
from foreshape.apps.training.data.batches import Data
from foreshape.apps.training.distributed.distributed_session import DistributedSession
from foreshape.apps.training.figures import fetches_of, figures_of
from foreshape.apps.training.program import of_step
from foreshape.language.program import Program, Variable
from foreshape.metrics import Metric
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.engine.prepared_run import repeated


class Validation:
    """The figures of data on a program without updates.

    Args:
        program: a copy for inference; metrics are measured if it has their variables.
        data: the validation data.
        over: the ranks; each measures a part.
        executor, scope: run the program, and hold the values.
    """

    def __init__(
        self, program: Program, data: Data, metrics: Mapping[str, Variable | Metric], session: DistributedSession, executor: Executor, scope: Scope
    ) -> None:
        self.data, self.executor, self.scope = data, executor, scope
        self.figures = figures_of(program, session.local_loss, metrics, executor, scope)
        self.fetches = fetches_of(self.figures)
        evaluated = session.evaluated(program)
        evaluated.random_seed = 0  # whether an evaluation is the first of its process must make no difference
        self.program = of_step(evaluated, self.fetches)

    def measure(self, session: DistributedSession) -> dict[str, float]:
        """Return the figures, by name, over the data of all ranks."""
        sums: Sums = {key: zeros for figure in self.figures for key, zeros in figure.begin().items()}
        step = repeated(self.executor, self.program, self.fetches, self.scope)
        for batch in self.data.epoch(1):
            share = session.part(batch)
            fetched = dict(zip(self.fetches, step(share), strict=True))
            for figure in self.figures:
                figure.add(sums, fetched, share)
        sums = session.total(sums)
        return {f"validation {n}": value for figure in self.figures for n, value in figure.results(sums).items()}
