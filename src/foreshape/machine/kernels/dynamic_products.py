"""Products of rows with a constant matrix of bytes, where each row is rounded in a step of its own.

Where the processor multiplies bytes, three kernels of oneDNN's own library do it: rows over their steps become bytes, bytes are multiplied, and the sums are
multiplied by the steps while bias, activation and another tensor are added. Elsewhere the rounded rows are multiplied in fp32, to the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.frozen import Following, FrozenLinear, in_library, linear
from foreshape.machine.kernels.onednn_grids import aligned
from foreshape.machine.kernels.onednn_library import ADDED, S8, STEP_OF, WEIGHTS, After, Function, Handle, Library, Memory, Primitive, Unimplemented, library
from foreshape.machine.kernels.onednn_packed import DescribedPrimitive, PackedProduct, described, row_major_strides
from foreshape.machine.kernels.onednn_packed_bytes import ByteWeight
from foreshape.machine.kernels.onednn_ragged import RaggedSeries
from foreshape.machine.kernels.onednn_stages import FEW, computed, lying
from foreshape.machine.kernels.onednn_steps import ChainKernel, PlannedStep
from foreshape.machine.kernels.rows_of_bytes import steps_of

Dims = Sequence[int]


class RowsTimesBytes:
    """A stage of a series: ``functions(s (round(x / s) whole) steps + bias [+ other])`` of rows ``[m, k]`` and their steps s ``[m, 1]``.

    Args:
        weight: whole numbers ``[k, n]`` and a step for each column.
        bias: [n], or None.
    """

    def __init__(self, library: Library, weight: ByteWeight, bias: Tensor | None, functions: Sequence[Function]) -> None:
        self._whole, self._steps, self._bias, self._functions = weight.whole.contiguous(), weight.steps.float().contiguous(), bias, tuple(functions)
        self._packed: tuple[Handle, Tensor] | None = None

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive:
        raise Unimplemented("it is several kernels")

    def planned(self, library: Library, dims: Sequence[Dims], sources: Sequence[int], number: int) -> PlannedStep:
        """Return the kernels for operands of these dims and numbers."""
        (m, k), n = dims[0], self._whole.shape[1]
        out, step = (m, n), lying((m, 1))
        rows, sums = -1, -1 - aligned(m * k)
        as_bytes = computed(library, (m, k), "binary", "divide", lying((m, k)), step, lying((m, k), S8))
        primitives = [(as_bytes, (sources[0], sources[1]), rows), (self._product(library, m), (rows,), sums)]
        adds, bias = len(dims) > 2, self._bias
        row = Memory((1, n), (n, 1))
        constants = {} if bias is None else {ADDED: library.memory(library.handle(row), bias.data_ptr(), bias)}
        first = After(row if bias is not None else lying(out) if adds else None, self._functions if bias is None or not adds else ())
        scaled = computed(library, out, "binary", "multiply", lying(out), step, lying(out), after=first, constants=constants)
        operands = (sums, sources[1], sources[2]) if adds and bias is None else (sums, sources[1])
        if not adds or bias is None:
            return PlannedStep([*primitives, (scaled, operands, number)], out, None, aligned(m * k) + aligned(4 * m * n))
        summed = computed(library, out, "binary", "add", lying(out), lying(out), lying(out), after=After(None, self._functions))
        return PlannedStep([*primitives, (scaled, operands, sums), (summed, (sums, sources[2]), number)], out, None, aligned(m * k) + aligned(4 * m * n))

    def _product(self, library: Library, m: int) -> DescribedPrimitive:
        k, n = self._whole.shape
        memories = (lying((m, k), S8), Memory((k, n), None, S8), None, lying((m, n)))
        record = Primitive("product", (*memories, After(None, (), ((WEIGHTS, 2),))), 1 if m * n * k < 4 * FEW else None)
        with library.using(record.threads):
            description = library.quick(library.described(record))
            constants = {WEIGHTS: self._ordered(library, library.wanted_weights(description))}
        constants[STEP_OF | WEIGHTS] = library.memory(library.strided(self._steps.shape, (1,)), self._steps.data_ptr(), self._steps)
        return described(library, record, constants, (m, n), row_major_strides((m, n)), description=description)

    def _ordered(self, library: Library, layout: Handle) -> Handle:
        """Return the weight in the layout of a kernel: mostly the same for all numbers of rows."""
        if self._packed is None or not library.same(self._packed[0], layout):
            value: Tensor = torch.empty(library.nbytes(layout), dtype=torch.uint8, device="cpu")
            dims = tuple(self._whole.shape)
            library.reorder(library.strided(dims, row_major_strides(dims), S8), self._whole.data_ptr(), layout, value.data_ptr())
            if self._packed is not None:
                return library.memory(layout, value.data_ptr(), value)
            self._packed = layout, value
        return library.memory(layout, self._packed[1].data_ptr(), self._packed[1])


class DynamicRows:
    """``activation(s (round(x factor / s) whole) steps + bias [+ other])`` of rows ``[..., k]``, with the step s of each row found in the run.

    Args:
        weight: whole numbers ``[k, n]`` and a step for each column.
        bias: [n], or None.
        factor: [k], or None.
        ragged: the number of rows is another in most calls.
    """

    def __init__(self, weight: ByteWeight, bias: Tensor | None, following: Following, factor: Tensor | None, ragged: bool) -> None:
        self._weight, self._bias, self._following, self._factor, self._ragged = weight, bias, following, factor, ragged
        engine = library()
        self._byte_series: list[RaggedSeries] = []
        if engine is not None and engine.multiplies_bytes:
            stage = RowsTimesBytes(engine, weight, bias, in_library(following))
            self._byte_series = [RaggedSeries(engine, [ChainKernel(stage, self._in_fp32, (*range(n),), None)], n) for n in (2, 3)]
        self._numbers = None if self._byte_series else self._product()

    def __call__(self, x: Tensor) -> Tensor:
        return self._result(x, ())

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the result, with ``other``, of its shape, added before the activation."""
        return self._result(x, (other,))

    def _result(self, x: Tensor, added: Sequence[Tensor]) -> Tensor:
        rows = x if self._factor is None else x * self._factor
        steps = steps_of(rows)
        if not self._byte_series:
            return self._in_fp32(rows, steps, *added)
        count, n = prod(x.shape[:-1]), self._weight.whole.shape[1]
        flat = [rows.reshape(count, x.shape[-1]).contiguous(), steps.view(count, 1), *[term.reshape(count, n).contiguous() for term in added]]
        return self._byte_series[len(added)](*flat).view(*x.shape[:-1], n)

    def _in_fp32(self, rows: Tensor, steps: Tensor, *added: Tensor) -> Tensor:
        if self._numbers is None:
            self._numbers = self._product()
        rounded_rows = torch.div(rows, steps, out=rows if self._factor is not None and not self._byte_series else None).round_().mul_(steps)
        return self._numbers.add(rounded_rows, *added) if added else self._numbers(rounded_rows)

    def _product(self) -> PackedProduct | FrozenLinear:
        return linear(self._weight.numbers(1), self._bias, self._following, ragged=self._ragged)
