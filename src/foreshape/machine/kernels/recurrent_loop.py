"""Recurrent layers over dense sequences as one call in machine code: LSTM, GRU and plain recurrence, for inference.

Of few sequences nearly all time goes into calls of torch, or into the weights, which oneDNN's kernel lays out anew at each call. Here weights are laid out
once, in tiles: `LANES` hidden units with all their gates, so the gates of a unit are computed, activated and used without leaving the cache. The loop is plain
Python over addresses, compiled by numba (``pip install 'foreshape[plan]'``) and kept on disk.

Each direction of a layer is a team of threads, and each thread computes its own tiles for all steps. A team of several meets after each step; all threads
meet after each layer. Nothing here checks a size: `foreshape.machine.kernels.packed_recurrence` does.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from foreshape.machine.kernels.gate_tiles import (
    add_byte_product_of_four,
    add_byte_product_of_one,
    add_byte_product_of_two,
    add_product_of_four,
    add_product_of_one,
    add_product_of_two,
    gate_kernels,
)
from foreshape.machine.kernels.instructions import code_address, exponential, floats, intrinsics, longs, with_names
from foreshape.machine.kernels.word_loop import arrivals, arrive, thread_intrinsics, whole_number_of

if TYPE_CHECKING:
    import numpy as np

LSTM, GRU, RNN_TANH, RNN_RELU = range(4)
"""The modes. Gates are in the order i, f, g, o of LSTM, and r, z, n of GRU."""
GATES: Final = {LSTM: 4, GRU: 3, RNN_TANH: 1, RNN_RELU: 1}
LANES: Final = {LSTM: 16, GRU: 16, RNN_TANH: 64, RNN_RELU: 64}
"""The hidden units of a tile. It has these columns for each gate."""
SCRATCH: Final = 2 * 4 * 64
"""The fp32 numbers of scratch for each thread: gates of four rows, and products of these with bytes."""
UNIT: Final = 8
"""The numbers of a unit in UNITS."""
_SPINS: Final = 4000
"""Turns of waiting before the thread lets others run."""
MEETING, YIELDING, MODE, STEPS, BATCH, LAYERS, DIRECTIONS, HIDDEN, FEATURES = range(4, 13)
LENGTHS, FIRST_H, FIRST_C, LAST_H, LAST_C, ROWS, RESULT, EVEN, ODD, SHARES, STATES, TILES, UNITS = range(13, 26)
"""Places in an order of `follow`: sizes and addresses.

MEETING: int64 [24], zeros, for the arrivals of both teams and of all threads; 0 for one thread. YIELDING: of ``sched_yield``. LENGTHS: int64 [batch], or 0.
FIRST_H, FIRST_C, LAST_H, LAST_C: fp32 [units, batch, hidden]. ROWS: [steps, batch, features]. RESULT: [steps, batch, directions hidden]. EVEN, ODD: the same,
between layers. SHARES: the inputs' share of gates, [directions, tiles, steps batch, columns]. STATES: [directions, 2, batch, hidden]. TILES: [threads,
`SCRATCH`]. UNITS: int64 [units, `UNIT`], the addresses of the tiles of both weights, of the bias, and of the state's share of the
bias; then, of weights of bytes, of the steps and the middles of each column, [tiles, columns]: of the first weight, then of the second. 0 for fp32.
"""
ORDER: Final = 26


def _sigmoid(x: Any) -> Any:
    return np.float32(1) / (np.float32(1) + exponential(-x))


def _tanh(x: Any) -> Any:
    """Return tanh within a few units of the last place: near zero by a polynomial (Cephes), elsewhere by the exponential."""
    square = x * x
    near = np.float32(-5.70498872745e-3) * square + np.float32(2.06390887954e-2)
    near = near * square - np.float32(5.37397155531e-2)
    near = near * square + np.float32(1.33314422036e-1)
    near = near * square - np.float32(3.33332819422e-1)
    far = np.float32(1) - np.float32(2) / (exponential(x + x) + np.float32(1))
    return x + x * square * near if square < np.float32(0.390625) else far


def _lstm_cell(s: Any, c: Any, h: Any, y: Any, width: int) -> None:
    """Compute the next cells, in place, and hidden states of some units from their gates."""
    for j in range(width):
        c[j] = _sigmoid(s[16 + j]) * c[j] + _sigmoid(s[j]) * _tanh(s[32 + j])
    for j in range(width):
        h[j] = _sigmoid(s[48 + j]) * _tanh(c[j])
    for j in range(width):
        y[j] = h[j]


def _gru_cell(s: Any, share: Any, before: Any, h: Any, y: Any, width: int) -> None:
    """Compute the next hidden states; the third gate of ``share`` is the input's share of n."""
    for j in range(width):
        new = _tanh(share[32 + j] + _sigmoid(s[j]) * s[32 + j])
        h[j] = new + _sigmoid(s[16 + j]) * (before[j] - new)
    for j in range(width):
        y[j] = h[j]


