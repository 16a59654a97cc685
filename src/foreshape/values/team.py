"""The ranks that a run belongs to, and what passes between them: groups of processes by ring, on `torch.distributed`.

Kernels of collectives find their group here. Who joins the ranks of a run (`foreshape.ranks`) puts it here.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from foreshape.data_class import data_class, field
from foreshape.errors import ExecutionError, RankError
from foreshape.values.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor

SIGNATURE_LIMIT = 1 << 20
"""Signatures are below this, so that their squares are summed exactly in fp64."""


def _distributed() -> Any:
    return torch.distributed  # its functions have no full types


def numbers_of(tensor: Tensor) -> list[Any]:
    """The elements of a tensor of one dim."""
    given: Any = getattr(tensor, "tolist")  # noqa: B009  its type says no more
    return given()


WIDEST = 16
"""The bytes that the place of a tensor in a message is a multiple of: no element is wider."""
_IN_TURN = 1 << 16
"""Bytes from which on what is gathered is given by each rank in turn."""
_SOURCE = re.compile(r"^\[[^\]]*\] ")
"""The place in torch's own source that its errors begin with."""


@contextmanager
def _with_others(what: str) -> Generator[None]:
    """What torch says of a collective that failed is that others have gone, or have not come."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(f"{what}: the ranks did not come together: {_reason(str(error))}") from error


def _reason(words: str) -> str:
    """What went wrong, of what torch says of it: NCCL says it in its last line, gloo in its first."""
    lines = words.strip().split("\n")
    found = _SOURCE.sub("", lines[0]).split(" This is typically")[0]
    last = lines[-1].strip() if len(lines) > 1 and any(line.startswith("Last error") for line in lines) else ""
    return f"{found.rstrip(' :')}: {last}" if last else found


@data_class()
class Passage:
    """One message on the clock of `time.perf_counter`: when this rank started it, when it began to wait for it, when it was through, and when
    the rank went on with it."""

    what: str
    ring: int
    size: int
    started: float
    waited: float = 0.0
    done: float = 0.0
    came: float = 0.0

    def end(self) -> None:
        """The rank goes on with it."""
        self.came = time.perf_counter()
        self.waited = self.waited or self.started
        self.done = min(self.done or self.came, self.came)

    def through(self, work: object = None) -> None:
        """It is through, whether or not the rank waits for it."""
        if not self.came:
            self.done = time.perf_counter()


@data_class()
class Team:
    """A group of ranks: this one's number in it, how many they are, and torch's group."""

    rank: int
    ranks: int
    group: Any
    signature: int = 0
    """What this rank says of the step that it is in: all must say the same."""
    sent: dict[str, int] = field(default_factory=dict[str, int])
    """Collective -> the bytes that this rank has given to it."""
    passages: list[Passage] | None = None
    """Every message from now on, where somebody wants to know when they pass."""
    ring: int = 0
    _under_way: dict[int, tuple[list[Any], Tensor, str, Passage | None]] = field(
        default_factory=dict[int, "tuple[list[Any], Tensor, str, Passage | None]"]
    )

    def start_sum(self, tensor: Tensor, what: str) -> None:
        """Begin to sum a tensor over the ranks, in place; `wait` ends it."""
        passage = self._count(what, tensor)
        with _with_others(what):
            work = _distributed().all_reduce(tensor, group=self.group, async_op=True)
        self._started(tensor, tensor, [work], what, passage)

    def wait(self, tensor: Tensor) -> None:
        """Wait for what was begun on a tensor; nothing where nothing was."""
        found = self._under_way.pop(tensor.data_ptr(), None)
        if found is not None:
            works, _, what, passage = found
            if passage is not None:
                passage.waited = time.perf_counter()
            with _with_others(what):
                for work in works:
                    work.wait()
            if passage is not None:
                passage.end()

    def _started(self, out: Tensor, given: Tensor, works: list[Any], what: str, passage: Passage | None, tells: bool = True) -> None:
        """Keep what is under way, and what gloo reads until it has come. ``tells``: whether gloo says when it is through; else that is when it came."""
        if passage is not None and tells:
            for work in works:
                work.get_future().add_done_callback(passage.through)
        self._under_way[out.data_ptr()] = (works, given, what, passage)

    def start_gather(self, tensor: Tensor, what: str) -> Tensor:
        """Begin `gather`; `wait` on what is returned ends it.

        gloo's own gather has the result twice while it runs. What is large is given by each rank in turn to the places of the result, which
        moves as many bytes.
        """
        passage = self._count(what, tensor)
        out = tensor.new_empty((self.ranks * tensor.shape[0], *tensor.shape[1:]))
        if out.numel():
            parts, given = out.chunk(self.ranks), tensor
            with _with_others(what):
                if tensor.numel() * tensor.element_size() < _IN_TURN:
                    works = [_distributed().all_gather(list(parts), tensor, group=self.group, async_op=True)]
                else:
                    parts[self.rank].copy_(tensor)
                    given = out
                    works = [_distributed().broadcast(part, group_src=rank, group=self.group, async_op=True) for rank, part in enumerate(parts)]
            self._started(out, given, works, what, passage)
        return out

    def start_scatter_sum(self, tensor: Tensor, what: str) -> Tensor:
        """Begin `scatter_sum`; `wait` on what is returned ends it."""
        passage = self._count(what, tensor)
        out = tensor.new_empty((tensor.shape[0] // self.ranks, *tensor.shape[1:]))
        if out.numel():
            with _with_others(what):
                work = _distributed().reduce_scatter(out, list(tensor.chunk(self.ranks)), group=self.group, async_op=True)
            self._started(out, tensor, [work], what, passage, tells=False)
        return out

    def sum(self, tensor: Tensor, what: str) -> None:
        """Sum a tensor over the ranks, in place."""
        with self._passing(what, tensor):
            _distributed().all_reduce(tensor, group=self.group)

    def reduce(self, tensor: Tensor, how: str, what: str) -> None:
        """``max``, ``min`` or ``prod`` over the ranks, in place."""
        operations: Any = _distributed().ReduceOp
        with self._passing(what, tensor):
            _distributed().all_reduce(tensor, getattr(operations, how.upper().replace("PROD", "PRODUCT")), group=self.group)

    def reduce_to(self, tensor: Tensor, root: int, how: str, what: str) -> None:
        """``sum``, ``max``, ``min`` or ``prod`` over the ranks, in place on rank ``root``; the others keep theirs."""
        given = tensor if self.rank == root else tensor.clone()  # which gloo may write to
        operations: Any = _distributed().ReduceOp
        with self._passing(what, tensor):
            _distributed().reduce(given, group_dst=root, op=getattr(operations, how.upper().replace("PROD", "PRODUCT")), group=self.group)

    def deal(self, tensor: Tensor, root: int, what: str) -> Tensor:
        """This rank's part of the tensor of rank ``root``: ``[n / ranks, *rest]``."""
        out = tensor.new_empty((tensor.shape[0] // self.ranks, *tensor.shape[1:]))
        if out.numel():
            parts = list(tensor.contiguous().chunk(self.ranks)) if self.rank == root else None
            with self._passing(what, tensor if self.rank == root else tensor[:0]):
                _distributed().scatter(out, parts, group_src=root, group=self.group)
        return out

    def broadcast(self, tensor: Tensor, root: int, what: str) -> None:
        """Give every rank what rank ``root`` has, in place."""
        with self._passing(what, tensor):
            _distributed().broadcast(tensor, group_src=root, group=self.group)

    def gather(self, tensor: Tensor, what: str) -> Tensor:
        """The tensors of all ranks one after the other: ``[ranks * n, *rest]``. They have the same dims."""
        out = self.start_gather(tensor.contiguous(), what)
        self.wait(out)
        return out

    def gather_uneven(self, tensors: Sequence[Tensor], what: str) -> list[list[Tensor]]:
        """For each rank its tensors, all of which have as many rows, which may be others from rank to rank.

        Two messages: how many rows each rank has, and one with all tensors, one after the other, each with as many rows as the most of any rank.
        """
        count = tensors[0].shape[0]
        counts: list[int] = numbers_of(self.gather(torch.tensor([count], dtype=torch.int64, device="cpu"), what))
        most = max(counts)
        if not most:
            return [list(tensors)] * self.ranks
        ends = [0]
        for t in tensors:
            ends.append(ends[-1] + -(-most * math.prod(t.shape[1:]) * t.element_size() // WIDEST) * WIDEST)

        def rows_in(message: Tensor) -> list[Tensor]:
            each = zip(ends, ends[1:], tensors, strict=False)
            return [message[a:b].view(t.dtype)[: most * math.prod(t.shape[1:])].view(most, *t.shape[1:]) for a, b, t in each]

        message = torch.empty(ends[-1], dtype=torch.uint8, device=tensors[0].device)
        for place, tensor in zip(rows_in(message), tensors, strict=True):
            place[:count] = tensor
            place[count:] = 0
        return [[part[:rows] for part in rows_in(one)] for rows, one in zip(counts, self.gather(message, what).chunk(self.ranks), strict=True)]

    def scatter_sum(self, tensor: Tensor, what: str) -> Tensor:
        """The sum of a tensor over the ranks, of which each gets its part: ``[n / ranks, *rest]``."""
        out = self.start_scatter_sum(tensor.contiguous(), what)
        self.wait(out)
        return out

    def exchange(self, tensor: Tensor, give: Sequence[int], take: Sequence[int], what: str) -> Tensor:
        """Give ``give[r]`` rows to rank r, in order, and take ``take[r]`` rows from it."""
        out = tensor.new_empty((sum(take), *tensor.shape[1:]))
        with self._passing(what, tensor):
            _distributed().all_to_all_single(out, tensor.contiguous(), list(take), list(give), group=self.group)
        return out

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        with _with_others("barrier"):
            _distributed().all_reduce(torch.zeros(1, device="cpu"), group=self.group)  # torch's own barrier goes by GPUs where there are any

    @contextmanager
    def _passing(self, what: str, tensor: Tensor) -> Generator[None]:
        """A message that is waited for where it is started."""
        passage = self._count(what, tensor)
        with _with_others(what):
            yield
        if passage is not None:
            passage.end()

    def _count(self, what: str, tensor: Tensor) -> Passage | None:
        """Count what this rank gives; the message, where somebody wants to know when it passes."""
        size = tensor.numel() * tensor.element_size()
        self.sent[what] = self.sent.get(what, 0) + size
        if self.passages is None:
            return None
        self.passages.append(Passage(what, self.ring, size, time.perf_counter()))
        return self.passages[-1]


_teams: dict[int, Team] = {}


def set_team(ring: int, team: Team | None) -> None:
    """Let collectives of a ring go to these ranks from now on; to none where None."""
    if team is None:
        _teams.pop(ring, None)
    else:
        team.ring = ring
        _teams[ring] = team


def all_teams() -> list[Team]:
    """The groups that collectives go to now."""
    return [team for _, team in sorted(_teams.items())]


def team_of(ring: int, ranks: int = 0, type: str = "collective") -> Team | None:
    """The ranks of a ring; None where there is one rank alone, for which a collective changes nothing.

    Args:
        ranks: how many the program was written for; 0: for any number.

    Raises:
        ExecutionError: the program was written for another number of ranks than there are.
    """
    found = _teams.get(ring)
    here = 1 if found is None else found.ranks
    if ranks and ranks != here:
        hint = "; start it with torchrun and fs.train(..., ranks=...)" if found is None else ""
        raise ExecutionError(f"{type}: the program is for {ranks} ranks, and this run has {here}{hint}")
    return found

