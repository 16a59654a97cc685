"""Updates: a weight's gradient that only its SGD step reads goes into the weight at once; equal updates become one call."""

from __future__ import annotations

from collections.abc import Callable

from foreshape.dims import Size, no_less
from foreshape.kernels import products
from foreshape.lowering.claims import workspace_in_rows
from foreshape.lowering.fusion.graph import Graph, dims_of, fused, spec_of
from foreshape.lowering.fusion.linear import choice, elements_for_onednn, rows_of
from foreshape.lowering.instruction import Instruction, Value
from foreshape.spec import LOD_TENSOR

GROUPS, LEAST = 16, 1 << 18
"""Updates are grouped into about so many groups, of at least so many bytes of gradients."""


def apply(graph: Graph) -> bool:
    """Fuse dense SGD steps with what makes their gradient."""
    changed = False
    for i in graph.instructions("sgd"):
        changed |= _sgd(graph, i)
    return changed


def _rate(graph: Graph, value: Value) -> str:
    """A name for the learning rate as a number, read once a step."""
    name = f"{value}_number"
    line = f"{name} = {value}.item()"
    if line not in graph.lowered.prologue:
        graph.lowered.prologue.append(line)
    return name


def _sgd(graph: Graph, i: Instruction) -> bool:
    param, grad, rate, master = i.arguments
    if master is not None or not isinstance(param, Value) or not isinstance(rate, Value) or i.copies or i.stores:
        return False
    if spec_of(grad) is None or not isinstance(grad, Value) or not graph.is_constant(rate) or not param.persistable:
        return False
    number = _rate(graph, rate)
    maker = graph.maker(grad)
    weight = maker is not None and maker.tag == "weight gradient" and graph.only_reader(grad) is i and _may_move(graph, maker, i, param)
    if weight and maker is not None:
        x, d = maker.arguments
        text, needs = _product_text(maker, param, number)
        made = fused(i, text, [x, d, param], [param], workspace=needs, in_rows=maker.in_rows, add_product_=products.add_product_)
        graph.remove([i])
        made.in_place = frozenset({0})
        graph.replace(maker, made)
    else:
        made = fused(i, f"{{0}}.add_({{1}}, alpha=-{number})", [param, grad], [param])
        made.in_place = frozenset({0})
        graph.replace(i, made)
    return True


def _product_text(maker: Instruction, param: Value, number: str) -> tuple[str, Callable[[], Size] | None]:
    """``param -= rate x' d`` and the rule of its workspace: into the weight at once where the product is small, since oneDNN cannot add to memory."""
    dims, rank = dims_of(param), len(dims_of(maker.arguments[0]) or ())
    assert dims is not None
    flat = "" if rank == 2 else ".flatten(0, -2)"
    a, b = f"{{0}}{flat}.t()", f"{{1}}{flat}"
    large, small = f"{{add_product_}}({{2}}, {a}, {b}, -{number})", f"{{2}}.addmm_({a}, {b}, alpha=-{number})"
    least = elements_for_onednn(dims[0], dims[1], param)
    if least is None:
        return small, None
    rows = rows_of(maker.arguments[0])
    return choice(large, small, "{0}", least), lambda: products.adding_workspace(dims[0], rows, dims[1])


def _may_move(graph: Graph, maker: Instruction, update: Instruction, param: Value) -> bool:
    """Whether nothing reads the parameter between the gradient and the update."""
    dims = dims_of(param)
    if dims is None or len(dims) != 2:
        return False
    first, last = graph.order(maker), graph.order(update)
    return not any(first < graph.order(i) < last for i in graph.readers(param))


def group(graph: Graph) -> bool:
    """Updates with one operator become one call, where the operator has a kernel for many tensors (``group_kernel``)."""
    changed = False
    runs: dict[int, list[Instruction]] = {}
    for i in graph.plain():
        operator = i.op.operator
        if operator is not None and hasattr(operator, "group_kernel") and not i.copies and not i.stores and _is_dense(i):
            runs.setdefault(id(operator), []).append(i)
    for run in [part for whole in runs.values() for part in _parts(graph, whole)]:
        if len(run) < 2 or not _is_independent(graph, run):
            continue
        columns = [[i.arguments[k] for i in run] for k in range(len(run[0].arguments))]
        arguments = [None if all(v is None for v in c) else [v for v in c if isinstance(v, Value)] for c in columns]
        if any(a is not None and len(a) != len(run) for a in arguments):
            continue
        last = run[-1]
        graph.remove(run[:-1])
        made = Instruction(last.op, last.op.operator.group_kernel, list(arguments), [], in_rows=(1,))  # pyright: ignore
        made.workspace = no_less(*(workspace_in_rows(i) for i in run))
        made.unknown = next((i.unknown for i in run if i.unknown), "")
        graph.replace(last, made)
        changed = True
    return changed


def _parts(graph: Graph, run: list[Instruction]) -> list[list[Instruction]]:
    """Updates in groups whose gradients are a small part of all: they wait for one another, and hold memory meanwhile.

    Those that follow one another at once are in one group, since their gradients are all there.
    """
    sizes = [max((n for v in i.writes() if isinstance(n := v.variable.spec.nbytes if v.variable is not None else 0, int)), default=0) for i in run]
    most = max(sum(sizes) // GROUPS, LEAST)
    parts: list[list[Instruction]] = []
    waiting = 0
    for i, size in zip(run, sizes, strict=True):
        follows = bool(parts) and graph.position(i) == graph.position(parts[-1][-1]) + 1
        if not parts or (waiting + size > most and not follows):
            parts.append([])
            waiting = 0
        parts[-1].append(i)
        waiting += size
    return parts


def _is_dense(i: Instruction) -> bool:
    return all(v.variable is not None and v.variable.spec.kind is LOD_TENSOR for v in i.reads())


def _is_independent(graph: Graph, run: list[Instruction]) -> bool:
    """Whether nothing between the first and the last of them reads or writes what they change."""
    ids = {id(i) for i in run}
    changed = {id(v) for i in run for v in i.writes()}
    span = graph.between(run[0], run[-1])
    if any(id(v) in changed for i in span if id(i) not in ids for v in (*i.reads(), *i.writes())):
        return False
    total = sum(len(i.writes()) for i in run)
    return len(changed) == total
