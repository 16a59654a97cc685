"""What is done in training only, taken out of a copy for a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from foreshape.operator.bound_attributes import Attributes
from foreshape.program import Op, Program
from foreshape.program.scopes import ATTRIBUTE


def drop_training_only(program: Program) -> list[Op]:
    """Read, where a test chooses by a number that is fixed there (`foreshape.layer.in_training`), what it chooses; and drop what only the rest needs.

    In the global block. What was chosen can still be fetched by the name of the choice.

    Returns:
        The ops that are gone.
    """
    block = program.global_block
    chosen = {id(op): op for op in block.ops if op.type == "select_input"}
    if not chosen:
        return []
    makers = _makers(program)
    places = {key: at for key, op in chosen.items() if (at := _choice(makers, op)) is not None}
    gone: list[Op] = []
    instead: dict[str, str] = {}
    kept: list[Op] = []
    for op in block.ops:
        if not op.sub_block_indices():  # what runs within reads by the name of the choice
            for name in [n for n in op.input_names() if n in instead]:
                op.rename_input(name, instead[name])
        if id(op) in places:
            gone.append(op)
            op = _plain(makers, op, op.inputs["X"][places[id(op)]])
            read, (out,) = op.inputs["X"][0], op.outputs["Out"]
            block.vars[out].op = op
            if read not in makers or makers[read] is not None:  # what is written later may be another value then
                instead[out] = read
        kept.append(op)
    block.ops = kept
    gone += _drop_makers(program, [n for op in gone for n in op.input_names()])
    return gone


def _makers(program: Program) -> dict[str, Op | None]:
    """The op of the global block that writes a variable; None where several do, or another block."""
    out: dict[str, Op | None] = {}
    for block in program.blocks:
        for op in block.ops:
            for name in op.output_names():
                out[name] = None if block.idx or name in out else op
    return out


def _choice(makers: dict[str, Op | None], select: Op) -> int | None:
    """What a test chooses, where that is known: the number of a constant, behind a dropout that lets it through."""
    made = makers.get(select.input("Mask") or "")
    made = makers.get(made.input("X") or "") if made is not None and made.type == "cast" else None
    if made is None or made.type != "dropout" or made.input("Seed") is not None:
        return None
    said = made.attributes.values
    constant = makers.get(made.input("X") or "")
    if not said.get("is_test") or said.get("dropout_implementation") != "upscale_in_train" or constant is None or constant.type != "fill_constant":
        return None
    at = constant.attributes.values.get("value")
    return int(at) if isinstance(at, float) and at in range(len(select.inputs["X"])) and not list(constant.input_names()) else None


def _plain(makers: dict[str, Op | None], select: Op, read: str) -> Op:
    """A copy of what is chosen in place of the choice; of what that is a copy of, where it is one."""
    copied = makers.get(read)
    if copied is not None and copied.type == "assign" and (of := copied.input("X")) is not None and (of not in makers or makers[of] is not None):
        read = of
    entries = tuple(e for e in select.attributes.entries if e[0] == ATTRIBUTE)
    return Op(select.block, Attributes.of("assign", entries), {"X": (read,)}, {"Out": select.outputs["Out"]}, select.role, (), select.site)


def _drop_makers(program: Program, names: Iterable[str]) -> list[Op]:
    """Drop the ops of the global block whose results nothing reads any more, beginning with those that make these."""
    block = program.global_block
    readers = Counter(n for op in program.all_ops() for n in set(op.input_names()))
    makers = _makers(program)
    gone: dict[int, Op] = {}
    waiting = list(names)
    while waiting:
        op = makers.get(waiting.pop())
        if op is None or id(op) in gone or any(readers[n] or (v := block.find(n)) is None or v.persistable for n in op.output_names()):
            continue
        gone[id(op)] = op
        read = set(op.all_reads()) & set(op.input_names())
        readers.subtract(read)
        waiting += read
    block.ops = [op for op in block.ops if id(op) not in gone]
    return list(gone.values())
