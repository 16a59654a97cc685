"""A program of ragged rows as steps without torch: products, norms, functions and attention by oneDNN's kernels, the small rest in numpy.

Steps are told by the computations of operators (`foreshape.language.operator.computations`). What an op computes of constants alone is computed once. A
product takes the bias, the sum with other rows and the function behind it along, and products of the same rows that are only attended to become one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, Spec
from foreshape.errors import SchemaError
from foreshape.interop.row_functions import filled, row_function, sequence_function
from foreshape.interop.row_padding import DescribedNumbers, TextSizes, mixes_texts, text_function
from foreshape.language.operator import computations as c
from foreshape.language.operator.computation import Computation
from foreshape.language.operator.sequence_computations import AttentionInSequences, SequencePadding, SequenceSpreading
from foreshape.language.program import Op, Program, Variable
from foreshape.machine.kernels.frozen import Following, in_library
from foreshape.machine.kernels.onednn_library import Function
from foreshape.machine.kernels.row_attention import RowAttention
from foreshape.machine.kernels.row_kernels import Array, KernelStore, RowFunction, RowNorm, RowProduct

CONSTANT: Final = "constant"
ROWS: Final = "rows"
TEXTS: Final = "texts"
SIZES: Final = "sizes"
PADDED: Final = "padded"
_Computation = TypeVar("_Computation", bound=Computation)


class StepsUnknown(SchemaError):
    """The error for an op without a step here: torch runs such a program."""


class RowValue(NamedTuple):
    """A value.

    Attributes:
        space: `ROWS` and `TEXTS` for one entry for each row, or each text; `CONSTANT`; `PADDED` for one of each text as a padded batch of its own, and
            `SIZES` for such a one decided by the number of rows alone.
        dims: of an entry; none of `PADDED` and `SIZES`.
        element: numpy's name of its elements.
        padded_dims: all dims of `PADDED` and `SIZES`.
    """

    space: str
    dims: tuple[int, ...]
    element: str
    padded_dims: tuple[Size, ...] = ()


class Columns(NamedTuple):
    """Some columns of another value."""

    source: int
    begin: int
    end: int


class RowStep(NamedTuple):
    """One step: the numbers of its operands, and of its results.

    Attributes:
        kind: "product", "norm" and "function" for oneDNN's kernels on blocks of rows; "rows" for a function of each row in numpy, or "filled" from the number
            of rows; "sequences" for a function of all rows and the begins of the sequences; "attention"; "texts" for a function of one text.
        compute: of its kind.
        operands: the values read, in order; tuples of them where an operand is several.
    """

    kind: str
    compute: Any
    operands: tuple[Any, ...]
    results: tuple[int, ...]

    @property
    def reads(self) -> list[int]:
        """Return the values read."""
        return flat(self.operands)

    @property
    def is_by_row(self) -> bool:
        """Return True if it computes each row by itself."""
        return self.kind not in ("sequences", "attention", "texts")


class _Node(NamedTuple):
    """An op with a computation: its operands' values, and its results'."""

    op: Op
    computation: Computation
    operands: tuple[Any, ...]
    results: tuple[int, ...]


class RowProgram:
    """The steps of a program, and its values.

    Args:
        program: of ragged rows with one level of sequences.
        fetches: its results.
        parameters: the values of its parameters by name, as numpy arrays; tables of lookups stay where they are, others are copied.
        copying: hears of so many bytes before they are copied.

    Attributes:
        feeds: the values fed, by name.
        fetches: the values of the results.
        columns: values lying in columns of others.
        sizes: of one text alone.

    Raises:
        StepsUnknown: an op has no step here.
    """

    def __init__(
        self,
        store: KernelStore,
        program: Program,
        fetches: Sequence[Variable | str],
        parameters: Mapping[str, Array],
        copying: Callable[[int], object] = lambda nbytes: None,
    ) -> None:
        self._store, self._parameters, self._copying = store, parameters, copying
        self.values: list[RowValue] = []
        self.constants: dict[int, Array] = {}
        self.steps: list[RowStep] = []
        self.feeds: dict[str, int] = {}
        self.columns: dict[int, Columns] = {}
        self.nbytes = 0
        self._numbers: dict[str, int] = {}
        self._shared: dict[Hashable, tuple[int, ...]] = {}
        names = [f if isinstance(f, str) else f.name for f in fetches]
        self._block = program.global_block
        self.sizes = TextSizes(program)
        if not self.sizes.texts.isdisjoint(self.sizes.rows):
            raise StepsUnknown("the number of texts and that of rows have one symbol")
        self._nodes: list[_Node] = []
        for op in self._needed(names):
            self._add(op)
        self.fetches = [self._value(name) for name in names]
        if any(self.values[v].space not in (ROWS, TEXTS) for v in self.fetches):
            raise StepsUnknown("a result has neither a row for each row of texts nor one for each text")
        self._readers: dict[int, list[_Node]] = {}
        for node in self._nodes:
            for v in flat(node.operands):
                self._readers.setdefault(v, []).append(node)
        self._order = {id(node): index for index, node in enumerate(self._nodes)}
        self._make_steps()
        read = {v for step in self.steps for v in step.reads} | {columns.source for columns in self.columns.values()}
        self.constants = {v: array for v, array in self.constants.items() if v in read}  # packed weights are in their kernels
        del self._nodes, self._readers, self._order, self._block, self._parameters, self._copying

    # --- values

    def _new(self, spec: Spec, space: str) -> int:
        dims, element = spec.known_dims, spec.known_dtype.numpy_name
        if space in (SIZES, PADDED):
            self.values.append(RowValue(space, (), element, tuple(dims)))
        else:
            self.values.append(RowValue(space, tuple(dims if space == CONSTANT else dims[1:]), element))  # pyright: ignore[reportArgumentType]
        return len(self.values) - 1

    def _value(self, name: str) -> int:
        """Return the value of a variable: of an op before, a parameter, or a feed."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        variable = self._block.var(name)
        spec = variable.spec
        if name in self._parameters:
            number = self._constant(self._parameters[name], spec)
            self._copying(0)  # it may be a copy already, as of a type that numpy has not
        elif variable.persistable or spec.lod is None or spec.lod_level != 1 or spec.dims is None:
            raise StepsUnknown(f"{name}, {spec.text()}, is neither a parameter with a value nor fed as ragged rows with one level of sequences")
        else:
            number = self.feeds[name] = self._new(spec, ROWS)
        self._numbers[name] = number
        return number

    def _constant(self, array: Array, spec: Spec) -> int:
        number = self._new(spec, CONSTANT)
        self.constants[number] = array
        return number

    def _result_space(self, op: Op, computation: Computation, spec: Spec, operands: Sequence[Any]) -> str:
        """Return the space of a result."""
        dims, spaces = spec.dims, {self.values[v].space for v in flat(operands)}
        if dims is None or spec.dtype is None:
            raise StepsUnknown(f"{_words(op)}: {spec.text()} has dims that are not known")
        if spec.lod is not None:
            if spec.lod_level > 1 or self.sizes.depends(dims[1:]):
                raise StepsUnknown(f"{_words(op)}: {spec.text()} has open dims besides its rows")
            return ROWS
        numbers = computation.numbers if isinstance(computation, DescribedNumbers) else ()
        if not self.sizes.depends((*dims, *numbers)) and spaces <= {CONSTANT}:
            return CONSTANT
        if dims and self.sizes.is_texts(dims[0]) and not self.sizes.depends(dims[1:]):
            return TEXTS
        if self.sizes.dims(dims) is None:
            raise StepsUnknown(f"{_words(op)}: {spec.text()} has open dims besides its texts and its rows")
        if spaces <= {CONSTANT, SIZES}:
            return SIZES
        if not self.sizes.depends(dims):
            raise StepsUnknown(f"{_words(op)}: {spec.text()} is of several texts")
        return PADDED

    # --- from ops to computations

    def _add(self, op: Op) -> None:
        """Add an op: as a constant, as a node, or as an earlier one."""
        computation: Computation | None = self._described(op)
        slots = [s.name for s in op.operator.schema.operands] if op.operator is not None and computation is None else []
        if computation is None and op.operator is not None:
            computation = op.operator.computes()
        if computation is None:
            raise StepsUnknown(f"{_words(op)}: {op.type} has no kernel for rows without torch")
        many = {s.name for s in op.operator.schema.operands if s.many} if op.operator is not None else set[str]()
        reads = [op.inputs.get(slot, ()) for slot in slots]
        bias = isinstance(computation, AttentionInSequences)
        if isinstance(computation, c.Reshape | c.Expansion):
            reads = reads[:1]  # the description has the dims
        elif isinstance(computation, c.Slicing) and any(reads[1:]) and self._block.var(op.operand(0)).spec.dims == self._block.var(op.result(0)).spec.dims:
            computation, reads = c.Identity(), reads[:1]
        if any(reads[computation.operands + bias :]):
            raise StepsUnknown(f"{_words(op)}: {op.type} has operands beside those of its usual form")
        if isinstance(computation, SequenceSpreading | c.Filled):  # only the number of rows counts
            reads = reads[: 1 if isinstance(computation, SequenceSpreading) else 0]
        operands: list[Any] = []
        for slot, names in zip(slots, reads, strict=False):
            operands.append(tuple(map(self._value, names)) if slot in many else self._value(names[0]) if names and names[0] else None)
        while operands and operands[-1] in (None, ()):
            operands.pop()
        names = [(s.name, n) for s in op.operator.schema.results for n in op.outputs.get(s.name, ())] if op.operator is not None else []
        first = names[0][0] if names else ""
        results = [n for slot, n in names if slot == first or isinstance(computation, SequencePadding)]  # others serve gradients
        specs = [self._block.var(n).spec for n in results]
        key = computation, tuple(operands), tuple((spec.dims, spec.dtype, spec.lod is not None) for spec in specs)
        numbers = self._shared.get(key)
        if numbers is None:
            spaces = [self._result_space(op, computation, spec, operands) for spec in specs]
            if any(space == CONSTANT for space in spaces):
                numbers = self._constants_of(op, computation, operands, specs)
            else:
                numbers = tuple([self._new(spec, space) for spec, space in zip(specs, spaces, strict=True)])
                self._nodes.append(_Node(op, computation, tuple(operands), numbers))
            self._shared[key] = numbers
        self._numbers.update(zip(results, numbers, strict=True))

    def _constants_of(self, op: Op, computation: Computation, operands: Sequence[Any], specs: Sequence[Spec]) -> tuple[int, ...]:
        """Return the results of an op on constants."""
        dims, element = [spec.known_dims for spec in specs], specs[0].known_dtype.numpy_name
        compute: Callable[..., Any] | None
        if isinstance(computation, DescribedNumbers):
            described = text_function(computation, specs, self.sizes)
            compute = None if described is None else lambda: described((), 0)
        elif isinstance(computation, c.Filled):
            import numpy

            number, sizes = computation.number, dims[0]
            is_known = number is not None and all(isinstance(n, int) for n in sizes)
            compute = (lambda: numpy.full(sizes, number, element)) if is_known else None  # pyright: ignore[reportArgumentType, reportCallIssue]
        else:
            compute = row_function(computation, dims, element, ())
        values = flat(operands)
        if compute is None or any(v not in self.constants for v in values):
            raise StepsUnknown(f"{_words(op)}: {op.type} has no kernel without torch for these operands")
        arrays = [tuple(self.constants[v] for v in x) if isinstance(x, tuple) else None if x is None else self.constants[x] for x in operands]  # pyright: ignore[reportUnknownVariableType]
        results = compute(*arrays)
        return tuple([self._constant(array, spec) for array, spec in zip(results if isinstance(results, tuple) else (results,), specs, strict=True)])  # pyright: ignore[reportUnknownArgumentType]

    # --- from computations to steps

    def _make_steps(self) -> None:
        done: set[int] = set()
        for node in self._nodes:
            if id(node) in done:
                continue
            weight = self._weight(node)
            if weight is not None:
                joined = self._joined(node)
                done.update(id(n) for n in (joined if len(joined) > 1 else self._product(node, weight)))
                if len(joined) > 1:
                    self._join(joined)
            else:
                self._step(node)
        self.steps = self.steps_of(self.fetches)  # of some values only the number of rows counted

    def steps_of(self, fetches: Sequence[int]) -> list[RowStep]:
        """Return the steps behind some values, in order."""
        read, out = {*fetches}, list[RowStep]()
        for step in reversed(self.steps):
            if not read.isdisjoint(step.results) or any(self.columns[v].source in step.results for v in read if v in self.columns):
                read.update(step.reads)
                out.append(step)
        out.reverse()
        out.sort(key=lambda step: self.values[step.results[0]].space != SIZES)  # these read no others
        return out

    def _weight(self, node: _Node) -> Array | None:
        """Return the constant matrix of a product of rows."""
        computation = node.computation
        if not isinstance(computation, c.FlattenedProduct | c.MatrixProduct) or len(node.operands) != 2:
            return None
        x: int = node.operands[0]
        weight = self.constants.get(node.operands[1])
        if x in self.constants or weight is None or weight.ndim != 2 or len(self.values[x].dims) != 1 or self.values[x].element != FP32.numpy_name:
            return None
        if isinstance(computation, c.FlattenedProduct):
            return weight if (computation.x_rows, computation.y_rows) == (1, 1) else None
        return None if computation.x_transposed else weight.T if computation.y_transposed else weight

    def _reader(self, value: int) -> _Node | None:
        """Return the only reader of a value without a fetch."""
        readers = self._readers.get(value, [])
        return readers[0] if len(readers) == 1 and value not in self.fetches else None

    def _bias(self, value: int) -> tuple[_Node, Array] | None:
        """Return the node adding a constant row to a value, and the row."""
        node = self._reader(value)
        if node is None or not isinstance(node.computation, c.Sum):
            return None
        x, y = node.operands
        bias = self.constants.get(y if x == value else x)
        width = self.values[value].dims[-1]
        if bias is None or bias.size != width or bias.shape[-1] != width or (x == value and node.computation.axis not in (-1, 2 - bias.ndim)):
            return None
        return node, bias.reshape(-1)

    def _product(self, node: _Node, weight: Array) -> list[_Node]:
        """Add the step of a product with its followers; return the nodes in it."""
        nodes, (value,) = [node], node.results
        bias = self._bias(value)
        numbers: Array | None = None
        if bias is not None:
            nodes.append(bias[0])
            numbers, value = bias[1], bias[0].results[0]
        added: int | None = None
        reader = self._reader(value)
        if reader is not None and isinstance(reader.computation, c.Sum):
            x, y = reader.operands
            addend = y if x == value else x
            if addend != value and addend not in self.constants and self.values[addend] == self.values[value] and self._is_before(addend, node):
                nodes.append(reader)
                added, value = addend, reader.results[0]
        reader = self._reader(value)
        function = None if reader is None else _function_of(reader.computation)
        if reader is not None and function is not None:
            nodes.append(reader)
            value = reader.results[0]
        self._copying(8 * weight.size)  # with the pages read
        compute = RowProduct(self._store, weight, numbers, added is not None, () if function is None else function)
        self.nbytes += compute.nbytes
        self.steps.append(RowStep("product", compute, (node.operands[0], *(() if added is None else (added,))), (value,)))
        return nodes

    def _is_before(self, value: int, node: _Node) -> bool:
        """Tell whether a value is there before a node."""
        return all(value not in n.results for n in self._nodes[self._order[id(node)] :])

    def _joined(self, node: _Node) -> list[_Node]:
        """Return the products of the same rows whose results, with a bias or not, are only attended to; and the nodes of the biases."""
        out: list[_Node] = []
        for sibling in self._readers[node.operands[0]]:
            weight = self._weight(sibling)
            if weight is None or sibling.operands[0] != node.operands[0]:
                continue
            bias = self._bias(sibling.results[0])
            value = sibling.results[0] if bias is None else bias[0].results[0]
            readers = self._readers.get(value, [])
            if value not in self.fetches and readers and all(isinstance(r.computation, AttentionInSequences) for r in readers):
                out += [sibling, *([] if bias is None else [bias[0]])]
        return out if sum(self._weight(n) is not None for n in out) > 1 and any(n is node for n in out) else [node]

    def _join(self, nodes: list[_Node]) -> None:
        import numpy

        weights: list[Array] = []
        biases: list[Array] = []
        values: list[int] = []
        for node in nodes:
            weight = self._weight(node)
            if weight is None:
                continue
            bias = self._bias(node.results[0])
            weights.append(weight)
            biases.append(numpy.zeros(weight.shape[1], numpy.float32) if bias is None else bias[1])
            values.append(node.results[0] if bias is None else bias[0].results[0])
        self._copying(12 * sum(weight.size for weight in weights))
        compute = RowProduct(self._store, numpy.concatenate(weights, 1), numpy.concatenate(biases))
        self.nbytes += compute.nbytes
        self.values.append(RowValue(self.values[values[0]].space, (compute.n,), FP32.numpy_name))
        joined_value, begin = len(self.values) - 1, 0
        for value, weight in zip(values, weights, strict=True):
            self.columns[value] = Columns(joined_value, begin, begin + weight.shape[1])
            begin += weight.shape[1]
        self.steps.append(RowStep("product", compute, (nodes[0].operands[0],), (joined_value,)))

    def _step(self, node: _Node) -> None:
        """Add the step of a node other than a product of rows with a constant."""
        computation, operands, results, op = node.computation, node.operands, node.results, node.op
        first = operands[0] if operands and isinstance(operands[0], int) else None
        value = None if first is None else self.values[first]
        is_single = value is not None and first not in self.constants and value.element == FP32.numpy_name
        function = _function_of(computation)
        is_packed = value is not None and value.space in (ROWS, TEXTS) and all(self.values[v].space == value.space for v in results)
        if isinstance(computation, AttentionInSequences):
            bias: int | None = operands[3] if len(operands) > 3 else None
            if (
                value is None
                or not is_single
                or (bias is not None and self.values[bias].space not in (CONSTANT, SIZES, PADDED))
                or any(self.values[v].space != ROWS for v in flat(operands[:3]))
                or any(self.values[v].dims != value.dims for v in flat(operands[1:3]))
            ):
                raise StepsUnknown(f"{_words(op)}: attention without torch is for fp32 of equal rows, with a bias by rows and keys or none")
            self.steps.append(
                RowStep("attention", RowAttention(self._store, computation.heads, computation.scale, computation.causal), tuple(operands), results)
            )
        elif is_single and is_packed and function is not None:
            self.steps.append(RowStep("function", RowFunction(self._store, function[0]), operands[:1], results))
        elif is_single and is_packed and value is not None and isinstance(computation, c.LayerNorm) and computation.begin == len(value.dims) == 1:
            numbers = [None if v is None else self.constants.get(v) for v in (*operands[1:], None, None)[:2]]
            if any(v is not None and v not in self.constants for v in operands[1:]):
                raise StepsUnknown(f"{_words(op)}: its scale and its shift must be constants")
            self.steps.append(RowStep("norm", RowNorm(self._store, value.dims[0], computation.epsilon, *numbers), operands[:1], results))
        elif isinstance(computation, c.Filled) and self.values[results[0]].space in (ROWS, TEXTS):
            fill = filled(computation, (0, *self.values[results[0]].dims), self.values[results[0]].element)
            if fill is None:
                raise StepsUnknown(f"{_words(op)}: {op.type} is of a number that is not known")
            self.steps.append(RowStep("filled", fill, (), results))
        else:
            self._in_numpy(node)

    def _in_numpy(self, node: _Node) -> None:
        computation, operands, results, op = node.computation, node.operands, node.results, node.op
        spaces = {self.values[v].space for v in (*flat(operands), *results)} - {CONSTANT}
        sequences = sequence_function(computation)
        if sequences is not None and len(flat(operands)) == 1 and spaces <= {ROWS, TEXTS}:
            self.steps.append(RowStep("sequences", sequences, operands, results))
            return
        dims = [(Ellipsis, *self.values[v].dims) for v in results]
        ranks = [1 + len(self.values[v].dims) for v in flat(operands) if v not in self.constants]
        is_packed = len(spaces) == 1 and spaces <= {ROWS, TEXTS}
        compute = row_function(computation, dims, self.values[results[0]].element, ranks) if is_packed and ranks else None
        if compute is not None:
            self.steps.append(RowStep("rows", compute, operands, results))
            return
        names = [n for slot in op.outputs.values() for n in slot][: len(results)]
        text = text_function(computation, [self._block.var(n).spec for n in names], self.sizes)
        if text is None or any(self._mixes(computation, v) for v in flat(operands)):
            raise StepsUnknown(f"{_words(op)}: {op.type} has no kernel without torch for these operands")
        self.steps.append(RowStep("texts", text, operands, results))

    def _mixes(self, computation: Computation, operand: int) -> bool:
        """Tell whether a computation on an operand joins entries of several texts."""
        value = self.values[operand]
        is_packed = value.space in (ROWS, TEXTS)
        return mixes_texts(computation, (0, *value.dims) if is_packed else value.padded_dims or value.dims, self.sizes, is_packed)

    def _described(self, op: Op) -> DescribedNumbers | None:
        """Return the numbers of an op's result if the description has them."""
        names = [n for n in op.output_names() if n]
        return self.sizes.described(self._block.var(names[0]).spec) if len(names) == 1 else None

    def _needed(self, fetches: Sequence[str]) -> list[Op]:
        """Return the ops behind the fetches, in order."""
        names, ops = {*fetches}, list[Op]()
        for op in reversed(self._block.ops):
            if not names.isdisjoint(op.output_names()):
                ops.append(op)
                names.update(() if self._described(op) is not None else op.input_names())
        return ops[::-1]


def flat(operands: Sequence[Any]) -> list[int]:
    """Return the values among operands, also among several."""
    out: list[int] = []
    for x in operands:
        out += [] if x is None else [x] if isinstance(x, int) else x
    return out


def _words(op: Op) -> str:
    site = op.call_site
    return f"{op.type}" if site is None else f"{op.type} at {site}"


def _function_of(computation: Computation) -> tuple[Function, ...] | None:
    """Return the functions of each element by oneDNN for a computation."""
    following = (
        Following("relu")
        if isinstance(computation, c.Relu)
        else Following(computation.name, computation.numbers, computation.form)
        if isinstance(computation, c.Activation)
        else None
    )
    return None if following is None else tuple(in_library(following))
