"""`TorchCall`: a node of torch's graph as seen by its function of import."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from foreshape import layer
from foreshape.core.spec import BOOL, FP32, FP64, INT64, DType
from foreshape.core.values.torch_types import dtype_of_torch as dtype_of
from foreshape.interop.refused import Refused
from foreshape.interop.torch.import_state import ImportState
from foreshape.interop.torch.open_size import AnySize, OpenFloat, OpenQuotient, OpenSize, as_dim, float_variable
from foreshape.interop.torch.untyped_torch import torch
from foreshape.language.operator.attributes import as_written
from foreshape.language.program import Variable
from foreshape.layer.functions import apply

CUMULATIVE: Final = -1.0
"""Stands for ``momentum=None`` of batch normalization while a module is exported: torch asks a tensor for its number there."""


class TorchCall:
    """A node in the course of its import.

    Attributes:
        node: of torch's graph.
        importer: the state of the whole import.
    """

    __slots__ = ("importer", "node")

    def __init__(self, importer: ImportState, node: Any) -> None:
        self.importer, self.node = importer, node

    @property
    def name(self) -> str:
        """Return the operator's name, without the mark of a change in place."""
        name: str = self.node.target._schema.name.split("::")[1]
        return name if name.startswith("__") else name.rstrip("_")

    @property
    def overload(self) -> str:
        """Return the name of the operator's overload, as ``dim``."""
        return self.node.target._schema.overload_name

    # --- the result, as torch traced it

    @property
    def traced(self) -> Any:
        """Return torch's own tensor without numbers for the first result."""
        found = self.node.meta.get("val")
        return found[0] if type(found) in (tuple, list) else found

    @property
    def dtype(self) -> DType:
        """Return the element type of the first result."""
        return dtype_of(self.traced.dtype)

    def argument(self, at: int) -> Any:
        """Return torch's own tensor without numbers for an argument; a number as it is."""
        found = self.node.args[at]
        return found.meta.get("val") if hasattr(found, "meta") else found

    def promoted(self) -> DType:
        """Return the common element type of the first two arguments."""
        x, y = self.argument(0), self.argument(1)
        plain = (torch.Tensor, int, float, bool, complex)
        return dtype_of(torch.result_type(*[v if isinstance(v, plain) else 1 for v in (x, y)]))

    # --- operands

    def tensor(self, x: Any, of: DType | None = None) -> Variable:
        """Return an operand as a variable in an element type: a tensor, a number or a size."""
        if isinstance(x, OpenSize):
            x = layer.reshape(x.variable, [])
        if isinstance(x, (OpenFloat, OpenQuotient)):
            x = float_variable(x)
        if isinstance(x, (bool, int, float)):
            return layer.fill_constant([], of or (BOOL if isinstance(x, bool) else INT64 if isinstance(x, int) else FP32), x)
        if isinstance(x, complex):
            made = layer.complex(layer.fill_constant([], FP32, x.real), layer.fill_constant([], FP32, x.imag))
            return made if of is None or made.dtype is of else layer.cast(made, of)
        if not isinstance(x, Variable):
            raise Refused(f"{type(x).__name__} where a tensor is needed")
        return x if of is None or x.dtype is of else layer.cast(x, of)

    def cast(self, x: Variable, of: DType) -> Variable:
        """Return ``x`` in an element type; itself if it has it."""
        return x if x.dtype is of else layer.cast(x, of)

    def sizes(self, given: Sequence[AnySize]) -> list[Any]:
        """Return sizes as the functions of `foreshape.layer` take them: numbers, and one-number variables."""
        return [s.variable if isinstance(s, OpenSize) else int(s) for s in given]

    def reshape(self, x: Variable, given: Sequence[AnySize]) -> Variable:
        """Return ``x`` in other dims; the only open size, or one as before at its place, needs no tensor."""
        now = x.spec.known_dims
        dims: list[Any] = []
        open_ones: list[int] = []
        for at, size in enumerate(given):
            known = as_dim(size)
            if isinstance(known, int) and known >= 0:
                dims.append(known)
            elif isinstance(size, OpenSize) and at < len(now) and now[at] is known and 0 not in [as_dim(s) for s in given]:
                dims.append(0)
            else:
                dims.append(size)
                open_ones.append(at)
        if len(open_ones) <= 1 or all(isinstance(given[at], int) for at in open_ones):
            return layer.reshape(x, [-1 if at in open_ones else d for at, d in enumerate(dims)])
        if 0 in dims:
            dims = [given[at] if d == 0 else d for at, d in enumerate(dims)]
        return layer.reshape(x, self.sizes(dims))

    @staticmethod
    def rank(x: Variable) -> int:
        """Return the number of dims."""
        return len(x.spec.known_dims)

    def axis(self, x: Variable, axis: int) -> int:
        """Return an axis counted from the front."""
        return int(axis) % max(self.rank(x), 1)

    def axes(self, x: Variable, axes: Any) -> list[int] | None:
        """Return axes counted from the front; None for all."""
        if axes is None or axes in ([], ()):
            return None
        return [self.axis(x, a) for a in (axes if type(axes) in (list, tuple) else [axes])]

    def scale(self, x: Variable, by: float, more: float = 0.0) -> Variable:
        """Return ``by * x + more``, with numbers of double precision beside tensors of it."""
        of = x.spec.known_dtype
        if is_held(by, of) and is_held(more, of):
            return x if by == 1 and more == 0 else layer.scale(x, float(by), float(more))
        made = x if by == 1 else layer.multiply(x, self.tensor(float(by), of))
        return made if more == 0 else layer.add(made, self.tensor(float(more), of))

    def power(self, x: Variable, y: float) -> Variable:
        """Return ``x`` to the power of a number, in double precision beside tensors of it."""
        of = x.spec.known_dtype
        return layer.pow(x, float(y)) if is_held(y, of) else self.op("elementwise_pow", X=x, Y=self.tensor(y, of))

    def root(self, x: Variable) -> Variable:
        """Return the square root of sums of squares; its slope at 0 is 0, as torch has it for norms and deviations."""
        zero = layer.equal(x, self.tensor(0.0, x.spec.known_dtype))
        found = layer.sqrt(self.where(zero, layer.fill_like(x, 1.0), x))
        return self.where(zero, layer.fill_like(x, 0.0), found)

    def where(self, condition: Variable, x: Variable, y: Variable) -> Variable:
        """Return x where the condition holds, else y; the three are broadcast against each other."""
        dims = condition.spec.dims
        if dims is not x.spec.dims or dims is not y.spec.dims:
            x, y, _ = layer.broadcast_tensors([x, y, layer.cast(condition, x.spec.known_dtype)])
            condition = layer.expand_as(condition, x)
        return layer.where(condition, x, y)

    def op(self, type: str, attrs: dict[str, Any] | None = None, **inputs: Any) -> Any:
        """Append an op, and return its result, or a tuple of several."""
        return apply(type, {slot: v for slot, v in inputs.items() if v is not None}, **(attrs or {}))


def is_held(x: Any, of: DType) -> bool:
    """Tell whether it is a number that an attribute of 32 bits holds, beside tensors of this element type."""
    if not isinstance(x, (int, float)) or isinstance(x, bool) or abs(x) >= 2**24 or not math.isfinite(x):
        return False
    return of is not FP64 or as_written(struct.unpack("f", struct.pack("f", x))[0]) == x


def name_of(target: Any) -> tuple[str, str]:
    """Return name and overload of an operator of torch."""
    space, name = target._schema.name.split("::")
    return name if space == "aten" else f"{space}.{name}", target._schema.overload_name or "default"


def without_memory(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the named arguments but for the ones about memory."""
    return {k: v for k, v in named.items() if k not in ("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "generator")}


def flat(arguments: Sequence[Any]) -> Iterator[Any]:
    """Yield the arguments in lists of lists."""
    for one in arguments:
        if isinstance(one, list):
            yield from flat(cast("list[Any]", one))
        else:
            yield one
