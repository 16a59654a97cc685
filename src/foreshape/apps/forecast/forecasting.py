"""`forecast`: the memory of eager torch on a GPU for a training step and for a run, told without a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from foreshape.apps.forecast.caching_allocator import AllocatorConfig, CachingAllocator, PlainMemory
from foreshape.apps.forecast.cards import Card, card_of, limit_of
from foreshape.apps.forecast.example_sizes import resized, traced_sizes
from foreshape.apps.forecast.forecast_results import Advice, Forecast, Largest
from foreshape.apps.forecast.helpful_changes import Change, helpful_changes
from foreshape.apps.forecast.parallel import NCCL_BYTES, is_names, parallel_settings, positive
from foreshape.apps.forecast.run_model import RunModel, UnsteadyError
from foreshape.apps.forecast.run_verdict import RunVerdict, run_verdict
from foreshape.apps.forecast.safe_figures import SAFETY, largest_sizes
from foreshape.apps.forecast.size_formulas import Sizes
from foreshape.compiler.memory import byte_text
from foreshape.errors import ForeshapeError, MemoryPlanError, SchemaError
from foreshape.interop.torch.untyped_torch import is_list, is_of

if TYPE_CHECKING:
    import torch

Batch: TypeAlias = "torch.Tensor | Sequence[Any] | Mapping[str, Any]"
"""The module's arguments: a tensor, a tuple, or a dict of named ones; with a loss, a pair of this and the target."""
Precision: TypeAlias = Literal["fp32", "tf32", "bf16", "fp16", "amp-bf16", "amp-fp16"]
_ZERO_GRAD: Final = ("start", "before_backward", "end", "keep")


