"""Tensors from nothing: constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.dims import Dim, Size, product
from foreshape.errors import SchemaError
from foreshape.ops import INDEX, ZERO_GRADIENT, AttrType, Operator, attribute, f32, fail, i32, i64, operand, reject, result, sample, torch
from foreshape.ops.torch_types import element_type, torch_dtype
from foreshape.spec import ANY, BOOL, FP32, Spec, tensor

if TYPE_CHECKING:
    from torch import Tensor

SHAPE_OPERANDS_DOC = "the shape, as a tensor; a known value is used while describing"


def shape_from(name: str, shape: tuple[int, ...], tensor_spec: Spec | None, list_specs: tuple[Spec, ...]) -> tuple[Size, ...]:
    """The shape that a creation operator makes: from a list of one-number tensors, a tensor, or the attribute, in that order.

    A size that is not known before the run becomes a symbol named after the slot.
    """
    from foreshape.dims import symbol

    if list_specs:
        return tuple(
            s.value[0] if s.value else (n if at < len(shape) and (n := shape[at]) >= 0 else symbol(f"{name}.{at}")) for at, s in enumerate(list_specs)
        )
    if tensor_spec is not None:
        if tensor_spec.value is not None:
            return tensor_spec.value
        count = tensor_spec.elements
        if isinstance(count, Dim):
            fail("the number of dims must be known before the run", **{name: None})
        return tuple(symbol(f"{name}.{at}") for at in range(count))
    return tuple(shape)


def shape_at_run(shape: tuple[int, ...], tensor_value: Any, list_values: Any) -> tuple[int, ...]:
    """The same with tensors."""
    if list_values:
        return tuple(int(v.reshape(-1)[0]) for v in list_values)
    return tuple(int(v) for v in tensor_value.reshape(-1).tolist()) if tensor_value is not None else shape


class FillConstant(Operator):
    """Out = a tensor of ``shape`` whose every element is ``value`` (``str_value``, where given, is its exact text)."""

    type = "fill_constant"
    ShapeTensor = operand(INDEX, optional=True, doc=SHAPE_OPERANDS_DOC)
    ShapeTensorList = operand(INDEX, many=True, optional=True, doc="the shape, as tensors of one number each")
    ValueTensor = operand(ANY, optional=True, doc="the value, as a tensor of one number")
    Out = result(doc="[*shape]")
    shape = attribute(AttrType.LONGS, [], low=0)
    dtype = attribute(AttrType.INT, FP32, doc="an element type, by its number in the file format")
    value = attribute(AttrType.FLOAT, 0.0)
    str_value = attribute(AttrType.STRING, "")
    force_cpu = attribute(AttrType.BOOLEAN, False)
    place_type = attribute(AttrType.INT, -1)
    gradient = ZERO_GRADIENT

    def _number(self) -> float | int | bool:
        text = self.str_value
        of = element_type(self.dtype)
        try:
            number = float(text) if text else self.value
            return number if of.is_floating else bool(number) if of is BOOL else int(text) if text and text.lstrip("-").isdigit() else int(number)
        except (ValueError, OverflowError):
            fail(f"str_value must write a number of type {of.name}; seen {text[:40]!r}")

    def infer_shape(self, ShapeTensor: Spec | None, ShapeTensorList: tuple[Spec, ...], ValueTensor: Spec | None) -> Spec:
        of = element_type(self.dtype)
        out = tensor(of, *shape_from("ShapeTensor", self.shape, ShapeTensor, ShapeTensorList))
        number = self._number() if ValueTensor is None else None
        count = product(out.known_dims)
        return out.with_value((int(number),) * count) if of.is_integer and number is not None and isinstance(count, int) and count <= 64 else out

    def kernel(self, ShapeTensor: Tensor | None, ShapeTensorList: list[Tensor], ValueTensor: Tensor | None) -> Tensor:
        shape = shape_at_run(self.shape, ShapeTensor, ShapeTensorList)
        number = self._number() if ValueTensor is None else ValueTensor.reshape(-1)[0].item()
        return torch.full(shape, number, dtype=torch_dtype(self.dtype))

    samples = [
        sample(shape=[2, 3], value=1.5),
        sample(shape=[], dtype=3, value=7.0),
        sample(shape=[3], dtype=3, str_value="9007199254740993"),
        sample(ShapeTensor=i64(2, data=[3, 2]), value=2.0),
        sample(ShapeTensorList=[i32(1, data=[2]), i32(1, data=[4])]),
        sample(shape=[2], ValueTensor=f32(1)),
    ]
    rejects = [reject(shape=[2, -3], says="at least 0", error=SchemaError), reject(shape=[2**40, 2**40], says="64-bit")]

