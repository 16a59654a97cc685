"""The work of `foreshape worker`: ranks without the code of a model take a job, report their needs, agree, and train."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foreshape.apps.training import Checkpoint, History, train
from foreshape.apps.workers.jobs import MOST_BYTES, Job
from foreshape.apps.workers.prepare import Prepared, network_values, prepare, refusal
from foreshape.apps.workers.reply import MOST_REPLY, JobResult, Reply, differences, numbers, replies_to_bytes, reply_from
from foreshape.apps.workers.strategies import patient
from foreshape.apps.workers.talk import GO, JOBS, STOP, WORKER, WORKER_LIVES, Here, Keys, alive, until
from foreshape.errors import ExecutionError, ForeshapeError, FormatError, RankError
from foreshape.interop import safetensors_file, save_inference_model, save_safetensors
from foreshape.machine.communication.join import Ranks, join
from foreshape.machine.communication.parcel import drop, put, take, word
from foreshape.machine.communication.rendezvous import Address, HeartbeatMonitor, Meeting, SignsOfLife, connect, listen
from foreshape.runtime.engine import Scope

MOST_VALUES = 1 << 32
"""The bytes of trained values sent back; more are for a file."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of a worker."""

    folder: str = "."
    """Nothing outside of it is read or written."""
    listen: str | None = "127.0.0.1:29600"
    """The address at which rank 0 waits for a client."""
    connect: str | None = None
    """The address at which a client waits for rank 0."""
    job: str | None = None
    """A file with the job."""
    wait: float = 3600.0
    """Seconds for a job to come, and for ranks to look at it."""
    patience: float = 25.0
    """Seconds that ranks, and rank 0 and the client, wait for one another."""
    keep: bool = False
    """True to take another job after the first."""


def work(settings: WorkerSettings, say: Callable[[str], None]) -> None:
    """Take a job, or one after the other, with all of torchrun's ranks.

    Args:
        say: shows a line; called on rank 0.

    Raises:
        ForeshapeError: the job failed, or none came.
    """
    if not os.path.isdir(settings.folder):
        raise FormatError(f"{settings.folder!r} is no folder")
    with join(settings.patience) as ranks:
        if ranks.first:
            _Leader(settings, ranks, say).run()
        else:
            _Follower(settings, ranks).run()


class JobRefused(ExecutionError):
    """A job that is refused; the ranks are ready for another one."""


class _Rank:
    """The common work of all ranks."""

    def __init__(self, settings: WorkerSettings, ranks: Ranks) -> None:
        self.settings, self.ranks = settings, ranks
        store: Any = ranks.store
        self.common = Meeting(f"rank {ranks.rank}: the store that the ranks meet at", settings.patience, lambda: store) if ranks.count > 1 else None
        self.number: int = 0
        """The number of jobs given to the ranks so far."""

    def prepared(self, job: Job) -> tuple[Prepared | None, Reply]:
        """Return the job, ready to begin with, and the answer; only the answer if it cannot be done."""
        try:
            ready = prepare(job, self.settings.folder, self.ranks.rank, self.ranks.count)
        except (ForeshapeError, MemoryError, OSError) as error:
            return None, refusal(self.ranks.rank, error)
        return ready, ready.reply

    def train(self, ready: Prepared, callbacks: list[Callable[[int, dict[str, float]], Any]], progress: bool | None) -> History:
        """Train as all ranks do."""
        job = ready.job
        keep = job.checkpoint
        checkpoint = None if keep is None else Checkpoint(ready.path(keep.folder), keep.every, keep.keep)
        return train(
            ready.loss, ready.data, epochs=job.epochs, batch_size=job.batch_size, metrics=ready.metrics, validation=ready.validation, checkpoint=checkpoint,
            seed=job.seed, shuffle=job.shuffle, callbacks=callbacks, progress=progress, scope=ready.scope, startup=ready.startup,
            on_change="take" if job.on_change == "take" else "refuse", ranks=patient(job.strategy, self.settings.patience),
        )  # fmt: skip


