"""The state of an import, as its parts and the functions of `foreshape.interop.forms` see it: `TorchImporter` has it, and knows them.

Its parts of torch's graphs have no types here: forms are read without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from foreshape.core.dims import Size
from foreshape.language.program import Program, Variable


class ImportState(Protocol):
    """The members of a `TorchImporter` that others read and write."""

    exported: Any
    program: Program
    found: dict[Any, Any]
    sizes: dict[str, int]
    symbols: dict[str, Size]
    kinds: dict[str, str]
    feeds: list[str]
    fetches: list[Variable]
    rolled: Any
    counting: Variable | None
    collected: dict[Any, Variable]
    masks: dict[tuple[str, str], tuple[Variable, Variable | None]]
    packings: list[Any]
    places: dict[str, tuple[Variable, int]]
    lines: Any
    functional: bool
    changed: dict[str, Variable]
    own: Any
    writes: Any
    jagged: Any

    def run_graph(self, module: Any, values: Sequence[Any]) -> list[Any]:
        """Import the graph of a branch or a body into the current block."""
        ...

    def call(self, node: Any) -> Any:
        """Return the results of a node, its ops written."""
        ...

    def renew(self, node: Any) -> None:
        """Compute a view anew, since the memory was changed."""
        ...

    def given(self, value: Any) -> Any:
        """Return what stands for an argument of a node."""
        ...

    def place_of(self, size: Size, x: Variable, axis: int) -> tuple[Variable, int]:
        """Return the first input, and its axis, of a size."""
        ...

    def asks_mode(self, node: Any) -> bool:
        """Tell whether a line of a node's trace asks for the mode of a module."""
        ...

    def in_training(self) -> Variable:
        """Return one number, 1 in training and 0 in a test."""
        ...
