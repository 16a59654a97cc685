"""From bytes to a `Program`.

`_variable` and `_op` read every record, with care and words for errors. Before each of them `foreshape.language.wire.fast_reader` takes the records whose
descriptions were seen before; it says why there are two, and what the second saves. Any record may come to either: both leave the same in `Records`.
"""

from __future__ import annotations

from collections.abc import Container

from foreshape.core.gc_pause import collector_waits
from foreshape.errors import FormatError, border
from foreshape.language.operator.registry import registrations
from foreshape.language.program.block import Block
from foreshape.language.program.op import Slots
from foreshape.language.program.program import Program
from foreshape.language.program.structure import check_structure
from foreshape.language.program.variable import Variable
from foreshape.language.wire.attributes import Tail, decode_tail, expected_tail_cost
from foreshape.language.wire.fast_reader import Patterns, read_records
from foreshape.language.wire.limits import (
    BLOCK_COST,
    DEFAULT_LIMITS,
    FIELD_COST,
    LARGE,
    NAME_COST,
    OP_COST,
    SLOT_COST,
    VARIABLE_COST,
    Budget,
    Limits,
    ResultCache,
)
from foreshape.language.wire.records import Records, Slot
from foreshape.language.wire.scan import expect, fields, int32, text, varint
from foreshape.language.wire.variables import VariableForm, decode_form, form_cost
from foreshape.language.wire.versions import honour_versions

_forms: ResultCache[VariableForm] = ResultCache(16 * 2**20)
_tails: ResultCache[Tail] = ResultCache(32 * 2**20)
_slot_names: dict[bytes, str] = {}


@border("the program cannot be read", FormatError)
@collector_waits
def decode(data: bytes, limits: Limits | None = None) -> Program:
    """Parse the program in these bytes.

    Nothing is executed, and memory and time are bounded by `Limits`. Ops of unknown types, and fields unknown to this reader,
    are kept.

    Raises:
        FormatError: the bytes are no program; the message has the offset or the path.
    """
    _tails.read_by(registrations())  # an unknown type may be known now
    data = bytes(data)
    budget = Budget(limits or DEFAULT_LIMITS, len(data))
    program = Program()
    spans: list[tuple[int, int]] = []
    unknown = bytearray()
    for number, wire_type, tag_at, start, stop in fields(data, 0, len(data), "program"):
        if number == 1:
            expect(wire_type, 2, "program.blocks", tag_at)
            spans.append((start, stop))
            if len(spans) > budget.limits.blocks:
                raise FormatError(f"program: more than {budget.limits.blocks} blocks (Limits.blocks), at byte {tag_at}")
            budget.take(BLOCK_COST, "program")
        elif number == 4:
            expect(wire_type, 2, "program.version", tag_at)
            for inner, wt, _, s, e in fields(data, start, stop, "program.version"):
                budget.take(FIELD_COST, "program.version")
                if inner == 1:
                    expect(wt, 0, "program.version", s)
                    value, _ = varint(data, s, e, "program.version")
                    program.format_version = value - (1 << 64) if value >> 63 else value
        elif number == 5:
            expect(wire_type, 2, "program.op_version_map", tag_at)
            program.op_versions = data[start:stop]
        else:
            budget.take(FIELD_COST, "program")
            unknown += data[tag_at:stop]
    if not spans:
        raise FormatError("program: there is no block; this is not a program file")
    program.unknown_fields = bytes(unknown)
    program.blocks = [Block(program, index, 0) for index in range(len(spans))]
    letters = data.decode("latin-1")
    patterns = Patterns()
    for block, (start, stop) in zip(program.blocks, spans, strict=True):
        records = Records(block)
        _block(data, letters, start, stop, block, records, patterns, budget)
        block.keep_records(records)
    runs_blocks = any(p.attributes.sub_blocks for p in patterns.distinct())
    check_structure(program, budget.limits.depth, runs_blocks)
    honour_versions(program, {p.attributes.type for p in patterns.distinct()})
    read: set[str] | None = None
    for block in program.blocks:
        if block.records is not None and all(form.declared.negative is None for form in set(block.records.forms.values())):
            continue
        for index, variable in enumerate(block.vars.values()):
            declared = variable.declared
            if declared is not None and declared.negative is not None:
                if read is None:
                    read = {name for op in program.all_ops() for name in op.input_names()}
                _check_dims(variable, f"blocks[{block.idx}].vars[{index}]", read)
    program.mark_loaded()
    return program


