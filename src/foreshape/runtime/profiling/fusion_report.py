"""The reasons why ops of a step have kernels of their own: the rewrites with an attempt at each, and its end."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from foreshape.compiler.lowering import lower
from foreshape.compiler.lowering.fusion import apply_all, rewrites
from foreshape.compiler.lowering.fusion.attempts import Attempts
from foreshape.compiler.lowering.kernel_calls import OpCall
from foreshape.core.hints import did_you_mean
from foreshape.errors import SchemaError
from foreshape.language.operator.registry import layer_name
from foreshape.language.program import Op, Program, Variable
from foreshape.language.program.op import is_empty_name

_WIDTH = 160


@dataclass(frozen=True, slots=True)
class FusionAttempt:
    """The attempt of a rewrite to fuse an op.

    Attributes:
        rewrite: its name, as on the page of fusions.
        applied: another call is in the place of the op's.
        reason: the condition not met, if it is not applied.
    """

    rewrite: str
    applied: bool
    reason: str


@dataclass(frozen=True, slots=True)
class OpFusion:
    """The rewrites with an attempt at one op.

    Attributes:
        number: of the op in the global block.
        layer, result, line: its layer function, its first result, and the user's line.
        alone: its operator's own kernel computes it.
        attempts: in the order of the rewrites.
    """

    number: int
    layer: str
    result: str
    line: str
    alone: bool
    attempts: tuple[FusionAttempt, ...]

    def text(self, width: int = _WIDTH) -> str:
        """Return the op and a line for each rewrite, of at most so many characters."""
        line = f" ({self.line})" if self.line else ""
        lines = [f"{self.number} {self.layer} -> {self.result}{line}: {'a call of its own' if self.alone else 'fused'}"]
        if not self.attempts:
            lines.append("  no rewrite looks at it")
        for attempt in self.attempts:
            head = f"  {attempt.rewrite}: "
            lines += wrap("it takes it" if attempt.applied else attempt.reason, width, initial_indent=head, subsequent_indent="      ")
        return "\n".join(lines)


def fusion_report(program: Program, fetch: Sequence[Variable | str], op: int | str | None = None, *, frozen: bool = False) -> list[OpFusion]:
    """Return for ops of a step the attempts of rewrites, each with the reason if it did not apply.

    Nothing runs. Ops in the blocks of loops and branches are fused in steps of their own, and not looked at.

    Args:
        program: left as it is.
        fetch: the results of the step.
        op: the number of an op of the global block, or the name of one of its results; by default all ops with a call of their own.
        frozen: the step's parameters do not change, as for `Predictor`.

    Raises:
        SchemaError: no such op, or the step does not compute it.
    """
    attempts = Attempts()
    step = lower(program.global_block, [v if isinstance(v, str) else v.name for v in fetch], frozen=frozen)
    computed = {i.op.whole for i in step.calls}
    apply_all(step, attempts)
    separate = {i.op.whole for i in step.calls if isinstance(i, OpCall) and i.region is None}
    numbered = {member: number for number, member in enumerate(program.global_block.ops)}
    chosen = None if op is None else _chosen(program, op)
    if chosen is not None and chosen not in computed:
        raise SchemaError(f"the step does not compute {_result(chosen)}: it computes what its results need")
    ops = [member for member in numbered if member in computed and (member is chosen if chosen is not None else member in separate)]
    return [_fusion(member, numbered[member], member in separate, attempts) for member in ops]


def _chosen(program: Program, op: int | str) -> Op:
    ops = program.global_block.ops
    number = int(op) if isinstance(op, int) or op.isdecimal() else None
    if number is not None:
        if number >= len(ops):
            raise SchemaError(f"there is no op {number}; the program has {len(ops)}, numbered from 0")
        return ops[number]
    makers = {n: member for member in ops for n in member.output_names()}
    if op not in makers:
        raise SchemaError(f"no op makes {op!r}{did_you_mean(op, makers, str)}")
    return makers[str(op)]


def _fusion(op: Op, number: int, alone: bool, attempts: Attempts) -> OpFusion:
    notes: dict[str, list[str]] = {}
    applied: set[str] = set()
    for member, reasons in attempts.notes.items():
        if member.whole is op:
            for name, words in reasons.items():
                notes.setdefault(name, []).extend(words)
    for member, names in attempts.applied.items():
        if member.whole is op:
            applied.update(names)
    tried = [r.name for r in rewrites() if r.name in notes or r.name in applied]
    line = op.call_site.short() if op.call_site is not None else ""
    entries = (FusionAttempt(name, name in applied, "" if name in applied else "; ".join(notes[name]) or _exceptions(name)) for name in tried)
    return OpFusion(number, layer_name(op.type), _result(op), line, alone, tuple(entries))


def _result(op: Op) -> str:
    return next((n for n in op.output_names() if not is_empty_name(n)), "nothing")


def _exceptions(name: str) -> str:
    """Return the pattern and the exceptions of a rewrite, for an op without a noted reason."""
    rewrite = next(r for r in rewrites() if r.name == name)
    words = " ".join(inspect.cleandoc(sys.modules[rewrite.apply.__module__].__doc__ or "").split()).replace("``", "")
    pattern, _, exceptions = words.partition("Before: ")[2].partition("Unless: ")
    return f"its pattern is not there: {pattern.partition(' After: ')[0]}" + (f"; it leaves it if {exceptions}" if exceptions else "")
