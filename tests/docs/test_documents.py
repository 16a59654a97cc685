"""The code in README.md, CONTRIBUTING.md and docs/ runs, and prints what the pages say that it prints.

The ```python blocks of a page are one program, in order. A ```text block behind one is its output.
The recipes, which train for longer, are run by tests/recipes.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from pathlib import Path

import pytest
import torch
from support.text_models import write_text_model

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s#:]+\.md)(?:#[^)\s]*)?\)")
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.M | re.S)


def blocks(page: Path) -> list[tuple[str, str, int, tuple[int, int]]]:
    """Kind, body, line, and where the body stands."""
    text = page.read_text(encoding="utf-8")
    return [(m[1], m[2], text[: m.start()].count("\n") + 1, m.span(2)) for m in BLOCK.finditer(text)]


WITH_CODE = [p for p in PAGES if p.exists() and p.parent.name != "recipes" and any(b[0] == "python" for b in blocks(p))]


@pytest.mark.long_cases(
    "recompute.md", "custom-operators.md", "optimizers.md", "coming-from-pytorch.md", "tables.md", "quantizing.md", "inference.md", "transformers.md"
)
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: p.name)
def test_the_code_of_a_page_runs_and_prints_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: bool) -> None:
    if page.name == "serving.md":
        pytest.importorskip("fastapi", reason="the extra serve")
    if page.name == "torch-compile.md":
        torch.compiler.reset()  # graphs are numbered in a process
    if page.name == "README.md":
        write_text_model(tmp_path / "all-MiniLM-L6-v2", width=384)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("foreshape.machine.kernels.onednn.thread_count", lambda: 2)  # plans count what the kernels of a processor take
    monkeypatch.setattr("foreshape.machine.kernels.products.prefers_onednn", lambda: True)
    monkeypatch.setattr("foreshape.machine.kernels.products.library", lambda: None)  # the extra inference is not required
    source = page.read_text(encoding="utf-8")
    # a page's lines are the lines of its code, so that errors and call sites name them
    linecache.cache[page.name] = (len(source), None, source.splitlines(keepends=True), page.name)
    namespace: dict[str, object] = {"__name__": "__page__"}
    found = blocks(page)
    written: list[tuple[tuple[int, int], str]] = []
    for at, (kind, body, line, _) in enumerate(found):
        if kind != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + body, page.name, "exec"), namespace)
        if at + 1 < len(found) and found[at + 1][0] == "text":
            if update:
                written.append((found[at + 1][3], printed.getvalue()))
            else:
                assert printed.getvalue() == found[at + 1][1]
    for (start, stop), text in reversed(written):
        source = source[:start] + text + source[stop:]
    if update:
        page.write_text(source, encoding="utf-8")


def test_every_page_is_reached_from_the_readme() -> None:
    found, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        found.add(page)
        targets = {(page.parent / target).resolve() for target in LINK.findall(page.read_text(encoding="utf-8"))}
        waiting += [target for target in targets - found - {*waiting} if target in PAGES]
    assert sorted(p.relative_to(ROOT).as_posix() for p in {*PAGES} - found) == []
