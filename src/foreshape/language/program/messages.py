"""Messages of mistakes: the requirement, both sides, and the user's lines behind them."""

from __future__ import annotations

import linecache
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from foreshape.core.dims import Size
from foreshape.core.spec import Spec
from foreshape.errors import DescriptionError
from foreshape.language.operator.registry import shown_type
from foreshape.language.operator.require import RuleError


class CallSite:
    """One line of the user's code: file, line and function."""

    __slots__ = ("file", "function", "line")

    def __init__(self, file: str, line: int, function: str = "") -> None:
        self.file, self.line, self.function = file, line, function

    def short(self) -> str:
        """Return ``net.py:14``; of a notebook the cell, ``In[3]:14``."""
        return f"{shown_file(self.file)}:{self.line}"

    def source_line(self) -> str:
        """Return the text of the line; empty if its file cannot be read."""
        if self.file not in linecache.cache and not _is_source(self.file):
            return ""
        text = linecache.getline(self.file, self.line).strip()
        return text if len(text) <= 100 else text[:97] + "..."

    def __repr__(self) -> str:
        return self.short()

    def __eq__(self, site: object) -> bool:
        return isinstance(site, CallSite) and (self.file, self.line, self.function) == (site.file, site.line, site.function)

    def __hash__(self) -> int:
        return hash((self.file, self.line))


def shown_file(file: str) -> str:
    """Return a file's name without its folder; for the code of a cell IPython's name, such as ``In[3]``."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    names = None if name_of is None else name_of(file)
    return names[1] if names else os.path.basename(file)


def _is_source(file: str) -> bool:
    """Tell whether a call site's file can be read: sites of loaded programs have no folder, and are not looked for."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return False
    return os.path.isabs(file) and stat.S_ISREG(status.st_mode) and status.st_size < 2**24


class VariableView(Protocol):
    """The facts of a variable for messages."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> Spec: ...
    @property
    def op(self) -> Any: ...
    @property
    def call_site(self) -> CallSite | None: ...
    @property
    def role_words(self) -> str: ...


def describe_failure(
    error: RuleError, op_type: str, inputs: Mapping[str, Sequence[VariableView]], site: CallSite | None, position: str = ""
) -> DescriptionError:
    """Return the error for the user from a rule's refusal."""
    rows: list[tuple[str, str, str, str]] = []
    slots = error.sides or dict.fromkeys(inputs)
    for slot, axis in slots.items():
        variables = inputs.get(slot, ())
        for index, variable in enumerate(variables[:6]):
            label = slot if len(variables) == 1 else f"{slot}[{index}]"
            rows.append(_side(label, variable, axis))
        if len(variables) > 6:
            rows.append((f"{slot}: {len(variables) - 6} more", "", "", ""))
    widths = [max((len(r[i]) for r in rows), default=0) for i in range(3)]
    lines = ["    " + "    ".join([*(r[i].ljust(widths[i]) for i in range(3)), r[3]]).rstrip() for r in rows]
    place = " ".join(x for x in (site.source_line() if site is not None else "", position) if x) or op_type
    lines.append(f"    at {place}" + (f"    {site.short()}" if site is not None else ""))
    specs = ", ".join(f"{slot} {v.spec.text()}" for slot in slots for v in inputs.get(slot, ())[:6])
    failure = error.error(f"{shown_type(op_type)}: {error.requirement}\n" + "\n".join(lines))
    return failure.told(op=op_type, slot=next((s for s in error.sides if s in inputs), None), required=error.requirement, seen=specs or None, site=site)


def _side(label: str, variable: VariableView, axis: int | None) -> tuple[str, str, str, str]:
    spec = variable.spec
    label_text = f"{label} = {variable.name}"
    if axis is None or spec.dims is None or not -len(spec.dims) <= axis < len(spec.dims):
        site = variable.call_site
        return label_text, spec.text(), variable.role_words, site.short() if site is not None else ""
    dim = spec.dims[axis]
    source = origin_of(variable, dim)
    site = source.call_site
    return label_text, spec.text(), f"{dim} from {source.role_words}", site.short() if site is not None else ""


def origin_of(variable: VariableView, dim: Size) -> VariableView:
    """Return the variable that brought ``dim`` in: followed back through the inputs with the same dim."""
    visited: set[str] = set()
    while variable.op is not None and variable.name not in visited:
        visited.add(variable.name)
        source = None
        for candidate in variable.op.input_variables():
            dims = candidate.spec.dims
            if candidate.name != variable.name and dims is not None and any(d is dim or d == dim for d in dims):
                source = candidate
                break
        if source is None:
            break
        variable = source
    return variable
