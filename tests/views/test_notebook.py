"""What a prompt and a notebook show of a variable, a program, a plan, a history and a scope: short, well-formed, and no markup out of names."""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ElementTree
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import pictured

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.history import History
from foreshape.language.views import explain

CORPUS = Path(__file__).parents[1] / "corpus"
SCREEN, COLUMNS = 30, 160


class _Checked(HTMLParser):
    """Notes tags and attributes, and that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(a for a, _ in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def trained() -> tuple[fs.Program, fs.Variable]:
    x, y = layer.data("x", shape=["batch", 6]), layer.data("y", shape=["batch", 1])
    loss = layer.mean(layer.square(layer.fc(layer.fc(x, 8, "relu"), 1) - y))
    return fs.default_main_program(), loss


def history(steps: int, epochs: int) -> History:
    return History([1 / (k + 1) for k in range(steps)], [{"loss": 1 / (k + 1), "accuracy": 0.5, "seconds": 1.0} for k in range(epochs)])


def scope(values: int, name: str = "w") -> fs.Scope:
    out = fs.Scope()
    for at in range(values):
        out.set(f"{name}{at}", np.zeros((at + 1, 3), np.float32))
    return out


@cache
def things() -> dict[str, Any]:
    program, loss = trained()
    with fs.program_guard(fs.Program(), fs.Program()):
        deep = layer.mean(layer.transformer_encoder(layer.data("deep", shape=["batch", "words", 16]), 4, 2, 32))
    training = fs.training_program(deep, fs.optimizer.Adam(0.001), accumulate=2)
    ranks = fs.plan(training, ranks=2, batch=8, words=20)
    return {
        "training": training, "training plan": fs.plan(training), "ranks plan": ranks, "ranks plan without a size": fs.plan(training, ranks=2, batch=8),
        "variable": loss, "program": program, "plan": fs.plan(program, loss), "history": history(300, 5), "scope": scope(3), "empty program": fs.Program(),
        "empty history": History(), "empty scope": fs.Scope(), "summary": program.summary(), "resnet": fs.load_program(CORPUS / "resnet50" / "main.pdmodel"),
        "long history": history(100_000, 2000), "large scope": scope(400),
    }  # fmt: skip


def test_a_prompt_shows_one_screen_of_each() -> None:
    for name, one in things().items():
        lines = repr(one).split("\n")
        assert len(lines) <= SCREEN and max(map(len, lines)) <= COLUMNS, name
        assert name != "plan" or lines[0].startswith("Plan(peak = ")
    shown = repr(history(100_000, 2000))
    assert shown.startswith("History: 100,000 steps in 2,000 whole epochs, loss 1e-05 in the last\nepoch") and "\n  ...\n" in shown
    assert str(history(9, 100)).count("\n") == 100  # print has every epoch
    assert repr(scope(40)).endswith("  and 30 smaller values; scope.names() has them all") and "w39: float32 [40, 3], 480B" in repr(scope(40))
    program = fs.load_program(CORPUS / "resnet50" / "main.pdmodel")
    assert repr(program).startswith("Program: 176 ops in 1 block, 267 parameters with 25.6M numbers (97.7MiB)\n  input x: f32[x.0, 3, 224, 224]\n")
    assert str(program).count("\n") > 400


def test_a_plan_at_a_prompt_is_a_few_lines_however_long_its_formula_is() -> None:
    found = things()
    lines = repr(found["training plan"]).split("\n")
    assert lines[0] == "Plan(peak = max(" and len(lines) <= 6 and lines[-1].endswith(("more sum))", "more sums))"))
    assert any(re.search(r" \.\.\. \d+ more term", line) for line in lines)
    lines = repr(found["ranks plan"]).split("\n")
    assert lines[0] == "RanksPlan: data_parallel, ranks = 2, batch = 8, words = 20" and len(lines) <= 10 and "ceil(batch/ranks)" in lines[-2]
    assert lines[1].startswith("  a rank holds ") and lines[2].startswith("  a rank sends ") and lines[3] == "  peak = max("
    assert "give it a value, as in plan.peak(words=...)" in repr(found["ranks plan without a size"])
    text = repr(found["training"])
    assert text.startswith("TrainingProgram\n  runs: ") and "\n  loss: mean_0.tmp_0: f32[]\n" in text and text.endswith("\n  updates: after every 2 batches")
    assert "a rank sends" in found["ranks plan"]._repr_html_() and "layers" in found["training"]._repr_html_() and len(found["training"]._repr_html_()) < 40_000


def test_a_notebook_shows_well_formed_markup_of_each_that_can_be_unfolded() -> None:
    found = things()
    for name, one in found.items():
        page = _Checked(one._repr_html_())
        assert not page.tags & {"script", "img", "link", "iframe"} and not [a for a in page.attributes if a.startswith("on")], name
        assert len(one._repr_html_()) < (150_000 if name in ("long history", "large scope") else 400_000), name
        if name in ("variable", "program", "history", "scope", "plan", "resnet"):
            assert "details" in page.tags, name
    for name, words in {"variable": ["mean_0", "its op"], "program": ["layers", "drawing", "fc_0"], "plan": ["peak = ", "parameters"],
                        "history": ["300 steps", "accuracy"], "scope": ["w2", "float32"]}.items():  # fmt: skip
        text = _Checked(found[name]._repr_html_()).text
        assert all(w in text for w in words), name
    text = _Checked(found["long history"]._repr_html_()).text
    assert "the first and the last 100 of 2,000 epochs" in text and text.count("…") == 1
    text = _Checked(found["large scope"]._repr_html_()).text
    assert "the first and the last 100 by name" in text and text.count("…") == 1 and "w99[" in text.replace("float32", "")
    assert "<svg" in found["program"]._repr_html_() and "<svg" in found["history"]._repr_html_()


def test_names_from_a_file_are_text_everywhere() -> None:
    program = pictured.hostile()
    variable = program.var(pictured.HOSTILE + "2")
    for one in (program, variable, fs.plan(program, pictured.HOSTILE + "3"), program.summary(), scope(2, pictured.HOSTILE),
                History([1.0, float("nan"), float("inf")], [{pictured.HOSTILE: 1.0}])):  # fmt: skip
        page = _Checked(one._repr_html_())
        assert not page.tags & {"script", "img"} and "onerror" not in page.attributes and not set(page.text) & set("\x1b\u202e\ud83d")
        assert repr(one).replace("\n", "").isprintable() or isinstance(one, History)


def test_a_program_with_errors_and_unknown_operators_is_shown() -> None:
    text = "block 0\ninput x: f32[4, 5]\ninput y: f32[3, 2]\nz: f32[4, 2] = mul(X=x, Y=y)\nOut=w: f32[4, 2] = unheard_of(X=z)\n"
    program = fs.Program.parse(text)
    assert "unheard_of" in repr(program) and "unheard_of" in program._repr_html_() and "unheard_of" in str(program.summary())
    assert "unheard_of" in program.graph().svg


def test_a_history_is_drawn_with_and_without_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = history(50, 3)
    figure = made.plot()
    assert len(figure.axes) == 2 and figure._repr_png_().startswith(b"\x89PNG")
    made.plot(tmp_path / "a.svg")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    history(100_000, 5000).plot(tmp_path / "long.svg")
    assert (tmp_path / "long.svg").stat().st_size < 500_000


@pytest.mark.long
def test_many_figures_with_long_names_are_drawn_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row = {f"a figure with a rather long name $ that nobody reads to its end {at}": float(at) for at in range(40)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = History([1.0, 2.0], [row, row]).plot(tmp_path / "a.png")
    names = [t.get_text() for t in figure.axes[1].get_legend().get_texts()]
    assert len(names) == 12 and names[-1] == "and 29 more" and max(map(len, names)) <= 40


@pytest.mark.parametrize("path", [".", "", ".png", "loss", "loss.txt"])
def test_a_history_is_not_drawn_into_what_is_no_image(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fs.FormatError, match=r"^a drawing is a file that ends in \.png, \.svg, \.pdf; seen "):
        history(3, 1).plot(path)
    assert list(tmp_path.iterdir()) == []


def test_a_variable_of_a_deep_network_is_shown_without_asking_every_op(monkeypatch: pytest.MonkeyPatch) -> None:
    x = layer.data("x", shape=["batch", 8])
    for _ in range(300):
        x = layer.relu(layer.fc(x, 8)) + 1.0
    asked: list[object] = []
    ask = explain.ask
    monkeypatch.setattr(explain, "ask", lambda *args: (asked.append(args), ask(*args))[1])
    shown = x._repr_html_()
    assert "(and 1,1" in shown and "steps between that are not told)" in shown and 50 < len(asked) < 300
    monkeypatch.setattr(explain.Alike, "sources", lambda self, place: None)
    assert x._repr_html_() == shown
