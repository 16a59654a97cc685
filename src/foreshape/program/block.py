"""`Block`: the variables and ops of one scope, and the verbs that change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.dims import equal
from foreshape.errors import DescriptionError, SchemaError, ShapeError
from foreshape.infer.messages import describe_failure
from foreshape.infer.rules import Answer, Key, Slot, answer, named_after, replace_symbols
from foreshape.operator.operator import Operator
from foreshape.operator.registry import get
from foreshape.operator.require import RuleError
from foreshape.program.arrays import gathered
from foreshape.program.call_site import Site, call_site, here
from foreshape.program.constants import with_numbers
from foreshape.program.current import is_default
from foreshape.program.names import names_of
from foreshape.program.op import EMPTY, Op, Slots
from foreshape.program.records import FromRecords
from foreshape.program.regions import infer_region
from foreshape.program.scopes import current_scope, placed
from foreshape.program.variable import Variable, note_made
from foreshape.spec import Spec

if TYPE_CHECKING:
    from foreshape.program.program import Program


class Block(FromRecords):
    """One scope of a program, number ``idx``. Names are looked up here, then in the parent, number ``parent_idx``, and so on."""

    __slots__ = ("__weakref__", "before", "forward_idx", "idx", "parent_idx", "program", "unknown_fields")

    def __init__(self, program: Program, idx: int, parent_idx: int) -> None:
        self.program = program
        self.idx = idx
        self.parent_idx = parent_idx
        self.forward_idx = -1
        self.vars, self.ops, self.records = {}, [], None
        self.unknown_fields = b""
        self.before: dict[str, tuple[Variable, Spec | None, bool]] | None = None
        """While it is written for an op to run: what was known of variables around it before it wrote them."""

    @property
    def parent(self) -> Block | None:
        return self.program.blocks[self.parent_idx] if 0 <= self.parent_idx < len(self.program.blocks) else None

    def find(self, name: str) -> Variable | None:
        """The variable of this name here or in a parent; of a block that undoes another, also in that one."""
        found = self.vars.get(name)
        block = self
        while found is None:
            if 0 <= block.forward_idx < len(self.program.blocks):
                found = self.program.blocks[block.forward_idx].vars.get(name)
                if found is not None:
                    break
            parent = block.parent
            if parent is None or parent is block:
                return None
            block = parent
            found = block.vars.get(name)
        return found

    def var(self, name: str) -> Variable:
        """The variable of this name here or in a parent. Raises `SchemaError` where there is none."""
        found = self.find(name)
        if found is None:
            raise SchemaError(f"there is no variable {name!r} in block {self.idx} or its parents")
        return found

    def outer_names(self) -> tuple[frozenset[str], frozenset[str]]:
        """What this block, and the blocks within it, read and write of the blocks around it."""
        names = names_of(self)
        return names.outer_reads, names.outer_writes

    def forward_names(self) -> frozenset[str]:
        """What this block reads that it does not have itself, what the block that it undoes has included."""
        return names_of(self).reads - self.vars.keys()

    # --- variables

    def add_variable(self, variable: Variable) -> None:
        """Take in a variable. Raises `SchemaError` where the name is taken or empty."""
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
        now = call_site(variable.site)
        if line is not None and now is not None and line.line == now.line and line.source_line() == now.source_line():  # a cell may be another file each time
            words += ", which is this line, run before"
        if self.idx == 0:
            anew = "to describe a network anew call fs.reset() first, or describe it" if is_default(self.program) else "describe another network"
            words += f"; {anew} in a program of its own, `with fs.program() as p:`"
        return describe_failure(RuleError(words, {"first": None}, SchemaError), variable.role_words, {"first": [first]}, call_site(variable.site))

    def create_variable(self, name: str, spec: Spec, *, site: Site = None, **flags: Any) -> Variable:
        """Make the variable ``name`` of a known spec, at the line ``site``. ``flags``: persistable, stop_gradient, is_parameter, trainable, need_check_feed."""
        made = Variable._new(name, self, spec, site if site is not None else here())  # pyright: ignore[reportPrivateUsage]
        for flag, value in flags.items():
            setattr(made, flag, value)
        self.add_variable(made)
        return made

    def remove_variable(self, name: str) -> None:
        """Drop the variable ``name``, that no op of this block names. Raises `SchemaError` where one does."""
        for op in self.ops:
            if name in op.input_names() or name in op.output_names():
                raise SchemaError(f"{name} is used by {op.type}; remove the op first")
        self.vars.pop(name, None)
        self.program.touch()

    # --- ops

    def apply(self, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, prefix: str | None = None) -> Any:
        """Append an op of this ``type``; ``inputs``, ``attrs`` and ``prefix`` as of `append_op`. Returns a variable, or a tuple of one for each result."""
        op = self.append_op(type, inputs, None, attrs, prefix=prefix)
        schema = get(type).schema
        out = [
            [self.vars[n] for n in op._outputs.get(r.name, ())] if r.many else self.vars[op._outputs[r.name][0]] if op._outputs.get(r.name) else None  # pyright: ignore[reportPrivateUsage]
            for r in schema.results
        ]
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
            outputs: slot -> a variable or a name (made where it is new), or a list. Slots left out are made and named.
            attrs: attribute values; the others are at their defaults.
            prefix: what made-up names start with; the op's type where it is left out.
            index: where to insert it; the end where it is left out. role, role_variables, site: what it is for, of which variables, and its line.

        Raises:
            SchemaError, TypeMismatchError, ShapeError: as the operator demands, with the user's lines.
        """
        if site is None:
            site = here()
        program = self.program
        try:
            cls = get(type)
            attributes = cls.describe(attrs)
            op = Op(
                self,
                attributes,
                self._names(cls, inputs, cls.schema.operand_names, "input"),
                {} if outputs is None else self._names(cls, outputs, cls.schema.result_names, "output"),
                program.role if role is None else role,
                role_variables,
                site,
            )
        except DescriptionError as error:
            raise _placed(error, type, site) from None
        self._infer(op, make=True, prefix=prefix)
        scope = current_scope()
        if scope:
            op.attributes = placed(op.attributes, scope)
        if index is None:
            self.ops.append(op)
        else:
            self.ops.insert(index, op)
        program.touch()
        return op

    def remove_op(self, op: Op) -> None:
        """Take an op out; variables that only it made keep their spec and have no producer."""
        for at, other in enumerate(self.ops):
            if other is op:
                del self.ops[at]
                break
        for name in op.output_names():
            variable = self.vars.get(name)
            if variable is not None and variable.op is op:
                variable.op = None
        self.program.touch()

    def _names(self, cls: type[Operator], given: Mapping[str, Any], known: frozenset[str], side: str) -> Slots:
        out: Slots = {}
        for slot, value in given.items():
            if slot not in known:
                raise SchemaError(f"{cls.type} has no {side} {slot!r}; its {side}s are: {', '.join(sorted(known)) or 'none'}")
            if value is None:
                continue
            names: list[str] = []
            for one in value if isinstance(value, (list, tuple)) else (value,):  # pyright: ignore[reportUnknownVariableType]
                if isinstance(one, Variable):
                    if one.block.program is not self.program:
                        at = one.call_site
                        raise SchemaError(f"{one.name} is a variable of another program" + (f", made at {at.short()}" if at is not None else ""))
                    names.append(one.name)
                elif isinstance(one, str):
                    names.append(one)
                else:
                    raise SchemaError(f"{slot} of {cls.type} takes variables; seen {one!r}")
            out[slot] = tuple(names)
        return out

    # --- inference

    def infer_op(self, op: Op) -> None:
        """Ask the operator again what the results of an op are, and set them."""
        self._infer(op, make=False, prefix=None)

    def _infer(self, op: Op, make: bool, prefix: str | None) -> None:
        operator = op.attributes.operator
        if operator is None:
            error = op.attributes.error
            raise _placed(error if error is not None else SchemaError(f"there is no operator {op.type!r}"), op.type, op.site)
        if operator.sub_blocks:
            self._set_results(op, operator, infer_region(op), make, prefix)
            return
        key = self._key(op, operator)
        known = self.program.guards.known
        if known:
            key = replace_symbols(key, known)
        try:
            if operator.reads_numbers:
                key = with_numbers(op, operator, key)
            found = answer(operator, key)
            if found.unknown:
                if make and prefix is None:
                    prefix = self.program.layer_name(op.type)
                found = self._named(found, self._first_name(op, operator, found, prefix))
            if found.conditions:
                site = op.call_site
                for condition in found.conditions:
                    self.program.guards.add(condition, op.type, site)
                if self.program.guards.known is not known:
                    found = answer(operator, replace_symbols(key, self.program.guards.known))
                    if found.unknown:
                        found = self._named(found, self._first_name(op, operator, found, prefix))
        except RuleError as error:
            raise describe_failure(error, op.type, self._views(op), op.call_site) from None
        except ShapeError as error:
            raise describe_failure(RuleError(str(error), {}), op.type, self._views(op), op.call_site) from None
        self._set_results(op, operator, found, make, prefix)

    def _named(self, found: Answer, name: str) -> Answer:
        """An answer whose unknown sizes are symbols of one op, which only the run tells."""
        out = named_after(found, name)
        self.program.guards.made.update(out.unknown)
        return out

    def name_result(self, op: Op, slot: str) -> tuple[str, ...]:
        """Make variables for the results in ``slot`` that an op has and nobody had asked for, as programs saved for inference drop some."""
        self.program.touch()
        self._infer(op, make=True, prefix=op.type)
        return op._outputs[slot]  # pyright: ignore[reportPrivateUsage]

    def _views(self, op: Op) -> dict[str, list[Variable]]:
        return {slot: [v for n in names if (v := self.find(n)) is not None] for slot, names in op.inputs.items() if names}

    def _key(self, op: Op, operator: Operator) -> Key:
        inputs = op._inputs  # pyright: ignore[reportPrivateUsage]
        local = self.vars
        key: list[Slot] = []
        used = 0
        for operand in operator.schema.operands:
            names = inputs.get(operand.name)
            if not names:
                used += names is not None
                key.append(() if operand.many else None)
                continue
            used += 1
            if operand.many:
                key.append(tuple((local[n] if n in local and n != EMPTY else self._input(op, n)).spec for n in names))
            elif len(names) == 1:
                name = names[0]
                variable = local.get(name)
                if variable is None or name == EMPTY:  # which a file may describe, and which is absent all the same
                    if name == EMPTY or not name:
                        key.append(None)
                        continue
                    variable = self._input(op, name)
                key.append(variable._spec or variable.spec)  # pyright: ignore[reportPrivateUsage]
            else:
                raise _placed(SchemaError(f"{operand.name} takes one tensor, not {len(names)}"), op.type, op.site)
        if used != len(inputs):
            extra = sorted(s for s, n in inputs.items() if n and s not in operator.schema.operand_names)
            if extra:
                raise _placed(SchemaError(f"there is no input {extra[0]!r}"), op.type, op.site)
        return tuple(key)

    def _input(self, op: Op, name: str) -> Variable:
        found = self.find(name) if name != EMPTY else None
        if found is None:
            raise _placed(SchemaError(f"the input {name!r} is not described in block {self.idx} or its parents"), op.type, op.site)
        return found

    def _first_name(self, op: Op, operator: Operator, found: Answer, prefix: str | None) -> str:
        """The name of the op's first result, after which the sizes are named that only its run tells; made where there is none."""
        outputs = op._outputs  # pyright: ignore[reportPrivateUsage]
        for result in operator.schema.results:
            for name in outputs.get(result.name) or ():
                if name and name != EMPTY:
                    return name
        for result, given in zip(operator.schema.results, found.results, strict=True):
            if given and not result.optional and prefix is not None:
                outputs[result.name] = tuple([self.program.unique_name(prefix + ".tmp") for _ in (given if isinstance(given, tuple) else (given,))])
                return outputs[result.name][0]
        return op.type

    def _set_results(self, op: Op, operator: Operator, found: Answer, make: bool, prefix: str | None) -> None:
        outputs = op._outputs  # pyright: ignore[reportPrivateUsage]
        for result, given in zip(operator.schema.results, found.results, strict=True):
            names = outputs.get(result.name)
            if given is None:
                if any(n != EMPTY for n in names or ()) and not result.optional and not operator.sub_blocks:  # no answer where one is asked for
                    raise _placed(SchemaError(f"there is no result {result.name} for these inputs"), op.type, op.site)
                continue
            specs = given if isinstance(given, tuple) else (given,)
            if not names:
                if not make or result.optional:
                    continue
                if prefix is None:
                    prefix = self.program.layer_name(op.type)
                names = tuple([self.program.unique_name(prefix + ".tmp") for _ in specs])
                outputs[result.name] = names
            if len(names) != len(specs):
                raise _placed(SchemaError(f"{result.name} has {len(names)} names for {len(specs)} tensors"), op.type, op.site)
            for name, spec in zip(names, specs, strict=True):
                self._set_result(op, name, gathered(op, name, spec) if result.name in operator.accumulates else spec)

    def _set_result(self, op: Op, name: str, spec: Spec) -> None:
        variable = self.vars.get(name)
        if variable is None:
            if name == EMPTY or not name:
                return
            variable = self.find(name) if self.parent_idx >= 0 else None
            if variable is None:
                variable = self.vars[name] = Variable._new(name, self, spec, op.site)  # pyright: ignore[reportPrivateUsage]
                variable.op = op
                return
        if variable.persistable and variable.spec.dims is not None:
            if variable._spec is not spec:  # pyright: ignore[reportPrivateUsage]
                _check_kept(op, variable, spec)
            return
        if variable.block is not self:
            self._remember(variable)
        note_made(op, variable, spec)
        variable._spec = spec  # pyright: ignore[reportPrivateUsage]
        variable._known = True  # pyright: ignore[reportPrivateUsage]
        if variable.op is None and variable.block is self and name not in op.input_names():
            variable.op = op

    def _remember(self, variable: Variable) -> None:
        block: Block | None = self
        while block is not None and block is not variable.block:
            if block.before is not None:
                block.before.setdefault(variable.name, (variable, variable._spec, variable._known))  # pyright: ignore[reportPrivateUsage]
            block = block.parent

    def apply_names(self, names: Sequence[str]) -> list[Variable]:
        """The variables of these names."""
        return [self.var(n) for n in names]

    def __repr__(self) -> str:
        from foreshape.program.text import block_text

        return block_text(self)


def _check_kept(op: Op, variable: Variable, spec: Spec) -> None:
    """What is written to a persistable variable must be what the variable is."""
    own = variable.spec
    dims, new = own.known_dims, spec.dims
    if own.dtype is spec.dtype and new is not None and len(dims) == len(new) and all(equal(a, b) is not False for a, b in zip(dims, new, strict=True)):
        return
    raise describe_failure(
        RuleError(f"what is written to {variable.name} must be what it is, {own.text()}, not {spec.text()}", {}), op.type, {}, op.call_site
    )


def _placed(error: DescriptionError, type: str, site: Site) -> DescriptionError:
    """The same error with the op and the user's line, for what no rule has seen yet."""
    return describe_failure(RuleError(str(error), {}, error.__class__), type, {}, call_site(site))