def _plain_cell(s: Any, h: Any, y: Any, width: int, is_tanh: bool) -> None:
    if is_tanh:
        for j in range(width):
            h[j] = _tanh(s[j])
    else:
        for j in range(width):
            h[j] = np.float32(0) if s[j] <= np.float32(0) else s[j]
    for j in range(width):
        y[j] = h[j]


def _add_product(x: int, inner: int, weight: int, out: int, columns: int, rows: int, has_bytes: bool) -> None:
    """Add to out [rows, columns] the product of x [rows, inner] with a tile [inner, columns]."""
    r = 0
    while r < rows:
        block = 4 if r + 4 <= rows else 2 if r + 2 <= rows else 1
        place, into = x + 4 * r * inner, out + 4 * r * columns
        if has_bytes:
            if block == 4:
                add_byte_product_of_four(place, 4 * inner, weight, into, columns, inner)
            elif block == 2:
                add_byte_product_of_two(place, 4 * inner, weight, into, columns, inner)
            else:
                add_byte_product_of_one(place, 4 * inner, weight, into, columns, inner)
        elif block == 4:
            add_product_of_four(place, 4 * inner, weight, into, columns, inner)
        elif block == 2:
            add_product_of_two(place, 4 * inner, weight, into, columns, inner)
        else:
            add_product_of_one(place, 4 * inner, weight, into, columns, inner)
        r += block


def _row_sum(x: Any, count: int) -> Any:
    total = np.float32(0)
    for j in range(count):
        total += x[j]
    return total


def _add_tile(x: int, inner: int, weights: Any, tile: int, out: int, columns: int, rows: int, scratch: int) -> None:
    """Add to out [rows, columns] the product of x [rows, inner] with a tile of a weight, whose numbers are fp32, or bytes: ``step (byte + middle)``.

    Args:
        weights: the addresses of the weight's tiles, steps and middles; the last two 0 for fp32.
        scratch: four rows of columns.
    """
    weight, steps, middles = weights
    if steps == 0:
        _add_product(x, inner, weight + 4 * tile * inner * columns, out, columns, rows, False)
        return
    s, m, r = floats(steps + 4 * tile * columns), floats(middles + 4 * tile * columns), 0
    while r < rows:
        block = min(4, rows - r)
        p = floats(scratch)
        for j in range(block * columns):
            p[j] = np.float32(0)
        _add_product(x + 4 * r * inner, inner, weight + tile * inner * columns, scratch, columns, block, True)
        for i in range(block):
            total = _row_sum(floats(x + 4 * (r + i) * inner), inner)
            p, z = floats(scratch + 4 * i * columns), floats(out + 4 * (r + i) * columns)
            for j in range(columns):
                z[j] += s[j] * (p[j] + m[j] * total)
        r += block


def _meet(meeting: int, arrived: int, yielding: int) -> None:
    """Wait until so many threads have arrived."""
    arrive(meeting)
    spins = 0
    while arrivals(meeting) < arrived:
        spins += 1
        if spins > _SPINS:
            whole_number_of(yielding)


