"""Bags: a lookup and the sum of its rows in one kernel. Its gradient keeps the row of each bag once."""

from __future__ import annotations

from functools import partial

from foreshape.core.dims import Size
from foreshape.core.values.late_checks import limited, within
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.machine.kernels.call_record import NamedConstant, NumberedOperand, Subscript, X, Y, Z, call, method, of_operands
from foreshape.machine.kernels.fused import Effects, FusedKernel
from foreshape.machine.kernels.view_calls import shape

_SUM = 0


def outside(type: str, ids: Tensor, W: Tensor) -> ExecutionError:
    """Return the error of a lookup whose ids are not all rows of its table."""
    return _outside(type, W.shape[0], int(ids.min()), int(ids.max()))


def rows_within(type: str, ids: Tensor, W: Tensor) -> Tensor:
    """Return ids on a device limited to the rows of their table, with a late error for others."""
    return within(ids, W.shape[0], partial(_outside, type, W.shape[0]))


def _outside(type: str, rows: int, least: int, largest: int) -> ExecutionError:
    return ExecutionError.must(f"{type}: Ids", f"in [0, {rows}), the rows of W", f"{least} to {largest}")


class Bag:
    """The sum, average or sum over the root of the length (``how``) of the rows named by each bag of ids."""

    __slots__ = ("_even", "how", "padding", "type")

    def __init__(self, how: str, padding: int, type: str) -> None:
        self.how, self.padding, self.type = how, padding, type
        self._even: tuple[tuple[int, int], Offsets] | None = None

    def forward(self, table: Tensor, ids: Tensor, offsets: Offsets | None = None) -> Tensor:
        """Return ``[bags, width]``."""
        where = self._offsets(ids, offsets)
        flat, starts = ids.reshape(-1), where.last
        kept = self._kept(flat, table.shape[0])
        if kept is not None:
            before = torch.zeros(len(flat) + 1, dtype=torch.int64, device=flat.device)
            torch.cumsum(kept, 0, out=before[1:])
            flat, starts = flat[kept], before[starts]
        if not flat.is_cpu:
            flat = rows_within(self.type, flat, table)
        try:
            out = private.bag_sums(table, flat.long(), starts, False, _SUM, False, None, True, -1)[0]
        except (RuntimeError, IndexError):
            if len(flat) and (int(flat.min()) < 0 or int(flat.max()) >= table.shape[0]):
                raise outside(self.type, ids, table) from None
            raise
        return out if self.how == "SUM" else out.mul_(self._weights(where, offsets is None, out))

    def backward(self, ids: Tensor, d_bag: Tensor, height: int, offsets: Offsets | None = None) -> Rows:
        """Return the gradient of the table."""
        where = self._offsets(ids, offsets)
        flat, which = limited(ids.reshape(-1).long(), height), where.segments
        kept = self._kept(flat, height)
        if kept is not None:
            flat, which = flat[kept], which[kept]
        if self.how != "SUM":
            d_bag = d_bag * self._weights(where, offsets is None, d_bag)
        return Rows.spread(flat, d_bag, which, height)

    def _offsets(self, ids: Tensor, given: Offsets | None) -> Offsets:
        """Return the offsets of the bags; of dense ids, all have one length."""
        if given is not None:
            return given
        count, length = ids.shape[0], ids.shape[1]
        if self._even is None or self._even[0] != (count, length):
            starts = torch.arange(count + 1, device=ids.device).mul_(length)
            self._even = (count, length), Offsets([starts])
        return self._even[1]

    def _kept(self, flat: Tensor, height: int) -> Tensor | None:
        """Return the mask of ids other than the padding row; None without one."""
        at = self.padding if self.padding >= -1 else height + self.padding
        return None if at < 0 else flat != at

    def _weights(self, where: Offsets, even: bool, like: Tensor) -> Tensor:
        """Return the factor of each bag's sum, ``[bags, 1]``."""

        def make() -> Tensor:
            lengths = where.lengths.to(torch.float64)
            if not even:
                lengths = lengths.clamp_(min=1.0)  # an empty sequence gives zeros, and the mean of no elements is not a number
            return (lengths if self.how == "AVERAGE" else lengths.sqrt()).reciprocal().to(like.dtype).unsqueeze(1)

        return where.kept(("bag", self.how, like.dtype), make)

    # --- its calls

    def pooled(self, ragged: bool) -> FusedKernel:
        """Return the bags, of the table, the ids and, where these are ragged, their offsets."""
        return FusedKernel("{op} bag", of_operands(NamedConstant("bag", self.forward), 3 if ragged else 2))

    def gradient(self, ragged: bool, sparse: bool, wide: bool, bags: Size, spread: Size) -> FusedKernel:
        """Return the gradient of the table, of ids, the gradient of the bags, the table and offsets.

        Sparse rows hold the ids, if these are 64 bits ``wide`` and none is padding, and of sums the bags' gradient itself. Otherwise this is weighted in a copy
        of ``bags`` bytes. A dense gradient takes ``spread`` bytes meanwhile: a value for each id.
        """
        height = Subscript(shape(Z), 0)
        rows = call(NamedConstant("rows", self.backward), X, Y, height, *([NumberedOperand(3)] if ragged else []))
        sums = self.how == "SUM"
        if sparse:
            hold = (*([0] if wide and self.padding == -1 else []), *([1] if sums else []))
            return FusedKernel("bag gradient rows", rows, effects=Effects(rows_of=1, rows_hold=hold))
        effects = Effects(result_order={0: (0, 1)})
        return FusedKernel("bag gradient", method(rows, "to_dense"), effects=effects, workspace=lambda: spread if sums else spread + bags)
