"""`Operator`: one class is one operation, with its schema, shape rule, kind rule, gradient and kernel.

An instance is the class with attribute values: ``Softmax`` with ``axis=-1``. Instances are shared by all uses with equal
values, and each keeps the answers of its rules, so that a repeated layer costs a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from foreshape.dims import Size
from foreshape.errors import SchemaError
from foreshape.operator.attributes import AttrType, coerce, exact, infer_type, words_for
from foreshape.operator.bound_attributes import BOOKKEEPING, Attributes
from foreshape.operator.composition import Composition
from foreshape.operator.computations import Computation
from foreshape.operator.definition import define
from foreshape.operator.fields import BlockGradient, Gradient, NoGradient, Part, Reject, Sample
from foreshape.operator.registry import find, get
from foreshape.operator.schema import Again, Schema
from foreshape.operator.totals import Totals
from foreshape.operator.traits import ShardingRule, usual_rule
from foreshape.spec import LOD_TENSOR, Kind

_CACHE_LIMIT = 4096
_LONG = 256
"""A value with more elements than this is not kept for the next op with the same."""


class _GradientClass:
    """What ``Operator.grad_class`` is."""

    def __get__(self, operator: Operator | None, cls: type[Operator]) -> type[Operator] | None:
        return find(f"{cls.type}_grad") if isinstance(cls.gradient, Gradient) else None


class Operator:
    """The base of all operators. A subclass declares `operand`, `result` and `attribute` fields and defines:

    ``infer_shape(self, <slots>)``
        from the operands' specs (None where absent, a tuple for a list) to the results' specs; pure.
    ``kernel(self, <slots>)``
        from torch tensors to torch tensors. A keyword-only ``requested`` receives which results are requested: that somebody needs;
        a keyword-only ``offsets`` one entry per slot: the `Offsets` of
        a ragged operand, None of a dense one, a list for a list; a keyword-only ``into`` None, or the operand's tensor that a result
        declared with ``may_share`` is to be written into; a keyword-only ``use``, None by default, the `foreshape.operator.use.Use`
        that it has in a compiled step: the names of its variables, the element types of its results, and a count of its runs.
    ``group_kernel(self, <slots>)``
        of an update, where there is one: many updates at once, each slot a list (or None), everything changed in place.
    ``backward`` decorated with `gradient`, or ``gradient_ops(self, names)``, or ``gradient = ZERO_GRADIENT`` (or
        NOT_DIFFERENTIABLE, NOT_WRITTEN)
        the gradient.
    ``work(self, <slots>)``
        from the operands' specs to the multiplications that the kernel makes, where those are more than the elements that it
        writes; the engine chooses threads by it.
    ``workspace(self, <slots>)``
        from the operands' specs to the bytes that the kernel needs while it runs, besides its operands and results: an upper bound. A
        keyword-only ``requested`` receives which results are requested; a keyword-only ``strided`` the slots whose operands need not lie in
        a row (a transposed view); a keyword-only ``rows`` the bytes of the operands that are sparse rows, which no spec has.
    ``acts(self)``
        whether it is to run though nobody needs its results; the default is its ``side_effects``.
    ``draws(self)``
        of a random operator: whether it draws from the executor's generator; the default says so where it has no ``seed`` of its own.
    ``retained_bytes(self, <slots>)``
        from the operands' specs to a mapping, result slot -> bytes, of what results keep alive beside what they are described to be. A
        keyword-only ``requested`` receives which results are requested.
    ``rows_bytes(self, <slots>, *, rows)``
        of an operator that gives sparse rows: at most how many bytes these have, where ``rows`` are the bytes of those that it is given; the
        default is that.
    ``computes(self)``
        what it does with these attributes, where the rewrites of a step are to know it: one of `foreshape.operator.computations`. Its
        gradient operator answers ``undoes(self)`` with that; a gradient operator that is a class of its own defines ``undoes``.
    ``totals(self)``
        the results that are sums or means over the examples of the operands, result slot -> `foreshape.operator.totals.Total`: by that a figure over
        several batches, or ranks, is what it is over one batch of all examples. It is asked where the operands grow with the examples and the
        result does not.
    ``sharding_rule(self, <slots>)``
        from the operands' specs to the `foreshape.operator.traits.ShardingRule`: along which axes the operands can be cut into parts that each give a part of
        the results, as ranks need it that have a part of a value each. None, the default, where along none; of an operator that is ``per_element``
        they are known.
    ``expand(self, of, <slots>)``
        of an operator that is made of others: appends them by the `foreshape.operator.composition.Composition` ``of`` and returns the parts that are its
        results. It has no kernel: a step has the others in its place.
    ``infer_var_type(self, <slots>)``
        the kind of the result, or a tuple of kinds; the default is LOD_TENSOR.

    The definition is checked when the class is made.

    Raises:
        SchemaError: a misspelled hook, parameters that are not the slots, no word about the gradient, or a taken name.
    """

    type: ClassVar[str] = ""
    abstract: ClassVar[bool] = True
    schema: ClassVar[Schema]
    samples: ClassVar[Sequence[Sample]] = ()
    rejects: ClassVar[Sequence[Reject]] = ()
    gradient: ClassVar[Gradient | NoGradient | BlockGradient | Callable[..., Any] | None] = None
    grad_class = _GradientClass()
    """The operator that `gradient` declared, made when it is asked for; None where none was declared."""
    forward_class: ClassVar[type[Operator] | None] = None
    sub_blocks: ClassVar[tuple[str, ...]] = ()
    """The attributes that name blocks which it runs. Such an operator has no shape rule and no kernel: it is its block."""
    region: ClassVar[str] = ""
    """How it runs its block; `foreshape.infer.regions` and `foreshape.lowering.regions` have the forms."""
    side_effects: ClassVar[bool] = False
    collective: ClassVar[bool] = False
    """Whether all ranks take part in it, so that those of a program run in its own order, on every rank."""
    awaits: ClassVar[bool] = False
    """Whether it waits for what collectives have only started on its operands; for any other reader they wait themselves."""
    random: ClassVar[bool] = False
    multiplies: ClassVar[bool] = False
    """Whether its work is products of its operands' numbers and their sums, so that it may compute in 16 bits where the others do not."""
    multiplies_steps: ClassVar[bool] = False
    """Whether it multiplies step by step inside, a few rows at a time, which is done in the precision of its operands and is not lowered."""
    described_results: ClassVar[bool] = False
    """Whether its results are what their variables say, as those of feed are, and no rule gives them."""
    accumulates: ClassVar[tuple[str, ...]] = ()
    """Result slots whose variables' old values it takes in, as an array of which one element is written: the kernel has a
    keyword-only ``before``, a list with those values (None where there is none), and may change them in place."""
    again: ClassVar[Again | None] = None
    """How a result can be computed again from others, without the operator itself."""
    moving: ClassVar[tuple[str, ...]] = ()
    """Result slots that move on in every run, as moving averages do, and on whose old values no other result depends where they move:
    who runs the operator once more lets it move copies."""
    family: ClassVar[str] = ""
    """Its sort, where it is drawn: "activation", "image", "loss", "norm", "product", "sequence", "shape", "table" or "control"; without one it is as
    the others are in the folder of `foreshape.ops` that its class, or a base of it, is from."""
    per_element: ClassVar[bool] = False
    """Whether each element of a result is made of the elements at its place alone, and of draws. Operands of fewer dims stand at the
    attribute ``axis``, where there is one, or line up their last dims, and dims of 1 are as many as needed."""
    linear: ClassVar[tuple[str, ...]] = ()
    """Operands in which, taken together, its result is linear while the others stay: it gives sums of what it is given for sums, and zeros for zeros
    (but for the ``bias`` of `scale`)."""
    elementwise_state: ClassVar[tuple[str, ...] | None] = None
    """Of an update, which changes Param by Grad: the operands of the parameter's shape that it keeps, where each element is updated by itself, so that
    any part of it can be updated elsewhere; None where an update depends on more."""
    over_ranks: ClassVar[str] = ""
    """Of an operator that takes statistics over the examples of a batch: the type of the one that takes them over those of all ranks, which has besides
    an operand ``Counts``, one number, 0 where nothing of a rank counts."""
    merges_rows: ClassVar[bool] = True
    """Whether sparse rows that it is given are merged first, so that each id comes once; otherwise it takes them as they come, and rows that it gives
    have the values of those that it was given."""
    reads_numbers: ClassVar[tuple[str, ...]] = ()
    """Operands that are one number, whose rule has it as the spec's value where the program says it, though they are of floats."""
    gradient_reads_dims: ClassVar[tuple[str, ...]] = ()
    """Operands of which its gradient operator reads the dims alone."""
    apart: ClassVar[Callable[..., Part | None] | None] = None
    """Of a gradient operator: how one of its results is computed by another operator; see `gradient`."""
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
    """What the infer room found for this operator: key of input specs -> answer."""

    # These hooks have the widest signature there is, so that any slots may take its place.

    def infer_shape(self, *specs: Any, **named: Any) -> Any:
        """The results' specs from those of the operands, ``specs`` (or ``named`` slots)."""
        raise SchemaError(f"{self.type} has no shape rule")

    def infer_var_type(self, *specs: Any, **named: Any) -> Kind | tuple[Kind, ...]:
        """The results' kinds from the operands' ``specs`` (or ``named`` slots)."""
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
        """The bytes that the kernel needs besides operands and results, from the ``specs`` and what else is ``named``."""
        return 0

    def rows_bytes(self, *specs: Any, **named: Any) -> Size:
        """At most how many bytes sparse rows that it gives have, from the ``specs`` and the ``named`` bytes of those that it is given."""
        return named["rows"]

    def retained_bytes(self, *specs: Any, **named: Any) -> Mapping[str, Size]:
        """Result slot -> the bytes that it keeps alive beside its own, from the ``specs`` and what else is ``named``."""
        return {}

    @classmethod
    def retains(cls) -> bool:
        """Whether its results keep more alive than they are described to be."""
        return cls.retained_bytes is not Operator.retained_bytes

    def computes(self) -> Computation | None:
        return None

    def undoes(self) -> Computation | None:
        return None

    def totals(self) -> Totals:
        return {}

    def sharding_rule(self, *specs: Any, **named: Any) -> ShardingRule | None:
        """How axes of results follow from those of the operands, from their ``specs`` (or ``named`` slots)."""
        return usual_rule(self, specs)

    def retained(self, specs: Sequence[Any], requested: Sequence[bool]) -> Mapping[str, Size]:
        """What `retained_bytes` says for these operands' ``specs``, asked with the results that are requested where it takes them."""
        rule: Callable[..., Mapping[str, Size]] = self.retained_bytes
        return rule(*specs, requested=tuple(requested)) if self.retained_bytes_requested else rule(*specs)

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        own = cls.__dict__
        if own.get("abstract", False) or "type" not in own:
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
        """The instance with these attribute values (all of the schema's, already coerced)."""
        key = tuple(exact(values[n]) for n in cls.schema.attributes)
        found = cls._instances.get(key)
        if found is None:
            found = object.__new__(cls)
            found.__dict__.update(values)
            found.cache = {}
            if any(isinstance(v, (tuple, str)) and len(v) > _LONG for v in values.values()):  # pyright: ignore[reportUnknownArgumentType]
                return found  # lives as long as its ops
            if len(cls._instances) >= _CACHE_LIMIT:
                cls._instances.clear()
            found = cls._instances.setdefault(key, found)
        return found

    @classmethod
    def describe(cls, attrs: Mapping[str, Any] | None) -> Attributes:
        """The attributes of a new op: those in ``attrs`` checked, the others at their defaults.

        Raises:
            SchemaError: an attribute that is unknown, missing, of another type, or out of its range.
        """
        key = _described_key(attrs)
        found = cls._described.get(key) if key is not None else None
        if found is None:
            entries = [(n, f.type, cls.check_attribute(n, attrs[n])) for n, f in cls.schema.attributes.items() if attrs and n in attrs]
            for name, value in (attrs or {}).items():
                if name not in cls.schema.attributes:
                    if name not in BOOKKEEPING:
                        raise SchemaError(_unknown_attribute(cls, name))
                    type = infer_type(value)
                    entries.append((name, type, coerce(name, type, value)))
            present = {e[0] for e in entries}
            for name, f in cls.schema.attributes.items():
                if name not in present:
                    if f.default.__class__.__name__ == "_Required":
                        raise SchemaError(f"{cls.type} needs the attribute {name}: {words_for(f.type)}")
                    entries.append((name, f.type, f.default))
            entries += [("op_role", AttrType.INT, None), ("op_role_var", AttrType.STRINGS, None)]
            entries.sort(key=lambda e: e[0])
            found = Attributes.of(cls.type, tuple(entries))
            if key is not None:
                if len(cls._described) >= _CACHE_LIMIT:
                    cls._described.clear()
                cls._described[key] = found
        return found

    @classmethod
    def check_attribute(cls, name: str, value: Any) -> Any:
        """``value`` coerced to the type of the attribute ``name``. Raises `SchemaError` where it is of another type or out of its range."""
        field = cls.schema.attributes[name]
        held = coerce(name, field.type, value)
        many = isinstance(held, tuple)
        for one in held if many else (held,):  # pyright: ignore[reportUnknownVariableType]
            if field.choices is not None and one not in field.choices:
                raise SchemaError.must(f"attribute {name}", f"one of {', '.join(map(repr, field.choices))}", f"{one!r}")
            if (field.low is not None and not one >= field.low) or (field.high is not None and not one <= field.high):
                low = "" if field.low is None else f"at least {field.low}"
                high = "" if field.high is None else f"at most {field.high}"
                raise SchemaError.must(f"attribute {name}", f"{' and '.join(x for x in (low, high) if x)}", f"{held!r}")
        return held


_PLAIN = frozenset({int, float, bool, str})
_WHOLE = frozenset({int})


def _described_key(attrs: Mapping[str, Any] | None) -> Any:
    """A key that tells any two settings apart; None where values are of other types than Python's own, or long."""
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
    known = ", ".join(cls.schema.attributes) or "none"
    return f"{cls.type} has no attribute {name!r}; its attributes are: {known}"
