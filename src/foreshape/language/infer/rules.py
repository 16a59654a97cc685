"""Specs of results from an operator and the specs of its inputs: schema checks, kind rule, shape rule, in this order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from foreshape.core.dims import Ratio, Size, bounds, substitute, symbol, symbols_of
from foreshape.core.spec import FP32, INT64, LOD_TENSOR_ARRAY, TENSOR_KINDS, DType, Kind, Lod, Spec
from foreshape.errors import ForeshapeError, SchemaError, ShapeError, TypeMismatchError
from foreshape.language.infer.advice import doubled
from foreshape.language.operator.fields import Operand
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.require import PLACEHOLDER, Condition, RuleError, collector

Slot: TypeAlias = "Spec | tuple[Spec, ...] | None"
Key: TypeAlias = "tuple[Slot, ...]"
_CACHE_LIMIT = 2048


class Answer(NamedTuple):
    """The results of the rules: a spec, a tuple of specs or None for each result slot, and the conditions left open.

    ``unknown``: the placeholders in the results for sizes set by the run, and for new offsets (see `named_after`). ``twice``: see `doubled`.
    """

    results: tuple[Slot, ...]
    conditions: tuple[Condition, ...]
    unknown: tuple[str, ...] = ()
    twice: str = ""


def answer(operator: Operator, key: Key) -> Answer:
    """Return the specs of the results of ``operator`` for these inputs (by operand, in the schema's order).

    Raises:
        RuleError: an input or a shape not accepted by the operator, in terms of its slots.
    """
    entry = operator.cache.get(key)
    if entry is None:
        entry = ask(operator, key)
        if len(operator.cache) >= _CACHE_LIMIT:
            operator.cache.clear()
        operator.cache[key] = entry
    return entry


def ask(operator: Operator, key: Key) -> Answer:
    """Return the `answer` without keeping it."""
    schema = operator.schema
    for operand, specs in zip(schema.operands, key, strict=True):
        check_operand(operand, specs)
    for operand, specs in zip(schema.operands, key, strict=True):
        if operand.same_type_as is not None:
            _check_same_type(operator, operand, specs, key)
    previous = collector.conditions
    conditions: list[Condition] = []
    collector.conditions = conditions
    try:
        kinds = operator.infer_var_type(*key) if type(operator).infer_var_type is not Operator.infer_var_type else None
        specs = operator.infer_shape(*key)
        results = _shaped(operator, specs)
        if kinds is not None:
            results = _with_kinds(operator, results, kinds)
        if any(f.updates is not None for f in schema.results):
            results = tuple(_changed(r) if f.updates is not None else r for r, f in zip(results, schema.results, strict=True))
        _check_not_negative(results)
    except RuleError:
        raise
    except ForeshapeError as error:
        raise RuleError(str(error), {}, error.__class__ if error.__class__ in (TypeMismatchError, SchemaError) else ShapeError) from None
    except Exception as error:  # the last resort: a rule says its requirements
        raise failed(error) from error
    finally:
        collector.conditions = previous
    twice = doubled(operator, key, results[0]) if operator.per_element and isinstance(results[0], Spec) else ""
    return Answer(results, tuple(dict.fromkeys(conditions)), _placeholders(results), twice)


def failed(error: Exception) -> RuleError:
    """Return the error for an unforeseen exception of a rule."""
    return RuleError(f"its rule fails for these operands: {type(error).__name__}: {error}", {}, SchemaError)


def _placeholders(results: tuple[Slot, ...]) -> tuple[str, ...]:
    names: set[str] = set()
    for result in results:
        for spec in result if isinstance(result, tuple) else (result,):
            if spec is not None:
                for sizes in (spec.dims, spec.value, spec.lod.counts if spec.lod is not None else None):
                    for size in sizes or ():
                        if not isinstance(size, int):
                            names.update(n for n in symbols_of(size) if n.startswith(PLACEHOLDER))
                if spec.lod is not None and spec.lod.source.startswith(PLACEHOLDER):
                    names.add(spec.lod.source)
    return tuple(sorted(names))


def named_after(unnamed: Answer, name: str) -> Answer:
    """Return ``unnamed`` with its placeholders made symbols of one op, whose first result is called ``name``; ``unknown`` are their names then."""
    symbols = {n: symbol(f"{name}.{n.removeprefix(PLACEHOLDER)}"[:512]) for n in unnamed.unknown}
    conditions = [Condition(substitute(c.left, symbols), c.relation, substitute(c.right, symbols), c.requirement) for c in unnamed.conditions]
    names = {n for size in symbols.values() for n in symbols_of(size)}
    return Answer(replace_symbols(unnamed.results, symbols), tuple(conditions), tuple(sorted(names)))


def check_operand(operand: Operand, slot: Slot) -> None:
    """Check presence, kind and element type of one input slot."""
    if slot is None or slot == ():
        if not operand.optional:
            raise RuleError(f"the input {operand.name} is missing", {}, SchemaError)
        return
    if isinstance(slot, tuple) is not operand.many:
        count = f"{len(slot)} tensors" if isinstance(slot, tuple) else "one tensor"
        raise RuleError(f"{operand.name} takes {'a list of tensors' if operand.many else 'one tensor'}, not {count}", {operand.name: None}, SchemaError)
    for spec in slot if isinstance(slot, tuple) else (slot,):
        if spec.kind not in operand.kinds:
            kinds = " or ".join(k.name for k in operand.kinds)
            raise RuleError(f"{operand.name} must be of kind {kinds}, not {spec.kind.name}", {operand.name: None}, TypeMismatchError)
        if spec.dims is None and spec.kind in TENSOR_KINDS and spec.kind is not LOD_TENSOR_ARRAY and not operand.unknown_dims:  # an array may be empty
            raise RuleError(f"nothing is known of {operand.name}: the run decides its number of dims; reshape states them", {operand.name: None}, ShapeError)
        if spec.dtype is not None and spec.dtype not in operand.dtypes:
            words = f"{operand.name} must be {_type_words(operand)}, not {spec.dtype.name}{_cast_to(operand.dtypes)}"
            raise RuleError(words, {operand.name: None}, TypeMismatchError)


def _cast_to(dtypes: Sequence[DType]) -> str:
    """Return the code for another element type."""
    usual = next((t for t in (FP32, INT64) if t in dtypes), dtypes[0])
    return f": layer.cast(x, {usual.name!r}) converts it"


def _type_words(operand: Operand) -> str:
    families = {d.family for d in operand.dtypes}
    if families == {"float"} and len(operand.dtypes) > 2:
        return "floating-point (" + ", ".join(d.name for d in operand.dtypes) + ")"
    return "one of " + ", ".join(d.name for d in operand.dtypes)


def _check_same_type(operator: Operator, operand: Operand, slot: Slot, key: Key) -> None:
    other_name = operand.same_type_as
    assert other_name is not None
    reference = next(k for o, k in zip(operator.schema.operands, key, strict=True) if o.name == other_name)
    first = reference[0] if isinstance(reference, tuple) and reference else reference
    if not isinstance(first, Spec):
        return
    for spec in slot if isinstance(slot, tuple) else (slot,):
        if spec is not None and spec.dtype is not first.dtype:
            hint = "" if first.dtype is None else _cast_to((first.dtype,))
            raise RuleError(f"{operand.name} must have the element type of {other_name}{hint}", {operand.name: None, other_name: None}, TypeMismatchError)


def _shaped(operator: Operator, returned: Any) -> tuple[Slot, ...]:
    declared = operator.schema.results
    out: tuple[Any, ...] = returned if isinstance(returned, tuple) and not (len(declared) == 1 and declared[0].many) else (returned,)  # pyright: ignore[reportUnknownVariableType]
    if len(out) != len(declared):
        raise SchemaError(f"the shape rule of {operator.type} gives {len(out)} results; its schema has {len(declared)}")
    return tuple(tuple(x) if isinstance(x, list) else x for x in out)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _with_kinds(operator: Operator, results: tuple[Slot, ...], kinds: Kind | tuple[Kind, ...]) -> tuple[Slot, ...]:
    result_kinds = kinds if isinstance(kinds, tuple) else (kinds,) * len(results)

    def recast(spec: Spec, kind: Kind) -> Spec:
        return spec if spec.kind is kind else Spec(kind, spec.dtype, spec.dims)

    return tuple(
        None if r is None else recast(r, k) if isinstance(r, Spec) else tuple(recast(s, k) for s in r) for r, k in zip(results, result_kinds, strict=True)
    )


def _changed(slot: Slot) -> Slot:
    """Return the spec of an operand changed by a kernel: its value is another one."""
    return slot.like() if isinstance(slot, Spec) else None if slot is None else tuple(s.like() for s in slot)


def _check_not_negative(results: tuple[Slot, ...]) -> None:
    for result in results:
        for spec in result if isinstance(result, tuple) else (result,):
            for dim in spec.dims or () if spec is not None else ():
                low, _ = bounds(dim)
                if low is None or low < 0:
                    assert collector.conditions is not None
                    collector.conditions.append(Condition(0, "<=", dim, "a dim must be at least 0"))


def replace_symbols(key: Key, values: Mapping[str, Size]) -> Key:
    """Return the inputs with symbols replaced by their known sizes."""
    return tuple(None if k is None else _replaced(k, values) if isinstance(k, Spec) else tuple(_replaced(s, values) for s in k) for k in key)


def _size_replaced(size: Any, values: Mapping[str, Size]) -> Any:
    return size.replaced(values) if isinstance(size, Ratio) else substitute(size, values)


def _replaced(spec: Spec, values: Mapping[str, Size]) -> Spec:
    def replaced_sizes(sizes: tuple[Size, ...] | None) -> tuple[Size, ...] | None:
        return None if sizes is None else tuple(s if isinstance(s, (int, float)) else _size_replaced(s, values) for s in sizes)

    lod = spec.lod
    if lod is not None:
        source = str(values.get(lod.source, lod.source)) if lod.source.startswith(PLACEHOLDER) else lod.source
        lod = Lod(source, replaced_sizes(lod.counts) or ())
    return Spec(spec.kind, spec.dtype, replaced_sizes(spec.dims), lod, replaced_sizes(spec.value))


def numbers(spec: Spec, values: Mapping[str, int]) -> Spec:
    """Return ``spec`` with every symbol replaced by a number. Raises `ShapeError` if one is missing."""
    out = _replaced(spec, values)
    for dim in out.dims or ():
        if not isinstance(dim, int):
            raise ShapeError(f"{spec} needs a value for the symbols in {dim}")
    return out


Ask: TypeAlias = "Callable[[Operator, Key], Answer]"
