"""`Executor`: runs a program. A program, its fetches and the kinds fed become one compiled step, kept for the next time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import index
from threading import Lock, RLock
from time import perf_counter
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet, ref

from foreshape.compiler.memory import bytes_of
from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.core.gc_pause import collector_waits
from foreshape.core.hints import tells_arguments
from foreshape.core.values.conversion import to_tensor
from foreshape.core.values.emitted_code import STEP_FILE, op_at
from foreshape.core.values.late_checks import LateCheck, late_checks
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError, FeedError, ForeshapeError, border
from foreshape.language.operator.registry import shown_type
from foreshape.language.program import Op, Program, Role, Variable, default_main_program
from foreshape.language.program.call_site import line_of, warn_user
from foreshape.machine.process import torch_modes as modes
from foreshape.machine.process.devices import device_of
from foreshape.machine.process.machine_memory import default_limit
from foreshape.machine.process.memory_budget import MemoryBudget
from foreshape.machine.process.pages import keep_pages
from foreshape.machine.process.product_precision import Precision, precision_here
from foreshape.machine.process.this_run import MemoryLimit, this_run
from foreshape.machine.process.threads import Threads, back_on, on_others, threads_here
from foreshape.machine.process.waiting import waiting
from foreshape.runtime.engine.captured_step import CapturedSteps
from foreshape.runtime.engine.compiled_step import CompiledStep, ShapePlan
from foreshape.runtime.engine.emit import Bound
from foreshape.runtime.engine.fetched import names_of, with_checks
from foreshape.runtime.engine.later_values import later_values
from foreshape.runtime.engine.scope import Scope, default_scope
from foreshape.runtime.feeding.feed import aligned
from foreshape.runtime.feeding.feed_ahead import CopyStream, FeedAhead
from foreshape.runtime.feeding.state_checks import NOTHING
from foreshape.runtime.feeding.warn_once import Notes

taking = border("the fed values cannot be taken", FeedError)
_MOST_LATE_CHECKS = 64
"""So many checks of runs without results wait for the next fetch at most."""
_giving = border("the results cannot be given", ExecutionError)
compiling = RLock()
"""The lock for making a step or checking new shapes, since two threads may bring one program."""
if hasattr(os, "register_at_fork"):  # a child must not wait for a thread of its parent
    os.register_at_fork(before=compiling.acquire, after_in_parent=compiling.release, after_in_child=compiling.release)


class Executor(ConstructorRepr):
    """A runner of programs on PyTorch's kernels.

    Several threads may run at once, with an executor each or with one, as long as no two of them update one scope. An executor's random operators draw from
    one generator, in the order in which the threads come to it: with one each, no thread changes the numbers of another.

    Args:
        device: "cpu", "cuda" or another of torch's.
        check: run op by op, compare every value with its inferred spec, and stop at the first value that is not finite. Dead values are filled with bytes of
            255 (NaN, -1) at once, to find late reads. "fused": the same with the usual kernel calls, fused and in place, instead of the ops one by one.
        seed: starts the generator of the random operators; from the system's entropy by default. A program's own ``random_seed`` starts it anew when the
            program first comes to this executor.
        memory_limit: bytes, or words such as "2 GiB", or "none"; on the CPU by default nine tenths of the memory of this machine or its container. If the
            program's plan (see `fs.plan`) for a feed needs more, parameters included, a `MemoryPlanError` refuses it before anything is computed.
        keep_memory: let this process keep freed memory for the next step (Linux with glibc), until the process ends. ``FORESHAPE_KEEP_PAGES=0`` turns it off
            everywhere.
        threads: the threads of a large step (a small one has one). A number; or "adaptive", the fastest number by measured time, asked again as the machine's
            load changes, so last bits may differ from run to run. By default torch's number: the affinity mask and the container's quota, unless the user
            sets it.
        align_feeds: copy fed values unless their memory begins at a multiple of 64 bytes; arrays of numpy often do not. On some processors products round
            otherwise there, so that equal runs may differ in their last bits; `fs.train` does it.
        frozen: promise that no other executor changes the scope meanwhile: normalization goes into the weights, which on the CPU are kept once more in the
            kernels' layout. Values that a program changes itself are left alone, and `Scope.set` is noticed; training by another executor in the same scope is
            not. With ``check`` it changes nothing.
        precision: of a frozen executor on the processor: "bf16" lets products, convolutions and what lies between them be computed in bf16 by oneDNN's own
            library; sums, norms and softmax stay in fp32. "auto" does so where the processor has instructions for it; the attribute ``precision`` tells.
        graphs: on a CUDA device, launch a step of the same sizes as before by one call, as a CUDA graph. A step without a graph runs
            kernel by kernel, and a warning names the op. Untried on a GPU: off by default.
    """

    @tells_arguments
    def __init__(
        self, device: str = "cpu", *, check: bool | Literal["fused"] = False, seed: int | None = None, keep_memory: bool = True,
        memory_limit: int | str | None = None, threads: int | Literal["adaptive"] | None = None, align_feeds: bool = False,
        frozen: bool = False, graphs: bool = False, precision: Precision = "fp32",
    ) -> None:  # fmt: skip
        self.device = device
        self._given = {"seed": seed, "keep_memory": keep_memory, "memory_limit": memory_limit, "threads": threads, "graphs": graphs, "precision": precision}
        self._threads = Threads(threads)
        self.align_feeds, self.frozen = align_feeds, frozen
        self._limit = None if memory_limit == "none" else default_limit() if memory_limit is None and device == "cpu" else None
        if memory_limit is not None and memory_limit != "none":
            self._limit = MemoryLimit(bytes_of(memory_limit), "the executor's memory_limit", exact=True)
        self.check, self.notes = check, Notes()
        self.finite: tuple[str, ...] = ()
        """Fetches that must be finite: otherwise a step makes no update and raises `foreshape.runtime.engine.finite.NotFinite`."""
        if keep_memory:
            keep_pages()
        self.budget: MemoryBudget | None = None
        """Keeps all runs, and the memory between them, below a bound."""
        self._device = None if device == "cpu" else device_of(device)
        self.precision: Literal["fp32", "bf16"] = precision_here(precision, frozen, device)
        self._copies: CopyStream | None = None
        if graphs and (self._device is None or self._device.type != "cuda"):
            raise ExecutionError.must("an executor with graphs", "on a CUDA device", device)
        self._late_checks: list[LateCheck] = []
        self._taking_checks = Lock()
        with border(f"there can be no executor on {device!r} with the seed {seed!r}", ExecutionError):
            self._generator = torch.Generator(device)
            if seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(index(seed))
        self.captured = CapturedSteps(self._device, self._generator, failure) if graphs else None
        """The CUDA graphs of its steps."""
        self._steps: WeakKeyDictionary[Program, dict[tuple[str, ...], CompiledStep]] = WeakKeyDictionary()

    def _arguments(self) -> Mapping[str, Any]:
        return self._given

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments of another executor like this one."""
        return {"device": self.device, "check": self.check, "align_feeds": self.align_feeds, "frozen": self.frozen, **self._given}

    @property
    def memory_limit(self) -> int | None:
        """Return the most bytes of a run; None without a limit."""
        return None if self._limit is None else self._limit.size

    def keep_within(self, size: int) -> MemoryBudget:
        """Keep this executor's memory from now on within ``size`` bytes: idle memory goes back to the system before a run would pass them."""
        executor = ref(self)
        self.budget = MemoryBudget(size, lambda: None if (alive := executor()) is None else alive.forget())
        return self.budget

    def limit_plans(self, size: int, words: str) -> None:
        """Refuse runs with a plan of more than ``size`` bytes from now on; ``words``: the origin of the limit."""
        self._limit = MemoryLimit(size, words, exact=True)
        self.forget()

    def forget(self) -> None:
        """Drop the plans for shapes met before; they are made again where these come again."""
        with compiling:
            for steps in self._steps.values():
                for step in steps.values():
                    step.forget()

    def run(
        self,
        program: Program | None = None,
        feed: Any = None,
        fetch: Sequence[Variable | str] | Variable | str = (),
        scope: Scope | None = None,
        *,
        later: bool = False,
    ) -> list[Any]:
        """Run a program once.

        Args:
            program: the default main program if left out.
            feed: input -> array (or `LoDTensor`, `SelectedRows`, tensor, column, list); a table, by the names of its columns; a tuple with a value for each
                input, in the order of their description; the value of a single input. Numbers take the input's element type if they stay the same; float64 is
                rounded to float32, with one warning in a run.
            fetch: variables or their names.
            scope: holds the parameters; the default scope if left out.
            later: give a `LaterValue` for each fetched value, and do not wait for a device. Numbers out of range, an error of the run on the processor, are
                then told by each of them, at each reading.

        Returns:
            The fetched values in order: numpy arrays, `LoDTensor` where ragged, `SelectedRows` where sparse. An array of tensors gives a list of these, with
                None for unwritten elements; a rank table gives (sequence, length) pairs, the longest first.

        Raises:
            FeedError, GuardError: the program does not take the feed. ExecutionError: a parameter without a value, an unknown operator, a kernel that
                refuses. MemoryPlanError: more than ``memory_limit``.
        """
        program = program if program is not None else default_main_program()
        scope = scope if scope is not None else default_scope()
        run = self._run
        if program not in self._steps:
            _check_program(program)
            run = collector_waits(run)  # the step and its kernels are made
        if modes.is_set():
            with modes.left_out(self._device):
                return run(program, feed, fetch, scope, later)
        return run(program, feed, fetch, scope, later)

    def _run(self, program: Program, feed: Any, fetch: Sequence[Variable | str] | Variable | str, scope: Scope, later: bool) -> list[Any]:
        return self.run_step(self.step(program, fetch), feed, scope, later)

    def run_step(self, step: CompiledStep, feed: Any, scope: Scope, later: bool = False) -> list[Any]:
        """Return `run` of a compiled step, where no mode of torch's is set.

        Args:
            step: as `step` gives it.
            feed, scope, later: as of `run`.
        """
        with taking:
            if feed.__class__ is FeedAhead:
                tensors, signature = feed.taken()
            else:
                tensors, signature = step.feeder.tensors(feed if feed.__class__ is dict else step.feeder.by_input(feed), self.notes)
            if self.align_feeds:
                tensors = aligned(tensors)
        bound, planned = self.ready(step, tensors, signature, scope)
        if self.budget is not None:
            with self.budget.run(planned.arena or 0):
                return self._called(step, bound, planned, tensors, scope, later)
        return self._called(step, bound, planned, tensors, scope, later)

    @property
    def copies_ahead(self) -> bool:
        """Return True if feeds are copied to a device, and so can be while it computes."""
        return self._device is not None and self._device.type == "cuda"

    def feed_ahead(self, program: Program, fetch: Sequence[str], feed: dict[str, Any]) -> FeedAhead:
        """Begin to copy the feed of a coming run to the device.

        Args:
            program, fetch: of the run.
            feed: input -> its value.

        Returns:
            The feed for `run`. The error of a refused one is raised there.
        """
        if self._copies is None:
            self._copies = CopyStream(self._device)
        return self._copies.begin(self.step(program, fetch).feeder, feed, self.notes)

    def _called(self, step: CompiledStep, bound: Bound, planned: ShapePlan, tensors: Sequence[Any], scope: Scope, later: bool) -> list[Any]:
        """Return the fetched values of a step over a scope."""
        checks: list[LateCheck] = []
        function: Callable[..., Any] = bound.function if planned.small is None or self.check else step.function(bound, planned)
        if self.captured is not None and not self.check:
            function = partial(self._by_graph, self.captured, step, bound, checks)
        fetched = self.call(step, function, planned, tensors, scope, checks=checks)
        if step.block_results.places:
            fetched = step.block_results.copied(fetched, tensors, bound.values, scope)
        if self._device is not None:
            checks = self._checks_to_read(checks, bool(step.fetchers))
        if later and step.fetchers:
            return later_values(fetched, len(step.fetchers), self._device, checks, partial(self._results, step))
        return self._results(step, fetched if self._device is None else self._on_host(fetched, checks))

    def _results(self, step: CompiledStep, fetched: Sequence[Any]) -> list[Any]:
        """Return fetched values of the host as `run` gives them."""
        for value, source in zip(fetched, step.plain.fetches, strict=False):
            if value is None:
                raise ExecutionError(f"{source.name} has no value: the block that makes it did not run")
        with _giving:
            out = [f(value) for f, value in zip(step.fetchers, fetched, strict=False)]
            for place, offsets in zip(step.ragged, fetched[len(out) :], strict=True):
                out[place] = LoDTensor.of_offsets(out[place], offsets)
        return out

    def _by_graph(self, captured: CapturedSteps, step: CompiledStep, bound: Bound, checks: list[LateCheck], *tensors: Any) -> Any:
        return captured.run(step.emitted.lowered, bound, tensors, checks)

    def _checks_to_read(self, checks: list[LateCheck], fetches: bool) -> list[LateCheck]:
        """Return the checks to read after a run with these: with those of runs before it without results. None are read after one more of these."""
        with self._taking_checks:
            waiting = [*self._late_checks, *checks]
            read = fetches or len(waiting) >= _MOST_LATE_CHECKS
            self._late_checks = [] if read else waiting
        return waiting if read else []

    def _on_host(self, fetched: Sequence[Any], checks: list[LateCheck]) -> list[Any]:
        """Return fetched values of a device in the memory of the host, after one wait. Raise the error of a check that was waiting for that."""
        out = with_checks(fetched, checks)
        late_checks.copies.clear()
        return out

    def ready(self, step: CompiledStep, tensors: list[Any], signature: tuple[Any, ...], scope: Scope) -> tuple[Bound, ShapePlan]:
        """Return a step over a scope, and its plan for the shapes of these tensors: checked at their first time.

        Args:
            tensors, signature: as the step's feeder gives them.
        """
        longest: dict[str, int] = {}
        if self._limit is not None and self._limit.exact and len(tensors) > len(step.feeder.inputs):  # ragged ones
            with self._threads.planned():
                longest = step.feeder.longest(tensors, step.plan.symbols)
            signature = (*signature, *longest.values())
        bound = step.bind(scope)
        scope_dims = bound.held
        if scope_dims is not NOTHING:  # open dims of the scope's values decide guards too
            signature = (*signature, scope_dims.key)
        planned = step.plan_cache.get(signature)
        if planned is None and (shapes := step.feeder.fit(tensors)):
            signature = shapes + signature[len(shapes) :]
            planned = step.plan_cache.get(signature)
        if planned is None:
            with compiling, taking, self._threads.planned():
                planned = step.plan_shapes(signature, tensors, scope_dims, longest, self._limit)
        return bound, planned

    def call(
        self,
        step: CompiledStep,
        function: Any,
        planned: ShapePlan,
        tensors: Sequence[Any],
        scope: Scope | None = None,
        mode: Any = None,
        checks: list[LateCheck] | None = None,
    ) -> Any:
        """Return the results of a function of a step, on its threads, with its errors in words.

        Args:
            planned: of the shapes of this run: its threads and memory.
            tensors: its arguments.
            scope: for the checks of an executor that has them.
            mode: makes the mode of torch's in which kernels run; torch's inference mode by default.
            checks: takes the checks whose numbers are on the device; unread if left out.
        """
        this_run.generator, this_run.memory_limit, this_run.device = self._generator, self._limit, self._device
        pending_before, late_checks.pending = late_checks.pending, None if self._device is None else checks if checks is not None else []
        late_checks.copies.clear()
        usual, fastest = threads_here(), step.fastest if planned.threads > 1 else None
        threads = fastest.choose() if fastest is not None else planned.threads if planned.threads == 1 else min(planned.threads, self._threads.most())
        if threads != usual:
            on_others(threads, usual)
        if (growth := step.growth) is not None:
            growth.begin()
        began = perf_counter()
        try:
            with private.InferenceMode(True) if mode is None else mode():
                fetched = self._checked(planned).run(step.emitted, tensors, scope) if self.check else function(*tensors)
            if threads > 1 or fastest is not None:
                ended = perf_counter()
                if fastest is not None:
                    fastest.took(threads, ended - began, planned.work)
                if ended >= waiting.next:
                    waiting.look(ended)
        except ExecutionError as error:
            raise placed(error) from error.__cause__
        except ForeshapeError:
            raise
        except Exception as error:
            raise failure(error) from error
        finally:
            this_run.device, late_checks.pending = None, pending_before
            if growth is not None:
                step.growth = growth.end()
            if threads != usual:
                back_on(usual)
        return fetched

    def step(self, program: Program, fetch: Sequence[Variable | str] | Variable | str = ()) -> CompiledStep:
        """Return the compiled step of ``program`` for ``fetch``; made at the first question."""
        names = names_of(program, fetch)
        key = (*names, "\0", *self.finite) if self.finite else names
        compiled = self._steps.get(program, {}).get(key)
        if compiled is not None and compiled.version == program.version:
            return compiled
        with compiling, border("the program cannot be made into a step", ExecutionError):
            steps = self._steps.get(program)
            if steps is None:
                steps = self._steps[program] = {}
                if program.random_seed:
                    self._generator.manual_seed(program.random_seed)
            compiled = steps.get(key)
            if compiled is None or compiled.version != program.version:
                program.refresh()
                with self._threads.planned():
                    fused = self.check is not True
                    warn_of_updates(program, names)
                    refuse_other_ranks(program)
                    compiled = steps[key] = CompiledStep(
                        program, names, self._device, fused, self._threads.chooser(), self.frozen and fused, self.finite, self.precision == "bf16"
                    )
            return compiled

    def _checked(self, planned: ShapePlan) -> Any:
        from foreshape.runtime.engine.checked import Checked  # few executors need it

        return Checked(planned.values, every=self.check is True)

    def refuse_feed(self, program: Program, feed: Mapping[str, Any], fetch: Sequence[Variable | str] | Variable | str = ()) -> None:
        """Raise the errors of `run` for this feed and ``fetch``, before anything runs and without any value of a scope.

        Raises:
            FeedError, GuardError: the program does not take the feed.
        """
        step = self.step(program, fetch)
        variables = [v.variable for v in step.emitted.lowered.persistables if v.variable is not None]
        with taking:
            tensors, _ = step.feeder.tensors(feed, self.notes)
            step.feeder.fit(tensors)
            if all(isinstance(d, int) for v in variables for d in v.spec.dims or ()):  # otherwise the scope's values tell a part of the sizes
                step.feeder.check_shapes(tensors)

    @property
    def threads(self) -> int | Literal["adaptive"]:
        """Return the number of threads of a large step."""
        return "adaptive" if self._threads.wanted == "adaptive" else self._threads.most()

    def random_state(self) -> Any:
        """Return the state of the generator of the random operators, as an array of bytes for `set_random_state`."""
        return self._generator.get_state().numpy().copy()

    def reseed(self, seed: int) -> None:
        """Start the generator of the random operators anew, from ``seed``."""
        self._generator.manual_seed(seed)

    def set_random_state(self, state: Any) -> None:
        """Set the state of the generator to one of `random_state`. Raise `ExecutionError` for anything else."""
        try:
            tensor = to_tensor(state)
            if self._device is None:
                from foreshape.language.ops.tensor.random_state import check_state

                check_state(tensor)
            self._generator.set_state(tensor)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ExecutionError(f"this is not the state of a generator on {self.device}: {error}") from None


