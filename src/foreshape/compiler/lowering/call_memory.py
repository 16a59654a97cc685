"""The memory of one kernel call: the bytes of its values, its workspace, and the extra memory of its results, as declared by operators.

A failing rule stops nothing: the call is noted as partly unknown, and a plan tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from foreshape.compiler.lowering.kernel_calls import FusedCall, KernelCall, OpCall, Value, values_of
from foreshape.core.dims import Dim, Size, equal, evaluate, explain_symbols, product, substitute, symbol, symbols_of
from foreshape.core.spec import LOD_TENSOR, SELECTED_ROWS, Spec
from foreshape.errors import MemoryPlanError, SchemaError
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.require import PLACEHOLDER
from foreshape.language.program.op import EMPTY


def dense_bytes(value: Value, spec: Spec) -> Size:
    """Return the bytes of a dense value. Raise `MemoryPlanError` if nothing is known of it."""
    if spec.kind is not LOD_TENSOR or spec.dtype is None:
        return 0
    if spec.dims is None:
        if value.variable is not None and not value.variable.known:
            raise MemoryPlanError(f"nothing is known of {value.name}, so that its memory cannot be planned; run program.infer() for the reason")
        return 0
    return spec.dtype.itemsize if value.hollow else spec.nbytes


ID_BYTES = 8
NO_ROWS: Mapping[Value, Size] = {}


def are_ids(spec: Spec) -> bool:
    """Return True if a tensor may be ids, with as many rows."""
    return spec.dtype is not None and spec.dtype.is_integer


_Answer = TypeVar("_Answer")


def _evaluated(rule: Callable[[], _Answer], otherwise: _Answer) -> tuple[_Answer, str]:
    """Return the answer of a rule about memory, and the reason if it fails. All such rules are asked here."""
    try:
        return rule(), ""
    except Exception as error:
        return otherwise, f"{type(error).__name__}: {error}"


def rule_bytes(i: KernelCall, rule: Callable[[], Size]) -> Size:
    """Return the bytes by a rule; 0 if it fails, with the reason noted in the instruction."""
    size, why = _evaluated(lambda: _bytes_of(_of_this_op(rule(), i)), 0)
    i.unknown = i.unknown or why
    return size


def _of_this_op(size: Size, i: KernelCall) -> Size:
    """Return a size with its op's own symbols for sizes told only by the run. Refuse one too long to keep."""
    if not isinstance(size, Dim):
        return size
    names = symbols_of(size)
    placeholders = [n for n in names if n.startswith(PLACEHOLDER)]
    if placeholders:
        result = next((n for n in i.op.output_names() if n and n != EMPTY), i.op.type)
        size = substitute(size, {n: symbol(f"{result}.{n.removeprefix(PLACEHOLDER)}"[:512]) for n in placeholders})
    if explain_symbols(size):
        known_symbols = {n for v in (*i.reads(), *i.writes()) if v.spec is not None for d in v.spec.dims or () for n in symbols_of(d)}
        if not names <= known_symbols:
            raise MemoryPlanError("its formula is too long to be kept")
    return size


def _bytes_of(value: object) -> Size:
    if isinstance(value, Dim) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise SchemaError(f"a rule about memory gives a number of bytes of at least 0; seen {value!r}")


def requested_of(i: KernelCall, needed: Collection[Value]) -> list[bool]:
    """Return for each result of a call whether it is needed, by others or by the scope."""
    return [any(v in needed or v.persistable for v in values_of([r])) for r in i.results]


def workspace_of(i: KernelCall, requested: Sequence[bool] = (), strided: Collection[Value] = (), rows: Mapping[Value, Size] = NO_ROWS) -> Size:
    """Return the workspace of a call.

    Args:
        requested: for each result True if it is needed; by default all are.
        strided: the values that may not be contiguous.
        rows: the bytes of sparse rows.
    """
    if i.workspace is not None:
        return i.workspace
    operator = i.op.operator
    if operator is None or isinstance(i, FusedCall) or (cls := type(operator)).workspace is Operator.workspace:
        return 0
    options: dict[str, object] = {}
    if cls.workspace_requested:
        options["requested"] = tuple(requested or [True] * len(operator.schema.results))
    if cls.workspace_strided:
        slots = zip(operator.schema.operands, i.arguments, strict=False) if strided else ()
        options["strided"] = frozenset([o.name for o, argument in slots if any(v in strided for v in values_of([argument]))])
    if cls.workspace_rows:
        options["rows"] = sum((rows[v] for v in values_of(i.arguments) if v in rows), start=0)
    rule: Callable[..., Size] = operator.workspace
    return rule_bytes(i, lambda: rule(*_operand_specs(operator, i), **options))


