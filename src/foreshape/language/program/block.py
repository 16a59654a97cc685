"""`Block`: the variables and ops of one scope, and the methods to change them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from foreshape.core.hints import did_you_mean
from foreshape.core.spec import Spec
from foreshape.errors import DescriptionError, SchemaError
from foreshape.language.operator.attributes import instead_of_variable, shown
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import get
from foreshape.language.operator.require import RuleError
from foreshape.language.program.call_site import Site, call_site, here, placed_error
from foreshape.language.program.current import is_default
from foreshape.language.program.declared import DeclaredForm
from foreshape.language.program.elsewhere import elsewhere
from foreshape.language.program.guards import Guards
from foreshape.language.program.messages import describe_failure
from foreshape.language.program.names import names_of
from foreshape.language.program.op import Op, Slots
from foreshape.language.program.scopes import current_scope, placed
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.language.program.program import Program


class LazyRecords(Protocol):
    """The variables and ops of a loaded block, turned into objects at the first look; see `foreshape.language.wire.records`."""

    forms: dict[str, DeclaredForm]

    def fill(self) -> None:
        """Make the objects, unless done before."""
        ...

    def variable(self, name: str) -> Variable:
        """Return the variable of this name."""
        ...

    def infer(self, guards: Guards) -> bool:
        """Infer all ops, and add open demands to the guards; return False if objects are needed."""
        ...


class Block:
    """One scope of a program, number ``idx``. Names are looked up here, then in the parent, number ``parent_idx``, and so on."""

    __slots__ = ("__weakref__", "before", "forward_idx", "idx", "ops", "parent_idx", "program", "records", "unknown_fields", "vars")

    vars: dict[str, Variable]
    ops: list[Op]
    records: LazyRecords | None
    """The loaded records, until the first look at its variables and ops."""

    def __init__(self, program: Program, idx: int, parent_idx: int) -> None:
        self.program = program
        self.idx = idx
        self.parent_idx = parent_idx
        self.forward_idx = -1
        self.vars, self.ops, self.records = {}, [], None
        self.unknown_fields = b""
        self.before: dict[str, tuple[Variable, Spec | None, bool]] | None = None
        """While an op's block is written: the specs of outer variables before its writes."""

    def keep_records(self, records: LazyRecords) -> None:
        """Keep the ``records`` of a file: variables and ops are made of them when somebody looks at these."""
        del self.vars, self.ops
        self.records = records

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Make and return ``vars`` and ``ops`` at their first use."""
            if name not in ("ops", "vars"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            records = self.records
            if records is not None:
                records.fill()
            return object.__getattribute__(self, name)

    @property
    def parent(self) -> Block | None:
        return self.program.blocks[self.parent_idx] if 0 <= self.parent_idx < len(self.program.blocks) else None

    def find(self, name: str) -> Variable | None:
        """Return the variable of this name here or in a parent; for a backward block, also in the forward block."""
        variable = self.vars.get(name)
        if variable is not None:
            return variable
        block, blocks = self, self.program.blocks
        count = len(blocks)
        while True:
            if 0 <= block.forward_idx < count and (variable := blocks[block.forward_idx].vars.get(name)) is not None:
                return variable
            if not 0 <= block.parent_idx < count or (parent := blocks[block.parent_idx]) is block:
                return None
            block = parent
            variable = block.vars.get(name)
            if variable is not None:
                return variable

    def var(self, name: str) -> Variable:
        """Return the variable of this name here or in a parent. Raises `SchemaError` if there is none."""
        variable = self.find(name)
        if variable is None:
            raise SchemaError(f"there is no variable {name!r} in block {self.idx} or its parents{did_you_mean(name, self.names_within_reach())}")
        return variable

    def names_within_reach(self) -> Iterator[str]:
        """Yield the names of the variables here and in the parents."""
        yield from self.vars
        if self.parent is not None and self.parent is not self:
            yield from self.parent.names_within_reach()

    def outer_names(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the outer names read and written by this block and the blocks within it."""
        names = names_of(self)
        return names.outer_reads, names.outer_writes

    def forward_names(self) -> frozenset[str]:
        """Return the reads of this block from outside, including variables of its forward block."""
        return names_of(self).reads - self.vars.keys()

    # --- variables

    def add_variable(self, variable: Variable) -> None:
        """Take in a variable. Raises `SchemaError` if the name is taken or empty."""
        name = variable.name
        if name in self.vars:
            raise self._taken(name, variable)
        if not name:
            raise SchemaError("a variable's name must not be empty")
        self.vars[name] = variable
        self.program.touch()

    def _taken(self, name: str, variable: Variable) -> DescriptionError:
        first = self.vars[name]
        line = first.call_site
        words = f"the name {name!r} is taken in this block" + (f", since {line.short()}" if line is not None else "")
        second_line = call_site(variable.site)
        if (
            line is not None and second_line is not None and line.line == second_line.line and line.source_line() == second_line.source_line()
        ):  # a cell may be another file each time
            words += ", which is this line, run before"
        if self.idx == 0:
            anew = "to describe a network anew call fs.reset() first, or describe it" if is_default(self.program) else "describe another network"
            words += f"; {anew} in a program of its own, `with fs.program() as p:`"
        return describe_failure(RuleError(words, {"first": None}, SchemaError), variable.role_words, {"first": [first]}, call_site(variable.site))

    def create_variable(self, name: str, spec: Spec, *, site: Site = None, **flags: Any) -> Variable:
        """Make the variable ``name`` of a known spec, at the line ``site``. ``flags``: persistable, stop_gradient, is_parameter, trainable, need_check_feed."""
        variable = Variable.make(name, self, spec, site if site is not None else here())
        for flag, value in flags.items():
            setattr(variable, flag, value)
        self.add_variable(variable)
        return variable

    def remove_variable(self, name: str) -> None:
        """Drop the variable ``name``, unused by ops of this block. Raises `SchemaError` if one uses it."""
        for op in self.ops:
            if name in op.input_names() or name in op.output_names():
                raise SchemaError(f"{name} is used by {op.type}; remove the op first")
        self.vars.pop(name, None)
        self.program.touch()

    # --- ops

    def apply(self, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, prefix: str | None = None) -> Any:
        """Append an op of this ``type``; ``inputs``, ``attrs`` and ``prefix`` as for `append_op`. Returns a variable, or a tuple of one for each result."""
        op = self.append_op(type, inputs, None, attrs, prefix=prefix)
        outputs, variables = op.output_slots, self.vars
        out: list[Any] = []
        for result in get(type).schema.results:
            names = outputs.get(result.name, ())
            out.append([variables[n] for n in names] if result.many else variables[names[0]] if names else None)
        return out[0] if len(out) == 1 else tuple(out)

    def append_op(
        self,
        type: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        *,
        role: int | None = None,
        role_variables: tuple[str, ...] = (),
        prefix: str | None = None,
        site: Site = None,
        index: int | None = None,
    ) -> Op:
        """Append an op; its results are inferred at once.

        Args:
            inputs: slot -> a variable or its name, or a list of them.
            outputs: slot -> a variable or a name (made if new), or a list. Slots left out are made and named.
            attrs: attribute values; the others are at their defaults.
            prefix: begins made-up names; by default the op's type.
            index: its position; by default the end. role, role_variables, site: its purpose, its parameter and gradient, and its line.

        Raises:
            SchemaError, TypeMismatchError, ShapeError: as the operator demands, with the user's lines.
        """
        if site is None:
            site = here()
        try:
            cls = get(type)
            attributes = cls.describe(attrs)
            reads = self._names(cls, inputs, cls.schema.operand_names, "input")
            writes = {} if outputs is None else self._names(cls, outputs, cls.schema.result_names, "output")
        except DescriptionError as error:
            raise placed_error(error, type, site) from None
        return self.append_described(attributes, reads, writes, role, role_variables, prefix, site, index)

    def append_described(
        self, attributes: Attributes, inputs: Slots, outputs: Slots, role: int | None = None, role_variables: tuple[str, ...] = (),
        prefix: str | None = None, site: Site = None, index: int | None = None,
    ) -> Op:  # fmt: skip
        """Append an op with known attributes and names in its slots; otherwise as `append_op`.

        Args:
            attributes: with the operator.
            inputs, outputs: slot -> names.
            role, role_variables, prefix, site, index: as for `append_op`; the site is not searched.
        """
        program = self.program
        op = Op(self, attributes, inputs, outputs, program.role if role is None else role, role_variables, site)
        program.inference.infer(self, op, True, prefix)
        scope = current_scope()
        if scope:
            op.attributes = placed(attributes, scope)
        if index is None:
            self.ops.append(op)
        else:
            self.ops.insert(index, op)
        program.version += 1
        return op

    def remove_op(self, op: Op) -> None:
        """Remove an op; variables made by it alone keep their spec and have no producer."""
        for index, candidate in enumerate(self.ops):
            if candidate is op:
                del self.ops[index]
                break
        for name in op.output_names():
            variable = self.vars.get(name)
            if variable is not None and variable.op is op:
                variable.op = None
        self.program.touch()

    def _names(self, cls: type[Operator], operands: Mapping[str, Any], slots: frozenset[str], side: str) -> Slots:
        out: Slots = {}
        program = self.program
        for slot, value in operands.items():
            if slot not in slots:
                raise SchemaError(f"{cls.type} has no {side} {slot!r}; its {side}s are: {', '.join(sorted(slots)) or 'none'}")
            if value is None:
                continue
            if value.__class__ is Variable and value.block.program is program:  # as nearly always
                out[slot] = (value.name,)
                continue
            names: list[str] = []
            for operand in value if isinstance(value, (list, tuple)) else (value,):  # pyright: ignore[reportUnknownVariableType]
                if isinstance(operand, Variable):
                    if operand.block.program is not program:
                        site = operand.call_site
                        raise SchemaError(f"{operand.name} is a variable of another program" + (f", made at {site.short()}" if site is not None else ""))
                    names.append(operand.name)
                elif isinstance(operand, str):
                    names.append(operand)
                else:
                    raise SchemaError(f"{slot} of {cls.type} takes variables; seen {shown(operand)}{instead_of_variable(value)}")
            out[slot] = tuple(names)
        return out

    # --- inference

    def infer_op(self, op: Op) -> None:
        """Infer the results of an op again, and set them."""
        self.program.inference.infer(self, op)

    def name_result(self, op: Op, slot: str) -> tuple[str, ...]:
        """Make variables for an op's unnamed results in ``slot``, as programs saved for inference drop some."""
        self.program.touch()
        self.program.inference.infer(self, op, make=True, prefix=op.type)
        return op.output_slots[slot]

    def apply_names(self, names: Sequence[str]) -> list[Variable]:
        """Return the variables of these names."""
        return [self.var(n) for n in names]

    def __repr__(self) -> str:
        return elsewhere("language.text.writer:block_text")(self)
