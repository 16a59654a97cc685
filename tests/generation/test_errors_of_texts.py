"""Errors of single texts: a text that cannot be written on ends alone, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import foreshape as fs

LLAMA = Path(__file__).parent / "data" / "llama"
TOLD = json.loads((LLAMA / "texts.json").read_text())
SICK = 5
"""A word of no text of the file: its row is NaN."""


@pytest.fixture(scope="module")
def sick() -> fs.LanguageModel:
    state: dict[str, Any] = load_file(LLAMA / "model.safetensors")
    state["model.embed_tokens.weight"][SICK] = np.nan
    return fs.language_model(json.loads((LLAMA / "config.json").read_text()), state, users=3)


def written_on(writer: fs.TextWriter) -> list[Exception]:
    """Run to the end, and return the errors on the way."""
    seen: list[Exception] = []
    while writer.busy:
        try:
            writer.run()
        except (fs.ForeshapeError, ZeroDivisionError) as error:
            seen.append(error)
    return seen


@pytest.mark.quick_cases("choices1", "choices3")
@pytest.mark.parametrize("choices", [{}, {"temperature": 0.8, "seed": 1}, {"beams": 2}, {"repetition_penalty": 1.3}])
def test_scores_of_nan_end_their_text_alone(sick, choices):
    """A text of NaN ends by an error; the ones beside it, and the next ones at its place, are the known ones."""
    writer = fs.TextWriter(sick, prompt_rows=7)
    prompts, expected = TOLD["prompts"], TOLD["greedy"]
    first = writer.add(prompts[4], most=16)
    bad = [writer.add([3, SICK, *[4] * n], most=9, **choices) for n in (1, 40)]
    later = [writer.add(p, most=16) for p in prompts[:3]]
    errors = written_on(writer)
    assert [e for e in errors if not isinstance(e, fs.ExecutionError)] == [] and len(errors) == 2
    assert [w.reason for w in bad] == ["error", "error"] and [w.words for w in bad] == [[], []] and bad[0].error in errors
    assert "no next word can be" in str(errors[0])
    assert [w.words for w in (first, *later)] == [expected[4], *expected[:3]]


def test_a_dropped_text_of_nan_leaves_nothing_behind(sick):
    writer = fs.TextWriter(sick, prompt_rows=4)
    long = writer.add(TOLD["prompts"][4], most=16)
    gone = [writer.add([SICK] * 30, most=9) for _ in range(2)]
    for _ in range(3):
        writer.step()
    for text in gone:
        writer.drop(text)
    short = [writer.add(TOLD["prompts"][5], most=16) for _ in range(2)]
    writer.run()
    assert [w.words for w in (long, *short)] == [TOLD["greedy"][4], TOLD["greedy"][5], TOLD["greedy"][5]]


def test_an_error_of_the_network_is_of_its_text_alone(sick, monkeypatch):
    """A run that fails side by side is tried text by text: the memory may be short for all together, or one text at fault."""
    run = sick.next_words

    def fails(rows: Any, *more: Any) -> Any:
        if len(rows) > 1 or rows[0][:3] == [6, 6, 6]:
            raise fs.MemoryPlanError("too much")
        return run(rows, *more)

    monkeypatch.setattr(sick, "next_words", fails)
    writer = fs.TextWriter(sick)
    made = [writer.add(p, most=16) for p in ([6, 6, 6], *TOLD["prompts"][:3])]
    assert [str(e) for e in written_on(writer)] == ["too much"]
    assert [w.reason for w in made] == ["error", "most", "most", "most"]
    assert [w.words for w in made[1:]] == TOLD["greedy"][:3]


def test_an_error_of_a_listener_ends_its_text_alone(sick):
    def bad(word: int) -> None:
        raise ZeroDivisionError("at once")

    writer = fs.TextWriter(sick)
    heard: list[int] = []
    made = [writer.add(TOLD["prompts"][0], most=16, on_word=bad), writer.add(TOLD["prompts"][1], most=16, on_word=heard.append)]
    stream = writer.stream(made[1])
    assert list(stream) == heard == TOLD["greedy"][1], "the error of one text is not raised to the readers of others"
    with pytest.raises(ZeroDivisionError):
        list(writer.stream(made[0]))
    with pytest.raises(ZeroDivisionError) as caught:
        fs.generate(sick, TOLD["prompts"][:2], 16, on_word=lambda at, word: bad(word) if at == 1 else None)
    assert caught.value.__notes__ == ["in the text of prompt 1"]


def test_numbers_at_their_bounds_give_texts():
    """Whatever the bounds let through can be computed: no overflow, and no NaN from finite scores."""
    model, prompt = fs.language_model(LLAMA, users=6), TOLD["prompts"][0]
    model.settings = model.settings.but({"ends": ()})
    for choices in (
        {"temperature": 1000.0},
        {"temperature": 5e-324},
        {"temperature": 1.0, "top_k": 2**62, "top_p": 5e-324, "min_p": 1.0},
        {"temperature": 1.0, "typical_p": 5e-324, "seed": 2**64 - 1},
        {"temperature": 1.0, "typical_p": 0.5, "top_k": 1},
        {"repetition_penalty": 1e3, "no_repeat_ngram_size": 2**62},
        {"repetition_penalty": 1e-3, "no_repeat_ngram_size": 1, "min_new_tokens": 2**62},
        {"beams": 3, "length_penalty": 32.0},
        {"beams": 3, "length_penalty": -32.0, "early_stopping": "never", "repetition_penalty": 1e3},
    ):
        assert [len(text) for text in fs.generate(model, [prompt, prompt], 8, **choices)] == [8, 8], choices
    low, best = (fs.generate(model, [prompt], 8, **choices) for choices in ({"temperature": 5e-324}, {}))
    assert low == best


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"length_penalty": 1e308}, "length_penalty must be a number from -32 to 32; seen 1e"),
        ({"length_penalty": float("nan"), "beams": 2}, "length_penalty must be"),
        ({"temperature": 10**400}, "temperature must be a number from 0 to 1000; seen a whole number of 1329 bits"),
        ({"temperature": "hot"}, "temperature must be"),
        ({"temperature": float("inf")}, "temperature must be"),
        ({"top_k": 2.5}, "top_k must be a whole number"),
        ({"top_p": float("nan")}, "top_p must be a number above 0 and at most 1"),
        ({"seed": -1}, "seed must be"),
        ({"seed": 1.5}, "seed must be"),
        ({"beams": 2.0}, "beams must be"),
        ({"most": 1.5}, "most must be"),
        ({"most": True}, "most must be"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be"),
        ({"early_stopping": "always", "beams": 2}, "early_stopping must be"),
        ({"stop": ["ab"]}, "stop must be numbers of words"),
        ({"stop": [[1.5]]}, "a word of stop must be"),
    ],
)
def test_odd_settings_are_refused(sick, choices, says):
    with pytest.raises(fs.SchemaError, match=says):
        fs.generate(sick, [[1]], **choices)
    for prompt in ([1.5], ["1"], [None]):
        with pytest.raises(fs.FeedError, match="word 0 of a prompt must be a whole number"):
            fs.generate(sick, [prompt])
