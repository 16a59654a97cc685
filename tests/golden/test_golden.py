"""Texts that users read, compared with files: programs, and the errors of every kind of describing mistake.

``pytest tests/golden --update`` writes the files again; read the difference before you commit it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import pytest
from golden import mistakes, networks

import foreshape as fs
import foreshape.language.wire

HERE = Path(__file__).parent


def functions(module: Any) -> list[Callable[[], Any]]:
    return [f for _, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__ and not f.__name__.startswith("_")]


def has_passed(made: Any) -> TypeGuard[tuple[fs.Program, fs.Program]]:
    """Whether a network is what passes have made of the default programs."""
    return isinstance(made, tuple)


def compare(path: Path, text: str, update: bool) -> None:
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert path.exists(), f"{path.name} is not written yet: pytest tests/golden --update"
    assert text + "\n" == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("network", functions(networks), ids=lambda f: f.__name__)
def test_the_text_of_a_program(network: Callable[[], Any], update: bool) -> None:
    made = network()
    main, startup = made if has_passed(made) else (fs.default_main_program(), fs.default_startup_program())
    compare(HERE / "programs" / f"{network.__name__}.txt", str(main), update)
    if startup.global_block.ops:
        compare(HERE / "programs" / f"{network.__name__}.startup.txt", str(startup), update)
    for program in (main, startup):
        assert str(fs.Program.parse(str(program))) == str(program)


@pytest.mark.parametrize("mistake", functions(mistakes), ids=lambda f: f.__name__)
def test_the_words_of_a_mistake(mistake: Callable[[], Any], update: bool) -> None:
    with pytest.raises(fs.DescriptionError) as caught:
        mistake()
    compare(HERE / "errors" / f"{mistake.__name__}.txt", f"{type(caught.value).__name__}: {caught.value}", update)


def test_no_golden_file_is_left_over() -> None:
    names = {f.__name__ for f in functions(mistakes)}
    assert {p.stem for p in (HERE / "errors").iterdir()} == names
    assert {p.name.split(".")[0] for p in (HERE / "programs").iterdir()} == {f.__name__ for f in functions(networks)}
