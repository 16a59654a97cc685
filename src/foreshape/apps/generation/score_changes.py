"""Changes of the scores of a text's next word before it is chosen, in the order and by the numbers of transformers' ``generate``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy

from foreshape.apps.generation.text_settings import ScoreProcessor, TextSettings
from foreshape.core.values.conversion import to_tensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.machine.kernels.sampling_loop import ADD, REPEAT, SET
from foreshape.machine.kernels.word_sampling import Sampling, ScoreChange

_NONE = -math.inf


FORCE, FINITE, GROW = -1, -2, -3
"""Kinds of `ScoreChange` unknown to machine code: some words alone are left, with a score of 0; scores without a finite value get one; a finite score grows
by its magnitude times a number."""


def score_changes(s: TextSettings, prompt: list[int], words: list[int], limit: int, size: int) -> Iterator[ScoreChange]:
    """Yield the changes of a text's scores by its settings, in their order; but for its ``score_processor``.

    Args:
        s: the settings.
        prompt, words: of the text, and ``limit`` words it may have.
        size: of the vocabulary.
    """
    text, count = prompt + words, len(words)

    def inside(words: Iterable[int]) -> list[int]:
        return [word for word in {*words} if 0 <= word < size]

    for word, number in s.logit_bias:
        yield ScoreChange(ADD, [word], number)
    for sequence, number in s.bias:
        beginning = list(sequence[:-1])
        if not beginning or text[-len(beginning) :] == beginning:
            yield ScoreChange(ADD, sequence[-1:], number)
    if s.repetition_penalty != 1.0:
        yield ScoreChange(REPEAT, [*{*text}], s.repetition_penalty)
    if s.frequency_penalty or s.presence_penalty:
        times = Counter(words)
        yield ScoreChange(ADD, [*times], [-(s.frequency_penalty * number + s.presence_penalty) for number in times.values()])
    if 0 < s.no_repeat_ngram_size <= len(text):
        yield ScoreChange(SET, inside(_repeating(text, s.no_repeat_ngram_size)), _NONE)
    if count < s.min_new_tokens if s.min_new_tokens else len(text) < s.min_length:
        yield ScoreChange(SET, inside(s.ends), _NONE)
    if s.forced_bos_token_id is not None and len(text) == 1:
        yield ScoreChange(FORCE, [s.forced_bos_token_id], 0.0)
    if s.forced_eos_token_id and count == limit - 1:
        yield ScoreChange(FORCE, s.forced_eos_token_id, 0.0)
    if s.remove_invalid_values:
        yield ScoreChange(FINITE, (), 0.0)
    if s.exponential_decay_length_penalty is not None:
        start, factor = s.exponential_decay_length_penalty
        if count > start:
            yield ScoreChange(GROW, inside(s.ends), math.expm1(min((count - start) * math.log(factor), 80.0)))
    yield ScoreChange(SET, inside(s.suppress_tokens), _NONE)
    if count == int(s.forced_bos_token_id is not None and len(prompt) == 1):
        yield ScoreChange(SET, inside(s.begin_suppress_tokens), _NONE)


def changed_scores(scores: Tensor, settings: TextSettings, prompt: list[int], words: list[int], limit: int) -> Tensor:
    """Return changed scores.

    Args:
        scores: ``[vocabulary]``; it is left as it is.
        prompt, words: of the text, and ``limit`` words it may have.
    """
    scores = scores.clone()
    for change in score_changes(settings, prompt, words, limit, scores.shape[0]):
        _change(scores, change)
    if settings.score_processor is not None:
        scores = _processed(scores, settings.score_processor, prompt + words)
    return scores.log_softmax(-1) if settings.renormalize_logits and not settings.temperature else scores


def sampling_of(settings: TextSettings) -> Sampling | None:
    """Return the sampling by settings in machine code, without its random number and changes; None for settings unknown there."""
    s = settings
    drawn_otherwise = s.temperature and (s.typical_p < 1.0 or s.epsilon_cutoff or s.eta_cutoff)
    if s.score_processor is not None or drawn_otherwise or (s.renormalize_logits and not s.temperature):
        return None
    return Sampling(s.temperature, s.top_k, s.top_p, s.min_p, 0.0, ())


def _change(scores: Tensor, change: ScoreChange) -> None:
    words = list(change.words)
    if change.kind == FINITE:
        scores.nan_to_num_(0.0)
    elif change.kind == FORCE:
        scores.fill_(_NONE)
    if not words:
        return
    wide = torch.promote_types(scores.dtype, torch.float32)
    old, number = scores[words].to(wide), torch.tensor(change.numbers, dtype=wide, device=scores.device)
    if change.kind == ADD:
        new = old + number
    elif change.kind == REPEAT:
        new = torch.where(old < 0, old * number, old / number)
    elif change.kind == GROW:
        new = old + torch.where(old.isfinite(), old.abs() * number, 0.0)
    else:
        new = number
    scores[words] = new.to(scores.dtype)


def _processed(scores: Tensor, processor: ScoreProcessor, text: list[int]) -> Tensor:
    """Return the scores of a user's function. Raises `ExecutionError` if they are none."""
    name, size = "the result of score_processor", scores.shape[0]
    result: Any = processor(text, scores.numpy(force=True).astype("float32"))
    array = result.numpy(force=True) if isinstance(result, Tensor) else numpy.asarray(result)
    if array.shape != (size,) or array.dtype.kind not in "fiu":
        raise ExecutionError.must(name, f"an array [{size}] of numbers, one for each word", f"{list(array.shape)} of {array.dtype}")
    array = array.astype("float32")
    for fault, places in (("NaN", numpy.isnan(array)), ("inf", array == math.inf)):
        if places.any():
            raise ExecutionError.must(name, "a number or -inf for each word", f"{fault} for word {int(places.argmax())}")
    if not numpy.isfinite(array).any():
        raise ExecutionError.must(name, "a number above -inf for one word at least", "-inf for all")
    return to_tensor(array)


def _repeating(text: list[int], size: int) -> set[int]:
    """Return the words at the end of a second sequence of ``size`` words in the text, if written next."""
    tail = text[len(text) - size + 1 :]
    return {text[start + size - 1] for start in range(len(text) - size + 1) if text[start : start + size - 1] == tail}
