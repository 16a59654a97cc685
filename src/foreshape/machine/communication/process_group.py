"""The ranks of a run, and their messages: groups of processes by ring, on `torch.distributed`.

Kernels of collectives find their group here. The code that joins the ranks of a run (`foreshape.machine.communication.join`) puts it here.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from foreshape.core.data_class import data_class, field
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError, RankError

if TYPE_CHECKING:
    from torch import Tensor

SIGNATURE_LIMIT = 1 << 20
"""The bound of signatures, so that their squares are summed exactly in fp64."""


def _distributed() -> Any:
    return torch.distributed  # its functions have no full types


def numbers_of(tensor: Tensor) -> list[Any]:
    """Return the elements of a tensor of one dim."""
    convert: Any = getattr(tensor, "tolist")  # noqa: B009  its type says no more
    return convert()


WIDEST = 16
"""The alignment in bytes of a tensor in a message: no element is wider."""
WHOLE = 1 << 18
"""The most bytes that a rank sends of a sum given whole to each other: a ring sends fewer, with twice as many messages."""
_TAGS = (1 << 31) - 1
"""Tags of messages between two ranks are below this."""
_SOURCE = r"^\[[^\]]*\] "
"""The place in torch's own source at the beginning of its errors."""


@contextmanager
def _with_others(purpose: str) -> Generator[None]:
    """Turn torch's error for a failed collective into one on ranks that are gone, or have not come."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(f"{purpose}: the ranks did not come together: {_reason(str(error))}") from error


def _reason(words: str) -> str:
    """Return the reason in torch's words: NCCL's is in its last line, gloo's in its first."""
    lines = words.strip().split("\n")
    reason = re.sub(_SOURCE, "", lines[0]).split(" This is typically")[0]
    last = lines[-1].strip() if len(lines) > 1 and any(line.startswith("Last error") for line in lines) else ""
    return f"{reason.rstrip(' :')}: {last}" if last else reason


@data_class()
class Passage:
    """One message on the clock of `time.perf_counter`: this rank's start of it, its beginning to wait, the message's end, and the rank's going on."""

    what: str
    ring: int
    size: int
    started: float
    waited: float = 0.0
    done: float = 0.0
    came: float = 0.0

    def end(self) -> None:
        """Note that the rank goes on with it."""
        self.came = time.perf_counter()
        self.waited = self.waited or self.started
        self.done = min(self.done or self.came, self.came)

    def through(self, work: object = None) -> None:
        """Note that it is through, with or without a waiting rank."""
        if not self.came:
            self.done = time.perf_counter()


@data_class()
class _UnderWay:
    """A collective under way: torch's works, the tensors that they read or write, and the work left at the end."""

    works: list[Any]
    given: Tensor
    what: str
    passage: Passage | None
    then: Callable[[], None] | None = None


