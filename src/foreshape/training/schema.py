"""What a checkpoint's file holds, field by field: types, ranks, ranges, counts. Nothing of it is used before all of it has been looked at.

Tensors: ``value/NAME`` for each value of the program; ``losses`` fp64 ``[steps]``; and of each generator where it is, now
(``random/``) and when the epoch began (``epoch_random/``): ``executor`` uint8 ``[bytes]``, ``torch`` uint8 ``[5056]``, ``numpy_key``
int64 ``[624]``, ``numpy_rest`` fp64 ``[3]``, ``python`` fp64 ``[628]``; and ``callback/INDEX/ATTRIBUTE/NAME``, what a callback keeps of a value
of the program, of its type and dims; and within an epoch ``sum/NAME``, what its figures are made of, fp64 ``[n]`` or
``[rows, n]``. Facts: the keys of `_FACTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from foreshape.errors import FormatError
from foreshape.program import Program, Variable
from foreshape.training.changes import MOST_NUMBERS, Facts, Scalar
from foreshape.training.divided import Divided
from foreshape.training.history import History
from foreshape.training.program import persistables
from foreshape.training.random_state import EPOCH, NOW, RandomState, from_tensors
from foreshape.training.state import Kept, Position, State, Sums
from foreshape.values.rows import Rows
from foreshape.values.torch_proxy import torch
from foreshape.values.torch_types import dtype_of_torch, torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

FORMAT: Final = "foreshape checkpoint 3"
VALUE: Final = "value/"
ROWS: Final = "rows/"
"""The ids of a value that is sparse rows, beside its values."""
MOST: Final = 2**53
"""No count is larger."""
_LOSSES: Final = "losses"
OTHERS: Final = "others_random"
"""uint8 ``[ranks, bytes]``: the generators of all ranks' executors, where there are several."""
_PARTS: Final = "parts"
"""How values are divided over ranks; may be missing."""
_CALLBACKS: Final = "callbacks"
"""What callbacks know: for each its kind and its numbers; may be missing."""
CALLBACK: Final = "callback/"
SUM: Final = "sum/"
_FACTS: Final = ("format", "values", "state", "ops", "numbers", "data", "notes", "position", "epochs", "seconds", "first")

T = TypeVar("T")


@dataclass(slots=True)
class Contents:
    """A checkpoint that is what it should be."""

    values: dict[str, Any]
    """Tensors, and `Rows`."""
    facts: Facts
    state: State
    divided: Divided | None = None
    """The values that are divided over the files of ranks."""


def to_facts(facts: Facts, state: State, parts: Any = None) -> dict[str, Any]:
    """What `contents` reads, for JSON."""
    return {
        **({} if parts is None else {_PARTS: parts}),
        **({_CALLBACKS: [[one.kind, one.numbers] for one in state.callbacks]} if state.callbacks else {}),
        "format": FORMAT,
        "values": facts.values, "state": facts.state, "ops": facts.ops, "numbers": facts.numbers, "data": facts.data, "notes": facts.notes,
        "position": [state.position.epoch, state.position.batch],
        "epochs": state.history.epochs,
        "seconds": state.seconds,
        "first": state.first,
    }  # fmt: skip


