"""`foreshape ops`: the operators by family, their files, and their features."""

from __future__ import annotations

import inspect
from itertools import groupby
from typing import Any

from foreshape.apps.cli.output import console, print_json, print_plain
from foreshape.apps.cli.show import new_row, new_table
from foreshape.core.spec import SELECTED_ROWS
from foreshape.language.operator import Operator, all_operators
from foreshape.language.operator.fields import NoGradient

_PACKAGE = "foreshape.language.ops."


def facts(word: str | None) -> list[dict[str, Any]]:
    """Return the facts of each operator with the word in its type, family, file or line of help; without gradient operators."""
    entries = [_facts(cls) for _, cls in sorted(all_operators().items()) if cls.forward_class is None and cls.__module__.startswith(_PACKAGE)]
    entries.sort(key=lambda f: (f["family"], f["file"], f["operator"]))
    part = (word or "").lower()
    return [f for f in entries if any(part in f[k].lower() for k in ("operator", "family", "file", "help"))]


def _facts(cls: type[Operator]) -> dict[str, Any]:
    path = cls.__module__.removeprefix(_PACKAGE)
    kernel = getattr(cls, "kernel", None)
    reads = kernel is not None and "offsets" in inspect.signature(kernel).parameters
    return {
        "operator": cls.type,
        "family": path.rpartition(".")[0],
        "file": f"language/ops/{path.replace('.', '/')}.py",
        "help": inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " "),
        "differentiable": not isinstance(cls.gradient, NoGradient),
        "ragged": reads or any(r.new_offsets for r in cls.schema.results),
        "sparse": any(SELECTED_ROWS in o.kinds for o in cls.schema.operands),
    }


def print_operators(word: str | None, json: bool) -> bool:
    """Print a table of the operators with ``word`` in their facts, or all; or JSON. Return True if there is one."""
    entries = facts(word)
    if json or not entries:
        print_json(entries) if json else print_plain(f"no operator has {word!r} in its name, family, file or line of help")
        return bool(entries)
    out = console()
    for family, members in groupby(entries, key=lambda entry: entry["family"]):
        table = new_table(family, "operator", "file", "gradient", "ragged", "sparse", "what it does")
        for entry in members:
            new_row(table, entry["operator"], entry["file"], *("yes" if entry[k] else "" for k in ("differentiable", "ragged", "sparse")), entry["help"])
        out.print(table)
    return True
