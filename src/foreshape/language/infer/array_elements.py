"""The spec of an array of tensors after a write to one of its elements."""

from __future__ import annotations

from foreshape.core.dims import Size, equal, symbol, symbols_of
from foreshape.core.spec import LOD_TENSOR_ARRAY, Lod, Spec
from foreshape.errors import DescriptionError, ShapeError, TypeMismatchError
from foreshape.language.infer.loop_state import GRAD
from foreshape.language.operator.require import RuleError
from foreshape.language.ops.rules.array_rules import EACH
from foreshape.language.program.block import Block
from foreshape.language.program.messages import describe_failure
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program


def gathered(op: Op, name: str, written: Spec) -> Spec:
    """Return the spec of the array ``name`` after ``op`` wrote an element ``written``, from the spec of its variable.

    A size that differs between elements becomes a symbol of the array, and so does one that changes with every round of the op's block.
    The gradient of an array is as the array.

    Raises:
        TypeMismatchError, ShapeError: the new element has another element type, rank or number of levels than the others.
    """
    variable = op.block.find(name)
    forward = op.block.find(name.removesuffix(GRAD)) if name.endswith(GRAD) else None
    if forward is not None and forward.kind is LOD_TENSOR_ARRAY:
        return forward.spec.like()
    local: set[str] = set()
    block: Block | None = op.block
    while variable is not None and block is not None and block is not variable.block:
        local |= block.vars.keys()
        block = block.parent
    old = variable.spec if variable is not None and variable.known else None
    if old is None or old.kind is not LOD_TENSOR_ARRAY or old.dims is None or written.dims is None:
        old = written
    elif old.dtype is not written.dtype:
        raise _refused(op, f"the elements of {name} are {_element(old)}, and this one is {_element(written)}", TypeMismatchError)
    elif len(old.known_dims) != len(written.dims) or old.lod_level != written.lod_level:
        difference = f"those of {name} are {_element(old)}, and this one is {_element(written)}"
        raise _refused(op, f"all elements of an array must have as many dims and levels: {difference}")
    dims = tuple(_common(a, b, f"{name}.{EACH}{axis}", local) for axis, (a, b) in enumerate(zip(old.dims or (), written.dims or (), strict=True)))
    lod: Lod | None = None
    if old.lod is not None and written.lod is not None:
        counts = zip(old.lod.counts, written.lod.counts, strict=True)
        lod = Lod(f"{name}.{EACH}", tuple(_common(a, b, f"{name}.{EACH}.level{k}", local) for k, (a, b) in enumerate(counts)))
    return Spec(LOD_TENSOR_ARRAY, written.dtype, dims if written.dims is not None else None, lod)


def forget_elements(program: Program) -> None:
    """Forget the elements of arrays written one by one, before their ops are inferred again."""
    for op in program.all_ops():
        operator = op.operator
        for slot in operator.accumulates if operator is not None else ():
            for name in op.outputs.get(slot, ()):
                variable = op.block.find(name)
                if variable is not None and variable.kind is LOD_TENSOR_ARRAY and not variable.need_check_feed:
                    variable.inferred_spec = Spec(LOD_TENSOR_ARRAY, variable.spec.dtype, None)


def _common(a: Size, b: Size, name: str, local: set[str]) -> Size:
    return b if (a is b or equal(a, b) is True) and not _is_local(b, local) else symbol(name[:512])


def _is_local(size: Size, local: set[str]) -> bool:
    """Tell whether a size is named after a variable of a repeated block."""
    if isinstance(size, int) or not local:
        return False
    for name in symbols_of(size):
        dot = name.find(".")
        while dot >= 0:
            if name[:dot] in local:
                return True
            dot = name.find(".", dot + 1)
    return any(part.startswith("loop") for name in symbols_of(size) for part in name.split(".")[1:])


def _element(spec: Spec) -> str:
    return Spec(LOD_TENSOR_ARRAY, spec.dtype, spec.dims, spec.lod).text().removeprefix("array ")


def _refused(op: Op, words: str, error: type[DescriptionError] = ShapeError) -> DescriptionError:
    views = {slot: [v for n in names if (v := op.block.find(n)) is not None] for slot, names in op.inputs.items() if names}
    return describe_failure(RuleError(words, dict.fromkeys(views), error), op.type, views, op.call_site)
