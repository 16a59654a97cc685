"""Logarithmic probabilities of written words, OpenAI's penalties, biases of words and a user's own changes of scores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs

DATA = Path(__file__).parent / "data"
PROMPTS = json.loads((DATA / "llama" / "texts.json").read_text())["prompts"][:3]


@pytest.fixture(scope="module")
def llama() -> fs.LanguageModel:
    return fs.language_model(DATA / "llama", users=4, generation_config={})


def logs(model: fs.LanguageModel, text: list[int]) -> np.ndarray:
    """The logarithmic probabilities behind a text, computed anew from its beginning."""
    scores = model.run([text], [0], [0])[0].double().log_softmax(-1).numpy()
    model.clear_rows(0, len(text))
    return scores


@pytest.mark.parametrize("choices", [{}, {"temperature": 0.7, "top_k": 4, "seed": 1}, {"repetition_penalty": 1.5, "frequency_penalty": 0.5}])
def test_probabilities_are_those_of_the_networks_own_scores(llama: fs.LanguageModel, choices: dict[str, Any]) -> None:
    """As transformers' ``output_logits`` and vLLM's ``raw_logprobs``: before penalties and the temperature."""
    texts = fs.generate(llama, PROMPTS, 6, logprobs=3, **choices)
    assert [[c.word for c in text] for text in texts] == fs.generate(llama, PROMPTS, 6, **choices)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        for place, choice in enumerate(text):
            true = logs(llama, prompt + [c.word for c in text[:place]])
            assert abs(choice.logprob - true[choice.word]) < 1e-5
            order = np.argsort(-true)[:3]
            assert [word for word, _ in choice.best] == order.tolist()
            np.testing.assert_allclose([number for _, number in choice.best], true[order], atol=1e-5)


def test_a_stop_takes_its_words_probabilities_with_it(llama: fs.LanguageModel) -> None:
    (whole,) = fs.generate(llama, PROMPTS[:1], 8, logprobs=0)
    words = [c.word for c in whole]
    (cut,) = fs.generate(llama, PROMPTS[:1], 8, logprobs=0, stop=[words[3:5]])
    assert cut == whole[:3] and cut[0].best == ()
    for count, says in ((-1, "from 0 to 40"), (41, "from 0 to 40"), (1.5, "from 0 to 40")):
        with pytest.raises(fs.SchemaError, match=f"logprobs must be a whole number {says}"):
            fs.generate(llama, PROMPTS[:1], 8, logprobs=count)  # type: ignore[call-overload]
    with pytest.raises(fs.SchemaError, match="stop, on_word and logprobs"):
        fs.generate(llama, PROMPTS[:1], 8, logprobs=1, beams=2)


def test_an_echo_has_the_probabilities_of_the_prompt(llama: fs.LanguageModel) -> None:
    """Also of long prompts in parts, and beside the same prompt without an echo: they take no rows of each other without scores."""
    prompts = [[3], *PROMPTS, (PROMPTS[0] * 5)[:20], (PROMPTS[0] * 5)[:20]]
    plain = fs.generate(llama, prompts, 4, logprobs=2)
    for rows in (4096, 3):
        echoed = fs.generate(llama, prompts, 4, logprobs=2, echo=True, prompt_rows=rows)
        for prompt, text, words in zip(prompts, echoed, plain, strict=True):
            assert [c.word for c in text] == prompt + [c.word for c in words]
            assert math.isnan(text[0].logprob) and text[0].best == ()
            np.testing.assert_allclose([c.logprob for c in text[len(prompt) :]], [c.logprob for c in words], atol=1e-5)
            for place in range(1, len(prompt)):
                true = logs(llama, prompt[:place])
                assert abs(text[place].logprob - true[prompt[place]]) < 1e-5
                np.testing.assert_allclose([number for _, number in text[place].best], np.sort(true)[:-3:-1], atol=1e-5)
    assert fs.generate(llama, prompts, 4, echo=True) == [prompt + [c.word for c in words] for prompt, words in zip(prompts, plain, strict=True)]
    writer = fs.TextWriter(llama)
    assert writer.add(PROMPTS[0], echo=True).prompt_choices == []


def best_words(model: fs.LanguageModel, prompt: list[int], most: int, change: Any) -> list[int]:
    """The words with the best scores behind a change of them, one by one."""
    words: list[int] = []
    for _ in range(most):
        text = [*prompt, *words]
        scores = model.run([text], [0], [0])[0].double().numpy()
        model.clear_rows(0, len(text))
        words.append(int(np.argmax(change(scores, words))))
    return words


@pytest.mark.parametrize(("frequency", "presence"), [(0.4, 0.0), (0.0, 0.8), (-1.5, 0.3), (2.0, 2.0)])
def test_penalties_follow_the_formula_of_openai(llama: fs.LanguageModel, frequency: float, presence: float) -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, with c the counts of written words; the prompt's do not count."""

    def penalized(scores: np.ndarray, words: list[int]) -> np.ndarray:
        counts = np.bincount(words, minlength=40)
        return scores - counts * frequency - (counts > 0) * presence

    expected = [best_words(llama, prompt, 12, penalized) for prompt in PROMPTS]
    assert fs.generate(llama, PROMPTS, 12, frequency_penalty=frequency, presence_penalty=presence) == expected
    assert expected != fs.generate(llama, PROMPTS, 12)


