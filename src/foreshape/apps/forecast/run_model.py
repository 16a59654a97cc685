"""A run over many batches, replayed in the allocator: the steps of a trace as templates, with bytes by formulas of the sizes."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from foreshape.apps.forecast.caching_allocator import SMALLEST, OutOfDeviceMemory
from foreshape.apps.forecast.forecast_results import PeakTensor, StepPeak
from foreshape.apps.forecast.record import Note, Record
from foreshape.apps.forecast.size_formulas import Sizes, formula

_ALLOCATE: Final = -1
_CARRIED: Final = 1 << 40
"""Its multiples: so many steps ago; beside them the slot's number there."""
_SETUP: Final = 1 << 62
"""From here on: slots made before the first step."""
_MANY: Final = 400
"""From so many batches on, batches far below the greatest are not replayed."""
_SMALL: Final = 0.6
"""The share of the greatest bytes of tensors up to which a batch is far below: it then fits into the reserved bytes (modelled)."""
LOW, EXPECTED, HIGH = range(3)
"""Unknown workspaces: none, the expected bytes, the most."""


class StepTemplate(NamedTuple):
    """The events of a step: `_ALLOCATE`, or the freed slot, numbered within the step, in one before or in the setup."""

    codes: Sequence[int]
    sizes: Sequence[int]
    notes: Sequence[Note]
    largest: dict[int, int]
    shrinking: frozenset[int]


def templates(record: Record) -> list[StepTemplate]:
    """Return the templates of the setup and of each step."""
    bounds = [0, *record.marks]
    first_slots = [0]
    for end in bounds[1:]:
        first_slots.append(first_slots[-1] + sum(1 for event in record.events[bounds[len(first_slots) - 1] : end] if event >= 0))
    out: list[StepTemplate] = []
    for number in range(len(bounds) - 1):
        begin, end = first_slots[number], first_slots[number + 1]
        codes = array("q")
        for event in record.events[bounds[number] : bounds[number + 1]]:
            slot = ~event
            if event >= 0:
                codes.append(_ALLOCATE)
            elif slot >= begin:
                codes.append(slot - begin)
            elif slot < first_slots[1]:
                codes.append(slot + _SETUP)
            else:
                earlier = bisect_right(first_slots, slot) - 1
                codes.append(slot - first_slots[earlier] + _CARRIED * (number - earlier))
        largest = {slot - begin: size for slot, size in record.largest.items() if begin <= slot < end}
        shrinking = frozenset(slot - begin for slot in record.shrinking if begin <= slot < end)
        out.append(StepTemplate(codes, record.sizes[begin:end], record.notes[begin:end], largest, shrinking))
    return out


class UnsteadyError(Exception):
    """The second step's frees are by the numbers of the first: a third one is to be traced."""


def _form(codes: Sequence[int]) -> list[int]:
    """Return the codes of a step without the numbers of slots of the steps before."""
    return [min(code, _CARRIED) for code in codes]


