"""`send`: gives a job to workers, shows their needs, and waits for the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from foreshape.apps.training import Checkpoint, History
from foreshape.apps.training.checkpoint.checkpoint import as_checkpoint
from foreshape.apps.training.program import persistables
from foreshape.apps.training.progress import figures
from foreshape.apps.training.training_programs import training_program
from foreshape.apps.workers.jobs import Files, Job, Keep, Model
from foreshape.apps.workers.prepare import load_inferred
from foreshape.apps.workers.reply import MOST_REPLY, MOST_RESULT, JobResult, Reply, described, replies_from, row
from foreshape.apps.workers.strategies import Strategy, with_layers
from foreshape.apps.workers.talk import GO, JOBS, STOP, WORKER_LIVES, Keys, alive, until, worker_at
from foreshape.apps.workers.worker import MOST_VALUES, too_much
from foreshape.compiler.memory import byte_text
from foreshape.core.checked_json import bounded_json
from foreshape.errors import ExecutionError, FormatError, MemoryPlanError, SchemaError, whole
from foreshape.interop import safetensors_file
from foreshape.language.program import Program, Role, Variable, startup_of
from foreshape.language.text.literal import escape
from foreshape.language.wire import save_program
from foreshape.machine.communication.parcel import put, take, word
from foreshape.machine.communication.rendezvous import Address, HeartbeatMonitor, Meeting, SignsOfLife, connect, listen
from foreshape.optimizer import Optimizer
from foreshape.runtime.engine import Scope
from foreshape.runtime.feeding.state_checks import compare_spec
from foreshape.transforms.passes import data_parallel

Paths = str | Sequence[str]
"""The path of a .npy file; for ragged rows a list: of this file, and a file of sequence lengths for each level."""


class JobSettings(TypedDict, total=False):
    """The arguments of `job` besides a network and its data."""

    optimizer: Optimizer | None
    loss: Variable | str | None
    metrics: Mapping[str, Variable] | None
    validation: Mapping[str, Paths] | None
    epochs: int
    batch_size: int
    seed: int
    shuffle: bool
    startup: Program | None
    ranks: Strategy | None
    values: str | None
    checkpoint: Checkpoint | str | None
    save: str | None
    model: tuple[str, Sequence[Variable | str], Sequence[Variable | str]] | None
    on_change: Literal["refuse", "take"]


def job(
    what: Variable | Program, data: Mapping[str, Paths], *, optimizer: Optimizer | None = None, loss: Variable | str | None = None,
    metrics: Mapping[str, Variable] | None = None, validation: Mapping[str, Paths] | None = None, epochs: int = 1, batch_size: int = 32, seed: int = 0,
    shuffle: bool = True, startup: Program | None = None, ranks: Strategy | None = None, values: str | None = None,
    checkpoint: Checkpoint | str | None = None, save: str | None = None,
    model: tuple[str, Sequence[Variable | str], Sequence[Variable | str]] | None = None, on_change: Literal["refuse", "take"] = "refuse",
) -> Job:  # fmt: skip
    """Return a job with everything for workers to train a network without its code.

    All paths are on the workers' machines, within their folder.

    Args:
        what: a cost, as for `train`; or a program with updates.
        data: input -> path of a .npy file ``[examples, ...]``, opened by every worker; for a ragged input the paths of its rows and of the
            sequence lengths of each level.
        optimizer, metrics, epochs, batch_size, seed, shuffle, startup, on_change: as for `train`.
        loss: of a program, if its ops do not tell it.
        validation: as ``data``.
        ranks: the division of the training; by default `data_parallel`.
        values: a safetensors file of values to begin with.
        checkpoint: a folder shared by all workers, or a `Checkpoint` in one.
        save: a safetensors file for the values of the trained network.
        model: (path without ending, inputs, results): the trained network is saved for use there, as by `save_inference_model`.

    Raises:
        SchemaError: a variable of another program, or data for a name of no input. DescriptionError: a program with mistakes.
    """
    epochs, batch_size, seed = whole("epochs", epochs, 0, SchemaError), whole("batch_size", batch_size, 1, SchemaError), whole("seed", seed, 0, SchemaError)
    startup = startup if startup is not None else startup_of(what.block.program if isinstance(what, Variable) else what)
    if isinstance(what, Variable):
        training = training_program(what, optimizer, startup=startup, epochs=max(epochs, 1))
        least, startup = training.loss, training.startup
    else:
        least = _loss_of(what, loss)
    program = least.block.program
    description = what.block.program if isinstance(what, Variable) else what
    names = {name: _name(description, metric) for name, metric in (metrics or {}).items()}
    main_bytes, startup_bytes = save_program(program), save_program(startup)
    read = load_inferred("main", main_bytes)  # the inference of the sent program, as by the workers
    feeds: dict[str, str] = {}
    for name in [*data, *(validation or {})]:
        variable = read.global_block.vars.get(name)
        if variable is None or variable.persistable or variable.op is not None:
            raise SchemaError(f"there are data for {name!r}, which is no input of the program")
        feeds[name] = variable.spec.text()
    from foreshape.core.version import VERSION

    keep = as_checkpoint(checkpoint)
    strategy = with_layers(ranks if ranks is not None else data_parallel(), program)
    sent = Job(
        main_bytes, startup_bytes, VERSION, (program.random_seed, startup.random_seed), described(read), least.name, feeds, _files(data),
        None if validation is None else _files(validation), names, strategy, epochs, batch_size, seed, shuffle,
        on_change, values, None if keep is None else Keep(keep.path, keep.every, keep.keep), save,
        None if model is None else Model(model[0], *(tuple(_name(description, v) for v in some) for some in model[1:])), False,
    )  # fmt: skip
    try:
        return Job.from_bytes(sent.to_bytes())  # a job refused by every worker is refused here
    except FormatError as error:
        raise SchemaError(f"no worker would take this: {error}") from None


class Sent:
    """A job accepted by workers. Prints as a table of each rank's needs."""

    def __init__(self, meeting: Meeting, keys: Keys, replies: list[Reply], show: Callable[[Any], None], epochs: int, scope: Scope | None, main: bytes) -> None:
        self.replies = replies
        """The answers of the ranks."""
        self.history: History | None = None
        """The losses and figures, when it is done."""
        self.files: list[str] = []
        """The files written by rank 0, besides checkpoints."""
        self._meeting, self._keys, self._show, self._epochs, self._scope, self._main = meeting, keys, show, epochs, scope, main
        self._watch = HeartbeatMonitor(meeting, WORKER_LIVES)
        self._life = SignsOfLife(meeting, keys.client_lives)
        self._shown = 0

    def wait(self) -> History:
        """Wait for the end of the training; shows each epoch as it ends.

        Raises:
            ExecutionError: it has failed, in the words of the workers; or they give no signs of life any more.
        """
        if self.history is None:
            result = until(self._look, float("inf"), self._check)
            assert result is not None
            values = take(self._meeting, self._keys.values, MOST_VALUES + (1 << 27)) if not result.error and self._scope is not None else None
            self._end()
            if result.error:
                raise ExecutionError(f"the workers at {self._meeting.where} have not done the job: {result.error}")
            if self._scope is not None:
                _fill(self._scope, values, self._main)
            self.history, self.files = result.history, result.files
        return self.history

    def stop(self) -> None:
        """Let the training end after its current epoch; `wait` returns the results so far."""
        self._meeting.set(self._keys.end, STOP)

    def __str__(self) -> str:
        lines = [_HEADS, *map(_cells, self.replies)]
        widths = [max(len(line[c]) for line in lines) for c in range(len(_HEADS))]
        return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def _look(self) -> JobResult | None:
        while (data := word(self._meeting, self._keys.epoch(self._shown + 1))) is not None:
            self._shown += 1
            self._show(f"epoch {self._shown}/{self._epochs}  {figures(row('an epoch', bounded_json.parse(data)))}")
        stored = take(self._meeting, self._keys.result, MOST_RESULT)
        return None if stored is None else JobResult.from_bytes(stored)

    def _check(self) -> None:
        alive(self._watch, f"the worker at {self._meeting.where}", self._meeting.patience)

    def _end(self) -> None:
        """Tell the workers that the client is done."""
        self._meeting.set(self._keys.taken, b"yes")
        self._life.__exit__()
        self._meeting.close()


