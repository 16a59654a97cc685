"""`send`: gives a job to ranks on Ray, shows their needs, and waits for the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from foreshape.apps.training import History, interrupted
from foreshape.apps.training.program import persistables
from foreshape.apps.training.progress import Quiet, shown
from foreshape.apps.workers.controller import Controller
from foreshape.apps.workers.jobs import Job
from foreshape.apps.workers.prepare import Inputs, load_inferred
from foreshape.apps.workers.rank import RunOutcome
from foreshape.apps.workers.reply import Reply, obstacles, table, too_much
from foreshape.errors import ExecutionError, ForeshapeError, MemoryPlanError, SchemaError
from foreshape.interop import safetensors_file
from foreshape.machine.communication.ray_session import RaySettings, first_line, joined_ray, ray_package
from foreshape.runtime.engine import Scope
from foreshape.runtime.feeding.state_checks import compare_spec

_HEAD = "node:__internal_head__"
"""Ray's name for the machine that a cluster does not survive: the controller is there, and is lost with no other."""
_ENDING = 5.0
"""Seconds for the controller to end its ranks."""
_AGAIN = 0.1
"""Seconds between two questions to the controller."""


def send(
    job: Job, to: str | RaySettings | None = None, *, agree: Callable[[list[Reply]], bool] | None = None, wait: bool = True, scope: Scope | None = None,
    progress: bool | None = None, console: Any = None,
) -> Sent:  # fmt: skip
    """Let ranks on a Ray cluster train a `job`, and wait for its end.

    They check the program, answer with each rank's needs, and train after agreement.

    Args:
        to: the address of the cluster, as "ray://host:10001" or "auto"; or `ray_cluster`, with the number of ranks. By default all of this machine.
        agree: a function of the ranks' replies, True to begin; by default the memory of each machine decides.
        wait: for the end; False gives the `Sent` as soon as the training has begun.
        scope: takes the values of the trained network; without it they are not sent back.
        progress, console: as for `train`; with the replies as a table before.

    Raises:
        ExecutionError: there is no cluster, or no room; the ranks refuse the job. MemoryPlanError: it does not fit. Others as `train`.
    """
    if not isinstance(job, Job):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SchemaError(f"what is sent is a job, as fs.job(cost, data, optimizer=...) describes one; seen {job!r:.60}")
    cluster = to if isinstance(to, RaySettings) else RaySettings(address=to)
    sent = Sent(cluster, job, shown(progress, console), scope, "" if scope is None else "network")
    sent.begin(agree, lambda replies: None if progress is False else sent.show_table(replies, console))
    if wait:
        sent.wait()
    return sent


