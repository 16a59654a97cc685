"""Texts that begin with the same words: their rows are computed once, in bounded places, and each text is written as alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.apps.generation.prefix_proof import prefix_obstacle

DATA = Path(__file__).parent / "data"
DRAW = random.Random(0)
SYSTEM = [DRAW.randrange(40) for _ in range(24)]


@pytest.fixture(scope="module")
def llama() -> fs.LanguageModel:
    return fs.language_model(DATA / "llama", users=3, generation_config={})


@pytest.fixture(scope="module")
def own() -> fs.LanguageModel:
    """The same network with a cache of its own."""
    return fs.language_model(DATA / "llama", users=3, generation_config={})


def alone(model: fs.LanguageModel, prompt: list[int], most: int = 6, **choices: Any) -> list[int]:
    return fs.generate(model, [prompt], most, share_prefixes=False, **choices)[0]


def changed(prompt: list[int], place: int) -> list[int]:
    return [*prompt[:place], (prompt[place] + 1) % 40, *prompt[place + 1 :]]


def test_prompts_given_together_compute_their_prefix_once(llama: fs.LanguageModel) -> None:
    prompts = [[*SYSTEM, k, k + 1, k + 2] for k in range(7)]
    writer = fs.TextWriter(llama)
    texts = [writer.add(p, most=6) for p in prompts]
    writer.run()
    assert [t.words for t in texts] == [alone(llama, p) for p in prompts]
    assert [t.shared for t in texts] == [0] + [24] * 6 and writer.shared == 24 * 6
    assert writer.computed == 27 + 6 * 3 + 7 * 5  # of each text's six words the last one is not computed
    own = fs.TextWriter(llama, share_prefixes=False)
    for p in prompts:
        own.add(p, most=6)
    own.run()
    assert (own.computed, own.shared) == (7 * 27 + 7 * 5, 0)


@pytest.mark.parametrize("place", [0, 1, 15, 16, 20, 23])
def test_a_neighbour_that_differs_in_one_word_gives_no_row_behind_it(llama: fs.LanguageModel, place: int) -> None:
    """Also right behind it in the same place of the cache, and while it is being computed."""
    first, second = [*SYSTEM, 5], [*changed(SYSTEM, place), 5]
    for together in (False, True):
        writer = fs.TextWriter(llama)
        one = writer.add(first, most=6)
        if not together:
            writer.run()
        other = writer.add(second, most=6)
        writer.run()
        assert other.shared == (place if place >= 16 else 0)
        assert (one.words, other.words) == (alone(llama, first), alone(llama, second))
    scores = []
    for prompt in (first, second):
        scores.append(llama.run([prompt], [0], [0])[0].numpy())
        llama.clear_rows(0, len(prompt))
    assert np.abs(scores[0] - scores[1]).max() > 1e-3  # the word does change the scores


def test_the_next_turn_of_a_chat_begins_with_the_former_one(llama: fs.LanguageModel, own: fs.LanguageModel) -> None:
    writer, prompt = fs.TextWriter(llama), [*SYSTEM[:18]]
    for turn in range(4):
        text = writer.add(prompt, most=5)
        writer.run()
        assert text.words == alone(own, prompt, 5)
        assert text.shared == (len(prompt) - 4 if turn else 0)  # the last written word had not been computed, and three are new
        prompt = [*prompt, *text.words, turn, turn + 1, turn + 2]
    assert len(writer._places._former) == 1  # each turn has all words of the one before


def test_the_least_recently_used_former_text_goes_first(llama: fs.LanguageModel, own: fs.LanguageModel) -> None:
    a, b, c, d = ([(k * 7 + w) % 40 for w in SYSTEM] for k in range(4))
    writer = fs.TextWriter(llama)

    def shared(prompt: list[int]) -> int:
        text = writer.add([*prompt, 1], most=2)
        writer.run()
        assert text.words == alone(own, [*prompt, 1], 2)
        return text.shared

    assert [shared(p) for p in (a, b, a, c, d)] == [0, 0, 24, 0, 0]  # three places: b's rows made room for d's
    assert shared(a) == 24 and shared(b) == 0
    writer.forget()
    assert shared(a) == 0


def test_rows_kept_by_a_writer_are_gone_after_another_use_of_the_model(llama: fs.LanguageModel, own: fs.LanguageModel) -> None:
    prompt, others = [*SYSTEM, 1], [[(w + 3) % 40 for w in SYSTEM]] * 3
    uses: list[Any] = [
        lambda: fs.generate(llama, others, 2),
        lambda: fs.evaluate(llama, others),
        lambda: llama.run(others, [0, 1, 2], [0, 0, 0]),
    ]
    for use in uses:
        writer = fs.TextWriter(llama)
        writer.add(prompt, most=2)
        writer.run()
        use()
        text = writer.add(prompt, most=4)
        writer.run()
        assert text.shared == 0 and text.words == alone(own, prompt, 4)
        assert writer.add(prompt, most=1) and not writer.run() and writer.shared == len(prompt) - 1


def test_a_text_whose_rows_another_use_took_ends_by_an_error(llama: fs.LanguageModel, own: fs.LanguageModel) -> None:
    writer = fs.TextWriter(llama)
    text = writer.add([*SYSTEM, 1], most=9)
    writer.step()
    fs.generate(llama, [SYSTEM], 2)
    with pytest.raises(fs.ExecutionError, match="run for somebody else while this text was written"):
        writer.step()
    assert text.reason == "error" and not writer.busy
    later = writer.add([*SYSTEM, 1], most=3)
    writer.run()
    assert later.shared == 0 and later.words == alone(own, [*SYSTEM, 1], 3)


def test_many_texts_in_any_order_are_written_as_alone() -> None:
    """Random prompts of a few families, more than places, with draws, beams, stops and dropped texts."""
    draw, model = random.Random(1), fs.language_model(DATA / "qwen2", users=4, generation_config={})
    families = [[draw.randrange(40) for _ in range(30)] for _ in range(3)]
    writer, texts = fs.TextWriter(model, prompt_rows=9), []
    for number in range(30):
        prompt = draw.choice(families)[: draw.randrange(17, 30)] + [draw.randrange(40) for _ in range(draw.randrange(1, 6))]
        choices: dict[str, Any] = draw.choice([{}, {"temperature": 0.8, "seed": number}, {"beams": 2}, {"stop": [[draw.randrange(40)]]}])
        texts.append((writer.add(prompt, most=5, **choices), prompt, choices))
        for _ in range(draw.randrange(4)):
            writer.step()
        if number % 7 == 3:
            writer.drop(texts[-1][0])
    writer.run()
    writer.forget()
    assert writer.shared > 200 and all(float(tensor.abs().max()) == 0.0 for tensor in model._kept)
    for text, prompt, choices in texts:
        assert text.reason == "dropped" or text.words == alone(model, prompt, 5, **choices)


def test_a_text_that_ended_by_an_error_leaves_no_rows(llama: fs.LanguageModel) -> None:
    def broken(words: list[int], scores: Any) -> Any:
        raise ValueError("mine")

    writer = fs.TextWriter(llama)
    writer.add([*SYSTEM, 1], most=3, score_processor=broken)
    with pytest.raises(ValueError, match="mine"):
        writer.run()
    later = writer.add([*SYSTEM, 2], most=3)
    writer.run()
    assert later.shared == 0 and later.words == alone(llama, [*SYSTEM, 2], 3)


def with_rows(change: Any) -> tuple[Any, Any, Any]:
    """A network whose rows go through ``change`` before attention."""
    words = layer.data("words", ["rows"], "int64", lod_level=1)
    cache = layer.attention_cache(words)
    h = change(layer.embedding(words, [9, 8]), words)
    return words, layer.fc(layer.sequence_last_step(cache.attend(h, h, h)), 9), cache


def test_networks_without_the_proof_share_nothing() -> None:
    def counted(h: Any, words: Any) -> Any:
        steps = layer.create_parameter([8], "fp32", "steps")
        layer.assign(steps + 1.0, steps)
        return h

    changes: dict[str, Any] = {
        "computes over the rows of a sequence": lambda h, words: layer.sequence_reverse(h),
        "computes over the examples": lambda h, words: h - layer.reduce_mean(h, 0, keepdim=True),
        "draws|more than to compute": lambda h, words: layer.dropout(h, 0.5),
        "a state of its own": counted,
    }
    for says, change in changes.items():
        with fs.program_guard(fs.Program(), fs.Program()):
            words, scores, cache = with_rows(change)
            scope = fs.Scope()
            fs.Executor(seed=0).run(fs.default_startup_program(), scope=scope)
            model = fs.LanguageModel(words, scores, cache, scope, users=2, context=40)
        obstacle = model.prefix_obstacle
        assert obstacle is not None and any(part in obstacle for part in says.split("|")), (says, obstacle)
        with pytest.raises(fs.SchemaError, match="share_prefixes needs cached rows"):
            fs.TextWriter(model, share_prefixes=True)
        writer = fs.TextWriter(model)
        for _ in range(2):
            writer.add([1] * 20, most=2)
        writer.run()
        assert writer.shared == 0
    with fs.program_guard(fs.Program(), fs.Program()):
        words, _, cache = with_rows(lambda h, words: layer.relu(h * 2.0))
        assert prefix_obstacle(words, cache) is None