def send(
    what: Job | Variable | Program, data: Mapping[str, Paths] | None = None, *, to: str | None = None, at: str | None = None,
    agree: Callable[[list[Reply]], bool] | None = None, wait: bool = True, scope: Scope | None = None, progress: bool = True, console: Any = None,
    patience: float = 25.0, **settings: Unpack[JobSettings],
) -> Sent:  # fmt: skip
    """Give a job to the workers of ``torchrun ... -m foreshape worker``, and wait for its end.

    They check the program, answer with each rank's needs, and train after agreement.

    Args:
        what, data, settings: a `Job`; or the arguments of `job`.
        to: the address of rank 0, ``host:port``.
        at: the address to wait at for rank 0, started with ``--connect``, instead.
        agree: a function of the ranks' replies that returns True to begin; by default the memory of each machine decides.
        wait: for the end; False gives the `Sent` as soon as the training has begun.
        scope: takes the values of the trained network; without it they are not sent back.
        progress: show the replies as a table, and a line for each epoch.
        console: rich's console for them; the terminal by default.
        patience: the seconds to wait for silent workers.

    Raises:
        ExecutionError: nobody is there, the workers refuse the job, or it fails; in words. MemoryPlanError: it does not fit.
        SchemaError, DescriptionError: as `job`.
    """
    if isinstance(what, Job):
        if data is not None or settings:
            raise SchemaError("a Job has its data and settings already")
        sent_job = what
    elif data is None:
        raise SchemaError("a job needs data: input -> path of a .npy file")
    else:
        sent_job = job(what, data, **settings)
    if (to is None) == (at is None):
        raise SchemaError("say where to send it: to= the address of the workers, or at= an address at which they come")
    sent_job = dataclasses.replace(sent_job, bring=scope is not None)
    show = _shower(progress, console)
    meeting = connect(Address.of(to), patience) if to is not None else listen(Address.of(at or ""), patience)
    workers = worker_at(meeting)
    number = meeting.add(JOBS, 1)
    if number > 1 and not workers.keeps:
        raise ExecutionError(f"the workers at {meeting.where} have a job already, and take no other (--keep)")
    keys = Keys(number)
    sent = Sent(meeting, keys, [], show, sent_job.epochs, scope, sent_job.main)
    sent._life.__enter__()  # pyright: ignore[reportPrivateUsage]
    try:
        put(meeting, keys.job, sent_job.to_bytes())
        sent.replies = _replies(sent, meeting, keys, workers.ranks)
        show(table(sent.replies))
        less = "" if agree is not None else too_much(sent.replies)
        if less or (agree is not None and not agree(sent.replies)):
            meeting.set(keys.word, STOP)
            sent._end()  # pyright: ignore[reportPrivateUsage]
            raise MemoryPlanError(less) if less else ExecutionError("the job was not agreed to")
        meeting.set(keys.word, GO)
        if wait:
            sent.wait()
    except BaseException:
        sent._life.__exit__()  # pyright: ignore[reportPrivateUsage]
        raise
    return sent


