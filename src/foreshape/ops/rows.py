"""`Rows`: the run-time value of a SELECTED_ROWS variable, the gradient of a lookup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.ops.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor


class Rows:
    """Row ids (int64 ``[n]``, possibly repeated), their values ``[n, *row]``, and the height of the table that they are rows of."""

    __slots__ = ("height", "rows", "values")

    def __init__(self, rows: Tensor, values: Tensor, height: int) -> None:
        self.rows, self.values, self.height = rows, values, height

    def merged(self) -> Rows:
        """The same with each id once, in rising order, its values summed."""
        unique: Any = torch.unique  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        ids, where = unique(self.rows, return_inverse=True)
        if len(ids) == len(self.rows) and bool((ids == self.rows).all()):
            return self
        values = torch.zeros((len(ids), *self.values.shape[1:]), dtype=self.values.dtype, device=self.values.device)
        values.index_add_(0, where, self.values)
        return Rows(ids, values, self.height)

    def to_dense(self) -> Tensor:
        """The whole table: zeros but for these rows."""
        out = torch.zeros((self.height, *self.values.shape[1:]), dtype=self.values.dtype, device=self.values.device)
        return out.index_add_(0, self.rows, self.values)
