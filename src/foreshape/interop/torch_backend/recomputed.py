"""Values computed again for the backward pass of a joint graph, in the place of kept ones: where the peak is, the most bytes for the least time first.

The graph of AOTAutograd holds the forward and the backward pass. The values of the first read by the second are kept meanwhile. A value given again
by its own operands is taken off the peak: its operators are copied to the place of its first reader there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import torch
from foreshape.interop.torch_backend.node_seconds import nbytes_of, seconds_of
from foreshape.interop.torch_backend.traced_call import is_random, is_view, work_of_node, workspace_of_node

_ATEN: Final[Any] = torch.ops.aten
_SHARE: Final = 0.05
"""The greatest part of a step's time spent on a lower peak, if no limit asks for more."""
_LEAST: Final = 1 / 256
"""A value of a smaller part of the peak is not worth its operators."""
_FOLDED: Final = 64
"""So many operators at most give a value again."""


@dataclass(slots=True)
class Recomputed:
    """The outcome: the bytes at the peak beside inputs, before and after, by the graph alone; and the values computed again."""

    eager_peak: int
    peak_left: int
    names: list[str]


@dataclass(slots=True, eq=False)
class _Buffer:
    """The memory of a value and of its views.

    Attributes:
        maker: its node.
        nbytes: at the example's sizes.
        first, last: the positions of its maker and of its last reader.
        left, taken: the last reader in the forward pass, and the first in the backward pass; None without one there.
    """

    maker: Any
    nbytes: int
    first: int
    last: int
    left: int
    reread: int | None = None


class _Joint:
    """A joint graph in its running order."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.changed = _changed_inputs(graph)
        self.nodes = [node for node in graph.nodes if node.op != "output"]
        self.place = {node: position for position, node in enumerate(self.nodes)}
        forward = [position for position, node in enumerate(self.nodes) if _tag(node) == "is_forward" or node.name.startswith("primals")]
        self.border = forward[-1] + 1 if forward else 0
        """The position of the first node of the backward pass."""
        self.buffers: dict[Any, _Buffer] = {}
        self.workspaces = {position: workspace_of_node(node) for position, node in enumerate(self.nodes) if node.op == "call_function"}
        self.root: dict[Any, Any] = {}
        self._measure()

    def _measure(self) -> None:
        end = len(self.nodes)
        results = {item for node in self.graph.nodes if node.op == "output" for item in node.all_input_nodes}
        for position, node in enumerate(self.nodes):
            for operand in node.all_input_nodes:
                buffer = self.buffers.get(self.root.get(operand))
                if buffer is not None:
                    buffer.last = max(buffer.last, position)
                    if position < self.border:
                        buffer.left = max(buffer.left, position)
                    elif buffer.reread is None:
                        buffer.reread = position
            self.root[node] = self._root(node)
            if self.root[node] is node and isinstance(node.meta.get("val"), torch.Tensor) and node.op == "call_function":
                self.buffers[node] = _Buffer(node, nbytes_of(node.meta["val"]), position, position, position)
        for node in results:
            buffer = self.buffers.get(self.root.get(node))
            if buffer is not None:
                buffer.last = end  # it is handed out
                buffer.reread = buffer.reread if buffer.first >= self.border else buffer.first

    def _root(self, node: Any) -> Any:
        if node.op == "call_function" and is_view(node.target) and node.all_input_nodes:
            return self.root[node.all_input_nodes[0]]
        return node

    def memory(self) -> list[int]:
        """Return the bytes alive at each position."""
        steps = [0] * (len(self.nodes) + 2)
        for buffer in self.buffers.values():
            steps[buffer.first] += buffer.nbytes
            steps[buffer.last + 1] -= buffer.nbytes
        out, total = list[int](), 0
        for position, step in enumerate(steps[:-2]):
            total += step
            out.append(total + self.workspaces.get(position, 0))
        return out

    def is_changed(self, node: Any) -> bool:
        """Tell whether a node is an input with another value later, or may be one."""
        return node.op == "placeholder" and (self.changed is None or str(node.meta.get("desc")) in self.changed)

    # --- a value given again

    def chain(self, node: Any, position: int, dear: bool, chain: dict[Any, None], absent: Collection[Any] = ()) -> bool:
        """Collect the operators for a value once more at a position, operands first. Return False where they cannot, or are dear and may not be.

        Args:
            absent: values not kept, though they are alive there.
        """
        if node in chain:
            return True
        if node.op == "placeholder":
            return not self.is_changed(node)
        buffer = self.buffers.get(self.root.get(node))
        if buffer is not None and buffer.last >= position and buffer.maker not in absent and (buffer.maker is node or _is_kept(node, self.place, position)):
            return True
        if node.op != "call_function" or len(chain) >= _FOLDED or not is_repeatable(node, dear):
            return node.op == "get_attr"
        operands = node.all_input_nodes
        if node.target is _ATEN._native_batch_norm_legit_functional.default:
            operands = [item for item in node.args[:3] if item is not None]
        if not all(self.chain(item, position, dear, chain, absent) for item in operands):
            return False
        chain[node] = None
        return True


def _changed_inputs(graph: Any) -> set[str] | None:
    """Return torch's descriptions of the inputs changed by the network: they have other values later. None where torch does not tell them."""
    copied = {str(node.args[0].meta.get("desc")) for node in graph.nodes if node.target is _ATEN.copy_.default}
    results: Any = next((node.meta.get("desc") for node in graph.nodes if node.op == "output"), None)
    if results is None:
        return None
    return copied | {str(item.mutated_input) for item in results if type(item).__name__ == "InputMutationAOTOutput"}


def _is_kept(view: Any, place: dict[Any, int], position: int) -> bool:
    """Tell whether a view has a reader at a position or later: it is there then as its base is."""
    return any(place.get(user, position) >= position for user in view.users)


