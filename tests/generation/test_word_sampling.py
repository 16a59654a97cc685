"""Words chosen in machine code beside torch's choice of them, as reference: for any settings, scores and threads."""

from __future__ import annotations

import json
import math
from typing import Any

import decoders
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.some import examples

import foreshape as fs
from foreshape.apps.generation import writing
from foreshape.apps.generation.text_settings import TextSettings
from foreshape.apps.generation.writing import Writing
from foreshape.machine.kernels import word_loop
from foreshape.machine.kernels.word_sampling import Sampling, sampled_words

pytestmark = pytest.mark.skipif(not word_loop.can_compile(), reason="numba is not installed")
TOLD = json.loads(decoders.FILE.read_text())
VOCABULARIES = [1, 2, 5, 33, 64, 65, 200, 3000]
numbers = st.floats(0, 1)
draws = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 1e-300, 0.1, 0.8, 1.0, 3.0, 1000.0])},
    optional={"top_k": st.sampled_from([1, 2, 3, 7, 50, 4000]), "top_p": st.sampled_from([1e-9, 0.3, 0.5, 0.9, 0.999]), "min_p": numbers},
)


def changes(vocabulary: int) -> st.SearchStrategy[dict[str, Any]]:
    words = st.integers(0, vocabulary - 1)
    biases = st.floats(-30, 30, width=32) | st.just(-math.inf)
    return st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.floats(0.5, 2),
            "frequency_penalty": st.floats(-2, 2),
            "presence_penalty": st.floats(-2, 2),
            "logit_bias": st.dictionaries(words, biases, max_size=4),
            "bias": st.lists(st.tuples(st.lists(words, min_size=1, max_size=2), biases), max_size=3),
            "no_repeat_ngram_size": st.integers(0, 3),
            "min_new_tokens": st.integers(0, 5),
            "ends": st.lists(words, max_size=2),
            "suppress_tokens": st.lists(st.integers(-1, vocabulary), max_size=3),
            "begin_suppress_tokens": st.lists(words, max_size=2),
            "exponential_decay_length_penalty": st.just((1, 1.1)),
            "forced_bos_token_id": words,
            "remove_invalid_values": st.booleans(),
            "renormalize_logits": st.booleans(),
            "typical_p": st.just(0.6),
        },
    )


def sampled(scores: torch.Tensor, texts: list[Writing], threads: int) -> tuple[list[int], list[int | str]]:
    """Return the words in machine code, and torch's words or errors, with the same random numbers."""
    found = sampled_words(scores, [text.sampling(scores.shape[1]) for text in texts], threads)
    expected: list[int | str] = []
    for row, text in zip(scores, texts, strict=True):
        try:
            expected.append(text._chosen(row, None))
        except fs.ExecutionError as error:
            expected.append(str(error))
    return found, expected


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_words_are_torchs_whatever_the_settings(data: st.DataObject) -> None:
    vocabulary, count = data.draw(st.sampled_from(VOCABULARIES)), data.draw(st.integers(1, 5))
    random = np.random.RandomState(data.draw(st.integers(0, 1 << 31)))
    scores = random.randn(count, vocabulary) * data.draw(st.sampled_from([1e-20, 0.01, 1.0, 30.0]))
    if data.draw(st.booleans()):  # many equal scores, zeros with a sign among them
        scores = scores.round()
    for value in data.draw(st.lists(st.sampled_from([math.inf, -math.inf, math.nan, -math.nan, -0.0]), max_size=2)):
        scores[random.randint(count), random.randint(vocabulary)] = value
    texts: list[Writing] = []
    for _ in range(count):
        chosen = TextSettings(**data.draw(draws), **data.draw(changes(vocabulary)), seed=random.randint(1 << 31))
        text = Writing(random.randint(0, vocabulary, random.randint(1, 9)).tolist(), 20, chosen, (), None)
        text.words = random.randint(0, vocabulary, random.randint(0, 9)).tolist()
        texts.append(text)
    tensor = torch.from_numpy(scores.astype(np.float32))
    before = tensor.clone().view(torch.int32)
    found, expected = sampled(tensor, texts, data.draw(st.integers(1, 3)))
    assert torch.equal(tensor.view(torch.int32), before)
    for word, text in zip(found, expected, strict=True):
        assert word in (text, -1)


