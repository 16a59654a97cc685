"""Inference of one op in its block: its operator is asked, and its results are set; missing variables are made.

Each op of a network comes through here at least once, so the most frequent questions come first.
"""

from __future__ import annotations

from foreshape.core.dims import equal
from foreshape.core.spec import Spec
from foreshape.errors import ForeshapeError, SchemaError, ShapeError
from foreshape.language.infer.advice import advise
from foreshape.language.infer.array_elements import gathered
from foreshape.language.infer.loop_state import note_made
from foreshape.language.infer.regions import infer_region
from foreshape.language.infer.rules import Answer, Key, Slot, answer, failed, named_after, replace_symbols
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.require import RuleError
from foreshape.language.program.block import Block
from foreshape.language.program.call_site import placed_error
from foreshape.language.program.messages import describe_failure
from foreshape.language.program.op import EMPTY, Op
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable


def infer(block: Block, op: Op, make: bool = False, prefix: str | None = None) -> None:
    """Infer the results of an op by its operator, and set them.

    Args:
        block: the block of the op, present or future.
        op: any.
        make: make and name results without names.
        prefix: begins made-up names; by default the op's type.

    Raises:
        DescriptionError: as the operator demands, with the user's lines.
    """
    operator = op.attributes.operator
    if operator is None:
        error = op.attributes.error
        raise placed_error(error if error is not None else SchemaError(f"there is no operator {op.type!r}"), op.type, op.site)
    if operator.sub_blocks:
        try:
            inferred = infer_region(op)
        except ForeshapeError:
            raise
        except Exception as error:  # the last resort, as of the rules of others
            raise describe_failure(failed(error), op.type, _views(block, op), op.call_site) from error
        _set_results(block, op, operator, inferred, make, prefix)
        return
    key = key_of(block, op, operator)
    program = block.program
    if program.inference.stale:
        program.refresh()
    known_sizes = program.inference.guards.known
    if known_sizes.sizes:
        key = replace_symbols(key, known_sizes)
    try:
        inferred = operator.cache.get(key) or answer(operator, key)
        if inferred.unknown:
            if make and prefix is None:
                prefix = program.layer_name(op.type)
            inferred = _with_names(program, inferred, _first_name(program, op, operator, inferred, prefix))
        if inferred.conditions:
            inferred = _with_guards(program, op, operator, key, inferred, prefix)
    except RuleError as error:
        raise describe_failure(error, op.type, _views(block, op), op.call_site) from error.__cause__
    except ShapeError as error:
        raise describe_failure(RuleError(str(error), {}), op.type, _views(block, op), op.call_site) from None
    _set_results(block, op, operator, inferred, make, prefix)
    if make and (inferred.twice or operator.takes_scores):
        advise(block, op, operator, inferred.twice)


def _with_guards(program: Program, op: Op, operator: Operator, key: Key, inferred: Answer, prefix: str | None) -> Answer:
    """Note the conditions of an answer; return the answer with the sizes known from them."""
    known_sizes, site = program.guards.known, op.call_site
    for condition in inferred.conditions:
        program.guards.require(condition, op.type, site)
    if program.guards.known is not known_sizes:
        inferred = answer(operator, replace_symbols(key, program.guards.known))
        if inferred.unknown:
            inferred = _with_names(program, inferred, _first_name(program, op, operator, inferred, prefix))
    return inferred


def _with_names(program: Program, inferred: Answer, name: str) -> Answer:
    """Return an answer whose unknown sizes are symbols of one op, set by the run."""
    out = named_after(inferred, name)
    program.guards.made.update(out.unknown)
    return out


def _views(block: Block, op: Op) -> dict[str, list[Variable]]:
    return {slot: [v for n in names if (v := block.find(n)) is not None] for slot, names in op.inputs.items() if names}


def key_of(block: Block, op: Op, operator: Operator) -> Key:
    """Return the specs of an op's inputs, by operand. Raises `SchemaError` for undescribed inputs or inputs unknown to the operator."""
    inputs = op.input_slots
    local = block.vars
    key: list[Slot] = []
    used = 0
    for slot, many in operator.schema.operand_slots:
        names = inputs.get(slot)
        if not names:
            used += names is not None
            key.append(() if many else None)
            continue
        used += 1
        if many:
            key.append(tuple([(local[n] if n in local and n != EMPTY else _input(block, op, n)).spec for n in names]))
        elif len(names) == 1:
            name = names[0]
            variable = local.get(name)
            if variable is None or name == EMPTY:  # a file may describe it, absent all the same
                if name == EMPTY or not name:
                    key.append(None)
                    continue
                variable = _input(block, op, name)
            key.append(variable.inferred_spec or variable.spec)
        else:
            raise placed_error(SchemaError(f"{slot} takes one tensor, not {len(names)}"), op.type, op.site)
    if used != len(inputs):
        extra = sorted(s for s, n in inputs.items() if n and s not in operator.schema.operand_names)
        if extra:
            raise placed_error(SchemaError(f"there is no input {extra[0]!r}"), op.type, op.site)
    return tuple(key)


