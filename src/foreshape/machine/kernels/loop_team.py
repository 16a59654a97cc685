"""Threads for the instructions of `foreshape.machine.kernels.word_loop`.

They are libgomp's, where it is the process's OpenMP: torch's own threads wait awake for some time behind each kernel, and others would have to wait for them.
Elsewhere they are Python's.
"""

from __future__ import annotations

import ctypes
import threading
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
    order = np.zeros(word_loop.ORDER, np.int64)
    order[4:10] = table.ctypes.data, numbers.ctypes.data, count, meeting.ctypes.data, 0, word_loop.yielding()
    if threads == 1 or forked():
        order[2:4] = 0, 1
        _function()(order.ctypes.data)
    elif (openmp := _openmp()) is not None:
        parallel, order[0], order[1] = openmp
        parallel(word_loop.compiled(), order.ctypes.data, threads, 0)
    else:
        orders = np.tile(order, (threads, 1))
        orders[:, 2], orders[:, 3] = np.arange(threads), threads
        helpers = [threading.Thread(target=_function(), args=(part.ctypes.data,)) for part in orders[1:]]
        for helper in helpers:
            helper.start()
        _function()(orders[0].ctypes.data)
        for helper in helpers:
            helper.join()
        order = orders[0]
    return not order[-1]


@cache
def _function() -> Any:
    """Return `word_loop.follow` in machine code; other Python threads run beside it."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(word_loop.compiled())


@cache
def _openmp() -> tuple[Any, int, int] | None:
    """Return libgomp's function for a parallel part, and the addresses of two more, for a thread's number and their number; None without libgomp."""
    if not is_libgomp():
        return None
    library: Final = ctypes.CDLL(None)
    functions = library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_num_threads
    parallel, number, count = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(parallel), number, count
