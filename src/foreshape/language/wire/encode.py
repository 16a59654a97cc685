"""From a `Program` to bytes. Deterministic: equal programs give equal bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from foreshape.errors import FormatError, border
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program.call_site import Site
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable
from foreshape.language.wire import framework_pb2 as pb
from foreshape.language.wire.attributes import encode_attribute
from foreshape.language.wire.scan import delimited, write_varint
from foreshape.language.wire.variables import VariableForm, encode_form


@border("the program cannot be written", FormatError)
def encode(program: Program) -> bytes:
    """Return the program in the file format."""
    parts = [delimited(b"\x0a", _block(b)) for b in program.blocks]
    parts.append(delimited(b"\x22", pb.Version(version=program.format_version).SerializeToString()))
    if program.op_versions is not None:
        parts.append(delimited(b"\x2a", program.op_versions))
    parts.append(program.unknown_fields)
    return b"".join(parts)


def _signed(value: int) -> bytes:
    return write_varint(value if value >= 0 else value + (1 << 64))


def _block(block: Any) -> bytes:
    forms: dict[Any, bytes] = {}
    parts = [b"\x08" + _signed(block.idx), b"\x10" + _signed(block.parent_idx)]
    parts += [delimited(b"\x1a", _variable(v, forms)) for v in block.vars.values()]
    parts += [delimited(b"\x22", _op(o)) for o in block.ops]
    if block.forward_idx != -1:
        parts.append(b"\x28" + _signed(block.forward_idx))
    parts.append(block.unknown_fields)
    return b"".join(parts)


def _saved_site(site: Site) -> Site:
    """Return a call site with only the file's own name: the user's folders are private."""
    return None if site is None else (os.path.basename(site[0]), site[1], site[2])


def _variable(variable: Variable, forms: dict[Any, bytes]) -> bytes:
    flags = (variable.persistable, variable.need_check_feed, variable.is_parameter, variable.stop_gradient, variable.trainable)
    as_read = _as_read(variable, flags)
    if as_read is not None:
        return delimited(b"\x0a", _name(variable.name)) + as_read
    site = _saved_site(variable.site) if variable.op is None else None
    key = (variable.entry_spec, flags, site, variable.extra_attributes)
    if variable.value is None:
        form = forms.get(key)
        if form is None:
            form = forms[key] = encode_form(variable.entry_spec, None, flags=flags, value=None, site=site, extra=variable.extra_attributes)
    else:
        form = encode_form(variable.entry_spec, None, flags=flags, value=variable.value, site=site, extra=variable.extra_attributes)
    return delimited(b"\x0a", _name(variable.name)) + form + variable.unknown_fields


def _as_read(variable: Variable, flags: tuple[bool, ...]) -> bytes | None:
    """Return the stored bytes of a variable, if still true: nothing of another writer's is lost."""
    declared = variable.declared
    spec = variable.inferred_spec
    if declared is None or declared.form is None or (spec is not None and spec is not declared.spec_for(variable.name)):
        return None
    form: VariableForm = declared.form
    unchanged = form.flags() == flags and form.extra == variable.extra_attributes and form.unknown_fields == variable.unknown_fields
    return form.data if unchanged and form.value is variable.value and form.site == variable.site else None


def _name(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise FormatError(f"the name {name[:60]!r} cannot be written as UTF-8") from None


def _op(op: Op) -> bytes:
    parts: list[bytes] = []
    attributes = op.attributes
    operand_slots = {a: s for a, s in attributes.operator.schema.in_attributes.items() if s in op.inputs} if attributes.operator is not None else {}
    for tag, slots in ((b"\x0a", op.inputs), (b"\x12", op.outputs)):
        for slot, names in slots.items():
            if operand_slots and tag == b"\x0a" and slot in operand_slots.values():
                continue
            body = delimited(b"\x0a", _name(slot)) + b"".join([delimited(b"\x12", _name(n)) for n in names])
            parts.append(delimited(tag, body))
    parts.append(delimited(b"\x1a", _name(op.type)))
    if operand_slots:
        attributes = _with_operands(op, operand_slots)
    for piece in _attributes(attributes):
        if isinstance(piece, bytes):
            parts.append(piece)
        elif piece == "op_role":
            parts.append(encode_attribute("op_role", AttrType.INT, op.role))
        else:
            parts.append(encode_attribute("op_role_var", AttrType.STRINGS, op.role_variables))
    if op.is_target:
        parts.append(b"\x28\x01")
    site = _saved_site(op.site)
    if site is not None:
        parts.append(delimited(b"\xc2\x3e", pb.CallSite(file=site[0], line=site[1], function=site[2]).SerializeToString()))
    parts.append(op.unknown_fields)
    return b"".join(parts)


def _with_operands(op: Op, operand_slots: Mapping[str, str]) -> Attributes:
    """Return the attributes with names of variables in place of some. ``operand_slots``: attribute -> the slot of the names."""
    many = {o.name: o.many for o in op.attributes.operator.schema.operands} if op.attributes.operator is not None else {}
    entries: list[tuple[str, AttrType, Any]] = []
    for name, type, value in op.attributes.entries:
        slot = operand_slots.get(name)
        if slot is None:
            entries.append((name, type, value))
        else:
            names = op.inputs[slot]
            entries.append((name, AttrType.VARS, names) if many[slot] else (name, AttrType.VAR, names[0]))
    return Attributes.of(op.type, tuple(entries))


def _attributes(attributes: Attributes) -> list[bytes | str]:
    """Return the serialised attributes, in pieces around the names of each op's own; kept with the set."""
    pieces: list[bytes | str] | None = attributes.wire
    if pieces is None:
        pieces = []
        for name, type, value in attributes.entries:
            if value is None and name in ("op_role", "op_role_var"):
                pieces.append(name)
                continue
            body = encode_attribute(name, type, value)
            last = pieces[-1] if pieces else ""
            if isinstance(last, bytes):
                pieces[-1] = last + body
            else:
                pieces.append(body)
        attributes.wire = pieces
    return pieces
