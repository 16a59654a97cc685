"""Models of ONNX and of PaddlePaddle 3, and old ones, as the pair of files for PaddlePaddle 2: NAME.pdmodel and NAME.pdiparams."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from foreshape.core.data_class import data_class
from foreshape.errors import FormatError, border
from foreshape.interop.convert import stored_parameters
from foreshape.interop.paddle2_forms import write_older_forms
from foreshape.interop.parameters import Stored, parameters_of, write_combined
from foreshape.interop.program_files import MODEL, HeldParameters, find_program, open_program, programs_in
from foreshape.language.operator import OWN
from foreshape.language.program import Op, Program, Variable
from foreshape.language.program.unknown import is_unknown
from foreshape.language.wire import save_program

_PAIR: Final = (".pdmodel", ".pdiparams")
_OLDER: Final = 2
"""The version of PaddlePaddle for a ``.pdmodel``."""
_TIES: Final = {
    ("argsort", "stable"): "there equal elements come in any order",
    ("round", "round_type"): "there halves are rounded away from 0",
    **{(f"{kind}_interp_v2", "centered"): "there a single new pixel is the first old one" for kind in ("linear", "bilinear", "bicubic", "trilinear")},
}
"""Attributes unread by PaddlePaddle 2, without influence on results but for equal elements, halves or single pixels."""

Path = str | os.PathLike[str]


@data_class(frozen=True)
class Lacking:
    """An operator, or an attribute, missing in PaddlePaddle 2.

    Attributes:
        name: the operator, as ``median``, or the attribute with its value, as ``argsort with stable = True``.
        count: the number of ops with it.
        place: of the first one, as ``op 3 of block 0``.
        reason: why it cannot be written, of an operator known to PaddlePaddle 2; or the difference without it.
        slight: True if the difference is in the order of equal elements, or in the rounding of halves. Such a model is written.
    """

    name: str
    count: int
    place: str
    reason: str
    slight: bool = False

    @property
    def words(self) -> str:
        """Return ``median (3 ops, the first is op 3 of block 0)``."""
        place = self.place if self.count == 1 else f"{self.count:,} ops, the first is {self.place}"
        return f"{self.name} ({place}){self.reason and ': '}{self.reason}"


class Converted(NamedTuple):
    """A converted model.

    Attributes:
        model, params: the written files; params is empty for a network without parameters.
        ops: the number of the program's ops.
        parameters: name -> the tensor.
        lacking: its needs missing in PaddlePaddle 2: with slight differences alone, unless the writing was forced.
    """

    model: str
    params: str
    ops: int
    parameters: dict[str, Stored]
    lacking: list[Lacking]


@border("the model cannot be converted", FormatError)
def convert_model(source: Path, target: Path, params: Path | None = None, *, force: bool = False) -> Converted:
    """Write a model as the pair of files for PaddlePaddle 2.6.2.

    Args:
        source: the program (PaddlePaddle 3's ``.json``, an ``.onnx``, a ``.pt2``, a ``.pdmodel``, ``__model__``), its path without the ending, or its folder.
        target: the ``.pdmodel`` to write; the parameters get the same name with ``.pdiparams``.
        params: the parameters, if not beside the program: as for `convert_parameters`.
        force: write also a model with operators or attributes unknown to PaddlePaddle 2; it opens here, and not there.

    Raises:
        FormatError: a file cannot be read or written; the network has mistakes; or, unless forced, PaddlePaddle 2 lacks operators or attributes of
        it, all listed in the message. Nothing is written then.
    """
    target_path = os.fspath(target)
    if not target_path.endswith(_PAIR[0]):
        raise FormatError(f"{target_path}: a model is written to a file that ends in {_PAIR[0]}")
    model, beside = find_program(source)
    if same_file(model, target_path):
        raise FormatError(f"{target_path}: a model is not written to where it is read from")
    program, file_parameters = open_program(model)
    drop_size_demands(program)
    give_padding_as_it_is(program)
    write_older_forms(program)
    missing = lacking(program)
    refused = [need for need in missing if not need.slight]
    if refused and not force:
        listed = "".join(f"\n    {need.words}" for need in refused)
        raise FormatError(f"{model} needs what PaddlePaddle 2.6.2 lacks, and is not written (unless forced, for Foreshape alone):{listed}")
    if force:
        program.refresh_quietly()
    else:
        program.refresh()
    parameters = parameters_of(program)
    values = parameter_values(parameters, file_parameters, beside, params)
    stored = target_path.removesuffix(_PAIR[0]) + _PAIR[1]
    if parameters and (file_parameters is not None or not same_file(beside if params is None else params, stored)):
        write_combined(stored, values)
    save_program(program, target_path)
    return Converted(target_path, stored if parameters else "", sum(1 for _ in program.all_ops()), values, missing)


def parameter_values(
    parameters: Mapping[str, Variable], file_parameters: HeldParameters | None, beside: str, params: str | os.PathLike[str] | None
) -> dict[str, Stored]:
    """Return the tensors of a model's parameters: of the file ``params``, else held in the program's file, else of the file beside it."""
    if file_parameters is not None and params is None:
        return file_parameters.stored()
    return stored_parameters(beside if params is None else os.fspath(params), parameters) if parameters else {}


def models_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the programs in a folder and its folders: the path of each, and its place in a folder of converted models, without an ending.

    A path of one program, with or without its ending, gives this one.

    Raises:
        FormatError: two of them have the same place.
    """
    if not os.path.isdir(folder):
        path = find_program(folder)[0]
        yield path, "inference" if os.path.basename(path) == MODEL else os.path.splitext(os.path.basename(path))[0]
        return
    places: dict[str, str] = {}
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if not n.startswith("."))
        for name in [MODEL] if MODEL in names else programs_in(directory):
            path = os.path.join(directory, name)
            stem = "inference" if name == MODEL else os.path.splitext(name)[0]
            place = os.path.normpath(os.path.join(os.path.relpath(directory, folder), stem))
            if place in places:
                raise FormatError(f"{places[place]} and {path} would both be written to {place}{_PAIR[0]}: convert one of them alone")
            places[place] = path
            yield path, place


