"""The vectors of the texts of a Ray data set: each worker has an embedder, opened once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from foreshape.apps.embedding.memory_bound import TextMemoryError
from foreshape.errors import FeedError, FormatError, MemoryPlanError, SchemaError
from foreshape.runtime.feeding.ray_data import NO_TEXTS, RayDataset, RowColumns, Workers, mapped

if TYPE_CHECKING:
    from foreshape.apps.embedding.embedder import Embedder

VECTOR: Final = "vector"
"""The column of the vectors."""
_PROBE: Final = "the ship left the harbour at dawn, with 3 of the 12 sailors"
_SAME: Final = 0.02
"""A worker's vector of the probe may differ by such a part of its largest number: other processors round otherwise."""


class TextWorker:
    """The embedder of a worker, called with tables.

    It is opened for the first table: Ray words the errors of a table in a few lines, and those of a constructor in some two hundred.

    Args:
        opening: opens the embedder, from a path that all workers see.
        settings: of `Embedder.encode`.
        column: of the texts.
        columns: all of them.
        probe: the vector of a text where the run was started; a worker with another model at the path is refused.
    """

    def __init__(self, opening: Callable[[], Embedder], settings: Mapping[str, Any], column: str, columns: RowColumns, probe: Any) -> None:
        self._opening, self._settings, self._column, self._columns, self._probe = opening, settings, column, columns, probe

    @cached_property
    def embedder(self) -> Embedder:
        """The embedder."""
        import numpy

        try:
            embedder = self._opening()
        except FormatError as error:
            raise error.reworded(f"{error}\n    each worker opens the model's files: they must be in a folder that all machines see") from None
        vector = embedder.encode(_PROBE, **self._settings)
        if not numpy.allclose(vector, self._probe, rtol=0, atol=_SAME * float(numpy.abs(self._probe).max())):
            raise FormatError(f"{embedder.path} is another model on a worker than where the run was started: a text has another vector")
        return embedder

    def __call__(self, table: Any) -> Any:
        """Return a table with the vectors of its texts."""
        self._columns.check(dict(zip(table.schema.names, table.schema.types, strict=True)))
        texts: list[Any] = table.column(self._column).to_pylist()
        wrong = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
        if wrong is not None:
            raise FeedError(f"the column {self._column!r} must have a text in each row; seen {type(texts[wrong]).__name__} in {self._row(table, wrong)}")
        try:
            return self._columns.joined(table, {VECTOR: self.embedder.encode(texts, **self._settings)})
        except TextMemoryError as error:
            raise MemoryPlanError(f"the text of {self._row(table, error.number - 1)} {error.reason}") from None

    def _row(self, table: Any, number: int) -> str:
        """Return a row in words: its keys, the other columns."""
        keys = {name: value[0] for name, value in table.slice(number, 1).to_pydict().items() if name != self._column}
        return f"the row {keys!r:.200}" if keys else f"row {number:,} of a block"


def embedded(
    dataset: RayDataset,
    opening: Callable[[], Embedder],
    encode: Callable[..., Any],
    settings: Mapping[str, Any],
    column: str,
    keep: Sequence[str] | None,
    workers: Workers,
    memory: int | None,
) -> Any:
    """Return the data set of texts with a column of vectors.

    Args:
        dataset: the rows.
        opening: opens an embedder on a worker.
        encode: of the embedder of this process.
        settings: its arguments.
        column: of the texts.
        keep: the columns beside the vectors; all by default.
        workers: their number and size.
        memory: the bound of each of them.

    Raises:
        SchemaError: workers with GPUs, or settings unknown to the model. FeedError: a column is missing, or has no texts. And as `mapped`.
    """
    if workers.gpus:
        raise SchemaError.must("gpus", "0, since embedders compute on processors", f"{workers.gpus:g}")
    columns = RowColumns({column: "texts"}, NO_TEXTS, keep, [VECTOR])
    columns.check_dataset(dataset)
    return mapped(dataset, TextWorker, (opening, settings, column, columns, encode(_PROBE, **settings)), workers, memory=memory)
