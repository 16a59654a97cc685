"""Name scopes: prefixes of names made within, and the attribute ``op_namescope`` that records the scope of an op."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from foreshape.errors import SchemaError
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block

if TYPE_CHECKING:
    from foreshape.language.program.program import Program

ATTRIBUTE: Final = "op_namescope"
"""PaddlePaddle's own attribute: ``/encoder/0/attention/``, and ``/`` outside of all scopes."""
RECOMPUTED: Final = "recompute_scope"
"""Parts of an ``op_namescope`` with this beginning and a number mark recomputed ops, and are no scopes of names."""
RECOMPUTE_MARK: Final = re.compile(rf"/({RECOMPUTED}_\d+)/")
"""The pattern of such a part in an op's ``op_namescope``."""
_MARK: Final = re.compile(rf"{RECOMPUTED}_\d+\Z")
_NAME: Final = re.compile(r"[\w-]+\Z")
_ENDINGS: Final = {"w": "weight", "b": "bias"}


class _ScopeReuse:
    """One description of a scope whose parameters are there already: names are counted from the beginning, as when the scope was described first."""

    __slots__ = ("counters", "path", "used")

    def __init__(self, path: str) -> None:
        self.path = path
        self.counters: dict[str, int] = {}
        self.used: set[str] = set()
        """The parameters asked for."""


class _Entry:
    """An entered scope, open until the first name in it settles its number."""

    __slots__ = ("given", "name", "open", "reuse")

    def __init__(self, name: str, reuse: _ScopeReuse | None) -> None:
        self.given = self.name = name
        self.open = True
        self.reuse = reuse
        """The reuse of the innermost scope, around it or itself, that is described again."""


class _Stack(threading.local):  # of a thread, as the current program: a ``with`` around layers that are called without it
    """The scopes of one thread, the outermost first."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.path = ""
        """As in the attribute; empty outside of all scopes."""

    def settle(self) -> None:
        """Say the path anew, after a scope was entered, left or numbered."""
        self.path = f"/{'/'.join([e.name for e in self.entries])}/" if self.entries else ""


_stack: Final = _Stack()


@tells_line
def name_scope(name: str, reuse: bool = False) -> contextlib.AbstractContextManager[None]:
    """Name the variables and ops made inside of the ``with``: names begin with the scope, and each op carries it.

    Examples:
        >>> with fs.name_scope("encoder"):
        ...     for i in range(2):
        ...         with fs.name_scope(str(i)):
        ...             x = layer.fc(x, 64, name="query")  # encoder.0.query.weight, encoder.0.query.bias, encoder.1.query.weight, ...

    A layer without a name is named by its kind: ``encoder.fc.weight``, then ``encoder.fc_1.weight``. A name in a `ParamAttr` and the name of
    an input are whole names, unchanged by scopes. Ops carry PaddlePaddle's attribute ``op_namescope``, as ``/encoder/0/``, also in files and
    in the gradient ops; `Op.scope` reads it.

    A scope entered again continues, as ``encoder`` in a loop around the ``with``. If the first name in it would be taken, it is another scope with a
    number: ``encoder_1``, and continues as this one. The outermost of the scopes still empty gets the number.

    With ``reuse=True`` layers share the parameters of the existing scope, as in siamese networks. They must be the same layers in the same order, and
    the scopes within are used again, too. The gradients of all uses are summed.

    Examples:
        >>> def tower(x, again):
        ...     with fs.name_scope("tower", reuse=again):
        ...         return layer.fc(layer.fc(x, 64, "relu"), 16)  # tower.fc.weight, tower.fc.bias, tower.fc_1.weight, tower.fc_1.bias
        >>> near = layer.cos_sim(tower(question, False), tower(answer, True))

    Args:
        name: of the scope, within the open ones.
        reuse: use the parameters of the scope of exactly this name, also of a loaded program; each ``with`` begins with its first layer.

    Raises:
        SchemaError: a name with other characters than letters, digits, ``_`` and ``-``; with ``reuse`` a scope without parameters, and within it a
            layer missing in the scope, or with parameters of another shape.
    """
    if not isinstance(name, str) or _NAME.match(name) is None or _MARK.match(name) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SchemaError(f"the name of a scope is made of letters, digits, _ and -, and is not that of a recompute scope; seen {name!r}")
    if not isinstance(reuse, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SchemaError.must("name_scope: reuse", "True or False", f"{reuse!r}")
    return _entered(name, _described_again(current_block().program, name) if reuse else None)


def _described_again(program: Program, name: str) -> _ScopeReuse:
    """Begin another description of an existing scope. Empty scopes around it are the last ones of their names."""
    entries = _stack.entries
    for depth, entry in enumerate(entries):
        if entry.open:
            number = _counters_of(program).get(_place(entries, depth), 0)
            entry.name, entry.open = f"{entry.given}_{number}" if number else entry.given, False
    _stack.settle()
    path = ".".join([*(e.name for e in entries), name])
    if not any(v.name.startswith(f"{path}.") for v in program.global_block.vars.values() if v.persistable):
        around = ".".join(e.name for e in entries)
        scope_names = sorted({v.name.removeprefix(f"{around}.").partition(".")[0] for v in program.parameters() if "." in v.name and v.name.startswith(around)})
        raise SchemaError(
            f"name_scope({name!r}, reuse=True): no parameter is in a scope {path} to be used again; describe it first without reuse"
            + (f". Names of parameters begin with: {', '.join(scope_names[:10])}" if scope_names else "")
        )
    return _ScopeReuse(path)


@contextlib.contextmanager
def _entered(name: str, reuse: _ScopeReuse | None) -> Generator[None]:
    entries = _stack.entries
    entry = _Entry(name, reuse or (entries[-1].reuse if entries else None))
    entry.open = reuse is None
    entries.append(entry)
    _stack.settle()
    try:
        yield
    finally:
        del entries[entries.index(entry) :]
        _stack.settle()


def current_scope() -> str:
    """Return the current scope of names, as in ``op_namescope``; empty outside of all."""
    return _stack.path


# --- names


def scoped_name(program: Program, key: str) -> str:
    """Return ``key`` in the current scope, numbered if taken by a layer there: the prefix of a layer's names."""
    entries = _stack.entries
    for depth, entry in enumerate(entries):
        if entry.open:
            _number(program, entries, depth, key)
            break
    base = ".".join([*[e.name for e in entries], key])
    number = _count(_counters_of(program), base)
    name = base if number == 0 else f"{base}_{number}"
    return scoped_name(program, key) if _is_used(program, name) else name


