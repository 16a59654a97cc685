"""Counts the lines of the recipes, here and beside, and writes the table of docs/recipes/index.md.

    python docs/count_recipe_lines.py

A program is first formatted by `ruff format`, with lines of 120 characters and no comma that keeps them apart, so that it does not matter who broke
a line where. Then its lines are counted, without empty lines, comments, docstrings and imports.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "docs" / "recipes"
BESIDE = RECIPES / "beside"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
TABLE = re.compile(r"(?<=<!-- lines -->\n).*?(?=<!-- end of lines -->)", re.S)
OTHERS = {"character-language-model": "Lightning"}
"""Beside what a recipe is put, where that is not Keras."""


def names() -> list[str]:
    """The recipes, by the names of their pages."""
    return sorted(page.stem for page in RECIPES.glob("*.md") if page.stem != "index")


def code_of(name: str) -> str:
    """The program of a recipe: its page's blocks."""
    return "\n".join(BLOCK.findall((RECIPES / f"{name}.md").read_text(encoding="utf-8")))


def path_beside(name: str) -> Path:
    """The file of the same task elsewhere; not every recipe has one."""
    return BESIDE / f"{name.replace('-', '_')}.py"


def formatted(code: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=120", "--config=format.skip-magic-trailing-comma=true", "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout


def count(code: str) -> int:
    """The lines of a program that are neither empty, comments, docstrings nor imports."""
    code = formatted(code)
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(code)):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if alone or isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type not in blank:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - left_out)


def table() -> str:
    rows = ["| recipe | lines here | lines beside |", "|---|---|---|"]
    for name in names():
        file = path_beside(name)
        beside = f"{count(file.read_text(encoding='utf-8'))} ([{OTHERS.get(name, 'Keras')}](beside/{file.name}))" if file.exists() else ""
        rows.append(f"| [{name}]({name}.md) | {count(code_of(name))} | {beside} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    page = RECIPES / "index.md"
    page.write_text(TABLE.sub(lambda _: table(), page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
