"""Copies of a program: whole, and with what keeps a copy equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.program.block import Block
from foreshape.program.collector import collector_waits
from foreshape.program.op import Op
from foreshape.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.program.program import Program

_FLAGS = ("persistable", "trainable", "stop_gradient", "is_parameter", "need_check_feed", "value", "extra_attributes", "unknown_fields", "site",
          "_spec", "_declared", "_known")  # fmt: skip


@collector_waits
def fill(out: Program, program: Program) -> None:
    """Make an empty program equal to another one; nothing that changes is shared."""
    out._counters = dict(program._counters)  # pyright: ignore[reportPrivateUsage]
    out._guards = program._guards.copy()  # pyright: ignore[reportPrivateUsage]
    out._stale = program._stale  # pyright: ignore[reportPrivateUsage]
    out.uncertain = program.uncertain
    out.random_seed, out.format_version = program.random_seed, program.format_version
    out.op_versions, out.unknown_fields = program.op_versions, program.unknown_fields
    out.parameter_settings = dict(program.parameter_settings)
    out.blocks = [Block(out, b.idx, b.parent_idx) for b in program.blocks]
    copies: dict[int, Op] = {}
    for old, new in zip(program.blocks, out.blocks, strict=True):
        new.forward_idx, new.unknown_fields = old.forward_idx, old.unknown_fields
        for op in old.ops:
            made = Op(new, op.attributes, dict(op.inputs), dict(op.outputs), op.role,
                      op.role_variables, op.site)  # fmt: skip
            made.is_target, made.unknown_fields, made.forgets = op.is_target, op.unknown_fields, op.forgets
            made.made = dict(op.made)
            copies[id(op)] = made
            new.ops.append(made)
    for old, new in zip(program.blocks, out.blocks, strict=True):
        for name, variable in old.vars.items():
            copy = Variable._new(name, new, None, variable.site)  # pyright: ignore[reportPrivateUsage]
            for flag in _FLAGS:
                setattr(copy, flag, getattr(variable, flag))
            copy.op = copies.get(id(variable.op)) if variable.op is not None else None
            new.vars[name] = copy
