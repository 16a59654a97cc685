"""Training steps run on tensors without numbers: the events of their memory, in torch's own order.

The module, its loss and torch's optimizer run under torch's FakeTensorMode as tensors of the processor; `cuda_choices` has them compute by the operators
of CUDA. Python's references, autograd's and the optimizer's decide how long each tensor lives, as in a real run.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from foreshape.apps.forecast.cards import Card
from foreshape.apps.forecast.cuda_choices import CudaChoices, Workspaces, cuda_autocast, no_packed_sequences
from foreshape.apps.forecast.gathered_units import GatheredUnits
from foreshape.apps.forecast.gradient_buckets import GradientBuckets
from foreshape.apps.forecast.optimizers import build_optimizer, update
from foreshape.apps.forecast.parallel import ParallelSettings
from foreshape.apps.forecast.processor_modes import OnProcessor, callers_modes_left, casts_in_place, plain_tensors
from foreshape.apps.forecast.record import Record
from foreshape.apps.forecast.recorder import Recorder, line_of
from foreshape.core.hints import did_you_mean
from foreshape.errors import MemoryPlanError, SchemaError
from foreshape.interop.torch.untyped_torch import is_list, is_of, pytree, torch

_NEED_NUMBERS: Final = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
_FAKE: Final[Any] = importlib.import_module("torch._subclasses").FakeTensorMode
_LOCK: Final = threading.RLock()
"""One trace at a time: it changes torch's default type, the constructor of autocast, warnings and a logger for all threads."""

_MOST_REPEATED: Final = 32
_FEW_REPEATED: Final = 8
_LITTLE: Final = 1 << 16
"""Up to so many bytes, as of a list of losses, fewer steps are repeated to see whether a later one frees them."""


class Settings(NamedTuple):
    """A training loop, as `foreshape.forecast` takes it."""

    module: Any
    example: Callable[[int, int | None], Any]
    loss: Any
    optimizer: Any
    card: Card | None
    """None: the processor."""
    precision: str
    checkpointing: Sequence[str] | bool
    accumulate: int
    zero_grad: str
    clip: bool
    keep_outputs: bool
    parallel: ParallelSettings | None


def trace(settings: Settings, sizes: Sequence[tuple[int, int | None]], updates: int | None = None) -> Record:
    """Return the record of a step for each of these batch sizes and lengths; only so many first ones are updates, for these do not depend on the sizes.

    The last of these is repeated where a module keeps tensors of more steps, until a step frees as many as it leaves.

    Raises:
        MemoryPlanError: torch refuses the module, its loss or its optimizer without numbers; the message has the user's line.
        SchemaError: the example has no tensors.
    """
    recorder = Recorder(Workspaces(settings.card) if settings.card is not None else None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_LOCK)
        stack.enter_context(callers_modes_left())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of tensors without numbers, and of autocast on the processor
        stack.enter_context(_without_log("torch._subclasses.fake_tensor"))  # a mistake is told once, by the error
        mode = stack.enter_context(_FAKE(allow_non_fake_inputs=True))
        run = _TracedRun(settings, recorder, mode)
        stack.enter_context(no_packed_sequences(run.has_positions))
        try:
            if settings.card is not None or settings.optimizer is not None:  # without gradients torch's layers have faster ways where no mode is on
                stack.enter_context(OnProcessor())
            if settings.card is not None:
                stack.enter_context(CudaChoices(settings.card, recorder))
                stack.enter_context(cuda_autocast())
            stack.enter_context(recorder)
            run.build()
            run.mark()
            for number, (batch, length) in enumerate(sizes):
                run.step(batch, length, is_update=updates is None or number < updates or settings.zero_grad == "end")
                run.mark()
                if number + 1 == updates:
                    run.repeat(batch, length)
            recorder.is_on = False
        except (MemoryPlanError, SchemaError):
            raise
        except Exception as error:  # torch's own and the user's, of many classes
            raise _refused(error, recorder) from error
    return recorder.record


@contextlib.contextmanager
def _without_log(name: str) -> Generator[None]:
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _refused(error: Exception, recorder: Recorder) -> MemoryPlanError:
    line = line_of((frame.f_code.co_filename, number) for frame, number in reversed(list(traceback.walk_tb(error.__traceback__)))) or recorder.line
    place = line or "an unknown line"
    if type(error).__name__ in _NEED_NUMBERS:
        cause = "a number of a tensor is asked for here, as `.item()`, `if tensor:` and `x[x > 0]` do"
        return MemoryPlanError(f"the training step cannot run on tensors without numbers, at {place}: {cause}. Forecast the module without this line")
    return MemoryPlanError(f"the training step fails, at {place}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}")


