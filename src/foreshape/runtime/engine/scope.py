"""`Scope`: the values of persistable variables, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import RLock
from typing import Any

from foreshape.core.hints import did_you_mean
from foreshape.core.pictures.figures import plural, short_bytes
from foreshape.core.pictures.markup import card, cut, ends, escape, folded, markup_table
from foreshape.core.values.conversion import to_numpy, to_tensor
from foreshape.core.values.rows import Rows
from foreshape.core.values.selected_rows import SelectedRows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, border
from foreshape.language.program.current import begin_anew
from foreshape.machine.kernels.pages import copied, is_aligned
from foreshape.runtime.engine.shared_state import Turns

_SHOWN, _LISTED = 10, 200
"""The values listed at a prompt, and in a notebook."""


class Scope:
    """The parameters, optimizer state and statistics of a run. `get` and `set` speak numpy."""

    __slots__ = ("__weakref__", "_lock", "_values", "_waiting", "module_names", "overwritten", "turns", "unnamed", "version")

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}
        self._waiting: dict[str, Callable[[], Tensor]] = {}
        """The makers of values at first use."""
        self._lock = RLock()
        self.turns = Turns()
        self.version = 0
        """The count of changes that a compiled step must notice: a tensor that is new or another one."""
        self.overwritten = 0
        """The count of values written over others, for steps with constants made of them."""
        self.module_names: Mapping[str, str] = {}
        """The names in the ``state_dict`` of the torch module that the values came from, each with its name here."""
        self.unnamed: frozenset[str] = frozenset()
        """The values of the module that are in no ``state_dict``: constants, and buffers that are not kept."""

    def set(self, name: str, array: Any) -> None:
        """Set the value ``name`` from an array (it is copied). A value of the same shape and element type keeps its place in memory.

        Raises:
            ExecutionError: it is no array of numbers.
        """
        with border(f"{name}: {type(array).__name__} is not an array of numbers", ExecutionError), torch.inference_mode():
            value: Any = rows_of(array) if isinstance(array, SelectedRows) else to_tensor(array)
            self.store(name, value, owned=False)

    def fill(self, values: Mapping[str, Tensor]) -> None:
        """Set values from tensors (they are copied), all or none: the memory of all is there before the first is put in."""
        with torch.inference_mode():
            current = {name: self._values.get(name) for name in values}
            new = {n: _stored(v, owned=False) for n, v in values.items() if not _same_place(current[n], v)}
            for name, value in values.items():
                self.store(name, new.get(name, value))

    def get(self, name: str) -> Any:
        """Return a copy of the value ``name`` as a numpy array, of sparse rows as a `SelectedRows`. Raise `ExecutionError` if there is none."""
        value: Any = self.tensor(name)
        if isinstance(value, Rows):
            return SelectedRows(to_numpy(value.rows).copy(), to_numpy(value.values).copy(), value.height)
        return to_numpy(value).copy() if value.device.type == "cpu" else to_numpy(value)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor ``name`` itself, not a copy. Raise `ExecutionError` without one."""
        value = self._values.get(name)
        if value is None:
            value = self._deferred(name)
        if value is None:
            names = self.names()
            raise ExecutionError(
                f"there is no value for {name!r} in the scope; it holds {len(names)} values: run the startup program, or set it{did_you_mean(name, names)}"
            )
        return value

    def defer(self, name: str, make: Callable[[], Tensor]) -> None:
        """Let ``make`` make the value ``name`` at its first use, in place of the present one."""
        with self._lock:
            self._values.pop(name, None)
            self._waiting[name] = make
            self.version += 1

    def _deferred(self, name: str) -> Tensor | None:
        """Return a deferred value, made once for all threads."""
        with self._lock, torch.inference_mode():
            make = self._waiting.get(name)
            if make is not None:
                self._values[name] = _stored(make(), owned=True)
                del self._waiting[name]
            return self._values.get(name)

    def lend(self, name: str) -> Tensor | None:
        """Return a deferred value for a while: it stays deferred, and is made again at its first use. None for any other value.

        Args:
            name: of the value.
        """
        with self._lock, torch.inference_mode():
            make = self._waiting.get(name)
            return None if make is None else _stored(make(), owned=True)

    def deferred(self) -> set[str]:
        """Return the names of the deferred values."""
        return {*self._waiting}

    def names(self) -> list[str]:
        """Return the names of all values, sorted."""
        return sorted({*self._values, *self._waiting})

    def __getitem__(self, name: str) -> Any:
        """Return the value, as `get`."""
        return self.get(name)

    def __setitem__(self, name: str, array: Any) -> None:
        """Set the value, as `set`."""
        self.set(name, array)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _facts(self) -> tuple[str, list[tuple[str, str, str, int]]]:
        """Return a line on the scope, and of each value: name, element type, shape, bytes."""
        rows = [(n, str(v.dtype).removeprefix("torch."), str(list(v.shape)), _bytes(v)) for n, v in sorted(self._values.items())]
        waiting = f", and {plural(len(self._waiting), 'value')} that are read when they are used" if self._waiting else ""
        return f"Scope: {plural(len(rows), 'value')}, {short_bytes(sum(r[3] for r in rows)) or '0B'}{waiting}", rows

    def __repr__(self) -> str:
        heading, rows = self._facts()
        largest = sorted(rows, key=lambda r: -r[3])[:_SHOWN]
        lines = [f"  {cut(escape(n).replace(chr(10), ' '), 60)}: {kind} {shape}, {short_bytes(size) or '0B'}" for n, kind, shape, size in largest]
        ending = [f"  and {plural(len(rows) - _SHOWN, 'smaller value')}; scope.names() has them all"] if len(rows) > _SHOWN else []
        return "\n".join([heading, *lines, *ending])

    def _repr_html_(self) -> str:
        heading, rows = self._facts()
        listed = [rows[index] if index is not None else ("…", "", "", None) for index in ends(len(rows), _LISTED)]
        table = markup_table(
            ("name", "type", "shape", "bytes"), [(cut(n, 300), kind, shape, "" if b is None else f"{b:,}") for n, kind, shape, b in listed], (3,)
        )
        words = "values" if len(rows) <= _LISTED else f"the first and the last {_LISTED // 2} by name; scope.names() has all"
        return card(heading, *([folded(words, table, open=len(rows) <= _SHOWN)] if rows else []))

    def __contains__(self, name: str) -> bool:
        return name in self._values or name in self._waiting

    def __copy__(self) -> Scope:
        """Return a scope of its own, with a copy of every value."""
        out = Scope()
        for name in self.names():
            out.store(name, self.tensor(name), owned=False)
        out.module_names, out.unnamed = self.module_names, self.unnamed
        return out

    def __deepcopy__(self, memo: object) -> Scope:
        return self.__copy__()

    def move(self, name: str, device: Any) -> Tensor:
        """Return the tensor of a name on a device (a ``torch.device`` with its number), where the scope holds it from now on."""
        value = self.tensor(name)
        if value.device != torch.device(device):
            value = self._values[name] = value.to(device)
            self.version += 1
        return value

    def share(self, name: str, value: Tensor) -> None:
        """Hold a tensor itself under ``name``, in the place of the present value; its owner may change it."""
        self._values[name] = value
        self._waiting.pop(name, None)
        self.version += 1

    def remove(self, name: str) -> None:
        """Drop the value ``name``, if there is one."""
        waiting = self._waiting.pop(name, None)
        if self._values.pop(name, None) is not None or waiting is not None:
            self.version += 1

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()
        self.version += 1

    def store(self, name: str, value: Tensor, owned: bool = True) -> Tensor:
        """Store a tensor: into the memory of the name if it fits, otherwise as a new value (a copy unless ``owned``).

        The memory begins where torch's own would, so that a resumed run computes the same bits.
        """
        old = self._values.get(name)
        if old is not None and _same_place(old, value):
            if old is not value:
                _ = old.become(_stored(value, owned)) if isinstance(old, Rows) else _copy_into(old, value)
                self.overwritten += 1
            return old
        self._values[name] = stored = _stored(value, owned)
        self._waiting.pop(name, None)
        self.version += 1
        return stored


