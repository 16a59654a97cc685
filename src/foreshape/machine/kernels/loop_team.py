"""Threads for loops in machine code: `foreshape.machine.kernels.word_loop` and `foreshape.machine.kernels.recurrent_loop`.

They are libgomp's, where it is the process's OpenMP: torch's own threads wait awake for some time behind each kernel, and others would have to wait for them.
Elsewhere they are Python's.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from foreshape.core.values.openmp import forked, is_libgomp
from foreshape.machine.kernels import word_loop


def run_together(table: Any, numbers: Any, count: int, threads: int) -> bool:
    """Run instructions on so many threads. Return False if one refuses an operand.

    Args:
        table: int64 ``[count, WIDTH]``.
        numbers: fp64 ``[count, NUMBERS]``.
        count: of the instructions.
        threads: the most threads; one in a forked process.
    """
    meeting = np.zeros(8, np.int64)
    order = order_of([0, 0, 0, 0, table.ctypes.data, numbers.ctypes.data, count, meeting.ctypes.data, 0, word_loop.yielding(), 0])
    return not follow_together(word_loop.compiled(), order, threads)[-1]


def order_of(numbers: Sequence[int]) -> Any:
    """Return whole numbers as an order of `follow_together`."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


def follow_together(function: int, order: Any, threads: int) -> Any:
    """Run a function in machine code on so many threads, one in a forked process; return the order as the first thread leaves it.

    Args:
        function: the address of a function of the address of an order.
        order: as `order_of` gives it. Its first four numbers are written here: the addresses of functions to a thread's number and to the number of threads;
            or 0 and 0 and then the two numbers themselves.
        threads: the most threads.
    """
    if threads == 1 or forked():
        order[0], order[2], order[3] = 0, 0, 1
        _callable(function)(ctypes.addressof(order))
    elif (openmp := _openmp()) is not None:
        parallel, order[0], order[1] = openmp
        parallel(function, ctypes.addressof(order), threads, 0)
    else:
        orders = [order_of([0, 0, thread, threads, *order[4:]]) for thread in range(threads)]
        helpers = [threading.Thread(target=_callable(function), args=(ctypes.addressof(part),)) for part in orders[1:]]
        for helper in helpers:
            helper.start()
        _callable(function)(ctypes.addressof(orders[0]))
        for helper in helpers:
            helper.join()
        order = orders[0]
    return order


@cache
def _callable(function: int) -> Any:
    """Return a function in machine code by its address; other Python threads run beside it."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)


@cache
def _openmp() -> tuple[Any, int, int] | None:
    """Return libgomp's function for a parallel part, and the addresses of two more, for a thread's number and their number; None without libgomp."""
    if not is_libgomp():
        return None
    library: Final = ctypes.CDLL(None)
    functions = library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_num_threads
    parallel, number, count = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(parallel), number, count