def _check_program(program: object) -> None:
    """Refuse anything but a program, as a variable in its place."""
    if not isinstance(program, Program):
        remedy = f": give it as fetch=[{program.name}]" if isinstance(program, Variable) else ""
        raise ExecutionError.must("what is run", "a Program", f"{program!r:.100}", hint=remedy)


# --- Errors of kernels, with their op and the user's line.


def _op_of(error: Exception) -> Op | None:
    """Return the op whose kernel raised an error."""
    op: Op | None = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == STEP_FILE:
            op = op_at(trace.tb_frame.f_code, trace.tb_lineno) or op
        trace = trace.tb_next
    return op


def placed(error: ExecutionError) -> ExecutionError:
    """Return a kernel's own error, with the user's line."""
    op = _op_of(error)
    if op is None or error.site is not None:
        return error
    return error.reworded(f"{error}{line_of(op.site, op.type)}").told(op=op.type, site=op.call_site)


def failure(error: Exception) -> ExecutionError:
    """Return the error of a kernel, with the op and the user's line."""
    op = _op_of(error)
    if op is None:
        return ExecutionError(str(error))
    return ExecutionError(f"{shown_type(op.type)}: the kernel failed: {error}\n    {op}{line_of(op.site, op.type)}").told(op=op.type, site=op.call_site)


