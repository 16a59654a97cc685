"""Products of one row or four with a tile of 64 columns of a weight, as LLVM's instructions for numba: the sums stay in registers.

Numbers of the weight are fp32, whole numbers of 8 bits, or of 4 bits as `foreshape.machine.kernels.grouped_weights` packs them. Each sum goes through the rows
of the weight in their order, with one rounding for each number where the processor can: one row and four get the same bits.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

LANES: Final = 16
VECTORS: Final = 4
ROWS: Final = 4
"""The rows of the larger kernel."""


def float_tile(x: int, pitch: int, weight: int, step: int, out: int, out_pitch: int, count: int) -> None:
    """Write the products of four rows with a tile. (In machine code; see `tile_kernels`.)

    Args:
        x, out: the addresses of the first row of the operand, and of 64 numbers of the result.
        pitch, out_pitch: the bytes from row to row there.
        weight: the address of the tile.
        step: its bytes from row to row; of 4 bits from pair to pair.
        count: its rows.
    """
    raise NotImplementedError


def byte_tile(x: int, pitch: int, weight: int, step: int, out: int, out_pitch: int, count: int) -> None:
    """Do the same with numbers of 8 bits."""
    raise NotImplementedError


def byte_tile_of_one(x: int, pitch: int, weight: int, step: int, out: int, out_pitch: int, count: int) -> None:
    """Do the same with one row."""
    raise NotImplementedError


def half_byte_tile(x: int, pitch: int, weight: int, step: int, out: int, out_pitch: int, count: int) -> None:
    """Do the same with four rows and numbers of 4 bits, each still plus 8; ``count`` is even."""
    raise NotImplementedError


def half_byte_tile_of_one(x: int, pitch: int, weight: int, step: int, out: int, out_pitch: int, count: int) -> None:
    """Do the same with one row."""
    raise NotImplementedError


def dots(x: int, pitch: int, weight: int, out: int, out_pitch: int, count: int) -> None:
    """Write the products of four rows with one row of numbers.

    Args:
        x, out: the addresses of the first row, and of its result.
        pitch, out_pitch: the bytes from row to row, and from result to result.
        weight: the address of the one row.
        count: its numbers, a multiple of 64.
    """
    raise NotImplementedError


def dot_of_one(x: int, pitch: int, weight: int, out: int, out_pitch: int, count: int) -> None:
    """Do the same with one row."""
    raise NotImplementedError


def tile_kernels() -> dict[str, Any]:
    """Return the kernels by their names, for numba."""
    types, cgutils = importlib.import_module("numba.core.types"), importlib.import_module("numba.core.cgutils")
    intrinsic, ir = importlib.import_module("numba.extending").intrinsic, importlib.import_module("llvmlite.ir")
    large, small, octet, number = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.FloatType()
    vector, whole, octets = (ir.VectorType(element, LANES) for element in (number, small, octet))

    def everywhere(builder: Any, value: Any) -> Any:
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, small(0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(small, LANES), [0] * LANES))

    def fused_of(builder: Any) -> Any:
        return cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32")

    def zeros(builder: Any, rows: int) -> list[list[Any]]:
        sums = [[cgutils.alloca_once(builder, vector) for _ in range(VECTORS)] for _ in range(rows)]
        for place in (place for row in sums for place in row):
            builder.store(ir.Constant(vector, [0.0] * LANES), place)
        return sums

    def dot_kernel(rows: int) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, pitch, weight, out, out_pitch, count = arguments
            fused, sums = fused_of(builder), zeros(builder, rows)

            def loaded(address: Any) -> Any:
                return builder.load(builder.inttoptr(address, vector.as_pointer()), align=4)

            with cgutils.for_range(builder, builder.udiv(count, large(LANES * VECTORS))) as loop:
                begin = builder.mul(loop.index, large(4 * LANES * VECTORS))
                parts = [loaded(builder.add(weight, builder.add(begin, large(4 * LANES * i)))) for i in range(VECTORS)]
                for r, places in enumerate(sums):
                    row = builder.add(builder.add(x, builder.mul(pitch, large(r))), begin)
                    for i, (place, part) in enumerate(zip(places, parts, strict=True)):
                        builder.store(builder.call(fused, [loaded(builder.add(row, large(4 * LANES * i))), part, builder.load(place)]), place)
            for r, places in enumerate(sums):
                first, second, third, fourth = (builder.load(place) for place in places)
                total = builder.fadd(builder.fadd(first, second), builder.fadd(third, fourth))
                for step in (8, 4, 2, 1):
                    moved = builder.shuffle_vector(total, total, ir.Constant(ir.VectorType(small, LANES), [(lane + step) % LANES for lane in range(LANES)]))
                    total = builder.fadd(total, moved)
                place = builder.inttoptr(builder.add(out, builder.mul(out_pitch, large(r))), number.as_pointer())
                builder.store(builder.extract_element(total, small(0)), place, align=4)
            return context.get_dummy_value()

        def typed(context: Any, x: Any, pitch: Any, weight: Any, out: Any, out_pitch: Any, count: Any) -> Any:
            return types.void(*[types.int64] * 6), build

        return intrinsic(typed)

    def kernel(rows: int, bits: int) -> Any:
        pairs = 2 if bits == 4 else 1

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, pitch, weight, step, out, out_pitch, count = arguments
            fused, sums = fused_of(builder), zeros(builder, rows)

            def factor(address: Any) -> Any:
                return builder.load(builder.inttoptr(address, number.as_pointer()), align=4)

            def add(place: Any, value: Any, by: Any) -> None:
                builder.store(builder.call(fused, [value, by, builder.load(place)]), place)

            def numbers(address: Any) -> list[Any]:
                """Return 16 numbers of a row of the weight; of 4 bits the lower halves of 16 bytes, and these bytes."""
                if bits == 32:
                    return [builder.load(builder.inttoptr(address, vector.as_pointer()), align=4)]
                loaded = builder.load(builder.inttoptr(address, octets.as_pointer()), align=1)
                if bits == 8:
                    return [builder.sitofp(builder.sext(loaded, whole), vector)]
                wide = builder.zext(loaded, whole)
                lower = builder.and_(wide, ir.Constant(whole, [15] * LANES))
                return [builder.sitofp(lower, vector), builder.sitofp(wide, vector)]

            with cgutils.for_range(builder, builder.udiv(count, large(pairs))) as loop:
                begin = builder.add(weight, builder.mul(loop.index, step))
                columns = [numbers(builder.add(begin, large(LANES * (bits // 8 or 1) * i))) for i in range(VECTORS)]
                for r, places in enumerate(sums):
                    address = builder.add(x, builder.add(builder.mul(pitch, large(r)), builder.mul(loop.index, large(4 * pairs))))
                    factors = [factor(address)]
                    if pairs == 2:  # a byte is 16 times its upper half and its lower one
                        upper = builder.fmul(factor(builder.add(address, large(4))), number(0.0625))
                        factors = [builder.fsub(factors[0], upper), upper]
                    spread = [everywhere(builder, value) for value in factors]
                    for place, values in zip(places, columns, strict=True):
                        for value, by in zip(values, spread, strict=True):
                            add(place, value, by)
            for r, places in enumerate(sums):
                for i, place in enumerate(places):
                    address = builder.add(out, builder.add(builder.mul(out_pitch, large(r)), large(4 * LANES * i)))
                    builder.store(builder.load(place), builder.inttoptr(address, vector.as_pointer()), align=4)
            return context.get_dummy_value()

        def typed(context: Any, x: Any, pitch: Any, weight: Any, step: Any, out: Any, out_pitch: Any, count: Any) -> Any:
            return types.void(*[types.int64] * 7), build

        return intrinsic(typed)

    return {
        "float_tile": kernel(ROWS, 32),
        "byte_tile": kernel(ROWS, 8),
        "byte_tile_of_one": kernel(1, 8),
        "half_byte_tile": kernel(ROWS, 4),
        "half_byte_tile_of_one": kernel(1, 4),
        "dots": dot_kernel(ROWS),
        "dot_of_one": dot_kernel(1),
    }
