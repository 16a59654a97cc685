"""The step of one new word for each of a few texts, as instructions of one loop (`foreshape.machine.kernels.word_loop`).

The ops of a decoder are told by their computations. Each text has one new row, so a step's values have known dims. Another op, other element types, or a
parameter with gaps: the network has no such step, and its executor runs it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from foreshape.core.dims import evaluate, is_symbol
from foreshape.core.spec import FP32, INT64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ShapeError
from foreshape.language.operator import Operator
from foreshape.language.operator import computations as c
from foreshape.language.operator.byte_computations import GroupedProduct
from foreshape.language.operator.sequence_computations import SequenceEnd
from foreshape.language.ops.quantization.dynamic import Int8Lookup
from foreshape.language.ops.sequence.cached_attention import CachedAttention, CachedPositions
from foreshape.language.program import Op, Program
from foreshape.language.program.needed import needed_ops
from foreshape.machine.kernels import word_loop as loop
from foreshape.machine.kernels.grouped_weights import multiplies_bytes
from foreshape.machine.kernels.loop_team import run_together
from foreshape.machine.kernels.word_sampling import Sampling, SamplingTable

MOST_ROWS: Final = 64
"""So many texts at most."""
_ALIGNMENT: Final = 64
_NO_ID: Final = -1 << 62
_SMALL: Final = {loop.UNARY: 512}
"""Functions of fewer elements are one thread's; others of fewer than `_FEW`."""
_FEW: Final = 8192
_ACTIVATIONS: Final = {("swish", ""): loop.SWISH, ("tanh", ""): loop.TANH, ("gelu", "none"): loop.GELU, ("gelu", "tanh"): loop.GELU_BY_TANH}
_FUNCTIONS: Final = {"sin": loop.SINE, "cos": loop.COSINE}
_POWERS: Final = {2.0: loop.SQUARE, -0.5: loop.ROOT_INVERSE}
_PAIRS: Final[dict[type, int]] = {c.Sum: loop.ADD, c.Subtraction: loop.SUBTRACT, c.Product: loop.MULTIPLY, c.Quotient: loop.DIVIDE}


class NoWordStep(Exception):
    """The sign of a network without such a step; its text says why."""


class _Operand(NamedTuple):
    """Numbers in memory: a place in the workspace, with its address still unknown, or an address."""

    dims: tuple[int, ...]
    place: int
    address: int = 0
    """0: it lies in the workspace."""
    is_whole: bool = False


class _PlacedCall(NamedTuple):
    """An instruction with values in place of addresses."""

    code: int
    operands: tuple[_Operand | None, ...]
    dims: tuple[int | _Operand, ...]
    numbers: tuple[float, ...]
    reads: tuple[_Operand, ...]
    writes: tuple[_Operand, ...]


