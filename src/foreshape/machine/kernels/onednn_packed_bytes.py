"""Convolutions and products of bytes with a constant weight of bytes, as stages of a series; fp32 ones for operands of other numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.onednn_bytes import Dims, Grid, told, with_found_grid
from foreshape.machine.kernels.onednn_grids import FoundGrid, Kept
from foreshape.machine.kernels.onednn_library import (
    BIAS,
    F32,
    RESULT,
    S8,
    SOURCE,
    STEP_OF,
    WEIGHTS,
    ZERO_OF,
    After,
    Function,
    Handle,
    Library,
    Memory,
    Primitive,
    Unimplemented,
)
from foreshape.machine.kernels.onednn_packed import FEW, DescribedPrimitive, PackedConvolution, PackedProduct, described, order_of, row_major_strides


class ByteWeight(NamedTuple):
    """A weight as int8, the step of each channel of the result, fp32, and the zero point of all its numbers."""

    whole: Tensor
    steps: Tensor
    zero: int = 0

    def numbers(self, axis: int) -> Tensor:
        """Return the weight as fp32, with the channels of the result at an axis."""
        whole = self.whole.to(torch.int16) - self.zero if self.zero else self.whole
        return whole * self.steps.reshape([-1 if k == axis else 1 for k in range(self.whole.dim())])


def in_int8(weight: Tensor, zero: Tensor) -> tuple[Tensor, int] | None:
    """Return bytes less their zero points, int16, as int8 with one zero point; None for several ones that leave the range of int8."""
    less = weight.to(torch.int16) - zero
    if not less.numel() or (int(less.min()) >= -128 and int(less.max()) <= 127):
        return less.to(torch.int8), 0
    if zero.numel() > 1:
        return None
    shift = 0 if weight.dtype is torch.int8 else 128
    return (weight.to(torch.int16) - shift).to(torch.int8), int(zero) - shift


_EVEN = ("relu", "leaky_relu")
"""The functions with f(a x) = a f(x) for a above 0."""


class _Bytes:
    """A weight of bytes, once, in the order for its kernels, and the bias."""

    def __init__(self, library: Library, given: ByteWeight, dims: Sequence[int], bias: Tensor | None, functions: Sequence[Function], axes: int) -> None:
        self._dims, self._functions, self._axes = tuple(dims), tuple(functions), axes
        self._shape, self._steps, self._zero, self._bias = given.whole.shape, given.steps.float().contiguous(), given.zero, bias
        self._rows = library.strided(self._dims, row_major_strides(self._dims), S8)
        self._packed: list[tuple[Handle, Tensor]] = [(self._rows, given.whole.contiguous())]
        self.any = Memory(self._dims, None, S8)

    def described(
        self,
        library: Library,
        source: Dims,
        out: Dims,
        on: Sequence[Kept],
        wanted: Grid | None,
        kind: str,
        settings: Sequence[Any],
        result_dims: Dims,
        lying: Callable[[Dims], tuple[int, ...]],
        bias_dims: Dims,
    ) -> tuple[DescribedPrimitive, Kept]:
        """Return the computation for operands on these grids.

        The sum is computed in units of the step of an added operand, so that its bytes are added as they are.
        """
        grid, added = on[0], on[1] if len(on) > 1 else None
        if not isinstance(grid, Grid | FoundGrid) or not (added is None or isinstance(added, Grid)) or not library.multiplies_bytes:
            raise Unimplemented("it multiplies no bytes")
        end = wanted if wanted is not None and wanted.is_whole else None
        unit, functions = 1.0 if added is None else added.step, list(self._functions)
        if isinstance(grid, FoundGrid) and unit != 1.0:
            raise Unimplemented("bytes are added in another step")
        steps, zeros, constants = told(library, SOURCE, grid if isinstance(grid, FoundGrid) else grid._replace(step=grid.step / unit))
        steps[WEIGHTS] = self._axes
        constants[STEP_OF | WEIGHTS] = library.memory(library.strided(self._steps.shape, (1,)), self._steps.data_ptr(), self._steps)
        if self._zero:
            zeros.append(WEIGHTS)
            constants[ZERO_OF | WEIGHTS] = library.number(self._zero)
        if (added is not None and not all(name in _EVEN for name, _, _ in functions)) or (added is not None and end is None):
            functions = [("linear", unit, 0.0), *functions]
        last = unit if functions == [*self._functions] else 1.0
        if end is not None:
            result_steps, point, given_end = told(library, RESULT, end._replace(step=end.step / last))
            steps, zeros, constants = {**steps, **result_steps}, [*zeros, *point], {**constants, **given_end}
        after = After(Memory(out, lying(out), F32 if added is None else added.of) if len(on) > 1 else None, functions, (*steps.items(),), zeros)
        bias, order = self._shifted(unit, 0 if added is None else added.zero), None
        if bias is not None:
            order = Memory(bias_dims, row_major_strides(bias_dims))
            constants[BIAS] = library.memory(library.handle(order), bias.data_ptr(), bias)
        memories = (Memory(source, lying(source), grid.of), self.any, order, Memory(out, lying(out), F32 if end is None else end.of))
        few = prod(out) * prod(self._dims) // self._dims[-1 if len(self._dims) == 2 else 0] < 4 * FEW
        record = Primitive(kind, (*memories, *settings, after), 1 if few else None)
        with library.using(record.threads):
            description = library.quick(library.described(record))
            constants[WEIGHTS] = self._ordered(library, library.wanted_weights(description))
        computation = described(library, record, constants, result_dims, order_of(result_dims), description=description)
        return (with_found_grid(library, computation, SOURCE, prod(source)) if isinstance(grid, FoundGrid) else computation), end

    def _shifted(self, unit: float, zero: int) -> Tensor | None:
        if self._bias is None and not zero:
            return None
        bias: Any = torch.zeros(len(self._steps)) if self._bias is None else self._bias
        return (bias / unit - zero).contiguous()

    def _ordered(self, library: Library, wanted: Handle) -> Handle:
        for order, value in self._packed:
            if library.same(order, wanted):
                return library.memory(order, value.data_ptr(), value)
        value: Tensor = torch.empty(library.nbytes(wanted), dtype=torch.uint8, device="cpu")
        order, whole = self._packed[0]
        library.reorder(order, whole.data_ptr(), wanted, value.data_ptr())
        if order is self._rows and library.can_reorder(wanted, self._rows):
            self._packed[0] = wanted, value
        else:
            self._packed.append((wanted, value))
        return library.memory(wanted, value.data_ptr(), value)

    def weight(self, library: Library) -> ByteWeight:
        """Return the weight in the order of its rows."""
        order, value = self._packed[0]
        if order is not self._rows:
            whole: Tensor = torch.empty(self._shape, dtype=torch.int8, device="cpu")
            library.reorder(order, value.data_ptr(), self._rows, whole.data_ptr())
        else:
            whole = value.view(self._shape)
        return ByteWeight(whole, self._steps, self._zero)


class ByteConvolution(PackedConvolution):
    """A `PackedConvolution` with the bytes of its weight, and the fp32 numbers for images of fp32 alone."""

    def __init__(self, library: Library, weight: ByteWeight, bias: Tensor | None, *settings: Any, columns: bool = False) -> None:
        groups, functions, shape = settings[3], settings[4], weight.whole.shape
        out, per, *window = shape
        dims = (groups, out // groups, per, *window) if groups > 1 else (out, per, *window)
        in_bytes = self._in_bytes = _Bytes(library, weight, dims, bias, functions, 3 if groups > 1 else 1)
        super().__init__(library, lambda: in_bytes.weight(library).numbers(0), bias, *settings, columns=columns, shape=shape)

    def in_bytes(self, library: Library, dims: Sequence[Dims], grids: Sequence[Kept], wanted: Grid | None) -> tuple[DescribedPrimitive, Kept]:
        x, out, settings = self.windows(dims[0])
        result_dims = self.upright(out)
        if len(dims) > 1 and tuple(dims[1]) != result_dims:
            raise Unimplemented("what is added is of other dims")
        return self._in_bytes.described(library, x, out, grids, wanted, "convolution", settings, result_dims, order_of, self._shape[:1])


class ByteProduct(PackedProduct):
    """A `PackedProduct` with the bytes of its weight, and the fp32 numbers for rows of fp32 alone."""

    def __init__(self, library: Library, weight: ByteWeight, bias: Tensor | None, functions: Sequence[Function], otherwise: Any) -> None:
        in_bytes = self._in_bytes = _Bytes(library, weight, weight.whole.shape, bias, functions, 2)
        super().__init__(library, lambda: in_bytes.weight(library).numbers(1), bias, functions, otherwise, shape=weight.whole.shape)

    def in_bytes(self, library: Library, dims: Sequence[Dims], grids: Sequence[Kept], wanted: Grid | None) -> tuple[DescribedPrimitive, Kept]:
        self._fit(dims[0])
        k, n = self._shape
        result_dims, rows = (*dims[0][:-1], n), prod(dims[0][:-1])
        if len(dims) > 1 and tuple(dims[1]) != result_dims:
            raise Unimplemented("what is added is of other dims")
        return self._in_bytes.described(library, (rows, k), (rows, n), grids, wanted, "product", (), result_dims, row_major_strides, (1, n))
