"""`Nesting`: the results of a module of torch in its own nesting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import pytree, torch

_TREES: Final = pytree()  # a trace of torch follows no import


class Nesting:
    """Torch's tree of a module's results, and for each leaf its kind, "tensor", "size" or "value", with the last one's value."""

    def __init__(self, tree: Any, kinds: Sequence[tuple[str, Any]]) -> None:
        self._tree, self._kinds = tree, list(kinds)

    def __deepcopy__(self, memo: object) -> Nesting:
        return self

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _opened, (pytree().treespec_dumps(self._tree), self._kinds)

    def filled(self, results: Sequence[Any]) -> Any:
        """Return tensors in the nesting."""
        found = iter(results)
        leaves = [next(found) if kind == "tensor" else _size(next(found)) if kind == "size" else value for kind, value in self._kinds]
        return _TREES.tree_unflatten(leaves, self._tree)

    @staticmethod
    def leaves(inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the tensors among the inputs of a call, in order, and the others."""
        tensors: list[Any] = []
        others: list[Any] = []
        for leaf in _TREES.tree_leaves(tuple(inputs)):
            (tensors if isinstance(leaf, torch.Tensor) or hasattr(leaf, "__array__") else others).append(leaf)
        return tensors, others


def _size(value: Any) -> Any:
    """Return a size that a result holds; of a trace it may be one already."""
    return value.reshape(-1)[0].item() if isinstance(value, torch.Tensor) else value


def _opened(tree: str, kinds: Sequence[tuple[str, Any]]) -> Nesting:
    return Nesting(pytree().treespec_loads(tree), kinds)
