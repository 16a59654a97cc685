"""Inputs changed by a graph: AOTAutograd computes new values, and copies them into the inputs at the end. Here calls write into the inputs where they can."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from foreshape.interop.torch.untyped_torch import is_list, torch
from foreshape.interop.torch_backend.traced_call import INTO, NORM, NORM_STATE, in_place_variant, is_view

_ATEN: Final[Any] = torch.ops.aten


class _ChainOfCalls(NamedTuple):
    """Calls changing inputs in turn.

    Attributes:
        nodes: of the calls, the first one first.
        inputs: changed, in the order of the results.
    """

    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]


def move_updates(graph: Any) -> None:
    """Move the forward pass's copies from the end of a joint graph behind the last forward node."""
    forward = [node for node in graph.nodes if node.meta.get("partitioner_tag") == "is_forward"]
    for node in [*graph.nodes]:
        if node.target is _ATEN.copy_.default and node.meta.get("partitioner_tag") == "must_be_in_forward" and forward:
            forward[-1].append(node)
            node.meta["partitioner_tag"] = "is_forward"
            forward.append(node)


def without_unread_state(graph: Any) -> None:
    """Take the moving mean and variance from the gradients of normalizations by the batch's own: torch's kernels do not read them."""
    for node in graph.nodes:
        if node.target is _ATEN.native_batch_norm_backward.default and node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def write_updates(graph: Any) -> None:
    """Mark the calls for writing into inputs, and the copies needless then: torch still runs the graph as it is."""
    for node in graph.nodes:
        if node.target is _ATEN.copy_.default and node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[0])
    place = {node: position for position, node in enumerate(graph.nodes)}
    results = {operand for node in graph.nodes if node.op == "output" for operand in node.all_input_nodes}
    copies = {node.args[1]: node for node in graph.nodes if node.target is _ATEN.copy_.default and node.args[0].op == "placeholder"}
    for source in [*copies]:
        if source not in copies:
            continue  # marked beside another result of its call
        maker = _maker(source)
        updated = _changed_results(maker, copies)
        update = _update(maker, tuple([copies[value].args[0] for value in updated])) if updated else None
        if update is None or any(value in results for value in updated) or not _is_last(update, place, [copies[value] for value in updated]):
            continue
        for node in update.nodes:
            node.meta[INTO] = True
        for value in updated:
            copies.pop(value).meta[INTO] = True


def _changed_results(maker: Any, copies: Collection[Any]) -> list[Any]:
    """Return the results of a call, or of a normalization its state, if all of them are copied into inputs; otherwise none."""
    if maker.op != "call_function":
        return []
    if not is_list(maker.meta.get("val")):
        return [maker]
    parts = {user.args[1]: user for user in maker.users if getattr(user.target, "__name__", "") == "getitem"}
    places = NORM_STATE if maker.target is NORM else range(len(maker.meta["val"]))
    values = [parts.get(index) for index in places]
    return [value for value in values if value is not None] if all(value in copies for value in values) else []


def _update(maker: Any, inputs: tuple[Any, ...]) -> _ChainOfCalls | None:
    """Return the calls for new values of inputs out of these themselves; None if there are others among them."""
    if any(_form(value) != _form(p) for value, p in zip(_results(maker, len(inputs)), inputs, strict=True)):
        return None
    if maker.target is NORM:
        return _ChainOfCalls((maker,), inputs) if maker.args[3:5] == inputs else None
    if in_place_variant(maker.target) is None:
        return None
    first = maker.args[0]
    operands: tuple[Any, ...] = tuple(first) if is_list(first) else (first,)
    if operands == inputs:
        return _ChainOfCalls((maker,), inputs)
    if not all(isinstance(item, torch.fx.Node) and [*item.users] == [maker] and _maker(item).op == "call_function" for item in operands):
        return None
    former = _maker(operands[0])
    if any(_maker(item) is not former for item in operands) or len(_results(former, len(operands))) != len(operands) or former.target is NORM:
        return None
    if is_list(former.meta["val"]) and [item.args[1] for item in operands] != [*range(len(operands))]:
        return None
    earlier = _update(former, inputs)
    return earlier and _ChainOfCalls((*earlier.nodes, maker), inputs)


def _is_last(update: _ChainOfCalls, place: dict[Any, int], copies: Sequence[Any]) -> bool:
    """Tell whether nobody else reads the inputs, or views of them, once their memory is written."""
    first = place[update.nodes[0]]
    known = {*update.nodes, *copies}
    return all(reader in known or reader.op == "output" or place[reader] < first for p in update.inputs for reader in _readers(p))


def _readers(value: Any) -> Iterator[Any]:
    for user in value.users:
        yield user
        if user.op == "call_function" and is_view(user.target):
            yield from _readers(user)


def _results(maker: Any, count: int) -> Sequence[Any]:
    value = maker.meta["val"]
    if maker.target is NORM:
        return [value[index] for index in NORM_STATE]
    return value if is_list(value) else [value]


def _form(value: Any) -> tuple[Any, ...]:
    """Return what two tensors have in common where one can be in the memory of the other."""
    tensor = value.meta["val"] if isinstance(value, torch.fx.Node) else value
    return (tensor.dtype, tensor.device, *map(str, tensor.shape)) if isinstance(tensor, torch.Tensor) else ()


def _maker(value: Any) -> Any:
    return value.args[0] if getattr(value.target, "__name__", "") == "getitem" else value
