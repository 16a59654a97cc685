"""The controller of a run on Ray: an actor that places the ranks, collects their news, and begins again when one is lost."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

from foreshape.apps.training import History
from foreshape.apps.workers.jobs import Job
from foreshape.apps.workers.rank import Rank, RankPlace, RunOutcome
from foreshape.apps.workers.reply import Reply, obstacles, too_much
from foreshape.errors import ExecutionError, FeedError, RankError
from foreshape.machine.communication.ray_session import RaySettings, first_line, ray_package
from foreshape.runtime.feeding.ray_data import plain_ray_errors

_SOON = 5.0
"""Seconds to wait for room for fewer ranks than wanted."""
_CONSEQUENCES = 20.0
"""Seconds between a rank's error and the news of another one's death that caused it."""
_UNSEEN = 60.0
"""Seconds for a client to take the outcome of a run that is kept."""
_MOST_EVENTS = 10_000


class Controller:
    """The actor of a run.

    Args:
        name: of the run; the names of its placement groups begin with it.
        job: its bytes.
        inputs: a list of one reference to `Inputs`, or of none if the job has files.
        values: a list of one reference to the bytes of the first values, or of none.
        datasets: sets of Ray Data for training and validation, in place of ``inputs``.
        brings: "network" or "all" to send back these trained values; nothing otherwise.
    """

    def __init__(self, name: str, cluster: RaySettings, job: bytes, inputs: list[Any], values: list[Any], datasets: list[Any], brings: str) -> None:
        self._ray = ray_package()
        if cluster.keep:  # a client takes its objects with it
            inputs, values = ([self._ray.put(value) for value in self._ray.get(refs)] for refs in (inputs, values))
        self._cluster, self._job, self._brings, self._datasets = cluster, job, brings, datasets
        self._inputs, self._values = inputs, values
        self._sample: Any = None
        self._name, self._placements = name, 0
        self._ranks: list[Any] = []
        self._group: Any = None
        self._stops = self._is_closed = False
        self._placing = threading.Lock()
        self._events: deque[tuple[Any, ...]] = deque(maxlen=_MOST_EVENTS)
        self._reached = ""

    # --- asked by the client

    def prepare(self) -> list[Reply]:
        """Place as many ranks as wanted, and return their answers to the job.

        Raises:
            ExecutionError: there is no room for them, or one is lost; the data cannot be read.
        """
        room = self._room(1 if self._reads() else 0)
        self._wanted = self._cluster.workers or room
        if self._datasets:
            if self._wanted > room:
                raise ExecutionError(
                    f"{self._wanted} ranks leave no processor to the reading of the set of Ray Data: the machines have room for {room} beside it; "
                    "take fewer workers or cpus, or dataset.materialize()"
                )
            with plain_ray_errors():
                batches = [next(iter(d.iter_batches(batch_size=Job.from_bytes(self._job).batch_size, batch_format="numpy")), None) for d in self._datasets]
            if any(batch is None for batch in batches):
                raise FeedError("a set of Ray Data has no rows")
            self._sample = self._ray.put(batches)
        if not self._wanted or not self._place(self._wanted, self._cluster.patience):
            needs = f"{self._cluster.cpus:g} processors" + (f" and {self._cluster.gpus:g} GPUs" if self._cluster.gpus else "")
            raise ExecutionError(
                f"there is no room for {self._wanted or 1} ranks of {needs} each within {self._cluster.patience:g} s; the machines have room for {room}, "
                "if nothing else runs there"
            )
        try:
            return self._replies()
        except self._ray.exceptions.RayActorError as error:
            raise ExecutionError(f"a rank is gone before the training has begun: {first_line(error)}") from None

    def run(self) -> RunOutcome:
        """Train to the end, through as many losses as allowed."""
        try:
            outcome, lost = self._train()
            for _ in range(self._cluster.restarts):
                if outcome is not None or self._is_closed:
                    break
                try:
                    if words := self._again(lost):
                        return RunOutcome(History(), error=RankError(f"{lost}; the training does not go on: {words}"))
                    outcome, lost = self._train()
                except self._ray.exceptions.RayActorError as error:  # while it looked at the job
                    lost = f"a rank is gone: {first_line(error)}"
            return outcome if outcome is not None else RunOutcome(History(), error=RankError(f"{lost}; no restart is left of {self._cluster.restarts}"))
        finally:
            self.end()
            if self._cluster.keep:
                threading.Timer(_UNSEEN, os._exit, [0]).start()

    def stop(self) -> None:
        """Let the training end after its current epoch."""
        self._stops = True

    def close(self) -> None:
        """End the ranks, and start no others: their deaths begin no new run."""
        with self._placing:
            self._is_closed = True
            self.end()

    def take(self) -> list[tuple[Any, ...]]:
        """Return the news since the last question."""
        events = list(self._events)
        self._events.clear()
        return events

    # --- asked by rank 0

    def tell(self, kind: str, *arguments: Any) -> None:
        """Keep an event for the client: the name and the arguments of a method of `Quiet`."""
        if kind == "begin":
            self._epoch, done = arguments[0], arguments[3]
            if self._reached:
                self._events.append(("say", f"epoch {self._epoch} goes on after batch {done}; the lost ranks had come to {self._reached}"))
            self._reached = ""
        if kind == "step":
            self._batch = arguments[0]
        self._events.append((kind, *arguments))

    def is_to_stop(self) -> bool:
        """Tell whether the training ends after its current epoch."""
        return self._stops

    # --- the ranks

    def _reads(self) -> bool:
        """Tell whether rows are read while ranks run."""
        return any(type(d).__name__ != "MaterializedDataset" for d in self._datasets)

    def _room(self, beside: int) -> int:
        """Return the number of ranks with room on the living machines, ``beside`` so many processors, if nothing else runs there."""
        asked = {n: size for n, size in (("CPU", self._cluster.cpus), ("GPU", self._cluster.gpus)) if size}
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(min(int(resources.get(n, 0) / size) for n, size in asked.items()) for resources in machines)
        spare = sum(resources.get("CPU", 0) for resources in machines) - beside
        return min(room, int(spare / self._cluster.cpus)) if beside and self._cluster.cpus else room

    def _place(self, count: int, seconds: float) -> bool:
        """Start so many ranks. Return False if there is no room in time."""
        groups = ray_package("ray.util.placement_group")
        strategy = ray_package("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        with self._placing:
            if self._is_closed:
                return False
            self._group = group = groups.placement_group(
                [{"CPU": self._cluster.cpus, "GPU": self._cluster.gpus}] * count, name=f"{self._name}-{self._placements}"
            )
            self._placements += 1
        if not group.wait(seconds):
            self.end()
            return False
        controller = self._ray.get_runtime_context().current_actor
        needs: dict[str, Any] = {"num_cpus": self._cluster.cpus, "num_gpus": self._cluster.gpus}
        places = [strategy(group, placement_group_bundle_index=index) for index in range(count)]
        actors = [self._ray.remote(scheduling_strategy=place, **needs)(Rank) for place in places]
        with self._placing:
            if not self._is_closed:
                self._ranks = [actor.remote(self._cluster, self._job, controller, self._brings) for actor in actors]
        return not self._is_closed

    def _replies(self) -> list[Reply]:
        addresses = self._ray.get([rank.address.remote() for rank in self._ranks])
        _, host, port = addresses[0]
        if len({node for node, _, _ in addresses}) == 1:
            host = "127.0.0.1"  # what stays on one machine is not to be reached from others
        inputs, values = (refs[0] if refs else None for refs in (self._inputs, self._values))
        places = [RankPlace(rank, len(self._ranks), host, port) for rank in range(len(self._ranks))]
        asked = zip(self._ranks, places, strict=True)
        return self._ray.get([rank.prepare.remote(place, inputs, None if place.rank else values, self._sample) for rank, place in asked])

    def _train(self) -> tuple[RunOutcome | None, str]:
        """Train with the present ranks. Return rank 0's outcome or the error of any; None, and the words on it, if a rank is lost."""
        self._epoch = self._batch = 0
        split = [d.streaming_split(len(self._ranks), equal=True) for d in self._datasets]
        pending = {actor.train.remote([shards[index] for shards in split]): index for index, actor in enumerate(self._ranks)}
        outcomes: dict[int, RunOutcome] = {}
        failed: ExecutionError | None = None
        while pending:
            ready, _ = self._ray.wait(list(pending), timeout=_CONSEQUENCES if failed is not None else None)
            if not ready:
                break
            index = pending.pop(ready[0])
            try:
                outcomes[index] = outcome = self._ray.get(ready[0])
            except self._ray.exceptions.RayActorError as error:
                return None, f"rank {index} is gone: {first_line(error)}"
            if isinstance(outcome.error, RankError):  # it may be told first of another one's death
                failed = outcome.error
            elif outcome.error is not None:
                return outcome, ""
        return (outcomes[0], "") if failed is None else (None, str(failed))

    def _again(self, lost: str) -> str:
        """Begin again, on fewer ranks if there is no room for all. Return the obstacle in words."""
        self._reached = f"epoch {self._epoch}, batch {self._batch}" if self._epoch else "no step"
        before = len(self._ranks)
        self.end()
        words = f"there is no room for {self._cluster.fewest} ranks"
        for count in range(self._wanted, self._cluster.fewest - 1, -1):
            if not self._place(count, self._cluster.patience if count == self._wanted else _SOON):
                continue
            replies = self._replies()
            words = obstacles(replies) or too_much(replies)
            if not words:
                self._events.append(("say", f"{lost}. {count} ranks begin again, of {before}"))
                return ""
            self.end()
        return words

    def end(self) -> None:
        """End the ranks, and give their places back: Ray keeps these for a dead controller as long as its client lives."""
        for rank in self._ranks:
            self._ray.kill(rank)
        self._ranks = []
        if self._group is not None:
            ray_package("ray.util.placement_group").remove_placement_group(self._group)
            self._group = None
