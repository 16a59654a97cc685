"""Rows rounded to 8 bits, and their exact products with a tile of 64 columns of a weight, as LLVM's instructions for numba.

The processor's instruction ``vpdpbusd`` adds four products of bytes to a sum of 32 bits: numbers from 0 to 255 by numbers from -128 to 127. The weight's
numbers plus 128 are its first operand (of 4 bits as they lie, plus 8). The row's sum, as often, is taken from the results again.
AVX-512 VNNI has it for 16 sums, AVX-VNNI for 8. Other processors have rounded rows in fp32, and the kernels of `foreshape.machine.kernels.tile_products`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

ROWS: Final = 4
"""The rows of the larger kernel."""
_COLUMNS: Final = 64
_LANES: Final = 16
_MAGIC: Final = 12582912.0
"""1.5 times 2^23: added to a small number it leaves its whole number, halves to even, in the lowest bits."""
_MAGIC_BITS: Final = 0x4B400000
_INFINITE: Final = 0x7F800000
MOST_EXACT: Final = 1 << 16
"""The numbers of a group whose products fit into 32 bits."""


@cache
def lanes_of_sums() -> int:
    """Return the number of sums in the processor's instruction for products of bytes: 16, 8, or 0 without an instruction."""
    if importlib.util.find_spec("numba") is None:
        return 0
    target = importlib.import_module("numba.core.registry").cpu_target.target_context.codegen().magic_tuple()
    features = str(target[-1]).split(",")
    if "+avx512vnni" in features and "+avx512bw" in features:
        return 16
    return 8 if "+avxvnni" in features or {"+avx512vnni", "+avx512vl"} <= set(features) else 0


def round_group(x: int, out: int, factor: int, total: int, count: int) -> None:
    """Round a group of a row to whole numbers from -127 to 127, its largest magnitude over 127 apart. (In machine code; see `integer_kernels`.)

    Args:
        x, out: the addresses of its fp32 numbers, and of their bytes.
        factor, total: the addresses of the step in fp32, NaN if a number is not finite, and of the int32 sum of the whole numbers.
        count: of the numbers, a multiple of 4.
    """
    raise NotImplementedError


def round_group_in_place(x: int, out: int, factor: int, total: int, count: int) -> None:
    """Do the same, and write the rounded numbers in fp32: the whole ones times the step."""
    raise NotImplementedError


def spread_bytes(weight: int, out: int, count: int) -> None:
    """Write a tile's numbers of 8 bits as `integer_tile` reads them: each plus 128, four rows of a column side by side.

    Args:
        weight, out: the addresses of 64 bytes of each row, and of as many.
        count: of the rows, a multiple of 4.
    """
    raise NotImplementedError


def spread_half_bytes(weight: int, out: int, count: int) -> None:
    """Do the same with numbers of 4 bits as they lie: 64 bytes have two rows."""
    raise NotImplementedError


def integer_tile(x: int, pitch: int, weight: int, out: int, scales: int, factors: int, totals: int, shift: int, count: int) -> None:
    """Add to four rows of fp32 the products of rounded rows with a tile, each sum times the scale of its column and then the step of its row.

    Args:
        x: the address of the first row's bytes.
        pitch: the bytes from row to row.
        weight: the address of the tile as `spread_bytes` writes it.
        out, scales: the addresses of 64 fp32 numbers for each row, one row behind the other, and of 64 scales.
        factors, totals: the addresses of the rows' steps and sums.
        shift: is subtracted from each number of the tile.
        count: the rows of the tile, a multiple of 4.
    """
    raise NotImplementedError


def integer_tile_of_one(x: int, pitch: int, weight: int, out: int, scales: int, factors: int, totals: int, shift: int, count: int) -> None:
    """Do the same with one row."""
    raise NotImplementedError


