"""Tensors from nothing, or from the shape of another: constants, given values, ranges, evenly spaced numbers and logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from foreshape.core.dims import Dim, Size, ceildiv, maximum
from foreshape.core.spec import ANY, BOOL, FP32, FP64, INDEX, MAX_VALUE_ELEMENTS, DType, Spec, tensor
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import dtype_of_torch, element_type, torch_dtype
from foreshape.errors import ExecutionError, SchemaError, ShapeError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, computations, operand, result
from foreshape.language.operator.require import RuleError, axis_of, fail, require, require_at_most, unknown_size
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.operator.traits import WHOLE, ShardingRule, axis_names
from foreshape.language.ops.rules.known_floats import calculated, rounded, whole_part
from foreshape.language.ops.rules.known_values import carry, fits, known_number, known_sizes, sizes_at_run
from foreshape.machine.kernels.pages import full
from foreshape.machine.process.this_run import require_room, this_run

SHAPE_OPERANDS_DOC = "the shape, as a tensor; a known value is used while describing"
DTYPE_DOC = "an element type, by its number in the file format"


def shape_from(slot: str, shape: tuple[int, ...], tensor_spec: Spec | None, list_specs: tuple[Spec, ...]) -> tuple[Size, ...]:
    """Return the shape of a creation operator: from a list of one-number tensors, a tensor, or the attribute, in this order.

    A size unknown before the run is the attribute's, if it has one, and otherwise a symbol of the op's own.
    """
    sizes = known_sizes(shape, tensor_spec, list_specs, slot, f"{slot}List")
    written = shape if len(shape) == len(sizes) else (-1,) * len(sizes)
    out = tuple(
        size if size is not None else n if n >= 0 else unknown_size(f"{slot}.{index}") for index, (size, n) in enumerate(zip(sizes, written, strict=True))
    )
    require(all(not isinstance(n, int) or n >= 0 for n in out), f"a size in shape must be at least 0; seen {list(out)}")
    return out


def shape_at_run(shape: Sequence[int], tensor: Any, listed: Sequence[Any]) -> Sequence[int]:
    """Return the shape from the tensors. Raises `ExecutionError` if the attribute, trusted by `shape_from`, has another size."""
    sizes = sizes_at_run(shape, tensor, listed)
    if len(sizes) == len(shape) and any(0 <= n != size for n, size in zip(shape, sizes, strict=True)):
        raise ExecutionError(f"the shape is described as {list(shape)}, and the tensors tell {list(sizes)}")
    return sizes


def number_of(dtype: DType, number: float, text: str = "") -> float | int | bool:
    """Return the constant of a value attribute in an element type; ``text``, if given, is its exact form.

    Refuses a text other than a number, and a number out of range of an integer type.
    """
    try:
        if dtype.is_integer:
            value = int(text) if text.removeprefix("-").isdecimal() else int(float(text) if text else number)
        else:
            value = float(text) if text else number
    except (ValueError, OverflowError):
        fail(f"the value must be a number of type {dtype.name}; seen {text[:40] or number!r}", SchemaError)
    if dtype.is_integer and not fits(dtype, value := int(value)):
        fail(f"the value {value if abs(value) < 2**70 else number} does not fit {dtype.name}", SchemaError)
    return bool(value) if dtype is BOOL else value


def filled(out: Spec, number: Any) -> Spec:
    """Return ``out``, with ``number`` everywhere; it carries its value if small."""
    count = out.elements
    return carry(out, (number,) * count) if isinstance(count, int) and count <= MAX_VALUE_ELEMENTS else out


class FillConstant(Operator):
    """Out = a tensor of ``shape`` filled with ``value`` (``str_value``, if given, is its exact text)."""

    type = "fill_constant"
    ShapeTensor = operand(INDEX, optional=True, doc=SHAPE_OPERANDS_DOC)
    ShapeTensorList = operand(INDEX, many=True, optional=True, doc="the shape, as tensors of one number each")
    ValueTensor = operand(ANY, optional=True, doc="the value, as a tensor of one number")
    Out = result(doc="[*shape]")
    shape = attribute(AttrType.LONGS, [], low=-1, doc="the shape; -1 for sizes given by a tensor")
    dtype = attribute(AttrType.INT, FP32, doc=DTYPE_DOC)
    value = attribute(AttrType.FLOAT, 0.0)
    str_value = attribute(AttrType.STRING, "")
    force_cpu = attribute(AttrType.BOOLEAN, False)
    place_type = attribute(AttrType.INT, -1)
    gradient = ZERO_GRADIENT

    def infer_shape(self, ShapeTensor: Spec | None, ShapeTensorList: tuple[Spec, ...], ValueTensor: Spec | None) -> Spec:
        dtype = element_type(self.dtype)
        out = tensor(dtype, *shape_from("ShapeTensor", self.shape, ShapeTensor, ShapeTensorList))
        if ValueTensor is None:
            return filled(out, number_of(dtype, self.value, _text(self.str_value)))
        number = known_number(0, ValueTensor, "ValueTensor")
        return out if number is None or ValueTensor.dtype is not dtype else filled(out, number)

    def computes(self) -> computations.Filled:
        number = None
        with suppress(RuleError):  # an attribute out of range of this type: the constant's own rule says so
            number = number_of(element_type(self.dtype), self.value, _text(self.str_value))
        return computations.Filled(number)

    def kernel(self, ShapeTensor: Tensor | None, ShapeTensorList: list[Tensor], ValueTensor: Tensor | None) -> Tensor:
        shape = shape_at_run(self.shape, ShapeTensor, ShapeTensorList)
        dtype = element_type(self.dtype)
        number = number_of(dtype, self.value, _text(self.str_value)) if ValueTensor is None else ValueTensor.reshape(-1)[0].item()
        return full(shape, number, torch_dtype(dtype), this_run.device)

    samples = [
        sample(shape=[2, 3], value=1.5),
        sample(shape=[], dtype=3, value=7.0),
        sample(shape=[3], dtype=3, str_value="9007199254740993"),
        sample(shape=[3], dtype=0, value=1.0),
        sample(shape=[0, 3], value=1.0),
        sample(ShapeTensor=i64(2, data=[3, 2]), value=2.0),
        sample(ShapeTensor=i64(2, low=2, high=4), value=2.0),
        sample(ShapeTensorList=[i32(1, data=[2]), i32(1, data=[4])]),
        sample(ShapeTensorList=[i32(1, data=[4]), i32(low=2), i32(1)], shape=[4, -1, -1]),
        sample(shape=[2], ValueTensor=f32(1)),
    ]
    rejects = [
        reject(shape=[2, -1], says="at least 0"),
        reject(shape=[2**40, 2**40], says="64-bit"),
        reject(shape=[2], dtype=3, str_value="two", says="a number of type int64", error=SchemaError),
        reject(shape=[2], dtype=21, value=300.0, says="does not fit int8", error=SchemaError),
        reject(ShapeTensor=i64(1000), says="at most 64"),
    ]


def _text(text: str | bytes) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


class FillAnyLike(Operator):
    """Out = a tensor of the shape of X filled with ``value``."""

    type = "fill_any_like"
    layer_function = "fill_like"
    per_element = True
    X = operand(doc="any shape")
    Out = result(doc="as X", may_share="X")
    value = attribute(AttrType.FLOAT, 0.0)
    dtype = attribute(AttrType.INT, -1, doc=f"{DTYPE_DOC}; -1: as X")
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        dtype = X.known_dtype if self.dtype == -1 else element_type(self.dtype)
        return filled(X.with_dtype(dtype), number_of(dtype, self.value))

    def computes(self) -> computations.Filled:
        return computations.Filled(self.value)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        dtype = dtype_of_torch(X.dtype) if self.dtype == -1 else element_type(self.dtype)
        number = number_of(dtype, self.value)
        return torch.full_like(X, number, dtype=torch_dtype(dtype)) if into is None else into.fill_(number)

    samples = [
        sample(X=f32(2, 3), value=1.5),
        sample(X=f32(2, 3), value=7.0, dtype=3),
        sample(X=i64(4), value=2.9),
        sample(X=b1(4), value=0.5),
        sample(X=f32(0, 3)),
    ]


class FillConstantBatchSizeLike(Operator):
    """Out = a tensor of ``shape``, with the size of one dim of Input at ``output_dim_idx``, filled with ``value``.

    Dim 0 of a ragged Input counts as the number of its innermost sequences.
    """

    type = "fill_constant_batch_size_like"
    Input = operand(doc="the tensor of the copied dim")
    Out = result(doc="[*shape], one dim replaced")
    shape = attribute(AttrType.INTS, [])
    input_dim_idx = attribute(AttrType.INT, 0)
    output_dim_idx = attribute(AttrType.INT, 0)
    dtype = attribute(AttrType.INT, FP32, doc=DTYPE_DOC)
    value = attribute(AttrType.FLOAT, 0.0)
    str_value = attribute(AttrType.STRING, "")
    force_cpu = attribute(AttrType.BOOLEAN, False)
    gradient = ZERO_GRADIENT

    def infer_shape(self, Input: Spec) -> Spec:
        source = axis_of(self.input_dim_idx, Input.rank, "input_dim_idx", Input=None)
        axis = axis_of(self.output_dim_idx, len(self.shape), "output_dim_idx")
        dims: list[Size] = list(self.shape)
        dims[axis] = Input.known_dims[source] if source or Input.lod is None else Input.lod.counts[-1]
        require(all(isinstance(n, Dim) or n >= 0 for n in dims), f"a size in shape must be at least 0; seen {dims}")
        dtype = element_type(self.dtype)
        return filled(tensor(dtype, *dims), number_of(dtype, self.value, _text(self.str_value)))

    def sharding_rule(self, Input: Spec) -> ShardingRule | None:
        source, axis = self.input_dim_idx % Input.rank, self.output_dim_idx % len(self.shape)
        ragged, names = Input.lod is not None and source == 0, axis_names(Input.rank, set(range(Input.rank)) - {source})
        return None if ragged else ShardingRule({"Input": names}, {"Out": tuple([names[source] if k == axis else WHOLE for k in range(len(self.shape))])})

    def kernel(self, Input: Tensor, *, offsets: list[Offsets | None]) -> Tensor:
        shape, sequences = list(self.shape), offsets[0]
        shape[self.output_dim_idx] = Input.shape[self.input_dim_idx]
        if sequences is not None and self.input_dim_idx % Input.dim() == 0:
            shape[self.output_dim_idx] = sequences.count
        dtype = element_type(self.dtype)
        return torch.full(shape, number_of(dtype, self.value, _text(self.str_value)), dtype=torch_dtype(dtype), device=this_run.device)

    samples = [
        sample(Input=f32(2, 3), shape=[-1, 5], value=1.5),
        sample(Input=f32(2, 3), shape=[4, -1], input_dim_idx=1, output_dim_idx=1, dtype=3, value=2.0),
        sample(Input=f32(9, 3).ragged([4, 5]), shape=[-1, 5], value=1.5),
        sample(Input=f32(7, 2).ragged([2, 1, 1], [3, 0, 4, 0]), shape=[5, -1], input_dim_idx=-2, output_dim_idx=1),
        sample(Input=f32(9, 3).ragged([4, 5]), shape=[4, -1], input_dim_idx=1, output_dim_idx=1),
    ]
    rejects = [
        reject(Input=f32(2, 3), shape=[-1, 5], input_dim_idx=2, says="input_dim_idx must be in [-2, 2)"),
        reject(Input=f32(2, 3), shape=[5, -1], says="at least 0"),
        reject(Input=f32(2, 3), shape=[], says="output_dim_idx must be"),
    ]


class Range(Operator):
    """Out = Start, Start + Step, Start + 2 Step, ..., before End.

    Floats are counted in their own precision, as in PaddlePaddle: ``ceil((End - Start) / Step)``, so 0, 0.3 and 0.1 in fp32 make three numbers, not four.
    """

    type = "range"
    Start = operand((*INDEX, FP32, FP64), doc="one number")
    End = operand((*INDEX, FP32, FP64), same_type_as="Start", doc="one number, the first after the end of Out")
    Step = operand((*INDEX, FP32, FP64), same_type_as="Start", doc="one number, not 0")
    Out = result(doc="[n]; n is known if the numbers are")
    gradient = ZERO_GRADIENT

    def computes(self) -> computations.Counting:
        return computations.Counting()

    def infer_shape(self, Start: Spec, End: Spec, Step: Spec) -> Spec:
        start, end, step = known_number(0, Start, "Start"), known_number(0, End, "End"), known_number(0, Step, "Step")
        require(step is None or isinstance(step, Dim) or step != 0, "Step must not be 0", Step=None)
        dtype = Start.known_dtype
        if dtype.is_floating:
            if start is None or end is None or step is None:
                return tensor(dtype, unknown_size("length"))
            if isinstance(start, float) and isinstance(end, float) and isinstance(step, float):
                length = _floats_between(start, end, step, dtype)
                return tensor(dtype, length if length is not None else fail(f"there is no number of steps of {step} from {start} to {end}"))
            with suppress(ShapeError):
                steps = calculated("divide", calculated("subtract", end, start, dtype), step, dtype)
                return tensor(dtype, maximum(0, whole_part(rounded("ceil", steps))))
            return tensor(dtype, unknown_size("length"))
        if start is None or end is None or not isinstance(step, int):
            return tensor(dtype, unknown_size("length"))
        count = maximum(0, ceildiv(end - start, step) if step > 0 else ceildiv(start - end, -step))
        out = tensor(dtype, count)
        return carry(out, [start + k * step for k in range(count)]) if isinstance(count, int) and count <= MAX_VALUE_ELEMENTS else out

    def kernel(self, Start: Tensor, End: Tensor, Step: Tensor) -> Tensor:
        start, end, step = Start.item(), End.item(), Step.item()
        if step == 0:
            raise ExecutionError("range: Step must not be 0")
        if Start.is_floating_point():
            count = _floats_between(start, end, step, dtype_of_torch(Start.dtype))
            if count is None:
                raise ExecutionError(f"range: there is no number of steps of {step} from {start} to {end}")
            require_room(self.type, count * Start.element_size(), f"a result of {count:,} numbers")
            out = torch.arange(start, start + (count - 0.5) * step if count else start, step, dtype=Start.dtype, device=Start.device)
            return out if len(out) == count else torch.arange(count, dtype=torch.float64, device=Start.device).mul_(step).add_(start).to(Start.dtype)
        count = int(max(0, -((start - end) // step)))
        require_room(self.type, count * Start.element_size(), f"a result of {count:,} numbers")
        if max(abs(end - start), abs(step)) >= 2**53:  # torch counts in floats, and its sums wrap
            return torch.arange(count, dtype=torch.int64, device=Start.device).mul_(step).add_(start).to(Start.dtype)
        return torch.arange(start, end if count else start, step, dtype=Start.dtype, device=Start.device)

    samples = [
        sample(Start=i64(1, data=[2]), End=i64(1, data=[9]), Step=i64(1, data=[3])),
        sample(Start=i32(data=[9]), End=i32(data=[2]), Step=i32(data=[-3])),
        sample(Start=i32(data=[2]), End=i32(data=[9]), Step=i32(data=[-3])),
        sample(Start=f32(1, data=[0.0]), End=f32(1, data=[1.0]), Step=f32(1, data=[0.25])),
        sample(Start=f32(1, data=[0.0]), End=f32(1, data=[0.3]), Step=f32(1, data=[0.1])),
        sample(Start=i64(1, low=1, high=3), End=i64(1, low=5, high=9), Step=i64(1, low=1, high=2)),
    ]
    rejects = [reject(Start=i64(1), End=i64(1), Step=i64(1, data=[0]), says="Step must not be 0")]


def _floats_between(start: float, end: float, step: float, dtype: DType) -> int | None:
    """Return the count of numbers from ``start`` to before ``end``, in the precision of an element type; None if it is no number."""
    import numpy

    exact = numpy.dtype(dtype.numpy_name).type
    with numpy.errstate(over="ignore", divide="ignore", invalid="ignore"):
        steps = float((exact(end) - exact(start)) / exact(step))
    return max(0, math.ceil(steps)) if abs(steps) < 2.0**63 else None


def _spaced(Num: Spec, dtype: int) -> Spec:
    count = known_number(0, Num, "Num")
    if count is not None:
        require_at_most(1, count, f"Num must be at least 1; seen {count}", Num=None)
    return tensor(element_type(dtype), count if count is not None else unknown_size("Num"))


class Linspace(Operator):
    """Out = Num numbers from Start to Stop, evenly spaced, both included."""

    type = "linspace"
    Start = operand((*INDEX, FP32, FP64), doc="one number")
    Stop = operand((*INDEX, FP32, FP64), doc="one number")
    Num = operand(INDEX, doc="the count, at least 1")
    Out = result(doc="[Num]")
    dtype = attribute(AttrType.INT, FP32, doc=DTYPE_DOC)
    gradient = ZERO_GRADIENT

    def infer_shape(self, Start: Spec, Stop: Spec, Num: Spec) -> Spec:
        known_number(0, Start, "Start")
        known_number(0, Stop, "Stop")
        return _spaced(Num, self.dtype)

    def kernel(self, Start: Tensor, Stop: Tensor, Num: Tensor) -> Tensor:
        count = int(Num.item())
        if count < 1:
            raise ExecutionError(f"linspace: Num must be at least 1; seen {count}")
        return torch.linspace(Start.item(), Stop.item(), count, dtype=torch_dtype(self.dtype), device=Start.device)

    samples = [
        sample(Start=f32(1), Stop=f32(1), Num=i32(1, data=[7])),
        sample(Start=f32(1), Stop=f32(1), Num=i32(1, low=2), dtype=6),
        sample(Start=i64(data=[0]), Stop=i64(data=[10]), Num=i64(data=[6]), dtype=3),
    ]
    rejects = [reject(Start=f32(1), Stop=f32(1), Num=i32(1, data=[0]), says="Num must be at least 1")]


class Eye(Operator):
    """Out = ones on the diagonal of a matrix of zeros."""

    type = "eye"
    Out = result(doc="[num_rows, num_columns]")
    num_rows = attribute(AttrType.LONG, low=0)
    num_columns = attribute(AttrType.LONG, -1, low=-1, doc="-1: as many as rows")
    dtype = attribute(AttrType.INT, FP32, doc=DTYPE_DOC)
    gradient = ZERO_GRADIENT

    def infer_shape(self) -> Spec:
        return tensor(element_type(self.dtype), self.num_rows, self.num_rows if self.num_columns == -1 else self.num_columns)

    def kernel(self) -> Tensor:
        return torch.eye(self.num_rows, self.num_rows if self.num_columns == -1 else self.num_columns, dtype=torch_dtype(self.dtype), device=this_run.device)

    samples = [sample(num_rows=3), sample(num_rows=2, num_columns=5, dtype=3)]
    rejects = [reject(num_rows=2**40, num_columns=2**40, says="64-bit")]


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
        return _spaced(Num, self.dtype)

    def kernel(self, Start: Tensor, Stop: Tensor, Num: Tensor, Base: Tensor) -> Tensor:
        count = int(Num.item())
        if count < 1:
            raise ExecutionError(f"logspace: Num must be at least 1; seen {count}")
        exponents = torch.linspace(Start.item(), Stop.item(), count, dtype=torch.float64, device=Start.device)
        return torch.pow(float(Base.item()), exponents).to(torch_dtype(self.dtype))

    samples = [
        sample(Start=f32(1), Stop=f32(1), Num=i32(1, data=[7]), Base=f32(1, data=[2.0])),
        sample(Start=f32(1), Stop=f32(1), Num=i32(1, low=2), Base=f32(1, low=0.5), dtype=6),
        sample(Start=i64(1, data=[0]), Stop=i64(1, data=[3]), Num=i32(1, data=[4]), Base=i64(1, data=[10])),
    ]
    rejects = [reject(Start=f32(1), Stop=f32(1), Num=i32(1, data=[0]), Base=f32(1), says="Num must be at least 1")]