@dataclass(slots=True, eq=False)
class Sent:
    """A job accepted by ranks."""

    cluster: RaySettings
    job: Job = field(repr=False)
    show: Quiet = field(repr=False)
    scope: Scope | None = field(repr=False)
    """Takes the trained values."""
    brings: str = field(repr=False)
    """The trained values to send back: "network", "all", or none."""
    callbacks: Sequence[Callable[[int, dict[str, float]], Any]] = field(default=(), repr=False)
    """Called here after each epoch; the training ends after the then current epoch when one returns True."""
    replies: list[Reply] = field(default_factory=list[Reply], repr=False)
    """The answers of the ranks."""
    history: History | None = None
    """The losses and figures, when it is done."""
    files: list[str] = field(default_factory=list[str])
    """The files written by rank 0, besides checkpoints."""
    _ray: Any = field(default=None, repr=False)
    _controller: Any = field(default=None, repr=False)
    _name: str = field(default="", repr=False)
    _outcome: Any = field(default=None, repr=False)
    _epoch: int = field(default=0, repr=False)
    """The number of the last finished epoch."""

    def begin(
        self,
        agree: Callable[[list[Reply]], bool] | None,
        show_replies: Callable[[list[Reply]], object],
        inputs: Inputs | None = None,
        values: bytes | None = None,
        datasets: Sequence[Any] = (),
    ) -> None:
        """Let the ranks be placed, ask for their needs, and let them begin. Arguments as for `send` and `Controller`."""
        self._ray = ray = joined_ray(self.cluster.address)
        settings = {"num_cpus": 0, "resources": {_HEAD: 0.001}, "lifetime": "detached" if self.cluster.keep else None}
        actor = ray.remote(concurrency_groups={"run": 1})(Controller).options(**settings)
        try:
            refs = [[] if value is None else [ray.put(value)] for value in (inputs, values)]
        except ray.exceptions.RayError as error:
            raise ExecutionError(f"the data do not fit into the object store of Ray: give paths of files, or a larger store: {first_line(error)}") from error
        self._name = f"foreshape-{uuid4().hex}"
        self._controller = actor.remote(self._name, self.cluster, self.job.to_bytes(), *refs, list(datasets), self.brings)
        try:
            self.replies = self._answer(self._controller.prepare.options(concurrency_group="run").remote())
            show_replies(self.replies)
            if words := obstacles(self.replies):
                raise ExecutionError(f"the ranks refuse the job: {words}")
            if agree is None and (words := too_much(self.replies)):
                raise MemoryPlanError(words)
            if agree is not None and not agree(self.replies):
                raise ExecutionError("the job was not agreed to")
            self._outcome = self._controller.run.options(concurrency_group="run").remote()
        except BaseException as error:
            self._kill()
            if isinstance(error, KeyboardInterrupt):
                interrupted.end_in(error, "interrupted before the training has begun; the ranks on Ray have ended")
            raise

    def wait(self) -> History:
        """Wait for the end of the training; shows its progress.

        Raises:
            ForeshapeError: it has failed, in the words of a rank. ExecutionError: Ray has lost the controller.
        """
        if self.history is not None:
            return self.history
        try:
            with self.show:
                while not self._ray.wait([self._outcome], timeout=_AGAIN)[0]:
                    self._tell()
                self._tell()
            outcome: RunOutcome = self._answer(self._outcome)
        except KeyboardInterrupt as interrupt:
            keep = self.job.checkpoint
            files = "nothing on disk; give checkpoint= to go on later" if keep is None else f"checkpoints in {keep.folder}; the same goes on from there"
            interrupted.end_in(interrupt, f"interrupted in epoch {self._epoch + 1}; the ranks on Ray have ended\nkept: {files}")
            raise
        finally:  # of an interrupt, too: the ranks end with their controller
            self._kill()
        if outcome.error is not None:
            raise outcome.error
        if self.scope is not None and outcome.values is not None:
            self._fill(self.scope, outcome.values)
        self.history, self.files = outcome.history, list(outcome.files)
        return self.history

    def stop(self) -> None:
        """Let the training end after its current epoch; `wait` returns the results so far."""
        self._ray.get(self._controller.stop.remote())

    def show_table(self, replies: list[Reply], console: Any) -> None:
        """Print the needs of each rank."""
        from rich.console import Console

        (console if console is not None else Console()).print(table(replies))

    def _tell(self) -> None:
        """Show the news told to the controller."""
        for kind, *arguments in self._answer(self._controller.take.remote()):
            getattr(self.show, kind)(*arguments)
            if kind == "end" and arguments[0] > self._epoch:
                self._epoch = arguments[0]
                answers = [callback(arguments[0], arguments[2]) for callback in self.callbacks]
                if any(answer is True for answer in answers):
                    self.stop()

    def _answer(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:  # of a method of ours
            raise (error.cause if isinstance(error.cause, ForeshapeError) else error) from None
        except self._ray.exceptions.RayError as error:
            raise ExecutionError(f"the controller of the run is lost: {first_line(error)}") from error

    def _kill(self) -> None:
        with suppress(self._ray.exceptions.RayError):  # it may be lost already, with its ranks
            self._ray.get(self._controller.close.remote(), timeout=_ENDING)
        self._ray.kill(self._controller)
        groups = ray_package("ray.util.placement_group")
        for facts in groups.placement_group_table().values():  # of a controller killed by others
            if facts["name"].startswith(self._name) and facts["state"] != "REMOVED":
                groups.remove_placement_group(groups.get_placement_group(facts["name"]))

    def _fill(self, scope: Scope, values: bytes) -> None:
        """Put the returned values into a scope, each as described by the program."""
        tensors = safetensors_file.load_bytes(values)
        variables = {v.name: v for v in persistables(load_inferred("main", self.job.main))}
        for name, tensor in tensors.items():
            if name not in variables:
                raise ExecutionError(f"the ranks have sent back {name[:100]!r}, which is no value of the program")
            compare_spec(name, variables[name].spec, tensor)
        scope.fill(tensors)
