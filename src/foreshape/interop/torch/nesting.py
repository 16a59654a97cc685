"""`Nesting`: the results of a module of torch in its own nesting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from foreshape.core.dims import Size
from foreshape.core.spec import BF16
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import FeedError
from foreshape.interop.torch.jagged_tensors import is_jagged, parts_of
from foreshape.interop.torch.open_size import OpenSize
from foreshape.interop.torch.untyped_torch import is_list, pytree, torch
from foreshape.language.program import Program, Variable

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
        leaves = [_FILLED[kind](next(found)) if kind in _FILLED else value for kind, value in self._kinds]
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


def _jagged(value: Any) -> Any:
    """Return a ragged result, a jagged tensor or rows and offsets, as a jagged tensor."""
    return torch.nested.nested_tensor_from_jagged(*value) if is_list(value) else value


def _tensor(value: Any) -> Any:
    return value


_FILLED: Final[Mapping[str, Callable[[Any], Any]]] = {"tensor": _tensor, "size": _size, "jagged": _jagged}


def result_kind(value: Any) -> tuple[str, Any]:
    """Return the kind of a result in an import: "tensor", "jagged", "size", or "value" with the value."""
    if isinstance(value, Variable):
        return ("jagged" if value.spec.lod is not None else "tensor"), None
    return ("size", None) if isinstance(value, OpenSize) else ("value", value)


def as_tensor(value: Any, like: Variable, given: Iterable[Any]) -> Any:
    """Return the fetched value of a variable as a tensor: bfloat16, for which arrays have no type, as it is there; a ragged one jagged.

    The latter has the offsets of an input if they are equal, as torch compares sequences by them.
    """
    if not isinstance(value, LoDTensor):
        found = torch.as_tensor(value)
        return found.bfloat16() if like.spec.dtype is BF16 else found
    offsets = torch.as_tensor(value.offsets()[0])
    same = (one.offsets() for one in given if is_jagged(one) and one.lengths() is None)
    return torch.nested.nested_tensor_from_jagged(torch.as_tensor(value.data), next((one for one in same if torch.equal(one, offsets)), offsets))


def feed_dims(program: Program, name: str) -> tuple[Size, ...]:
    """Return the dims of an input; of a ragged one the number of sequences behind them."""
    spec = program.global_block.vars[name].spec
    return spec.known_dims if spec.lod is None else (*spec.known_dims, *spec.lod.counts)


def sizes_fed(value: Any) -> tuple[int, ...]:
    """Return the sizes of a fed tensor, in the order of `feed_dims`."""
    if not is_jagged(value):
        return tuple(value.shape)
    counts = value.lengths()
    rows = value.values().shape
    return (rows[0] if counts is None else int(counts.sum()), *rows[1:], value.shape[0])


def check_alike(program: Program, names: Sequence[str], given: Sequence[Any]) -> None:
    """Check that inputs with one symbol for their rows have the same sequences.

    Raises:
        FeedError: they have others.
    """
    first: dict[Size, tuple[str, Any]] = {}
    for name, value in zip(names, given, strict=True):
        if is_jagged(value):
            of = first.setdefault(program.global_block.vars[name].spec.known_dims[0], (name, value))
            if of[1] is not value and not torch.equal(parts_of(of[1]).lengths, parts_of(value).lengths):
                raise FeedError(f"{of[0]} and {name} must have sequences of the same lengths: in the example their ragged sizes were one")


def _opened(tree: str, kinds: Sequence[tuple[str, Any]]) -> Nesting:
    return Nesting(pytree().treespec_loads(tree), kinds)
