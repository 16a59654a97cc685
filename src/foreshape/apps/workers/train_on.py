"""`train` on a Ray cluster: the program goes as its bytes, the data into Ray's object store, and the trained values come back into the scope."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foreshape.apps.training import Checkpoint, History
from foreshape.apps.training.callbacks import Callback
from foreshape.apps.training.checkpoint.checkpoint import as_checkpoint
from foreshape.apps.training.data.batches import Arrays, as_data, inputs_of, split
from foreshape.apps.training.program import persistables
from foreshape.apps.training.progress import shown
from foreshape.apps.training.session import own_state, turn
from foreshape.apps.training.training_programs import make
from foreshape.apps.workers.client import Sent
from foreshape.apps.workers.describe import checked_job
from foreshape.apps.workers.prepare import Inputs
from foreshape.apps.workers.rank import packed
from foreshape.core.hints import tells_arguments
from foreshape.errors import ExecutionError, FeedError, SchemaError, whole
from foreshape.language.program import Program, Variable, startup_of
from foreshape.machine.communication.ray_session import RaySettings
from foreshape.runtime.engine import Scope, default_scope


class RayCluster(RaySettings):
    """The part of a Ray cluster for a training.

    Args:
        workers, cpus, gpus, address, fewest, restarts, patience, keep, folder, storage: as for `ray_cluster`.
    """

    __slots__ = ()

    def train(self, cost: Variable, data: Any, **settings: Any) -> History:
        """Train as `foreshape.train` does, on ranks of this cluster.

        Args:
            cost, data, settings: its arguments.
        """
        return _train_on(self, cost, data, **settings)


@tells_arguments
def ray_cluster(
    workers: int | None = None, cpus: float = 1, gpus: float = 0, address: str | None = None, *, fewest: int = 1, restarts: int = 3, patience: float = 30.0,
    keep: bool = False, folder: str | os.PathLike[str] = ".", storage: str | None = None,
) -> RayCluster:  # fmt: skip
    """Return a place for `train` and `send`: ranks on a Ray cluster.

    Args:
        workers: the number of ranks; by default as many as the cluster has room for.
        cpus, gpus: of each rank. A rank computes on as many threads, and on its GPU if it has one.
        address: of the cluster, as "ray://host:10001" from outside of it, or "auto" on one of its machines. By default the cluster that this process has
            joined already, or the one named by ``RAY_ADDRESS``, or a new one on this machine.
        fewest: after a loss the training goes on with at least so many ranks.
        restarts: the number of losses survived; the next one ends the training.
        patience: seconds to wait for room for all ranks, before the training goes on with fewer of them.
        keep: let the training go on when its client ends other than by Ctrl-C. Its results are in files then.
        folder: of the workers' machines: the paths of a `Job` lead into it and not out of it. All machines see the same files there.
        storage: an address of pyarrow's file systems, as "s3://bucket/runs", in place of a folder shared by all machines: checkpoints are copied there.

    Raises:
        SchemaError: a number out of its range.
    """
    count = None if workers is None else whole("workers", workers, 1, SchemaError)
    fewest, restarts = whole("fewest", fewest, 1, SchemaError), whole("restarts", restarts, 0, SchemaError)
    if cpus < 0 or gpus < 0 or not cpus + gpus > 0:
        raise SchemaError.must("cpus and gpus", "at least 0, and one of them more", f"{cpus!r} and {gpus!r}")
    if count is not None and fewest > count:
        raise SchemaError.must("fewest", f"at most workers, {count}", fewest)
    if not patience >= 0:
        raise SchemaError.must("patience", "seconds, at least 0", repr(patience))
    return RayCluster(count, cpus, gpus, address, fewest, restarts, patience, keep, os.fspath(folder), storage)


def _train_on(
    cluster: RaySettings, cost: Variable, data: Any, *, optimizer: Any, epochs: int, batch_size: int, metrics: Mapping[str, Any] | None, validation: Any,
    checkpoint: Any, seed: int, shuffle: bool, callbacks: Any, progress: bool | None, console: Any, scope: Scope | None, startup: Program | None, fresh: bool,
    on_change: str, ranks: Any, accumulate: int, precision: str, drop_last: bool, **others: Any,
) -> History:  # fmt: skip
    """Train as `foreshape.train` does, with its arguments, on ranks of a Ray cluster.

    Args:
        others: the arguments for one process alone: each must be empty.

    Raises:
        SchemaError: an argument that cannot be sent. Others as `foreshape.train`.
    """
    for name, value in others.items():
        if value:
            raise SchemaError(f"{name}= cannot be sent to ranks on Ray, where the code of this process is not run: leave it out")
    hooks = list(callbacks) if hasattr(callbacks, "__iter__") else [callbacks]
    for kept in [c for c in hooks if isinstance(c, Callback) or not callable(c)]:
        raise SchemaError(f"on Ray a callback is a function of an epoch's number and row, which is called here; seen {kept!r:.80}")
    for name, metric in (metrics or {}).items():
        if not isinstance(metric, Variable):
            raise SchemaError(f"the metric {name!r} is measured by code of this process; on Ray a metric is a variable, such as layer.accuracy(...) gives")
    if precision == "fp16":
        raise SchemaError("precision='fp16' cannot be sent to ranks on Ray, since a program's file does not mark its scaled loss: take 'bf16'")
    epochs = whole("epochs", epochs, 0, ExecutionError)
    program, scope = cost.block.program, scope if scope is not None else default_scope()
    startup = startup if startup is not None else startup_of(program)
    datasets = [source for source in (data, validation) if _is_of_ray(source)]
    inputs, fed, batches = None, [v.name for v in inputs_of(program)], None
    if not datasets:
        inputs, batches = _inputs(data, validation, program, batch_size, shuffle, seed, drop_last)
        fed = list(inputs.data)
    elif len(datasets) != (1 if validation is None else 2):
        raise FeedError("the data and the validation data are both of Ray Data, or both are not; dataset.train_test_split divides one")
    folder = as_checkpoint(checkpoint)
    if folder is not None and cluster.storage is None:  # the caller's own path, on every machine
        folder, cluster = Checkpoint(os.path.abspath(folder.path), folder.every, folder.keep), replace(cluster, folder="/")
    training = make(cost, optimizer, scope, startup, 1, precision, max(epochs, 1), batches)
    with turn(training, scope):
        own_state(scope)
        job = checked_job(
            training.loss, training.startup, fed, data={}, validation=None, metrics={n: m.name for n, m in (metrics or {}).items()}, ranks=ranks, epochs=epochs,
            batch_size=batch_size, seed=seed, shuffle=shuffle, accumulate=accumulate, drop_last=drop_last, on_change=on_change, values=None,
            checkpoint=folder, save_to=None, model=None,
        )  # fmt: skip
        names = [] if fresh else [v.name for v in persistables(training.program)]
        sent = Sent(cluster, job, shown(progress, console), scope, "all", hooks)
        sent.begin(None, lambda replies: None, inputs, packed(scope, names), datasets)
        return sent.wait()


def _inputs(data: Any, validation: Any, program: Program, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> tuple[Inputs, int | None]:
    """Return the columns to send, and the number of batches of an epoch."""
    selected = as_data(data, batch_size, shuffle, seed, program, drop_last=drop_last)
    measured = None
    if isinstance(validation, (int, float)):
        selected, measured = split(selected, validation, program)
    elif validation is not None:
        measured = as_data(validation, batch_size, False, seed, program)
    if not isinstance(selected, Arrays) or not isinstance(measured, (Arrays, type(None))):
        raise FeedError("on Ray, data are arrays or a table, which go into its object store, or a set of Ray Data; fs.job takes paths of files")
    return Inputs(selected.arrays, None if measured is None else measured.arrays), selected.batches


def _is_of_ray(source: Any) -> bool:
    """Tell whether it is a set of Ray Data, without an import of Ray."""
    return any(c.__module__.startswith("ray.data") for c in type(source).__mro__)
