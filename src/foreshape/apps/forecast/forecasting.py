"""`forecast`: the memory of eager torch on a GPU for a training step and for a run, told without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from foreshape.apps.forecast.cards import Card
from foreshape.apps.forecast.results import Forecast

if TYPE_CHECKING:
    import torch

Batch: TypeAlias = "torch.Tensor | Sequence[Any] | Mapping[str, Any]"
"""What the module is called with: a tensor, a tuple of arguments, or a dict of named ones; with a loss, a pair of this and the target."""
Precision: TypeAlias = Literal["fp32", "tf32", "bf16", "fp16", "amp-bf16", "amp-fp16"]


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
    """Return the memory that eager torch is expected to take on a GPU, without one.

    The module is run on tensors without numbers, forward, backward and update, with the choices that torch makes on CUDA. Each tensor's bytes go through a
    simulator of CUDA's caching allocator. Nothing of the module is changed, and no memory is taken for its tensors.

    Args:
        module: the network in its mode, on any device ("meta" too), or a function that makes it; then it takes no memory.
        example: a batch as the data loader gives it, or a function from a batch size and a length to one. The length is None where ``lengths`` is.
            A batch is a tensor, a tuple of the module's arguments, or a dict of them; with a ``loss`` it is a pair of such a batch and the target. Of tensors
            instead of a function, the first axis is the batch and all axes as long as the first tensor's second one are the length.
        lengths: the batches of the run in their order: pairs of a batch size and a length, or lengths alone, with ``batch`` examples each.
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
        limit: bytes that the allocator may reserve, as ``set_per_process_memory_fraction`` sets them; by default the card's free ones.
        allocator: as ``PYTORCH_CUDA_ALLOC_CONF`` is written.
        advice: also forecast what would help where the run does not fit.

    Returns:
        The `Forecast`. Figures of a GPU that none has shown are "modelled", as its notes say.

    Raises:
        SchemaError: an unknown card, precision or optimizer; an example without tensors; lengths that are none, or below 1.
        MemoryPlanError: the module cannot run on tensors without numbers; the message has the user's line.
    """
    raise NotImplementedError
