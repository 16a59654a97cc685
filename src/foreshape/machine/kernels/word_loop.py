"""A step of few rows as instructions of one loop in machine code, shared by several threads: the next word of some texts.

With one row the products read each weight once, so the memory's bandwidth is the time, and calls of torch between them come on top. The loop is `run`, plain
Python over addresses, compiled by numba (``pip install 'foreshape[plan]'``) and kept on disk. Each thread runs all instructions: of parallel ones its part,
the others are the first thread's. A barrier stands before an instruction where another thread may still write or read its numbers.

`run` has a row of `WIDTH` whole numbers for each instruction: its code, `BEHIND_BARRIER` and `IN_PARTS`, `OPERANDS` addresses, `DIMS` sizes; and `NUMBERS` of
fp64. Tensors are fp32 and lie contiguously, ids are int64. Nothing here checks a size: `foreshape.apps.generation.word_step` does.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import math
import os
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from foreshape.machine.kernels.instructions import SWITCH, code_address, exponential, floats, intrinsics, longs, with_names
from foreshape.machine.kernels.integer_tiles import (
    integer_kernels,
    integer_tile,
    integer_tile_of_one,
    lanes_of_sums,
    round_group,
    round_group_in_place,
    spread_bytes,
    spread_half_bytes,
)
from foreshape.machine.kernels.sampling_loop import ROW, sample_word, sampling_functions
from foreshape.machine.kernels.tile_products import (
    byte_tile,
    byte_tile_of_one,
    dot_of_one,
    dots,
    float_tile,
    half_byte_tile,
    half_byte_tile_of_one,
    tile_kernels,
)

if TYPE_CHECKING:
    import numpy as np

OPERANDS: Final = 6
DIMS: Final = 10
NUMBERS: Final = 2
WIDTH: Final = 2 + OPERANDS + DIMS
ADD, SUBTRACT, MULTIPLY, DIVIDE = range(4)
"""Kinds of `BINARY`."""
AFFINE, SQUARE, ROOT_INVERSE, SINE, COSINE, TANH, SWISH, GELU, GELU_BY_TANH, RELU = range(10)
"""Kinds of `UNARY`."""
BINARY, UNARY, COPY, MEAN, LAYER_NORM, LOOKUP, BYTE_LOOKUP, NUMBERS_OF, PRODUCT, TURNED_PRODUCT, BYTE_PRODUCT, HALF_BYTE_PRODUCT = range(12)
ATTENTION, ROUNDING, SAMPLING = range(12, 15)
"""The codes of instructions; `run` tells each one's operands and sizes."""
BEHIND_BARRIER, IN_PARTS = 1, 2
"""Flags of an instruction: all threads meet before it; each thread takes a part of it."""
ALWAYS_IN_PARTS: Final = frozenset({PRODUCT, TURNED_PRODUCT, BYTE_PRODUCT, HALF_BYTE_PRODUCT, ATTENTION})
MAYBE_IN_PARTS: Final = frozenset({UNARY, BINARY, COPY, MEAN, LAYER_NORM, ROUNDING})
"""The instructions in parts if they have many numbers."""
ROWS_AT_ONCE: Final = 96
"""The rounded rows in one pass through a tile: their sums stay in the cache."""
_SPINS: Final = 4000
"""Turns of waiting before the thread lets others run."""


def doubles(address: int) -> Any:
    """Return the fp64 numbers at an address. (In machine code; see `thread_intrinsics`.)"""
    raise NotImplementedError


def small_numbers(address: int) -> Any:
    """Return the whole numbers of 8 bits at an address, with a sign. (In machine code; see `thread_intrinsics`.)"""
    raise NotImplementedError


def whole_numbers(address: int) -> Any:
    """Return the whole numbers of 32 bits at an address. (In machine code; see `thread_intrinsics`.)"""
    raise NotImplementedError


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    """Return ``x y + z``, rounded once where the processor can: the same everywhere in the loop."""
    raise NotImplementedError


