"""Numbers with evenly spaced logarithms."""

from __future__ import annotations

from foreshape.errors import ExecutionError
from foreshape.operator import ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require_at_most, unknown_size
from foreshape.operator.samples import f32, i32, i64, reject, sample
from foreshape.ops.rules.size_operands import known_number
from foreshape.ops.tensor.creation import DTYPE_DOC
from foreshape.spec import FP32, FP64, INDEX, Spec, tensor
from foreshape.values.torch_proxy import Tensor, torch
from foreshape.values.torch_types import element_type, torch_dtype


class Logspace(Operator):
    """Out = Num powers of Base, with exponents from Start to Stop, evenly spaced, both included."""

    type = "logspace"
    Start = operand((*INDEX, FP32, FP64), doc="one number")
    Stop = operand((*INDEX, FP32, FP64), doc="one number")
    Num = operand(INDEX, doc="the count, at least 1")
    Base = operand((*INDEX, FP32, FP64), doc="one number")
    Out = result(doc="[Num]")
    dtype = attribute(AttrType.INT, FP32, doc=DTYPE_DOC)
    gradient = ZERO_GRADIENT

    def infer_shape(self, Start: Spec, Stop: Spec, Num: Spec, Base: Spec) -> Spec:
        for slot, spec in (("Start", Start), ("Stop", Stop), ("Base", Base)):
            known_number(0, spec, slot)
        count = known_number(0, Num, "Num")
        if count is not None:
            require_at_most(1, count, f"Num must be at least 1; seen {count}", Num=None)
        return tensor(element_type(self.dtype), count if count is not None else unknown_size("Num"))

    def kernel(self, Start: Tensor, Stop: Tensor, Num: Tensor, Base: Tensor) -> Tensor:
        count = int(Num.item())
        if count < 1:
            raise ExecutionError(f"logspace: Num must be at least 1; seen {count}")
        exponents = torch.linspace(Start.item(), Stop.item(), count, dtype=torch.float64)
        return torch.pow(float(Base.item()), exponents).to(torch_dtype(self.dtype))

    samples = [
        sample(Start=f32(1), Stop=f32(1), Num=i32(1, data=[7]), Base=f32(1, data=[2.0])),
        sample(Start=f32(1), Stop=f32(1), Num=i32(1, low=2), Base=f32(1, low=0.5), dtype=6),
        sample(Start=i64(1, data=[0]), Stop=i64(1, data=[3]), Num=i32(1, data=[4]), Base=i64(1, data=[10])),
    ]
    rejects = [reject(Start=f32(1), Stop=f32(1), Num=i32(1, data=[0]), Base=f32(1), says="Num must be at least 1")]
