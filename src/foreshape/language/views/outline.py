"""The layers of a program: its forward ops in groups, by name scopes, by the names of parameters, and by the data flow.

An op belongs to its `name_scope`; without one, to the dotted name of its first parameter
(``encoder.0.attention.query.weight``, or ``conv2d_7.w_0``). One without parameters belongs to the layer with the same names of results
(``fc_0.tmp_1``). An activation or the like, with the shape of its only operand, belongs to the layer right before it. All others
stand by themselves, between their neighbours. A group always consists of consecutive ops, so arrows between groups go one way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from foreshape.core.spec import TENSOR_KINDS
from foreshape.language.operator.registry import layer_name
from foreshape.language.program.op import Op, Role
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable

_MADE: Final = re.compile(r"(.+)\.tmp_\d+(?:@GRAD.*)?\Z")
_FLAT: Final = re.compile(r"[a-z0-9_]+_\d+\Z")
DEEPEST: Final = 12
"""The deepest scopes told apart; names come from files."""


class OutlineLayer:
    """A layer, or a group of them.

    Attributes:
        name: without the names of the groups around it.
        ops: its own, in their order; for a group only the op with the block of the group.
        children: of a group, in their order.
        members: all of the consecutive alike layers; ``ops`` and ``children`` are the first one's.
        beside: True if no member reads another one, so they stand beside each other and not one after the other.
        same: True if members have the same sizes and settings, too.
    """

    __slots__ = ("beside", "children", "members", "name", "ops", "same")

    def __init__(self, name: str, ops: Sequence[Op] = (), children: Sequence[OutlineLayer] = ()) -> None:
        self.name = name
        self.ops = list(ops)
        self.children = list(children)
        self.members: list[OutlineLayer] = []
        self.same = True
        self.beside = False

    @property
    def times(self) -> int:
        """Return the number of alike layers that it stands for."""
        return len(self.members) or 1

    def times_words(self) -> str:
        """Return ``x 12``; empty for a single one."""
        return "" if self.times == 1 else f"x {self.times} in parallel" if self.beside else f"x {self.times}"

    def all_ops(self) -> Iterator[Op]:
        """Yield every op in it, including all members'."""
        waiting: list[OutlineLayer] = [self]
        while waiting:
            layer = waiting.pop()
            if layer.members:
                waiting += reversed(layer.members)
            else:
                yield from layer.ops
                waiting += reversed(layer.children)

    def bodies(self) -> list[OutlineLayer]:
        """Return all layers that it stands for: its members, or itself."""
        return self.members or [self]

    @property
    def label(self) -> str:
        """Return its name for people: of a layer called by its operator the layer function's."""
        return layer_name(self.name) if any(op.type == self.name for op in self.ops) else self.name

    def types(self) -> str:
        """Return ``conv2d, batch_norm, relu``: the layer functions of its operators, each once."""
        return ", ".join(dict.fromkeys(layer_name(op.type) for op in self.ops))


def forward_ops(ops: Iterable[Op]) -> list[Op]:
    """Return the ops of the network itself: no gradients and updates, no feed and fetch."""
    return [op for op in ops if not op.role & (Role.BACKWARD | Role.OPTIMIZE | Role.LEARNING_RATE) and op.is_run]


def layers_of(program: Program) -> list[OutlineLayer]:
    """Return the layers of a program, as they are named and in their order; nothing is folded."""
    program.refresh_quietly()
    return _layers(program, forward_ops(program.global_block.ops), frozenset({0}), forward_ops)


def gradient_layers_of(program: Program) -> list[OutlineLayer]:
    """Return the gradient ops of a training program in layers, with the names of their forward layers."""
    ops = [op for op in program.global_block.ops if op.role & Role.BACKWARD and op.is_run]
    return _layers(program, ops, frozenset({0}), list)


def update_layers_of(program: Program) -> list[OutlineLayer]:
    """Return the update and learning-rate ops of a training program, in layers."""
    updates = Role.OPTIMIZE | Role.LEARNING_RATE
    ops = [op for op in program.global_block.ops if not op.role & Role.BACKWARD and op.role & updates and op.is_run]
    return _layers(program, ops, frozenset({0}), list)


def _layers(program: Program, ops: Sequence[Op], blocks: frozenset[int], chosen: Callable[[Sequence[Op]], list[Op]]) -> list[OutlineLayer]:
    leaves = _leaves(ops)
    items = [(path, _with_blocks(program, OutlineLayer(path[-1], layer_ops), blocks, chosen)) for path, layer_ops in leaves]
    return _grouped(items, 0)


def _with_blocks(program: Program, layer: OutlineLayer, blocks: frozenset[int], chosen: Callable[[Sequence[Op]], list[Op]]) -> OutlineLayer:
    """Return a layer as a group of its blocks' layers, if its op has blocks."""
    if len(blocks) > DEEPEST:
        return layer
    for op in layer.ops:
        for index in op.sub_block_indices():
            if index not in blocks and 0 <= index < len(program.blocks):
                layer.children += _layers(program, chosen(program.blocks[index].ops), blocks | {index}, chosen)
    return layer


# --- the ops of one layer


def _first_parameter(op: Op) -> Variable | None:
    candidates = [v for v in op.input_variables() if v.persistable and v.kind in TENSOR_KINDS and v.value is None]
    return next((v for v in candidates if v.is_parameter), candidates[0] if candidates else None)


