"""The counts of right chunks of a tagging."""

from __future__ import annotations

from typing import NamedTuple

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, INDEX, INT64, Spec, tensor
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require, require_equal, require_rank
from foreshape.language.operator.samples import i32, i64, reject, sample
from foreshape.language.operator.totals import SUM, Total, Totals
from foreshape.language.ops.rules.ragged_rules import (
    check_lengths,
    check_numbers,
    offsets_of,
    places,
    ragged,
    same_offsets,
    same_sequences,
)


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
    family = "structured"
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
