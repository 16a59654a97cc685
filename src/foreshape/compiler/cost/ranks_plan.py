"""`plan` for many ranks: the memory, messages and waiting of each, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, overload

from foreshape.compiler.cost.collectives import Message, messages_of
from foreshape.compiler.cost.device import Device, device_of, require_device
from foreshape.compiler.cost.network import Network, sent
from foreshape.compiler.cost.timeline import Timeline, timeline
from foreshape.compiler.lowering import Step, fuse, lower
from foreshape.compiler.lowering.fusion.bags import shared_values
from foreshape.compiler.memory import Plan, byte_text, bytes_of
from foreshape.compiler.memory import plan as plan_memory
from foreshape.compiler.memory.formula import Formula, peak_lines
from foreshape.core.dims import Size, ceildiv, evaluate, floordiv, is_symbol, substitute, symbol, symbols_of
from foreshape.core.pictures.figures import plural
from foreshape.core.pictures.markup import card, cut, escape, markup_table, preformatted
from foreshape.core.spec import SELECTED_ROWS
from foreshape.errors import ForeshapeError, MemoryPlanError, SchemaError
from foreshape.language.program import Program, Role, Variable
from foreshape.language.program.needed import is_given
from foreshape.machine.targets import is_device_name
from foreshape.transforms.passes import accumulate as gather_gradients
from foreshape.transforms.passes import data_parallel
from foreshape.transforms.passes.accumulate_distributed import DistributedPass, Ungathered, gathered_over_ranks
from foreshape.transforms.passes.data_parallelism import COUNTS
from foreshape.transforms.passes.for_ranks import DATA, TENSOR, ForRanks
from foreshape.transforms.passes.tensor_parallelism import SplitLayers

RANKS = "ranks"
_ROUNDED_UP = re.compile(r"(\()?\(([^()]+) \+ ranks - 1\) // ranks(?(1)\))")
_FEW_PIECES = 4
_TRAINS = Role.BACKWARD | Role.OPTIMIZE
_MOST = 1 << 20
_WIDTH = 160
"""More ranks than this are not looked for."""


class Trained(Protocol):
    """The result of `training_program`."""

    @property
    def program(self) -> Program: ...
    @property
    def loss(self) -> Variable: ...
    @property
    def ungathered(self) -> Ungathered | None: ...


class PlannedCollective(NamedTuple):
    """A collective of a step, in numbers. Seconds count from the beginning of the step; they are 0 where times are not known."""

    name: str
    type: str
    way: str
    bytes: int
    """The bytes of a rank's part."""
    formula: str
    on_the_link: int
    """The bytes that a rank sends over its link for it."""
    line: str
    starts: int
    """The number, in the program for ranks, of the op that starts it."""
    needed: int
    """The number of the op that waits for it."""
    ready: float
    began: float
    came: float


@dataclass(frozen=True, slots=True)
class InferenceOverRanks:
    """A program for inference: each rank runs it on its part of the examples, and only the program's own collectives send."""

    def apply(self, program: Program, loss: Variable | str, ranks: int | None = None, startup: Program | None = None) -> ForRanks:
        """Return the program as it is."""
        return ForRanks(program, "")


