"""Import of gradients of a network's own (`foreshape.interop.torch.traced_gradients`): their ops go into the op of the gradient."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foreshape import layer
from foreshape.errors import SchemaError
from foreshape.interop.forms.rules import from_torch
from foreshape.interop.torch.import_state import ImportState
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_of
from foreshape.language.program import Block, Op, Program, Variable
from foreshape.language.program.current import current_block
from foreshape.language.program.op import is_empty_name


@dataclass
class GradientInImport:
    """A gradient in the course of its import.

    Attributes:
        block, first: the block of its ops, and the first of them.
        tensors, gradients: its results, and the stand-ins for their gradients.
        outer: stand-ins for gradients known elsewhere alone.
        missing: the operators in it without a form here, each with its reason.
    """

    block: Block
    first: Op
    tensors: list[Variable] = field(default_factory=list[Variable])
    gradients: list[Variable] = field(default_factory=list[Variable])
    outer: list[Variable] = field(default_factory=list[Variable])
    missing: list[str] = field(default_factory=list[str])


class ImportedGradients:
    """The gradients of one import. ``current``: the one being imported."""

    def __init__(self) -> None:
        self.listed: list[tuple[GradientInImport, Op, dict[int, Variable], str]] = []
        self.current: GradientInImport | None = None

    def stand_in(self, x: Variable, outer: bool) -> Variable:
        """Return a stand-in for the gradient of a result, zeros."""
        made: Variable = layer.fill_like(x, 0.0)
        assert made.op is not None
        if self.current is None:
            self.current = GradientInImport(current_block(), made.op)
        (self.current.outer if outer else self.current.gradients).append(made)
        if not outer:
            self.current.tensors.append(x)
        return made

    def end(self, op: Op, results: dict[int, Variable], subject: str, refusal: str) -> None:
        """End the current gradient at its op. ``results``: place in X -> its gradient."""
        if refusal or self.current is None or self.current.missing:
            reason = refusal or "; ".join(self.current.missing if self.current is not None else ())
            op.set_attribute("refusal", f"the gradient of {subject} cannot be imported{': ' if reason else ''}{reason}")
        if self.current is not None:
            self.listed.append((self.current, op, results, subject))
        self.current = None

    def misses(self, words: str) -> bool:
        """Note an operator without a form here in the current gradient; returns False outside of any."""
        if self.current is not None:
            self.current.missing.append(words)
        return self.current is not None

    def settle(self, importer: ImportState) -> Program:
        """Move the ops of each gradient into its op. Returns the program."""
        if not self.listed:
            return importer.program
        readers: dict[str, set[int]] = {}
        for op in importer.program.all_ops():
            for name in op.all_reads():
                readers.setdefault(name, set()).add(id(op))
        for variable in importer.fetches:
            readers.setdefault(variable.name, set()).add(0)
        for gradient, op, results, subject in self.listed:
            _settle(gradient, op, results, subject, readers)
        importer.program.touch()
        return importer.program


def _settle(gradient: GradientInImport, op: Op, results: Mapping[int, Variable], subject: str, readers: Mapping[str, set[int]]) -> None:
    ops = gradient.block.ops
    within = ops[_place(ops, gradient.first) : _place(ops, op)]
    moved = _moved(within, gradient, {v.name for v in results.values()}, readers)
    own = {id(one) for one in moved}
    for name in (name for one in moved for name in one.output_names()):
        if not readers.get(name, set()) <= own:
            raise SchemaError(f"the network's code computes a result from a gradient of {subject}, which is known in the backward pass alone")
    if not getattr(op.operator, "refusal"):  # noqa: B009
        saved, reason = _write(op, moved, gradient, results)
        if reason:
            op.set_attribute("refusal", f"the gradient of {subject} cannot be imported: {reason}")
        else:
            op.input_slots["Saved"] = tuple(saved)
    for one in moved:
        gradient.block.remove_op(one)
        for name in one.output_names():
            gradient.block.vars.pop(name, None)


def _place(ops: Sequence[Op], op: Op) -> int:
    return next(at for at, other in enumerate(ops) if other is op)


def _moved(within: Sequence[Op], gradient: GradientInImport, wanted: set[str], readers: Mapping[str, set[int]]) -> list[Op]:
    """Return the ops behind gradients, and the ones read by these alone."""
    known = {v.name for v in (*gradient.gradients, *gradient.outer)}
    dependent: set[int] = set()
    for op in within:
        if any(name in known for name in (*op.all_reads(), *op.output_names())):
            known.update(op.output_names())
            dependent.add(id(op))
    for op in reversed(within):
        if id(op) in dependent or op.operator is None or op.operator.side_effects or op.attributes.sub_blocks:
            continue
        read = [name for name in op.output_names() if readers.get(name)]
        if (read or any(name in wanted for name in op.output_names())) and all(readers[name] <= dependent for name in read):
            dependent.add(id(op))
    return [op for op in within if id(op) in dependent]


def _write(op: Op, moved: Sequence[Op], gradient: GradientInImport, results: Mapping[int, Variable]) -> tuple[list[str], str]:
    """Write the ops of a gradient into the attribute of its op; returns the names read by them, and a reason if there is no form for it."""
    names = {v.name: f"g{at}" for at, v in enumerate(gradient.gradients)}
    outer, saved, written = {v.name for v in gradient.outer}, list[str](), list[Any]()
    first = {id(v.op) for v in (*gradient.gradients, *gradient.outer)}

    def read(name: str) -> str:
        if name not in names:
            names[name] = f"s{len(saved)}"
            saved.append(name)
        return names[name]

    needed = {v.name for v in results.values()}
    for one in reversed(moved):
        if any(name in needed for name in one.output_names()):
            needed.update(one.all_reads())
    if outer & needed:
        return [], "the hook reads grad_output, the gradient of the module's results"
    for one in moved:
        if id(one) in first or needed.isdisjoint(one.output_names()):
            continue
        if one.operator is None or one.attributes.sub_blocks or any(name in names for name in one.output_names()):
            return [], f"its backward has {one.type}, with blocks or a change in place" if one.operator is not None else f"{one.type} has no form here"
        inputs = {slot: [read(n) for n in listed] for slot, listed in one.inputs.items() if listed}
        outputs: dict[str, list[str]] = {}
        for slot, listed in one.outputs.items():
            for name in listed:
                if not is_empty_name(name):
                    names[name] = f"t{len(names)}"
                    outputs.setdefault(slot, []).append(names[name])
        attributes = {n: value for n, f in one.operator.schema.attributes.items() if (value := getattr(one.operator, n)) != f.default or f.since <= 2}
        written.append([one.type, inputs, outputs, attributes])
    gives = {str(at): read(v.name) for at, v in results.items()}
    op.set_attribute("backward", json.dumps({"ops": written, "gives": gives}))
    return saved, ""


@from_torch("foreshape.gradient_of", "foreshape.outer_gradient")
def _gradient_of(t: TorchCall, x: Variable) -> Variable:
    return t.importer.own.stand_in(x, t.name == "outer_gradient")


@from_torch("foreshape.own_gradient", "foreshape.hooked_gradient")
def _own_gradient(t: TorchCall, xs: Any, ys: Any, results: Any, places: Any, subject: str, refusal: str) -> Any:
    own, hooked = t.importer.own, t.name == "hooked_gradient"
    if hooked and own.current is not None:
        xs = ys = own.current.tensors
    made: Any = t.op("with_gradient", X=[*xs], Value=[*ys])
    found: list[Variable] = [*made] if is_of(made, (list, tuple)) else [made]
    op = found[0].op
    assert op is not None
    own.end(op, dict(zip(places, results, strict=True)), subject, refusal)
    if hooked:
        for x, variable in zip(xs, found, strict=True):
            t.importer.found.update({node: variable for node, value in t.importer.found.items() if value is x})
    return found


def move_hooks(exported: Any) -> Any:
    """Move the hooks of a graph right behind their tensors, so that all readers are hooked; returns the graph."""
    graph = exported.graph
    for hooked in [node for node in graph.nodes if str(node.target) == "foreshape.hooked_gradient.default"]:
        order = {node: at for at, node in enumerate(graph.nodes)}
        gradients, outer = _stand_ins(hooked)
        tensors = [node.args[0] for node in gradients]
        anchor = max(tensors, key=order.__getitem__)
        if anchor.op == "placeholder":
            anchor = [node for node in graph.nodes if node.op == "placeholder"][-1]
        if order[gradients[0]] == order[anchor] + 1:
            continue
        parts = _parts(hooked, order, order[gradients[0]])
        late = any(order[node] > order[anchor] and node not in parts for part in (*parts, *gradients) for node in part.all_input_nodes)
        if late or any(node in parts for node in outer):
            refusal = "the hook reads grad_output, the gradient of the module's results" if outer else "the hook reads what is computed behind its tensor"
            hooked.args = (*hooked.args[:2], [], [], hooked.args[4], refusal)
            for node in reversed(parts):
                if node not in gradients and not node.users:
                    graph.erase_node(node)
            parts = []
        for node in (*gradients, *(part for part in parts if part not in gradients), hooked):
            anchor.append(node)
            anchor = node
    exported.graph_module.recompile()
    return graph


def _stand_ins(hooked: Any) -> tuple[list[Any], list[Any]]:
    """Return the nodes of the stand-ins for gradients of a hook, and of the ones known elsewhere alone."""
    found: tuple[list[Any], list[Any]] = ([], [])
    node = hooked.prev
    while not str(node.target).startswith(("foreshape.own_gradient", "foreshape.hooked_gradient")) and node.op != "placeholder" and node.op != "root":
        name = str(node.target)
        if name == "foreshape.gradient_of.default":
            found[0].insert(0, node)
        elif name == "foreshape.outer_gradient.default":
            found[1].insert(0, node)
        node = node.prev
    return found


def _parts(hooked: Any, order: Mapping[Any, int], first: int) -> list[Any]:
    """Return the nodes of the gradient of a hook, in their order."""
    parts: dict[Any, None] = {}
    waiting = [one for one in hooked.args[2] if hasattr(one, "op")]
    for one in waiting:
        parts[one] = None
    while waiting:
        for node in waiting.pop().all_input_nodes:
            if first <= order[node] < order[hooked] and node not in parts:
                parts[node] = None
                waiting.append(node)
    return sorted((one for one in parts if first <= order[one] < order[hooked]), key=order.__getitem__)
