"""`Operator`: one class is one operation, with its schema, shape rule, kind rule, gradient and kernel.

An instance is the class with attribute values: ``Softmax`` with ``axis=-1``. Instances are shared by all uses with equal
values, and each keeps the answers of its rules, so that a repeated layer costs a look-up.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

from foreshape.dims import Size
from foreshape.errors import SchemaError
from foreshape.operator.attributes import AttrType, coerce, exact, infer_type, words_for
from foreshape.operator.fields import (
    Attribute,
    BlockGradient,
    Gradient,
    NoGradient,
    Operand,
    Part,
    Reject,
    Result,
    Sample,
)
from foreshape.spec import LOD_TENSOR, Kind

_HOOKS = frozenset({"infer_shape", "infer_var_type", "kernel", "group_kernel", "backward", "draws", "gradient_ops", "work", "workspace", "carries"})
_SETTINGS = frozenset({"abstract", "accumulates", "again", "described_results", "gradient", "gradient_reads_dims", "moving", "random", "region", "rejects",
                       "samples", "side_effects", "sub_blocks", "type"})  # fmt: skip
_CACHE_LIMIT = 4096
_LONG = 256
"""A value with more elements than this is not kept for the next op with the same."""

BOOKKEEPING = frozenset({"op_namescope", "op_device", "op_callstack", "with_quant_attr", "use_mkldnn", "use_cudnn", "use_quantizer",
                         "mkldnn_data_type", "is_test"})  # fmt: skip
"""Attributes that any op may carry without a schema: hints to other programs, kept and never an error."""


class Schema:
    """What an operator class declared, in order."""

    __slots__ = ("attributes", "operand_names", "operands", "result_names", "results")

    def __init__(self, operands: Sequence[Operand], results: Sequence[Result], attributes: Sequence[Attribute]) -> None:
        self.operands = tuple(operands)
        self.results = tuple(results)
        self.attributes = {a.name: a for a in attributes}
        self.operand_names = frozenset(o.name for o in operands)
        self.result_names = frozenset(r.name for r in results)


class Again(NamedTuple):
    """Another operator, with the same attributes, that gives ``result`` in its slot ``gives``. ``takes``: its input slots -> slots of this one."""

    result: str
    type: str
    takes: Mapping[str, str]
    gives: str


class Operator:
    """The base of all operators. A subclass declares `operand`, `result` and `attribute` fields and defines:

    ``infer_shape(self, <slots>)``
        from the operands' specs (None where absent, a tuple for a list) to the results' specs; pure.
    ``kernel(self, <slots>)``
        from torch tensors to torch tensors. A keyword-only ``wants`` receives which results somebody needs; a keyword-only
        ``offsets`` one entry per slot: the `Offsets` of a ragged operand, None of a dense one, a list for a list; a keyword-only
        ``into`` None, or the operand's tensor that a result declared with ``may_share`` is to be written into.
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
        keyword-only ``wants`` receives which results somebody needs; a keyword-only ``strided`` the slots whose operands need not lie in
        a row (a transposed view); a keyword-only ``rows`` the bytes of the operands that are sparse rows, which no spec has.
    ``draws(self)``
        of a random operator: whether it draws from the executor's generator; the default says so where it has no ``seed`` of its own.
    ``carries(self, <slots>)``
        from the operands' specs to a mapping, result slot -> bytes, of what results keep alive beside what they are described to be. A
        keyword-only ``wants`` receives which results somebody needs.
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
    grad_class: ClassVar[type[Operator] | None] = None
    forward_class: ClassVar[type[Operator] | None] = None
    sub_blocks: ClassVar[tuple[str, ...]] = ()
    """The attributes that name blocks which it runs. Such an operator has no shape rule and no kernel: it is its block."""
    region: ClassVar[str] = ""
    """How it runs its block; `foreshape.program.regions` and `foreshape.lowering.regions` have the forms."""
    side_effects: ClassVar[bool] = False
    random: ClassVar[bool] = False
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
    gradient_reads_dims: ClassVar[tuple[str, ...]] = ()
    """Operands of which its gradient operator reads the dims alone."""
    apart: ClassVar[Callable[..., Part | None] | None] = None
    """Of a gradient operator: how one of its results is computed by another operator; see `gradient`."""
    kernel_wants: ClassVar[bool] = False
    kernel_offsets: ClassVar[bool] = False
    kernel_into: ClassVar[bool] = False
    workspace_wants: ClassVar[bool] = False
    workspace_strided: ClassVar[bool] = False
    workspace_rows: ClassVar[bool] = False
    carries_wants: ClassVar[bool] = False
    _instances: ClassVar[dict[Any, Operator]]
    _described: ClassVar[dict[Any, Attributes]]

    cache: dict[Any, Any]
    """What the infer room found for this operator: key of input specs -> answer."""

    def infer_shape(self, *specs: Any, **named: Any) -> Any:  # the widest signature there is, so that any slots may take its place
        raise SchemaError(f"{self.type} has no shape rule")

    def infer_var_type(self, *specs: Any, **named: Any) -> Kind | tuple[Kind, ...]:
        return LOD_TENSOR

    kernel: ClassVar[Callable[..., Any]]

    def draws(self) -> bool:
        return self.random and not getattr(self, "seed", 0)

    def workspace(self, *specs: Any, **named: Any) -> Size:
        return 0

    def carries(self, *specs: Any, **named: Any) -> Mapping[str, Size]:
        return {}

    def carried(self, specs: Sequence[Any], wanted: Sequence[bool]) -> Mapping[str, Size]:
        """What `carries` says for these operands, asked with the results that are wanted where it takes them."""
        rule: Callable[..., Mapping[str, Size]] = self.carries
        return rule(*specs, wants=tuple(wanted)) if self.carries_wants else rule(*specs)

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        own = cls.__dict__
        if own.get("abstract", False) or "type" not in own:
            cls.abstract = True
            return
        cls.abstract = False
        _define(cls)

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
        """The attributes of a new op: given values checked, the others at their defaults.

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
        """``value`` coerced to the attribute's type. Raises `SchemaError` where it is of another type or out of its range."""
        field = cls.schema.attributes[name]
        held = coerce(name, field.type, value)
        many = isinstance(held, tuple)
        for one in held if many else (held,):  # pyright: ignore[reportUnknownVariableType]
            if field.choices is not None and one not in field.choices:
                raise SchemaError(f"attribute {name} must be one of {', '.join(map(repr, field.choices))}; seen {one!r}")
            if (field.low is not None and not one >= field.low) or (field.high is not None and not one <= field.high):
                low = "" if field.low is None else f"at least {field.low}"
                high = "" if field.high is None else f"at most {field.high}"
                raise SchemaError(f"attribute {name} must be {' and '.join(x for x in (low, high) if x)}; seen {held!r}")
        return held


