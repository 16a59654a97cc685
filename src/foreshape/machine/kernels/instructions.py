"""Kernels of small steps as instructions, run one after another by one loop in machine code.

Of a step with few numbers nearly all time goes into calls of torch: some 2 microseconds each, beside half a microsecond of work. The loop is `run`, plain
Python over addresses and numbers, compiled by numba (``pip install 'foreshape[plan]'``) and kept on disk. Products are BLAS's own, of torch's library: the
function behind ``torch.mm``. Nothing here checks a size: `foreshape.compiler.lowering.small_steps` does.

All tensors are contiguous, of fp32, and class numbers of int64. `run` has a row of whole numbers for each instruction: its code, then for each of
`OPERANDS` tensors the number of its memory and the byte in it, then `DIMS` numbers; and `NUMBERS` numbers of fp64.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import zlib
from collections.abc import Callable
from functools import cache, reduce
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foreshape.core.values.torch_proxy import torch

if TYPE_CHECKING:  # updates are described without numpy
    import numpy as np

FOLDER: Final = Path(__file__).parent
"""All functions in machine code stand in its files."""
SWITCH = "FORESHAPE_SMALL_STEPS"
"""The environment variable for small steps by torch's kernels too, with the value "torch"."""
OPERANDS, DIMS, NUMBERS = 7, 4, 4
WIDTH = 1 + 2 * OPERANDS + DIMS
PRODUCT, ROWS, RELU, RELU_GRADIENT, COLUMN_SUMS, ADD, FILL, SCALE = range(8)
LOG_SOFTMAX, CLASS_LOSS, CLASS_GRADIENT, FINITE, MOMENTUM, ADAM = range(8, 14)
"""The codes of instructions; `run` tells each one's operands and numbers."""
CHECKS = frozenset({CLASS_LOSS, FINITE})
"""The instructions with operands to refuse: `run` ends there."""
BLAS, NOTHING = 0, 0
"""The number of the memory of BLAS's product; as an operand it stands for none."""


class Instruction(NamedTuple):
    """An instruction of a call.

    Attributes:
        code: one of the codes above.
        operands: for each, the number of the call's operand; below 0 its results, -1 the first; None for none; a text for the number of this name.
        dims: its sizes and flags.
        numbers: its numbers.
    """

    code: int
    operands: tuple[int | str | None, ...]
    dims: tuple[int, ...]
    numbers: tuple[float, ...] = ()


def floats(address: int) -> Any:
    """Return the fp32 numbers at an address. (In machine code; see `intrinsics`.)"""
    raise NotImplementedError


def longs(address: int) -> Any:
    """Return the int64 numbers at an address."""
    raise NotImplementedError


def power_of_two(exponent: float) -> Any:
    """Return 2 to the power of a whole number between -126 and 127."""
    raise NotImplementedError


def multiply(blas: int, a: int, b: int, c: int, sizes: tuple[int, int, int], turned: int, by: Any, kept: Any) -> None:
    """Compute ``c = by a b + kept c``, for ``c`` [m, n]; bit 0 of ``turned``: b lies as [n, k]; bit 1: a as [k, m]."""
    raise NotImplementedError