def _tag(node: Any) -> Any:
    return node.meta.get("partitioner_tag")


def is_repeatable(node: Any, dear: bool) -> bool:
    """Tell whether a node gives the same results once more; products and convolutions only if it may be ``dear``."""
    target = node.target
    if getattr(target, "__name__", "") == "getitem":
        return True
    if getattr(target, "namespace", "") != "aten" or is_random(node):
        return False
    return dear or work_of_node(node) is None


def repeat_views(graph: Any) -> None:
    """Copy views of the forward pass to the backward pass, each before its first reader there: it keeps their bases alone, each once."""
    joint = _Joint(graph)
    copies: dict[Any, Any] = {}

    def copied(node: Any) -> Any:
        if joint.place.get(node, joint.border) >= joint.border or joint.root[node] is node or len(node.all_input_nodes) != 1:
            return node
        if node not in copies and not joint.is_changed(joint.root[node]):
            base = copied(node.args[0])
            duplicate = copies[node] = graph.node_copy(node, _always(base))
            duplicate.meta = {**node.meta, "partitioner_tag": "is_backward"}
        return copies.get(node, node)

    for reader in joint.nodes[joint.border :]:
        with graph.inserting_before(reader):
            for operand in reader.all_input_nodes:
                reader.replace_input_with(operand, copied(operand))


def _always(value: Any) -> Callable[[Any], Any]:
    def copy(_: Any) -> Any:
        return value

    return copy


# --- the choice


def recompute(graph: Any, limit: int | None = None) -> Recomputed:
    """Copy operators of a joint graph to its backward pass, in place, until its values fit into a limit.

    Args:
        graph: of AOTAutograd: forward and backward pass in one.
        limit: bytes beside the inputs. Without one, operators other than products are copied as long as they lower the peak, for a small part of the time.
    """
    joint = _Joint(graph)
    memory = joint.memory()
    eager_peak = max(memory, default=0)
    allowed = math.inf if limit is not None else _SHARE * sum(seconds_of(node) for node in joint.nodes if node.op == "call_function")
    names: list[str] = []
    refused: set[Any] = set()
    while memory and max(memory) > (limit or 0):
        peak = max(memory)
        position = memory.index(peak)
        best = _best(joint, position, peak, allowed, refused, limit is not None)
        if best is None:
            break
        buffer, chain, seconds = best
        refused.add(buffer.maker)
        names.append(buffer.maker.name)
        allowed -= seconds
        _copy(joint, buffer, chain)
        joint = _Joint(graph)
        memory = joint.memory()
        refused = {node for node in refused if node in joint.place}
    return Recomputed(eager_peak, max(memory, default=0), names)


def _best(joint: _Joint, position: int, peak: int, allowed: float, refused: Collection[Any], dear: bool) -> tuple[_Buffer, list[Any], float] | None:
    """Return the value with the most bytes for its time among those idle at a position, and the operators for it once more."""
    best: tuple[float, _Buffer, list[Any], float] | None = None
    for buffer in _idle(joint, position):
        if buffer.nbytes < peak * _LEAST or buffer.maker in refused or buffer.reread is None:
            continue
        for may_be_dear in (False, True) if dear else (False,):
            chain: dict[Any, None] = {}
            readers = [user for user in _readers(joint, buffer) if joint.place[user] >= joint.border]
            if not readers or not joint.chain(buffer.maker, buffer.reread, may_be_dear, chain, {buffer.maker}):
                continue
            seconds = sum(map(seconds_of, chain))
            if seconds <= allowed and (best is None or buffer.nbytes / (seconds + 1e-9) > best[0]):
                best = buffer.nbytes / (seconds + 1e-9), buffer, [*chain], seconds
            break
    return None if best is None else best[1:]


def _idle(joint: _Joint, position: int) -> Iterator[_Buffer]:
    """Yield the values of the forward pass waiting at a position for the backward pass."""
    for buffer in joint.buffers.values():
        if buffer.first < joint.border and buffer.reread is not None and buffer.left < position < buffer.reread and buffer.last < len(joint.nodes):
            yield buffer


def _readers(joint: _Joint, buffer: _Buffer) -> list[Any]:
    """Return the readers of a value and of its views."""
    return [user for node, root in joint.root.items() if root is buffer.maker for user in node.users if user in joint.place]


def _copy(joint: _Joint, buffer: _Buffer, chain: list[Any]) -> None:
    """Copy operators before the first reader of a value in the backward pass, and let the readers from there on read the copies."""
    assert buffer.reread is not None
    reader = joint.nodes[buffer.reread]
    copies: dict[Any, Any] = {}
    views = [node for node, root in joint.root.items() if root is buffer.maker and node is not buffer.maker and joint.place[node] < joint.border]

    def copy(operand: Any) -> Any:
        return copies.get(operand, operand)

    def is_later(user: Any) -> bool:
        return joint.place.get(user, -1) >= joint.place[reader]

    with joint.graph.inserting_before(reader):
        for node in [*chain, *(view for view in views if view not in chain)]:
            duplicate = joint.graph.node_copy(node, copy)
            duplicate.meta = {**node.meta, "partitioner_tag": "is_backward"}
            if node.target is _ATEN._native_batch_norm_legit_functional.default:  # the same results, without the moving averages
                duplicate.target = _ATEN._native_batch_norm_legit.no_stats
                duplicate.args = (*duplicate.args[:3], *duplicate.args[5:])
                duplicate.meta["val"] = duplicate.meta["val"][:3]
            copies[node] = duplicate
    for node, duplicate in copies.items():
        node.replace_all_uses_with(duplicate, delete_user_cb=is_later)
    for node in reversed([*copies.values()]):
        if not node.users:
            joint.graph.erase_node(node)
