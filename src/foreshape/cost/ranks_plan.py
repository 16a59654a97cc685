"""`plan` for many ranks: what each holds, sends and waits for, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, overload

from foreshape.cost import shown
from foreshape.cost.collectives import Message, messages_of
from foreshape.cost.device import Device, device_of, require_device
from foreshape.cost.network import Network, sent
from foreshape.cost.timeline import Timeline, timeline
from foreshape.dims import Size, ceildiv, evaluate, floordiv, is_symbol, substitute, symbol, symbols_of
from foreshape.errors import MemoryPlanError, SchemaError
from foreshape.lowering import Lowered, fuse, lower
from foreshape.lowering.fusion.bags import shared_values
from foreshape.memory import Plan, byte_text, bytes_of
from foreshape.memory import plan as plan_memory
from foreshape.memory.formula import Formula
from foreshape.passes import accumulate as gather_gradients
from foreshape.passes import data_parallel
from foreshape.passes.accumulate_distributed import Ungathered, gathered_over_ranks
from foreshape.passes.data_parallelism import COUNTS
from foreshape.passes.for_ranks import DATA, TENSOR, ForRanks
from foreshape.passes.tensor_parallelism import SplitLayers
from foreshape.program import Program, Role, Variable
from foreshape.program.needed import is_given
from foreshape.spec import SELECTED_ROWS

RANKS = "ranks"
_ROUNDED_UP = re.compile(r"(\()?\(([^()]+) \+ ranks - 1\) // ranks(?(1)\))")
_FEW_PIECES = 4
_TRAINS = Role.BACKWARD | Role.OPTIMIZE
_MOST = 1 << 20
"""More ranks than this are not looked for."""


class Strategy(Protocol):
    """A pass that makes a training program one for ranks."""

    def apply(self, program: Program, loss: Variable | str, ranks: int | None = None, startup: Program | None = None) -> ForRanks: ...


class Trained(Protocol):
    """What `training_program` gives."""

    @property
    def program(self) -> Program: ...
    @property
    def loss(self) -> Variable: ...
    @property
    def ungathered(self) -> Ungathered | None: ...


class Sent(NamedTuple):
    """A collective of a step, in numbers. Seconds count from the beginning of the step; they are 0 where times are not known."""

    name: str
    type: str
    way: str
    bytes: int
    """What a rank gives to it."""
    formula: str
    on_the_link: int
    """What a rank sends over its link for it."""
    line: str
    starts: int
    """The op that starts it, by its number in the program for ranks."""
    needed: int
    """The op that waits for it."""
    ready: float
    began: float
    came: float


@dataclass(frozen=True, slots=True)
class Inference:
    """A program that is only used: each rank runs it on its part of the examples, and nothing is sent but what the program itself sends."""

    def apply(self, program: Program, loss: Variable | str, ranks: int | None = None, startup: Program | None = None) -> ForRanks:
        """The program as it is."""
        return ForRanks(program, "")


class RanksPlan:
    """A program on many ranks by one strategy: one that trains, or, by `Inference`, one that is used. Made by `plan`.

    Sizes that count examples (``batch``, and of ragged inputs the words) are those of the whole step, which are divided over the ranks. Every
    question takes other sizes than the plan was made with by name, ``ranks`` among them: ``plan.peak(ranks=8)``. What a rank has of what is
    divided is an even part, rounded up; where it is known, as of sequences that are longer on one rank than on another, it is given as the first
    argument: ``plan.peak({"batch": 32, "words": 1205})``.
    """

    def __init__(
        self, program: Program, loss: str, strategy: Strategy, sizes: Mapping[str, int], network: Network, device: Device | None,
        fetch: Iterable[Variable | str] = (), ungathered: Ungathered | None = None,
    ) -> None:  # fmt: skip
        self.strategy, self.network, self.device = strategy, network, device
        if isinstance(strategy, SplitLayers) and strategy.degree is None:
            strategy = replace(strategy, degree=sizes.get(RANKS, 1))
        made = strategy.apply(program, loss, None) if ungathered is None else gathered_over_ranks(strategy, ungathered, program, loss, None)
        self.program, self.loss = made.program, made.loss
        self.degree = made.degree
        """How many ranks have the same examples, and each a part of the layers."""
        self.memory: Plan = plan_memory(self.program, self.loss or fetch)
        """The memory of one rank, in which ``batch`` is what that rank has of it."""
        self._lowered: Lowered | None = None
        sparse = any(v.kind is SELECTED_ROWS for v in self.program.global_block.vars.values())
        self.messages: list[Message] = messages_of(self.program, shared_values(self._fused()) if sparse else None)
        self.shared = _shared(self.program)
        """The symbols that count examples, which are divided over the ranks."""
        self.sizes = dict(sizes)
        self.alternatives: list[RanksPlan] = [self]
        """This one, and those by the other strategies that were asked for."""

    @property
    def name(self) -> str:
        """The strategy, as a user writes it."""
        words = type(self.strategy).__name__
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in words).lstrip("_")

    # --- memory

    def peak(self, own: Mapping[str, int] | None = None, /, **sizes: int) -> int:
        """The most bytes that a rank holds at once: of that with the largest part, or of one with its ``own`` sizes."""
        return self.memory.peak(**self._own(sizes, own))

    def peak_formula(self) -> Formula:
        """The same as a formula in ``ranks`` and in the sizes of the whole step."""
        return self.memory.peak_formula().substituted(self._parts)

    @property
    def _parts(self) -> dict[str, Size]:
        """What a rank has of what is divided, in the sizes of the whole step."""
        parts = {n: _part(n, self.degree) for n in self.shared}
        return parts if self.degree == 1 else {**parts, RANKS: floordiv(symbol(RANKS), self.degree)}

    def peak_words(self, **sizes: int) -> str:
        """The formula where it is short; of a long one the piece that is the largest with these sizes."""
        formula = self.peak_formula()
        return self.shared_words(str(formula) if len(formula) <= _FEW_PIECES else formula.at(self._all(sizes)))

    def breakdown(self, own: Mapping[str, int] | None = None, /, **sizes: int) -> dict[str, int]:
        """What the bytes at the peak of a rank are for."""
        return self.memory.breakdown(**self._own(sizes, own))

    @staticmethod
    def shared_words(formula: str) -> str:
        """A formula with parts that are rounded up as a person writes them: ``ceil(batch/ranks)``."""
        return _ROUNDED_UP.sub(r"ceil(\2/ranks)", formula)

    def smallest(self, within: int | str, **sizes: int) -> int:
        """The smallest number of ranks on each of which it fits.

        Raises:
            MemoryPlanError: it fits on no number, since what every rank holds is more.
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
        """The predicted step. Raises `FormatError` where the device is not known."""
        members = [self._members(m, self._all(sizes)[RANKS]) for m in self.messages]
        return timeline(self._fused(), self.messages, self._own(sizes, own), members, require_device(self.device), self.network)

    def _fused(self) -> Lowered:
        """The calls that a rank makes."""
        if self._lowered is None:
            self._lowered = fuse(lower(self.program.global_block, self.memory.fetch))
        return self._lowered

    def collectives(self, own: Mapping[str, int] | None = None, /, **sizes: int) -> list[Sent]:
        """The collectives of a step, in the order in which they start."""
        ranks, values = self._all(sizes)[RANKS], self._own(sizes, own)
        run = self.timeline(own, **sizes).run if self.device is not None else None
        out: list[Sent] = []
        for at, m in enumerate(self.messages):
            members = self._members(m, ranks)
            count = self._count(m, values) if members > 1 else 0  # a rank alone has nobody to give to
            when = (run.ready[at], run.began[at], run.ended[at]) if run is not None else (0.0, 0.0, 0.0)
            line = m.op.call_site.short() if m.op.call_site is not None else ""
            formula = str(substitute(m.size, self._parts))
            link = round(sent(m.way, count, members))
            out.append(Sent(m.name, m.op.type, m.way, count, formula, link, line, m.starts, m.needed, *when))
        return out

    def sent(self, own: Mapping[str, int] | None = None, /, **sizes: int) -> dict[str, int]:
        """The bytes that a rank gives to each type of collective in a step."""
        out: dict[str, int] = {}
        for one in self.collectives(own, **sizes):
            out[one.type] = out.get(one.type, 0) + one.bytes
        return out

    # --- helpers

    def _members(self, m: Message, ranks: int) -> int:
        """How many ranks a message goes to."""
        return {TENSOR: self.degree, DATA: ranks // self.degree}.get(m.ring, ranks)

    def _count(self, m: Message, own: Mapping[str, int]) -> int:
        missing = sorted(symbols_of(m.size) - own.keys())
        if missing:
            raise SchemaError(f"what {m.name} has to send depends on {', '.join(missing)}: give {'it a value' if len(missing) == 1 else 'them values'}")
        return evaluate(m.size, own)

    def _all(self, sizes: Mapping[str, int]) -> dict[str, int]:
        found = {**self.sizes, **sizes}
        ranks = found.get(RANKS, 1)
        if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= _MOST:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError(f"the number of ranks is from 1 to {_MOST:,}; seen {ranks!r}")
        if ranks % self.degree:
            raise SchemaError(f"{ranks} ranks cannot be divided into groups of {self.degree}, each of which has the parts of the layers")
        return {**found, RANKS: ranks}

    def _own(self, sizes: Mapping[str, int], own: Mapping[str, int] | None = None) -> dict[str, int]:
        """The sizes of the rank with the largest part; ``ranks`` as the program has it, which is that of groups with examples of their own."""
        values = self._all(sizes)
        ranks = values[RANKS] = values[RANKS] // self.degree
        if own is not None:
            return {**values, **own, RANKS: ranks}
        if "batch" in values and "batch" not in self.memory.symbols:
            for name in self.memory.leading:
                values.setdefault(name, values["batch"])
        return {n: -(-v // ranks) if n in self.shared else v for n, v in values.items()}

    def __repr__(self) -> str:
        return shown.text(self)

    def _repr_html_(self) -> str:
        return shown.html(self)


def _part(name: str, degree: int) -> Size:
    """What a rank has of what is divided over groups of so many ranks."""
    return ceildiv(symbol(name) * degree, symbol(RANKS))


def _shared(program: Program) -> frozenset[str]:
    """The symbols that count the examples, sequences or rows of what is fed."""
    out: set[str] = set()
    for v in program.global_block.vars.values():
        if is_given(v) and not v.persistable and v.value is None and v.name != COUNTS and v.spec.dims:
            counts = [v.spec.dims[0], *(v.spec.lod.counts if v.spec.lod is not None else ())]
            out.update(n for size in counts if is_symbol(size) for n in symbols_of(size))
    return frozenset(out)


def loss_of(program: Program) -> str:
    """The loss that a training program minimises. Raises `SchemaError` where it does not say."""
    for op in program.global_block.ops:
        if op.role & Role.LOSS and not op.role & Role.BACKWARD:
            return next(iter(op.output_names()))
    raise SchemaError("the program has no loss: plan it for ranks after minimize(), or name the loss")


@overload
def plan(
    program: Program | Trained, fetch: Iterable[Variable | str] | Variable | str = (), *, lengths: Mapping[str, Sequence[int]] | None = None
) -> Plan: ...  # fmt: skip


@overload
def plan(
    program: Program | Trained, fetch: Iterable[Variable | str] | Variable | str = (), *, ranks: int, within: int | str | None = None,
    network: Network | None = None, device: Any = None, threads: int = 1, strategies: Sequence[Strategy] = (), loss: Variable | str | None = None,
    accumulate: int = 1, lengths: None = None, **sizes: int,
) -> RanksPlan: ...  # fmt: skip


def plan(
    program: Program | Trained, fetch: Iterable[Variable | str] | Variable | str = (), *, ranks: int | None = None, within: int | str | None = None,
    network: Network | None = None, device: Any = None, threads: int = 1, strategies: Sequence[Strategy] = (), loss: Variable | str | None = None,
    accumulate: int = 1, lengths: Mapping[str, Sequence[int]] | None = None, **sizes: int,
) -> Plan | RanksPlan:  # fmt: skip
    """What a program needs when it is run for these fetches (a saved network's own, where they are left out): memory, as numbers and as a
    formula. For many ranks also what each sends and waits for, and how long a step takes: ``fs.plan(program, ranks=64, batch=4096)``.

    Where nothing is fetched, and running would change nothing, it is planned for what its last ops give.

    Args:
        program: a program, or what `training_program` gives, which is planned as it runs: with gradients gathered and a loss scaled, if it has
            them. It stays as it is.
        fetch: variables or names.
        ranks: how many ranks train or use the program.
        within: the memory of a rank, in bytes or as "16 GiB".
        network: the links between them; 25 Gb/s and 30 microseconds where it is left out.
        device: a calibration or its file, or rates as ``"150TFLOPS:2TB/s"``; this machine, if it was calibrated, where it is left out.
        threads: of a calibrated machine, how many each rank has.
        strategies: those to choose from; the best is that with the shortest step, or the lowest peak where times are not known, of those that
            fit. `data_parallel` where they are left out. A program without updates is used, each rank on its part of the batch.
        loss: where the program does not say.
        accumulate: how many batches make one update, as `train` has it. What is planned is the step of the last of them, which updates.
        lengths: of a plan without ranks: ragged input -> the lengths of its sequences, for which it is then made, and no bound over all lengths. For
            one rank with its own sequences plan what it runs: ``plan(ranks_plan.program, ranks_plan.loss, lengths=...)``.
        sizes: of the whole step, which are divided over the ranks: ``batch``, and of ragged inputs the words. All others are alike on every rank.

    Raises:
        MemoryPlanError: an operator that is not known here. DescriptionError: the program has mistakes, or cannot be trained by ranks so.
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
        if within is not None or network is not None or device is not None or strategies or loss is not None or sizes:
            raise SchemaError("what a step sends, and how long it takes, is planned for a number of ranks: give ranks=")
        return plan_memory(program, fetch, lengths)
    if lengths is not None:
        raise SchemaError("lengths= is for a plan without ranks=: the sequences of one rank are others than those of the next")
    on, links = device_of(device, threads), network if network is not None else Network.of()
    wanted = (fetch,) if isinstance(fetch, (str, Variable)) else tuple(fetch)
    trains = loss is not None or bool(strategies) or any(op.role & _TRAINS for op in program.global_block.ops)
    if not trains:
        return RanksPlan(program, "", Inference(), {RANKS: ranks, **sizes}, links, on, wanted)
    if wanted:
        raise SchemaError("a program that trains is planned for its loss: fetch= is for a plan without ranks, or of a program without updates")
    name = loss_of(program) if loss is None else loss if isinstance(loss, str) else loss.name
    made = [RanksPlan(program, name, one, {RANKS: ranks, **sizes}, links, on, (), ungathered) for one in strategies or (data_parallel(),)]
    best = made[0] if len(made) == 1 else min(made, key=lambda one: _rank(one, within))
    for one in made:
        one.alternatives = [best, *(other for other in made if other is not best)]
    return best


def _rank(one: RanksPlan, within: int | str | None) -> tuple[bool, float, int]:
    peak = one.peak()
    over = within is not None and peak > bytes_of(within)
    return over, float(peak) if over or one.device is None else one.timeline().seconds, peak