def exponential(x: Any) -> Any:
    """Return e to the power of x, within 2 units of the last place: by a polynomial, computed for 16 numbers at once."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    rest = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    sum_ = np.float32(1.9875691500e-4) * rest + np.float32(1.3981999507e-3)
    sum_ = sum_ * rest + np.float32(8.3334519073e-3)
    sum_ = sum_ * rest + np.float32(4.1665795894e-2)
    sum_ = sum_ * rest + np.float32(1.6666665459e-1)
    sum_ = sum_ * rest + np.float32(5.0000001201e-1)
    return (sum_ * rest * rest + rest + np.float32(1.0)) * power_of_two(whole)


def run(memories: Any, table: Any, numbers: Any, count: int) -> int:
    """Run instructions; return 0, or the number of the refusing one, from 1 on.

    Args:
        memories: the addresses of all pieces of memory, first of BLAS's product.
        table, numbers: `WIDTH` whole numbers and `NUMBERS` others for each instruction.
        count: of the instructions.
    """
    for at in range(count):  # before anything is changed
        row = at * WIDTH
        if table[row] == ADAM:
            once, twice = floats(memories[table[row + 11]] + table[row + 12])[0], floats(memories[table[row + 13]] + table[row + 14])[0]
            if not (once < 1 and twice <= 1):
                return at + 1
    for at in range(count):
        row = at * WIDTH
        code = table[row]
        a = memories[table[row + 1]] + table[row + 2]
        b = memories[table[row + 3]] + table[row + 4]
        c = memories[table[row + 5]] + table[row + 6]
        d = memories[table[row + 7]] + table[row + 8]
        m, n, k, flag = table[row + 15], table[row + 16], table[row + 17], table[row + 18]
        exact, kept, least, decay = numbers[NUMBERS * at], numbers[NUMBERS * at + 1], numbers[NUMBERS * at + 2], numbers[NUMBERS * at + 3]
        if table[row + 7] != NOTHING and code in (PRODUCT, ADD, MOMENTUM):
            exact *= floats(d)[0]
        u, v = np.float32(exact), np.float32(kept)
        if code == PRODUCT:  # c [m, n] = u d a b + v c
            multiply(memories[BLAS], a, b, c, (m, n, k), flag, u, v)
        elif code == ROWS:  # each row of c [m, n] = a
            x, y = floats(a), floats(c)
            for i in range(m):
                for j in range(n):
                    y[i * n + j] = x[j]
        elif code == RELU:  # c = max(a, 0)
            x, y = floats(a), floats(c)
            for j in range(n):
                y[j] = np.float32(0) if x[j] <= np.float32(0) else x[j]
        elif code == RELU_GRADIENT:  # c = b where a > 0
            x, y, z = floats(a), floats(c), floats(b)
            for j in range(n):
                y[j] = np.float32(0) if x[j] <= np.float32(0) else z[j]
        elif code == COLUMN_SUMS:  # c [n] = the sum of the rows of a [m, n], 64 rows at a time
            x, y = floats(a), floats(c)
            for j in range(n):
                y[j] = x[j]
            for i in range(1, min(m, 64)):
                for j in range(n):
                    y[j] += x[i * n + j]
            for first in range(64, m, 64):
                for j in range(n):
                    part = np.float32(0)
                    for i in range(first, min(m, first + 64)):
                        part += x[i * n + j]
                    y[j] += part
        elif code == ADD:  # c += u d a
            x, y = floats(a), floats(c)
            for j in range(n):
                y[j] += u * x[j]
        elif code == FILL:  # c = u
            y = floats(c)
            for j in range(n):
                y[j] = u
        elif code == SCALE:  # c = u a + v
            x, y = floats(a), floats(c)
            for j in range(n):
                y[j] = u * x[j] + v
        elif code == LOG_SOFTMAX:  # of the rows of a [m, n]
            x, y = floats(a), floats(c)
            for i in range(0, m * n, n):
                top, total = x[i], np.float32(0)
                for j in range(i + 1, i + n):
                    top = max(top, x[j])
                for j in range(i, i + n):
                    y[j] = exponential(x[j] - top)
                for j in range(i, i + n):
                    total += y[j]
                total = np.log(total) + top
                for j in range(i, i + n):
                    y[j] = x[j] - total
        elif code == CLASS_LOSS:  # c = minus the mean of a [m, n] at the classes b, where a class k counts as zero; d = the number of others
            x, classes = floats(a), longs(b)
            total, counted = np.float32(0), 0
            for i in range(m):
                if classes[i] != k:
                    if classes[i] < 0 or classes[i] >= n:
                        return at + 1
                    total -= x[i * n + classes[i]]
                    counted += 1
            floats(c)[0] = total / np.float32(m)
            floats(d)[0] = counted
        elif code == CLASS_GRADIENT:  # c = (exp(a) - 1 at the classes b) d / m, of the logits of a [m, n]; zero where a class is k
            x, y, classes = floats(a), floats(c), longs(b)
            by = floats(d)[0] / np.float32(m)
            for i in range(m):
                if classes[i] == k:
                    for j in range(i * n, i * n + n):
                        y[j] = np.float32(0)
                else:
                    for j in range(i * n, i * n + n):
                        y[j] = exponential(x[j]) * by
                    y[i * n + classes[i]] -= by
        elif code == FINITE:  # a is finite
            if not np.isfinite(floats(a)[0]):
                return at + 1
        elif code == MOMENTUM:  # b = v b + a; c -= u d b, or with a flag u d (a + v b)
            x, y, z = floats(a), floats(c), floats(b)
            for j in range(n):
                z[j] = v * z[j] + x[j]
            if flag:
                for j in range(n):
                    y[j] -= u * (x[j] + v * z[j])
            else:
                for j in range(n):
                    y[j] -= u * z[j]
        elif code == ADAM:  # of the gradient a with the rate d, beta1, beta2, epsilon and decay: moments b and e, powers of beta f and g; c
            e, f, g = (memories[table[row + 9]] + table[row + 10], memories[table[row + 11]] + table[row + 12], memories[table[row + 13]] + table[row + 14])
            root = np.sqrt(1 - np.float64(floats(g)[0]))
            rate, epsilon = np.float32(floats(d)[0] * root / (1 - np.float64(floats(f)[0]))), np.float32(least * root)
            toward, square, left = np.float32(1 - exact), np.float32(1 - kept), np.float32(1 - floats(d)[0] * decay)
            x, y, mean, deviation = floats(a), floats(c), floats(b), floats(e)
            for j in range(n):
                mean[j] += toward * (x[j] - mean[j])
                deviation[j] = v * deviation[j] + square * x[j] * x[j]
                y[j] = left * y[j] - rate * mean[j] / (np.sqrt(deviation[j]) + epsilon)
    return 0


def intrinsics() -> dict[str, Any]:
    """Return the functions of `run` unknown to numba."""
    types, cgutils = importlib.import_module("numba.core.types"), importlib.import_module("numba.core.cgutils")
    intrinsic, ir = importlib.import_module("numba.extending").intrinsic, importlib.import_module("llvmlite.ir")
    number = ir.FloatType()

    def at(of: Any, element: Any) -> Any:
        def made(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return builder.inttoptr(given[0], element.as_pointer())

        def typed(context: Any, address: Any) -> Any:
            return types.CPointer(of)(types.int64), made

        return intrinsic(typed)

    def power(context: Any, exponent: Any) -> Any:
        def made(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            kind = ir.IntType(32)
            whole = builder.add(builder.fptosi(given[0], kind), kind(127))
            return builder.bitcast(builder.shl(whole, kind(23)), number)

        return types.float32(types.float32), made

    def product(context: Any, blas: Any, a: Any, b: Any, c: Any, sizes: Any, turned: Any, by: Any, kept: Any) -> Any:
        def made(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            letter, small, large = ir.IntType(8), ir.IntType(32), ir.IntType(64)

            def held(value: Any, kind: Any) -> Any:
                place = cgutils.alloca_once(builder, kind)
                builder.store(value if kind is number else builder.trunc(value, kind), place)
                return place

            def choose(bit: int, one: Any, other: Any) -> Any:
                return builder.select(builder.trunc(builder.lshr(turned, large(bit)), ir.IntType(1)), one, other)

            blas, a, b, c, sizes, turned, by, kept = given
            m, n, k = cgutils.unpack_tuple(builder, sizes, 3)
            turn, leave = large(ord("t")), large(ord("n"))
            a, b, c = (builder.inttoptr(p, number.as_pointer()) for p in (a, b, c))
            turns = held(choose(0, turn, leave), letter), held(choose(1, turn, leave), letter)  # of columns, so the operands change places
            steps = held(choose(0, k, n), small), held(choose(1, m, k), small), held(n, small)
            sizes = held(n, small), held(m, small), held(k, small)
            arguments = [*turns, *sizes, held(by, number), b, steps[0], a, steps[1], held(kept, number), c, steps[2]]
            function = ir.FunctionType(ir.VoidType(), [of.type for of in arguments])
            builder.call(builder.inttoptr(blas, function.as_pointer()), arguments)
            return context.get_dummy_value()

        whole, real = types.int64, types.float32
        return types.void(whole, whole, whole, whole, types.UniTuple(whole, 3), whole, real, real), made

    return {"floats": at(types.float32, number), "longs": at(types.int64, ir.IntType(64)), "power_of_two": intrinsic(power), "multiply": intrinsic(product)}


def can_compile() -> bool:
    """Return True if small steps run as instructions: numba is installed, torch's BLAS is found, and nobody has switched it off."""
    return os.environ.get(SWITCH) != "torch" and importlib.util.find_spec("numba") is not None and blas() != 0


