"""The current programs and the current block of layers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from foreshape.errors import SchemaError
from foreshape.language.program.elsewhere import elsewhere

if TYPE_CHECKING:
    from foreshape.language.program.block import Block
    from foreshape.language.program.program import Program


class _Current(threading.local):  # of a thread: layers are called without the program that they append to
    """The targets of layers in one thread: two programs of its own, made at the first request, until set otherwise."""

    main: Program | None = None
    startup: Program | None = None
    block: Block | None = None
    within = 0
    """The depth of nested ``with fs.program()``."""

    def begin(self) -> Program:
        """Begin two new programs, and return the main one."""
        main, startup = _new(), _new()
        main.startup = startup
        self.main, self.startup, self.block = main, startup, None
        return main


_current: Final = _Current()


def _new() -> Program:
    return elsewhere("language.program.program:Program")()


def default_main_program() -> Program:
    """Return the current program of layers, in this thread."""
    main = _current.main
    return main if main is not None else _current.begin()


def default_startup_program() -> Program:
    """Return the startup program of the default main program's parameters."""
    default_main_program()
    assert _current.startup is not None
    return _current.startup


def current_block() -> Block:
    """Return the current block of layers."""
    main, block = _current.main, _current.block
    if main is None:
        main = _current.begin()
    return block if block is not None and block.program is main else main.blocks[0]


def startup_of(program: Program) -> Program:
    """Return the startup program of another program: the one of its last description, or the default one."""
    if program is _current.main or program.startup is None:
        return default_startup_program()
    return program.startup


@contextlib.contextmanager
def program_guard(main: Program, startup: Program | None = None) -> Generator[None]:
    """Make these the current programs, inside of the ``with``.

    Args:
        startup: makes the parameters; ``main.startup`` from now on. By default the startup program of ``main``'s last description,
            or else the current one.
    """
    previous = (_current.main, _current.startup, _current.block)
    main.refresh()
    if startup is not None:
        main.startup = startup
    _current.main, _current.startup, _current.block = main, main.startup if main.startup is not None else default_startup_program(), None
    try:
        yield
    finally:
        _current.main, _current.startup, _current.block = previous


@contextlib.contextmanager
def new_program() -> Generator[Program]:
    """Begin a new current program inside of the ``with``, with a startup program of its own: ``with fs.program() as p:``.

    Earlier descriptions, and cells of a notebook run before, have no part in it. ``p.startup`` makes its parameters.
    """
    main = _new()
    with program_guard(main, _new()):
        _current.within += 1
        try:
            yield main
        finally:
            _current.within -= 1


def begin_anew() -> None:
    """Let layers append to two new programs. Raises `SchemaError` inside of a ``with fs.program()`` with its own."""
    if _current.within:
        raise SchemaError("fs.reset() begins the default program anew, and is called outside of `with fs.program() as p:`")
    _current.begin()


def is_default(program: Program) -> bool:
    """Tell whether it is the current program, replaceable by `begin_anew`."""
    return not _current.within and program is _current.main


@contextlib.contextmanager
def region(parent: Block | None = None) -> Generator[Block]:
    """Begin a new current block inside of the ``with``, to be run by an op of the outer block.

    Facts found meanwhile, for the variables' specs of the moment, are dropped. They are found again, for all possible specs, when the op with the block
    is appended.
    """
    parent = parent if parent is not None else current_block()
    program = parent.program
    previous = program.inference.guards.copy()
    block = program.create_block(parent)
    block.before = {}
    try:
        with block_guard(block):
            yield block
    finally:
        program.inference.guards = previous
        for variable, spec, was_known in block.before.values():
            variable.inferred_spec, variable.known = spec, was_known
        block.before = None


@contextlib.contextmanager
def block_guard(block: Block) -> Generator[Block]:
    """Make this the current block, inside of the ``with``."""
    previous = _current.block
    _current.block = block
    try:
        yield block
    finally:
        _current.block = previous
