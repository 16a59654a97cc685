"""Branches, loops, and what is written anew in them."""

from __future__ import annotations

from foreshape.core.spec import BOOL, INT32, LOD_TENSOR, LOD_TENSOR_ARRAY
from foreshape.errors import FormatError
from foreshape.interop.forms.rules import from_pir
from foreshape.interop.pir.call import PirCall
from foreshape.interop.pir.constants import KnownTensor, Value
from foreshape.interop.pir.pir_graph import GraphBlock, GraphOp, Type
from foreshape.interop.pir.translation import Translation
from foreshape.language.program.block import Block
from foreshape.language.program.declared import Declared
from foreshape.language.program.op import Slots
from foreshape.language.program.variable import Variable

_ONE_TRUTH = Declared(LOD_TENSOR, BOOL, None)


def _yielded(t: Translation, op: GraphOp, block: GraphBlock, count: int) -> GraphOp:
    """Return the last op of a region: it gives ``count`` values."""
    last = block.ops[-1] if block.ops else None
    if last is None or last.name != "yield" or last.dialect != "cf":
        raise FormatError(f"{op.place}: a region of {op.full_name} does not end with a yield")
    if len(last.operands) != count:
        raise FormatError(f"{last.place}: the region gives {len(last.operands)} values; {op.full_name} takes {count}")
    return last


def _tensor_name(t: Translation, value: Value, number: int) -> str:
    """Return the name of a value, one tensor or array; a constant is made."""
    if isinstance(value, tuple):
        raise FormatError(f"{t.place}: a list of tensors goes into or out of a region")
    return t.constant_tensor(number, value) if isinstance(value, KnownTensor) else value


@from_pir("cf.yield")
def ending(p: PirCall) -> None:
    """Leave the end of a region to the op of the region."""


@from_pir("if")
def branches(p: PirCall) -> None:
    """Write two conditional blocks, and the choice between their results."""
    t, op = p.translation, p.op
    if len(op.regions) != 2 or not op.operands:
        raise FormatError(f"{op.place}: a branch has a condition and two regions")
    outer, condition, scope = t.block, t.tensor(op, 0), t.scope
    outs = [number for number, type in zip(op.results, op.types, strict=True) if type is not None]
    otherwise = t.temporary("logical_not", _ONE_TRUTH)
    t.write("logical_not", {"X": (condition,)}, {"Out": (otherwise,)})
    results: list[list[str]] = []
    for region, holds in zip(op.regions, (condition, otherwise), strict=True):
        names: list[str] = []
        with t.within(t.inner_block()) as block:
            t.ops(region)
            terminator = _yielded(t, op, region, len(op.results))
            for number, type in zip(terminator.operands, op.types, strict=True):
                if type is None:
                    continue
                name = t.declare(t.fresh("branch"), type, outer).name
                t.scope = scope
                t.write("assign", {"X": (_tensor_name(t, t.value(number), number),)}, {"Out": (name,)})
                names.append(name)
        t.scope = scope
        results.append(names)
        _run(t, "conditional_block", block, {"Cond": (holds,)}, "Input", {"is_scalar_condition": True})
    chosen = t.temporary("cast", Declared(LOD_TENSOR, INT32, None))
    if outs:
        t.write("cast", {"X": (condition,)}, {"Out": (chosen,)}, {"in_dtype": BOOL.code, "out_dtype": INT32.code})
    places = [place for place, type in enumerate(op.types) if type is not None]
    for place, true, false in zip(places, results[0], results[1], strict=True):
        t.write("select_input", {"X": (false, true), "Mask": (chosen,)}, {"Out": (t.output(op, place),)})


