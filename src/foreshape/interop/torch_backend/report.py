"""`TorchReport`: a network compiled by ``torch.compile(..., backend="foreshape")``: its graphs, the reasons for their ends, and their memory."""

from __future__ import annotations

from typing import Any, Final

from foreshape.compiler.memory import byte_text
from foreshape.core.pictures.markup import card, cut, preformatted
from foreshape.errors import MemoryPlanError, SchemaError, ShapeError
from foreshape.interop.torch_backend.graph_facts import GraphFacts, records_of
from foreshape.interop.torch_backend.skipped_code import SkippedCode
from foreshape.language.program.call_site import CallSite

_WIDTH: Final = 160
_SHOWN: Final = 6
"""So many values and operators of one graph are named."""


class TorchReport:
    """The graphs of a compiled network. ``print`` it.

    Attributes:
        graphs: one record for each graph and each compilation of it, in the order of their compilation.
        skipped: functions without a graph, left to Python by torch.
    """

    def __init__(self, graphs: list[GraphFacts], skipped: list[SkippedCode]) -> None:
        self.graphs, self.skipped = graphs, skipped

    def __str__(self) -> str:
        breaks = sum(bool(graph.ended) for graph in self.graphs)
        lines = [f"{_count(len(self.graphs), 'graph')}, {_count(breaks, 'break')} in the code"]
        for graph in self.graphs:
            lines += _graph_lines(graph)
        for code in self.skipped:
            lines += [f"no graph of {code.site.function}, which torch leaves to Python{_place(code.site)}", *_reason_lines(code.reason)]
        return "\n".join(cut(line, _WIDTH) for line in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return card(f"TorchReport: {_count(len(self.graphs), 'graph')}", preformatted(str(self)))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _graph_lines(graph: GraphFacts) -> list[str]:
    """Return the lines about one graph."""
    parts = [(name, part) for name, part in (("forward", graph.forward), ("backward", graph.backward)) if part is not None]
    passes = ", ".join(f"{name} {_count(len(part.step.emitted.lowered.calls), 'call')}" for name, part in parts)
    lines = [f"graph {graph.name}: {passes or 'nothing compiled'}"]
    symbols = graph.symbols()
    if symbols:
        lines.append(f"  open sizes: {', '.join(symbols)}")
    try:
        sizes = {name: value for _, part in parts for name, value in part.sizes.items()}
        sizes_text = f" at {', '.join(f'{n} = {v:,}' for n, v in sorted(sizes.items()))}" if sizes else ""
        lines.append(f"  planned: {byte_text(graph.peak())} at the peak beside inputs and parameters{sizes_text}")
    except (MemoryPlanError, ShapeError) as error:
        lines.append(f"  planned: not told: {str(error).partition(chr(10))[0]}")
    recomputed = graph.recomputed
    if recomputed is not None:
        lines.append(f"  eager torch, by the same graph: {byte_text(recomputed.eager_peak)}")
        if recomputed.names:
            hidden = f" and {len(recomputed.names) - _SHOWN} more" if len(recomputed.names) > _SHOWN else ""
            lines.append(f"  computed again in the backward pass: {', '.join(recomputed.names[:_SHOWN])}{hidden}")
    foreign = {name: count for name, count in graph.calls().items() if not name.startswith("aten.")}
    if foreign:
        lines.append("  not torch's own operators, run as they are: " + ", ".join(f"{name} {count}" for name, count in [*foreign.items()][:_SHOWN]))
    lines += [f"  by eager torch: {cut(words, _WIDTH)}" for words in graph.by_eager]
    if graph.ended:
        lines += [f"  ended{'' if graph.site is None else _place(graph.site)}", *_reason_lines(graph.ended)]
    return lines


def _place(site: CallSite) -> str:
    return f" at {site.source_line() or site.function}    {site.short()}"


def _reason_lines(reason: str) -> list[str]:
    return [f"    {line}" for line in reason.splitlines() if line.strip()]


def torch_report(network: Any) -> TorchReport:
    """Return the report of a network compiled by ``torch.compile(..., backend="foreshape")``.

    Args:
        network: a module or a function as `torch.compile` returned it, or a module compiled in place; called at least once.

    Raises:
        SchemaError: it is not compiled, by this backend, or was not called yet.
    """
    records = records_of(network)
    if records is None:
        raise SchemaError(f'a report is of what torch.compile(network, backend="foreshape") returned; seen {type(network).__name__}')
    if not any(records):
        raise SchemaError('there is no graph of it yet: call the network once, and compile it with backend="foreshape"')
    return TorchReport(*records)