def integer_kernels(lanes: int) -> dict[str, Any]:
    """Return the kernels by their names, for numba; ``lanes``: as of `lanes_of_sums`. With 0 of them `integer_tile` and its like do nothing."""
    types, cgutils = importlib.import_module("numba.core.types"), importlib.import_module("numba.core.cgutils")
    intrinsic, ir = importlib.import_module("numba.extending").intrinsic, importlib.import_module("llvmlite.ir")
    large, small, octet, number = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.FloatType()

    def several(builder: Any, value: Any, size: int) -> Any:
        """Return a vector with a value in each place."""
        first = builder.insert_element(ir.Constant(ir.VectorType(value.type, size), ir.Undefined), value, small(0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(small, size), [0] * size))

    def function(builder: Any, name: str, result: Any, operands: list[Any]) -> Any:
        return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, operands), name)

    def load(builder: Any, address: Any, kind: Any, align: int) -> Any:
        return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)

    def store(builder: Any, value: Any, address: Any, align: int) -> None:
        builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=align)

    def kernel(operands: int, write: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write(builder, *arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * operands), build

    def rounding(in_place: bool) -> Any:
        def write(builder: Any, x: Any, out: Any, factor: Any, total: Any, count: Any) -> None:
            wide = builder.mul(builder.udiv(count, large(_LANES)), large(_LANES))
            rest = builder.sub(count, wide)

            def parts(act: Any) -> None:
                """Act on vectors of 16 numbers, and behind them of 4."""
                with cgutils.for_range(builder, builder.udiv(wide, large(_LANES))) as loop:
                    act(_LANES, builder.mul(loop.index, large(_LANES)))
                with cgutils.for_range(builder, builder.udiv(rest, large(4))) as loop:
                    act(4, builder.add(wide, builder.mul(loop.index, large(4))))

            def places(value: int) -> dict[int, Any]:
                found = {size: cgutils.alloca_once(builder, ir.VectorType(small, size)) for size in (_LANES, 4)}
                for size, place in found.items():
                    builder.store(ir.Constant(ir.VectorType(small, size), [value] * size), place)
                return found

            def reduced(name: str, vectors: dict[int, Any]) -> list[Any]:
                return [
                    builder.call(function(builder, f"llvm.vector.reduce.{name}.v{size}i32", small, [ir.VectorType(small, size)]), [builder.load(place)])
                    for size, place in vectors.items()
                ]

            tops, sums = places(0), places(0)

            def widen(size: int, begin: Any) -> None:
                kind = ir.VectorType(small, size)
                bits = load(builder, builder.add(x, builder.mul(begin, large(4))), kind, 4)
                bits = builder.and_(bits, ir.Constant(kind, [0x7FFFFFFF] * size))  # magnitudes have the order of their bits, and NaN is above all
                top = builder.load(tops[size])
                builder.store(builder.select(builder.icmp_signed(">", bits, top), bits, top), tops[size])

            parts(widen)
            first, second = reduced("smax", tops)
            top = builder.select(builder.icmp_signed(">", first, second), first, second)
            largest = builder.bitcast(top, number)
            is_finite = builder.icmp_signed("<", top, small(_INFINITE))
            lift = builder.select(builder.fcmp_ordered("<", largest, number(2.0**-96)), number(2.0**64), number(1.0))  # 127 over it would be infinite
            inverse = builder.fdiv(number(127.0), builder.fmul(largest, lift))
            is_zero = builder.fcmp_ordered("==", largest, number(0.0))
            inverse = builder.select(is_zero, number(0.0), builder.select(is_finite, inverse, number(0.0)))
            step = builder.select(is_finite, builder.fdiv(largest, number(127.0)), number(float("nan")))
            store(builder, step, factor, 4)

            def rounded(size: int, begin: Any) -> None:
                floats, kind = ir.VectorType(number, size), ir.VectorType(small, size)
                value = load(builder, builder.add(x, builder.mul(begin, large(4))), floats, 4)
                value = builder.fmul(builder.fmul(value, several(builder, lift, size)), several(builder, inverse, size))
                value = builder.fadd(value, ir.Constant(floats, [_MAGIC] * size))
                bits = builder.sub(builder.bitcast(value, kind), ir.Constant(kind, [_MAGIC_BITS] * size))
                builder.store(builder.add(builder.load(sums[size]), bits), sums[size])
                if in_place:
                    value = builder.fmul(builder.fsub(value, ir.Constant(floats, [_MAGIC] * size)), several(builder, step, size))
                    store(builder, value, builder.add(out, builder.mul(begin, large(4))), 4)
                else:
                    store(builder, builder.trunc(bits, ir.VectorType(octet, size)), builder.add(out, begin), 1)

            parts(rounded)
            first, second = reduced("add", sums)
            store(builder, builder.add(first, second), total, 4)

        def typed(context: Any, x: Any, out: Any, factor: Any, total: Any, count: Any) -> Any:
            return kernel(5, write)

        return intrinsic(typed)

    def spreading(bits: int) -> Any:
        octets, dwords = ir.VectorType(octet, _COLUMNS), ir.VectorType(small, _LANES)

        def write(builder: Any, weight: Any, out: Any, count: Any) -> None:
            def mask(places: list[int]) -> Any:
                return ir.Constant(ir.VectorType(small, len(places)), places)

            turned = mask([4 * (place % 4) + place // 4 for place in range(_LANES)])

            def columns(address: Any) -> Any:
                """Return a row with its parts of 4 columns in the order for `merged`: four vectors have theirs side by side then."""
                row = load(builder, address, octets, 1)
                if bits == 8:
                    row = builder.xor(row, ir.Constant(octets, [128] * _COLUMNS))
                parts = builder.bitcast(row, dwords)
                return builder.bitcast(builder.shuffle_vector(parts, parts, turned), octets)

            def merged(pair: Sequence[Any], size: int, upper: bool) -> Any:
                """Return the lower or upper halves of each 16 bytes of two vectors, their elements of so many bytes side by side."""
                count = _COLUMNS // size
                kind, lane = ir.VectorType(ir.IntType(8 * size), count), 16 // size
                order = [lane * (place // lane) + (place % lane) // 2 + (lane // 2 if upper else 0) + count * (place % 2) for place in range(count)]
                result = builder.shuffle_vector(*(builder.bitcast(part, kind) for part in pair), mask(order))
                return builder.bitcast(result, octets)

            with cgutils.for_range(builder, builder.udiv(count, large(4))) as loop:
                begin = builder.add(weight, builder.mul(loop.index, large(_COLUMNS * bits // 2)))
                rows = [columns(builder.add(begin, large(_COLUMNS * index))) for index in range(bits // 2)]
                if bits == 4:
                    low = ir.Constant(octets, [15] * _COLUMNS)
                    four = ir.Constant(octets, [4] * _COLUMNS)
                    rows = [part for row in rows for part in (builder.and_(row, low), builder.lshr(row, four))]
                place = builder.add(out, builder.mul(loop.index, large(4 * _COLUMNS)))
                pairs = [[merged(rows[first : first + 2], 1, upper) for first in (0, 2)] for upper in (False, True)]
                for index in range(4):
                    store(builder, merged(pairs[index // 2], 2, index % 2 == 1), builder.add(place, large(_COLUMNS * index)), 1)

        def typed(context: Any, weight: Any, out: Any, count: Any) -> Any:
            return kernel(3, write)

        return intrinsic(typed)

    def product(rows: int) -> Any:
        vector, floats = ir.VectorType(small, max(1, lanes)), ir.VectorType(number, max(1, lanes))
        side = 4 if lanes == 16 else 2  # the sums of a pass have three quarters of the registers at most

        def write(builder: Any, x: Any, pitch: Any, weight: Any, out: Any, scales: Any, factors: Any, totals: Any, shift: Any, count: Any) -> None:
            if not lanes:
                return
            dot = function(builder, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", vector, [vector] * 3)
            fused = function(builder, f"llvm.fmuladd.v{lanes}f32", floats, [floats] * 3)
            steps = builder.udiv(count, large(4))
            negative = builder.neg(builder.trunc(shift, small))
            for first in range(0, _COLUMNS // lanes, side):
                sums = [[cgutils.alloca_once(builder, vector) for _ in range(side)] for _ in range(rows)]
                for row, places in enumerate(sums):
                    begin = several(builder, builder.mul(load(builder, builder.add(totals, large(4 * row)), small, 4), negative), lanes)
                    for place in places:
                        builder.store(begin, place)
                with cgutils.for_range(builder, steps) as loop:
                    address = builder.add(weight, builder.add(builder.mul(loop.index, large(4 * _COLUMNS)), large(4 * lanes * first)))
                    columns = [load(builder, builder.add(address, large(4 * lanes * index)), vector, 1) for index in range(side)]
                    for row, places in enumerate(sums):
                        address = builder.add(x, builder.add(builder.mul(pitch, large(row)), builder.mul(loop.index, large(4))))
                        four = several(builder, load(builder, address, small, 4), lanes)
                        for place, column in zip(places, columns, strict=True):
                            builder.store(builder.call(dot, [builder.load(place), column, four]), place)
                for index in range(side):
                    behind = large(4 * lanes * (first + index))
                    scale = load(builder, builder.add(scales, behind), floats, 4)
                    for row, places in enumerate(sums):
                        address = builder.add(out, builder.add(large(4 * _COLUMNS * row), behind))
                        factor = several(builder, load(builder, builder.add(factors, large(4 * row)), number, 4), lanes)
                        value = builder.fmul(builder.sitofp(builder.load(places[index]), floats), scale)
                        store(builder, builder.call(fused, [value, factor, load(builder, address, floats, 4)]), address, 4)

        def typed(context: Any, x: Any, pitch: Any, weight: Any, out: Any, scales: Any, factors: Any, totals: Any, shift: Any, count: Any) -> Any:
            return kernel(9, write)

        return intrinsic(typed)

    return {
        "round_group": rounding(False),
        "round_group_in_place": rounding(True),
        "spread_bytes": spreading(8),
        "spread_half_bytes": spreading(4),
        "integer_tile": product(ROWS),
        "integer_tile_of_one": product(1),
    }
