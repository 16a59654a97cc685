"""The program described by the user: `Program`, `Block`, `Op`, `Variable`, and its text form. ``fs.program()`` begins a new one."""

import sys
from contextlib import AbstractContextManager
from types import ModuleType

from foreshape.program.block import Block
from foreshape.program.current import (
    current_block,
    default_main_program,
    default_startup_program,
    new_program,
    program_guard,
    startup_of,
)
from foreshape.program.op import Op, Role
from foreshape.program.program import Program
from foreshape.program.scopes import name_scope
from foreshape.program.variable import Variable

__all__ = ["Block", "Op", "Program", "Role", "Variable", "current_block", "default_main_program", "default_startup_program", "name_scope",
           "new_program", "program_guard", "startup_of"]  # fmt: skip


class _Room(ModuleType):
    """The class of this room, callable by its name."""

    def __call__(self) -> AbstractContextManager[Program]:
        return new_program()


sys.modules[__name__].__class__ = _Room
