"""Networks of padded texts on ragged rows, by proof: `unpad_program`."""

from foreshape.transforms.unpad.unpad import UnpaddedProgram as UnpaddedProgram
from foreshape.transforms.unpad.unpad import unpad_program as unpad_program

__all__ = ["UnpaddedProgram", "unpad_program"]
