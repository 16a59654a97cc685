"""How the command ends: pipes that nobody reads, disks that are full, Ctrl-C, scripts with mistakes, packages and devices that are not there."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from support.commanded import call

import foreshape as fs
from foreshape import layer
from foreshape.apps.cli.output import broken, columns_of, console
from foreshape.apps.cli.tables import TerminalTable

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(fs.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-m", "foreshape"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    x = layer.data("x", shape=["batch", 4])
    hidden = layer.fc(x, 3, "tanh")
    scope = fs.Scope()
    fs.Executor(seed=0).run(fs.default_startup_program(), scope=scope)
    fs.save_inference_model(tmp_path / "net", [x], [hidden, layer.softmax(hidden)], scope=scope)
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    return tmp_path / "net.pdmodel"


@pytest.mark.quick_cases("args1")
@pytest.mark.parametrize("args", [["show"], ["--help"], *(pytest.param(a, marks=pytest.mark.long) for a in (["check"], ["ops"], ["--version"]))])
def test_a_pipe_that_nobody_reads_ends_the_command_quietly(args: list[str], saved: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    given = [*COMMAND, *args, *([str(saved)] if args[0] in ("show", "check") else [])]
    done = subprocess.run(given, stdout=write, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, timeout=1200)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk")
def test_output_that_cannot_be_written_is_told_in_one_line(saved: Path) -> None:
    for args in (["show", str(saved)], ["--version"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([*COMMAND, *args], stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, timeout=1200)
        assert (done.returncode, done.stderr) == (1, "standard output cannot be written: No space left on device\n")


def test_letters_that_the_output_has_no_code_for_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('\u00e4')\nraise ValueError('\u00e4')\n", encoding="utf-8")
    ascii_only = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "train", "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=1200, env=ascii_only)
    assert (done.returncode, done.stdout) == (1, "\\xe4\n") and done.stderr.startswith("ValueError: ") and "Traceback" not in done.stderr


def test_results_have_the_names_of_what_was_saved(saved: Path, tmp_path: Path) -> None:
    code, out, err = call("run", saved, "--feed", f"x={tmp_path / 'x.npy'}", "--out", tmp_path / "out")
    assert code == 0, err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["fc_0.tmp_2.npy", "softmax_0.tmp_0.npy"] and "fc_0.tmp_2.npy: float32[2, 3]" in out


@pytest.mark.parametrize(("device", "words"), [("tpu", "there is no device 'tpu' here: it can be cpu"),
                                               ("meta", "there is no device 'meta' here: it can be cpu")])  # fmt: skip
def test_a_device_that_is_not_there_is_an_error(saved: Path, tmp_path: Path, device: str, words: str) -> None:
    code, _, err = call("run", saved, "--feed", f"x={tmp_path / 'x.npy'}", "--out", tmp_path, "--device", device)
    assert code == 1 and err.startswith(f"ExecutionError: {words}")


def test_what_is_no_program_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    code, _, err = call("show", tmp_path / "x.npy")
    assert code == 1 and err.startswith(f"FormatError: {tmp_path / 'x.npy'} is no program (.pdmodel): ")


def test_symbols_without_a_value_are_named_as_options(tmp_path: Path) -> None:
    layer.mean(layer.relu(layer.data("x", shape=["batch", "words", 4])))
    fs.default_main_program().save(tmp_path / "net.pdmodel")
    code, _, err = call("plan", tmp_path / "net.pdmodel", "--ranks", 2)
    assert code == 1 and err == "MemoryPlanError: the memory depends on batch, words: give --batch=... and --set words=...\n"


@pytest.mark.parametrize(("script", "lines"), [
    ("import json\njson.loads('{')\n", ["JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
                                       "    script.py:2    json.loads('{')"]),
    ("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('no') from error\n",
     ["ValueError: no", "    script.py:4    raise ValueError('no') from error", "caused by ZeroDivisionError: division by zero", "    script.py:2    1 / 0"]),
    ("raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])\n",
     ["ExceptionGroup: two (2 sub-exceptions)", "    script.py:1    raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])", "    ValueError: a",
      "    KeyError: 'b'"]),
    ("import foreshape as fs\nfrom foreshape import layer\ncost = layer.mean(layer.fc(layer.data('x', shape=['batch', 4]), 2))\nfs.train(cost, {'z': [[1]]})\n",
     None),
])  # fmt: skip
def test_an_error_in_a_script_shows_the_lines_of_the_script_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, lines: list[str]) -> None:
    monkeypatch.chdir(tmp_path)  # frames of Python itself have names that look like files of this folder
    (tmp_path / "script.py").write_text(script)
    with fs.program_guard(fs.Program(), fs.Program()):
        code, _, err = call("train", "script.py")
    assert code == 1
    if lines is None:
        assert err.startswith("FeedError: ") and err.endswith("    script.py:4    fs.train(cost, {'z': [[1]]})\n")
    else:
        assert err.splitlines() == lines
    (tmp_path / "script.py").write_text("x: fs.Operator\n")
    code, _, err = call("show", "any", "--operators", "script.py")
    assert code == 1 and err.splitlines() == ["script.py cannot be imported: NameError: name 'fs' is not defined", "    script.py:1    x: fs.Operator"]


TRAINING = """
import os, signal, sys
import numpy as np
import foreshape as fs
from foreshape import layer
def stop(epoch, figures):
    if epoch == 2:
        os.kill(os.getpid(), signal.SIGINT)
