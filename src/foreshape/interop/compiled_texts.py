"""Compiled encoders of texts: a program on ragged rows, already proved, and its parameters in one file. It is opened without torch and without the proof.

The file is in the form of `foreshape.interop.compiled_program`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from foreshape.core.checked_json.readers import checksum, count, document, listing, of_format, one_of, optional, record, text, truth
from foreshape.core.spec import BF16
from foreshape.errors import ExecutionError, FormatError, SchemaError, border
from foreshape.interop.compiled_head import FORMAT, PROGRAM, TEXTS, SourceFile, source_file
from foreshape.interop.compiled_program import ParameterPlace, ProgramFile, parameter_places, program_size, write_program
from foreshape.interop.inference import for_inference
from foreshape.interop.parameters import Stored, parameters_of, stored_array
from foreshape.interop.ragged_file import RaggedFile, ragged_file

if TYPE_CHECKING:
    from foreshape.runtime.engine import Scope


class TextsDescription(NamedTuple):
    """The description in a file.

    Attributes:
        package: the version of this package.
        sources: the files of the network itself, the ``.onnx`` first.
        ragged: the arguments of `unpad` at the proof.
        inputs, outputs: their names, in order.
        program: the bytes of the program, right behind the description.
        digest: the SHA-256 of the program.
        parameters: of the program, all.
    """

    package: str
    sources: list[SourceFile]
    ragged: dict[str, Any]
    inputs: list[str]
    outputs: list[str]
    program: int
    digest: str
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
    program=program_size,
    digest=checksum,
    parameters=parameter_places,
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
    _, program, inputs, outputs = for_inference(opened.feeds, opened.fetches, opened.program)
    parameters = parameters_of(program)
    for name, variable in parameters.items():
        if variable.dtype is BF16:
            raise ExecutionError(f"the parameter {name} is {variable.spec.text()}; numpy has no such elements")

    def stored(name: str) -> Stored:
        return stored_array(opened.arrays[name], parameters[name].spec.known_dtype)

    write_program(target, TEXTS, {"sources": [*sources], "ragged": {**ragged}, "inputs": inputs, "outputs": outputs}, program, [*parameters], stored)


class CompiledTexts(ProgramFile[TextsDescription]):
    """A compiled encoder of texts in its file: see `ProgramFile`.

    Raises:
        FormatError: it cannot be read, or is not as it was written. SchemaError: it is a compiled network of another kind.
    """

    @border("the compiled encoder cannot be read", FormatError)
    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, self._described, "compiled encoder")

    def _described(self, content: Any) -> TextsDescription:
        if isinstance(content, dict) and content.get("format") in (FORMAT, PROGRAM):  # pyright: ignore[reportUnknownMemberType]
            raise SchemaError(f"{self.path} is a compiled network, and no encoder of texts: fs.Predictor opens it")
        return _description("it", of_format(content, TEXTS, "a compiled encoder", "; compile it again"))

    @border("the compiled encoder cannot be read", FormatError)
    def open(self) -> RaggedFile:
        """Return the network. Raises `FormatError`: its program or a parameter is not as it was written."""
        program, stored = self.load()
        self.check_parameters()
        variables, inputs, outputs = program.global_block.vars, self.description.inputs, self.description.outputs
        for name in (*inputs, *outputs):
            if name not in variables or variables[name].persistable or variables[name].dtype is None:
                raise self._damaged(FormatError(f"{name[:100]!r} is no input and no result of its program"))
        arrays = {name: value._replace(data=value.data.toreadonly()).numbers() for name, value in stored.items()}
        return ragged_file(program, [*inputs], [variables[name] for name in outputs], _CompiledParameters(arrays))


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
    file.use_network_itself(reason, 5)
    from foreshape.interop.unpadding import open_unpadded

    return open_unpadded(file.model, **file.description.ragged)
