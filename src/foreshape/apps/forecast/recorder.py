"""The record of a traced run: each storage from its operator on until nobody holds it, and the user's line behind it."""

from __future__ import annotations

import importlib
import inspect
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from foreshape.apps.forecast.record import Note, Record
from foreshape.core.values.torch_private import private
from foreshape.interop.torch.node_sites import TORCH
from foreshape.interop.torch.untyped_torch import is_list, torch

_MODE: Final[Any] = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_SUMS: Final = ("add.Tensor", "clone.default")
"""Operators that autograd's engine does without new memory where the first tensor is nobody else's (``input_buffer.cpp``); of fake ones it makes a new one."""


class Recorder(_MODE):  # pyright: ignore[reportUntypedBaseClass]
    """Records the storages of operators' results.

    Attributes:
        record: the events.
        phase: "parameter", "input", "activation", "backward" or "optimizer": the kind of the next tensors.
        line: the user's line behind the last operator.
    """

    def __init__(self, scratch: Callable[[Recorder, str, Sequence[Any], Any], None] | None = None) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.record = Record()
        self.phase = "parameter"
        self.line = ""
        self.is_on = True
        self._scratch = scratch
        self._slots: dict[int, tuple[Any, int | None]] = {}
        self._lines: dict[int, str] = {}
        self._sum: tuple[int, Note, int, int] | None = None
        """The key, the note, the bytes and the first operand's slot of a sum of gradients, perhaps written in place."""

    # --- storages

    def count(self, value: Any, kind: str = "", name: str = "") -> None:
        """Allocate the storage of a tensor until it is dropped."""
        for part in dense_parts(value):
            storage = part.untyped_storage()
            if storage._cdata not in self._slots:
                note = Note(kind or self.phase, name, self.line, tuple(part.shape))
                self._hold(storage, self.record.allocate(storage.nbytes(), note))

    def leave_out(self, value: Any) -> None:
        """Do not count the storage of a tensor: it is not on the card."""
        for part in dense_parts(value):
            storage = part.untyped_storage()
            if storage._cdata not in self._slots:
                self._hold(storage, None)

    def slot_of(self, value: Any) -> int | None:
        """Return the slot of a tensor's storage; of a sparse one, of its values."""
        return self._slots.get(dense_parts(value)[-1].untyped_storage()._cdata, (None, None))[1]

    def rename(self, value: Any, kind: str, name: str) -> None:
        """Give the storage of a tensor another kind and name."""
        self.settle()
        slot = self.slot_of(value)
        if slot is not None:
            self.record.notes[slot] = self.record.notes[slot]._replace(kind=kind, name=name, shape=tuple(value.shape))

    def _hold(self, storage: Any, slot: int | None) -> None:
        key = storage._cdata

        def drop(_: Any) -> None:
            current = self._slots.pop(key)[1]
            if current is None:
                return
            if self._sum is not None and current == self._sum[3]:
                self._replace(current)
            else:
                self.record.free(current)

        self._slots[key] = weakref.ref(storage, drop), slot

    def _replace(self, slot: int) -> None:
        """Let the sum of gradients take the place of an operand dropped right behind it."""
        assert self._sum is not None
        key, note, _, _ = self._sum
        self._sum = None
        if key in self._slots:
            self._slots[key] = self._slots[key][0], slot
            self.record.notes[slot] = note._replace(kind=self.record.notes[slot].kind)
        else:
            self.record.free(slot)

    def settle(self) -> None:
        """Give the last sum of gradients memory of its own if its operands live on."""
        if self._sum is not None:
            key, note, size, _ = self._sum
            self._sum = None
            if key in self._slots:
                self._slots[key] = self._slots[key][0], self.record.allocate(size, note)

    # --- bytes without a tensor

    def take(self, size: int, kind: str, name: str, *, largest: int = 0, shrinks: bool = False) -> int:
        """Return the slot of bytes without a tensor; ``largest``: the most they may be."""
        slot = self.record.allocate(size, Note(kind, name, self.line, ()))
        if largest > size:
            self.record.largest[slot] = largest
        if shrinks:
            self.record.shrinking.add(slot)
        return slot

    @contextmanager
    def workspaces(self, sizes: Iterable[int], name: str) -> Generator[None]:
        """Take workspaces within the block."""
        slots = [self.take(size, "workspace", name) for size in sizes if size]
        try:
            yield
        finally:
            for slot in slots[::-1]:
                self.record.free(slot)

    # --- operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim" or not self.is_on:
            return func(*args, **(kwargs or {}))
        self.settle()
        name = str(func.__name__)
        node = private.current_autograd_node() if self.phase == "backward" else None
        self.line = self._line(node)
        result = _sparse_result(name, args, node)
        if result is None:
            result = func(*args, **(kwargs or {}))
        if name == "lift_fresh.default":  # a constant of the processor
            self.leave_out(result)
            return result
        if node is not None and name in _SUMS and self._begin_sum(name, node, args, result):
            return result
        for value in result if is_list(result) else (result,):
            if isinstance(value, torch.Tensor):
                self.count(value, name=name.partition(".")[0])
            elif is_list(value):
                for part in value:
                    if isinstance(part, torch.Tensor):
                        self.count(part, name=name.partition(".")[0])
        if self._scratch is not None:
            self._scratch(self, name, args, node)
        return result

    def _begin_sum(self, name: str, node: Any, args: Any, result: Any) -> bool:
        is_stolen = name == "clone.default" and "AccumulateGrad" in node.name() and args[0].stride() == result.stride()
        if not is_stolen and (name == "clone.default" or len(args) < 2 or not isinstance(args[1], torch.Tensor) or args[0].shape != args[1].shape):
            return False
        old = args[0]
        if result.is_sparse or old.dtype is not result.dtype:
            return False
        if not is_stolen and (old._is_view() or old.untyped_storage().nbytes() != old.numel() * old.element_size()):
            return False  # a view keeps its base, so the engine does not own its memory; an expanded tensor is not written into
        slot, storage = self.slot_of(old), result.untyped_storage()
        if slot is None or storage._cdata in self._slots:
            return False
        self._hold(storage, None)
        self._sum = storage._cdata, Note("backward", name.partition(".")[0], self.line, tuple(result.shape)), storage.nbytes(), slot
        return True

    def _line(self, node: Any) -> str:
        """Return the user's line of the running operator; of a gradient the line of its operator in the forward pass."""
        if node is not None:
            forward_line = self._lines.get(node._sequence_nr())
            if forward_line is not None:
                return forward_line
        line = line_of(_running())
        if self.phase == "activation" or node is not None:
            self._lines.setdefault(private.sequence_number() - 1, line)
        return line


