"""A set of Ray Data as the data of a training: each rank reads a shard of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from foreshape.apps.training.checkpoint.resume_check import Scalar
from foreshape.apps.training.data.batches import Batch, Taken, batch_examples
from foreshape.apps.training.distributed.batch_share import Share
from foreshape.apps.workers.jobs import Job
from foreshape.apps.workers.prepare import Inputs, load_inferred
from foreshape.errors import FeedError
from foreshape.language.program import Program


class DatasetShard:
    """The part of one rank, in batches: a `foreshape.apps.training.data.batches.Data`.

    The shards have equally many rows, so that the ranks' data end together; Ray Data leaves out fewer rows than ranks for it.

    Args:
        rows: one of the iterators of Ray's ``streaming_split``.
        ranks: their number; ``batch_size`` is the whole step's, and each rank takes its part of it, rounded up.
    """

    def __init__(self, rows: Any, job: Job, ranks: int, program: Program) -> None:
        self._rows, self._taken, self._ranks = rows, Taken(program, list(job.feeds)), ranks
        self._size, self._drop_last = -(-job.batch_size // ranks), job.drop_last
        self.batches: int | None = None
        self.watched = False
        self.first: str | None = None

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        batches = iter(self._rows.iter_batches(batch_size=self._size, batch_format="numpy", drop_last=self._drop_last))
        for index in range(skip):
            if next(batches, None) is None:
                raise FeedError(f"the run is resumed after batch {skip} of epoch {number}, and the data end after batch {index}")
        first = next(batches, None)
        if first is None and not skip and not self._drop_last:
            raise FeedError(f"the set of Ray Data has fewer rows than the {self._ranks} ranks")
        for columns in chain([] if first is None else [first], batches):
            values = self._taken(columns)
            count = batch_examples(values)
            yield Share(values, count * self._ranks, count)

    def facts(self) -> dict[str, Scalar]:
        return {"rows of a batch": self._size * self._ranks}


def sample_of(job: Job, columns: Sequence[Batch]) -> Inputs:
    """Return a sample of a job's data, and of its validation data, for the plan.

    Raises:
        FeedError: a column is missing, or there are no rows.
    """
    select = Taken(load_inferred("main", job.main), list(job.feeds))
    return Inputs(*map(select, columns))
