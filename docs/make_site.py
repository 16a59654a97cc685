"""What the site has beside the pages in this folder: a hook of mkdocs (see mkdocs.yml), which also tests ask what a link leads to.

- README.md is the front page, CHANGELOG.md and CONTRIBUTING.md are pages.
- Each script of ``examples/`` is a page with its text, so that links to scripts lead somewhere.
- The reference is a page per room and per file of layers, called by what the file's docstring begins with, with what ``__all__`` of the room
  names; mkdocstrings fills them from the docstrings. It is found without importing anything.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE, DOCS = ROOT / "src" / "foreshape", ROOT / "docs"
FRONT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_LINK = re.compile(r"(\[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)?\])\(([^)\s#:]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```|``.*?``|`[^`\n]*`)", re.M | re.S)
_NO_LINK = re.compile(r"\](\s?)\[")
INNER = ("dims", "interop", "memory", "ops", "passes")
"""Rooms for who extends the package; the architecture tells of them."""
OLD_FILES = "foreshape.layer.legacy"
"""The layers that only networks of old files need: a page apart from the others."""
INTERNAL = {
    "Program": "counters forget guard_list html_of inference layer_name mark_loaded names parameter_settings refresh refresh_quietly role touch version",
    "Block": "append_described apply apply_names before forward_names infer_op name_result outer_names",
    "Op": "forgets made",
    "Variable": "forget known role_words",
    "Writing": "end go_on width",
    "Scope": "defer fill move overwritten store version",
}  # fmt: skip
"""Class -> what other rooms ask of it and users do not: the reference leaves that out."""


# --- the reference, read from the source


@cache
def _imports(module: Path) -> dict[str, tuple[str, str]]:
    """Name -> the module that it comes from, and what it is called there, of everything that a file imports from this package."""
    text = module.read_text(encoding="utf-8")
    listing = re.search(r'^_EXPORTS = "([\w.]+)"$', text, re.M)  # of a package whose names are imported when they are first used
    nodes = [*ast.walk(ast.parse(_file(listing[1]).read_text(encoding="utf-8") if listing else text))]
    named = {n.value.id: t.id for n in nodes if isinstance(n, ast.Assign) and isinstance(n.value, ast.Name) for t in n.targets if isinstance(t, ast.Name)}
    found = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.level == 0 and (n.module or "").startswith("foreshape")]
    return {named.get(alias.name) or alias.asname or alias.name: (f"{node.module}", alias.name) for node in found for alias in node.names}


@cache
def exports(module: Path) -> dict[str, str]:
    """Name -> the module that it comes from, of everything in the ``__all__`` of a file; of a constant made there, its own module."""
    own = ".".join(["foreshape", *module.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
    origin, names = _imports(module), list[str]()
    if "__all__" in origin:  # that of another file
        return exports(_file(origin["__all__"][0]))
    if module == SOURCE / "__init__.py":  # its ``__all__`` is all that is listed
        names = sorted(origin)
    nodes = list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))
    for node in nodes:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names = ast.literal_eval(node.value) if isinstance(node.value, ast.List) else sorted(origin)  # all that is imported at first use
    return {n: origin.get(n, (own, n))[0] for n in names}


def _file(module: str) -> Path:
    """Where a module is, if it is one."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _room(module: str) -> str:
    """The room of a module, with its wing: a package right below this one without files of its own is a wing."""
    top, *inner = module.split(".")[1:]
    return f"{top}.{inner[0]}" if inner and len([*(SOURCE / top).glob("*.py")]) == 1 else top


def first_line(module: str) -> str:
    """The first sentence or line of a module's docstring."""
    words = ast.get_docstring(ast.parse(_file(module).read_text(encoding="utf-8"))) or ""
    return " ".join(words.partition("\n\n")[0].split())


def _is_module(name: str, origin: str) -> bool:
    """Whether what a package has by this name is a module of it, and not something in a module of that name."""
    return _file(f"{origin}.{name}").exists() and exports(_file(origin)).get(name, origin) == origin


def _definition(module: str, name: str) -> tuple[str, str]:
    """The module that defines what a module has by this name, and what it is called there."""
    origin, there = _imports(_file(module)).get(name, (module, name))
    return (module, name) if origin == module else _definition(origin, there)