def _sparse_result(name: str, args: Sequence[Any], node: Any) -> Any:
    """Return the result of some operators of sparse tensors, which torch's rules of shapes leave without an entry; None for others.

    The gradient of an embedding bag's table has an entry for each id (``EmbeddingBag.cpp``). A coalesced one has as many, as if all ids differed: nobody knows.
    A parameter takes the parts of its new gradient without a copy (``accumulate_grad.h``).
    """
    if name == "_embedding_bag_backward.default" and args[9]:
        grad, ids = args[0], args[1]
        indices, values, shape = ids.reshape(1, -1), grad.new_empty(ids.numel(), grad.shape[1]), (args[6], grad.shape[1])
    elif name == "clone.default" and args[0].is_sparse and node is not None and "AccumulateGrad" in node.name():
        indices, values, shape = args[0]._indices(), args[0]._values(), args[0].shape
    elif name in ("clone.default", "_coalesce.default") and args[0].is_sparse:
        indices, values, shape = torch.empty_like(args[0]._indices()), torch.empty_like(args[0]._values()), args[0].shape
    elif name == "sparse_mask.default" and not args[0].is_sparse:
        indices, values, shape = args[1]._indices(), torch.empty_like(args[1]._values(), dtype=args[0].dtype), args[0].shape
    else:
        return None
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False, is_coalesced=name != "clone.default")


def dense_parts(value: Any) -> tuple[Any, ...]:
    """Return a tensor's tensors with storages: itself, or a sparse one's indices and values."""
    return (value._indices(), value._values()) if value.is_sparse else (value,)


_KINDS: Final[dict[str, str]] = {}
_STEP: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "traced_step.py")
_PYTHON: Final = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def _kind(file: str) -> str:
    """Return "user's", "installed" (of another package), or "" for a file of torch, Python or this package."""
    kind = _KINDS.get(file)
    if kind is None:
        if file.startswith((TORCH, _PACKAGE)) or os.sep not in file:
            kind = ""
        elif any(part in file for part in _INSTALLED):
            kind = "installed"
        else:
            kind = "" if file.startswith(_PYTHON) else "user's"
        _KINDS[file] = kind
    return kind


def line_of(places: Iterable[tuple[str, int]]) -> str:
    """Return the first of these files and lines that is the user's, as ``file.py:12``; else the first of an installed package; empty where there is none.

    Args:
        places: the innermost first; what called the traced step is left out.
    """
    installed = ""
    for file, line in places:
        if file == _STEP:
            break
        kind = _kind(file)
        if kind == "user's":
            return f"{os.path.basename(file)}:{line}"
        if kind and not installed:
            installed = f"{os.path.basename(file)}:{line}"
    return installed


def _running() -> Iterator[tuple[str, int]]:
    """Yield the files and lines that run, the innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
