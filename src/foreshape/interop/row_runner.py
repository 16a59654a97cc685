"""Running a network of ragged rows without torch: by oneDNN's library and numpy.

Texts are put together to chunks of few rows, each computed by one thread from the ids to the results: no thread waits for another one after each kernel. A
text that is much of all is computed by all threads together. Steps between two attentions go block by block through all rows, so what lies between them is as
small as a block; only what an attention or a pooling reads is there for all rows of a chunk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapreplace
from itertools import count
from math import prod
from typing import Any, NamedTuple

from foreshape.errors import ExecutionError, FeedError, SchemaError
from foreshape.interop.row_padding import padded_bytes, results_of_texts
from foreshape.interop.row_program import CONSTANT, PADDED, ROWS, SIZES, TEXTS, RowProgram, RowStep, RowValue, flat
from foreshape.language.program import Program, Variable
from foreshape.machine.kernels.onednn_library import Library, library
from foreshape.machine.kernels.row_attention import rows_behind
from foreshape.machine.kernels.row_kernels import BLOCK, Array, KernelStore, RowKernel, Worker, aligned, blocks_of, covered, execute_all

TOGETHER = 16
"""Several threads compute a text together from so many rows on: of less they wait for one another as long as they compute, longer on a busy machine."""
HELD = 5 << 20
"""The bytes of memory kept by a worker at rest: enough for short texts, and their prepared calls."""
HELD_ROWS = 1024
"""A worker keeps its memory for so many rows; the memory of longer texts goes back."""


class _StepGroup(NamedTuple):
    """Steps going block by block through the rows, or the texts, together; or one step on all of them.

    Attributes:
        leaves: the values made here and read behind, or fetched.
        slots: of each value made within a block the number of its memory.
        number: the number of the prepared calls; None where memory of other values than a worker's is read, or numpy computes.
    """

    space: str
    steps: list[RowStep]
    is_by_row: bool
    leaves: frozenset[int]
    slots: dict[int, int]
    number: int | None


class RowRunner:
    """A network of ragged rows, run without torch.

    Args:
        program: with feeds of ragged rows, such as ids, and one level of sequences (texts).
        fetches: its results: ragged rows, or one entry for each text.
        parameters: numpy's arrays by name. The tables of lookups stay where they are; others are copied and may go.
        threads: at most so many; by default OpenMP's number.
        copying: hears of so many bytes before they are copied.

    Attributes:
        feeds: the names of its inputs.
        fetches: the names of its results.

    Raises:
        StepsUnknown: the program has an op without a kernel here, or oneDNN's library is not installed.
    """

    def __init__(
        self,
        program: Program,
        fetches: Sequence[Variable | str],
        parameters: Mapping[str, Array],
        threads: int | None = None,
        copying: Callable[[int], object] = lambda nbytes: None,
    ) -> None:
        onednn = library()
        if onednn is None:
            raise SchemaError("a network runs without torch by oneDNN's library, which is not installed (pip install 'foreshape[embed]')")
        self._library: Library = onednn
        self.threads = max(1, threads or onednn.threads())
        self.store = KernelStore(onednn)
        with onednn.using(self.threads):
            self._program = RowProgram(self.store, program, fetches, parameters, copying)
        self.feeds, self.fetches = [*self._program.feeds], [f if isinstance(f, str) else f.name for f in fetches]
        self._plans: dict[tuple[str, ...], _RunPlan] = {}
        self._numbers = count()
        self._free: list[_RowWorker] = []
        self._lock = threading.Lock()

    @property
    def batch_rows(self) -> int:
        """Return the number of rows from which more together gain nothing: two blocks for each thread, so none waits long for another."""
        return 2 * BLOCK * self.threads

    @property
    def nbytes(self) -> dict[str, int]:
        """Return the bytes of the copied weights, of the kernels kept, and of the workers' memory kept."""
        return {"weights": self._program.nbytes, "kernels": self.store.nbytes, "values": sum(w.nbytes for w in self._free)}

    def forget(self) -> None:
        """Drop the kernels and the memory of workers; they are made again."""
        self.store.forget()
        self._free.clear()

    def rest(self) -> None:
        """Drop the memory of workers for many rows, and keep the kernels."""
        self._free[:] = [worker for worker in self._free if worker.nbytes <= HELD]

    def nbytes_of_run(self, texts: int, rows: int, longest: int, fetches: Sequence[str] | None = None) -> int:
        """Return the most bytes of a run: its inputs, its results, and the memory of each worker.

        Args:
            texts, rows, longest: the number of texts, of all rows, and of the longest text's rows.
            fetches: as for `run`.
        """
        plan, values = self._plan(fetches), self._program.values
        fed = 24 * rows * len(self.feeds)  # as they are, those of a worker, and those in its memory
        results = sum(entry_bytes(values[v]) * (rows if values[v].space == ROWS else texts) for v in plan.fetches)
        return fed + 3 * results + min(texts, self.threads) * plan.nbytes(texts, min(rows, BLOCK + longest), longest)

    def _plan(self, fetches: Sequence[str] | None) -> _RunPlan:
        names = tuple(self.fetches if fetches is None else fetches)
        if names not in self._plans:
            self._plans[names] = _RunPlan(self._program, self._numbers, [self._program.fetches[self.fetches.index(name)] for name in names])
        return self._plans[names]

    def run(self, feeds: Mapping[str, Array], begins: Sequence[int] | Array, fetches: Sequence[str] | None = None) -> dict[str, Array]:
        """Return results by name: ``[rows, ...]`` or ``[texts, ...]``.

        Args:
            feeds: each ``[rows, ...]``, the rows of all texts one after the other.
            begins: [texts + 1], the first row of each text, and the number of all rows.
            fetches: the results to compute; by default all.

        Raises:
            FeedError: an input is missing, or has other rows or dims. ExecutionError: an id is not in its table.
        """
        import numpy

        offsets = numpy.asarray(begins, numpy.int64)
        plan = self._plan(fetches)
        arrays = self._fed(feeds, offsets)
        lengths = numpy.diff(offsets)
        values = self._program.values
        kinds = {ROWS: int(offsets[-1]), TEXTS: len(lengths)}
        results = [numpy.empty((kinds[values[v].space], *values[v].dims), values[v].element) for v in plan.fetches]
        task = _Task(plan, arrays, offsets, results)
        alone, shared = chunks_of(lengths, self.threads)
        for text in alone:
            self._run_chunk(self.threads, task, [text])
        self._share(shared, task)
        return dict(zip(self.fetches if fetches is None else fetches, results, strict=True))

    def _fed(self, feeds: Mapping[str, Array], offsets: Array) -> dict[int, Array]:
        import numpy

        values = self._program.values
        if len(offsets) < 1 or offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
            raise FeedError(f"the begins of texts must be 0 and not fall; they are {offsets[:20].tolist()}")
        if set(feeds) != set(self.feeds):
            raise FeedError.must("a feed", f"for {', '.join(self.feeds)}", ", ".join(map(str, feeds)) or "nothing")
        arrays: dict[int, Array] = {}
        for name, number in self._program.feeds.items():
            array = numpy.asarray(feeds[name])
            value = values[number]
            if array.dtype.kind != numpy.dtype(value.element).kind or array.shape[1:] != value.dims or len(array) != offsets[-1]:
                expected = f"{value.element} {[int(offsets[-1]), *value.dims]}"
                raise FeedError.must(f"{name}", expected, f"{array.dtype} {list(array.shape)}")
            arrays[number] = array.astype(value.element, copy=False)
        return arrays

    def _share(self, chunks: list[list[int]], task: _Task) -> None:
        """Compute chunks of texts, each by one thread."""
        pending, errors = iter(chunks), list[BaseException]()

        def work() -> None:
            try:
                while not errors:
                    with self._lock:
                        texts = next(pending, None)
                    if texts is None:
                        return
                    self._run_chunk(1, task, texts)
            except BaseException as error:
                errors.append(error)

        helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(self.threads, len(chunks)) - 1)]
        for helper in helpers:
            helper.start()
        work()
        for helper in helpers:
            helper.join()
        if errors:
            raise errors[0]

    def _run_chunk(self, threads: int, task: _Task, texts: list[int]) -> None:
        import numpy

        plan, arrays, offsets, results = task
        try:
            worker = self._free.pop()
        except IndexError:  # the first one, or all are in use by other threads
            worker = _RowWorker(self.store, self._program)
        lengths = offsets[[t + 1 for t in texts]] - offsets[texts]
        begins = numpy.zeros(len(texts) + 1, numpy.int64)
        numpy.cumsum(lengths, out=begins[1:])
        picked: Any = numpy.arange(begins[-1]) + numpy.repeat(offsets[texts] - begins[:-1], lengths)  # pyright: ignore[reportUnknownVariableType]
        with self._library.using(threads), numpy.errstate(divide="ignore", invalid="ignore", over="ignore"):  # as the kernels of other engines
            out = worker.run(plan, threads, {number: array[picked] for number, array in arrays.items()}, begins)
        if len(texts) > 1 and not all(numpy.isfinite(x).all() for x in out):  # a text reads a few rows of the next one, with weights of 0
            for text in texts:
                self._run_chunk(threads, task, [text])
        else:
            for value, x, y in zip(plan.fetches, out, results, strict=True):
                y[picked if self._program.values[value].space == ROWS else texts] = x
        worker.give_back()
        self._free.append(worker)


