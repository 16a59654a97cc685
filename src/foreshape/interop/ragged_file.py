"""Networks of ragged rows opened without torch: their parameters stay in their files."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from foreshape.language.program import Program, Variable
from foreshape.language.wire.files import mapping_of
from foreshape.runtime.engine import Scope


class MappedParameters(Protocol):
    """Parameters left in their file."""

    def names(self) -> list[str]: ...
    def array(self, name: str) -> Any: ...
    def put_into(self, scope: Scope) -> None: ...


class NamedArrays(Mapping[str, Any]):
    """Parameters by name, as numpy's arrays.

    Args:
        names: of all of them.
        read: returns the array of a name; None if it has none.
    """

    def __init__(self, names: Collection[str], read: Callable[[str], Any]) -> None:
        self._names, self._read = names, read

    def __getitem__(self, name: str) -> Any:
        array = self._read(name) if name in self else None
        if array is None:
            raise KeyError(name)
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class FileArrays(NamedArrays):
    """The parameters in the file of a network by name, without torch."""

    def __init__(self, parameters: MappedParameters) -> None:
        super().__init__(parameters.names(), parameters.array)
        self._parameters = parameters

    def forget_pages(self) -> None:
        """Give the read pages of the file back to the system; pages read again come from the file."""
        for name in self._names:
            data = mapping_of(self._parameters.array(name))
            if data is not None:
                data.madvise(mmap.MADV_DONTNEED)
                return


class RaggedFile(NamedTuple):
    """The network of a file of padded texts on ragged rows, opened without torch.

    Attributes:
        program, feeds, fetches: as of `UnpaddedProgram`.
        arrays: its parameters.
        scope: makes a scope with them, with torch.
    """

    program: Program
    feeds: list[str]
    fetches: list[Variable]
    arrays: FileArrays
    scope: Callable[[], Scope]


def ragged_file(program: Program, feeds: list[str], fetches: list[Variable], parameters: MappedParameters) -> RaggedFile:
    """Return a network with the parameters in its file."""

    def scope() -> Scope:
        out = Scope()
        parameters.put_into(out)
        return out

    return RaggedFile(program, feeds, fetches, FileArrays(parameters), scope)
