"""The declared shapes of a file's values, beside the inferred ones: a contradiction warns, and inference stands."""

from __future__ import annotations

from collections.abc import Iterator

from foreshape.core.dims import equal, symbol
from foreshape.core.spec import Spec
from foreshape.interop.onnx.call import ELEMENT_TYPES, NAMES
from foreshape.interop.onnx.graph_inputs import symbol_name
from foreshape.language.program import Program
from foreshape.language.program.call_site import warn_user
from foreshape.language.wire.onnx_records import GraphRecord, TypeRecord

_SHOWN = 3


def warn_of_contradictions(program: Program, graph: GraphRecord) -> None:
    """Warn of declared element types and dims in contradiction to inferred ones, with the value, its node and both shapes."""
    contradictions = list(_contradictions(program, graph))
    if not contradictions:
        return
    makers = {name: node for node in graph.nodes for name in node.outputs}
    lines: list[str] = []
    for name, declared, spec in contradictions[:_SHOWN]:
        node = makers.get(name)
        origin = "" if node is None else f" of {node.operator} ({node.name or node.place})"
        lines.append(f"{name}{origin} is declared as {_type_text(declared)} and inferred as {spec.text()}")
    tail = f"; and {len(contradictions) - _SHOWN} more" if len(contradictions) > _SHOWN else ""
    warn_user(f"the model declares other shapes than follow from its inputs: {'; '.join(lines)}{tail}")


def _contradictions(program: Program, graph: GraphRecord) -> Iterator[tuple[str, TypeRecord, Spec]]:
    variables = program.global_block.vars
    inputs = {v.name for v in graph.inputs}
    for name, declared in (*graph.described.items(), *((v.name, v.type) for v in graph.outputs)):
        variable = variables.get(name)
        if variable is None or declared is None or declared.kind != "tensor" or name in inputs:
            continue
        spec = variable.spec
        if spec.dtype is not None and declared.code and ELEMENT_TYPES.get(declared.code) is not spec.dtype:
            yield name, declared, spec
        elif spec.dims is not None and declared.dims is not None:
            differs = len(spec.dims) != len(declared.dims)
            if differs or any(_contradicts(size, inferred_size) for size, inferred_size in zip(declared.dims, spec.dims, strict=True)):
                yield name, declared, spec


def _contradicts(declared: int | str | None, inferred: object) -> bool:
    if isinstance(declared, str):
        name = symbol_name(declared)
        return bool(name) and equal(symbol(name), inferred) is False  # pyright: ignore[reportArgumentType]
    return declared is not None and equal(declared, inferred) is False  # pyright: ignore[reportArgumentType]


def _type_text(declared: TypeRecord) -> str:
    dtype = ELEMENT_TYPES.get(declared.code)
    dims = "" if declared.dims is None else f"[{', '.join('?' if d is None else str(d) for d in declared.dims)}]"
    return f"{dtype.short if dtype is not None else NAMES.get(declared.code, 'no element type')}{dims}"
