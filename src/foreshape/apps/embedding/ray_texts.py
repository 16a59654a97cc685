"""The vectors of the texts of a Ray data set: each worker has an embedder, opened once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from foreshape.apps.embedding.memory_bound import TextMemoryError
from foreshape.errors import FeedError, MemoryPlanError
from foreshape.runtime.feeding.ray_data import Compute

VECTOR: Final = "vector"
"""The column of the vectors."""


def text_compute(opening: Callable[[], Any], column: str, settings: Mapping[str, Any]) -> Compute:
    """Return what makes vectors of the texts of a table, in its ``column``, with an `Embedder` that is opened first, and settings of its `encode`."""
    encode = opening().encode

    def row(table: Any, number: int) -> str:
        keys = {name: values[0] for name, values in table.drop_columns([column]).slice(number, 1).to_pydict().items()}
        return f"the row {keys!r:.200}" if keys else f"row {number:,} of a block"

    def compute(table: Any) -> dict[str, Any]:
        texts: list[Any] = table.column(column).to_pylist()
        if None in texts:
            raise FeedError(f"the column {column!r} must have a text in each row; seen None in {row(table, texts.index(None))}")
        try:
            return {VECTOR: encode(texts, **settings)}
        except TextMemoryError as error:
            raise MemoryPlanError(f"the text of {row(table, error.number - 1)} {error.reason}") from None

    return compute