x = layer.data("x", shape=["batch", 4])
files = [fs.callbacks.SaveBest("best.safetensors", "loss"), fs.callbacks.CSVLog("log.csv")]
fs.train(layer.mean(layer.fc(x, 2)), {"x": np.ones((4, 4), "float32")}, epochs=4, batch_size=2, progress=False, callbacks=[%s], checkpoint=%s)
"""


NEWEST = os.path.join("run", "step-000000002.safetensors")


def interrupted(script: str) -> list[str]:
    """The lines that a script ends with that sends itself an interrupt."""
    Path("script.py").write_text(script)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with fs.program_guard(fs.Program(), fs.Program()):
            code, _, err = call("train", "script.py")
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130, err
    return err.splitlines()


@pytest.mark.parametrize(("callbacks", "checkpoint", "words"), [
    ("stop", "'run'", f"kept: {NEWEST}; the same command goes on from there"),
    ("stop", "None", "kept: nothing on disk; give checkpoint= a folder to go on later"),
    ("stop", "fs.Checkpoint('run', every=50)", "kept: nothing on disk; no checkpoint has been written yet: the first in run comes after step 50"),
    ("*files, stop", "None", "kept: best.safetensors, log.csv; give checkpoint= a folder to go on later"),
    ("*files, stop", "'run'", f"kept: {NEWEST}; the same command goes on from there; also best.safetensors, log.csv"),
])  # fmt: skip
def test_a_training_that_is_interrupted_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callbacks: str, checkpoint: str, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    lines = interrupted(TRAINING % (callbacks, checkpoint))
    assert len(lines) == 2 and lines[0].startswith("interrupted after step ") and lines[1] == words


def test_an_interrupt_before_the_first_step_and_one_after_the_training_say_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    early = "class Early(fs.callbacks.Callback):\n    def on_train_begin(self, run):\n        os.kill(os.getpid(), signal.SIGINT)\nfiles = [Early()]\nfs.train("
    lines = interrupted((TRAINING % ("*files", "'run'")).replace("fs.train(", early))
    assert lines == ["interrupted before the first step of the training",
                     "kept: nothing on disk; no checkpoint has been written yet: the first in run comes at the end of epoch 1"]  # fmt: skip
    last = "os.kill(os.getpid(), signal.SIGINT)"
    lines = interrupted((TRAINING % ("*files", "'run'")) + last)
    newest = os.path.join("run", "step-000000008.safetensors")
    assert lines == ["interrupted", f"    script.py:12    {last}", f"the training had ended, after 8 steps; it wrote: {newest}, best.safetensors, log.csv"]
    lines = interrupted((TRAINING % ("", "None")) + last)
    assert lines[2] == "the training had ended, after 8 steps; it wrote no file"


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("matplotlib", "matplotlib.backends", "matplotlib.backends.backend_agg", "sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(fs.ExecutionError, match=r"^a drawing needs the package matplotlib.*: pip install 'foreshape\[train\]'$"):
        fs.training.History().plot(tmp_path / "x.png")
    code, _, err = call("demo", "--out", tmp_path / "demo")
    assert code == 1 and err.startswith("ExecutionError: the demo needs the package sklearn") and err.endswith(": pip install 'foreshape[demo]'\n")


def test_a_narrow_terminal_shows_rows_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    table = TerminalTable("ops", "#", "op", "result", "bytes")
    table.add("0", "elementwise_add", "fc_0.tmp_1", "48*batch")
    out = console()
    out.width = 40
    out.print(table)
    assert capsys.readouterr().out.splitlines() == ["ops", "0 elementwise_add", "  result: fc_0.tmp_1".ljust(40), "  bytes: 48*batch".ljust(40), ""]
    out.width = 80
    out.print(table)
    assert "elementwise_add   fc_0.tmp_1   48*batch" in capsys.readouterr().out


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_sentences_are_broken_between_words_in_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    line = "the peak is at op 29 of 37, flatten_contiguous_range_grad_and_more    net.py:5"
    assert broken(f"a\n{line}", Screen()).splitlines() == [
        "a", "the peak is at op 29 of 37,", "    flatten_contiguous_range_grad_and_more", "    net.py:5"]  # fmt: skip
    assert broken(line, io.StringIO()).splitlines() == broken(line, Screen()).splitlines()  # who sets COLUMNS means what is piped, too
    monkeypatch.delenv("COLUMNS")
    assert broken(line, io.StringIO()) == line


@pytest.mark.parametrize(("columns", "on_screen", "piped"), [
    ("0", 80, None), ("-5", 80, None), ("wide", 80, None), ("", 80, None), ("19", 80, None), ("9" * 30, 80, None), ("٦٠", 80, None), ("60", 60, 60),
])  # fmt: skip
def test_columns_are_honoured_where_they_are_a_width(columns: str, on_screen: int, piped: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert (columns_of(Screen()), columns_of(io.StringIO()), columns_of(None)) == (on_screen, piped, piped)


def test_tables_are_as_wide_as_columns_says(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for more in ([], ["--summary"]):
        code, out, _ = call("show", saved, *more)
        assert code == 0 and 40 < max(map(len, out.splitlines())) <= 60
    monkeypatch.setenv("COLUMNS", "0")
    code, out, _ = call("show", saved)
    assert code == 0 and "elementwise_add" in out and out.count("softmax_0.tmp_0")


def test_what_the_package_warns_of_is_one_line(saved: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((2, 4), 0.1))
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = call("run", saved, "--feed", f"x={tmp_path / 'x.npy'}", "--out", tmp_path / "out")
        shown = warnings.showwarning
    assert (code, shown) == (0, before)
    assert err == "note: x is float32 and is fed float64: it is rounded at every step; .astype('float32') once saves that\n"


STOPPED = """
import os, signal, sys
class Stops:
    def __init__(self, module):
        self.module = module
    def find_spec(self, name, path=None, target=None):
        if name == self.module:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Stops(sys.argv[1]))
