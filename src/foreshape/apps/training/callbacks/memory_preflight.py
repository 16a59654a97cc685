"""A callback for trainers of torch that forecasts the memory of the GPU, and stops before the first step where a coming batch does not fit."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, cast

from foreshape.compiler.memory import byte_text
from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.core.hints import did_you_mean
from foreshape.errors import ExecutionError, ForeshapeWarning, MemoryPlanError, SchemaError

if TYPE_CHECKING:
    from foreshape.apps.forecast import Card, Forecast
    from foreshape.apps.training.callbacks.coming_batches import ComingBatches

_LIGHTNING: Final = ("lightning.pytorch", "pytorch_lightning")
_PRECISIONS: Final = {"bf16-mixed": "amp-bf16", "16-mixed": "amp-fp16", "bf16-true": "bf16", "16-true": "fp16"}
_DIVIDED: Final = "Preflight does not look behind FSDP and DeepSpeed, which hold the parameters in parts: ask fs.forecast(..., fsdp=...) before the launch"
_FIRST_ALONE: Final = (
    "the lengths of the coming batches are not known, so that one batch stands for all, and a longer one may die; "
    "a column or attribute `lengths` of the data tells them, or example= and lengths="
)
_UNLOADED_KERNELS: Final = 200 << 20
"""Bytes of kernels that are loaded in the first step (modelled: no card was measured)."""


class Preflight(ConstructorRepr):
    """A callback that forecasts the memory of eager torch before the first step, and stops the run where a coming batch does not fit.

    It is for the trainers of others, not for `foreshape.train`: `for_transformers` and `for_lightning` make a callback of each; `check` does the same in a
    loop of one's own. Lengths of the batches are read from the data loader where that costs little: a column or attribute ``length`` or ``lengths`` of
    its data, or examples in a list. Otherwise the first batch stands for all, with a warning. In an order at random the longest examples are still met:
    the error names them.

    Args:
        device: as `foreshape.forecast` takes it; by default this machine's GPU, with the bytes that are free on it.
        example: a batch, or a function from a batch size and a length to one; by default from the data loader.
        lengths: the batches of the run in their order, as `foreshape.forecast` takes them; they need an ``example``.
        settings: other arguments of `foreshape.forecast`. They go before those that the trainer has.

    Raises:
        SchemaError: a setting unknown to `foreshape.forecast`.
    """

    def __init__(self, device: str | int | Card | None = None, *, example: Any = None, lengths: Sequence[Any] | None = None, **settings: Any) -> None:
        _refuse_unknown("Preflight takes device=, and", settings)
        self.device, self.example, self.settings = device, example, settings
        self.lengths = lengths
        self.forecast: Forecast | None = None
        """The last forecast."""

    @classmethod
    def for_transformers(cls, device: str | int | Card | None = None, **settings: Any) -> Self:
        """Return one for ``transformers.Trainer(callbacks=[...])``; it is a ``TrainerCallback``. ``device`` and ``settings`` are the constructor's."""
        return cls._with_base(_imported("transformers").TrainerCallback, device, settings)

    @classmethod
    def for_lightning(cls, device: str | int | Card | None = None, **settings: Any) -> Self:
        """Return one for Lightning's ``Trainer(callbacks=[...])``: a ``Callback`` of lightning or pytorch_lightning, whichever is imported.

        ``device`` and ``settings`` are the constructor's.
        """
        name = next((name for name in _LIGHTNING if name in sys.modules), None)
        if name is None:
            name = next((name for name in _LIGHTNING if importlib.util.find_spec(name.partition(".")[0])), _LIGHTNING[0])
        return cls._with_base(_imported(name).Callback, device, settings)

    @classmethod
    def _with_base(cls, base: type, device: Any, settings: dict[str, Any]) -> Self:
        kind: Any = type(cls.__name__, (cls, base), {})
        return kind(device, **settings)

    # --- the trainers' events

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, optimizer: Any = None, train_dataloader: Any = None, **_: Any) -> None:
        """Follow transformers' ``Trainer`` before its first step.

        The settings are in ``args``; ``model``, ``optimizer`` and ``train_dataloader`` are forecast, and ``state`` and ``control`` are left alone.
        """
        is_parallel = args.world_size > 1
        if is_parallel and (args.fsdp or args.deepspeed):
            _warn(_DIVIDED)
            return
        has_names = isinstance(self.settings.get("checkpointing"), (list, tuple))
        self.check(
            model if has_names else _loss_alone(model),
            train_dataloader,
            optimizer=getattr(optimizer, "optimizer", optimizer),
            precision="amp-bf16" if args.bf16 else "amp-fp16" if args.fp16 else "fp32",
            accumulate=args.gradient_accumulation_steps,
            clip=bool(args.max_grad_norm),
            zero_grad="end",
            ddp=is_parallel,
        )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Follow Lightning's ``trainer``, which has its data loader and its optimizer, before the first step of ``pl_module``."""
        strategy = type(trainer.strategy).__name__
        if any(word in strategy for word in ("FSDP", "DeepSpeed", "ModelParallel")):
            _warn(_DIVIDED)
            return
        if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            _warn("Preflight forecasts the steps of one optimizer that Lightning calls; nothing was forecast")
            return
        self.check(
            _training_step(pl_module),
            trainer.train_dataloader,
            is_argument=True,
            optimizer=trainer.optimizers[0],
            precision=_PRECISIONS.get(str(trainer.precision), "fp32"),
            accumulate=trainer.accumulate_grad_batches,
            clip=bool(trainer.gradient_clip_val),
            zero_grad="before_backward",
            ddp="DDP" in strategy,
        )

    # --- the check

    def check(self, module: Any, loader: Any = None, *, is_argument: bool = False, **settings: Any) -> Forecast | None:
        """Return the forecast of a run of a module over the batches of a data loader; None where its step cannot be forecast, with a warning.

        Args:
            module: a ``torch.nn.Module``; it is forecast in training mode, and left as it is.
            loader: a ``torch.utils.data.DataLoader``; not needed with an ``example``.
            is_argument: the module takes the batch whole, as one argument.
            settings: arguments of `foreshape.forecast`; the constructor's go before them.

        Raises:
            MemoryPlanError: a batch is expected not to fit. The message has the batch, and one that would fit.
            SchemaError: a setting is wrong, the batches cannot be read, or no ``device`` is named on a machine without a GPU.
        """
        from foreshape.apps.forecast import forecast
        from foreshape.apps.forecast.forecast_results import reserved_text
        from foreshape.apps.training.callbacks.coming_batches import coming_batches

        _refuse_unknown("Preflight.check takes", settings)
        device = _this_card() if self.device is None else self.device
        batches: ComingBatches | None = None
        example, lengths = self.example, self.lengths
        if example is None:
            batches = coming_batches(loader)
            example, lengths = batches.example, batches.sizes
        modes = {part: part.training for part in module.modules()}
        module.train()
        try:
            call = _as_argument(example) if is_argument else example
            arguments: dict[str, Any] = {"device": device, "lengths": lengths, **settings, **self.settings}
            prediction = forecast(module, call, **arguments)
        except MemoryPlanError as error:
            _warn(f"Preflight could not forecast this run, which goes on: {error}")
            return None
        finally:
            for part, mode in modes.items():
                part.training = mode
        if batches is not None and batches.is_first_alone:
            prediction = dataclasses.replace(prediction, notes=(_FIRST_ALONE, *prediction.notes))
            _warn(f"Preflight: {_FIRST_ALONE}")
        self.forecast = prediction
        if prediction.dies_at is not None:
            raise MemoryPlanError(_refusal(prediction, batches))
        if not prediction.fits:
            words = f"{byte_text(prediction.available)} are free for torch, which reserves {reserved_text(prediction)}"
            _warn(f"this run may not fit on {prediction.card.name}: {words}")
        return prediction


