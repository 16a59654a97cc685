"""The part of one rank in a training run over several."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from foreshape.apps.training.checkpoint.checkpoint import Checkpoint
from foreshape.apps.training.checkpoint.divided import BLOCK, NOTHING, ShardedCheckpoint, described, file_of, joined, write_own
from foreshape.apps.training.checkpoint.resume_check import Facts, op_line
from foreshape.apps.training.checkpoint.state import State, Sums
from foreshape.apps.training.data.batches import Batch, batch_examples
from foreshape.apps.training.distributed.batch_share import Share, share_of
from foreshape.apps.training.program import persistables
from foreshape.core.dims import equal, evaluate
from foreshape.core.spec import LOD_TENSOR
from foreshape.core.values.torch_proxy import torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import ExecutionError, RankError, SchemaError
from foreshape.language.program import Program, Role, Variable
from foreshape.machine.communication.join import Ranks
from foreshape.machine.communication.last_words import saying_last_words
from foreshape.machine.communication.process_group import SIGNATURE_LIMIT, all_teams, numbers_of
from foreshape.machine.process.machine_memory import default_limit
from foreshape.runtime.engine import Executor, Scope
from foreshape.transforms.passes.accumulate_distributed import Ungathered, gathered_over_ranks
from foreshape.transforms.passes.data_parallelism import COUNTS
from foreshape.transforms.passes.for_ranks import DATA, TENSOR, ForRanks, Mesh, ShardedValue

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
_GATHERED = 0.5
"""The fraction of the machine's memory for the gathered values of all its ranks."""
_END = zlib.crc32(b"the data have ended") % SIGNATURE_LIMIT


class ParallelStrategy(Protocol):
    """A division of a program over ranks."""

    @property
    def patience(self) -> float:
        """Return the seconds that a rank waits for the others."""
        ...

    def evaluated(self, program: Program, parts: Sequence[ShardedValue], ranks: int) -> Program:
        """Return a program without updates over the values held by the ranks."""
        ...

    def mesh(self, ranks: int) -> Mesh:
        """Return the groups of ranks for collectives, beside the group of all."""
        ...

    def apply(self, program: Program, loss: Variable | str, ranks: int | None = None, startup: Program | None = None) -> ForRanks:
        """Return a copy of a training program for so many ranks, and the name of the loss over all ranks."""
        ...


