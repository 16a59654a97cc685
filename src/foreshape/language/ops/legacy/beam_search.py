"""Beam search: one step to the best candidates, and the way back through all steps to sentences, also of dense beams."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, INT32, INT64, Lod, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import fail, require_equal, require_one_per_row, require_rank, unknown_size
from foreshape.language.operator.samples import f32, f64, i64, reject, sample
from foreshape.language.ops.rules.array_rules import ARRAY, own_size
from foreshape.language.ops.rules.ragged_rules import new_lod, rows
from foreshape.machine.process.this_run import require_room, this_run


class BeamSearch(Operator):
    """One step of a beam search: of all continuations of the prefixes of a source, the ``beam_size`` best.

    The rows are prefixes, grouped into sources by the offsets of scores at ``level``. A prefix with ``end_id`` in pre_ids has ended: its one continuation is
    ``end_id`` with its own score. Any other has the columns of ids (without ids, the column numbers) with scores, or, unless ``is_accumulated``, with
    pre_scores + log(scores). Of equal scores the later prefix is better, and in one prefix the earlier column. A source keeps nothing any more once all its
    kept prefixes have ended before.

    The results are ragged in two levels: sources of prefixes, prefixes of their kept continuations, the best first. parent_idx is the prefix of each row.
    Without offsets anywhere all prefixes are of one source.
    """

    type = "beam_search"
    family = "structured"
    pre_ids = operand((INT64,), doc="[prefixes, 1]: the last word of each prefix")
    pre_scores = operand((FP32, FP64), doc="[prefixes, 1]")
    ids = operand((INT64,), optional=True, doc="[prefixes, candidates]")
    scores = operand((FP32, FP64), same_type_as="pre_scores", doc="[prefixes, candidates], ragged")
    selected_ids = result(new_offsets=True, doc="int64 [kept, 1], ragged: sources, prefixes")
    selected_scores = result(new_offsets=True, doc="[kept, 1], ragged as selected_ids")
    parent_idx = result(optional=True, doc="int32 [kept]")
    level = attribute(AttrType.INT, 0, low=0, doc="the level of the sources in the offsets")
    beam_size = attribute(AttrType.INT, low=1)
    end_id = attribute(AttrType.INT, doc="the word at the end of a sentence")
    is_accumulated = attribute(AttrType.BOOLEAN, True, doc="scores are of whole prefixes; otherwise they are the probabilities of words")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, pre_ids: Spec, pre_scores: Spec, ids: Spec | None, scores: Spec) -> Any:
        require_rank(2, scores, "scores")
        count = scores.known_dims[0]
        for slot, spec in (("pre_ids", pre_ids), ("pre_scores", pre_scores)):
            require_one_per_row(spec, slot, count, "scores")
        if ids is not None:
            require_rank(2, ids, "ids")
            for axis in (0, 1):
                require_equal(ids.known_dims[axis], scores.known_dims[axis], "ids and scores must have the same dims", ids=axis, scores=axis)
        lod: Lod | None = next((s.lod for s in (scores, ids, pre_scores, pre_ids) if s is not None and s.lod is not None), None)
        sources: Size = 1
        if lod is not None:
            level: int = self.level
            if level >= len(lod.counts):
                fail(f"level must be one of scores, from 0 to {len(lod.counts) - 1}, not {level}", scores=None)
            sources = lod.counts[level]
        beam_rows, beams = unknown_size("kept"), new_lod("kept", (sources, count))
        dims = (beam_rows, 1)
        return rows(INT64, dims, beams), rows(scores.dtype, dims, beams), Spec(scores.kind, INT32, (beam_rows,))

    def workspace(self, pre_ids: Spec, pre_scores: Spec, ids: Spec | None, scores: Spec) -> Size:
        return 96 * scores.elements + 32 * pre_ids.elements

    def kernel(
        self, pre_ids: Tensor, pre_scores: Tensor, ids: Tensor | None, scores: Tensor, *, offsets: list[Offsets | None]
    ) -> tuple[Tensor, Tensor, Tensor, Offsets, Offsets]:
        count, width = scores.shape
        grouped = next((o for o in (offsets[3], offsets[2], offsets[1], offsets[0]) if o is not None), None)
        sources = grouped.in_rows(self.level) if grouped is not None else Offsets([torch.tensor([0, count], device=scores.device)])
        ended = pre_ids.reshape(-1, 1) == self.end_id
        prefix_scores = pre_scores.reshape(-1, 1)
        total = scores if self.is_accumulated else prefix_scores + scores.log()
        words = ids if ids is not None else torch.arange(width, device=scores.device).expand(count, width)
        first = (torch.arange(width, device=scores.device) == 0) & ended  # the one candidate of an ended prefix
        total, words = torch.where(first, prefix_scores, total), words.masked_fill(first, self.end_id)
        candidates = (first | ~ended).reshape(-1).nonzero().squeeze(1)
        parent = candidates // max(width, 1)
        source = sources.segments[parent]
        # by source, then score, then the later prefix, then the earlier column: stable sorts, the least important first
        value = total.reshape(-1)[candidates]
        order = torch.argsort(parent, descending=True, stable=True)
        order = order[torch.argsort(value[order], descending=True, stable=True)]
        order = order[torch.argsort(source[order], stable=True)]
        by_source = Offsets.of_lengths(torch.bincount(source, minlength=sources.count))
        order = order[by_source.positions < self.beam_size]
        chosen = order[torch.argsort(parent[order], stable=True)]  # by prefix; in each the best first
        source, parent = source[chosen], parent[chosen]
        picked = candidates[chosen]
        word = words.reshape(-1)[picked]
        goes_on = (word != self.end_id) | ~ended.reshape(-1)[parent]
        alive = torch.zeros(sources.count, dtype=torch.bool, device=scores.device).index_put_((source[goes_on],), torch.ones((), dtype=torch.bool))
        left = alive[source]
        parent, picked, word = parent[left], picked[left], word[left]
        beam_offsets = Offsets([sources.last, Offsets.of_lengths(torch.bincount(parent, minlength=count)).last])
        return word.unsqueeze(1), total.reshape(-1)[picked].unsqueeze(1), parent.int(), beam_offsets, beam_offsets

    samples = [
        sample(
            pre_ids=i64(4, 1, data=[1, 0, 3, 4]), pre_scores=f32(4, 1), ids=i64(4, 3, data=[4, 2, 5, 2, 1, 3, 3, 5, 2, 8, 2, 1]),
            scores=f32(4, 3, distinct=True).ragged([2, 2], [1, 1, 1, 1]), beam_size=2, end_id=0,
        ),
        sample(
            pre_ids=i64(5, 1, data=[1, 0, 0, 0, 4]), pre_scores=f32(5, 1), scores=f32(5, 3, low=0.1, high=1.0, distinct=True).ragged([1, 2, 0, 2]),
            beam_size=4, end_id=0, is_accumulated=False,
        ),
        sample(pre_ids=i64(3, 1).ragged([1, 1], [2, 1]), pre_scores=f64(3, 1), scores=f64(3, 2, distinct=True), beam_size=1, end_id=9, level=1),
        sample(pre_ids=i64(3), pre_scores=f32(3), scores=f32(3, 2, distinct=True), beam_size=7, end_id=9),
        sample(pre_ids=i64(0, 1), pre_scores=f32(0, 1), ids=i64(0, 2), scores=f32(0, 2).ragged([0, 0], []), beam_size=2, end_id=0),
        sample(pre_ids=i64(2, 1), pre_scores=f32(2, 1), scores=f32(2, 0).ragged([2], [1, 1]), beam_size=3, end_id=0),
    ]  # fmt: skip
    rejects = [
        reject(pre_ids=i64(3, 1), pre_scores=f32(4, 1), scores=f32(4, 2), beam_size=2, end_id=0, says="pre_ids must have one number for each row"),
        reject(pre_ids=i64(4, 1), pre_scores=f32(4, 2), scores=f32(4, 2), beam_size=2, end_id=0, says="pre_scores must have one number for each row"),
        reject(pre_ids=i64(), pre_scores=f32(1), scores=f32(1, 2), beam_size=2, end_id=0, says="pre_ids must have one number for each row"),
        reject(pre_ids=i64(4, 1), pre_scores=f32(4, 1), scores=f32(4), beam_size=2, end_id=0, says="scores must have 2 dims"),
        reject(pre_ids=i64(4, 1), pre_scores=f32(4, 1), scores=f32(4, 2).ragged([2, 2]), level=1, beam_size=2, end_id=0, says="level must be one of scores"),
    ]


class BeamSearchDecode(Operator):
    """The sentences of a beam search, from the results of `beam_search` in each step.

    Ids and Scores hold one element for each step, ragged in two levels: sources of prefixes, prefixes of kept continuations. Each sentence is followed back
    from the last step of its source; repeated ``end_id`` are left out. The results are ragged in two levels: sources of ``beam_size`` sentences, the one with
    the best last score first, and sentences of words. If fewer were kept, the last sentences are empty. SentenceScores has the score after each word.
    """

    type = "beam_search_decode"
    family = "structured"
    Ids = operand((INT64,), kinds=ARRAY, doc="an array of [kept, 1], ragged")
    Scores = operand((FP32, FP64), kinds=ARRAY, doc="as Ids")
    SentenceIds = result(new_offsets=True, doc="int64 [words], ragged: sources, sentences")
    SentenceScores = result(new_offsets=True, doc="[words], ragged as SentenceIds")
    beam_size = attribute(AttrType.INT, low=1)
    end_id = attribute(AttrType.INT, doc="the word at the end of a sentence")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Ids: Spec, Scores: Spec) -> Any:
        sources: Size = unknown_size("sources")
        for spec in (Ids, Scores):
            if spec.lod is not None:
                if len(spec.lod.counts) != 2:
                    fail(f"Ids and Scores must have 2 levels of sequences, sources and prefixes, not {len(spec.lod.counts)}", Ids=None, Scores=None)
                sources = own_size(spec.lod.counts[0], "sources")
        lod = new_lod("sentences", (sources, sources * self.beam_size))
        words = (unknown_size("words"),)
        return rows(INT64, words, lod), rows(Scores.dtype, words, lod)

    # No workspace can be stated: about 50 bytes are taken for each step, source and sentence. No description has the number of an array's steps (it is of one
    # element), nor the sources if elements differ in them. The words of the results do not tell either: sentences may end before the last step. The arrays are
    # counted, and the results by the symbol of their words.

    def kernel(self, Ids: TensorArray | None, Scores: TensorArray | None) -> tuple[Tensor, Tensor, Offsets, Offsets]:
        if Ids is None or Scores is None or not len(Ids) or len(Ids) != len(Scores):
            counts = " and ".join(str(len(a) if a is not None else 0) for a in (Ids, Scores))
            raise ExecutionError(f"beam_search_decode: Ids and Scores must have one element for each step; they have {counts}")
        followed: Tensor | None = None
        words: list[Tensor] = []
        values: list[Tensor] = []
        masks: list[Tensor] = []
        _, last = Ids.read(len(Ids) - 1)
        sentences = self.beam_size * (len(last.levels[0]) - 1 if last is not None else 1)
        require_room(self.type, 50 * len(Ids) * sentences + 8 * self.beam_size, f"following {sentences:,} sentences back over {len(Ids):,} steps")
        slots = torch.arange(self.beam_size, device=this_run.device)
        for step in range(len(Ids) - 1, -1, -1):
            ids, sequences = Ids.read(step)
            scores, _ = Scores.read(step)
            ids, scores = ids.reshape(-1), scores.reshape(-1)
            if sequences is None or len(sequences.levels) != 2 or sequences.rows != len(ids) or len(scores) != len(ids):
                raise ExecutionError(
                    f"beam_search_decode: Ids and Scores must be ragged in 2 levels at every step; at step {step} Ids is {list(ids.shape)} "
                    f"with {sequences}, Scores {list(scores.shape)}"
                )
            sources = sequences.in_rows(0)
            if followed is None:
                slots = slots.to(ids.device)
                followed = torch.full((sources.count, self.beam_size), -1, dtype=torch.int64, device=ids.device)
            if sources.count != len(followed):
                raise ExecutionError(f"beam_search_decode: all steps must have as many sources; step {step} has {sources.count}, the next one {len(followed)}")
            waiting = followed[:, 0] < 0  # sources not followed yet begin here
            if sources.longest > self.beam_size and bool((sources.lengths[waiting] > self.beam_size).any()):
                raise ExecutionError(f"beam_search_decode: a source keeps at most beam_size = {self.beam_size} rows; at step {step} one has {sources.longest}")
            begins = waiting.unsqueeze(1) & (slots < sources.lengths.unsqueeze(1))
            followed = torch.where(begins, sources.last[:-1].unsqueeze(1) + slots, followed)
            if followed.numel() and int(followed.max()) >= len(ids):
                raise ExecutionError(f"beam_search_decode: step {step + 1} has more prefixes than step {step} kept, {len(ids)}")
            valid = followed >= 0
            index = followed.clamp(min=0)
            word = ids[index] if len(ids) else index
            words.append(word)
            values.append(scores[index] if len(ids) else torch.zeros(index.shape, dtype=scores.dtype, device=scores.device))
            masks.append(valid & (begins | (word != self.end_id)))
            if step:
                followed = torch.where(valid, sequences.segments[index] if len(ids) else index, followed)
        return self._sentences(torch.stack(words[::-1], -1), torch.stack(values[::-1], -1), torch.stack(masks[::-1], -1))

    samples = [
        sample(
            Ids=[
                i64(4, 1, data=[0, 0, 0, 0]).ragged([2, 2], [1, 1, 1, 1]),
                i64(4, 1, data=[3, 1, 5, 4]).ragged([2, 2], [0, 2, 1, 1]),
                i64(3, 1, data=[7, 8, 9]).ragged([2, 2], [0, 1, 2, 0]),
            ],
            Scores=[f32(4, 1).ragged([2, 2], [1, 1, 1, 1]), f32(4, 1).ragged([2, 2], [0, 2, 1, 1]), f32(3, 1).ragged([2, 2], [0, 1, 2, 0])],
            beam_size=2,
            end_id=1,
        ),
        sample(Ids=[i64(3).ragged([1, 0, 1], [1, 2])], Scores=[f64(3).ragged([1, 0, 1], [1, 2])], beam_size=4, end_id=9),
        sample(Ids=[i64(0, 1).ragged([], [])], Scores=[f32(0, 1).ragged([], [])], beam_size=2, end_id=1),
    ]

    def _sentences(self, words: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Offsets, Offsets]:
        """Return the best first, of [sources, beam_size, steps] words, scores, and the mask of the sentence."""
        steps = words.shape[-1]
        last = (torch.arange(steps, device=words.device) * mask).amax(-1, keepdim=True)
        best = values.gather(-1, last).squeeze(-1).masked_fill(~mask.any(-1), -torch.inf)
        order = torch.argsort(best, dim=1, descending=True, stable=True)
        index = order.unsqueeze(-1).expand_as(words)
        words, values, mask = words.gather(1, index), values.gather(1, index), mask.gather(1, index)
        sizes = torch.full((words.shape[0],), self.beam_size, dtype=torch.int64, device=words.device)
        sentence_offsets = Offsets.of_lengths(sizes, mask.sum(-1).reshape(-1))
        return words[mask], values[mask], sentence_offsets, sentence_offsets
