"""An optimizer's settings for some parameters: groups and freezing, by patterns of their names."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import cast

from foreshape.errors import SchemaError
from foreshape.language.program import Program, Variable
from foreshape.optimizer.decay import WeightDecay, as_decay

_SHOWN = 8


class Group:
    """Parameters by the patterns of their names, with settings of their own in an optimizer.

    Args:
        patterns: as in a shell: ``*`` stands for any characters, ``?`` for one, ``[ab]`` for one of these. ``"*.bias"``, ``"encoder.*"``.
        learning_rate_factor: multiplies the optimizer's learning rate, including schedules; 0 updates nothing, but see ``freeze=``.
        weight_decay: in place of the optimizer's: a number, an `L1Decay` or `L2Decay`; 0 is none. `AdamW`, `Lamb`, `LarsMomentum` and `Lion` decay
            in their own way: for these it is the coefficient.

    A parameter in several groups takes each setting from the last group that has it. A layer's ``ParamAttr`` holds
    besides: its factor is multiplied, and its exception from decay stands.

    Raises:
        SchemaError: no pattern, a factor below 0 or not finite.
    """

    __slots__ = ("learning_rate_factor", "patterns", "weight_decay")

    def __init__(self, *patterns: str, learning_rate_factor: float | None = None, weight_decay: float | WeightDecay | None = None) -> None:
        self.patterns = checked_patterns("a Group", patterns)
        if not self.patterns:
            raise SchemaError('a Group needs the patterns of its parameters\' names, such as Group("*.bias", weight_decay=0)')
        if learning_rate_factor is not None and not (math.isfinite(learning_rate_factor) and learning_rate_factor >= 0):
            raise SchemaError.must("learning_rate_factor", "a finite number of at least 0", learning_rate_factor)
        as_decay(weight_decay)  # an invalid coefficient is refused here
        self.learning_rate_factor, self.weight_decay = learning_rate_factor, weight_decay

    def __repr__(self) -> str:
        arguments = [repr(p) for p in self.patterns]
        arguments += [f"{n}={v!r}" for n in ("learning_rate_factor", "weight_decay") if (v := getattr(self, n)) is not None]
        return f"Group({', '.join(arguments)})"

    def has(self, name: str) -> bool:
        """Tell whether a parameter of this name is in the group."""
        return matches(self.patterns, name)


def checked_patterns(subject: str, value: object) -> tuple[str, ...]:
    """Return patterns as a tuple. Raises `SchemaError` if they are none."""
    patterns = cast("tuple[object, ...]", tuple(value) if isinstance(value, (list, tuple)) else (value,))  # pyright: ignore[reportUnknownArgumentType]
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise SchemaError(f'{subject} takes patterns of names, such as "encoder.*"; seen {pattern!r}')
    return tuple(p for p in patterns if isinstance(p, str))


def matches(patterns: Sequence[str], name: str) -> bool:
    """Tell whether a name matches one of the patterns."""
    return any(fnmatchcase(name, p) for p in patterns)


def check_all_match(program: Program, patterns: Sequence[str], place: str) -> None:
    """Refuse a pattern without a parameter in a program.

    Args:
        place: the argument with the patterns, for the words.

    Raises:
        SchemaError: the pattern, the names near it, and the parameters.
    """
    names = [p.name for p in program.parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(n, pattern) for n in names):
            near = difflib.get_close_matches(pattern, _candidates(names, "*" in pattern), n=3, cutoff=0.5)
            hint = f"; near it are {', '.join(map(repr, near))}" if near else ""
            remark = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise SchemaError(f"{place}: no parameter is called {pattern!r}{hint}; the parameters are: {', '.join(names[:_SHOWN]) or 'none'}{remark}")


def _candidates(names: Sequence[str], starred: bool) -> list[str]:
    """Return candidates for a mistaken pattern: the names, and for patterns with a star their first parts and their last ones."""
    out = dict.fromkeys(names)
    if starred:
        for name in names:
            parts = name.split(".")
            for index in range(1, len(parts)):
                out[".".join(parts[:index]) + ".*"] = None
                out["*." + ".".join(parts[index:])] = None
    return list(out)


def frozen_names(program: Program, patterns: Sequence[str]) -> list[str]:
    """Return the parameters frozen by patterns. Raise `SchemaError`: a pattern without a parameter, or no parameter left to train."""
    if not patterns:
        return []
    check_all_match(program, patterns, "freeze=")
    frozen = [p.name for p in program.parameters() if matches(patterns, p.name)]
    trained: list[Variable] = [p for p in program.parameters() if p.trainable and not p.stop_gradient]
    if trained and all(p.name in frozen for p in trained):
        raise SchemaError(f"freeze={list(patterns)!r} freezes all {len(trained)} trainable parameters: nothing is to be trained")
    return frozen
