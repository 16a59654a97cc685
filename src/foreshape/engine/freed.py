"""What a step's values hold in memory, and a pattern over what none of them needs any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from foreshape.operator.operator import Operator
from foreshape.program import Op
from foreshape.spec import Spec
from foreshape.values.offsets import Offsets
from foreshape.values.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor

PATTERN = 0xFF
"""Over freed bytes: a floating-point number is then none, and an integer -1."""


def tensors_in(value: Any, offsets: bool = True) -> Iterator[Tensor]:
    """All tensors that a value keeps alive: of rows, arrays, what a loop's rounds keep, what is marked for a gradient.

    Args:
        offsets: those of offsets too, with what was worked out of them.
    """
    waiting: list[Any] = [value]
    seen: set[int] = set()
    while waiting:
        one: Any = waiting.pop()
        if one is None or isinstance(one, (str, bytes, int, float, type)) or id(one) in seen or (not offsets and isinstance(one, Offsets)):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            yield one
        waiting += _parts(one)


def _parts(one: Any) -> Iterable[Any]:
    """What something refers to, of the kinds that values are made of."""
    if isinstance(one, torch.Tensor):
        return vars(one).values()
    if isinstance(one, (Op, Operator, Spec)):  # the description, which holds no value of a run, and leads to all of the program
        return ()
    if isinstance(one, dict):
        return list[Any](one.values())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    if isinstance(one, (list, tuple)):
        return list[Any](one)  # pyright: ignore[reportUnknownArgumentType]
    kinds: list[Any] = type(one).mro()  # pyright: ignore[reportUnknownMemberType]
    if not kinds[0].__module__.startswith("foreshape."):
        return ()
    slots = [s for c in kinds for s in getattr(c, "__slots__", ()) if s != "__weakref__"]
    return [*getattr(one, "__dict__", {}).values(), *(getattr(one, s, None) for s in slots)]


def place_of(tensor: Tensor) -> int:
    """Which memory a tensor is in; 0 where it has none."""
    return tensor.untyped_storage().data_ptr()


class Freed:
    """Fills the memory of values that are dropped, where no other value is in it.

    Args:
        given: what is not this step's to give away: fed, held by a scope, or of whoever runs this block.
        constants: what is not either, and holds nothing else as time goes on.
    """

    def __init__(self, given: Iterable[Any], constants: Iterable[Any] = ()) -> None:
        self._safe: set[int] = {place_of(t) for value in constants for t in tensors_in(value)}
        self._plain: dict[str, int] = {}
        """Names of tensors -> the memory that they are in."""
        self._users: Counter[int] = Counter()
        self._others: dict[str, Any] = {}
        """Values that are no tensors, and that hold other ones as time goes on."""
        self._given: list[Any] = []
        for value in given:
            self.keep(value)

    def keep(self, value: Any) -> None:
        """A value is not this step's to give away."""
        self._safe |= {place_of(t) for t in tensors_in(value)}
        if not _is_plain(value):
            self._given.append(value)

    def hold(self, name: str, value: Any) -> None:
        """A name has a value."""
        self._forget(name)
        if _is_plain(value):
            self._plain[name] = place_of(value)
            self._users[self._plain[name]] += 1
        else:
            self._others[name] = value

    def drop(self, dropped: Mapping[str, Any]) -> None:
        """Names have no values any more: fill what was theirs alone."""
        for name in dropped:
            self._forget(name)
        gone = {place_of(t): t for v in dropped.values() for t in tensors_in(v, offsets=False)}
        gone = {at: t for at, t in gone.items() if at and at not in self._safe and not self._users[at]}
        if gone:
            others = {place_of(t) for v in (*self._others.values(), *self._given) for t in tensors_in(v)}
            for at, tensor in gone.items():
                if at not in others:
                    whole: Any = tensor.untyped_storage()
                    whole.fill_(PATTERN)

    def _forget(self, name: str) -> None:
        self._others.pop(name, None)
        if name in self._plain:
            self._users[self._plain.pop(name)] -= 1


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not vars(value)
