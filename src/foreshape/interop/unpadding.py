"""Networks of padded texts on ragged rows: `unpad`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, overload

from foreshape.errors import FormatError, SchemaError
from foreshape.interop.inference import columns, load_inference_model
from foreshape.interop.model import InferenceModel
from foreshape.interop.onnx.held_parameters import OnnxParameters
from foreshape.interop.program_files import open_program
from foreshape.interop.ragged_file import FileArrays, RaggedFile, ragged_file
from foreshape.interop.ragged_model import Side, node_words, unpadded_model, unpadded_program
from foreshape.language.program import Program, Variable
from foreshape.language.program.inputs import inputs_of
from foreshape.runtime.engine import Scope, default_scope
from foreshape.transforms.unpad import UnpaddedProgram, unpad_program

Fetches = Sequence[Variable | str] | Variable | str


@overload
def unpad(
    model: str | os.PathLike[str] | InferenceModel,
    mask: str | None = ...,
    *,
    side: Side = ...,
    masked: Literal[0, 1] = ...,
    pad_id: int | None = ...,
    row_scales: bool = ...,
) -> InferenceModel: ...
@overload
def unpad(
    model: Program,
    mask: str | None = ...,
    *,
    fetches: Fetches,
    side: Side = ...,
    masked: Literal[0, 1] = ...,
    pad_id: int | None = ...,
    row_scales: bool = ...,
    scope: Scope | None = ...,
) -> UnpaddedProgram: ...
def unpad(
    model: str | os.PathLike[str] | InferenceModel | Program,
    mask: str | None = "attention_mask",
    *,
    fetches: Fetches | None = None,
    side: Side = "right",
    masked: Literal[0, 1] = 0,
    pad_id: int | None = None,
    row_scales: bool = False,
    scope: Scope | None = None,
) -> InferenceModel | UnpaddedProgram:
    """Return a network of padded texts on ragged rows, with a proof: padding does not change a text's results.

    Its inputs are packed: ids ``[texts, time]`` become the rows of all texts, ragged ``[rows]``, and the mask is gone. Each text's results are the same
    as of the text alone. Results for each row, ``[texts, time, ...]``, become ragged rows.

    Examples:
        >>> encoder = fs.unpad("encoder.onnx")
        >>> vectors = encoder.run({"input_ids": fs.LoDTensor(ids, [lengths])})[0]

    Args:
        model: a saved network, its path, or a program; it is left as it is. A program of a network without gradients can be trained then.
        mask: the input telling the rows of texts: ``[texts, time]``, or their lengths ``[texts]``; None if the network has none, or finds the
            rows by their ids.
        fetches: the results of a program.
        side: the padded end of a text.
        masked: the number of masked rows in the mask.
        pad_id: the id of padding, for a network comparing ids with it: no text may contain it.
        row_scales: give each row of a ``DynamicQuantizeLinear`` a scale and a zero point of its own. The file's are of all texts together, so each text
            changes the others; without this the network is refused.
        scope: holds a program's parameters; the default scope if omitted. Their numbers are read where the proof needs them.

    Raises:
        UnpadError: a masked row reaches a text's own rows or its result, or may: with the op, and the way to the result.
        SchemaError: an unknown name, or a network without texts.
    """
    if isinstance(model, Program):
        if fetches is None:
            raise SchemaError("unpad(program): fetches must name the results")
        results = [fetches] if isinstance(fetches, (Variable, str)) else list(fetches)
        names = [r if isinstance(r, str) else r.name for r in results]
        scope = default_scope() if scope is None else scope
        return unpadded_program(model, [v.name for v in inputs_of(model.global_block)], names, mask, side, masked, pad_id, row_scales, scope)
    if not isinstance(model, InferenceModel):
        model = load_inference_model(model, scope=Scope())
    return unpadded_model(model, mask, side, masked, pad_id, row_scales)


def open_unpadded(
    path: str | os.PathLike[str],
    mask: str | None = "attention_mask",
    pad_id: int | None = None,
    side: Side = "right",
    masked: Literal[0, 1] = 0,
    row_scales: bool = False,
) -> RaggedFile:
    """Open an ``.onnx`` of padded texts on ragged rows; its weights stay in the file, and torch is not needed.

    Args:
        path: of the file.
        mask, pad_id, side, masked, row_scales: as for `unpad`.

    Raises:
        UnpadError, SchemaError: as `unpad`. FormatError: the file cannot be read, or its parameters are in other files than an ``.onnx`` has.
    """
    program, parameters = open_program(path)
    if not isinstance(parameters, OnnxParameters):
        raise FormatError.must(f"{os.fspath(path)}", "an .onnx", "another format")
    program.refresh()
    arrays = FileArrays(parameters)
    feeds, fetches = columns(program, "feed", outputs=True), columns(program, "fetch", outputs=False)
    network = unpad_program(program, feeds, fetches, mask, arrays.get, side=side, masked=masked, pad_id=pad_id, row_scales=row_scales, source=node_words)

    return ragged_file(network.program, network.feeds, network.fetches, parameters)
