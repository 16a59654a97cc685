"""Each rank keeps and updates its part of the optimizer's state: gradients are summed in parts, updated in parts, and parameters gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, TypeGuard

from foreshape.core.dims import Size, product
from foreshape.core.spec import LOD_TENSOR, DType, tensor
from foreshape.errors import SchemaError
from foreshape.language.operator import Operator
from foreshape.language.operator.computations import Cast, Filled
from foreshape.language.operator.traits import is_update
from foreshape.language.ops.collective.coalesced import part_of, places_of
from foreshape.language.ops.collective.parts import ranks_of
from foreshape.language.program import Block, Op, Program, Role, Variable
from foreshape.transforms.passes.buckets import BucketGradient, Sender, gradients_of, in_buckets, places
from foreshape.transforms.passes.contract import COLLECTIVES, UNCONDITIONAL_UPDATES, UPDATES, Contract, contract
from foreshape.transforms.passes.data_parallelism import DataParallel, summed_loss
from foreshape.transforms.passes.for_ranks import ForRanks, ShardedValue, ShardPiece
from foreshape.transforms.passes.forward_and_back import LATER

_GATHER = contract("gather_parameters", ensures=[COLLECTIVES])


@dataclass(frozen=True, slots=True)
class ShardOptimizer(DataParallel):
    """The strategy of `DataParallel`, with the optimizer's state divided by the number of ranks.

    Updates of each element by itself are divided: sgd, momentum, adam, adamw, adagrad, rmsprop, ftrl, adadelta, adamax,
    decayed_adagrad, proximal_gd and lion, of dense gradients. Others are made whole on every rank: sparse gradients, and operators such as lamb and
    lars_momentum with norms of whole parameters.
    """

    contract: ClassVar[Contract] = contract("shard_optimizer", [UPDATES, UNCONDITIONAL_UPDATES], [COLLECTIVES])
    divides_parameters: ClassVar[bool] = False

    def apply(self, program: Program, loss: Variable | str, ranks: int | None = None, startup: Program | None = None) -> ForRanks:
        name = loss if isinstance(loss, str) else loss.name
        total, parts, followers, shards = "", list[ShardedValue](), list[tuple[str, str]](), list[ShardedValue]()

        def change(copy: Program) -> bool:
            nonlocal total
            block = copy.global_block
            part = self.divide_examples(copy, name)
            sent = summed_loss(block, part, name)
            total = sent.total
            gradients = gradients_of(block)
            groups = _groups(block, gradients)
            direct = {g.name for group in groups for g in group.gradients if group.direct}
            Sender(block).sum_all([sent, *(g for g in gradients if g.name not in direct)], self.bucket)
            held_shards: list[Shard] = []
            updates = {id(op) for group in groups for op in group.updates.values()}
            behind = next((previous for previous, op in pairwise(block.ops) if id(op) in updates), block.ops[0])
            for group in groups:
                for bucket in in_buckets(group.gradients, self.bucket):
                    shard = Shard(block, group, bucket.gradients, ranks or 0)
                    followers.extend(shard.followers())
                    parts.extend(shard.write(behind, self.divides_parameters and group.direct))
                    behind = shard.last
                    shards.append(shard.own)
                    if shard.held is not None:
                        held_shards.append(shard)
            gather_before_use(block, [s.held for s in held_shards if s.held is not None], ranks or 0)
            return True

        divided = self.contract.run(program, change).program
        begun = startup_for(startup, [p for p in parts if not p.begins_whole])
        return ForRanks(divided, total, begun, tuple(parts), tuple(followers), tuple(shards))

    def evaluated(self, program: Program, parts: Sequence[ShardedValue], ranks: int) -> Program:
        """Return a program without updates over the values of the ranks: divided parameters are gathered."""
        held_parts = [p for p in parts if p.begins_whole]

        def change(copy: Program) -> bool:
            block = copy.global_block
            needed_parts = [p for p in held_parts if any(q.name in block.vars for q in p.pieces)]
            for part in needed_parts:
                block.create_variable(part.name, tensor(part.dtype, *part.dims), persistable=True, is_parameter=True)
                for piece in part.pieces:
                    if piece.name not in block.vars:
                        block.create_variable(piece.name, tensor(part.dtype, *piece.dims))
            gather_before_use(block, needed_parts, ranks)
            return bool(needed_parts)

        return _GATHER.run(program, change).program


@dataclass(slots=True)
class _Group:
    """Updates alike except for their parameters: of one operator, learning rate and element type."""

    updates: dict[str, Op]
    """The updates by the names of their gradients."""
    gradients: list[BucketGradient]
    direct: bool
    """True if only the updates read the gradients, so a rank needs only its part of their sum."""


def _is_divided(op: Op, block: Block) -> TypeGuard[Op]:
    operator = op.operator
    if operator is None or not is_update(type(operator)) or operator.elementwise_state is None or op.inputs.get("MasterParam"):
        return False
    variables = [block.var(n) for n in op.input_names()]
    return all(v.kind is LOD_TENSOR and all(isinstance(d, int) for d in v.spec.known_dims) for v in variables) and bool(op.inputs.get("Param"))


def _groups(block: Block, gradients: Sequence[BucketGradient]) -> list[_Group]:
    """Return the divisible updates, grouped by their common facts."""
    summed = {g.name: g for g in gradients}
    readers: dict[str, list[Op]] = {}
    for op in block.ops:
        if op.role & Role.OPTIMIZE:
            for name in op.all_reads():
                readers.setdefault(name, []).append(op)
    groups: dict[Any, _Group] = {}
    for index, op in enumerate(block.ops):
        if not op.role & Role.OPTIMIZE or not _is_divided(op, block):
            continue
        name = op.inputs["Grad"][0]
        direct = name in summed and len(readers[name]) == 1
        spec = block.var(name).spec
        key = (op.operator, op.inputs["LearningRate"], spec.dtype, direct, tuple(sorted(s for s, n in op.inputs.items() if n)))
        group = groups.setdefault(key, _Group({}, [], direct))
        group.updates[name] = op
        group.gradients.append(summed[name] if name in summed else BucketGradient(name, op.inputs["Param"][0], index, spec))
    for group in groups.values():
        group.gradients.sort(key=lambda g: g.at)
    return list(groups.values())


class Shard:
    """A writer of ops that update the parameters of some gradients part by part."""

    def __init__(self, block: Block, group: _Group, gradients: Sequence[BucketGradient], nranks: int) -> None:
        self.block, self.group, self.gradients, self.nranks = block, group, gradients, nranks
        self.updates = [group.updates[g.name] for g in gradients]
        self.parameters = [op.inputs["Param"][0] for op in self.updates]
        self.of: DType = gradients[0].spec.known_dtype
        self.dims = [block.var(p).spec.known_dims for p in self.parameters]
        starts, total = places_of([product(d) for d in self.dims], self.of.itemsize)
        self.held: ShardedValue | None = None
        self.own = ShardedValue("", self.of, (), ())
        """This rank's part of the parameters, from `write` on."""
        self.last = self.updates[-1]
        """The last op written by `write`, except for waits for the parameters at the end."""
        self.starts, self.part = starts, part_of(total, ranks_of(nranks), self.of.itemsize)

    def followers(self) -> list[tuple[str, str]]:
        """Return the states of single updates beside their parameters, such as powers of beta: all equal the first one's."""
        first, written = self.updates[0], set(self.updates[0].output_names())
        slots = [s for s, n in first.inputs.items() if n and n[0] in written and s not in (*(self._operator(first).elementwise_state or ()), "Param")]
        return [(op.inputs[s][0], first.inputs[s][0]) for op in self.updates[1:] for s in slots]

    def write(self, behind: Op, hold: bool = False) -> list[ShardedValue]:
        """Replace the updates by one of this rank's part.

        Args:
            behind: the op before it: the update of the gradients sent, and arriving, before these.
            hold: the parameters are held in parts, too; otherwise they are gathered after each update.
        """
        block, first = self.block, self.updates[0]
        parts = {slot: self._state(slot) for slot in self._operator(first).elementwise_state or () if first.inputs.get(slot)}
        reduced, bucket = self._send() if self.group.direct else (self._cut("gradients@PART", [g.name for g in self.gradients], self._at()), "")
        index = self._behind(behind, reduced)
        if hold:
            self.held = self._hold()
            part_name = self.held.name
        else:
            part_name = self._cut("parameters@PART", self.parameters, index)
            index += 1
        self.own = self._part_of_parameters(part_name)
        if self.group.direct:
            done, sent = self._name("gradients@SUMMED"), self._name("gradients@SENT")  # the sent value is there until its arrival
            self._insert(index, "c_sync_comm_stream", {"X": [reduced, bucket]}, {"Out": [done, sent]}, {"ring_id": 0})
            reduced, index = done, index + 1
        inputs = {slot: list(names) for slot, names in first.inputs.items() if names}
        outputs = {slot: list(names) for slot, names in first.outputs.items() if names}
        inputs |= {"Param": [part_name], "Grad": [reduced]} | {slot: [p.name] for slot, p in parts.items()}
        outputs |= {"ParamOut": [part_name]} | {r.name: [parts[r.updates].name] for r in self._operator(first).schema.results if r.updates in parts}
        attrs = {n: v for n, v in first.attrs.items() if n in self._operator(first).schema.attributes}
        for op in self.updates:
            block.remove_op(op)
        for part in parts.values():
            for piece in part.pieces:
                block.remove_variable(piece.name)
        self._insert(index, first.type, inputs, outputs, attrs, (part_name, reduced))
        self.last = block.ops[index]
        if hold:
            return [*([self.held] if self.held is not None else []), *parts.values()]
        sent, gathered = self._name("parameters@SENT"), self._name("parameters@WHOLE")
        self._insert(index + 1, "c_allgather", {"X": [part_name]}, {"Out": [sent]}, {"nranks": self.nranks, "ring_id": 0})
        self.last = block.ops[index + 1]
        end = len(block.ops)
        self._insert(end, "c_sync_comm_stream", {"X": [sent]}, {"Out": [gathered]}, {"ring_id": 0})
        views = [self._name(f"{p}@WHOLE") for p in self.parameters]
        self._insert(end + 1, "split_coalesced", {"X": [gathered]}, {"Out": views}, places(self.dims, self.of))
        for view, parameter in zip(views, self.parameters, strict=True):
            self._insert(len(block.ops), "assign", {"X": [view]}, {"Out": [parameter]}, {}, (parameter, view))
        return list(parts.values())

    def _hold(self) -> ShardedValue:
        """Hold this rank's part of the parameters, in place of them."""
        part_name = self._name("parameters@PART")
        self.block.create_variable(part_name, tensor(self.of, self.part), persistable=True, is_parameter=True, trainable=True)
        return replace(self._part_of_parameters(part_name), begins_whole=True)

    def _part_of_parameters(self, name: str) -> ShardedValue:
        pieces = tuple(ShardPiece(n, s, d) for n, s, d in zip(self.parameters, self.starts, self.dims, strict=True))
        return ShardedValue(name, self.of, (self.part,), pieces)

    def _operator(self, op: Op) -> Operator:
        assert op.operator is not None
        return op.operator

    def _state(self, slot: str) -> ShardedValue:
        """Return this rank's part of a state, in place of the states of single parameters."""
        names = [op.inputs[slot][0] for op in self.updates]
        part_name = self.block.program.unique_name(f"{self.updates[0].type}_{slot.lower()}@PART")
        self.block.create_variable(part_name, tensor(self.of, self.part), persistable=True, stop_gradient=True)
        return ShardedValue(part_name, self.of, (self.part,), tuple(ShardPiece(n, s, d) for n, s, d in zip(names, self.starts, self.dims, strict=True)))

    def _send(self) -> tuple[str, str]:
        """Sum the gradients over the ranks as soon as all are there; each rank gets its part. Returns the sums, and the sent value."""
        index = max(g.at for g in self.gradients) + 1
        names = [g.name for g in self.gradients]
        index = next(k for k, op in enumerate(self.block.ops) if op is self._last_writer(names)) + 1
        bucket, sent = self._name("gradients@BUCKET"), self._name("gradients@PART")
        self._insert(index, "coalesce_parts", {"X": names}, {"Out": [bucket]}, {"nranks": self.nranks}, role=Role.BACKWARD)
        self._insert(index + 1, "c_reducescatter", {"X": [bucket]}, {"Out": [sent]}, {"nranks": self.nranks, "ring_id": 0}, role=Role.BACKWARD)
        return sent, bucket

    def _last_writer(self, names: Sequence[str]) -> Op:
        values = set(names)
        return next(op for op in reversed(self.block.ops) if op.role & Role.BACKWARD and values & set(op.output_names()))

    def _at(self) -> int:
        """Return the position of the first update."""
        ids = {id(op) for op in self.updates}
        return next(index for index, op in enumerate(self.block.ops) if id(op) in ids)

    def _behind(self, behind: Op, reduced: str) -> int:
        """Return the first position after an op at which the updates' operands exist, and their results have no further reader."""
        written = {reduced, *(n for op in self.updates for n in op.output_names())}
        touched = written.union(*(op.all_reads() for op in self.updates))
        ops = self.block.ops[: self._at()]
        return 1 + max(k for k, op in enumerate(ops) if op is behind or touched & set(op.output_names()) or written & op.all_reads())

    def _cut(self, prefix: str, names: Sequence[str], index: int) -> str:
        part_name = self._name(prefix)
        role_variables: tuple[str, ...] = ()
        if prefix.startswith("gradients"):  # after the last op with a change to one of them
            values = set(names)
            index = 1 + max(k for k, op in enumerate(self.block.ops) if values & set(op.output_names()))
            role_variables = tuple(n for pair in zip(self.parameters, names, strict=True) for n in pair)
        self._insert(index, "own_part", {"X": list(names)}, {"Out": [part_name]}, {"nranks": self.nranks}, role_variables)
        return part_name

    def _name(self, prefix: str) -> str:
        return self.block.program.unique_name(prefix)

    def _insert(
        self,
        index: int,
        type: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        attrs: dict[str, Any],
        role_variables: tuple[str, ...] = (),
        role: int = Role.OPTIMIZE,
    ) -> None:
        self.block.append_op(type, inputs, outputs, attrs, role=role, role_variables=role_variables, site=self.updates[0].site, index=index)


