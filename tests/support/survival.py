"""What every program must survive, however it came about: load, infer, print, save, read back, parse."""

from __future__ import annotations

from dataclasses import dataclass, field

import foreshape as fs
from foreshape.errors import DescriptionError, ForeshapeError, FormatError, MemoryPlanError
from foreshape.language.operator.registry import find
from foreshape.language.program import Program
from foreshape.language.wire import load_program
from support.counted import calls

CALLS, CALLS_PER_BYTE = 2_000_000, 10
"""What a file may cost in all stages together: so many calls, and so many more for each of its bytes."""


@dataclass
class Outcome:
    """How far a file came: the program, or the error of its reading; and what inference said."""

    program: Program | None = None
    refused: FormatError | None = None
    errors: list[DescriptionError] = field(default_factory=list[DescriptionError])


def survive(data: bytes) -> Outcome:
    """All stages on one file. Anything but the package's own errors, of the right class, comes out as it is."""
    out = Outcome()
    took = calls(lambda: go_through(data, out))
    assert took < CALLS + CALLS_PER_BYTE * len(data), f"{len(data)} bytes take {took} calls"
    return out


def go_through(data: bytes, out: Outcome) -> None:
    """All stages, as far as the file comes."""
    try:
        program = fs.load_program(data)
    except FormatError as error:
        out.refused = error
        checked_words(error)
        return
    out.program = program
    out.errors = use(program)


def use(program: Program) -> list[DescriptionError]:
    """Infer, print, save, read back, parse."""
    _, errors = program.diagnose()
    program.diagnose()  # what is read before it is written is known now
    for error in errors:
        assert isinstance(error, DescriptionError)
        checked_words(error)
    text = str(program)
    assert_printable(text)
    for op in program.all_ops():
        assert_printable(repr(op))
    for variable in program.all_variables():
        assert_printable(repr(variable))
        for dim in variable.packed_dims:
            assert dim >= -1
    data = program.to_bytes()
    again = load_program(data)
    assert again.to_bytes() == data, "what was saved, read and saved again is another program"
    try:
        parsed = Program.parse(text)
    except FormatError as error:
        checked_words(error)
    else:
        reasons = any(op.attributes.error is not None and find(op.type) is None for op in program.all_ops())  # which no text has
        assert reasons or str(parsed) == text
    copy = program.clone()
    assert copy.to_bytes() == data
    return errors


def checked_words(error: ForeshapeError, last_resort: bool = False) -> ForeshapeError:
    """An error has words of bounded length, without control characters; of a description or a file they are words that somebody has thought of, unless
    those of the ``last_resort`` are meant."""
    words, cause = str(error), error.__cause__
    if not last_resort and isinstance(error, (DescriptionError, FormatError, MemoryPlanError)) and cause is not None and not isinstance(cause, ForeshapeError):
        raise cause
    assert words and len(words) < 50_000
    assert_printable(words)
    return error


def assert_printable(text: str) -> None:
    for line in text.split("\n"):
        assert line.isprintable(), f"{next(c for c in line if not c.isprintable())!r} in {text[:200]!r}"