sys.argv[:] = ["foreshape", "show", sys.argv[2]]
from foreshape.apps.cli import main
main()
"""


@pytest.mark.quick_cases("typer", "foreshape.apps.cli.commands")
@pytest.mark.parametrize("module", ["typer", "foreshape.apps.cli.commands", "foreshape.apps.cli.options", "foreshape.language.wire"])
def test_an_interrupt_while_modules_are_imported_is_told_in_a_word(module: str, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "stop.py").write_text(STOPPED)
    done = subprocess.run([sys.executable, tmp_path / "stop.py", module, str(saved)], capture_output=True, text=True, env=ENVIRONMENT, timeout=1200)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


EARLIEST = """
import os, signal, sys
class Stops:
    def find_spec(self, name, path=None, target=None):
        if name == "gc":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Stops())
sys.orig_argv[:], sys.argv[:] = ["python", *sys.argv[2:]], [sys.argv[1]]
import foreshape
"""


@pytest.mark.parametrize(("argv", "told"), [
    (["/usr/bin/foreshape"], True), (["-m", "-m", "foreshape", "show"], True), (["-m", "-X", "dev", "-m", "foreshape.apps.cli"], True),
    (["-m", "-m", "mine"], False), (["train.py"], False),
])  # fmt: skip
def test_an_interrupt_of_the_command_is_a_word_as_soon_as_the_package_is_imported(argv: list[str], told: bool, tmp_path: Path) -> None:
    (tmp_path / "stop.py").write_text(EARLIEST)
    done = subprocess.run([sys.executable, tmp_path / "stop.py", *argv], capture_output=True, text=True, env=ENVIRONMENT, timeout=1200)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == "interrupted\n" if told else "Traceback" in done.stderr and "KeyboardInterrupt" in done.stderr


@pytest.mark.quick_cases("print('a')\\n-")
@pytest.mark.parametrize(("script", "told"), [
    ("for at in range(100_000):\n    print(at)\n", ""),
    ("print('a')\n", ""),
    ("from rich.console import Console\nConsole().print('a')\n", ""),
    pytest.param("print('a')\nraise SystemExit(3)\n", "", marks=pytest.mark.long),
    pytest.param("import sys\nprint('a')\nsys.stdout.flush()\n", "", marks=pytest.mark.long),
    ("import socket\na, b = socket.socketpair()\nb.close()\na.send(b'x')\n", "BrokenPipeError: [Errno 32] Broken pipe\n    script.py:4    a.send(b'x')\n"),
])  # fmt: skip
def test_a_script_whose_output_nobody_reads_ends_quietly(script: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(script)
    given = [*COMMAND, "train", "script.py"]
    if told:  # a pipe of its own, which is not the output
        done = subprocess.run(given, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, timeout=1200)
        assert (done.returncode, done.stderr) == (1, told)
        return
    read, write = os.pipe()
    os.close(read)
    buffered = {**ENVIRONMENT, "PYTHONUNBUFFERED": ""}  # the first print does not go out at once, but at the latest at the end
    done = subprocess.run(given, stdout=write, stderr=subprocess.PIPE, text=True, env=buffered, cwd=tmp_path, timeout=1200)
    os.close(write)
    assert (done.returncode, done.stderr) == (3 if "SystemExit" in script else 0, "")


def test_a_summary_and_the_help_fit_a_narrow_terminal(saved: Path) -> None:
    lines = fs.load_program(saved).summary().text(40).splitlines()
    assert "fc_0  add, tanh, softmax" in lines and "    results 48B 67%, work 12 100%" in lines and max(map(len, lines)) <= 40
    narrow = {**ENVIRONMENT, "COLUMNS": "40"}
    done = subprocess.run([*COMMAND, "plan", "--help"], capture_output=True, text=True, env=narrow, timeout=1200)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and "  --within BYTES" in lines and max(map(len, lines)) <= 40