def forecast(
    module: torch.nn.Module | Callable[[], torch.nn.Module],
    example: Batch | Callable[[int, int | None], Batch] | None = None,
    *,
    lengths: Iterable[int | tuple[int, int]] | None = None,
    batch: int | None = None,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: str | torch.optim.Optimizer | Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = "AdamW",
    device: str | int | Card = "H100-80GB",
    precision: Precision = "fp32",
    checkpointing: Sequence[str] | bool = False,
    accumulate: int = 1,
    zero_grad: Literal["start", "before_backward", "end", "keep"] = "start",
    clip: bool = False,
    keep_outputs: bool = False,
    ddp: bool | Mapping[str, Any] | None = None,
    fsdp: int | Mapping[str, Any] | None = None,
    limit: int | str | None = None,
    allocator: str = "",
    advice: bool = True,
) -> Forecast:
    """Return the expected memory of eager torch on a GPU, without one.

    The module is run on tensors without numbers, forward, backward and update, with torch's choices on CUDA. Each tensor's bytes go through a
    simulator of CUDA's caching allocator. Nothing of the module is changed, and no memory is taken for its tensors.

    Args:
        module: the network in its mode, on any device ("meta" too), or a function returning it; then it takes no memory.
        example: a batch as the data loader gives it, or a function from a batch size and a length to one. The length is None where ``lengths`` is.
            A batch is a tensor, a tuple of the module's arguments, or a dict of them; with a ``loss`` it is a pair of such a batch and the target. Of tensors
            instead of a function, the first axis is the batch and all axes as long as the first tensor's second one are the length.
        lengths: the batches of the run in their order: pairs of a batch size and a length, or lengths alone, with ``batch`` examples each;
            an array or a tensor of them too.
        batch: the batch size of an example by a function, and of ``lengths`` without one.
        loss: a function from the module's result and the target to a number. Without it the result is the loss, has it as ``.loss`` or ``["loss"]``,
            or its mean is.
        optimizer: a name in ``torch.optim`` or "AdamW8bit", an optimizer of this module, or a function from parameters to one; None: no training, a call
            without gradients.
        device: a card as "H100-80GB", "A100-40GB", "RTX4090"; bytes as "24GiB"; "cpu" for eager torch on the processor: tensors' bytes without a pool.
        precision: "bf16" and "fp16" have parameters of this type; "amp-..." are ``torch.autocast``, with a gradient scaler for fp16.
        checkpointing: names of modules whose activations are recomputed, or True for each module in the lists of the network's blocks.
        accumulate: the batches of one update.
        zero_grad: the place of ``zero_grad()`` in the loop; "keep" is ``set_to_none=False``.
        clip: gradients are clipped by their norm.
        keep_outputs: the loop's names for outputs and loss live on into the next step, as in a script without functions.
        ddp: DistributedDataParallel: True, or ``bucket_cap_mb`` and ``gradient_as_bucket_view``.
        fsdp: FSDP2: the number of ranks, or ``ranks``, ``units`` (names of modules), ``reshard`` and ``reduce_dtype``.
        limit: bytes allowed to the allocator, as ``set_per_process_memory_fraction`` sets them; at most the card's free ones, and by default these.
        allocator: as ``PYTORCH_CUDA_ALLOC_CONF`` is written.
        advice: also forecast helpful changes where the run does not fit.

    Returns:
        The `Forecast`. Figures not shown by a GPU are "modelled", as its notes say.

    Raises:
        SchemaError: an unknown card, precision or optimizer; an example without tensors; no lengths, or some below 1.
        MemoryPlanError: the module cannot run on tensors without numbers; the message has the user's line.
    """
    from foreshape.apps.forecast import traced_step

    positive("accumulate", accumulate)
    if precision not in get_args(Precision):
        likely = [name for name in get_args(Precision) if name.startswith(f"{precision}-")]
        if likely:
            raise SchemaError.must(
                "precision", f"one of {', '.join(map(repr, get_args(Precision)))}", repr(precision), hint=f": did you mean {' or '.join(map(repr, likely))}?"
            )
        raise SchemaError.one_of("precision", get_args(Precision), precision)
    if zero_grad not in _ZERO_GRAD:
        raise SchemaError.one_of("zero_grad", _ZERO_GRAD, zero_grad)
    if not is_of(allocator, str):
        raise SchemaError.must("allocator", "a text as PYTORCH_CUDA_ALLOC_CONF has it", repr(allocator)[:100])
    if not isinstance(checkpointing, bool) and (isinstance(checkpointing, str) or not is_names(checkpointing)):
        hint = f": did you mean [{checkpointing!r}]?" if isinstance(checkpointing, str) else ""
        raise SchemaError.must("checkpointing", "True, or a list of names of modules", repr(checkpointing)[:100], hint=hint)
    batches, factory, is_resizable = _batches(example, lengths, batch)
    on_processor = isinstance(device, str) and device.lower() == "cpu"
    card = _processor() if on_processor else card_of(device)
    groups = parallel_settings(ddp, fsdp)
    settings = traced_step.Settings(
        module,
        factory,
        loss,
        optimizer,
        None if on_processor else card,
        precision,
        checkpointing,
        accumulate,
        zero_grad,
        clip,
        keep_outputs,
        groups,
    )
    outside = card.context + (NCCL_BYTES if groups is not None and not on_processor else 0)
    free = max(0, card.total - outside)
    allowed = free if limit is None else limit_of(limit)
    available = min(free, allowed)
    config = AllocatorConfig.parse(allocator)._replace(by_fraction=limit is not None and available < free)
    prediction = _Forecaster(settings, card, batches, is_resizable, config, available, outside).forecast(advice)
    if allowed > free:
        words = f"the limit of {byte_text(allowed)} is above the free bytes of {card.name}: {byte_text(free)} are taken for it"
        return dataclasses.replace(prediction, notes=(words, *prediction.notes))
    return prediction


def _batches(example: Any, lengths: Any, batch: int | None) -> tuple[list[Sizes], Callable[[int, int | None], Any], bool]:
    """Return the sizes of the run, a function from sizes to a batch, and whether it takes other sizes than these."""
    if example is None:
        raise SchemaError("forecast needs an example: a batch, or a function from a batch size and a length to one")
    if batch is not None:
        positive("batch", batch)
        batch = index(batch)
    if callable(example) and not hasattr(example, "shape"):
        factory: Any = example
        rows, columns, is_resizable = batch, None, True
    else:
        factory, rows, columns, is_resizable = resized(example)
        rows = rows if batch is None else batch
    if lengths is None:
        if rows is None:
            raise SchemaError("an example by a function needs batch=, or lengths= as pairs of a batch size and a length")
        return [(rows, 0)] * 3, factory, is_resizable
    sizes: list[Sizes] = []
    for number, value in enumerate(_listed(lengths)):
        pair: Any = value if is_list(value) else (rows, value)
        if len(pair) != 2 or any(not hasattr(part, "__index__") or isinstance(part, bool) for part in pair):
            raise SchemaError.must(
                f"lengths[{number}]",
                "a length, or a pair of a batch size and a length",
                f"{value!r:.80}",
                hint="" if rows else "; batch=8 gives all lengths a batch size",
            )
        size = index(pair[0]), index(pair[1])
        if min(size) < 1:
            raise SchemaError.must(f"lengths[{number}]", "sizes of at least 1", f"{value!r:.80}")
        sizes.append(size)
    if not sizes:
        raise SchemaError.must("lengths", "at least one batch", "none")
    if not is_resizable or (columns is None and not callable(example)):
        raise SchemaError("lengths need an example by a function from a batch size and a length, or tensors with the batch and the length as first axes")
    return sizes, factory, is_resizable


