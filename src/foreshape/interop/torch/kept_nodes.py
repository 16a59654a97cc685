"""Nodes of torch's graphs without a form here, kept under their own names; and counters of batches, kept where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.spec import LOD_TENSOR, Spec
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import SchemaError
from foreshape.interop.torch.import_state import ImportState
from foreshape.interop.torch.open_size import Untold
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import torch
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Op, Variable
from foreshape.language.program.call_site import here
from foreshape.language.program.current import current_block


def kept_node(importer: ImportState, node: Any, name: str, arguments: Sequence[Any], reason: str) -> Any:
    """Keep a refused node under its own name: `show` and `plan` work around it, and no run begins."""
    block = current_block()
    traced = node.meta.get("val")
    if isinstance(traced, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return Untold(reason)
    many = type(traced) in (tuple, list)
    listed = [one for one in (traced if many else [traced]) if isinstance(one, torch.Tensor)]
    made: list[Variable] = []
    for one in listed:
        known = all(isinstance(n, int) for n in one.shape)
        spec = Spec(LOD_TENSOR, dtype_of_torch(one.dtype), tuple(one.shape) if known else None)
        variable = Variable.make(importer.program.unique_name(node.name), block, spec, None)
        variable.known = False
        block.vars[variable.name] = variable
        made.append(variable)
    error = SchemaError(f"{name} cannot be imported: {reason}").told(op=name)
    inputs = {f"I{at}": (v.name,) for at, v in enumerate(arguments) if isinstance(v, Variable)}
    op = Op(block, Attributes.of(f"aten.{name}", ()).refused(error), inputs, {f"O{at}": (v.name,) for at, v in enumerate(made)}, site=here())
    block.ops.append(op)
    for variable in made:
        variable.op = op
    importer.program.touch()
    return made if many else made[0] if made else None


def batches_counted(t: TorchCall, count: Variable, step: int) -> Variable:
    """Add to a counter of batches, in place, in training alone."""
    current_block().append_op("elementwise_add", {"X": count, "Y": t.importer.in_training()}, {"Out": count})
    return count
