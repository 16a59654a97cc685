"""Words that users type: those that are no commands, those that the shell completes, and the exit codes that scripts read."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from support.commanded import call
from typer.main import get_command

import foreshape as fs
from foreshape import layer
from foreshape.apps.cli import command_words, completion
from foreshape.apps.cli.commands import app, run_command
from foreshape.apps.cli.operators import facts


def words_of(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(("word", "hint"), [
    ("profile", "use: foreshape run FILE --feed NAME=FILE.npy --profile, or fs.profile in Python"),
    ("summary", "use: foreshape show FILE --summary, or fs.summary in Python"),
    ("Summary", "use: foreshape show FILE --summary"),
    ("sumary", "use: foreshape show FILE --summary"),
    ("predict", "use: foreshape run FILE"),
    ("export", "use: foreshape convert FILE TO"),
    ("lint", "use: foreshape check FILE"),
    ("oom", "use: foreshape preflight PACKAGE:FUNCTION --device CARD"),
    ("help", "use: foreshape --help"),
    ("chek", "did you mean 'check'?"),
    ("net.onnx", "a file follows a command, as in: foreshape show net.onnx"),
    ("train.py", "a file follows a command, as in: foreshape train train.py"),
    ("xyzzy", "foreshape --help lists the commands"),
])  # fmt: skip
def test_a_word_that_is_no_command_points_to_the_one_that_does_it(word: str, hint: str) -> None:
    code, out, err = call(word)
    assert (code, out) == (2, "") and f"there is no command {word!r}; {hint}" in words_of(err)


def test_what_the_words_point_to_is_there() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert not set(command_words._ELSEWHERE) & set(commands)
    for hint in command_words._ELSEWHERE.values():
        for one in hint.replace(" in Python", "").replace(", or ", "; ").replace(" and ", "; ").split("; "):
            if one.startswith("fs."):
                assert hasattr(fs, one.removeprefix("fs.")), one
                continue
            given = shlex.split(one.replace("torchrun --nproc-per-node N -m ", ""))
            assert given[0] == "foreshape", one
            if given[1] in ("--help", "--version", "--install-completion", "COMMAND"):
                continue
            options = {o for p in commands[given[1]].params for o in p.opts}
            assert all(word in options for word in given if word.startswith("--")), one


def completed(monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """The words that bash is offered for the last one of a line."""
    words = line.split(" ")
    for name, value in (("COMP_WORDS", line), ("COMP_CWORD", str(len(words) - 1)), ("_FORESHAPE_COMPLETE", "complete_bash")):
        monkeypatch.setenv(name, value)
    return call()[1].split()


def test_the_shell_completes_commands_options_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(monkeypatch, "foreshape s") == ["show", "serve"]
    assert completed(monkeypatch, "foreshape report net --ht") == ["--html"]
    assert completed(monkeypatch, "foreshape quantize net --activations ") == list(completion.METHODS)
    assert completed(monkeypatch, "foreshape run net --device ") == ["cpu", "cuda"]
    assert completed(monkeypatch, "foreshape plan net:make --train Adam") == ["Adam", "AdamW", "Adamax"]
    assert completed(monkeypatch, "foreshape ops conv2d") == ["conv2d", "conv2d_transpose"]
    assert completed(monkeypatch, "foreshape show ./ne") == []  # the shell itself completes paths, where nothing is offered
    monkeypatch.delenv("_FORESHAPE_COMPLETE")
    assert "--install-completion" in call("--help")[1]


@pytest.mark.long
def test_the_operators_that_the_shell_completes_are_those_that_are_listed() -> None:
    assert set(completion.operators()) == {one["operator"] for one in facts(None) if not one["operator"].endswith("_grad")}


def test_the_completion_is_of_the_command_however_it_was_started(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/lib/foreshape/__main__.py", "--show-completion", "bash"])  # as python -m foreshape
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    with pytest.raises(SystemExit):
        run_command()
    assert capsys.readouterr().out.rstrip().endswith("complete -o default -F _foreshape_completion foreshape")


def test_check_ends_with_1_where_a_variable_is_read_before_it_is_written(tmp_path: Path) -> None:
    x = layer.data("x", shape=["batch", 3])
    fs.save_inference_model(tmp_path / "net", [x], [layer.tanh(layer.relu(x))], scope=fs.Scope())
    lines = str(fs.load_program(tmp_path / "net.pdmodel")).splitlines()
    first, second = (i for i, line in enumerate(lines) if "= relu(" in line or "= tanh(" in line)
    lines[first], lines[second] = lines[second], lines[first]
    fs.Program.parse("\n".join("# " + line if line.startswith("order") else line for line in lines) + "\n").save(tmp_path / "early.pdmodel")
    code, out, _ = call("check", tmp_path / "early.pdmodel")
    assert code == 1 and "read before it is written: relu_0.tmp_0, by tanh" in out
    assert out.endswith("0 errors, 0 open guards, 0 unknown operators, 1 early read\n")
    code, out, _ = call("check", tmp_path / "early.pdmodel", "--json")
    assert code == 1 and json.loads(out)["ok"] is False


def test_check_ends_with_0_where_all_can_run(tmp_path: Path) -> None:
    """Dead ops, open guards and an operator without a gradient keep nothing from running."""
    x = layer.data("x", shape=["batch", 3])
    fs.save_inference_model(tmp_path / "net", [x], [layer.relu(x)], scope=fs.Scope())
    program = fs.load_program(tmp_path / "net.pdmodel")
    program.global_block.append_op("tanh", {"X": "x"}, {"Out": "nobody_reads_it"})
    program.save(tmp_path / "dead.pdmodel")
    code, out, _ = call("check", tmp_path / "dead.pdmodel")
    assert code == 0 and "dead, since no fetched result depends on it: tanh" in out


def test_what_finds_nothing_or_fits_nowhere_ends_with_1(tmp_path: Path) -> None:
    code, out, _ = call("ops", "no_operator_has_this")
    assert code == 1 and out == "no operator has 'no_operator_has_this' in its name, family, file or line of help\n"
    assert call("ops", "no_operator_has_this", "--json")[:2] == (1, "[]\n") and call("ops", "conv2d")[0] == 0
    x = layer.data("x", shape=["batch", 64])
    step = fs.training_program(layer.mean(layer.fc(x, 64)), fs.optimizer.SGD(0.1))
    step.program.save(tmp_path / "step.pdmodel")
    for within, code in (("1KiB", 1), ("1GiB", 0)):
        given = ("--ranks", "2", "--batch", "8", "--within", within, "--device", "1TFLOPS:1TB/s")
        assert call("plan", tmp_path / "step.pdmodel", *given)[0] == code
        assert call("plan", tmp_path / "step.pdmodel", *given, "--json")[0] == code
