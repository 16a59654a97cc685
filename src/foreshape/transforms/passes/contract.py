"""The contracts of passes: the conditions on a program before and after each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeAlias

from foreshape.core.data_class import data_class
from foreshape.errors import DescriptionError, SchemaError
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.traits import is_update
from foreshape.language.program import Op, Program, Role
from foreshape.language.program.unknown import is_unknown
from foreshape.transforms.passes.forward_and_back import LATER, shown

Change: TypeAlias = "Callable[[Program], bool]"
"""A function from a program (a copy), which it may change, to True if it did."""
VERIFY = "FORESHAPE_VERIFY_PASSES"
"""The variable of the environment for verified passes: their conditions are checked after each, if it is not empty."""
_contracts: dict[str, Contract] = {}


class ProgramCondition(NamedTuple):
    """A condition on a program.

    Attributes:
        words: the condition, as it is required.
        breach: returns the breach of it in a program, in words; empty if it holds.
        hint: the way to a program without a breach.
    """

    words: str
    breach: Callable[[Program], str]
    hint: str = ""


class PassResult(NamedTuple):
    """The program after a pass: the program itself where the pass had nothing to change."""

    program: Program
    changed: bool


@data_class(frozen=True, eq=False)
class Contract:
    """The contract of a pass, or of a family of passes with settings.

    Attributes:
        requires: the conditions on its program; checked before each application.
        ensures: the conditions on the changed program; checked after it where `VERIFY` is set.
        idempotent: a second application changes nothing.
    """

    name: str
    requires: tuple[ProgramCondition, ...] = ()
    ensures: tuple[ProgramCondition, ...] = ()
    idempotent: bool = False

    def run(self, program: Program, change: Change, label: str = "") -> PassResult:
        """Return the changed copy of a program and True, or the program itself and False.

        Args:
            program: left as it is.
            change: changes the copy.
            label: names the pass in its errors, with its settings.

        Raises:
            SchemaError: a required condition does not hold.
            DescriptionError: the result is inconsistent (a mistake in the pass), or the pass refuses the program.
        """
        for condition in self.requires:
            seen = condition.breach(program)
            if seen:
                hint = condition.hint and f": {condition.hint}"
                error = SchemaError(f"{label or self.name} requires {condition.words}; {seen}{hint}")
                raise error.told(required=condition.words, seen=seen)
        copy = program.clone()
        changed = change(copy)
        if changed:
            copy.touch()
            try:
                copy.infer()
            except DescriptionError as error:
                error.add_note(f"after the pass {self.name}")
                raise
        if os.environ.get(VERIFY):
            self._verify(program, copy, changed)
        return PassResult(copy, True) if changed else PassResult(program, False)

    def _verify(self, program: Program, copy: Program, changed: bool) -> None:
        if not changed and copy.to_bytes() != program.to_bytes():
            raise DescriptionError(f"the pass {self.name} says that it changes nothing, and its program is another")
        for condition in self.ensures if changed else ():
            seen = condition.breach(copy)
            if seen:
                raise DescriptionError(f"the pass {self.name} ensures {condition.words}; {seen}").told(required=condition.words, seen=seen)


def contract(name: str, requires: Iterable[ProgramCondition] = (), ensures: Iterable[ProgramCondition] = (), idempotent: bool = False) -> Contract:
    """Return a contract, known by its name to `contracts`."""
    out = _contracts[name] = Contract(name, tuple(requires), tuple(ensures), idempotent)
    return out


def contracts() -> list[Contract]:
    """Return the contracts of all passes imported so far."""
    return [*_contracts.values()]


# --- conditions


def _later(program: Program, role: int = LATER) -> str:
    """Return the first op of a role, for the words of an error."""
    return next((f"it has {shown(op)}" for op in program.all_ops() if op.role & role), "")


def _without_updates(program: Program) -> str:
    return "" if _later(program, Role.OPTIMIZE) else "the program has no updates"


def _updating(op: Op) -> bool:
    return op.operator is not None and is_update(type(op.operator))


def _conditional(program: Program) -> str:
    for op in program.global_block.ops:
        if op.role & Role.OPTIMIZE and any(_updating(inner) for index in op.sub_block_indices() for inner in program.blocks[index].ops):
            return f"those of {shown(op)} are not"
    return ""


def _unconditional(program: Program) -> str:
    return next((f"{shown(op)} runs in each step" for op in program.global_block.ops if _updating(op)), "")


def _unknown(program: Program) -> str:
    unknown = sorted({op.type for op in program.all_ops() if is_unknown(op)})
    return f"it has {', '.join(unknown[:5])}" if unknown else ""


def _training(program: Program) -> str:
    def trains(op: Op) -> bool:
        return any(n == "is_test" and t is AttrType.BOOLEAN and not v for n, t, v in op.attributes.entries)

    return next((f"{shown(op)} computes as in training" for op in program.all_ops() if trains(op)), "")


def _unrun(program: Program) -> str:
    run = {0, *(index for op in program.all_ops() for index in op.sub_block_indices())}
    return next((f"nothing runs block {block.idx}" for block in program.blocks if block.idx not in run), "")


def _early(program: Program) -> str:
    roles = [op.role for op in program.global_block.ops]
    last = max((index for index, role in enumerate(roles) if role & Role.BACKWARD), default=-1)
    return next((f"{shown(op)} is before the last gradient" for op in program.global_block.ops[:last] if op.role & Role.OPTIMIZE), "")


def _alone(program: Program) -> str:
    return "" if any(op.operator is not None and op.operator.collective for op in program.all_ops()) else "no op speaks with other ranks"


UPDATES = ProgramCondition("updates of parameters", _without_updates, "minimise the loss first")
NO_GRADIENTS = ProgramCondition(
    "a program without gradients", partial(_later, role=Role.BACKWARD | Role.OPTIMIZE), "give it the network as it is before minimize"
)
NO_TRAINING = ProgramCondition("no gradients, no updates", _later)
TEST_BEHAVIOUR = ProgramCondition("ops that compute as in a test", _training)
KNOWN_OPERATORS = ProgramCondition("known operators", _unknown)
UNCONDITIONAL_UPDATES = ProgramCondition(
    "updates that are made in each step",
    _conditional,
    "divide the program without accumulate= and precision='fp16', as fs.train does, which writes these into what a rank runs",
)
CONDITIONAL_UPDATES = ProgramCondition("updates under a condition alone", _unconditional)
BLOCKS_IN_USE = ProgramCondition("blocks that an op runs", _unrun)
UPDATES_LAST = ProgramCondition("updates behind all gradients", _early)
COLLECTIVES = ProgramCondition("sums over the ranks", _alone)