def _counters_of(program: Program) -> dict[str, int]:
    """Return the counts of names asked for: in the program, or, in a scope described again, since its beginning."""
    reuse = _stack.entries[-1].reuse if _stack.entries else None
    return program.counters if reuse is None else reuse.counters


def _place(entries: list[_Entry], depth: int) -> str:
    """Return the name that counts the scope at a place among the open ones."""
    return "/".join([*[e.name for e in entries[:depth]], entries[depth].given, ""])


def _count(counters: dict[str, int], name: str) -> int:
    """Count a request for a name in a scope; return the former count."""
    count = counters.get(f"{name}.", 0)
    counters[f"{name}."] = count + 1
    return count


def _number(program: Program, entries: list[_Entry], depth: int, key: str) -> None:
    """Settle the numbers of the open scopes. The outermost one, at ``depth``, is the last of its name, or a new one if the last has the key."""
    entry = entries[depth]
    counters, place = _counters_of(program), _place(entries, depth)
    number = counters.get(place, 0)  # of the last one of this name; the first has none
    while True:
        entry.name = f"{entry.given}_{number}" if number else entry.given
        name = ".".join([*[e.name for e in entries], key])
        if f"{name}." not in counters and not _is_used(program, name):
            break
        number += 1
    counters[place] = number
    for inner in entries[depth:]:
        inner.open = False
    _stack.settle()


def _is_used(program: Program, name: str) -> bool:
    """Tell whether a name is taken, and not to be used again."""
    if _stack.entries[-1].reuse is not None:
        return False
    variables = program.global_block.vars
    return f"{name}.weight" in variables or f"{name}.bias" in variables or f"{name}.tmp_0" in variables


def scoped_parameter(program: Program, prefix: str | None, suffix: str) -> str:
    """Return the name of a parameter in the current scope, with the end ``.weight`` or ``.bias``, or ``suffix``."""
    ending = _ENDINGS.get(suffix, suffix)
    variables, reuse = program.global_block.vars, _stack.entries[-1].reuse
    if prefix is None:
        name = scoped_name(program, ending)
    else:
        if not prefix.startswith(_stack.path[1:].replace("/", ".")):  # one unknown to all scopes
            prefix = scoped_name(program, prefix)
        name = base = f"{prefix}.{ending}"
        while name in (variables if reuse is None else reuse.used):
            name = f"{base}_{_count(_counters_of(program), base) + 1}"
    if reuse is not None:
        reuse.used.add(name)
        if name not in variables:
            existing_names = [v.name for v in variables.values() if v.persistable and v.name.startswith(f"{reuse.path}.")]
            raise SchemaError(
                f"{name} is not among the parameters of {reuse.path}, which is described again with reuse=True, so that it must have the same "
                f"layers in the same order: {', '.join(existing_names[:20])}"
            )
    return name


# --- the attribute


def scope_of(attributes: Attributes) -> tuple[str, ...]:
    """Return the scope of an op, from the outermost on."""
    path = attributes.values.get(ATTRIBUTE)
    return tuple([p for p in path.split("/") if p and _MARK.match(p) is None]) if isinstance(path, str) else ()


@functools.lru_cache(maxsize=4096)
def placed(attributes: Attributes, path: str) -> Attributes:
    """Return the same attributes with this ``op_namescope``, unless they have another one."""
    if attributes.values.get(ATTRIBUTE) not in (None, "", "/"):
        return attributes
    return attributes.with_text(ATTRIBUTE, path)


def placed_as(attributes: Attributes, like: Attributes) -> Attributes:
    """Return the attributes in the scope of another op, such as a gradient op's forward op."""
    path = like.values.get(ATTRIBUTE)
    return placed(attributes, path) if isinstance(path, str) and path not in ("", "/") else attributes
