"""The perplexity of texts by a language model: the numbers of transformers, windows longer than the context, and packed weights beside fp32."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import perplexities as told
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.apps.generation.perplexity import WordLosses, windows_of

KNOWN = json.loads(told.FILE.read_text())


@pytest.fixture(scope="module")
def llama() -> fs.LanguageModel:
    return fs.language_model(told.DATA / "llama", users=3)


@pytest.mark.parametrize("kind", told.KINDS)
def test_losses_are_those_of_transformers(kind: str) -> None:
    for users in (1, 4):
        model = fs.language_model(told.DATA / kind, users=users)
        for stride in told.STRIDES:
            figures = fs.evaluate(model, told.texts(), stride=stride)
            assert figures["words"] == KNOWN[kind][str(stride)]["words"] == sum(len(t) - 1 for t in told.texts())
            assert figures["loss"] == pytest.approx(KNOWN[kind][str(stride)]["loss"], abs=2e-6)
            assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
        assert fs.evaluate(model, told.texts()) == fs.evaluate(model, told.texts(), stride=32)  # half of the context


def test_few_rows_in_a_run_give_the_same(llama: fs.LanguageModel) -> None:
    whole = fs.evaluate(llama, told.texts())
    losses = WordLosses(llama)
    windows = [w for text in told.texts() for w in windows_of(text, 64, 32)]
    for rows in (1, 7, 100):
        losses._rows = rows
        parts = [losses.sums(windows[k : k + 3]) for k in range(0, len(windows), 3)]
        assert sum(p.words for p in parts) == whole["words"] and sum(p.loss for p in parts) / whole["words"] == pytest.approx(whole["loss"], abs=1e-6)
    assert all(float(tensor.abs().max()) == 0.0 for tensor in llama._kept)


def test_a_memory_limit_makes_runs_smaller(llama: fs.LanguageModel) -> None:
    model = fs.language_model(told.DATA / "llama", users=3)
    needs = WordLosses(model).plan().peak(users=3, context=64, batch=3, rows=20)
    bounded = fs.language_model(told.DATA / "llama", users=3, memory_limit=needs)
    losses = WordLosses(bounded)
    windows = [*windows_of(told.texts()[3], 64, 32)][:3]
    assert losses.sums(windows) == pytest.approx(WordLosses(llama).sums(windows), abs=1e-3) and losses._rows < 64
    tight = fs.language_model(told.DATA / "llama", users=3, memory_limit=needs // 4)
    with pytest.raises(fs.MemoryPlanError):
        fs.evaluate(tight, told.texts())


def test_windows_predict_each_word_once() -> None:
    for length, context, stride in ((5, 8, 4), (8, 8, 4), (9, 8, 4), (30, 8, 7), (30, 8, 1), (1, 8, 3), (2, 2, 1)):
        words = list(range(length))
        predicted = []
        for window in windows_of(words, context, stride):
            assert len(window.words) <= context and window.first >= 1
            predicted += window.words[window.first :]
        assert predicted == words[1:]


def test_packed_weights_beside_fp32(llama: fs.LanguageModel) -> None:
    losses = {weights: fs.evaluate(llama.quantized(weights, 16), told.texts())["loss"] for weights in ("int8", "int4")}
    whole = fs.evaluate(llama, told.texts())["loss"]
    assert 1e-5 < abs(losses["int8"] - whole) < 0.005 < abs(losses["int4"] - whole) < 0.2


def test_what_is_refused(llama: fs.LanguageModel) -> None:
    wrong: list[tuple[Any, dict[str, Any], Any, str]] = [
        ([], {}, fs.FeedError, "no word to predict"),
        ([[3]], {}, fs.FeedError, "no word to predict"),
        ([[1, 2], []], {}, fs.FeedError, "text 1 has no words"),
        ([[1, 40]], {}, fs.FeedError, r"text 0 must be in \[0, 40\); seen 40"),
        ([[1, 2.5]], {}, fs.FeedError, "word 1 of text 0"),
        (["ab"], {}, fs.FeedError, "text 0 must be a list of words"),
        ([1, 2], {}, fs.FeedError, "text 0 must be a list of words"),
        ([[1, 2]], {"stride": 64}, fs.SchemaError, "stride must be a whole number from 1 to 63; seen 64"),
        ([[1, 2]], {"stride": 0}, fs.SchemaError, "stride must be"),
        ([[1, 2]], {"batch_size": 8}, fs.SchemaError, "a language model has its own batch_size"),
    ]
    for texts, settings, error, says in wrong:
        with pytest.raises(error, match=says):
            fs.evaluate(llama, texts, **settings)
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", ["batch", 2])
        with pytest.raises(fs.SchemaError, match="stride is of a language model's windows"):
            fs.evaluate(x, {"x": np.ones((2, 2), "float32")}, stride=3)  # type: ignore[call-overload]


def test_networks_without_scores_of_single_rows_are_refused() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        words = layer.data("words", ["rows"], "int64", lod_level=1)
        cache = layer.attention_cache(words)
        h = layer.embedding(words, [5, 4])
        scores = layer.fc(layer.sequence_pool(cache.attend(h, h, h), "max"), 5)
        scope = fs.Scope()
        fs.Executor(seed=0).run(fs.default_startup_program(), scope=scope)
    with pytest.raises(fs.SchemaError, match=r"by one layer.sequence_last_step; seen 0"):
        fs.evaluate(fs.LanguageModel(words, scores, cache, scope), [[1, 2]])


def test_a_loss_that_is_not_finite_is_an_error(llama: fs.LanguageModel) -> None:
    model = fs.language_model(told.DATA / "llama", users=2)
    name = next(v.name for v in model.program.parameters() if v.name.startswith("encoder.1"))
    model.scope.set(name, np.full([*model.program.global_block.var(name).spec.known_dims], np.nan, "float32"))
    with pytest.raises(fs.ForeshapeError, match=r"not finite|NaN"):
        fs.evaluate(model, told.texts())
