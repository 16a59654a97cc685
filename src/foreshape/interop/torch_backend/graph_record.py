"""`GraphRecord`: what is known of one graph of ``torch.compile``, for its report; and the records by the call of ``torch.compile`` that made them."""

from __future__ import annotations

import inspect
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from foreshape.errors import MemoryPlanError
from foreshape.interop.torch.node_sites import of_torch
from foreshape.interop.torch_backend.graph_step import CompiledGraph
from foreshape.interop.torch_backend.recomputed import Recomputed
from foreshape.language.program import Program
from foreshape.language.program.call_site import CallSite


@dataclass(slots=True, weakref_slot=True, eq=False)
class GraphRecord:
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
        """Return torch's operators that run as torch's own calls -> their number."""
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


_Records = WeakKeyDictionary[Any, list["ref[GraphRecord]"]]
"""Records live as long as torch keeps their graphs."""
_BY_CONTEXT: Final[_Records] = WeakKeyDictionary()
"""A call of ``torch.compile`` -> the records of its graphs."""
_BY_CODE: Final[_Records] = WeakKeyDictionary()
"""The code of a function or of a module's ``forward`` -> the records of its graphs: torch takes those of one module for another of its class."""


def new_record(graph: Any, name: str) -> GraphRecord:
    """Return the record of a graph that Dynamo has just traced, listed under the call of ``torch.compile`` on the stack."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    made = GraphRecord(name)
    if reason is not None and reason.graph_break:
        made.ended = str(reason.reason).strip()
        frames = [frame for frame in reason.user_stack if not of_torch(frame.filename)]
        made.site = CallSite(frames[-1].filename, frames[-1].lineno, frames[-1].name) if frames else None
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and os.path.basename(frame.f_code.co_filename) == "eval_frame.py":
            _BY_CONTEXT.setdefault(frame.f_locals["self"], []).append(ref(made))
            code = _code_of(frame.f_locals["fn"])
            if code is not None:
                _BY_CODE.setdefault(code, []).append(ref(made))
        frame = frame.f_back
    return made


def forget_record(record: GraphRecord) -> None:
    """Take a record out of the lists."""
    for records in (*_BY_CONTEXT.values(), *_BY_CODE.values()):
        records[:] = [one for one in records if one() not in (record, None)]


def forget_all() -> None:
    """Empty the lists, as torch forgets all graphs."""
    _BY_CONTEXT.clear()
    _BY_CODE.clear()


def records_of(compiled: Any) -> list[GraphRecord] | None:
    """Return the records of what ``torch.compile`` returned, or of a module that it compiled in place; None where it is neither."""
    function = getattr(compiled, "_compiled_call_impl", None) or getattr(compiled, "forward", compiled)
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, getattr(function, "__closure__", None) or (), strict=False))
    if "self" not in cells or "fn" not in cells:
        return None
    code = _code_of(cells["fn"].cell_contents)
    listed = _BY_CONTEXT.get(cells["self"].cell_contents) or (_BY_CODE.get(code) if code is not None else None) or []
    return [record for one in listed if (record := one()) is not None]


def _code_of(function: Any) -> Any:
    """Return the code of a function, or of the ``forward`` of a module whose call it is."""
    function = inspect.unwrap(function)
    module = getattr(function, "__self__", None)
    return getattr(getattr(type(module), "forward", function) if module is not None else function, "__code__", None)