@cache
def blas() -> int:
    """Return the address of the product of matrices in torch's library, with the interface of Fortran; 0 if there is none."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        found = getattr(ctypes.CDLL(path), "sgemm_", None)
    except OSError:
        return 0
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0


@cache
def compiled() -> Callable[[Any, Any, Any, int], int]:
    """Return `run` in machine code; kept on disk between processes if possible. It is too short to let other threads in between."""
    numba = importlib.import_module("numba")
    types = numba.types
    names = {**globals(), **intrinsics(), "np": importlib.import_module("numpy")}
    names["exponential"] = numba.njit(error_model="numpy", inline="always")(with_names(exponential, names))
    signature = types.int64(types.CPointer(types.int64), types.CPointer(types.int64), types.CPointer(types.float64), types.int64)
    address = code_address(with_names(run, names), signature)
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)


def code_address(function: FunctionType, signature: Any) -> int:
    """Return the address of a function in machine code, of a signature of numba's; the code is read from disk, and left there, if possible."""
    numba = importlib.import_module("numba")
    function.__qualname__ = f"{function.__name__}_{sources_checksum(FOLDER):08x}"  # numba looks at one file alone, and reads back older functions of others
    try:
        code = numba.cfunc(signature, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no folder for numba to write to
        code = numba.cfunc(signature, error_model="numpy")(function)
    _codes.append(code)
    return int(code.address)


def sources_checksum(folder: Path) -> int:
    """Return a checksum of the Python files in a folder."""
    sources = sorted(path for path in folder.iterdir() if path.suffix == ".py")
    return reduce(lambda checksum, path: zlib.crc32(path.read_bytes(), checksum), sources, 0)


_codes: Final[list[Any]] = []
"""Code must stay as long as the process."""


def with_names(function: Any, names: dict[str, Any]) -> FunctionType:
    """Return a function with other global names."""
    return FunctionType(function.__code__, names, function.__name__)