def _listed(lengths: Any) -> list[Any]:
    """Return the batches of a list, or of an array or a tensor of numbers or of pairs."""
    values: Any = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise SchemaError.must("lengths", "a list of lengths, or of pairs of a batch size and a length", repr(values)[:100])
    return [value.tolist() if hasattr(value, "tolist") else value for value in cast("Iterable[Any]", values)]


def _processor() -> Card:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 40
    return Card("cpu", total, (0, 0), 0)


class _Forecaster:
    def __init__(self, settings: Any, card: Card, batches: list[Sizes], is_resizable: bool, config: AllocatorConfig, available: int, outside: int) -> None:
        self.settings, self.card, self.batches, self.config = settings, card, batches, config
        self.available, self.outside, self.is_resizable = available, outside, is_resizable

    def forecast(self, advice: bool) -> Forecast:
        model = modelled(self.settings, self.batches, self.is_resizable)
        batches = _with_states(model, self.batches) if self.settings.optimizer is not None else self.batches
        verdict = run_verdict(model, batches, self.memory, self.card, self.available)
        result = verdict.result
        peak = max(range(len(result.steps)), key=lambda n: (result.steps[n].reserved, result.steps[n].allocated))
        return Forecast(
            allocated=result.allocated,
            reserved=result.reserved,
            safe=verdict.safe,
            unlimited=verdict.unlimited,
            range=verdict.range,
            outside=self.outside,
            steps=tuple(result.steps),
            peak_step=peak,
            peak_tensors=tuple(model.peak_tensors(result.peak, *batches[result.peak])[:10]),
            card=self.card,
            available=self.available,
            fits=verdict.fits,
            dies_at=verdict.died,
            largest=self.largest(model, batches, verdict.fits),
            advice=tuple(self.advice(model, batches, verdict)) if advice and not verdict.fits else (),
            notes=tuple(self.notes(model, batches, verdict)),
        )

    def memory(self, capacity: int | None = None, **changes: Any) -> Any:
        """Return an empty memory of the device."""
        return PlainMemory(capacity) if self.settings.card is None else CachingAllocator(self.config._replace(capacity=capacity, **changes))

    def largest(self, model: RunModel, batches: Sequence[Sizes], fits: bool) -> Largest | None:
        """Return the largest sizes; None where the module takes one batch size alone."""
        if not self.is_resizable or model.has_rows:
            return None
        if all(rows == 1 for rows, _ in batches):  # a step of one example says nothing about more
            try:
                model = modelled(self.settings, [(2, columns) for _, columns in batches], self.is_resizable)
            except MemoryPlanError:
                return None
            if model.has_rows:
                return None
        return largest_sizes(model, batches, self.memory, int(self.available / SAFETY), fits=fits)

    def advice(self, model: RunModel, batches: Sequence[Sizes], verdict: RunVerdict) -> list[Advice]:
        """Return helpful changes: sufficient ones first, then the greatest saving."""

        models = {frozenset[Any](): model}

        def judged(change: Change) -> RunVerdict | None:
            runs = [(-(-rows // change.divisor), columns) for rows, columns in batches]
            key = frozenset(change.settings.items())
            try:
                if key not in models:
                    models[key] = modelled(self.settings._replace(**change.settings), runs, self.is_resizable)
            except ForeshapeError:
                return None  # as without a list of equal blocks: this change does not apply to the module
            return run_verdict(models[key], runs, partial(self.memory, **change.allocator), self.card, self.available)

        return helpful_changes(self.settings, self.config, batches if self.is_resizable else (), judged, verdict)

    def notes(self, model: RunModel, batches: Sequence[Sizes], verdict: RunVerdict) -> list[str]:
        """Return the additions to the run, the modelled and the unknown."""
        out: list[str] = []
        if model.growth > 1 << 16:
            out.append(f"each step leaves {byte_text(model.growth)} behind for good, so that a longer run takes more")
        if model.has_rows:
            out.append("the module cannot run on other numbers of examples than these: the largest batch is not known")
        if model.span > 1:
            out.append(f"the module keeps tensors for {model.span} steps")
        if len(batches) > len(self.batches) and model.span < 2:
            out.append("batch 0 comes again at the end, as in a second epoch: it is the greatest, and gradients and states are there by then")
        if verdict.unlimited > verdict.result.reserved:
            words = f"without a limit torch would reserve {byte_text(verdict.unlimited)}: within {byte_text(self.available)} it releases idle segments"
            times = "once" if verdict.result.retries == 1 else f"{verdict.result.retries} times"
            out.append(f"{words} {times}, which costs time; expandable segments may not need it")
        if self.settings.card is None:
            return [*out, "bytes of tensors on the processor; memory that kernels take for themselves is left out"]
        if self.card.capability < (8, 0) and "bf16" in self.settings.precision:
            version = ".".join(map(str, self.card.capability))
            out.append(f"bf16 is emulated on {self.card.name} of capability {version}, and slow; cards from 8.0 on compute it, and this one computes fp16")
        out.append("modelled, not measured: segments, the context, workspaces of cuBLAS in autograd's thread")
        names = {note.name for note in model.steady.notes}
        if "cuDNN" in names:
            out.append("unknown: workspaces of cuDNN; near the limit convolutions take smaller ones")
        if "attention" in names:
            out.append("modelled: which kernel of attention torch takes, and its workspaces")
        if self.settings.parallel is not None:
            out.append("modelled: NCCL's own memory, and the buffers of the parallel wrapper")
        if model.differing:
            out.append(f"modelled: {model.differing} of the traced sizes have other operators than the largest, as some lengths are padded by a kernel")
        return out


def _with_states(model: RunModel, batches: list[Sizes]) -> list[Sizes]:
    """Return the batches, and the first one again at the end where none of the later ones is as large: there were no states yet at its first time."""
    if model.span > 1 and len(set(batches)) == 1:
        return batches * -(-model.settled // len(batches))
    template = model.steady
    sizes = {size: template.tensor_peak(template.sizes(*size)) for size in set(batches)}
    if max((sizes[size] for size in batches[1:]), default=0) >= sizes[batches[0]]:
        return batches
    return [*batches, *[batches[0]] * max(1, 3 - len(batches))]


_PADDED: Final = 16
"""Kernels pad lengths to multiples of this, by an operator missing for a length of one."""


def modelled(settings: Any, batches: Sequence[Sizes], is_resizable: bool) -> RunModel:
    """Return the model of a run over these batches, from a few traced steps; from others again where some sizes have other operators than the largest.

    A module for one number of examples alone is traced with it.
    """
    try:
        model = _modelled(settings, batches, is_resizable)
    except MemoryPlanError:
        if not is_resizable or len({rows for rows, _ in batches}) > 1:
            raise
        with contextlib.suppress(MemoryPlanError):
            return _modelled(settings, batches, is_resizable=len({columns for _, columns in batches}) > 1, has_rows=True)
        raise
    if model.differing and len({columns for _, columns in batches}) > 1:
        again = _modelled(settings, batches, is_resizable, _PADDED)
        if again.differing < model.differing:
            again.differing = model.differing
            return again
    return model


def _modelled(settings: Any, batches: Sequence[Sizes], is_resizable: bool, multiple: int = 1, *, has_rows: bool = False) -> RunModel:
    from foreshape.apps.forecast import traced_step

    for equal in (2, 3):
        if equal == 2 and (not is_resizable or settings.parallel is not None):  # DDP builds its buckets anew in the second step
            continue
        sizes = traced_sizes(batches, is_resizable, equal, multiple, has_rows=has_rows)
        record = traced_step.trace(settings, [(rows, columns or None) for rows, columns in sizes], equal)
        with contextlib.suppress(UnsteadyError):
            return RunModel(record, [*sizes[:1] * record.repeated, *sizes], has_rows=has_rows)
    raise AssertionError("three equal steps are steady")
