"""Inference through nested blocks: the results of a block are used again for equal inputs, and the work is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from foreshape.core.dims import Size
from foreshape.core.spec import Spec
from foreshape.language.infer.loop_state import GRAD
from foreshape.language.infer.rules import Answer
from foreshape.language.program.block import Block
from foreshape.language.program.guards import Guard
from foreshape.language.program.names import blocks_of
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program
from foreshape.language.program.unknown import is_unknown, with_inner
from foreshape.language.program.variable import Variable

MAX_VISITS = 100_000
"""So many ops of blocks are inferred for one outermost op in any case,"""
MAX_VISITS_PER_OP = 50
"""and so many for each op of the program: loops with more rounds do not converge."""

_MOST_ROUNDS_IN_DOUBT = 8
"""The largest number of repeated inferences of an op while more of its blocks' results become unknown; then all of them are unknown."""


class _WalkedBlocks(NamedTuple):
    """The inputs of an op's blocks, and the variables around them afterwards."""

    came: list[tuple[Spec, bool]]
    known_sizes: dict[str, Size]
    left: list[tuple[Spec, bool]]
    guards: list[Guard]
    answer: Answer


class Walk:
    """The inference of one outermost op with blocks, and of all ops within.

    A loop's block is inferred round by round, and so are the loops in it in each of these rounds. From scratch this would take 2 to the depth. So an op
    is not inferred again for equal inputs of its blocks. A loop entered again begins with
    symbols for the sizes known to change from round to round: each becomes one once. The rounds of a loop are then at most one more than the changing
    sizes in it and around it. The work is at most the depth times the number of ops.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.visits = 0
        self._limit = 0
        self._found: dict[Op, _WalkedBlocks] = {}
        self._around: dict[Op, list[Variable]] = {}
        self.settled: dict[tuple[Op, str], Spec] = {}
        """A loop and a carried name -> its last spec at the loop's fixed point."""

    def visit(self, block: Block) -> None:
        """Count the ops of a block about to be inferred."""
        self.visits += len(block.ops)

    def is_spent(self) -> bool:
        """Tell whether more ops were inferred than convergent rounds could need."""
        if self.visits <= MAX_VISITS:
            return False
        if not self._limit:
            self._limit = MAX_VISITS + MAX_VISITS_PER_OP * sum(len(block.ops) for block in self.program.blocks)
        return self.visits > self._limit

    def through(self, op: Op, infer: Callable[[Op], Answer]) -> Answer:
        """Return the answer of ``infer``, or the last one if nothing has changed since."""
        program = self.program
        version, around = program.version, self._variables_around(op)
        came = [(v.spec, v.known) for v in around]
        guards = program.inference.guards
        known_sizes = dict(guards.known.items())
        entry = self._found.get(op)
        if entry is not None and entry.came == came and entry.known_sizes == known_sizes:
            for variable, (spec, is_known) in zip(around, entry.left, strict=True):
                if variable.spec is not spec and variable.op is not None and variable.op is not op:
                    variable.op.made.setdefault(variable.name, variable.spec)
                variable.inferred_spec, variable.known = spec, is_known
            for guard in entry.guards:
                guards.add(guard.condition, guard.op_type, guard.call_site)
            return entry.answer
        guard_count = len(guards)
        answer = infer(op)
        if program.version != version:  # new variables may be among those around
            self._around.clear()
            self._found.pop(op, None)
            return answer
        added = program.inference.guards.list()[guard_count:]
        self._found[op] = _WalkedBlocks(came, known_sizes, [(v.spec, v.known) for v in around], added, answer)
        return answer

    # --- variables around

    def _variables_around(self, op: Op) -> list[Variable]:
        """Return the variables outside of an op's blocks named by it or an op within: its inputs and results."""
        variables = self._around.get(op)
        if variables is None:
            out: dict[Variable, None] = {}
            blocks = blocks_of(op)
            _add(out, op, op.block)
            for block in blocks:
                _add_states(out, op, block)
                for inner in block.ops:
                    if inner.attributes.sub_blocks:
                        out.update(dict.fromkeys(self._variables_around(inner)))
                    else:
                        _add(out, inner, block)
            variables = self._around[op] = [v for v in out if v.block not in blocks]
        return variables


def _add(out: dict[Variable, None], op: Op, block: Block) -> None:
    for name in (*op.input_names(), *op.output_names()):
        _add_name(out, name, block)


def _add_states(out: dict[Variable, None], op: Op, block: Block) -> None:
    """Add the names of a recurrence's states in its block."""
    for attribute in ("ex_states", "states"):
        names = op.attributes.values.get(attribute)
        for name in names if isinstance(names, (list, tuple)) else ():  # pyright: ignore[reportUnknownVariableType]
            if isinstance(name, str):
                _add_name(out, name, block)


def _add_name(out: dict[Variable, None], name: str, block: Block) -> None:
    """Add a variable, and for a gradient its forward variable."""
    for part in (name, name.partition(GRAD)[0]) if GRAD in name else (name,):
        variable = block.find(part)
        if variable is not None:
            out[variable] = None


def walk_block(block: Block) -> None:
    """Infer the ops of a block in order; variables that depend on an unknown operator are marked so."""
    walk = block.program.inference.walk
    if walk is not None:
        walk.visit(block)
    uncertain = block.program.inference.uncertain
    _doubt(block.program.inference.doubtful or ())
    for op in block.ops:
        if uncertain and (is_unknown(op) or any(not v.known for v in op.input_variables())):
            mark_unknown(op)
        else:
            infer_in_doubt(op)


def infer_in_doubt(op: Op) -> None:
    """Infer one op of a program with unknown specs.

    Results of its blocks behind an unknown operator stay marked so, and the blocks' reads of them in another round are unknown, too.
    """
    block = op.block
    program = block.program
    if not program.inference.uncertain or not op.attributes.sub_blocks:
        block.infer_op(op)
        return
    operator = op.attributes.operator
    if operator is not None and operator.region not in ("while", "conditional") and any(map(is_unknown, with_inner([op]))):
        mark_unknown(op)  # names do not tell the dependent results
        return
    outermost = program.inference.doubtful is None
    doubtful = program.inference.doubtful = set() if program.inference.doubtful is None else program.inference.doubtful
    try:
        for _ in range(_MOST_ROUNDS_IN_DOUBT):
            count = len(doubtful)
            block.infer_op(op)
            _doubt(doubtful)
            if count == len(doubtful):
                return
        mark_unknown(op)
    finally:
        if outermost:
            program.inference.doubtful = None


def _doubt(variables: Iterable[Variable]) -> None:
    for variable in variables:
        variable.known = False


def mark_unknown(op: Op) -> None:
    """Mark the results of an op, and of its blocks, as unknown."""
    for index in op.sub_block_indices():
        for inner in op.block.program.blocks[index].ops:
            mark_unknown(inner)
    for name in op.output_names():
        variable = op.block.find(name)
        if variable is not None and not variable.persistable:
            variable.known = False
            if op.block.program.inference.doubtful is not None and variable.block is not op.block:
                op.block.program.inference.doubtful.add(variable)
