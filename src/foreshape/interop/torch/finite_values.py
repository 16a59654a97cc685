"""Questions for non-finite values, and for sizes of zero decided by values, in the code of an exported network: answered no, with a warning.

Networks ask so in training, to mend a step of half precision, and where they choose boxes; an export has no values.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Final

from foreshape.interop.torch.replaced import StandIns, replaced
from foreshape.interop.torch.untyped_torch import torch

_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_HERE: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ASKED: Final = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}
_KEPT: Final = frozenset(("all", "any"))
_TURNED: Final = frozenset(("logical_not", "__invert__", "bitwise_not"))
_MARK: Final = "foreshape_answer"

Line = tuple[str, int]


def _asking() -> Line:
    """Return the innermost line outside of torch."""
    frame: Any = inspect.currentframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_TORCH, _HERE)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class _FiniteValues(StandIns):
    """Answers of torch's functions for finite values, beside stand-ins: one mode for both, as each takes time at every call.

    Attributes:
        lines: the ones with the questions.
    """

    def __init__(self, functions: Mapping[Any, Any], bodies: Iterable[Any]) -> None:
        super().__init__(functions, bodies)
        self.lines: dict[Line, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        known = getattr(args[0], _MARK, None) if args else None
        if known is not None and name in ("__bool__", "is_nonzero"):
            self.lines[_asking()] = None
            return known
        out = super().__torch_function__(func, types, args, kwargs)
        answer = _ASKED.get(name)
        if answer is None and known is not None:
            answer = known if name in _KEPT else not known if name in _TURNED else None
        if answer is not None and isinstance(out, torch.Tensor):
            setattr(out, _MARK, answer)
        return out


@contextmanager
def finite_values(functions: Mapping[Any, Any], bodies: Iterable[Any]) -> Generator[dict[Line, None]]:
    """Call all values finite within the block, with such `StandIns`; yields the lines with the questions."""
    mode = _FiniteValues(functions, bodies)
    with mode:
        yield mode.lines


@contextmanager
def filled_sizes() -> Generator[dict[Line, None]]:
    """Say within the block of sizes decided by values that they are not zero; yields the lines with the questions."""
    shapes: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    of, name, lines = shapes.ShapeEnv, "evaluate_sym_node", dict[Line, None]()
    before = getattr(of, name, None)
    if before is None:
        yield lines
        return
    shapes.uninteresting_files().add(__file__)  # else a guard of torch's own code would be one of this file's

    def evaluated(env: Any, asked: Any, *rest: Any, **named: Any) -> Any:
        try:
            return before(env, asked, *rest, **named)
        except shapes.GuardOnDataDependentSymNode:
            relation = asked.expr
            if type(relation).__name__ != "Equality" or not any(side.is_zero for side in relation.args) or any([*rest, *named.values()]):
                raise
            lines[_asking()] = None
            return before(env, asked, fallback_value=False)

    with replaced(of, **{name: evaluated}):
        yield lines
