"""Warnings of ops with a valid shape and, most likely, another meaning than intended."""

from __future__ import annotations

from foreshape.core.spec import Spec
from foreshape.language.operator.computations import Activation, Cast, Identity, Reshape, Softmax
from foreshape.language.operator.operator import Operator
from foreshape.language.program.block import Block
from foreshape.language.program.call_site import warn_at
from foreshape.language.program.op import Op

_FOLLOWED = 4
"""The most casts and reshapes between probabilities and a loss."""


def doubled(operator: Operator, specs: tuple[object, ...], result: Spec) -> str:
    """Return a symbol standing twice in a broadcast result of operands of different ranks, and in each operand once; empty if there is none.

    Such are ``[batch, 1] - [batch]``: each example meets all others. Operands of one rank, as ``[batch, 1]`` and ``[1, batch]``, are meant to.
    """
    if not operator.per_element or result.dims is None:
        return ""
    operands = [s for s in specs if isinstance(s, Spec) and s.dims]
    if len({s.rank for s in operands}) < 2:
        return ""
    for size in dict.fromkeys(result.dims):
        if not isinstance(size, int) and result.dims.count(size) > 1 and all((s.dims or ()).count(size) < 2 for s in operands):
            return str(size)
    return ""


def advise(block: Block, op: Op, operator: Operator, twice: str) -> None:
    """Warn of an op at its line: of a symbol ``twice`` in its result, and of probabilities in the place of scores."""
    if twice:
        shapes = " and ".join(f"{n} {v.spec.text()}" for n in op.input_names() if (v := block.find(n)) is not None)
        words = f"{op.type} of {shapes}: {twice} stands twice in the result, where each entry meets all others; give both the same dims, as by layer.unsqueeze"
        warn_at(op.site, words)
    for slot in operator.takes_scores:
        maker = _maker(block, op.input(slot))
        if maker is not None:
            words = f"{op.type} takes scores, as they are before a softmax or sigmoid; {op.input(slot)} is a result of {maker.type} already"
            warn_at(op.site, f"{words}: leave that {maker.type} out")


def _maker(block: Block, name: str | None) -> Op | None:
    """Return the op that made probabilities, behind casts and reshapes; None for other values."""
    for _ in range(_FOLLOWED):
        variable = block.find(name) if name else None
        op = variable.op if variable is not None else None
        if op is None:
            return None
        activation = op.computes(Activation)
        if op.computes(Softmax) or (activation is not None and activation.name == "sigmoid"):
            return op
        if not (op.computes(Cast) or op.computes(Identity) or op.computes(Reshape)):
            return None
        name = op.operand(0)
    return None
