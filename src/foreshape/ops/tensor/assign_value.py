"""A tensor with its numbers in the program."""

from __future__ import annotations

from typing import Any

from foreshape.dims import product
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import ZERO_GRADIENT, AttrType, Operator, attribute, result
from foreshape.operator.attributes import Raw
from foreshape.operator.require import fail, require
from foreshape.operator.samples import reject, sample
from foreshape.ops.rules.known_values import carry, fits, is_undefined
from foreshape.spec import BOOL, FP64, INT64, MAX_VALUE_ELEMENTS, Spec, tensor
from foreshape.values.torch_proxy import Tensor, torch
from foreshape.values.torch_types import element_type, torch_dtype


class AssignValue(Operator):
    """Out = the numbers of ``values``, or of the list for the element type, in ``shape``.

    PaddlePaddle 2.5 and later write ``values``; its older form has a list for each of bool, int32, int64, fp32 and fp64. Both are
    read, and types without a list of their own use the one of their family.
    """

    type = "assign_value"
    Out = result(doc="[*shape]")
    shape = attribute(AttrType.INTS, doc="the shape")
    dtype = attribute(AttrType.INT, doc="an element type, by its number in the file format")
    bool_values = attribute(AttrType.INTS, [])
    fp32_values = attribute(AttrType.FLOATS, [])
    fp64_values = attribute(AttrType.FLOAT64S, [])
    int32_values = attribute(AttrType.INTS, [])
    int64_values = attribute(AttrType.LONGS, [])
    values = attribute(AttrType.SCALARS, [], doc="the numbers, of any type")
    gradient = ZERO_GRADIENT

    def _numbers(self) -> tuple[Any, ...] | Raw:
        of = element_type(self.dtype)
        if self.values:
            return self.values
        if of is BOOL:
            return self.bool_values
        if of is FP64 and self.fp64_values:
            return self.fp64_values
        return self.fp32_values if of.is_floating else self.int64_values if of is INT64 else self.int32_values

    def infer_shape(self) -> Spec:
        of = element_type(self.dtype)
        require(all(n >= 0 for n in self.shape), f"a size in shape must be at least 0; seen {list(self.shape)}")
        out = tensor(of, *self.shape)
        numbers = self._numbers()
        if isinstance(numbers, Raw) or any(isinstance(v, complex) for v in numbers):
            fail("values must be real numbers", TypeMismatchError)
        count = product(self.shape)
        require(len(numbers) == count, f"shape {list(self.shape)} needs {count} values of type {of.name}; seen {len(numbers)}")
        if not of.is_integer:
            return out.with_value([int(numbers[0])]) if is_undefined(out, numbers) else out
        if any(v != int(v) or not fits(of, int(v)) for v in numbers if abs(v) < 2**70) or any(not abs(v) < 2**70 for v in numbers):
            fail(f"values must be numbers of type {of.name}", SchemaError)
        return carry(out, [int(v) for v in numbers]) if len(numbers) <= MAX_VALUE_ELEMENTS else out

    def kernel(self) -> Tensor:
        return torch.tensor(self._numbers(), dtype=torch_dtype(self.dtype)).reshape(self.shape)

    samples = [
        sample(shape=[2, 3], dtype=5, fp32_values=[1.5, 2.0, -3.0, 4.0, 5.0, 6.0]),
        sample(shape=[3], dtype=2, int32_values=[1, -2, 3]),
        sample(shape=[3, 1], dtype=3, int64_values=[1, 2**40, 3]),
        sample(shape=[2], dtype=0, bool_values=[1, 0]),
        sample(shape=[2], dtype=6, values=[0.1, 0.2]),
        sample(shape=[2], dtype=6, fp64_values=[0.1, 0.2]),
        sample(shape=[2], dtype=3, values=[4, 5]),
        sample(shape=[], dtype=5, fp32_values=[1.5]),
        sample(shape=[0, 3], dtype=5),
        sample(shape=[1], dtype=5, fp32_values=[float.fromhex("0x1.6e42d80000000p+90")]),
    ]
    rejects = [
        reject(shape=[2], dtype=5, fp32_values=[1.0], says="needs 2 values of type fp32; seen 1"),
        reject(shape=[2], dtype=5, int32_values=[1, 2], says="needs 2 values of type fp32; seen 0"),
        reject(shape=[-1], dtype=5, fp32_values=[1.0], says="at least 0"),
        reject(shape=[1], dtype=21, int32_values=[300], says="numbers of type int8", error=SchemaError),
        reject(shape=[2**31 - 1, 2**31 - 1, 2**31 - 1], dtype=5, says="64-bit"),
    ]
