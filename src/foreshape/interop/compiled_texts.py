"""Compiled encoders of texts: a program on ragged rows, already proved, and its parameters in one file. It is opened without torch and without the proof.

The file has the head of `foreshape.interop.compiled_file`, the description in JSON, the program's bytes, and its parameters, each at a multiple of 64 bytes.
Parameters stay in the file and are mapped into memory. It holds nothing of the machine: kernels and packed weights are made at the opening.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from foreshape.core.checked_json.readers import count, document, listing, of_format, one_of, optional, record, series, text, truth
from foreshape.core.version import VERSION
from foreshape.errors import ExecutionError, ForeshapeError, ForeshapeWarning, FormatError, SchemaError, border
from foreshape.interop.compiled_file import (
    FORMAT,
    MAX_BYTES,
    TEXTS,
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
from foreshape.interop.inference import for_inference, parameters_of
from foreshape.interop.ragged_file import RaggedFile, ragged_file
from foreshape.language.wire import load_program, save_program
from foreshape.language.wire.files import map_file

if TYPE_CHECKING:
    from foreshape.runtime.engine import Scope


class ParameterPlace(NamedTuple):
    """A parameter: its name, numpy's name of its elements, its dims, and its begin behind the description."""

    name: str
    element: str
    dims: list[int]
    begin: int


class TextsDescription(NamedTuple):
    """The description in a file.

    Attributes:
        package: the version of this package.
        sources: the files of the network itself, the ``.onnx`` first.
        ragged: the arguments of `unpad` at the proof.
        inputs, outputs: their names, in order.
        program: the bytes of the program, right behind the description.
        parameters: of the program, all.
    """

    package: str
    sources: list[SourceFile]
    ragged: dict[str, Any]
    inputs: list[str]
    outputs: list[str]
    program: int
    parameters: list[ParameterPlace]


def _settings(**settings: Any) -> dict[str, Any]:
    return settings


_description = document(
    TextsDescription,
    package=text(),
    sources=listing(source_file, 100_000, 1),
    ragged=record(_settings, mask=optional(text()), side=one_of("left", "right"), masked=count(0, 1), pad_id=optional(count()), row_scales=truth),
    inputs=listing(text(), 1000, 1),
    outputs=listing(text(), 1000, 1),
    program=count(1, MAX_BYTES),
    parameters=listing(series(ParameterPlace, text(), text(100), listing(count(0, MAX_BYTES), 32), count(0, MAX_BYTES)), 1_000_000),
)


def write_texts(target: str, opened: RaggedFile, ragged: Mapping[str, Any], sources: Sequence[SourceFile]) -> None:
    """Write an encoder of texts.

    Args:
        opened: the network on ragged rows.
        ragged: the arguments of `unpad` at the proof.
        sources: the files of the network itself.

    Raises:
        ExecutionError: a parameter has elements without a type of numpy.
    """
    import numpy

    _, program, inputs, outputs = for_inference(opened.feeds, opened.fetches, opened.program)
    data = save_program(program)
    places, parameters = [(0, len(data))], list[ParameterPlace]()
    for name, variable in parameters_of(program).items():
        element = variable.spec.known_dtype.numpy_name
        if not element:
            raise ExecutionError(f"the parameter {name} is {variable.spec.text()}; numpy has no such elements")
        array = opened.arrays[name]
        parameters.append(ParameterPlace(name, element, list(array.shape), rounded(sum(places[-1]))))
        places.append((parameters[-1].begin, prod(array.shape) * numpy.dtype(element).itemsize))

    def parts() -> Iterator[Any]:
        yield data
        for place in parameters:
            yield numpy.ascontiguousarray(opened.arrays[place.name], place.element).reshape(-1).view("uint8")

    description = {
        "format": TEXTS,
        **TextsDescription(VERSION, [*sources], {**ragged}, inputs, outputs, len(data), parameters)._asdict(),
    }
    write_compiled(target, json.dumps(description, separators=(",", ":")).encode(), places, parts())


