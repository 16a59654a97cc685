"""Counts of words and names against the budgets of words.json: ``python tests/house/words.py [--lower] [--show]``.

A count above its budget is an error. A budget above its count is to be lowered: ``--lower`` writes it, and never raises one. ``--show`` prints
everything that is counted, with its place.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE, DOCS, BUDGETS = ROOT / "src" / "foreshape", ROOT / "docs", Path(__file__).with_suffix(".json")
GENERATED = ("fusions.md", "compatibility.md", "operators.md")  # and the pages of docs/operators/
LONGEST = 25
"""The words of a sentence."""
POINTING = {"what", "which", "that", "those"}
OPENINGS = {"What", "Whether", "How", "Where", "Of"}
_NOTHING = """
at of found given made one held wanted kept own other others what into known whole named by seen where taken
after before now each said asked told there here to both over within same rest more most moved turned shown
"""
NAMES_OF_NOTHING = frozenset(_NOTHING.split())
"""Pronouns and particles: a variable, parameter or function of such a name has to be looked up by its reader. A budget of them may only shrink."""
_WORD = re.compile(r"[A-Za-z0-9À-ÿ][\w'’.,/%+-]*")
_NO_PROSE = re.compile(r"^```.*?^```[^\n]*$|<!--.*?-->|^\|[^\n]*$|^#[^\n]*$|!\[[^\]]*\]\([^)]*\)", re.M | re.S)
_LINK = re.compile(r"\[([^\[\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?])[)*\"']*\s+(?=[A-Z`*\[(0-9])")


# --- pages


def pages() -> list[Path]:
    """Return every page that a person writes."""
    written = [p for folder in (DOCS, DOCS / "recipes") for p in sorted(folder.glob("*.md")) if p.name not in GENERATED]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *written]


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page, without its code, tables, headings and pictures; code within a sentence is one word."""
    prose = _LINK.sub(r"\1", _NO_PROSE.sub("\n\n", text))
    prose = re.sub(r"``.*?``|`[^`]*`", "Code", prose)
    for paragraph in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", prose, flags=re.M):
        yield from (one for one in _END.split(" ".join(paragraph.split())) if one)


def long_sentences(text: str) -> list[str]:
    """Return the sentences of a page that have more words than a sentence should."""
    return [one for one in sentences(text) if len(_WORD.findall(one)) > LONGEST]


def pointing_share(texts: Iterable[str]) -> float:
    """Return the percentage of what, which, that and those among all words."""
    words = Counter(word.lower().rstrip(".,") in POINTING for text in texts for word in _WORD.findall(text))
    return 100 * words[True] / max(words.total(), 1)


# --- source


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield the docstrings of a module, its classes, functions and attributes."""
    for node in ast.walk(tree):
        body: list[ast.stmt] = getattr(node, "body", [])
        for at, one in enumerate(body if isinstance(body, list) else ()):
            if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)):
                continue
            first = at == 0 and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if first or (at > 0 and isinstance(body[at - 1], ast.Assign | ast.AnnAssign)):
                yield one.value.value


def opens_badly(text: str) -> bool:
    """Tell whether a docstring begins with a word that names nothing."""
    return (text.split() or [""])[0].rstrip(",:") in OPENINGS


def repeated(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names that stand in more than one place, of pairs of a name and its place."""
    places: dict[str, list[str]] = {}
    for name, place in names:
        places.setdefault(name, []).append(place)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that variables, parameters, functions and classes are given, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or (isinstance(node, ast.ExceptHandler) and node.name):
            yield str(node.name), node.lineno


# --- counts and budgets