class Attributes:
    """All attributes of an op, interned: those of its schema, bound in `operator`, and others that are only kept.

    ``entries`` are (name, type, value) in the order of the file; ``op_role`` and ``op_role_var`` stand there without a value,
    since each op has its own.
    """

    __slots__ = ("__weakref__", "_gradient", "entries", "error", "operator", "sub_blocks", "type", "values", "wire")

    type: str
    entries: tuple[tuple[str, AttrType, Any], ...]
    values: dict[str, Any]
    operator: Operator | None
    """None where the op type is unknown, or where `error` says what is wrong with the attributes."""
    error: SchemaError | None
    wire: Any
    """A place for the wire room to keep the serialised form."""
    sub_blocks: tuple[int, ...]
    """The blocks that an op with these attributes runs."""
    _gradient: Attributes | None

    @staticmethod
    def of(type: str, entries: tuple[tuple[str, AttrType, Any], ...]) -> Attributes:
        key = (type, exact(entries))
        found = _attributes.get(key)
        if found is None:
            found = object.__new__(Attributes)
            found.type, found.entries = type, entries
            found.values = {n: v for n, _, v in entries}
            found.operator = None
            found.error = None
            found.wire = None
            found._gradient = None
            found.sub_blocks = _sub_blocks(entries)
            cls = find(type)
            if cls is not None:
                try:
                    found.operator = cls.with_values(_loaded_values(cls, found.values))
                except SchemaError as error:
                    found.error = error
            found = _attributes.setdefault(key, found)
        return found


    @property
    def gradient(self) -> Attributes:
        """The same attributes for the operator ``<type>_grad``."""
        found = self._gradient
        if found is None:
            found = self._gradient = Attributes.of(self.type + "_grad", self.entries)
        return found


