"""`PlainWriter`: the state of writing a program as the source of a module of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from foreshape.compiler.lowering.kernel_calls import kernel_operator
from foreshape.core.dims import Dim, Size, symbols_of
from foreshape.core.spec import BOOL, LOD_TENSOR, LOD_TENSOR_ARRAY, Lod, Spec
from foreshape.errors import DescriptionError
from foreshape.interop.forms.rules import torch_writer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.helpers import number_rows, ragged_inputs
from foreshape.interop.torch.write.numbers_code import is_size, nested, one_symbol, size_code
from foreshape.interop.torch.write.parameter_names import access, state_keys
from foreshape.interop.torch.write.plain_names import DEVICE, FreeNames, Statement, drop_unread, give_names, identifier, is_one_token, token, tokens_in
from foreshape.interop.torch.write.plain_op import Flow, PlainOp, Several
from foreshape.interop.torch.write.sources import Sources
from foreshape.interop.torch.write.stopped_gradients import learning_values
from foreshape.interop.written_ops import Unwritten
from foreshape.language.program import Block, Op, Program, Variable
from foreshape.language.program.op import is_empty_name

_ROOMS: Final = {"foreshape.language.ops.update.": "it changes parameters, in training", "foreshape.language.ops.collective.": "it speaks with other ranks"}
"""Rooms of operators that are never written, and why."""


class PlainWriter:
    """The state of one writing.

    Attributes:
        parameters: the variables with values of their own.
        keys: parameter -> its key in the ``state_dict``.
        sources: the functions called by the code.
        unwritten: the ops without torch code.
        wanted: the variables read by ops or fetches.
        results: the fetched ones.
    """

    def __init__(self, program: Program, flow: Flow = "python") -> None:
        self.program = program
        self.flow: Flow = flow
        self.is_functional = flow in ("functional", "selected")
        self.parameters = {v.name: v for v in program.global_block.vars.values() if v.persistable and v.kind is LOD_TENSOR}
        self.keys = state_keys(self.parameters)
        self.constants: dict[str, Any] = {}
        """Key -> the array of a long constant."""
        self.sources = Sources()
        self.unwritten: list[Unwritten] = []
        self.wanted: frozenset[str] = frozenset()
        self.results: frozenset[str] = frozenset()
        self.writes = Counter(n for op in program.all_ops() if op.is_run for n in set(op.output_names()))
        self.rewritten = {n for op in program.all_ops() for n in op.output_slots.get("Out", ()) if n in self.parameters}
        """The buffers written by an op's own result."""
        inner = {n for block in program.blocks[1:] for op in block.ops for n in op.output_names()}
        self.cells = {n for n in inner if program.global_block.find(n) is not None or self.writes[n] > 1}
        """The variables written by blocks: each is one name of Python throughout."""
        self.statements: list[Statement] = []
        self.names: dict[int, str] = {}
        self.free = FreeNames()
        self.fed: list[str] = []
        self.arrays: list[int] = []
        """Arrays, empty at the beginning."""
        self.learning, self._stopped = learning_values(program, self.parameters.values())
        self._bound: dict[str, str] = {}
        self._levels: dict[str, int] = {}
        self._symbols: dict[str, str] = {}
        self._specs: dict[str, Spec] = {}
        self._count = 0
        self._device = ""
        self._scope = ""
        self._begun = 0
        """The number of statements before the present op's."""

    def run(self, feeds: Sequence[str], fetches: Sequence[str]) -> list[str]:
        """Write the main block; the expressions of the results. ``statements`` are the lines then, and ``names`` the values' names."""
        block = self.program.global_block
        self.results = frozenset(fetches)
        self.wanted = frozenset({*fetches, *(n for op in self.program.all_ops() for n in op.all_reads())})
        for name in feeds:
            self._feed(name, block.vars[name])
        self.ops(block)
        if self.unwritten:
            return []
        results = [self._result(block.vars[name]) for name in fetches]
        renamed = self.free.keep_apart(self.names, {*self.sources.texts, *self.sources.imports})
        self.fed = [renamed.get(name, name) for name in self.fed]
        ends = {n for text in results for n in tokens_in(text)}
        cells = {n for name in self.cells if name in self._bound for n in tokens_in(self._bound[name])}
        for number in self.arrays:
            self.statements.insert(0, Statement([number], "[]", acts=False))
        self.statements = drop_unread(self.statements, set(ends), cells)
        give_names(self.statements, self.names, ends)
        return results

    def _feed(self, name: str, variable: Variable) -> None:
        spec = variable.spec
        if spec.kind is not LOD_TENSOR or spec.dims is None:
            raise Refused(f"{variable}: its number of dims must be known, and it must be a tensor")
        number = self._new()
        self.names[number] = self.free(identifier(name, "input"))
        self.fed.append(self.names[number])
        self._bound[name] = token(number)
        self._device = self._device or f"{token(number)}.device"
        self._open_sizes(token(number), spec)
        if spec.lod is not None:
            self._feed_offsets(spec, f"{token(number)}.shape[0]")

    def _feed_offsets(self, spec: Spec, rows: str) -> None:
        assert spec.lod is not None
        if self.offsets_of(spec.lod) is None:
            number = self._new()
            self.names[number] = self.free(identifier(f"{spec.lod.source}_offsets"))
            self.fed.append(self.names[number])
            self._bind_offsets(spec.lod, self.let(f"{self.used(ragged_inputs.sequences_of)}({token(number)}, {rows})"))

    def _result(self, variable: Variable) -> str:
        value = self.value(variable.name)
        if variable.spec.lod is not None:
            offsets = self.offsets_of(variable.spec.lod)
            if offsets is None:
                raise Refused(f"{variable} is ragged, and nothing is known of its sequences")
            return f"({value}, {offsets}.last)" if len(variable.spec.lod.counts) == 1 else f"({value}, [*{offsets}.levels])"
        return value

    def offsets_of(self, lod: Lod) -> str | None:
        """Return the `Offsets` of a value's sequences; None if they are not known."""
        offsets = self._bound.get(f"offsets {lod.source}")
        if offsets is None or self._levels[lod.source] == len(lod.counts):
            return offsets
        return f"{offsets}.outer({len(lod.counts)})"

    def _bind_offsets(self, lod: Lod, value: str) -> None:
        self._bound[f"offsets {lod.source}"] = value
        self._levels[lod.source] = len(lod.counts)

    # --- ops

    def ops(self, block: Block) -> None:
        """Write the ops of a block, in their order."""
        for index, op in enumerate(block.ops):
            if op.is_run:
                try:
                    self._op(op)
                except DescriptionError as refused:
                    self.unwritten.append(Unwritten(op.type, f"op {index} of block {block.idx}", str(refused)))
                    for name in op.output_names():
                        self._bound.setdefault(name, token(self._new()))

    def _op(self, op: Op) -> None:
        operator = kernel_operator(op)
        if operator is None or op.attributes.error is not None:
            raise Refused(str(op.attributes.error or "it is not known here"))
        self._scope, self._begun = "/".join(op.scope), len(self.statements)
        if self._known_sizes(op):
            return
        function = torch_writer(op.type)
        if function is None:
            raise Refused(next((reason for room, reason in _ROOMS.items() if type(operator).__module__.startswith(room)), "it is not written in torch code"))
        code: Any = function(PlainOp(self, op, operator))
        if code is None:
            return
        if isinstance(code, Several):
            self._several(op, code)
            return
        results: Sequence[Any] = code if code.__class__ is tuple else (code,)
        for slot, value in zip(operator.schema.results, results, strict=False):
            listed: Sequence[Any] = value if value.__class__ is list else [value]
            for name, expression in zip(op.output_slots.get(slot.name, ()), listed, strict=False):
                if expression is not None and not is_empty_name(name):
                    self.bind(op, name, f"({expression}).detach()" if name in self._stopped else expression)

    def _several(self, op: Op, expression: str) -> None:
        assert op.operator is not None
        statement = Statement([], expression, scope=self._scope)
        self.statements.append(statement)
        targets: list[int] = []
        stopped: list[int] = []
        for slot in op.operator.schema.results:
            names = op.output_slots.get(slot.name, ())
            for name in names if slot.many else names[:1] or ("",):
                empty = is_empty_name(name) or name in self.parameters
                targets.append(self.cell(name) if name in self.cells else self._new())
                if not empty:
                    self._note_value(op, name, token(targets[-1]), statement)
                    stopped += [targets[-1]] if name in self._stopped else []
        for slot in op.operator.schema.results:
            if slot.new_offsets:
                targets.append(self._new())
                for name in op.output_slots.get(slot.name, ()):
                    spec = self._spec_of(op, name) if not is_empty_name(name) else None
                    if spec is not None and spec.lod is not None and self.offsets_of(spec.lod) is None:
                        self._bind_offsets(spec.lod, token(targets[-1]))
        statement.targets = targets
        if len(targets) == 1:
            statement.text = f"{expression}[0]"
        self.statements += [Statement([number], f"{token(number)}.detach()", scope=self._scope) for number in stopped]

    def _known_sizes(self, op: Op) -> bool:
        """Write results with known whole numbers as constants, whatever makes them."""
        names = [n for n in op.output_names() if not is_empty_name(n)]
        specs = [self._spec_of(op, n) for n in names]
        if not names or op.sub_block_indices() or any((n in self.cells and self.flow == "python") or n in self.parameters for n in names):
            return False
        for spec in specs:
            if spec is None or spec.value is None or spec.dims is None or spec.lod or not all(isinstance(d, int) for d in spec.dims):
                return False
            if spec.dtype is None or not (spec.dtype.is_integer or spec.dtype is BOOL):
                return False
            if not all(isinstance(v, bool) or (is_size(v) and self.has_size(v)) for v in spec.value):
                return False
        for name, spec in zip(names, specs, strict=True):
            assert spec is not None
            listed = [str(bool(v)) if spec.dtype is BOOL else self.size(v) for v in spec.value or ()]
            numbers = nested(listed, [d for d in spec.known_dims if isinstance(d, int)])
            self.bind(op, name, f"torch.tensor({numbers}, dtype=torch.{spec.known_dtype.numpy_name}, device={self.device()})")
        return True

    def _spec_of(self, op: Op, name: str) -> Spec | None:
        spec, variable = op.made.get(name), op.block.find(name)
        return spec if spec is not None else variable.spec if variable is not None else None

    def bind(self, op: Op, variable: str, expression: str) -> None:
        """Say the value of a variable from this op on."""
        if variable in self.parameters:
            if variable not in self.rewritten or self._inside or self.parameters[variable].trainable:
                raise Refused(f"it changes {variable}, which is kept from run to run")
            self.statements.append(Statement([], f"{access(self.keys[variable])}.copy_(({expression}).detach())", scope=self._scope, acts=True))
            return
        is_cell = variable in self.cells
        if not is_cell and (is_one_token(expression) or (expression.startswith("self.") and expression.replace(".", "_").isidentifier())):
            last = self.statements[-1] if len(self.statements) > self._begun else None
            self._note_value(
                op, variable, expression, last if last is not None and tokens_in(expression) and tokens_in(expression)[0] in last.targets else None
            )
            return
        number = self.cell(variable) if is_cell else self._new()
        statement = Statement([number], self._inner(expression), scope=self._scope)
        self.statements.append(statement)
        self._note_value(op, variable, token(number), statement)

    def _note_value(self, op: Op, variable: str, value: str, statement: Statement | None) -> None:
        spec, described = self._spec_of(op, variable), op.block.find(variable)
        self._bound[variable] = value
        if spec is None:
            return
        if described is not None and self.writes[variable] > 1:
            self._specs[variable] = spec
        if statement is not None:
            dims = f"[{', '.join(map(str, spec.dims))}]" if spec.dims is not None else ""
            text = f"{spec.dtype.short if spec.dtype else ''}{dims}" if spec.kind is LOD_TENSOR else spec.kind.name
            statement.comment += f"{'; ' if statement.comment else ''}{variable}: {text}"
        self._open_sizes(value, spec)

    def _open_sizes(self, value: str, spec: Spec) -> None:
        """Note where the symbols of a value's dims are to be had."""
        if spec.kind is not LOD_TENSOR:
            return
        for axis, size in enumerate(spec.dims or ()):
            if isinstance(size, Dim):
                name, per = one_symbol(size)
                if name and name not in self._symbols:
                    number = self._new()
                    if not self._inside:
                        self.names[number] = self.free(identifier(name, "size"))
                    self.statements.append(Statement([number], f"{value}.shape[{axis}]{f' // {per}' if per > 1 else ''}"))
                    self._symbols[name] = token(number)

    # --- values

    def spec(self, variable: Variable) -> Spec:
        """Return the spec of a variable at this op: one written again may have had another."""
        return self._specs.get(variable.name, variable.spec)

    def value(self, variable: str) -> str:
        """Return the expression of a variable: a value's token, or a parameter."""
        expression = self.find(variable)
        if expression is None:
            raise Refused(f"{variable} has no value here")
        return expression

    def find(self, variable: str) -> str | None:
        """Return the expression of a variable; None if it has none."""
        if variable in self.cells and variable not in self.parameters:
            return token(self.cell(variable))
        if variable in self.parameters:
            return access(self.keys[variable]) + (".clone()" if variable in self.rewritten else "")  # torch notices changes of what gradients need
        return self._bound.get(variable)

    def cell(self, variable: str) -> int:
        """Return the number of a variable written by blocks."""
        place = self._bound.get(f"cell {variable}")
        if place is None:
            number = self._new()
            self.names[number] = self.free(identifier(variable))
            self._bound[f"cell {variable}"] = self._bound[variable] = place = token(number)
            described = self._anywhere(variable)
            if described is not None and described.spec.kind is LOD_TENSOR_ARRAY:
                self.arrays.append(number)
        return tokens_in(place)[0]

    def open_cells(self, names: Sequence[str]) -> None:
        """Note the sizes of variables at the begin of a loop's round."""
        for name in names:
            described = self._anywhere(name)
            if name in self.cells and described is not None and described.spec.dims is not None:
                self._open_sizes(token(self.cell(name)), described.spec)

    def _anywhere(self, name: str) -> Variable | None:
        return next((b.vars[name] for b in self.program.blocks if name in b.vars), None)

    def array(self, name: str) -> str:
        """Return the value of an array so far: a new one is empty."""
        if name not in self.cells and name not in self._bound:
            return "[]"
        return self.value(name)

    def constant(self, name: str, array: Any) -> str:
        """Return a buffer of the module with the numbers of an array."""
        while name in self.keys:
            name += "_"
        key = state_keys([*self.parameters, *self.constants, name])[name]
        self.constants[key] = array
        return access(key)

    def let(self, expression: str) -> str:
        """Give an expression a name."""
        if is_one_token(expression):
            return expression
        number = self._new()
        self.statements.append(Statement([number], self._inner(expression), scope=self._scope))
        return token(number)

    def _inner(self, expression: str) -> str:
        """Return an expression as it stands in a function of torch's: a graph within another holds no constant tensors."""
        if not self.is_functional or not self._inside or "torch.tensor(" not in expression:
            return expression
        return expression.replace("torch.tensor(", f"{self.used(number_rows.tensor_of)}(")

    def act(self, call: str) -> None:
        """Write a call for its effect."""
        self.statements.append(Statement([], call, scope=self._scope, acts=True))

    def several(self, expression: str, count: int) -> list[str]:
        """Give names to the parts of a tuple."""
        numbers = [self._new() for _ in range(count)]
        self.statements.append(Statement(numbers, expression, scope=self._scope))
        return [token(n) for n in numbers]

    def used(self, function: Callable[..., Any]) -> str:
        """Write a function into the file, and return its name there."""
        return self.sources.add(function)

    def device(self) -> str:
        """Return the device of new tensors."""
        return DEVICE

    def device_source(self) -> str:
        """Return the expression for the device of new tensors: the first input's."""
        return self._device or "next((t.device for t in self.state_dict().values()), torch.get_default_device())"

    def _new(self) -> int:
        self._count += 1
        return self._count

    # --- sizes

    def size(self, size: Size) -> str:
        """Return a size as an expression. Raises `Refused` for one in unknown symbols."""
        return size_code(size, self._symbol)

    def has_size(self, size: Size) -> bool:
        """Tell whether the symbols of a size are known."""
        return all(name in self._symbols for name in symbols_of(size))

    def _symbol(self, name: str) -> str:
        expression = self._symbols.get(name)
        if expression is None:
            raise Refused(f"the size {name} is not known here")
        return expression

    # --- blocks

    _inside = 0

    @contextmanager
    def inside(self) -> Generator[list[Statement]]:
        """Open the lines below a head."""
        outer, self.statements = self.statements, list[Statement]()
        symbols, bound = dict(self._symbols), dict(self._bound)
        self._inside += 1
        try:
            yield self.statements
        finally:
            self._inside -= 1
            self.statements = outer
            self._symbols = symbols
            self._bound = {k: v for k, v in self._bound.items() if k in bound or k.startswith("cell ") or f"cell {k}" in self._bound} | {
                k: v for k, v in bound.items() if f"cell {k}" not in self._bound
            }

    def block(self, heads: Sequence[tuple[str, list[Statement]]]) -> None:
        """Append heads with the lines below them."""
        self.statements.append(Statement((), "", bodies=list(heads), scope=self._scope))
