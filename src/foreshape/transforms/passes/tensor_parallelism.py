"""Layers divided over ranks (tensor parallel): each rank has some columns or rows of a weight, and computes its part of the product.

An undivided value is equal on the ranks of a group. The result of a weight divided by columns is divided along its last axis. It stays so
through elementwise ops and the heads of an attention until a weight divided by rows takes it, and the parts are summed. Before any other op it is
gathered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from foreshape.core.hints import did_you_mean
from foreshape.errors import SchemaError
from foreshape.language.operator.computations import FlattenedProduct
from foreshape.language.ops.collective.shares import CountExamples
from foreshape.language.program import Block, Op, Program, Variable
from foreshape.transforms.passes.data_parallelism import DataParallel
from foreshape.transforms.passes.for_ranks import ALL, DATA, TENSOR, ForRanks, Mesh, ShardedValue, ShardPiece
from foreshape.transforms.passes.forward_and_back import LATER, casts_of
from foreshape.transforms.passes.layer_divider import COLUMNS, ROWS, divided
from foreshape.transforms.passes.optimizer_sharding import startup_for
from foreshape.transforms.passes.table_sharding import SplitTables


@dataclass(frozen=True, slots=True)
class SplitLayers:
    """The strategy ``rest`` over groups of ranks, with weights divided within the groups.

    Args:
        rest: the strategy over the groups.
        degree: the number of ranks of a group; by default all.
        layers: the names of weights, each with "columns" or "rows", beside the layers' own marks.
        choose: also choose pairs of unmarked layers.
    """

    rest: DataParallel | SplitTables = field(default_factory=DataParallel)
    degree: int | None = None
    layers: tuple[tuple[str, str], ...] = ()
    choose: bool = False

    def __post_init__(self) -> None:
        if self.degree is not None and self.degree < 1:
            raise SchemaError.must("degree", "at least 1 rank", self.degree)
        for name, split in self.layers:
            if split not in (COLUMNS, ROWS):
                raise SchemaError.one_of(f"{name}: split", (COLUMNS, ROWS), split)

    @property
    def patience(self) -> float:
        return self.rest.patience

    def mesh(self, ranks: int) -> Mesh:
        """Return the groups: consecutive ranks with the parts of the layers; ranks at equal places in them with the same parts."""
        degree = self._degree(ranks)
        if degree == 1:
            return self.rest.mesh(ranks)
        groups = [list(range(first, first + degree)) for first in range(0, ranks, degree)]
        return {TENSOR: groups, DATA: [list(group) for group in zip(*groups, strict=True)]}

    def apply(self, program: Program, loss: Variable | str, ranks: int | None = None, startup: Program | None = None) -> ForRanks:
        """Return the program for ranks, as `DataParallel.apply`.

        Raises:
            SchemaError: an indivisible weight, or one used by others than its layer and its update; no weight to divide.
        """
        degree = self._degree(ranks)
        if degree == 1:
            return self.rest.apply(program, loss, ranks, startup)
        shares = None if ranks is None else ranks // degree
        marks = self._marks(program, degree)
        if not marks:
            raise SchemaError('no layer is to be divided: say layer.fc(..., split="columns"), or name weights with split_layers(layers=...)')
        divided_program, parts = divided(program, marks, degree)
        begun = startup_for(startup, [p for p in parts if not p.begins_whole])
        for_ranks = self.rest.apply(divided_program, loss, shares, begun)
        _over_groups(for_ranks.program, degree)
        divided_parts = [replace(_of_layers(p, parts), ways=shares or 0, stride=degree) for p in for_ranks.parts]
        shards = tuple(replace(_of_layers(p, parts), ways=shares or 0, stride=degree) for p in for_ranks.shards)
        inner_names = {q.inner for p in divided_parts for q in p.pieces}
        left = [p for p in parts if p.name not in inner_names]
        begins = for_ranks.startup if for_ranks.startup is not None else begun
        shards = (*shards, *(p for p in left if p.begins_whole))
        return replace(for_ranks, startup=begins, parts=(*divided_parts, *left), shards=shards, degree=degree)

    def evaluated(self, program: Program, parts: Sequence[ShardedValue], ranks: int) -> Program:
        """Return a program without updates over the parts' values."""
        degree = self._degree(ranks)
        if degree == 1:
            return self.rest.evaluated(program, parts, ranks)
        held_parts = [(q.name, p.name, p.axis, p.dims) for p in parts if p.axis is not None for q in p.pieces]
        held_parts += [(q.name, q.inner, q.axis, q.dims) for p in parts if p.begins_whole for q in p.pieces if q.axis is not None]
        sources = casts_of(program.global_block, [v.name for v in program.parameters()])
        weights = {sources.get(op.operand(1)) for op in program.global_block.ops if op.computes(FlattenedProduct)}
        marks = {name: COLUMNS if axis else ROWS for name, _, axis, dims in held_parts if name in weights and len(dims) == 2}
        divided_program = divided(program, marks, degree, {name: part for name, part, _, _ in held_parts})[0] if marks else program
        plain_parts = [replace(p, pieces=tuple(ShardPiece(q.inner or q.name, q.start, q.dims) for q in p.pieces)) for p in parts if p.axis is None]
        out = self.rest.evaluated(divided_program, plain_parts, ranks // degree)
        if out is program:
            return program
        _over_groups(out, degree)
        return out

    def _degree(self, ranks: int | None) -> int:
        degree = self.degree if self.degree is not None else ranks
        if degree is None:
            raise SchemaError("to divide layers, either the number of ranks or the degree must be known")
        if ranks is not None and ranks % degree:
            raise SchemaError(f"{ranks} ranks cannot be divided into groups of {degree}, which split_layers asks for")
        return degree

    def _marks(self, program: Program, degree: int) -> dict[str, str]:
        """Return the weights to divide, with "columns" or "rows"."""
        splits = {n: s.split for n, s in program.parameter_settings.items() if s.split is not None}
        for name, split in self.layers:
            if name not in program.global_block.vars:
                raise SchemaError(f"split_layers(layers=...) names {name!r}, and the program has no such weight{did_you_mean(name, program.global_block.vars)}")
            splits[name] = split
        if self.choose:
            splits = chosen(program.global_block, degree, splits) | splits
        return {n: s for n, s in splits.items() if n in program.global_block.vars}


def _of_layers(part: ShardedValue, layers: Sequence[ShardedValue]) -> ShardedValue:
    """Return a part of a group's part of layers, as a part of the described values."""
    by_name = {p.name: p for p in layers}
    pieces = [ShardPiece(o.pieces[0].name, q.start, q.dims, o.axis, o.ways, q.name) if (o := by_name.get(q.name)) is not None else q for q in part.pieces]
    return replace(part, pieces=tuple(pieces))


def chosen(block: Block, degree: int, splits: Mapping[str, str]) -> dict[str, str]:
    """Return weights worth dividing, with "columns" or "rows".

    They are pairs of products: the second alone takes the columns of the first, through elementwise ops, so one sum is the only message.
    """
    forward = [op for op in block.ops if not op.role & LATER]
    sources = casts_of(block, [n for n, v in block.vars.items() if v.is_parameter])
    readers: dict[str, list[Op]] = {}
    for op in forward:
        for name in op.all_reads():
            readers.setdefault(name, []).append(op)
    out: dict[str, str] = {}
    for op in forward:
        first = _weight(op, block, readers, sources)
        end = None if first is None else _taker(op, block, readers)
        second = None if end is None else _weight(end, block, readers, sources)
        if first is None or second is None or end is None or {first, second} & (splits.keys() | out.keys()) or first == second:
            continue
        columns, rows = block.var(first).spec.known_dims[1], block.var(second).spec.known_dims[0]
        if columns == rows and isinstance(rows, int) and rows % degree == 0 and rows >= degree:
            out |= {first: COLUMNS, second: ROWS}
    return out


def _weight(op: Op, block: Block, readers: Mapping[str, Sequence[Op]], sources: Mapping[str, str]) -> str | None:
    """Return the weight of a product, unless it, or a cast of it, has another reader."""
    product = op.computes(FlattenedProduct)
    read = op.operand(1) if product is not None and product.y_rows == 1 else ""
    name = sources.get(read, "")
    variable = block.vars.get(name)
    alone = variable is not None and len(variable.spec.known_dims) == 2 and len(readers[name]) == len(readers[read]) == 1
    return name if alone else None


def _taker(op: Op, block: Block, readers: Mapping[str, Sequence[Op]]) -> Op | None:
    """Return the product that alone takes a product's result, through elementwise ops; None if there is none."""
    name = op.result()
    while len(readers.get(name, ())) == 1:
        op = readers[name][0]
        if op.sub_block_indices() or op.block is not block:
            return None
        product = op.computes(FlattenedProduct)
        if product is not None:
            return op if op.operand(0) == name != op.operand(1) and product.x_rows == len(block.var(name).spec.known_dims) - 1 else None
        operands = [n for n in op.input_names() if n != name]
        biased = len(operands) <= 1 and all(block.var(n).is_parameter and len(readers[n]) == 1 for n in operands)
        if op.operator is None or not op.operator.per_element or not biased:
            return None
        name = op.result()
    return None


def _over_groups(program: Program, degree: int) -> None:
    """Restrict collectives of all ranks to ranks with the same parts of the layers.

    Counts go over all ranks, to find any two of them in different steps.
    """
    for op in program.all_ops():
        if "alike" in op.attrs:
            op.set_attribute("alike", degree)
        elif not isinstance(op.operator, CountExamples) and op.attrs.get("ring_id") == ALL:
            op.set_attribute("ring_id", DATA)


def split_layers(
    rest: DataParallel | SplitTables | None = None, degree: int | None = None, layers: Mapping[str, str] | None = None, *, choose: bool = False,
    bucket: int | None = None, patience: float = 25.0, synchronise_batch_norm: bool = False,
) -> SplitLayers:  # fmt: skip
    """Train with layers divided over ranks (tensor parallel), marked as in ``layer.fc(x, n, split="columns")``.

    Args:
        rest: the result of `data_parallel`, `shard_optimizer`, `shard_parameters` or `split_tables`, for the groups, each with a part of
            every batch; by default `data_parallel` with the other arguments.
        degree: the number of ranks with the parts of the layers and the same examples; by default all, so no batch is divided.
            Consecutive ranks are together: on 4 ranks with degree 2 these are 0 and 1, and 2 and 3.
        layers: the names of weights, each with "columns" or "rows", beside the layers' marks; for a saved program.
        choose: also divide unmarked layers, if one sum serves two of them. The first is divided by columns, the second by rows, with only elementwise
            ops between them.
        bucket, patience, synchronise_batch_norm: as for `data_parallel`, without ``rest``.
    """
    return SplitLayers(rest if rest is not None else DataParallel(bucket, patience, synchronise_batch_norm), degree, tuple((layers or {}).items()), choose)