def gather_before_use(block: Block, parts: Sequence[ShardedValue], nranks: int) -> None:
    """Gather divided parameters before their first reader, in the forward pass and again in the backward pass.

    Each transfer overlaps with the computation before it; after their last reader of the pass the parameters are released.
    Operands of an op's block are gathered once, for both. Forward casts for products in 16 bits are repeated.
    """
    names = [{q.name for q in part.pieces} for part in parts]
    inner = {n for op in block.ops if op.sub_block_indices() for n in op.all_reads()}
    for name in {n for piece_names in names for n in piece_names}:
        variable = block.var(name)
        variable.persistable, variable.is_parameter = False, False
    _gather(block, parts, names, False, nranks, "")
    again = [n - inner for n in names]
    _gather(block, parts, again, True, nranks, "@AGAIN")


def _gather(block: Block, parts: Sequence[ShardedValue], names: Sequence[set[str]], backward: bool, nranks: int, suffix: str) -> None:
    ops = [op for op in block.ops if not op.role & (Role.OPTIMIZE | Role.LEARNING_RATE) and bool(op.role & Role.BACKWARD) is backward]
    uses: list[tuple[int, Op]] = []
    of_held = {n for piece_names in names for n in piece_names}
    cast = {n: cast_op for n, cast_op in (_casts(block, ops) if backward else {}).items() if cast_op.inputs["X"][0] in of_held}
    for which, needed in enumerate(names):
        needed = needed | {n for n, cast_op in cast.items() if cast_op.inputs["X"][0] in needed}
        first = next((op for op in ops if needed & op.all_reads()), None)
        if first is not None:
            uses.append((which, first))
    uses.sort(key=lambda use: ops.index(use[1]))
    if backward:
        for op in ops:
            for parameter in (of_held | cast.keys()) & op.all_reads():
                op.rename_input(parameter, parameter + suffix)
    for position, (which, first) in enumerate(uses):
        part, site = parts[which], first.site
        start = uses[position - 1][1] if position else first  # one group ahead
        sent, gathered = (block.program.unique_name(f"{part.name}@{word}") for word in ("SENT", "WHOLE"))
        role = Role.BACKWARD if backward else Role.FORWARD
        attrs = {"nranks": nranks, "ring_id": 0}
        block.append_op("c_allgather", {"X": [part.name]}, {"Out": [sent]}, attrs, role=role, site=site, index=block.ops.index(start))
        index = block.ops.index(first)
        block.append_op("c_sync_comm_stream", {"X": [sent]}, {"Out": [gathered]}, {"ring_id": 0}, role=role, site=site, index=index)
        out = [q.name + (suffix if q.name in names[which] else "@UNREAD") if backward else q.name for q in part.pieces]
        dims = places([q.dims for q in part.pieces], part.dtype)
        block.append_op("split_coalesced", {"X": [gathered]}, {"Out": out}, dims, role=role, site=site, index=index + 1)
        for name, cast_op in cast.items():
            if (parameter := cast_op.inputs["X"][0]) in names[which]:
                attrs = {n: cast_op.attrs[n] for n in ("in_dtype", "out_dtype")}
                index += 1
                block.append_op("cast", {"X": [parameter + suffix]}, {"Out": [name + suffix]}, attrs, role=role, site=cast_op.site, index=index + 1)


