"""PaddlePaddle's broadcasting: the rule of dims, the view of the smaller operand, and the sum as its adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from foreshape.core.dims import Size
from foreshape.core.spec import Lod, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator.require import RuleError, require_broadcast, require_broadcast_to, require_equal
from foreshape.language.ops.rules.held_numbers import held


def broadcast_dims(
    x: Sequence[Size], y: Sequence[Size], axis: int = -1, slots: tuple[str, str] = ("X", "Y"), ragged: tuple[bool, bool] = (False, False)
) -> tuple[Size, ...]:
    """Return the dims of an elementwise result.

    ``axis == -1`` aligns the last dims, as numpy does; otherwise dim 0 of the operand of lower rank is at ``axis`` of the other. A dim of 1 becomes the other
    operand's. If this is open, a guard requires equal dims or one of 1. ``ragged``: true for an operand with rows of sequences in dim 0, whose number stays.
    """
    check_axis(len(x), len(y), axis, slots)
    low, high = min(len(x), len(y)), max(len(x), len(y))
    start = high - low if axis == -1 else axis
    first = (1,) * start + tuple(x) + (1,) * (high - start - low) if len(x) < len(y) else tuple(x)
    second = (1,) * start + tuple(y) + (1,) * (high - start - low) if len(y) < len(x) else tuple(y)
    x_shift, y_shift = (start if len(x) < len(y) else 0), (start if len(y) < len(x) else 0)
    out: list[Size] = []
    for place, (a, b) in enumerate(zip(first, second, strict=True)):
        if a is b or (isinstance(b, int) and b == 1):
            out.append(a)
            continue
        if isinstance(a, int) and a == 1:
            out.append(b)
            continue
        requirement, sides = f"the dims of {slots[0]} and {slots[1]} must be equal or 1", {slots[0]: place - x_shift, slots[1]: place - y_shift}
        x_rows, y_rows = ragged[0] and place == 0 == x_shift, ragged[1] and place == 0 == y_shift
        if x_rows and y_rows:
            out.append(require_equal(a, b, requirement, **sides))
        elif x_rows or y_rows:
            out.append(require_broadcast_to(*((b, a) if x_rows else (a, b)), requirement, **sides))
        else:
            out.append(require_broadcast(a, b, requirement, **sides))
    return tuple(out)


def check_axis(x: int, y: int, axis: int, slots: tuple[str, str] = ("X", "Y")) -> None:
    """Refuse an axis if the dims of the operand of lower rank do not fit into those of the other from there."""
    if axis != -1 and not 0 <= axis <= abs(x - y):
        words = f"axis must be -1 or in [0, {abs(x - y)}], since {slots[0]} has {x} dims and {slots[1]} has {y}; seen {axis}"
        raise RuleError(words, dict.fromkeys(slots))


def broadcast_lod(x: Spec, y: Spec, dims: Sequence[Size], axis: int = -1) -> Lod | None:
    """Return the sequences of the rows of an elementwise result: of the first ragged operand with its rows kept as rows."""
    for operand in (x, y):
        if operand.lod is not None and operand.dims and (len(operand.dims) == len(dims) or axis == 0) and operand.dims[0] == dims[0]:
            return operand.lod
    return None


def aligned(y: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return ``y`` as a view for torch's broadcasting against ``x``, by PaddlePaddle's rule."""
    if axis == -1 or y.dim() >= x.dim() or axis == x.dim() - y.dim():
        return y
    return y.reshape((1,) * axis + tuple(y.shape) + (1,) * (x.dim() - axis - y.dim()))


def sum_to(grad: Tensor, operand: Tensor, partner: Tensor, axis: int) -> Tensor:
    """Return ``grad`` (of the broadcast result) summed over the broadcast axes of ``operand``, in the shape of ``operand``."""
    if grad.shape == operand.shape:
        return grad
    axes, keeps, fits = _axes_to_sum(grad.shape, operand.shape, partner.dim(), axis)
    if axes:
        grad = grad.sum(axes, keeps)
    return grad if fits else grad.reshape(operand.shape)


@lru_cache(4096)  # shapes come again in each step, and to compare them takes longer than a small sum
def _axes_to_sum(grad: tuple[int, ...], dims: tuple[int, ...], partner_rank: int, axis: int) -> tuple[tuple[int, ...], bool, bool]:
    """Return the axes to sum over, whether they stay with one entry, and whether the sum has the shape ``dims`` then."""
    start = len(grad) - len(dims) if axis == -1 or len(dims) >= partner_rank else axis
    padded = (1,) * start + dims + (1,) * (len(grad) - start - len(dims))
    axes = tuple([k for k, (size, d) in enumerate(zip(grad, padded, strict=True)) if d == 1 != size])
    gone = {k for k in range(len(grad)) if not start <= k < start + len(dims)}
    return axes, {*axes} != gone or not axes, {*axes} == gone or not gone


def before_sum(requested: bool, operand: Spec, out: Spec) -> Size:
    """Return the bytes of a wanted gradient in the broadcast shape; 0 if it is the operand's shape."""
    return out.nbytes if requested and operand.dims != out.dims else 0


def where_else_zero(condition: Tensor, d: Tensor, into: Tensor | None) -> Tensor:
    """Return ``d`` where the condition holds, else 0; in the memory of ``d`` if it is given as ``into`` too."""
    return torch.where(condition, d, held(0.0, d.dtype), out=into)
