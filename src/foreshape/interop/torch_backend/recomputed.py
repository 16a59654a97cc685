"""Values computed again for the backward pass of a joint graph, in the place of kept ones: where the peak is, the most bytes for the least time first.

The graph of AOTAutograd holds the forward and the backward pass. The values of the one that the other reads are kept meanwhile. A value that its own operands
can give again is taken off the peak: its operators are copied to the place of its first reader there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import is_list, torch
from foreshape.interop.torch_backend.traced_call import hinted, is_random, is_view, work_of_node, workspace_of_node

_ATEN: Final[Any] = torch.ops.aten
_RATES: Final = 4e10, 8e9
"""Multiplications and bytes in a second, of a thread: their ratio decides which operators are dear."""
_SHARE: Final = 0.05
"""The part of a step's time that is spent at most on a lower peak, if no limit asks for more."""
_LEAST: Final = 1 / 256
"""A value of a smaller part of the peak is not worth its operators."""
_FOLDED: Final = 64
"""So many operators at most give a value again."""


@dataclass(slots=True)
class Recomputed:
    """The outcome: the bytes at the peak beside inputs, before and after, by the graph alone; and the values that are computed again."""

    before: int
    after: int
    names: list[str]


@dataclass(slots=True, eq=False)
class _Held:
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
    taken: int | None = None


class _Joint:
    """A joint graph in the order in which it runs."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.changed = _changed_inputs(graph)
        self.nodes = [node for node in graph.nodes if node.op != "output"]
        self.place = {node: at for at, node in enumerate(self.nodes)}
        forward = [at for at, node in enumerate(self.nodes) if _tag(node) == "is_forward" or node.name.startswith("primals")]
        self.border = forward[-1] + 1 if forward else 0
        """The position of the first node of the backward pass."""
        self.held: dict[Any, _Held] = {}
        self.workspaces = {at: workspace_of_node(node) for at, node in enumerate(self.nodes) if node.op == "call_function"}
        self.root: dict[Any, Any] = {}
        self._measure()

    def _measure(self) -> None:
        end = len(self.nodes)
        results = {one for node in self.graph.nodes if node.op == "output" for one in node.all_input_nodes}
        for at, node in enumerate(self.nodes):
            for operand in node.all_input_nodes:
                held = self.held.get(self.root.get(operand))
                if held is not None:
                    held.last = max(held.last, at)
                    if at < self.border:
                        held.left = max(held.left, at)
                    elif held.taken is None:
                        held.taken = at
            self.root[node] = self._root(node)
            if self.root[node] is node and isinstance(node.meta.get("val"), torch.Tensor) and node.op == "call_function":
                self.held[node] = _Held(node, nbytes_of(node.meta["val"]), at, at, at)
        for node in results:
            held = self.held.get(self.root.get(node))
            if held is not None:
                held.last = end  # it is handed out
                held.taken = held.taken if held.first >= self.border else held.first

    def _root(self, node: Any) -> Any:
        if node.op == "call_function" and is_view(node.target) and node.all_input_nodes:
            return self.root[node.all_input_nodes[0]]
        return node

    def memory(self) -> list[int]:
        """Return the bytes alive at each position."""
        steps = [0] * (len(self.nodes) + 2)
        for held in self.held.values():
            steps[held.first] += held.nbytes
            steps[held.last + 1] -= held.nbytes
        out, total = list[int](), 0
        for at, step in enumerate(steps[:-2]):
            total += step
            out.append(total + self.workspaces.get(at, 0))
        return out

    def is_changed(self, node: Any) -> bool:
        """Tell whether a node is an input with another value later, or may be one."""
        return node.op == "placeholder" and (self.changed is None or str(node.meta.get("desc")) in self.changed)

    # --- a value given again

    def chain(self, node: Any, at: int, dear: bool, chain: dict[Any, None], given: Collection[Any] = ()) -> bool:
        """Collect the operators that give a value again at a position, operands first. Return False where they cannot, or are dear and may not be.

        Args:
            given: values that are not kept, though they are alive there.
        """
        if node in chain:
            return True
        if node.op == "placeholder":
            return not self.is_changed(node)
        held = self.held.get(self.root.get(node))
        if held is not None and held.last >= at and held.maker not in given and (held.maker is node or _is_kept(node, self.place, at)):
            return True
        if node.op != "call_function" or len(chain) >= _FOLDED or not is_repeatable(node, dear):
            return node.op == "get_attr"
        operands = node.all_input_nodes
        if node.target is _ATEN._native_batch_norm_legit_functional.default:
            operands = [one for one in node.args[:3] if one is not None]
        if not all(self.chain(one, at, dear, chain, given) for one in operands):
            return False
        chain[node] = None
        return True


def _changed_inputs(graph: Any) -> set[str] | None:
    """Return torch's descriptions of the inputs that the network changes: they have other values later. None where torch does not tell them."""
    results: Any = next((node.meta.get("desc") for node in graph.nodes if node.op == "output"), None)
    if results is None:
        return None
    return {str(one.mutated_input) for one in results if type(one).__name__ == "InputMutationAOTOutput"}


def _is_kept(view: Any, place: dict[Any, int], at: int) -> bool:
    """Tell whether a view has a reader at a position or later: it is there then as its base is."""
    return any(place.get(user, at) >= at for user in view.users)