@from_pir("while")
def loop(p: PirCall) -> None:
    """Write a loop on variables of the block around it: copies of the first values, written anew at the end of each round."""
    t, op = p.translation, p.op
    if len(op.regions) != 1 or len(op.operands) != len(op.results) + 1:
        raise FormatError(f"{op.place}: a loop has a condition, its first values, one region, and as many results")
    region = op.regions[0]
    if len(region.arguments) != len(op.results):
        raise FormatError(f"{op.place}: the region of a loop takes {len(region.arguments)} values, and {len(op.results)} are given")
    outer, scope = t.block, t.scope
    running = t.temporary("while_condition", _ONE_TRUTH)
    t.write("assign", {"X": (t.tensor(op, 0),)}, {"Out": (running,)})
    state: list[str] = []
    for index, (argument, type) in enumerate(zip(region.arguments, op.types, strict=True), 1):
        first = _tensor_name(t, t.value(op.operands[index]), op.operands[index])
        if _is_array(t, first):
            name = first
        else:
            name = t.declare(t.fresh("loop"), _merged(type, region.types[index - 1])).name
            t.write("assign", {"X": (first,)}, {"Out": (name,)})
        state.append(name)
        t.values[argument] = name
    with t.within(t.inner_block()) as block:
        t.ops(region)
        t.scope = scope
        terminator = _yielded(t, op, region, len(op.results) + 1)
        holds, *news = [_tensor_name(t, t.value(number), number) for number in terminator.operands]
        moving = set(state)
        for index, (old, new) in enumerate(zip(state, news, strict=True)):  # all is read before anything is written: variables change places
            if new != old and new in moving:
                news[index] = t.temporary("assign", None)
                t.write("assign", {"X": (new,)}, {"Out": (news[index],)})
        if holds in moving:
            copy = t.temporary("assign", _ONE_TRUTH)
            t.write("assign", {"X": (holds,)}, {"Out": (copy,)})
            holds = copy
        for old, new in zip(state, news, strict=True):
            if new != old:
                t.write("assign", {"X": (new,)}, {"Out": (old,)})
        t.write("assign", {"X": (holds,)}, {"Out": (running,)})
    _run(t, "while", block, {"Condition": (running,)}, "X", {})
    for number, name in zip(op.results, state, strict=True):
        result_name = t.wanted.get(number)
        if result_name is not None and not outer.idx:
            t.declare(result_name, None)
            t.write("assign", {"X": (name,)}, {"Out": (result_name,)})
            name = result_name
        t.values[number] = name


def _merged(result: Type, first: Type) -> Type:
    """Return the type of a loop's variable: its dims may differ from round to round."""
    if (
        isinstance(result, Declared)
        and isinstance(first, Declared)
        and result.dims is not None
        and first.dims is not None
        and len(result.dims) == len(first.dims)
    ):
        return Declared(result.kind, result.dtype, tuple([a if a == b else -1 for a, b in zip(result.dims, first.dims, strict=True)]))
    return result


def _is_array(t: Translation, name: str) -> bool:
    variable = t.block.find(name)
    declared = variable.declared if variable is not None else None
    return declared is not None and declared.kind is LOD_TENSOR_ARRAY


def _run(t: Translation, type: str, block: Block, inputs: Slots, reads: str, attrs: dict[str, object]) -> None:
    """Append the op of a block: its outer reads and writes are operands and results."""
    read, written = block.outer_names()
    operand_names = {name for names in inputs.values() for name in names}
    inputs[reads] = tuple(sorted(name for name in read if name not in operand_names and t.block.find(name) is not None))
    wrote = tuple(dict.fromkeys(n for op in block.ops for n in op.all_writes() if n in written))
    t.write(type, inputs, {"Out": wrote}, {**attrs, "sub_block": block.idx})


@from_pir("select_input")
def select_input(p: PirCall) -> Variable:
    """Take one of several tensors, by its number."""
    return p.apply("select_input", X=[p.x(index) for index in range(1, len(p.op.operands))], Mask=p.x())


@from_pir("increment_")
def increment(p: PirCall) -> None:
    """Add a number to a counter."""
    p.translation.write("increment", {"X": (p.x().name,)}, {"Out": (in_place(p.translation, p.op, 0),)}, {"step": p.real("value", 1.0)})


@from_pir("assign_out_")
def assign_out(p: PirCall) -> None:
    """Copy into another value."""
    p.translation.write("assign", {"X": (p.x().name,)}, {"Out": (in_place(p.translation, p.op, 1),)})


def in_place(t: Translation, op: GraphOp, index: int) -> str:
    """Return the name of a result in an operand's memory.

    A value of a block around is written anew itself, for the next round of a loop. In its own block the result is another variable, and the value
    from now on.
    """
    number = op.operands[index]
    name = t.tensor(op, index)
    if number in t.rewritten and name not in t.block.vars:
        t.give(op, 0, name)
        return name
    name = t.output(op, 0)
    t.values[number] = name
    return name


@from_pir("create_array", without=("dtype",))
def create_array(p: PirCall) -> str:
    """Make an array without entries."""
    type = p.op.types[0] if p.op.types else None
    return p.translation.declare(p.translation.fresh("array"), type if isinstance(type, Declared) else None).name


@from_pir("array_write_")
def array_write(p: PirCall) -> str | None:
    """Write an entry of an array."""
    array = p.x().name
    p.translation.write("write_to_array", {"X": (p.x(1).name,), "I": (p.x(2).name,)}, {"Out": (array,)})
    return array if p.op.results else None
