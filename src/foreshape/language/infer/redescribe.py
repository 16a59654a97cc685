"""New specs for parameters, if they change nothing else in the program."""

from __future__ import annotations

from foreshape.core.spec import Spec
from foreshape.errors import DescriptionError
from foreshape.language.infer.op_inference import key_of
from foreshape.language.infer.rules import Slot, answer, replace_symbols
from foreshape.language.operator.require import RuleError
from foreshape.language.program.op import Op
from foreshape.language.program.variable import Variable

_BRANCHING = ("while", "conditional")


def redescribe(variable: Variable, spec: Spec) -> bool:
    """Change a persistable variable to ``spec``, if of as many elements and if all ops with its name, at least one, keep their results.

    Returns:
        True if it has the spec now; otherwise it is unchanged.
    """
    program = variable.block.program
    program.refresh_quietly()
    previous = variable.spec
    if previous.dims is None or previous.elements != spec.elements:
        return False
    name = variable.name
    ops = [op for op in program.all_ops() if (name in op.input_names() or name in op.output_names()) and op.block.find(name) is variable]
    if not ops or not all(_makes_the_same(op, variable, spec) for op in ops):
        return False
    variable.inferred_spec = spec
    program.touch()
    return True


def _makes_the_same(op: Op, variable: Variable, spec: Spec) -> bool:
    operator = op.operator
    if operator is None or (operator.sub_blocks and operator.region not in _BRANCHING):
        return False
    if operator.sub_blocks:  # it names the reads of its blocks' ops, and these are asked themselves
        return variable.name not in op.output_names()
    previous = variable.spec
    try:
        old_results = _results(op)
        variable.inferred_spec = spec
        then = _results(op)
    except (DescriptionError, RuleError):
        return False
    finally:
        variable.inferred_spec = previous
    for result, old, new in zip(operator.schema.results, old_results, then, strict=True):
        names = op.outputs.get(result.name)  # answers not asked for do not matter
        if names and new != (spec if variable.name in names else old):
            return False
    return True


def _results(op: Op) -> tuple[Slot, ...]:
    """Return the results of an op's rule for its operands as described."""
    operator, block = op.operator, op.block
    assert operator is not None
    key = replace_symbols(key_of(block, op, operator), block.program.guards.known)
    return answer(operator, key).results
