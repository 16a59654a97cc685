"""The answers of a forecast: its figures, the tensors at the peak, advice, and their text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from foreshape.apps.forecast.cards import Card
from foreshape.compiler.memory import byte_text

MOST_EXAMPLES: Final = 1 << 24
"""Larger batches are not looked for."""


class StepPeak(NamedTuple):
    """The peaks of one step.

    Attributes:
        batch, length: the sizes of its batch; the length is None where batches have none.
        allocated: bytes in blocks, as ``torch.cuda.max_memory_allocated`` since the step began.
        reserved: bytes in segments, as ``torch.cuda.max_memory_reserved``.
    """

    batch: int
    length: int | None
    allocated: int
    reserved: int


class PeakTensor(NamedTuple):
    """Tensors alive at the peak, made by one line.

    Attributes:
        bytes: of all of them together.
        number: of tensors.
        kind: "parameter", "gradient", "optimizer", "input", "activation", "backward", "workspace" or "buffer".
        name: its operator, or the parameter's name.
        line: the user's line as ``file.py:12``; empty where torch's own code alone was met.
        shape: of the largest one.
    """

    bytes: int
    number: int
    kind: str
    name: str
    line: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        times = f" x{self.number}, up to" if self.number > 1 else ""
        return f"{byte_text(self.bytes):>9}  {self.kind:<10} {self.name}{times} {list(self.shape)}  {self.line}".rstrip()


class Advice(NamedTuple):
    """A helpful change, or several together.

    Attributes:
        change: its words.
        reserved, safe: of the whole run with it, as in `Forecast`.
        fits: the run fits with it.
    """

    change: str
    reserved: int
    safe: int
    fits: bool

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "not enough"
        return f"{self.change}: {byte_text(self.reserved)} reserved, {byte_text(self.safe)} safe: {verdict}"


class Largest(NamedTuple):
    """The largest sizes within the available bytes, by the safe figure.

    Attributes:
        batch: the largest batch at the longest length, at least that of a run that fits; 0: not even one example fits.
        length: this length; None where batches have none.
        tokens: the largest token budget: padded tokens of a batch, at every length of the list, in its order and three shuffled ones. 0: no budget for the
            longest length goes through them all; None without lengths.
    """

    batch: int
    length: int | None
    tokens: int | None


@dataclass(frozen=True, repr=False)
class Forecast:
    """The expected memory of eager torch for a run.

    Attributes:
        allocated: the expected peak of ``torch.cuda.max_memory_allocated`` in bytes. Bytes of tensors are certain where the operators are CUDA's.
        reserved: the expected peak of ``torch.cuda.max_memory_reserved`` (modelled: segments). Of a dying run: its bytes if nothing limited it.
        safe: reserved bytes with a margin: a run limited to them must not die. It fits where they are at most ``available``.
        unlimited: the expected peak of reserved bytes if nothing limited it; above ``reserved`` where idle segments are released within the limit.
        range: the least and the greatest reserved bytes; they differ by cuDNN's workspaces, unknown beforehand, and by the release of idle segments.
        outside: bytes outside of the allocator: the context, loaded kernels, NCCL (modelled).
        steps: the peaks of each batch, in the order of the run. The first one comes again at the end if it is the greatest, as states come after it.
        peak_step: the number of the batch with the greatest reserved peak, and of equal ones with the greatest allocated peak.
        peak_tensors: the largest tensors alive at the peak of the allocated bytes, by the user's line.
        card: the card.
        available: the bytes allowed to the allocator: of the card, or the ``limit``.
        fits: the safe figure is within ``available``. It is ``available`` itself where a replay in less, by the margin, survives by the release of segments.
        dies_at: the number of the first batch expected to die, from 0; None: none. Without one an unfit run may go through, but not surely.
        largest: the largest fitting batch and token budget; None where the example has one size alone.
        advice: helpful changes: sufficient ones first, then the greatest saving.
        notes: the modelled and the unknown in this forecast.
    """

    allocated: int
    reserved: int
    safe: int
    unlimited: int
    range: tuple[int, int]
    outside: int
    steps: Sequence[StepPeak]
    peak_step: int
    peak_tensors: Sequence[PeakTensor]
    card: Card
    available: int
    fits: bool
    dies_at: int | None
    largest: Largest | None
    advice: Sequence[Advice]
    notes: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as values for JSON."""
        values = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {**values, "card": {**self.card._asdict(), "certainty": dict(self.card.certainty)}}

    def text(self, tensors: int = 10) -> str:
        """Return the forecast in lines, with so many tensors of the peak."""
        verdict = "fits" if self.fits else "does not fit" if self.dies_at is not None else "may not fit"
        lines = [
            f"{verdict} on {self.card.name}: {byte_text(self.available)} are free for torch's allocator",
            f"  reserved {reserved_text(self)}",
            f"  allocated {byte_text(self.allocated)}; outside of the allocator {byte_text(self.outside)}",
        ]
        least, greatest = map(byte_text, self.range)
        if least != greatest:
            lines.append(f"  reserved from {least} to {greatest}, by {' and '.join(self._causes())}")
        if self.steps:
            peak = self.steps[self.peak_step]
            lines.append(f"  the peak is at batch {self.peak_step} of {len(self.steps)} (from 0): {_sizes(peak.batch, peak.length)}")
        if self.dies_at is not None:
            step = self.steps[self.dies_at]
            lines.append(f"  batch {self.dies_at} dies first: {_sizes(step.batch, step.length)}")
        if self.largest is not None:
            tokens = f", or {self.largest.tokens} padded tokens of any length" if self.largest.tokens else ""
            words = "this and more fits" if self.largest.batch >= MOST_EXAMPLES - 1 else "the largest that fits"
            lines.append(f"  {words}: {_sizes(self.largest.batch, self.largest.length)}{tokens}")
        if self.peak_tensors and tensors:
            lines += ["  at the peak:", *(f"    {tensor}" for tensor in self.peak_tensors[:tensors])]
        if self.advice:
            lines += ["  what would help, over the whole run:", *(f"    {advice}" for advice in self.advice)]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _causes(self) -> list[str]:
        """Return the causes of the range."""
        has_workspaces = any("workspaces of cuDNN" in note for note in self.notes)
        is_released = self.unlimited > self.reserved
        return ["the workspaces of cuDNN"] * (has_workspaces or not is_released) + ["the release of idle segments"] * is_released

    def __repr__(self) -> str:
        return self.text()


def reserved_text(forecast: Forecast) -> str:
    """Return the words about reserved bytes: without a limit, or within the free ones, where torch releases idle segments before it fails."""
    reserved, safe = byte_text(forecast.reserved), byte_text(forecast.safe)
    if forecast.unlimited <= forecast.reserved:
        return f"{reserved} expected, {safe} safe"
    if forecast.fits:
        return f"{reserved} expected, as idle segments are released within the limit; {safe} safe, all that is free"
    return f"{reserved} expected if idle segments are released within the limit, but without a margin; {safe} safe if none is released"


def _sizes(batch: int, length: int | None) -> str:
    return f"{batch} example{'' if batch == 1 else 's'}{f' of length {length}' if length is not None else ''}"


def _plain(value: Any) -> Any:
    parts: Any = getattr(value, "_asdict", lambda: value)()
    if isinstance(parts, Mapping):
        return {str(name): _plain(part) for name, part in cast("Mapping[Any, Any]", parts).items()}
    return [_plain(part) for part in cast("Sequence[Any]", parts)] if isinstance(parts, (list, tuple)) else parts
