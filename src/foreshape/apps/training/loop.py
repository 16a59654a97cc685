"""`train`: the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol, cast

from foreshape import metrics as measures
from foreshape import optimizer as optimizers
from foreshape.apps.training import callbacks as callback_room
from foreshape.apps.training import interrupted
from foreshape.apps.training.callbacks import Callback, Run
from foreshape.apps.training.checkpoint.checkpoint import Checkpoint, as_checkpoint
from foreshape.apps.training.checkpoint.resume import WORDS, OnChange
from foreshape.apps.training.checkpoint.resume_check import first_numbers
from foreshape.apps.training.data.augmented import Augment, Augmented
from foreshape.apps.training.data.batches import Batch, as_data, check_batches, inputs_of, split
from foreshape.apps.training.distributed.distributed_session import DistributedSession, ParallelStrategy
from foreshape.apps.training.distributed.rank_settings import compare_settings
from foreshape.apps.training.figures import fetched_of
from foreshape.apps.training.history import LEFT_OUT, RATE, History
from foreshape.apps.training.progress import Quiet, shown
from foreshape.apps.training.session import TrainingSession
from foreshape.apps.training.training_programs import make
from foreshape.apps.training.validation import Validation
from foreshape.core.hints import did_you_mean, tells_arguments
from foreshape.errors import ExecutionError, FeedError, SchemaError, whole
from foreshape.language.program import Program, Variable, startup_of
from foreshape.machine.communication.join import alone, join
from foreshape.metrics import Metric
from foreshape.optimizer import Optimizer
from foreshape.runtime.engine import Executor, Scope, default_scope
from foreshape.transforms.passes import for_test, prune

Source = Mapping[str, Any] | Iterable[Batch] | Callable[..., Iterable[Batch]]
PlainCallback = Callable[[int, dict[str, float]], Any]


class Cluster(Protocol):
    """Machines that train in place of this process."""

    def train(self, cost: Variable, data: Any, **settings: Any) -> History:
        """Train with the arguments of `train`."""
        ...


_OWN_FIGURES = ("loss", "seconds", RATE, LEFT_OUT)


@tells_arguments
def train(
    cost: Variable, data: Source, *, optimizer: Optimizer | None = None, epochs: int = 1, batch_size: int = 32,
    metrics: Mapping[str, Variable | Metric] | None = None, validation: Source | float | None = None, checkpoint: Checkpoint | str | None = None, seed: int = 0,
    shuffle: bool = True, callbacks: Sequence[Callback | PlainCallback] = (), progress: bool | Quiet | None = None, console: Any = None, check: bool = False,
    executor: Executor | None = None, scope: Scope | None = None, startup: Program | None = None, fresh: bool = False,
    on_change: OnChange = "refuse", ranks: ParallelStrategy | None = None, accumulate: int = 1, precision: str = "fp32",
    augment: Augment | None = None, drop_last: bool = False, on: Cluster | None = None,
) -> History:  # fmt: skip
    """Train the parameters behind a cost.

    The described program stays unchanged: gradients and updates are appended to a copy (`training_program`), unless the program has
    its updates already. The first batch is looked at, then the startup program makes the values missing in the scope, and the epochs run. Values in the
    scope are kept, so a second call continues the training. The optimizer's state continues with the same optimizer object, and begins anew with
    another. Equal arguments give equal parameters, bit for bit, on one machine with as many threads.

    Args:
        cost: one number, or a variable to be minimised in the mean (``[batch, 1]``).
        data: input -> array ``[examples, ...]`` (or `LoDTensor`), cut into batches; or an iterable of batches (dicts, input ->
            array), iterated once per epoch; or a function that returns such an iterable for each epoch, and may take the epoch's
            number (from 1). A resumed run asks for its epoch again and must get the same batches. Draw them from the number, or from the global
            generators of numpy, torch and Python, restored for it.
        optimizer: by default the optimizer of this program's last training, or ``SGD(0.01)``.
        batch_size: of arrays; the last batch of an epoch may be smaller. A network for batches of one size alone is refused before its first step, unless
            all have it.
        metrics: name -> variable, or one of `foreshape.metrics`. It is measured over all examples of each epoch, whatever the batches and ranks. So it
            is over the validation data, if the copy for inference has it. A mean or a sum over a batch becomes the same over all examples, and so does
            a function of them.
        validation: data as above, measured after each epoch on a copy of the program for inference. Or a share of the examples of ``data``, such as
            0.2, held out of training: drawn by ``seed``, or without ``shuffle`` the last ones.
        checkpoint: a folder, or a `Checkpoint`: a killed run started again continues from it as if never killed.
        seed: for the order of the examples, and for the executor made by default.
        shuffle: shuffle arrays for each epoch.
        callbacks: objects of `foreshape.callbacks`, or functions called after each epoch with its number (from 1) and its row of the history. A
            function ends the run by returning True.
        progress: a bar (True), nothing (False); by default a bar on a terminal and a line per epoch elsewhere.
        console: rich's console for the progress; the terminal by default.
        check: run op by op and stop at the op with the first non-finite value.
        executor, scope, startup: the executor, the scope of the values, and the program that makes them; the default ones if omitted.
        fresh: begin with new values, whatever the scope holds.
        on_change: the answer to a checkpoint with other data, learning rate or schedule, optimizer, or attributes of ops. Data are compared by size,
            order and a sample of their numbers; batches from a function by the first one of the interrupted epoch. "refuse" names the differences.
            "take" continues with this run's settings and the checkpoint's parameters. Optimizer state missing in the checkpoint begins anew, and an
            interrupted epoch continues after as many batches as were done. A checkpoint of other parameters is always refused.
        ranks: the division of the training over torchrun's processes, such as ``fs.data_parallel()``; without torchrun it is one rank alone.
            ``batch_size`` is the whole step's. Every rank is given the same data, and computes on its part of each batch; rank 0 shows progress, calls
            functions given as callbacks and writes the checkpoints, in a folder seen by all ranks.
        accumulate: the number of batches for one update, equal to one larger batch in less memory. Groups of batches do not end with epochs. An
            unfinished one continues in the next epoch, and after the last epoch waits for a resumed run.
        precision: "bf16" or "fp16" computes matrix products and convolutions in it; weights, state and everything else stay fp32. "fp16" scales the
            loss, and leaves out updates with non-finite gradients, counted by the history; a warning at the end says if most were.
        augment: ``function(batch, random)``, which returns the training batch for each batch (a dict, input -> array). ``random`` is a numpy
            ``Generator`` for this batch, from the seed, the epoch and the batch's number. A resumed run and every rank draw the same. It runs between
            steps, in the thread of the loop. Validation data are left alone. Layers for it in the network: `layer.random_flip` ...

        drop_last: leave out the last batch of each epoch, if it is smaller than the others. With ``shuffle`` its examples are others in each epoch.
        on: the machines to train on, such as ``fs.ray_cluster(workers=8)``; by default this process, and torchrun's others. The trained values come back.
            Data are arrays, a table or a set of Ray Data; callbacks are functions, called here.

    Returns:
        The loss of every step and the figures of every epoch, including those before a resumption; among these "learning rate", of the epoch's last
        step, unless the updates have several.

    Raises:
        FeedError: data that do not fit the program. ExecutionError: a non-finite loss, with its step; a checkpoint of another run. FormatError: a
            checkpoint cannot be written; all checkpoints are incomplete. SchemaError: a metric of another program; an invalid ``accumulate`` or
            ``precision``. RankError: another rank has died, does not come, or is at something else.
    """
    _check_given(cost, optimizer, metrics)
    if on is not None:
        return on.train(
            cost, data, optimizer=optimizer, epochs=epochs, batch_size=batch_size, metrics=metrics, validation=validation, checkpoint=checkpoint, seed=seed,
            shuffle=shuffle, callbacks=callbacks, progress=progress, console=console, check=check, executor=executor, scope=scope, startup=startup, fresh=fresh,
            on_change=on_change, ranks=ranks, accumulate=accumulate, precision=precision, augment=augment, drop_last=drop_last,
        )  # fmt: skip
    program = cost.block.program
    for name, metric in (metrics or {}).items():
        for variable in metric.inputs if isinstance(metric, Metric) else [metric]:
            if variable.block.program is not program:
                preposition = "" if variable is metric else "of "
                raise SchemaError(f"the metric {name!r} is {preposition}{variable.name}, a variable of another program than the cost {cost.name}")
        if name in _OWN_FIGURES:
            raise SchemaError(f"a metric cannot be called {name!r}: the history has a figure of that name")
    epochs, seed = whole("epochs", epochs, 0, ExecutionError), whole("seed", seed, 0, ExecutionError)
    if on_change not in WORDS:
        raise ExecutionError.one_of("on_change", WORDS, on_change)
    startup = startup if startup is not None else startup_of(program)
    hooks = [_as_callback(c) for c in (cast("Any", callbacks) if hasattr(callbacks, "__iter__") else (callbacks,))]
    for role, source in (("data", data), ("validation data", validation)):
        if isinstance(source, Iterator) and epochs > 1:
            raise FeedError(
                f"the {role} are an iterator, which gives its batches once, and {epochs} epochs are asked for; give a list, or a function "
                "that returns an iterator"
            )

    def needed() -> list[str]:
        names = [cost.name, *(n for m in (metrics or {}).values() for n in fetched_of(m))]
        return [v.name for v in inputs_of(prune(program, None, names), names)]

    selected = as_data(data, batch_size, shuffle, seed, program, needed=needed, drop_last=drop_last)
    share = validation if isinstance(validation, (int, float)) else None
    selected, measured = (selected, None) if share is None else split(selected, share, program)
    if validation is not None and share is None:
        measured = as_data(validation, batch_size, False, seed, program, needed=needed)
    if ranks is None:  # a rank has a part of each batch
        check_batches(selected, program, "drop_last=True leaves that out")
        if measured is not None:
            check_batches(measured, program, "the validation data must fill it")
    selected = selected if augment is None else Augmented(selected, augment, seed)
    folder, run = as_checkpoint(checkpoint), None
    scope = scope if scope is not None else default_scope()
    interrupted.begun()
    try:
        training = make(cost, optimizer, scope, startup, accumulate, precision, max(epochs, 1), selected.batches)
        with join(ranks.patience) if ranks is not None else alone() as joined:
            session = DistributedSession(joined, ranks, training.loss, training.startup, training.ungathered)
            session.check_figures((n, v) for n, m in (metrics or {}).items() for v in (m.inputs if isinstance(m, Metric) else [m]))
            run = TrainingSession(
                session, training, metrics or {}, selected, folder, executor if executor is not None else Executor(seed=seed),
                scope, shown(progress, console) if joined.first else Quiet(), seed, epochs, hooks,
            )  # fmt: skip
            if folder is not None and joined.first:
                session.guarded(lambda folder=folder: folder.place(0))  # a folder that cannot be written to is told before the first step
            if measured is not None:
                run.evaluation = Validation(for_test(training.program), measured, metrics or {}, session, run.executor, run.scope)
            if not session.alone:
                settings: dict[str, Any] = {
                    "seed": seed, "epochs": epochs, "checkpoint": "none" if folder is None else f"every {folder.every} steps",
                    "metrics": ", ".join(metrics or {}) or "none", "accumulate": accumulate, "precision": precision, "check": check, "fresh": fresh,
                    "validation": "none" if measured is None else "some", **{f"{n} of the data": fact for n, fact in selected.facts().items()},
                    **{f"{n} of the validation data": fact for n, fact in (measured.facts() if measured is not None else {}).items()},
                    **dict(first_numbers(training.program, training.startup, Scope())),
                }  # fmt: skip
                session.guarded(lambda settings=settings: compare_settings(joined, settings))
            history = session.guarded(lambda run=run: run.run(training.startup, fresh, check, on_change))
    except KeyboardInterrupt as interrupt:
        interrupted.tell(interrupt, run.state if run is not None else None, folder, hooks)
        raise
    interrupted.ended(run.state, folder, hooks)
    return history


def _check_given(cost: Any, optimizer: Any, metrics: Any) -> None:
    """Check the kinds of arguments. Raises `SchemaError` for others, such as other libraries' forms."""
    if not isinstance(cost, Variable):
        raise SchemaError(f"the cost is a variable, such as layer.mse_loss(guess, truth) gives; seen {cost!r:.60}")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        meant = _meant(optimizer, optimizers, "fs.optimizer", "0.001")
        raise SchemaError(f"optimizer is an object, such as fs.optimizer.Adam(0.001); seen {optimizer!r:.60}{meant}")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise SchemaError(
            f"metrics is a dict, name -> variable or a measure of fs.metrics, such as {{'accuracy': layer.accuracy(shares, label)}}; seen {metrics!r:.60}"
        )
    for name, metric in cast("Mapping[Any, Any]", metrics or {}).items():
        if not isinstance(metric, (Variable, Metric)):
            raise SchemaError(
                f"the metric {name!r} is a variable, such as layer.accuracy(shares, label) gives, or a measure of fs.metrics; seen {metric!r:.60}"
                f"{_meant(metric, measures, 'fs.metrics', 'scores, label')}"
            )