def _casts(block: Block, ops: Sequence[Op]) -> dict[str, Op]:
    """Return forward casts read by ops of the backward pass, each with the cast; without operands of an op's block."""
    inner = {n for op in block.ops if op.sub_block_indices() for n in op.all_reads()}
    read = {n for op in ops for n in op.all_reads()} - inner
    return {op.outputs["Out"][0]: op for op in block.ops if op.computes(Cast) and not op.role & LATER and op.outputs["Out"][0] in read}


def startup_for(startup: Program | None, parts: Sequence[ShardedValue]) -> Program | None:
    """Return a copy of a startup program that makes a rank's parts in place of whole values, so the whole never exists.

    Raises:
        SchemaError: a divided value does not begin as one number.
    """
    if startup is None:
        return None
    copy = startup.clone()
    block = copy.global_block
    for part in parts:
        values: set[float] = set()
        for piece in part.pieces:
            for op in [op for op in block.ops if piece.name in set(op.output_names())]:
                filled = op.computes(Filled)
                if filled is None or filled.number is None:
                    raise SchemaError(f"{piece.name} is made by {op.type} in the startup program; what is divided over ranks begins as one number")
                values.add(filled.number)
                block.remove_op(op)
            block.remove_variable(piece.name)
        if len(values) > 1:
            raise SchemaError(f"{part.name} is of values that begin differently: {sorted(values)}")
        variable = block.create_variable(part.name, tensor(part.dtype, *part.dims), persistable=True, stop_gradient=True)
        for value in values:
            attrs: dict[str, Any] = {"shape": [_number(d) for d in part.dims], "dtype": part.dtype.code, "value": value, "str_value": repr(value)}
            block.append_op("fill_constant", {}, {"Out": variable}, attrs)
    copy.touch()
    return copy