class RanksPlan:
    """A program on many ranks by one strategy: for training, or, by `InferenceOverRanks`, for inference. Made by `plan`.

    Sizes of examples (``batch``, and for ragged inputs the words) are the whole step's, and are divided over the ranks. Every method takes other sizes than
    the plan's by name, ``ranks`` among them: ``plan.peak(ranks=8)``. A rank's part is even, rounded up. If known, as for longer sequences on one rank, it is
    the first argument: ``plan.peak({"batch": 32, "words": 1205})``.
    """

    def __init__(
        self, program: Program, loss: str, strategy: DistributedPass, sizes: Mapping[str, int], network: Network, device: Device | None,
        fetch: Iterable[Variable | str] = (), ungathered: Ungathered | None = None,
    ) -> None:  # fmt: skip
        self.strategy, self.network, self.device = strategy, network, device
        if isinstance(strategy, SplitLayers) and strategy.degree is None:
            strategy = replace(strategy, degree=sizes.get(RANKS, 1))
        applied = strategy.apply(program, loss, None) if ungathered is None else gathered_over_ranks(strategy, ungathered, program, loss, None)
        self.program, self.loss = applied.program, applied.loss
        self.degree = applied.degree
        """The number of ranks with equal examples, and a part of the layers each."""
        self.memory: Plan = plan_memory(self.program, self.loss or fetch)
        """The memory of one rank, with ``batch`` its own part."""
        self._lowered: Step | None = None
        sparse = any(v.kind is SELECTED_ROWS for v in self.program.global_block.vars.values())
        self.messages: list[Message] = messages_of(self.program, shared_values(self._fused()) if sparse else None)
        self.shared = _shared(self.program)
        """The symbols of examples, divided over the ranks."""
        self.sizes = dict(sizes)
        self.alternatives: list[RanksPlan] = [self]
        """This plan, and the ones of the other strategies."""

    @property
    def name(self) -> str:
        """Return the strategy, as a user writes it."""
        words = "Inference" if isinstance(self.strategy, InferenceOverRanks) else type(self.strategy).__name__
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in words).lstrip("_")

    # --- memory

    def peak(self, own: Mapping[str, int] | None = None, /, **sizes: int) -> int:
        """Return the most bytes held at once by the rank of the largest part, or of its ``own`` sizes."""
        return self.memory.peak(**self._rank_sizes(sizes, own))

    def peak_formula(self) -> Formula:
        """Return the same as a formula in ``ranks`` and in the sizes of the whole step."""
        return self.memory.peak_formula().substituted(self._parts)

    @property
    def _parts(self) -> dict[str, Size]:
        """Return a rank's part of each divided size, in the sizes of the whole step."""
        parts = {n: _part(n, self.degree) for n in self.shared}
        return parts if self.degree == 1 else {**parts, RANKS: floordiv(symbol(RANKS), self.degree)}

    def peak_words(self, **sizes: int) -> str:
        """Return the formula if short, else its largest piece with these sizes."""
        formula = self.peak_formula()
        return self.shared_words(str(formula) if len(formula) <= _FEW_PIECES else formula.at(self._all(sizes)))

    def breakdown(self, own: Mapping[str, int] | None = None, /, **sizes: int) -> dict[str, int]:
        """Return the bytes at the peak of a rank by class."""
        return self.memory.breakdown(**self._rank_sizes(sizes, own))

    @staticmethod
    def shared_words(formula: str) -> str:
        """Return a formula with its rounded up parts as a person writes them: ``ceil(batch/ranks)``."""
        return _ROUNDED_UP.sub(r"ceil(\2/ranks)", formula)

    def smallest(self, within: int | str, **sizes: int) -> int:
        """Return the smallest number of ranks with enough memory each.

        Raises:
            MemoryPlanError: no number is enough, since the undivided part of every rank is more.
        """
        limit = bytes_of(within)

        def fits(ranks: int) -> bool:
            return self.peak(**{**sizes, RANKS: ranks * self.degree}) <= limit

        high = 1
        while not fits(high):
            if high * self.degree * 2 > _MOST:
                least = self.peak(**{**sizes, RANKS: high * self.degree})
                raise MemoryPlanError(f"by {self.name} each rank holds {byte_text(least)} however many there are, which is more than {byte_text(limit)}")
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high * self.degree

    # --- time

    def timeline(self, own: Mapping[str, int] | None = None, /, **sizes: int) -> Timeline:
        """Return the predicted step. Raise `FormatError` if the device is not known."""
        members = [self._members(m, self._all(sizes)[RANKS]) for m in self.messages]
        return timeline(self._fused(), self.messages, self._rank_sizes(sizes, own), members, require_device(self.device), self.network)

    def _fused(self) -> Step:
        """Return the calls of a rank."""
        if self._lowered is None:
            self._lowered = fuse(lower(self.program.global_block, self.memory.fetch))
        return self._lowered

    def collectives(self, own: Mapping[str, int] | None = None, /, **sizes: int) -> list[PlannedCollective]:
        """Return the collectives of a step, in the order of their start."""
        ranks, values = self._all(sizes)[RANKS], self._rank_sizes(sizes, own)
        run = self.timeline(own, **sizes).run if self.device is not None else None
        out: list[PlannedCollective] = []
        for index, m in enumerate(self.messages):
            members = self._members(m, ranks)
            count = self._count(m, values) if members > 1 else 0  # a rank alone has nobody to give to
            when = (run.ready[index], run.began[index], run.ended[index]) if run is not None else (0.0, 0.0, 0.0)
            line = m.op.call_site.short() if m.op.call_site is not None else ""
            formula = str(substitute(m.size, self._parts))
            link = round(sent(m.way, count, members))
            out.append(PlannedCollective(m.name, m.op.type, m.way, count, formula, link, line, m.starts, m.needed, *when))
        return out

    def sent(self, own: Mapping[str, int] | None = None, /, **sizes: int) -> dict[str, int]:
        """Return the bytes of a rank in each type of collective in a step."""
        out: dict[str, int] = {}
        for collective in self.collectives(own, **sizes):
            out[collective.type] = out.get(collective.type, 0) + collective.bytes
        return out

    # --- helpers

    def _members(self, m: Message, ranks: int) -> int:
        """Return the number of ranks of a message."""
        return {TENSOR: self.degree, DATA: ranks // self.degree}.get(m.ring, ranks)

    def _count(self, m: Message, values: Mapping[str, int]) -> int:
        missing = sorted(symbols_of(m.size) - values.keys())
        if missing:
            raise SchemaError(f"what {m.name} has to send depends on {', '.join(missing)}: give {'it a value' if len(missing) == 1 else 'them values'}")
        return evaluate(m.size, values)

    def _all(self, sizes: Mapping[str, int]) -> dict[str, int]:
        values = {**self.sizes, **sizes}
        ranks = values.get(RANKS, 1)
        if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= _MOST:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError(f"the number of ranks is from 1 to {_MOST:,}; seen {ranks!r}")
        if ranks % self.degree:
            raise SchemaError(f"{ranks} ranks cannot be divided into groups of {self.degree}, each of which has the parts of the layers")
        return {**values, RANKS: ranks}

    def _rank_sizes(self, sizes: Mapping[str, int], rank_sizes: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return the sizes of the rank with the largest part; ``ranks`` as in the program: the number of groups with examples of their own."""
        values = self._all(sizes)
        ranks = values[RANKS] = values[RANKS] // self.degree
        if rank_sizes is not None:
            return {**values, **rank_sizes, RANKS: ranks}
        if "batch" in values and "batch" not in self.memory.symbols:
            for name in self.memory.leading:
                values.setdefault(name, values["batch"])
        return {n: -(-v // ranks) if n in self.shared else v for n, v in values.items()}

    def __repr__(self) -> str:
        lines = [self._heading(), *(f"  {name} {words}" for name, words in self._rows())]
        return "\n".join(cut(line, _WIDTH) for line in [*lines, *(f"  {line}" for line in peak_lines(self.peak_formula(), self.shared_words))])

    def _repr_html_(self) -> str:
        formula = peak_lines(self.peak_formula(), self.shared_words)
        return card(self._heading(), markup_table(("", ""), self._rows()), preformatted("\n".join(formula)))

    def _heading(self) -> str:
        """Return the strategy and the sizes of the whole step."""
        size_words = ", ".join(f"{escape(n)} = {v:,}" for n, v in self.sizes.items())
        return cut(f"RanksPlan: {self.name}" + (f", {size_words}" if size_words else ""), _WIDTH)

    def _rows(self) -> list[tuple[str, str]]:
        """Return the facts of a line each: the peak, the messages, the time, the other strategies; or the missing sizes."""
        out: list[tuple[str, str]] = []
        try:
            peak, collectives = self.peak(), self.collectives()
            out.append(("a rank holds", f"{byte_text(peak)} at the peak"))
            sent = sum(collective.on_the_link for collective in collectives)
            out.append(
                ("a rank sends", f"{byte_text(sent)} in a step, by {plural(len(collectives), 'collective')} over {self.network}" if collectives else "nothing")
            )
            if self.device is not None:
                out.append(("a step takes", f"{1e3 * self.timeline().seconds:.4g} ms"))
            if len(self.alternatives) > 1:
                out.append(("also planned", ", ".join(f"{plan.name} {byte_text(plan.peak())}" for plan in self.alternatives if plan is not self)))
        except ForeshapeError as error:
            out.append(("not told", str(error).partition("\n")[0]))
        return out


def _part(name: str, degree: int) -> Size:
    """Return a rank's part of a size divided over groups of so many ranks."""
    return ceildiv(symbol(name) * degree, symbol(RANKS))


def _shared(program: Program) -> frozenset[str]:
    """Return the symbols of the examples, sequences or rows of the inputs."""
    out: set[str] = set()
    for v in program.global_block.vars.values():
        if is_given(v) and not v.persistable and v.value is None and v.name != COUNTS and v.spec.dims:
            counts = [v.spec.dims[0], *(v.spec.lod.counts if v.spec.lod is not None else ())]
            out.update(n for size in counts if is_symbol(size) for n in symbols_of(size))
    return frozenset(out)


def loss_of(program: Program) -> str:
    """Return the loss minimised by a training program. Raise `SchemaError` if it does not say."""
    for op in program.global_block.ops:
        if op.role & Role.LOSS and not op.role & Role.BACKWARD:
            return next(iter(op.output_names()))
    raise SchemaError("the program has no loss: plan it for ranks after minimize(), or name the loss")


@overload
def plan(
    program: Program | Trained,
    fetch: Iterable[Variable | str] | Variable | str = (),
    *,
    device: str | None = None,
    lengths: Mapping[str, Sequence[int]] | None = None,
) -> Plan: ...


@overload
def plan(
    program: Program | Trained, fetch: Iterable[Variable | str] | Variable | str = (), *, ranks: int, within: int | str | None = None,
    network: Network | None = None, device: Any = None, threads: int = 1, strategies: Sequence[DistributedPass] = (), loss: Variable | str | None = None,
    accumulate: int = 1, lengths: None = None, **sizes: int,
) -> RanksPlan: ...  # fmt: skip


def plan(
    program: Program | Trained, fetch: Iterable[Variable | str] | Variable | str = (), *, ranks: int | None = None, within: int | str | None = None,
    network: Network | None = None, device: Any = None, threads: int = 1, strategies: Sequence[DistributedPass] = (), loss: Variable | str | None = None,
    accumulate: int = 1, lengths: Mapping[str, Sequence[int]] | None = None, **sizes: int,
) -> Plan | RanksPlan:  # fmt: skip
    """Return the needs of a program for these fetches (a saved network's own by default): memory, as numbers and as a formula. For many ranks also the
    messages and waiting of each, and the time of a step: ``fs.plan(program, ranks=64, batch=4096)``.

    Without fetches or updates, the results of its last ops are planned.

    Args:
        program: a program, or a result of `training_program`, planned as it runs: with gradients gathered and a loss scaled, if it has them. It is left
            unchanged.
        fetch: variables or names.
        ranks: the number of ranks.
        within: the memory of a rank, in bytes or as "16 GiB".
        network: the links between them; 25 Gb/s and 30 microseconds by default.
        device: for ranks a calibration or its file, or rates as ``"150TFLOPS:2TB/s"``; by default this machine, if calibrated. Without ranks the name of the
            device that runs the step, as "cuda" (see `foreshape.compiler.memory.plan.plan`); by default the processor.
        threads: of each rank, on a calibrated machine.
        strategies: the choices, `data_parallel` by default. The best one that fits has the shortest step, or the lowest peak if times are unknown. A program
            without updates runs inference, each rank on its part of the batch.
        loss: if the program does not say.
        accumulate: the batches of one update, as of `train`. The plan is of the last batch's step, with the update.
        lengths: for a plan without ranks: ragged input -> the lengths of its sequences; the plan is exact for them, not a bound over all lengths. For one
            rank with its own sequences plan its program: ``plan(ranks_plan.program, ranks_plan.loss, lengths=...)``.
        sizes: the whole step's, divided over the ranks: ``batch``, and for ragged inputs the words. All others are equal on every rank.

    Raises:
        MemoryPlanError: an unknown operator. DescriptionError: the program has mistakes, or the strategies do not fit it.
    """
    ungathered: Ungathered | None = None
    if not isinstance(program, Program):
        fetch, loss, ungathered = (fetch or program.loss, loss, None) if ranks is None else (fetch, loss or program.loss, program.ungathered)
        program = program.program
    if accumulate != 1:
        if ungathered is not None:
            raise SchemaError(f"accumulate={accumulate}: the training program has said already how many batches make one update")
        if ranks is None:
            raise SchemaError("accumulate= is for a plan for ranks; without, plan what training_program(..., accumulate=...) gives")
        ungathered = Ungathered(program, Program(), accumulate)
        program, _ = gather_gradients(program, accumulate, ungathered.startup)
    if ranks is None:
        if device is not None and not is_device_name(device):
            raise SchemaError.must("device", '"cpu", "cuda", or "cuda:" with a number or a card, as "cuda:H100" (rates of a machine need ranks=)', device)
        options = {"within": within, "network": network, "strategies": strategies or None, "loss": loss, **sizes}
        named = [f"{name}=" for name, value in options.items() if value is not None]
        if named:
            hint = ": sizes are given to the plan, as plan(...).peak(batch=8)" if sizes else ""
            raise SchemaError(f"{', '.join(named)} of a plan needs ranks=, the number of processes that train together{hint}")
        return plan_memory(program, fetch, lengths, device)
    if lengths is not None:
        raise SchemaError("lengths= is for a plan without ranks=: the sequences of one rank are others than those of the next")
    on, links = device_of(device, threads), network if network is not None else Network.of()
    names = (fetch,) if isinstance(fetch, (str, Variable)) else tuple(fetch)
    trains = loss is not None or bool(strategies) or any(op.role & _TRAINS for op in program.global_block.ops)
    if not trains:
        return RanksPlan(program, "", InferenceOverRanks(), {RANKS: ranks, **sizes}, links, on, names)
    if names:
        raise SchemaError("a program that trains is planned for its loss: fetch= is for a plan without ranks, or of a program without updates")
    name = loss_of(program) if loss is None else loss if isinstance(loss, str) else loss.name
    candidates = [RanksPlan(program, name, candidate, {RANKS: ranks, **sizes}, links, on, (), ungathered) for candidate in strategies or (data_parallel(),)]
    best = candidates[0] if len(candidates) == 1 else min(candidates, key=lambda candidate: _rank(candidate, within))
    for candidate in candidates:
        candidate.alternatives = [best, *(alternative for alternative in candidates if alternative is not best)]
    return best


def _rank(candidate: RanksPlan, limit: int | str | None) -> tuple[bool, float, int]:
    peak = candidate.peak()
    exceeds = limit is not None and peak > bytes_of(limit)
    return exceeds, float(peak) if exceeds or candidate.device is None else candidate.timeline().seconds, peak