def entry(prefix: str, name: str, level: int = 2) -> str:
    """What mkdocstrings fills with the docstring of a name, under a heading of this level.

    The name is found where users write it; but where a module is called so too, as ``foreshape.language.program`` is, that module would be found, and
    the name is looked up where it is defined. One that is called otherwise there has no signature, which would tell that other name.
    """
    module, there = _definition(prefix, name)
    origin = _imports(_file(prefix)).get(name, (prefix, name))[0]
    target = f"{module}.{there}" if any(_file(f"{at}.{name}").exists() for at in (prefix, origin)) else f"{prefix}.{name}"
    options = {"heading_level": f"{level}"} if level != 2 else {}
    if there != name:
        options.update(heading=f'"{name}()"', toc_label=f'"{name}"', show_signature="false", separate_signature="false")
    if module == "foreshape.core.spec":
        options["show_attribute_values"] = "false"
    if name in INTERNAL:
        options["filters"] = "[" + ", ".join(f'"!^{n}$"' for n in ("_.*", *INTERNAL[name].split())) + "]"
    return f"::: {target}\n" + ("    options:\n" + "".join(f"      {k}: {v}\n" for k, v in options.items()) if options else "")


def reference() -> dict[str, str]:
    """Path in the site -> Markdown of each page of the reference."""
    top = exports(SOURCE / "__init__.py")
    renamed = {n for n, (_, there) in _imports(SOURCE / "__init__.py").items() if n != there}  # fs.program
    modules = {n: f"{o}.{n}" for n, o in top.items() if n not in renamed and _is_module(n, o)}  # rooms, and fs.callbacks
    top = {n: o for n, o in top.items() if n not in modules}
    constants = [n for n, o in top.items() if o == "foreshape.core.spec"]
    groups: dict[str, list[str]] = {}
    for name, module in top.items():
        if name not in constants:
            groups.setdefault(_room(module), []).append(name)
    pages: dict[str, str] = {}
    index = ["# Reference", "", "`import foreshape as fs` and `from foreshape import layer`. From the docstrings.", ""]
    body = ["# fs", "", "What `import foreshape as fs` has beside `fs.layer`, `fs.optimizer` and `fs.training`, by the room that it lives in.", ""]
    index += [f"- [fs](fs.md): {', '.join(f'`{n}`' for n in top)}"]
    for room, names in groups.items():
        body += [f"## {room.rpartition('.')[2]}", "", first_line(f"foreshape.{room}"), "", *(entry("foreshape", n, 3) for n in names)]
    body += ["## Element types and kinds", "", "Constants, for `dtype=`, `data_type=` and `kind=`.", "", *(entry("foreshape", n, 3) for n in constants)]
    pages["reference/fs.md"] = "\n".join(body)
    for name, module in modules.items():
        if name in ("layer", *INNER):
            continue
        names = [n for n, o in exports(_file(module)).items() if not _is_module(n, o)]
        pages[f"reference/{name}.md"] = "\n".join([f"# fs.{name}", "", first_line(module), "", *(entry(module, n) for n in names)])
        index += [f"- [fs.{name}]({name}.md): {', '.join(f'`{n}`' for n in names)}"]
    index += ["", "## layer", ""]
    files: dict[str, list[str]] = {}
    old: dict[str, str] = {}  # name -> the module in which users write it
    for name, module in exports(SOURCE / "layer" / "__init__.py").items():
        if module == OLD_FILES:
            old[name] = "foreshape.layer"
        else:
            files.setdefault(module, []).append(name)
    for module, names in sorted(files.items()):
        if module == "foreshape.layer":  # a module of layers, such as layer.detection
            for name in names:
                inner = exports(SOURCE / "layer" / f"{name}.py")
                old |= {n: f"foreshape.layer.{name}" for n, origin in inner.items() if origin == OLD_FILES}
                inner = [n for n in inner if n not in old]
                title, members = f"layer.{name}", [entry(f"foreshape.layer.{name}", n) for n in inner]
                pages[f"reference/layer-{name}.md"] = "\n".join([f"# {title}", "", first_line(f"foreshape.layer.{name}"), "", *members])
                index += [f"- [{title}](layer-{name}.md): {', '.join(f'`{n}`' for n in inner)}"]
            continue
        title, members = first_line(module).partition(":")[0].rstrip("."), [entry("foreshape.layer", n) for n in names]
        page = "layer-" + re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
        pages[f"reference/{page}.md"] = "\n".join([f"# {title}", "", first_line(module), "", *members])
        index += [f"- [{title}]({page}.md): {', '.join(f'`{n}`' for n in names)}"]
    title = first_line(OLD_FILES).partition(":")[0]
    pages["reference/old-files.md"] = "\n".join([f"# {title}", "", first_line(OLD_FILES), "", *(entry(module, n) for n, module in old.items())])
    index += ["", f"## {title}", "", f"- [{title}](old-files.md): {', '.join(f'`{n}`' for n in old)}"]
    pages["reference/index.md"] = "\n".join(index) + "\n"
    return pages


