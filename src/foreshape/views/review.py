"""What is to be said of a whole program that came from a file: where it differs from what it declares, and what in it does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from foreshape.dims import Size, equal
from foreshape.program.block import Block
from foreshape.program.names import names_of_op
from foreshape.program.needed import needed_ops
from foreshape.program.op import Op
from foreshape.program.program import Program
from foreshape.program.unknown import is_unknown
from foreshape.program.variable import Variable
from foreshape.spec import LOD_TENSOR_ARRAY, TENSOR_KINDS, DType

_BRANCHING = ("while", "conditional")


class Difference(NamedTuple):
    """A variable whose inferred spec is not what its file says.

    Attributes:
        variable: as it is inferred.
        stored: what the file says, as ``f32[-1, 6]``; -1 stands for a size that the file leaves open.
    """

    variable: Variable
    stored: str


class Early(NamedTuple):
    """A variable that an op reads before anything has written it, though it is neither fed nor kept.

    Attributes:
        name: of the variable.
        reader: the first op that reads it.
        writer: the first op that writes it, which comes later; None where nothing does.
    """

    name: str
    reader: Op
    writer: Op | None


def differences(program: Program) -> list[Difference]:
    """The results whose element type, number of dims, fixed sizes or levels are inferred to be others than the file says.

    A size that the file leaves open, and that is known here, is no difference; one that the file says, and that is open here, is.
    Nothing is said of what depends on an operator that is not known.
    """
    return [Difference(v, text) for v in program.all_variables() if (text := _stored_otherwise(v))]


def _stored_otherwise(variable: Variable) -> str:
    declared, spec = variable._declared, variable.spec  # pyright: ignore[reportPrivateUsage]
    if declared is None or variable.op is None or variable.persistable or not variable.known or spec.kind not in TENSOR_KINDS:
        return ""
    if declared.dims is None or spec.dims is None or declared.kind not in TENSOR_KINDS:
        return ""
    same = declared.kind is spec.kind and declared.dtype in (None, spec.dtype) and declared.lod_level == spec.lod_level
    if same and len(declared.dims) == len(spec.dims) and all(map(_agrees, declared.dims, spec.dims)):
        return ""
    return _text(declared.dtype, declared.dims) + (f" of lod level {declared.lod_level}" if declared.lod_level != spec.lod_level else "")


def _agrees(stored: int, inferred: Size) -> bool:
    return stored < 0 or equal(stored, inferred) is True


def _text(dtype: DType | None, dims: tuple[int, ...]) -> str:
    return f"{'?' if dtype is None else dtype.short}[{', '.join(str(d) for d in dims)}]"


def read_before_written(program: Program) -> list[Early]:
    """The variables that are read before they are written: of the first block, and of the blocks that loops and branches run, their own.

    In a program without feed ops every variable that nothing writes is one that is fed; in one with feed ops it is none.
    """
    out: list[Early] = []
    for block in (program.global_block, *_inner_blocks(program)):
        out += _early(block)
    return out


def _inner_blocks(program: Program) -> Iterator[Block]:
    """The blocks of loops and branches. What others give to their blocks is not told by the names alone."""
    for op in program.all_ops():
        if op.operator is not None and op.operator.region in _BRANCHING:
            for index in op.sub_block_indices():
                if 0 < index < len(program.blocks) and program.blocks[index].forward_idx < 0:
                    yield program.blocks[index]


def _early(block: Block) -> list[Early]:
    readers: dict[str, Op] = {}
    """Name -> the first op that reads it before it is written, though it has to be."""
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
    fed = any(op.type == "feed" for op in block.ops) or block.idx > 0
    out: list[Early] = []
    for name, reader in readers.items():
        writer = writers.get(name)
        if name in block.vars and writer is None and not fed:
            continue
        out.append(Early(name, reader, writer if writer is not reader else None))
    return out


def _must_be_written(variable: Variable) -> bool:
    """Not what is kept, fed or a constant; nor an array, which is empty before it is written to."""
    return not variable.persistable and not variable.need_check_feed and variable.value is None and variable.kind is not LOD_TENSOR_ARRAY


def dead_ops(program: Program) -> list[Op]:
    """The ops on which nothing depends that the program fetches, keeps or does: they are not run.

    Only a program that says with fetch ops what it is for has any. Of an operator that is not known it is not said.
    """
    block = program.global_block
    fetched = [n for op in block.ops if op.type == "fetch" for n in op.input_names()]
    if not fetched:
        return []
    out: list[Op] = []
    for one, wanted in ((block, fetched), *((b, sorted(b.outer_names()[1])) for b in _inner_blocks(program))):
        doubtful = [op for op in one.ops if is_unknown(op)]
        needed = {id(op) for op in needed_ops(one, [*wanted, *(n for op in doubtful for n in op.all_reads())])}
        out += [op for op in one.ops if id(op) not in needed and op.is_run and not is_unknown(op)]
    return out
