"""The program described by the user: `Program`, `Block`, `Op`, `Variable`, and its text form."""

from foreshape.language.program.block import Block
from foreshape.language.program.current import (
    current_block,
    default_main_program,
    default_startup_program,
    new_program,
    program_guard,
    startup_of,
)
from foreshape.language.program.op import Op, Role
from foreshape.language.program.program import Program
from foreshape.language.program.scopes import name_scope
from foreshape.language.program.variable import Variable

__all__ = ["Block", "Op", "Program", "Role", "Variable", "current_block", "default_main_program", "default_startup_program", "name_scope",
           "new_program", "program_guard", "startup_of"]  # fmt: skip