class _StepWriter:
    """Writes the instructions of a program for so many rows."""

    def __init__(
        self, program: Program, scores: str, parameters: Mapping[str, Tensor], sizes: Mapping[str, int], feeds: Mapping[str, int], threads: int
    ) -> None:
        self.block, self.parameters, self.sizes, self.threads = program.global_block, parameters, sizes, threads
        self.values: dict[str, _Operand] = {}
        self.pieces: list[_PlacedCall] = []
        self.nbytes: list[int] = []
        self.constants: list[Any] = []
        self.rounded: dict[tuple[_Operand, int, bool], _Operand] = {}
        for name, address in feeds.items():
            self.values[name] = _Operand(self._dims(name), -1, address, is_whole=True)
        for op in needed_ops(self.block, (scores,)):
            self._write(op)
        self.scores = self.values[scores]

    def _dims(self, name: str) -> tuple[int, ...]:
        spec = self._spec(name)
        try:
            return tuple(evaluate(d, self.sizes) for d in spec.known_dims)
        except (ShapeError, KeyError) as error:
            raise NoWordStep(f"{name} has open dims: {error}") from error

    def _spec(self, name: str) -> Spec:
        return self.block.var(name).spec

    def _value(self, name: str) -> _Operand:
        value = self.values.get(name)
        if value is None:
            tensor = self.parameters.get(name)
            if tensor is None or tensor.dtype != torch.float32 or not tensor.is_contiguous() or not tensor.is_cpu:
                raise NoWordStep(f"{name} is no contiguous parameter of fp32")
            value = self.values[name] = _Operand(tuple(tensor.shape), -1, tensor.data_ptr())
        return value

    def _new(self, dims: Sequence[int], *, is_whole: bool = False) -> _Operand:
        self.nbytes.append(prod(dims) * (8 if is_whole else 4))
        return _Operand(tuple(dims), len(self.nbytes) - 1, 0, is_whole)

    def _result(self, op: Op, operator: Operator) -> tuple[str, tuple[int, ...]]:
        """Return the name and the dims of the first result."""
        name = op.outputs[operator.schema.results[0].name][0]
        if self._spec(name).dtype is not FP32:
            raise NoWordStep(f"{name} is not of fp32")
        return name, self._dims(name)

    def _add(
        self,
        code: int,
        operands: Sequence[_Operand | None],
        dims: Sequence[int | _Operand] = (),
        numbers: Sequence[float] = (),
        *,
        writes: Sequence[_Operand],
        also: Sequence[_Operand] = (),
    ) -> None:
        """Add an instruction; ``also``: read besides its operands."""
        reads = tuple(v for v in operands if v is not None and v not in writes) + tuple(also)
        if code not in (loop.LOOKUP, loop.BYTE_LOOKUP, loop.NUMBERS_OF) and any(v is not None and v.is_whole for v in operands):
            raise NoWordStep("an operation on whole numbers")
        self.pieces.append(_PlacedCall(code, tuple(operands), tuple(dims), tuple(numbers), reads, tuple(writes)))

    # --- ops

    def _write(self, op: Op) -> None:
        operator = op.operator
        if operator is None:
            raise NoWordStep(f"{op.type} is unknown")
        if isinstance(operator, CachedPositions):
            positions = self.values[op.inputs["Held"][0]]
            self.values[op.outputs["Out"][0]] = positions._replace(dims=(positions.dims[0],))
            return
        if isinstance(operator, CachedAttention):
            self._attention(op, operator)
            return
        if operator.acts() or any(self.block.var(name).persistable for name in op.output_names()):
            raise NoWordStep(f"{op.type} does more than to compute a value")
        computation = operator.computes()
        if isinstance(computation, GroupedProduct):
            self._packed_product(op, operator, computation)
            return
        if isinstance(operator, Int8Lookup):
            self._byte_lookup(op, operator)
            return
        inputs = [[self._value(name) for name in op.inputs.get(field.name, ())] for field in operator.schema.operands]
        if computation is None or any(inputs[computation.operands :]):
            raise NoWordStep(f"{op.type} has no instructions")
        first = inputs[0] if inputs else []
        if isinstance(computation, (c.Split, c.Unstacking)):
            self._cut([*op.outputs[operator.schema.results[0].name]], computation, first[0])
            return
        if isinstance(computation, (c.Concat, c.Stacking)):
            self._joined(*self._result(op, operator), computation, first)
            return
        name, dims = self._result(op, operator)
        self.values[name] = self._computed(op, computation, [values[0] if values else None for values in inputs], dims)

    def _computed(self, op: Op, computation: Any, operands: Sequence[_Operand | None], dims: tuple[int, ...]) -> _Operand:
        """Return the value of an op with one result."""
        if isinstance(computation, c.Numbers):
            array = np.array(computation.numbers, np.float32)
            self.constants.append(array)
            return _Operand(dims, -1, array.ctypes.data)
        x = operands[0]
        if x is None:
            raise NoWordStep(f"{op.type} has no operand")
        if isinstance(computation, (c.Reshape, c.Identity, SequenceEnd)) or (isinstance(computation, c.Cast) and not x.is_whole):
            return x._replace(dims=dims)  # each text's last row is its only one
        out = self._new(dims)
        y, z = ([*operands, None, None])[1:3]
        if isinstance(computation, c.Cast):
            self._add(loop.NUMBERS_OF, (x, None, out), (0, prod(dims)), writes=[out])
        elif isinstance(computation, c.Embedding) and y is not None and y.is_whole:
            padding = _NO_ID if computation.padding == -1 else computation.padding % x.dims[0]
            self._add(loop.LOOKUP, (y, x, out), (prod(y.dims), x.dims[1], x.dims[0], padding), writes=[out])
        elif isinstance(computation, c.FlattenedProduct) and y is not None and computation.y_rows == 1:
            rows = prod(x.dims[: computation.x_rows])
            self._add(loop.PRODUCT, (x, y, out), (rows, y.dims[0], prod(y.dims[1:])), writes=[out])
        elif isinstance(computation, c.MatrixProduct) and y is not None and len(y.dims) == 2 and not computation.x_transposed:
            rows, turned = prod(x.dims[:-1]), computation.y_transposed
            code = loop.TURNED_PRODUCT if turned else loop.PRODUCT
            self._add(code, (x, y, out), (rows, x.dims[-1], y.dims[0 if turned else 1]), writes=[out])
        elif isinstance(computation, (c.Sum, c.Subtraction, c.Product, c.Quotient)) and y is not None:
            self._pair(_PAIRS[type(computation)], x, y, out, computation.axis)
        elif isinstance(computation, c.LayerNorm):
            rows = prod(x.dims[: computation.begin])
            self._add(loop.LAYER_NORM, (x, y, out, z), (rows, prod(x.dims) // rows), (computation.epsilon,), writes=[out])
        elif isinstance(computation, c.Reduction) and computation.axes in ((-1,), (len(x.dims) - 1,)) and computation.how in ("SUM", "AVERAGE"):
            columns = x.dims[-1]
            self._add(loop.MEAN, (x, None, out), (prod(x.dims[:-1]), columns), (1.0 / columns if computation.how == "AVERAGE" else 1.0,), writes=[out])
        else:
            kind, numbers = _function(computation)
            if kind is None:
                raise NoWordStep(f"{op.type} has no instructions")
            self._add(loop.UNARY, (x, None, out), (kind, prod(dims)), numbers, writes=[out])
        return out

    def _pair(self, kind: int, x: _Operand, y: _Operand, out: _Operand, axis: int) -> None:
        """Write an operation of two broadcast operands."""
        rank = len(out.dims)
        behind = 0 if axis == -1 else len(x.dims) - axis - len(y.dims)
        steps = [_steps(v.dims + (1,) * (behind if v is y else 0), out.dims) for v in (x, y)]
        dims, steps = _merged(out.dims, steps)
        if len(dims) > 3:
            raise NoWordStep(f"an operation of {rank} axes")
        dims = [1] * (3 - len(dims)) + dims
        steps = [[0] * (3 - len(s)) + s for s in steps]
        self._add(loop.BINARY, (x, y, out), (*dims, kind, *steps[0], *steps[1]), writes=[out])

    def _cut(self, names: Sequence[str], computation: c.Split | c.Unstacking, x: _Operand) -> None:
        """Write the parts of a tensor along an axis."""
        axis = computation.axis % len(x.dims)
        outer, inner = prod(x.dims[:axis]), prod(x.dims[axis + 1 :])
        offset = 0
        for name in names:
            dims = self._dims(name)
            size = 1 if isinstance(computation, c.Unstacking) else dims[axis]
            out = self.values[name] = self._new(dims)
            self._copy(x, offset, out, 0, (outer, size, inner), (x.dims[axis] * inner, inner), (size * inner, inner))
            offset += size * inner

    def _joined(self, name: str, dims: tuple[int, ...], computation: c.Concat | c.Stacking, parts: Sequence[_Operand]) -> None:
        """Write tensors behind one another along an axis."""
        out = self.values[name] = self._new(dims)
        axis = computation.axis % len(dims)
        outer, inner, offset = prod(dims[:axis]), prod(dims[axis + 1 :]), 0
        for part in parts:
            size = 1 if isinstance(computation, c.Stacking) else part.dims[axis]
            self._copy(part, 0, out, offset, (outer, size, inner), (size * inner, inner), (dims[axis] * inner, inner))
            offset += size * inner

    def _copy(self, x: _Operand, begin: int, out: _Operand, to: int, dims: tuple[int, int, int], steps: tuple[int, int], out_steps: tuple[int, int]) -> None:
        """Write a copy of ``[outer, size, inner]`` numbers from one place in a value to one in another; the innermost of one number are taken as a row."""
        outer, size, inner = dims
        if x.is_whole:
            raise NoWordStep("parts of whole numbers")
        if inner == 1:
            shape = (1, outer, size, 0, steps[0], steps[1], 0, out_steps[0], out_steps[1])
        else:
            shape = (outer, size, inner, steps[0], steps[1], 1, out_steps[0], out_steps[1], 1)
        self.pieces.append(_PlacedCall(loop.COPY, (x, None, out), shape, (4.0 * begin, 4.0 * to), (x,), (out,)))

    def _bytes(self, name: str) -> _Operand:
        """Return a parameter of bytes."""
        tensor = self.parameters.get(name)
        if tensor is None or tensor.element_size() != 1 or not tensor.is_contiguous() or not tensor.is_cpu:
            raise NoWordStep(f"{name} is no contiguous parameter of bytes")
        return _Operand(tuple(tensor.shape), -1, tensor.data_ptr())

    def _packed_product(self, op: Op, operator: Operator, computation: GroupedProduct) -> None:
        x, scales, weight = self._value(op.inputs["X"][0]), self._value(op.inputs["Scale"][0]), self._bytes(op.inputs["W"][0])
        offsets = self._value(op.inputs["Offset"][0]) if op.inputs.get("Offset") else None
        name, dims = self._result(op, operator)
        inner, groups = x.dims[-1], scales.dims[1]
        if inner // groups % 4:
            raise NoWordStep(f"groups of {inner // groups} rows")
        rows, in_bytes = prod(x.dims[:-1]), computation.rounds_rows and multiplies_bytes(inner // groups)
        if computation.rounds_rows:
            x = self._rounded_rows(x, rows, groups, in_bytes)
        out, partial = self._new(dims), self._new((self.threads, loop.product_scratch(rows, inner, groups, in_bytes)))
        code = loop.BYTE_PRODUCT if weight.dims[1] == inner else loop.HALF_BYTE_PRODUCT
        self._add(code, (x, weight, out, scales, offsets), (rows, inner, computation.columns, groups, partial, in_bytes), writes=[out, partial])
        self.values[name] = out

    def _rounded_rows(self, x: _Operand, rows: int, groups: int, in_bytes: bool) -> _Operand:
        """Return rows in 8 bits, as bytes or in fp32; products with the same rows share them."""
        key = x, groups, in_bytes
        if key not in self.rounded:
            inner = x.dims[-1]
            out = self._new((loop.rounded_numbers(rows, inner, groups),) if in_bytes else x.dims)
            pair = None if in_bytes else self._new((self.threads, 2))
            self._add(loop.ROUNDING, (x, None, out), (rows, inner, groups, pair or 0), writes=[out] if pair is None else [out, pair])
            self.rounded[key] = out
        return self.rounded[key]

    def _byte_lookup(self, op: Op, operator: Operator) -> None:
        ids, scales, table = self._value(op.inputs["Ids"][0]), self._value(op.inputs["Scale"][0]), self._bytes(op.inputs["W"][0])
        name, dims = self._result(op, operator)
        if not ids.is_whole:
            raise NoWordStep("ids of fp32")
        out = self.values[name] = self._new(dims)
        self._add(loop.BYTE_LOOKUP, (ids, table, out, scales), (prod(ids.dims), table.dims[1], table.dims[0]), writes=[out])

    def _attention(self, op: Op, operator: CachedAttention) -> None:
        q, k, v, keys, values = (self._value(op.inputs[name][0]) for name in ("Q", "K", "V", "KeyCache", "ValueCache"))
        name, dims = op.outputs["Out"][0], self._dims(op.outputs["Out"][0])
        rows, width = dims
        size, group = width // operator.heads, operator.heads // operator.key_heads
        context = keys.dims[1]
        out = self.values[name] = self._new(dims)
        scratch = self._new((self.threads, group, context))
        places = self.values[op.inputs["Slots"][0]]
        scale = operator.scale or 1 / math.sqrt(size)
        shape = (rows, operator.key_heads, group, size, operator.window, scratch, places, 0, context)
        self._add(loop.ATTENTION, (q, k, out, v, keys, values), shape, (scale, operator.score_cap), writes=[out, scratch, keys, values], also=[places])


def _function(computation: Any) -> tuple[int | None, tuple[float, ...]]:
    """Return the kind of a function of elements, and its numbers."""
    if isinstance(computation, c.Scaling):
        return loop.AFFINE, (computation.by, 0.0)
    if isinstance(computation, c.Affine):
        return loop.AFFINE, (computation.by, computation.shift)
    if isinstance(computation, c.Power):
        return _POWERS.get(computation.of), ()
    if isinstance(computation, c.Function):
        return _FUNCTIONS.get(computation.name), ()
    if isinstance(computation, c.Relu):
        return loop.RELU, ()
    if isinstance(computation, c.Activation) and not computation.numbers:
        return _ACTIVATIONS.get((computation.name, computation.form)), ()
    return None, ()


def _steps(dims: Sequence[int], out: Sequence[int]) -> list[int]:
    """Return the steps of a broadcast operand along the axes of the result."""
    dims = [1] * (len(out) - len(dims)) + list(dims)
    steps, step = [0] * len(out), 1
    for axis in range(len(out) - 1, -1, -1):
        if dims[axis] not in (1, out[axis]):
            raise NoWordStep(f"dims {dims} for {list(out)}")
        steps[axis] = 0 if dims[axis] == 1 else step
        step *= dims[axis]
    return steps


def _merged(dims: Sequence[int], steps: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Return the dims and steps with neighbouring axes joined where all operands go through both alike."""
    out_dims, out_steps = [1], [[0] for _ in steps]
    for axis, size in enumerate(dims):
        if size == 1:
            continue
        if out_dims[-1] == 1:
            out_dims[-1] = size
            for step, new in zip(out_steps, steps, strict=True):
                step[-1] = new[axis]
        elif all(step[-1] == new[axis] * size for step, new in zip(out_steps, steps, strict=True)):
            out_dims[-1] *= size
            for step, new in zip(out_steps, steps, strict=True):
                step[-1] = new[axis]
        else:
            out_dims.append(size)
            for step, new in zip(out_steps, steps, strict=True):
                step.append(new[axis])
    return out_dims, out_steps


# --- memory and barriers


class _Instructions(NamedTuple):
    """Instructions with their addresses, and a row for one more, of the sampling."""

    table: Any
    numbers: Any
    length: int
    scores: list[tuple[int, int, int]]
    """The places in the table with addresses in the scores, each with its bytes from their beginning."""
    dims: tuple[int, ...]
    """The dims of the scores."""
    memory: list[Any]
    """The arrays behind the addresses."""


def _placed(writer: _StepWriter) -> tuple[list[int], int]:
    """Return the place in bytes of each value in the workspace, and the bytes of all: a value's memory is free behind its last instruction."""
    last: dict[int, int] = {}
    for at, piece in enumerate(writer.pieces):
        for v in (*piece.reads, *piece.writes):
            last[v.place] = at
    last[writer.scores.place] = len(writer.pieces)
    free: list[tuple[int, int]] = []  # (begin, end)
    begins, total = [-1] * len(writer.nbytes), 0
    for at, piece in enumerate(writer.pieces):
        for v in piece.writes:
            if v.place < 0 or begins[v.place] >= 0:
                continue
            size = -(-writer.nbytes[v.place] // _ALIGNMENT) * _ALIGNMENT
            hole = min((h for h in free if h[1] - h[0] >= size), key=lambda h: h[1] - h[0], default=None)
            if hole is None:
                begins[v.place], total = total, total + size
            else:
                free.remove(hole)
                begins[v.place] = hole[0]
                if hole[1] - hole[0] > size:
                    free.append((hole[0] + size, hole[1]))
        for place in {v.place for v in (*piece.reads, *piece.writes) if v.place >= 0 and last[v.place] == at}:
            size = -(-writer.nbytes[place] // _ALIGNMENT) * _ALIGNMENT
            free.append((begins[place], begins[place] + size))
            free.sort()
            joined = free[:1]
            for begin, end in free[1:]:
                if begin == joined[-1][1]:
                    joined[-1] = joined[-1][0], end
                else:
                    joined.append((begin, end))
            free = joined
    return begins, total


def _tabled(writer: _StepWriter) -> _Instructions:
    """Return the instructions with their addresses and barriers."""
    begins, total = _placed(writer)
    workspace = np.zeros(total + _ALIGNMENT, np.uint8)
    base = -(-workspace.ctypes.data // _ALIGNMENT) * _ALIGNMENT

    def address(v: _Operand | None) -> int:
        return 0 if v is None else v.address if v.place < 0 else base + begins[v.place]

    def extent(v: _Operand) -> tuple[int, int]:
        begin = address(v)
        return begin, begin + (writer.nbytes[v.place] if v.place >= 0 else 4 * prod(v.dims))

    table = np.zeros((len(writer.pieces) + 1, loop.WIDTH), np.int64)
    numbers = np.zeros((len(writer.pieces) + 1, loop.NUMBERS), np.float64)
    read: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    in_parts = False
    scores: list[tuple[int, int, int]] = []
    for at, piece in enumerate(writer.pieces):
        elements = max(prod(v.dims) for v in (*piece.reads, *piece.writes))
        is_in_parts = piece.code in loop.ALWAYS_IN_PARTS or (piece.code in loop.MAYBE_IN_PARTS and elements >= _SMALL.get(piece.code, _FEW))
        reads, writes = [extent(v) for v in piece.reads], [extent(v) for v in piece.writes]
        meets = _overlap(reads, written) or _overlap(writes, written) or _overlap(writes, read)
        waits = meets and (in_parts or is_in_parts)
        if waits:
            read, written, in_parts = [], [], False
        in_parts = in_parts or is_in_parts
        read += reads
        written += writes
        operands = [address(v) for v in piece.operands]
        if piece.code == loop.COPY:
            operands[0], operands[2] = operands[0] + int(piece.numbers[0]), operands[2] + int(piece.numbers[1])
        dims = [address(d) if isinstance(d, _Operand) else d for d in piece.dims]
        table[at, : 2 + len(operands)] = [piece.code, loop.BEHIND_BARRIER * waits + loop.IN_PARTS * is_in_parts, *operands]
        for place, v in enumerate(piece.operands):
            if v is not None and v.place == writer.scores.place:
                scores.append((at, 2 + place, operands[place] - address(v)))
        table[at, 2 + loop.OPERANDS : 2 + loop.OPERANDS + len(dims)] = dims
        numbers[at, : len(piece.numbers)] = piece.numbers
    return _Instructions(table, numbers, len(writer.pieces), scores, writer.scores.dims, [workspace, *writer.constants])


def _overlap(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> bool:
    return any(a < d and b < e for a, e in first for b, d in second)


class WordStep:
    """The steps of one new word for each text of a model, for the numbers of texts met so far.

    Args:
        program: of the model.
        names: of its words, places, held rows and scores.
        parameters: the values of its parameters and caches, by name.
        users, context: of the caches.
        threads: the threads of a step.

    Raises:
        NoWordStep: the network has no such step.
    """

    def __init__(self, program: Program, names: tuple[str, str, str, str], parameters: Mapping[str, Tensor], users: int, context: int, threads: int) -> None:
        if not loop.can_compile():
            raise NoWordStep("numba is not installed")
        self._program, self._names, self._parameters = program, names, dict(parameters)
        self.users, self.context, self._threads = users, context, threads
        self._words = np.zeros(MOST_ROWS, np.int64)
        self._places = np.zeros(2 * MOST_ROWS, np.int64)
        self._tables: dict[int, _Instructions | None] = {}
        self._lock = threading.Lock()
        table = self._tables[1] = self._table(1)
        self._sampling = SamplingTable(MOST_ROWS, table.dims[-1], threads)

    def _table(self, rows: int) -> _Instructions:
        words, slots, held, scores = self._names
        block = self._program.global_block
        spec = block.var(words).spec
        symbols = {str(spec.known_dims[0]): rows, **({str(count): rows for count in spec.lod.counts} if spec.lod is not None else {})}
        sizes = {**symbols, "users": self.users, "context": self.context}
        if spec.dtype is not INT64 or not is_symbol(spec.known_dims[0]):
            raise NoWordStep("the words are not int64, of any number of rows")
        addresses = {words: self._words.ctypes.data, slots: self._places.ctypes.data, held: self._places.ctypes.data + 8 * rows}
        return _tabled(_StepWriter(self._program, scores, self._parameters, sizes, addresses, self._threads))

    def run(
        self, words: Sequence[int], slots: Sequence[int], held: Sequence[int], samplings: Sequence[Sampling | None] = ()
    ) -> tuple[Tensor, list[int]] | None:
        """Return the scores ``[texts, vocabulary]`` behind one new word of each text, and the words chosen by ``samplings``, -1 for ones left to torch.

        None where the executor is to run it, and to tell what is wrong.
        """
        rows = len(words)
        if len({*slots}) != rows or min(slots) < 0 or max(slots) >= self.users or min(held) < 0 or max(held) >= self.context:
            return None
        with self._lock:
            if rows not in self._tables:
                try:
                    self._tables[rows] = self._table(rows)
                except NoWordStep:  # rows of one text may be broadcast where those of several are not
                    self._tables[rows] = None
            table = self._tables[rows]
            if table is None:
                return None
            self._words[:rows] = words
            self._places[:rows], self._places[rows : 2 * rows] = slots, held
            scores = torch.empty(table.dims)
            for at, place, offset in table.scores:
                table.table[at, place] = scores.data_ptr() + offset
            if samplings:
                self._sampling.write(table.table[-1], scores.data_ptr(), samplings)
            accepted = run_together(table.table, table.numbers, table.length + bool(samplings), self._threads)
            return (scores, self._sampling.words(len(samplings))) if accepted else None
