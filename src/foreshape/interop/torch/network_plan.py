"""The memory of a network of torch, told for eager torch and for Foreshape's own step apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from foreshape import layer
from foreshape.compiler.memory import Plan, byte_text, bytes_of
from foreshape.compiler.memory.records import INPUTS, PARAMETERS, STATE
from foreshape.core.dims import is_symbol, symbols_of
from foreshape.core.pictures.markup import card, cut, markup_table, preformatted
from foreshape.errors import MemoryPlanError, SchemaError
from foreshape.interop.torch.eager_memory import EagerMemory
from foreshape.interop.torch.torch_model import TorchModel, from_torch
from foreshape.language.program import Program, Variable, program_guard
from foreshape.optimizer import Optimizer
from foreshape.optimizer.groups import frozen_names
from foreshape.transforms.backward import append_backward

_MOST = 1 << 32
"""No larger size is looked for."""
_WIDTH = 200
"""Characters of a line at a prompt."""


class LargestSize(NamedTuple):
    """The largest size within a number of bytes, or why it is not told: of eager torch, and of Foreshape's own step on a processor."""

    eager: int | str
    ours: int | str
    name: str
    within: int

    def __repr__(self) -> str:
        told = [f"{found:,}" if isinstance(found, int) else f"not told ({found})" for found in (self.eager, self.ours)]
        return f"{self.name} within {byte_text(self.within)}: {told[0]} in eager torch, {told[1]} in Foreshape's step on a processor"


