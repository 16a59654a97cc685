"""The contents of a checkpoint's file, field by field: types, ranks, ranges, counts. All is checked before any of it is used.

Tensors: ``value/NAME`` for each value of the program; ``losses`` fp64 ``[steps]``.
Of each generator its state now (``random/``) and when the epoch began (``epoch_random/``): ``executor`` uint8 ``[bytes]``, ``torch``
uint8 ``[5056]``, ``numpy_key`` int64 ``[624]``, ``numpy_rest`` fp64 ``[3]``, ``python`` fp64 ``[628]``.
``callback/INDEX/ATTRIBUTE/NAME``: a callback's tensor of a value of the program, of its type and dims.
Within an epoch ``sum/NAME``: the sums of its figures, fp64 ``[n]`` or ``[rows, n]``. Facts: the keys of `_DOCUMENT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from foreshape.apps.training.checkpoint.divided import ShardedCheckpoint
from foreshape.apps.training.checkpoint.random_state import EPOCH, NOW, GeneratorStates, from_tensors
from foreshape.apps.training.checkpoint.resume_check import MOST_NUMBERS, Facts
from foreshape.apps.training.checkpoint.state import CallbackState, Position, State, Sums
from foreshape.apps.training.history import History
from foreshape.apps.training.program import persistables
from foreshape.core.checked_json.readers import (
    MOST,
    any_text,
    anything,
    count,
    document,
    listing,
    mapping,
    number,
    of_format,
    optional,
    real,
    refuse,
    scalar,
    series,
)
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import torch
from foreshape.core.values.torch_types import dtype_of_torch, torch_dtype
from foreshape.errors import FormatError
from foreshape.language.program import Program, Variable

if TYPE_CHECKING:
    from torch import Tensor

FORMAT: Final = "foreshape checkpoint 3"
VALUE: Final = "value/"
ROWS: Final = "rows/"
"""The ids of sparse rows, beside their values."""
_LOSSES: Final = "losses"
OTHERS: Final = "others_random"
"""uint8 ``[ranks, bytes]``: the generators of all ranks' executors, if there are several."""
_PARTS: Final = "parts"
"""The division of values over ranks; may be missing."""
_CALLBACKS: Final = "callbacks"
"""The state of callbacks: for each its kind and its numbers; may be missing."""
CALLBACK: Final = "callback/"
SUM: Final = "sum/"
_DOCUMENT = document(
    dict[str, Any], _PARTS, _CALLBACKS,
    values=mapping(any_text, MOST, any_text), state=mapping(any_text, MOST, any_text), ops=listing(any_text, MOST),
    numbers=mapping(listing(number, MOST_NUMBERS), MOST, any_text), data=mapping(scalar, MOST, any_text), notes=mapping(scalar, MOST, any_text),
    position=series(Position, count(), count()), epochs=listing(mapping(number, MOST, any_text), MOST), seconds=real(), first=optional(any_text),
    parts=anything, callbacks=listing(series(CallbackState, any_text, mapping(scalar, MOST, any_text)), MOST),
)  # fmt: skip


@dataclass(slots=True)
class Contents:
    """A checkpoint after all checks."""

    values: dict[str, Any]
    """Tensors, and `Rows`."""
    facts: Facts
    state: State
    divided: ShardedCheckpoint | None = None
    """The values divided over the files of ranks."""


def to_facts(facts: Facts, state: State, parts: Any = None) -> dict[str, Any]:
    """Return the JSON read by `contents`."""
    return {
        **({} if parts is None else {_PARTS: parts}),
        **({_CALLBACKS: [[callback.kind, callback.numbers] for callback in state.callbacks]} if state.callbacks else {}),
        "format": FORMAT,
        "values": facts.values, "state": facts.state, "ops": facts.ops, "numbers": facts.numbers, "data": facts.data, "notes": facts.notes,
        "position": [state.position.epoch, state.position.batch],
        "epochs": state.history.epochs,
        "seconds": state.seconds,
        "first": state.first,
    }  # fmt: skip