def copies_by_rule(i: KernelCall, strided: Collection[Value]) -> bool:
    """Return True if the workspace of a call depends on the layout of its arguments, and one may not be contiguous."""
    operator = i.op.operator if i.workspace is None and isinstance(i, OpCall) else None
    return operator is not None and type(operator).workspace_strided and any(v in strided for v in i.reads())


def retained_of(i: KernelCall, requested: Sequence[bool]) -> Mapping[Value, Size]:
    """Return the bytes that results retain beyond their descriptions."""
    operator = i.op.operator
    if operator is None or isinstance(i, FusedCall) or not i.results or not operator.retains():
        return NO_ROWS
    retained, why = retained_by(operator, _operand_specs(operator, i), requested)
    i.unknown = i.unknown or why
    return {v: retained[r.name] for r, out in zip(operator.schema.results, i.results, strict=False) if r.name in retained for v in values_of([out])}


def retained_by(operator: Operator, specs: Sequence[object], requested: Sequence[bool]) -> tuple[Mapping[str, Size], str]:
    """Return the bytes retained by the results of an operator with operands like these, by slot, and the reason if its rule fails."""
    nothing: Mapping[str, Size] = {}
    return _evaluated(lambda: {slot: _bytes_of(size) for slot, size in operator.retained(specs, requested).items()}, nothing)


def _operand_specs(operator: Operator, i: KernelCall) -> list[object]:
    """Return the specs of each operand slot: None for an absent one, a tuple for a list."""
    specs: list[object] = []
    for _, argument in zip(operator.schema.operands, i.arguments, strict=False):
        specs.append(tuple(s for v in argument if v is not None and (s := v.spec) is not None) if isinstance(argument, list) else argument and argument.spec)
    return specs


def same_size(a: Size, b: Size) -> bool:
    """Return True if two sizes are known to be equal."""
    return a == b if isinstance(a, int) or isinstance(b, int) else a is b


def carried_by_rounds(i: KernelCall, values: Sequence[Value]) -> Size:
    """Return the bytes held between rounds by an op with a block, beside its results: the values handed from round to round. Time steps also keep the parts
    of results made at the end.
    """
    results = i.results[0] if isinstance(i.results[0], list) else []
    form = i.op.operator.region if i.op.operator is not None else ""
    if form.startswith("conditional"):
        return 0
    steps = form.startswith("recurrent")
    total: Size = 0
    for value in values_of([results]) if steps else ():
        total = total + _dense(value)
    for index, value in enumerate(values):
        if steps or index >= len(results) or results[index] is None:
            total = total + _dense(value)
    return total


def _dense(value: Value) -> Size:
    spec = value.spec
    return 0 if spec is None else dense_bytes(value, spec)


def ids_size(i: KernelCall) -> Size:
    """Return the bytes of an instruction's ids."""
    return sum((product(spec.dims) * ID_BYTES for v in i.reads() if (spec := v.spec) is not None and are_ids(spec) and spec.dims is not None), start=0)


def rows_size(i: KernelCall | None, spec: Spec, rows: Mapping[Value, Size]) -> Size:
    """Return a bound of the bytes of sparse rows made by an instruction: a row for each id and each row of its operands."""
    if i is None or spec.dims is None or spec.dtype is None:
        return 0
    total: Size = 0
    for value in dict.fromkeys(i.reads()):
        operand_spec = value.spec
        if value in rows:
            total = total + rows[value]
        elif operand_spec is not None and are_ids(operand_spec) and operand_spec.dims is not None:
            total = total + product(operand_spec.dims) * (product(spec.dims[1:]) * spec.dtype.itemsize + ID_BYTES)
    operator = i.op.operator
    if operator is None or type(operator).rows_bytes is Operator.rows_bytes or isinstance(i, FusedCall):
        return total
    rule: Callable[..., Size] = operator.rows_bytes
    return rule_bytes(i, lambda: rule(*_operand_specs(operator, i), rows=total))


def is_rows(value: Value) -> bool:
    """Return True if a value is sparse rows, made of its kernel's operands."""
    spec = value.spec
    return spec is not None and spec.kind is SELECTED_ROWS


def may_be_view(source: Value, value: Value) -> bool:
    """Return True if a result counted as no view may turn out to be one: where nothing was summed, or all is contiguous after all."""
    a, b = source.spec, value.spec
    return a is None or b is None or a.dims is None or b.dims is None or equal(product(a.dims), product(b.dims)) is not False


def number(size: Size, values: Mapping[str, int]) -> int:
    """Return a size as a number, where every symbol has a value."""
    nbytes = evaluate(size, values)
    if nbytes < 0:
        raise MemoryPlanError(f"with these values {size} bytes would be {nbytes}, which no tensor has")
    return nbytes