def arrive(address: int) -> int:
    """Add 1 to the whole number at an address, and return it as it was, before all later reads."""
    raise NotImplementedError


def arrivals(address: int) -> int:
    """Return the whole number at an address, as other threads left it."""
    raise NotImplementedError


def whole_number_of(function: int) -> int:
    """Call a C function without arguments, by its address, and return its int."""
    raise NotImplementedError


def _dot(x: Any, y: Any, count: int) -> Any:
    """Return the sum of products of two rows; in any order."""
    total = np.float32(0)
    for j in range(count):
        total += x[j] * y[j]
    return total


def _total(x: Any, count: int) -> Any:
    total = np.float32(0)
    for j in range(count):
        total += x[j]
    return total


def _spread(x: Any, middle: Any, count: int) -> Any:
    total = np.float32(0)
    for j in range(count):
        total += (x[j] - middle) * (x[j] - middle)
    return total


def _add_rows(y: Any, count: int, a: Any, b: Any, c: Any, d: Any, by_a: Any, by_b: Any, by_c: Any, by_d: Any) -> None:
    """Add four rows to ``y``, each times a number."""
    for j in range(count):
        y[j] = multiply_add(by_d, d[j], multiply_add(by_c, c[j], multiply_add(by_b, b[j], multiply_add(by_a, a[j], y[j]))))


def _add_row(y: Any, count: int, a: Any, by: Any) -> None:
    for j in range(count):
        y[j] = multiply_add(by, a[j], y[j])


def _group_sums(x: int, rows: int, inner: int, groups: int, sums: Any) -> None:
    """Write the sum of each group of each row."""
    group = inner // groups
    for r in range(rows):
        for g in range(groups):
            sums[r * groups + g] = _total(floats(x + 4 * (r * inner + g * group)), group)


def _grouped(x: int, weight: int, scales: int, offsets: int, y: int, sizes: Any, tile: int, scratch: int, has_half_bytes: bool) -> None:
    """Compute the columns of a tile of y [rows, columns] = x [rows, inner] times a packed weight (see `foreshape.machine.kernels.grouped_weights`).

    ``scratch``: four rows of 64 numbers, and behind them the sums of the groups. ``offsets``: 0 without them.
    """
    rows, inner, columns, groups = sizes
    width, group = min(64, columns - 64 * tile), inner // groups
    sums = floats(scratch + 1024)
    for g in range(groups):
        s, o = floats(scales + 256 * (tile * groups + g)), floats(offsets + 256 * (tile * groups + g))
        begin = weight + (32 if has_half_bytes else 64) * (tile * inner + g * group)
        r = 0
        while r < rows:
            place, block = x + 4 * (r * inner + g * group), 4 if r + 4 <= rows else 1
            if block == 4 and has_half_bytes:
                half_byte_tile(place, 4 * inner, begin, 64, scratch, 256, group)
            elif block == 4:
                byte_tile(place, 4 * inner, begin, 64, scratch, 256, group)
            elif has_half_bytes:
                half_byte_tile_of_one(place, 4 * inner, begin, 64, scratch, 256, group)
            else:
                byte_tile_of_one(place, 4 * inner, begin, 64, scratch, 256, group)
            for i in range(block):
                p, z = floats(scratch + 256 * i), floats(y + 4 * ((r + i) * columns + 64 * tile))
                total = sums[(r + i) * groups + g] if has_half_bytes or offsets != 0 else np.float32(0)
                shift = np.float32(8) * total if offsets == 0 else np.float32(0)
                if g == 0:
                    for j in range(width):
                        z[j] = s[j] * (p[j] - shift)
                else:
                    for j in range(width):
                        z[j] = multiply_add(s[j], p[j] - shift, z[j])
                if offsets != 0:
                    for j in range(width):
                        z[j] = multiply_add(o[j], total, z[j])
            r += block


