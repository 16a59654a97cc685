"""Embedding tables with rows dealt over the ranks: a row's rank looks it up for all, and updates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foreshape.core.dims import symbols_of
from foreshape.core.spec import SELECTED_ROWS, Spec, tensor
from foreshape.errors import SchemaError
from foreshape.language.operator.computations import Embedding
from foreshape.language.ops.collective.parts import ranks_of
from foreshape.language.ops.collective.tables import rows_of_rank
from foreshape.language.program import Block, Op, Program, Role, Variable
from foreshape.transforms.passes.contract import contract
from foreshape.transforms.passes.data_parallelism import DataParallel
from foreshape.transforms.passes.for_ranks import ForRanks, Mesh, ShardedValue, ShardPiece

_SPLIT_TABLES = contract("split_tables")


@dataclass(frozen=True, slots=True)
class SplitTables:
    """The strategy ``rest``, with tables of sparse gradients divided by rows, dealt in turn, so that frequent ids are spread.

    Args:
        rest: the strategy for everything else.
        tables: the names of the tables; by default all with sparse gradients.
    """

    rest: DataParallel = field(default_factory=DataParallel)
    tables: tuple[str, ...] | None = None

    @property
    def patience(self) -> float:
        return self.rest.patience

    def apply(self, program: Program, loss: Variable | str, ranks: int | None = None, startup: Program | None = None) -> ForRanks:
        """Return the program for ranks, as `DataParallel.apply`.

        Raises:
            SchemaError: a table used by other ops than lookups, or a gradient read by more than its update.
        """
        parts: list[ShardedValue] = []
        begun = startup.clone() if startup is not None else None

        def change(copy: Program) -> bool:
            for name in self._chosen(copy.global_block):
                parts.extend(_split(copy.global_block, name, ranks or 0, begun))
            return bool(parts)

        divided = _SPLIT_TABLES.run(program, change).program
        if begun is not None:
            begun.touch()
        for_ranks = self.rest.apply(divided, loss, ranks, begun)
        tables = [p for p in parts if divided.global_block.vars[p.name].is_parameter]
        begins = for_ranks.startup if for_ranks.startup is not None else begun
        return replace(for_ranks, startup=begins, parts=(*parts, *for_ranks.parts), shards=(*tables, *for_ranks.shards))

    def evaluated(self, program: Program, parts: Sequence[ShardedValue], ranks: int) -> Program:
        """Return a program without updates over the parts' values."""
        part_names = {p.pieces[0].name: p.name for p in parts if p.dealt}

        def change(copy: Program) -> bool:
            read = {op.operand(0) for op in copy.global_block.ops if _looks_up(op)}
            for name in sorted(part_names.keys() & read):
                _split(copy.global_block, name, ranks, None, part_names)
            return bool(part_names.keys() & read)

        return self.rest.evaluated(_SPLIT_TABLES.run(program, change).program, parts, ranks)

    def mesh(self, ranks: int) -> Mesh:
        """Return the groups of ``rest``."""
        return self.rest.mesh(ranks)

    def _chosen(self, block: Block) -> list[str]:
        sparse = {op.operand(0) for op in block.ops if (lookup := _looks_up(op)) and lookup.sparse}
        if self.tables is None:
            return sorted(sparse)
        for name in self.tables:
            if name not in sparse:
                raise SchemaError(f"{name} is no table with sparse gradients; those are: {', '.join(sorted(sparse)) or 'none'}")
        return list(self.tables)