class SizedTemplate:
    """A step whose bytes are formulas of the sizes."""

    def __init__(self, template: StepTemplate, points: Sequence[Sizes], columns: Sequence[tuple[int, ...]], largest: Sequence[tuple[int, ...]]) -> None:
        self.codes, self.notes, self.shrinking = template.codes, template.notes, template.shrinking
        groups: dict[tuple[int, ...], int] = {}
        self._group = [groups.setdefault(values, len(groups)) for values in columns]
        self.unknown = {slot: groups.setdefault(values, len(groups)) for slot, values in zip(template.largest, largest, strict=True)}
        self.formulas: list[Callable[[int, int], int]] = [formula(points, values) for values in groups]

    def sizes(self, batch: int, length: int, level: int = EXPECTED) -> list[int]:
        """Return the bytes of each slot."""
        values = [rule(batch, length) for rule in self.formulas]
        out = [values[group] for group in self._group]
        if level != EXPECTED:
            for slot, group in self.unknown.items():
                out[slot] = values[group] if level == HIGH else 0
        return out

    def tensor_peak(self, sizes: Sequence[int]) -> int:
        """Return the most bytes of tensors in blocks of 512, beside the older ones."""
        blocks = [-(-size // SMALLEST) * SMALLEST for size in sizes]
        return max(accumulate(self.deltas(blocks)), default=0)

    def deltas(self, blocks: Sequence[int]) -> list[int]:
        """Return the change of the live bytes at each event, by the slots' bytes."""
        out: list[int] = []
        slot = 0
        for code in self.codes:
            if code == _ALLOCATE:
                out.append(blocks[slot])
                slot += 1
            else:
                out.append(-blocks[code] if code < _CARRIED else 0)
        return out


class RunResult(NamedTuple):
    """The peaks of each batch, the number of the dead one, how often idle segments were released, and the greatest bytes."""

    steps: list[StepPeak]
    died: int | None
    retries: int
    allocated: int
    reserved: int
    peak: int
    """The number of the step with the greatest allocated bytes."""


class RunModel:
    """The templates of a run: the setup, the first step, the second, and all later ones.

    Args:
        record: of steps at one size, then one step at each other size.
        points: the sizes of the steps.
        has_rows: the module takes no other number of examples.
    """

    def __init__(self, record: Record, points: Sequence[Sizes], *, has_rows: bool = False) -> None:
        self.has_rows = has_rows
        self.setup, *steps = templates(record)
        equal = next((n for n, size in enumerate(points) if size != points[0]), len(points))
        steady = steps[equal - 1]
        traced = list(zip(points[equal:], steps[equal:], strict=True))
        sized = [(size, step) for size, step in traced if _form(step.codes) == _form(steady.codes[: len(step.codes)])]
        before = {id(step): earlier for (_, step), earlier in zip(traced, [steady, *(step for _, step in traced)], strict=False)}
        prefix = next((step.codes for _, step in sized if _form(before[id(step)].codes) in (_form(steady.codes), _form(step.codes))), None)
        if prefix is not None:  # its frees of the step before are by the steady step's own numbers
            steady = steady._replace(codes=[*prefix, *steady.codes[len(prefix) :]])
        elif equal == 2 and len(steps[0].sizes) != len(steady.sizes):
            raise UnsteadyError
        self.differing = len(traced) - len(sized)
        """The number of other sizes with other events than the first: they take no part in the formulas."""
        self.points = [points[0], *(size for size, _ in sized)]
        columns = [(size, *(step.sizes[slot] if slot < len(step.sizes) else size for _, step in sized)) for slot, size in enumerate(steady.sizes)]
        largest = [(size, *(step.largest.get(slot, size) for _, step in sized)) for slot, size in steady.largest.items()]
        self.steady = SizedTemplate(steady, self.points, columns, largest)
        columns_by_note = {(note, column[0]): column for note, column in zip(steady.notes, columns, strict=True)}
        by_size = {column[0]: column for column in columns}
        self.first = [self._early(step, columns_by_note, by_size) for step in steps[: equal if prefix is not None else equal - 1]]
        self.span = max((code // _CARRIED for code in steady.codes if code < _SETUP), default=0)
        """Tensors live on for so many steps."""
        slots, alive = zip(*record.alive[equal - 1 : equal + 1], strict=True) if equal > 1 else ((0, 0), (0, 0))
        self.growth = max(0, alive[1] - alive[0]) if slots[1] > slots[0] else 0
        """The bytes that each step leaves behind for good."""

    def _early(self, step: StepTemplate, columns_by_note: dict[tuple[Note, int], tuple[int, ...]], by_size: dict[int, tuple[int, ...]]) -> SizedTemplate:
        """Return an early step by the formulas of the steady one; its own tensors, as states, do not depend on the sizes."""
        width = len(self.points)

        def column(note: Note, size: int) -> tuple[int, ...]:
            constant = (size,) * width
            return columns_by_note.get((note, size)) or (constant if note.kind in ("optimizer", "gradient", "workspace") else by_size.get(size, constant))

        columns = [column(note, size) for note, size in zip(step.notes, step.sizes, strict=True)]
        return SizedTemplate(step, self.points, columns, [by_size.get(size, (size,) * width) for size in step.largest.values()])

    @property
    def settled(self) -> int:
        """Return the number of equal batches until no later one takes more."""
        return 3 if self.span < 2 else len(self.first) + self.span + 1

    def template(self, number: int) -> SizedTemplate:
        """Return the template of a step by its number in the run."""
        return self.first[number] if number < len(self.first) else self.steady

    def run(self, batches: Sequence[Sizes], allocator: Any, level: int = EXPECTED) -> RunResult:
        """Replay the batches in their order, in a new `CachingAllocator` or `PlainMemory`."""
        steps: list[StepPeak] = []
        try:
            setup = replayed(allocator, self.setup.codes, self.setup.sizes, (), [], frozenset())
        except OutOfDeviceMemory:
            return RunResult(steps, 0, allocator.retries, allocator.allocated_peak, allocator.reserved_peak, 0)
        reach = max(1, self.span, len(self.first))
        memo: dict[tuple[int, Sizes], tuple[int, int]] = {}
        tensor_peaks: dict[Sizes, int] = {}
        history: list[list[Any]] = []
        is_forgetful = self.span < 2 and not self.growth  # equal batches are equal steps, whichever came before
        greatest = fixed = reserved_most = 0
        died = None
        for number, (batch, length) in enumerate(batches):
            template = self.template(number)
            is_steady = is_forgetful and number >= len(self.first)
            key = allocator.version, (batch, length)
            if is_steady and key in memo:
                peaks = memo[key]
            else:
                sizes = template.sizes(batch, length, level)
                if len(batches) > _MANY:
                    tensors = tensor_peaks.setdefault((batch, length), template.tensor_peak(sizes))
                    if is_steady and number > 2 and tensors < _SMALL * greatest:
                        memo[key] = fixed + tensors, max(allocator.reserved, fixed + tensors)
                        steps.append(StepPeak(batch, length or None, *memo[key]))
                        continue
                    greatest = max(greatest, tensors)
                version = allocator.version
                allocator.reset_peaks()
                try:
                    history = [*history[-reach:], replayed(allocator, template.codes, sizes, history, setup, template.shrinking)]
                except OutOfDeviceMemory:
                    died = number
                    steps.append(StepPeak(batch, length or None, allocator.allocated_peak, allocator.reserved_peak))
                    break
                peaks = allocator.allocated_peak, allocator.reserved_peak
                fixed = max(fixed, peaks[0] - tensor_peaks.get((batch, length), peaks[0]))
                if version == allocator.version:
                    memo[version, (batch, length)] = peaks
            reserved_most = max(reserved_most, peaks[1])
            steps.append(StepPeak(batch, length or None, *peaks))
        peak = max(range(len(steps)), key=lambda n: steps[n].allocated, default=0)
        return RunResult(
            steps, died, allocator.retries, max((s.allocated for s in steps), default=0), max(reserved_most, *(s.reserved for s in steps), 0), peak
        )

    def peak_tensors(self, number: int, batch: int, length: int) -> list[PeakTensor]:
        """Return the tensors alive at a step's most bytes, joined by kind, operator and line; the largest first."""
        template = self.template(number)
        sizes = template.sizes(batch, length)
        highest = peak = 0
        for place, value in enumerate(accumulate(template.deltas(sizes)), 1):
            if value > highest:
                highest, peak = value, place
        setup = _alive({}, [], self.setup.codes, self.setup.notes, self.setup.sizes)
        history: list[dict[int, tuple[Note, int]]] = []
        for earlier in range(min(number, len(self.first) + max(1, self.span))):
            step = self.template(earlier)
            history.append(_alive(setup, history, step.codes, step.notes, step.sizes(batch, length)))
        live = _alive(setup, history, template.codes[:peak], template.notes, sizes)
        later = _alive({}, [], template.codes, template.notes, sizes)
        live = {slot: part if slot in later or part[0].kind != "optimizer" else (part[0]._replace(kind="update"), part[1]) for slot, part in live.items()}
        joined: dict[tuple[str, str, str], list[tuple[Note, int]]] = {}
        for note, size in [part for step in (setup, *history, live) for part in step.values()]:
            name = note.name if note.kind not in ("optimizer",) else "state"
            joined.setdefault((note.kind, name, note.line if note.kind not in ("optimizer",) else ""), []).append((note, size))
        out = [
            PeakTensor(sum(size for _, size in parts), len(parts), kind, name, line, max(parts, key=lambda part: part[1])[0].shape)
            for (kind, name, line), parts in joined.items()
        ]
        return sorted(out, key=lambda tensor: -tensor.bytes)


def _alive(
    setup: dict[int, Any], history: Sequence[dict[int, Any]], codes: Sequence[int], notes: Sequence[Note], sizes: Sequence[int]
) -> dict[int, tuple[Note, int]]:
    """Return the slots left of these events, and take freed ones of the setup and of the steps before away."""
    out: dict[int, tuple[Note, int]] = {}
    slot = 0
    for code in codes:
        if code == _ALLOCATE:
            out[slot] = notes[slot], sizes[slot]
            slot += 1
        elif code < _CARRIED:
            out.pop(code, None)
        elif code < _SETUP:
            steps, slot_there = divmod(code, _CARRIED)
            if steps <= len(history):
                history[-steps].pop(slot_there, None)
        else:
            setup.pop(code - _SETUP, None)
    return out


def replayed(
    allocator: Any,
    codes: Sequence[int],
    sizes: Sequence[int],
    history: Sequence[list[Any]],
    setup: list[Any],
    shrinking: frozenset[int],
) -> list[Any]:
    """Replay the events of a step, and return its blocks; the freed ones are None, there and in the steps before."""
    allocate, free = allocator.allocate, allocator.free
    blocks: list[Any] = []
    for code in codes:
        if code == _ALLOCATE:
            try:
                blocks.append(allocate(sizes[len(blocks)]))
            except OutOfDeviceMemory:
                if len(blocks) not in shrinking:
                    raise
                blocks.append(None)  # cuDNN then takes a way without this workspace
            continue
        if code < _CARRIED:
            owner, slot = blocks, code
        elif code < _SETUP:
            steps, slot = divmod(code, _CARRIED)
            owner = history[-steps] if steps <= len(history) else []
        else:
            owner, slot = setup, code - _SETUP
        if slot < len(owner) and owner[slot] is not None:
            free(owner[slot])
            owner[slot] = None
    return blocks
