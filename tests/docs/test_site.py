"""What the site is made of: the reference names everything that is public, and relative links lead somewhere. `make docs` checks the rest."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import foreshape as fs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_public_name(site: ModuleType) -> None:
    pages = site.reference()
    named = set(re.findall(r"^::: (\S+)", "\n".join(pages.values()), re.M))
    constants = {n for n, origin in site.exports(site.SOURCE / "__init__.py").items() if origin == "foreshape.spec"}
    modules = {n for n in fs.__all__ if isinstance(getattr(fs, n), ModuleType)}
    assert {n.removeprefix("foreshape.") for n in named if n.count(".") == 1} == set(fs.__all__) - constants - modules
    for room in (fs.layer, fs.optimizer, fs.callbacks):
        inner = {n for n in room.__all__ if not isinstance(getattr(room, n), ModuleType)}
        assert {f"{room.__name__}.{n}" for n in inner} <= named
    for name in named:
        value = fs
        for part in name.split(".")[1:]:
            value = getattr(value, part)
    assert all(f"`{n}`" in pages["reference/fs.md"] for n in constants)


def test_every_public_name_says_what_it_is() -> None:
    silent: list[str] = []
    for room in (fs, fs.layer, fs.optimizer, fs.callbacks):
        for name in room.__all__:
            value = getattr(room, name)
            own = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__  # of a class not what it inherits
            if callable(value) and not (own or "").strip():
                silent.append(f"{room.__name__}.{name}")
    assert silent == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_files(page: Path) -> None:
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert [target for target in LINK.findall(prose) if not (page.parent / target).exists()] == []


def test_links_in_the_site_lead_to_its_pages(site: ModuleType) -> None:
    pages = {*site.generated(), *(p.relative_to(ROOT / "docs").as_posix() for p in PAGES if (ROOT / "docs") in p.parents)}
    front = site.generated()["index.md"]
    targets = {t for t in LINK.findall(front) if t.endswith(".md")}
    assert "tutorial.md" in targets and "scripts/digits.md" in targets and targets <= pages
    assert site.linked("[a](../examples/tagger.py) [b](memory.md#peak)", "ragged-data.md") == "[a](scripts/tagger.md) [b](memory.md#peak)"
    assert site.linked("[a](../operators.md)", "operators/nn.md") == "[a](../operators.md)"
