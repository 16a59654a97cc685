"""The scores behind all words of a prompt, in place of those behind the last one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from foreshape.apps.generation.cached_model import LanguageModel
from foreshape.apps.generation.choice import WordChoice, word_choices
from foreshape.core.values.conversion import to_tensor
from foreshape.errors import SchemaError
from foreshape.language.operator.sequence_computations import SequenceEnd
from foreshape.language.program import Op, Program, Variable
from foreshape.language.program.needed import needed_ops
from foreshape.runtime.engine.prepared_run import repeated
from foreshape.transforms.passes.framework import Pass

_MOST_ROWS: Final = 512
_MOST_SCORES: Final = 1 << 22
"""The scores of a run, rows times words of the vocabulary; 16 MiB in fp32, beside other texts."""


class PromptScores:
    """A language model's network with the scores behind all rows, on the same cache.

    Args:
        model: is not changed.

    Attributes:
        most: the most rows of a run.

    Raises:
        SchemaError: its scores are not those of a layer of the last row of each text.
    """

    def __init__(self, model: LanguageModel) -> None:
        program, _, scores = network_of_all_rows(model)
        self._model, self.most = model, most_rows(model, _MOST_SCORES)
        model.make_cache()
        self._run = repeated(model.new_executor(), program, [scores.name], model.scope)

    def choices(self, words: Sequence[int], place: int, held: int, count: int) -> list[WordChoice]:
        """Run all words but the last, and return each following one with its logarithmic probability and so many of the best words.

        Args:
            words: the next ones of a prompt.
            place: of the text in the cache.
            held: the number of words there already.
            count: of the best words.
        """
        self._model.runs += 1
        scores = to_tensor(self._run(self._model.feed_of([words[:-1]], [place], [held]))[0])
        return word_choices(scores, words[1:], count)


def most_rows(model: LanguageModel, scores: int) -> int:
    """Return the most rows of a run with at most so many ``scores`` behind all of them."""
    return max(1, min(_MOST_ROWS, scores // model.vocabulary))


def network_of_all_rows(model: LanguageModel) -> tuple[Program, Variable, Variable]:
    """Return a language model's network with the scores behind all rows: the program, its words and its scores.

    Raises:
        SchemaError: the scores are not those of a layer of the last row of each text.
    """
    program, _ = Pass("scores of all rows", partial(_with_all_rows, words=model.words.name, scores=model.scores.name))(model.program)
    words, scores = program.global_block.var(model.words.name), program.global_block.var(model.scores.name)
    if scores.spec.known_dims != (words.spec.known_dims[0], model.vocabulary):
        raise SchemaError(f"the scores {scores.name} must be those of single rows; for all rows they are {scores.spec.text()}")
    return program, words, scores


def _with_all_rows(copy: Program, words: str, scores: str) -> bool:
    """Let the scores be those behind all rows: the choice of each text's last row goes."""
    block = copy.global_block
    ends = [op for op in needed_ops(block, (scores,)) if _is_last_row(op, block.var(words))]
    if len(ends) != 1:
        raise SchemaError(f"the scores {scores} must follow from the last row of each text, by one layer.sequence_last_step; seen {len(ends)}")
    (end,) = ends
    place = next(index for index, op in enumerate(block.ops) if op is end)
    x, out = end.operand(0), end.result()
    block.remove_op(end)
    block.append_op("assign", {"X": x}, {"Out": out}, index=place)
    return True


def _is_last_row(op: Op, words: Variable) -> bool:
    computed = op.computes(SequenceEnd)
    return computed is not None and computed.last and op.block.var(op.operand(0)).spec.known_dims[0] == words.spec.known_dims[0]