@given(draws, st.sampled_from(VOCABULARIES), st.integers(0, 1 << 31))
@settings(max_examples=examples(100), deadline=None)
def test_scores_apart_from_each_other_leave_no_word_to_torch(choices: dict[str, Any], vocabulary: int, seed: int) -> None:
    random = np.random.RandomState(seed)
    scores = torch.from_numpy(np.stack([random.permutation(vocabulary) for _ in range(3)]).astype(np.float32)) * (8 / vocabulary)
    if 0 < choices.get("min_p", 0) < 1:
        choices = {**choices, "min_p": 0.9 * choices["min_p"] + 0.0123}
    found, expected = sampled(scores, [Writing([0], 9, TextSettings(**choices, seed=seed + at), (), None) for at in range(3)], 2)
    assert found == expected


def test_draws_over_a_large_vocabulary_are_torchs() -> None:
    random = np.random.RandomState(0)
    for choices in ({}, {"top_k": 50}, {"top_p": 0.9}, {"top_k": 900, "top_p": 0.6, "min_p": 1e-3}, {"min_p": 0.05}):
        scores = torch.from_numpy(random.randn(4, 50001).astype("float32"))
        texts = [Writing([0], 9, TextSettings(temperature=0.8, seed=at, **choices), (), None) for at in range(4)]
        for _ in range(5):
            found, expected = sampled(scores, texts, 2)
            assert found == expected


def test_equal_scores_at_a_border_are_left_to_torch() -> None:
    """Torch's ``topk`` has equal scores in an order of its own, and a sum at a border may be rounded to either side."""
    scores = torch.tensor([[1.0, 0.0, 1.0, 0.0, 1.0, 1.0]])
    for choices in ({"top_k": 2}, {"top_k": 4}, {"top_k": 5, "top_p": 0.5}, {"top_p": 0.5 / (1 + 1 / (2 * math.e))}):
        found, _ = sampled(scores, [Writing([0], 9, TextSettings(temperature=1.0, seed=0, **choices), (), None)], 1)
        assert found == [-1], choices
    found, expected = sampled(scores, [Writing([0], 9, TextSettings(temperature=1.0, seed=0, top_p=0.6), (), None)], 1)
    assert found == expected
    for top_p in (1.0, 0.95):
        for number, word in ((0.499, 0), (0.5 - 1e-16, -1), (0.5, -1), (0.501, 1)):
            assert sampled_words(torch.zeros(1, 2), [Sampling(1.0, 0, top_p, 0.0, number, ())], 1) == [word]


def test_of_equal_scores_the_first_word_is_the_best() -> None:
    assert sampled_words(torch.tensor([[-1.0, -0.0, 0.0, -0.0]]), [Sampling(0.0, 0, 1.0, 0.0, 0.0, ())], 1) == [1]
    assert sampled_words(torch.tensor([[0.0] * 70 + [2.0] * 90]), [Sampling(0.0, 0, 1.0, 0.0, 0.0, ())], 1) == [70]


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"temperature": 1.3},
        {"temperature": 0.9, "top_k": 8, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 1.0, "top_p": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.5, "logit_bias": {9: 2.0}},
        {"no_repeat_ngram_size": 2, "frequency_penalty": 0.3},
    ],
)
def test_texts_are_torchs_and_no_words_are_its_choice(choices: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    state = {name: decoders.value_of(name, dims) for name, dims in TOLD["Qwen 3"]["state"].items()}
    prompts = [[9, 10, 11], [30], [8, 9, 8, 9, 8, 9], [12, 44]]

    def texts(threads: int, prompts: list[list[int]], seed: int) -> list[list[int]]:
        model = fs.language_model(TOLD["Qwen 3"]["config"], state, users=5, context=40, threads=threads)
        return fs.generate(model, prompts, 20, seed=seed, **choices)

    with monkeypatch.context() as patch:
        sampling = Writing.sampling
        patch.setattr(Writing, "sampling", lambda self, size: sampling(self, size) and None)
        expected = texts(1, prompts, 3)
    monkeypatch.setattr(writing, "draw", None)
    monkeypatch.setattr(writing, "best_of", None)
    assert texts(1, prompts, 3) == texts(3, prompts, 3) == expected
    assert [texts(2, [prompt], 3 + at)[0] for at, prompt in enumerate(prompts)] == expected