def _number(size: Size) -> int:
    if not isinstance(size, int):
        raise SchemaError("a startup program is for a number of ranks, not for any")
    return size


@dataclass(frozen=True, slots=True)
class ShardParameters(ShardOptimizer):
    """As `ShardOptimizer`, with the parameters in parts too: gathered while the ops before each use compute, and let go after."""

    contract: ClassVar[Contract] = contract("shard_parameters", [UPDATES, UNCONDITIONAL_UPDATES], [COLLECTIVES])
    divides_parameters: ClassVar[bool] = True


def shard_optimizer(bucket: int | None = None, patience: float = 20.0, synchronise_batch_norm: bool = False) -> ShardOptimizer:
    """Train as `data_parallel`, with the optimizer's state divided over the ranks; the arguments are its.

    Args:
        bucket, patience, synchronise_batch_norm: as for `data_parallel`.
    """
    return ShardOptimizer(bucket, patience, synchronise_batch_norm)


def shard_parameters(bucket: int | None = None, patience: float = 20.0, synchronise_batch_norm: bool = False) -> ShardParameters:
    """Train as `shard_optimizer`, with the parameters divided over the ranks, too; arguments as for `data_parallel`.

    Args:
        bucket, patience, synchronise_batch_norm: as for `data_parallel`.
    """
    return ShardParameters(bucket, patience, synchronise_batch_norm)
