"""28: paths that are no files; 29: nothing that is read is run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.messages import good

import foreshape
from foreshape.errors import FormatError
from foreshape.language.program import Program
from foreshape.language.wire import load_program, save_program

posix = pytest.mark.skipif(os.name != "posix", reason="special files")


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def unreadable(folder: Path) -> Path:
    file = folder / "secret"
    file.write_bytes(good())
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("this user may read everything")
    return file


def link_in_a_circle(folder: Path) -> Path:
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    return folder / "a"


def link_to_nothing(folder: Path) -> Path:
    (folder / "link").symlink_to(folder / "nothing")
    return folder / "link"


NOT_FILES: dict[str, Callable[[Path], object]] = {
    "absent": lambda f: f / "absent",
    "folder": lambda f: f,
    "fifo": fifo,
    "device-null": lambda f: "/dev/null",
    "device-zero": lambda f: "/dev/zero",
    "device-tty": lambda f: "/dev/tty",
    "name-of-300-bytes": lambda f: f / ("n" * 300),
    "path-of-10000-bytes": lambda f: str(f) + "/" + "n/" * 5000,
    "nul": lambda f: str(f / "a\x00b"),
    "surrogate": lambda f: str(f / "a\ud800b"),
    "empty": lambda f: "",
    "no-path": lambda f: None,
    "a-number": lambda f: 1.5,
    "a-list": lambda f: ["x"],
    "under-a-file": lambda f: Path(__file__) / "below",
    "unreadable": unreadable,
    "circle-of-links": link_in_a_circle,
    "link-to-nothing": link_to_nothing,
    "dots": lambda f: f / ".." / ".." / "absent" / "..",
}


@posix
@pytest.mark.parametrize("name", NOT_FILES, ids=lambda n: f"28-read-{n}")
def test_what_is_no_file_is_refused_when_reading(name: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        load_program(NOT_FILES[name](tmp_path))
    assert "\x00" not in str(caught.value)


WRITABLE = ("absent", "link-to-nothing", "circle-of-links")


@posix
@pytest.mark.parametrize("name", [n for n in NOT_FILES if n not in (*WRITABLE, "no-path", "unreadable")], ids=lambda n: f"28-write-{n}")
def test_what_is_no_file_is_refused_when_writing(name: str, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    path = NOT_FILES[name](tmp_path)
    with pytest.raises(FormatError):
        save_program(load_program(good()), path)
    left = [n for n in os.listdir(tmp_path) if n not in before and n not in ("fifo", "a", "b", "link")]
    assert not left, "a temporary file was left"


@posix
def test_28_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "net.pdmodel"
    target.write_bytes(good())
    code = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from foreshape.language.wire import load_program, save_program
from foreshape.errors import FormatError
program = load_program({str(target)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    save_program(program, {str(target)!r})
except FormatError as error:
    print("refused:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200)
    assert done.stdout.startswith("refused:"), done.stderr
    assert target.read_bytes() == good() and os.listdir(tmp_path) == ["net.pdmodel"]


@posix
def test_28_dev_full_is_refused() -> None:
    with pytest.raises(FormatError):
        save_program(load_program(good()), "/dev/full")


@posix
def test_28_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "real.pdmodel"
    target.write_bytes(b"old")
    link = tmp_path / "link.pdmodel"
    link.symlink_to(target)
    save_program(load_program(good()), link)
    assert link.is_symlink() and target.read_bytes() == good()


@posix
def test_28_the_mode_of_a_file_stays(tmp_path: Path) -> None:
    target = tmp_path / "net.pdmodel"
    target.write_bytes(b"old")
    target.chmod(0o640)
    save_program(load_program(good()), target)
    assert target.stat().st_mode & 0o777 == 0o640


def test_28_a_file_past_the_limit_is_not_read(tmp_path: Path) -> None:
    from foreshape.language.wire import Limits

    target = tmp_path / "large"
    with target.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(FormatError, match="the limit is"):
        load_program(target)
    with pytest.raises(FormatError, match="the limit is 10"):
        load_program(good(), Limits(bytes=10))


@pytest.mark.parametrize("given", [b"", bytearray(good()), memoryview(good())], ids=["bytes", "bytearray", "memoryview"])
def test_bytes_of_all_types_are_taken(given: object) -> None:
    if given:
        assert isinstance(load_program(given), Program)
    else:
        with pytest.raises(FormatError):
            load_program(given)


RUNS_THE_USERS_OWN = "script.py"
"""The command line runs a script that its user names, as Python itself does."""
RUNS_A_STEP = {"checked.py", "runner.py", "lazy_names.py", "plain_module.py"}
"""They run what the engine, or the writer of torch code, wrote line by line: names of values by number, and texts of users as literals."""
FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "runpy", "imp", "code"}
CALLS = {"eval", "__import__", "execfile"}
SUSPECT = re.compile(rf"^\s*(?:from|import)\b.*\b(?:{'|'.join(FORBIDDEN)})\b|\b(?:exec|{'|'.join(CALLS)})\s*\(|\bload\s*\(", re.M)
"""Only files with such text are looked at as Python reads them."""


FILES = [p for p in sorted(Path(foreshape.__file__).parent.rglob("*.py")) if p.name != RUNS_THE_USERS_OWN]


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("room", sorted({p.parent.name for p in FILES}), ids=lambda r: f"29-{r}")
def test_no_reader_unpickles_or_evaluates(room: str) -> None:
    for file in (p for p in FILES if p.parent.name == room):
        text = file.read_text()
        if SUSPECT.search(text):
            _runs_nothing(file, text)


def test_what_runs_what_is_read_is_found(tmp_path: Path) -> None:
    for text in ("import os, pickle", "from pickle import loads", "  from marshal import (\n  loads)", "eval (y)", "exec(y)", "import torch\ntorch.load(y)"):
        assert SUSPECT.search(f"x = 1\n{text}\n")
        with pytest.raises(AssertionError):
            _runs_nothing(tmp_path / "a.py", text.strip())


def _runs_nothing(file: Path, text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert not {a.name.split(".")[0] for a in node.names} & FORBIDDEN, f"{file.name}:{node.lineno}"
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN, f"{file.name}:{node.lineno}"
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                assert node.func.id not in CALLS and (node.func.id != "exec" or file.name in RUNS_A_STEP), f"{file.name}:{node.lineno}"
            elif isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == "torch.load":
                flags = {k.arg: k.value for k in node.keywords}
                assert isinstance(flags.get("weights_only"), ast.Constant) and flags["weights_only"].value is True, f"{file.name}:{node.lineno}"  # pyright: ignore


@posix
@pytest.mark.parametrize("there", [True, False], ids=["replaced", "new"])
def test_the_mode_of_a_file_is_that_of_the_old_one_or_the_umask_s(there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "net.pdmodel"
    if there:
        target.write_bytes(b"old")
        target.chmod(0o604)
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.delattr(os, "umask")  # the mask of the process holds for the files of all threads
            save_program(load_program(good()), target)
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == (0o604 if there else 0o640)
