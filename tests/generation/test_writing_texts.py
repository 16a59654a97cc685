"""Texts written by networks with a cache: the words of other implementations, one text or many, drawn or best, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

DATA = Path(__file__).parent / "data"
KINDS = sorted(p.name for p in DATA.iterdir())


@pytest.fixture(scope="module", params=KINDS)
def folder(request) -> Path:
    return DATA / request.param


@pytest.fixture(scope="module")
def llama() -> fs.LanguageModel:
    return fs.language_model(DATA / "llama", users=4)


def texts_of(folder: Path):
    return json.loads((folder / "texts.json").read_text())


@pytest.mark.quick_cases("gpt2")
def test_texts_are_those_of_transformers(folder):
    """The folders hold networks of transformers, and the texts that its own ``generate`` wrote, one prompt at a time."""
    told = texts_of(folder)
    for users, prompt_rows in ((3, 512), (8, 7)):
        model = fs.language_model(folder, users=users)
        assert fs.generate(model, told["prompts"], 16, prompt_rows=prompt_rows) == told["greedy"]
        assert fs.generate(model, told["prompts"], 16, beams=3, length_penalty=0.7, prompt_rows=prompt_rows) == told["three beams, length penalty 0.7"]


def test_a_text_is_the_same_whatever_runs_beside_it(llama):
    prompts = texts_of(DATA / "llama")["prompts"]
    settings = {"temperature": 0.9, "top_k": 12, "top_p": 0.95}
    together = fs.generate(llama, prompts, 12, seed=3, **settings)
    alone = [fs.generate(llama, [p], 12, seed=3 + at, **settings)[0] for at, p in enumerate(prompts)]
    assert together == alone
    assert together != fs.generate(llama, prompts, 12, seed=4, **settings)


def test_texts_join_while_others_run(llama):
    told = texts_of(DATA / "llama")
    writer = fs.TextWriter(llama)
    first = [writer.add(p, most=16) for p in told["prompts"][:2]]
    for _ in range(5):
        writer.step()
    later = [writer.add(p, most=16) for p in told["prompts"][2:]]
    seen = list(writer.stream(later[-1]))
    writer.run()
    assert [w.words for w in (*first, *later)] == told["greedy"]
    assert seen == told["greedy"][-1] and not writer.busy


def test_a_dropped_text_leaves_its_place(llama):
    told = texts_of(DATA / "llama")
    writer = fs.TextWriter(llama)
    made = [writer.add(p, most=16) for p in told["prompts"]]
    writer.step()
    writer.drop(made[0])
    writer.drop(made[-1])
    writer.run()
    assert [w.words for w in made[1:-1]] == told["greedy"][1:-1]
    assert (made[0].reason, made[-1].reason) == ("dropped", "dropped")


def test_a_writer_and_its_texts_are_shown(llama: fs.LanguageModel):
    writer = fs.TextWriter(llama)
    made = writer.add([1, 2, 3], most=2)
    assert repr(made) == "Writing(waiting, 0 of at most 2 words: [])"
    assert repr(writer) == f"TextWriter(waiting: 1, running: 0, places: 0 of {llama.users})"
    writer.step()
    assert repr(made) == f"Writing(running, 1 of at most 2 words: {made.words})"
    assert repr(writer) == f"TextWriter(waiting: 0, running: 1, places: 1 of {llama.users})"
    writer.run()
    assert repr(made) == f"Writing(ended by 'most', 2 of at most 2 words: {made.words})"


def test_words_that_stop_a_text(llama):
    prompt = texts_of(DATA / "llama")["prompts"][1]
    (whole,) = fs.generate(llama, [prompt], 16)
    heard: list[tuple[int, int]] = []
    (cut,) = fs.generate(llama, [prompt], 16, stop=[whole[3:6], whole[7:8]], on_word=lambda *w: heard.append(w))
    assert cut == whole[:3] and heard == [(0, w) for w in cut]
    writing = fs.TextWriter(llama)
    made = writing.add(prompt, most=4)
    writing.run()
    assert made.words == whole[:4] and made.reason == "most"


@pytest.mark.long
def test_draws_follow_the_probabilities():
    """A network whose scores are known: drawn words come as often as their probabilities say, cut off by top_k and top_p."""
    parts = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    with fs.program_guard(fs.Program(), fs.Program()):
        words = layer.data("words", ["rows"], "int64", lod_level=1)
        cache = layer.attention_cache(words)
        h = layer.embedding(words, [5, 4])
        h = cache.attend(h, h, h)
        last = layer.sequence_last_step(h)
        scores = layer.add(layer.fc(last, 5, weight=layer.Constant(0.0), bias=False), layer.assign(np.log(parts).astype("float32")))
        scope = fs.Scope()
        fs.Executor(seed=0).run(fs.default_startup_program(), scope=scope)
    model = fs.LanguageModel(words, scores, cache, scope, users=40, context=101)
    for settings, want in (
        ({"temperature": 1.0}, parts),
        ({"temperature": 0.5}, parts**2),
        ({"temperature": 1.0, "top_k": 2}, parts * (parts > 0.15)),
        ({"temperature": 1.0, "top_p": 0.7}, parts * (parts > 0.15)),
        ({"temperature": 1.0, "top_p": 0.71}, parts * (parts > 0.1)),
    ):
        texts = fs.generate(model, [[0]] * 40, 100, seed=0, **settings)
        seen = np.bincount(np.concatenate(texts), minlength=5) / 4000
        assert np.abs(seen - want / want.sum()).max() < 0.03, settings


def test_beams_find_the_best_of_all_texts(llama):
    """With as many beams as texts of two words can begin with, nothing is cut off: the best of all 1,600 is found."""
    model = fs.language_model(DATA / "gpt2", users=40)
    prompt = [9, 11, 30]
    best = (-np.inf, [])
    first = model.run([prompt], [0], [0]).double().log_softmax(-1)[0]
    second = model.run([[*prompt, w] for w in range(40)], list(range(40)), [0] * 40).double().log_softmax(-1)
    for a in range(40):
        for b in range(40):
            text, score = ([a], float(first[a])) if a == 7 else ([a, b], float(first[a] + second[a, b]) / 2)
            best = max(best, (score, text))
    assert fs.generate(model, [prompt], 2, beams=40)[0] == best[1]


def test_the_plan_tells_how_many_users_fit():
    model = fs.language_model(DATA / "llama", users=2)
    plan = model.plan()
    assert model.word_bytes == 2 * 2 * 8 * 4  # keys and values of two layers, of two heads of 4 columns, fp32
    users = plan.largest("users", within="1 MiB", context=64, batch=1, rows=1)
    assert plan.peak(users=users, context=64, batch=1, rows=1) <= 2**20 < plan.peak(users=users + 1, context=64, batch=1, rows=1)
    by_user = plan.held(users=11, context=64, batch=1, rows=1) - plan.held(users=10, context=64, batch=1, rows=1)
    assert by_user == 64 * model.word_bytes


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"prompts": [[]]}, fs.FeedError, "at least one word"),
        ({"prompts": [[1], [40]]}, fs.FeedError, r"in \[0, 40\); seen 40"),
        ({"prompts": [[-1]]}, fs.FeedError, "seen -1"),
        ({"prompts": [[1] * 64]}, fs.FeedError, "the context has 64 words"),
        ({"prompts": [[1]], "most": 0}, fs.SchemaError, "most must be a whole number of at least 1"),
        ({"prompts": [[1]], "temperature": -1.0}, fs.SchemaError, "temperature must be"),
        ({"prompts": [[1]], "temperature": float("nan")}, fs.SchemaError, "temperature must be"),
        ({"prompts": [[1]], "top_k": -1}, fs.SchemaError, "top_k must be"),
        ({"prompts": [[1]], "top_p": 0.0}, fs.SchemaError, "top_p must be"),
        ({"prompts": [[1]], "beams": 5}, fs.SchemaError, "beams must be from 1 to the users of the cache, 4"),
        ({"prompts": [[1]], "beams": 2, "temperature": 1.0}, fs.SchemaError, "beams take the best words"),
        ({"prompts": [[1]], "stop": [[]]}, fs.SchemaError, "at least one"),
    ],
)
def test_settings_that_are_refused(llama, given, error, says):
    with pytest.raises(error, match=says):
        fs.generate(llama, **given)


def test_places_that_are_refused(llama):
    for rows, slots, held, says in (
        ([[1]], [4], [0], r"in \[0, 4\); seen 4"),
        ([[1], [2]], [1, 1], [0, 0], "two texts have one place"),
        ([[1, 2]], [0], [63], "64 rows for a text; 63 are held"),
        ([[1]], [0], [-1], "-1 are held"),
    ):
        with pytest.raises(fs.ExecutionError, match=says):
            llama.run(rows, slots, held)


def test_folders_that_are_refused(tmp_path):
    def changed(**config):
        shutil.copytree(DATA / "llama", tmp_path / "m", dirs_exist_ok=True)
        given = json.loads((DATA / "llama" / "config.json").read_text()) | config
        (tmp_path / "m" / "config.json").write_text(json.dumps({k: v for k, v in given.items() if v is not None}))
        return tmp_path / "m"

    for config, error, says in (
        ({"model_type": "mamba"}, fs.SchemaError, "seen 'mamba'"),
        ({"hidden_size": None}, fs.FormatError, "must have 'hidden_size'"),
        ({"hidden_act": "tan"}, fs.SchemaError, "seen 'tan'"),
        ({"rope_parameters": {"rope_type": "linear"}}, fs.FormatError, "must have 'factor'"),
        ({"num_hidden_layers": 3}, fs.FormatError, "9 weights are missing"),
        ({"vocab_size": 41}, fs.FormatError, r"must be f32\[41, 16\], and is \[40, 16\]"),
    ):
        with pytest.raises(error, match=says):
            fs.language_model(changed(**config))
    with pytest.raises(fs.FormatError, match=r"config\.json"):
        fs.language_model(tmp_path)
    with pytest.raises(fs.SchemaError, match="at most 64 words"):
        fs.language_model(DATA / "llama", context=65)
    (changed() / "config.json").write_text("[1")
    with pytest.raises(fs.FormatError):
        fs.language_model(tmp_path / "m")


def test_a_network_without_its_cache_is_refused():
    with fs.program_guard(fs.Program(), fs.Program()):
        words = layer.data("words", ["rows"], "int64", lod_level=1)
        cache = layer.attention_cache(words)
        scores = layer.fc(layer.sequence_last_step(layer.embedding(words, [5, 4])), 5)
        with pytest.raises(fs.SchemaError, match="the cache is not used"):
            fs.LanguageModel(words, scores, cache)
        with pytest.raises(fs.ShapeError, match="ragged, of one level"):
            layer.attention_cache(layer.data("dense", ["batch", "time"], "int64"), name="other")