def _named_path(op: Op, scope: list[str]) -> list[str] | None:
    """Return scopes and layer from a parameter's name; None without one."""
    parameter = _first_parameter(op)
    if parameter is None:
        return None
    names = [part for part in (parameter.name.rpartition(".")[0] or parameter.name).split(".") if part][:DEEPEST] or [parameter.name]
    return names if names[: len(scope)] == scope else [*scope, *names][:DEEPEST]


def _leaves(ops: Sequence[Op]) -> list[tuple[list[str], list[Op]]]:
    """Return layers in their order: the names of the groups around them with their own, and their ops."""
    scopes = [list(op.scope[: DEEPEST - 1]) for op in ops]
    paths = [_named_path(op, scope) for op, scope in zip(ops, scopes, strict=True)]
    next_paths = _next_paths(paths, scopes)
    leaves: list[tuple[list[str], list[Op]]] = []
    key = ""
    for index, op in enumerate(ops):
        last_path, last_ops = leaves[-1] if leaves else ([], [])
        path, match = paths[index], _MADE.match(next(op.output_names(), ""))
        result_stem = match[1] if match else ""
        if last_ops and not op.sub_block_indices() and not last_ops[0].sub_block_indices():
            continued = (
                path == last_path
                if path is not None
                else bool(result_stem) and result_stem == key and (not scopes[index] or last_path[: len(scopes[index])] == scopes[index])
            )
            if continued or _continues(op, last_ops, path, last_path, scopes[index]):
                last_ops.append(op)
                continue
        if path is None:
            if (
                op.role & Role.BACKWARD
                and next_paths[index][-1:] == [result_stem]
                and any(_MADE.sub(r"\1", n) == result_stem for n in op.input_names() if "@GRAD" in n)
            ):
                # the gradient of an activation comes before the others of its layer
                path = next_paths[index]
            else:
                around = scopes[index] or _shared(last_path, next_paths[index])
                path = [*around, op.type][:DEEPEST]
        leaves.append((path, [op]))
        key = result_stem
    return leaves


def _next_paths(paths: Sequence[list[str] | None], scopes: Sequence[list[str]]) -> list[list[str]]:
    """Return for each op the names of the nearest layer after it."""
    out: list[list[str]] = [[]] * len(paths)
    nearest: list[str] = []
    for index in range(len(paths) - 1, -1, -1):
        out[index] = nearest
        path = paths[index]
        nearest = path if path is not None else [*scopes[index], ""] if scopes[index] else nearest
    return out


def _shared(previous: Sequence[str], following: Sequence[str]) -> list[str]:
    """Return the common groups of two layers."""
    out: list[str] = []
    for a, b in zip(previous[:-1], following[:-1], strict=False):
        if a != b:
            break
        out.append(a)
    return out


def _continues(op: Op, last_ops: Sequence[Op], path: Sequence[str] | None, last_path: Sequence[str], scope: Sequence[str]) -> bool:
    """Tell whether an op only changes the numbers of the layer before it: an activation, a dropout, the norm of a convolution."""
    normalizes = op.operator is not None and bool(op.operator.over_ranks)
    if path is not None and not (normalizes and len(path) == len(last_path) == 1 and _FLAT.match(path[0]) and _FLAT.match(last_path[0])):
        return False
    if scope and list(last_path[: len(scope)]) != list(scope):
        return False
    read = [v for v in op.input_variables() if not v.persistable]
    result = result_of(op)
    if len(read) != 1 or result is None or read[0].name not in last_ops[-1].output_names():
        return False
    dims = read[0].spec.dims
    return dims is not None and result.spec.dims == dims and result.spec.lod == read[0].spec.lod


def result_of(op: Op) -> Variable | None:
    """Return the main result of an op: the first non-persistable one, preferably with gradients; others may serve the gradient alone."""
    operator = op.operator
    slots = [r.name for r in operator.schema.results] if operator is not None else list(op.outputs)
    if operator is not None and len(slots) > 1 and operator.grad_class is not None:
        operand_names = {operand.name for operand in operator.grad_class.schema.operands}
        slots.sort(key=lambda slot: f"{slot}@GRAD" not in operand_names)
    variables = [v for s in slots for n in op.outputs.get(s, ()) if (v := op.block.find(n)) is not None]
    return next((v for v in variables if not v.persistable), variables[0] if variables else None)


def output_of(layer: OutlineLayer) -> Variable | None:
    """Return the main result of a layer: its last one, of floats if possible; others are sizes, mostly."""
    out: Variable | None = None
    for op in layer.bodies()[-1].all_ops():
        result = result_of(op)
        if result is not None and (out is None or result.dtype is None or result.dtype.is_floating or (out.dtype is not None and not out.dtype.is_floating)):
            out = result
    return out


# --- groups


def _grouped(items: Sequence[tuple[list[str], OutlineLayer]], depth: int) -> list[OutlineLayer]:
    """Put consecutive layers of one group into it."""
    out: list[OutlineLayer] = []
    index = 0
    while index < len(items):
        path, layer = items[index]
        end = index + 1
        if len(path) > depth + 1:
            while end < len(items) and len(items[end][0]) > depth + 1 and items[end][0][depth] == path[depth]:
                end += 1
            children = _grouped(items[index:end], depth + 1)
            if len(children) == 1:  # a group of one is its member
                only = children[0]
                only.name = f"{path[depth]}.{only.name}"
                out.append(only)
            else:
                out.append(OutlineLayer(path[depth], (), children))
        else:
            out.append(layer)
        index = end
    return out
