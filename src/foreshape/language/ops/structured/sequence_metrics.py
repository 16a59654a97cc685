"""Measures of sequences: edit distance, and the counts of right chunks of a tagging."""

from __future__ import annotations

from typing import NamedTuple

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, INDEX, INT64, Spec, tensor
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import fail, require, require_equal, require_rank
from foreshape.language.operator.samples import i32, i64, reject, sample
from foreshape.language.operator.totals import SUM, Total, Totals
from foreshape.language.ops.rules.ragged_rules import (
    check_lengths,
    check_numbers,
    offsets_of,
    outer_lod,
    padded,
    places,
    ragged,
    rows,
    same_offsets,
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


class _Scheme(NamedTuple):
    """The number of tags of a chunk type, and its tags (-1: it has none)."""

    tags: int
    begin: int
    inside: int
    end: int
    single: int


_SCHEMES = {"plain": _Scheme(1, -1, -1, -1, -1), "IOB": _Scheme(2, 0, 1, -1, -1), "IOE": _Scheme(2, -1, 0, 1, -1), "IOBES": _Scheme(4, 0, 1, 2, 3)}


class ChunkEval(Operator):
    """Precision, recall and F1 of the chunks in Inference against those in Label, and their counts.

    A tag number is type * (tags of the scheme) + tag; the tags are B, I (IOB), I, E (IOE), B, I, E, S (IOBES), or one (plain). The number types * (tags of the
    scheme) is outside of all chunks. A chunk is right if begin, end and type are. Without chunks the measures are 0.
    """

    type = "chunk_eval"
    Inference = operand(INDEX, doc="ragged [rows, 1]; or [sequences, width] (and 1) with SeqLength")
    Label = operand(INDEX, doc="as Inference")
    SeqLength = operand(INDEX, optional=True, doc="[sequences] or [sequences, 1]")
    Precision = result(doc="fp32 [1]")
    Recall = result(doc="fp32 [1]")
    F1Score = result(doc="fp32 [1]", name="F1-Score")
    NumInferChunks = result(doc="int64 [1]")
    NumLabelChunks = result(doc="int64 [1]")
    NumCorrectChunks = result(doc="int64 [1]")
    num_chunk_types = attribute(AttrType.INT, low=1)
    chunk_scheme = attribute(AttrType.STRING, "IOB", choices=tuple(_SCHEMES))
    excluded_chunk_types = attribute(AttrType.INTS, (), doc="types left out of the counts")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Inference: Spec, Label: Spec, SeqLength: Spec | None) -> tuple[Spec, ...]:
        if SeqLength is None:
            ragged(Inference, "Inference")
            same_sequences(Inference, Label, "Inference", "Label")
            require_rank(2, Inference, "Inference")
        else:
            require(Inference.rank in (2, 3), f"Inference must be [sequences, width] or [sequences, width, 1], not of {Inference.rank} dims", Inference=None)
            check_lengths(SeqLength, "SeqLength", Inference, "Inference")
        require(Label.rank == Inference.rank, "Inference and Label must have the same dims", Inference=None, Label=None)
        for axis, (a, b) in enumerate(zip(Inference.known_dims, Label.known_dims, strict=True)):
            require_equal(a, b, "Inference and Label must have the same dims", Inference=axis, Label=axis)
        if SeqLength is None or Inference.rank == 3:
            require_equal(Inference.known_dims[-1], 1, "Inference must have 1 column", Inference=Inference.rank - 1)
        return (*[tensor(FP32, 1)] * 3, *[tensor(INT64, 1)] * 3)

    def totals(self) -> Totals:
        predicted, labelled = "NumInferChunks", "NumLabelChunks"
        counts = dict.fromkeys((predicted, labelled, "NumCorrectChunks"), SUM)
        return {"Precision": Total(by=(predicted,)), "Recall": Total(by=(labelled,)), "F1-Score": Total(by=(predicted, labelled)), **counts}

    def workspace(self, Inference: Spec, Label: Spec, SeqLength: Spec | None) -> Size:
        return 80 * Inference.elements

    def kernel(self, Inference: Tensor, Label: Tensor, SeqLength: Tensor | None, *, offsets: list[Offsets | None]) -> tuple[Tensor, ...]:
        guesses, true = Inference.reshape(-1), Label.reshape(-1)
        if SeqLength is None:
            assert offsets[0] is not None and offsets[1] is not None
            sequences = offsets[0]
            same_offsets(sequences, offsets[1], "Inference and Label must be divided into sequences alike")
        else:
            sequences = offsets_of(SeqLength, Inference.shape[1], "SeqLength")
            rows = places(sequences, Inference.shape[1])
            guesses, true = guesses.index_select(0, rows), true.index_select(0, rows)
        a, b = self._chunks(guesses, sequences, "Inference"), self._chunks(true, sequences, "Label")
        right = a.begins & b.begins & (a.ends == b.ends) & (a.types == b.types)
        counts = torch.stack([a.begins.sum(), b.begins.sum(), right.sum()])
        predicted, labelled, correct = counts.double()
        precision, recall = correct / predicted.clamp(min=1), correct / labelled.clamp(min=1)
        f1 = 2 * precision * recall / (precision + recall).clamp(min=torch.finfo(torch.float64).tiny)
        return (*(m.float().reshape(1) for m in (precision, recall, f1)), *(c.clone() for c in counts.unsqueeze(1)))

    def _chunks(self, numbers: Tensor, sequences: Offsets, slot: str) -> _Chunks:
        scheme, outside = _SCHEMES[self.chunk_scheme], self.num_chunk_types
        check_numbers(numbers, outside * scheme.tags + 1, f"a tag in {slot}")
        first = sequences.positions == 0
        types, tags = numbers // scheme.tags, numbers % scheme.tags
        before_types, previous_tags = types.roll(1).masked_fill_(first, outside), tags.roll(1).masked_fill_(first, -1)
        # within one type: a chunk begins here if one ends after the row before
        parted = (before_types != types) | _one_of(previous_tags, scheme.end, scheme.single) | _one_of(tags, scheme.begin, scheme.single)
        begins = parted & (types != outside)
        # a chunk ends before the next row with a cut, outside of chunks, or at the begin of another sequence
        ends_after = torch.ones_like(begins)
        ends_after[:-1] = parted[1:] | first[1:]
        ends_after &= types != outside
        ends = torch.full_like(types, -1)
        ends[begins] = ends_after.nonzero().squeeze(1).to(ends.dtype)
        if self.excluded_chunk_types:
            begins = begins & ~_one_of(types, *self.excluded_chunk_types)
        return _Chunks(begins, ends, types)

    samples = [
        sample(Inference=i64(9, 1, high=4).ragged([4, 0, 5]), Label=i64(9, 1, high=4).ragged([4, 0, 5]), num_chunk_types=2),
        sample(Inference=i64(9, 1, high=4).ragged([4, 5]), Label=i64(9, 1, high=4).ragged([4, 5]), num_chunk_types=2, chunk_scheme="IOE"),
        sample(Inference=i64(9, 1, high=8).ragged([4, 5]), Label=i64(9, 1, high=8).ragged([4, 5]), num_chunk_types=2, chunk_scheme="IOBES",
               excluded_chunk_types=[1]),
        sample(Inference=i64(7, 1, high=3).ragged([2, 1], [3, 0, 4]), Label=i32(7, 1, high=3).ragged([2, 1], [3, 0, 4]), num_chunk_types=3,
               chunk_scheme="plain"),
        sample(Inference=i64(0, 1).ragged([]), Label=i64(0, 1).ragged([]), num_chunk_types=2),
        sample(Inference=i64(3, 5, high=4), Label=i64(3, 5, high=4), SeqLength=i64(3, data=[5, 0, 2]), num_chunk_types=2),
        sample(Inference=i64(3, 5, 1, high=4), Label=i64(3, 5, 1, high=4), SeqLength=i64(3, 1, data=[5, 0, 2]), num_chunk_types=2),
    ]  # fmt: skip
    rejects = [
        reject(Inference=i64(9, 1).ragged([9]), Label=i64(9, 1).ragged([4, 5]), num_chunk_types=2, says="as many sequences"),
        reject(Inference=i64(9, 2).ragged([9]), Label=i64(9, 2).ragged([9]), num_chunk_types=2, says="1 column"),
        reject(Inference=i64(3, 5), Label=i64(3, 5), SeqLength=i64(4), num_chunk_types=2, says="one length for each sequence"),
    ]


class _Chunks(NamedTuple):
    begins: Tensor
    """Per row: true if a counted chunk begins there."""
    ends: Tensor
    """The last row of the chunk that begins at each row."""
    types: Tensor


def _one_of(numbers: Tensor, *values: int) -> Tensor:
    out = torch.zeros_like(numbers, dtype=torch.bool)
    for value in values:
        if value >= 0:
            out |= numbers == value
    return out
