"""Gradients summed over the ranks, many in one message: buckets sent as soon as the backward pass has filled them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import SELECTED_ROWS, DType
from foreshape.language.operator.traits import is_update
from foreshape.language.program import Block, Op, Role, Variable
from foreshape.language.program.op import is_empty_name

ALIGNED = 64
"""The alignment in bytes of a gradient in a bucket, for kernels."""
LEAST, MOST = 1 << 18, 25 << 20
"""A bucket is not smaller, where there is more to send, and not larger: latency counts below, waiting above."""
PARTS = 8
"""About so many buckets there are: the last one is on the way when nothing is left to compute."""


@dataclass(slots=True)
class BucketGradient:
    """A gradient, or a loss, to be summed: its name, its parameter's, and the position of its last writer."""

    name: str
    parameter: str
    at: int
    spec: Any
    total: str = ""
    """The name of its sum, if another variable."""

    @property
    def summed(self) -> str:
        return self.total or self.name

    @property
    def size(self) -> int:
        """Return the bytes; 0 if unknown before the run."""
        nbytes = self.spec.nbytes
        return nbytes if isinstance(nbytes, int) else 0


@dataclass(slots=True)
class Bucket:
    """Gradients of one element type sent together."""

    dtype: DType
    gradients: list[BucketGradient] = field(default_factory=list[BucketGradient])

    @property
    def at(self) -> int:
        """Return the position of the op that fills it."""
        return max(g.at for g in self.gradients)

    @property
    def size(self) -> int:
        return sum(g.size for g in self.gradients)


def gradients_of(block: Block) -> list[BucketGradient]:
    """Return the gradients of parameters, in the order of the backward pass."""
    last: dict[str, tuple[str, int]] = {}
    for index, op in enumerate(block.ops):
        if op.role & Role.BACKWARD:
            written = {n for n in op.output_names() if not is_empty_name(n)}
            pairs = zip(op.role_variables[::2], op.role_variables[1::2], strict=False)
            for parameter, name in pairs:
                if name in written:
                    last[name] = (parameter, index)
    gradients = [BucketGradient(name, parameter, index, block.var(name).spec) for name, (parameter, index) in last.items()]
    return sorted(gradients, key=lambda g: g.at)


