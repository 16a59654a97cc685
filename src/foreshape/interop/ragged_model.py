"""Models of padded texts on ragged rows: the step from one to the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from foreshape.core.hints import did_you_mean
from foreshape.errors import SchemaError
from foreshape.interop.model import InferenceModel
from foreshape.language.program import Op, Program
from foreshape.runtime.engine import Scope

if TYPE_CHECKING:
    from foreshape.transforms.unpad import UnpaddedProgram

Ragged = str | Mapping[str, Any]
"""The name of the mask of padded texts, or the arguments of `unpad`."""
Side = Literal["right", "left"]
_RAGGED: Final[Mapping[str, Any]] = {"mask": "attention_mask", "side": "right", "masked": 0, "pad_id": None, "row_scales": False}
"""The arguments of `unpad`, and their defaults."""


def on_ragged_rows(model: InferenceModel, ragged: Ragged) -> InferenceModel:
    """Return a model of padded texts on ragged rows, run by the same executor.

    Args:
        model: left as it is.
        ragged: the name of its mask, or the arguments of `unpad`.

    Raises:
        UnpadError, SchemaError: as `unpad`; an unknown argument.
    """
    out = unpadded_model(model, **unpad_settings(ragged))
    out.executor = model.executor
    return out


def unpad_settings(ragged: Ragged) -> dict[str, Any]:
    """Return the arguments of `unpad`, with its defaults. Raises `SchemaError`: an argument unknown to it."""
    settings: dict[str, Any] = {"mask": ragged} if isinstance(ragged, str) else dict(ragged)
    for name in settings.keys() - _RAGGED.keys():
        raise SchemaError(f"ragged: {name!r} is not one of {', '.join(_RAGGED)}{did_you_mean(name, list(_RAGGED))}")
    return {**_RAGGED, **settings}


def unpadded_model(model: InferenceModel, mask: str | None, side: Side, masked: Literal[0, 1], pad_id: int | None, row_scales: bool) -> InferenceModel:
    """Return a model on ragged rows with the values of the padded one. Raises `UnpadError` and `SchemaError` as `unpad`."""
    out = unpadded_program(model.program, model.feeds, [v.name for v in model.fetches], mask, side, masked, pad_id, row_scales, model.scope)
    return InferenceModel.of(out.program, out.feeds, out.fetches, model.scope)


def unpadded_program(
    program: Program,
    feeds: Sequence[str],
    fetches: Sequence[str],
    mask: str | None,
    side: Side,
    masked: Literal[0, 1],
    pad_id: int | None,
    row_scales: bool,
    scope: Scope,
) -> UnpaddedProgram:
    """Return a program on ragged rows, proved by the values in a scope."""
    from foreshape.transforms.unpad import unpad_program  # not awaited by networks that need no proof

    def numbers(name: str) -> Any:
        return scope.get(name) if name in scope else None

    return unpad_program(program, feeds, fetches, mask, numbers, side=side, masked=masked, pad_id=pad_id, row_scales=row_scales, source=node_words)


def node_words(op: Op) -> str:
    """Return the node of the file behind an op, in words."""
    origin: Any = op.origin
    node = getattr(origin[0], "node", None) if origin.__class__ is tuple and origin else None
    return f"{node.operator} {node.name}".strip() if node is not None else ""
