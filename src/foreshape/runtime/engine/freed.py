"""The memory of a step's values, and a pattern over dead ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from foreshape.core.spec import Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator.operator import Operator
from foreshape.language.program import Op

PATTERN = 0xFF
"""Over freed bytes: a floating-point number is then none, and an integer -1."""


def tensors_in(value: Any, offsets: bool = True) -> Iterator[Tensor]:
    """Yield all tensors that a value keeps alive: of rows, arrays, the kept rounds of a loop, values marked for a gradient.

    Args:
        offsets: include tensors of offsets, with their cached tables.
    """
    waiting: list[Any] = [value]
    visited: set[int] = set()
    while waiting:
        element: Any = waiting.pop()
        if element is None or isinstance(element, (str, bytes, int, float, type)) or id(element) in visited or (not offsets and isinstance(element, Offsets)):
            continue
        visited.add(id(element))
        if isinstance(element, torch.Tensor):
            yield element
        waiting += _parts(element)


def _parts(holder: Any) -> Iterable[Any]:
    """Return the references of an object, of the kinds in values."""
    if isinstance(holder, torch.Tensor):
        return vars(holder).values()
    if isinstance(holder, (Op, Operator, Spec)):  # the description holds no value of a run, and leads to all of the program
        return ()
    if isinstance(holder, dict):
        return list[Any](holder.values())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    if isinstance(holder, (list, tuple)):
        return list[Any](holder)  # pyright: ignore[reportUnknownArgumentType]
    kinds: list[Any] = type(holder).mro()  # pyright: ignore[reportUnknownMemberType]
    if not kinds[0].__module__.startswith("foreshape."):
        return ()
    slots = [s for c in kinds for s in getattr(c, "__slots__", ()) if s != "__weakref__"]
    return [*getattr(holder, "__dict__", {}).values(), *(getattr(holder, s, None) for s in slots)]


def place_of(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; 0 without any."""
    return tensor.untyped_storage().data_ptr()


class Freed:
    """A filler of the memory of dropped values, unless another value is in it.

    Args:
        given: values not owned by this step: feeds, the scope's, or the caller's of this block.
        constants: not owned either, and without new references as time goes on.
    """

    def __init__(self, tensors: Iterable[Any], constants: Iterable[Any] = ()) -> None:
        self._safe: set[int] = {place_of(t) for value in constants for t in tensors_in(value)}
        self._plain: dict[str, int] = {}
        """Names of tensors -> the address of their memory."""
        self._users: Counter[int] = Counter()
        self._others: dict[str, Any] = {}
        """Other values, with references that may change."""
        self._given: list[Any] = []
        for value in tensors:
            self.keep(value)

    def keep(self, value: Any) -> None:
        """Note that a value is not owned by this step."""
        self._safe |= {place_of(t) for t in tensors_in(value)}
        if not _is_plain(value):
            self._given.append(value)

    def hold(self, name: str, value: Any) -> None:
        """Note that a name has a value."""
        self._forget(name)
        if _is_plain(value):
            self._plain[name] = place_of(value)
            self._users[self._plain[name]] += 1
        else:
            self._others[name] = value

    def drop(self, dropped: Mapping[str, Any]) -> None:
        """Fill the memory of dropped names, where no other value has it."""
        for name in dropped:
            self._forget(name)
        gone = {place_of(t): t for v in dropped.values() for t in tensors_in(v, offsets=False)}
        gone = {address: t for address, t in gone.items() if address and address not in self._safe and not self._users[address]}
        if gone:
            live = {place_of(t) for v in (*self._others.values(), *self._given) for t in tensors_in(v)}
            for address, tensor in gone.items():
                if address not in live:
                    storage: Any = tensor.untyped_storage()
                    storage.fill_(PATTERN)

    def _forget(self, name: str) -> None:
        self._others.pop(name, None)
        if name in self._plain:
            self._users[self._plain.pop(name)] -= 1


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not vars(value)
