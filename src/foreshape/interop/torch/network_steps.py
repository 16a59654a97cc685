"""`NetworkSteps`: the compiled halves of a network that is a module of torch, for training and for evaluation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any, Final
from weakref import WeakValueDictionary

from foreshape.core.spec import LOD_TENSOR
from foreshape.errors import SchemaError
from foreshape.language.program import Program
from foreshape.language.program.dropping import drop_blocks, drop_variables
from foreshape.language.program.needed import needed_ops
from foreshape.runtime.engine.halved_step import HalvedStep, HalvingExecutor
from foreshape.transforms.backward import GRAD, append_backward_of
from foreshape.transforms.passes.forward_and_back import LATER
from foreshape.transforms.passes.prune import for_test


@dataclass(slots=True)
class NetworkStep:
    """A forward pass, and its backward pass to certain parameters and inputs.

    Attributes:
        step: the two halves; the second has nothing to compute where no gradients are wanted.
        wanted: the names of parameters and inputs with gradients.
        gradients: for each of them the place of its gradient among the second half's results; None if no result depends on it.
        reach: result -> the wanted ones that it depends on.
        refused: result -> the reason why it has no gradient.
        fed: the places of results whose gradients the second half takes, in its order.
    """

    step: HalvedStep
    wanted: tuple[str, ...]
    gradients: list[int | None]
    reach: dict[str, set[str]]
    refused: dict[str, SchemaError]
    fed: list[int]


@dataclass(slots=True, weakref_slot=True, eq=False)
class NetworkSteps:
    """The programs of a network and their compiled steps; shared by copies of its module.

    Attributes:
        program: the forward pass, as in training.
        feeds: the names of its inputs, in order.
        results: the names of its results, in order.
        key: its name in the graphs of torch.
    """

    program: Program
    feeds: list[str]
    results: list[str]
    key: str = ""
    _made: dict[Any, NetworkStep] = field(default_factory=dict[Any, NetworkStep], repr=False)
    _test: Program | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.key = sha256("\0".join((self.program.to_bytes().hex(), *self.feeds, "", *self.results)).encode()).hexdigest()[:16]
        _KNOWN[self.key] = self

    def __deepcopy__(self, memo: object) -> NetworkSteps:
        return self

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _opened, (self.program.to_bytes(), self.feeds, self.results)

    def of(self, training: bool) -> Program:
        """Return the program for training or for evaluation."""
        if training:
            return self.program
        if self._test is None:
            self._test = for_test(self.program)
        return self._test

    def held(self) -> list[str]:
        """Return the names of the scope's values that the network reads or writes, in the order of their description."""
        block = self.program.global_block
        used: set[str] = set(self.results)
        for op in needed_ops(block, self.results):
            used |= op.all_reads() | op.all_writes()
        return [n for n, v in block.vars.items() if v.persistable and n in used and v.kind is LOD_TENSOR and v.value is None]

    def step(self, training: bool, wanted: tuple[str, ...], device: str) -> NetworkStep:
        """Return the step for a mode, for gradients of these parameters and inputs."""
        key = training, wanted, device
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._compiled(self.of(training).clone(), wanted, executor_on(device))
        return found

    def _compiled(self, program: Program, wanted: tuple[str, ...], executor: HalvingExecutor) -> NetworkStep:
        results = [program.global_block.var(n) for n in dict.fromkeys(self.results)]
        gradients, reach, refused = append_backward_of(results, wanted) if wanted else ({}, {}, {})
        fed = [at for at, n in enumerate(self.results) if n in reach]
        made = list(dict.fromkeys(gradients.values()))
        program.refresh()
        step = executor.halved(program, self.results, made, [self.results[at] + GRAD for at in fed])
        order = [v.name for v in step.halves.back.feeds]
        fed.sort(key=lambda at: order.index(self.results[at] + GRAD) if self.results[at] + GRAD in order else len(order))
        return NetworkStep(step, wanted, [made.index(gradients[n]) if n in gradients else None for n in wanted], reach, refused, fed[: len(order)])


_KNOWN: Final[WeakValueDictionary[str, NetworkSteps]] = WeakValueDictionary()


def known_network(key: str) -> NetworkSteps | None:
    """Return a network of this process by its key."""
    return _KNOWN.get(key)


def forward_of(program: Program, keep: Collection[str]) -> Program:
    """Return a copy without gradients and updates."""
    out = program.clone()
    for block in out.blocks:
        block.ops = [op for op in block.ops if not op.role & LATER]
    drop_blocks(out)
    drop_variables(out, {*keep, *(n for n, v in out.global_block.vars.items() if v.need_check_feed)})
    out.touch()
    return out


@cache
def executor_on(device: str) -> HalvingExecutor:
    """Return the executor of modules on a device."""
    return HalvingExecutor(device)


def _opened(data: bytes, feeds: Sequence[str], results: Sequence[str]) -> NetworkSteps:
    return NetworkSteps(Program.from_bytes(data), list(feeds), list(results))
