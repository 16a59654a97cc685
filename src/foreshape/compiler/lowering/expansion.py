"""Expansion of composite ops before a step is lowered, in a copy of the program: files and users' views keep them whole.

So their parts take part in rewrites, in plans and in costs; see `foreshape.language.operator.Operator.expand`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import get
from foreshape.language.program import Block, Op, Variable
from foreshape.language.program.needed import needed_ops
from foreshape.language.program.op import EMPTY
from foreshape.language.program.unknown import is_unknown, with_inner


def expanded(block: Block, fetches: Sequence[str], keep: Callable[[Op], bool] | None = None) -> Block:
    """Return a block with the parts of the composite ops that the fetches need, also in the blocks of its ops: one of a copy, or itself if it needs none.

    Ops with a true ``keep`` stay whole.

    Ops that the fetches do not need stay as they are, and so does a block that cannot run since an operator is not known.
    """
    program = block.program
    if not any(_expands(op) for op in program.all_ops()):
        return block
    needed = list(with_inner(needed_ops(block, fetches)))
    if any(map(is_unknown, needed)):
        return block
    composites = {id(op) for op in needed if _expands(op) and not (keep is not None and keep(op))}
    if not composites:
        return block
    places = [(owner.idx, index) for owner in program.blocks for index, op in enumerate(owner.ops) if id(op) in composites]
    copy = program.clone()
    for ours, users in zip(copy.all_ops(), program.all_ops(), strict=True):
        ours.part_of = users
    for owner, op in [(copy.blocks[idx], copy.blocks[idx].ops[index]) for idx, index in places]:
        _expand(owner, op)
    return copy.blocks[block.idx]


def _expands(op: Op) -> bool:
    operator = op.operator
    return operator is not None and type(operator).expand is not Operator.expand


class _Ops:
    """The parts of one composite op."""

    def __init__(self, block: Block, op: Op) -> None:
        self.block, self.op = block, op
        self.at = next(index for index, sibling in enumerate(block.ops) if sibling is op)
        self.makers: dict[Variable, Op] = {}

    def __call__(self, type: str, attrs: dict[str, Any] | None = None, /, **operands: Any) -> Any:
        """Append an op; see `foreshape.language.operator.composition.Composition`."""
        inputs = {slot: value for slot, value in operands.items() if value is not None}
        cls, prefix = get(type), f"{self.op.type}.{type}"
        slots = [r.name for r in cls.schema.results if not r.many] if cls.forward_class is not None else ()  # gradients, which are optional
        outputs = {slot: self.block.program.unique_name(f"{prefix}.{slot}") for slot in slots}
        op = self.block.append_op(type, inputs, outputs, attrs, role=self.op.role, site=self.op.site, prefix=prefix, index=self.at)
        op.part_of = self.op.part_of
        self.at += 1
        out: list[Any] = []
        for result in cls.schema.results:
            variables = [self.block.vars[n] for n in op.outputs.get(result.name, ())]
            self.makers.update(dict.fromkeys(variables, op))
            out.append(variables if result.many else variables[0] if variables else None)
        return out[0] if len(out) == 1 else tuple(out)

    def name(self, part: Variable, name: str) -> None:
        """Let a part be the variable written by the op."""
        if part.name == name:  # an operand that is changed in place, and stays as it is
            return
        maker = self.makers.pop(part, None)
        if maker is None:  # an operand, or a part that is two results
            self.block.append_op("assign", {"X": part}, {"Out": name}, role=self.op.role, site=self.op.site, index=self.at)
            self.at += 1
            return
        maker.rename_output(part.name, name)
        for op in self.block.ops[: self.at]:
            if part.name in op.input_names():
                op.rename_input(part.name, name)
        del self.block.vars[part.name]
        variable = self.block.vars.get(name)
        if variable is not None:
            variable.op = maker


def _expand(block: Block, op: Op) -> None:
    """Write the parts of an op in its place."""
    operator = op.operator
    assert operator is not None
    ops = _Ops(block, op)
    operands: list[Any] = []
    for operand in operator.schema.operands:
        variables = [v for n in op.inputs.get(operand.name, ()) if n != EMPTY and (v := block.find(n)) is not None]
        operands.append(variables if operand.many else variables[0] if variables else None)
    results: Any = operator.expand(ops, *operands)
    values = cast("tuple[Any, ...]", results) if isinstance(results, tuple) else (results,)
    place = ops.at
    block.ops.pop(place)
    for result, value in zip(operator.schema.results, values, strict=True):
        names = op.outputs.get(result.name, ())
        parts = cast("list[Any]", value) if isinstance(value, list) else [value]
        for part, name in zip(parts, names, strict=False):
            if part is not None and name != EMPTY:
                ops.name(part, name)
    block.program.touch()