def _input(block: Block, op: Op, name: str) -> Variable:
    variable = block.find(name) if name != EMPTY else None
    if variable is None:
        raise placed_error(SchemaError(f"the input {name!r} is not described in block {block.idx} or its parents"), op.type, op.site)
    return variable


def _first_name(program: Program, op: Op, operator: Operator, inferred: Answer, prefix: str | None) -> str:
    """Return the name of the op's first result, made if missing; sizes set by the run are named after it."""
    outputs = op.output_slots
    for result in operator.schema.results:
        for name in outputs.get(result.name) or ():
            if name and name != EMPTY:
                return name
    for result, specs in zip(operator.schema.results, inferred.results, strict=True):
        if specs and not result.optional and prefix is not None:
            outputs[result.name] = tuple([program.unique_name(prefix + ".tmp") for _ in (specs if isinstance(specs, tuple) else (specs,))])
            return outputs[result.name][0]
    return op.type


def _set_results(block: Block, op: Op, operator: Operator, inferred: Answer, make: bool, prefix: str | None) -> None:
    outputs = op.output_slots
    for (slot, optional), result_spec in zip(operator.schema.result_slots, inferred.results):  # noqa: B905  # equally many; the argument would cost time
        names = outputs.get(slot)
        if result_spec is None:
            if any(n != EMPTY for n in names or ()) and not optional and not operator.sub_blocks:  # no answer where one is asked for
                raise placed_error(SchemaError(f"there is no result {slot} for these inputs"), op.type, op.site)
            continue
        if not names:
            if not make or optional:
                continue
            if prefix is None:
                prefix = block.program.layer_name(op.type)
            if isinstance(result_spec, Spec) and not operator.accumulates:  # as nearly always
                name = block.program.unique_name(prefix + ".tmp")
                outputs[slot] = (name,)
                _make(block, op, name, result_spec)
                continue
            names = outputs[slot] = tuple(
                [block.program.unique_name(prefix + ".tmp") for _ in (result_spec if isinstance(result_spec, tuple) else (result_spec,))]
            )
        if isinstance(result_spec, Spec) and len(names) == 1 and not operator.accumulates:
            _set_result(block, op, names[0], result_spec)
            continue
        specs = result_spec if isinstance(result_spec, tuple) else (result_spec,)
        if len(names) != len(specs):
            raise placed_error(SchemaError(f"{slot} has {len(names)} names for {len(specs)} tensors"), op.type, op.site)
        for name, spec in zip(names, specs, strict=True):
            _set_result(block, op, name, gathered(op, name, spec) if slot in operator.accumulates else spec)


def _make(block: Block, op: Op, name: str, spec: Spec) -> None:
    """Make the variable of a result."""
    variable = block.vars[name] = Variable.make(name, block, spec, op.site)
    variable.op = op


def _set_result(block: Block, op: Op, name: str, spec: Spec) -> None:
    variable = block.vars.get(name)
    if variable is None:
        if name == EMPTY or not name:
            return
        variable = block.find(name) if block.parent_idx >= 0 else None
        if variable is None:
            _make(block, op, name, spec)
            return
    if variable.persistable and variable.spec.dims is not None:
        former_spec = variable.inferred_spec
        if former_spec is not spec and (former_spec is None or former_spec.dims != spec.dims or former_spec.dtype is not spec.dtype):
            _check_kept(op, variable, spec)
        return
    if variable.block is not block:
        _remember(block, variable)
    note_made(op, variable, spec)
    variable.inferred_spec = spec
    variable.known = True
    if variable.op is None and variable.block is block and name not in op.input_names():
        variable.op = op


def _remember(block: Block, variable: Variable) -> None:
    """Note the spec of the variable in each block from this one up to the variable's."""
    scope: Block | None = block
    while scope is not None and scope is not variable.block:
        if scope.before is not None:
            scope.before.setdefault(variable.name, (variable, variable.inferred_spec, variable.known))
        scope = scope.parent


def _check_kept(op: Op, variable: Variable, spec: Spec) -> None:
    """Check a write to a persistable variable against the variable's spec."""
    kept_spec = variable.spec
    dims, new = kept_spec.known_dims, spec.dims
    if kept_spec.dtype is spec.dtype and new is not None and len(dims) == len(new) and all(equal(a, b) is not False for a, b in zip(dims, new, strict=True)):
        return
    words = f"what is written to {variable.name} must be what it is, {kept_spec.text()}, not {spec.text()}"
    raise describe_failure(RuleError(words, {}), op.type, {}, op.call_site)
