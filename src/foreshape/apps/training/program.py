"""The facts of a program for training: the loss as one number, the updates, the values to initialise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from foreshape.core.spec import SELECTED_ROWS
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import ExecutionError
from foreshape.language.operator.computations import Reduction, Scaling
from foreshape.language.program import Op, Program, Role, Variable, program_guard
from foreshape.layer import mean
from foreshape.optimizer import Optimizer
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.feeding.state_checks import compare_spec
from foreshape.transforms.passes.prune import for_step


def infer_shape(y: Variable) -> Variable:
    """Infer again the ops behind a variable, one by one, as `Program.infer` does for all.

    Args:
        y: the variable.

    Returns:
        The variable itself.

    Raises:
        DescriptionError: the first op refused by its operator, with the user's lines.
    """
    y.block.program.refresh()
    for op in depended_on(y):
        op.block.infer_op(op)
    return y


def depended_on(y: Variable) -> list[Op]:
    """Return the ops behind a variable, in program order; ops of a sub-block come before the op that runs it."""
    program = y.block.program
    needed = {y.name}
    out: list[Op] = []

    def walk(ops: Sequence[Op], all_of: bool) -> None:
        for op in reversed(ops):
            if op.operator is None or not (all_of or any(n in needed for n in op.output_names())):
                continue
            out.append(op)
            needed.update(op.input_names())
            for index in op.sub_block_indices():
                walk(program.blocks[index].ops, True)

    block = y.block
    walk(block.ops, False)
    while (parent := block.parent) is not None and parent is not block:
        block = parent
        walk(block.ops, False)
    return out[::-1]


def scalar_loss(cost: Variable, startup: Program) -> Variable:
    """Return the cost itself if it is one number, otherwise its mean (appended once)."""
    if cost.spec.dims is not None and all(d == 1 for d in cost.spec.dims):
        return cost
    block = cost.block
    for op in block.ops:
        if op.computes(Reduction) == Reduction("AVERAGE") and op.operand(0) == cost.name:
            result = block.find(op.result())
            if result is not None:
                return result
    with program_guard(block.program, startup):
        return mean(cost)


def has_updates(program: Program) -> bool:
    """Tell whether a program has the updates of an optimizer."""
    return any(op.role & Role.OPTIMIZE for op in program.all_ops())


def rate_of(program: Program) -> Variable | None:
    """Return the learning rate of a program's updates; None if there is none, or several that are not multiples of one."""
    rates: set[str] = set()
    for op in program.all_ops():
        if op.role & Role.OPTIMIZE and (name := op.input("LearningRate")) is not None:
            variable = op.block.find(name)
            # a parameter's own factor is a scale among the updates; the schedule's are its own
            while variable is not None and variable.op is not None and variable.op.computes(Scaling) and variable.op.role & Role.OPTIMIZE:
                variable = variable.op.block.find(variable.op.operand(0))
            if variable is not None:
                rates.add(variable.name)
    return program.global_block.find(rates.pop()) if len(rates) == 1 else None


def optimizer_made(optimizer: Optimizer, program: Program) -> bool:
    """Tell whether an optimizer has appended its updates to this program."""
    return any(v.block.program is program for v in optimizer._owner.rates.values())  # pyright: ignore[reportPrivateUsage]


def initialise_missing(executor: Executor, program: Program, startup: Program, scope: Scope) -> None:
    """Run the startup program, and take from it the values missing in the scope; present values are kept.

    Raises:
        ExecutionError: the scope holds a value of another shape or element type than described.
    """
    state = persistables(program)
    for variable in state:
        if variable.name in scope:
            held: Any = scope.tensor(variable.name)
            if isinstance(held, Rows) or variable.kind is SELECTED_ROWS:
                compare_spec(variable.name, variable.spec, held)
                continue
            if not _fits(variable, held):
                spec = f"{dtype_of_torch(held.dtype).short}{list(held.shape)}"
                raise ExecutionError(f"{variable.name} must be {variable.spec.text()}; the scope holds {spec}: give each network a Scope of its own")
    missing = [v.name for v in state if v.name not in scope]
    if missing:
        first, random_state = Scope(), executor.random_state()
        executor.run(startup, scope=first)
        random = {n for op in startup.all_ops() if op.operator is not None and op.operator.random for n in op.output_names()}
        if not random.intersection(missing):  # drawn numbers are not taken: the run continues with the next ones
            executor.set_random_state(random_state)
        described = {v.name: v for v in state}
        tensors = {name: first.tensor(name) for name in missing if name in first}
        for name, tensor in tensors.items():
            if not _fits(described[name], tensor):
                spec = f"{dtype_of_torch(tensor.dtype).short}{list(tensor.shape)}"
                raise ExecutionError(
                    f"{name} must be {described[name].spec.text()}; the startup program makes {spec}, of another network: give this one a "
                    "startup program of its own, with fs.program() or fs.program_guard(main, startup)"
                )
        for name, tensor in tensors.items():
            scope.store(name, tensor)


def _fits(variable: Variable, tensor: Any) -> bool:
    """Tell whether a value has the described dims and element type."""
    if isinstance(tensor, Rows):
        return variable.kind is SELECTED_ROWS
    sizes = zip(variable.packed_dims, tensor.shape, strict=False)
    return tensor.dim() == variable.spec.rank and dtype_of_torch(tensor.dtype) is variable.dtype and all(d in (-1, s) for d, s in sizes)


_STEPS: WeakKeyDictionary[Program, dict[tuple[str, ...], tuple[int, Program]]] = WeakKeyDictionary()
"""By program and fetches: its version, and the program of a step."""


def of_step(program: Program, fetches: Sequence[str]) -> Program:
    """Return a program of the ops behind a step's fetches and updates: the others ask nothing of the data (`foreshape.transforms.passes.prune.for_step`)."""
    steps, names = _STEPS.setdefault(program, {}), tuple(fetches)
    version, step = steps.get(names, (-1, program))
    if version != program.version:
        step = for_step(program, names)
        if step is program:  # not kept alive by its own key
            return program
        for old in [n for n, (number, _) in steps.items() if number != program.version]:
            del steps[old]
        steps[names] = program.version, step
    step.random_seed = program.random_seed
    return step


def persistables(program: Program) -> list[Variable]:
    """Return the tensors that outlive a step: parameters, state, statistics; without the variables of feed and fetch."""
    return [v for v in program.global_block.vars.values() if v.persistable and v.spec.dims is not None]


def network_values(program: Program) -> list[str]:
    """Return the values kept by a network itself, parameters and statistics; not those of updates and schedules alone."""
    network: set[str] = set()
    for op in program.all_ops():
        if not op.role & (Role.OPTIMIZE | Role.LEARNING_RATE):
            network |= {*op.input_names(), *op.output_names()}
    return [v.name for v in persistables(program) if v.name in network]
