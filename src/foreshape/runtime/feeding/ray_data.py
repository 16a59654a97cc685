"""Ray's data sets: rows computed on by workers on many machines, each with a network opened once.

Ray Data places the workers, reads the rows, and gives the rows of a dead worker to another one. A block's results appear once all of it is computed, so
no row is lost or doubled.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from foreshape import errors
from foreshape.compiler.memory.byte_counts import byte_text
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ExecutionError, FeedError, ForeshapeError, MemoryPlanError, SchemaError
from foreshape.machine.communication.ray_session import ray_package

if TYPE_CHECKING:
    from numpy import ndarray

ROWS = 1024
"""The rows that a worker takes at a time: so many, and their results, are in its memory."""
_TIMES = ("date", "time", "duration", "binary", "large_binary", "struct", "map")
NO_NUMBERS = ("string", "large_string", "str", "dictionary", *_TIMES)
"""The beginnings of the names of types that are no numbers, in Arrow and in pandas."""
NO_TEXTS = ("int", "uint", "float", "double", "half", "bool", "decimal", "list", "large_list", "fixed_size_list", "extension", "ArrowTensor", *_TIMES)
"""The same of types that are no texts."""


class RayDataset(Protocol):
    """A data set of Ray, as far as it is used here."""

    def map_batches(self, fn: Any, **settings: Any) -> Any: ...
    def schema(self, fetch_if_missing: bool = ...) -> Any: ...


class Workers(Protocol):
    """Workers of a cluster: their number, as many as there is room for by default, and the processors and GPUs of each."""

    @property
    def workers(self) -> int | None: ...
    @property
    def cpus(self) -> float: ...
    @property
    def gpus(self) -> float: ...


class RowWorkers(NamedTuple):
    """`Workers`, as a value."""

    workers: int | None = None
    cpus: float = 1
    gpus: float = 0


def is_ray_dataset(source: Any) -> bool:
    """Return True for a data set of Ray. Ray is not imported for it."""
    return type(source).__module__.partition(".")[0] == "ray" and hasattr(source, "map_batches")


def require_no_workers(function: str, **settings: object) -> None:
    """Raise `SchemaError` for a setting (name -> value) of data sets of Ray that a ``function`` has for other data."""
    for name, value in settings.items():
        if value is not None:
            raise SchemaError(f"{function}: {name} is for a data set of Ray, and the data are none; seen {name}={value!r:.60}")


class RowColumns(NamedTuple):
    """The columns of rows before and after the workers.

    Attributes:
        needed: column -> the required contents, in words.
        refused: the beginnings of the names of types that it cannot have.
        keep: the columns that stay beside the results; all by default.
        results: the new columns.
    """

    needed: Mapping[str, str]
    refused: tuple[str, ...]
    keep: Sequence[str] | None
    results: Sequence[str]

    def check_dataset(self, dataset: RayDataset) -> None:
        """Check the columns, as far as they are known before rows are read. Raises `FeedError`."""
        try:
            schema = dataset.schema(fetch_if_missing=False)
        except Exception as error:  # of pyarrow or pandas, by the kind of the blocks
            raise FeedError(f"the blocks of the data set have no schema in common: {str(error)[:300]}") from None
        if schema is not None:
            self.check(dict(zip(schema.names, schema.types, strict=True)))

    def check(self, types: Mapping[str, Any]) -> None:
        """Check the columns. Raises `FeedError` for a missing one, one of another type, and one with the name of a result."""
        listing = ", ".join([*types][:8]) + (f" and {len(types) - 8} more" if len(types) > 8 else "")
        for name in [*self.needed, *(self.keep or ())]:
            if name not in types:
                raise FeedError(f"the data set has no column {name!r}; it has {listing or 'none'}").told(slot=name, seen=listing)
        for name, required in self.needed.items():
            if str(types[name]).startswith(self.refused):
                raise FeedError.must(f"the column {name!r}", required, types[name], "it has the type")
        for name in self.results:
            if name in (types if self.keep is None else self.keep):
                raise FeedError(f"the data set has a column {name!r}, so no result can have this name: keep=[...] leaves it out").told(slot=name)

    def joined(self, table: Any, results: Mapping[str, ndarray[Any, Any] | LoDTensor]) -> Any:
        """Return an Arrow table with its kept columns and results: numbers, tensors with a row for each row, or lists where they are ragged."""
        import pyarrow  # pyright: ignore[reportMissingTypeStubs]

        arrow: Any = pyarrow

        def column(values: Any) -> Any:
            if not isinstance(values, LoDTensor):
                return arrow.array(values) if values.ndim < 2 else arrow.FixedShapeTensorArray.from_numpy_ndarray(values)
            out = arrow.array(values.data.reshape(-1))
            for size in reversed(values.data.shape[1:]):  # a list of tensors would lose their dims
                out = arrow.FixedSizeListArray.from_arrays(out, size)
            for offsets in reversed(values.offsets()):
                out = arrow.LargeListArray.from_arrays(arrow.array(offsets, arrow.int64()), out)
            return out

        kept = table if self.keep is None else table.select(list(self.keep))
        for name, values in results.items():
            kept = kept.append_column(name, column(values))
        return kept


def mapped(dataset: RayDataset, worker: type, arguments: Sequence[Any], workers: Workers, rows: int = ROWS, memory: int | None = None) -> Any:
    """Return the data set of what workers make of rows, in the order of the rows. Nothing is computed before somebody reads it.

    Args:
        dataset: the rows.
        worker: a class; its objects are called with Arrow tables, and return one with as many rows.
        arguments: of its constructor.
        workers: their number and size.
        rows: the most rows of a table.
        memory: the bytes that the cluster keeps free for each worker.

    Raises:
        MemoryPlanError, ExecutionError: no machine of the cluster has room for one worker, so Ray would wait for ever.
    """
    need = {"CPU": workers.cpus, "GPU": workers.gpus, "memory": memory or 0}
    nodes: list[Mapping[str, float]] = [node["Resources"] for node in ray_package().nodes() if node["Alive"]]
    room = sum(min(int(node.get(name, 0) // amount) for name, amount in need.items() if amount) for node in nodes)
    if not room:
        most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in need}
        if most["memory"] < need["memory"]:
            raise MemoryPlanError(f"a worker takes {byte_text(memory or 0)}, and no machine of the cluster has more than {byte_text(int(most['memory']))}")
        asked, seen = (f"{amounts['CPU']:g} processors and {amounts['GPU']:g} GPUs" for amounts in (need, most))
        raise ExecutionError(f"no machine of the cluster has room for a worker of {asked}; the largest has {seen}")
    pool = ray_package("ray.data").ActorPoolStrategy(size=workers.workers or room)
    out = dataset.map_batches(
        worker,
        fn_constructor_args=arguments,
        batch_size=rows,
        batch_format="pyarrow",
        compute=pool,
        num_cpus=workers.cpus,
        num_gpus=workers.gpus or None,
        memory=memory,
        udf_modifying_row_count=False,
    )
    out.context.execution_options.preserve_order = True
    return out


_IN_WORKER = re.compile(r"^foreshape\.errors\.(\w+): (.*?)(?=\n\n|\nFailed to apply|\Z)", re.M | re.S)


@contextmanager
def worker_errors() -> Generator[None]:
    """Raise an error of this package in a worker as itself, and another one of Ray in a line, without Ray's frames."""
    try:
        yield
    except ray_package("ray.exceptions").RayError as error:
        text = str(error)
        if (own := _IN_WORKER.search(text)) is not None:
            kind: type[ForeshapeError] = getattr(errors, own[1], ExecutionError)
            raise kind(own[2]) from None
        raise ExecutionError(f"the run on Ray ended: {text.strip().splitlines()[-1][:500]}") from error