def _tag(node: Any) -> Any:
    return node.meta.get("partitioner_tag")


def nbytes_of(tensor: Any) -> int:
    """Return the bytes of one of torch's tensors without numbers, at the example's sizes."""
    return math.prod(map(hinted, tensor.shape)) * tensor.element_size()


def is_repeatable(node: Any, dear: bool) -> bool:
    """Tell whether a node gives the same results once more; products and convolutions only if it may be ``dear``."""
    target = node.target
    if getattr(target, "__name__", "") == "getitem":
        return True
    if getattr(target, "namespace", "") != "aten" or is_random(node):
        return False
    return dear or work_of_node(node) is None


def _seconds(node: Any) -> float:
    """Return the time of a node, by estimate."""
    value = node.meta.get("val")
    if is_view(node.target) or getattr(node.target, "__name__", "") == "getitem":
        return 0.0
    tensors: list[Any] = [one for one in (value if is_list(value) else [value]) if isinstance(one, torch.Tensor)]
    tensors += [one.meta["val"] for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
    return (work_of_node(node) or 0) / _RATES[0] + sum(map(nbytes_of, tensors)) / _RATES[1]


def repeat_views(graph: Any) -> None:
    """Copy views of the forward pass to the backward pass, each before its first reader there: it keeps their bases alone, each once."""
    joint = _Joint(graph)
    copies: dict[Any, Any] = {}

    def copied(node: Any) -> Any:
        if joint.place.get(node, joint.border) >= joint.border or joint.root[node] is node or len(node.all_input_nodes) != 1:
            return node
        if node not in copies and not joint.is_changed(joint.root[node]):
            base = copied(node.args[0])
            made = copies[node] = graph.node_copy(node, _always(base))
            made.meta = {**node.meta, "partitioner_tag": "is_backward"}
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
    before = max(memory, default=0)
    allowed = math.inf if limit is not None else _SHARE * sum(_seconds(node) for node in joint.nodes if node.op == "call_function")
    names: list[str] = []
    refused: set[Any] = set()
    while memory and max(memory) > (limit or 0):
        peak = max(memory)
        at = memory.index(peak)
        best = _best(joint, at, peak, allowed, refused, limit is not None)
        if best is None:
            break
        held, chain, seconds = best
        refused.add(held.maker)
        names.append(held.maker.name)
        allowed -= seconds
        _copy(joint, held, chain)
        joint = _Joint(graph)
        memory = joint.memory()
        refused = {node for node in refused if node in joint.place}
    return Recomputed(before, max(memory, default=0), names)


def _best(joint: _Joint, at: int, peak: int, allowed: float, refused: Collection[Any], dear: bool) -> tuple[_Held, list[Any], float] | None:
    """Return the value with the most bytes for its time among those idle at a position, and the operators that give it again."""
    found: tuple[float, _Held, list[Any], float] | None = None
    for held in _idle(joint, at):
        if held.nbytes < peak * _LEAST or held.maker in refused or held.taken is None:
            continue
        for may_be_dear in (False, True) if dear else (False,):
            chain: dict[Any, None] = {}
            readers = [user for user in _readers(joint, held) if joint.place[user] >= joint.border]
            if not readers or not joint.chain(held.maker, held.taken, may_be_dear, chain, {held.maker}):
                continue
            seconds = sum(map(_seconds, chain))
            if seconds <= allowed and (found is None or held.nbytes / (seconds + 1e-9) > found[0]):
                found = held.nbytes / (seconds + 1e-9), held, [*chain], seconds
            break
    return None if found is None else found[1:]


def _idle(joint: _Joint, at: int) -> Iterator[_Held]:
    """Yield the values of the forward pass that wait at a position for the backward pass."""
    for held in joint.held.values():
        if held.first < joint.border and held.taken is not None and held.left < at < held.taken and held.last < len(joint.nodes):
            yield held


def _readers(joint: _Joint, held: _Held) -> list[Any]:
    """Return the readers of a value and of its views."""
    return [user for node, root in joint.root.items() if root is held.maker for user in node.users if user in joint.place]


def _copy(joint: _Joint, held: _Held, chain: list[Any]) -> None:
    """Copy operators before the first reader of a value in the backward pass, and let the readers there read the copies."""
    assert held.taken is not None
    before = joint.nodes[held.taken]
    copies: dict[Any, Any] = {}
    views = [node for node, root in joint.root.items() if root is held.maker and node is not held.maker and joint.place[node] < joint.border]

    def copy(operand: Any) -> Any:
        return copies.get(operand, operand)

    def is_later(user: Any) -> bool:
        return user in joint.place and joint.place[user] >= joint.border

    with joint.graph.inserting_before(before):
        for node in [*chain, *(view for view in views if view not in chain)]:
            made = joint.graph.node_copy(node, copy)
            made.meta = {**node.meta, "partitioner_tag": "is_backward"}
            if node.target is _ATEN._native_batch_norm_legit_functional.default:  # the same results, without the moving averages
                made.target = _ATEN._native_batch_norm_legit.no_stats
                made.args = (*made.args[:3], *made.args[5:])
                made.meta["val"] = made.meta["val"][:3]
            copies[node] = made
    for node, made in copies.items():
        node.replace_all_uses_with(made, delete_user_cb=is_later)
    for node in reversed([*copies.values()]):
        if not node.users:
            joint.graph.erase_node(node)
