"""One call of `train`: it begins or resumes, runs the epochs, writes checkpoints; and the interface for its callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from foreshape.apps.training.callbacks import Callback
from foreshape.apps.training.checkpoint.checkpoint import Checkpoint
from foreshape.apps.training.checkpoint.random_state import random_state, set_global_state
from foreshape.apps.training.checkpoint.resume import OnChange, check_complete, place, refuse_unless_taken
from foreshape.apps.training.checkpoint.resume_check import Facts, compare, facts_of
from foreshape.apps.training.checkpoint.schema import Contents
from foreshape.apps.training.checkpoint.state import Position, State
from foreshape.apps.training.data.batches import Arrays, Batch, Data
from foreshape.apps.training.distributed.batch_share import Share
from foreshape.apps.training.distributed.distributed_session import DistributedSession
from foreshape.apps.training.distributed.stopwatch import Stopwatch
from foreshape.apps.training.figures import add_mean, fetches_of, figures_of, mean_of
from foreshape.apps.training.history import LEFT_OUT, RATE, History, check_row, number
from foreshape.apps.training.loss_not_finite import loss_not_finite
from foreshape.apps.training.program import initialise_missing, network_values, of_step, persistables
from foreshape.apps.training.progress import Quiet
from foreshape.apps.training.training_programs import TrainingProgram
from foreshape.apps.training.validation import Validation
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError, ForeshapeError
from foreshape.language.program import Op, Program, Variable
from foreshape.language.program.call_site import warn_user
from foreshape.metrics import Metric
from foreshape.optimizer.ownership import Owner
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.engine.finite import NotFinite
from foreshape.runtime.engine.prepared_run import repeated
from foreshape.transforms.passes.accumulate import COUNTER
from foreshape.transforms.passes.for_ranks import ShardedValue


class TrainingSession:
    """One call of `train`; a `foreshape.apps.training.callbacks.Run`."""

    def __init__(
        self, session: DistributedSession, training: TrainingProgram, metrics: Mapping[str, Variable | Metric], data: Data, checkpoint: Checkpoint | None,
        executor: Executor, scope: Scope, show: Quiet, seed: int, epochs: int, callbacks: Sequence[Callback],
    ) -> None:  # fmt: skip
        self.over, self.made, self.metrics, self.data, self.checkpoint = session, training, dict(metrics), data, checkpoint
        self.executor, self.scope, self.show, self.seed, self.epochs, self.callbacks = executor, scope, show, seed, epochs, list(callbacks)
        self.described, self.program = session.described, session.program
        self.rate = training.learning_rate.name if training.learning_rate is not None else None
        self.measured = figures_of(session.described, session.local_loss, metrics, executor, scope)
        self.fetch = [session.loss]
        rate = self.program.global_block.find(self.rate) if self.rate is not None else None
        self.rate_is_number = rate is not None and rate.persistable and not any(rate.name in op.output_names() for op in self.program.all_ops())
        if rate is not None and not self.rate_is_number:  # a schedule computes it in each step
            self.fetch.append(rate.name)
        if not session.alone:
            self.fetch.append(session.local_loss)
        self.loss_scale = LossScale.of(self.program)
        watched = [] if self.loss_scale is None else self.loss_scale.names
        self.fetch = list(dict.fromkeys([*self.fetch, *fetches_of(self.measured), *watched]))
        self.step_of = of_step(self.program, self.fetch)
        """The ops behind the figures and updates; other ops ask nothing of the data."""
        self.evaluation: Validation | None = None
        self.facts: Facts | None = None
        """The facts that the run depends on, if there are checkpoints."""
        self.stopwatch = Stopwatch(session.ranks)
        self.going_on: Iterator[Batch] | None = None
        """The rest of an epoch begun already: by the interrupted run, or to look at its first batch."""
        self.state: State | None = None
        self.stopped = self.restored = False
        self.averages: Mapping[str, Any] | None = None
        self.last_rate = math.nan
        self._waited = self._computed = 0.0
        self._each_batch = [c for c in self.callbacks if type(c).on_batch_end is not Callback.on_batch_end]

    # --- the interface for callbacks

    @property
    def _state(self) -> State:
        assert self.state is not None, "the run has begun"
        return self.state

    @property
    def history(self) -> History:
        return self._state.history

    @property
    def position(self) -> Position:
        return self._state.position

    @property
    def first(self) -> bool:
        return self.over.ranks.first

    @property
    def figures(self) -> list[str]:
        measured = [f"validation {n}" for figure in self.evaluation.figures for n in figure.names] if self.evaluation is not None else []
        added = [name for callback in self.callbacks for name in callback.adds]
        rate, left_out = [RATE] if self.rate is not None else [], [LEFT_OUT] if self.loss_scale else []
        return [*(n for figure in self.measured for n in figure.names), *measured, *added, *rate, *left_out, "seconds"]

    @property
    def rows_grow(self) -> bool:
        return any(not type(c).on_epoch_end.__module__.startswith("foreshape.apps.training.callbacks.") for c in self.callbacks)

    @property
    def divided(self) -> bool:
        variables = self.program.global_block.vars
        return any(name not in variables for name in network_values(self.described))

    @property
    def seconds(self) -> tuple[float, float]:
        return self._waited, self._computed

    @property
    def learning_rate(self) -> float:
        if self.rate is None:
            raise ExecutionError("the updates of this program have several learning rates, or none")
        return _number(self.scope.get(self.rate)) if self.rate_is_number else self.last_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        before = self.learning_rate
        if self.rate is None or not self.rate_is_number:
            raise ExecutionError("the learning rate follows a schedule, and cannot be set by a callback: give the optimizer a number")
        if value != before:
            with torch.inference_mode():
                self.scope.tensor(self.rate).fill_(value)

    def stop(self) -> None:
        self.stopped = True

    def say(self, text: str) -> None:
        if self.first:
            self.show.say(text)

    def network(self) -> dict[str, Any]:
        averages = self.averages or {}
        names = [n for n in network_values(self.described) if n in self.scope]
        return {n: averages[n] if n in averages else self.scope.tensor(n) for n in names}

    def restore(self, values: Mapping[str, Any]) -> None:
        self.scope.fill(dict(values))
        self.restored = True

    # --- the run

    def run(self, startup: Program, fresh: bool, check: bool, on_change: OnChange) -> History:
        """Begin, or go on from a checkpoint, and run to the last epoch."""
        executor = self.executor
        checked, executor.check = executor.check, executor.check or check
        align, executor.align_feeds = executor.align_feeds, True
        finite, executor.finite = executor.finite, (session.loss,) if (session := self.over).alone else (session.loss, session.local_loss)
        try:
            with self.show, executor.notes.anew(), turn(self.made, self.scope, self.over.parts):
                self.state = state = self._begin(startup, fresh, on_change)
                if self.loss_scale is not None:
                    self.loss_scale.begin(self.scope)
                while state.position.epoch <= self.epochs and not self.stopped:
                    if self._epoch(state):
                        for callback in self.callbacks:
                            callback.on_epoch_end(self)
                        check_row(state.history.epochs[-1])
                    self.stopped = self.over.decided(self.stopped)
                    if self.checkpoint is not None and (self.checkpoint.every is None or self.stopped or state.position.epoch > self.epochs):
                        self._save(state)
                for callback in self.callbacks:
                    callback.on_train_end(self)
                self.stopwatch.write()
                if not self.over.gather(self.scope) and self.over.ranks.first:
                    self.show.warn("the values that were divided over ranks stay so: together they are too much for this machine; a checkpoint has them")
            if self.loss_scale is not None and self.first and (words := self.loss_scale.words()) is not None:
                warn_user(words)
            return state.history
        finally:
            executor.check, executor.align_feeds, executor.finite = checked, align, finite

    def _begin(self, startup: Program, fresh: bool, on_change: OnChange) -> State:
        if self.checkpoint is not None:
            self.facts = facts_of(self.described, startup, self.executor, self.scope, self.data.facts())
            self.data.watched = True
            newest = self.checkpoint.newest(self.described, self.executor, self.show.warn)
            self.over.same_checkpoint(newest[1].state.history.steps if newest is not None else -1)
            if newest is not None:
                self.state = state = self._go_on(*newest, self.facts, startup, on_change)
                own_state(self.scope)
                self.over.begin(self.executor, self.scope, self.seed)
                self._resume_rate(state)
                self.over.resume_random(state, self.executor, self.seed + state.history.steps)
                self._begin_callbacks(newest[1])
                return state
        previous = random_state(self.executor)
        self._look_at_data()
        seeded = self.executor.random_state()  # a program with a seed starts the generator when its step is made, for the step
        self.executor.set_random_state(previous.executor)
        own_state(self.scope)
        if fresh:
            for variable in persistables(self.described):
                self.scope.remove(variable.name)
        self.over.begin_whole(self.executor, self.scope)
        self.over.divide(self.scope)
        initialise_missing(self.executor, self.program, self.over.startup, self.scope)
        if seeded.tobytes() != previous.executor.tobytes():
            self.executor.set_random_state(seeded)
        self.over.begin(self.executor, self.scope, self.seed)
        start = random_state(self.executor)
        # the first batch may have drawn numbers already: data are drawn again from where the generators were before
        self.state = state = State(Position(), History(), start, replace(previous, executor=start.executor))
        self._begin_callbacks(None)
        return state

    def _resume_rate(self, state: State) -> None:
        """Restore the rate of the last step: of this epoch, or of the last one."""
        if RATE in state.sums:
            self.last_rate = float(mean_of(state.sums, RATE)[0])
        elif not state.position.batch and state.history.epochs:
            self.last_rate = state.history.epochs[-1].get(RATE, math.nan)

    def _look_at_data(self) -> None:
        """Refuse data that do not fit the program, before any value is made or changed."""
        if not self.over.alone or self.epochs < 1:
            return
        batches = self.data.epoch(1)
        first = next(batches, None)
        self.going_on = batches if first is None else chain([first], batches)
        if first is not None:
            self.executor.refuse_feed(self.step_of, first, self.fetch)
        if self.evaluation is not None and isinstance(self.evaluation.data, Arrays):
            for batch in self.evaluation.data.epoch(1):
                self.executor.refuse_feed(self.evaluation.program, batch, self.evaluation.fetches)
                break

    def _keepers(self) -> list[Callback]:
        return [c for c in self.callbacks if c.kept]

    def _begin_callbacks(self, checkpoint: Contents | None) -> None:
        for callback in self.callbacks:
            callback.on_train_begin(self)
        keepers = self._keepers()
        if checkpoint is None or [k.kind for k in checkpoint.state.callbacks] != [type(c).__name__ for c in keepers]:
            return
        for callback, saved in zip(keepers, checkpoint.state.callbacks, strict=True):
            callback.take_kept(saved)
        for callback in keepers:
            callback.on_resume(self)

    def _go_on(self, path: str, checkpoint: Contents, facts: Facts, startup: Program, on_change: OnChange) -> State:
        """Continue from a checkpoint: everything is compared before any change, and a refusal puts the generators back."""
        executor, state, position = self.executor, checkpoint.state, checkpoint.state.position
        changes = compare(checkpoint.facts, facts, checkpoint.values)
        changes.compare_callbacks([k.kind for k in state.callbacks], [type(c).__name__ for c in self._keepers()])
        refuse_unless_taken(path, changes, on_change)
        previous = random_state(executor)
        try:
            set_global_state(state.epoch_random)  # the data of this epoch draw from here
            if position.batch and position.epoch <= self.epochs:
                self.going_on = self.data.epoch(position.epoch, position.batch)
                changes.compare_first(position.epoch, state.first, self.data.first)
                refuse_unless_taken(path, changes, on_change)
            step = executor.step(self.step_of, self.fetch)  # its persistables belong to the described program
            read = [v.name for v in step.emitted.lowered.persistables if v.variable is None or v.variable.value is None]
            check_complete(path, checkpoint, facts, self.over.undivided(read))
            place(checkpoint, facts, changes, executor, self.scope, self.over)
            if changes.new:
                initialise_missing(executor, self.program, self.over.startup, self.scope)
        except BaseException:
            executor.set_random_state(previous.executor)
            set_global_state(previous)
            raise
        executor.set_random_state(state.random.executor)  # a program with a seed starts the generator when it first comes
        place_words = f"epoch {position.epoch}, batch {position.batch}" if position.epoch <= self.epochs else f"all {self.epochs} epochs are done"
        self.show.say(f"resumed after step {state.history.steps} ({place_words})")
        if changes.new:
            self.show.say(f"taken from this run, not from the checkpoint:{changes.text()}")
        for words in changes.notes:
            self.show.warn(f"{words}: the last bits of the numbers can differ from here on")
        return state

    def _fed(self, batches: Iterator[Batch], step: int) -> Iterator[tuple[Share, Any]]:
        """Yield each batch's share, and its feed: on a GPU a copy begun before the step of the batch before.

        Only arrays are asked for a batch ahead: other data may draw random numbers, and a checkpoint has their state after its step.
        """
        session = self.over
        if not (session.alone and self.executor.copies_ahead and isinstance(self.data, Arrays)):
            for number, batch in enumerate(batches, step):
                share = session.take(batch, number)
                yield share, share
            return
        before: tuple[Share, Any] | None = None
        for batch in batches:
            share = session.take(batch, step)
            fed = share, self.executor.feed_ahead(self.step_of, self.fetch, share)
            if before is not None:
                yield before
            before = fed
        if before is not None:
            yield before

    def _epoch(self, state: State) -> bool:
        """Run the rest of an epoch, up to the beginning of the next one. Returns False if the run was stopped within it."""
        position, sums, losses = state.position, state.sums, state.history.losses
        going_on, self.going_on = self.going_on, None
        resumed = position.batch > 0
        if not resumed:
            if going_on is None:
                state.epoch_random = random_state(self.executor)
            sums.clear()
            state.seconds = 0.0
        for figure in self.measured:
            for name, zeros in figure.begin().items():
                sums[name] = sums.get(name, zeros)
        self.show.begin(position.epoch, self.epochs, self.data.batches, position.batch)
        ended = time.perf_counter()
        started = ended - state.seconds
        every = self.checkpoint.every if self.checkpoint is not None else None
        batches = going_on if going_on is not None else self.data.epoch(position.epoch, position.batch)
        if resumed:
            set_global_state(state.random)
        session, rate = self.over, None if self.rate_is_number else self.rate
        step = repeated(self.executor, self.step_of, self.fetch, self.scope)
        for share, feed in self._fed(batches, len(losses) + 1):
            began = time.perf_counter()
            self._waited += began - ended
            try:
                fetched = self.stopwatch.step(lambda feed=feed: step(feed))
                results = dict(zip(self.fetch, fetched, strict=True))
                loss = float(fetched[0].reshape(()))
            except NotFinite as stop:
                raise self._not_finite(stop.values[0], stop.values[-1], share, updated=False) from None
            except ForeshapeError as error:
                error.add_note(f"in {self._place()}")
                raise
            ended = time.perf_counter()
            self._computed += ended - began
            if not math.isfinite(loss):  # nothing could look at it before the updates
                raise self._not_finite(loss, float(results[session.local_loss].reshape(())), share, updated=True)
            losses.append(loss)
            position.batch += 1
            for figure in self.measured:
                figure.add(sums, results, share)
            if self.loss_scale is not None:
                left_out, updates = self.loss_scale.after(results)
                add_mean(sums, LEFT_OUT, left_out, updates if session.ranks.first else 0)
            if rate is not None:
                self.last_rate = _number(results[rate])
                sums.pop(RATE, None)
                add_mean(sums, RATE, self.last_rate, int(session.ranks.first))  # a resumed run may have no batch of this epoch left
            self.show.step(position.batch, loss, share.total)
            for callback in self._each_batch:
                callback.on_batch_end(self)
            if every is not None and len(losses) % every == 0:
                state.seconds = ended - started
                self._save(state)
            if self.stopped and session.alone:
                state.seconds = ended - started
                return False
        session.end_of_data()
        session.settle(self.scope)
        total = session.total(sums)
        row: dict[str, float] = {}
        for figure in self.measured:
            row |= figure.results(total)
        row |= self._evaluate()
        for callback in self.callbacks:
            row |= callback.figures_of(self)
        if self.rate is not None:
            row[RATE] = self.learning_rate if self.rate_is_number else float(mean_of(total, RATE)[0])
        if self.loss_scale is not None:
            row[LEFT_OUT] = float(total[LEFT_OUT][0]) if LEFT_OUT in total else 0.0
        row["seconds"] = time.perf_counter() - started
        state.history.epochs.append(row)
        self.show.end(position.epoch, self.epochs, row)
        position.epoch, position.batch = position.epoch + 1, 0
        sums.clear()
        state.seconds = 0.0
        return True

    def _place(self) -> str:
        return f"step {len(self.history.losses) + 1} (epoch {self.position.epoch}, batch {self.position.batch + 1})"

    def _not_finite(self, loss: float, local_loss: float, share: Share, updated: bool) -> ExecutionError:
        feeder = self.executor.step(self.step_of, self.fetch).feeder
        return loss_not_finite(loss, local_loss, self._place(), updated, share, feeder, self.over, self.executor.check, self.made.optimizer)

    def _evaluate(self) -> dict[str, float]:
        """Return the figures of the validation data; the random generators are left as they were."""
        if self.evaluation is None:
            return {}
        previous = random_state(self.executor)
        for callback in self.callbacks:
            callback.on_evaluation_begin(self)
        try:
            out = self.evaluation.measure(self.over)
        finally:
            for callback in reversed(self.callbacks):
                callback.on_evaluation_end(self)
        self.executor.set_random_state(previous.executor)
        set_global_state(previous)
        return out

    def _save(self, state: State) -> None:
        assert self.checkpoint is not None and self.facts is not None
        for callback in self.callbacks:
            callback.on_checkpoint(self)
        state.random = random_state(self.executor)
        state.first = self.data.first if state.position.batch else None
        state.callbacks = [c.to_kept() for c in self._keepers()]
        if not state.position.batch:
            state.epoch_random = state.random
        self.over.save(self.checkpoint, self.scope, state, self.facts, self.executor)


def _number(rate: Any) -> float:
    """Return a rate of one element with the digits of its element type: 0.01 in fp32 is 0.01, not 0.00999999977."""
    import numpy

    return float(str(numpy.asarray(rate).reshape(())))


# --- The updates left out by a run with a scaled loss: gradients that were not finite, read from the scale's own state.


class LossScale:
    """A watch on the scale of a program's loss, which counts the updates of this run.

    The program needs no op for it. After an update with finite gradients the count of good steps is above 0, or the scale has grown.
    """

    def __init__(self, program: Program, op: Op) -> None:
        self._scale, self._good = op.outputs["LossScaling"][0], op.outputs["OutGoodSteps"][0]
        gathered = op.block.idx != program.global_block.idx
        state = program.global_block.vars
        self._counter = next((n for n in state if gathered and n.startswith(COUNTER) and state[n].persistable), None)
        self._last = 0.0
        self.updates = self.left_out = 0
        """Counts since the run began, or was resumed."""

    @classmethod
    def of(cls, program: Program) -> LossScale | None:
        """Return the scale of a training program; None without a scaled loss."""
        names = {n for n, v in program.global_block.vars.items() if v.persistable}
        states = ((op, op.outputs.get("LossScaling"), op.outputs.get("OutGoodSteps")) for op in program.all_ops())
        op = next((op for op, scale, good in states if scale and good and names.issuperset(scale + good)), None)
        return None if op is None else cls(program, op)

    def begin(self, scope: Scope) -> None:
        """Look at the scale before the first step."""
        self._last = float(scope.tensor(self._scale).item())

    @property
    def names(self) -> list[str]:
        """Return the names fetched for it."""
        return [self._scale, self._good, *([] if self._counter is None else [self._counter])]

    def after(self, results: Mapping[str, Any]) -> tuple[int, int]:
        """Return the number of updates left out and of updates due in the last step: none within a group of batches. ``results``: what it fetched."""
        if self._counter is not None and int(results[self._counter].item()):
            return 0, 0
        scale, good = float(results[self._scale].item()), int(results[self._good].item())
        left_out = int(good == 0 and scale <= self._last)
        self._last = scale
        self.updates += 1
        self.left_out += left_out
        return left_out, 1

    def words(self) -> str | None:
        """Return the warning at the end of a run; None if few updates were left out, as while the scale falls to a fitting value."""
        if 2 * self.left_out <= self.updates:
            return None
        return (
            f"{self.left_out:,} of {self.updates:,} updates were left out, since their gradients were not finite in fp16: they changed no parameter. "
            f"The loss scale is {number(self._last)}. Make smaller what overflows, inputs or activations or the loss, or take precision='bf16', which "
            "has the range of fp32"
        )


# --- The owner of the optimizer state in a scope.
#
# Optimizers that `train` over one scope take turns: the state of the last one is put aside for its next turn.


@dataclass(slots=True)
class _Held:
    """The state of optimizers over one scope."""

    owners: dict[str, ReferenceType[Owner]] = field(default_factory=dict[str, "ReferenceType[Owner]"])
    """The owners of the state in the scope."""
    aside: WeakKeyDictionary[Owner, dict[str, Any]] = field(default_factory=WeakKeyDictionary[Owner, dict[str, Any]])
    """The state put aside, as long as its optimizer lives."""
    running: list[tuple[Owner, set[str]]] = field(default_factory=list[tuple[Owner, "set[str]"]])
    """The trainings in progress, each in a callback of the one before; and the names of their state."""

    def let(self, owner: Owner, names: set[str], scope: Scope) -> None:
        """Let a scope hold an owner's state of these names, and drop the state of dead optimizers."""
        values, version = self.aside.get(owner, {}), scope.version
        for name, reference in list(self.owners.items()):
            holder = reference()
            if holder is None or (holder is not owner and name in names):
                if holder is not None and name in scope:
                    self.aside.setdefault(holder, {})[name] = scope.tensor(name)
                scope.remove(name)
                del self.owners[name]
        for name in [n for n in values if n not in scope]:
            scope.store(name, values.pop(name))
            self.owners[name] = ref(owner)
        if scope.version != version:
            scope.turns.forget()


_HELD: WeakKeyDictionary[Scope, _Held] = WeakKeyDictionary()


@contextmanager
def turn(training: TrainingProgram, scope: Scope, parts: Iterable[ShardedValue] = ()) -> Generator[None]:
    """Let a scope hold the state of a training's optimizer while it runs: as it left it, but for its constants, which begin anew.

    State put there otherwise, such as loaded values, is continued. A training within a callback of another one restores the scope at its end.

    Args:
        parts: the division of values over ranks.
    """
    record = _HELD.setdefault(scope, _Held())
    state = set(training.state)
    names = {*state, *training.constants, *(p.name for p in parts if state.issuperset(q.name for q in p.pieces))}
    record.let(training.owner, names, scope)
    for name in training.constants:
        scope.remove(name)
    record.running.append((training.owner, names))
    try:
        yield
    finally:
        record.running.pop()
        if record.running:
            record.let(*record.running[-1], scope)


def own_state(scope: Scope) -> None:
    """Make the running training the owner of the state in a scope."""
    record = _HELD[scope]
    owner, names = record.running[-1]
    record.owners.update(dict.fromkeys(names, ref(owner)))
