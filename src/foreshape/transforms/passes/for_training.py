"""A saved network made ready for training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeAlias

from foreshape.core.spec import LOD_TENSOR
from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.fields import Gradient, NoGradient
from foreshape.language.program import Op, Program, Variable
from foreshape.transforms.passes.contract import BLOCKS_IN_USE, KNOWN_OPERATORS, NO_TRAINING, contract
from foreshape.transforms.passes.prune import for_test, prune

Statistics: TypeAlias = Literal["fixed", "moving"]
Frozen: TypeAlias = "bool | str | Sequence[str]"

_MODES: Final = ("fixed", "moving")
_FOR_TRAINING: Final = contract("for_training", [KNOWN_OPERATORS], [NO_TRAINING, BLOCKS_IN_USE])
_SUMS: Final = {"data_norm": frozenset({"BatchSize", "BatchSum", "BatchSquareSum"})}
"""Operands whose gradients are no derivatives but new statistics, added by no optimizer here."""


def for_training(
    program: Program, feeds: Iterable[Variable | str], fetches: Iterable[Variable | str], *, frozen: Frozen = False, statistics: Statistics = "fixed"
) -> Program:
    """Return a copy with the ops behind the fetches and with tensors as parameters; without feed, fetch, gradients and updates.

    The parameters are the ones marked in the file, if any; otherwise each persistable tensor of floats with a derivative and without a writer.
    So moving means and variances, scales of quantization and tables of numbers are none.

    Args:
        program: as saved; left as it is.
        feeds, fetches: as for `prune`.
        frozen: the parameters to leave unchanged: all (True), none, or by names (``"conv*"``, a list of these).
        statistics: "fixed": normalization uses the file's moving mean and variance, in training as in a test, and
            leaves them. "moving": it uses the batch's own, and updates the moving ones; for batches both large and representative.

    Dropout in training is as before the network was saved, unless all is frozen.

    Raises:
        SchemaError: an unknown operator, a name unknown to the program, a pattern without a parameter, or another
        ``statistics``; all frozen together with moving statistics.
    """
    if statistics not in _MODES:
        raise SchemaError.one_of("statistics", _MODES, statistics)
    if frozen is True and statistics == "moving":
        raise SchemaError("what is frozen keeps its statistics: leave statistics='moving' or frozen=True out")
    out = prune(for_test(program), feeds, fetches)

    def change(copy: Program) -> bool:
        fixed = statistics == "fixed"
        for op in copy.all_ops():
            _set_training(op, fixed, frozen is True)
        read = {n for op in copy.all_ops() for n in op.input_names()}
        for variable in copy.global_block.vars.values():
            if not variable.persistable and variable.op is None and variable.name in read:
                variable.need_check_feed = variable.stop_gradient = True
        mark_parameters(copy, frozen)
        return True

    return _FOR_TRAINING.run(out, change).program


def _set_training(op: Op, fixed: bool, all_frozen: bool) -> None:
    operator = op.operator
    if operator is None or "is_test" not in operator.schema.attributes or isinstance(operator.gradient, NoGradient):
        return
    moves = any(r.updates for r in operator.schema.results)
    tests = fixed if moves else operator.random and all_frozen
    changed = {"is_test": tests} if tests or not moves else {"is_test": False, "use_global_stats": False, "trainable_statistics": False}
    entries = tuple((n, t, changed[n] if n in changed and t is AttrType.BOOLEAN else v) for n, t, v in op.attributes.entries)
    if entries != op.attributes.entries:
        op.attributes = Attributes.of(op.type, entries)


def mark_parameters(program: Program, frozen: Frozen = False) -> None:
    """Mark the tensors of a program as parameters where none is; ``frozen``: the ones that are not trained, as for `for_training`."""
    block = program.global_block
    if not any(v.is_parameter for v in block.vars.values()):
        written = {n for op in program.all_ops() for n in op.output_names()}
        for name in _differentiated(program) - written:
            variable = block.vars.get(name)
            if variable is not None and variable.persistable and variable.kind is LOD_TENSOR and variable.spec.known_dtype.is_floating:
                variable.is_parameter = True
    patterns = () if isinstance(frozen, bool) else (frozen,) if isinstance(frozen, str) else tuple(frozen)
    parameters = program.parameters()
    for pattern in patterns:
        if not any(fnmatchcase(v.name, pattern) for v in parameters):
            names = ", ".join(v.name for v in parameters[:8]) + (", ..." if len(parameters) > 8 else "")
            raise SchemaError(f"frozen: no parameter is called {pattern!r}; they are: {names or 'none'}")
    for variable in parameters:
        stays = frozen is True or any(fnmatchcase(variable.name, p) for p in patterns)
        variable.trainable = variable.trainable and not stays
        variable.stop_gradient = variable.stop_gradient or not variable.trainable


def _differentiated(program: Program) -> set[str]:
    """Return the names read by ops with a gradient for them."""
    out: set[str] = set()
    for op in program.all_ops():
        operator = op.operator
        gradient = operator.gradient if operator is not None else None
        if operator is None or isinstance(gradient, NoGradient):
            continue
        slots = {s.removesuffix("@GRAD") for s in gradient.gives} if isinstance(gradient, Gradient) else set(op.inputs)
        for slot in slots - _SUMS.get(op.type, frozenset()):
            out.update(op.inputs.get(slot, ()))
    return out
