"""The programs and the block that layers append to now."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from foreshape.errors import SchemaError

if TYPE_CHECKING:
    from foreshape.program.block import Block
    from foreshape.program.program import Program


class _Current(threading.local):
    """What layers append to in one thread: two programs of its own, until it is told others."""

    def __init__(self, new: Callable[[], Program]) -> None:
        self.new = new
        self.within = 0
        """How many ``with fs.program()`` there are within each other."""
        self.begin()

    def begin(self) -> None:
        """Two new programs."""
        self.main, self.startup = self.new(), self.new()
        self.main.startup = self.startup
        self.block: Block | None = None


_current: _Current


def begin_with(new: Callable[[], Program]) -> None:
    """Say how the programs are made that a thread begins with."""
    global _current
    _current = _Current(new)


def default_main_program() -> Program:
    """The program that layers append to now, in this thread."""
    return _current.main


def default_startup_program() -> Program:
    """The program that makes the parameters of the default main program."""
    return _current.startup


def current_block() -> Block:
    """The block that layers append to now."""
    block = _current.block
    return block if block is not None and block.program is _current.main else _current.main.blocks[0]


def startup_of(program: Program) -> Program:
    """The program that makes the parameters of another one: the one with which it was described last, or the default one."""
    if program is _current.main or program.startup is None:
        return _current.startup
    return program.startup


@contextlib.contextmanager
def program_guard(main: Program, startup: Program | None = None) -> Generator[None]:
    """Make these the programs that layers append to, inside of the ``with``.

    Args:
        startup: where the parameters are made; ``main.startup`` from now on. The one with which ``main`` was described last where it
            is left out, and otherwise the one that there is.
    """
    before = (_current.main, _current.startup, _current.block)
    main.refresh()
    if startup is not None:
        main.startup = startup
    _current.main, _current.startup, _current.block = main, main.startup if main.startup is not None else _current.startup, None
    try:
        yield
    finally:
        _current.main, _current.startup, _current.block = before


@contextlib.contextmanager
def new_program() -> Generator[Program]:
    """A new program that layers append to inside of the ``with``, with a startup program of its own: ``with fs.program() as p:``.

    What was described before, and a cell of a notebook that ran before, has no part in it. ``p.startup`` makes its parameters.
    """
    main = _current.new()
    with program_guard(main, _current.new()):
        _current.within += 1
        try:
            yield main
        finally:
            _current.within -= 1


def begin_anew() -> None:
    """Let layers append to two new programs. Raises `SchemaError` inside of a ``with fs.program()``, which has its own."""
    if _current.within:
        raise SchemaError("fs.reset() begins the default program anew, and is called outside of `with fs.program() as p:`")
    _current.begin()


def is_default(program: Program) -> bool:
    """Whether layers append to it, and `begin_anew` puts another one in its place."""
    return not _current.within and program is _current.main


@contextlib.contextmanager
def region(parent: Block | None = None) -> Generator[Block]:
    """A new block that layers append to inside of the ``with``, for an op of the current block to run.

    What was found while it was written, for the values that its variables have then, is dropped: it is found again, for all that
    they may have, when the op is appended that runs it.
    """
    parent = parent if parent is not None else current_block()
    program = parent.program
    before = program.inference.guards.copy()
    block = program.create_block(parent)
    block.before = {}
    try:
        with block_guard(block):
            yield block
    finally:
        program.inference.guards = before
        for variable, spec, known in block.before.values():
            variable._spec, variable._known = spec, known  # pyright: ignore[reportPrivateUsage]
        block.before = None


@contextlib.contextmanager
def block_guard(block: Block) -> Generator[Block]:
    """Make this the block that layers append to, inside of the ``with``."""
    before = _current.block
    _current.block = block
    try:
        yield block
    finally:
        _current.block = before