def chunks_of(lengths: Array, threads: int) -> tuple[list[int], list[list[int]]]:
    """Return the texts to be computed by all threads, one after the other; and the others in chunks, each for one thread."""
    import numpy

    order = numpy.argsort(-lengths, kind="stable").tolist()
    rows = lengths.tolist()
    remaining, alone = sum(rows), list[int]()
    while order and threads > 1 and (rows[order[0]] >= TOGETHER or len(order) == 1) and rows[order[0]] * threads > remaining:
        remaining -= rows[order[0]]
        alone.append(order.pop(0))
    chunks: list[list[int]] = [[] for _ in range(min(threads * max(-(-remaining // (threads * BLOCK)), 1), len(order)))]
    sizes = [(0, index) for index in range(len(chunks))]
    for text in order:  # each to the chunk with the fewest rows, the longest first: they end at about the same time
        count, index = sizes[0]
        chunks[index].append(text)
        heapreplace(sizes, (count + rows[text], index))
    return alone, chunks


class _RunPlan:
    """The parts computing some results, and the values of all rows unread behind each."""

    def __init__(self, program: RowProgram, numbers: Iterator[int], fetches: list[int]) -> None:
        self.fetches, self.parts = fetches, _parts(program, numbers, fetches)
        self.last = [_last_reads(program, self.parts, fetches, index) for index in range(len(self.parts))]
        self._attentions = [step.compute for part in self.parts for step in part.steps if step.kind == "attention"]
        self._entry, self._block = _entry_bytes(program, self.parts, self.last), _block_bytes(program, self.parts)
        self._padded = padded_bytes(program.values, program.sizes, _padded_stages(program, self.parts, self.last))

    def nbytes(self, texts: int, rows: int, longest: int) -> int:
        """Return the most bytes of a worker's memory for a chunk."""
        room = {ROWS: covered(rows) + rows_behind(longest), TEXTS: covered(min(texts, rows))}
        scores = max((attention.nbytes(longest) for attention in self._attentions), default=0)
        return (
            sum(room[space] * size for space, size in self._entry.items())
            + min(covered(rows), BLOCK) * self._block
            + scores
            + self._padded(texts, rows, longest)
        )


class _Task(NamedTuple):
    """The plan of a run, its inputs, the begins of its texts, and its results."""

    plan: _RunPlan
    arrays: dict[int, Array]
    offsets: Array
    results: list[Array]


def _parts(program: RowProgram, numbers: Iterator[int], fetches: Sequence[int]) -> list[_StepGroup]:
    """Return the steps behind some results, in parts, with the next numbers of prepared calls."""
    groups: list[list[RowStep]] = []
    for step in program.steps_of(fetches):
        spaces = _space_of(program, step), step.is_by_row
        if groups and step.is_by_row and (_space_of(program, groups[-1][-1]), groups[-1][-1].is_by_row) == spaces:
            groups[-1].append(step)
        else:
            groups.append([step])
    bases = [{_base(program, v) for step in group for v in step.reads} for group in groups]
    fetched = {_base(program, v) for v in fetches}
    parts: list[_StepGroup] = []
    for index, group in enumerate(groups):
        results = [v for step in group for v in step.results]
        leaves = frozenset(v for v in results if v in fetched or any(v in later for later in bases[index + 1 :]))
        known = {v for part in parts for v in part.leaves if program.values[v].element == "float32" and program.values[v].space in (ROWS, TEXTS)} | {*results}
        prepared = all(step.kind in ("product", "norm", "function") for step in group) and bases[index] <= known
        number = next(numbers) if prepared else None
        parts.append(_StepGroup(_space_of(program, group[0]), group, group[0].is_by_row, leaves, _slots(program, group, leaves), number))
    return parts


def entry_bytes(value: RowValue) -> int:
    """Return the bytes of a value for a row or a text."""
    import numpy

    return numpy.dtype(value.element).itemsize * prod(value.dims)


def _entry_bytes(program: RowProgram, parts: Sequence[_StepGroup], last: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the most bytes for each row, and for each text, of the values of all rows: as `_RowWorker.run` shares memory among them."""
    free: dict[str, list[int]] = {ROWS: [], TEXTS: []}  # the bytes of memory that no value uses, the last used behind
    used: dict[int, int] = {}
    sizes, total = dict[int, int](), {ROWS: 0, TEXTS: 0}
    temporary = {ROWS: 0, TEXTS: 0}
    for part, behind in zip(parts, last, strict=True):
        for v in part.leaves:
            value = program.values[v]
            if value.space not in total:
                continue
            size = entry_bytes(value)
            if value.element == "float32":
                used[v] = free[value.space].pop() if free[value.space] else len(sizes)
                sizes[used[v]], total[value.space] = max(size, sizes.get(used[v], 0)), total[value.space] + max(size - sizes.get(used[v], 0), 0)
            else:
                total[value.space] += size
            if part.steps[0].kind in ("sequences", "texts"):
                temporary[value.space] = max(temporary[value.space], 2 * size)
        for v in behind:
            if v in used:
                free[program.values[v].space].append(used.pop(v))
    return {space: total[space] + temporary[space] for space in total}


def _padded_stages(program: RowProgram, parts: Sequence[_StepGroup], last: Sequence[Sequence[int]]) -> list[tuple[set[int], set[int]]]:
    """Return the values of single texts in memory during each part, and the values read or written by it."""
    padded = {v for v, value in enumerate(program.values) if value.space in (SIZES, PADDED)}
    alive = set[int]()
    stages: list[tuple[set[int], set[int]]] = []
    for part, behind in zip(parts, last, strict=True):
        alive |= part.leaves & padded
        stages.append((set(alive), {v for step in part.steps for v in (*step.reads, *step.results)} & padded))
        alive -= set(behind)
    return stages


def _block_bytes(program: RowProgram, parts: Sequence[_StepGroup]) -> int:
    """Return the most bytes for each row of a block: of memory shared by the parts, and of the arrays of numpy in one."""
    slots: dict[int, int] = {}
    arrays = 0
    for part in parts:
        for v, slot in part.slots.items():
            slots[slot] = max(slots.get(slot, 0), entry_bytes(program.values[v]))
        arrays = max(arrays, sum(2 * entry_bytes(program.values[v]) for step in part.steps for v in step.results if part.is_by_row and v not in part.slots))
    return sum(slots.values()) + arrays


def _slots(program: RowProgram, steps: list[RowStep], leaves: frozenset[int]) -> dict[int, int]:
    """Return the number of the memory in a block for each result of oneDNN's kernels staying within."""
    slots: dict[int, int] = {}
    memory: dict[int, set[int]] = {}  # of each value the memory that it may lie in: results of numpy may be views of operands
    free: list[int] = []
    for place, step in enumerate(steps):
        read = {slot for v in step.reads for slot in memory.get(_base(program, v), ())}
        for v in step.results:
            if step.kind in ("rows", "filled") or v in leaves:
                memory[v] = set() if v in leaves else read
            else:
                slots[v] = free.pop() if free else len({*slots.values()})
                memory[v] = {slots[v]}
        live = {slot for later_step in steps[place + 1 :] for v in later_step.reads for slot in memory.get(_base(program, v), ())}
        free = sorted({*slots.values()} - live)
    return slots


def _base(program: RowProgram, value: int) -> int:
    columns = program.columns.get(value)
    return value if columns is None else columns.source


def _space_of(program: RowProgram, step: RowStep) -> str:
    return program.values[step.results[0]].space


class _RowWorker(Worker):
    """The memory of one thread, and the run of a chunk of texts in it."""

    def __init__(self, store: KernelStore, program: RowProgram) -> None:
        super().__init__(store.onednn, 1)
        self._store, self._program = store, program
        self._blocks: dict[int, Array] = {}
        self._rows: dict[tuple[str, int], Array] = {}
        self._longest = self._dropped = 0

    @property
    def nbytes(self) -> int:
        """Return the bytes of its memory."""
        return super().nbytes + sum(x.nbytes for x in (*self._blocks.values(), *self._rows.values()))

    def give_back(self) -> None:
        """Drop the memory of long texts."""
        if self._longest > HELD_ROWS:
            self._rows.clear()
            self._longest = 0

    def run(self, plan: _RunPlan, threads: int, fed: dict[int, Array], begins: Array) -> list[Array]:
        """Return the results of some texts."""
        import numpy

        self.threads = threads
        if self._dropped != self._store.dropped:  # calls would keep kernels
            self._dropped, self.calls = self._store.dropped, {}
        rows, texts = int(begins[-1]), len(begins) - 1
        longest = int(numpy.diff(begins).max(initial=0))
        counts = {ROWS: rows, TEXTS: texts}
        room = {ROWS: covered(rows) + rows_behind(longest), TEXTS: covered(texts)}
        self._longest = max(self._longest, rows)
        env: dict[int, Array] = dict(self._program.constants)
        for number, array in fed.items():
            env[number] = numpy.zeros((room[ROWS], *array.shape[1:]), array.dtype)
            env[number][:rows] = array
        free: dict[str, list[int]] = {ROWS: [*range(64)][::-1], TEXTS: [*range(64)][::-1]}
        memory_numbers: dict[int, int] = {}
        for part, last in zip(plan.parts, plan.last, strict=True):
            for v in part.leaves:
                value = self._program.values[v]
                if value.element == "float32" and value.space in room:
                    memory_numbers[v] = free[value.space].pop()
                    env[v] = self._memory((value.space, memory_numbers[v]), room[value.space], value.dims)
            if part.is_by_row:
                self._run_blocks(part, env, counts[part.space])
            else:
                self._run_on_sequences(part.steps[0], env, begins, counts, room)
            for v in last:
                env.pop(v, None)
                if v in memory_numbers:
                    free[self._program.values[v].space].append(memory_numbers.pop(v))
        return [self._array(env, v)[: counts[self._program.values[v].space]] for v in plan.fetches]

    def _memory(self, slot: tuple[str, int], count: int, dims: tuple[int, ...]) -> Array:
        """Return memory of all rows for a value."""
        size = count
        for n in dims:
            size *= n
        memory = self._rows.get(slot)
        if memory is None or memory.size < size:
            memory = self._rows[slot] = aligned(size)
            self.calls = {}
        return memory[:size].reshape(count, *dims)

    def _array(self, env: dict[int, Array], value: int) -> Array:
        columns = self._program.columns.get(value)
        return env[value] if columns is None else env[columns.source][:, columns.begin : columns.end]

    def _run_on_sequences(self, step: RowStep, env: dict[int, Array], begins: Array, count: dict[str, int], room: dict[str, int]) -> None:
        """Run a step on sequences."""
        import numpy

        if step.kind == "attention":
            q, k, v = (_in_rows(self._array(env, x)) for x in step.operands[:3])
            bias: Any = None
            if len(step.operands) > 3:
                number = flat(step.operands[3:])[0]
                bias = [env[number]] * (len(begins) - 1) if self._program.values[number].space == CONSTANT else env[number]
            out = env[step.results[0]]
            out[begins[-1] :] = 0.0
            step.compute(self, q, k, v, out, begins.tolist(), bias)
            return
        if step.kind == "texts":
            results = self._of_texts(step, env, begins)
        else:
            (number,) = flat(step.operands)
            results = [step.compute(self._array(env, number)[: count[self._program.values[number].space]], begins)]
        for result, y in zip(step.results, results, strict=True):
            space = self._program.values[result].space
            if space not in room:
                env[result] = y
                continue
            if result not in env:
                env[result] = numpy.empty((room[space], *y.shape[1:]), y.dtype)
            env[result][: len(y)] = y
            env[result][len(y) :] = 0

    def _of_texts(self, step: RowStep, env: dict[int, Array], begins: Array) -> list[Any]:
        """Return each result of a step on single texts: arrays of all texts, or a list of one for each text."""
        import numpy

        values = self._program.values

        def operands(text: int, begin: int, end: int) -> list[Any]:
            return [self._operand_of_text(x, env, text, begin, end) for x in step.operands]

        shared_memory = [any(values[v].space in (ROWS, TEXTS) for v in flat((x,))) for x in step.operands]
        is_shared = all(values[v].space == SIZES for v in step.results)
        texts = results_of_texts(step.compute, operands, begins, is_shared, shared_memory)
        out: list[Any] = []
        for v, arrays in zip(step.results, zip(*texts, strict=True), strict=True):
            space = values[v].space
            rows = begins[1:] - begins[:-1] if space == ROWS else [1] * len(arrays)
            if space in (ROWS, TEXTS) and any(len(x) != n for x, n in zip(arrays, rows, strict=True)):
                raise ExecutionError(f"a value of {space} has other rows than the texts fed")
            out.append(numpy.concatenate(arrays) if space in (ROWS, TEXTS) else arrays)
        return out

    def _operand_of_text(self, x: Any, env: dict[int, Array], text: int, begin: int, end: int) -> Any:
        """Return an operand of a step on the text with a number, of some rows."""
        if x is None or isinstance(x, tuple):
            return x and tuple([self._operand_of_text(v, env, text, begin, end) for v in x])  # pyright: ignore[reportUnknownVariableType]
        number: int = x
        space = self._program.values[number].space
        if space in (ROWS, TEXTS):
            return self._array(env, number)[begin:end] if space == ROWS else env[number][text : text + 1]
        return env[number] if space == CONSTANT else env[number][text]

    def _run_blocks(self, part: _StepGroup, env: dict[int, Array], count: int) -> None:
        """Run steps block by block."""
        import numpy

        for begin, rows in blocks_of(count):
            calls, key = self.calls, (part.number, rows, self.threads)
            if part.number is not None and not begin and key in calls:
                execute_all(self._store.onednn, calls[key])
                continue
            block: dict[int, Array] = {}
            kernels: list[tuple[RowKernel, tuple[int, ...]]] = []
            prepared = part.number is not None and not begin  # the first block of each size: others start at many rows
            for step in part.steps:
                operands = [self._operand(x, env, block, begin, rows) for x in step.operands]
                if step.kind in ("rows", "filled"):
                    results: Any = step.compute(rows) if step.kind == "filled" else step.compute(*operands)
                    arrays: Sequence[Array] = results if len(step.results) > 1 else (results,)
                    for v, y in zip(step.results, arrays, strict=True):
                        if v in part.leaves:
                            if v not in env:
                                env[v] = numpy.zeros((covered(count) + 64, *y.shape[1:]), y.dtype)
                            env[v][begin : begin + rows] = y
                        else:
                            block[v] = y
                    continue
                result = step.results[0]
                out = env[result][begin : begin + rows] if result in part.leaves else self._block(part.slots[result], rows, self._program.values[result].dims)
                contiguous = [numpy.ascontiguousarray(x) for x in operands]
                prepared = prepared and all(x is y for x, y in zip(contiguous, operands, strict=True))
                kernel, addresses = step.compute.call(self, contiguous[0], out, *contiguous[1:])
                kernel(self, *addresses)
                kernels.append((kernel, addresses))
                if result not in part.leaves:
                    block[result] = out
            if prepared:
                self.prepare(calls, key, kernels)

    def _operand(self, x: Any, env: dict[int, Array], block: dict[int, Array], begin: int, rows: int) -> Any:
        if isinstance(x, tuple):
            return tuple([self._operand(v, env, block, begin, rows) for v in x])  # pyright: ignore[reportUnknownVariableType]
        if x is None:
            return None
        value: int = x
        if self._program.values[value].space == CONSTANT:
            return env[value]
        columns = self._program.columns.get(value)
        base = value if columns is None else columns.source
        array = block[base] if base in block else env[base][begin : begin + rows]
        return array if columns is None else array[:, columns.begin : columns.end]

    def _block(self, slot: int, rows: int, dims: tuple[int, ...]) -> Array:
        """Return memory of a block for a value."""
        size = rows
        for n in dims:
            size *= n
        memory = self._blocks.get(slot)
        if memory is None or memory.size < size:
            memory = self._blocks[slot] = aligned(size)
            self.calls = {}
        return memory[:size].reshape(rows, *dims)


def _in_rows(x: Array) -> Array:
    """Return rows whose columns are contiguous."""
    return x if x.strides[-1] == x.itemsize else x.copy()


def _last_reads(program: RowProgram, parts: list[_StepGroup], fetches: Sequence[int], index: int) -> list[int]:
    """Return the values of all rows unread behind a part."""
    later = {_base(program, v) for part in parts[index + 1 :] for step in part.steps for v in step.reads} | {_base(program, v) for v in fetches}
    reads = {_base(program, v) for step in parts[index].steps for v in step.reads} | parts[index].leaves
    return [v for v in reads if v not in later and program.values[v].space != CONSTANT]
