"""A program as tables, and as facts for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from foreshape.apps.cli.output import console, print_plain, printing
from foreshape.apps.cli.tables import TerminalTable
from foreshape.core.dims import Size
from foreshape.core.spec import TENSOR_KINDS
from foreshape.errors import DescriptionError
from foreshape.language.operator.registry import shown_type
from foreshape.language.program import Op, Program, Variable
from foreshape.language.program.inputs import inputs_of, kept_variables, size_of
from foreshape.language.program.unknown import unknown_types
from foreshape.language.text.literal import escape

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def total(variables: Iterable[Variable]) -> Size:
    """Return the bytes of all variables of known size together."""
    return _sum([size for size in map(size_of, variables) if size is not None])


def total_elements(variables: Iterable[Variable]) -> Size:
    """Return the number of elements in all variables of known dims together."""
    return _sum([spec.elements for spec in (v.spec for v in variables) if spec.dims is not None])


def _sum(sizes: Sequence[Size]) -> Size:
    out: Size = sum(s for s in sizes if isinstance(s, int))
    for size in sizes:
        if not isinstance(size, int):
            out = out + size
    return out


def bytes_text(size: Size | None) -> str:
    """Return ``31,400``, or a formula such as ``3136*batch``; ``?`` if unknown."""
    return "?" if size is None else f"{size:,}" if isinstance(size, int) else str(size)


def human_bytes(size: Size) -> str:
    """Return ``30.7 KiB (31,400 bytes)``; a formula as it is."""
    if not isinstance(size, int):
        return f"{size} bytes"
    if size < 1024:
        return f"{size} bytes"
    value, unit = size / 1024, 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]} ({size:,} bytes)"


def count_words(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def operator_counts(ops: Sequence[Op]) -> dict[str, int]:
    """Return operator type -> the number of its ops."""
    return dict(sorted(Counter(o.type for o in ops).items()))


def _results(op: Op) -> Iterator[tuple[str, Variable | None]]:
    for name in op.output_names():
        yield name, op.block.find(name)


class _Sums:
    """The sums at the end of the table."""

    def __init__(self, program: Program) -> None:
        variables = list(program.all_variables())
        self.ops = sum(len(b.ops) for b in program.blocks)
        self.parameters, self.state = kept_variables(program)
        self.inputs = [v for b in program.blocks[:1] for v in inputs_of(b)]
        self.elements = total_elements(self.parameters)
        self._variables = variables

    @cached_property
    def results(self) -> list[Variable]:
        """Return the results of ops."""
        among = {id(v) for v in (*self.parameters, *self.state, *self.inputs)}
        return [v for v in self._variables if v.op is not None and id(v) not in among and v.kind in TENSOR_KINDS]

    @property
    def unsized(self) -> int:
        """Return the number of results of unknown size."""
        return sum(size_of(v) is None for v in self.results)


# --- JSON


def variable_facts(variable: Variable) -> dict[str, Any]:
    """Return one variable for JSON: symbolic dims are texts."""
    spec, size = variable.spec, size_of(variable)
    return {
        "name": variable.name,
        "kind": spec.kind.name,
        "dtype": None if spec.dtype is None else spec.dtype.name,
        "shape": None if spec.dims is None else [d if isinstance(d, int) else str(d) for d in spec.dims],
        "lod": None if spec.lod is None else [c if isinstance(c, int) else str(c) for c in spec.lod.counts],
        "bytes": size if size is None or isinstance(size, int) else str(size),
        "certain": variable.known,
    }


def guard_facts(program: Program) -> list[dict[str, str | None]]:
    return [
        {
            "operator": g.op_type,
            "requirement": g.condition.requirement,
            "condition": str(g.condition),
            "call_site": None if g.call_site is None else g.call_site.short(),
        }
        for g in program.guard_list()
    ]


def feed_facts(program: Program) -> dict[str, Any]:
    """Return the accepted sizes of the inputs, for JSON."""
    feeds = program.feeds
    return {
        "inputs": [{"name": n, "dims": f.axes, "conditions": f.conditions, "words": f.words, "smallest": f.smallest} for n, f in feeds.items()],
        "together": feeds.joint,
        "known_in_the_run": feeds.later,
    }


def _plain_size(size: Size) -> int | str:
    return size if isinstance(size, int) else str(size)


def program_facts(program: Program, unknown: Sequence[Op], errors: Sequence[DescriptionError]) -> dict[str, Any]:
    """Return the whole program for JSON."""
    sums = _Sums(program)
    blocks: list[dict[str, Any]] = []
    for block in program.blocks:
        ops = [
            {
                "type": op.type,
                "inputs": dict(op.inputs),
                "outputs": dict(op.outputs),
                "role": op.role,
                "call_site": None if op.call_site is None else op.call_site.short(),
                "results": [{"name": n} if v is None else variable_facts(v) for n, v in _results(op)],
            }
            for op in block.ops
        ]
        blocks.append({"index": block.idx, "parent": block.parent_idx, "inputs": [variable_facts(v) for v in inputs_of(block)], "ops": ops})
    return {
        "blocks": blocks,
        "parameters": [variable_facts(v) for v in sums.parameters],
        "totals": {
            "ops": sums.ops,
            "parameters": len(sums.parameters),
            "parameter_elements": _plain_size(sums.elements),
            "parameter_bytes": _plain_size(total(sums.parameters)),
            "state_bytes": _plain_size(total(sums.state)),
            "input_bytes": _plain_size(total(sums.inputs)),
            "result_bytes": _plain_size(total(sums.results)),
            "results_of_unknown_size": sums.unsized,
        },
        "guards": guard_facts(program),
        "unknown_operators": operator_counts(unknown),
        "errors": [{"error": type(e).__name__, "message": str(e)} for e in errors],
    }


# --- tables


def new_table(title: str, *columns: str) -> TerminalTable:
    from foreshape.apps.cli.tables import TerminalTable

    return TerminalTable(escape(title), *columns)


def new_row(table: TerminalTable, *cells: str) -> None:
    table.add(*[escape(c).replace("\n", " ") for c in cells])


def _cells(name: str, variable: Variable | None) -> tuple[str, str, str]:
    if variable is None:
        return name, "not described", "?"
    return name, variable.spec.text() + ("" if variable.known else " ?"), bytes_text(size_of(variable))


def print_tables(program: Program, unknown: Sequence[Op], errors: Sequence[DescriptionError]) -> None:
    """Print inputs, parameters, ops with their results, and totals."""
    out = console()
    sums = _Sums(program)
    with printing():
        for title, variables in (("inputs", sums.inputs), ("parameters", sums.parameters), ("other state", sums.state)):
            if variables:
                table = new_table(title, "name", "type and shape", "bytes")
                for variable in variables:
                    new_row(table, *_cells(variable.name, variable))
                out.print(table)
        for block in program.blocks:
            table = new_table("ops" if block.idx == 0 else f"ops of block {block.idx}, inside of block {block.parent_idx}", "#", "op", "result",
                           "type and shape", "bytes", "line")  # fmt: skip
            for index, op in enumerate(block.ops):
                line = op.call_site.short() if op.call_site is not None else ""
                rows = [_cells(n, v) for n, v in _results(op)] or [("", "", "")]
                for position, cells in enumerate(rows):
                    new_row(table, *((str(index), shown_type(op.type)) if position == 0 else ("", "")), *cells, line if position == 0 else "")
            out.print(table)
        for line in _total_lines(program, sums):
            print_plain(line)
        for kind in unknown_types(unknown):
            print_plain(f"{kind.words}; results that depend on it are marked ?")
        if errors:
            print_plain(f"{count_words(len(errors), 'error')}: foreshape check lists them")


def kept_of(program: Program) -> tuple[list[Variable], Size]:
    """Return the parameters of a program, and the count of their numbers."""
    parameters = kept_variables(program)[0]
    return parameters, total_elements(parameters)


def print_feeds(program: Program) -> None:
    """Print the accepted sizes, a line for each input and each condition between inputs; and the smallest sizes."""
    feeds = program.feeds
    for line in feeds.lines():
        print_plain(line)
    smallest = feeds.smallest
    if smallest is not None and len(program.guard_list()):
        print_plain("smallest sizes: " + "; ".join(f"{name} {sizes}" for name, sizes in smallest.items()))
    if feeds.later:
        print_plain(f"{count_words(len(feeds.later), 'condition')} on sizes that are known only in the run, which checks them")


def _total_lines(program: Program, sums: _Sums) -> Iterator[str]:
    yield f"{count_words(sums.ops, 'op')} in {count_words(len(program.blocks), 'block')}"
    elements = f"{sums.elements:,}" if isinstance(sums.elements, int) else str(sums.elements)
    yield f"parameters: {len(sums.parameters):,} with {elements} numbers, {human_bytes(total(sums.parameters))}"
    if sums.state:
        yield f"other state: {human_bytes(total(sums.state))}"
    yield f"inputs: {human_bytes(total(sums.inputs))}"
    remark = f", and {count_words(sums.unsized, 'result')} of unknown size" if sums.unsized else ""
    yield f"results, all together: {human_bytes(total(sums.results))}{remark}"
    guards = len(program.guard_list())
    if guards:
        yield f"{count_words(guards, 'open guard')}, checked when values are fed: foreshape check lists the sizes that satisfy them"
