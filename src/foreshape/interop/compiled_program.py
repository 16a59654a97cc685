"""Compiled programs: a network as read and inferred, with its parameters, in one file. Its steps are prepared at the opening, with torch.

The file has the head of `foreshape.interop.compiled_head`, the description in JSON, the program's bytes, and its parameters, each at a multiple of 64 bytes.
It holds nothing of the machine: kernels and packed weights are made at the opening. `CompiledTexts` has its program in the same form.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from foreshape.core.checked_json.readers import checksum, count, document, listing, of_format, optional, series, text
from foreshape.core.version import VERSION
from foreshape.errors import ForeshapeError, ForeshapeWarning, FormatError, border
from foreshape.interop.compiled_head import (
    MAX_BYTES,
    PROGRAM,
    SourceFile,
    changed_source,
    check_file_names,
    check_place,
    content_of,
    other_version,
    rounded,
    source_file,
    write_compiled,
)
from foreshape.interop.parameters import Stored, otherwise, parameters_of
from foreshape.language.program import Program, Variable
from foreshape.language.wire import load_program, save_program
from foreshape.language.wire.files import check_unchanged, map_file

if TYPE_CHECKING:
    from foreshape.runtime.engine import Scope


class ParameterPlace(NamedTuple):
    """A parameter: its name, the name of its element type, its dims, and its begin behind the description."""

    name: str
    element: str
    dims: list[int]
    begin: int


parameter_places = listing(series(ParameterPlace, text(), text(100), listing(count(0, MAX_BYTES), 32), count(0, MAX_BYTES)), 1_000_000)
program_size = count(1, MAX_BYTES)


class ProgramDescription(NamedTuple):
    """The description in a file.

    Attributes:
        package: the version of this package.
        sources: the files of the network itself, its program first.
        params: the name of its parameter file, if not the usual one.
        program: the bytes of the program, right behind the description.
        digest: the SHA-256 of the program.
        parameters: of the program, without constants.
    """

    package: str
    sources: list[SourceFile]
    params: str | None
    program: int
    digest: str
    parameters: list[ParameterPlace]


_description = document(
    ProgramDescription,
    package=text(),
    sources=listing(source_file, 100_000, 1),
    params=optional(text(1000)),
    program=program_size,
    digest=checksum,
    parameters=parameter_places,
)


def write_program(
    target: str, format: str, description: Mapping[str, Any], program: Program, parameters: Sequence[str], stored: Callable[[str], Stored]
) -> None:
    """Write a program and its parameters.

    Args:
        format: of the file.
        description: of the file, without ``package``, ``program``, ``digest`` and ``parameters``.
        parameters: their names.
        stored: returns a parameter by its name, asked for twice.
    """
    data = save_program(program)
    places, listed = [(0, len(data))], list[ParameterPlace]()
    for name in parameters:
        value = stored(name)
        listed.append(ParameterPlace(name, value.dtype.name, list(value.dims), rounded(sum(places[-1]))))
        places.append((listed[-1].begin, len(value.data)))

    def parts() -> Iterator[Any]:
        yield data
        for name in parameters:
            yield stored(name).data

    words = {"format": format, "package": VERSION, **description, "program": len(data), "digest": hashlib.sha256(data).hexdigest(), "parameters": listed}
    write_compiled(target, json.dumps(words, separators=(",", ":")).encode(), places, parts())


class _Described(Protocol):
    """The common parts of the descriptions of files with a program."""

    @property
    def package(self) -> str: ...
    @property
    def sources(self) -> list[SourceFile]: ...
    @property
    def program(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def parameters(self) -> list[ParameterPlace]: ...


_D = TypeVar("_D", bound=_Described)


class ProgramFile(Generic[_D]):
    """A program and its parameters in a compiled file.

    Args:
        path: of the file.
        described: reads the content of the file.
        kind: the kind of the file, in words.

    Attributes:
        description: its words.
        model: the path of the network itself; the file may be missing.

    Raises:
        FormatError: it cannot be read, or is not as it was written.
    """

    def __init__(self, path: str | os.PathLike[str], described: Callable[[Any], _D], kind: str) -> None:
        self.path, self._kind = os.fsdecode(path), kind
        self._data = map_file(self.path, MAX_BYTES)
        try:
            content, self._begin, self._check = content_of(self._data)
            self.description = described(content)
            check_file_names(s.name for s in self.description.sources)
            check_place(0, self.description.program, len(self._data) - self._begin)
        except FormatError as error:
            raise self._damaged(error) from None
        self._folder = os.path.dirname(self.path)
        self.model = os.path.join(self._folder, self.description.sources[0].name)

    def _damaged(self, error: ForeshapeError) -> FormatError:
        return FormatError(f"{self.path} is no whole {self._kind}: {error}")

    def misfit(self) -> str:
        """Return why the network must be compiled again: by this package, or because its files changed; empty where it fits."""
        return other_version(self.description.package) or changed_source(self._folder, self.description.sources)

    def use_network_itself(self, reason: str, stacklevel: int) -> None:
        """Warn of opening the network itself. Raises `FormatError`: it is not there.

        Args:
            reason: why, in words.
            stacklevel: of the warning.
        """
        if not os.path.isfile(self.model):
            raise FormatError(f"{self.path}: {reason}; and the network itself, {self.model}, is not there")
        warnings.warn(f"{self.path}: {reason}; {self.model} is opened as usual", ForeshapeWarning, stacklevel=stacklevel + 1)

    def load(self) -> tuple[Program, dict[str, Stored]]:
        """Return the program, and its parameters over the bytes of the file, to be used after `check_parameters`.

        Raises:
            FormatError: the program is none, or its parameters are others than in the file.
        """
        try:
            data = self._data[self._begin : self._begin + self.description.program]
            if hashlib.sha256(data).hexdigest() != self.description.digest:
                raise FormatError("the SHA-256 of its program is another than in its description")
            program = load_program(data)
            program.refresh()
            return program, self._stored(parameters_of(program))
        except ForeshapeError as error:
            raise self._damaged(error) from None

    def check_parameters(self) -> None:
        """Return when the bytes of parameters were compared with their SHA-256. Raises `FormatError`: they are not as they were written."""
        try:
            self._check.wait()
        except FormatError as error:
            raise self._damaged(error) from None

    def _stored(self, variables: Mapping[str, Variable]) -> dict[str, Stored]:
        out: dict[str, Stored] = {}
        for name, element, dims, begin in self.description.parameters:
            variable, words = variables.get(name), f"the parameter {name[:100]!r} is {element} {dims}"
            if variable is None or name in out:
                raise FormatError(f"{words}, and {'none' if variable is None else 'there already'} in the program")
            kind = variable.spec.known_dtype
            if element != kind.name or otherwise(kind, tuple(dims), variable.spec):
                raise FormatError(f"{words}, and {variable.spec.text()} in the program")
            nbytes = prod(dims) * int(kind.itemsize)
            check_place(begin, nbytes, len(self._data) - self._begin)
            place = self._begin + begin
            out[name] = Stored(kind, tuple(dims), memoryview(self._data)[place : place + nbytes], place)
        if missing := sorted(name for name, v in variables.items() if name not in out and v.value is None):
            raise FormatError(f"the parameter {missing[0][:100]!r} of its program is missing")
        return out


class CompiledProgram(ProgramFile[ProgramDescription]):
    """A compiled program in its file: see `ProgramFile`."""

    @border("the compiled network cannot be read", FormatError)
    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, lambda content: _description("it", of_format(content, PROGRAM, "a compiled program", "; compile it again")), "compiled network")
        params = self.description.params
        if params is not None:
            check_file_names([params])
        self.params = None if params is None else os.path.join(self._folder, params)


class CompiledParameters:
    """The parameters in a file. Their tensors share its memory: nothing is copied, and writes stay in this process.

    Args:
        file: holds them.
        stored: the parameters by name.
    """

    def __init__(self, file: CompiledProgram, stored: Mapping[str, Stored]) -> None:
        self._file, self._stored = file, dict(stored)

    def put_into(self, scope: Scope, device: str) -> None:
        """Let a scope take each at its first use.

        Args:
            scope: to put them into.
            device: where its tensors are.
        """
        for name in self._stored:
            scope.defer(name, lambda name=name: self._tensor(name, device))

    def _tensor(self, name: str, device: str) -> Any:
        from foreshape.interop.safetensors_file import tensor_over

        self._file.check_parameters()
        value = self._stored[name]
        check_unchanged(value.bits(), name)
        out = tensor_over(name, value.data, 0, value.dtype, value.dims)
        return out if device == "cpu" else out.to(device)

    def stored(self) -> dict[str, Stored]:
        """Return name -> the value, in the order of the names. Raises `FormatError`: the values are not as they were written."""
        self._file.check_parameters()
        return dict(sorted(self._stored.items()))


def open_compiled_program(path: str) -> tuple[Program, CompiledParameters]:
    """Return the program in a compiled file, and its parameters.

    Raises:
        FormatError: it is damaged.
    """
    file = CompiledProgram(path)
    program, stored = file.load()
    return program, CompiledParameters(file, stored)
