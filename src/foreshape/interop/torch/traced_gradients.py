"""Gradients of a network's own, recorded in its trace beside its results: of ``torch.autograd.Function``, and of hooks on tensors, parameters and modules.

torch.export records a forward pass. Here each backward is called as well, on stand-ins for the gradients to come. Its operators stand in the graph between
``gradient_of`` and ``own_gradient``, imported by `foreshape.interop.torch.imported_gradients`.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, cast

from foreshape.core.values.torch_private import private
from foreshape.errors import SchemaError
from foreshape.interop.torch.inner_gradients import InnerGradientAsked, computed_inside, inner_gradients
from foreshape.interop.torch.node_sites import calling_site, of_torch
from foreshape.interop.torch.recorded_loops import LongLoop
from foreshape.interop.torch.replaced import replaced
from foreshape.interop.torch.untyped_torch import defined_operators, is_of, own_operators, torch
from foreshape.language.program.call_site import call_site

_LINK: Final = "(Tensor[] xs, Tensor[] ys, Tensor[] results, int[] places, str subject, str refusal) -> Tensor[]"
SCHEMAS: Final = {"gradient_of": "(Tensor y) -> Tensor", "outer_gradient": "(Tensor y) -> Tensor", "own_gradient": _LINK, "hooked_gradient": _LINK}
"""``gradient_of`` a result is its coming gradient; ``outer_gradient`` one known elsewhere alone; ``own_gradient`` returns the results ``ys``, and sends to
``xs[places]`` the gradients ``results``; ``hooked_gradient`` is for tensors in use already, the ones of its ``gradient_of``."""
Backward = Callable[[list[Any]], Sequence[Any]]
"""Returns the gradients of some tensors, None for none, from the ones of the results."""
_MODE: Final[Any] = importlib.import_module("torch.overrides").TorchFunctionMode
_FUNCTIONS: Final[Any] = importlib.import_module("torch.autograd.function")
_REQUIRES_GRAD: Final[Any] = torch.Tensor.requires_grad.__get__
_OF_MODULES: Final[Any] = importlib.import_module("torch.nn.modules._functions").BackwardHookFunction


def define_gradients(fragment: Any) -> None:
    """Define these operators in torch."""
    for name, schema in SCHEMAS.items():
        fragment.define(name + schema)
        run = _alike_each if schema is _LINK else torch.zeros_like
        fragment.impl(name, run, "CompositeExplicitAutograd")
        own_operators().register_fake(f"foreshape::{name}", run, lib=fragment)
    for name in ("gradient_of", "hooked_gradient"):
        importlib.import_module("torch.fx.node").has_side_effect(getattr(torch.ops.foreshape, name).default)


def _alike_each(xs: Any, ys: Any, results: Any, places: Any, subject: str, refusal: str) -> Any:
    return [y.clone() for y in ys]


class TracedGradients:
    """The gradients of one trace.

    Attributes:
        notes: hooks called in torch alone, in words, each with its line.
        inputs: the id of a module's hooks in a call -> its inputs.
        inner: gradients within the forward pass are traced, by `inner_gradients`.
        asked: the code of the network, or of a gradient of its own, depends on what requires a gradient, and a tensor met there requires none.
    """

    def __init__(self, inner: bool = False) -> None:
        self.inner, self.asked = inner, False
        self.notes: dict[str, None] = {}
        self.inputs: dict[int, list[Any]] = {}

    def note(self, words: str) -> None:
        """Note a hook left out by the program, at the network's line."""
        site = call_site(calling_site())
        self.notes[words if site is None else f"{words}, at {site.short()}"] = None


# --- backward passes in a trace