def value_tensors(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the values of a scope, by the names for `contents`."""
    out = {VALUE + name: value.values if isinstance(value, Rows) else value for name, value in values.items()}
    return {**out, **{ROWS + name: value.rows for name, value in values.items() if isinstance(value, Rows)}}


def callback_tensors(state: State) -> dict[str, Tensor]:
    """Return the tensors kept by callbacks, by the names for `contents`."""
    return {
        f"{CALLBACK}{index}/{attribute}/{name}": tensor
        for index, callback in enumerate(state.callbacks)
        for attribute, values in callback.tensors.items()
        for name, tensor in values.items()
    }


def contents(tensors: Mapping[str, Tensor], document: Any, program: Program, path: str = "") -> Contents:
    """Return a checkpoint's contents, all checked, including the files of its ranks beside ``path``.

    Raises:
        FormatError: a field that is missing, surplus, of another type, rank, count or range; or a value unlike its description in the file,
        or in ``program`` if it says the same.
    """
    facts = _DOCUMENT("the facts", of_format(document, FORMAT, "a checkpoint"))
    described = Facts(*(facts[name] for name in ("values", "state", "ops", "numbers", "data", "notes")))
    losses: Any = _of_type(_LOSSES, tensors, torch.float64)
    if not bool(losses.isfinite().all()):
        refuse(_LOSSES, "finite numbers", "others")
    position: Position = facts["position"]
    if position.epoch < 1 or position.batch > len(losses):
        refuse("position", f"an epoch from 1 on, and at most as many batches as there are losses, {len(losses)}", position)
    epochs = facts["epochs"]
    if len(epochs) != position.epoch - 1 or any("seconds" not in row for row in epochs):
        refuse("epochs", f"a row with seconds for each of the {position.epoch - 1} epochs that are done", epochs)
    sums = _sums(tensors)
    if bool(sums) is not bool(position.batch):
        refuse("sums", "there within an epoch, and only there", ", ".join(sums) or "none")
    present, begun = (_random(prefix, tensors) for prefix in (NOW, EPOCH))
    rank_states = tensors.get(OTHERS)
    if rank_states is not None and (rank_states.dtype is not torch.uint8 or rank_states.dim() != 2):
        refuse(OTHERS, "uint8 [ranks, bytes]", f"{rank_states.dtype} {list(rank_states.shape)}")
    divided = ShardedCheckpoint.read(path, facts[_PARTS]) if _PARTS in facts else None
    for name in divided.names if divided is not None else ():
        spec = {**described.values, **described.state}.get(name)
        if divided is not None and divided.spec_text(name) != spec:
            refuse(name, str(spec), divided.spec_text(name))
    return Contents(
        _values(tensors, described, program), described,
        State(position, History(losses.tolist(), epochs), present, begun, sums, facts["seconds"], facts["first"], rank_states,
              _callbacks(tensors, facts.get(_CALLBACKS, []), described, program)), divided,
    )  # fmt: skip


# --- tensors


def _values(tensors: Mapping[str, Tensor], facts: Facts, program: Program) -> dict[str, Any]:
    """Return the values, each as described by the file, and by the program if it says the same."""
    variables = {v.name: v for v in persistables(program)}
    specs = {**facts.values, **facts.state}
    reserved = {_LOSSES, OTHERS, *(prefix + name for prefix in (NOW, EPOCH) for name in GeneratorStates.names())}
    out: dict[str, Any] = {}
    for key, tensor in tensors.items():
        name = key.removeprefix(VALUE)
        if key in reserved or key.startswith((CALLBACK, SUM)) or (key.startswith(ROWS) and VALUE + key.removeprefix(ROWS) in tensors):
            continue
        if name == key or name not in specs:
            raise FormatError(f"the tensor {key[:100]!r} is none of a checkpoint's")
        ids, variable = tensors.get(ROWS + name), variables.get(name)
        if ids is not None or specs[name].startswith("rows "):
            if variable is not None and variable.spec.text() == specs[name]:  # another run's value, without a place in this one, is not needed
                out[name] = _rows(name, ids, tensor, variable)
            continue
        _check_value(name, tensor, specs[name], variable)
        out[name] = tensor
    return out


def _rows(name: str, ids: Tensor | None, values: Tensor, variable: Variable) -> Rows:
    """Return sparse rows of a checkpoint, for a variable of sparse rows."""
    spec = variable.spec
    dims = spec.known_dims
    fits = ids is not None and ids.dtype is torch.int64 and ids.dim() == 1 and values.shape == (len(ids), *dims[1:])
    if ids is None or not fits or values.dtype is not torch_dtype(spec.known_dtype):
        refuse(name, f"{spec.text()}, and an id for each row", f"{dtype_of_torch(values.dtype).short}{list(values.shape)}")
    height = dims[0]
    assert isinstance(height, int)
    if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= height or not bool((ids[1:] > ids[:-1]).all())):
        refuse(name, f"ids in rising order, in [0, {height})", "others")
    return Rows.unique(ids, values, height)


def _check_value(name: str, tensor: Tensor, spec: str, variable: Variable | None) -> None:
    """Refuse a tensor unlike the file's description of the value, if the program says the same."""
    if variable is not None and variable.spec.text() == spec:
        dims, dtype = variable.spec.known_dims, variable.spec.known_dtype
        fits = len(dims) == tensor.dim() and all(d == s for d, s in zip(dims, tensor.shape, strict=True) if isinstance(d, int))
        if not fits or tensor.dtype is not torch_dtype(dtype):
            refuse(name, spec, f"{dtype_of_torch(tensor.dtype).short}{list(tensor.shape)}")


def _callbacks(tensors: Mapping[str, Tensor], out: list[CallbackState], facts: Facts, program: Program) -> list[CallbackState]:
    """Return the state of callbacks; their tensors are values of the program."""
    variables = {v.name: v for v in persistables(program)}
    for key in sorted(k for k in tensors if k.startswith(CALLBACK)):
        index, attribute, name = (*key.removeprefix(CALLBACK).split("/", 2), "", "")[:3]
        if not (index.isascii() and index.isdigit() and len(index) < 10 and int(index) < len(out)) or name not in facts.values:
            raise FormatError(f"the tensor {key[:100]!r} is none of a checkpoint's")
        _check_value(key, tensors[key], facts.values[name], variables.get(name))
        out[int(index)].tensors.setdefault(attribute, {})[name] = tensors[key]
    return out


def sum_tensors(state: State) -> dict[str, Tensor]:
    """Return the sums of the epoch's figures, by the names for `contents`."""
    return {SUM + name: torch.tensor(value) for name, value in state.sums.items()}


def _sums(tensors: Mapping[str, Tensor]) -> Sums:
    out: Sums = {}
    for key in sorted(k for k in tensors if k.startswith(SUM)):
        tensor = tensors[key]
        if tensor.dtype is not torch.float64 or tensor.dim() not in (1, 2):
            refuse(key, "float64 of 1 or 2 dims", f"{tensor.dtype} {list(tensor.shape)}")
        out[key.removeprefix(SUM)] = tensor.clone().numpy()
    return out


def _of_type(name: str, tensors: Mapping[str, Tensor], dtype: Any, size: int | None = None) -> Tensor:
    """Return a tensor of one dim."""
    tensor = tensors.get(name)
    if tensor is None:
        raise FormatError(f"the checkpoint lacks {name}")
    if tensor.dtype is not dtype or tensor.dim() != 1 or (size is not None and len(tensor) != size):
        required = f"{str(dtype).removeprefix('torch.')} [{'n' if size is None else size}]"
        refuse(name, required, f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}")
    return tensor


def _random(prefix: str, tensors: Mapping[str, Tensor]) -> GeneratorStates:
    for name, (dtype, size) in GeneratorStates.layout().items():
        _of_type(prefix + name, tensors, getattr(torch, dtype), size)
    return from_tensors(prefix, tensors)
