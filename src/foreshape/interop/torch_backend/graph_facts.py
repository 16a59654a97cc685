"""`GraphFacts`: the facts of one graph of ``torch.compile`` for its report; and the records of each call of ``torch.compile``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from foreshape.errors import MemoryPlanError
from foreshape.interop.torch.node_sites import of_torch
from foreshape.interop.torch.untyped_torch import torch
from foreshape.interop.torch_backend.graph_step import CompiledGraph
from foreshape.interop.torch_backend.recomputed import Recomputed
from foreshape.interop.torch_backend.skipped_code import SkippedCode, forget_skipped, skipped_among
from foreshape.language.program import Program
from foreshape.language.program.call_site import CallSite


@dataclass(slots=True, weakref_slot=True, eq=False)
class GraphFacts:
    """One graph.

    Attributes:
        name: torch's number of the graph, as "0/1": of the code, and of its compilations.
        ended: why torch ended the graph where it did; empty at the end of the code.
        site: the line there.
        forward, backward: the compiled passes; None before they are needed, and where they run by eager.
        recomputed: the values computed again; None of a graph without gradients.
        by_eager: why a pass of it runs by eager torch.
    """

    name: str
    ended: str = ""
    site: CallSite | None = None
    forward: CompiledGraph | None = None
    backward: CompiledGraph | None = None
    recomputed: Recomputed | None = None
    by_eager: list[str] = field(default_factory=list[str])

    def programs(self) -> list[Program]:
        """Return the programs of its passes."""
        return [part.graph.program for part in (self.forward, self.backward) if part is not None]

    def calls(self) -> dict[str, int]:
        """Return torch's operators -> the number of their calls."""
        out: dict[str, int] = {}
        for part in (self.forward, self.backward):
            for name, count in part.graph.calls.items() if part is not None else ():
                out[name] = out.get(name, 0) + count
        return out

    def symbols(self) -> list[str]:
        """Return the names of its open sizes."""
        return sorted({name for part in (self.forward, self.backward) if part is not None for name in part.step.plan.symbols})

    def peak(self, **sizes: int) -> int:
        """Return the planned bytes at the peak of a step, beside inputs and parameters.

        Args:
            sizes: by name; by default as in the first call.

        Raises:
            MemoryPlanError: the graph runs by eager torch.
        """
        if self.forward is None or self.by_eager:
            raise MemoryPlanError(f"the graph {self.name} runs by eager torch: nothing is planned")
        out = self.forward.own_bytes(sizes)
        if self.backward is not None:
            out = max(out, self.backward.own_bytes(sizes) + self.forward.handed_out(sizes))
        return out


_Records = WeakKeyDictionary[Any, list["ref[GraphFacts]"]]
"""Records live as long as torch keeps their graphs."""
_BY_CONTEXT: Final[_Records] = WeakKeyDictionary()
"""A call of ``torch.compile`` -> the records of its graphs."""
_BY_CODE: Final[_Records] = WeakKeyDictionary()
"""The code of a function or of a module's ``forward`` -> the records of its graphs: torch takes the ones of a module for another of its class."""


def new_record(graph: Any, name: str) -> GraphFacts:
    """Return the record of a graph just traced by Dynamo, listed under the call of ``torch.compile`` on the stack."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    record = GraphFacts(name)
    if reason is not None and reason.graph_break:
        record.ended = str(reason.reason).strip()
        frames = [frame for frame in reason.user_stack if not of_torch(frame.filename)]
        record.site = CallSite(frames[-1].filename, frames[-1].lineno, frames[-1].name) if frames else None
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and os.path.basename(frame.f_code.co_filename) == "eval_frame.py":
            _BY_CONTEXT.setdefault(frame.f_locals["self"], []).append(ref(record))
            code = _code_of(frame.f_locals["fn"])
            if code is not None:
                _BY_CODE.setdefault(code, []).append(ref(record))
        frame = frame.f_back
    return record


def forget_record(record: GraphFacts) -> None:
    """Take a record out of the lists."""
    for records in (*_BY_CONTEXT.values(), *_BY_CODE.values()):
        records[:] = [entry for entry in records if entry() not in (record, None)]


def forget_all() -> None:
    """Empty the lists, as torch forgets all graphs."""
    _BY_CONTEXT.clear()
    _BY_CODE.clear()
    forget_skipped()


def records_of(compiled: Any) -> tuple[list[GraphFacts], list[SkippedCode]] | None:
    """Return the records of a result of ``torch.compile``, or of a module compiled in place, and the functions left to Python; None where it is neither."""
    function = getattr(compiled, "_compiled_call_impl", None) or getattr(compiled, "forward", compiled)
    names: Sequence[str] = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells: Sequence[Any] = getattr(function, "__closure__", None) or ()
    closure = {name: cell.cell_contents for name, cell in zip(names, cells, strict=False) if name in ("self", "fn")}
    if len(closure) != 2 or not hasattr(function, "_torchdynamo_orig_callable"):
        return None
    code = _code_of(closure["fn"])
    listed = _BY_CONTEXT.get(closure["self"]) or (_BY_CODE.get(code) if code is not None else None) or []
    codes = [code, *(_code_of(part.forward) for part in (compiled.modules() if isinstance(compiled, torch.nn.Module) else ()))]
    return [record for entry in listed if (record := entry()) is not None], skipped_among([item for item in codes if item is not None])


def _code_of(function: Any) -> Any:
    """Return the code of a function, or of the ``forward`` of a module whose call it is."""
    function = inspect.unwrap(function)
    module: object = getattr(function, "__self__", None)
    return getattr(function if module is None else getattr(module.__class__, "forward", function), "__code__", None)