class _KeptMode(_MODE):
    """Changes of torch's mode for gradients, left out of a trace."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is private.set_grad_enabled:
            _set_gradients(args[0])
            return None
        return func(*args, **(kwargs or {}))


def _set_gradients(enabled: bool) -> None:
    with private.DisableTorchFunction():
        private.set_grad_enabled(enabled)


@contextmanager
def _without_gradients() -> Generator[None]:
    """Switch gradients off, unseen by a trace."""
    before = torch.is_grad_enabled()
    _set_gradients(False)
    try:
        with _KeptMode():
            yield
    finally:
        _set_gradients(before)


def _link(xs: Sequence[Any], ys: Sequence[Any], backward: Backward, subject: str, of: str = "own_gradient") -> list[Any]:
    """Record the backward of ``ys``, and return them with this gradient. ``subject``: whose it is, in words."""
    own = defined_operators()
    gradients = [own.gradient_of(y) for y in ys]
    results, places, refusal = list[Any](), list[int](), ""
    try:
        for place, (x, gradient) in enumerate(zip(xs, backward(gradients), strict=True)):
            if isinstance(gradient, torch.Tensor):
                gradient = gradient if gradient.shape == x.shape else gradient.sum_to_size(x.shape)
                results.append(gradient if gradient.dtype == x.dtype else gradient.to(x.dtype))
                places.append(place)
    except (LongLoop, InnerGradientAsked):
        raise
    except Exception as error:  # of the backward's own code, or torch's about what cannot be traced
        said = next(iter(str(error).strip().splitlines()), "")
        refusal = f"{type(error).__name__}: {said[:200]}"
        results, places = [], []
    return list(getattr(own, of)(list(xs), list(ys), results, places, subject, refusal))


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


# --- torch.autograd.Function


class _TracedContext(_FUNCTIONS.FunctionCtx):
    """The ``ctx`` of a Function in a trace: its tensors are there at once."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(_is_differentiable(one) and one.requires_grad for one in given)
        self.to_save: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Any, ...] = ()
        self.materialize_grads = True
        self.results: tuple[Any, ...] = ()
        """The results of the forward, before they have a gradient."""

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(self.to_save)

    saved_variables = saved_tensors


def _run_function(told: TracedGradients, function: Any, ctx: _TracedContext, given: Sequence[Any], subject: str) -> tuple[Any, list[Any]]:
    """Return the results of a Function with its gradient, and the ones without any."""
    if function.setup_context is not _FUNCTIONS.Function.setup_context:
        results = function.forward(*given)
        function.setup_context(ctx, tuple(given), results)
    else:
        results = function.forward(ctx, *given)
    listed: list[Any] = list(cast("Any", results)) if isinstance(results, tuple) else [results]
    stopped = [at for at, one in enumerate(listed) if _is_differentiable(one) and any(one is other for other in ctx.non_differentiable)]
    at = [n for n, one in enumerate(listed) if _is_differentiable(one) and n not in stopped]
    places = [n for n, one in enumerate(given) if _is_differentiable(one)]
    before = dict(enumerate(listed))
    ctx.results = tuple(listed)
    for n in (*at, *stopped):
        listed[n] = listed[n].detach()

    def backward(gradients: list[Any]) -> list[Any]:
        if ctx.dirty_tensors:
            raise NotImplementedError("it changes its input in place (mark_dirty)")
        coming = dict(zip(at, gradients, strict=True))
        none = torch.zeros_like if ctx.materialize_grads else _none
        handed = [coming[n] if n in coming else none(one) if isinstance(one, torch.Tensor) else None for n, one in enumerate(listed)]
        found: Any = _backward_of(function)(ctx, *handed)
        listed_gradients = _as_tuple(found)
        return [listed_gradients[n] if n < len(listed_gradients) else None for n in places]

    if at and places:
        if len(at) > 1 and not ctx.materialize_grads:
            told.note(
                f"the backward of {subject} gets a gradient for each of its results, zeros for unused ones, and set_materialize_grads(False) asks for none"
            )
        linked = _link([given[n] for n in places], [listed[n] for n in at], backward, subject)
        for n, one in zip(at, linked, strict=True):
            listed[n] = one
            if any(before[n] is other for other in ctx.dirty_tensors):
                before[n].copy_(one)  # the network may go on with the input that was changed
    return tuple(listed) if isinstance(results, tuple) else listed[0], [listed[n] for n in stopped]


def _none(_: Any) -> None:
    return None


def _as_tuple(value: Any) -> Any:
    return value if is_of(value, tuple) else (value,)


def _passed(_: Any, *gradients: Any) -> Any:
    return gradients


def _backward_of(function: Any) -> Any:
    return function.backward if function.backward is not _FUNCTIONS.Function.backward else function.vjp


