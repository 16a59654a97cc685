"""The linear-chain conditional random field: its negative log-likelihood, and decoding; and the best sequence of tags of dense scores.

Sequences are ragged rows, or padded ``[sequences, width, ...]`` with their lengths in Length. Formulas: Lafferty, McCallum and
Pereira, "Conditional random fields", ICML 2001; the messages are in `chain_messages`.
"""

from __future__ import annotations

from typing import NamedTuple

from foreshape.core.dims import Size, product
from foreshape.core.spec import FP32, FP64, INDEX, INT64, Spec, tensor
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.rules.ragged_rules import (
    check_lengths,
    check_numbers,
    offsets_of,
    one_per_sequence,
    padded,
    places,
    ragged,
    rows,
    same_offsets,
    same_sequences,
    unpadded,
)
from foreshape.machine.kernels.chain_messages import Chains, best_paths

_FLOAT = (FP32, FP64)
_ALIKE = "Emission and Label must be divided into sequences alike"


def _check(emission: Spec, transition: Spec, label: Spec | None, length: Spec | None) -> None:
    """Require the operands of both operators; Label stands beside Emission row by row."""
    if length is None:
        ragged(emission, "Emission")
        require_rank(2, emission, "Emission")
    else:
        require_rank(3, emission, "Emission")
        check_lengths(length, "Length", emission, "Emission")
    require_rank(2, transition, "Transition")
    tags: Size = emission.known_dims[-1]
    sides: dict[str, int | None] = {"Emission": emission.rank - 1, "Transition": 1}
    require_equal(transition.known_dims[1], tags, "Transition must have a column for each tag of Emission", **sides)
    require_at_most(1, tags, "Emission must have 1 tag or more", Emission=emission.rank - 1)
    require_equal(transition.known_dims[0], tags + 2, "Transition must have 2 rows more than tags: start, end, and one of each tag", Transition=0)
    if label is None:
        return
    if length is None:
        require_rank(2, label, "Label")
        same_sequences(emission, label, "Emission", "Label")
    else:
        require(label.rank in (2, 3), f"Label must be [sequences, width] or [sequences, width, 1], not of {label.rank} dims", Label=None)
    leading = emission.rank - 1
    for axis in range(leading):
        require_equal(emission.known_dims[axis], label.known_dims[axis], "Emission and Label must have as many rows", Emission=axis, Label=axis)
    if label.rank > leading:
        require_equal(label.known_dims[-1], 1, "Label must have 1 column", Label=label.rank - 1)


class _PackedForms(NamedTuple):
    """Both forms as packed rows."""

    emission: Tensor
    label: Tensor | None
    offsets: Offsets
    width: int | None
    """The width of the padded form, None for the ragged one."""

    def restored(self, by_row: Tensor) -> Tensor:
        """Return values of packed rows in the form of Emission, 0 at padding."""
        return by_row if self.width is None else padded(by_row, self.offsets, self.width)


def _rows_of(emission: Tensor, label: Tensor | None, length: Tensor | None, sequences: Offsets | None, labelled: Offsets | None) -> _PackedForms:
    if length is None:
        assert sequences is not None
        if labelled is not None:
            same_offsets(sequences, labelled, _ALIKE)
        return _PackedForms(emission, None if label is None else label.reshape(-1).long(), sequences, None)
    width = emission.shape[1]
    offsets = offsets_of(length, width, "Length")
    if label is not None:
        label = label.reshape(-1).index_select(0, places(offsets, width)).long()
    return _PackedForms(unpadded(emission, offsets), label, offsets, width)


class _Weights(NamedTuple):
    """The weights of a path, as indices into the flat Transition: the one into each row, and the ones at the ends."""

    into: Tensor
    ends: Tensor
    ended: Tensor
    """The sequences with rows, and so with an end."""


def _weights(label: Tensor, offsets: Offsets, tags: int) -> _Weights:
    previous = torch.empty_like(label)
    previous[1:] = label[:-1] + 2
    previous.masked_fill_(offsets.positions == 0, 0)
    ended = offsets.lengths.nonzero().squeeze(1)
    return _Weights(previous.mul_(tags).add_(label), label[offsets.last[1:][ended] - 1] + tags, ended)


