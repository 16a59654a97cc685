"""The preparation of a rank for a job: inferred programs, opened data, its needs, and allowed paths."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foreshape.apps.training.data.batches import Arrays, rows_of
from foreshape.apps.training.distributed.batch_share import share_of
from foreshape.apps.training.distributed.distributed_session import fit_together
from foreshape.apps.training.program import persistables
from foreshape.apps.workers.jobs import MOST_BYTES, Files, Job
from foreshape.apps.workers.reply import Reply, alike_of, described
from foreshape.compiler.memory.records import unknown_words
from foreshape.core.folders import require_writable
from foreshape.errors import ExecutionError, FeedError, FormatError, MemoryPlanError, SchemaError
from foreshape.interop import load_safetensors
from foreshape.interop.npy_file import map_array
from foreshape.interop.safetensors_file import load_bytes
from foreshape.language.program import Program, Variable
from foreshape.language.wire import Limits, load_program
from foreshape.machine.process.machine_memory import found_limits
from foreshape.runtime.engine import Executor, LoDTensor, Scope
from foreshape.runtime.feeding.state_checks import compare_spec
from foreshape.transforms.passes import for_test
from foreshape.transforms.passes.data_parallelism import COUNTS


@dataclass(frozen=True, slots=True)
class Inputs:
    """Data beside a job without files: columns, or a sample of columns in batches."""

    data: Mapping[str, Any]
    validation: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Prepared:
    """A job ready for a rank to begin."""

    job: Job
    main: Program
    startup: Program
    loss: Variable
    metrics: dict[str, Variable]
    inputs: Inputs
    scope: Scope
    """On rank 0 with the values to begin with."""
    folder: str
    reply: Reply

    def path(self, relative: str) -> str:
        """Return a path of the job's, within the folder."""
        return path_within(self.folder, relative)