def _meant(argument: Any, room: ModuleType, prefix: str, arguments: str) -> str:
    """Return the object of a room for its name, for a class in place of an object, or for an object of another library's class."""
    name = argument if isinstance(argument, str) else argument.__name__ if isinstance(argument, type) else type(argument).__name__
    return did_you_mean(name, [n for n in dir(room) if n[0].isupper()], lambda n: f"{prefix}.{n}({arguments})")


class _Function(Callback):
    """A callback that calls a function with the number and the row of each epoch, on the rank that shows progress."""

    def __init__(self, function: PlainCallback) -> None:
        self.function = function

    def on_epoch_end(self, run: Run) -> None:
        if run.first and _is_true(self.function(len(run.history.epochs), run.history.epochs[-1])):
            run.stop()


def _is_true(answer: Any) -> bool:
    """Tell whether a function has returned True, be it numpy's or torch's; other results say nothing."""
    truth = str(getattr(answer, "dtype", "")).removeprefix("torch.") == "bool" and getattr(answer, "ndim", 1) == 0
    return answer is True or (truth and bool(answer))


def _as_callback(callback: Any) -> Callback:
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type) or not callable(callback):
        meant = _meant(callback, callback_room, "fs.callbacks", "...")
        raise ExecutionError(
            f"a callback is an object of foreshape.callbacks.Callback, or a function of an epoch's number and row; seen {callback!r:.80}{meant}"
        )
    return _Function(callback)
