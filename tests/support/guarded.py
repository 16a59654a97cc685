"""Tensors that end where memory does, so that a kernel that reads or writes past an operand dies, and processes that may die of it.

Linux only: the page behind (or before) each tensor has no rights.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from foreshape.errors import ForeshapeError
from support.kernel_calls import Call, mapped

PAGE = mmap.PAGESIZE
_NONE, _READ_WRITE, _PRIVATE_ANONYMOUS = 0, 3, 0x22


class Guarded:
    """Makes copies of tensors at the end (or, with ``front``, at the start) of memory of their own. Their memory goes with `free`."""

    def __init__(self, front: bool = False) -> None:
        self.front = front
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self._libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._held: list[tuple[int, int]] = []

    def __call__(self, x: Tensor) -> Tensor:
        size = x.numel() * x.element_size()
        if not size:
            return torch.empty(x.shape, dtype=x.dtype)
        whole = (size + PAGE - 1) // PAGE * PAGE
        base = self._libc.mmap(None, whole + 2 * PAGE, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        assert base not in (None, ctypes.c_void_p(-1).value), "no memory is left"
        for at in (base, base + PAGE + whole):
            assert self._libc.mprotect(at, PAGE, _NONE) == 0
        self._held.append((base, whole + 2 * PAGE))
        start = base + PAGE if self.front else base + PAGE + whole - size
        flat = torch.frombuffer((ctypes.c_ubyte * size).from_address(start), dtype=torch.uint8)
        return flat.view(x.dtype).view(x.shape).copy_(x)

    def free(self) -> None:
        """Give all the memory back. Nothing may use the tensors any more."""
        for base, size in self._held:
            self._libc.munmap(base, size)
        self._held.clear()


def survivors(jobs: Sequence[Callable[[], str]]) -> list[str]:
    """What each job says, made one after another in processes that may die: of one that dies, ``died of signal N``."""
    out: list[str] = []
    while len(out) < len(jobs):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            with os.fdopen(write, "w", buffering=1) as file:
                for job in jobs[len(out) :]:
                    file.write(job().replace("\n", " ")[:500] + "\n")
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            out += file.read().splitlines()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            out.append(f"died of signal {os.WTERMSIG(status)}")
        elif os.WEXITSTATUS(status):
            out.append(f"ended with {os.WEXITSTATUS(status)}")
    return out


def run_where_memory_ends(call: Call, front: bool = False) -> str:
    """What comes of a call whose operands lie where memory ends, or begins."""
    guarded = Guarded(front)
    try:
        made = replace(call, arguments=[mapped(a, guarded) for a in call.arguments])
        torch.default_generator.manual_seed(3)
        made.run()
    except ForeshapeError as error:
        return f"refused: {error}"
    except Exception as error:  # which an executor makes one of ours
        return f"failed: {type(error).__name__}: {error}"
    return "ran"