def lacking(program: Program) -> list[Lacking]:
    """Return the operators and attributes missing in PaddlePaddle 2, each with its count, in the order of their first ops."""
    counts: dict[tuple[str, str, bool], tuple[int, str]] = {}
    for block in program.blocks:
        for number, op in enumerate(block.ops):
            for key in _lacking(op):
                count, place = counts.get(key, (0, f"op {number} of block {block.idx}"))
                counts[key] = (count + 1, place)
    return [Lacking(name, count, place, reason, slight) for (name, reason, slight), (count, place) in counts.items()]


def _lacking(op: Op) -> Iterator[tuple[str, str, bool]]:
    operator = op.attributes.operator
    if is_unknown(op):
        yield op.type, "", False
    elif op.attributes.error is not None:
        yield op.type, str(op.attributes.error), False
    elif operator is not None:
        if operator.since > _OLDER or not operator.__module__.startswith("foreshape.language.ops."):
            yield op.type, "", False
        for name, later in operator.schema.later.items():
            if (value := op.attributes.values.get(name, later.default)) != later.default and not _idle(op, name):
                difference = _TIES.get((op.type, name), "")
                yield f"{op.type} with {name} = {value!r}", difference, bool(difference)


def _idle(op: Op, name: str) -> bool:
    """Tell whether an attribute is of training alone, in an op of a test."""
    return name == "unbiased" and bool(op.attributes.values.get("is_test"))


def drop_size_demands(program: Program) -> None:
    """Drop the ops that only demand sizes: they give no results, and no other format has them."""
    for block in program.blocks:
        for op in list(block.ops):
            operator = op.operator
            if operator is not None and operator.since == OWN and operator.side_effects and not any(op.output_names()):
                block.remove_op(op)


def give_padding_as_it_is(program: Program) -> None:
    """Make lookups that give the row of padding as it is, and only in training no gradient, those of tables without padding."""
    for op in list(program.all_ops()):
        if not op.role and op.operator is not None and op.attributes.values.get("keeps_padding"):
            op.set_attribute("keeps_padding", False)
            op.set_attribute("padding_idx", -1)


def same_file(first: Any, second: Any) -> bool:
    """Tell whether two paths are of one present file."""
    try:
        return os.path.samefile(first, second)
    except OSError:  # one of them is not there
        return False