def note_line(error: Exception) -> None:
    """Add the op and the user's line to the notes of an error of a kernel."""
    op = _op_of(error)
    if op is not None:
        error.add_note(f"in {op}{line_of(op.site, op.type)}")


# --- Programs with unwanted updates in a run: of a network in use, or divided for other ranks.


_told: WeakSet[Program] = WeakSet()


def warn_of_updates(program: Program, fetches: Sequence[str]) -> None:
    """Warn once for a program with updates, although nothing fetched is of its training: no loss, gradient or parameter."""
    ops = program.global_block.ops
    if not fetches or program in _told or not any(op.role & Role.OPTIMIZE for op in ops):
        return
    losses = [op for op in ops if op.role & Role.LOSS and not op.role & Role.BACKWARD]
    training = {n for op in ops if op.role & (Role.BACKWARD | Role.OPTIMIZE) for n in op.output_names()} | _costs(losses)
    find = program.global_block.find
    if losses and not any(n in training or ((v := find(n)) is not None and v.persistable) for n in fetches):
        _told.add(program)
        names = ", ".join(fetches[:3]) + (", ..." if len(fetches) > 3 else "")
        warn_user(
            f"running this program trains it: it has updates of its parameters, which run too although {names} does not need them. To use the "
            "network, run the program that was described, without updates, or fs.passes.for_test(program)"
        )


