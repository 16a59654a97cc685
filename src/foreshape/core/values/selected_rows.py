"""`SelectedRows`: how sparse rows of a table are fed and fetched, as arrays."""

from __future__ import annotations

import operator
from typing import Any

from foreshape.core.values.conversion import plain
from foreshape.errors import FeedError


class SelectedRows:
    """Some rows of a table: ids ``[n]``, values ``[n, *row]`` and the number of rows of the whole table.

    Args:
        rows: the ids, integers, each once or more.
        values: an array with a row for each of them.
        height: the number of rows of the table.

    Raises:
        FeedError: ids are no rows of the table, or values have another number.
    """

    __slots__ = ("height", "rows", "values")

    def __init__(self, rows: Any, values: Any, height: int) -> None:
        import numpy

        try:
            ids = numpy.asarray(plain(rows))
            if ids.dtype.kind not in "iu" and ids.size:
                raise TypeError
            self.rows = ids.astype(numpy.int64, copy=False)
            self.height = operator.index(height)
        except (TypeError, ValueError):
            raise FeedError(f"sparse rows need a list of whole numbers as ids, and a whole number as height; seen {rows!r} and {height!r}") from None
        self.values = numpy.asarray(plain(values))
        if self.rows.ndim != 1 or self.values.ndim < 1 or len(self.values) != len(self.rows):
            raise FeedError(f"sparse rows need one value per row id; seen ids {list(self.rows.shape)} and values {list(self.values.shape)}")
        if len(self.rows) and not 0 <= int(self.rows.min()) <= int(self.rows.max()) < self.height:
            raise FeedError.must("row ids", f"in [0, {self.height})", f"{int(self.rows.min())} to {int(self.rows.max())}")

    def to_dense(self) -> Any:
        """Return the whole table as an array: zeros but for these rows, repeated ids summed."""
        import numpy

        out = numpy.zeros((self.height, *self.values.shape[1:]), dtype=self.values.dtype)
        numpy.add.at(out, self.rows, self.values)
        return out

    def __repr__(self) -> str:
        return f"SelectedRows({self.rows!r}, {self.values!r}, height={self.height})"