def in_buckets(gradients: Sequence[BucketGradient], bucket: int | None) -> list[Bucket]:
    """Return dense gradients in buckets of about so many bytes (None: chosen by their number), in the order of their filling.

    A gradient of a bucket's size is sent alone, without a copy. The bucket of small ones around it stays open: a bias costs no message.
    """
    total = sum(g.size for g in gradients)
    limit = bucket if bucket is not None else min(max(total // PARTS, LEAST), MOST)
    out: list[Bucket] = []
    filling: dict[str, Bucket] = {}
    for gradient in gradients:
        dtype = gradient.spec.known_dtype
        target = filling.get(dtype.name)
        if not gradient.size or gradient.size >= limit:
            target = Bucket(dtype)
            out.append(target)
        elif target is None or target.size + gradient.size > limit:
            target = filling[dtype.name] = Bucket(dtype)
            out.append(target)
        target.gradients.append(gradient)
    return sorted(out, key=lambda b: b.at)


def update_as_they_come(block: Block, buckets: Sequence[Bucket]) -> None:
    """Order consecutive updates by the arrival of their gradients: the first ones run while the last gradients are on their way."""
    turn = {g.summed: index for index, bucket in enumerate(buckets) for g in bucket.gradients}

    def is_moved(op: Op) -> bool:
        return op.operator is not None and is_update(type(op.operator)) and not turn.keys().isdisjoint(op.all_reads())

    for are_moved, run in groupby(list(enumerate(block.ops)), key=lambda pair: is_moved(pair[1])):
        places, ops = zip(*run, strict=True)
        if are_moved and _are_apart(ops):
            ops = sorted(ops, key=lambda op: max(turn.get(n, 0) for n in op.all_reads()))
            block.ops[places[0] : places[-1] + 1] = ops


def _are_apart(ops: Sequence[Op]) -> bool:
    """Tell whether no op reads or writes another one's results."""
    written = [set(op.output_names()) for op in ops]
    of_all = set[str]().union(*written)
    return len(of_all) == sum(map(len, written)) and all(of_all.isdisjoint(op.all_reads() - writes) for op, writes in zip(ops, written, strict=True))


class Sender:
    """A writer of the ops that sum gradients over the ranks."""

    def __init__(self, block: Block, ring: int = 0) -> None:
        self.block, self.ring = block, ring

    def sum_all(self, gradients: Sequence[BucketGradient], bucket: int | None) -> None:
        """Sum each gradient over the ranks before the first update that reads it; a loss among them travels with the first of them."""
        dense = [g for g in gradients if g.spec.kind is not SELECTED_ROWS]
        ends: list[tuple[str, Bucket]] = []
        starts = {b.gradients[-1].name: b for b in in_buckets(dense, bucket)}
        update_as_they_come(self.block, list(starts.values()))
        for filled in sorted(starts.values(), key=lambda b: -b.at):  # from behind, to keep the positions before
            ends.append((self._start(filled), filled))
        for sent, filled in reversed(ends):
            self._end(sent, filled)
        for gradient in gradients:
            if gradient.spec.kind is SELECTED_ROWS:
                self._insert(
                    self._first_use([gradient.name]),
                    "c_allreduce_sum",
                    {"X": [gradient.name]},
                    {"Out": [gradient.name]},
                    {"use_calc_stream": True},
                    gradient.parameter,
                )

    def _start(self, filled: Bucket) -> str:
        """Begin to send a full bucket; a gradient alone is sent as it is. Returns the sent value."""
        names = [g.name for g in filled.gradients]
        index = filled.at + 1
        if len(names) == 1:
            sent = self.block.program.unique_name(f"{names[0]}@SUM")
            self._insert(index, "c_allreduce_sum", {"X": names}, {"Out": [sent]}, {}, filled.gradients[0].parameter)
            return sent
        bucket = self.block.program.unique_name("gradients@BUCKET")
        sent = self.block.program.unique_name("gradients@SUM")
        attrs = {"dtype": filled.dtype.code, "copy_data": True, "align_size": ALIGNED}
        unread = [self.block.program.unique_name(f"{n}@PART") for n in names]
        self._insert(index, "coalesce_tensor", {"Input": names}, {"Output": unread, "FusedOutput": [bucket]}, attrs)
        self._insert(index + 1, "c_allreduce_sum", {"X": [bucket]}, {"Out": [sent]}, {})
        return sent

    def _end(self, sent: str, filled: Bucket) -> None:
        """Wait for a bucket, and take the gradients out of it, before the first op that needs one.

        A bucket with a loss is awaited before all updates, so that a run can stop there.
        """
        names = [g.summed for g in filled.gradients]
        index = self._first_use(names if all(g.parameter for g in filled.gradients) else None)
        if len(names) == 1:
            self._insert(index, "c_sync_comm_stream", {"X": [sent]}, {"Out": names}, {}, filled.gradients[0].parameter)
            return
        done = self.block.program.unique_name("gradients@SUMMED")
        self._insert(index, "c_sync_comm_stream", {"X": [sent]}, {"Out": [done]}, {})
        self._insert(index + 1, "split_coalesced", {"X": [done]}, {"Out": names}, places([g.spec.known_dims for g in filled.gradients], filled.dtype))

    def _first_use(self, names: Sequence[str] | None) -> int:
        """Return the position of the first update that reads one of some values; of the first update for None."""
        values = set(names or ())
        for index, op in enumerate(self.block.ops):
            if op.role & Role.OPTIMIZE and (names is None or values & op.all_reads()):
                return index
        return len(self.block.ops)

    def _insert(self, index: int, type: str, inputs: dict[str, Any], outputs: dict[str, Any], attrs: dict[str, Any], parameter: str = "") -> Op:
        role_variables = (parameter, outputs["Out"][0]) if parameter else ()
        site = self.block.ops[index - 1].site if index else None
        if type.startswith("c_"):
            attrs = {"ring_id": self.ring, **attrs}
        return self.block.append_op(type, inputs, outputs, attrs, role=Role.BACKWARD, role_variables=role_variables, site=site, index=index)


def places(dims: Sequence[Sequence[Size]], dtype: DType) -> dict[str, Any]:
    """Return the layout of tensors of these dims by `coalesce_tensor`, for `split_coalesced`."""
    starts: list[int] = []
    start = 0
    for shape in dims:
        starts.append(start)
        size = dtype.itemsize
        for d in shape:
            assert isinstance(d, int), "what is not known before the run is in no bucket"
            size *= d
        start += -(-size // ALIGNED) * ALIGNED // dtype.itemsize
    return {"starts": starts, "ranks": [len(shape) for shape in dims], "dims": [d for shape in dims for d in shape]}


def data_of(variable: Variable) -> bool:
    """Tell whether a variable is fed."""
    return variable.op is None and not variable.persistable and variable.value is None
