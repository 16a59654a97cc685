"""Changes of an unfit run, each judged over the whole run, and together where none alone is enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.apps.forecast.caching_allocator import AllocatorConfig
from foreshape.apps.forecast.forecast_results import Advice
from foreshape.apps.forecast.optimizers import fused, optimizer_name
from foreshape.apps.forecast.run_verdict import RunVerdict
from foreshape.apps.forecast.size_formulas import Sizes

_WORTH: Final = 0.99
"""A change is listed if it leaves at most this share of the bytes."""


class Change(NamedTuple):
    """A change of the training loop, or of the allocator.

    Attributes:
        words: for the user; of several changes one for each.
        settings: changed fields of the traced loop.
        allocator: changed fields of `AllocatorConfig`.
        divisor: batches are divided by it, and as many more are accumulated.
    """

    words: tuple[str, ...]
    settings: Mapping[str, Any]
    allocator: Mapping[str, Any]
    divisor: int

    def joined(self, other: Change) -> Change | None:
        """Return both changes as one; None where they change the same setting."""
        if self.settings.keys() & other.settings.keys() or self.allocator.keys() & other.allocator.keys():
            return None
        return Change((*self.words, *other.words), {**self.settings, **other.settings}, {**self.allocator, **other.allocator}, max(self.divisor, other.divisor))


def helpful_changes(
    settings: Any, config: AllocatorConfig, batches: Sequence[Sizes], judged: Callable[[Change], RunVerdict | None], base: RunVerdict
) -> list[Advice]:
    """Return the changes with a saving: sufficient ones first, then the greatest saving.

    Args:
        settings: of the traced loop.
        config: of the allocator.
        batches: of the run; none: its batches cannot be made smaller.
        judged: returns the verdict on the run with a change; None where it does not apply.
        base: the verdict on the run without one.
    """
    judgements = [(change, verdict) for change in _single_changes(settings, config) if (verdict := judged(change)) is not None]
    smaller = _smaller_batches(settings, batches, judged)
    if smaller is not None:
        judgements.append(smaller)
    judgements.sort(key=lambda pair: pair[1].unlimited)
    listed = [(change, verdict) for change, verdict in judgements if verdict.fits or verdict.unlimited <= _WORTH * base.unlimited]
    if not any(verdict.fits for _, verdict in listed):
        # fewer bytes in tensors may help only beside a change of the segments
        together = _together([pair for pair in judgements if pair in listed or pair[1].result.allocated <= _WORTH * base.result.allocated], judged)
        if together is not None:
            listed.append(together)
    advice = [Advice(" + ".join(change.words), verdict.result.reserved, verdict.safe, verdict.fits) for change, verdict in listed]
    return sorted(advice, key=lambda advice: (not advice.fits, advice.reserved))


def _change(words: str, *, divisor: int = 1, allocator: Mapping[str, Any] | None = None, **settings: Any) -> Change:
    return Change((words,), settings, allocator or {}, divisor)


def _single_changes(settings: Any, config: AllocatorConfig) -> list[Change]:
    out: list[Change] = []
    is_training, is_card = settings.optimizer is not None, settings.card is not None
    if is_card and not config.expandable:
        out.append(_change("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", allocator={"expandable": True}))
    if is_training and not settings.checkpointing:
        out.append(_change("checkpointing of each block", checkpointing=True))
    if settings.precision in ("fp32", "tf32"):
        lower = "amp-fp16" if is_card and settings.card.capability < (8, 0) else "amp-bf16"
        out.append(_change(f"precision {lower}", precision=lower))
    name = optimizer_name(settings.optimizer)
    if name in ("Adam", "AdamW") and is_card:
        out.append(_change(f"{name}(fused=True)", optimizer=fused(name)))
        out += [_change(other, optimizer=other) for other in (f"{name}8bit", "Adafactor")]
    if settings.parallel is not None and settings.parallel.kind == "ddp" and not settings.parallel.gradients_are_views:
        out.append(_change("gradient_as_bucket_view=True", parallel=settings.parallel._replace(gradients_are_views=True)))
    return out


def _smaller_batches(settings: Any, batches: Sequence[Sizes], judged: Callable[[Change], RunVerdict | None]) -> tuple[Change, RunVerdict] | None:
    """Return the largest sufficient batches, halved again and again; else the smallest."""
    most = max((rows for rows, _ in batches), default=1)
    out = None
    divisor = 2
    while settings.optimizer is not None and divisor < 2 * most:
        is_equal = all(rows == most for rows, _ in batches)
        sizes = f"batches of {-(-most // divisor)}" if is_equal else f"batches, each 1/{divisor} of these"
        if any(rows < divisor for rows, _ in batches) and not is_equal:
            sizes += ", at least one example"
        change = _change(f"accumulate {divisor * settings.accumulate} {sizes}", divisor=divisor, accumulate=max(2, settings.accumulate))
        verdict = judged(change)
        if verdict is None:
            return out
        out = change, verdict
        if verdict.fits:
            return out
        divisor *= 2
    return out


def _together(listed: Sequence[tuple[Change, RunVerdict]], judged: Callable[[Change], RunVerdict | None]) -> tuple[Change, RunVerdict] | None:
    """Return changes joined one after the other, the greatest saving first, until the run fits; None where no two save more than one."""
    if not listed:
        return None
    change, verdict = listed[0]
    for other, _ in listed[1:]:
        both = change.joined(other)
        joined = judged(both) if both is not None else None
        if both is not None and joined is not None and joined.unlimited <= _WORTH * verdict.unlimited:
            change, verdict = both, joined
            if verdict.fits:
                break
    return (change, verdict) if len(change.words) > 1 else None
