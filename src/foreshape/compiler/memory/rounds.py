"""The memory that the rounds of a loop, or the branch of a condition, keep beyond themselves: arrays that grow, and values for the gradient."""

from __future__ import annotations

from foreshape.compiler.lowering.kernel_calls import KernelCall, Value, region_of
from foreshape.compiler.memory.records import Liveness
from foreshape.core.dims import Size, product, symbol
from foreshape.core.spec import LOD_TENSOR, STEP_SCOPES
from foreshape.language.infer.loop_state import names_in, saved_names, sub_block
from foreshape.language.program import Block, Op


def rounds_of(op: Op) -> Size:
    """Return the number of rounds of an op's block: a symbol if only the run tells."""
    operator = op.operator
    assert operator is not None
    if operator.region.startswith("conditional"):
        return 1
    if operator.region.startswith("recurrent"):
        first = op.block.var(names_in(op, "inputs")[0]).spec
        if first.lod is None:
            return first.known_dims[0]
    scopes = next((n for slot in ("StepScopes", "step_scopes") for n in (op.output(slot), op.input(slot)) if n), op.type)
    return symbol(f"{scopes}.rounds"[:512])


def kept_by_rounds(op: Op, block: Block) -> Size:
    """Return the bytes kept by all rounds for their gradient."""
    total: Size = 0
    inputs = names_in(op, "inputs")
    first = op.block.var(inputs[0]).spec if inputs else None
    if first is not None and first.lod is not None:  # rows of ended sequences are left in the memory of the step before
        for name in names_in(op, "initial_states"):
            total = total + tensor_bytes(op.block, name)
    for name in saved_names(block):
        variable = block.find(name)
        if variable is not None and variable.spec.kind is STEP_SCOPES and variable.op is not None:  # of a block within the block
            total = total + kept_by_rounds(variable.op, sub_block(variable.op)) * rounds_of(op)
            continue
        if variable is None or variable.spec.kind is not LOD_TENSOR or variable.spec.dims is None or variable.spec.dtype is None:
            continue
        dims = variable.spec.dims
        if first is not None and first.lod is not None and dims and not isinstance(dims[0], int):
            total = total + product((first.known_dims[0], *dims[1:])) * variable.spec.dtype.itemsize  # as many rows as all steps have together
        else:
            total = total + variable.spec.nbytes * rounds_of(op)
    return total


def tensor_bytes(block: Block, name: str | None) -> Size:
    """Return the bytes of a dense variable; 0 if unknown."""
    variable = block.find(name or "")
    return variable.spec.nbytes if variable is not None and variable.spec.dims is not None and variable.spec.dtype is not None else 0


def added_to_array(op: Op, name: str) -> Size:
    """Return the bytes added to an array by the rounds of an op's block."""
    total: Size = 0
    block = sub_block(op)
    for inner in block.ops:
        operator = inner.operator
        if operator is None:
            continue
        if operator.sub_blocks:
            total = total + added_to_array(inner, name)
            continue
        for result, element in operator.effects.elements.items():
            if element is not None and name in inner.outputs.get(operator.schema.results[result].name, ()):
                total = total + tensor_bytes(block, inner.input(operator.schema.operands[element].name))
    return total if isinstance(total, int) and not total else total * rounds_of(op)


def is_of_block(i: KernelCall, value: Value, inner: Liveness) -> bool:
    """Return True if a result of a condition is memory of its block, handed on."""
    region, operator, first = region_of(i), i.op.operator, i.results[0]
    if region is None or operator is None or not operator.region.startswith("conditional") or not isinstance(first, list) or value not in first:
        return False
    index = first.index(value)
    record = inner.places.get(region.lowered.fetches[index]) if index < len(region.results) else None
    return record is not None and any(r is record for r in inner.records)
