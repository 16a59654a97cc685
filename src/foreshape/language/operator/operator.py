"""`Operator`: one class for one operation, with its schema, shape rule, kind rule, gradient and kernel.

An instance is the class with attribute values: ``Softmax`` with ``axis=-1``. Instances are shared by all uses with equal
values, and each keeps the answers of its rules, so a repeated layer costs a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from foreshape.core.dims import Size
from foreshape.core.hints import did_you_mean
from foreshape.core.spec import LOD_TENSOR, Kind
from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import AttrType, Entry, as_written, coerce, entry_key, exact, infer_type, words_for
from foreshape.language.operator.bound_attributes import BOOKKEEPING, Attributes
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.computations import Computation, Concat, Slicing, Split, Stacking, Transposition, Unstacking
from foreshape.language.operator.definition import define
from foreshape.language.operator.fields import BlockGradient, Gradient, NoGradient, PartialGradient
from foreshape.language.operator.registry import find, get
from foreshape.language.operator.samples import Reject, Sample
from foreshape.language.operator.schema import Again, Schema
from foreshape.language.operator.totals import Totals
from foreshape.language.operator.traits import ShardingRule, usual_rule
from foreshape.machine.kernels.fused import Effects, FusedKernel, Order

OWN: Final = 1000
"""``since`` of an operator in no version of PaddlePaddle."""
_CACHE_LIMIT = 4096
_LONG = 256
"""A value with more elements than this is not kept for the next op with the same."""


class OwnCall(NamedTuple):
    """The call of an operator's kernel as a record, for the text of a step.

    Attributes:
        kernel: takes the operands one after the other, lists as their elements.
        places: the places of the results among those of the call; None for a call that gives the only one itself.
        results: the number of results of the call.
    """

    kernel: FusedKernel
    places: Sequence[int] | None
    results: int


class _GradientClass:
    """The descriptor of ``Operator.grad_class``."""

    def __get__(self, operator: Operator | None, cls: type[Operator]) -> type[Operator] | None:
        return find(f"{cls.type}_grad") if isinstance(cls.gradient, Gradient) else None


class Operator:
    """The base of all operators. A subclass declares `operand`, `result` and `attribute` fields and defines:

    ``infer_shape(self, <slots>)``
        from the operands' specs (None if absent, a tuple for a list) to the results' specs; pure.
    ``kernel(self, <slots>)``
        from torch tensors to torch tensors. Keyword-only parameters: ``requested`` has True for each result with a reader; ``offsets`` has one entry
        per slot: the `Offsets` of a ragged operand, None for a dense one, a list for a list; ``into`` is None, or the operand's tensor to take the
        result declared with ``may_share``; ``use`` is None, or in a compiled step the `foreshape.language.operator.use.Use`, with variables' names, results'
        element types, and a count of runs.
    ``group_kernel(self, <slots>)``
        optional, of an update: many updates at once, each slot a list (or None), everything changed in place.
    ``instructions(self, <slots>)``
        optional, of an update: from the operands' dims (None if absent) to its instructions in a small step, or None
        (`foreshape.machine.kernels.instructions`).
    ``backward`` decorated with `gradient`, or ``gradient_ops(self, names)``, or ``gradient = ZERO_GRADIENT`` (or
        NOT_DIFFERENTIABLE, NOT_WRITTEN)
        the gradient.
    ``work(self, <slots>)``
        from the operands' specs to the kernel's multiplications, if more than its written elements; the engine chooses threads by it.
    ``workspace(self, <slots>)``
        from the operands' specs to the kernel's workspace in bytes, besides its operands and results: an upper bound. Keyword-only parameters:
        ``requested`` as above; ``strided`` the slots whose operands may not be contiguous (a transposed view); ``rows`` the bytes of sparse operands,
        unknown to specs.
    ``acts(self)``
        True to run without a reader of its results; by default its ``side_effects``.
    ``draws(self)``
        of a random operator: True if it draws from the executor's generator; by default without a ``seed`` of its own.
    ``retained_bytes(self, <slots>)``
        from the operands' specs to a mapping, result slot -> bytes kept alive by the result beside its own. A keyword-only ``requested`` as above.
    ``rows_bytes(self, <slots>, *, rows)``
        of an operator with sparse results: an upper bound of their bytes, from the bytes ``rows`` of sparse operands; by default ``rows``.
    ``computes(self)``
        its computation with these attributes for the rewrites of a step: one of `foreshape.language.operator.computations`. Its gradient operator returns the
            same from ``backward_of(self)``; a gradient operator with a class of its own defines ``backward_of``.
    ``totals(self)``
        the results that are sums or means over the examples of the operands, result slot -> `foreshape.language.operator.totals.Total`. With it a figure over
        several batches, or ranks, equals the figure over one batch of all examples. It is asked if the operands grow with the examples and the result
        does not.
    ``sharding_rule(self, <slots>)``
        from the operands' specs to the `foreshape.language.operator.traits.ShardingRule`: the axes along which parts of the operands give parts of the results,
        for divided values. None, the default, for none; for a ``per_element`` operator they are known.
    ``expand(self, of, <slots>)``
        of an operator made of others: appends them by the `foreshape.language.operator.composition.Composition` ``of`` and returns its results. It has no
            kernel: a step has the others in its place.
    ``infer_var_type(self, <slots>)``
        the kind of the result, or a tuple of kinds; the default is LOD_TENSOR.

    The definition is checked when the class is made.

    Raises:
        SchemaError: a misspelled hook, parameters other than the slots, no declaration of the gradient, or a taken name.
    """

    type: ClassVar[str] = ""
    abstract: ClassVar[bool] = True
    schema: ClassVar[Schema]
    samples: ClassVar[Sequence[Sample]] = ()
    rejects: ClassVar[Sequence[Reject]] = ()
    gradient: ClassVar[Gradient | NoGradient | BlockGradient | Callable[..., Any] | None] = None
    grad_class = _GradientClass()
    """The operator declared by `gradient`, made at the first request; None without a declaration."""
    forward_class: ClassVar[type[Operator] | None] = None
    sub_blocks: ClassVar[tuple[str, ...]] = ()
    """The attributes with its blocks. Such an operator has no shape rule and no kernel: it is its block."""
    region: ClassVar[str] = ""
    """The form of running its block; `foreshape.language.infer.regions` and `foreshape.compiler.lowering.regions` have the forms."""
    layer_function: ClassVar[str] = ""
    """The layer function for it, if of another name than its type; a subclass does not inherit it. `foreshape.language.operator.registry.layer_name` reads
    it."""
    since: ClassVar[int] = 2
    """The first version of PaddlePaddle with it; `OWN` for none."""
    side_effects: ClassVar[bool] = False
    collective: ClassVar[bool] = False
    """True if all ranks take part, so a program's collectives run in its own order, on every rank."""
    awaits: ClassVar[bool] = False
    """True if it waits for collectives merely started on its operands; for any other reader they wait themselves."""
    random: ClassVar[bool] = False
    multiplies: ClassVar[bool] = False
    """True if its work is products and their sums, so it may compute in 16 bits beside fp32 operators."""
    reads_transposed: ClassVar[bool] = False
    """True if batched matrices of 32 or 64 bits may lie transposed: its kernel does not copy them."""
    multiplies_steps: ClassVar[bool] = False
    """True if it multiplies step by step inside, a few rows at a time: in its operands' precision, never lowered."""
    untrained: ClassVar[tuple[str, ...]] = ()
    """Results of floating-point numbers without a gradient through them, as numbers of rows."""
    described_results: ClassVar[bool] = False
    """True if its results are as their variables say, as feed's, and no rule gives them."""
    accumulates: ClassVar[tuple[str, ...]] = ()
    """Result slots with old values of their variables, as an array with one written element.

    The kernel has a keyword-only ``before``, a list of the old values (None for missing ones), and may change them in place.
    """
    again: ClassVar[Again | None] = None
    """The second computation of a result from other values, without the operator itself."""
    moving: ClassVar[tuple[str, ...]] = ()
    """Result slots with changes in every run, as moving averages, without influence on other results:
    a second run of the operator changes copies.
    """
    family: ClassVar[str] = ""
    """Its sort in drawings: "activation", "image", "loss", "norm", "product", "sequence", "shape", "table" or "control"; by default
    the sort of its folder in `foreshape.language.ops`, or of its base's.
    """
    per_element: ClassVar[bool] = False
    """True if each element of a result depends only on the elements at its place, and on draws. Operands of fewer dims stand at the
    attribute ``axis``, if any, or line up their last dims, and dims of 1 are broadcast.
    """
    works_along: ClassVar[str] = ""
    """The attribute with its axis or axes, possibly negative: along all other axes, parts of its operands, of one rank, give parts of its results."""
    examples: ClassVar[tuple[str, ...]] = ()
    """The operands whose rows (sequences, if ragged) are examples: those behind one another give their results behind one another.
    Other operands are read for every example.
    """
    example_results: ClassVar[tuple[str, ...]] = ()
    """The results with those rows of ``examples``; () for all."""
    takes_scores: ClassVar[tuple[str, ...]] = ()
    """Operands of unbounded scores: probabilities there are most likely a mistake, since it makes them itself."""
    sets_dims: ClassVar[tuple[str, ...]] = ()
    """Operands that set the dims of the results, and nothing else."""
    reads_dims: ClassVar[tuple[str, ...]] = ()
    """Operands whose dims alone are read."""
    linear: ClassVar[tuple[str, ...]] = ()
    """The operands with a linear result in all of them together, for fixed others: sums give sums, and zeros give zeros
    (but for the ``bias`` of `scale`).
    """
    elementwise_state: ClassVar[tuple[str, ...] | None] = None
    """The state operands, of the parameter's shape, of an update of Param by Grad element by element: any part can be updated elsewhere. None for other
    updates.
    """
    over_ranks: ClassVar[str] = ""
    """The type of the same operator with statistics over the examples of all ranks. It has one more
    operand ``Counts``, one number, 0 on a rank without examples.
    """
    merges_rows: ClassVar[bool] = True
    """True if sparse operands are merged first, so each id comes once; otherwise it takes them as they are, and its sparse results
    have the values of its sparse operands.
    """
    gradient_reads_dims: ClassVar[tuple[str, ...]] = ()
    """Operands whose dims alone are read by its gradient operator."""
    gradient_reads_for: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Operand of the gradient operator -> the results for which it reads its numbers, and not its dims alone."""
    apart: ClassVar[Callable[..., PartialGradient | None] | None] = None
    """The rule of a gradient operator for a result computable by another operator; see `gradient`."""
    kernel_requested: ClassVar[bool] = False
    kernel_offsets: ClassVar[bool] = False
    kernel_into: ClassVar[bool] = False
    kernel_use: ClassVar[bool] = False
    workspace_requested: ClassVar[bool] = False
    workspace_strided: ClassVar[bool] = False
    workspace_rows: ClassVar[bool] = False
    retained_bytes_requested: ClassVar[bool] = False
    _instances: ClassVar[dict[Any, Operator]]
    _described: ClassVar[dict[Any, Attributes]]

    cache: dict[Any, Any]
    """The infer room's answers for this operator: key of input specs -> answer."""

    # These hooks have the widest signature, so any slots may take its place.

    def infer_shape(self, *specs: Any, **named: Any) -> Any:
        """Return the results' specs from the operands' ``specs`` (or ``named`` slots)."""
        raise SchemaError(f"{self.type} has no shape rule")

    def infer_var_type(self, *specs: Any, **named: Any) -> Kind | tuple[Kind, ...]:
        """Return the results' kinds from the operands' ``specs`` (or ``named`` slots)."""
        return LOD_TENSOR

    kernel: ClassVar[Callable[..., Any]]

    def expand(self, of: Composition, *operands: Any, **named: Any) -> Any:
        """Write the operator as others: append them to ``of``, given its ``operands`` (or ``named`` slots), and return the results."""
        raise SchemaError(f"{self.type} is not made of others")

    def acts(self) -> bool:
        return self.side_effects

    def draws(self) -> bool:
        return self.random and not getattr(self, "seed", 0)

    def workspace(self, *specs: Any, **named: Any) -> Size:
        """Return the kernel's workspace in bytes besides operands and results, from the ``specs`` and further ``named`` arguments."""
        return 0

    def rows_bytes(self, *specs: Any, **named: Any) -> Size:
        """Return an upper bound of the bytes of sparse results, from the ``specs`` and the ``named`` bytes of sparse operands."""
        return named["rows"]

    def retained_bytes(self, *specs: Any, **named: Any) -> Mapping[str, Size]:
        """Return result slot -> the bytes kept alive beside its own, from the ``specs`` and further ``named`` arguments."""
        return {}

    @classmethod
    def retains(cls) -> bool:
        """Tell whether its results keep more memory alive than described."""
        return cls.retained_bytes is not Operator.retained_bytes

    @cached_property
    def effects(self) -> Effects:
        """The effects of its kernel on memory, as its results and its computation declare them."""

        return declared_effects(self)

    @cached_property
    def in_double(self) -> Operator:
        """The same for operands of double precision: 32-bit numbers among its attributes as they were written, 0.1 for 0.10000000149011612."""
        values = {n: getattr(self, n) for n in self.schema.attributes}
        values |= {n: as_written(values[n]) for n, field in self.schema.attributes.items() if field.type is AttrType.FLOAT}
        return type(self).with_values(values)

    @property
    def own_call(self) -> OwnCall | None:
        """Its call as a record, in the place of a call of ``kernel``; None for most."""
        return None

    def computes(self) -> Computation | None:
        return None

    def backward_of(self) -> Computation | None:
        return None

    @cached_property
    def computation(self) -> Computation | None:
        """Its computation, as `computes` says: rewrites ask for it again and again."""
        return self.computes()

    @cached_property
    def undone_computation(self) -> Computation | None:
        """The computation of its forward operator, as `backward_of` says."""
        return self.backward_of()

    def totals(self) -> Totals:
        return {}

    def sharding_rule(self, *specs: Any, **named: Any) -> ShardingRule | None:
        """Return the rule from the operands' axes to the results' axes, from their ``specs`` (or ``named`` slots)."""
        return usual_rule(self, specs)

    def retained(self, specs: Sequence[Any], requested: Sequence[bool]) -> Mapping[str, Size]:
        """Return `retained_bytes` for these operands' ``specs``, with the requested results if it takes them."""
        rule: Callable[..., Mapping[str, Size]] = self.retained_bytes
        return rule(*specs, requested=tuple(requested)) if self.retained_bytes_requested else rule(*specs)

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        members = cls.__dict__
        if members.get("abstract", False) or "type" not in members:
            cls.abstract = True
            return
        cls.abstract = False
        define(cls, Operator)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebind, (self.type, {n: getattr(self, n) for n in self.schema.attributes}))

    def __repr__(self) -> str:
        values = ", ".join(f"{n}={getattr(self, n)!r}" for n in self.schema.attributes)
        return f"{self.type}({values})"

    @classmethod
    def with_values(cls, values: Mapping[str, Any]) -> Operator:
        """Return the instance with these attribute values (all of the schema's, already coerced)."""
        key = tuple(exact(values[n]) for n in cls.schema.attributes)
        operator = cls._instances.get(key)
        if operator is None:
            operator = object.__new__(cls)
            operator.__dict__.update(values)
            operator.cache = {}
            if any(isinstance(v, (tuple, str)) and len(v) > _LONG for v in values.values()):  # pyright: ignore[reportUnknownArgumentType]
                return operator  # lives as long as its ops
            if len(cls._instances) >= _CACHE_LIMIT:
                cls._instances.clear()
            operator = cls._instances.setdefault(key, operator)
        return operator

    @classmethod
    def describe(cls, attrs: Mapping[str, Any] | None) -> Attributes:
        """Return the attributes of a new op: ``attrs`` checked, the others at their defaults.

        Raises:
            SchemaError: an attribute is unknown, missing, of another type, or out of its range.
        """
        key = _described_key(attrs)
        attributes = cls._described.get(key) if key is not None else None
        if attributes is None:
            schema = cls.schema
            values = {n: cls.check_attribute(n, attrs[n]) for n in schema.attributes if n in attrs} if attrs else {}
            extras: list[Entry] = []
            for name, value in (attrs or {}).items():
                if name not in schema.attributes:
                    if name not in BOOKKEEPING:
                        raise SchemaError(_unknown_attribute(cls, name))
                    type = infer_type(value)
                    extras.append((name, type, coerce(name, type, value)))
            entries: list[Entry] = []
            keys: list[Any] = []
            for name, f, entry, entry_is in schema.defaults:
                if f is not None and name in values:
                    if f.since <= 2 or exact(values[name]) != exact(f.default):
                        entries.append((name, f.type, values[name]))
                        keys.append(entry_key(name, f.type, values[name]))
                elif entry is not None:
                    entries.append(entry)
                    keys.append(entry_is)
                elif f is not None and f.since <= 2:
                    raise SchemaError(f"{cls.type} needs the attribute {name}: {words_for(f.type)}")
            bound = None
            if extras:
                entries = sorted([*entries, *extras], key=lambda e: e[0])
                keys = [entry_key(*e) for e in entries]
            elif not schema.in_attributes and cls.forward_class is None:
                bound = cls.with_values({n: values.get(n, f.default) for n, f in schema.attributes.items()})
            attributes = Attributes.of(cls.type, tuple(entries), tuple(keys), bound)
            if key is not None:
                if len(cls._described) >= _CACHE_LIMIT:
                    cls._described.clear()
                cls._described[key] = attributes
        return attributes

    @classmethod
    def check_attribute(cls, name: str, value: Any) -> Any:
        """Return ``value`` coerced to the type of the attribute ``name``. Raises `SchemaError` if it is of another type or out of its range."""
        field = cls.schema.attributes[name]
        coerced = coerce(name, field.type, value)
        many = isinstance(coerced, tuple)
        for element in coerced if many else (coerced,):  # pyright: ignore[reportUnknownVariableType]
            if field.choices is not None and element not in field.choices:
                raise SchemaError.one_of(f"attribute {name}", field.choices, element)  # pyright: ignore[reportUnknownArgumentType]
            if (field.low is not None and not element >= field.low) or (field.high is not None and not element <= field.high):
                low = "" if field.low is None else f"at least {field.low}"
                high = "" if field.high is None else f"at most {field.high}"
                raise SchemaError.must(f"attribute {name}", f"{' and '.join(x for x in (low, high) if x)}", f"{coerced!r}")
        return coerced