def value_tensors(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """The values of a scope, by the names that `contents` reads."""
    out = {VALUE + name: value.values if isinstance(value, Rows) else value for name, value in values.items()}
    return {**out, **{ROWS + name: value.rows for name, value in values.items() if isinstance(value, Rows)}}


def callback_tensors(state: State) -> dict[str, Tensor]:
    """What callbacks keep of values, by the names that `contents` reads."""
    return {
        f"{CALLBACK}{at}/{attribute}/{name}": tensor
        for at, one in enumerate(state.callbacks) for attribute, values in one.tensors.items() for name, tensor in values.items()
    }  # fmt: skip


def contents(tensors: Mapping[str, Tensor], given: Any, program: Program, path: str = "") -> Contents:
    """A checkpoint's tensors and facts, all of them looked at, those in the files of its ranks beside ``path`` too.

    Raises:
        FormatError: one that is missing, surplus, of another type, rank, count or range; or a value that is not what the file itself,
        or ``program`` where it says the same, describes.
    """
    facts = _object("the facts", given, _any)
    if facts.get("format") != FORMAT:
        raise FormatError(f"not a checkpoint of a kind that is known here: {str(facts.get('format'))[:80]!r}")
    for name in sorted({*_FACTS} ^ (facts.keys() - {_PARTS, _CALLBACKS})):
        raise FormatError(f"the facts {'have' if name in facts else 'lack'} {name[:80]!r}")
    described = Facts(
        _object("values", facts["values"], _text), _object("state", facts["state"], _text), _list("ops", facts["ops"], _text),
        _object("numbers", facts["numbers"], _numbers), _object("data", facts["data"], _scalar), _object("notes", facts["notes"], _scalar),
    )  # fmt: skip
    losses: Any = _of_type(_LOSSES, tensors, torch.float64)
    if not bool(losses.isfinite().all()):
        _refuse(_LOSSES, "finite numbers", "others")
    position = _list("position", facts["position"], _count)
    if len(position) != 2 or position[0] < 1 or position[1] > len(losses):
        _refuse("position", f"an epoch from 1 on, and at most as many batches as there are losses, {len(losses)}", position)
    epochs = _list("epochs", facts["epochs"], lambda what, row: _object(what, row, _number))
    if len(epochs) != position[0] - 1 or any("seconds" not in row for row in epochs):
        _refuse("epochs", f"a row with seconds for each of the {position[0] - 1} epochs that are done", epochs)
    sums = _sums(tensors)
    if bool(sums) is not bool(position[1]):
        _refuse("sums", "there within an epoch, and only there", ", ".join(sums) or "none")
    seconds = _number("seconds", facts["seconds"])
    if not 0.0 <= seconds < math.inf:
        _refuse("seconds", "at least 0", seconds)
    first = None if facts["first"] is None else _text("first", facts["first"])
    now, begun = (_random(prefix, tensors) for prefix in (NOW, EPOCH))
    others = tensors.get(OTHERS)
    if others is not None and (others.dtype is not torch.uint8 or others.dim() != 2):
        _refuse(OTHERS, "uint8 [ranks, bytes]", f"{others.dtype} {list(others.shape)}")
    divided = Divided.read(path, facts[_PARTS]) if _PARTS in facts else None
    for name in divided.names if divided is not None else ():
        said = {**described.values, **described.state}.get(name)
        if divided is not None and divided.spec_text(name) != said:
            _refuse(name, str(said), divided.spec_text(name))
    return Contents(
        _values(tensors, described, program), described,
        State(Position(*position), History(losses.tolist(), epochs), now, begun, sums, seconds, first, others,
              _callbacks(tensors, facts.get(_CALLBACKS, []), described, program)), divided,
    )  # fmt: skip


# --- tensors


def _values(tensors: Mapping[str, Tensor], facts: Facts, program: Program) -> dict[str, Any]:
    """The values, each as the file says, and as the program says where that is the same."""
    variables = {v.name: v for v in persistables(program)}
    said = {**facts.values, **facts.state}
    others = {_LOSSES, OTHERS, *(prefix + name for prefix in (NOW, EPOCH) for name in RandomState.names())}
    out: dict[str, Any] = {}
    for key, tensor in tensors.items():
        name = key.removeprefix(VALUE)
        if key in others or key.startswith((CALLBACK, SUM)) or (key.startswith(ROWS) and VALUE + key.removeprefix(ROWS) in tensors):
            continue
        if name == key or name not in said:
            raise FormatError(f"the tensor {key[:100]!r} is none of a checkpoint's")
        ids, variable = tensors.get(ROWS + name), variables.get(name)
        if ids is not None or said[name].startswith("rows "):
            if variable is not None and variable.spec.text() == said[name]:  # another run's, which this one has no place for, is not needed
                out[name] = _rows(name, ids, tensor, variable)
            continue
        _check_value(name, tensor, said[name], variable)
        out[name] = tensor
    return out


def _rows(name: str, ids: Tensor | None, values: Tensor, variable: Variable) -> Rows:
    """Sparse rows of a checkpoint, of a variable that is such."""
    spec = variable.spec
    dims = spec.known_dims
    fits = ids is not None and ids.dtype is torch.int64 and ids.dim() == 1 and values.shape == (len(ids), *dims[1:])
    if ids is None or not fits or values.dtype is not torch_dtype(spec.known_dtype):
        _refuse(name, f"{spec.text()}, and an id for each row", f"{dtype_of_torch(values.dtype).short}{list(values.shape)}")
    height = dims[0]
    assert isinstance(height, int)
    if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= height or not bool((ids[1:] > ids[:-1]).all())):
        _refuse(name, f"ids in rising order, in [0, {height})", "others")
    return Rows.unique(ids, values, height)