class LinearChainCRF(Operator):
    """LogLikelihood = the negative log-likelihood (a cost) of the tags in Label under a linear-chain CRF; 0 without rows.

    A path of tags has the weight exp(start + emissions + transitions + end); its likelihood is its part of the sum over all paths. Alpha, EmissionExps and
    TransitionExps are as PaddlePaddle has them: the forward messages, normalised; exp(Emission - its largest tag); exp(Transition). Sequences of several levels
    are the innermost ones.
    """

    type = "linear_chain_crf"
    examples, example_results = ("Emission", "Label", "Length"), ("LogLikelihood",)
    Emission = operand(_FLOAT, doc="ragged [rows, tags]; or [sequences, width, tags] with Length")
    Transition = operand(_FLOAT, same_type_as="Emission", doc="[tags + 2, tags]: weights of starting, of ending, then of the tag of the row before")
    Label = operand(INDEX, doc="[rows, 1], divided as Emission; or [sequences, width] (and 1) with Length")
    Length = operand(INDEX, optional=True, doc="[sequences] or [sequences, 1]")
    Alpha = result(doc="as Emission, dense")
    EmissionExps = result(doc="as Emission, dense")
    TransitionExps = result(doc="as Transition")
    LogLikelihood = result(doc="[sequences, 1]")

    def infer_shape(self, Emission: Spec, Transition: Spec, Label: Spec, Length: Spec | None) -> tuple[Spec, Spec, Spec, Spec]:
        _check(Emission, Transition, Label, Length)
        dense = Emission.dense()
        loss = one_per_sequence(Emission, "Emission", (1,)) if Length is None else Emission.dense((Emission.known_dims[0], 1))
        return dense, dense, Transition.dense(), loss

    def workspace(self, Emission: Spec, Transition: Spec, Label: Spec, Length: Spec | None) -> Size:
        return 7 * Emission.nbytes + 48 * product(Emission.known_dims[:-1]) + 8 * Transition.nbytes

    def _gradient_workspace(self, *specs: Spec) -> Size:
        emission, transition = specs[1], specs[6]
        return 15 * emission.nbytes + 72 * product(emission.known_dims[:-1]) + 8 * transition.nbytes

    def kernel(
        self, Emission: Tensor, Transition: Tensor, Label: Tensor, Length: Tensor | None, *, offsets: list[Offsets | None]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        emission, label, sequences, _ = packed = _rows_of(Emission, Label, Length, offsets[0], offsets[2])
        assert label is not None
        tags = Emission.shape[-1]
        check_numbers(label, tags, "a tag in Label")
        by_time = emission.index_select(0, sequences.by_time)
        chains = Chains(by_time, Transition, sequences)
        alpha, norms = chains.forward()
        if not chains.safe(norms):
            chains = Chains(by_time, Transition, sequences, log=True)
            alpha, norms = chains.forward()
        weights = _weights(label, sequences, tags)
        start, end, inner = chains.scales
        # the logarithm of the sum of all paths, less the path's own weight
        row = (norms + chains.emission_scale).index_select(0, sequences.from_time)
        row -= emission.gather(1, label.unsqueeze(1)).squeeze(1)
        row -= Transition.reshape(-1)[weights.into]
        cost = torch.zeros(sequences.count, dtype=row.dtype, device=row.device).index_add_(0, sequences.segments, row)
        last = alpha.index_select(0, sequences.from_time[sequences.last[1:][weights.ended] - 1])
        cost[weights.ended] += chains.total(last) + start + end + inner * (sequences.lengths[weights.ended] - 1) - Transition.reshape(-1)[weights.ends]
        if chains.log:
            alpha = alpha.exp_()
        alpha = packed.restored(alpha.index_select(0, sequences.from_time).to(Emission.dtype))
        exps = (Emission - Emission.amax(-1, keepdim=True)).exp_()
        return alpha, exps, Transition.exp(), cost.to(Emission.dtype).unsqueeze(1)

    @gradient("Alpha", "Emission", "EmissionExps", "Label", "Length", "LogLikelihood@GRAD", "Transition", "TransitionExps",
              gives=("Emission@GRAD", "Transition@GRAD"), workspace=_gradient_workspace)  # fmt: skip
    def backward(
        self, Alpha: Tensor, Emission: Tensor, EmissionExps: Tensor, Label: Tensor, Length: Tensor | None, d_cost: Tensor, Transition: Tensor,
        TransitionExps: Tensor, *, offsets: list[Offsets | None],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        # The exponentials are not used: in fp32 anything less likely than e^-88 is lost, and they are cheap.
        emission, label, sequences, width = packed = _rows_of(Emission, Label, Length, offsets[1], offsets[3])
        assert label is not None
        by_time = emission.index_select(0, sequences.by_time)
        alpha = (Alpha if width is None else unpadded(Alpha, sequences)).index_select(0, sequences.by_time).double()
        chains = Chains(by_time, Transition, sequences)
        beta, norms = chains.backward()
        p, pair_norms = chains.marginals(alpha, beta)
        if not (chains.safe(norms) and bool((pair_norms > _lowest(Alpha)).all())):
            chains = Chains(by_time, Transition, sequences, log=True)
            alpha, _ = chains.forward()
            beta, norms = chains.backward()
            p, pair_norms = chains.marginals(alpha, beta)
        tags = Transition.shape[1]
        d = d_cost.reshape(-1).double()
        d_row = d.index_select(0, sequences.segments)
        weights = _weights(label, sequences, tags)
        d_transition = torch.zeros(Transition.shape, dtype=d.dtype, device=d.device)
        d_transition[2:] = chains.pairs(alpha, beta, pair_norms + norms, d_row.index_select(0, sequences.by_time))
        d_emission = p.index_select(0, sequences.from_time).mul_(d_row.unsqueeze(1))
        nonempty = weights.ended
        d_transition[0] = d_emission.index_select(0, sequences.last[:-1][nonempty]).sum(0)
        d_transition[1] = d_emission.index_select(0, sequences.last[1:][nonempty] - 1).sum(0)
        flat = d_transition.view(-1)
        flat.index_add_(0, weights.into, d_row, alpha=-1)
        flat.index_add_(0, weights.ends, d[nonempty], alpha=-1)
        d_emission.scatter_add_(1, label.unsqueeze(1), d_row.neg().unsqueeze(1))
        return packed.restored(d_emission.to(Emission.dtype)), d_transition.to(Transition.dtype)

    samples = [
        sample(Emission=f32(6, 3).ragged([2, 0, 4]), Transition=f32(5, 3), Label=i64(6, 1, high=2).ragged([2, 0, 4])),
        sample(Emission=f32(7, 4).ragged([2, 1], [3, 0, 4]), Transition=f32(6, 4), Label=i64(7, 1, high=3).ragged([2, 1], [3, 0, 4])),
        sample(Emission=f32(4, 1).ragged([1, 3]), Transition=f32(3, 1), Label=i64(4, 1, high=0).ragged([1, 3])),
        sample(Emission=f32(0, 3).ragged([]), Transition=f32(5, 3), Label=i64(0, 1).ragged([]), differentiate=False),
        sample(Emission=f32(0, 3).ragged([0, 0]), Transition=f32(5, 3), Label=i64(0, 1).ragged([0, 0])),
        sample(Emission=f32(4, 6, 3), Transition=f32(5, 3), Label=i64(4, 6, high=2), Length=i64(4, data=[2, 0, 6, 3])),
        sample(Emission=f32(2, 4, 3), Transition=f32(5, 3), Label=i64(2, 4, 1, high=2), Length=i64(2, 1, data=[[4], [1]])),
        sample(Emission=f32(0, 4, 3), Transition=f32(5, 3), Label=i64(0, 4, high=2), Length=i64(0), differentiate=False),
    ]
    rejects = [
        reject(Emission=f32(6, 3).ragged([6]), Transition=f32(5, 3), Label=i64(6, 1), says="Label must be ragged", error=TypeMismatchError),
        reject(Emission=f32(6, 3).ragged([6]), Transition=f32(3, 3), Label=i64(6, 1).ragged([6]), says="2 rows more than tags"),
        reject(Emission=f32(6, 3).ragged([6]), Transition=f32(5, 3), Label=i64(6, 1).ragged([2, 4]), says="as many sequences"),
        reject(Emission=f32(6, 3).ragged([6]), Transition=f32(5, 3), Label=i64(5, 1).ragged([5]), says="as many rows"),
        reject(Emission=f32(6, 0).ragged([6]), Transition=f32(2, 0), Label=i64(6, 1).ragged([6]), says="1 tag or more"),
        reject(Emission=f32(6, 3), Transition=f32(5, 3), Label=i64(6, 1), Length=i64(6), says="Emission must have 3 dims"),
        reject(Emission=f32(2, 4, 3), Transition=f32(5, 3), Label=i64(2, 4), Length=i64(3), says="one length for each sequence"),
        reject(Emission=f32(2, 4, 3), Transition=f32(5, 3), Label=i64(2, 5), Length=i64(2), says="as many rows"),
    ]


def _lowest(alpha: Tensor) -> float:
    """Return the logarithm of the smallest norm with no relevant loss in messages of this type."""
    return -55.0 if alpha.dtype is torch.float32 else -600.0


class CRFDecoding(Operator):
    """ViterbiPath = the tags of each sequence's most likely path. With Label: 1 where the tag is Label's, otherwise 0.

    For padded sequences the tags after the end are 0.
    """

    type = "crf_decoding"
    examples = ("Emission", "Label", "Length")
    Emission = operand(_FLOAT, doc="ragged [rows, tags]; or [sequences, width, tags] with Length")
    Transition = operand(_FLOAT, same_type_as="Emission", doc="[tags + 2, tags], as of linear_chain_crf")
    Label = operand(INDEX, optional=True, doc="[rows, 1], divided as Emission; or [sequences, width] (and 1) with Length")
    Length = operand(INDEX, optional=True, doc="[sequences] or [sequences, 1]")
    ViterbiPath = result(doc="int64 [rows, 1], divided as Emission; or [sequences, width]")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Emission: Spec, Transition: Spec, Label: Spec | None, Length: Spec | None) -> Spec:
        _check(Emission, Transition, Label, Length)
        dims = Emission.known_dims
        return rows(INT64, (dims[0], 1), Emission.lod) if Length is None else Emission.dense(dims[:2], INT64)

    def workspace(self, Emission: Spec, Transition: Spec, Label: Spec | None, Length: Spec | None) -> Size:
        return 3 * Emission.nbytes + 24 * product(Emission.known_dims[:-1]) + 8 * Transition.nbytes

    def kernel(self, Emission: Tensor, Transition: Tensor, Label: Tensor | None, Length: Tensor | None, *, offsets: list[Offsets | None]) -> Tensor:
        emission, label, sequences, width = packed = _rows_of(Emission, Label, Length, offsets[0], offsets[2])
        path = best_paths(emission.index_select(0, sequences.by_time), Transition, sequences).index_select(0, sequences.from_time)
        if label is not None:
            path = (path == label).long()
        return path.unsqueeze(1) if width is None else packed.restored(path)

    samples = [
        sample(Emission=f32(6, 3).ragged([2, 0, 4]), Transition=f32(5, 3)),
        sample(Emission=f32(6, 3).ragged([2, 0, 4]), Transition=f32(5, 3), Label=i64(6, 1, high=2).ragged([2, 0, 4])),
        sample(Emission=f32(7, 4).ragged([2, 1], [3, 0, 4]), Transition=f32(6, 4)),
        sample(Emission=f32(0, 3).ragged([]), Transition=f32(5, 3)),
        sample(Emission=f32(4, 6, 3), Transition=f32(5, 3), Length=i64(4, data=[2, 0, 6, 3])),
        sample(Emission=f32(4, 6, 3), Transition=f32(5, 3), Label=i64(4, 6, 1, high=2), Length=i64(4, 1, data=[2, 0, 6, 3])),
        sample(Emission=f32(0, 4, 3), Transition=f32(5, 3), Length=i64(0, 1)),
    ]
    rejects = [
        reject(Emission=f32(6, 3).ragged([6]), Transition=f32(4, 3), says="2 rows more than tags"),
        reject(Emission=f32(6, 3).ragged([6]), Transition=f32(5, 3), Label=i64(6, 1), says="Label must be ragged", error=TypeMismatchError),
        reject(Emission=f32(2, 4, 3), Transition=f32(5, 3), Length=i64(2, 2), says="1 column"),
    ]


class ViterbiDecode(Operator):
    """The tags of each padded sequence with the highest sum of scores and transitions (Viterbi, 1967), and the sum.

    With ``include_bos_eos_tag`` the last tag stands before each sequence: its row of Transition is added to the first step. The row of the last tag but one is
    added to the last step, as in PaddlePaddle.
    """

    type = "viterbi_decode"
    Input = operand((FP32, FP64), doc="scores of the tags, [batch, time, tags]")
    Transition = operand((FP32, FP64), same_type_as="Input", doc="from the tag of a row to the tag of a column, [tags, tags]")
    Length = operand((INT64,), doc="steps of each sequence, [batch], from 1 to time")
    Scores = result(doc="the best sums, [batch]")
    Path = result(doc="int64 tags, [batch, longest length]; 0 after a sequence's end")
    include_bos_eos_tag = attribute(AttrType.BOOLEAN, True)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Input: Spec, Transition: Spec, Length: Spec) -> tuple[Spec, Spec]:
        require_rank(3, Input, "Input")
        require_rank(2, Transition, "Transition")
        require_rank(1, Length, "Length")
        batch, _, tags = Input.known_dims
        for axis, size in enumerate(Transition.known_dims):
            require_equal(tags, size, "Transition must have a row and a column for each tag of Input", Input=2, Transition=axis)
        require_equal(batch, Length.known_dims[0], "Length must have one number for each sequence of Input", Input=0, Length=0)
        least = 2 if self.include_bos_eos_tag else 1
        require_at_most(least, tags, f"there must be at least {least} tags; seen {tags}", Input=2)
        return Input.dense([batch]), tensor(INT64, batch, unknown_size("longest"))

    def workspace(self, Input: Spec, Transition: Spec, Length: Spec) -> Size:
        batch, _, tags = Input.known_dims
        return 8 * Input.elements + batch * tags * (tags * Input.known_dtype.itemsize + 32)

    def kernel(self, Input: Tensor, Transition: Tensor, Length: Tensor) -> tuple[Tensor, Tensor]:
        batch, time, _ = Input.shape
        if not batch:
            return Input.new_zeros(0), Length.new_zeros((0, 0))
        low, longest = int(Length.min()), int(Length.max())
        if low < 1 or longest > time:
            raise ExecutionError(f"Length must be from 1 to {time}, the steps of Input; seen {low} to {longest}")
        tags = self.include_bos_eos_tag
        best = Input[:, 0] + Transition[-1] if tags else Input[:, 0]
        ends = Length.unsqueeze(1)
        if tags:
            best = torch.where(ends == 1, best + Transition[-2], best)
        came: list[Tensor] = []
        for t in range(1, longest):
            highest, previous = (best.unsqueeze(2) + Transition).max(1)
            new = highest + Input[:, t]
            if tags:
                new = torch.where(ends == t + 1, new + Transition[-2], new)
            best = torch.where(ends > t, new, best)
            came.append(previous)
        scores, tag = best.max(1)
        path = Length.new_zeros((batch, longest))
        for t in range(longest - 1, -1, -1):
            alive = Length > t
            path[:, t] = torch.where(alive, tag, 0)
            if t:
                tag = torch.where(alive, came[t - 1].gather(1, tag.unsqueeze(1)).squeeze(1), tag)
        return scores, path

    samples = [
        sample(Input=f32(3, 5, 4), Transition=f32(4, 4), Length=i64(3, data=[5, 1, 3]), include_bos_eos_tag=False),
        sample(Input=f32(3, 5, 4), Transition=f32(4, 4), Length=i64(3, data=[4, 1, 3])),
        sample(Input=f32(0, 5, 4), Transition=f32(4, 4), Length=i64(0)),
    ]
    rejects = [
        reject(Input=f32(3, 5, 4), Transition=f32(4, 5), Length=i64(3), says="a row and a column for each tag"),
        reject(Input=f32(3, 5, 4), Transition=f32(4, 4), Length=i64(2), says="one number for each sequence"),
        reject(Input=f32(3, 4), Transition=f32(4, 4), Length=i64(3), says="Input must have 3 dims"),
        reject(Input=f32(3, 5, 1), Transition=f32(1, 1), Length=i64(3), says="at least 2 tags"),
    ]