def test_biases_are_added_to_scores(llama: fs.LanguageModel) -> None:
    bias = {3: 1.5, 24: -100.0, 9: 0.25}

    def biased(scores: np.ndarray, words: list[int]) -> np.ndarray:
        return scores + np.bincount([*bias], [*bias.values()], 40)

    assert fs.generate(llama, PROMPTS, 8, logit_bias=bias) == [best_words(llama, p, 8, biased) for p in PROMPTS]
    wrong: list[tuple[Any, str]] = [
        ({40: 1.0}, r"in \[0, 40\); seen 40"),
        ({-1: 1.0}, "a word of logit_bias must be"),
        ({1: float("nan")}, "logit_bias must be a number"),
        ([1, 2], "a number for each of some words"),
    ]
    for given, says in wrong:
        with pytest.raises(fs.SchemaError, match=says):
            fs.generate(llama, PROMPTS, 8, logit_bias=given)


def test_a_processor_sees_the_words_and_gives_the_scores(llama: fs.LanguageModel) -> None:
    heard: list[list[int]] = []

    def even(words: list[int], scores: np.ndarray) -> np.ndarray:
        heard.append(words)
        assert scores.shape == (40,) and scores.dtype == np.float32
        scores[1::2] = -np.inf
        return scores

    def evened(scores: np.ndarray, words: list[int]) -> np.ndarray:
        return np.where(np.arange(40) % 2, -np.inf, scores)

    (words,) = fs.generate(llama, PROMPTS[:1], 6, score_processor=even)
    assert words == best_words(llama, PROMPTS[0], 6, evened) and heard == [PROMPTS[0] + words[:k] for k in range(6)]
    drawn = fs.generate(llama, PROMPTS, 20, score_processor=lambda w, s: torch.from_numpy(even(w, s)), temperature=3.0, seed=0)
    assert all(word % 2 == 0 for text in drawn for word in text) and len({word for text in drawn for word in text}) > 5
    beams = fs.generate(llama, PROMPTS, 6, score_processor=even, beams=3)
    assert all(word % 2 == 0 for text in beams for word in text)
    pressed = fs.generate(llama, PROMPTS[:1], 4, score_processor=lambda w, s: np.where(np.arange(40) == len(w), 50.0, s), frequency_penalty=1.0)
    assert pressed == [[len(PROMPTS[0]) + k for k in range(4)]]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (lambda s: None, r"must be an array \[40\] of numbers, one for each word; seen \[\] of object"),
        (lambda s: s[:-1], r"seen \[39\] of float32"),
        (lambda s: s[None], r"seen \[1, 40\]"),
        (lambda s: s > 0, "seen .40. of bool"),
        (lambda s: np.where(np.arange(40) == 3, np.nan, s), "seen NaN for word 3"),
        (lambda s: np.where(np.arange(40) == 4, np.inf, s), "seen inf for word 4"),
        (lambda s: s - np.inf, "-inf for all"),
    ],
)
def test_results_of_a_processor_that_are_refused(llama: fs.LanguageModel, result: Any, says: str) -> None:
    for choices in ({}, {"temperature": 1.0}, {"beams": 2}):
        with pytest.raises(fs.ExecutionError, match=says) as raised:
            fs.generate(llama, PROMPTS[:2], 3, score_processor=lambda words, scores: result(scores) if words[:5] == PROMPTS[1][:5] else scores, **choices)
        assert raised.value.__notes__ == ["in the text of prompt 1"] and "score_processor" in str(raised.value)
    with pytest.raises(fs.SchemaError, match="score_processor must be a function"):
        fs.generate(llama, PROMPTS, 3, score_processor=3)  # type: ignore[arg-type]