class CompiledTexts:
    """A compiled encoder of texts in its file.

    Attributes:
        description: its words.
        model: the path of the network itself; the file may be missing.

    Raises:
        FormatError: it cannot be read, or is not as it was written. SchemaError: it is a compiled network of another kind.
    """

    @border("the compiled encoder cannot be read", FormatError)
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fsdecode(path)
        self._data = map_file(self.path, MAX_BYTES, writable=False)
        try:
            content, self._begin = content_of(self._data)
            if isinstance(content, dict) and content.get("format") == FORMAT:  # pyright: ignore[reportUnknownMemberType]
                raise SchemaError(f"{self.path} is a compiled network of fixed sizes, and no encoder of texts: fs.Predictor opens it")
            self.description = _description("it", of_format(content, TEXTS, "a compiled encoder", "; compile it again"))
            check_file_names(s.name for s in self.description.sources)
            check_place(0, self.description.program, len(self._data) - self._begin)
        except FormatError as error:
            raise self._damaged(error) from None
        self.model = os.path.join(os.path.dirname(self.path), self.description.sources[0].name)

    def _damaged(self, error: ForeshapeError) -> FormatError:
        return FormatError(f"{self.path} is no whole compiled encoder: {error}")

    def misfit(self) -> str:
        """Return why the network must be compiled again: by this package, or because its files changed; empty where it fits."""
        return other_version(self.description.package) or changed_source(os.path.dirname(self.path), self.description.sources)

    @border("the compiled encoder cannot be read", FormatError)
    def open(self) -> RaggedFile:
        """Return the network. Raises `FormatError`: its program or a parameter is not as it was written."""
        try:
            program = load_program(self._data[self._begin : self._begin + self.description.program])
            program.refresh()
            arrays = self._arrays({name: v.spec for name, v in parameters_of(program).items()})
            variables, inputs, outputs = program.global_block.vars, self.description.inputs, self.description.outputs
            for name in (*inputs, *outputs):
                if name not in variables or variables[name].persistable or variables[name].dtype is None:
                    raise FormatError(f"{name[:100]!r} is no input and no result of its program")
        except ForeshapeError as error:
            raise self._damaged(error) from None
        return ragged_file(program, [*inputs], [variables[name] for name in outputs], _CompiledParameters(arrays))

    def _arrays(self, specs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a program, over the bytes of the file."""
        import numpy

        arrays: dict[str, Any] = {}
        for name, element, dims, begin in self.description.parameters:
            spec = specs.get(name)
            if spec is None or name in arrays or element != spec.known_dtype.numpy_name or dims != list(spec.known_dims):
                seen = f"the parameter {name[:100]!r} is {element} {dims}"
                raise FormatError(f"{seen}, and {'none' if spec is None else 'there already' if name in arrays else spec.text()} in the program")
            check_place(begin, prod(dims) * int(spec.known_dtype.itemsize), len(self._data) - self._begin)
            arrays[name] = numpy.ndarray(dims, element, self._data, self._begin + begin)
        if missing := sorted(specs.keys() - arrays.keys()):
            raise FormatError(f"the parameter {missing[0][:100]!r} of its program is missing")
        return arrays


class _CompiledParameters:
    """The parameters in a file."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays

    def names(self) -> list[str]:
        return sorted(self._arrays)

    def array(self, name: str) -> Any:
        return self._arrays[name]

    def put_into(self, scope: Scope) -> None:
        from foreshape.core.values.conversion import to_tensor

        for name, array in self._arrays.items():
            scope.defer(name, lambda array=array: to_tensor(array.copy()))


def open_compiled_texts(path: str | os.PathLike[str]) -> RaggedFile:
    """Open a compiled encoder of texts; where it does not fit, the network itself, beside it, and a `ForeshapeWarning` says so.

    Raises:
        FormatError: it is damaged; or it does not fit, and the network itself is not there. SchemaError: it is a compiled network of another kind.
    """
    file = CompiledTexts(path)
    reason = file.misfit()
    if not reason:
        return file.open()
    if not os.path.isfile(file.model):
        raise FormatError(f"{file.path}: {reason}; and the network itself, {file.model}, is not there")
    warnings.warn(f"{file.path}: {reason}; {file.model} is opened as usual", ForeshapeWarning, stacklevel=5)
    from foreshape.interop.unpadding import open_unpadded

    return open_unpadded(file.model, **file.description.ragged)