_PLAIN = frozenset({int, float, bool, str})
_WHOLE = frozenset({int})


def _described_key(attrs: Mapping[str, Any] | None) -> Any:
    """Return a key, different for any two settings; None for values of other types than Python's own, or long ones."""
    if not attrs:
        return ()
    parts: list[Any] = []
    for name, value in attrs.items():
        kind = value.__class__
        if kind is list or kind is tuple:
            classes = set(map(type, value))
            if len(value) > _LONG or not _PLAIN.issuperset(classes):
                return None
            value = tuple(value)
            parts.append((name, int, value) if classes <= _WHOLE else (name, exact(value)))  # or empty
        elif kind is int or kind is str:
            parts.append((name, value))
        elif kind in _PLAIN:
            parts.append((name, exact(value)))
        else:
            return None
    return tuple(parts)


def _rebind(type: str, values: Mapping[str, Any]) -> Operator:
    return get(type).with_values(values)


def _unknown_attribute(cls: type[Operator], name: str) -> str:
    names = ", ".join(cls.schema.attributes) or "none"
    return f"{cls.type} has no attribute {name!r}; its attributes are: {names}{did_you_mean(name, cls.schema.attributes)}"


# --- The effects of an operator's kernel on memory, as its results and its computation declare them.


_Cut: TypeAlias = tuple[Sequence[int], Sequence[int]] | None


