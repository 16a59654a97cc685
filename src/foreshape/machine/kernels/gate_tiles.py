"""Products of one row, two or four with a tile of gates, added to what is there, as LLVM's instructions for numba: the sums stay in registers.

A tile has 64 columns, or 48 for three gates of 16 units.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from foreshape.machine.kernels.tile_products import LANES

_WIDTHS: Final = (3, 4)
"""The vectors of `LANES` columns in a tile."""


def add_product_of_one(x: int, pitch: int, weight: int, out: int, columns: int, count: int) -> None:
    """Add to a row of sums its product with a tile. (In machine code; see `gate_kernels`.)

    Args:
        x: the address of the row.
        pitch: the bytes from row to row of ``x``.
        weight: the address of the tile ``[count, columns]``.
        out: the address of the sums ``[rows, columns]``.
        columns: 48 or 64.
        count: the numbers of the row.
    """
    raise NotImplementedError


def add_product_of_two(x: int, pitch: int, weight: int, out: int, columns: int, count: int) -> None:
    """Do the same with two rows."""
    raise NotImplementedError


def add_product_of_four(x: int, pitch: int, weight: int, out: int, columns: int, count: int) -> None:
    """Do the same with four rows."""
    raise NotImplementedError


def add_byte_product_of_one(x: int, pitch: int, weight: int, out: int, columns: int, count: int) -> None:
    """Do the same with one row and whole numbers of 8 bits."""
    raise NotImplementedError


def add_byte_product_of_two(x: int, pitch: int, weight: int, out: int, columns: int, count: int) -> None:
    """Do the same with two rows and whole numbers of 8 bits."""
    raise NotImplementedError


def add_byte_product_of_four(x: int, pitch: int, weight: int, out: int, columns: int, count: int) -> None:
    """Do the same with four rows and whole numbers of 8 bits."""
    raise NotImplementedError


def gate_kernels() -> dict[str, Any]:
    """Return the kernels by their names, for numba."""
    types, cgutils = importlib.import_module("numba.core.types"), importlib.import_module("numba.core.cgutils")
    intrinsic, ir = importlib.import_module("numba.extending").intrinsic, importlib.import_module("llvmlite.ir")
    large, small, number = ir.IntType(64), ir.IntType(32), ir.FloatType()
    vector, whole, octets = (ir.VectorType(element, LANES) for element in (number, small, ir.IntType(8)))

    def loaded(builder: Any, address: Any) -> Any:
        return builder.load(builder.inttoptr(address, vector.as_pointer()), align=4)

    def loaded_bytes(builder: Any, address: Any) -> Any:
        return builder.sitofp(builder.sext(builder.load(builder.inttoptr(address, octets.as_pointer()), align=1), whole), vector)

    def everywhere(builder: Any, address: Any) -> Any:
        value = builder.load(builder.inttoptr(address, number.as_pointer()), align=4)
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, small(0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(small, LANES), [0] * LANES))

    def add(builder: Any, arguments: Any, rows: int, width: int, size: int) -> None:
        x, pitch, weight, out, columns, count = arguments
        fused = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32")
        turns = 4 // rows  # sums side by side, so that few rows do not wait for one another
        places = [[[cgutils.alloca_once(builder, vector) for _ in range(width)] for _ in range(rows)] for _ in range(turns)]

        def sums_at(row: int, part: int) -> Any:
            begin = builder.add(out, builder.mul(builder.mul(columns, large(4)), large(row)))
            return builder.add(begin, large(4 * LANES * part))

        for turn, of_turn in enumerate(places):
            for row, of_row in enumerate(of_turn):
                for part, place in enumerate(of_row):
                    builder.store(ir.Constant(vector, [0.0] * LANES) if turn else loaded(builder, sums_at(row, part)), place)

        def round_of(index: Any, of_turn: Any) -> None:
            begin = builder.add(weight, builder.mul(index, large(size * LANES * width)))
            load = loaded if size == 4 else loaded_bytes
            numbers = [load(builder, builder.add(begin, large(size * LANES * part))) for part in range(width)]
            for row, of_row in enumerate(of_turn):
                by = everywhere(builder, builder.add(builder.add(x, builder.mul(pitch, large(row))), builder.mul(index, large(4))))
                for place, values in zip(of_row, numbers, strict=True):
                    builder.store(builder.call(fused, [values, by, builder.load(place)]), place)

        full = builder.udiv(count, large(turns))
        with cgutils.for_range(builder, full) as loop:
            for turn, of_turn in enumerate(places):
                round_of(builder.add(builder.mul(loop.index, large(turns)), large(turn)), of_turn)
        if turns > 1:
            with cgutils.for_range(builder, count, start=builder.mul(full, large(turns))) as loop:
                round_of(loop.index, places[0])
        for row in range(rows):
            for part in range(width):
                total = builder.load(places[0][row][part])
                for of_turn in places[1:]:
                    total = builder.fadd(total, builder.load(of_turn[row][part]))
                builder.store(total, builder.inttoptr(sums_at(row, part), vector.as_pointer()), align=4)

    def kernel(rows: int, size: int) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            is_wide = builder.icmp_unsigned("==", arguments[4], large(_WIDTHS[1] * LANES))
            with builder.if_else(is_wide) as (wide, narrow):
                with wide:
                    add(builder, arguments, rows, _WIDTHS[1], size)
                with narrow:
                    add(builder, arguments, rows, _WIDTHS[0], size)
            return context.get_dummy_value()

        def typed(context: Any, x: Any, pitch: Any, weight: Any, out: Any, columns: Any, count: Any) -> Any:
            return types.void(*[types.int64] * 6), build

        return intrinsic(typed)

    counts = {"one": 1, "two": 2, "four": 4}
    return {f"add_{kind}product_of_{name}": kernel(rows, size) for kind, size in (("", 4), ("byte_", 1)) for name, rows in counts.items()}
