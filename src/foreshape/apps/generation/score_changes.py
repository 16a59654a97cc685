"""Changes of the scores of a text's next word before it is chosen, in the order and by the numbers of transformers' ``generate``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy

from foreshape.apps.generation.text_settings import ScoreProcessor, TextSettings
from foreshape.core.values.conversion import to_tensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError

_NONE = -math.inf


def changed_scores(scores: Tensor, settings: TextSettings, prompt: list[int], words: list[int], limit: int) -> Tensor:
    """Return changed scores.

    Args:
        scores: ``[vocabulary]``; it is left as it is.
        prompt, words: of the text, and ``limit`` words it may have.
    """
    s, text, count = settings, prompt + words, len(words)
    scores = scores.clone()
    for word, number in s.logit_bias:
        scores[word] += number
    for sequence, number in s.bias:
        beginning = list(sequence[:-1])
        if not beginning or text[-len(beginning) :] == beginning:
            scores[sequence[-1]] += number
    if s.repetition_penalty != 1.0:
        used = torch.tensor(sorted({*text}))
        old = scores[used]
        scores[used] = torch.where(old < 0, old * s.repetition_penalty, old / s.repetition_penalty)
    if s.frequency_penalty or s.presence_penalty:
        for word, times in Counter(words).items():
            scores[word] -= s.frequency_penalty * times + s.presence_penalty
    if 0 < s.no_repeat_ngram_size <= len(text):
        _forbid(scores, _repeating(text, s.no_repeat_ngram_size))
    if count < s.min_new_tokens if s.min_new_tokens else len(text) < s.min_length:
        _forbid(scores, s.ends)
    if s.forced_bos_token_id is not None and len(text) == 1:
        _force(scores, [s.forced_bos_token_id])
    if s.forced_eos_token_id and count == limit - 1:
        _force(scores, s.forced_eos_token_id)
    if s.remove_invalid_values:
        scores.nan_to_num_(0.0)
    if s.exponential_decay_length_penalty is not None:
        start, factor = s.exponential_decay_length_penalty
        if count > start and (ends := [e for e in s.ends if 0 <= e < scores.shape[0]]):
            old = scores[ends]
            growth = math.expm1(min((count - start) * math.log(factor), 80.0))
            scores[ends] = old + torch.where(old.isfinite(), old.abs() * growth, 0.0)
    _forbid(scores, s.suppress_tokens)
    if count == int(s.forced_bos_token_id is not None and len(prompt) == 1):
        _forbid(scores, s.begin_suppress_tokens)
    if s.score_processor is not None:
        scores = _processed(scores, s.score_processor, text)
    return scores.log_softmax(-1) if s.renormalize_logits and not s.temperature else scores


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


def _forbid(scores: Tensor, words: Iterable[int]) -> None:
    places = [word for word in words if 0 <= word < scores.shape[0]]
    if places:
        scores[places] = _NONE


def _force(scores: Tensor, words: Iterable[int]) -> None:
    scores.fill_(_NONE)
    scores[list(words)] = 0.0


def _repeating(text: list[int], size: int) -> set[int]:
    """Return the words at the end of a second sequence of ``size`` words in the text, if written next."""
    tail = text[len(text) - size + 1 :]
    return {text[start + size - 1] for start in range(len(text) - size + 1) if text[start : start + size - 1] == tail}
