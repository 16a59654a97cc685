"""Decoding: the words of beams, and the best path through scores."""

from __future__ import annotations

from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable


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
