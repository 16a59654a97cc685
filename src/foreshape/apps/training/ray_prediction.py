"""`predict` for a Ray data set: each worker has the network, opened once from its bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from foreshape.apps.training.data.batches import inputs_of
from foreshape.errors import SchemaError
from foreshape.interop import safetensors_file
from foreshape.interop.inference import values_of
from foreshape.interop.parameters import parameters_of
from foreshape.language.program import Program, Variable
from foreshape.language.wire import load_program, save_program
from foreshape.machine.communication.ray_session import ray_package
from foreshape.machine.process.this_run import MemoryLimit
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.feeding.ray_data import NO_NUMBERS, ROWS, RayDataset, RowColumns, Workers, mapped


class NetworkWorker:
    """The network of a worker, called with tables of its inputs. It is opened for the first one, for short errors.

    Args:
        predict: computes the results of a table in one process.
        program: the bytes of the pruned program.
        values: a reference to the bytes of a safetensors file in Ray's object store, with the parameters.
        outputs: name of a new column -> variable.
        columns: all of them.
        batch_size: the rows of a run.
        settings: of the executor.
    """

    def __init__(
        self,
        predict: Callable[..., Any],
        program: bytes,
        values: Any,
        outputs: Mapping[str, str],
        columns: RowColumns,
        batch_size: int,
        settings: Mapping[str, Any],
    ) -> None:
        self._batch_size = batch_size
        self._predict, self._program, self._values, self._outputs, self._columns, self._settings = predict, program, values, outputs, columns, settings

    @cached_property
    def _opened(self) -> tuple[dict[str, Variable], Executor, Scope]:
        program, scope = load_program(self._program), Scope()
        program.infer()
        scope.fill(safetensors_file.load_bytes(ray_package().get(self._values)))
        return {name: program.global_block.var(v) for name, v in self._outputs.items()}, Executor(**self._settings), scope

    def __call__(self, table: Any) -> Any:
        """Return a table with the results of its rows."""
        self._columns.check(dict(zip(table.schema.names, table.schema.types, strict=True)))
        outputs, executor, scope = self._opened
        fed = table.select(list(self._columns.needed))
        return self._columns.joined(table, self._predict(outputs, fed, batch_size=self._batch_size, executor=executor, scope=scope, progress=False))


def predicted(
    dataset: RayDataset,
    predict: Callable[..., Any],
    program: Program,
    outputs: Mapping[str, str],
    batch_size: int,
    executor: Executor | None,
    scope: Scope,
    workers: Workers,
    keep: Sequence[str] | None,
) -> Any:
    """Return the data set with the outputs of a network for its rows.

    Args:
        dataset: has a column for each input.
        predict: `foreshape.predict`.
        program: pruned for the outputs.
        outputs: name of a new column -> variable.
        batch_size: the rows of a run.
        executor: each worker's has its settings.
        scope: holds the parameters.
        workers: their number and size.
        keep: the columns beside the new ones; all by default.

    Raises:
        FeedError: a column is missing, or has no numbers. SchemaError: GPUs for an executor without one. MemoryPlanError: a batch passes the executor's
            ``memory_limit``. ExecutionError: a parameter without a value. And as `mapped`.
    """
    inputs = inputs_of(program, outputs.values())
    columns = RowColumns({v.name: f"numbers, {v.spec.text()}" for v in inputs}, NO_NUMBERS, keep, [*outputs])
    columns.check_dataset(dataset)
    settings = Executor("cuda" if workers.gpus else "cpu").settings if executor is None else executor.settings
    if (settings["device"] != "cpu") is not bool(workers.gpus):
        raise SchemaError.must("gpus", "above 0 for an executor on a GPU, and 0 for one on the processor", f"{workers.gpus:g} and {settings['device']!r}")
    if settings["threads"] is None:
        settings["threads"] = max(int(workers.cpus), 1)
    limit = executor.memory_limit if executor is not None and settings["memory_limit"] not in (None, "none") else None
    if limit is not None:
        sizes = {str(v.spec.dims[0]): batch_size for v in inputs if v.spec.dims}  # of ragged inputs the fewest rows: each run asks for its own
        bound = MemoryLimit(limit, "the executor's memory_limit, that of each worker", exact=True)
        Executor().step(program, [*outputs.values()]).refuse_past(bound, sizes)
    parameters = parameters_of(program)
    values_of(parameters, scope)  # all must have values
    head, tensors = safetensors_file.header({name: scope.tensor(name) for name in parameters if name in scope})
    values = ray_package().put(head + b"".join(bytes(piece) for tensor in tensors for piece in safetensors_file.pieces(tensor)))
    rows = batch_size * max(ROWS // batch_size, 1)
    return mapped(dataset, NetworkWorker, (predict, save_program(program), values, dict(outputs), columns, batch_size, settings), workers, rows, limit)
