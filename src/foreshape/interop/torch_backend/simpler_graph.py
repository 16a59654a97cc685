"""Fewer calls in a graph, with the same numbers to the bit: transposes of transposes, second names of values, copies, sums and their views, linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import torch
from foreshape.interop.torch_backend.traced_call import is_view

_ATEN: Final[Any] = torch.ops.aten


def simplify(graph: Any) -> None:
    """Rewrite a graph of AOTAutograd in place."""
    results = {operand for node in graph.nodes if node.op == "output" for operand in node.all_input_nodes}
    for node in [*graph.nodes]:
        if node.op != "call_function":
            continue
        if node.target in (_ATEN.detach.default, _ATEN.alias.default):
            _forward(node, node.args[0], results)
        elif node.target is _ATEN.clone.default:
            _copy(node, results)
        elif (axes := _transposition(node)) is not None:
            base = node.args[0]
            inner_axes = _transposition(base)
            if inner_axes is not None and [inner_axes[axis] for axis in axes] == [*range(len(axes))]:
                _forward(node, base.args[0], results)
        elif node.target is _ATEN.view.default:
            _sum_without_axis(node)
            _linear(node, results)
    for node in [*graph.nodes]:
        if node.target in (_ATEN.addmm.default, _ATEN.mm.default):
            _linear(node, results)
    for node in reversed([*graph.nodes]):  # calls left without a reader
        if node.op == "call_function" and not node.users and node.target in _REPLACED:
            graph.erase_node(node)


_REPLACED: Final = frozenset(
    {
        *(_ATEN.detach.default, _ATEN.alias.default, _ATEN.clone.default, _ATEN.t.default, _ATEN.transpose.int, _ATEN.permute.default),
        *(_ATEN.view.default, _ATEN.addmm.default, _ATEN.mm.default, _ATEN.sum.dim_IntList),
    }
)
"""The operators with readers lost here, perhaps."""


def _forward(node: Any, value: Any, results: set[Any]) -> None:
    """Let the readers of a node read another value, the graph's results too where nothing else holds its memory."""
    alone = value.op == "call_function" and not is_view(value.target) and value not in results

    def reads(user: Any) -> bool:
        return alone or user.op != "output"

    node.replace_all_uses_with(value, delete_user_cb=reads)
    if alone and node in results:
        results.add(value)


def _copy(node: Any, results: set[Any]) -> None:
    """Let the readers of a copy read the value; nothing changes it. Not where both are handed out, nor where the copy lies otherwise."""
    base = node.args[0]
    copied, value = node.meta["val"], base.meta["val"]
    if base.op != "call_function" or is_view(base.target) or _is_handed_out(base, results) or copied.is_conj() != value.is_conj():
        return
    if [*map(str, copied.stride())] == [*map(str, value.stride())]:
        _forward(node, base, results)


def _is_handed_out(value: Any, results: set[Any]) -> bool:
    return value in results or any(is_view(user.target) and _is_handed_out(user, results) for user in value.users if user.op == "call_function")


def _transposition(node: Any) -> list[int] | None:
    """Return the axis of its operand for each axis of a transposed value; None for another node."""
    if node.op != "call_function" or node.target not in (_ATEN.t.default, _ATEN.transpose.int, _ATEN.permute.default):
        return None
    rank = node.args[0].meta["val"].dim()
    axes = [*range(rank)]
    if node.target is _ATEN.t.default:
        return axes[::-1]
    if node.target is _ATEN.permute.default:
        return [axis % rank for axis in node.args[1]] if rank else []
    first, second = (axis % max(rank, 1) for axis in node.args[1:3])
    if rank:
        axes[first], axes[second] = axes[second], axes[first]
    return axes


def _sum_without_axis(node: Any) -> None:
    """Turn a view of a sum without its axes of size 1 into a sum without them."""
    total = node.args[0]
    if total.op != "call_function" or total.target is not _ATEN.sum.dim_IntList or len(total.users) != 1 or len(total.args) != 3 or not total.args[2]:
        return
    rank = total.meta["val"].dim()
    summed: set[int] = {axis % rank for axis in total.args[1]} if rank else set()
    left = [size for axis, size in enumerate(total.meta["val"].shape) if axis not in summed]
    if not summed or not _equal_sizes([*node.meta["val"].shape], left):
        return
    node.target, node.args, node.kwargs = total.target, (total.args[0], total.args[1], False), total.kwargs


def _equal_sizes(sizes: Sequence[Any], right: Sequence[Any]) -> bool:
    return [str(n) for n in sizes] == [str(n) for n in right]


def _linear(node: Any, results: set[Any]) -> None:
    """Turn a product with a transposed matrix, and the views around it for its rows, into a linear layer."""
    product = node.args[0] if node.target is _ATEN.view.default else node
    if product.op != "call_function" or product.target not in (_ATEN.addmm.default, _ATEN.mm.default) or product.kwargs:
        return
    *bias, rows, weight = product.args
    if weight.op != "call_function" or weight.target is not _ATEN.t.default or (bias and bias[0].meta["val"].dim() != 1):
        return
    if product is not node:
        if product in results or len(product.users) != 1 or rows.op != "call_function" or rows.target is not _ATEN.view.default:
            return
        flat, unflattened = rows.meta["val"], rows.args[0].meta["val"]
        result = [*unflattened.shape[:-1], product.meta["val"].shape[-1]]
        if (
            unflattened.dim() < 3
            or not unflattened.is_contiguous()
            or str(flat.shape[-1]) != str(unflattened.shape[-1])
            or not _equal_sizes([*node.meta["val"].shape], result)
        ):
            return
        rows = rows.args[0]
    if any(value.meta["val"].dtype is not product.meta["val"].dtype for value in (*bias, rows, weight)):
        return
    node.target, node.args = _ATEN.linear.default, (rows, weight.args[0], *bias)
