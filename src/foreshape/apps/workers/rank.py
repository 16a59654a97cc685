"""One rank of a run on Ray: an actor without the code of the model. It checks the job, trains, and reports to the controller."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from foreshape.apps.training import Checkpoint, History, train
from foreshape.apps.training.program import persistables
from foreshape.apps.training.progress import REFRESH_SECONDS, Quiet
from foreshape.apps.workers.jobs import Job
from foreshape.apps.workers.prepare import Inputs, Prepared, network_values, prepare
from foreshape.apps.workers.reply import Reply, refusal
from foreshape.apps.workers.shards import DatasetShard, sample_of
from foreshape.apps.workers.stored_checkpoint import StoredCheckpoint
from foreshape.errors import ExecutionError, ForeshapeError
from foreshape.interop import safetensors_file, save_inference_model, save_safetensors
from foreshape.machine.communication.ray_session import RaySettings, cause_line, ray_package
from foreshape.runtime.engine import Executor, Scope


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of a rank in a run."""

    rank: int
    ranks: int
    host: str
    port: int
    """The address at which the ranks meet."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The results of a rank; of an error no more than its class and its words."""

    history: History
    files: tuple[str, ...] = ()
    values: bytes | None = None
    error: ForeshapeError | None = None


class Rank:
    """One rank, in a process of its own. A run begun again has others."""

    def __init__(self, cluster: RaySettings, job: bytes, controller: Any, brings: str) -> None:
        self._cluster, self._job, self._controller, self._brings = cluster, job, controller, brings
        self._ready: Prepared | None = None

    def address(self) -> tuple[str, str, int]:
        """Return this rank's machine, its address, and a port free there."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            node = ray_package().get_runtime_context().get_node_id()
            return node, ray_package("ray.util").get_node_ip_address(), probe.getsockname()[1]

    def prepare(self, place: RankPlace, inputs: Inputs | None, values: bytes | None, sample: Any) -> Reply:
        """Check the job, and report this rank's needs."""
        self._place = place
        try:
            job = Job.from_bytes(self._job)
            if sample is not None:
                inputs = sample_of(job, sample)
            self._ready = prepare(job, self._cluster.folder, place.rank, place.ranks, inputs, values, bool(self._brings))
        except (ForeshapeError, MemoryError, OSError) as error:
            return refusal(place.rank, error)
        return self._ready.reply

    def train(self, shards: list[Any]) -> RunOutcome:
        """Train as all ranks do; rank 0 writes the files of the job."""
        ready, place = self._ready, self._place
        assert ready is not None
        os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.ranks), MASTER_ADDR=place.host, MASTER_PORT=str(place.port))
        try:
            history = self._train(ready, [DatasetShard(shard, ready.job, place.ranks, ready.main) for shard in shards])
            if place.rank:
                return RunOutcome(History())
            files = _written(ready)
            return RunOutcome(history, tuple(files), self._values(ready))
        except ForeshapeError as error:
            return RunOutcome(History(), error=type(error)("\n    ".join([str(error), *getattr(error, "__notes__", ())])))
        except ray_package("ray.exceptions").RayTaskError as error:
            return RunOutcome(History(), error=ExecutionError(f"the rows of the data could not be read: {cause_line(error)}"))

    def _train(self, ready: Prepared, shards: list[DatasetShard]) -> History:
        job, first = ready.job, not self._place.rank
        data: Any = shards[0] if shards else ready.inputs.data
        validation: Any = shards[1] if len(shards) > 1 else ready.inputs.validation
        device = "cuda" if self._cluster.gpus else "cpu"
        return train(
            ready.loss, data, epochs=job.epochs, batch_size=job.batch_size, metrics=ready.metrics, validation=validation, checkpoint=self._checkpoint(ready),
            seed=job.seed, shuffle=job.shuffle, callbacks=[self._is_to_stop] if first else [], progress=Relay(self._controller) if first else False,
            executor=Executor(device, seed=job.seed), scope=ready.scope, startup=ready.startup, on_change="take" if job.on_change == "take" else "refuse",
            ranks=job.strategy, accumulate=job.accumulate, drop_last=job.drop_last,
        )  # fmt: skip

    def _checkpoint(self, ready: Prepared) -> Checkpoint | None:
        keep = ready.job.checkpoint
        if keep is None:
            return None
        if self._cluster.storage is not None:
            return StoredCheckpoint(self._cluster.storage, keep.folder, keep.every, keep.keep)
        return Checkpoint(ready.path(keep.folder), keep.every, keep.keep)

    def _is_to_stop(self, epoch: int, row: dict[str, float]) -> bool:
        return ray_package().get(self._controller.is_to_stop.remote())

    def _values(self, ready: Prepared) -> bytes | None:
        """Return the trained values as the bytes of a safetensors file: the network's own, or all with the optimizer's."""
        if not self._brings:
            return None
        names = network_values(ready.main) if self._brings == "network" else [v.name for v in persistables(ready.main)]
        return packed(ready.scope, names)


class Relay(Quiet):
    """Progress for a bar elsewhere: told to the controller, of steps a few in a second."""

    def __init__(self, controller: Any) -> None:
        self._controller, self._told, self._examples = controller, 0.0, 0

    def begin(self, epoch: int, epochs: int, batches: int | None, done: int) -> None:
        self._controller.tell.remote("begin", epoch, epochs, batches, done)

    def step(self, done: int, loss: float, examples: int) -> None:
        self._examples += examples
        if (moment := time.monotonic()) - self._told > REFRESH_SECONDS:
            self._controller.tell.remote("step", done, loss, self._examples)
            self._told, self._examples = moment, 0

    def end(self, epoch: int, epochs: int, row: dict[str, float]) -> None:
        self._controller.tell.remote("end", epoch, epochs, row)

    def say(self, text: str) -> None:
        self._controller.tell.remote("say", text)

    def warn(self, text: str) -> None:
        self._controller.tell.remote("warn", text)


def packed(scope: Scope, names: list[str]) -> bytes:
    """Return values of a scope as the bytes of a safetensors file; names without a value are left out."""
    head, ordered = safetensors_file.header({name: scope.tensor(name) for name in names if name in scope})
    return b"".join([head, *(piece for tensor in ordered for piece in safetensors_file.pieces(tensor))])


def _written(ready: Prepared) -> list[str]:
    """Write the files asked for by the job; returns the paths."""
    job, out = ready.job, list[str]()
    if job.save_to is not None:
        out.append(ready.path(job.save_to))
        save_safetensors(out[-1], ready.scope, network_values(ready.main))
    if job.model is not None:
        files = [ready.path(name) for name in job.model.files]  # within the folder, though there may be links now
        save_inference_model(ready.path(job.model.path), job.model.feeds, job.model.fetches, program=ready.main, scope=ready.scope)
        out += files
    return out
