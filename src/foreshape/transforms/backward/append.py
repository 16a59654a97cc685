"""The appending of gradient ops to a block: several gradients of one value are summed, and overwritten values are kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from foreshape.core.spec import LOD_TENSOR_ARRAY
from foreshape.language.infer.loop_state import GRAD
from foreshape.language.operator.registry import get
from foreshape.language.program import Block, Op
from foreshape.language.program.op import EMPTY, Slots, is_empty_name
from foreshape.transforms.backward.gradient_op import GradientOp, append_gradient_op
from foreshape.transforms.backward.path import Path, Visit, name_of
from foreshape.transforms.backward.steps import steps_of


def undo(path: Path, target: Block, ends: Sequence[str], trained: Collection[str], entries: Collection[str] = ()) -> set[str]:
    """Append the gradient ops of a path to a block that has the gradients of ``ends`` already.

    Args:
        trained: parameters, whose gradients are marked by role.
        entries: names whose values before the block's first op are readable in the backward pass, as in a loop's block.

    Returns:
        The nodes with gradients.
    """
    path.into = target
    grads = {path.final(n) for n in ends}
    steps: list[GradientOp] = []
    copies = 0
    for visit in reversed(path.visits):
        if not _is_reached(visit, grads):
            continue
        step_list = steps_of(visit, path, grads, undo)
        if step_list:
            if path.last_write:
                copies += _keep_overwritten(visit, step_list, path, entries)
            steps += step_list
    if copies:
        target.program.infer()  # the copy has its variable's spec at this place, not at the end
    _append(target, steps, {path.final(n) for n in ends}, trained)
    return grads


def _is_reached(visit: Visit, grads: set[str]) -> bool:
    """Tell whether one of an op's results has a gradient. None has one if all readers are blocks that ignore them."""
    op = visit.op
    if not visit.written and not op.attributes.sub_blocks:
        return not all(map(grads.isdisjoint, op.output_slots.values()))
    return any(visit.wrote(n) in grads for n in (op.all_writes() if op.attributes.sub_blocks else op.output_names()))


def _keep_overwritten(visit: Visit, steps: Sequence[GradientOp], path: Path, entries: Collection[str]) -> int:
    """Copy values under other names if a gradient op reads them after they are overwritten.

    In the backward pass a name has the value of its last write; names of ``entries`` have their value at the beginning of the block. Returns the number
    of copies.
    """
    op, block = visit.op, visit.op.block
    if op.attributes.sub_blocks:
        return _keep_around(visit, steps, path, entries)
    read, written = set(op.input_names()), set(op.output_names())
    copies: dict[tuple[str, bool], str] = {}
    for step in steps:
        for slot, names in step.inputs.items():
            is_result_slot = slot in op.outputs and slot not in op.inputs
            new_names: list[str] = []
            for name in names:
                is_result = name in written and (is_result_slot or name not in read)
                if (is_result or name in read) and not name.endswith(GRAD) and _is_another(visit, name, is_result, path, entries):
                    if (name, is_result) not in copies:
                        copies[name, is_result] = _copy(block, op, name, is_result)
                    new_names.append(copies[name, is_result])
                else:
                    new_names.append(name)
            step.inputs = {**step.inputs, slot: tuple(new_names)}
    return len(copies)


def _keep_around(visit: Visit, steps: Sequence[GradientOp], path: Path, entries: Collection[str]) -> int:
    """Copy overwritten values that the block of an op only reads; the block keeps its own writes, round by round."""
    op, block = visit.op, visit.op.block
    writes = op.all_writes()
    copies = 0
    for step in steps:
        for undoing in (block.program.blocks[index] for index in step.attributes.sub_blocks):
            for name in sorted(undoing.outer_names()[0] - writes):
                if GRAD not in name and _is_another(visit, name, False, path, entries):
                    rename_reads(undoing, name, _copy(block, op, name, False))
                    copies += 1
    return copies


def rename_reads(block: Block, name: str, new: str) -> None:
    """Let the ops of a block, and of the blocks within it, read another variable."""
    for op in block.ops:
        if name in op.input_names():
            op.rename_input(name, new)
        for index in op.attributes.sub_blocks:
            rename_reads(block.program.blocks[index], name, new)


def _is_another(visit: Visit, name: str, is_result: bool, path: Path, entries: Collection[str]) -> bool:
    """Tell whether a name's value in the backward pass differs from the one read by its op (``is_result``: made)."""
    if name in entries:
        block = visit.op.block
        return is_result or any(name in earlier.all_writes() for earlier in block.ops[: _index(block, visit.op)])
    return path.last_write.get(name, -1) > visit.index


def _copy(block: Block, op: Op, name: str, is_result: bool) -> str:
    copy = block.program.unique_name(f"{name}@KEPT")
    block.append_op("assign", {"X": name}, {"Out": copy}, role=op.role, site=op.site, index=_index(block, op) + is_result)
    return copy


def _index(block: Block, op: Op) -> int:
    return next(index for index, candidate in enumerate(block.ops) if candidate is op)


def _append(block: Block, steps: Sequence[GradientOp], ends: Collection[str], trained: Collection[str]) -> None:
    counts: dict[str, int] = {}
    for step in steps:
        for names in step.outputs.values():
            for node in names:
                if not is_empty_name(node):
                    counts[node] = counts.get(node, 0) + 1
    parts: dict[str, list[str]] = {}
    numbers: dict[str, int] = {}
    for node in ends:
        if node in counts and not _is_array(block, name_of(node)):
            parts[node] = [name_of(node) + GRAD]
            counts[node] += 1
    for step in steps:
        complete: list[str] = []
        roles: list[str] = []
        outputs: Slots = {}
        for slot, names in step.outputs.items():
            result_names: list[str] = []
            for node in names:
                if is_empty_name(node):
                    result_names.append(EMPTY)
                    continue
                name = name_of(node)
                if counts[node] == 1 or _is_array(block, name):
                    result_names.append(name + GRAD)
                else:
                    list_of = parts.setdefault(node, [])
                    number = numbers.get(name, 0)
                    numbers[name] = number + 1
                    part = f"{name}{GRAD}@RENAME@block{block.idx}@{number}"
                    list_of.append(part)
                    result_names.append(part)
                    if len(list_of) == counts[node]:
                        complete.append(node)
                if name in trained:
                    roles += [name, name + GRAD]
            outputs[slot] = tuple(result_names)
        append_gradient_op(block, step.attributes, step.inputs, outputs, tuple(roles), step.forward)
        for node in complete:
            name = name_of(node)
            roles = [name, name + GRAD] if name in trained else []
            append_gradient_op(block, get("sum").describe(None), {"X": tuple(parts[node])}, {"Out": (name + GRAD,)}, tuple(roles), step.forward)


def _is_array(block: Block, name: str) -> bool:
    """Tell whether the gradient of a name is accumulated in place, element by element."""
    variable = block.find(name)
    return variable is not None and variable.kind is LOD_TENSOR_ARRAY