class DistributedSession:
    """A run's part in the work of all ranks; of one rank alone it changes nothing."""

    def __init__(self, ranks: Ranks, strategy: ParallelStrategy | None, loss: Variable, startup: Program, ungathered: Ungathered | None = None) -> None:
        self.ranks = ranks
        self.alone = ranks.count == 1
        self.strategy = strategy
        program = loss.block.program
        self.described = program
        self.program, self.loss, self.local_loss = program, loss.name, loss.name
        self.startup = startup
        self.parts: tuple[ShardedValue, ...] = ()
        self.followers: tuple[tuple[str, str], ...] = ()
        self.share, self.shares = ranks.rank, ranks.count
        """This rank's part of a batch, and the number of parts; some ranks may have the same."""
        self.counts = True
        """True if this rank's figures count: one rank counts of the ranks with the same examples."""
        if not self.alone and strategy is not None:
            if ungathered is None:
                distributed = strategy.apply(program, loss, ranks.count, startup)
            else:
                distributed = gathered_over_ranks(strategy, ungathered, program, loss.name, ranks.count)
            self.program, self.loss, self.parts, self.followers = distributed.program, distributed.loss, distributed.parts, distributed.followers
            self.startup = distributed.startup if distributed.startup is not None else startup
            self._divide_ranks(strategy.mesh(ranks.count))
            self._draw_apart()
            if program.random_seed:
                self.program.random_seed = _seed_of(program.random_seed, self.share)

    def _divide_ranks(self, mesh: Mesh) -> None:
        """Make the groups named by the strategy; the ranks of a tensor group have the same examples, and draw the same numbers."""
        rank = self.ranks.rank
        if DATA in mesh:
            self.share, self.shares = next((g.index(rank), len(g)) for g in mesh[DATA] if rank in g)
        self.counts = all(rank == g[0] for g in mesh.get(TENSOR, ()) if rank in g)
        self.ranks.divide(mesh)

    def evaluated(self, program: Program) -> Program:
        """Return a program without updates, over the values held by this rank."""
        return program if self.strategy is None or self.alone else self.strategy.evaluated(program, self.parts, self.ranks.count)

    def check_figures(self, figures: Iterable[tuple[str, Variable]]) -> None:
        """Refuse figures of divided values: they would be of the part. Raise `SchemaError`: one of them, by its name."""
        for name, variable in figures:
            part = self.program.global_block.find(variable.name)
            dims = variable.spec.dims or ()
            if part is None or any(equal(a, b) is False for a, b in zip(part.spec.dims or (), dims, strict=True)):
                raise SchemaError(f"the metric {name!r} is {variable.name}, of which each rank has a part only: make a number of it, such as layer.mean(...)")

    # --- values

    def begin_whole(self, executor: Executor, scope: Scope) -> None:
        """Make the values drawn as a whole like rank 0's, before each rank cuts its part out of them."""
        missing = {q.name for p in self.parts if p.begins_whole and p.name not in scope for q in p.pieces if q.name not in scope}
        if missing:
            first = Scope()
            executor.run(self.startup, scope=first)
            names = missing | {v.name for v in persistables(self.program)}
            for name in first.names():
                if name in names and name not in scope:
                    scope.store(name, first.tensor(name))
        pieces = {q.name: (p, q) for p in self.parts for q in p.pieces}
        flags = torch.tensor([name in scope for name in pieces], dtype=torch.uint8)
        self.ranks.from_first(flags)  # their values may be missing on the other ranks
        for (name, (part, piece)), flag in zip(pieces.items(), numbers_of(flags), strict=True):
            if not flag:
                scope.remove(name)
                continue
            if name not in scope:
                scope.store(name, torch.empty([int(evaluate(d, {})) for d in piece.whole], dtype=torch_dtype(part.dtype)))
            self.ranks.from_first(scope.tensor(name))

    def _draw_apart(self) -> None:
        """Let each rank draw its own rows where a divided value begins with random numbers."""
        parts = {p.name: p for p in self.parts}
        for op in self.startup.global_block.ops:
            if op.operator is not None and op.operator.random and parts.keys() & set(op.output_names()):
                name = next(iter(op.output_names()))
                place = parts[name].place(self.ranks.rank, self.ranks.count)
                op.set_attribute("seed", _seed_of(zlib.crc32(f"{self.startup.random_seed} {name}".encode()), place + 1) % (1 << 31))

    def begin(self, executor: Executor, scope: Scope, seed: int) -> None:
        """Prepare the first step: all ranks have the same program and begin with the values of rank 0; each draws numbers of its own."""
        if self.alone:
            return
        self._compare_programs()
        divided = {p.name for p in self.parts}
        for variable in persistables(self.program):
            if variable.name in scope and variable.name not in divided and variable.kind is LOD_TENSOR:  # sums of rows begin empty, or as saved, on all
                self.ranks.from_first(scope.tensor(variable.name))
        if self.share:
            executor.reseed(_seed_of(seed, self.share))
        self._draw_alike(executor)

    def _draw_alike(self, executor: Executor) -> None:
        """Let ranks with the same examples draw the random numbers of the first of them."""
        if self.shares != self.ranks.count:
            states = self.ranks.all_of(torch.from_numpy(executor.random_state()))  # pyright: ignore[reportUnknownMemberType]
            executor.set_random_state(states[self.ranks.rank - self.ranks.rank % (self.ranks.count // self.shares)].clone().numpy())

    def same_checkpoint(self, steps: int) -> None:
        """Refuse ranks with different newest checkpoints."""
        if self.alone:
            return
        newest = [int(t.item()) for t in self.ranks.all_of(torch.tensor(steps))]
        if len(set(newest)) > 1:
            words = ", ".join(f"rank {r}: {'none' if n < 0 else f'after step {n}'}" for r, n in enumerate(newest))
            raise _explained(f"the ranks have found different checkpoints; the folder must be one that all of them see: {words}")

    def in_parts(self, values: Mapping[str, Tensor], divided: ShardedCheckpoint | None = None) -> dict[str, Tensor]:
        """Return values of the described program as held by this rank: its own parts in place of divided values."""
        out = dict(values)
        for part in self.parts:
            tensor = (divided if divided is not None else NOTHING).own(part, self.ranks.rank, self.ranks.count, values)
            for piece in part.pieces:
                out.pop(piece.name, None)
            if tensor is not None:
                out[part.name] = tensor
        return out

    def gather(self, scope: Scope) -> bool:
        """Let the scope hold the whole values on every rank, as with one rank; False if they exceed this machine's memory."""
        if not fit_together(self.parts, self.ranks.count):
            return False
        for part in self.parts:
            with torch.inference_mode():
                for name, value in put_together(part, scope.tensor(part.name), self.ranks.all_of, self.ranks.count).items():
                    scope.store(name, value)
            scope.remove(part.name)
        return True

    def undivided(self, names: Iterable[str]) -> list[str]:
        """Return the names of this rank's values in the described program."""
        pieces = {p.name: [q.name for q in p.pieces] for p in self.parts}
        return [piece for n in names for piece in pieces.get(n, [n])]

    def divide(self, scope: Scope) -> None:
        """Replace the whole values of a scope by this rank's parts."""
        for name, leader in self.followers:
            if name in scope and leader in scope and not torch.equal(scope.tensor(name), scope.tensor(leader)):
                raise ExecutionError(f"{name} and {leader} must be equal for their updates to be made as one; the scope holds others")
        inside = [q.name for p in self.parts for q in p.pieces if q.name in scope]
        if inside:
            scope.fill(self.in_parts({n: scope.tensor(n) for n in inside}))
            for name in inside:
                scope.remove(name)

    def settle(self, scope: Scope) -> None:
        """Give all ranks the means of values moved by each rank's own examples, such as the statistics of batch normalisation."""
        if self.alone:
            return
        with torch.inference_mode():
            for name in self._moving():
                self.ranks.mean_of(scope.tensor(name))
        scope.fill({name: scope.tensor(leader) for name, leader in self.followers})

    def _moving(self) -> list[str]:
        """Return the floating persistable values written by the forward pass, different on each rank: not those made equal by a collective."""
        block = self.program.global_block
        forward = [op for op in self.program.all_ops() if not op.role & (Role.BACKWARD | Role.OPTIMIZE | Role.LEARNING_RATE)]
        written = {n for op in forward if op.operator is None or not op.operator.collective for n in op.output_names()}
        return sorted(n for n in written if (v := block.vars.get(n)) is not None and v.persistable and v.dtype is not None and v.dtype.is_floating)

    def _compare_programs(self) -> None:
        """Refuse ranks with another program or version."""
        from foreshape.core.version import VERSION

        lines = [*map(op_line, self.program.all_ops()), *(f"{v.name} {v.spec.text()}" for v in persistables(self.program))]
        text = "\n".join([*lines, VERSION, torch.__version__])
        tensor = torch.tensor(list(_digest(text.encode())), dtype=torch.uint8)
        all_of = [bytes(numbers_of(t)) for t in self.ranks.all_of(tensor)]
        if len(set(all_of)) > 1:
            alike: dict[bytes, list[str]] = {}
            for rank, digest in enumerate(all_of):
                alike.setdefault(digest, []).append(str(rank))
            groups = " | ".join(", ".join(r) for r in alike.values())
            raise _explained(f"the ranks do not run the same program with the same versions of foreshape and torch; alike are ranks {groups}")

    # --- checkpoints

    def save(self, checkpoint: Checkpoint, scope: Scope, state: State, facts: Facts, executor: Executor) -> None:
        """Write a checkpoint: each rank its parts, then rank 0 the rest, which makes it valid."""
        self.settle(scope)
        sums, state.sums = state.sums, self.total(state.sums)
        parts: Any = None
        if not self.alone:
            state.others = torch.stack(self.ranks.all_of(torch.from_numpy(executor.random_state())))  # pyright: ignore[reportUnknownMemberType]
        if self.parts:
            path = checkpoint.place(state.history.steps)
            digits = write_own(path, self.parts, scope, self.ranks.rank, self.ranks.count)
            checkpoint.written(file_of(path, self.ranks.rank, self.ranks.count))
            checksums = self.ranks.all_of(torch.tensor(list(digits.encode()), dtype=torch.uint8))
            parts = described(self.parts, [bytes(numbers_of(t)).decode() for t in checksums])
        if self.ranks.first:
            checkpoint.save(self.described, scope, state, facts, **({} if parts is None else {"parts": parts}))
        state.sums = sums

    def resume_random(self, state: State, executor: Executor, seed: int) -> None:
        """Put this rank's generator back, if as many ranks wrote the checkpoint; otherwise begin it anew."""
        if self.alone:
            return
        if state.others is not None and len(state.others) == self.ranks.count:
            executor.set_random_state(state.others[self.ranks.rank].clone().numpy())
        elif self.share:
            executor.reseed(_seed_of(seed, self.share))
        self._draw_alike(executor)
        if not self.ranks.first:  # rank 0 has the figures of all
            import numpy

            state.sums = {name: value[:0] if value.ndim > 1 else numpy.zeros_like(value) for name, value in state.sums.items()}

    # --- batches and figures

    def part(self, batch: Batch) -> Share:
        """Return this rank's share of a batch; one that is a share already stays as it is."""
        if isinstance(batch, Share):
            return batch
        if self.alone:
            count = batch_examples(batch)
            return Share(batch, count, count)
        return share_of(batch, self.described, self.share, self.shares)

    def take(self, batch: Batch, step: int) -> Share:
        """Return this rank's share of the batch of a step."""
        share = self.part(batch)
        if self.alone:
            return share
        import numpy

        assert self.ranks.team is not None and self.ranks.board is not None
        words = ", ".join(f"{name} {_described(value)}" for name, value in sorted(share.items()))
        self.ranks.team.signature = zlib.crc32(f"{step} {words}".encode()) % SIGNATURE_LIMIT
        self.ranks.board.fed = f"step {step} with {words}"
        self.ranks.board.at(f"in step {step}")
        share[COUNTS] = numpy.array([1.0 if share.own else 0.0], numpy.float32)
        return share

    def end_of_data(self) -> None:
        """Make sure that the data of all ranks end together."""
        if self.alone:
            return
        assert self.ranks.team is not None and self.ranks.board is not None
        self.ranks.board.fed = "no more data"
        total = torch.tensor([0.0, float(_END), float(_END) ** 2], dtype=torch.float64)
        self.ranks.team.sum(total, "count_examples")
        _, signature, square = numbers_of(total)
        if signature != self.ranks.count * _END or square != self.ranks.count * float(_END) ** 2:
            raise RankError("the data of the ranks do not end together")

    def total(self, sums: Sums) -> Sums:
        """Return figures over the examples of all ranks."""
        if self.alone or not sums:
            return dict(sums)
        import numpy

        added = {name: sums[name] if self.counts else numpy.zeros_like(sums[name]) for name in sorted(sums) if sums[name].ndim == 1}
        ends = numpy.cumsum([len(value) for value in added.values()])
        numbers = numpy.array(self.ranks.sums([x for value in added.values() for x in value.tolist()]))
        out = dict(zip(added, numpy.split(numbers, ends[:-1]), strict=True))
        rows = {name: torch.tensor(sums[name] if self.counts else sums[name][:0]) for name in sorted(sums) if name not in added}
        if rows:
            assert self.ranks.team is not None
            parts = self.ranks.team.gather_uneven(list(rows.values()), "figures")
            out |= {name: torch.cat(tensors).numpy() for name, tensors in zip(rows, zip(*parts, strict=True), strict=True)}
        return out

    def decided(self, stop: bool) -> bool:
        """Return the decision of rank 0."""
        return bool(self.ranks.same_for_all(int(stop)))

    def not_finite(self, loss: float) -> str:
        """Name the ranks with a non-finite loss."""
        if self.alone:
            return ""
        for team in all_teams():
            team.finish()
        flags = self.ranks.all_of(torch.tensor([not math.isfinite(loss)], dtype=torch.uint8))
        return " on rank " + ", ".join(str(r) for r, f in enumerate(flags) if f.item())

    # --- when something goes wrong

    def guarded(self, run: Callable[[], T]) -> T:
        """Run a function of all ranks together: after a failure each rank names the rank that stopped it."""
        if self.alone:
            return run()
        board = self.ranks.board
        assert board is not None
        with saying_last_words(board):
            try:
                return run()
            except RankError as error:
                board.waited(str(error))
                if error.explained:
                    raise
                raise RankError(f"rank {self.ranks.rank}: {board.explain()}\n    it was found by {error}") from error
            except BaseException as error:
                board.stopped(f"{type(error).__name__}: {error}")
                if isinstance(error, ExecutionError):
                    error.add_note(f"on rank {self.ranks.rank} of {self.ranks.count}")
                raise


def fit_together(parts: Sequence[ShardedValue], ranks: int) -> bool:
    """Tell whether this machine has the memory for the divided values to be whole on all ranks."""
    limit = default_limit()
    ways_of_parts = ((p, max(q.ways for q in p.pieces)) for p in parts)
    size = sum(int(evaluate(p.size, {})) * p.dtype.itemsize * p.count(ranks) * ways for p, ways in ways_of_parts)
    return limit is None or size * ranks <= limit.size * _GATHERED


def _explained(text: str) -> RankError:
    error = RankError(text)
    error.explained = True
    return error


def _described(value: Any) -> str:
    """Return the element type and the dims of one example, equal on all ranks."""
    data = getattr(value, "data", value) if hasattr(value, "sequence_lengths") else value
    return f"{data.dtype}[..{''.join(f', {d}' for d in data.shape[1:])}]"


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _seed_of(seed: int, rank: int) -> int:
    """Return a rank's own seed; rank 0 has the run's."""
    if not rank:
        return seed
    return int.from_bytes(_digest(f"{seed} {rank}".encode())[:4], "little") or 1


# --- Whole values of divided ones, gathered block by block: beside the values there is never more than a block of each rank.


def put_together(part: ShardedValue, tensor: Tensor, all_of: Callable[[Tensor], list[Tensor]], ranks: int, limit: int = BLOCK) -> dict[str, Tensor]:
    """Return the whole values of a part, on every rank.

    Args:
        tensor: this rank's tensor of the part.
        all_of: returns the tensors of all ranks, in their order; every rank calls it equally often.
        limit: the bytes gathered from all ranks at once, if a row is no larger.
    """
    if any(q.axis is not None for q in part.pieces):  # parts of layers, cut twice
        return joined(part, all_of(tensor))
    out = {q.name: torch.empty([evaluate(d, {}) for d in q.dims], dtype=tensor.dtype) for q in part.pieces}
    rows = tensor if part.dealt or part.axis is not None else tensor.reshape(-1)
    step = max(1, limit // ranks // max(1, math.prod(rows.shape[1:]) * tensor.element_size()))
    for row in range(0, len(rows), step):
        pieces = all_of(rows[row : row + step].contiguous())
        for place, rank in enumerate(part.holders(ranks)):
            _put(part, out, pieces[rank], place, row, ranks)
        del pieces  # before there is the next
    return out


def _put(part: ShardedValue, out: dict[str, Tensor], rows: Tensor, place: int, row: int, ranks: int) -> None:
    """Copy the elements of the rank at a place, from a row (or an element) on, to their offsets."""
    first, count = part.pieces[0], part.count(ranks)
    if part.dealt:
        target = out[first.name][row * count + place :: count][: len(rows)]
        target.copy_(rows[: len(target)])  # behind them are zeros
    elif part.axis is not None:
        value = out[first.name]
        share = value.shape[part.axis] // count
        value.narrow(part.axis, place * share, share)[row : row + len(rows)].copy_(rows)
    else:
        begin = place * evaluate(part.size, {}) + row
        for piece in part.pieces:
            start, value = evaluate(piece.start, {}), out[piece.name].view(-1)
            low, high = max(begin, start), min(begin + len(rows), start + len(value))
            if low < high:
                value[low - start : high - start].copy_(rows[low - begin : high - begin])
