"""Lookups in a table sharded over the ranks: by rows dealt over them with an exchange of ids, or by consecutive rows with a sum."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, ceildiv, product
from foreshape.core.spec import FLOATING, INDEX, INT64, SELECTED_ROWS, Kind, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require_equal, require_rank
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.collective.messages import ALL_TO_ALL, Given, Messages
from foreshape.language.ops.collective.parts import COUNT_DOC, ranks_of
from foreshape.language.ops.collective.sums import Collective
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.machine.communication.process_group import ProcessGroup, numbers_of, team_of


def rows_of_rank(height: Size, ranks: Size) -> Size:
    """Return the number of rows per rank of a table dealt in turn: rank r has r, r + ranks, r + 2 ranks, ..."""
    return ceildiv(height, ranks)


def _rows_kind(self: Any, Ids: Spec, d_out: Spec, W: Spec) -> Kind:
    return SELECTED_ROWS


class SplitLookup(Collective):
    """Out[..., :] = row Ids[...] of a table of ``height`` rows, with every ranks-th of them in this rank's W; zeros where Ids is ``padding_idx``.

    Each distinct id goes once to the rank of its row. The gradient of W is the sum of its rows' gradients over all ranks.
    """

    type = "split_lookup"
    gradient_sends = True
    W = operand(FLOATING, doc="[rows of this rank, width]")
    Ids = operand(INDEX, doc="row numbers of the whole table")
    Out = result(layout="row", doc="[*Ids, width], ragged as Ids")
    height = attribute(AttrType.LONG, doc="the rows of the whole table", low=1)
    nranks = attribute(AttrType.INT, 0, low=0, doc=COUNT_DOC)
    padding_idx = attribute(AttrType.LONG, -1, doc="a row number with zeros and no gradient; -1: none; other negative ones count from the end")

    def _team(self) -> ProcessGroup | None:
        return team_of(self.ring_id, self.nranks, self.type)

    def sends(self, given: Given) -> Messages:
        """Return the messages: the number of ids for each rank, the ids, and their rows (back, or as a gradient).

        They are counted as if no id came twice and each rank had as many.
        """
        (ids,), (table,) = given.specs["Ids"], given.specs["W"]
        row = product(table.known_dims[1:]) * table.known_dtype.itemsize
        return [(ALL_TO_ALL, size) for size in (ranks_of(self.nranks) * INT64.itemsize, ids.elements * INT64.itemsize, ids.elements * row)]

    def infer_shape(self, W: Spec, Ids: Spec) -> Spec:
        return self._looked_up(W, Ids)

    def _looked_up(self, W: Spec, Ids: Spec) -> Spec:
        """Return the spec of Out."""
        require_rank(2, W, "W")
        require_equal(W.known_dims[0], rows_of_rank(self.height, ranks_of(self.nranks)), "W must have the rows of one rank", W=0)
        return Ids.with_dims((*Ids.known_dims, W.known_dims[1])).with_dtype(W.known_dtype)

    def _infer_gradient(self, Ids: Spec, d_out: Spec, W: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, self._looked_up(W, Ids)))
        return W.like()

    def _counted_ids(self, ids: Tensor) -> Tensor | None:
        """Return the mask of ids other than the padding; None if there is no padding."""
        row: int = self.padding_idx
        padding = row if row >= -1 else self.height + row
        return None if padding < 0 else ids != padding

    def _unique(self, Ids: Tensor, ranks: int) -> tuple[Tensor, Tensor, list[int]]:
        """Return the distinct ids in the order of their ranks, the place of each of Ids among them, and their number per rank.

        Raises:
            ExecutionError: an id that is no row of the table.
        """
        flat = Ids.reshape(-1).long()
        if flat.numel() and (int(flat.min()) < 0 or int(flat.max()) >= self.height):
            raise ExecutionError(f"{self.type}: Ids must be in [0, {self.height}), the rows of the table; seen {int(flat.min())} to {int(flat.max())}")
        by_rank = (flat % ranks) * self.height + flat  # one number, sorted by rank, then by row
        unique: Any = torch.unique  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        keys, places = unique(by_rank, return_inverse=True)
        counts = torch.bincount(torch.div(keys, self.height, rounding_mode="floor"), minlength=ranks)
        return keys % self.height, places, numbers_of(counts)

    def _meet(self, team: ProcessGroup, ids: Tensor, give: list[int]) -> tuple[Tensor, list[int]]:
        """Return the ids for which the ranks ask this one, and the number from each rank."""
        take: list[int] = numbers_of(team.exchange(torch.tensor(give, device="cpu"), [1] * team.ranks, [1] * team.ranks, self.type))
        return team.exchange(ids, give, take, self.type), take

    def kernel(self, W: Tensor, Ids: Tensor) -> Tensor:
        team = self._team()
        ranks = 1 if team is None else team.ranks
        ids, places, give = self._unique(Ids, ranks)
        if team is None:
            rows = W.index_select(0, ids)
        else:
            requested, take = self._meet(team, ids, give)
            own_rows = W.index_select(0, torch.div(requested, ranks, rounding_mode="floor"))
            rows = team.exchange(own_rows, take, give, self.type)
        out = rows.index_select(0, places).reshape(*Ids.shape, W.shape[1])
        counted = self._counted_ids(Ids)
        return out if counted is None else out.masked_fill_(~counted.unsqueeze(-1), 0.0)

    @gradient("Ids", "Out@GRAD", "W", gives="W@GRAD", infer=_infer_gradient, kinds=_rows_kind)
    def backward(self, Ids: Tensor, d_out: Tensor, W: Tensor) -> Any:
        team = self._team()
        ranks = 1 if team is None else team.ranks
        values, counted = d_out.reshape(Ids.numel(), W.shape[1]), self._counted_ids(Ids)
        flat = Ids.reshape(-1)
        if counted is not None:
            chosen = counted.reshape(-1)
            flat, values = flat[chosen], values[chosen]
        ids, places, give = self._unique(flat, ranks)
        merged = Rows(places, values, len(ids)).to_dense() if len(flat) else values
        if team is not None:
            requested, take = self._meet(team, ids, give)
            ids, merged = requested, team.exchange(merged, give, take, self.type)
        return Rows(torch.div(ids, ranks, rounding_mode="floor"), merged, W.shape[0])

    samples = [
        sample(W=f32(7, 3), Ids=i64(4, high=6), height=7, nranks=1),
        sample(W=f32(7, 3), Ids=i64(6, data=[0, 2, 2, 6, 0, 5]), height=7, nranks=1, padding_idx=2),
        sample(W=f32(7, 3), Ids=i64(2, 5, high=6), height=7, nranks=1),
        sample(W=f32(7, 3), Ids=i64(0), height=7, nranks=1),
    ]
    rejects = [reject(W=f32(7, 3), Ids=i64(4), height=7, nranks=2, says="W must have the rows of one rank")]


_EACH = 4 * 8 + 4
"""Bytes for each id: its row on this rank, the mask of missing rows, and copies of both."""


class CEmbedding(Operator):
    """Out[..., :] = W[Ids[...] - start_index], zeros where no row of W has this number: rows of other ranks.

    Nothing is sent: `c_allreduce_sum` of Out is the lookup in the whole table.
    """

    type = "c_embedding"
    family = "table"
    W = operand(FLOATING, doc="[rows of this rank, width]")
    Ids = operand(INDEX, doc="row numbers of the whole table")
    Out = result(layout="row", doc="[*Ids, width], ragged as Ids")
    start_index = attribute(AttrType.LONG, 0, low=0, doc="the row of the whole table at which W begins")
    vocab_size = attribute(AttrType.LONG, -1, low=-1, doc="the rows of the whole table; -1: unknown. Ignored")

    def infer_shape(self, W: Spec, Ids: Spec) -> Spec:
        return self._looked_up(W, Ids)

    def _looked_up(self, W: Spec, Ids: Spec) -> Spec:
        """Return the spec of Out."""
        require_rank(2, W, "W")
        return Ids.with_dims((*Ids.known_dims, W.known_dims[1])).with_dtype(W.known_dtype)

    def _rows(self, Ids: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return the ids as rows of W, and the mask of rows of this rank."""
        index = Ids.long() - self.start_index
        return index, (index >= 0) & (index < rows)

    def workspace(self, W: Spec, Ids: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Ids=Ids) + _EACH * Ids.elements

    def kernel(self, W: Tensor, Ids: Tensor) -> Tensor:
        rows, width = W.shape
        if not rows:
            return W.new_zeros((*Ids.shape, width))
        index, mine = self._rows(Ids, rows)
        return torch.embedding(W, index.masked_fill_(~mine, 0)).masked_fill_(~mine.unsqueeze(-1), 0.0)

    def _infer_gradient(self, Ids: Spec, d_out: Spec, W: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, self._looked_up(W, Ids)))
        return W.like()

    def _gradient_workspace(self, Ids: Spec, d_out: Spec, W: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Ids=Ids, Out_GRAD=d_out) + _EACH * Ids.elements + d_out.nbytes

    @gradient("Ids", "Out@GRAD", "W", gives="W@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, Ids: Tensor, d_out: Tensor, W: Tensor) -> Any:
        rows, width = W.shape
        index, mine = self._rows(Ids.reshape(-1), rows)
        return aten.embedding_dense_backward(d_out.reshape(Ids.numel(), width)[mine], index[mine], rows, -1, False)

    samples = [
        sample(W=f32(4, 3), Ids=i64(6, data=[0, 3, 5, 6, 7, 2]), start_index=3),
        sample(W=f32(4, 3), Ids=i32(2, 2, data=[[2, 3], [1, 9]]), start_index=2, vocab_size=12),
        sample(W=f32(4, 3), Ids=i64(data=1)),
        sample(W=f32(4, 3), Ids=i64(0, 5)),
        sample(W=f32(0, 3), Ids=i64(2, high=6), differentiate=False),
    ]