def _applied(told: TracedGradients, before: Any, function: Any, given: Sequence[Any]) -> Any:
    """Return the results of a Function in a trace. Gradients within the trace, as of torch.autograd.grad, call its own backward."""
    ctx = _TracedContext(given)
    told.asked |= not all(ctx.needs_input_grad[n] for n, one in enumerate(given) if _is_differentiable(one))
    line = call_site(calling_site())
    subject = f"the autograd.Function {function.__name__}{'' if line is None else f' at {line.short()}'}"

    def forward(around: Any, *tensors: Any) -> Any:
        with _without_gradients():
            results, stopped = _run_function(told, function, ctx, tensors, subject)
        around.mark_non_differentiable(*stopped)
        return results

    def backward(_: Any, *gradients: Any) -> Any:
        return _backward_of(function)(ctx, *gradients)

    made = type(function.__name__, (_FUNCTIONS.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    results = before(made, *given)
    returned = dict(zip(map(id, ctx.results), _as_tuple(results), strict=False))
    ctx.to_save = tuple([returned.get(id(saved), saved) for saved in ctx.to_save])  # as results they have a gradient, for a gradient of gradients
    return results


# --- hooks


def _place(function: Any) -> str:
    """Return the name and the line of a hook."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return name if code is None else f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def _hook(told: TracedGradients, tensor: Any, hooks: Sequence[Any], subject: str) -> None:
    """Record hooks on the gradient of a tensor, perhaps in use already."""
    called: list[Any] = []

    def backward(gradients: list[Any]) -> list[Any]:
        found = gradients[0]
        for hook in hooks:
            result = hook(found)
            called.append(result)
            found = found if result is None else result
        return [found]

    words = f"{subject} with the hook {', '.join(map(_place, hooks))}"
    with _without_gradients():
        _link([tensor], [tensor], backward, words, "hooked_gradient")
    if called and all(one is None for one in called):
        told.note(f"the hook {', '.join(map(_place, hooks))} on the gradient of {subject} changes nothing, and is not called")


class _TensorHooks(_MODE):
    """Hooks put on tensors by a network's code."""

    def __init__(self, told: TracedGradients) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.told = told

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.autograd.grad and not private.is_functorch_active():
            if not self.told.inner:
                raise InnerGradientAsked
            return computed_inside(func, *args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        if func is torch.Tensor.register_hook:
            site = call_site(calling_site())
            hooks: list[Any] = [*args[1:], *(kwargs or {}).values()]
            subject = f"the tensor at {'a line of torch' if site is None else site.short()}"
            _hook(self.told, args[0], hooks, subject)
            out.remove = _refusal(f"the hook {', '.join(map(_place, hooks))} on {subject} is removed again in the forward pass: put it on where it acts alone")
        elif func == _REQUIRES_GRAD and not out and _is_differentiable(args[0]) and torch.is_grad_enabled():
            self.told.asked |= _is_asked_by_network()
        elif func is torch.Tensor.register_post_accumulate_grad_hook:
            self.told.note("a hook behind the sum of a gradient (register_post_accumulate_grad_hook) is not called")
        return out


def _is_asked_by_network() -> bool:
    """Tell whether the function called by a mode of torch is called by the network's own code."""
    frame: Any = inspect.currentframe()
    while frame.f_code.co_name in ("_is_asked_by_network", "__torch_function__"):
        frame = frame.f_back
    return not of_torch(frame.f_code.co_filename)


def _refusal(words: str) -> Callable[..., None]:
    def refuse() -> None:
        raise SchemaError(words)

    return refuse


def _hooks_of_module(told: TracedGradients, before: Any, tensors: Sequence[Any]) -> Any:
    """Return the inputs or the results of a module with backward hooks, the gradients changed by them."""
    frame: Any = inspect.currentframe()
    while frame.f_code.co_name != "_apply_on_tensors":
        frame = frame.f_back
    hooks, of_results = frame.f_locals["self"], "setup_output_hook" in frame.f_locals["fn"].__qualname__
    module, count, places = hooks.module, len(frame.f_locals["args"]), list(frame.f_locals["tensors_idx"])
    if getattr(module, "is_around_network", False) or type(module).__module__.startswith("torch.export"):
        return before(_OF_MODULES, *tensors)  # the hooks of all modules see no module of ours, nor of an export
    at = [n for n, one in enumerate(tensors) if _is_differentiable(one) and one.requires_grad]
    listed = list(tensors)
    named = [_place(one) for one in (*hooks.user_pre_hooks, *hooks.user_hooks)]
    subject = f"{type(module).__name__} with the backward hook {', '.join(named)}"
    called: list[bool] = []

    def packed(gradients: Sequence[Any]) -> tuple[Any, ...]:
        out: list[Any] = [None] * count
        for n, one in zip(at, gradients, strict=True):
            out[places[n]] = one
        return tuple(out)

    def changed(gradients: list[Any]) -> list[Any]:
        found: Any = packed(gradients)
        for hook in hooks.user_pre_hooks if of_results else ():
            result = hook(module, found)
            called.append(result is not None)
            found = found if result is None else _as_tuple(result)
        return [found[places[n]] for n in at]

    def forward(around: Any, *given: Any) -> Any:
        with _without_gradients():
            linked = _link([given[n] for n in at], [given[n] for n in at], changed, subject)
        for n, one in zip(at, linked, strict=True):
            listed[n] = one
        around.mark_non_differentiable(*[one for n, one in enumerate(given) if n not in at and isinstance(one, torch.Tensor)])
        return tuple(listed)

    made = type("Hooked", (_FUNCTIONS.Function,), {"forward": staticmethod(forward), "backward": staticmethod(_passed)})
    out = before(made, *tensors)
    if not of_results:
        told.inputs[id(hooks)] = [hooks, packed, [out[n] for n in at], at, places]
    elif hooks.user_hooks:
        _hooks_of_inputs(told, hooks, packed([out[n] for n in at]), subject, called)
    if of_results and not any(called):
        told.note(f"the backward hook {', '.join(named)} of {type(module).__name__} changes nothing, and is not called")
    return before(_OF_MODULES, *out)


def _hooks_of_inputs(told: TracedGradients, hooks: Any, results: Sequence[Any], subject: str, called: list[bool]) -> None:
    """Record the hooks of a module on the gradients of its inputs."""
    known = told.inputs.pop(id(hooks), None)
    if known is None:
        told.asked = True
        return
    _, packed, xs, at, places = known

    def backward(gradients: list[Any]) -> list[Any]:
        found: Any = packed(gradients)
        of_results = tuple(None if one is None else defined_operators().outer_gradient(one) for one in results)
        for hook in hooks.user_hooks:
            result = hook(hooks.module, found, of_results)
            called.append(result is not None)
            found = found if result is None else _as_tuple(result)
        return [found[places[n]] for n in at]

    with _without_gradients():
        _link(xs, xs, backward, subject, "hooked_gradient")


def _hooked_parameters(told: TracedGradients, module: Any) -> Callable[..., None]:
    """Return a function to record the hooks of parameters, called as the forward pass begins."""
    found: list[tuple[Any, str, str, list[Any]]] = []
    seen: set[int] = set()
    for path, part in module.named_modules():
        for name, parameter in part._parameters.items():
            if parameter is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            full = f"{path}.{name}".lstrip(".").removeprefix("network." if getattr(module, "is_around_network", False) else "")
            if parameter._backward_hooks:
                found.append((part, name, f"the parameter {full}", list(parameter._backward_hooks.values())))
            after: dict[Any, Any] = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
            for hook in after.values():
                told.notes[f"the hook {_place(hook)} behind the sum of the gradient of {full} (register_post_accumulate_grad_hook) is not called"] = None
        if part._backward_hooks and part._is_full_backward_hook is False:
            named = ", ".join(map(_place, part._backward_hooks.values()))
            words = f"the backward hook {named} of {type(part).__name__} (register_backward_hook, which torch has replaced by register_full_backward_hook)"
            told.notes[f"{words} is not called"] = None

    def begin(*_: Any) -> None:
        for part, name, subject, hooks in found:
            _hook(told, getattr(part, name), hooks, subject)

    return begin


# --- in an export


@contextmanager
def traced_gradients(module: Any, inner: bool = False) -> Generator[TracedGradients]:
    """Record gradients of a network's own within the block, and note the others. ``inner``: as of `TracedGradients`."""
    gradients = TracedGradients(inner)
    base, before = private.SingleLevelFunction, private.FunctionBase.__dict__["apply"]

    def original(function: Any, *given: Any) -> Any:
        return before.__get__(None, function)(*given)

    def apply(function: Any, *given: Any, **named: Any) -> Any:
        if named or not torch.is_grad_enabled() or private.is_functorch_active():
            return before.__get__(None, function)(*given, **named)
        if function is _OF_MODULES:
            return _hooks_of_module(gradients, original, given)
        if function.__module__ == "torch.utils.checkpoint":
            run, _, *rest = given
            return run(*rest)
        return _applied(gradients, original, function, given)

    hook = module.register_forward_pre_hook(_hooked_parameters(gradients, module), prepend=True)
    try:
        with replaced(base, apply=classmethod(apply)), inner_gradients() if inner else nullcontext(), _TensorHooks(gradients):
            yield gradients
    finally:
        hook.remove()
