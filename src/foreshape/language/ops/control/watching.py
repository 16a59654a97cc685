"""Operators that watch a running program: print, assert, check_numerics. `py_func`, which a file cannot hold, is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import ANY, BOOL, FLOATING, FP32, INT64, DType, Spec, tensor
from foreshape.core.values.offsets import Offsets, as_list
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, operand, refuse, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import require, require_at_most, require_equal
from foreshape.language.operator.samples import b1, f32, i64, reject, sample
from foreshape.language.operator.use import Use

refuse(
    "py_func",
    "it calls a Python function of the process that wrote it, which no file holds: write what it does as an operator of your own, under a type of your own",
)


def numbers(tensor: Any, limit: int) -> str:
    """Return the first ``limit`` elements (all if it is negative) in row-major order, with six digits."""
    flat = tensor.detach().reshape(-1)
    elements: list[Any] = (flat if limit < 0 else flat[:limit]).tolist()
    return "[" + " ".join(f"{v:g}" if isinstance(v, float) else str(int(v)) for v in elements) + "]"


class Print(Operator):
    """Out = In, written to the standard output: its name, dims, element type and first elements, as the attributes have it.

    Its gradient is written by another print, if ``print_phase`` is BACKWARD or BOTH.
    """

    type = "print"
    examples = ("In",)
    In = operand(ANY, doc="any shape")
    Out = result(doc="In itself", view_of="In")
    first_n = attribute(AttrType.INT, -1, doc="the number of runs that write it; all if it is not above 0")
    message = attribute(AttrType.STRING, "", doc="written first")
    summarize = attribute(AttrType.INT, 20, doc="the number of elements written; all if negative")
    print_tensor_name = attribute(AttrType.BOOLEAN, True)
    print_tensor_type = attribute(AttrType.BOOLEAN, True)
    print_tensor_shape = attribute(AttrType.BOOLEAN, True)
    print_tensor_layout = attribute(AttrType.BOOLEAN, True, doc="for other readers of the file: tensors have no layout here")
    print_tensor_lod = attribute(AttrType.BOOLEAN, True)
    print_phase = attribute(AttrType.STRING, "BOTH", choices=("FORWARD", "BACKWARD", "BOTH"))
    is_forward = attribute(AttrType.BOOLEAN, True, doc="the op stands in the forward pass; the gradient op does not")
    side_effects = True

    def infer_shape(self, In: Spec) -> Spec:
        return In

    def acts(self) -> bool:
        return self.is_forward  # a run without gradients does not compute them to print them

    def kernel(self, In: Tensor, *, offsets: list[Offsets | None], use: Use | None = None) -> Tensor:
        if self.print_phase in ("BOTH", "FORWARD" if self.is_forward else "BACKWARD"):
            count = use.runs if use is not None else 0
            if use is not None:
                use.runs = count + 1
            if self.first_n <= 0 or count < self.first_n:
                print(self._words(In, offsets[0], use), flush=True)
        return In

    def _words(self, tensor: Tensor, offsets: Offsets | None, use: Use | None) -> str:
        lines = [f"Variable: {use.names['In'][0]}"] if self.print_tensor_name and use is not None else []
        if self.message:
            lines.append(f"  - message: {self.message}")
        if self.print_tensor_lod:
            levels = [] if offsets is None else [", ".join(map(str, as_list(level))) for level in offsets.levels]
            lines.append("  - lod: {" + ", ".join("{" + level + "}" for level in levels) + "}")
        lines.append(f"  - place: Place({tensor.device.type})")
        if self.print_tensor_shape:
            lines.append(f"  - shape: {list(tensor.shape)}")
        if self.print_tensor_type:
            lines.append(f"  - dtype: {str(tensor.dtype).removeprefix('torch.')}")
        return "\n".join([*lines, f"  - data: {numbers(tensor, self.summarize)}"])

    def gradient_ops(self, slots: GradientSlots) -> None:
        attrs = {n: getattr(self, n) for n in self.schema.attributes} | {"is_forward": False}
        slots.add("print", {"In": slots.grad_of_output("Out")}, {"Out": slots.input("In")}, attrs)

    samples = [
        sample(In=f32(2, 3)),
        sample(In=f32(5, 3).ragged([2, 3]), message="rows", first_n=1, summarize=4),
        sample(In=i64(3), print_tensor_name=False, print_tensor_lod=False, print_tensor_shape=False, print_tensor_type=False, summarize=-1),
        sample(In=b1(2), print_phase="BACKWARD"),
        sample(In=f32()),
        sample(In=f32(0, 3)),
    ]


class Assert(Operator):
    """A check: the run stops with an error if Cond does not hold. The error has the first ``summarize`` elements of each of Data, all if negative."""

    type = "assert"
    layer_function = "assert_true"
    Cond = operand((BOOL,), doc="one bool")
    Data = operand(ANY, many=True, optional=True, doc="the tensors the error shows")
    summarize = attribute(AttrType.LONG, -1)
    gradient = ZERO_GRADIENT
    side_effects = True

    def infer_shape(self, Cond: Spec, Data: tuple[Spec, ...]) -> tuple[Spec, ...]:
        require_equal(Cond.elements, 1, "Cond must hold one bool", Cond=None)
        return ()

    def kernel(self, Cond: Tensor, Data: list[Tensor], *, use: Use | None = None) -> tuple[Tensor, ...]:
        if not bool(Cond.reshape(())):
            names: Sequence[str] = () if use is None else use.names.get("Data", ())
            condition = "" if use is None else use.names["Cond"][0]
            lines = [f"{name} = {list(x.shape)} {numbers(x, self.summarize)}" for name, x in zip(names, Data, strict=False)]
            raise ExecutionError("\n    ".join([f"assert: the condition {condition} must be true, but was false", *lines]))
        return ()

    samples = [
        sample(Cond=b1(1, data=[True]), Data=[f32(2, 3), i64(4)]),
        sample(Cond=b1(data=True), summarize=3),
    ]
    rejects = [reject(Cond=b1(2), says="Cond must hold one bool")]


class CheckNumerics(Operator):
    """stats = the counts of NaN, infinite and 0; values = the largest, the least and the mean. NaN counts only if it comes first.

    ``check_nan_inf_level`` 0: NaN or an infinity stops the run with an error; 1 and 2: they are written to the standard output; 3: all tensors are.
    """

    type = "check_numerics"
    tensor = operand(FLOATING, doc="any shape")
    stats = result(doc="int64 [3]")
    values = result(doc="fp32 [3]")
    op_type = attribute(AttrType.STRING, "", doc="the type of the op of the tensor, for messages")
    var_name = attribute(AttrType.STRING, "", doc="the name of the tensor, for messages")
    check_nan_inf_level = attribute(AttrType.INT, 0, low=0)
    stack_height_limit = attribute(AttrType.INT, -1, doc="ignored")
    output_dir = attribute(AttrType.STRING, "", doc="must be empty")
    gradient = ZERO_GRADIENT
    side_effects = True

    def infer_shape(self, tensor: Spec) -> tuple[Spec, Spec]:
        require(not self.output_dir, f"output_dir must be empty, since what is found is written to the standard output; seen {self.output_dir!r}")
        for axis, size in enumerate(tensor.known_dims):
            require_at_most(1, size, "tensor must not be empty", tensor=axis)
        return _three(INT64), _three(FP32)

    def workspace(self, tensor: Spec) -> Size:
        return 2 * tensor.elements + 4 * tensor.nbytes

    def kernel(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        flat = tensor.reshape(-1)
        nan = flat.isnan()
        counts = (int(nan.sum()), int(flat.isinf().sum()), int((flat == 0).sum()))
        extremes: list[Tensor] = [flat[0], flat[0]]
        if not bool(nan[0]):
            extremes = [flat.masked_fill(nan, -torch.inf).amax(), flat.masked_fill(nan, torch.inf).amin()]
        values = torch.stack([*(v.float() for v in extremes), flat.mean(dtype=torch.float64 if flat.dtype is torch.float64 else torch.float32).float()])
        if self.check_nan_inf_level >= 3 or counts[0] or counts[1]:
            figures = zip(("largest", "least", "mean"), (float(v) for v in values), strict=True)
            entries = (("NaN", counts[0]), ("infinite", counts[1]), ("0", counts[2]), *((n, f"{v:g}") for n, v in figures))
            whose = " of ".join(n for n in (self.var_name, self.op_type) if n) or "a tensor"
            summary = f"{whose}: {flat.numel()} numbers, " + ", ".join(f"{n} {v}" for n, v in entries)
            if self.check_nan_inf_level == 0:
                raise ExecutionError(f"check_numerics: no number must be NaN or infinite: {summary}")
            print(summary, flush=True)
        return torch.tensor(counts, device=tensor.device), values

    samples = [
        sample(tensor=f32(2, 3, 5), op_type="pow", var_name="x"),
        sample(tensor=f32(5, data=[1.0, float("nan"), 0.0, float("-inf"), 3.0]), check_nan_inf_level=1),
        sample(tensor=f32(3, data=[float("nan"), 2.0, 0.0]), check_nan_inf_level=2),
        sample(tensor=f32(3, data=[2.0, float("nan"), -0.0]), check_nan_inf_level=3),
        sample(tensor=f32(data=float("inf")), check_nan_inf_level=1),
    ]
    rejects = [
        reject(tensor=f32(2, 0), says="tensor must not be empty"),
        reject(tensor=f32(2), output_dir="logs", says="output_dir must be empty"),
    ]


def _three(dtype: DType) -> Spec:
    return tensor(dtype, 3)
