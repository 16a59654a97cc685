"""`foreshape check`: the mistakes of a network, its accepted sizes, and its contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshape.apps.cli.options import with_sizes
from foreshape.apps.cli.output import console, error_text, print_json, print_plain, printing
from foreshape.apps.cli.ragged_networks import RaggedFacts
from foreshape.apps.cli.show import count_words, feed_facts, guard_facts, human_bytes, kept_of, new_row, new_table, operator_counts, print_feeds, total
from foreshape.core.gc_pause import collector_waits
from foreshape.errors import DescriptionError
from foreshape.language.infer.example_flow import ExampleFlow
from foreshape.language.operator.fields import NOT_WRITTEN
from foreshape.language.operator.registry import find, refusal, shown_type
from foreshape.language.program import Op, Program
from foreshape.language.program.unknown import unknown_types
from foreshape.language.text.literal import name_text
from foreshape.language.views.review import Difference, Early, dead_ops, differences, read_before_written
from foreshape.transforms.backward.scattered import scattered_reshapes, scattered_words

_MOST = 20
"""So many lines of one sort are printed; JSON has all."""


class _Findings:
    """The findings in a program, as in the file."""

    def __init__(self, program: Program) -> None:
        self.counts = Counter(op.type for op in program.all_ops())
        self.differences: list[Difference] = differences(program)
        self.early: list[Early] = []
        self.dead: list[Op] = []
        self.scattered: list[Op] = []
        self.apart: bool | None = None
        self.mixture = ""
        self.uncertain = sum(not v.known for v in program.all_variables())
        self._refused = {op.type for op in program.all_ops() if op.operator is None and op.attributes.error is not None}

    def support(self, type: str) -> str:
        """Return ``yes``, ``yes, but its gradient``, or the reason why not."""
        return "no: refused, or an operand is" if type in self._refused else support(type)

    def can_run(self, unknown: Sequence[Op], errors: Sequence[DescriptionError]) -> bool:
        """Tell whether the whole program can run: dead ops, and shapes unlike the file's, do no harm."""
        return not (unknown or errors or self.early)

    def look_at_order(self, program: Program) -> None:
        """Look for reads before writes and for dead ops in a program without errors: the blocks of its ops exist."""
        self.early, self.dead, self.scattered = read_before_written(program), dead_ops(program), scattered_reshapes(program)
        fetched = [n for op in program.global_block.ops if op.is_fetch for n in op.input_names()]
        if fetched:
            mixture = ExampleFlow(program, program.feeds).mixture(fetched)
            self.apart = mixture is None or (False if mixture.proven else None)
            self.mixture = "" if mixture is None else str(mixture)


@collector_waits
def print_check(program: Program, shapes: Mapping[str, Sequence[Any]], json: bool, guards: bool, ragged: Callable[[], RaggedFacts] | None = None) -> bool:
    """Print the findings in a program, with other shapes of its inputs if given, and the result of ``ragged`` for one without errors. Return True if
    the whole program can run, and on ragged rows too where that is asked."""
    unknown, errors = program.diagnose()
    findings = _Findings(program)
    if not errors:
        try:
            findings.look_at_order(program)
            if shapes:
                program = with_sizes(program, shapes)
                unknown, errors = program.diagnose()
        except DescriptionError as error:
            errors = [error]
    right = findings.can_run(unknown, errors)
    rows = None
    if ragged is not None:
        rows = ragged() if right else RaggedFacts(None, "the padded network cannot run")
        right = right and rows.model is not None
    if json:
        facts = _facts(program, findings, unknown, errors)
        print_json(facts if rows is None else {**facts, "ok": right, "ragged": rows.json()})
    else:
        with printing():
            _print(program, findings, unknown, errors, guards)
            if rows is not None:
                rows.print()
    return right


