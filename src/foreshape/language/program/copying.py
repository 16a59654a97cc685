"""Copies of a program: whole, and with new shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foreshape.core.dims import substitute
from foreshape.core.gc_pause import collector_waits
from foreshape.core.spec import Lod, Spec
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program.block import Block
from foreshape.language.program.needed import is_given
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable, dims_of

_FLAGS = ("persistable", "trainable", "stop_gradient", "is_parameter", "need_check_feed", "value", "extra_attributes", "unknown_fields", "site",
          "inferred_spec", "declared", "known")  # fmt: skip


@collector_waits
def fill(out: Program, program: Program) -> None:
    """Make an empty program equal to another one; nothing mutable is shared."""
    out.counters, out.reserved, out.updated_by = dict(program.counters), program.reserved, program.updated_by
    out.inference.guards = program.inference.guards.copy()
    out.inference.stale = program.inference.stale
    out.inference.uncertain = program.inference.uncertain
    out.random_seed, out.format_version = program.random_seed, program.format_version
    out.op_versions, out.unknown_fields = program.op_versions, program.unknown_fields
    out.parameter_settings = dict(program.parameter_settings)
    out.blocks = [Block(out, b.idx, b.parent_idx) for b in program.blocks]
    copies: dict[int, Op] = {}
    for old, new in zip(program.blocks, out.blocks, strict=True):
        new.forward_idx, new.unknown_fields = old.forward_idx, old.unknown_fields
        for op in old.ops:
            op_copy = Op(new, op.attributes, dict(op.inputs), dict(op.outputs), op.role, op.role_variables, op.site)
            op_copy.is_target, op_copy.unknown_fields, op_copy.forgets, op_copy.origin = op.is_target, op.unknown_fields, op.forgets, op.origin
            op_copy.made = dict(op.made)
            copies[id(op)] = op_copy
            new.ops.append(op_copy)
    for old, new in zip(program.blocks, out.blocks, strict=True):
        for name, variable in old.vars.items():
            copy = Variable.make(name, new, None, variable.site)
            for flag in _FLAGS:
                setattr(copy, flag, getattr(variable, flag))
            copy.op = copies.get(id(variable.op)) if variable.op is not None else None
            new.vars[name] = copy
            if variable in program.inference.entry_specs:
                out.inference.entry_specs[copy] = program.inference.entry_specs[variable]


def with_feed_shapes(program: Program, shapes: Mapping[str, Sequence[Any]]) -> Program:
    """Return a copy whose named inputs have these shapes; see `Program.with_feed_shapes`."""
    out = program.clone()
    block = out.global_block
    bound: dict[str, Any] = {}
    for name, shape in shapes.items():
        variable = block.vars.get(name)
        if variable is None or variable.persistable or not is_given(variable):
            inputs = [v.name for v in block.vars.values() if not v.persistable and is_given(v)]
            raise SchemaError(f"{name!r} is not an input; the inputs are: {', '.join(inputs) or 'none'}")
        old = variable.entry_spec
        dims, _ = dims_of(name, shape, old.lod_level)
        if old.dims is not None and len(old.dims) != len(dims):
            raise ShapeError(f"the shape of {name} must have {len(old.dims)} dims, as {old.text()}; seen {list(shape)}")
        for old_dim, new_dim in zip(old.dims or dims, dims, strict=True):
            if isinstance(old_dim, int) and old_dim != new_dim:
                continue  # a fixed dim may be changed: the purpose of the copy
            if not isinstance(old_dim, int) and isinstance(new_dim, int):
                bound.setdefault(str(old_dim), new_dim)
        variable.inferred_spec = Spec(old.kind, old.dtype, dims, old.lod)
        out.inference.entry_specs.pop(variable, None)
    _bind(out, bound)
    out.forget()
    out.infer()
    return out


def _bind(program: Program, values: Mapping[str, Any]) -> None:
    """Replace the symbols of inputs fixed by other inputs' new shapes."""
    if not values:
        return
    for variable in program.global_block.vars.values():
        spec = variable.entry_spec
        if variable.op is None and spec.dims is not None:
            program.inference.entry_specs.pop(variable, None)
            lod = spec.lod and Lod(spec.lod.source, tuple(substitute(c, values) for c in spec.lod.counts))
            variable.inferred_spec = Spec(spec.kind, spec.dtype, tuple(substitute(d, values) for d in spec.dims), lod)