def _check_value(name: str, tensor: Tensor, said: str, variable: Variable | None) -> None:
    """Refuse a tensor that is not what the file says of a value, where the program says the same."""
    if variable is not None and variable.spec.text() == said:
        dims, of = variable.spec.known_dims, variable.spec.known_dtype
        fits = len(dims) == tensor.dim() and all(d == s for d, s in zip(dims, tensor.shape, strict=True) if isinstance(d, int))
        if not fits or tensor.dtype is not torch_dtype(of):
            _refuse(name, said, f"{dtype_of_torch(tensor.dtype).short}{list(tensor.shape)}")


def _callbacks(tensors: Mapping[str, Tensor], given: Any, facts: Facts, program: Program) -> list[Kept]:
    """What callbacks know; their tensors are values of the program."""
    out: list[Kept] = []
    for one in _list(_CALLBACKS, given, lambda what, entry: _list(what, entry, _any)):
        if len(one) != 2:
            _refuse(_CALLBACKS, "a kind and numbers for each", one)
        out.append(Kept(_text(_CALLBACKS, one[0]), _object(_CALLBACKS, one[1], _scalar)))
    variables = {v.name: v for v in persistables(program)}
    for key in sorted(k for k in tensors if k.startswith(CALLBACK)):
        at, attribute, name = (*key.removeprefix(CALLBACK).split("/", 2), "", "")[:3]
        if not (at.isascii() and at.isdigit() and len(at) < 10 and int(at) < len(out)) or name not in facts.values:
            raise FormatError(f"the tensor {key[:100]!r} is none of a checkpoint's")
        _check_value(key, tensors[key], facts.values[name], variables.get(name))
        out[int(at)].tensors.setdefault(attribute, {})[name] = tensors[key]
    return out


def sum_tensors(state: State) -> dict[str, Tensor]:
    """What the figures of the epoch are made of, by the names that `contents` reads."""
    return {SUM + name: torch.tensor(value) for name, value in state.sums.items()}


def _sums(tensors: Mapping[str, Tensor]) -> Sums:
    out: Sums = {}
    for key in sorted(k for k in tensors if k.startswith(SUM)):
        tensor = tensors[key]
        if tensor.dtype is not torch.float64 or tensor.dim() not in (1, 2):
            _refuse(key, "float64 of 1 or 2 dims", f"{tensor.dtype} {list(tensor.shape)}")
        out[key.removeprefix(SUM)] = tensor.clone().numpy()
    return out


def _of_type(name: str, tensors: Mapping[str, Tensor], of: Any, size: int | None = None) -> Tensor:
    """A tensor of one dim."""
    found = tensors.get(name)
    if found is None:
        raise FormatError(f"the checkpoint lacks {name}")
    if found.dtype is not of or found.dim() != 1 or (size is not None and len(found) != size):
        wanted = f"{str(of).removeprefix('torch.')} [{'n' if size is None else size}]"
        _refuse(name, wanted, f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}")
    return found


def _random(prefix: str, tensors: Mapping[str, Tensor]) -> RandomState:
    for name, (of, size) in RandomState.layout().items():
        _of_type(prefix + name, tensors, getattr(torch, of), size)
    return from_tensors(prefix, tensors)


# --- facts


def _refuse(what: str, wanted: str, seen: Any) -> NoReturn:
    raise FormatError(f"{what[:100]} must be {wanted}; seen {str(seen)[:100]}")


def _any(what: str, given: Any) -> Any:
    return given


def _text(what: str, given: Any) -> str:
    return given if isinstance(given, str) else _refuse(what, "a text", given)


def _count(what: str, given: Any) -> int:
    return given if type(given) is int and 0 <= given <= MOST else _refuse(what, f"a whole number from 0 to {MOST}", given)


def _number(what: str, given: Any) -> float:
    """A number, NaN and infinities included, which a figure can be."""
    if type(given) is float or (type(given) is int and abs(given) <= MOST):
        return float(given)
    _refuse(what, "a number", given)


def _scalar(what: str, given: Any) -> Scalar:
    if given is None or isinstance(given, (str, bool)):
        return given
    return given if type(given) is int else _number(what, given)


def _numbers(what: str, given: Any) -> list[float]:
    out = _list(what, given, _number)
    return out if len(out) <= MOST_NUMBERS else _refuse(what, f"at most {MOST_NUMBERS} numbers", len(out))


def _list(what: str, given: Any, element: Callable[[str, Any], T]) -> list[T]:
    if not isinstance(given, list):
        _refuse(what, "a list", given)
    return [element(what, one) for one in cast("list[Any]", given)]


def _object(what: str, given: Any, element: Callable[[str, Any], T]) -> dict[str, T]:
    if not isinstance(given, dict):
        _refuse(what, "an object", given)
    return {key: element(f"{what}.{key}", one) for key, one in cast("dict[str, Any]", given).items()}