def _facts(program: Program, findings: _Findings, unknown: Sequence[Op], errors: Sequence[DescriptionError]) -> dict[str, Any]:
    parameters, elements = kept_of(program)
    size = total(parameters)
    return {
        "ok": findings.can_run(unknown, errors),
        "errors": [{"error": type(e).__name__, "message": str(e)} for e in errors],
        "guards": guard_facts(program),
        "unknown_operators": operator_counts(unknown),
        "operators": [{"type": type, "count": count, "support": findings.support(type)} for type, count in findings.counts.most_common()],
        "unknown": [{"type": u.type, "count": u.count, "first": u.place, "reason": u.reason} for u in unknown_types(unknown)],
        "uncertain_variables": findings.uncertain,
        "parameters": {
            "count": len(parameters),
            "elements": elements if isinstance(elements, int) else str(elements),
            "bytes": size if isinstance(size, int) else str(size),
        },
        "differences": [{"name": d.variable.name, "inferred": d.variable.spec.text(), "stored": d.stored} for d in findings.differences],
        "read_before_written": [
            {"name": e.name, "reader": op_place(e.reader), "writer": None if e.writer is None else op_place(e.writer)} for e in findings.early
        ],
        "dead_ops": [op_place(op) for op in findings.dead],
        "scattered_reshapes": [op_place(op) for op in findings.scattered],
        "examples": {"apart": findings.apart, "mixed_by": findings.mixture},
        **({} if errors else feed_facts(program)),
    }


def support(type: str) -> str:
    """Return ``yes``, ``yes, but its gradient``, or the reason why not."""
    cls = find(type)
    if cls is None:
        why = refusal(type)
        return "not known" if why is None else f"no: {why}"
    return "yes, but its gradient" if cls.gradient is NOT_WRITTEN and cls.forward_class is None else "yes"


def op_place(op: Op) -> str:
    """Return ``relu, op 3 of block 0 (net.py:12)``."""
    index = next((index for index, sibling in enumerate(op.block.ops) if sibling is op), -1)
    return f"{shown_type(op.type)}, op {index} of block {op.block.idx}" + (f" ({op.call_site.short()})" if op.call_site is not None else "")


def _print(program: Program, findings: _Findings, unknown: Sequence[Op], errors: Sequence[DescriptionError], guards: bool) -> None:
    for error in errors:
        print_plain(error_text(error))
    if not errors:
        print_feeds(program)
    listed = program.guard_list()
    for guard in listed if guards else ():
        print_plain(f"open until values are fed: {guard}")
    table = new_table("operators", "op", "count", "support")
    for type, count in sorted(findings.counts.items(), key=lambda entry: (-entry[1], entry[0])):
        new_row(table, shown_type(type), f"{count:,}", findings.support(type))
    if findings.counts:
        console().print(table)
    parameters, elements = kept_of(program)
    size = f"{elements:,}" if isinstance(elements, int) else str(elements)
    print_plain(f"parameters: {len(parameters):,} with {size} numbers, {human_bytes(total(parameters))}")
    _some([f"differs from the file: {name_text(d.variable.name)} is {d.variable.spec.text()}; the file says {d.stored}" for d in findings.differences])
    _some([_early_words(e) for e in findings.early])
    _some([f"dead, since no fetched result depends on it: {op_place(op)}" for op in findings.dead])
    _some([f"rows of several examples: {scattered_words(op)}" for op in findings.scattered])
    if findings.mixture:
        print_plain(f"the examples of a batch {'change' if findings.apart is False else 'may change'} one another's results: {findings.mixture}")
    kinds = unknown_types(unknown)
    for entry in kinds:
        print_plain(entry.words)
    if kinds:
        print_plain(f"of unknown shape, since they depend on these operators: {count_words(findings.uncertain, 'variable')}")
    early = f", {count_words(len(findings.early), 'early read')}" if findings.early else ""
    print_plain(f"{count_words(len(errors), 'error')}, {count_words(len(listed), 'open guard')}, {count_words(len(kinds), 'unknown operator')}{early}")


def _early_words(early: Early) -> str:
    writing = "nothing writes it" if early.writer is None else f"it is written later, by {op_place(early.writer)}"
    return f"read before it is written: {name_text(early.name)}, by {op_place(early.reader)}; {writing}"


def _some(lines: Sequence[str]) -> None:
    """Print the first lines, and the number of the others."""
    for line in lines[:_MOST]:
        print_plain(line)
    if len(lines) > _MOST:
        print_plain(f"{lines[0].partition(':')[0]}: {len(lines) - _MOST:,} more (--json lists them)")