@data_class()
class ProcessGroup:
    """A group of ranks: this one's number in it, how many they are, and torch's group."""

    rank: int
    ranks: int
    group: Any
    signature: int = 0
    """This rank's signature of its step: equal on all ranks."""
    sent: dict[str, int] = field(default_factory=dict[str, int])
    """Collective -> the bytes given to it by this rank."""
    passages: list[Passage] | None = None
    """Every message from now on, if their passing is observed."""
    ring: int = 0
    begun: int = 0
    """The number of messages begun by this rank."""
    began: tuple[float, float] = (0.0, 0.0)
    """When it began the last two, on the clock of `time.monotonic`; the earlier one first."""
    _under_way: dict[int, _UnderWay] = field(default_factory=dict[int, "_UnderWay"])
    _messages: int = 0

    def start_sum(self, tensor: Tensor, purpose: str) -> None:
        """Begin to sum a tensor over the ranks, in place; `wait` ends it.

        A small tensor goes whole from each rank to each other, which adds them in the order of the ranks: all have the same sum.
        """
        passage = self._count(purpose, tensor)
        with _with_others(purpose):
            if self._is_direct(tensor) and (self.ranks - 1) * tensor.numel() * tensor.element_size() <= WHOLE:
                come = [tensor if r == self.rank and not self._under_way else torch.empty_like(tensor) for r in range(self.ranks)]
                if self._under_way:  # to give and take would wait for a tensor just being sent
                    works = [_distributed().all_gather(come, tensor, group=self.group, async_op=True)]
                else:
                    works = self._swap([tensor] * self.ranks, come)
                under_way = _UnderWay(works, tensor, purpose, passage, partial(self._add, come, tensor))
            else:
                under_way = _UnderWay([_distributed().all_reduce(tensor, group=self.group, async_op=True)], tensor, purpose, passage)
        self._started(tensor, under_way, tells=under_way.then is None)

    def wait(self, tensor: Tensor) -> None:
        """Wait for the collective begun on a tensor; do nothing without one."""
        transfer = self._under_way.pop(tensor.data_ptr(), None)
        if transfer is not None:
            if transfer.passage is not None:
                transfer.passage.waited = time.perf_counter()
            with _with_others(transfer.what):
                for work in transfer.works:
                    work.wait()
            if transfer.then is not None:
                transfer.then()
            if transfer.passage is not None:
                transfer.passage.end()

    def finish(self) -> None:
        """Wait for all collectives of a stopped step, with unused results."""
        for transfer in self._under_way.values():
            with _with_others(transfer.what):
                for work in transfer.works:
                    work.wait()
        self._under_way.clear()

    def _started(self, out: Tensor, under_way: _UnderWay, tells: bool = True) -> None:
        """Keep a collective under way. ``tells``: gloo tells its end; otherwise the end is its arrival."""
        if under_way.passage is not None and tells:
            for work in under_way.works:
                work.get_future().add_done_callback(under_way.passage.through)
        self._under_way[out.data_ptr()] = under_way

    def _is_direct(self, tensor: Tensor) -> bool:
        """Return True if ranks send to each other directly: gloo's own collectives would send more messages, or copy."""
        return tensor.device.type == "cpu" and tensor.numel() > 0 and self.ranks > 1

    def _swap(self, give: Sequence[Tensor], take: Sequence[Tensor]) -> list[Any]:
        """Begin to give each other rank its tensor, and to take one from it; empty tensors are not sent.

        The tag tells the message and its size: gloo would end the process for one of another size, so it is waited for in vain.
        """
        self._messages += 1
        peers = [r for r in range(self.ranks) if r != self.rank]
        works = [_distributed().irecv(t, group=self.group, tag=self._tag(t), group_src=r) for r in peers if (t := take[r]).numel()]
        return works + [_distributed().isend(t, group=self.group, tag=self._tag(t), group_dst=r) for r in peers if (t := give[r]).numel()]

    def _tag(self, tensor: Tensor) -> int:
        return (self._messages * 1_000_003 + tensor.numel() * tensor.element_size()) % _TAGS

    def _add(self, come: Sequence[Tensor], out: Tensor) -> None:
        """Add the parts of all ranks, in the order of the ranks. ``out`` may be one of the last two, or this rank's own."""
        total = come[0]
        for part in come[1:-1]:
            total = torch.add(total, part, out=come[0 if self.rank else 1])  # this rank's own is not its to write to
        torch.add(total, come[-1], out=out)

    def start_gather(self, tensor: Tensor, purpose: str) -> Tensor:
        """Begin `gather`; `wait` on the result ends it.

        Each rank sends its own to each other: gloo's gather has the result twice while it runs, and its broadcasts come one after the other.
        """
        passage = self._count(purpose, tensor)
        out = tensor.new_empty((self.ranks * tensor.shape[0], *tensor.shape[1:]))
        if out.numel():
            parts = out.chunk(self.ranks)
            with _with_others(purpose):
                if self._is_direct(tensor):
                    parts[self.rank].copy_(tensor)
                    self._started(out, _UnderWay(self._swap([parts[self.rank]] * self.ranks, parts), out, purpose, passage), tells=False)
                else:
                    works = [_distributed().all_gather(list(parts), tensor, group=self.group, async_op=True)]
                    self._started(out, _UnderWay(works, tensor, purpose, passage))
        return out

    def start_scatter_sum(self, tensor: Tensor, purpose: str) -> Tensor:
        """Begin `scatter_sum`; `wait` on the result ends it.

        Each rank sends each other its part, and adds the parts in the order of the ranks: gloo sums everything on every rank.
        """
        passage = self._count(purpose, tensor)
        out = tensor.new_empty((tensor.shape[0] // self.ranks, *tensor.shape[1:]))
        if out.numel():
            with _with_others(purpose):
                if self._is_direct(tensor):
                    parts = list(tensor.chunk(self.ranks))
                    last = self.ranks - 1 if self.rank != self.ranks - 1 else self.ranks - 2
                    come = [part if r == self.rank else out if r == last else torch.empty_like(out) for r, part in enumerate(parts)]
                    self._started(out, _UnderWay(self._swap(parts, come), tensor, purpose, passage, partial(self._add, come, out)), tells=False)
                else:
                    work = _distributed().reduce_scatter(out, list(tensor.chunk(self.ranks)), group=self.group, async_op=True)
                    self._started(out, _UnderWay([work], tensor, purpose, passage), tells=False)
        return out

    def sum(self, tensor: Tensor, purpose: str) -> None:
        """Sum a tensor over the ranks, in place."""
        self.start_sum(tensor, purpose)
        self.wait(tensor)

    def reduce(self, tensor: Tensor, how: str, purpose: str) -> None:
        """Compute ``max``, ``min`` or ``prod`` over the ranks, in place."""
        operations: Any = _distributed().ReduceOp
        with self._passing(purpose, tensor):
            _distributed().all_reduce(tensor, getattr(operations, how.upper().replace("PROD", "PRODUCT")), group=self.group)

    def reduce_to(self, tensor: Tensor, root: int, how: str, purpose: str) -> None:
        """Compute ``sum``, ``max``, ``min`` or ``prod`` over the ranks, in place on rank ``root``; the others keep theirs."""
        source = tensor if self.rank == root else tensor.clone()  # gloo may write to it
        operations: Any = _distributed().ReduceOp
        with self._passing(purpose, tensor):
            _distributed().reduce(source, group_dst=root, op=getattr(operations, how.upper().replace("PROD", "PRODUCT")), group=self.group)

    def deal(self, tensor: Tensor, root: int, purpose: str) -> Tensor:
        """Return this rank's part of the tensor of rank ``root``: ``[n / ranks, *rest]``."""
        out = tensor.new_empty((tensor.shape[0] // self.ranks, *tensor.shape[1:]))
        if out.numel():
            parts = list(tensor.contiguous().chunk(self.ranks)) if self.rank == root else None
            with self._passing(purpose, tensor if self.rank == root else tensor[:0]):
                _distributed().scatter(out, parts, group_src=root, group=self.group)
        return out

    def broadcast(self, tensor: Tensor, root: int, purpose: str) -> None:
        """Give every rank the tensor of rank ``root``, in place."""
        with self._passing(purpose, tensor):
            _distributed().broadcast(tensor, group_src=root, group=self.group)

    def gather(self, tensor: Tensor, purpose: str) -> Tensor:
        """Return the tensors of all ranks one after the other: ``[ranks * n, *rest]``. They have the same dims."""
        out = self.start_gather(tensor.contiguous(), purpose)
        self.wait(out)
        return out

    def numbers(self, values: Sequence[int], purpose: str) -> list[list[int]]:
        """Return the numbers of each rank, equally many."""
        flat: list[int] = numbers_of(self.gather(torch.tensor(values, dtype=torch.int64, device="cpu"), purpose))
        return [flat[r * len(values) : (r + 1) * len(values)] for r in range(self.ranks)]

    def gather_uneven(self, tensors: Sequence[Tensor], purpose: str, counts: Sequence[Sequence[int]] | None = None) -> list[list[Tensor]]:
        """Return the tensors of each rank, with first dims that may differ from rank to rank, in one message. It has one tensor after the other, each with as
        many rows as the most of any rank.

        Args:
            counts: for each rank the rows of each of its tensors, if all ranks know them; otherwise a message of its own tells them.
        """
        sizes = self.numbers([len(t) for t in tensors], purpose) if counts is None else counts
        maxima = [max(column) for column in zip(*sizes, strict=True)]
        if not any(maxima):
            return [list(tensors)] * self.ranks
        ends = [0]
        for t, rows in zip(tensors, maxima, strict=True):
            ends.append(ends[-1] + -(-rows * math.prod(t.shape[1:]) * t.element_size() // WIDEST) * WIDEST)

        def rows_in(message: Tensor) -> list[Tensor]:
            slices = zip(ends, ends[1:], maxima, tensors, strict=False)
            return [message[a:b].view(t.dtype)[: rows * math.prod(t.shape[1:])].view(rows, *t.shape[1:]) for a, b, rows, t in slices]

        message = torch.empty(ends[-1], dtype=torch.uint8, device=tensors[0].device)
        for place, tensor in zip(rows_in(message), tensors, strict=True):
            place[: len(tensor)] = tensor
            place[len(tensor) :] = 0
        come = self.gather(message, purpose).chunk(self.ranks)
        return [[part[:rows] for part, rows in zip(rows_in(received), lengths, strict=True)] for lengths, received in zip(sizes, come, strict=True)]

    def scatter_sum(self, tensor: Tensor, purpose: str) -> Tensor:
        """Return this rank's part of the sum of a tensor over the ranks: ``[n / ranks, *rest]``."""
        out = self.start_scatter_sum(tensor.contiguous(), purpose)
        self.wait(out)
        return out

    def exchange(self, tensor: Tensor, give: Sequence[int], take: Sequence[int], purpose: str) -> Tensor:
        """Give ``give[r]`` rows to rank r, in order, and take ``take[r]`` rows from it."""
        out = tensor.new_empty((sum(take), *tensor.shape[1:]))
        with self._passing(purpose, tensor):
            if tensor.device.type == "cpu":  # as `_is_direct`, also where this rank has nothing to give
                parts: Sequence[Tensor] = torch.split(tensor.contiguous(), list(give))
                places: Sequence[Tensor] = torch.split(out, list(take))
                places[self.rank].copy_(parts[self.rank])
                for work in self._swap(parts, places):
                    work.wait()
            else:
                _distributed().all_to_all_single(out, tensor.contiguous(), list(take), list(give), group=self.group)
        return out

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        with _with_others("barrier"):
            _distributed().all_reduce(torch.zeros(1, device="cpu"), group=self.group)  # torch's own barrier goes by GPUs where there are any

    @contextmanager
    def _passing(self, purpose: str, tensor: Tensor) -> Generator[None]:
        """Wait for a message at its start."""
        passage = self._count(purpose, tensor)
        with _with_others(purpose):
            yield
        if passage is not None:
            passage.end()

    def _count(self, purpose: str, tensor: Tensor) -> Passage | None:
        """Count the bytes of this rank; return the message, if its passing is observed."""
        size = tensor.numel() * tensor.element_size()
        self.sent[purpose] = self.sent.get(purpose, 0) + size
        self.begun += 1
        self.began = self.began[1], time.monotonic()
        if self.passages is None:
            return None
        self.passages.append(Passage(purpose, self.ring, size, time.perf_counter()))
        return self.passages[-1]


_teams: dict[int, ProcessGroup] = {}


def set_team(ring: int, team: ProcessGroup | None) -> None:
    """Let collectives of a ring go to these ranks from now on; to none where None."""
    if team is None:
        _teams.pop(ring, None)
    else:
        team.ring = ring
        _teams[ring] = team


def all_teams() -> list[ProcessGroup]:
    """Return the groups of collectives now."""
    return [team for _, team in sorted(_teams.items())]


def team_of(ring: int, ranks: int = 0, type: str = "collective") -> ProcessGroup | None:
    """Return the ranks of a ring; None for a single rank, since a collective then changes nothing.

    Args:
        ranks: the number of ranks in the program; 0: any number.

    Raises:
        ExecutionError: the program was written for another number of ranks.
    """
    team = _teams.get(ring)
    count = 1 if team is None else team.ranks
    if ranks and ranks != count:
        hint = "; start it with torchrun and fs.train(..., ranks=...)" if team is None else ""
        raise ExecutionError(f"{type}: the program is for {ranks} ranks, and this run has {count}{hint}")
    return team