class NetworkPlan:
    """The memory of a call or of a training step of a network of torch: in eager torch, and in Foreshape's own step on a processor, apart.

    Attributes:
        model: the network as a program.
        program: Foreshape's: the network, or with an optimizer its training step.
        startup: makes the first values of the optimizer's state; empty for a call.
        optimizer: None for a call.
        sizes: the values of the open sizes in the example.
    """

    def __init__(self, model: TorchModel, optimizer: Optimizer | None, sizes: Mapping[str, int]) -> None:
        self.model, self.optimizer, self.sizes = model, optimizer, dict(sizes)
        self.program, self._fetch, self._state = model.program, [v.name for v in model.fetches], 0
        self.startup, self._refused = Program(), ""
        if model.missing:
            self._refused = f"operators of torch have no form here: {', '.join(model.missing)}"
        elif optimizer is not None:
            self.program, self.startup, loss = _training(model, optimizer)
            self._fetch = [loss]
            self._state = _state_bytes(self.program, model.program)
        self._frozen = frozenset(() if optimizer is None else frozen_names(model.program, optimizer.freeze))
        self._ours: Plan | None = None
        self._eager: dict[tuple[tuple[str, int], ...], EagerMemory] = {}

    @property
    def ours(self) -> Plan:
        """Return the plan of Foreshape's own step, on a processor. Raises `MemoryPlanError` where the network has operators without a form here."""
        if self._refused:
            raise MemoryPlanError(f"the memory of Foreshape's step cannot be told: {self._refused}")
        if self._ours is None:
            self._ours = Plan(self.program, self._fetch)
        return self._ours

    def eager(self, **sizes: int) -> EagerMemory:
        """Return the memory predicted for eager torch on a processor, at the example's sizes where no others are given.

        The training step is ``zero_grad``, the network, its loss, ``backward``, and the update of torch's optimizer of this kind.

        Raises:
            MemoryPlanError: a size is missing, or torch refuses these; sizes told by values alone.
        """
        values = self._values(sizes)
        key = tuple(sorted(values.items()))
        if key not in self._eager:
            self._eager[key] = self.model.eager.at(values, self.optimizer, self._state, self._frozen)
        return self._eager[key]

    def largest(self, name: str, /, within: int | str, **sizes: int) -> LargestSize:
        """Return the largest value of an open size, as "batch", within so many bytes, in eager torch and in Foreshape's step.

        Raises:
            MemoryPlanError: the network has no such open size.
        """
        limit = bytes_of(within)
        if not self.meaning(name):
            there = ", ".join(sorted(self.symbols)) or "none"
            raise MemoryPlanError(f"the network has no open size {name}; its open sizes are: {there}")
        others = {n: v for n, v in {**self.sizes, **sizes}.items() if n not in self.meaning(name)}
        eager: int | str
        ours: int | str
        try:
            eager = self._largest_eager(name, limit, others)
        except MemoryPlanError as error:
            eager = str(error)
        try:
            ours = self.ours.largest(name, limit, **others)
        except MemoryPlanError as error:
            ours = str(error)
        return LargestSize(eager, ours, name, limit)

    # --- helpers

    def _largest_eager(self, name: str, limit: int, others: Mapping[str, int]) -> int:
        """Return the largest size within a limit: by the line between a size within it and one beyond, as memory grows evenly."""

        def peak(size: int) -> int:
            return self.eager(**others, **dict.fromkeys(self.meaning(name), size)).peak

        fits, held = 0, 0
        fails = max((self.sizes.get(n, 1) for n in self.meaning(name)), default=1)
        while (over := peak(fails)) <= limit:
            if fails >= _MOST:
                raise MemoryPlanError(f"the memory does not depend on {name}, up to {_MOST:,}")
            slope = (over - held) / (fails - fits) if fits else over / fails
            fits, held = fails, over
            fails = min(max(2 * fails, fits + 1 + int((limit - over) / slope) if slope else 0), _MOST)
        halves = False
        while fails - fits > 1:
            width = fails - fits
            at = fits + max(1, min(width // 2 if halves or not fits else int((limit - held) * width / (over - held)), width - 1))
            size = peak(at)
            if size <= limit:
                fits, held = at, size
            else:
                fails, over = at, size
            if fails - fits > 1 and fits == at and peak(at + 1) > limit:
                break
            halves = 2 * (fails - fits) > width
        if not fits:
            raise MemoryPlanError(f"with {name} = 1 it needs {byte_text(peak(1))}, which is more than {byte_text(limit)}")
        return fits

    @property
    def symbols(self) -> frozenset[str]:
        """Return the names of the open sizes."""
        return frozenset(n for dims in self.model.eager.feeds for d in dims for n in symbols_of(d))

    def meaning(self, name: str) -> list[str]:
        """Return the open sizes meant by a name: "batch" is the first sizes of all inputs, where none is called so."""
        if name in self.symbols:
            return [name]
        return [str(dims[0]) for dims in self.model.eager.feeds if dims and is_symbol(dims[0])] if name == "batch" else []

    def _values(self, sizes: Mapping[str, int]) -> dict[str, int]:
        values = dict(self.sizes)
        for name, value in sizes.items():
            values.update(dict.fromkeys(self.meaning(name) or [name], value))
        missing = sorted(self.symbols - values.keys())
        if missing:
            given = ", ".join(f"{n}=..." for n in missing)
            raise MemoryPlanError(f"the memory depends on {', '.join(missing)}: give an example of the inputs, or sizes, as in plan.eager({given})")
        return {n: v for n, v in values.items() if n in self.symbols}

    def lines(self) -> list[str]:
        """Return the two lines about eager torch and about Foreshape's own step at the example's sizes."""
        return [f"{name}: {words}" for name, words in self._rows()]

    def heading(self) -> str:
        """Return the name of the plan, and its sizes."""
        given = ", ".join(f"{n} = {v:,}" for n, v in sorted(self.sizes.items()))
        what = "a call" if self.optimizer is None else f"a training step with {type(self.optimizer).__name__}"
        return f"{what}{' at ' if given else ''}{given}, on a processor"

    def _rows(self) -> list[tuple[str, str]]:
        """Return the words about eager torch and Foreshape, or why nothing is told."""
        try:
            eager = self.eager()
            held = {"parameters": eager.parameters, "optimizer and buffers": eager.state + eager.buffers, "inputs": eager.inputs, "step": eager.step}
            first = _told("predicted", held, eager.line)
        except MemoryPlanError as error:
            first = f"not told: {_first_line(error)}"
        try:
            parts, op = self.ours.breakdown(**self.sizes), self.ours.peak_op(**self.sizes)
            kept = [parts.pop(name) for name in (PARAMETERS, STATE, INPUTS)]
            held = {"parameters": kept[0], "optimizer and buffers": kept[1], "inputs": kept[2], "step": sum(parts.values())}
            site = None if op is None else op.call_site
            second = _told("planned", held, "" if op is None else f"{op.type} {site.short() if site is not None else ''}".rstrip())
        except (MemoryPlanError, SchemaError) as error:
            second = f"not told: {_first_line(error)}"
        return [("eager torch", first), ("Foreshape's step", second)]

    def __repr__(self) -> str:
        return "\n".join(cut(line, _WIDTH) for line in [f"NetworkPlan: {self.heading()}", *(f"  {line}" for line in self.lines())])

    def _repr_html_(self) -> str:
        return card(f"NetworkPlan: {self.heading()}", markup_table(("", ""), self._rows()))


class NetworkSummary:
    """The layers of a network of torch as a table, and two lines about the memory of eager torch and of Foreshape's own step. ``print`` it.

    Attributes:
        table: see `Program.summary`.
        plan: see `NetworkPlan`.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        self.plan = plan
        self.table = plan.model.program.summary(**plan.sizes)

    def __str__(self) -> str:
        return "\n".join([str(self.table), f"the memory of {self.plan.heading()}", *self.plan.lines()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _told(how: str, held: Mapping[str, int], at: str) -> str:
    """Return the peak and its parts, and where it is."""
    parts = ", ".join(f"{byte_text(size)} {what}" for what, size in held.items() if size)
    return f"{byte_text(sum(held.values()))} {how}: {parts}" + (f", most at {at}" if at else "")


def _training(model: TorchModel, optimizer: Optimizer) -> tuple[Program, Program, str]:
    """Return the program of a training step, its startup program, and its loss: the network's, or the sum of its results' means."""
    program, startup = model.program.clone(), Program()
    with program_guard(program, startup):
        loss = program.global_block.vars[model.loss.name] if model.loss is not None else _mean(program, model)
        optimizer.apply(append_backward(loss, no_gradient=frozen_names(program, optimizer.freeze)))
    return program, startup, loss.name


def _mean(program: Program, model: TorchModel) -> Variable:
    results = [program.global_block.vars[v.name] for v in model.fetches if v.spec.known_dtype.is_floating]
    if not results:
        raise SchemaError("a training step needs a result of floats, as a loss is; the network gives none")
    total, *others = [layer.mean(v) for v in results]
    for other in others:
        total = total + other
    return total


def _state_bytes(program: Program, described: Program) -> int:
    """Return the bytes kept by an optimizer for each element of its parameters."""
    before = described.global_block.vars
    added = [v for v in program.global_block.vars.values() if v.persistable and v.name not in before]
    return sum(size for v in added if isinstance(size := v.spec.nbytes, int) and v.spec.elements != 1)


def plan(network: Any, example: Any = None, optimizer: Optimizer | None = None, dynamic: Sequence[Any] | None = None) -> NetworkPlan:
    """Return the memory of a network of torch; see `foreshape.plan`."""
    model = network if isinstance(network, TorchModel) else from_torch(network, example, dynamic)
    return NetworkPlan(model, optimizer, model.sizes if example is None else model.sizes_of(example))