def _block(data: bytes, letters: str, position: int, end: int, block: Block, records: Records, patterns: Patterns, budget: Budget) -> None:
    place = f"blocks[{block.idx}]"
    idx = parent = None
    unknown = bytearray()
    begin = position
    while (position := read_records(data, letters, position, end, records, budget, _forms, _tails, patterns)) < end:
        number, wire_type, tag_at, start, stop = next(fields(data, position, end, place))
        position = stop
        if number == 3:
            expect(wire_type, 2, f"{place}.vars", tag_at)
            _variable(data, start, stop, f"{place}.vars[{len(records.forms)}]", records, budget)
        elif number == 4:
            expect(wire_type, 2, f"{place}.ops", tag_at)
            budget.take(OP_COST, place)
            _op(data, start, stop, f"{place}.ops[{len(records.names)}]", records, patterns, budget)
        elif number in (1, 2, 5):
            budget.take(FIELD_COST, place)
            expect(wire_type, 0, place, tag_at)
            value = int32(varint(data, start, stop, place)[0])
            if number == 1:
                idx = value
            elif number == 2:
                parent = value
            else:
                block.forward_idx = value
        else:
            budget.take(FIELD_COST, place)
            unknown += data[tag_at:stop]
    if idx is None or parent is None:
        raise FormatError(f"{place}: idx or parent_idx is missing, at byte {begin}")
    if idx != block.idx:
        raise FormatError(f"{place}: its idx says {idx}, at byte {begin}")
    block.parent_idx = parent
    block.unknown_fields = bytes(unknown)


def _variable(data: bytes, start: int, stop: int, place: str, records: Records, budget: Budget) -> None:
    budget.take(VARIABLE_COST, place)
    if stop - start > 1 and data[start] == 0x0A and data[start + 1] < 0x80:  # the name comes first, as every writer puts it
        name_end = start + 2 + data[start + 1]
        if name_end > stop:
            raise FormatError(f"{place}: the name runs past the end of the variable, at byte {start}")
        name = text(data, start + 2, name_end, place)
        description = data[name_end:stop]
    else:
        name = None
        pieces: list[bytes] = []
        for number, wire_type, tag_at, s, e in fields(data, start, stop, place):
            budget.take(FIELD_COST, place)
            if number == 1:
                expect(wire_type, 2, place, tag_at)
                if e - s > budget.limits.name:
                    raise FormatError(f"{place}: a name of {e - s} bytes; the limit is {budget.limits.name} (Limits.name)")
                name = text(data, s, e, place)
            else:
                pieces.append(data[tag_at:e])
        description = b"".join(pieces)
        if name is None:
            raise FormatError(f"{place}: the name is missing, at byte {start}")
    if not name:
        raise FormatError(f"{place}: the name is empty, at byte {start}")
    if not name.isascii():
        budget.take(4 * len(name), place)
    form = _forms.get(description)
    if form is None:
        cost = form_cost(description, place)
        budget.take(cost, place)
        form = decode_form(description, f"{place} ({name[:60]!r})", start)
        _forms.put(description, form, cost)
    if name in records.forms:
        raise FormatError(f"{place}: the name {name[:60]!r} is taken by another variable of this block, at byte {start}")
    records.forms[name] = form


