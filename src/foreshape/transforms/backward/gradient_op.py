"""One gradient op: before it is appended, and appending it."""

from __future__ import annotations

from dataclasses import dataclass

from foreshape.errors import SchemaError
from foreshape.language.infer.op_inference import infer
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.registry import get
from foreshape.language.program import Block, Op, Role
from foreshape.language.program.op import Slots
from foreshape.language.program.scopes import placed_as


@dataclass(slots=True)
class GradientOp:
    """A gradient op to be appended. ``outputs`` has the nodes of its gradients."""

    forward: Op
    attributes: Attributes
    inputs: Slots
    outputs: Slots


def zeros_step(op: Op, name: str, node: str) -> GradientOp:
    """Return zeros as the gradient of a node without gradient flow."""
    return GradientOp(op, get("fill_zeros_like").describe(None), {"X": (name,)}, {"Out": (node,)})


def append_gradient_op(block: Block, attributes: Attributes, inputs: Slots, outputs: Slots, roles: tuple[str, ...], forward: Op) -> Op:
    """Append one op of the backward pass, at the user's line of its forward op."""
    if attributes.operator is None and attributes.error is None:
        raise SchemaError(f"there is no operator {attributes.type!r}")
    op = Op(block, placed_as(attributes, forward.attributes), inputs, outputs, Role.BACKWARD, roles, forward.site)
    infer(block, op)
    block.ops.append(op)
    block.program.version += 1
    return op