def _copy_into(old: Tensor, value: Tensor) -> None:
    if old.is_inference():  # torch changes it within its inference mode alone
        with torch.inference_mode():
            old.copy_(value)
    else:
        old.copy_(value)


def _same_place(old: Any, value: Any) -> bool:
    """Return True if a value goes into the memory of another: same shape and element type, both tensors or both sparse rows."""
    return old is not None and isinstance(old, Rows) is isinstance(value, Rows) and old.shape == value.shape and old.dtype == value.dtype


def _stored(value: Any, owned: bool) -> Any:
    if isinstance(value, Rows):
        return value if owned else Rows(copied(value.rows), copied(value.values), value.height)
    return value if owned and is_aligned(value) else copied(value)


def rows_of(selected: SelectedRows) -> Rows:
    """Return fed sparse rows in the kernels' form."""
    return Rows(to_tensor(selected.rows).clone(), to_tensor(selected.values).clone(), selected.height)


def _bytes(value: Tensor | Rows) -> int:
    tensor = value.values if isinstance(value, Rows) else value
    return tensor.numel() * tensor.element_size()


_default: list[Scope] = []


def default_scope() -> Scope:
    """Return the scope of executors by default."""
    if not _default:
        _default.append(Scope())
    return _default[0]


def reset(*, values: bool = True) -> None:
    """Forget the default program's description and the default scope's values.

    This thread's default main and startup programs are new and empty ones (inside of a ``with fs.program_guard(...)`` until it ends). The user's own
    variables, programs and scopes stay as they are, and can still be run. Only new layers cannot be put on the old variables.

    Args:
        values: clear the default scope too, so that parameters of the same names begin anew. Otherwise a network described again goes on from
            their values.

    Raises:
        SchemaError: inside of a ``with fs.program()``.
    """
    begin_anew()
    if values:
        default_scope().clear()