class _TracedRun:
    def __init__(self, settings: Settings, recorder: Recorder, mode: Any) -> None:
        self.settings, self.recorder, self.mode = settings, recorder, mode
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.precision.removeprefix("amp-"))
        self.lower = half if settings.precision.startswith("amp-") else None
        self.dtype = half if self.lower is None else None
        self.inputs: Any = None
        self.target: Any = None
        self.outputs: Any = None
        self.loss: Any = None
        self.scale: list[Any] = []
        self.optimizer: Any = None
        self.buckets: GradientBuckets | None = None
        self.units: GatheredUnits | None = None

    def has_positions(self) -> bool:
        """Tell whether the batch names positions of its own, as of packed sequences."""
        inputs: Any = self.inputs
        return isinstance(inputs, Mapping) and "position_ids" in cast("Mapping[str, Any]", inputs)

    # --- before the first step

    def build(self) -> None:
        """Make the module and the optimizer of tensors without numbers."""
        settings, recorder = self.settings, self.recorder
        recorder.is_on = False
        self.module = self._module()
        recorder.is_on = True
        parameters = dict(self.module.named_parameters())
        parallel = settings.parallel
        if parallel is not None and parallel.kind == "fsdp":
            modules = dict(self.module.named_modules())
            unknown = [name for name in parallel.units if name not in modules]
            if unknown:
                raise SchemaError.must("units of fsdp", "names of modules", ", ".join(unknown), hint=did_you_mean(unknown[0], modules))
            self.units = GatheredUnits(recorder, self.module, parallel, {name: modules[name] for name in parallel.units or block_names(self.module)})
            parameters = self.units.shards
        for name, parameter in parameters.items():
            recorder.count(parameter, "parameter", name)
        for name, buffer in [*self.module.named_buffers(), *plain_tensors(self.module)]:
            recorder.count(buffer, "buffer", name)
        _checkpoint(self.module, settings.checkpointing)
        self.parameters = {name: p for name, p in parameters.items() if p.requires_grad}
        if parallel is not None and parallel.kind == "ddp" and settings.optimizer is not None:
            self.buckets = GradientBuckets(recorder, self.parameters, parallel)
        recorder.phase = "optimizer"
        if settings.optimizer is not None:
            is_sparse = any(getattr(part, "sparse", False) for part in self.module.modules())
            self.optimizer = build_optimizer(settings.optimizer, self._original, parameters, together=settings.card is not None and not is_sparse)
        if settings.precision == "amp-fp16" and settings.card is not None and settings.optimizer is not None:
            for name in ("scale", "growth_tracker"):
                recorder.take(4, "optimizer", name)

    def _module(self) -> Any:
        original = self.settings.module
        self._original = None
        if not isinstance(original, torch.nn.Module):
            default = torch.get_default_dtype()
            if self.dtype is not None:
                torch.set_default_dtype(self.dtype)
            try:
                with OnProcessor(), casts_in_place():
                    module = original()
            finally:
                torch.set_default_dtype(default)
            if not isinstance(module, torch.nn.Module):
                raise SchemaError.must("module", "an nn.Module or a function that returns one", type(module).__name__)
            original = module  # copied too: views of parameters deep-copied without numbers do not share their storages
        else:
            self._original = original
        memo: dict[int, Any] = {}
        storages: dict[int, Any] = {}
        for tensor in [*original.parameters(), *original.buffers(), *(tensor for _, tensor in plain_tensors(original))]:
            if id(tensor) not in memo:
                memo[id(tensor)] = self._empty(tensor, storages)
        return copy.deepcopy(original, memo)

    def _empty(self, tensor: Any, storages: dict[int, Any]) -> Any:
        """Return the like of a tensor without numbers, on the processor; tensors of one storage share one again."""
        dtype = self.dtype if self.dtype is not None and tensor.is_floating_point() else tensor.dtype
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in storages:
            storages[key] = torch.empty(storage.nbytes() // tensor.element_size(), dtype=dtype)
        out = storages[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()
        if isinstance(tensor, torch.nn.Parameter):
            out = torch.nn.Parameter(out, requires_grad=tensor.requires_grad)
        return out

    # --- a step

    def mark(self) -> None:
        """End a step, and begin the next."""
        self.recorder.settle()
        self.recorder.record.mark()

    def repeat(self, batch: int, length: int | None) -> None:
        """Run more updates as long as each leaves more tensors behind, and two behind the first that does not."""
        record, further = self.recorder.record, 2
        while (growth := record.growth()) or (record.repeated and further):
            if growth and record.repeated >= (_MOST_REPEATED if growth > _LITTLE else _FEW_REPEATED):
                return
            further = 2 if growth else further - 1
            self.step(batch, length, is_update=True)
            self.mark()
            record.repeated += 1

    def step(self, batch: int, length: int | None, *, is_update: bool) -> None:
        """Run one update, of its batches; without ``is_update`` up to it."""
        settings = self.settings
        if settings.optimizer is None:
            self._load(batch, length)
            with torch.no_grad():
                self._forward(keep=settings.keep_outputs)
            return
        if settings.zero_grad in ("start", "keep"):
            self.optimizer.zero_grad(set_to_none=settings.zero_grad == "start")
        for _ in range(settings.accumulate):
            self._load(batch, length)
            self._part()
        if is_update:
            self._update()
        if settings.zero_grad == "end":
            self.optimizer.zero_grad()

    def _load(self, batch: int, length: int | None) -> None:
        """Copy a batch to the card; the last one lives until the new one is there."""
        self.recorder.phase = "input"
        self.recorder.is_on = False
        with OnProcessor():
            loaded = self.settings.example(batch, length)
        self.recorder.is_on = True
        values, form = pytree().tree_flatten(loaded)
        if not any(isinstance(value, torch.Tensor) for value in values):
            raise SchemaError.must("example", "a batch with tensors", f"{type(loaded).__name__} without one")
        placed = pytree().tree_unflatten([self._placed(value) for value in values], form)
        if self.settings.loss is None:
            self.inputs = placed
        elif is_list(placed) and len(placed) == 2:
            self.inputs, self.target = placed
        else:
            raise SchemaError.must("example", "a pair of inputs and a target, for the loss", type(loaded).__name__)
        self.recorder.phase = "activation"

    def _placed(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        is_cast = self.dtype is not None and value.is_floating_point()
        return torch.empty_like(value, dtype=self.dtype if is_cast else value.dtype, device="cpu")

    def _forward(self, keep: bool) -> Any:
        if self.buckets is not None:
            self.buckets.before_forward()
        autocast = torch.autocast("cpu", self.lower) if self.lower is not None else contextlib.nullcontext()
        with autocast:
            outputs = _called(self.module, self.inputs)
            loss = self.settings.loss(outputs, self.target) if self.settings.loss is not None else None
            if self.settings.optimizer is not None:
                loss = loss_of(outputs) if loss is None else loss
                if self.settings.accumulate > 1:
                    loss = loss / self.settings.accumulate
        if keep:
            self.outputs, self.loss = outputs, loss
        return outputs, loss

    def _part(self) -> None:
        outputs, loss = self._forward(self.settings.keep_outputs)
        self._backward(loss)
        del outputs, loss

    def _backward(self, loss: Any) -> None:
        if self.settings.zero_grad == "before_backward":
            self.optimizer.zero_grad()
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad or loss.numel() != 1:
            description = f"a tensor of {list(loss.shape)} without a gradient" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise MemoryPlanError(f"the loss must be one number that depends on a parameter; seen {description}")
        is_scaled = self.settings.precision == "amp-fp16" and self.settings.card is not None
        self.recorder.phase = "activation"
        scaled = loss * 1.0 if is_scaled else loss
        self.recorder.phase = "backward"
        torch.autograd.backward([scaled])
        if self.units is not None:
            self.units.end_backward()
        self.recorder.phase = "optimizer"
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                self.recorder.rename(parameter.grad, "gradient", name)

    def _update(self) -> None:
        """Unscale, clip and update."""
        recorder, settings = self.recorder, self.settings
        recorder.settle()
        recorder.phase, recorder.line = "optimizer", ""
        unscaling: list[int] = []
        if settings.precision == "amp-fp16" and settings.card is not None:
            unscaling = [recorder.take(4, "optimizer", name) for name in ("found_inf", "inverse_scale")]
        if settings.clip:
            torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), 1.0, foreach=settings.card is not None or None)
        with contextlib.nullcontext() if self.lower is None else torch.autocast("cpu", enabled=False):
            update(self.optimizer)
        for slot in unscaling:
            recorder.record.free(slot)


def _called(module: Any, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)


def loss_of(outputs: Any) -> Any:
    """Return a module's own loss: its one number, ``.loss``, ``["loss"]``, or the sum of the means of its floating results."""
    loss: Any = cast("Mapping[str, Any]", outputs).get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    tensors = [value for value in pytree().tree_leaves(outputs) if isinstance(value, torch.Tensor) and value.is_floating_point() and value.requires_grad]
    if not tensors:
        raise MemoryPlanError("no result of the module depends on a parameter")
    if tensors[0].numel() == 1:
        return tensors[0]
    return sum([value.float().mean() for value in tensors])


def _checkpoint(module: Any, chosen: Sequence[str] | bool) -> None:
    """Have modules compute their activations again in the backward pass."""
    if not chosen:
        return
    names = block_names(module) if chosen is True else list(chosen)
    modules = dict(module.named_modules())
    unknown = [name for name in names if name not in modules]
    if unknown or not names:
        raise SchemaError.must("checkpointing", "names of modules", f"{unknown or 'a network without a list of equal blocks'}")
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
    for name in names:
        modules[name].forward = _recomputed(checkpoint, modules[name].forward)


def _recomputed(checkpoint: Any, forward: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return call


def block_names(module: Any) -> list[str]:
    """Return the names of modules in lists of equal ones, of the outermost lists."""
    lists: list[str] = []
    out: list[str] = []
    for name, part in module.named_modules():
        children: list[Any] = list(part.children())
        is_row = is_of(part, (torch.nn.ModuleList, torch.nn.Sequential)) and all(type(block) is type(children[0]) for block in children)
        if is_row and not any(name.startswith(path) for path in lists) and any(True for block in children for _ in block.children()):
            lists.append(f"{name}.")
            out += [f"{name}.{key}" for key, _ in part.named_children()]
    return out
