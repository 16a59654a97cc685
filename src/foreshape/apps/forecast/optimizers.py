"""The optimizer of a traced step: torch's own, over parameters without numbers, in its form on CUDA."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Generator, Mapping
from functools import cache
from types import FunctionType
from typing import Any, Final

from foreshape.errors import ForeshapeError, MemoryPlanError, SchemaError
from foreshape.interop.torch.untyped_torch import is_of, torch

_FUNCTION_MODE: Final[Any] = importlib.import_module("torch.overrides").TorchFunctionMode
_LOOPS: Final = ("Adafactor", "Muon")
"""Optimizers that update one parameter after the other on CUDA too, if nothing is said."""
_EIGHT_BIT: Final = ("AdamW8bit", "Adam8bit", "PagedAdamW8bit")


def build_optimizer(optimizer: Any, original: Any, parameters: Mapping[str, Any], *, together: bool) -> Any:
    """Return an optimizer over the parameters of a traced module.

    Args:
        optimizer: a name, an optimizer over the parameters of ``original``, or a function from parameters to one.
        original: the user's module, or None.
        parameters: of the traced one, by the same names.
        together: where neither ``foreach`` nor ``fused`` is set, all parameters are updated together, as torch does for parameters on CUDA.

    Raises:
        SchemaError: an unknown name; an optimizer over other parameters.
        MemoryPlanError: a named optimizer refuses the parameters, or calls the module again within its step.
    """
    trained = [p for p in parameters.values() if p.requires_grad]
    out: Any
    if isinstance(optimizer, str):
        with _told_by_name(optimizer):
            out = _class_by_name(optimizer)(trained)
    elif is_of(optimizer, torch.optim.Optimizer):
        out = _rebuilt(optimizer, original, parameters)
    elif callable(optimizer):
        out = optimizer(trained)
    else:
        raise SchemaError.must("optimizer", "a name in torch.optim, an optimizer, or a function from parameters to one", f"{optimizer!r:.100}")
    if type(out).__name__ == "LBFGS":
        raise MemoryPlanError("optimizer LBFGS calls the module again within its step, as often as the numbers ask for: its memory cannot be forecast")
    for group in out.param_groups:
        if together and type(out).__name__ not in _LOOPS and "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
    return out


def update(optimizer: Any) -> None:
    """Run a step of a traced optimizer. Where torch's own ones ask for a number, as Adafactor and ASGD do, it changes no sizes: an unknown one is 1.

    Raises:
        MemoryPlanError: one of torch's refuses the gradients.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        optimizer.step()
        return
    with _told_by_name(type(optimizer).__name__), _Ones():
        optimizer.step()


class _Ones(_FUNCTION_MODE):  # pyright: ignore[reportUntypedBaseClass]
    """Within it, the number of a tensor without numbers is 1."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            if func is not torch.Tensor.item or type(error).__name__ != "DataDependentOutputException":
                raise
            return 1.0 if args[0].is_floating_point() else 1


@contextlib.contextmanager
def _told_by_name(name: str) -> Generator[None]:
    """Tell the name of one of torch's optimizers in its errors, for no line is the user's."""
    try:
        yield
    except ForeshapeError:
        raise
    except Exception as error:
        raise MemoryPlanError(f"optimizer {name} cannot update this module: {str(error).strip()[:300]}") from error


def _class_by_name(name: str) -> Callable[[Any], Any]:
    if name in _EIGHT_BIT:
        return _eight_bit()
    cls: Any = getattr(torch.optim, name, None)
    classes: dict[str, Any] = {str(n): getattr(torch.optim, n) for n in dir(torch.optim)}
    names = [n for n in classes if is_of(getattr(classes[n], "step", None), FunctionType) and n != "Optimizer"]
    if name not in names:
        matches = [n for n in names if n.lower() == name.lower()]
        if not matches:
            raise SchemaError.one_of("optimizer", [*names, *_EIGHT_BIT], name)
        cls = getattr(torch.optim, matches[0])
    return lambda parameters: cls(parameters, **({"lr": 1e-3} if "lr" in inspect.signature(cls).parameters else {}))


def _rebuilt(optimizer: Any, original: Any, parameters: Mapping[str, Any]) -> Any:
    if original is None:
        raise SchemaError("an optimizer over parameters needs their module; with a function for the module give a name or a function for the optimizer")
    names = {id(p): name for name, p in original.named_parameters()}
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        if any(id(p) not in names for p in group["params"]):
            raise SchemaError("the optimizer has parameters that are not of this module")
        groups.append({**group, "params": [parameters[names[id(p)]] for p in group["params"]]})
    accepted = inspect.signature(type(optimizer).__init__).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    return type(optimizer)(groups, **defaults)


@cache
def _eight_bit() -> Any:
    """Return Adam with states of 8 bits, as in bitsandbytes: a byte for each number, and fp32 scales of blocks of 256; small tensors keep fp32 (modelled)."""

    class EightBitAdam(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            torch.optim.Optimizer.__init__(self, params, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None or self.state[p]:
                        continue
                    small = p.numel() < 4096
                    for name in ("state1", "state2"):
                        self.state[p][name] = torch.zeros_like(p, dtype=torch.float32 if small else torch.uint8)
                        if not small:
                            self.state[p][f"{name}_scale"] = torch.zeros(-(-p.numel() // 256))

    return EightBitAdam


def optimizer_name(optimizer: Any) -> str:
    """Return the name of an optimizer's class; empty of a function."""
    return optimizer if isinstance(optimizer, str) else "" if callable(optimizer) or optimizer is None else type(optimizer).__name__


def fused(name: str) -> Callable[[Any], Any]:
    """Return a function from parameters to the optimizer with one kernel for all."""
    return lambda parameters: getattr(torch.optim, name)(parameters, lr=1e-3, fused=True)