def _sub_blocks(entries: tuple[tuple[str, AttrType, Any], ...]) -> tuple[int, ...]:
    out: list[int] = []
    for _, type, value in entries:
        if type is AttrType.BLOCK and isinstance(value, int):
            out.append(value)
        elif type is AttrType.BLOCKS and isinstance(value, tuple):
            out.extend(value)  # pyright: ignore[reportUnknownArgumentType]
    return tuple(out)


_attributes: WeakValueDictionary[Any, Attributes] = WeakValueDictionary()


def _loaded_values(cls: type[Operator], given: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in cls.schema.attributes.items():
        if name in given:
            values[name] = cls.check_attribute(name, given[name])
        elif field.default.__class__.__name__ == "_Required":
            raise SchemaError(f"{cls.type} needs the attribute {name}: {words_for(field.type)}")
        else:
            values[name] = field.default
    return values


_PLAIN = frozenset({int, float, bool, str})


def _described_key(attrs: Mapping[str, Any] | None) -> Any:
    """A key that tells any two settings apart; None where values are of other types than Python's own, or long."""
    if not attrs:
        return ()
    parts: list[Any] = []
    for name, value in attrs.items():
        if value.__class__ is int or value.__class__ is str:
            parts.append((name, value))
            continue
        if value.__class__ is list or value.__class__ is tuple:
            if len(value) > _LONG or not _PLAIN.issuperset(map(type, value)):
                return None
            value = tuple(value)
        elif value.__class__ not in _PLAIN:
            return None
        parts.append((name, exact(value)))
    return tuple(parts)


def _rebind(type: str, values: Mapping[str, Any]) -> Operator:
    return get(type).with_values(values)


def _unknown_attribute(cls: type[Operator], name: str) -> str:
    known = ", ".join(cls.schema.attributes) or "none"
    return f"{cls.type} has no attribute {name!r}; its attributes are: {known}"


# --- the registry

_registry: dict[str, type[Operator]] = {}
_walk_lock = threading.RLock()
_walked = False


def find(type: str) -> type[Operator] | None:
    """The operator of this type, or None. The modules of this package are imported at the first question."""
    found = _registry.get(type)
    if found is None and not _walked:
        _walk()
        found = _registry.get(type)
    return found


def get(type: str) -> type[Operator]:
    """The operator of this type. Raises `SchemaError` where there is none."""
    found = find(type)
    if found is None:
        import difflib

        near = difflib.get_close_matches(type[:100], _registry, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise SchemaError(f"there is no operator {type[:100]!r}{hint}")
    return found


def all_operators() -> dict[str, type[Operator]]:
    """Every operator that is known now, by type, gradient operators included."""
    if not _walked:
        _walk()
    return dict(_registry)


def _walk() -> None:
    global _walked
    with _walk_lock:
        if not _walked:
            package = importlib.import_module("foreshape.ops")
            for module in pkgutil.walk_packages(package.__path__, "foreshape.ops."):
                importlib.import_module(module.name)
            _walked = True


# --- the check of a definition


def _define(cls: type[Operator]) -> None:
    fields: dict[str, Operand | Result | Attribute] = {}
    for base in reversed(cls.__mro__):
        for name, value in list(base.__dict__.items()):
            if isinstance(value, (Operand, Result, Attribute)):
                held = value if value.name else replace(value, name=name)
                fields[held.name] = held
            elif isinstance(value, Gradient) and not isinstance(cls.__dict__.get("gradient"), NoGradient):
                cls.gradient = value
    where = f"operator {cls.__module__}.{cls.__qualname__}"
    for name in cls.__dict__:
        public = not name.startswith("_")
        if public and name not in fields and name not in _HOOKS and name not in _SETTINGS and callable(cls.__dict__[name]):
            raise SchemaError(f"{where}: {name} is not a hook; hooks are {', '.join(sorted(_HOOKS))} (helpers start with _)")
    cls.schema = Schema(
        [f for f in fields.values() if isinstance(f, Operand)],
        [f for f in fields.values() if isinstance(f, Result)],
        [f for f in fields.values() if isinstance(f, Attribute)],
    )
    _check_slots_named(cls, where)
    names = [o.name for o in cls.schema.operands]
    for hook in ("infer_shape", "kernel") if not cls.sub_blocks else ():
        function = getattr(cls, hook, None)
        if function is None or function is getattr(Operator, hook, None):
            raise SchemaError(f"{where} needs {hook}({', '.join(['self', *names])})")
        _check_parameters(function, names, f"{where}: {hook}")
    if cls.infer_var_type is not Operator.infer_var_type:
        _check_parameters(cls.infer_var_type, names, f"{where}: infer_var_type")
    if cls.workspace is not Operator.workspace:
        _check_parameters(cls.workspace, names, f"{where}: workspace")
    if cls.carries is not Operator.carries:
        _check_parameters(cls.carries, names, f"{where}: carries")
    if not cls.sub_blocks:
        note_keywords(cls, cls.kernel)
        check_in_place(cls, where)
    if cls.gradient is None and "gradient_ops" not in cls.__dict__ and not hasattr(cls, "gradient_ops"):
        raise SchemaError(f"{where} says nothing about its gradient: declare one, or gradient = ZERO_GRADIENT, "
                          "NOT_DIFFERENTIABLE or NOT_WRITTEN")  # fmt: skip
    register(cls)
    if isinstance(cls.gradient, Gradient):
        from foreshape.operator.gradient_class import gradient_class

        cls.grad_class = gradient_class(cls, cls.gradient, where)


def note_keywords(cls: type[Operator], kernel: Callable[..., Any]) -> None:
    """Keep which keyword-only parameters a kernel has."""
    parameters = inspect.signature(kernel).parameters
    cls.kernel_wants = "wants" in parameters
    cls.kernel_offsets = "offsets" in parameters
    cls.kernel_into = "into" in parameters
    rule = inspect.signature(cls.workspace).parameters
    cls.workspace_wants, cls.workspace_strided, cls.workspace_rows = "wants" in rule, "strided" in rule, "rows" in rule
    cls.carries_wants = "wants" in inspect.signature(cls.carries).parameters


def check_in_place(cls: type[Operator], where: str) -> None:
    """Refuse a result that may take over an operand's memory without a kernel that can, a kernel that can for none, and two results."""
    sharing = [r.name for r in cls.schema.results if r.may_share is not None]
    if len(sharing) > 1:
        raise SchemaError(f"{where}: one result may take over an operand's memory; seen {' and '.join(sharing)}")
    if sharing and not cls.kernel_into:
        raise SchemaError(f"{where}: {sharing[0]} may share memory, so that its kernel must have the keyword-only parameter into")
    if cls.kernel_into and not sharing:
        raise SchemaError(f"{where}: its kernel has the parameter into, and no result says with may_share whose memory that is")


def register(cls: type[Operator]) -> None:
    """Make an operator known by its type. Raises `SchemaError` where the type is taken by another class."""
    taken = _registry.get(cls.type)
    if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
        raise SchemaError(f"operator {cls.__module__}.{cls.__qualname__}: the type {cls.type!r} is taken by {taken.__module__}.{taken.__qualname__}")
    cls._instances = {}  # pyright: ignore[reportPrivateUsage]
    cls._described = {}  # pyright: ignore[reportPrivateUsage]
    _registry[cls.type] = cls


def _check_slots_named(cls: type[Operator], where: str) -> None:
    schema = cls.schema
    for o in schema.operands:
        if o.same_type_as is not None and o.same_type_as not in schema.operand_names:
            raise SchemaError(f"{where}: {o.name} has the same type as {o.same_type_as}, which is not an operand")
    for r in schema.results:
        for other in (r.may_share, r.view_of, r.updates):
            if other is not None and other not in schema.operand_names:
                raise SchemaError(f"{where}: {r.name} names {other}, which is not an operand")


def _check_parameters(function: Callable[..., Any], names: Sequence[str], what: str) -> None:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    seen = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    if seen != list(names):
        raise SchemaError(f"{what} must have the parameters ({', '.join(['self', *names])}); seen ({', '.join(['self', *seen])})")