def _split(block: Block, name: str, nranks: int, startup: Program | None, names: Mapping[str, str] | None = None) -> list[ShardedValue]:
    """Divide one table, and its update's state for each row. ``names``: the names of the parts, if they exist already."""
    table = block.var(name)
    height, width = table.spec.known_dims
    if not isinstance(height, int) or symbols_of(width):
        raise SchemaError(f"{name} must have dims that are known to be divided over ranks; it is {table.spec.text()}")
    rows = rows_of_rank(height, ranks_of(nranks))
    divided: dict[str, ShardedValue] = {}

    def part(source: str) -> str:
        if source not in divided:
            spec: Spec = block.var(source).spec
            part_name = names[source] if names is not None else block.program.unique_name(f"{source}@ROWS")
            flags: dict[str, Any] = {"is_parameter": True, "trainable": True} if source == name else {"stop_gradient": True}
            block.create_variable(part_name, tensor(spec.known_dtype, rows, *spec.known_dims[1:]), persistable=True, **flags)
            divided[source] = ShardedValue(part_name, spec.known_dtype, (rows, *spec.known_dims[1:]), (ShardPiece(source, 0, spec.known_dims),), dealt=True)
        return divided[source].name

    gradient, shape = f"{name}@GRAD", table.spec.known_dims
    for op in list(block.ops):
        if name not in op.all_reads() | op.all_writes():
            continue
        undone, forward = _looks_up(op, undone=True), op.operator.forward_class if op.operator is not None else None
        if lookup := _looks_up(op):
            _replace(block, op, "split_lookup", {"W": part(name), "Ids": op.operand(1)}, {"Out": op.result()}, lookup, height, nranks)
        elif undone is not None and forward is not None:
            (w, ids), out = forward.schema.operands[:2], forward.schema.results[0]
            inputs = {"W": part(name), "Ids": op.inputs[ids.name][0], "Out@GRAD": op.inputs[f"{out.name}@GRAD"][0]}
            _replace(block, op, "split_lookup_grad", inputs, {"W@GRAD": op.outputs[f"{w.name}@GRAD"][0]}, undone, height, nranks)
        elif op.role & Role.OPTIMIZE and op.inputs.get("Param") == (name,):
            _check_update(block, op, gradient)
            for value in [n for n in dict.fromkeys(op.input_names()) if n != gradient and block.var(n).spec.dims == shape]:
                part_name = part(value)
                op.rename_input(value, part_name)
                op.rename_output(value, part_name)
        else:
            raise SchemaError(f"{name} is read by {op.type}, so that its rows cannot be divided over ranks; only lookups and their update may read it")
    for forward, value in divided.items():
        block.remove_variable(forward)
        if startup is not None:
            _begin(startup, forward, value)
    return list(divided.values())


def _check_update(block: Block, update: Op, gradient: str) -> None:
    for op in block.ops:
        if op.role & Role.OPTIMIZE and gradient in op.all_reads() and op is not update:
            raise SchemaError(f"{gradient} is read by {op.type} before its update: clip and decay need the rows of all ranks, and a divided table has none")
    if block.var(gradient).kind is not SELECTED_ROWS:
        raise SchemaError(f"{gradient} is not sparse")


def _looks_up(op: Op, undone: bool = False) -> Embedding | None:
    """Return the lookup of an op, or of its forward op, with a row for each id; None for others."""
    operator = op.operator
    operator_class = None if operator is None else operator.forward_class if undone else type(operator)
    lookup = op.computes(Embedding) if not undone else operator.backward_of() if operator is not None else None
    if operator_class is None or not isinstance(lookup, Embedding):
        return None
    out = operator_class.schema.results[0].name
    names = op.input(operator_class.schema.operands[1].name), op.input(f"{out}@GRAD") if undone else op.output(out)
    ids, rows = (op.block.var(n).spec if n is not None else None for n in names)
    return lookup if ids is not None and rows is not None and rows.rank == ids.rank + 1 else None


def _replace(block: Block, op: Op, type: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], lookup: Embedding, height: int, nranks: int) -> None:
    attrs = {"ring_id": 0, "nranks": nranks, "height": height, "padding_idx": lookup.padding}
    index = block.ops.index(op)
    block.remove_op(op)
    block.append_op(type, inputs, outputs, attrs, role=op.role, site=op.site, index=index)


def _begin(startup: Program, name: str, part: ShardedValue) -> None:
    """Let the startup program make a rank's rows instead of the whole table."""
    block = startup.global_block
    block.create_variable(part.name, tensor(part.dtype, *part.dims), persistable=True)
    for op in list(block.ops):
        if name in set(op.output_names()):
            attrs = {n: v for n, v in op.attrs.items() if op.operator is not None and n in op.operator.schema.attributes}
            index = block.ops.index(op)
            block.remove_op(op)
            block.append_op(op.type, {}, {"Out": part.name}, attrs | {"shape": list(part.dims)}, site=op.site, index=index)
    block.remove_variable(name)


def split_tables(
    rest: DataParallel | None = None,
    tables: tuple[str, ...] | None = None,
    *,
    bucket: int | None = None,
    patience: float = 20.0,
    synchronise_batch_norm: bool = False,
) -> SplitTables:
    """Train with embedding tables divided by rows over the ranks, and everything else by ``rest``.

    Args:
        rest: the result of `data_parallel`, `shard_optimizer` or `shard_parameters`; by default `data_parallel` with the other arguments.
        tables: the names of the tables; by default all with sparse gradients.
        bucket, patience, synchronise_batch_norm: as for `data_parallel`, without ``rest``.
    """
    return SplitTables(rest if rest is not None else DataParallel(bucket, patience, synchronise_batch_norm), tables)