class _Follower(_Rank):
    """A rank that follows rank 0."""

    def run(self) -> None:
        """Do the jobs passed on by rank 0, until there are no more."""
        while (data := self._next()) is not None:
            self.number += 1
            assert self.common is not None
            try:
                job = Job.from_bytes(data)
            except FormatError as error:
                ready, reply = None, refusal(self.ranks.rank, error)
            else:
                ready, reply = self.prepared(job)
            put(self.common, f"reply {self.number} {self.ranks.rank}", reply.to_bytes())
            decided = self._wait(lambda: word(self._common, f"decided {self.number}"))
            if decided == GO and ready is not None:
                self.train(ready, [], False)
            elif not self.settings.keep:
                raise ExecutionError(f"rank {self.ranks.rank}: " + (reply.error or decided.decode(errors="replace")))

    @property
    def _common(self) -> Meeting:
        assert self.common is not None
        return self.common

    def _next(self) -> bytearray | None:
        """Return the next job; None after the last."""
        if self.number and not self.settings.keep:
            return None
        key = f"job {self.number + 1}"

        def look() -> bytearray | None:
            return take(self._common, key, MOST_BYTES) or (bytearray() if self._common.check(["no more jobs"]) else None)

        return self._wait(look) or None

    def _wait(self, look: Callable[[], Any]) -> Any:
        """Wait for something of rank 0, as long as it lives."""
        board = self.ranks.board
        assert board is not None

        def check() -> None:
            if board.is_silent(0, self.settings.patience):
                raise RankError(f"rank {self.ranks.rank}: rank 0 is gone: no sign of life for {self.settings.patience:g} s")

        answer = until(look, 2 * self.settings.wait + self.settings.patience, check)
        if answer is None:
            raise RankError(f"rank {self.ranks.rank}: rank 0 lives, and has said nothing for {2 * self.settings.wait:g} s")
        return answer