def declared_effects(operator: Operator) -> Effects:
    """Return the effects of a kernel with these attribute values."""
    operands, results = {o.name: n for n, o in enumerate(operator.schema.operands)}, operator.schema.results
    views = {n: operands[r.view_of] for n, r in enumerate(results) if r.view_of is not None}
    computation, undone = (operator.computation, operator.undone_computation) if views else (None, None)
    cut = _cut(computation, undone)
    element = operands.get("Out@GRAD", operands.get("X"))
    return Effects(
        views=views,
        in_place={n: operands[r.updates] for n, r in enumerate(results) if r.updates is not None},
        takes_over=next(((n, operands[r.may_share]) for n, r in enumerate(results) if r.may_share is not None), None),
        layouts={n: r.layout for n, r in enumerate(results) if r.layout != "row"},
        turned=_view_order(computation, undone),
        cut=None if cut is None else tuple(cut[0]),
        dropped=() if cut is None else tuple(cut[1]),
        may_sum=type(operator).forward_class is not None,
        merges_rows=operator.merges_rows,
        elements={n: None if r.name.startswith("Rest") else element for n, r in enumerate(results) if r.name in operator.accumulates},
    )


def _view_order(computation: Computation | None, undone: Computation | None) -> Order | None:
    """Return the axis of its operand for each axis of a transposed view; None for other views."""
    if isinstance(computation, Transposition):
        return tuple(a % len(computation.axes) for a in computation.axes)
    if isinstance(undone, Transposition):
        axes = tuple(a % len(undone.axes) for a in undone.axes)
        return tuple(map(axes.index, range(len(axes))))
    return None


def _cut(computation: Computation | None, undone: Computation | None) -> _Cut:
    """Return the cut axes of a view of a part of its operand, and the dropped ones; None for other views."""
    if isinstance(computation, Slicing):
        return [axis for axis, _, _ in computation.cuts], computation.dropped
    if isinstance(computation, Unstacking):
        return (computation.axis,), (computation.axis,)
    if isinstance(undone, Stacking):
        return (undone.axis,), (undone.axis,)
    part = computation if isinstance(computation, Split) else undone if isinstance(undone, Concat) else None
    return None if part is None else ((part.axis,), ())