def _round_rows(x: int, out: int, rows: int, inner: int, groups: int, begin: int, end: int) -> None:
    """Round the groups from ``begin`` to ``end`` of rows [rows, inner], row by row, into a place of `rounded_numbers`."""
    group = inner // groups
    factors = out + rows * inner
    totals = factors + 4 * rows * groups
    for part in range(begin, end):
        r, g = part // groups, part % groups
        place = g * rows + r
        round_group(x + 4 * group * part, out + group * place, factors + 4 * place, totals + 4 * place, group)


def _round_rows_in_place(x: int, out: int, group: int, begin: int, end: int, scratch: int) -> None:
    """Round the groups from ``begin`` to ``end`` of rows of fp32 to fp32; ``scratch`` has two numbers."""
    for part in range(begin, end):
        round_group_in_place(x + 4 * group * part, out + 4 * group * part, scratch, scratch + 4, group)


def _rounded_product(x: int, weight: int, scales: int, offsets: int, y: int, sizes: Any, tile: int, first: int, scratch: int, has_half_bytes: bool) -> None:
    """Compute as `_grouped` the columns of a tile of up to `ROWS_AT_ONCE` rows from ``first`` on, rounded by `_round_rows`.

    ``scratch``: 64 sums for each of these rows, and behind them 64 bytes for each row of a group.
    """
    rows, inner, columns, groups = sizes
    width, group, count = min(64, columns - 64 * tile), inner // groups, min(ROWS_AT_ONCE, rows - first)
    sums, numbers = floats(scratch), scratch + 256 * ROWS_AT_ONCE
    shift = 128 if not has_half_bytes else 8 if offsets == 0 else 0
    for j in range(64 * count):
        sums[j] = np.float32(0)
    for g in range(groups):
        s = scales + 256 * (tile * groups + g)
        begin = weight + (32 if has_half_bytes else 64) * (tile * inner + g * group)
        if has_half_bytes:
            spread_half_bytes(begin, numbers, group)
        else:
            spread_bytes(begin, numbers, group)
        place = g * rows + first
        a, factors = x + group * place, x + rows * inner + 4 * place
        totals = factors + 4 * rows * groups
        r = 0
        while r < count:
            if r + 4 <= count:
                integer_tile(a + group * r, group, numbers, scratch + 256 * r, s, factors + 4 * r, totals + 4 * r, shift, group)
                r += 4
            else:
                integer_tile_of_one(a + group * r, group, numbers, scratch + 256 * r, s, factors + 4 * r, totals + 4 * r, shift, group)
                r += 1
        if offsets != 0:
            o = floats(offsets + 256 * (tile * groups + g))
            for i in range(count):
                total, z = floats(factors)[i] * np.float32(whole_numbers(totals)[i]), floats(scratch + 256 * i)
                for j in range(64):
                    z[j] = multiply_add(o[j], total, z[j])
    for i in range(count):
        p, z = floats(scratch + 256 * i), floats(y + 4 * ((first + i) * columns + 64 * tile))
        for j in range(width):
            z[j] = p[j]


def _binary(kind: int, count: int, x: Any, y: Any, z: Any, by_x: int, by_y: int) -> None:
    """Compute one row of ``z``; ``by_x`` and ``by_y``: 1, or 0 for one number in all columns."""
    if by_x == 1 and by_y == 1:
        if kind == ADD:
            for j in range(count):
                z[j] = x[j] + y[j]
        elif kind == SUBTRACT:
            for j in range(count):
                z[j] = x[j] - y[j]
        elif kind == MULTIPLY:
            for j in range(count):
                z[j] = x[j] * y[j]
        else:
            for j in range(count):
                z[j] = x[j] / y[j]
    elif by_x == 1:
        number = y[0]
        if kind == ADD:
            for j in range(count):
                z[j] = x[j] + number
        elif kind == SUBTRACT:
            for j in range(count):
                z[j] = x[j] - number
        elif kind == MULTIPLY:
            for j in range(count):
                z[j] = x[j] * number
        else:
            for j in range(count):
                z[j] = x[j] / number
    else:
        for j in range(count):
            u, v = x[j * by_x], y[j * by_y]
            z[j] = u + v if kind == ADD else u - v if kind == SUBTRACT else u * v if kind == MULTIPLY else u / v