class _Leader(_Rank):
    """Rank 0, in contact with the client."""

    def __init__(self, settings: WorkerSettings, ranks: Ranks, say: Callable[[str], None]) -> None:
        super().__init__(settings, ranks)
        self.say = say
        self.client: Meeting | None = None
        self.taken = 0
        """The number of the last announced job examined."""

    def run(self) -> None:
        """Do the job, or one after the other, and let the other ranks go at the end."""
        try:
            if self.settings.job is not None:
                self._do(Job.load(self.settings.job), None)
            else:
                self._serve()
        finally:
            if self.common is not None:
                try:
                    self.common.set("no more jobs", b"yes")
                except ExecutionError as error:  # the ranks find out themselves
                    self.say(str(error))

    def _serve(self) -> None:
        from foreshape.core.version import VERSION

        settings = self.settings
        if settings.connect is not None:
            self.client = connect(Address.of(settings.connect), settings.patience)
        else:
            self.client = listen(Address.of(settings.listen or ""), settings.patience)
        with SignsOfLife(self.client, WORKER_LIVES):
            self.client.set(WORKER, Here(VERSION, self.ranks.count, settings.keep).to_bytes())
            self.say(f"{self.ranks.count} rank{'s' * (self.ranks.count > 1)} waiting for a job at {self.client.where}, in {os.path.realpath(settings.folder)}")
            while self._serve_one() and settings.keep:
                pass
        self.client.close()

    def _serve_one(self) -> bool:
        """Take one job and do it; return True if one came. Its errors are told to the client, too."""
        announced = until(self._announced, self.settings.wait)
        if announced is None:
            if self.taken:
                return False
            raise ExecutionError(f"no job has come within {self.settings.wait:g} s")
        keys, data = announced
        assert self.client is not None
        try:
            if isinstance(data, FormatError):
                raise JobRefused(f"the job cannot be taken: {data}")
            try:
                job = Job.from_bytes(data)
            except FormatError as error:
                raise JobRefused(f"the job cannot be taken: {error}") from None
            self._do(job, keys)
        except (ForeshapeError, KeyboardInterrupt) as error:
            self._tell_failure(keys, error)
            self._leave(keys)
            if not self.settings.keep or not isinstance(error, JobRefused):
                raise  # the ranks may be anywhere in a step
            self.say(f"{type(error).__name__}: {error}")
        else:
            self._leave(keys)
        return True

    def _announced(self) -> tuple[Keys, bytearray | FormatError] | None:
        """Return the next job present; one whose client left before is passed over."""
        assert self.client is not None
        client, number = self.client, self.taken + 1
        if client.add(JOBS, 0) < number:
            return None
        keys = Keys(number)
        watch = HeartbeatMonitor(client, keys.client_lives)

        def look() -> tuple[Keys, bytearray | FormatError] | None:
            try:
                data = take(client, keys.job, MOST_BYTES)
            except FormatError as error:
                return keys, error
            return None if data is None else (keys, data)

        def check() -> None:
            if watch.silent > self.settings.patience:
                raise TimeoutError

        self.taken = number
        try:
            return until(look, self.settings.wait, check)
        except TimeoutError:
            self.say(f"job {number} was announced and has not come: its client gives no sign of life for {self.settings.patience:g} s")
            return None

    def _do(self, job: Job, keys: Keys | None) -> None:
        """Do a job with all ranks."""
        self.number += 1
        if self.common is not None:
            put(self.common, f"job {self.number}", job.to_bytes())
        ready, reply = self.prepared(job)
        replies = [reply, *map(self._reply, range(1, self.ranks.count))]
        if self.common is not None:
            drop(self.common, f"job {self.number}")
        why = self._refused(replies) or self._agreed(replies, keys)
        if self.common is not None:
            self.common.set(f"decided {self.number}", why.encode() if why else GO)
        if why or ready is None:
            raise JobRefused(why)
        self.say(f"job {self.number}: {job.epochs} epoch{'s' * (job.epochs != 1)} of {reply.examples:,} examples, {job.batch_size:,} in a batch")
        history = self.train(ready, [lambda number, row: self._epoch(keys, number, row)], None)
        files = self._write(ready)
        if keys is not None and self.client is not None:
            if job.bring:
                self._bring(ready.main, ready.scope, keys)
            put(self.client, keys.result, JobResult(history, files).to_bytes())
        self.say(f"job {self.number} is done" + "".join(f"\n    {path}" for path in files))

    # --- before the first step

    def _reply(self, rank: int) -> Reply:
        """Return the answer of another rank; of a lost one, an answer saying so."""
        common, board, patience = self.common, self.ranks.board, self.settings.patience
        assert common is not None and board is not None

        def check() -> None:
            if board.is_silent(rank, patience):
                raise RankError(f"it is gone: no sign of life for {patience:g} s")

        try:
            data = until(lambda: take(common, f"reply {self.number} {rank}", MOST_REPLY), self.settings.wait, check)
            if data is None:
                raise RankError(f"it lives, and has not answered for {self.settings.wait:g} s")
            reply = reply_from(data)
            return reply if reply.rank == rank else refusal(rank, FormatError(f"it answers as rank {reply.rank}"))
        except (FormatError, RankError) as error:
            return refusal(rank, error)

    def _refused(self, replies: list[Reply]) -> str:
        """Return the obstacles to a job, each with its ranks; empty without any."""
        reasons: dict[str, list[int]] = {}
        for reply in replies:
            if reply.error:
                reasons.setdefault(reply.error, []).append(reply.rank)
        words = [f"rank {numbers(ranks)}: {reason}" for reason, ranks in reasons.items()]
        if apart := differences(replies):
            words.append(f"the ranks do not have the same: {apart}")
        return "; ".join(words)

    def _agreed(self, replies: list[Reply], keys: Keys | None) -> str:
        """Return the reason not to begin a job; empty to begin: the client decides, told of the ranks' needs."""
        client = self.client
        if keys is None or client is None:
            return too_much(replies)
        put(client, keys.replies, replies_to_bytes(replies))
        watch = HeartbeatMonitor(client, keys.client_lives)
        try:
            answer = until(lambda: word(client, keys.word), self.settings.wait, lambda: alive(watch, "the client", self.settings.patience))
        except ExecutionError as error:  # no rank has begun, so all can wait for the next job
            return str(error)
        return "" if answer == GO else "the client does not want the job to begin" if answer == STOP else "the client has not said whether to begin"

    # --- while it runs, and after

    def _epoch(self, keys: Keys | None, number: int, row: dict[str, float]) -> bool:
        """Report the figures of an epoch; return True to end the run here. A lost client does not end it."""
        if keys is None or self.client is None:
            return False
        try:
            self.client.set(keys.epoch(number), json.dumps(row).encode())
            return self.client.check([keys.end])
        except ExecutionError as error:
            self.say(f"{error}; the training goes on")
            return False

    def _write(self, ready: Prepared) -> list[str]:
        """Write the files asked for by the job; returns the paths."""
        job, out = ready.job, list[str]()
        if job.save_to is not None:
            out.append(ready.path(job.save_to))
            save_safetensors(out[-1], ready.scope, network_values(ready.main))
        if job.model is not None:
            prefix = ready.path(job.model.path)
            save_inference_model(prefix, job.model.feeds, job.model.fetches, program=ready.main, scope=ready.scope)
            out += [f"{prefix}.pdmodel", f"{prefix}.pdiparams"]
        return out

    def _bring(self, main: Any, scope: Scope, keys: Keys) -> None:
        """Give the client the values of the network."""
        assert self.client is not None
        tensors = {name: scope.tensor(name) for name in network_values(main)}
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        if size > MOST_VALUES:
            raise ExecutionError(f"the values have {size} bytes, more than are sent back ({MOST_VALUES}): let them be saved to a file")
        head, ordered = safetensors_file.header(tensors)
        put(self.client, keys.values, b"".join([head, *(piece for tensor in ordered for piece in safetensors_file.pieces(tensor))]))

    def _tell_failure(self, keys: Keys, error: BaseException) -> None:
        """Tell the client why there is no result."""
        assert self.client is not None
        words = str(error) if isinstance(error, ExecutionError) else f"{type(error).__name__}: {error}"
        try:
            put(self.client, keys.result, JobResult(History(), [], words or type(error).__name__).to_bytes())
        except ExecutionError as gone:  # it finds out itself
            self.say(str(gone))

    def _leave(self, keys: Keys) -> None:
        """Wait until the client has its results, or is gone, and forget the job."""
        client = self.client
        assert client is not None
        receipt = None
        try:
            watch = HeartbeatMonitor(client, keys.client_lives)
            receipt = until(lambda: word(client, keys.taken), self.settings.wait, lambda: alive(watch, "the client", 5.0))
            for key in (keys.job, keys.replies, keys.result, keys.values):
                drop(client, key)
        except ExecutionError as error:
            if receipt is None:  # one that has all its results and holds the store itself ends with it
                self.say(str(error))


def too_much(replies: list[Reply]) -> str:
    """Return the machines whose ranks need more memory than there is, in words; empty without any."""
    from foreshape.compiler.memory import byte_text

    words: list[str] = []
    for host in dict.fromkeys(r.host for r in replies):
        replies_of_host = [r for r in replies if r.host == host]
        memory = min((r.memory for r in replies_of_host if r.memory is not None), default=None)
        needed = sum(r.peak or 0 for r in replies_of_host)
        if memory is not None and needed > memory:
            words.append(f"rank {numbers([r.rank for r in replies_of_host])} on {host}: {byte_text(needed)} are needed, and {byte_text(memory)} are there")
    return "; ".join(words)