@cache
def found() -> tuple[list[str], list[str], list[str], dict[str, list[str]], dict[str, list[str]]]:
    """Return the texts of the pages and of the docstrings, the badly opened docstrings with their places, and the repeated names of files and classes."""
    texts = [page.read_text(encoding="utf-8") for page in pages()]
    trees = {p.relative_to(SOURCE): ast.parse(p.read_text(encoding="utf-8")) for p in sorted(SOURCE.rglob("*.py")) if not p.stem.endswith("_pb2")}
    told = [(f"{p}: {' '.join(text.split())[:100]}", text) for p, tree in trees.items() for text in docstrings(tree)]
    wings = {p.name for p in SOURCE.iterdir() if p.is_dir() and len([*p.glob("*.py")]) == 1}
    stems = sorted(  # what users import is named as its room is, and forms and their helpers as the layers and operators are
        {
            (p.stem, "/".join(p.parts[: 2 if p.parts[0] in wings else 1]))
            for p in trees
            if p.parts[1:] and not p.stem.startswith("__") and {"forms", "helpers"}.isdisjoint(p.parts)
        }
    )
    classes = [(node.name, str(p)) for p, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return texts, [text for _, text in told], [shown for shown, text in told if opens_badly(text)], repeated(stems), repeated(classes)


@cache
def names() -> tuple[int, list[str]]:
    """Return the number of bindings of the sources, and the places and names of those that name nothing."""
    total, nothing = 0, list[str]()
    for path in sorted(p for p in SOURCE.rglob("*.py") if not p.stem.endswith("_pb2")):
        for name, line in bindings(ast.parse(path.read_text(encoding="utf-8"))):
            total += 1
            if name.lstrip("_") in NAMES_OF_NOTHING:
                nothing.append(f"{path.relative_to(SOURCE)}:{line}: {name}")
    return total, nothing


def marks(words: str) -> int:
    """Return how often some words stand in the sources."""
    return sum(p.read_text(encoding="utf-8").count(words) for p in SOURCE.rglob("*.py"))


def counts() -> dict[str, float]:
    """Count everything that has a budget."""
    texts, told, bad, stems, classes = found()
    prose = [one for text in texts for one in sentences(text)]
    return {
        f"percent of the sentences of the pages with more than {LONGEST} words": 100 * sum(map(len, map(long_sentences, texts))) / len(prose),
        "percent of what, which, that, those in the pages": pointing_share(prose),
        "docstrings that begin with What, Whether, How, Where or Of": len(bad),
        "percent of what, which, that, those in docstrings": pointing_share(told),
        "names of files that stand in more than one room": len(stems),
        "names of classes that stand more than once": len(classes),
        "statements kept from the formatter": marks("# fmt: skip"),
        "uses of a private name elsewhere": marks("reportPrivateUsage"),
        "percent of names that are pronouns or particles": 100 * len(names()[1]) / max(names()[0], 1),
    }


def compare(counted: dict[str, float], budgets: dict[str, float], say: Callable[[str], object] = print) -> dict[str, float]:
    """Say which counts differ from their budgets, and return those above."""
    above = {name: count for name, count in counted.items() if round(count, 1) > budgets[name]}
    for name, count in counted.items():
        if name in above:
            say(f"{name}: {count:.4g}, and the budget is {budgets[name]:g} (tests/house/words.json)")
        elif round(count, 1) < budgets[name]:
            say(f"{name}: {count:.4g}, below the budget of {budgets[name]:g}: lower it by python tests/house/words.py --lower")
    return above


def show() -> None:
    """Print everything that is counted one by one."""
    for page in pages():
        for one in long_sentences(page.read_text(encoding="utf-8")):
            print(f"{page.relative_to(ROOT)}: {one}")
    _, _, bad, stems, classes = found()
    print(*bad, *names()[1], sep="\n")
    for name, places in [*stems.items(), *classes.items()]:
        print(f"{name}: {', '.join(places)}")


def main() -> None:
    """Compare all counts with their budgets."""
    if "--show" in sys.argv:
        show()
        return
    counted, budgets = counts(), json.loads(BUDGETS.read_text(encoding="utf-8"))
    if "--lower" in sys.argv:
        budgets = {name: min(budgets[name], round(count, 1)) for name, count in counted.items()}
        BUDGETS.write_text(json.dumps(budgets, indent=4) + "\n", encoding="utf-8")
    if compare(counted, budgets):
        sys.exit(1)


if __name__ == "__main__":
    main()