def _costs(losses: Sequence[Op]) -> set[str]:
    """Return the losses, and their summands or elements."""
    out: set[str] = set()
    waiting = [(op, n) for op in losses for n in op.output_names()]
    while waiting:
        op, name = waiting.pop()
        out.add(name)
        if op.operator is not None and len(op.operator.linear) == 1 and {slot for slot, names in op.inputs.items() if names} <= {*op.operator.linear}:
            out.update(op.input_names())
            waiting += [(v.op, v.name) for v in op.input_variables() if v.op is not None]
    return out


def refuse_other_ranks(program: Program) -> None:
    """Refuse a program whose gradients another tool has divided for other ranks than there are.

    PaddlePaddle's transpilers multiply the gradient of the loss, in place, by one over the number of ranks, and sum gradients over them.

    Raises:
        ExecutionError: the loss's gradient is for another number of ranks.
    """
    exchanges = [op for op in program.global_block.ops if op.operator is not None and op.operator.collective and op.role & Role.BACKWARD]
    if not exchanges:
        return
    from foreshape.machine.communication.process_group import team_of

    team = team_of(exchanges[0].attrs.get("ring_id", 0))
    rank = 1 if team is None else team.ranks
    losses = {n for op in program.global_block.ops if op.role == Role.BACKWARD | Role.LOSS for n in op.output_names()}
    for op in program.global_block.ops:
        share = op.attrs.get("scale") if op.role & Role.BACKWARD and op.input("X") in losses and list(op.input_names()) == list(op.output_names()) else None
        if isinstance(share, float) and 0 < share < 1 and abs(1 / share - round(1 / share)) < 1e-3 and round(1 / share) != rank:
            raise ExecutionError(
                f"the program is for {round(1 / share)} ranks: it multiplies the gradient of its loss, {op.input('X')}, by {share:g}, and "
                f"sums gradients over ranks ({exchanges[0].type}); this run has {rank}. Start as many, or train the network without them: "
                "fs.passes.for_test(program) drops its backward and update ops"
            )