def _tanh(x: Any) -> Any:
    return np.float32(1) - np.float32(2) / (exponential(x + x) + np.float32(1))


def _unary(kind: int, begin: int, end: int, x: Any, y: Any, u: Any, v: Any) -> None:
    if kind == AFFINE:  # u x + v
        for j in range(begin, end):
            y[j] = u * x[j] + v
    elif kind == SQUARE:
        for j in range(begin, end):
            y[j] = x[j] * x[j]
    elif kind == ROOT_INVERSE:
        for j in range(begin, end):
            y[j] = np.float32(1) / np.sqrt(x[j])
    elif kind == SINE:
        for j in range(begin, end):
            y[j] = math.sin(x[j])
    elif kind == COSINE:
        for j in range(begin, end):
            y[j] = math.cos(x[j])
    elif kind == TANH:
        for j in range(begin, end):
            y[j] = _tanh(x[j])
    elif kind == SWISH:
        for j in range(begin, end):
            y[j] = x[j] / (np.float32(1) + exponential(-x[j]))
    elif kind == GELU:
        for j in range(begin, end):
            y[j] = np.float32(0.5) * x[j] * (np.float32(1) + np.float32(math.erf(x[j] * np.float32(0.7071067811865476))))
    elif kind == GELU_BY_TANH:
        for j in range(begin, end):
            inner = np.float32(0.7978845608028654) * (x[j] + np.float32(0.044715) * x[j] * x[j] * x[j])
            y[j] = np.float32(0.5) * x[j] * (np.float32(1) + _tanh(inner))
    else:
        for j in range(begin, end):
            y[j] = np.float32(0) if x[j] <= np.float32(0) else x[j]


def _attention(places: Any, out: int, scratch: int, held: int, first: int, sizes: Any, scale: Any, cap: Any) -> None:
    """Put a new key and value of one head behind the older ones, and write the mixed values of its query heads.

    Args:
        places: the addresses of the queries ``[group, size]``, of the new key and value ``[size]``, and of the head's columns of the text's first rows in
            the caches of keys and values.
        out: ``[group, size]``.
        scratch: ``[group, context]`` for scores.
        held: the rows before the new one.
        first: the first row looked at.
        sizes: of the group, of a head, and of a row of the caches.
    """
    query, key, value, keys, values = places
    group, size, pitch = sizes
    new_key, new_value = floats(keys + 4 * held * pitch), floats(values + 4 * held * pitch)
    k, v = floats(key), floats(value)
    for j in range(size):
        new_key[j] = k[j]
        new_value[j] = v[j]
    count = held + 1 - first
    for g in range(group):
        q, y, scores = floats(query + 4 * g * size), floats(out + 4 * g * size), floats(scratch + 4 * g * count)
        top = np.float32(-np.inf)
        for t in range(count):
            score = scale * _dot(q, floats(keys + 4 * (first + t) * pitch), size)
            if cap > np.float32(0):
                score = cap * np.float32(math.tanh(score / cap))
            scores[t] = score
            top = max(top, score)
        total = np.float32(0)
        for t in range(count):
            scores[t] = exponential(scores[t] - top)
        for t in range(count):
            total += scores[t]
        for j in range(size):
            y[j] = np.float32(0)
        t = 0
        row = values + 4 * first * pitch
        while t + 4 <= count:
            p = floats(scratch + 4 * (g * count + t))
            _add_rows(y, size, floats(row), floats(row + 4 * pitch), floats(row + 8 * pitch), floats(row + 12 * pitch), p[0], p[1], p[2], p[3])
            row += 16 * pitch
            t += 4
        while t < count:
            _add_row(y, size, floats(row), scores[t])
            row += 4 * pitch
            t += 1
        for j in range(size):
            y[j] /= total


