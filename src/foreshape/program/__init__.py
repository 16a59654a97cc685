"""The program that a user describes: `Program`, `Block`, `Op`, `Variable`, and its text form."""

from foreshape.program.block import Block
from foreshape.program.current import current_block, default_main_program, default_startup_program, program_guard
from foreshape.program.op import Op, Role
from foreshape.program.program import Program
from foreshape.program.scopes import name_scope
from foreshape.program.variable import Variable

__all__ = ["Block", "Op", "Program", "Role", "Variable", "current_block", "default_main_program", "default_startup_program", "name_scope", "program_guard"]
