"""The recipes run as their pages say, and reach more than what needs no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipes.pages import DOCS, code_of, count, names, ran, table
from support.as_torch_code import check_page
from support.text_models import write_text_models

import foreshape as fs

Found = dict[str, Any]


def tabular_regression(found: Found) -> None:
    truth = found["test_progression"]
    error = np.abs(found["guesses"] - truth).mean()
    assert error < 0.85 * np.abs(found["progression"].mean() - truth).mean()
    np.testing.assert_allclose(next(iter(found["answer"].values()))[:, 0], found["guesses"][:1], rtol=1e-4)


def image_classifier(found: Found, least: float = 0.95) -> None:
    held = {"image": found["images"][1500:], "label": found["labels"][1500:]}
    assert fs.evaluate({"accuracy": found["accuracy"]}, held)["accuracy"] > least
    assert np.array_equal(fs.predict(found["seen"], held), held["image"])  # nothing is moved in a test


def character_language_model(found: Found, most: float = 3.2) -> None:
    texts, letters = found["texts"], Counter(found["numbers"].tolist())
    shares = np.array([*letters.values()]) / sum(letters.values())
    held = {"read": texts[-225:, :-1], "following": texts[-225:, 1:, None]}
    bits = fs.evaluate({"loss": found["cost"]}, held)["loss"] / np.log(2)
    assert bits < min(most, -(shares * np.log2(shares)).sum())  # less than the letters' own frequencies need
    assert len(found["said"]) > len("The function")


def fine_tuning(found: Found, least: float = 0.75) -> None:
    truth = found["digits"].target[found["held_out"]]
    assert (found["answers"] == truth).mean() > least
    reloaded = fs.load_inference_model("low", scope=fs.Scope())
    kernel = next(v.name for v in reloaded.program.parameters() if v.name.startswith("first") and len(v.dims) == 4)
    np.testing.assert_array_equal(np.asarray(found["model"].scope[kernel]), np.asarray(reloaded.scope[kernel]))  # which was frozen


def recommender(found: Found) -> None:
    held = {name: column[-found["ratings"] // 20 :] for name, column in found["data"].items()}
    assert fs.evaluate({"accuracy": found["accuracy"]}, held)["accuracy"] > 0.6
    chances = 1 / (1 + np.exp(-4 * found["offers"][found["best"]] @ found["wishes"][3]))
    assert chances.mean() > 0.8


def custom_loss(found: Found, apart: float = 0.06) -> None:
    below = (found["held_out"]["load"] < found["bands"]).mean(0)
    np.testing.assert_allclose(below, found["chances"], atol=apart)
    constant = np.quantile(found["data"]["load"][:4000], found["chances"])[None]
    missed = found["held_out"]["load"] - constant
    without = np.maximum(missed * found["chances"], missed * (np.array(found["chances"]) - 1)).sum(1).mean()
    assert fs.evaluate({"loss": found["cost"]}, found["held_out"])["loss"] < 0.7 * without


def notebooks(found: Found) -> None:
    assert fs.evaluate({"accuracy": found["accuracy"]}, found["test"])["accuracy"] > 0.85
    assert len(fs.default_main_program().parameters()) == 4  # although it was described twice


def segmentation(found: Found, least: float = 0.7) -> None:
    inked = found["truth"][:, 0] > 0
    seen = found["answers"] > 0
    assert seen[inked].mean() > 0.5 > 0.25 > seen[~inked].mean(), (seen[inked].mean(), seen[~inked].mean())  # ink is told from stripes
    assert (found["answers"] == found["truth"][:, 0])[inked].mean() > least


def siamese_search(found: Found, more: float = 1.5) -> None:
    unseen, kinds = found["unseen"], found["kinds"]
    alike, by_pixels = ((kinds[unseen][found[name]] == kinds[unseen, None]).mean() for name in ("found", "found_by_pixels"))
    assert alike > more * by_pixels
    assert all(p.name.startswith("tower.") for p in fs.default_main_program().parameters())  # the second tower has none of its own


def gan(found: Found, times: float = 1.3, kinds: int = 10) -> None:
    digits, apart = found["digits"], found["apart"]
    mean_apart = np.linalg.norm(digits - digits.mean(0), axis=1).mean()  # of a digit from the mean picture
    assert apart.min(1).mean() < min(times * found["between"].mean(), mean_apart)
    assert len(set(found["found"].target[apart.argmin(1)])) >= kinds


def forecasting(found: Found, less: float = 0.6) -> None:
    truth, last_week = found["truth"], found["test"][:, : found["ahead"]]
    assert np.abs(found["guesses"] - truth).mean() < less * np.abs(last_week - truth).mean()


def ragged_text_classifier(found: Found, least: float = 0.75) -> None:
    kinds, texts = found["kinds"][: found["held"], 0], found["texts"]
    assert (found["guesses"] == kinds).mean() > least > np.bincount(kinds).max() / len(kinds)
    together, alone = (fs.predict(found["scores"], {"words": texts[:5]}, batch_size=size) for size in (5, 1))
    np.testing.assert_allclose(together, alone, rtol=1e-3, atol=1e-4)


def quantizing(found: Found, least: float = 0.9) -> None:
    truth, answers = found["digits"].target[found["test"]], found["answers"]
    assert (answers["fp32"].argmax(1) == truth).mean() > least
    for name in found["settings"]:
        assert np.abs(answers[name] - answers["fp32"]).max() > 0  # it does round
        assert (answers[name].argmax(1) == answers["fp32"].argmax(1)).mean() > 0.98
        assert Path(f"{name}.pdiparams").stat().st_size < 0.3 * Path("fp32.pdiparams").stat().st_size
    again = fs.load_inference_model("digits.onnx", scope=fs.Scope()).run(found["images"][found["test"]])[0]
    assert (again.argmax(1) == answers["entropy"].argmax(1)).mean() > 0.99


def generation(found: Found, most: float = 3.0) -> None:
    letters, model = found["letters"], found["model"]
    assert found["bits"] < most
    (best,) = found["write"](["The "], most=12)
    said = [letters.find(c) for c in "The "]
    for _ in range(12):  # without the cache
        said.append(int(np.asarray(fs.predict(found["following_scores"], {"read": [said]}).data)[-1].argmax()))
    assert best == "".join(letters[n] for n in said)
    assert found["users"] * 512 * model.word_bytes < 2**30 < 1.1 * found["users"] * 512 * model.word_bytes


def serving(found: Found, least: float = 0.87) -> None:
    answers, held = found["answers"], len(found["held"])
    assert len(answers) % held == 0 and {by for by, *_ in answers[:held]} == {"1"} and {by for by, *_ in answers[-held:]} == {"2"}
    shares = [np.mean([right for _, right, *_ in some]) for some in (answers[:held], answers[-held:])]
    assert shares[0] < shares[1] > least
    assert found["refused"]["nearest"] == {"image": [1, 1, 8, 8]}


def text_search(found: Found, best: str = "shutil.copytree") -> None:
    assert (best in next(iter(found["answers"].values()))) and all(len(scores) == 5 for scores in found["answers"].values())
    name, text = next(iter(found["texts"].items()))
    np.testing.assert_allclose(found["search"](f"{name}: {text}", 1)[name], 1, rtol=1e-5)


def chroma_search(found: Found, best: str = "shutil.copytree") -> None:
    assert best in found["answer"]["ids"][0] and all(name.startswith("os.") for name in found["within"]["ids"][0])
    scores = found["model"].similarity(found["model"].encode_query(found["question"]), found["model"].encode_document(found["texts"]))[0]
    assert found["answer"]["ids"][0] == [found["ids"][i] for i in np.argsort(-scores)[:5]]


def reranking(found: Found) -> None:
    names, near = [*found["texts"]], found["nearest"](found["question"], 50)
    texts = [found["texts"][names[i]] for i in near]
    scores = np.array([found["reranker"].predict([(found["question"], text)])[0] for text in texts])  # each pair alone
    best = np.argsort(-scores)[:5]
    assert "shutil.copytree" in [names[i] for i in near[:5]] and found["answer"] == [names[near[i]] for i in best] != [names[i] for i in near[:5]]
    assert [*found["seconds"]] == [10, 20, 50, 100, 200] and min(found["seconds"].values()) > 0


def near_duplicates(found: Found, groups: int = 5) -> None:
    assert len(set(found["numbers"])) >= groups and found["near"]
    (twin,) = found["near_pairs"](found["vectors"][[0, 1, 0]], 0.9999)
    assert twin[:2] == (0, 2)
    assert found["groups"](4, [(0, 1, 1.0), (3, 1, 1.0)]) in ([0, 0, 2, 0], [3, 3, 2, 3])
    vectors = np.random.default_rng(0).standard_normal((50, 3)).astype("float32")
    whole = [(i, j) for i in range(50) for j in range(i + 1, 50) if vectors[i] @ vectors[j] >= 2]
    assert [(i, j) for i, j, _ in found["near_pairs"](vectors, 2, block=7)] == whole


RECIPES: dict[str, tuple[Callable[..., None], dict[str, str], dict[str, float]]] = {
    "tabular-regression": (tabular_regression, {"epochs=200": "epochs=20"}, {}),
    "image-classifier": (image_classifier, {"epochs=12": "epochs=3", "images[:1200]": "images[:600]", "labels[:1200]": "labels[:600]"}, {"least": 0.6}),
    "character-language-model": (character_language_model, {"[:150_000]": "[:60_000]", "epochs=6": "epochs=1", "range(200)": "range(5)"}, {"most": 5}),
    "fine-tuning": (fine_tuning, {"epochs=10)": "epochs=3)", "epochs=100": "epochs=15"}, {"least": 0.5}),
    "recommender": (recommender, {"1_000_000, 50_000, 2_000_000": "50_000, 3_000, 100_000", "Adam(0.02": "Adam(0.05", "batch_size=1024": "batch_size=500"}, {}),
    "custom-loss": (custom_loss, {"epochs=40": "epochs=8"}, {"apart": 0.1}),
    "segmentation": (segmentation, {"scenes(1000,": "scenes(300,", "scenes(200,": "scenes(20,", "epochs=6": "epochs=1"}, {"least": 0.05}),
    "siamese-search": (siamese_search, {"epochs=10)\n": "epochs=1)\n", "epochs=10,": "epochs=1,", "1300, 1797": "1300, 1500"}, {"more": 1.05}),
    "gan": (gan, {"range(6000)": "range(300)", "size=[500, 32]": "size=[100, 32]", "digits[:500, None]": "digits[:50, None]"}, {"times": 5, "kinds": 2}),
    "forecasting": (forecasting, {"epochs=20": "epochs=3"}, {"less": 1}),
    "ragged-text-classifier": (ragged_text_classifier, {"epochs=6": "epochs=2"}, {"least": 0.45}),
    "quantizing": (quantizing, {"epochs=8": "epochs=2"}, {"least": 0.75}),
    "generation": (generation, {"[:150_000]": "[:60_000]", "texts[-100:]": "texts[-20:]", "texts[:-100]": "texts[:-20]", "epochs=8": "epochs=1"}, {"most": 5}),
    "serving": (serving, {"1200, 1797": "1200, 1280", "epochs=8": "epochs=3"}, {"least": 0.6}),
    "text-search": (text_search, {"copy a whole folder with all its files": "recursively copy a directory tree"}, {}),
    "chroma-search": (chroma_search, {"copy a whole folder with all its files": "recursively copy a directory tree"}, {}),
    "reranking": (reranking, {"copy a whole folder with all its files": "recursively copy a directory tree"}, {}),
    "near-duplicates": (near_duplicates, {}, {"groups": 2}),
    "notebooks": (notebooks, {"epochs=20": "epochs=4", "epochs=100": "epochs=15"}, {}),
}  # fmt: skip
"""What is looked at, what is written in place of what stands in the page for the quick test, and how much less is asked of it then."""


TEXTS = ("text-search", "chroma-search", "reranking", "near-duplicates")
"""These open trained models, and are tested with small ones."""


@pytest.mark.long_cases("forecasting")
@pytest.mark.parametrize("name", [n if n in ("forecasting", *TEXTS) else pytest.param(n, marks=pytest.mark.long) for n in RECIPES])
def test_a_small_recipe_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    look, smaller, less = RECIPES[name]
    if name == "chroma-search":
        pytest.importorskip("chromadb", reason="make adapters has it")
    if name in TEXTS:
        write_text_models(tmp_path)
    found = ran(name, smaller, twice=name == "notebooks")
    look(found, **less)
    assert name in TEXTS or check_page(found, tmp_path), "its networks are also modules of torch, and torch code"


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in RECIPES if n not in TEXTS])
def test_a_whole_recipe_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = ran(name, {})
    RECIPES[name][0](found)
    assert check_page(found, tmp_path)


def test_each_recipe_is_tried_shown_and_linked() -> None:
    assert names() == sorted(RECIPES)
    index = (DOCS / "recipes" / "index.md").read_text(encoding="utf-8")
    for name in names():
        page = (DOCS / "recipes" / f"{name}.md").read_text(encoding="utf-8")
        assert f"]({name}.md)" in index and f"]({name}.png)" in page
        assert (DOCS / "recipes" / f"{name}.png").stat().st_size < 60_000
        assert len(page.splitlines()) <= 70


@pytest.mark.long
def test_a_recipe_takes_no_more_lines_than_beside() -> None:
    pytest.importorskip("ruff")
    said = table()
    assert said in (DOCS / "recipes" / "index.md").read_text(encoding="utf-8"), "python docs/count_recipe_lines.py writes the table"
    for row in said.splitlines()[2:]:
        _, name, here, beside, _ = row.split("|")
        assert not beside.strip() or int(here) <= int(beside.split()[0]), name
    assert sum(bool(row.split("|")[3].strip()) for row in said.splitlines()[2:]) == len([*(DOCS / "recipes" / "beside").glob("*.py")])
    assert all(count(code_of(name)) > 20 for name in names())


def test_lines_are_counted_as_the_index_says() -> None:
    pytest.importorskip("ruff")
    assert count('"""Words."""\nimport a\n\n# a remark\nx = f(\n    1,\n)\ny = """one\ntwo"""\n') == 3