def _product(x: int, weight: int, y: int, rows: int, inner: int, columns: int, begin: int, end: int) -> None:
    """Compute the columns from ``begin`` to ``end`` of y [rows, columns] = x [rows, inner] weight [inner, columns].

    Four rows at a time take tiles of 64 columns; a single one goes through the weight from end to end, four of its rows at a time.
    """
    most = rows // 4 * 4
    tiles = (end - begin) // 64 if most else 0
    for r in range(0, most, 4):
        for tile in range(tiles):
            column = begin + 64 * tile
            float_tile(x + 4 * r * inner, 4 * inner, weight + 4 * column, 4 * columns, y + 4 * (r * columns + column), 4 * columns, inner)
    for r in range(rows):
        first = begin + 64 * tiles if r < most else begin
        z, width, k = floats(y + 4 * (r * columns + first)), end - first, 0
        for j in range(width):
            z[j] = np.float32(0)
        while k + 4 <= inner and width > 0:
            w, u = weight + 4 * (k * columns + first), floats(x + 4 * (r * inner + k))
            _add_rows(z, width, floats(w), floats(w + 4 * columns), floats(w + 8 * columns), floats(w + 12 * columns), u[0], u[1], u[2], u[3])
            k += 4
        while k < inner and width > 0:
            _add_row(z, width, floats(weight + 4 * (k * columns + first)), floats(x + 4 * (r * inner + k))[0])
            k += 1


def _turned_product(x: int, weight: int, y: int, rows: int, inner: int, columns: int, begin: int, end: int) -> None:
    """Compute the columns from ``begin`` to ``end`` of y [rows, columns] = x [rows, inner] times a weight [columns, inner], turned."""
    whole = inner // 64 * 64
    for first in range(begin, end, 16):  # rows of the weight stay in the cache for all of x
        r = 0
        while r < rows:
            place, block = x + 4 * r * inner, 4 if r + 4 <= rows else 1
            for j in range(first, min(end, first + 16)):
                w, out = weight + 4 * j * inner, y + 4 * (r * columns + j)
                if block == 4:
                    dots(place, 4 * inner, w, out, 4 * columns, whole)
                else:
                    dot_of_one(place, 4 * inner, w, out, 4 * columns, whole)
                z, i = floats(out), 0
                while i < block and whole < inner:
                    z[i * columns] += _dot(floats(place + 4 * (i * inner + whole)), floats(w + 4 * whole), inner - whole)
                    i += 1
            r += block


