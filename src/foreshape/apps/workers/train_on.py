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
from foreshape.apps.workers.cluster import RayCluster
from foreshape.apps.workers.describe import checked_job
from foreshape.apps.workers.prepare import Inputs
from foreshape.apps.workers.rank import packed
from foreshape.errors import ExecutionError, FeedError, SchemaError, whole
from foreshape.language.program import Program, Variable, startup_of
from foreshape.runtime.engine import Scope, default_scope


def train_on(
    cluster: RayCluster, cost: Variable, data: Any, *, optimizer: Any, epochs: int, batch_size: int, metrics: Mapping[str, Any] | None, validation: Any,
    checkpoint: Any, seed: int, shuffle: bool, callbacks: Any, progress: bool | None, console: Any, scope: Scope | None, startup: Program | None, fresh: bool,
    on_change: str, ranks: Any, accumulate: int, precision: str, drop_last: bool, **others: Any,
) -> History:  # fmt: skip
    """Train as `foreshape.train` does, with its arguments, on ranks of a Ray cluster.

    Args:
        others: the arguments that only one process can take: each must be empty.

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
        raise FeedError("the data and the validation data are both of Ray Data, or both are not")
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