# --- files and links


def generated() -> dict[str, str]:
    """Path in the site -> text of every page that is not in this folder."""
    out = {page: linked((ROOT / name).read_text(encoding="utf-8"), "") for name, page in FRONT.items()}
    for script in sorted((ROOT / "examples").glob("*.py")):
        text = script.read_text(encoding="utf-8")
        words = " ".join((ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0].split())
        out[f"scripts/{script.stem}.md"] = f"# {script.name}\n\n{words}\n\n~~~~python\n{text}~~~~\n"
    return {**out, **reference()}


def linked(text: str, source: str) -> str:
    """A page's links as they are in the site: it lies in ``docs/`` (``source`` its path there), or in the root of the clone (the empty text)."""
    folder = ROOT / "docs" / Path(source).parent if source else ROOT
    depth = "../" * (len(Path(source).parts) - 1)

    def put(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        path = (folder / target).resolve()
        if not path.is_relative_to(ROOT):
            return found[0]
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("docs/"):
            place = name.removeprefix("docs/")
        elif name.startswith("examples/") and name.endswith(".py"):
            place = f"scripts/{path.stem}.md"
        else:
            place = FRONT.get(name, "")
        return f"{words}({depth}{place}{anchor})" if place else found[0]

    return _LINK.sub(put, text)


# --- what mkdocs calls


def on_config(config: Any) -> Any:
    """The navigation names folders: each becomes the list of its pages. Pages that it does not name stand at the end."""
    pages = generated()
    operators = ["operators.md", *(f"operators/{p.name}" for p in sorted((DOCS / "operators").glob("*.md")))]

    def opened(item: Any) -> Any:
        if isinstance(item, dict):
            return {title: found for title, inner in item.items() if (found := opened(inner))}
        if isinstance(item, list):
            return [found for inner in item if (found := opened(inner))]
        if item == "operators.md":
            return {"Operators": operators}
        if not item.endswith(".md"):
            here = [p.relative_to(DOCS).as_posix() for p in sorted((DOCS / item).glob("*.md"), key=lambda p: (p.name != "index.md", p.name))]
            return here + sorted((p for p in pages if p.startswith(f"{item}/")), key=_rank)
        named.add(item)
        return item

    named: set[str] = set()
    nav = opened(config.nav)
    others = [p.name for p in sorted(DOCS.glob("*.md")) if p.name not in named and p.name != "operators.md"]
    config.nav = [*nav[:-1], *([{"More": others}] if others else []), nav[-1]]
    return config


def _rank(page: str) -> tuple[int, str]:
    """The index first, then fs and its rooms, then the layers."""
    name = page.rpartition("/")[2]
    return (0 if name == "index.md" else 1 if name == "fs.md" else 3 if name.startswith("layer") else 2, page)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in this folder."""
    from mkdocs.structure.files import File

    for path, text in generated().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to scripts, and to files beside the documents, lead to their pages; ``a[i][j]`` in a sentence is no link."""
    if page.file.generated_by:
        return markdown
    parts = _CODE.split(linked(markdown, page.file.src_uri))
    return "".join(part if at % 2 else _NO_LINK.sub(r"]\1\[", part) for at, part in enumerate(parts))