def run(table: Any, numbers: Any, count: int, thread: int, threads: int, meeting: int, met: int, yielding: int) -> int:
    """Run a thread's part of all instructions; return to the first thread the number of refused operands, each taken as zeros.

    Args:
        table, numbers: `WIDTH` whole numbers and `NUMBERS` others for each instruction.
        count: of the instructions. Behind the last one all threads meet.
        thread, threads: its number, and how many there are.
        meeting: the address of the arrivals at barriers of all runs so far.
        met: the arrivals before this run.
        yielding: the address of ``sched_yield``.
    """
    refused = 0
    for at in range(count + 1):
        row = at * WIDTH
        if threads > 1 and (at == count or table[row + 1] & 1):
            met += threads
            arrive(meeting)
            spins = 0
            while arrivals(meeting) < met:
                spins += 1
                if spins > _SPINS:
                    whole_number_of(yielding)
        if at == count:
            return refused
        code = table[row]
        t, ts = (thread, threads) if table[row + 1] & 2 else (0, 1)
        if thread != 0 and ts == 1:
            continue
        a, b, c, d, e, f = table[row + 2], table[row + 3], table[row + 4], table[row + 5], table[row + 6], table[row + 7]
        m, n, k, n3, n4, n5 = table[row + 8], table[row + 9], table[row + 10], table[row + 11], table[row + 12], table[row + 13]
        n6, n7, n8 = table[row + 14], table[row + 15], table[row + 16]
        u, v = np.float32(numbers[NUMBERS * at]), np.float32(numbers[NUMBERS * at + 1])
        if code == PRODUCT:  # c [m, k] = a [m, n] b [n, k]; in parts of 16 columns
            parts = (k + 15) // 16
            _product(a, b, c, m, n, k, min(k, 16 * (parts * t // ts)), min(k, 16 * (parts * (t + 1) // ts)))
        elif code == TURNED_PRODUCT:  # c [m, k] = a [m, n] b' for b [k, n]
            _turned_product(a, b, c, m, n, k, k * t // ts, k * (t + 1) // ts)
        elif code in (BYTE_PRODUCT, HALF_BYTE_PRODUCT):
            # c [m, k] = a [m, n] times the weight b with n3 groups of the scales d and the offsets e, if they are there; at n4 each thread has a part of
            # `product_scratch`; n5: the rows are rounded
            tiles, scratch = (k + 63) // 64, n4 + 4 * thread * product_scratch(m, n, n3, n5 != 0)
            if n5 != 0:
                blocks = (m + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE
                parts = tiles * blocks
                for part in range((parts * t + at % ts) // ts, (parts * (t + 1) + at % ts) // ts):  # no thread has the larger part of each product
                    first = ROWS_AT_ONCE * (part % blocks)
                    _rounded_product(a, b, d, e, c, (m, n, k, n3), part // blocks, first, scratch, code == HALF_BYTE_PRODUCT)
            else:
                if code == HALF_BYTE_PRODUCT or e != 0:
                    _group_sums(a, m, n, n3, floats(scratch + 1024))
                for tile in range(tiles * t // ts, tiles * (t + 1) // ts):
                    _grouped(a, b, d, e, c, (m, n, k, n3), tile, scratch, code == HALF_BYTE_PRODUCT)
        elif code == ROUNDING:  # c = a [m, n] with k groups in each row, as bytes; or, with two numbers at n3 for each thread, c [m, n] of fp32
            begin, end = m * k * t // ts, m * k * (t + 1) // ts
            if n3 == 0:
                _round_rows(a, c, m, n, k, begin, end)
            else:
                _round_rows_in_place(a, c, n // k, begin, end, n3 + 8 * thread)
        elif code == BINARY:  # c [m, n, k] = a, b with these steps along the axes, of the kind n3
            s3, s4 = table[row + 12], table[row + 15]
            step_x, step_y, first, last = table[row + 14], table[row + 17], 0, k
            if m * n == 1:
                first, last, t, ts = k * t // ts, k * (t + 1) // ts, 0, 1
            for part in range(m * n * t // ts, m * n * (t + 1) // ts):
                i, j = part // n, part % n
                x = floats(a + 4 * (i * s3 + j * table[row + 13] + first * step_x))
                y = floats(b + 4 * (i * s4 + j * table[row + 16] + first * step_y))
                _binary(n3, last - first, x, y, floats(c + 4 * (part * k + first)), step_x, step_y)
        elif code == UNARY:  # c [n] = of a, of the kind m
            _unary(m, n * t // ts, n * (t + 1) // ts, floats(a), floats(c), u, v)
        elif code == COPY:  # c [m, n, k] with the steps n6, n7, n8 = a with the steps n3, n4, n5
            for part in range(m * n * t // ts, m * n * (t + 1) // ts):
                i, j = part // n, part % n
                x, y = floats(a + 4 * (i * n3 + j * n4)), floats(c + 4 * (i * n6 + j * n7))
                if n5 == 1 and n8 == 1:
                    for p in range(k):
                        y[p] = x[p]
                else:
                    for p in range(k):
                        y[p * n8] = x[p * n5]
        elif code == MEAN:  # c [m] = the sums of the rows of a [m, n], times u
            for i in range(m * t // ts, m * (t + 1) // ts):
                x = floats(a + 4 * i * n)
                floats(c)[i] = u * _total(x, n)
        elif code == LAYER_NORM:  # c [m, n] of a, with the scale b and the shift d, if they are there, and the epsilon u
            for i in range(m * t // ts, m * (t + 1) // ts):
                x, y = floats(a + 4 * i * n), floats(c + 4 * i * n)
                middle = _total(x, n) / np.float32(n)
                factor = np.float32(1) / np.sqrt(_spread(x, middle, n) / np.float32(n) + u)
                for j in range(n):
                    y[j] = (x[j] - middle) * factor
                if b != 0:
                    _binary(MULTIPLY, n, y, floats(b), y, 1, 1)
                if d != 0:
                    _binary(ADD, n, y, floats(d), y, 1, 1)
        elif code == LOOKUP:  # c [m, n] = the rows of b [k, n] at the ids a; zeros at the id n3
            ids = longs(a)
            for i in range(m):
                y = floats(c + 4 * i * n)
                if ids[i] < 0 or ids[i] >= k or ids[i] == n3:
                    refused += 1 if ids[i] != n3 else 0
                    for j in range(n):
                        y[j] = np.float32(0)
                else:
                    x = floats(b + 4 * ids[i] * n)
                    for j in range(n):
                        y[j] = x[j]
        elif code == BYTE_LOOKUP:  # c [m, n] = the rows of the bytes b [k, n] at the ids a, times the scales d [k]
            ids = longs(a)
            for i in range(m):
                y = floats(c + 4 * i * n)
                if ids[i] < 0 or ids[i] >= k:
                    refused += 1
                    for j in range(n):
                        y[j] = np.float32(0)
                else:
                    row_of_bytes, scale = small_numbers(b + ids[i] * n), floats(d)[ids[i]]
                    for j in range(n):
                        y[j] = scale * np.float32(row_of_bytes[j])
        elif code == NUMBERS_OF:  # c [n] = the whole numbers a
            ids = longs(a)
            for j in range(n):
                floats(c)[j] = np.float32(ids[j])
        elif code == ATTENTION:
            # c [m, heads * size] of queries a; new keys b and values d; caches e, f [users, n8, key heads * size], scores [threads, group, n8] and places and
            # held rows [2, m] at the addresses behind the sizes: n = key heads, k = group, n3 = size, n4 = window; n5, n6: the addresses
            places = longs(n6)
            pitch = n * n3
            for part in range(m * n * t // ts, m * n * (t + 1) // ts):
                text, head = part // n, part % n
                held, columns = places[m + text], 4 * head * n3
                base = 4 * places[text] * n8 * pitch + columns
                first = max(0, held + 1 - n4) if n4 else 0
                grouped = 4 * (text * n + head) * k * n3
                new = 4 * text * pitch + columns
                addresses = a + grouped, b + new, d + new, e + base, f + base
                _attention(addresses, c + grouped, n5 + 4 * thread * k * n8, held, first, (k, n3, pitch), u, v)
        elif code == SAMPLING:  # c [m] = the words chosen from scores a [m, n] by the rows of b and the changes d; n3: scratch of k numbers for each thread
            for i in range(m * t // ts, m * (t + 1) // ts):
                longs(c)[i] = sample_word(a + 4 * i * n, n, b + 8 * ROW * i, d, n3 + 4 * thread * k)
    return 0  # for type checkers: the loop returns


ORDER: Final = 11
"""The whole numbers of an order to threads; `follow` tells them."""


def follow(order: Any) -> None:
    """Run a thread's part of an order: `ORDER` whole numbers.

    They are the addresses of functions to this thread's number and to the number of threads, or 0 and 0 and then the two numbers themselves; the table, the
    numbers, and the count of `run`; the meeting, the arrivals before, and the address of ``sched_yield``; and last the number of refused operands, written by
    the first thread.
    """
    if order[0] != 0:
        thread, threads = whole_number_of(order[0]), whole_number_of(order[1])
    else:
        thread, threads = order[2], order[3]
    refused = run(longs(order[4]), doubles(order[5]), order[6], thread, threads, order[7], order[8], order[9])
    if thread == 0:
        order[10] = refused


def thread_intrinsics() -> dict[str, Any]:
    """Return the functions for bytes and for meetings of threads, unknown to numba."""
    types = importlib.import_module("numba.core.types")
    intrinsic, ir = importlib.import_module("numba.extending").intrinsic, importlib.import_module("llvmlite.ir")
    large = ir.IntType(64)

    def at(element: Any, kind: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], kind.as_pointer())

        def typed(context: Any, address: Any) -> Any:
            return types.CPointer(element)(types.int64), build

        return intrinsic(typed)

    def fused(context: Any, x: Any, y: Any, z: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = ir.FloatType()
            function = builder.module.declare_intrinsic("llvm.fmuladd", [number], ir.FunctionType(number, [number] * 3))
            return builder.call(function, arguments)

        return types.float32(*[types.float32] * 3), build

    def add(context: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.atomic_rmw("add", builder.inttoptr(arguments[0], large.as_pointer()), large(1), "seq_cst")

        return types.int64(types.int64), build

    def read(context: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load_atomic(builder.inttoptr(arguments[0], large.as_pointer()), "seq_cst", 8)

        return types.int64(types.int64), build

    def call(context: Any, function: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = builder.call(builder.inttoptr(arguments[0], ir.FunctionType(ir.IntType(32), []).as_pointer()), [])
            return builder.sext(number, large)

        return types.int64(types.int64), build

    return {
        "small_numbers": at(types.int8, ir.IntType(8)),
        "whole_numbers": at(types.int32, ir.IntType(32)),
        "doubles": at(types.float64, ir.DoubleType()),
        "multiply_add": intrinsic(fused),
        "arrive": intrinsic(add),
        "arrivals": intrinsic(read),
        "whole_number_of": intrinsic(call),
    }


def product_scratch(rows: int, inner: int, groups: int, rounded: bool) -> int:
    """Return the numbers of fp32 in a thread's scratch of a product with a packed weight."""
    if rounded:
        return 64 * ROWS_AT_ONCE + 16 * (inner // groups)
    return 256 + rows * groups


def rounded_numbers(rows: int, inner: int, groups: int) -> int:
    """Return the numbers of fp32 in the place of rounded rows: their bytes ``[groups, rows, inner / groups]``, steps and sums ``[groups, rows]``."""
    return rows * inner // 4 + 2 * rows * groups


def can_compile() -> bool:
    """Return True if steps of few rows run in machine code: numba is installed, and nobody has switched it off."""
    return os.environ.get(SWITCH) != "torch" and importlib.util.find_spec("numba") is not None and hasattr(os, "sched_yield")


@cache
def yielding() -> int:
    """Return the address of ``sched_yield``."""
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0


@cache
def compiled() -> int:
    """Return the address of `follow` in machine code; kept on disk between processes if possible."""
    numba = importlib.import_module("numba")
    names = {**globals(), **intrinsics(), **thread_intrinsics(), **tile_kernels(), **integer_kernels(lanes_of_sums()), "np": importlib.import_module("numpy")}
    names.update(sampling_functions(names))
    names["exponential"] = numba.njit(error_model="numpy", inline="always")(with_names(exponential, names))
    names["_tanh"] = numba.njit(error_model="numpy", inline="always")(with_names(_tanh, names))
    for function in (_dot, _total, _spread):  # sums in any order, the same for each row
        names[function.__name__] = numba.njit(error_model="numpy", fastmath=True)(with_names(function, names))
    for function in (
        _add_rows,
        _add_row,
        _binary,
        _unary,
        _attention,
        _product,
        _turned_product,
        _group_sums,
        _grouped,
        _round_rows,
        _round_rows_in_place,
        _rounded_product,
        product_scratch,
        run,
    ):
        names[function.__name__] = numba.njit(error_model="numpy")(with_names(function, names))
    return code_address(with_names(follow, names), numba.types.void(numba.types.CPointer(numba.types.int64)))
