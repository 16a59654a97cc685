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
    modules = {n for n in fs.__all__ if isinstance(getattr(fs, n), ModuleType)} - {"program"}  # which is called
    for name in fs.__all__:
        assert (site.entry("foreshape", name, 3) in pages["reference/fs.md"]) == (name not in modules), name
    for room in (fs.layer, fs.optimizer, fs.callbacks):
        inner = {n for n in room.__all__ if not isinstance(getattr(room, n), ModuleType)}
        assert {site.entry(room.__name__, n).split()[1] for n in inner} <= named
    for name in named:
        module, _, last = name.rpartition(".")
        getattr(importlib.import_module(module), last)
        path = site.SOURCE.joinpath(*name.split(".")[1:])
        assert not path.is_dir() and not path.with_suffix(".py").exists(), f"{name} is a module, too, whose page it would be"
    assert not any(page != "reference/index.md" and "\n::: " not in text for page, text in pages.items()), "a page without words"
    assert re.findall(r"^- .*: *$", pages["reference/index.md"], re.M) == []


def test_the_reference_leaves_out_what_is_for_other_rooms(site: ModuleType) -> None:
    assert '"!^touch$"' in site.entry("foreshape", "Program") and "filters" not in site.entry("foreshape", "Executor")
    for name, left_out in site.INTERNAL.items():
        shown = {n for n in dir(getattr(fs, name)) if not n.startswith("_")}
        assert set(left_out.split()) < shown, set(left_out.split()) - shown
        written = "\n".join(p.read_text(encoding="utf-8") for p in PAGES if p.name not in ("CHANGELOG.md", "design-documents.md"))
        assert [n for n in left_out.split() if f"{name}.{n}" in written] == []


def test_each_constant_says_what_it_is(site: ModuleType) -> None:
    spec = (site.SOURCE / "core" / "spec.py").read_text(encoding="utf-8")
    constants = [n for n, origin in site.exports(site.SOURCE / "__init__.py").items() if origin == "foreshape.core.spec"]
    assert len(constants) > 10 and [n for n in constants if not re.search(rf'^{n}: Final = .*\n"""\w', spec, re.M)] == []


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
