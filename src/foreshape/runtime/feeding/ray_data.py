"""Data sets of Ray: rows computed on by workers on many machines, each with a network opened once.

Ray Data places the workers, reads the rows, and gives the rows of a dead worker to another one. A block's results appear once all of it is computed, so
no row is lost or doubled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol, TypeGuard

from foreshape.compiler.memory.byte_counts import byte_text
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ExecutionError, FeedError, ForeshapeError
from foreshape.machine.communication.ray_session import RaySettings, cause_line, first_line, ray_package

ROWS = 1024
"""The rows that a worker takes at a time: so many, and their results, are in its memory."""
_RETRIES = 4
"""Rows are computed again so many times: those that kill each worker end the run."""
_TEXTS = ("string", "large_string", "str")


class RayDataset(Protocol):
    """A data set of Ray, as far as it is used here."""

    def map_batches(self, fn: Any, **settings: Any) -> Any: ...
    def schema(self) -> Any: ...


Compute = Callable[[Any], Mapping[str, Any]]
"""Makes the new columns of an Arrow table: arrays or ragged rows."""


def is_ray_dataset(source: Any) -> TypeGuard[RayDataset]:
    """Return True for a data set of Ray. Ray is not imported for it."""
    return type(source).__module__.partition(".")[0] == "ray" and hasattr(source, "map_batches")


def require_columns(dataset: RayDataset, needed: Mapping[str, str], texts: bool, keep: Sequence[str] | None, results: Sequence[str]) -> None:
    """Raise `FeedError` for a missing column, one of another type, and one with the name of a result.

    Args:
        dataset: the rows; the first ones are read if their columns are not known.
        needed: column -> the required contents, in words.
        texts: they are texts, and not numbers.
        keep, results: the columns before and after.
    """
    with plain_ray_errors():
        schema = dataset.schema()
    types: dict[str, str] = {} if schema is None else dict(zip(schema.names, map(str, schema.types), strict=True))
    for name in [*needed, *(keep or ())]:
        if name not in types:
            raise FeedError(f"the data set has no column {name!r}; it has {', '.join([*types][:8]) or 'none'}").told(slot=name)
        if name in needed and (types[name] in _TEXTS) is not texts and types[name] != "object":
            raise FeedError.must(f"the column {name!r}", needed[name], types[name], "it has the type")
    for name in {*results}.intersection(types if keep is None else keep):
        raise FeedError(f"the data set has a column {name!r}, so no result can have this name: keep=[...] leaves it out").told(slot=name)


class _Worker:
    """Called with Arrow tables. It opens its network for the first one, since Ray words the errors of a constructor in some two hundred lines."""

    def __init__(self, opening: Callable[[], Compute], keep: Sequence[str] | None) -> None:
        self._opening, self._keep = opening, keep

    @cached_property
    def _compute(self) -> Compute:
        return self._opening()

    def __call__(self, table: Any) -> Any:
        results = self._compute(table)
        joined = table if self._keep is None else table.select(list(self._keep))
        for name, values in results.items():
            joined = joined.append_column(name, _column(values))
        return joined


def _column(values: Any) -> Any:
    """Return an Arrow column of numbers, of tensors with a row for each row, or of lists where they are ragged."""
    arrow = ray_package("pyarrow")
    if not isinstance(values, LoDTensor):
        return arrow.array(values) if values.ndim < 2 else arrow.FixedShapeTensorArray.from_numpy_ndarray(values)
    out = arrow.array(values.data.reshape(-1))
    for size in reversed(values.data.shape[1:]):  # a list of tensors would lose their dims
        out = arrow.FixedSizeListArray.from_arrays(out, size)
    for offsets in reversed(values.offsets()):
        out = arrow.LargeListArray.from_arrays(arrow.array(offsets, arrow.int64()), out)
    return out


def mapped(
    dataset: RayDataset, opening: Callable[[], Compute], workers: RaySettings, keep: Sequence[str] | None, rows: int = ROWS, memory: int | None = None
) -> Any:
    """Return the data set of what workers make of rows, in the order of the rows. Nothing is computed before somebody reads it.

    Args:
        dataset: the rows.
        opening: opens the network on a worker.
        workers: their number and size.
        keep: the columns that stay beside the results; all by default.
        rows: the most rows of a table.
        memory: the bytes that the cluster keeps free for each worker.

    Raises:
        ExecutionError: no machine has room for one worker, so Ray would wait for ever.
    """
    need = {"CPU": workers.cpus, "GPU": workers.gpus, "memory": memory or 0}
    nodes = [node["Resources"] for node in ray_package().nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= amount for name, amount in need.items()) for node in nodes):
        raise ExecutionError(f"no machine of the cluster has room for a worker of {workers.cpus:g} CPUs, {workers.gpus:g} GPUs, {byte_text(memory or 0)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of max_task_retries, which has no other place: by default there is no end of them
        out = dataset.map_batches(
            _Worker,
            fn_constructor_args=(opening, keep),
            batch_size=rows,
            batch_format="pyarrow",
            # a pool of a fixed size may take all processors, and then the rows are never read
            compute=ray_package("ray.data").ActorPoolStrategy(min_size=1, max_size=workers.workers),
            num_cpus=workers.cpus,
            num_gpus=workers.gpus or None,
            memory=memory,
            max_task_retries=_RETRIES,
            udf_modifying_row_count=False,
        )
    out.context.execution_options.preserve_order = True
    out.context.raise_original_map_exception = True  # so that errors of this package are caught as such
    return out


@contextmanager
def plain_ray_errors() -> Generator[None]:
    """Raise an error of this package in a worker as itself, and another one of Ray in a line, without Ray's frames."""
    exceptions = ray_package("ray.exceptions")
    try:
        yield
    except exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, ForeshapeError):
            raise cause from None
        times = f"a worker died {_RETRIES + 1} times at the same rows: " if isinstance(error, exceptions.RayActorError) else ""
        raise ExecutionError(f"the run on Ray ended: {times}{first_line(error) if cause is None else cause_line(error)}") from error
