"""The edit distance of sequences."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, INDEX, INT64, Spec, tensor
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import fail, require_equal, require_rank
from foreshape.language.operator.samples import i32, i64, reject, sample
from foreshape.language.ops.rules.ragged_rules import (
    check_lengths,
    offsets_of,
    outer_lod,
    padded,
    ragged,
    rows,
    same_sequences,
    unpadded,
)


class EditDistance(Operator):
    """Out = the edit distance (Levenshtein, 1966) of each sequence of Hyps and its one of Refs; ``normalized`` divides it by the length of the latter.

    SequenceNum = the number of sequences. With several levels they are the innermost ones.
    """

    type = "edit_distance"
    Hyps = operand(INDEX, doc="ragged [rows, 1]; or [sequences, width] with the lengths")
    Refs = operand(INDEX, doc="as Hyps, with as many sequences")
    HypsLength = operand(INDEX, optional=True, doc="[sequences] or [sequences, 1]")
    RefsLength = operand(INDEX, optional=True, doc="[sequences] or [sequences, 1]")
    SequenceNum = result(doc="int64 [1]")
    Out = result(doc="fp32 [sequences, 1]")
    normalized = attribute(AttrType.BOOLEAN, False)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Hyps: Spec, Refs: Spec, HypsLength: Spec | None, RefsLength: Spec | None) -> tuple[Spec, Spec]:
        if (HypsLength is None) is not (RefsLength is None):
            fail("HypsLength and RefsLength are given both, or neither", SchemaError)
        require_rank(2, Hyps, "Hyps")
        require_rank(2, Refs, "Refs")
        if HypsLength is None or RefsLength is None:
            lod = ragged(Hyps, "Hyps")
            same_sequences(Hyps, Refs, "Hyps", "Refs")
            require_equal(Hyps.known_dims[1], 1, "Hyps must have 1 column", Hyps=1)
            require_equal(Refs.known_dims[1], 1, "Refs must have 1 column", Refs=1)
            return tensor(INT64, 1), rows(FP32, (lod.counts[-1], 1), outer_lod(lod))
        check_lengths(HypsLength, "HypsLength", Hyps, "Hyps")
        check_lengths(RefsLength, "RefsLength", Refs, "Refs")
        require_equal(Hyps.known_dims[0], Refs.known_dims[0], "Hyps and Refs must have as many sequences", Hyps=0, Refs=0)
        return tensor(INT64, 1), tensor(FP32, Hyps.known_dims[0], 1)

    def workspace(self, Hyps: Spec, Refs: Spec, HypsLength: Spec | None, RefsLength: Spec | None) -> Size:
        return 128 * (Hyps.elements + Refs.elements)

    def kernel(
        self, Hyps: Tensor, Refs: Tensor, HypsLength: Tensor | None, RefsLength: Tensor | None, *, offsets: list[Offsets | None]
    ) -> tuple[Tensor, Tensor]:
        if HypsLength is None or RefsLength is None:
            assert offsets[0] is not None and offsets[1] is not None
            hyp, ref = offsets[0], offsets[1]
            x, y = Hyps.reshape(-1), Refs.reshape(-1)
        else:
            hyp, ref = offsets_of(HypsLength, Hyps.shape[1], "HypsLength"), offsets_of(RefsLength, Refs.shape[1], "RefsLength")
            x, y = unpadded(Hyps, hyp), unpadded(Refs, ref)
        if self.normalized and 0 in ref.host_lengths:
            raise ExecutionError(f"a normalized distance is divided by the length of the sequence in Refs, and number {ref.host_lengths.index(0)} is empty")
        out = _distances(x, y, hyp, ref).float()
        if self.normalized:
            out /= ref.lengths
        return torch.full((1,), hyp.count, dtype=torch.int64, device=out.device), out.unsqueeze(1)

    samples = [
        sample(Hyps=i64(9, 1, high=2).ragged([4, 0, 5]), Refs=i64(8, 1, high=2).ragged([3, 2, 3])),
        sample(Hyps=i64(9, 1, high=2).ragged([4, 0, 5]), Refs=i64(8, 1, high=2).ragged([3, 2, 3]), normalized=True),
        sample(Hyps=i32(9, 1, high=2).ragged([4, 0, 5]), Refs=i64(8, 1, high=2).ragged([0, 0, 8])),
        sample(Hyps=i64(7, 1, high=2).ragged([2, 1], [3, 0, 4]), Refs=i64(5, 1, high=2).ragged([2, 1], [1, 2, 2])),
        sample(Hyps=i64(0, 1).ragged([]), Refs=i64(0, 1).ragged([])),
        sample(Hyps=i64(3, 4, high=2), Refs=i64(3, 5, high=2), HypsLength=i64(3, data=[4, 0, 2]), RefsLength=i64(3, 1, data=[5, 3, 1])),
    ]
    rejects = [
        reject(Hyps=i64(9, 1).ragged([9]), Refs=i64(8, 1).ragged([3, 5]), says="as many sequences"),
        reject(Hyps=i64(3, 4), Refs=i64(3, 5), HypsLength=i64(3), says="both, or neither", error=SchemaError),
        reject(Hyps=i64(3, 4), Refs=i64(2, 5), HypsLength=i64(3), RefsLength=i64(2), says="as many sequences"),
    ]


def _distances(x: Tensor, y: Tensor, hyp: Offsets, ref: Offsets) -> Tensor:
    """Return the distances int64 ``[sequences]``: the table's rows one after the other, of all pairs at once.

    Within a row an insertion follows an insertion, so the row is a running minimum of the step from the row above, less the column.
    """
    order = hyp.order
    columns = torch.arange(ref.longest + 1, device=x.device)
    targets = padded(y, ref, ref.longest).index_select(0, order)
    by_time = x.index_select(0, hyp.by_time)
    table = columns.repeat(hyp.count, 1)
    begin = 0
    for step, alive in enumerate(hyp.alive):
        above = table[:alive]
        row = torch.empty_like(above)
        row[:, 0] = step + 1
        torch.minimum(above[:, 1:] + 1, above[:, :-1] + (targets[:alive] != by_time[begin : begin + alive, None]), out=row[:, 1:])
        table[:alive] = (row - columns).cummin(1).values + columns
        begin += alive
    out = torch.empty(hyp.count, dtype=torch.int64, device=x.device)
    out[order] = table.gather(1, ref.lengths.index_select(0, order).unsqueeze(1)).squeeze(1)
    return out