def _unit(o: Any, layer: int, d: int, member: int, members: int, scratch: int, met: int) -> int:
    """Run a team's member through a direction of a layer; return the arrivals at the team's meeting."""
    mode, steps, batch, directions, hidden = o[MODE], o[STEPS], o[BATCH], o[DIRECTIONS], o[HIDDEN]
    unit, units = layer * directions + d, longs(o[UNITS])
    u = UNIT * unit
    weight, recurrent, bias, state_bias = (units[u], units[u + 4], units[u + 5]), (units[u + 1], units[u + 6], units[u + 7]), units[u + 2], units[u + 3]
    inner = o[FEATURES] if layer == 0 else directions * hidden
    source = o[ROWS] if layer == 0 else o[ODD] if layer % 2 == 0 else o[EVEN]
    target = o[RESULT] if layer == o[LAYERS] - 1 else o[EVEN] if layer % 2 == 0 else o[ODD]
    lanes, columns = 16 if mode <= GRU else 64, 48 if mode == GRU else 64
    tiles, rows = (hidden + lanes - 1) // lanes, steps * batch
    begin, end = tiles * member // members, tiles * (member + 1) // members
    shares, states, tile_bytes = o[SHARES] + 4 * d * rows * tiles * columns, o[STATES] + 8 * d * batch * hidden, 4 * columns
    cells = o[LAST_C] + 4 * unit * batch * hidden
    for tile in range(begin, end):
        share, b = shares + tile_bytes * tile * rows, floats(bias + tile_bytes * tile)
        for r in range(rows):
            z = floats(share + tile_bytes * r)
            for j in range(columns):
                z[j] = b[j]
        _add_tile(source, inner, weight, tile, share, columns, rows, scratch + 1024)
    if mode == LSTM:
        for r in range(batch):
            x, z = floats(o[FIRST_C] + 4 * (unit * batch + r) * hidden), floats(cells + 4 * r * hidden)
            for j in range(lanes * begin, min(hidden, lanes * end)):
                z[j] = x[j]
    before = o[FIRST_H] + 4 * unit * batch * hidden
    for step in range(steps):
        t = steps - 1 - step if d == 1 else step
        after = states + 4 * (step % 2) * batch * hidden
        if step == steps - 1:
            after = o[LAST_H] + 4 * unit * batch * hidden
        for tile in range(begin, end):
            width = min(lanes, hidden - lanes * tile)
            share, own = shares + tile_bytes * (tile * rows + t * batch), floats(state_bias + 64 * tile)
            r = 0
            while r < batch:
                block = min(4, batch - r)
                for i in range(block):
                    x, z = floats(share + tile_bytes * (r + i)), floats(scratch + tile_bytes * i)
                    for j in range(columns):
                        z[j] = x[j]
                    if mode == GRU:
                        for j in range(16):
                            z[32 + j] = own[j]
                _add_tile(before + 4 * r * hidden, hidden, recurrent, tile, scratch, columns, block, scratch + 1024)
                for i in range(block):
                    row, s = r + i, floats(scratch + tile_bytes * i)
                    place = 4 * (row * hidden + lanes * tile)
                    old, h, y = (
                        floats(before + place),
                        floats(after + place),
                        floats(target + 4 * ((t * batch + row) * directions + d) * hidden + 4 * lanes * tile),
                    )
                    if o[LENGTHS] != 0 and t >= longs(o[LENGTHS])[row]:  # the sequence has ended, or has not begun
                        for j in range(width):
                            h[j] = old[j]
                        for j in range(width):
                            y[j] = np.float32(0)
                    elif mode == LSTM:
                        _lstm_cell(s, floats(cells + place), h, y, width)
                    elif mode == GRU:
                        _gru_cell(s, floats(share + tile_bytes * row), old, h, y, width)
                    else:
                        _plain_cell(s, h, y, width, mode == RNN_TANH)
                r += block
        before = after
        if members > 1:
            met += members
            _meet(o[MEETING] + 64 * d, met, o[YIELDING])
    return met


def follow(order: Any) -> None:
    """Run a thread's part of an order: `ORDER` whole numbers, of which `foreshape.machine.kernels.loop_team` writes the first four."""
    if order[0] != 0:
        thread, threads = whole_number_of(order[0]), whole_number_of(order[1])
    else:
        thread, threads = order[2], order[3]
    directions = order[DIRECTIONS]
    scratch = order[TILES] + 4 * SCRATCH * thread
    met = met_all = 0
    for layer in range(order[LAYERS]):
        if threads < directions:
            if thread == 0:
                for d in range(directions):
                    _unit(order, layer, d, 0, 1, scratch, 0)
        elif thread < threads // directions * directions:
            met = _unit(order, layer, thread % directions, thread // directions, threads // directions, scratch, met)
        if threads > 1:
            met_all += threads
            _meet(order[MEETING] + 128, met_all, order[YIELDING])


@cache
def compiled() -> int:
    """Return the address of `follow` in machine code; kept on disk between processes if possible."""
    numba = importlib.import_module("numba")
    names = {**globals(), **intrinsics(), **thread_intrinsics(), **gate_kernels(), "np": importlib.import_module("numpy")}
    for function in (exponential, _sigmoid, _tanh):
        names[function.__name__] = numba.njit(error_model="numpy", inline="always")(with_names(function, names))
    for function in (_lstm_cell, _gru_cell, _plain_cell, _add_product):
        names[function.__name__] = numba.njit(error_model="numpy")(with_names(function, names))
    names["_row_sum"] = numba.njit(error_model="numpy", fastmath=True)(with_names(_row_sum, names))  # in any order
    for function in (_add_tile, _meet, _unit):
        names[function.__name__] = numba.njit(error_model="numpy")(with_names(function, names))
    return code_address(with_names(follow, names), numba.types.void(numba.types.CPointer(numba.types.int64)))
