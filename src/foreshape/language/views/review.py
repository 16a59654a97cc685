"""Remarks on a whole program from a file: its differences from its declarations, and its dead ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from foreshape.core.dims import Size, equal
from foreshape.core.spec import LOD_TENSOR_ARRAY, TENSOR_KINDS, DType
from foreshape.language.program.block import Block
from foreshape.language.program.names import names_of_op
from foreshape.language.program.needed import needed_ops
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program
from foreshape.language.program.unknown import is_unknown
from foreshape.language.program.variable import Variable

_BRANCHING = ("while", "conditional")


class Difference(NamedTuple):
    """A variable whose inferred spec differs from its file.

    Attributes:
        variable: as inferred.
        stored: the file's spec, as ``f32[-1, 6]``; -1 stands for an open size.
    """

    variable: Variable
    stored: str


class Early(NamedTuple):
    """A variable read by an op before any write, though neither fed nor persistable.

    Attributes:
        name: of the variable.
        reader: its first reader.
        writer: its first writer, later; None if there is none.
    """

    name: str
    reader: Op
    writer: Op | None


def differences(program: Program) -> list[Difference]:
    """Return the results whose element type, number of dims, fixed sizes or levels are inferred differently from the file.

    A size open in the file, and known here, is no difference; one fixed in the file, and open here, is.
    Variables behind an unknown operator are left out.
    """
    return [Difference(v, text) for v in program.all_variables() if (text := _stored_otherwise(v))]


def _stored_otherwise(variable: Variable) -> str:
    declared, spec = variable.declared, variable.spec
    if declared is None or variable.op is None or variable.persistable or not variable.known or spec.kind not in TENSOR_KINDS:
        return ""
    if declared.dims is None or spec.dims is None or declared.kind not in TENSOR_KINDS:
        return ""
    alike = declared.kind is spec.kind and declared.dtype in (None, spec.dtype) and declared.lod_level == spec.lod_level
    if alike and len(declared.dims) == len(spec.dims) and all(map(_agrees, declared.dims, spec.dims)):
        return ""
    return _text(declared.dtype, declared.dims) + (f" of lod level {declared.lod_level}" if declared.lod_level != spec.lod_level else "")


def _agrees(stored: int, inferred: Size) -> bool:
    return stored < 0 or equal(stored, inferred) is True


def _text(dtype: DType | None, dims: tuple[int, ...]) -> str:
    return f"{'?' if dtype is None else dtype.short}[{', '.join(str(d) for d in dims)}]"


def read_before_written(program: Program) -> list[Early]:
    """Return the variables read before they are written: of the first block, and of the blocks of loops and branches, their own.

    In a program without feed ops every variable without a writer is fed; with feed ops it is not.
    """
    out: list[Early] = []
    for block in (program.global_block, *_inner_blocks(program)):
        out += _early(block)
    return out


def _inner_blocks(program: Program) -> Iterator[Block]:
    """Yield the blocks of loops and branches. Names alone do not tell the inputs of other blocks."""
    for op in program.all_ops():
        if op.operator is not None and op.operator.region in _BRANCHING:
            for index in op.sub_block_indices():
                if 0 < index < len(program.blocks) and program.blocks[index].forward_idx < 0:
                    yield program.blocks[index]


def _early(block: Block) -> list[Early]:
    readers: dict[str, Op] = {}
    """Name -> the first op that reads it before the required write."""
    written: set[str] = set()
    for op in block.ops:
        reads, writes = names_of_op(op) if op.attributes.sub_blocks else (op.input_names(), op.output_names())
        missing = [n for n in reads if n not in written and n not in readers]
        if missing and op.attributes.sub_blocks:
            missing = [n for n in missing if n not in writes]
        written.update(writes)
        for name in sorted(set(missing)) if missing and not is_unknown(op) else ():
            variable = block.vars.get(name)
            if block.find(name) is None if variable is None else _must_be_written(variable):
                readers[name] = op
    if not readers:
        return []
    writers: dict[str, Op] = {}
    for op in block.ops:
        for name in names_of_op(op)[1]:
            writers.setdefault(name, op)
    fed = any(op.is_feed for op in block.ops) or block.idx > 0
    out: list[Early] = []
    for name, reader in readers.items():
        writer = writers.get(name)
        if name in block.vars and writer is None and not fed:
            continue
        out.append(Early(name, reader, writer if writer is not reader else None))
    return out


def _must_be_written(variable: Variable) -> bool:
    """Tell whether a variable must be written: it is not persistable, fed or a constant; nor an array, empty before its first write."""
    return not variable.persistable and not variable.need_check_feed and variable.value is None and variable.kind is not LOD_TENSOR_ARRAY


def dead_ops(program: Program) -> list[Op]:
    """Return the ops without a use in fetches, persistable results or effects: they are not run.

    Only a program with fetch ops has any. Unknown operators are left out.
    """
    block = program.global_block
    fetched = [n for op in block.ops if op.is_fetch for n in op.input_names()]
    if not fetched:
        return []
    out: list[Op] = []
    for run_block, fetches in ((block, fetched), *((b, sorted(b.outer_names()[1])) for b in _inner_blocks(program))):
        doubtful = [op for op in run_block.ops if is_unknown(op)]
        needed = {id(op) for op in needed_ops(run_block, [*fetches, *(n for op in doubtful for n in op.all_reads())])}
        out += [op for op in run_block.ops if id(op) not in needed and op.is_run and not is_unknown(op)]
    return out
