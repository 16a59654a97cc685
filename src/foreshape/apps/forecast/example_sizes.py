"""Examples at other sizes, and the sizes of the traced steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foreshape.apps.forecast.size_formulas import Sizes
from foreshape.errors import SchemaError
from foreshape.interop.torch.untyped_torch import pytree, torch


def resized(example: Any) -> tuple[Callable[[int, int | None], Any], int, int | None, bool]:
    """Return a function from a batch size and a length to an example, its own two sizes, and whether it can have lengths.

    The first tensor's first axis is the batch, its second the length: axes as long are repeated or cut. The length is None where that tensor has one axis.

    Raises:
        SchemaError: the example has no tensors.
    """
    values, form = pytree().tree_flatten(example)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if not tensors:
        raise SchemaError.must("example", "a batch with tensors, or a function from a batch size and a length to one", f"{type(example).__name__} without one")
    first = tensors[0]
    if not first.dim() or not first.shape[0]:
        return lambda rows, columns: example, 1, None, False
    batch, length = int(first.shape[0]), int(first.shape[1]) if first.dim() > 1 else None

    def build(rows: int, columns: int | None) -> Any:
        out: list[Any] = []
        for value in values:
            if isinstance(value, torch.Tensor):
                if value.dim() and value.shape[0] == batch:
                    value = _fitted(value, 0, rows)
                if columns is not None:
                    for axis in range(1, value.dim()):
                        if value.shape[axis] == length:
                            value = _fitted(value, axis, columns)
            out.append(value)
        return pytree().tree_unflatten(out, form)

    return build, batch, length, True


def _fitted(value: Any, axis: int, size: int) -> Any:
    """Return a tensor with an axis of another size, repeated or cut."""
    if value.shape[axis] == size:
        return value
    return value.index_select(axis, torch.arange(size, device=value.device) % value.shape[axis])


def traced_sizes(batches: Sequence[Sizes], is_resizable: bool, equal: int, multiple: int = 1, *, has_rows: bool = False) -> list[Sizes]:
    """Return the sizes of the steps to trace: so many at the largest batch of the run, then others, as the points of the formulas and a check.

    Their lengths are those of the run, or a little longer: shorter than the largest one's by a multiple. Batches have at least two examples if any batch of the
    run does, and all have one if not: operators broadcast and copy an axis of one example otherwise than all others.
    With ``has_rows`` no other number of examples than the largest batch's is traced.
    """
    rows, columns = max(batches, key=lambda size: size[0] * max(size[1], 1))
    if not is_resizable:
        return [(rows, columns)] * equal
    has_rows = has_rows or all(number == 1 for number, _ in batches)
    rows = rows if has_rows else max(rows, 2)
    sizes = [(rows, columns)] * equal
    lengths = sorted({length for _, length in batches if length > 1} - {columns})
    if not lengths:
        return sizes if has_rows else [*sizes, (rows + 1, columns), (rows + 3, columns)]
    second, third = (columns - (columns - lengths[len(lengths) // part]) // multiple * multiple for part in (2, 4))
    if has_rows:
        return [*sizes, (rows, second), (rows, third)]
    return [*sizes, (rows + 1, columns), (rows, second), (rows + 2, third)]
