"""The join of the ranks started by torchrun, and their messages beside the collectives of a step."""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from foreshape.core.values.openmp import variables_set
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError, RankError
from foreshape.machine.communication.process_group import ProcessGroup, numbers_of, set_team
from foreshape.machine.communication.status import StatusBoard
from foreshape.machine.communication.store import store_at, within

if TYPE_CHECKING:
    from torch import Tensor

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST_SAID = 1 << 16
"""The most bytes of a rank's word on its GPUs."""
_joined = [0]
"""The number of joins of this process: words of an earlier run must not be heard in the next."""


class Ranks:
    """The ranks of a run: this one's number, their count, and messages outside of steps.

    Use as a context manager: it leaves the group at the end, without a trace.
    """

    __slots__ = ("_own", "_patience", "_rings", "board", "count", "rank", "store", "team")

    def __init__(
        self, rank: int, count: int, team: ProcessGroup | None, board: StatusBoard | None, owns_group: bool, store: Any = None, patience: float = 0.0
    ) -> None:
        self.rank, self.count, self.team, self.board, self.store = rank, count, team, board, store
        self._own, self._patience = owns_group, patience
        self._rings: dict[int, ProcessGroup] = {}

    @property
    def first(self) -> bool:
        """Return True on the rank that writes files and shows progress."""
        return self.rank == 0

    def __enter__(self) -> Ranks:
        if self.team is not None:
            set_team(0, self.team)
        return self

    def __exit__(self, *error: object) -> None:
        for ring in (0, *self._rings):
            set_team(ring, None)
        if self.board is not None and error[0] is not None:
            self.board.stopped(f"{getattr(error[0], '__name__', 'error')}: {error[1]}")
        if self._own and self.team is not None:
            self.team = None
            torch.distributed.destroy_process_group()  # whoever waits for this rank is told by it, and reads on the board why
        elif error[0] is None:  # after a failed run, the others may not have theirs any more
            for team in self._rings.values():
                torch.distributed.destroy_process_group(team.group)
        self._rings.clear()
        if self.board is not None:
            self.board.close()

    def divide(self, mesh: Mapping[int, Sequence[Sequence[int]]]) -> None:
        """Let the collectives of some rings go to groups of the ranks. All ranks make all groups, in one order.

        Args:
            mesh: ring -> the groups that the ranks are divided into; in groups of one rank collectives change nothing.

        Raises:
            RankError: the ranks of a group do not come together.
        """
        if self.team is None:
            return
        for ring, groups in sorted(mesh.items()):
            for group in groups:
                if len(group) < 2:
                    continue
                try:
                    with _settings(os.environ.get("MASTER_ADDR", "")), _one_hook():
                        handle: Any = torch.distributed.new_group(list(group), timeout=timedelta(seconds=self._patience))  # pyright: ignore[reportUnknownMemberType]
                except RuntimeError as error:
                    reason = str(error).split("\n", 1)[0]
                    raise RankError(f"the group of ranks {', '.join(map(str, group))} did not come together: {reason}") from error
                if self.rank in group:
                    self._rings[ring] = ProcessGroup(list(group).index(self.rank), len(group), handle)
                    set_team(ring, self._rings[ring])
        let_senders_finish()

    # --- messages outside of a step go by processors: values may be on a GPU on one rank, and not yet on another

    def same_for_all(self, value: int, root: int = 0) -> int:
        """Return rank ``root``'s value, on every rank."""
        if self.team is None:
            return value
        decision = torch.tensor([value], dtype=torch.int64)
        self.team.broadcast(decision, root, "decision")
        return int(decision.item())

    def sums(self, numbers: list[float]) -> list[float]:
        """Return the sums over the ranks, fp64."""
        if self.team is None or not numbers:
            return numbers
        total = torch.tensor(numbers, dtype=torch.float64)
        self.team.sum(total, "figures")
        return numbers_of(total)

    def from_first(self, tensor: Tensor) -> None:
        """Give every rank the tensor of rank 0, in place."""
        if self.team is not None:
            with _of_processors(tensor) as values:
                self.team.broadcast(values, 0, "values")

    def all_of(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, of equal dims, in the order of the ranks."""
        return [tensor] if self.team is None else list(self.team.gather(tensor.cpu()[None], "values"))

    def mean_of(self, tensor: Tensor) -> None:
        """Give every rank the mean of the ranks' tensors, in place."""
        if self.team is not None:
            with torch.inference_mode(), _of_processors(tensor) as values:  # the step made it there
                self.team.sum(values, "values")
                values.div_(self.count)


@contextmanager
def _of_processors(tensor: Tensor) -> Generator[Tensor]:
    """Give the tensor, or a copy of it from another device, to be written back at the end."""
    if tensor.device.type == "cpu":
        yield tensor
        return
    copy = tensor.cpu()
    yield copy
    with torch.inference_mode():
        tensor.copy_(copy)


def alone() -> Ranks:
    """Return a single rank, without others."""
    return Ranks(0, 1, None, None, False)


def join(patience: float, environment: Mapping[str, str] | None = None) -> Ranks:
    """Join the ranks of this process, by torchrun's variables; return a single rank without any.

    Args:
        patience: the seconds to wait for the other ranks.

    Raises:
        ExecutionError: the others cannot be reached, or the variables are wrong.
    """
    variables: Any = os.environ if environment is None else environment
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return _of_group(patience, owns_group=False)
    if "RANK" not in variables and "WORLD_SIZE" not in variables:
        return alone()
    missing = [n for n in _NEEDED if n not in variables]
    if missing:
        raise ExecutionError(f"a rank needs the variables that torchrun sets; missing: {', '.join(missing)}")
    try:
        rank, count = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    except ValueError:
        raise ExecutionError.must("RANK and WORLD_SIZE", "numbers", f"{variables['RANK']!r} and {variables['WORLD_SIZE']!r}") from None
    if not 0 <= rank < count:
        raise ExecutionError.must("RANK", f"in 0..{count - 1}, since WORLD_SIZE is {count}", rank)
    if count == 1:
        return alone()
    host = variables["MASTER_ADDR"]
    try:
        port = int(variables["MASTER_PORT"])
        if not 0 < port < 1 << 16:
            raise ValueError
    except ValueError:
        raise ExecutionError.must("MASTER_PORT", "a number from 1 to 65535", f"{variables['MASTER_PORT']!r}") from None
    store = store_at(host, port, rank, count, patience)
    try:
        carries = backend(within(patience + 2, lambda: _gpus_of_all(store, rank, count), f"rank {rank} of {count}: {host}:{port}"))
        with _settings(host), _one_hook():
            torch.distributed.init_process_group(carries, store=store, rank=rank, world_size=count, timeout=timedelta(seconds=patience))
    except (RuntimeError, ValueError) as error:  # torch's own errors of the store are RuntimeErrors
        reason = str(error).split("\n", 1)[0]
        raise ExecutionError(f"rank {rank} of {count} cannot join the others at {host}:{port} within {patience:g} s: {reason}") from error
    return _of_group(patience, owns_group=True)


def gpus_here() -> list[str]:
    """Return the GPUs of this process, by unique names; none without NCCL."""
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        return []
    host, properties = socket.gethostname(), cast("Any", torch.cuda).get_device_properties
    return [str(getattr(properties(index), "uuid", f"{host} {index}")) for index in range(torch.cuda.device_count())]


def backend(gpus: Sequence[Sequence[str]]) -> str:
    """Return the carriers of messages, by the tensor's device: gloo for processors, NCCL for GPUs.

    NCCL refuses two ranks on one GPU. With more ranks than GPUs, or a rank without any, gloo carries the messages of GPUs too, through the processors'
    memory.

    Args:
        gpus: for each rank its GPUs.
    """
    counts = Counter(tuple(sorted(g)) for g in gpus)
    return "cpu:gloo,cuda:nccl" if all(ranks <= len(g) for g, ranks in counts.items()) else "gloo"


def _gpus_of_all(store: Any, rank: int, count: int) -> list[list[str]]:
    """Return `gpus_here` of each rank, for the same choice on all. A rank with too long a word has none."""
    store.set(f"gpus/{rank}", "\n".join(gpus_here()))
    answers = [bytes(store.get(f"gpus/{r}")) for r in range(count)]
    return [data.decode(errors="replace").splitlines() if len(data) < _MOST_SAID else [] for data in answers]


@contextmanager
def _one_hook() -> Generator[None]:
    """Keep torch from prefixing the lines of a traceback with "[rank0]: " once for each group: once is enough."""
    hook = sys.excepthook
    try:
        yield
    finally:
        if hook.__module__ == sys.excepthook.__module__:
            sys.excepthook = hook


@contextmanager
def _settings(host: str) -> Generator[None]:
    """Set the variables for making groups, unless the user has: ranks on the loopback device listen there alone, and NCCL's failures are errors, not the end
    of the process.
    """
    settings = {"TORCH_NCCL_BLOCKING_WAIT": "1"}
    device = next((n for _, n in socket.if_nameindex() if n in ("lo", "lo0")), None) if hasattr(socket, "if_nameindex") else None
    if device is not None and (host == "localhost" or host == "::1" or host.startswith("127.")):
        settings["GLOO_SOCKET_IFNAME"] = device
    with variables_set({name: value for name, value in settings.items() if name not in os.environ}):
        yield


def _of_group(patience: float, owns_group: bool) -> Ranks:
    group = torch.distributed.group.WORLD
    rank, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    _joined[0] += 1
    let_senders_finish()
    common: Any = private.get_default_store()
    store: Any = torch.distributed.PrefixStore(f"run {_joined[0]}", common)  # pyright: ignore[reportPrivateImportUsage]
    return Ranks(rank, count, ProcessGroup(rank, count, group), StatusBoard(store, rank, count, patience), owns_group, store, patience)


# --- The scheduling of gloo's event loops, the threads that bring messages: they must not stop the thread that is sending one.


_TASKS = Path("/proc/self/task")
_NAME = "gloo_"
"""The prefix of the names of gloo's threads; an older gloo gives them none, and they stay as they are."""


def let_senders_finish() -> int:
    """Schedule gloo's event loops as Linux schedules batches: such a thread takes no processor from another one when it wakes.

    A loop that finds a connection locked, with a thread sending on it, asks for its events again at once, until its time slice is over
    (https://github.com/pytorch/gloo/issues/246). With as many ranks as processors, it has often just taken the processor of this very thread. Both lose the
    slice: milliseconds, for messages of tens of microseconds. As a batch it runs when the sender waits. The user's own scheduling stays.

    Returns:
        The number of loops scheduled so just now; 0 on systems without such scheduling, or without permission.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return 0
    count = 0
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        try:
            thread = int(task.name)
            if (task / "comm").read_text().startswith(_NAME) and os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
                count += 1
        except OSError:  # the thread has ended, or a sandbox forbids it: messages come as they would have
            continue
    return count
