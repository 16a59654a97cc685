"""`train`: the training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from foreshape.engine import Executor, Scope, default_scope
from foreshape.errors import ExecutionError, SchemaError
from foreshape.optimizer import Optimizer
from foreshape.passes import for_test
from foreshape.program import Program, Variable, default_startup_program
from foreshape.ranks import alone, join
from foreshape.training.changes import Facts, compare, facts_of
from foreshape.training.checkpoint import Checkpoint, as_checkpoint
from foreshape.training.data import Batch, Data, as_data
from foreshape.training.history import History
from foreshape.training.over_ranks import OverRanks, Strategy
from foreshape.training.program import initialise_missing, minimise_once, scalar_loss
from foreshape.training.progress import Quiet, shown
from foreshape.training.random_state import random_state, set_global_state
from foreshape.training.resume import WORDS, OnChange, check_complete, place, refuse_unless_taken
from foreshape.training.schema import Contents
from foreshape.training.state import Position, State, Sums
from foreshape.training.stopwatch import Stopwatch

Source = Mapping[str, Any] | Iterable[Batch] | Callable[..., Iterable[Batch]]
Callback = Callable[[int, dict[str, float]], Any]

_OWN_FIGURES = ("loss", "seconds")


def train(
    cost: Variable, data: Source, *, optimizer: Optimizer | None = None, epochs: int = 1, batch_size: int = 32,
    metrics: Mapping[str, Variable] | None = None, validation: Source | None = None, checkpoint: Checkpoint | str | None = None, seed: int = 0,
    shuffle: bool = True, callbacks: Sequence[Callback] = (), progress: bool | None = None, console: Any = None, check: bool = False,
    executor: Executor | None = None, scope: Scope | None = None, startup: Program | None = None, on_change: OnChange = "refuse",
    ranks: Strategy | None = None,
) -> History:  # fmt: skip
    """Train the parameters that a cost depends on.

    Appends the gradients and updates unless the program has them, makes the values that the scope lacks by the startup program
    (what the scope holds is kept), and runs the epochs. Equal arguments give equal parameters, bit for bit, on one
    machine with as many threads.

    Args:
        cost: one number, or anything whose mean is to be minimised (``[batch, 1]``).
        data: input -> array ``[examples, ...]`` (or `LoDTensor`), cut into batches; or an iterable of batches (dicts, input ->
            array), iterated once per epoch; or a function that returns such an iterable for each epoch, and may take the epoch's
            number (from 1). A resumed run asks for its epoch again, so that the batches must be the same ones: drawn from the
            number, or from the global generators of numpy, torch and Python, which are put back.
        optimizer: ``SGD(0.01)`` where it is left out.
        batch_size: of arrays; the last batch of an epoch may be smaller.
        metrics: name -> variable; averaged over the examples of each epoch, and over the validation data those that the copy for
            inference has.
        validation: data as above, measured after each epoch on a copy of the program for inference.
        checkpoint: a folder, or a `Checkpoint`: what a killed run needs to go on, when it is started again, as if never killed.
        seed: of the order of the examples, and of the executor that is made where none is given.
        shuffle: whether arrays are shuffled for each epoch.
        callbacks: called after each epoch with its number (from 1) and its row of the history; True ends the run.
        progress: a bar (True), nothing (False); where it is left out a bar on a terminal and a line per epoch elsewhere.
        check: run op by op and stop at the op that makes the first value that is not finite.
        executor, scope, startup: what runs, where the values are, and what makes them; the default ones where left out.
        on_change: what to do where the checkpoint is of other data (of their size, their order or their numbers, of which a sample is
            compared; of batches from a function the first one of the epoch that was interrupted), of another learning rate or schedule,
            of another optimizer, or of ops with other attributes. "refuse" names what differs. "take" goes on with what this run has:
            the parameters are the checkpoint's, state of the optimizer that it has not begins anew, and an epoch that was interrupted goes on
            after as many batches as were done. A checkpoint of other parameters is refused in any case.
        ranks: how the training is divided over the processes that torchrun started, such as ``fs.data_parallel()``; started without
            torchrun it is one rank alone. ``batch_size`` is the whole step's. Every rank is given the same data, and computes on its part
            of each batch; rank 0 shows progress, calls the callbacks and writes the checkpoints, in a folder that all ranks see.

    Returns:
        The loss of every step and the figures of every epoch, those before a resumption included.

    Raises:
        FeedError: data that the program does not take. ExecutionError: a loss that is not finite, with its step; a checkpoint
        of another run. FormatError: a checkpoint that cannot be written; none of those that there are is whole. SchemaError: a metric of
        another program. RankError: another rank has died, does not come, or is at something else.
    """
    program = cost.block.program
    for name, metric in (metrics or {}).items():
        if metric.block.program is not program:
            raise SchemaError(f"the metric {name!r} is {metric.name}, a variable of another program than the cost {cost.name}")
        if name in _OWN_FIGURES:
            raise SchemaError(f"a metric cannot be called {name!r}: the history has a figure of that name")
    if epochs < 0:
        raise ExecutionError(f"epochs must be at least 0; seen {epochs}")
    if on_change not in WORDS:
        raise ExecutionError(f"on_change must be {' or '.join(map(repr, WORDS))}; seen {on_change!r}")
    startup = startup if startup is not None else default_startup_program()
    loss = scalar_loss(cost, startup)
    minimise_once(loss, optimizer, startup)
    with join(ranks.patience) if ranks is not None else alone() as joined:
        over = OverRanks(joined, ranks, loss, startup)
        over.check_figures(metrics or {})
        run = _Run(
            over, metrics or {}, as_data(data, batch_size, shuffle, seed, program), as_checkpoint(checkpoint),
            executor if executor is not None else Executor(seed=seed), scope if scope is not None else default_scope(),
            shown(progress, console) if joined.first else Quiet(), seed,
        )  # fmt: skip
        if validation is not None:
            evaluated = over.evaluated(for_test(program))
            evaluated.random_seed = 0  # whether an evaluation is the first of its process must make no difference
            run.evaluation = (evaluated, as_data(validation, batch_size, False, seed, program))
        return over.guarded(lambda: run.run(epochs, startup, callbacks, check, on_change))


class _Run:
    """One call of `train`."""

    def __init__(
        self, over: OverRanks, metrics: Mapping[str, Variable], data: Data, checkpoint: Checkpoint | None, executor: Executor, scope: Scope,
        show: Quiet, seed: int,
    ) -> None:  # fmt: skip
        self.over, self.metrics, self.data, self.checkpoint = over, dict(metrics), data, checkpoint
        self.executor, self.scope, self.show, self.seed = executor, scope, show, seed
        self.described, self.program = over.described, over.program
        self.fetch = [over.loss, *(m.name for m in metrics.values())]
        if not over.alone:
            self.fetch.append(over.local_loss)
        self.evaluation: tuple[Program, Data] | None = None
        self.facts: Facts | None = None
        """What the run depends on; asked for where there are checkpoints."""
        self.stopwatch = Stopwatch(over.ranks)
        self.going_on: Iterator[Batch] | None = None
        """The rest of the epoch that was interrupted."""

    def run(self, epochs: int, startup: Program, callbacks: Sequence[Callback], check: bool, on_change: OnChange) -> History:
        """Begin, or go on from a checkpoint, and run to the last epoch."""
        executor = self.executor
        checked, executor.check = executor.check, executor.check or check
        align, executor.align_feeds = executor.align_feeds, True
        try:
            with self.show:
                state = self._begin(startup, epochs, on_change)
                stopped = False
                while state.position.epoch <= epochs and not stopped:
                    row = self._epoch(state, epochs)
                    for callback in callbacks if self.over.ranks.first else ():
                        stopped |= callback(len(state.history.epochs), row) is True
                    stopped = self.over.decided(stopped)
                    if self.checkpoint is not None and (self.checkpoint.every is None or stopped or state.position.epoch > epochs):
                        self._save(state)
                self.stopwatch.write()
                if not self.over.gather(self.scope) and self.over.ranks.first:
                    self.show.warn("the values that were divided over ranks stay so: together they are too much for this machine; a checkpoint has them")
                return state.history
        finally:
            executor.check, executor.align_feeds = checked, align

    def _begin(self, startup: Program, epochs: int, on_change: OnChange) -> State:
        if self.checkpoint is not None:
            self.facts = facts_of(self.described, startup, self.executor, self.scope, self.data.facts())
            self.data.watched = True
            found = self.checkpoint.newest(self.described, self.executor, self.show.warn)
            self.over.same_checkpoint(found[1].state.history.steps if found is not None else -1)
            if found is not None:
                state = self._go_on(*found, self.facts, startup, epochs, on_change)
                self.over.begin(self.executor, self.scope, self.seed)
                self.over.resume_random(state, self.executor, self.seed + state.history.steps)
                return state
        self.over.begin_whole(self.executor, self.scope)
        self.over.divide(self.scope)
        initialise_missing(self.executor, self.program, self.over.startup, self.scope)
        self.over.begin(self.executor, self.scope, self.seed)
        now = random_state(self.executor)
        return State(Position(), History(), now, now)

    def _go_on(self, path: str, found: Contents, now: Facts, startup: Program, epochs: int, on_change: OnChange) -> State:
        """From a checkpoint: everything is compared before anything is changed, and the generators are put back where it is refused."""
        executor, state, position = self.executor, found.state, found.state.position
        changes = compare(found.facts, now, found.values)
        refuse_unless_taken(path, changes, on_change)
        before = random_state(executor)
        try:
            set_global_state(state.epoch_random)  # the data of this epoch draw from here
            if position.batch and position.epoch <= epochs:
                self.going_on = self.data.epoch(position.epoch, position.batch)
                changes.compare_first(position.epoch, state.first, self.data.first)
                refuse_unless_taken(path, changes, on_change)
            step = executor.step(self.program, self.fetch)  # its persistables are those of the described program
            read = [v.name for v in step.emitted.lowered.persistables if v.variable is None or v.variable.value is None]
            check_complete(path, found, now, self.over.undivided(read))
            place(found, now, changes, executor, self.scope, self.over)
            if changes.new:
                initialise_missing(executor, self.program, self.over.startup, self.scope)
        except BaseException:
            executor.set_random_state(before.executor)
            set_global_state(before)
            raise
        executor.set_random_state(state.random.executor)  # a program that has a seed starts the generator when it first comes
        self.show.say(f"resumed after step {state.history.steps} (epoch {position.epoch}, batch {position.batch})")
        if changes.new:
            self.show.say(f"taken from this run, not from the checkpoint:{changes.text()}")
        for words in changes.notes:
            self.show.warn(f"{words}: the last bits of the numbers can differ from here on")
        return state

    def _epoch(self, state: State, epochs: int) -> dict[str, float]:
        """The rest of an epoch; leaves the position at the beginning of the next one."""
        position, sums, losses = state.position, state.sums, state.history.losses
        going_on, self.going_on = self.going_on, None
        resumed = position.batch > 0
        if not resumed:
            state.epoch_random = random_state(self.executor)
            sums.clear()
            state.seconds = 0.0
        names = list(self.metrics)
        self.show.begin(position.epoch, epochs, self.data.batches, position.batch)
        started = time.perf_counter() - state.seconds
        every = self.checkpoint.every if self.checkpoint is not None else None
        batches = going_on if going_on is not None else self.data.epoch(position.epoch, position.batch)
        if resumed:
            set_global_state(state.random)
        over = self.over
        for batch in batches:
            share = over.take(batch, len(losses) + 1)
            fetched = self.stopwatch.step(lambda share=share: self.executor.run(self.program, share, self.fetch, self.scope))
            loss = float(fetched[0].reshape(()))
            if not math.isfinite(loss):
                hint = "" if self.executor.check else "; check=True finds the op that made it"
                where = over.not_finite(float(fetched[-1].reshape(())))
                at = f"step {len(losses) + 1} (epoch {position.epoch}, batch {position.batch + 1})"
                raise ExecutionError(f"the loss {over.local_loss} is {loss}{where} at {at}{hint}")
            losses.append(loss)
            position.batch += 1
            _add(sums, "loss", loss, share.total if over.ranks.first else 0)
            for name, value in zip(names, fetched[1:], strict=False):
                _add(sums, name, _mean(value), share.own)
            self.show.step(position.batch, loss, share.total)
            if every is not None and len(losses) % every == 0:
                state.seconds = time.perf_counter() - started
                self._save(state)
        over.end_of_data()
        over.settle(self.scope)
        total = over.total(sums)
        row = {name: _mean_of(total, name) for name in ("loss", *names)}
        row |= self._evaluate()
        row["seconds"] = time.perf_counter() - started
        state.history.epochs.append(row)
        self.show.end(position.epoch, epochs, row)
        position.epoch, position.batch = position.epoch + 1, 0
        sums.clear()
        state.seconds = 0.0
        return row

    def _evaluate(self) -> dict[str, float]:
        """The figures of the validation data; the random generators are left as they were."""
        if self.evaluation is None:
            return {}
        program, data = self.evaluation
        before = random_state(self.executor)
        names = {"loss": self.over.local_loss} | {n: m.name for n, m in self.metrics.items() if m.name in program.global_block.vars}
        sums: Sums = {}
        for batch in data.epoch(1):
            share = self.over.part(batch)
            for name, value in zip(names, self.executor.run(program, share, list(names.values()), self.scope), strict=True):
                _add(sums, f"validation {name}", _mean(value), share.own)
        sums = self.over.total({f"validation {name}": sums.get(f"validation {name}", (0.0, 0)) for name in names})
        self.executor.set_random_state(before.executor)
        set_global_state(before)
        return {name: _mean_of(sums, name) for name in sums}

    def _save(self, state: State) -> None:
        assert self.checkpoint is not None and self.facts is not None
        state.random = random_state(self.executor)
        state.first = self.data.first if state.position.batch else None
        if not state.position.batch:
            state.epoch_random = state.random
        self.over.save(self.checkpoint, self.scope, state, self.facts, self.executor)


def _mean(value: Any) -> float:
    """The mean of a fetched value, whatever its shape."""
    data = getattr(value, "data", value) if hasattr(value, "sequence_lengths") else value
    return float(data.mean()) if data.size else 0.0


def _add(sums: Sums, name: str, value: float, count: int) -> None:
    total, counted = sums.get(name, (0.0, 0))
    sums[name] = (total + value * count, counted + count)


def _mean_of(sums: Sums, name: str) -> float:
    """The mean of a figure over its examples; NaN where there were none since it is asked for."""
    total, count = sums.get(name, (math.nan, 0))
    return total / max(count, 1)