def _refuse_unknown(words: str, settings: Iterable[str]) -> None:
    from foreshape.apps.forecast import forecast

    names = inspect.signature(forecast).parameters
    for name in settings:
        if name not in names:
            raise SchemaError(f"{words} settings of fs.forecast; seen {name}={did_you_mean(name, names)}")


def _imported(name: str) -> Any:
    """Return a trainer's package. Raise `ExecutionError` where it is missing, with the line to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise ExecutionError(f"Preflight is for a trainer of the package {error.name}, which is not here: pip install {error.name}") from error


def _refusal(prediction: Forecast, batches: ComingBatches | None) -> str:
    """Return the words about a batch that does not fit: which it is, what it takes, and what would fit."""
    number = cast("int", prediction.dies_at)
    step, largest = prediction.steps[number], prediction.largest
    has_lengths = step.length is not None and step.length > 0
    place = f"batch {number} of {len(prediction.steps)} (from 0)" if batches is None else batches.place(number)
    length = f" of length {step.length}" if has_lengths else ""
    reserved, available = byte_text(step.reserved), byte_text(prediction.available)
    examples = f"{step.batch} example{'' if step.batch == 1 else 's'}{length}"
    lines = [f"{place} will not fit on {prediction.card.name}: {examples} would have torch reserve {reserved}, and {available} are there"]
    if largest is not None and largest.batch:
        tokens = f", or {largest.tokens} padded tokens of any length" if largest.tokens else ""
        at_length = f" of length {largest.length}" if largest.length else ""
        lines.append(f"    would fit: {largest.batch} example{'' if largest.batch == 1 else 's'}{at_length}{tokens}")
    elif largest is not None:
        lines.append("    not even one example fits")
    helpful = [advice for advice in prediction.advice if advice.fits]
    lines += [f"    would help: {advice}" for advice in helpful]
    if not helpful:
        lines += [f"    would help, all together: {advice}" for advice in prediction.advice if " + " in advice.change]
    return "\n".join(lines)


def _as_argument(example: Any) -> Any:
    """Return a batch, or a function to one, as the only argument of a call."""
    if not callable(example) or hasattr(example, "shape"):
        return (example,)
    function: Any = example

    def build(batch: int, length: int | None) -> tuple[Any]:
        return (function(batch, length),)

    return build


def _training_step(module: Any) -> Any:
    """Return a module that calls the training step of Lightning's module."""
    from foreshape.interop.torch.untyped_torch import torch

    class LightningStep(torch.nn.Module):
        def forward(self, batch: Any) -> Any:
            return self.network.training_step(batch, 0)

    step = LightningStep()
    step.network = module
    return step


def _loss_alone(module: Any) -> Any:
    """Return a module that gives the loss of transformers' module alone: its trainer drops the other results, as scores, before the backward pass."""
    from foreshape.apps.forecast.traced_step import loss_of
    from foreshape.interop.torch.untyped_torch import torch

    class TrainerStep(torch.nn.Module):
        def forward(self, *inputs: Any, **named: Any) -> Any:
            return loss_of(self.network(*inputs, **named))

    step = TrainerStep()
    step.network = module
    return step


def _this_card() -> Card:
    """Return this machine's GPU, with the bytes that are free on it or reserved by this process.

    Raises:
        SchemaError: there is none.
    """
    from foreshape.apps.forecast import Card
    from foreshape.interop.torch.untyped_torch import torch

    if not torch.cuda.is_available():
        raise SchemaError("there is no GPU here: Preflight(device=...) names one, as 'H100-80GB', or its bytes, as '24GiB'")
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    available = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    return Card(properties.name, available, (properties.major, properties.minor), _UNLOADED_KERNELS)


def _warn(words: str) -> None:
    warnings.warn(words, ForeshapeWarning, stacklevel=3)