def _replies(sent: Sent, meeting: Meeting, keys: Keys, ranks: int) -> list[Reply]:
    """Return the answers of all ranks. Raises `ExecutionError` if they refuse the job."""

    def look() -> list[Reply] | None:
        data = take(meeting, keys.replies, ranks * MOST_REPLY)
        if data is None and meeting.check([keys.result]):
            sent.wait()  # it says why there are no replies
        return None if data is None else replies_from(data)

    replies = until(look, float("inf"), sent._check)  # pyright: ignore[reportPrivateUsage]
    if replies is None or [r.rank for r in replies] != list(range(ranks)):
        raise ExecutionError(f"{meeting.where}: {ranks} ranks are there, and others have answered")
    return replies


def table(replies: Sequence[Reply]) -> Any:
    """Return the answers of ranks, to be printed."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = Table(title=Text("what each rank needs", style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _HEADS:
        out.add_column(name, overflow="fold")
    for reply in replies:
        out.add_row(*[Text(escape(cell)) for cell in _cells(reply)])
    return out


_HEADS = ("rank", "machine", "examples", "largest share", "peak", "memory there")


def _cells(reply: Reply) -> tuple[str, ...]:
    peak = "not known" if reply.peak is None else byte_text(reply.peak)
    memory = "not known" if reply.memory is None else byte_text(reply.memory)
    return str(reply.rank), reply.host, f"{reply.examples:,}", f"{reply.share:,}", peak + reply.left_out, memory


def _shower(progress: bool, console: Any) -> Callable[[Any], None]:
    if not progress:
        return lambda message: None
    from rich.console import Console

    out = console if console is not None else Console()
    return lambda message: out.print(message, markup=False, highlight=False, soft_wrap=isinstance(message, str))


def _fill(scope: Scope, data: bytearray | None, main: bytes) -> None:
    """Put the returned values into a scope, each as described by the program."""
    if data is None:
        raise ExecutionError("the workers have sent no values back")
    tensors = safetensors_file.load_bytes(data)
    variables = {v.name: v for v in persistables(load_inferred("main", main))}
    for name, tensor in tensors.items():
        if name not in variables:
            raise ExecutionError(f"the workers have sent back {name[:100]!r}, which is no value of the program")
        compare_spec(name, variables[name].spec, tensor)
    scope.fill(tensors)


def _loss_of(program: Program, choice: Variable | str | None) -> Variable:
    """Return the loss minimised by a program."""
    if not any(op.role & Role.OPTIMIZE for op in program.all_ops()):
        raise SchemaError("the program has no updates: send its cost instead, or minimise it first")
    if choice is not None:
        return program.global_block.var(_name(program, choice))
    names = [n for op in program.global_block.ops if op.role & Role.LOSS and not op.role & Role.BACKWARD for n in op.output_names()]
    if len(names) != 1:
        raise SchemaError(f"the program does not say what its loss is ({', '.join(names[:5]) or 'no op is marked'}): give loss=")
    return program.global_block.var(names[0])


def _name(program: Program, variable: Variable | str) -> str:
    if isinstance(variable, Variable) and variable.block.program is not program:
        raise SchemaError(f"{variable.name} is a variable of another program")
    return program.global_block.var(variable if isinstance(variable, str) else variable.name).name


def _files(paths: Mapping[str, Paths]) -> dict[str, Files]:
    return {name: Files(entry) if isinstance(entry, str) else Files(entry[0], tuple(entry[1:])) for name, entry in paths.items()}
