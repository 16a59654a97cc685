"""Reading variables and ops that are written as every writer writes them, and whose descriptions were seen before.

A deep network repeats its layers, so that most of its records differ in names only. This reads such records in one pass and stops
at the first that is anything else; `foreshape.wire.decode` then reads that one with care, and words its errors.
"""

from __future__ import annotations

from sys import intern

from foreshape.program.block import Block
from foreshape.program.op import Op, Slots
from foreshape.wire.attributes import Tail
from foreshape.wire.limits import NAME_COST, OP_COST, SLOT_COST, VARIABLE_COST, Budget, Kept
from foreshape.wire.variables import VariableForm

_VARIABLE, _OP = 0x1A, 0x22  # the tags of a block's fields
_NAME, _ARGUMENT, _OUTPUT = 0x0A, 0x12, 0x12


def read_records(
    data: bytes, letters: str, at: int, end: int, block: Block, budget: Budget, forms: Kept[VariableForm], tails: Kept[Tail]
) -> int:
    """Read records from ``at`` on; returns where the first one stands that has to be read with care, or ``end``.

    ``letters`` are the same bytes as characters, one each.
    """
    variables, ops = block.vars, block.ops
    left = budget.left
    form_of, tail_of = forms.get, tails.get
    record = at
    try:
        while record < end:
            tag, size = data[record], data[record + 1]
            start = record + 2
            if size >= 0x80:
                more = data[start]
                if more >= 0x80:
                    break
                size, start = size & 0x7F | more << 7, start + 1
            stop = start + size
            if stop > end:
                break
            if tag == _VARIABLE:
                length = data[start + 1]
                rest_at = start + 2 + length
                if data[start] != _NAME or not 0 < length < 0x80 or rest_at > stop:
                    break
                name = letters[start + 2 : rest_at]
                form = form_of(data[rest_at:stop])
                left -= VARIABLE_COST
                if form is None or left < 0 or name in variables or not name.isascii():
                    break
                variables[name] = form.variable(name, block)
            elif tag == _OP:
                inputs: Slots = {}
                outputs: Slots = {}
                tail_at = _slots(data, letters, start, stop, inputs, outputs)
                if tail_at < 0:
                    break
                found = tail_of(data[tail_at:stop])
                left -= OP_COST + (SLOT_COST + NAME_COST) * (len(inputs) + len(outputs)) + (tail_at - start) * 24
                if found is None or left < 0 or found.attributes.operands:
                    break
                op = Op(block, found.attributes, inputs, outputs, found.role, found.role_variables, found.site)
                op.is_target = found.is_target
                op.unknown_fields = found.unknown_fields
                ops.append(op)
            else:
                break
            record = stop
            budget.left = left
    except IndexError:  # a length at the very end of the file: the careful reader says where
        pass
    return record


def _slots(data: bytes, letters: str, at: int, stop: int, inputs: Slots, outputs: Slots) -> int:
    """Read the slots of an op; returns where they end, or -1 where they are not as every writer puts them."""
    begin = at
    into = inputs
    while at < stop:
        tag = data[at]
        if tag == _OUTPUT:
            into = outputs
        elif tag != _NAME or into is outputs:
            break
        slot_at = at + 2
        at = slot_at + data[at + 1]
        names_at = slot_at + 2 + data[slot_at + 1]
        if at > stop or data[slot_at] != _NAME or names_at > at:
            return -1
        slot = intern(letters[slot_at + 2 : names_at])
        if slot in into:
            return -1
        names: list[str] = []
        while names_at < at:
            first = names_at + 2
            names_at = first + data[names_at + 1]
            if data[first - 2] != _ARGUMENT:
                return -1
            names.append(letters[first:names_at])
        if names_at != at:
            return -1
        into[slot] = tuple(names)
    # a length of 128 or more, or a letter that is not ASCII, is a byte above 127
    return at if letters[begin:at].isascii() else -1