def prepare(job: Job, folder: str, rank: int, ranks: int, inputs: Inputs | None = None, values: Any = None, brings: bool = False) -> Prepared:
    """Check everything asked by a job of a rank. Nothing is changed, but missing folders for its files are made.

    Args:
        folder: nothing outside of it is read or written.
        inputs: the data, in place of the job's files.
        values: the bytes of a safetensors file to begin with, in place of the job's.
        brings: True if the trained values are sent back.

    Raises:
        ForeshapeError: the obstacles, in words.
    """
    from foreshape.core.version import VERSION

    if job.foreshape != VERSION:
        raise ExecutionError(f"the job is of foreshape {job.foreshape}, and this worker has {VERSION}")
    main, startup = (load_inferred(name, data) for name, data in (("main", job.main), ("startup", job.startup)))
    if described(main) != job.described:
        raise ExecutionError("what is inferred of the program here is not what was inferred where it was described: the versions are not the same")
    main.random_seed, startup.random_seed = job.random_seeds
    loss = _variable(main, "the loss", job.loss)
    metrics = {name: _variable(main, f"the metric {name!r}", source) for name, source in job.metrics.items()}
    for name, spec in job.feeds.items():
        text = _variable(main, "an input", name).spec.text()
        if text != spec:
            raise SchemaError(f"the input {name!r} is {text} here, and {spec} in the job")
    for path in (job.values, job.save_to, job.checkpoint and job.checkpoint.folder, *(job.model.files if job.model else ())):
        if path is not None:
            path_within(folder, path)
    if rank == 0:  # which writes the files after the training
        for path in (job.save_to, *(job.model.files if job.model else ())):
            if path is not None:
                require_writable(path_within(folder, path))
    if inputs is None:
        inputs = Inputs(_open(job.data, folder), None if job.validation is None else _open(job.validation, folder))
    arrays = Arrays(inputs.data, job.batch_size, job.shuffle, job.seed, main, drop_last=job.drop_last)
    if inputs.validation is not None:
        Arrays(inputs.validation, job.batch_size, False, job.seed, main)
    scope = Scope()
    if rank == 0 and values is not None:
        _begin_with(lambda scope: scope.fill(load_bytes(values)), main, scope)
    elif rank == 0 and job.values is not None:
        path = path_within(folder, job.values)
        _begin_with(lambda scope: load_safetensors(path, scope), main, scope)
    program, fetch = main, [job.loss, *(m.name for m in metrics.values())]
    shares = ranks
    if ranks > 1:
        divided = job.strategy.apply(main, loss, ranks, startup)
        program, fetch, shares = divided.program, [divided.loss, *fetch[1:], job.loss], ranks // divided.degree
        if (job.save_to is not None or job.model is not None or brings) and not fit_together(divided.parts, ranks):
            raise MemoryPlanError(
                "the values that are divided over ranks are together too much for this machine, so that they cannot be saved or sent "
                "back as one rank would: leave that out, and name a folder of checkpoints, which have them in parts"
            )
    share = min(-(-job.batch_size // shares), arrays.count)
    peak, left_out = _peak(program, fetch, main, arrays, share, ranks > 1)
    reply = Reply(rank, socket.gethostname(), alike_of(program, job.feeds, arrays.facts()), arrays.count, share, peak, left_out,
                  min((limit.size for limit in found_limits()), default=None))  # fmt: skip
    return Prepared(job, main, startup, loss, metrics, inputs, scope, folder, reply)


def path_within(folder: str, path: str) -> str:
    """Return a path within a folder, with its links followed. Raise `FormatError`: it leads out of it."""
    try:
        root = os.path.realpath(folder)
        out = os.path.realpath(os.path.join(root, path))
        inside = os.path.commonpath([root, out]) == root
    except (OSError, ValueError) as error:
        raise FormatError(f"{path!r} is no path: {error}") from None
    if not inside:
        raise FormatError(f"{path!r} leads out of {root}, the folder of this worker")
    return out


def network_values(program: Program) -> list[str]:
    """Return the names of the network's own values: without the optimizer's state."""
    used = {n for op in for_test(program).all_ops() for n in (*op.input_names(), *op.output_names())}
    return [v.name for v in persistables(program) if v.name in used]


def load_inferred(name: str, data: bytes) -> Program:
    """Load a program from bytes, inferred here. Raises `FormatError`, or `DescriptionError` for an inconsistent one."""
    try:
        program = load_program(data, Limits(bytes=MOST_BYTES))
    except FormatError as error:
        raise FormatError(f"the {name} program: {error}") from None
    unknown = program.infer()
    if unknown:
        raise SchemaError(f"the {name} program has operators that are not known here: {', '.join(sorted({op.type for op in unknown})[:10])}")
    return program


def _begin_with(fill: Callable[[Scope], object], program: Program, scope: Scope) -> None:
    """Let a scope be filled with values of the program; others are left out."""
    fill(scope)
    for name in scope.names():
        variable = program.global_block.vars.get(name)
        if variable is None or not variable.persistable:
            scope.remove(name)
        else:
            compare_spec(name, variable.spec, scope.tensor(name))


def _variable(program: Program, subject: str, name: str) -> Variable:
    variable = program.global_block.vars.get(name)
    if variable is None:
        raise SchemaError(f"{subject} is {name!r}, of which the program has no variable")
    return variable


def _open(files: Mapping[str, Files], folder: str) -> dict[str, Any]:
    """Open the arrays in files, left there until needed."""
    out: dict[str, Any] = {}
    for name, source in files.items():
        rows = map_array(path_within(folder, source.rows))
        if not source.lengths:
            out[name] = rows
            continue
        levels = [map_array(path_within(folder, path)) for path in source.lengths]
        for path, level in zip(source.lengths, levels, strict=True):
            if level.ndim != 1 or level.dtype.kind not in "iu":
                raise FeedError(f"{path}: sequence lengths are whole numbers in one dim; seen {level.dtype.name}{list(level.shape)}")
        try:
            out[name] = LoDTensor(rows, levels)
        except FeedError as error:
            raise FeedError(f"{name}: {error}") from None
    return out


def _peak(program: Program, fetch: list[str], main: Program, arrays: Arrays, share: int, divided: bool) -> tuple[int | None, str]:
    """Return the peak bytes of a step on the largest possible examples of a share, and the parts left out of the plan.

    Raises:
        FeedError: data that do not fit the program.
    """
    import numpy

    feed = dict(share_of({name: rows_of(a, _largest(arrays, share)) for name, a in arrays.arrays.items()}, main, 0, 1))
    if divided:
        feed[COUNTS] = numpy.ones(1, numpy.float32)
    step = Executor(seed=0, memory_limit="none").step(program, fetch)
    tensors, _ = step.feeder.tensors(feed)
    step.feeder.fit(tensors)
    symbols = {**step.feeder.check_shapes(tensors), **step.feeder.longest(tensors, step.plan.symbols)}
    try:
        sizes = {name: symbols[name] for name in step.plan.symbols}
        return step.plan.peak(**sizes), unknown_words(step.plan.unknown(**sizes))
    except KeyError as error:
        return None, f" depends on {error.args[0]}, which only the run tells"
    except MemoryPlanError as error:
        return None, f": {error}"


def _largest(arrays: Arrays, share: int) -> Any:
    """Return the examples with the most rows, as many as a share has."""
    import numpy

    rows = numpy.zeros(arrays.count, numpy.int64)
    for array in arrays.arrays.values():
        if isinstance(array, LoDTensor):
            rows += _rows_of_each(array)
    return numpy.sort(numpy.argsort(-rows, kind="stable")[:share])


def _rows_of_each(ragged: LoDTensor) -> Any:
    """Return the number of rows in each example of a ragged tensor."""
    import numpy

    levels = [numpy.asarray(level, numpy.int64) for level in ragged.sequence_lengths]
    rows = levels[-1]
    for level in reversed(levels[:-1]):
        ends = numpy.concatenate([[0], numpy.cumsum(level)])
        sums = numpy.concatenate([[0], numpy.cumsum(rows)])
        rows = sums[ends[1:]] - sums[ends[:-1]]
    return rows
