"""The tutorial is a notebook too, whose cells can be run, and run again."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOK = DOCS / "tutorial.ipynb"


def test_the_notebook_is_what_the_page_says(update: bool) -> None:
    done = subprocess.run([sys.executable, str(DOCS / "make_notebook.py"), *([] if update else ["--check"])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_its_cells_run_twice_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 8
    namespace: dict[str, Any] = {"__name__": "__main__"}
    said: list[list[str]] = []
    for _ in range(2):
        said.append([])
        for number, cell in enumerate(cells):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(cell, f"In[{number}]", "exec"), namespace)
            said[-1].append(printed.getvalue())
    assert said[0] == said[1]


@pytest.mark.long
def test_jupyter_runs_it_twice_in_a_row(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    twice = nbformat.v4.new_notebook(metadata=notebook.metadata)
    for turn in range(2):
        twice.cells += [type(cell)({**cell, "id": f"{cell['id']}-{turn}"}) for cell in notebook.cells]
    nbclient.NotebookClient(twice, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [["".join(o.get("text", "") for o in cell.outputs if o.get("name") == "stdout") for cell in twice.cells if cell.cell_type == "code"]]
    half = len(shown[0]) // 2
    train = next(n for n, cell in enumerate(c for c in twice.cells if c.cell_type == "code") if "fs.train" in cell.source)
    assert shown[0][train] == shown[0][train + half] == "True\n"
