"""Beam search: a step of it, and the sentences in the end."""

from __future__ import annotations

from typing import Any

from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable


def beam_search(
    pre_ids: Variable, pre_scores: Variable, ids: Variable | None, scores: Variable, beam_size: int, end_id: int, level: int = 0, *,
    is_accumulated: bool = True, return_parent_idx: bool = False, name: str | None = None,
) -> Any:  # fmt: skip
    """Take one step of a beam search: keep the ``beam_size`` best continuations of all prefixes of each source.

    Args:
        pre_ids, pre_scores: the last word of each prefix (int64) and its score, ``[prefixes, 1]``.
        ids: the candidate words of each prefix (int64), ``[prefixes, candidates]``, as from top-k; None for the column numbers of scores.
        scores: ragged as ids: the score of the prefix with each word; or, without ``is_accumulated``, the probability of the word.
        beam_size: the number of continuations kept for each source.
        end_id: the last word of sentences: such a prefix is kept as it is while among the best.
        level: the level of the offsets of scores for the sources.
        is_accumulated: True if scores include the prefixes'.
        return_parent_idx: also return the prefix of each row (int32 ``[kept]``).
        name: the prefix of the results' names.

    Returns:
        (selected_ids, selected_scores[, parent_idx]), ``[kept, 1]``, ragged in two levels: sources of prefixes, prefixes of kept continuations. A
        source with only ended sentences left keeps nothing any more.

    Raises:
        ShapeError: mismatched operands, or a missing level of scores.
    """
    slots = {"pre_ids": pre_ids, "pre_scores": pre_scores, "scores": scores} | ({} if ids is None else {"ids": ids})
    attrs = {"level": level, "beam_size": beam_size, "end_id": end_id, "is_accumulated": is_accumulated}
    block = current_block()
    prefix = block.program.layer_name("beam_search", name)
    op = block.append_op("beam_search", slots, {"parent_idx": f"{prefix}.parent_idx"}, attrs, prefix=prefix)
    selected = tuple(block.vars[op.outputs[slot][0]] for slot in ("selected_ids", "selected_scores", "parent_idx"))
    return selected if return_parent_idx else selected[:2]


def beam_search_decode(ids: Variable, scores: Variable, beam_size: int, end_id: int, name: str | None = None) -> tuple[Variable, Variable]:
    """Return the sentences of a beam search, from the arrays of the results of `beam_search` in each step.

    Args:
        ids, scores: arrays of selected_ids and selected_scores, an element for each step.
        beam_size: as for `beam_search`.
        end_id: the last word of sentences.
        name: the prefix of the results' names.

    Returns:
        (words, scores), ``[words]``, ragged in two levels: sources of ``beam_size`` sentences, the best first, and sentences of words.
    """
    return current_block().apply("beam_search_decode", {"Ids": ids, "Scores": scores}, {"beam_size": beam_size, "end_id": end_id}, name)


def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """Return the sentences of a beam search whose beams are dense: ``[steps, batch, beam]``, each followed back from its place in the last step.

    Args:
        ids: the kept words of each step (int32, int64), ``[steps, batch, beam]``.
        parents: as ids: the place of each word's prefix in the step before.
    """
    return current_block().apply("gather_tree", {"Ids": ids, "Parents": parents})


def viterbi_decode(scores: Variable, transition: Variable, length: Variable, include_bos_eos_tag: bool = True) -> tuple[Variable, Variable]:
    """Return the best sequence of tags of each padded sequence.

    Args:
        scores: of the tags at each step, ``[batch, time, tags]``.
        transition: from the tag of a row to the tag of a column, ``[tags, tags]``.
        length: int64 ``[batch]``.
        include_bos_eos_tag: the last tag stands before each sequence, the last but one after it.

    Returns:
        The best sums, ``[batch]``, and the tags, int64 ``[batch, longest]``, 0 after a sequence's end.
    """
    inputs = {"Input": scores, "Transition": transition, "Length": length}
    return current_block().apply("viterbi_decode", inputs, {"include_bos_eos_tag": include_bos_eos_tag})
