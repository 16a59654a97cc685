"""Choices of next words as tables of numbers, for the instruction `SAMPLING` of `foreshape.machine.kernels.word_loop`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels import word_loop
from foreshape.machine.kernels.loop_team import run_together
from foreshape.machine.kernels.sampling_loop import CHANGE, ROW, UNDECIDED, sampling_scratch


class ScoreChange(NamedTuple):
    """A change of the scores of some words.

    Attributes:
        kind: `ADD`, `REPEAT` or `SET` of `foreshape.machine.kernels.sampling_loop`.
        words: each once, in the vocabulary.
        numbers: one for each word, or one for all.
    """

    kind: int
    words: Sequence[int]
    numbers: float | Sequence[float]


class Sampling(NamedTuple):
    """The sampling of one text's next word.

    Attributes:
        temperature, top_k, top_p, min_p: as of `TextSettings`.
        number: the random number of the draw, in [0, 1).
        changes: of the scores, in their order.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    number: float
    changes: Sequence[ScoreChange]


_NO_SAMPLING: Final = (-1.0, 0, 1.0, 0.0, 0.0, 0, 0)


class SamplingTable:
    """The memory of an instruction: the numbers of samplings, the words, and scratch.

    Args:
        texts: the most texts.
        vocabulary: the number of scores of each.
        threads: the most threads.
    """

    def __init__(self, texts: int, vocabulary: int, threads: int) -> None:
        self._rows, self._words = np.zeros((texts, ROW)), np.zeros(texts, np.int64)
        self._scratch = np.empty((threads, sampling_scratch(vocabulary)), np.float32)
        self._changes: Any = None
        self._vocabulary = vocabulary
        self._addresses = self._rows.ctypes.data, self._words.ctypes.data, self._scratch.ctypes.data

    def write(self, instruction: Any, scores: int, samplings: Sequence[Sampling | None]) -> None:
        """Write an instruction.

        Args:
            instruction: int64 ``[WIDTH]``.
            scores: the address of fp32 ``[texts, vocabulary]``.
            samplings: of the texts; None leaves a word undecided.
        """
        rows: list[tuple[float, ...]] = []
        count = 0
        for sampling in samplings:
            first, count = count, count + (0 if sampling is None else sum(len(change.words) for change in sampling.changes))
            rows.append(_NO_SAMPLING if sampling is None else (*sampling[:5], first, count))
        self._rows[: len(rows)] = rows
        changes = 0
        if count:
            self._changes = np.empty((count, CHANGE))
            changes, index = self._changes.ctypes.data, 0
            for change in (change for sampling in samplings if sampling is not None for change in sampling.changes):
                part = self._changes[index : index + len(change.words)]
                part[:, 0], part[:, 1], part[:, 2] = change.words, change.kind, change.numbers
                index += len(change.words)
        row, word, scratch = self._addresses
        begin = 2 + word_loop.OPERANDS
        instruction[:6] = word_loop.SAMPLING, word_loop.BEHIND_BARRIER + word_loop.IN_PARTS, scores, row, word, changes
        instruction[begin : begin + 4] = len(rows), self._vocabulary, self._scratch.shape[1], scratch

    def words(self, texts: int) -> list[int]:
        """Return the words of so many texts, as the instruction leaves them: `UNDECIDED` for ones left to torch."""
        return self._words[:texts].tolist()


def sampled_words(scores: Tensor, samplings: Sequence[Sampling | None], threads: int) -> list[int]:
    """Return the words chosen from scores ``[texts, vocabulary]``; `UNDECIDED` for ones left to torch, by their sampling or by the scores.

    Args:
        scores: of any type and device; ones other than fp32 on the host, lying contiguously, leave all words to torch.
        samplings: of each text.
        threads: the most threads.
    """
    is_readable = scores.is_cpu and scores.dtype == torch.float32 and scores.is_contiguous()
    if not (is_readable and word_loop.can_compile() and any(sampling is not None for sampling in samplings)):
        return [UNDECIDED] * len(samplings)
    table = SamplingTable(len(samplings), scores.shape[1], threads)
    instruction: Any = np.zeros((1, word_loop.WIDTH), np.int64)
    table.write(instruction[0], scores.data_ptr(), samplings)
    run_together(instruction, np.zeros((1, word_loop.NUMBERS)), 1, threads)
    return table.words(len(samplings))