def _op(data: bytes, start: int, stop: int, place: str, records: Records, patterns: Patterns, budget: Budget) -> None:
    inputs: Slots = {}
    outputs: Slots = {}
    position = start
    slots = inputs
    while position < stop:  # inputs, outputs, and then the rest, as every writer orders them
        tag = data[position]
        if tag == 0x12:
            slots = outputs
        elif tag != 0x0A or slots is outputs:
            break
        if position + 1 >= stop:
            break
        size = data[position + 1]
        begin = position + 2
        if size >= 0x80:
            size, begin = varint(data, position + 1, stop, place)
        position = begin + size
        if position > stop:
            raise FormatError(f"{place}: a slot runs past the end of the op, at byte {begin}")
        _slot(data, begin, position, slots, place, budget)
    tail = data[position:stop]
    parsed = _tails.get(tail)
    if parsed is None:
        if len(tail) > LARGE:
            budget.expect(expected_tail_cost(tail, place), place)
        parsed, message = decode_tail(tail, place, position)
        budget.take(parsed.cost, place)
        if message.inputs or message.outputs:
            for messages, target in ((message.inputs, inputs), (message.outputs, outputs)):
                for slot in messages:
                    body = slot.SerializePartialToString()
                    _slot(body, 0, len(body), target, place, budget)
        else:
            _tails.put(tail, parsed, parsed.cost)
    for slot, variables in parsed.attributes.operands.items():  # variables named by attributes
        if slot in inputs:
            raise FormatError(f"{place}: the slot {slot!r} is given twice, as a slot and in an attribute")
        inputs[slot] = variables
    names: list[str] = []
    records.patterns.append(patterns.pattern(parsed, (_places(inputs, names), _places(outputs, names))))
    records.names.append(tuple(names))


def _places(slots: Slots, names: list[str]) -> tuple[Slot, ...]:
    """Append the names of slots to ``names``, and return their places."""
    out: list[Slot] = []
    for slot, variables in slots.items():
        out.append((slot, len(names), len(names) + len(variables)))
        names += variables
    return tuple(out)


def _slot(data: bytes, position: int, end: int, slots: Slots, place: str, budget: Budget) -> None:
    names: list[str] = []
    slot: str | None = None
    wide = 0
    try:
        while position < end:
            tag, size = data[position], data[position + 1]
            start = position + 2
            if size >= 0x80:
                size, start = varint(data, position + 1, end, "a slot")
            position = start + size
            if position > end or (tag != 0x0A and tag != 0x12):
                raise IndexError
            value = data[start:position]
            if tag == 0x12:
                name = value.decode()
                names.append(name)
                if not name.isascii():
                    wide += 4 * len(name)
            else:
                slot = _slot_names.get(value)
                if slot is None:
                    slot = value.decode()
                    if len(_slot_names) < 4096 and len(value) < 64:
                        _slot_names[value] = slot
    except (IndexError, UnicodeDecodeError):
        raise FormatError(f"{place}: a slot is not a name and its variables, at byte {position}") from None
    if slot is None:
        raise FormatError(f"{place}: a slot without a name, at byte {position}")
    if slot in slots:
        raise FormatError(f"{place}: the slot {slot!r} is given twice, at byte {position}")
    budget.take(SLOT_COST + NAME_COST * len(names) + wide, place)
    slots[slot] = tuple(names)


def _check_dims(variable: Variable, place: str, read: Container[str]) -> None:
    """Refuse a dim below -1, except in an op's result: there PaddlePaddle writes products with -1, such as -6, for unknown.

    Of a network for use PaddlePaddle drops unread results, such as an instance_norm's SavedMean, but not their variables.
    """
    declared = variable.declared
    if (
        declared is not None
        and declared.negative is not None
        and (variable.persistable or variable.need_check_feed or (variable.op is None and variable.name in read))
    ):
        raise FormatError(f"{place} ({variable.name[:60]!r}): a dim must be at least 0, or -1 for unknown, not {declared.negative}")
